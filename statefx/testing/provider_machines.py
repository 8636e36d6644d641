"""State machines of Hypothesis: a provider's stores, and what a bolt sees of them, against dicts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from statefx.errors import FencedError, StateError, StatePhaseError
from statefx.state.contract.spaces import Space
from statefx.state.contract.store import EMPTY, Retention, SnapshotRef, StateLocation, StateProvider, Version
from statefx.state.encoding.keys import encode_key
from statefx.state.view.task_state import KeyValueState
from statefx.testing.site import Site, changed, image, prepare, writes

KEYS = st.sampled_from([b"", b"\x00", b"a", b"a\x00", b"ab", b"b", b"\xff"])
VALUES = st.binary(max_size=3)
CHANGES = st.dictionaries(KEYS, st.none() | VALUES, max_size=4)


def state_machine(provider_factory: Callable[[], StateProvider]) -> type[RuleBasedStateMachine]:
    """Return a state machine over what `provider_factory` makes; its ``TestCase`` is the test."""

    class ProviderMachine(_ProviderMachine):
        factory = staticmethod(provider_factory)

    return ProviderMachine


def keyvalue_machine(provider_factory: Callable[[], StateProvider]) -> type[RuleBasedStateMachine]:
    """Return a state machine over `KeyValueState` of what `provider_factory` makes; its ``TestCase`` is the test."""

    class KeyValueMachine(_KeyValueMachine):
        factory = staticmethod(provider_factory)

    return KeyValueMachine


class _Machine(RuleBasedStateMachine):
    """One namespace of a new checkpoint."""

    factory: Callable[[], StateProvider]

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="statefx-machine-"))
        self.site = Site(self.factory(), self.root)
        self.site.start(1)

    def teardown(self) -> None:
        """Delete what the run left."""
        self.site.close()
        shutil.rmtree(self.root, ignore_errors=True)


class _ProviderMachine(_Machine):
    """A current store, what it has pending and prepared, and every committed version as a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.site.files_max = 1
        self.generation = 1
        self.versions: list[tuple[Version, dict[bytes, bytes]]] = [(EMPTY, {})]
        self.snapshot: SnapshotRef | None = None
        self.pending: dict[bytes, bytes | None] = {}
        self.prepared: tuple[Version, dict[bytes, bytes]] | None = None
        self.decided = False
        self.since = 0
        self._reopen()

    @property
    def head(self) -> Version:
        return self.versions[-1][0]

    @property
    def committed(self) -> dict[bytes, bytes]:
        return self.versions[-1][1]

    @property
    def oldest(self) -> int:
        """The oldest transaction whose version a provider that keeps versions still has."""
        return max(self.since, self.snapshot.version.txid if self.snapshot is not None else 0)

    def _reopen(self) -> None:
        self.store = self.site.open(self.head, generation=self.generation, snapshot=self.snapshot)
        self.pending = {}

    @rule(changes=CHANGES)
    def put_and_delete(self, changes: dict[bytes, bytes | None]) -> None:
        self.pending.update(changes)

    @rule(start=st.none() | KEYS, stop=st.none() | KEYS, reverse=st.booleans())
    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool) -> None:
        assert list(self.store.scan(start, stop, reverse)) == [
            (key, value)
            for key, value in sorted(self.committed.items(), reverse=reverse)
            if (start is None or key >= start) and (stop is None or key < stop)
        ]

    @rule(keys=st.lists(KEYS, max_size=6))
    def get(self, keys: list[bytes]) -> None:
        assert self.store.get(keys) == [self.committed.get(key) for key in keys]

    @precondition(lambda self: self.prepared is None)
    @rule()
    def prepare(self) -> None:
        txid = self.head.txid + 1
        token = prepare(self.store, txid, writes(self.pending))
        self.prepared = Version(txid, token), changed(self.committed, writes(self.pending))
        self.pending = {}
        self.decided = False

    @precondition(lambda self: self.prepared is None)
    @rule(changes=CHANGES, fresh=st.booleans())
    def transaction(self, changes: dict[bytes, bytes | None], fresh: bool) -> None:
        self.put_and_delete(changes)
        self.prepare()
        self.commit(fresh)

    @precondition(lambda self: self.prepared is not None)
    @rule(fresh=st.booleans())
    def commit(self, fresh: bool) -> None:
        assert self.prepared is not None
        if fresh:
            self._reopen()
        self.store.commit(self.prepared[0].txid, self.prepared[0].token)
        self.versions.append(self.prepared)
        self.prepared = None

    @precondition(lambda self: self.prepared is not None)
    @rule(read_only=st.booleans())
    def open_at_what_is_decided(self, read_only: bool) -> None:
        """The log has named it, and the store has not been told yet: it can't be rolled back any more."""
        assert self.prepared is not None
        self.decided = True
        version, expected = self.prepared
        store = self.site.open(version, generation=self.generation, snapshot=self.snapshot, read_only=read_only)
        assert image(store) == expected
        store.close()

    @precondition(lambda self: self.head.txid > 0 and self.versions[-2][0].txid >= self.oldest)
    @rule(times=st.integers(1, 2))
    def commit_again_from_the_version_before(self, times: int) -> None:
        """The report of the commit was lost."""
        store = self.site.open(self.versions[-2][0], generation=self.generation, snapshot=self.snapshot)
        for _ in range(times):
            store.commit(self.head.txid, self.head.token)
            assert image(store) == self.committed
        store.close()

    @precondition(lambda self: self.prepared is not None and not self.decided)
    @rule(fresh=st.booleans())
    def rollback(self, fresh: bool) -> None:
        assert self.prepared is not None
        if fresh:
            self._reopen()
        self.store.rollback(self.prepared[0].txid, self.prepared[0].token)
        self.prepared = None

    @rule()
    def crash(self) -> None:
        """The process is gone, unprepared changes with it; nothing was closed."""
        self._reopen()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self._reopen()

    @rule()
    def reopen_elsewhere(self) -> None:
        there = self.site.elsewhere()
        assert image(there.open(self.head, generation=self.generation, snapshot=self.snapshot)) == self.committed
        there.close()

    @rule(data=st.data())
    def read_an_older_version(self, data: st.DataObject) -> None:
        """Where state lives in a server, which keeps none, it may be refused."""
        kept = [each for each in self.versions if each[0].txid >= self.oldest]
        version, expected = data.draw(st.sampled_from(kept))
        try:
            store = self.site.open(version, generation=self.generation, snapshot=self.snapshot)
            found = image(store)
        except StateError:
            if self.site.provider.location is StateLocation.SERVER:
                return
            raise
        assert found == expected
        store.close()

    @rule(key=KEYS, value=VALUES)
    def second_store(self, key: bytes, value: bytes) -> None:
        """The task runs once more; what that one prepares is not what the driver names."""
        other = self.site.open(self.head, generation=self.generation, snapshot=self.snapshot)
        token = prepare(other, self.head.txid + 1, [(key, value)])
        assert self.prepared is None or token != self.prepared[0].token
        other.close()

    @rule(key=KEYS)
    def new_generation(self, key: bytes) -> None:
        """A driver takes over; the older one's stores can't commit any more."""
        zombie = self.site.open(self.head, generation=self.generation, snapshot=self.snapshot)
        token = prepare(zombie, self.head.txid + 1, [(key, b"zombie")])
        self.generation += 1
        self.site.start(self.generation)
        with pytest.raises(FencedError):
            zombie.commit(self.head.txid + 1, token)
        self._reopen()

    @precondition(lambda self: self.head.txid > 1)
    @rule()
    def commit_an_older_one(self) -> None:
        version = self.versions[-2][0]
        with pytest.raises(StatePhaseError):
            self.store.commit(version.txid, version.token)

    @rule()
    def take_snapshot(self) -> None:
        store = self.site.open(self.head, generation=self.generation, snapshot=self.snapshot)
        self.snapshot = store.snapshot() or self.snapshot
        store.close()

    @rule(kept=st.integers(0, 5))
    def sweep(self, kept: int) -> None:
        """Files that serve only older versions may go."""
        snapshots = () if self.snapshot is None else (self.snapshot,)
        self.since = max(self.since, self.head.txid - kept)
        self.site.sweep(Retention(self.generation, self.head, snapshots, 0, self.since))

    @invariant()
    def the_committed_image_is_what_is_read(self) -> None:
        assert image(self.store) == self.committed


