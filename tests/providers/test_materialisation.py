from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from statefx.errors import StateCorruptedError
from statefx.state.changelog import store
from statefx.state.changelog.chain import Changelog
from statefx.state.changelog.store import MaterialisationCache
from statefx.state.contract.store import EMPTY, Namespace, StateContext, Version
from statefx.storage import FolderStorage

NAMESPACE = Namespace("lineage", "count", 0)


@pytest.fixture
def changelog(tmp_path: Path) -> Changelog:
    return Changelog(NAMESPACE, FolderStorage(tmp_path))


@pytest.fixture
def versions(changelog: Changelog) -> list[Version]:
    versions = [EMPTY]
    for txid in range(1, 4):
        version = Version(txid, uuid.uuid4().hex)
        changelog.prepare(version, 1, versions[-1], [(b"a", b"%d" % txid), (b"k%d" % txid, b"")])
        versions.append(version)
    return versions


def context(changelog: Changelog, version: Version, generation: int = 1, read_only: bool = False) -> StateContext:
    return StateContext(generation, version, changelog.storage, "", read_only=read_only)


@pytest.mark.parametrize("limit_bytes", [None, 1 << 20])
class TestSharing:
    def test_stores_of_one_version_share(
        self, changelog: Changelog, versions: list[Version], limit_bytes: int | None
    ) -> None:
        cache = MaterialisationCache(limit_bytes)
        first = cache.lease(changelog, context(changelog, versions[2]))
        assert cache.lease(changelog, context(changelog, versions[2])) is first

    def test_nobody_reads_it_so_it_is_caught_up_in_place(
        self, changelog: Changelog, versions: list[Version], limit_bytes: int | None
    ) -> None:
        cache = MaterialisationCache(limit_bytes)
        first = cache.lease(changelog, context(changelog, versions[1]))
        cache.release(first)
        assert cache.lease(changelog, context(changelog, versions[3])).entries is first.entries

    def test_somebody_reads_it_so_it_is_copied(
        self, changelog: Changelog, versions: list[Version], limit_bytes: int | None
    ) -> None:
        cache = MaterialisationCache(limit_bytes)
        first = cache.lease(changelog, context(changelog, versions[1]))
        before = dict(first.entries)
        assert cache.lease(changelog, context(changelog, versions[3])).entries[b"a"] == b"3"
        assert first.entries == before

    def test_it_is_never_taken_back(
        self, changelog: Changelog, versions: list[Version], limit_bytes: int | None
    ) -> None:
        cache = MaterialisationCache(limit_bytes)
        newest = cache.lease(changelog, context(changelog, versions[3]))
        older = cache.lease(changelog, context(changelog, versions[1]))
        assert older.version == versions[1]
        assert older is not newest
        assert cache.lease(changelog, context(changelog, versions[3])) is newest

    def test_one_of_a_history_that_is_over_is_replaced(
        self, changelog: Changelog, versions: list[Version], limit_bytes: int | None
    ) -> None:
        """The checkpoint was restored, and its log counts generations and transactions from there."""
        cache = MaterialisationCache(limit_bytes)
        cache.release(cache.lease(changelog, context(changelog, versions[3], generation=9)))
        after = Version(2, uuid.uuid4().hex)
        changelog.prepare(after, 3, versions[1], [(b"a", b"restored")])
        first = cache.lease(changelog, context(changelog, after, generation=3))
        cache.release(first)
        assert cache.lease(changelog, context(changelog, after, generation=3)) is first
        if limit_bytes is None:
            assert first.entries == {b"a": b"restored", b"k1": b""}

    def test_a_newer_generation_takes_it_over(
        self, changelog: Changelog, versions: list[Version], limit_bytes: int | None
    ) -> None:
        cache = MaterialisationCache(limit_bytes)
        cache.lease(changelog, context(changelog, versions[3]))
        mine = cache.lease(changelog, context(changelog, versions[1], generation=2))
        assert cache.lease(changelog, context(changelog, versions[1], generation=2)) is mine

    def test_a_read_only_store_leaves_it_alone(
        self, changelog: Changelog, versions: list[Version], limit_bytes: int | None
    ) -> None:
        cache = MaterialisationCache(limit_bytes)
        shared = cache.lease(changelog, context(changelog, versions[1]))
        cache.release(shared)
        reader = cache.lease(changelog, context(changelog, versions[3], read_only=True))
        assert reader.version == versions[3]
        assert cache.lease(changelog, context(changelog, versions[1])) is shared

    def test_another_lineage_in_the_folder_gets_its_own(
        self, changelog: Changelog, versions: list[Version], limit_bytes: int | None
    ) -> None:
        cache = MaterialisationCache(limit_bytes)
        cache.release(cache.lease(changelog, context(changelog, versions[3])))
        other = Changelog(Namespace("another", "count", 0), changelog.storage)
        assert cache.lease(other, context(changelog, EMPTY)).entries == {}

    def test_damage_while_catching_up_is_not_remembered(
        self, changelog: Changelog, versions: list[Version], limit_bytes: int | None
    ) -> None:
        cache = MaterialisationCache(limit_bytes)
        cache.release(cache.lease(changelog, context(changelog, versions[1])))
        [path] = Path(changelog.where).glob(f"*{versions[3].token}*")
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(StateCorruptedError):
            cache.lease(changelog, context(changelog, versions[3]))
        path.write_bytes(content)
        mended = Changelog(changelog.namespace, changelog.storage)
        for version in (versions[1], versions[3]):
            entries = cache.lease(mended, context(mended, version)).entries
            assert entries.get(b"a", b"%d" % version.txid) == b"%d" % version.txid


