"""Many small files: the newest are merged, caches at versions between stay good, and a sweep lets the old ones go."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statefx.errors import StateCorruptedError
from statefx.protocol.log_rules import SNAPSHOTS_KEPT
from statefx.state.changelog import merging
from statefx.state.changelog import store as store_module
from statefx.state.changelog.chain import Changelog
from statefx.state.changelog.files import Artefact, changelog_name, read_file, read_head
from statefx.state.contract import ranges
from statefx.state.contract.store import EMPTY, Namespace, Retention, SnapshotRef, StateProvider, Version, prepare_as
from statefx.storage import FolderStorage
from statefx.testing.site import Site, changed, image, prepare, writes
from statefx_memory import MemoryStateProvider
from statefx_rocksdb import RocksDbStateProvider

NAMESPACE = Namespace("lineage", "count", 0)


@pytest.fixture
def changelog(tmp_path: Path) -> Changelog:
    return Changelog(NAMESPACE, FolderStorage(tmp_path))


@pytest.fixture(params=[MemoryStateProvider, RocksDbStateProvider])
def provider(request: pytest.FixtureRequest) -> StateProvider:
    made: StateProvider = request.param({})
    return made


@pytest.fixture
def site(provider: StateProvider, tmp_path: Path) -> Iterator[Site]:
    site = Site(provider, tmp_path)
    site.files_max = 2
    yield site
    site.close()


def extended(changelog: Changelog, versions: list[Version], value: bytes, keys: int = 1, **more: object) -> int:
    """Prepare one more version, of `keys` keys of its own and one that all have."""
    txid = versions[-1].txid + 1
    changes = sorted({b"all": b"%d" % txid, **{b"%d-%d" % (txid, n): value for n in range(keys)}}.items())
    version = Version(txid, f"token-{txid}")
    grown = changelog.prepare(version, 1, versions[-1], changes, **more)  # type: ignore[arg-type]
    versions.append(version)
    return grown


def chain(changelog: Changelog, head: Version) -> list[Artefact]:
    """Return the files of a version, by a new look at them."""
    return list(Changelog(changelog.namespace, changelog.storage).route(head, None, None).steps)


class TestNumber:
    @pytest.mark.slow
    def test_it_grows_with_the_logarithm_and_so_does_what_is_written(
        self, changelog: Changelog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(merging, "TIERS_BYTES", (300, 3_000, 130_000))
        versions, written, most = [EMPTY], 0, 0
        for _ in range(500):
            extended(changelog, versions, b"v" * 100)
            name = changelog_name(NAMESPACE.prefix, versions[-1])
            written += read_head(changelog.storage, name).body_bytes
            most = max(most, len(chain(changelog, versions[-1])))
        assert most <= 3 * merging.files_of(NAMESPACE, 7)
        single = chain(changelog, versions[1])[0].body_bytes
        assert written <= 4 * 500 * single, "once for each tier"
        steps = chain(changelog, versions[-1])
        assert len({key for step in steps for keys, _ in read_file(changelog.storage, step) for key in keys}) == 501

    @pytest.mark.slow
    def test_of_the_same_keys_few_are_ever_left(self, changelog: Changelog) -> None:
        versions = [EMPTY]
        for txid in range(1, 200):
            versions.append(Version(txid, f"token-{txid}"))
            changelog.prepare(versions[-1], 1, versions[-2], [(b"%02d" % n, b"%d" % txid) for n in range(50)])
            assert len(chain(changelog, versions[-1])) <= merging.files_of(NAMESPACE, 7) + 1

    def test_large_ones_are_left_alone(self, changelog: Changelog, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(merging, "TIERS_BYTES", (100, 300, 1000))
        versions = [EMPTY]
        for _ in range(20):
            extended(changelog, versions, b"v" * 1000)
        assert len(chain(changelog, versions[-1])) == 20

    def test_small_ones_beneath_a_large_one_go_with_it(self, changelog: Changelog) -> None:
        versions = [EMPTY]
        for size in (10, 10, 10, 30_000, 10, 10, 30_000):
            extended(changelog, versions, b"v" * size, files_max=1)
        files = chain(changelog, versions[-1])
        assert len(files) <= 2
        assert files[0].identity.predecessor == EMPTY

    def test_tasks_merge_in_different_transactions(self) -> None:
        found = {merging.files_of(Namespace("lineage", "count", task), 7) for task in range(64)}
        assert found == set(range(7, 14))

    def test_growth_is_what_has_to_be_read(self, changelog: Changelog) -> None:
        versions, grown = [EMPTY], 0
        for _ in range(40):
            grown += extended(changelog, versions, b"v" * 50)
            assert grown == sum(step.size_bytes for step in chain(changelog, versions[-1]))

    @pytest.mark.slow
    @given(
        st.lists(
            st.dictionaries(st.binary(min_size=1, max_size=2), st.none() | st.just(b"v"), max_size=12), max_size=5
        ),
        st.integers(1, 4),
    )
    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_what_is_merged_block_by_block_has_the_newest_value_of_each_key(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: list[dict[bytes, bytes | None]], block: int
    ) -> None:
        monkeypatch.setattr(ranges, "BLOCK_ENTRIES", block)
        changelog = Changelog(Namespace("lineage", uuid4().hex, 0), FolderStorage(tmp_path))
        versions, newest = [EMPTY], {}
        for txid, entries in enumerate(changes, 1):
            named = {key: value and b"%d" % txid for key, value in entries.items()}
            versions.append(Version(txid, f"token-{txid}"))
            changelog.prepare(versions[-1], 1, versions[-2], sorted(named.items()), files_max=20)
            newest |= named
        last = {b"\x00": None, b"m": b"last", b"z": b"last"}
        found = merging.merged(changelog.storage, sorted(last.items()), chain(changelog, versions[-1])[::-1])
        assert list(found) == sorted((newest | last).items())


class TestCovering:
    def test_a_cache_at_any_version_between_is_caught_up(self, changelog: Changelog) -> None:
        versions = [EMPTY]
        while len(chain(changelog, versions[-1])) != 1 or versions[-1].txid < 5:
            extended(changelog, versions, b"v")
        for version in versions[1:-1]:
            route = changelog.route(versions[-1], None, version)
            assert (route.start, route.cached, len(route.steps)) == (version, True, 1)
        other = Version(versions[-2].txid, "of an attempt that was rolled back")
        assert changelog.route(versions[-1], None, other).cached is False
        assert changelog.follows(versions[-1], versions[2])
        assert not changelog.follows(versions[-1], other)

    def test_a_snapshot_within_what_is_covered_is_where_a_worker_without_cache_begins(
        self, changelog: Changelog
    ) -> None:
        versions = [EMPTY]
        for _ in range(4):
            extended(changelog, versions, b"v", files_max=20)
        snapshot = changelog.snapshot(versions[4], 1, [(b"all", b"4")])
        extended(changelog, versions, b"v", files_max=1)
        extended(changelog, versions, b"v", files_max=20, snapshot=snapshot)
        route = changelog.route(versions[6], snapshot, None)
        assert [step.identity.version for step in route.steps] == versions[5:]
        assert route.steps[0].identity.predecessor == EMPTY
        assert route.start == versions[4]
        older = changelog.route(versions[6], snapshot, versions[2])
        assert (older.start, older.cached) == (versions[2], True)

    def test_nothing_older_than_the_snapshot_is_looked_at(self, changelog: Changelog) -> None:
        versions = [EMPTY]
        for _ in range(4):
            extended(changelog, versions, b"v", files_max=20)
        snapshot = changelog.snapshot(versions[4], 1, [(b"all", b"4")])
        for path in Path(changelog.where).glob("*.changelog"):
            path.unlink()
        fresh = Changelog(changelog.namespace, changelog.storage)
        for _ in range(30):
            extended(fresh, versions, b"v", files_max=2, snapshot=snapshot)
        assert len(fresh.route(versions[-1], snapshot, None).steps) <= 6

    def test_only_so_many_are_named_and_a_cache_further_behind_is_not_used(
        self, changelog: Changelog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(merging, "COVERED_MAX", 5)
        versions = [EMPTY]
        for _ in range(30):
            extended(changelog, versions, b"v", files_max=1)
        assert all(len(step.identity.covers) <= 5 * 8 for step in chain(changelog, versions[-1]))
        assert changelog.route(versions[-1], None, versions[2]).cached is False

    def test_damage_in_what_would_be_merged_stops_nobody(
        self, changelog: Changelog, caplog: pytest.LogCaptureFixture
    ) -> None:
        versions = [EMPTY]
        for _ in range(3):
            extended(changelog, versions, b"v", files_max=20)
        path = Path(changelog.storage.url, changelog_name(NAMESPACE.prefix, versions[2]))
        path.write_bytes(path.read_bytes()[:-1] + b"\x00")
        with caplog.at_level(logging.WARNING, "statefx"):
            extended(Changelog(changelog.namespace, changelog.storage), versions, b"v", files_max=1)
        assert path.name in caplog.text
        fresh = Changelog(changelog.namespace, changelog.storage)
        assert len(fresh.route(versions[4], None, versions[3]).steps) == 1
        with pytest.raises(StateCorruptedError, match=path.name):
            list(fresh.route(versions[4], None, None).chunks())
        assert not list(Path(changelog.where).glob(".*"))


class TestStores:
    @pytest.mark.slow
    def test_every_version_is_right_from_every_cache(self, site: Site) -> None:
        """Caches of two machines at versions far apart, deletes among what is merged, and late tasks."""
        version, history = EMPTY, [(EMPTY, dict[bytes, bytes]())]
        there = site.elsewhere()
        there.storage = site.storage
        for number in range(1, 40):
            changes: dict[bytes, bytes | None] = {b"%d" % (number % 5): b"%d" % number, b"%d" % (number % 7): None}
            prepare(site.open(version), number, writes({b"garbage": b"of an attempt"}))
            version = site.commit(version, changes)
            now = {key: value for key, value in {**history[-1][1], **changes}.items() if value is not None}
            history.append((version, now))
            if number % 9 == 0:
                assert image(there.open(version)) == now
        for at in (39, 3, 38, 20, 37):
            assert image(site.open(history[at][0])) == history[at][1]
            assert image(site.elsewhere().open(history[at][0], read_only=True)) == history[at][1]

    def test_two_attempts_and_a_late_one_prepare_side_by_side(self, site: Site) -> None:
        version = EMPTY
        for number in range(1, 8):
            version = site.commit(version, {b"%d" % number: b"1"})
        late, first, second = (site.open(version) for _ in range(3))
        for store, token in ((first, "f" * 32), (second, "e" * 32)):
            prepare_as(store, 8, token, writes({b"8": token.encode()}))
        later = site.commit(Version(8, "e" * 32), {b"9": b"1"})
        for number in range(10, 14):
            later = site.commit(later, {b"%d" % number: b"1"})
        prepare_as(late, 8, "d" * 32, writes({b"late": b"1"}))
        expected = {b"%d" % number: b"1" for number in range(1, 14)} | {b"8": b"e" * 32}
        for machine in (site, site.elsewhere()):
            assert image(machine.open(later)) == expected

    @pytest.mark.slow
    def test_a_sweep_leaves_the_chain_and_what_is_still_to_be_readable(self, site: Site, tmp_path: Path) -> None:
        version, history, snapshot = EMPTY, [(EMPTY, dict[bytes, bytes]())], None
        files = []
        for number in range(1, 80):
            changes = {b"%d" % (number % 11): b"%d" % number}
            prepare(site.open(version, snapshot=snapshot), number, writes({b"garbage": b"1"}))
            version = site.commit(version, dict(changes), snapshot=snapshot)
            history.append((version, {**history[-1][1], **changes}))
            if number == 50:
                snapshot = site.open(version).snapshot()
            retained = Retention(1, version, () if snapshot is None else (snapshot,), 0, since=max(0, number - 6))
            site.sweep(retained)
            files.append(sum(name.endswith(".changelog") for name in site.files()))
            for at in (number, number - 3, number - 6):
                if at >= (1 if snapshot is None else snapshot.version.txid):
                    readable = Site(site.provider, tmp_path / f"machine-{number}-{at}", site.lineage)
                    readable.storage = site.storage
                    assert image(readable.open(history[at][0], snapshot=snapshot)) == history[at][1], (number, at)
                    readable.close()
        assert max(files) <= 25, "not one for each transaction, nor garbage"

    @pytest.mark.slow
    def test_a_pinned_version_outlives_merges_and_sweeps(self, site: Site, tmp_path: Path) -> None:
        version, expected, snapshot = EMPTY, dict[bytes, bytes](), None
        pinned: list[tuple[Version, SnapshotRef | None]] = []
        images: list[dict[bytes, bytes]] = []
        for number in range(1, 80):
            changes = {b"%d" % (number % 11): b"%d" % number}
            version = site.commit(version, dict(changes), snapshot=snapshot)
            expected = {**expected, **changes}
            if number in (10, 40):
                pinned.append((version, snapshot))
                images.append(expected)
            if number in (30, 60):
                snapshot = site.open(version, snapshot=snapshot).snapshot()
            newest = () if snapshot is None else (snapshot,)
            site.sweep(Retention(1, version, newest, 0, since=max(0, number - 6), pinned=tuple(pinned)))
        for number, ((at, since), found) in enumerate(zip(pinned, images, strict=True)):
            reader = Site(site.provider, tmp_path / f"machine-{number}", site.lineage)
            reader.storage = site.storage
            assert image(reader.open(at, snapshot=since)) == found
            reader.close()
        files = len(site.files())
        site.sweep(Retention(1, version, newest, 0, since=73))
        assert len(site.files()) < files, "what is pinned no longer goes"

    @pytest.mark.slow
    def test_a_snapshot_and_merges_go_together(self, site: Site) -> None:
        version, snapshot, expected = EMPTY, None, dict[bytes, bytes]()
        for number in range(1, 40):
            changes = {b"%d" % (number % 6): b"%d" % number}
            named: SnapshotRef | None = None
            store = site.open(version, snapshot=snapshot)
            token = prepare(store, number, writes(dict(changes)))
            if number % 5 == 0:
                named = store.snapshot()
            store.close()
            version, snapshot = Version(number, token), named or snapshot
            expected.update(changes)
            for machine in (site, site.elsewhere()):
                assert image(machine.open(version, snapshot=snapshot)) == expected

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(12))
    def test_all_that_is_retained_is_right_on_a_new_machine(
        self, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Tasks that stay, and know the snapshot of when they came; few versions are named; sweeps; ways back."""
        monkeypatch.setattr(merging, "COVERED_MAX", 6)
        monkeypatch.setattr(store_module, "ADVANCES_MAX", 3)
        monkeypatch.setattr(merging, "TIERS_BYTES", (100, 300, 1000))
        drawn, site = random.Random(seed), Site(MemoryStateProvider({}), tmp_path)
        site.files_max = 1
        version, states = EMPTY, {EMPTY: dict[bytes, bytes]()}
        newest: SnapshotRef | None = None
        snapshots, pins = tuple[SnapshotRef, ...](), dict[Version, SnapshotRef | None]()
        task = site.open()
        for txid in range(1, 60):
            if drawn.random() < 0.2:
                prepare(site.open(version, snapshot=newest), txid, writes({b"a": b"of an attempt"}))
            keys = drawn.sample([b"a", b"b", b"c", b"d"], drawn.randrange(3))
            changes = writes({key: drawn.choice([None, b"%d" % txid, bytes(150)]) for key in keys})
            token, before = prepare(task, txid, changes), version
            if drawn.random() < 0.1 and before not in (EMPTY, *(each.version for each in snapshots)):
                newest = task.snapshot()
                assert newest is not None
                snapshots = (*snapshots, newest)[-SNAPSHOTS_KEPT:]
            version = Version(txid, token)
            states[version] = changed(states[before], changes)
            if drawn.random() < 0.05:
                pins[version] = newest
            goes_back = pins and drawn.random() < 0.05
            if goes_back:
                version, newest = drawn.choice(list(pins.items()))
                snapshots = () if newest is None else (newest,)
            if goes_back or drawn.random() < 0.3 or not task.advance(txid, token, changes):
                task.close()
                task = site.open(version, snapshot=newest)
            if drawn.random() < 0.5:
                site.sweep(Retention(1, version, snapshots, 0, since=version.txid, pinned=tuple(pins.items())))
            kept = [(version, newest), (version, next(iter(snapshots), None)), *pins.items()]
            for number, (at, snapshot) in enumerate((*kept, *((each.version, each) for each in snapshots))):
                machine = Site(site.provider, tmp_path / f"machine-{txid}-{number}", site.lineage)
                machine.storage = site.storage
                assert image(machine.open(at, snapshot=snapshot)) == states[at], (txid, at, snapshot)
                machine.close()
