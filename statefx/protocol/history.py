"""The last attempts of transactions, as people are shown them: kept in the log when it is folded; decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from statefx.protocol.jsonform import Json

KEPT = 1000
"""How many ended attempts are remembered. An attempt is a line of some 100 bytes in the CHECKPOINT, so 100 kB, written
with every fold: 2 kB for each of the 50 transactions between two folds, about what their own records take. It is a
quarter of an hour of transactions of one second, and a night of those of a minute."""

BATCH = 64
"""Ended attempts are taken over into the long tuple so many at a time. Each alone would copy `KEPT` of them."""

REASON_CHARS = 200
"""Of why an attempt was rolled back; its ROLLED_BACK record has all of it."""


class SinkVolume(NamedTuple):
    """What one sink was given in a transaction, as its tasks say."""

    sink: str
    rows: int
    bytes: int


def sink_volumes(committables: Mapping[str, Json]) -> tuple[SinkVolume, ...]:
    """Return what the sinks of a decision were given; those that don't tell rows and bytes are left out.

    Committables are a sink's own affair. This is for people alone, so that whatever stands there, it raises nothing: a
    record that can't be folded would end the topology.

    >>> sink_volumes({"out": {"tasks": {"0": {"rows": 2, "bytes": 90}, "1": {"rows": 1, "bytes": 40}}}, "mail": None})
    (SinkVolume(sink='out', rows=3, bytes=130),)
    """
    found = []
    for sink, decision in sorted(committables.items()):
        tasks = decision.get("tasks") if isinstance(decision, Mapping) else None
        if isinstance(tasks, Mapping) and all(_tells(each) for each in tasks.values()):
            rows, size = (sum(each[name] for each in tasks.values()) for name in ("rows", "bytes"))
            found.append(SinkVolume(sink, rows, size))
    return tuple(found)


def _tells(committable: Json) -> bool:
    return isinstance(committable, Mapping) and all(type(committable.get(name)) is int for name in ("rows", "bytes"))


class Past(NamedTuple):
    """An attempt that has ended."""

    txid: int
    attempt: int
    generation: int
    state: str  # ``COMMITTED`` or ``ROLLED_BACK``; or ``RESTORED``, of the transaction that was gone back to
    # prepared_ms, committing_ms, ended_ms: When PREPARING, COMMITTING and the last record were written, in milliseconds
    # since the epoch, by the driver's clock; 0: there is no such record.
    prepared_ms: int = 0
    committing_ms: int = 0
    ended_ms: int = 0
    # input_rows, output_rows: What was read from the sources, and what reached the ends of the topology.
    input_rows: int = 0
    output_rows: int = 0
    state_bytes: int = 0  # by how much stored state has grown
    reason: str = ""  # why it was rolled back
    sinks: tuple[SinkVolume, ...] = ()  # what was decided to be published


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
