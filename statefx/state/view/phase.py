"""Where a state is in its transaction."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """Where a `KeyValueState` is in its transaction.

    ::

        OPEN --prepareCommit(t)--> PREPARED --commit(t)--> OPEN
                                            --rollback()--> OPEN
        any  --close()--> CLOSED
    """

    OPEN = "open"
    PREPARED = "prepared"
    READ_ONLY = "read-only"
    CLOSED = "closed"