def test_partial_ones_of_all_folders_together_are_bounded(tmp_path: Path) -> None:
    cache = MaterialisationCache(300_000)
    for task in range(5):
        changelog = Changelog(Namespace("lineage", "count", task), FolderStorage(tmp_path))
        version = Version(1, uuid.uuid4().hex)
        changelog.prepare(version, 1, EMPTY, [(b"%06d" % number, b"v" * 100) for number in range(500)])
        cache.release(cache.lease(changelog, context(changelog, EMPTY)))
        cache.release(cache.lease(changelog, context(changelog, version)))
    kept = list(cache._newest.values())
    assert kept[-1].namespace.task == 4
    assert sum(each.size_bytes for each in kept) <= 300_000


class TestForgetting:
    """Complete ones of checkpoints that came and went in one worker."""

    @pytest.fixture(autouse=True)
    def bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store, "IDLE_BYTES", 200_000)

    def checkpoint(self, tmp_path: Path, name: str, entries: int = 500) -> tuple[Changelog, Version]:
        changelog = Changelog(Namespace(name, "count", 0), FolderStorage(tmp_path / name))
        writes = [(b"%06d" % number, b"v" * 100) for number in range(entries)]
        changelog.prepare(Version(1, name), 1, EMPTY, writes)
        return changelog, Version(1, name)

    def test_what_nobody_has_used_for_a_minute_is_forgotten_but_for_a_little(self, tmp_path: Path) -> None:
        now = 0.0
        cache = MaterialisationCache(clock=lambda: now)
        made = [self.checkpoint(tmp_path, f"lineage-{n}") for n in range(5)]
        for changelog, version in made:
            cache.release(cache.lease(changelog, context(changelog, version)))
        assert len(cache._newest) == 5, "none has been idle for long"
        now = 59.0
        cache.release(cache.lease(made[2][0], context(*made[2])))
        now = 61.0
        cache.release(cache.lease(made[4][0], context(*made[4])))
        kept = [each.namespace.lineage for each in cache._newest.values()]
        assert kept == ["lineage-3", "lineage-2", "lineage-4"], "the last used that was idle, and two in use"
        now = 200.0
        again = cache.lease(made[0][0], context(*made[0]))
        assert len(again.entries) == 500, "what was forgotten is read again"
        assert len(cache._newest) == 2

    def test_what_is_open_is_never_forgotten(self, tmp_path: Path) -> None:
        now = 0.0
        cache = MaterialisationCache(clock=lambda: now)
        changelog, version = self.checkpoint(tmp_path, "large", 5000)
        leased = cache.lease(changelog, context(changelog, version))
        now = 1000.0
        other, newer = self.checkpoint(tmp_path, "other")
        cache.release(cache.lease(other, context(other, newer)))
        assert cache.lease(changelog, context(changelog, version)) is leased
        cache.release(leased)
        cache.release(leased)
        now = 1059.0
        cache.release(cache.lease(other, context(other, newer)))
        assert len(cache._newest) == 2, "a minute after it was given back"
        now = 1061.0
        cache.release(cache.lease(other, context(other, newer)))
        assert [each.namespace.lineage for each in cache._newest.values()] == ["other"]
