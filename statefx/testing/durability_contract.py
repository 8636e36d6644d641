"""Tests of state stores whose processes die, run twice, fall behind or are replaced, and whose files are damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from statefx.errors import FencedError, StateCorruptedError
from statefx.state.contract.store import EMPTY, Retention, SnapshotRef, StateLocation, StateStore, Version
from statefx.testing.site import Site, after_parts, image, prepare, writes
from statefx.testing.steps import every_crash
from statefx.testing.store_contract import StoreContract

Damage = Callable[[bytes], bytes | None]
"""Returns what is left of a file."""


def _flip(content: bytes, at: int) -> bytes:
    changed = bytearray(content)
    changed[at] ^= 1
    return bytes(changed)


DAMAGES: dict[str, Damage] = {
    "truncated": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "extended": lambda content: content + b"\x00",
    "first byte flipped": lambda content: _flip(content, 0),
    "middle byte flipped": lambda content: _flip(content, len(content) // 2),
    "last byte flipped": lambda content: _flip(content, -1),
    "deleted": lambda content: None,
}


class DurabilityContract(StoreContract):
    """Tests of several stores, machines and generations; see `StateProviderContract`."""

    # ---- other processes

    def test_what_was_prepared_survives_its_process(self, site: Site) -> None:
        version = site.commit(EMPTY, {b"a": b"1"})
        token = prepare(site.open(version), 2, writes({b"a": b"2"}))
        there = site.elsewhere()
        store = there.open(version)
        assert image(store) == {b"a": b"1"}
        store.commit(2, token)
        assert image(store) == {b"a": b"2"}
        there.close()

    def test_a_reader_keeps_its_version_while_others_go_on(self, site: Site) -> None:
        self._require(site, StateLocation.CHECKPOINT)
        old = site.commit(EMPTY, {b"a": b"1", b"b": b"1"})
        reader = site.open(old)
        rows = reader.scan(None, None)
        assert next(rows) == (b"a", b"1")
        new = site.commit(old, {b"a": b"2", b"b": None, b"c": b"2"})
        later = site.open(new)
        assert image(later) == {b"a": b"2", b"c": b"2"}
        assert list(rows) == [(b"b", b"1")]
        assert image(reader) == {b"a": b"1", b"b": b"1"}

    def test_a_version_can_be_read_when_caches_are_ahead(self, site: Site) -> None:
        self._require(site, StateLocation.CHECKPOINT)
        versions = [EMPTY]
        for number in range(1, 8):
            versions.append(site.commit(versions[-1], {b"a": b"%d" % number, b"k%d" % number: b"1"}))
            assert image(site.open(versions[-1]))[b"a"] == b"%d" % number
        for number in (3, 7, 1, 5, 6, 2):
            found = image(site.open(versions[number]))
            assert found == {b"a": b"%d" % number, **{b"k%d" % each: b"1" for each in range(1, number + 1)}}

    def test_caches_catch_up_from_any_version(self, site: Site) -> None:
        self._require(site, StateLocation.CHECKPOINT)
        machines = [site, site.elsewhere(), site.elsewhere()]
        for machine in machines[1:]:
            machine.storage = site.storage
        version = EMPTY
        expected: dict[bytes, bytes] = {}
        for number in range(1, 24):
            changes = {b"%d" % (number % 7): b"%d" % number, b"%d" % (number % 5): None}
            version = site.commit(version, changes)
            expected = {key: value for key, value in {**expected, **changes}.items() if value is not None}
            machine = machines[(number * number) % 3]
            store = machine.open(version)
            assert image(store) == expected
            store.close()
        for machine in machines:
            assert image(machine.open(version)) == expected
            machine.close()

    def test_a_rolled_back_attempt_never_shows(self, site: Site) -> None:
        first = site.commit(EMPTY, {b"a": b"1"})
        store = site.open(first)
        dropped = prepare(store, 2, writes({b"a": b"dropped", b"b": b"dropped"}))
        store.rollback(2, dropped)
        second = site.commit(first, {b"c": b"2"})
        assert image(site.open(second)) == {b"a": b"1", b"c": b"2"}

    # ---- crashes

    def test_a_crash_in_prepare_leaves_the_old_image(self, site: Site, tmp_path: Path) -> None:
        version = site.commit(EMPTY, {b"a": b"1"})
        for at in every_crash():
            with site.crashing(at) as point:
                prepare(site.open(version), 2, writes({b"a": b"2"}))
            if point.crashed is None:
                assert at > 2 or site.provider.location is StateLocation.SERVER, "a durable prepare has durable steps"
                break
            for machine in (site, site.elsewhere()):
                again = machine.open(version)
                assert image(again) == {b"a": b"1"}, point.crashed
                token = prepare(again, 2, writes({b"a": b"3"}))
                again.rollback(2, token)
                machine.close()

    def test_a_crash_in_commit_is_mended_by_committing_again(self, site: Site) -> None:
        for at in every_crash():
            task = at
            token = prepare(site.open(task=task), 1, writes({b"a": b"1"}))
            with site.crashing(at) as point:
                site.open(task=task).commit(1, token)
            for machine in (site, site.elsewhere()):
                for version in (EMPTY, Version(1, token)):
                    store = machine.open(version, task=task)
                    store.commit(1, token)
                    assert image(store) == {b"a": b"1"}, point.crashed
            if point.crashed is None:
                break

    def test_a_crash_while_opening_harms_no_version(self, site: Site) -> None:
        self._require(site, StateLocation.CHECKPOINT)
        old = site.commit(EMPTY, {b"a": b"1", b"b": b"1"})
        for at in every_crash():
            machine = site.elsewhere()
            image(machine.open(old))
            new = machine.commit(old, {b"a": b"2", b"b": None})
            with machine.crashing(at) as point:
                machine.open(new)
            assert image(machine.open(new)) == {b"a": b"2"}, point.crashed
            assert image(machine.open(old)) == {b"a": b"1", b"b": b"1"}, point.crashed
            machine.close()
            if point.crashed is None:
                break

    def test_a_crash_in_snapshot_or_sweep_harms_no_version(self, site: Site) -> None:
        self._require(site, StateLocation.CHECKPOINT)
        head, expected = self._history(site, 2)
        for at in every_crash():
            machine = site.elsewhere()
            named = None
            with machine.crashing(at) as point:
                named = machine.open(head).snapshot()
                self._sweep(machine, head, named)
            reader = machine.elsewhere()
            assert image(reader.open(head, snapshot=named)) == expected, point.crashed
            assert reader.open(head, snapshot=named).snapshot() is not None, point.crashed
            reader.close()
            machine.close()
            if point.crashed is None:
                break

    # ---- damage

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_damage_is_found_and_named(self, site: Site, damage: str) -> None:
        self._require(site, StateLocation.CHECKPOINT)
        head, _ = self._history(site, 3)
        for name, content in site.files().items():
            if not content:
                continue
            machine = site.elsewhere()
            left = DAMAGES[damage](content)
            if left is None:
                machine.storage.delete([name])
            else:
                machine.storage.put(name, left)
            with pytest.raises(StateCorruptedError) as caught:
                image(machine.open(head))
            assert name.rpartition("-")[2] in str(caught.value)
            assert caught.value.missing is (left is None)
            machine.close()

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_damage_in_what_a_snapshot_has_stops_no_machine(self, site: Site, damage: str) -> None:
        """Also not one whose cache is older, so that the changes since would be less to read than the snapshot."""
        old = site.commit(EMPTY, {b"large": bytes(range(256)) * 40})
        other, cached = site.elsewhere(), site.open(old)
        other.storage = site.storage
        assert image(cached) == image(other.open(old, read_only=True)) == image(other.open(old))
        cached.close()
        damaged = other.commit(old, {b"a": b"1"})
        version = other.commit(damaged, {b"b": b"1"})
        snapshot = self._snapshot(other, version)
        version = other.commit(version, {b"c": b"1"}, snapshot=snapshot)
        expected = image(other.open(version, snapshot=snapshot))
        [name] = [name for name in site.files() if damaged.token in name]
        left = DAMAGES[damage](site.storage.read(name))
        site.storage.delete([name])
        if left is not None:
            site.storage.put(name, left)
        for _ in range(3):
            store = site.open(version, snapshot=snapshot)
            assert image(store) == expected
            store.close()
            version = site.commit(version, {b"d": b"1"}, snapshot=snapshot)
            expected[b"d"] = b"1"

    def test_a_file_of_another_namespace_is_found_and_named(self, site: Site) -> None:
        self._require(site, StateLocation.CHECKPOINT)
        version = site.commit(EMPTY, {b"a": b"1"})
        for component, task in (("other", 0), ("count", 1)):
            other = site.elsewhere()
            for name, content in site.files().items():
                moved = name.replace(site.namespace().prefix, other.namespace(component, task).prefix)
                other.storage.put(moved, content)
            with pytest.raises(StateCorruptedError):
                other.open(version, component=component, task=task)

    def test_a_copy_with_a_lineage_of_its_own_reads_the_files_it_was_copied_with(self, site: Site) -> None:
        self._require(site, StateLocation.CHECKPOINT)
        version = site.commit(EMPTY, {b"a": b"1"})
        fork = Site(site.provider, site.elsewhere().root, "f" * 32)
        after = fork.commit(version, {b"b": b"2"})
        assert image(fork.open(after)) == {b"a": b"1", b"b": b"2"}
        assert image(site.open(version)) == {b"a": b"1"}

    def test_damage_in_what_is_committed_is_found_before_it_counts(self, site: Site) -> None:
        self._require(site, StateLocation.CHECKPOINT)
        version = site.commit(EMPTY, {b"a": b"1"})
        token = prepare(site.open(version), 2, writes({b"a": b"2"}))
        [name] = [name for name in site.files() if token in name]
        site.storage.put(name, _flip(site.storage.read(name), -1))
        store = site.open(version)
        with pytest.raises(StateCorruptedError):
            store.commit(2, token)
        assert image(store) == {b"a": b"1"}

    # ---- generations

    def test_an_older_generation_can_never_commit(self, site: Site) -> None:
        version = site.commit(EMPTY, {b"a": b"1"})
        zombie = site.open(version, generation=1)
        token = prepare(zombie, 2, writes({b"a": b"zombie"}))
        site.start(2)
        late = site.open(version, generation=1)
        for store in (zombie, late):
            with pytest.raises(FencedError):
                store.commit(2, token)
        heir = site.open(version, generation=2)
        assert image(heir) == {b"a": b"1"}
        heir.commit(2, prepare(heir, 2, writes({b"a": b"2"})))
        assert image(heir) == {b"a": b"2"}

    def test_a_newer_generation_commits_what_an_older_one_prepared(self, site: Site) -> None:
        token = prepare(site.open(generation=1), 1, writes({b"a": b"1"}))
        site.start(2)
        site.open(generation=2).commit(1, token)
        assert image(site.open(Version(1, token), generation=2)) == {b"a": b"1"}

    def test_a_generation_is_never_taken_back(self, site: Site) -> None:
        site.start(3)
        site.start(3)
        with pytest.raises(FencedError):
            site.start(2)
        token = prepare(site.open(generation=3), 1, [])
        site.open(generation=3).commit(1, token)

    def test_a_crash_while_fencing_is_mended_by_fencing_again(self, site: Site) -> None:
        for at in every_crash():
            with site.crashing(at) as point:
                site.start(at + 1)
            site.start(at + 1)
            with pytest.raises(FencedError):
                site.start(at)
            if point.crashed is None:
                break

    def test_fencing_one_lineage_leaves_others_alone(self, site: Site, tmp_path: Path) -> None:
        other = Site(site.provider, tmp_path / "other")
        other.root.mkdir()
        other.start(7)
        assert image(site.open(site.commit(EMPTY, {b"a": b"1"}))) == {b"a": b"1"}

    def test_a_second_store_of_a_generation_harms_nothing(self, site: Site) -> None:
        version = site.commit(EMPTY, {b"a": b"1"})
        first, second = site.open(version), site.open(version)
        tokens = [prepare(store, 2, writes({b"a": name})) for store, name in ((first, b"2"), (second, b"3"))]
        second.rollback(2, tokens[1])
        second.close()
        first.commit(2, tokens[0])
        assert image(first) == {b"a": b"2"}

    # ---- snapshots and retention

    def test_a_snapshot_stands_for_what_came_before_it(self, site: Site) -> None:
        head, expected = self._history(site, 4)
        snapshot = self._snapshot(site, head)
        later = site.commit(head, {b"later": b"1"})
        assert self._sweep(site, later, snapshot) > 0
        for machine in (site, site.elsewhere()):
            assert image(machine.open(head, snapshot=snapshot)) == expected
            assert image(machine.open(later, snapshot=snapshot)) == {**expected, b"later": b"1"}
            machine.close()

    def test_a_snapshot_that_is_not_the_one_named_is_refused(self, site: Site) -> None:
        head, _ = self._history(site, 2)
        snapshot = self._snapshot(site, head)
        other = SnapshotRef(head, "0" * len(snapshot.checksum), snapshot.size_bytes)
        with pytest.raises(StateCorruptedError):
            site.elsewhere().open(head, snapshot=other)

    def test_sweep_keeps_every_version_and_what_is_prepared_next(self, site: Site) -> None:
        self._require(site, StateLocation.CHECKPOINT)
        head, expected = self._history(site, 3)
        token = prepare(site.open(head), 4, writes({b"next": b"1"}))
        assert self._sweep(site, head, None) == 0
        store = site.elsewhere().open(head)
        assert image(store) == expected
        store.commit(4, token)
        assert image(store) == {**expected, b"next": b"1"}

    def test_sweep_deletes_attempts_that_were_not_committed(self, site: Site) -> None:
        self._require(site, StateLocation.CHECKPOINT)
        tokens = [prepare(site.open(), 1, writes({b"a": name})) for name in (b"1", b"2", b"3")]
        head = Version(1, tokens[1])
        site.open().commit(*after_parts(head))
        assert self._sweep(site, head, None) == 2
        assert self._sweep(site, head, None) == 0
        assert image(site.elsewhere().open(head)) == {b"a": b"2"}

    def test_sweep_keeps_what_is_young_or_of_a_newer_generation(self, site: Site) -> None:
        self._require(site, StateLocation.CHECKPOINT)
        head = site.commit(EMPTY, {b"a": b"1"})
        prepare(site.open(), 1, [])
        assert self._sweep(site, head, None, min_age_secs=3600) == 0
        prepare(site.open(generation=2), 1, [])
        assert self._sweep(site, head, None) == 1
        assert len([name for name in site.files() if name.endswith("changelog")]) == 2

    def test_sweep_of_an_older_generation_is_refused(self, site: Site) -> None:
        self._require(site, StateLocation.CHECKPOINT)
        head = site.commit(EMPTY, {b"a": b"1"})
        prepare(site.open(), 1, [])
        before = site.files()
        site.start(2)
        with pytest.raises(FencedError):
            self._sweep(site, head, None)
        assert {name: content for name, content in site.files().items() if content} == {
            name: content for name, content in before.items() if content
        }

    def test_sweep_deletes_nothing_that_appeared_after_the_listing(self, site: Site) -> None:
        self._require(site, StateLocation.CHECKPOINT)
        head = site.commit(EMPTY, {b"a": b"1"})

        def late() -> None:
            prepare(site.open(), 1, writes({b"a": b"late"}))

        assert site.sweep(Retention(1, head, (), 0), meanwhile=late) == 0

    def test_sweep_deletes_no_snapshot_that_the_next_record_may_name(self, site: Site) -> None:
        """It is an image of what is committed, and was written in a transaction that is not."""
        self._require(site, StateLocation.CHECKPOINT)
        head, expected = self._history(site, 3)
        snapshot = self._snapshot(site, head)
        assert self._sweep(site, head, None) == 0
        assert image(site.elsewhere().open(head, snapshot=snapshot)) == expected
        later = site.commit(head, {b"later": b"1"})
        assert self._sweep(site, later, None) == 1

    # ---- what the tests above share

    @staticmethod
    def _history(site: Site, length: int) -> tuple[Version, dict[bytes, bytes]]:
        version, expected = EMPTY, {}
        for number in range(1, length + 1):
            changes = {b"a": b"%d" % number, b"k%d" % number: b"v" * 100}
            version = site.commit(version, dict(changes))
            expected.update(changes)
        return version, expected

    @staticmethod
    def _snapshot(site: Site, version: Version) -> SnapshotRef:
        store: StateStore = site.open(version)
        snapshot = store.snapshot()
        if snapshot is None:
            pytest.skip("this provider needs no snapshots")
        assert snapshot.version == version
        assert snapshot.size_bytes > 0
        return snapshot

    @staticmethod
    def _sweep(site: Site, head: Version, snapshot: SnapshotRef | None, min_age_secs: float = 0) -> int:
        return site.sweep(Retention(1, head, () if snapshot is None else (snapshot,), min_age_secs))