BOLT_KEYS = st.one_of(st.integers(-2, 5), st.sampled_from([True, 1.0, "a"]), st.tuples(st.just("a"), st.integers(0, 2)))
BOLT_VALUES = st.none() | st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2)
ENTRIES = st.lists(st.tuples(BOLT_KEYS, BOLT_VALUES), min_size=1, max_size=8)


def _in_order(bounds: tuple[Any, ...]) -> tuple[Any, ...]:
    return bounds if None in bounds else tuple(sorted(bounds, key=encode_key))


RANGES = st.one_of(
    st.just((None, None)),
    st.tuples(st.none() | BOLT_KEYS, st.none() | BOLT_KEYS).map(_in_order),
    st.tuples(BOLT_KEYS, BOLT_KEYS),
)
"""Mostly those that hold something."""

NEIGHBOURS = dict.fromkeys((b"s8a", b"t8a", b"t\xff", b"t\xff\xff", b"v", b"v\x00", b"w8a"), b"\x01")
"""Entries of other spaces, beside the keys of the bolt on both sides; no rule may ever show, count or change them."""

Changes = dict[bytes, tuple[Any, Any] | None]
"""By a key's bytes: (key, value), which tell 1, 1.0 and True apart; None: deleted."""


class _KeyValueMachine(_Machine):
    """One task's state; as dicts what is committed, and what is changed over it, prepared or not."""

    def __init__(self) -> None:
        super().__init__()
        self.version = self.site.commit(EMPTY, NEIGHBOURS)
        self.committed: Changes = {}
        self.pending: Changes = {}
        self.is_prepared = False
        self.scans: list[tuple[Iterator[tuple[Any, Any]], list[tuple[Any, Any]]]] = []
        self.state: KeyValueState[Any, Any] = self.site.state(self.version)
        self.counts = self.site.open(self.version).count(Space.USER.value) is not None

    def _shown(self, start: Any = None, stop: Any = None, reverse: bool = False) -> list[tuple[Any, Any]]:
        low, high = (None if bound is None else encode_key(bound) for bound in (start, stop))
        found = {**self.committed, **self.pending}
        return [
            entry
            for key, entry in sorted(found.items(), reverse=reverse)
            if entry is not None and (low is None or low <= key) and (high is None or key < high)
        ]

    def _value(self, key: Any) -> Any:
        key_bytes = encode_key(key)
        for layer in (self.pending, self.committed):
            if key_bytes in layer:
                entry = layer[key_bytes]
                return "absent" if entry is None else entry[1]
        return "absent"

    # ---- changes

    @precondition(lambda self: not self.is_prepared)
    @rule(entries=ENTRIES, read=st.booleans())
    def put(self, entries: list[tuple[Any, Any]], read: bool) -> None:
        for key, value in entries:
            if read:  # put goes another way when the key is known
                assert self.state.get(key, "absent") == self._value(key)
            self.state[key] = value
            self.pending[encode_key(key)] = key, value

    @precondition(lambda self: not self.is_prepared)
    @rule(keys=st.lists(BOLT_KEYS, min_size=1, max_size=4))
    def delete(self, keys: list[Any]) -> None:
        for key in keys:
            value = self._value(key)
            assert self.state.delete(key) == (None if value == "absent" else value)
            if value != "absent":
                self.pending[encode_key(key)] = None

    @precondition(lambda self: not self.is_prepared)
    @rule(bounds=RANGES)
    def delete_range(self, bounds: tuple[Any, Any]) -> None:
        inside = self._shown(*bounds)
        assert self.state.deleteRange(*bounds) == len(inside)
        self.pending.update({encode_key(key): None for key, _ in inside})

    @precondition(lambda self: self.is_prepared)
    @rule(key=BOLT_KEYS)
    def change_what_is_prepared(self, key: Any) -> None:
        with pytest.raises(StatePhaseError):
            self.state.put(key, 1)
        with pytest.raises(StatePhaseError):
            self.state.delete(key)

    # ---- reading

    @rule(bounds=RANGES, count=st.booleans())
    def read(self, bounds: tuple[Any, Any], count: bool) -> None:
        for reverse in (False, True):
            _same(self.state.items(*bounds, reverse), self._shown(*bounds, reverse))
        for key, _ in self._shown(*bounds):
            assert self.state.get(key, "absent") == self._value(key)
        assert bool(self.state) == bool(self._shown())
        if count and self.counts:
            assert len(self.state) == len(self._shown())

    @precondition(lambda self: len(self.scans) < 4)
    @rule(bounds=RANGES, reverse=st.booleans(), first=st.integers(0, 2))
    def begin_a_scan(self, bounds: tuple[Any, Any], reverse: bool, first: int) -> None:
        self.scans.append((self.state.items(*bounds, reverse), self._shown(*bounds, reverse)))
        self._go_on(-1, first)

    @precondition(lambda self: bool(self.scans))
    @rule(at=st.integers(0, 3), most=st.integers(1, 12))
    def go_on_with_a_scan(self, at: int, most: int) -> None:
        self._go_on(at % len(self.scans), most)

    def _go_on(self, at: int, most: int) -> None:
        """It shows what was there when it began, whatever has been changed since."""
        entries, expected = self.scans[at]
        for _ in range(most):
            if not expected:
                assert next(entries, None) is None
                del self.scans[at]
                return
            _same(iter([next(entries)]), [expected.pop(0)])

    # ---- the transaction

    @rule(how=st.sampled_from(["forward", "forward", "forward", "rollback", "reopen"]))
    def end(self, how: str) -> None:
        """Prepare, or commit what is prepared; now and then the other ways to end."""
        if how == "rollback":
            self._rollback()
        elif self.is_prepared:
            self._commit()
        elif how == "reopen":
            self._reopen()
        else:
            txid = self.version.txid + 1
            self.version = Version(txid, self.state.prepareCommit(txid))
            self.is_prepared = True

    def _commit(self) -> None:
        self.state.commit(self.version.txid)
        self.committed.update(self.pending)
        self.pending, self.is_prepared = {}, False
        self._end_scans()

    def _rollback(self) -> None:
        self.state.rollback()
        self.pending, self.is_prepared, self.version = {}, False, self.state.version
        self._end_scans()

    def _reopen(self) -> None:
        """The next transaction's task; what was not prepared is gone."""
        self.state.close()
        self.state = self.site.state(self.version)
        self.pending, self.scans = {}, []

    def _end_scans(self) -> None:
        for entries, _ in self.scans:
            with pytest.raises(StatePhaseError):
                next(entries)
        self.scans = []

    def teardown(self) -> None:
        _same(self.state.items(), self._shown())
        if not self.is_prepared:
            rows = dict(self.site.open(self.state.version).scan(None, None))
            assert {key: value for key, value in rows.items() if key[:1] != Space.USER.value} == NEIGHBOURS
        self.state.close()
        super().teardown()


def _same(entries: Iterator[tuple[Any, Any]], expected: list[tuple[Any, Any]]) -> None:
    found = list(entries)
    assert found == expected
    assert [type(key) for key, _ in found] == [type(key) for key, _ in expected]
