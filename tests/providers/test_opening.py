"""What opening a store costs: no folder is listed, and no head is read twice, however many files there are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pytest

from statefx.state.changelog.chain import Changelog
from statefx.state.changelog.merging import LINKS_MAX
from statefx.state.contract.store import EMPTY, Namespace, StateProvider, Version
from statefx.storage import FolderStorage, Stored
from statefx.storage.contract import READERS
from statefx.testing.site import Site, image
from statefx_memory import MemoryStateProvider
from statefx_rocksdb import RocksDbStateProvider


@pytest.fixture(params=[MemoryStateProvider, RocksDbStateProvider])
def provider(request: pytest.FixtureRequest) -> StateProvider:
    made: StateProvider = request.param({})
    return made


class Counted(FolderStorage):
    """Counts requests, and how many come one after the other: those of one `read_all` come `READERS` at a time."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read_names: list[str] = []
        self.in_sequence = 0
        self.listed = 0

    def begin(self) -> None:
        """Count from here on."""
        self.read_names.clear()
        self.in_sequence = self.listed = 0

    def _requests(self, *names: str) -> None:
        self.read_names += names
        self.in_sequence += -(-len(names) // READERS)

    def reader(self, name: str) -> BinaryIO:
        self._requests(name)
        return super().reader(name)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        self._requests(name)
        with super().reader(name) as file:
            file.seek(start)
            return file.read(-1 if stop is None else stop - start)

    def read_all(self, names: Sequence[str], stop: int | None = None) -> Sequence[bytes | OSError]:
        requests = len(self.read_names)
        in_sequence = self.in_sequence
        found = super().read_all(names, stop)
        del self.read_names[requests:]
        self.in_sequence = in_sequence
        self._requests(*names)
        return found

    def list(self, prefix: str = "", after: str = "") -> Iterator[Stored]:
        self.listed += 1
        return super().list(prefix, after)


@pytest.fixture
def site(provider: StateProvider, tmp_path: Path) -> Iterator[Site]:
    site = Site(provider, tmp_path, place=lambda root: Counted(root / "checkpoint"))
    yield site
    site.close()


def counted(site: Site) -> Counted:
    assert isinstance(site.storage, Counted)
    return site.storage


@pytest.mark.slow
def test_a_warm_worker_reads_few_files_once_and_lists_nothing(site: Site) -> None:
    version, expected = EMPTY, {}
    for number in range(1, 60):
        version = site.commit(version, {b"%d" % (number % 7): b"%d" % number})
        expected[b"%d" % (number % 7)] = b"%d" % number
    store = site.open(version)
    store.prepare(version.txid + 1, "t" * 32, [(b"new", b"1")])
    storage = counted(site)
    storage.begin()
    after = site.open(Version(version.txid + 1, "t" * 32))
    assert image(after) == {**expected, b"new": b"1"}
    read = storage.read_names
    assert sum("t" * 32 in name for name in read) == 1
    assert len(read) == len(set(read)), "head and entries come together, and both readers of RocksDB's share them"
    assert len(read) <= 20, "what RocksDB's copy lacks, which is bounded"
    assert storage.in_sequence <= 3
    assert storage.listed == 0


@pytest.mark.daily(4)
@pytest.mark.slow
@pytest.mark.parametrize("files", [1, 2, 17, 60, 100, 300])
def test_restoring_many_small_files_takes_few_requests_one_after_the_other(site: Site, files: int) -> None:
    """At 30 ms a request, one after the other: 100 files took 6 s, two requests each."""
    site.files_max = 1000
    version, expected = EMPTY, dict[bytes, bytes]()
    for number in range(files):
        version = site.commit(version, {b"%d" % (number % 7): b"%d" % number, b"only-%d" % number: b"1"})
        expected |= {b"%d" % (number % 7): b"%d" % number, b"only-%d" % number: b"1"}
    there = site.elsewhere()
    storage = counted(there)
    assert image(there.open(version)) == expected
    assert len(storage.read_names) == len(set(storage.read_names)) == files, "each once"
    assert storage.in_sequence <= math.ceil(files / READERS) + 1 + math.ceil(files / LINKS_MAX)
    assert storage.listed == 0


@pytest.mark.slow
def test_a_large_file_is_read_in_two_requests_and_the_middling_ones_together(tmp_path: Path) -> None:
    storage = Counted(tmp_path)
    changelog = Changelog(Namespace("lineage", "count", 0), storage)
    versions = [EMPTY]
    for txid, size in enumerate((300 << 10, 200 << 10, 10, 20 << 20, 250 << 10), 1):
        versions.append(Version(txid, f"token-{txid}"))
        changelog.prepare(versions[-1], 1, versions[-2], [(b"%d" % txid, bytes(size))], files_max=100)
    storage.begin()
    route = Changelog(changelog.namespace, storage).route(versions[-1], None, None)
    assert storage.in_sequence == 2, "the newest, and the others with one look"
    assert [len(values[0] or b"") for _, values in route.chunks()] == [300 << 10, 200 << 10, 10, 20 << 20, 250 << 10]
    assert storage.in_sequence == 2 + 3, "two together, the large one, the last one"
    assert sorted(map(storage.read_names.count, set(storage.read_names))) == [1, 2, 2, 2, 2]


def test_a_snapshot_is_found_by_what_the_log_says_of_it(site: Site) -> None:
    version = site.commit(EMPTY, {b"a": b"1"})
    first = site.open(version, generation=1).snapshot()
    second = site.open(version, generation=2).snapshot()
    assert first is not None
    assert second is not None
    assert first.checksum != second.checksum
    assert sum(name.endswith(".snapshot") for name in site.files()) == 2, "one does not take the place of the other"
    site.storage.delete([name for name in site.files() if name.endswith(".changelog")])
    for snapshot in (first, second):
        assert image(site.elsewhere().open(version, snapshot=snapshot)) == {b"a": b"1"}
