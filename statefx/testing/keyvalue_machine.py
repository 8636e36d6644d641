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
from statefx.state.keys import encode_key
from statefx.state.keyvalue import KeyValueState
from statefx.state.store import EMPTY, StateProvider, Version
from statefx.testing.site import Site

KEYS = st.one_of(
    st.integers(-3, 8),
    st.sampled_from([True, 1.0, "", "a", "b", b"a"]),
    st.tuples(st.sampled_from("ab"), st.integers(0, 4)),
)
VALUES = st.none() | st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2)
BOUNDS = st.none() | KEYS

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
        self.version = EMPTY
        self.committed: Changes = {}
        self.prepared: Changes | None = None
        self.pending: Changes = {}
        self.scans: list[tuple[Iterator[tuple[Any, Any]], list[tuple[Any, Any]]]] = []
        self.ended: list[Iterator[tuple[Any, Any]]] = []
        self.state: KeyValueState[Any, Any] = self.site.state()
        self.counts = self.site.open().count() is not None

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

    def _end_scans(self) -> None:
        self.ended += [entries for entries, _ in self.scans]
        self.scans = []

    # ---- changes

    @rule(key=KEYS, value=VALUES, read=st.booleans())
    def put(self, key: Any, value: Any, read: bool) -> None:
        if read:  # put goes another way when the key is known
            assert self.state.get(key, "absent") == self._value(key)
        self.state[key] = value
        self.pending[encode_key(key)] = key, value

    @rule(key=KEYS)
    def delete(self, key: Any) -> None:
        value = self._value(key)
        assert self.state.delete(key) == (None if value == "absent" else value)
        if value != "absent":
            self.pending[encode_key(key)] = None

    @rule(start=BOUNDS, stop=BOUNDS)
    def delete_range(self, start: Any, stop: Any) -> None:
        inside = self._shown(start, stop)
        assert self.state.deleteRange(start, stop) == len(inside)
        self.pending.update({encode_key(key): None for key, _ in inside})

    # ---- reading

    @rule(key=KEYS)
    def get(self, key: Any) -> None:
        assert self.state.get(key, "absent") == self._value(key)

    @rule()
    def count(self) -> None:
        """Where the provider counts; a bolt that asks it elsewhere is told what else to do."""
        count = len(self._shown())
        assert bool(self.state) == (count > 0)
        if self.counts:
            assert len(self.state) == count

    @rule(start=BOUNDS, stop=BOUNDS, reverse=st.booleans())
    def scan(self, start: Any, stop: Any, reverse: bool) -> None:
        _same(self.state.items(start, stop, reverse), self._shown(start, stop, reverse))

    @precondition(lambda self: len(self.scans) < 4)
    @rule(start=BOUNDS, stop=BOUNDS, reverse=st.booleans())
    def begin_a_scan(self, start: Any, stop: Any, reverse: bool) -> None:
        self.scans.append((self.state.items(start, stop, reverse), self._shown(start, stop, reverse)))

    @precondition(lambda self: bool(self.scans))
    @rule(data=st.data(), most=st.integers(1, 20))
    def go_on_with_a_scan(self, data: st.DataObject, most: int) -> None:
        """It shows what was there when it began, whatever has been changed since."""
        at = data.draw(st.integers(0, len(self.scans) - 1))
        entries, expected = self.scans[at]
        for _ in range(most):
            if not expected:
                assert next(entries, None) is None
                del self.scans[at]
                return
            _same(iter([next(entries)]), [expected.pop(0)])

    @precondition(lambda self: bool(self.ended))
    @rule()
    def go_on_after_a_commit_or_rollback(self) -> None:
        for entries in self.ended:
            with pytest.raises(StatePhaseError):
                next(entries)
        self.ended = []

    # ---- the transaction

    @precondition(lambda self: self.prepared is None)
    @rule()
    def prepare(self) -> None:
        txid = self.version.txid + 1
        self.version = Version(txid, self.state.prepareCommit(txid))
        self.prepared, self.pending = self.pending, {}

    @precondition(lambda self: self.prepared is not None)
    @rule()
    def commit(self) -> None:
        assert self.prepared is not None
        self.state.commit(self.version.txid)
        self.committed.update(self.prepared)
        self.prepared = None
        self._end_scans()

    @rule()
    def rollback(self) -> None:
        self.state.rollback()
        if self.prepared is not None:
            self.prepared = None
            self.version = self.state.version
        self.pending = {}
        self._end_scans()

    @precondition(lambda self: self.prepared is None)
    @rule()
    def reopen(self) -> None:
        """The next transaction's task; what was not prepared is gone."""
        self.state.close()
        self.state = self.site.state(self.version)
        self.pending, self.scans, self.ended = {}, [], []

    def teardown(self) -> None:
        """Delete what the run left."""
        _same(self.state.items(), self._shown())
        self.state.close()
        self.site.close()
        shutil.rmtree(self.root, ignore_errors=True)


def _same(entries: Iterator[tuple[Any, Any]], expected: list[tuple[Any, Any]]) -> None:
    found = list(entries)
    assert found == expected
    assert [type(key) for key, _ in found] == [type(key) for key, _ in expected]
