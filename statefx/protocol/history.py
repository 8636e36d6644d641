"""The last attempts of transactions, as people are shown them: kept in the log when it is folded; decides nothing."""

from __future__ import annotations

from typing import NamedTuple

KEPT = 1000
"""How many ended attempts are remembered. An attempt is a line of some 100 bytes in the CHECKPOINT, so 100 kB, written
with every fold: 2 kB for each of the 50 transactions between two folds, about what their own records take. It is a
quarter of an hour of transactions of one second, and a night of those of a minute."""

BATCH = 64
"""Ended attempts are taken over into the long tuple so many at a time. Each alone would copy `KEPT` of them."""

REASON_CHARS = 200
"""Of why an attempt was rolled back; its ROLLED_BACK record has all of it."""


class Past(NamedTuple):
    """An attempt that has ended.

    Attributes
    ----------
    txid, attempt, generation : int
    state : str
        ``COMMITTED`` or ``ROLLED_BACK``.
    prepared_ms, committing_ms, ended_ms : int
        When PREPARING, COMMITTING and the last record were written, in milliseconds since the epoch, by the driver's
        clock; 0: there is no such record.
    input_rows, output_rows : int
        What was read from the sources, and what reached the ends of the topology.
    state_bytes : int
        By how much stored state has grown.
    reason : str
        Why it was rolled back.
    """

    txid: int
    attempt: int
    generation: int
    state: str
    prepared_ms: int = 0
    committing_ms: int = 0
    ended_ms: int = 0
    input_rows: int = 0
    output_rows: int = 0
    state_bytes: int = 0
    reason: str = ""


class History(NamedTuple):
    """The last attempts, `KEPT` of them and up to `BATCH` more.

    >>> history = History()
    >>> for txid in range(1, 3000):
    ...     history = history.with_last(Past(txid, 0, 1, "COMMITTED"))
    >>> history.past[-1].txid, KEPT <= len(history.past) < KEPT + BATCH
    (2999, True)
    """

    older: tuple[Past, ...] = ()
    newest: tuple[Past, ...] = ()

    @property
    def past(self) -> tuple[Past, ...]:
        """All of them, oldest first."""
        return self.older + self.newest

    def with_last(self, past: Past) -> History:
        """Return the history after one more attempt has ended."""
        newest = (*self.newest, past)
        return History((*self.past[1 - KEPT :], past)) if len(newest) == BATCH else History(self.older, newest)
