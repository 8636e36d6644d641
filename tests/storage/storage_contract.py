"""The conformance suite that every storage passes."""

from __future__ import annotations

import pickle
import threading
from uuid import uuid4

import pytest

from statefx.errors import AlreadyExistsError
from statefx.storage.contract import READERS, Storage

RACERS = 30
ROUNDS = 3


class StorageContract:
    """Tests of one storage; subclass it and define the fixture ``storage``, a new and empty one for each test.

    They look at what was written through a second instance, unpickled from the first: nothing may live in memory only.
    """

    @pytest.fixture
    def storage(self) -> Storage:
        """Return an empty storage."""
        raise NotImplementedError("a subclass of StorageContract defines the fixture 'storage'")

    @staticmethod
    def elsewhere(storage: Storage) -> Storage:
        """Return the storage as another process sees it."""
        other: Storage = pickle.loads(pickle.dumps(storage))
        return other

    # ---- create

    def test_what_was_created_is_there_for_others(self, storage: Storage) -> None:
        storage.create("transactions/1", b"one")
        assert self.elsewhere(storage).read("transactions/1") == b"one"

    def test_a_name_is_created_once_and_the_first_bytes_stay(self, storage: Storage) -> None:
        storage.create("a", b"first")
        with pytest.raises(AlreadyExistsError):
            self.elsewhere(storage).create("a", b"second")
        assert storage.read("a") == b"first"

    def test_the_same_bytes_again_are_the_answer_to_a_request_that_was_lost(self, storage: Storage) -> None:
        storage.create("a", b"mine")
        storage.create("a", b"mine")
        assert storage.read("a") == b"mine"

    def test_of_many_that_race_for_a_name_one_wins_and_knows_it(self, storage: Storage) -> None:
        for number in range(ROUNDS):
            winners: list[bytes] = []
            start = threading.Barrier(RACERS)

            def race(
                name: str = f"race/{number}", start: threading.Barrier = start, won: list[bytes] = winners
            ) -> None:
                data = uuid4().bytes
                start.wait()
                try:
                    storage.create(name, data)
                except AlreadyExistsError:
                    return
                won.append(data)

            threads = [threading.Thread(target=race) for _ in range(RACERS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert winners == [storage.read(f"race/{number}")]

    def test_the_self_check_passes_and_leaves_nothing(self, storage: Storage) -> None:
        storage.check()
        assert list(storage.list()) == []

    # ---- writing

    def test_a_file_has_its_name_when_the_block_has_ended_and_not_before(self, storage: Storage) -> None:
        with storage.writer("state/count/0/a") as file:
            file.write(b"head")
            assert list(self.elsewhere(storage).list()) == []
            file.write(b"body")
            file.seek(0)
            file.write(b"HEAD")
        assert self.elsewhere(storage).read("state/count/0/a") == b"HEADbody"

    def test_a_block_that_raises_leaves_nothing(self, storage: Storage) -> None:
        def half() -> None:
            with storage.writer("a") as file:
                file.write(b"half")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            half()
        assert list(storage.list()) == []
        with pytest.raises(FileNotFoundError):
            storage.read("a")

    def test_the_end_of_a_name_may_tell_of_what_was_written(self, storage: Storage) -> None:
        with storage.writer("state/a", lambda: f"-{size}") as file:
            size = file.write(b"12345")
        assert [each.name for each in self.elsewhere(storage).list()] == ["state/a-5"]

    def test_what_is_written_again_replaces_what_was_there(self, storage: Storage) -> None:
        storage.put("a", b"longer")
        storage.put("a", b"new")
        assert self.elsewhere(storage).read("a") == b"new"

    @pytest.mark.parametrize("size", [0, 1, (8 << 20) + 1])
    def test_any_size_comes_back_as_it_was(self, storage: Storage, size: int) -> None:
        data = bytes(range(251)) * (size // 251 + 1)
        storage.put("a", data[:size])
        assert self.elsewhere(storage).read("a") == data[:size]
        storage.create("b", data[:size])
        assert self.elsewhere(storage).read("b") == data[:size]

    @pytest.mark.parametrize("name", ["", "/a", "a//b", "../a", "a/../b", ".a", "a/.b", "a/", "a\0b"])
    def test_a_name_that_leads_elsewhere_is_refused(self, storage: Storage, name: str) -> None:
        for call in (lambda: storage.create(name, b""), lambda: storage.put(name, b""), lambda: storage.read(name)):
            with pytest.raises(ValueError, match="can't be a name"):
                call()

    # ---- reading

    def test_a_name_that_is_not_there_is_not_found(self, storage: Storage) -> None:
        storage.create("a/b", b"")
        for name in ("b", "a", "a/b/c"):
            with pytest.raises(FileNotFoundError):
                storage.read(name)
            with pytest.raises(FileNotFoundError):
                storage.reader(name).close()

    def test_parts_are_read_by_themselves(self, storage: Storage) -> None:
        storage.put("a", b"0123456789")
        assert storage.read("a", 3) == b"3456789"
        assert storage.read("a", 3, 5) == b"34"
        assert storage.read("a", 3, 3) == b""
        assert storage.read("a", 8, 20) == b"89"
        assert storage.read("a", 10) == storage.read("a", 12, 20) == b""
        storage.put("empty", b"")
        assert storage.read("empty", 0, 20) == b""
        with storage.reader("empty") as file:
            assert file.read() == b""

    def test_many_are_read_at_once_each_with_its_own_outcome(self, storage: Storage) -> None:
        names = [f"a/{number:03}" for number in range(3 * READERS)]
        for name in names:
            storage.put(name, name.encode())
        storage.delete([names[7]])
        found = storage.read_all([*names, "none"], 4)
        assert [isinstance(each, FileNotFoundError) for each in found] == [
            name in (names[7], "none") for name in [*names, "none"]
        ]
        assert [each for each in found if isinstance(each, bytes)] == [
            name.encode()[:4] for name in names if name != names[7]
        ]
        assert storage.read_all([]) == []

    def test_a_reader_goes_on_and_seeks(self, storage: Storage) -> None:
        data = bytes(range(256)) * 50_000
        storage.put("a", data)
        with self.elsewhere(storage).reader("a") as file:
            assert file.read(1000) == data[:1000]
            assert file.read(5_000_000) == data[1000:5_001_000]
            file.seek(10)
            assert file.read(5) == data[10:15]
            file.seek(-3, 2)
            assert file.read() == data[-3:]
            assert file.read() == b""

    # ---- listing and deleting

    def test_names_come_in_order_with_sizes_below_a_prefix_and_after_a_name(self, storage: Storage) -> None:
        names = ["a/1", "a/10", "a/2", "a/b/c", "ab/1", "b"]
        for number, name in enumerate(reversed(names)):
            storage.create(name, b"x" * number)
        other = self.elsewhere(storage)
        assert [each.name for each in other.list()] == names
        assert [each.size_bytes for each in other.list()] == [5, 4, 3, 2, 1, 0]
        assert [each.name for each in other.list("a/")] == names[:4]
        assert [each.name for each in other.list("a/1")] == names[:2]
        assert [each.name for each in other.list("a")] == names[:5]
        assert [each.name for each in other.list("a/", after="a/10")] == names[2:4]
        assert list(other.list("c/")) == []
        assert list(other.parts()) == ["a", "ab", "b"]

    def test_a_folder_s_names_stand_in_order_among_those_of_files(self, storage: Storage) -> None:
        names = ["a-b", "a/b", "a/b-c", "a/b/c", "a0"]
        for name in names if storage.url.startswith("s3:") else [name for name in names if name != "a/b"]:
            storage.create(name, b"")
        found = [each.name for each in storage.list()]
        assert found == sorted(found)
        assert len(found) >= 4

    def test_more_names_than_one_answer_holds(self, storage: Storage) -> None:
        names = [f"many/{number:05d}" for number in range(1200)]
        for name in names:
            storage.put(name, b"")
        assert [each.name for each in storage.list("many/")] == names
        assert [each.name for each in storage.list("many/", after=names[1100])] == names[1101:]
        storage.delete(names[1:])
        assert [each.name for each in self.elsewhere(storage).list()] == names[:1]

    def test_deleting_what_is_not_there_is_fine(self, storage: Storage) -> None:
        storage.create("a", b"")
        storage.create("b", b"")
        storage.delete(["a", "x/y", "a"])
        storage.delete([])
        assert [each.name for each in storage.list()] == ["b"]

    def test_times_do_not_run_back(self, storage: Storage) -> None:
        storage.create("a", b"")
        storage.create("b", b"")
        first, second = storage.list()
        assert 0 < first.modified <= second.modified + 1  # a store may count in seconds
