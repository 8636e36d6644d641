"""The state as a bolt is given it: everything but the power over its transaction, which stays with the runtime.

`prepare` and `close` here are the runtime's. What a bolt does by itself would either be lost without a trace, as a
``rollback`` in ``execute`` takes back what other tuples have put, or name a version that the driver knows nothing of.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from statefx.errors import StatePhaseError
from statefx.state.contract.spaces import Kind, Space, head_of, name_of
from statefx.state.contract.store import SnapshotRef, StateStore, Version
from statefx.state.view.entries import Entries, Lent
from statefx.state.view.keyvalue import KeyValueState, MapState
from statefx.state.view.overlay import Overlay
from statefx.state.view.transaction import Phase, StateTransaction
from statefx.state.view.undo import Journal

_QUARANTINE_BYTES = 16 << 20
"""Bound on what is remembered of keys that were looked up in quarantine."""

_REMEDIES = {
    "prepareCommit": "it is prepared when prePrepare has returned",
    "commit": "it is committed once every task has prepared",
    "rollback": "raise FailedException to have the whole transaction rolled back and tried again",
    "close": "it is closed when the transaction has ended",
}


class LentState(Lent, KeyValueState[Any, Any]):
    """A `KeyValueState` whose transaction its holder can't end; ``initState`` is given one."""

    __slots__ = ()
    _ended = "the state is closed: it ended with its transaction. Use the one that initState was given last"

    def _begin(self) -> None:
        """Make ready for another transaction of a task that lives."""

    def prepareCommit(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse: StatePhaseError."""
        self._refuse("prepareCommit")

    def commit(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse: StatePhaseError."""
        self._refuse("commit")

    def rollback(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse: StatePhaseError."""
        self._refuse("rollback")

    def close(self) -> NoReturn:
        """Refuse: StatePhaseError."""
        self._refuse("close")

    def _refuse(self, call: str) -> NoReturn:
        raise StatePhaseError(
            f"{call}() is not the bolt's to call: {_REMEDIES[call]}",
            txid=self.version.txid,
            committed=self.version.txid,
            phase=self.phase.value,
        )


def given_back(entries: MapState[Any, Any], value: Any) -> Any:
    """Return what a map gives back of `value` when its transaction has ended."""
    codec = entries._overlay.codec
    return codec.decode_value(codec.encode_value(value))


def broadcasting(state: LentState, *, on: bool) -> None:
    """Say whether the bolt is being given what all tasks are given, and may change what all of them hold."""
    state._broadcasting = on


def keep_journal(state: LentState, journal: Journal | None) -> None:
    """Have every change write into `journal` what it replaces, whatever part of the state it is in; None: no more."""
    state._keep_journal(journal)


def undo(state: LentState, journal: Journal) -> None:
    """Take back what a journal has.

    Raises
    ------
    Exception
        What a read has raised since the state was opened: nothing that was computed from it can be kept.
    """
    if state._reads.failure is not None:
        raise state._reads.failure
    state._undo(journal)


def prepare(state: LentState, txid: int, token: str) -> None:
    """Make the changes durable under `token`, for the runtime."""
    super(LentState, state).prepareCommit(txid, token=token)


def succeeded(state: LentState, reopened: Callable[[], StateStore], clock_ms: int) -> LentState | None:
    """Return the state of the next transaction, in which what `state` has prepared is committed; `state` is closed.

    `reopened` opens the store anew if it can't go on; `clock_ms` is the time of the next transaction. None if nothing
    is prepared: `state` is to be closed, and another one opened.
    """
    if not state._advance(reopened):
        return None
    heir = object.__new__(type(state))
    for name in (*Entries.__slots__, *StateTransaction.__slots__):
        setattr(heir, name, getattr(state, name))
    # What shows names ends with its transaction. Names that it has not taken are forgotten: a bolt may well have
    # another one each day.
    raw = Space.TIMERS.value, Space.QUARANTINE.value
    heir._named = {head: each for head, each in state._named.items() if head in state._views or head[:1] in raw}
    heir._views = {}
    heir._relink()
    heir._set_clock(clock_ms)
    heir._begin()
    state._phase = Phase.CLOSED
    state._unlink()
    return heir


def prepared(state: LentState) -> Version:
    """Return the version that is prepared."""
    return state._preparing


def found_keys(state: LentState) -> int | None:
    """Return how many keys of the user's the version has that was opened; None if only reading them could tell."""
    return state._store.count(Space.USER.value)


def snapshot(state: LentState) -> SnapshotRef | None:
    """Write a full image of the version that was opened."""
    return state._store.snapshot()


def windows_of(state: LentState, name: str) -> MapState[Any, Any]:
    """Return what is kept under a name of the windows of a windowed bolt."""
    return state._view(Kind.WINDOWS, name, partial(MapState, state))


def has_taken(state: LentState, kind: Kind, name: str) -> bool:
    """Return whether the bolt has taken a map, list or value of this name in this transaction."""
    return head_of(kind, name) in state._views


def quarantine_of(state: LentState) -> Overlay:
    """Return what is kept of keys whose rows are held back."""
    return state._raw_overlay(Space.QUARANTINE.value, _QUARANTINE_BYTES)


def close(state: LentState) -> None:
    """Release the store, for the runtime; again is a no-op."""
    super(LentState, state).close()


def key_of(state: LentState, key_bytes: bytes) -> Any:
    """Return the key that the store knows as `key_bytes`; of what is kept under a name, (name, key)."""
    if key_bytes[:1] != Space.NAMED.value:
        return state._codec.decode_key(key_bytes)
    kind, name = name_of(key_bytes)
    return name, state._named[head_of(kind, name)].codec.decode_key(key_bytes)
