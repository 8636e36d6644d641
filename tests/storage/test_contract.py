"""A folder and S3 pass one contract; storages that break it in one way do not."""

import urllib.request
from uuid import uuid4

import pytest

from statefx.errors import CheckpointError
from statefx.storage import FolderStorage
from statefx.storage.objects import ObjectStorage
from statefx.testing.storage_contract import StorageContract
from tests.storage.s3_server import s3_server


class TestFolder(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path):
        return FolderStorage(tmp_path / "checkpoint")


@pytest.fixture(scope="module")
def server():
    with s3_server() as address:
        yield address


@pytest.mark.slow
class TestS3(StorageContract):
    @pytest.fixture
    def storage(self, server, monkeypatch):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        bucket = f"b{uuid4().hex}"
        urllib.request.urlopen(urllib.request.Request(f"{server}/{bucket}", method="PUT")).close()
        options = {"endpoint": server, "region": "us-east-1", "client_options": {"allow_http": True}}
        return ObjectStorage(f"s3://{bucket}/checkpoints/word-count", options)


class Forgetful(FolderStorage):
    """Takes the last of several creators instead of the first."""

    def create(self, name, data):
        self.delete([name])
        super().create(name, data)


def test_a_store_that_lets_a_name_be_created_twice_is_found_out(tmp_path):
    with pytest.raises(CheckpointError, match="lets a name be created twice"):
        Forgetful(tmp_path).check()
