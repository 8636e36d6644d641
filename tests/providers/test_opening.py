"""What opening a store costs: no folder is listed, and no head is read twice, however many files there are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statefx.state.changelog import artefacts
from statefx.state.contract.store import EMPTY, StateProvider, Version
from statefx.testing.site import Site, image
from statefx_memory import MemoryStateProvider
from statefx_rocksdb import RocksDbStateProvider


@pytest.fixture(params=[MemoryStateProvider, RocksDbStateProvider])
def provider(request: pytest.FixtureRequest) -> StateProvider:
    made: StateProvider = request.param({})
    return made


@pytest.fixture
def site(provider: StateProvider, tmp_path: Path) -> Iterator[Site]:
    site = Site(provider, tmp_path)
    yield site
    site.close()


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose heads have been read."""
    found: list[str] = []
    original = artefacts.read_head

    def reading(path: str) -> artefacts.Artefact:
        found.append(os.path.basename(path))
        return original(path)

    monkeypatch.setattr(artefacts, "read_head", reading)
    return found


def test_a_warm_worker_reads_one_head_and_lists_nothing(
    site: Site, heads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    version, expected = EMPTY, {}
    for number in range(1, 60):
        version = site.commit(version, {b"%d" % (number % 7): b"%d" % number})
        expected[b"%d" % (number % 7)] = b"%d" % number

    def refused(folder: Any = ".") -> Any:
        assert not str(folder).startswith(str(site.state_folder / "count")), "the folder of a task was listed"
        return listdir(folder)

    listdir = os.listdir
    store = site.open(version)
    store.prepare(version.txid + 1, "t" * 32, [(b"new", b"1")])
    heads.clear()
    monkeypatch.setattr(os, "listdir", refused)
    after = site.open(Version(version.txid + 1, "t" * 32))
    assert image(after) == {**expected, b"new": b"1"}
    newest = f"{version.txid + 1:020d}-{'t' * 32}.changelog"
    assert heads.count(newest) == 1
    assert len(heads) == len(set(heads)), "RocksDB and what is remembered above it ask for one route each"
    assert len(heads) <= 20, "what RocksDB's copy lacks, which is bounded"


def test_a_snapshot_is_found_by_what_the_log_says_of_it(site: Site) -> None:
    version = site.commit(EMPTY, {b"a": b"1"})
    first = site.open(version, generation=1).snapshot()
    second = site.open(version, generation=2).snapshot()
    assert first is not None
    assert second is not None
    assert first.checksum != second.checksum
    assert len(list(site.checkpoint.rglob("*.snapshot"))) == 2, "one does not take the place of the other"
    for path in site.checkpoint.rglob("*.changelog"):
        path.unlink()
    for snapshot in (first, second):
        assert image(site.elsewhere().open(version, snapshot=snapshot)) == {b"a": b"1"}
