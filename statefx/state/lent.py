"""The state as a bolt is given it: everything but the power over its transaction, which stays with the runtime.

`prepare` and `close` here are the runtime's. What a bolt does by itself would either be lost without a trace, as a
``rollback`` in ``execute`` takes back what other tuples have put, or name a version that the driver knows nothing of.
"""

from __future__ import annotations

from typing import Any, NoReturn

from statefx.errors import StatePhaseError
from statefx.state.keyvalue import KeyValueState

_REMEDIES = {
    "prepareCommit": "it is prepared when prePrepare has returned",
    "commit": "it is committed once every task has prepared",
    "rollback": "raise FailedException to have the whole transaction rolled back and tried again",
    "close": "it is closed when the transaction has ended",
}


class LentState(KeyValueState[Any, Any]):
    """A `KeyValueState` whose transaction its holder can't end; ``initState`` is given one."""

    __slots__ = ()

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


def prepare(state: LentState, txid: int, token: str) -> None:
    """Make the changes durable under `token`, for the runtime."""
    super(LentState, state).prepareCommit(txid, token=token)


def close(state: LentState) -> None:
    """Release the store, for the runtime; again is a no-op."""
    super(LentState, state).close()
