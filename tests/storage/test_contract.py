"""A folder and S3 pass one contract; storages that break it in one way do not."""

import subprocess
import sys
import threading

import pytest

from statefx.errors import AlreadyExistsError, CheckpointError
from statefx.storage import FolderStorage, Storage, folder, storage_at
from statefx.storage.contract import READERS
from tests.storage.s3_server import as_users_have_it
from tests.storage.storage_contract import StorageContract


class TestFolder(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path):
        return FolderStorage(tmp_path / "checkpoint")


@pytest.mark.slow
class TestS3(StorageContract):
    @pytest.fixture
    def storage(self, server):
        with as_users_have_it(server) as made:
            yield storage_at(made())


def test_a_name_with_the_bytes_of_another_is_created_once(tmp_path):
    storage = FolderStorage(tmp_path)
    storage.create("one", b"same")
    storage.create("other", b"other")
    for _ in range(2):  # equal bytes are an answer that was lost
        storage.create_alike("two", "one")
    assert storage.read("two") == b"same"
    with pytest.raises(AlreadyExistsError):
        storage.create_alike("two", "other")
    with pytest.raises(AlreadyExistsError):
        storage.create("two", b"other")
    with pytest.raises(FileNotFoundError):
        storage.create_alike("three", "none")
    assert [each.name for each in storage.list()] == ["one", "other", "two"]


FORKED = """
import os, sys
from statefx.storage import storage_at

storage = storage_at(sys.argv[1])
storage.put("a", b"")
if not os.fork():
    try:
        storage.read("a")
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.slow
def test_a_forked_process_is_told_and_does_not_hang(server):
    with as_users_have_it(server) as made:
        run = subprocess.run(
            [sys.executable, "-c", FORKED, made()], capture_output=True, text=True, timeout=60, check=True
        )
    assert run.stdout.startswith("StorageError this process was forked from one that had used an object store")


class Slow(FolderStorage):
    """Each of 16 readings waits for the others."""

    def __init__(self, root):
        super().__init__(root)
        self.all_here = threading.Barrier(READERS)

    def read(self, name, start=0, stop=None):
        self.all_here.wait(30)
        return super().read(name, start, stop)


@pytest.mark.slow
def test_sixteen_are_read_at_a_time(tmp_path):
    storage = Slow(tmp_path)
    names = [f"a/{number:03}" for number in range(2 * READERS)]
    for name in names:
        storage.put(name, name.encode())
    assert Storage.read_all(storage, names) == [name.encode() for name in names]


def test_a_folder_is_read_by_threads_only_if_it_is_slow(tmp_path, monkeypatch):
    storage = FolderStorage(tmp_path)
    names = [f"a/{number:03}" for number in range(20)]
    for name in names:
        storage.put(name, name.encode())
    threads = []
    read = FolderStorage.read
    monkeypatch.setattr(
        FolderStorage, "read", lambda *given: (threads.append(threading.current_thread().name), read(*given))[1]
    )
    for secs, some in ((1e-9, True), (60, False)):
        threads.clear()
        monkeypatch.setattr(folder, "_SLOW_SECS", secs)
        assert storage.read_all(names) == [name.encode() for name in names]
        assert any(name.startswith("statefx-read") for name in threads) is some


@pytest.mark.parametrize("slow_secs", [1e-9, 60])
def test_sizes_of_many_files_and_of_those_that_are_not_there(tmp_path, monkeypatch, slow_secs):
    monkeypatch.setattr(folder, "_SLOW_SECS", slow_secs)
    storage = FolderStorage(tmp_path)
    names = [f"a/{number:03}" for number in range(20)]
    for number, name in enumerate(names):
        storage.put(name, bytes(number))
    assert storage.sizes([*names, "a/none", "a/000/below"]) == [*range(20), None, None]
    assert storage.sizes([]) == []


def test_a_file_is_one_at_two_places_of_a_file_system(tmp_path):
    storage, other = FolderStorage(tmp_path / "a"), FolderStorage(tmp_path / "b")
    for each in (storage, other):
        each.put("log/1", b"same")
    assert not storage.shares("log/1", other)
    (tmp_path / "c").symlink_to(tmp_path / "a")
    assert storage.shares("log/1", FolderStorage(tmp_path / "c"))
    assert not storage.shares("log/2", storage)


class Forgetful(FolderStorage):
    """Takes the last of several creators instead of the first."""

    def create(self, name, data):
        self.delete([name])
        super().create(name, data)


def test_a_store_that_lets_a_name_be_created_twice_is_found_out(tmp_path):
    with pytest.raises(CheckpointError, match="lets a name be created twice"):
        Forgetful(tmp_path).check()
