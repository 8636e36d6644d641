"""The state as a bolt is given it: everything but the power over its transaction, which stays with the runtime.

`prepare` and `close` here are the runtime's. What a bolt does by itself would either be lost without a trace, as a
``rollback`` in ``execute`` takes back what other tuples have put, or name a version that the driver knows nothing of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from statefx.errors import StatePhaseError
from statefx.state.view.keyvalue import KeyValueState

_REMEDIES = {
    "prepareCommit": "it is prepared when prePrepare has returned",
    "commit": "it is committed once every task has prepared",
    "rollback": "raise FailedException to have the whole transaction rolled back and tried again",
    "close": "it is closed when the transaction has ended",
}


_LIKE_A_DICT = {
    "values": "write [value for _, value in state.items()]",
    "update": "write state.putAll({...})",
    "setdefault": "write value = state.get(key, default), change it, and state.put(key, value)",
    "pop": "write state.delete(key), which returns the value it had, or None",
    "popitem": "write key, value = next(state.items()), and state.delete(key)",
    "clear": "write state.deleteRange(None, None)",
    "copy": "write dict(state.items())",
    "set": "write state.put(key, value)",
    "remove": "write state.delete(key)",
    "exists": "write key in state",
    "increment": "write state.put(key, state.get(key, 0) + 1)",
}
"""What a dict, or the state of another system, has and this one has not, with what does it here."""


class WrongName:
    """A name that a class has not, but its users look for, with what to write in its place.

    An attribute of the class for each such name, and no ``__getattr__``: with that one Python looks up every attribute
    of the class the long way, and `KeyValueState.put` takes a third longer.

    Parameters
    ----------
    holder : str
        What has it not, such as ``a KeyValueState``.
    name, remedy : str
    """

    def __init__(self, holder: str, name: str, remedy: str) -> None:
        self._text, self._name = f"{holder} has no {name!r}: {remedy}", name

    def __get__(self, holder: object, kind: type | None = None) -> NoReturn:
        """Raise AttributeError, as for any name that is not there."""
        raise AttributeError(self._text, name=self._name, obj=holder)


class LentState(KeyValueState[Any, Any]):
    """A `KeyValueState` whose transaction its holder can't end; ``initState`` is given one."""

    __slots__ = ()
    _ended = "the state is closed: it ended with its transaction. Use the one that initState was given last"

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


for _name, _remedy in _LIKE_A_DICT.items():
    setattr(LentState, _name, WrongName("a KeyValueState", _name, _remedy))


def prepare(state: LentState, txid: int, token: str) -> None:
    """Make the changes durable under `token`, for the runtime."""
    super(LentState, state).prepareCommit(txid, token=token)


def close(state: LentState) -> None:
    """Release the store, for the runtime; again is a no-op."""
    super(LentState, state).close()
