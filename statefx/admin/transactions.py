"""What became of the last transactions of a checkpoint, read from its log."""

from __future__ import annotations

from typing import Any

from statefx.coordinator.log import read_state
from statefx.storage import Storage

_TIMES = ("prepared_ms", "committing_ms", "ended_ms")


def read_transactions(storage: Storage) -> list[dict[str, Any]]:
    """Return the last attempts of transactions, oldest first, as plain data; also while a driver is at work.

    Each has the fields of `statefx.protocol.history.Past`. There are about the last 1,000 that have ended, and those
    under way; a time that has not come is None.

    Raises
    ------
    CheckpointError
        There is no transaction log here.
    StateCorruptedError, CheckpointFormatError
        As for `TransactionLog`.
    """
    found = (past._asdict() for past in read_state(storage).past())
    return [{name: value or None if name in _TIMES else value for name, value in each.items()} for each in found]
