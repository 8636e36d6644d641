"""The state as a bolt is given it: everything but the power over its transaction, which stays with the runtime.

`prepare` and `close` here are the runtime's. What a bolt does by itself would either be lost without a trace, as a
``rollback`` in ``execute`` takes back what other tuples have put, or name a version that the driver knows nothing of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from statefx.errors import StatePhaseError
from statefx.state.contract.spaces import Space
from statefx.state.contract.store import SnapshotRef, StateStore, Version
from statefx.state.view.keyvalue import KeyValueState
from statefx.state.view.transaction import Phase, StateTransaction

_REMEDIES = {
    "prepareCommit": "it is prepared when prePrepare has returned",
    "commit": "it is committed once every task has prepared",
    "rollback": "raise FailedException to have the whole transaction rolled back and tried again",
    "close": "it is closed when the transaction has ended",
}


class LentState(KeyValueState[Any, Any]):
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

    def __eq__(self, other: object) -> bool:
        """Refuse to be compared with a dict: it would be False, whatever state holds."""
        if isinstance(other, Mapping):
            raise TypeError("a KeyValueState is never equal to a dict: compare dict(state.items())")
        return self is other

    __hash__ = KeyValueState.__hash__

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be pickled or copied: a copy would go on showing a transaction that has ended."""
        raise TypeError(
            "a KeyValueState belongs to its task and its transaction and can't be pickled or copied: "
            "take dict(state.items())"
        )

    def _refuse(self, call: str) -> NoReturn:
        raise StatePhaseError(
            f"{call}() is not the bolt's to call: {_REMEDIES[call]}",
            txid=self.version.txid,
            committed=self.version.txid,
            phase=self.phase.value,
        )


def prepare(state: LentState, txid: int, token: str) -> None:
    """Make the changes durable under `token`, for the runtime."""
    super(LentState, state).prepareCommit(txid, token=token)


def succeeded(state: LentState, reopened: Callable[[], StateStore]) -> LentState | None:
    """Return the state of the next transaction, in which what `state` has prepared is committed; `state` is closed.

    `reopened` opens the store anew if it can't go on. None if nothing is prepared: `state` is to be closed, and another
    one opened.
    """
    if not state._advance(reopened):
        return None
    heir = object.__new__(type(state))
    for name in StateTransaction.__slots__:
        setattr(heir, name, getattr(state, name))
    heir._begin()
    state._phase, state._changed, state._known, state._writable = Phase.CLOSED, {}, {}, {}
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


def close(state: LentState) -> None:
    """Release the store, for the runtime; again is a no-op."""
    super(LentState, state).close()


def key_of(state: LentState, key_bytes: bytes) -> Any:
    """Return the key that the store knows as `key_bytes`."""
    return state._codec.decode_key(key_bytes)
