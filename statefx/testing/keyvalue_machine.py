"""A Hypothesis state machine: what a bolt sees of state, scans that go on while it changes among it, against dicts."""

# the names of rules say what docstrings would

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from statefx.errors import StatePhaseError
from statefx.state.contract.spaces import Space
from statefx.state.contract.store import EMPTY, StateProvider, Version
from statefx.state.encoding.keys import encode_key
from statefx.state.view.keyvalue import KeyValueState
from statefx.testing.site import Site

KEYS = st.one_of(st.integers(-2, 5), st.sampled_from([True, 1.0, "a"]), st.tuples(st.just("a"), st.integers(0, 2)))
VALUES = st.none() | st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2)
ENTRIES = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=8)


def _in_order(bounds: tuple[Any, ...]) -> tuple[Any, ...]:
    return bounds if None in bounds else tuple(sorted(bounds, key=encode_key))


RANGES = st.one_of(
    st.just((None, None)), st.tuples(st.none() | KEYS, st.none() | KEYS).map(_in_order), st.tuples(KEYS, KEYS)
)
"""Mostly those that hold something."""

NEIGHBOURS = dict.fromkeys((b"s8a", b"t8a", b"t\xff", b"t\xff\xff", b"v", b"v\x00", b"w8a"), b"\x01")
"""Entries of other spaces, beside the keys of the bolt on both sides; no rule may ever show, count or change them."""

Changes = dict[bytes, tuple[Any, Any] | None]
"""By a key's bytes: (key, value), which tell 1, 1.0 and True apart; None: deleted."""


def keyvalue_machine(provider_factory: Callable[[], StateProvider]) -> type[RuleBasedStateMachine]:
    """Return a state machine over `KeyValueState` of what `provider_factory` makes; its ``TestCase`` is the test."""

    class KeyValueMachine(_KeyValueMachine):
        factory = staticmethod(provider_factory)

    return KeyValueMachine


class _KeyValueMachine(RuleBasedStateMachine):
    """One task's state; as dicts what is committed, what is prepared over it, and what is changed over that."""

    factory: Callable[[], StateProvider]

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="statefx-machine-"))
        self.site = Site(self.factory(), self.root)
        self.site.start(1)
        self.version = self.site.commit(EMPTY, NEIGHBOURS)
        self.committed: Changes = {}
        self.prepared: Changes | None = None
        self.pending: Changes = {}
        self.scans: list[tuple[Iterator[tuple[Any, Any]], list[tuple[Any, Any]]]] = []
        self.state: KeyValueState[Any, Any] = self.site.state(self.version)
        self.counts = self.site.open(self.version).count(Space.USER.value) is not None

    def _shown(self, start: Any = None, stop: Any = None, reverse: bool = False) -> list[tuple[Any, Any]]:
        low, high = (None if bound is None else encode_key(bound) for bound in (start, stop))
        found = {**self.committed, **(self.prepared or {}), **self.pending}
        return [
            entry
            for key, entry in sorted(found.items(), reverse=reverse)
            if entry is not None and (low is None or low <= key) and (high is None or key < high)
        ]

    def _value(self, key: Any) -> Any:
        key_bytes = encode_key(key)
        for layer in (self.pending, self.prepared or {}, self.committed):
            if key_bytes in layer:
                entry = layer[key_bytes]
                return "absent" if entry is None else entry[1]
        return "absent"

    # ---- changes

    @rule(entries=ENTRIES, read=st.booleans())
    def put(self, entries: list[tuple[Any, Any]], read: bool) -> None:
        for key, value in entries:
            if read:  # put goes another way when the key is known
                assert self.state.get(key, "absent") == self._value(key)
            self.state[key] = value
            self.pending[encode_key(key)] = key, value

    @rule(keys=st.lists(KEYS, min_size=1, max_size=4))
    def delete(self, keys: list[Any]) -> None:
        for key in keys:
            value = self._value(key)
            assert self.state.delete(key) == (None if value == "absent" else value)
            if value != "absent":
                self.pending[encode_key(key)] = None

    @rule(bounds=RANGES)
    def delete_range(self, bounds: tuple[Any, Any]) -> None:
        inside = self._shown(*bounds)
        assert self.state.deleteRange(*bounds) == len(inside)
        self.pending.update({encode_key(key): None for key, _ in inside})

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
        elif self.prepared is not None:
            self._commit(self.prepared)
        elif how == "reopen":
            self._reopen()
        else:
            txid = self.version.txid + 1
            self.version = Version(txid, self.state.prepareCommit(txid))
            self.prepared, self.pending = self.pending, {}

    def _commit(self, prepared: Changes) -> None:
        self.state.commit(self.version.txid)
        self.committed.update(prepared)
        self.prepared = None
        self._end_scans()

    def _rollback(self) -> None:
        self.state.rollback()
        self.prepared, self.pending, self.version = None, {}, self.state.version
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
        """Delete what the run left."""
        _same(self.state.items(), self._shown())
        if self.prepared is None:
            rows = dict(self.site.open(self.state.version).scan(None, None))
            assert {key: value for key, value in rows.items() if key[:1] != Space.USER.value} == NEIGHBOURS
        self.state.close()
        self.site.close()
        shutil.rmtree(self.root, ignore_errors=True)


def _same(entries: Iterator[tuple[Any, Any]], expected: list[tuple[Any, Any]]) -> None:
    found = list(entries)
    assert found == expected
    assert [type(key) for key, _ in found] == [type(key) for key, _ in expected]
