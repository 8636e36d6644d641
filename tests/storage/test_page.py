"""The page of a checkpoint in an object store."""

import pytest
from starlette.testclient import TestClient

from statefx import Checkpoint
from statefx.storage import FolderStorage, storage_at
from statefx.ui import archive
from statefx.ui.site import Site
from statefx.ui.watched import Watched
from tests.storage.s3_server import as_users_have_it
from tests.ui.checkpoints import filled

pytestmark = pytest.mark.slow


@pytest.fixture
def checkpoint(between, tmp_path):
    with as_users_have_it(between.address) as made:
        url = made()
        folder, store = FolderStorage(filled(tmp_path / "checkpoint", 3)), storage_at(url)
        for each in folder.list():
            store.put(each.name, folder.read(each.name))
        yield Checkpoint(url)


def test_a_checkpoint_in_an_object_store_is_shown_and_not_changed(checkpoint):
    storage = storage_at(checkpoint.location)
    before = [(each.name, each.size_bytes) for each in storage.list()]
    site = Site()
    site.topologies["bank"] = Watched("bank", checkpoint, lambda: archive.observed(checkpoint))
    page = TestClient(site.app, base_url="http://127.0.0.1")
    found = page.get("/v1/topologies/bank").json()
    assert (found["checkpoint"], [each["txid"] for each in found["transactions"]]) == (checkpoint.location, [1, 2, 3])
    key = page.get("/v1/topologies/bank/state/key", params={"component": "balances", "key": "ann"}).json()
    assert key["rows"][0]["value"] == "303"
    assert page.get("/v1/topologies/bank/history").json()["generations"][0]["committed"] == 3
    assert page.get("/v1/topologies/bank/bundle").status_code == 200
    assert [(each.name, each.size_bytes) for each in storage.list()] == before
