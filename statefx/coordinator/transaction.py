"""What one transaction came to, for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from statefx.protocol.barrier import Ack, LeftOut, SetAside
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.trees import NOTHING, TreeReport, merged
from statefx.protocol.watermark import BEGINNING
from statefx.state.view.time_index import time_of
from statefx.topology.graph import INTERNAL


def iso(secs: float) -> str:
    """Return a time in seconds since the epoch as status and progress show it.

    >>> iso(0.5)
    '1970-01-01T00:00:00.500+00:00'
    """
    return datetime.fromtimestamp(secs, UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class TransactionProgress:
    """One committed transaction.

    Attributes
    ----------
    txid, attempt : int
    input_rows : int
        Rows that DataFrames or spouts brought.
    rows : Mapping[str, int]
        Rows that each bolt received.
    keys, state_bytes : Mapping[str, int]
        State keys that each stateful bolt changed, and the size of what it prepared.
    found_keys : Mapping[str, int]
        How many keys the state of each stateful bolt held when the transaction found it, where its provider counts.
    stored_bytes : Mapping[str, int]
        What a worker without caches would read to restore the state of each bolt, after the transaction.
    bolt_ms : Mapping[str, Mapping[str, float]]
        What the tasks of each bolt did, all of them added up, by the names of `Ack.metrics`; and ``slowest``, all that
        the slowest task did.
    duration_ms : Mapping[str, float]
        Time of the driver by phase: ``run`` (the attempt, until its acks are judged), ``hooks`` (what the commit has to
        run), ``log`` (the records), and with several transactions under way ``wait`` (for those before it). They don't
        overlap; attempts that were rolled back are not in it.
    committed_at : float
        When COMMITTED was durable, in seconds since the epoch.
    sources : Mapping[str, JSON]
        How far spouts are, as they say; without those that say nothing.
    left_out : Mapping[str, LeftOut]
        What spouts have left out, as their users have told them to; without those that have left out nothing.
    trees : TreeReport
        What spouts that live in their tasks are told.
    watermarks : Mapping[str, int]
        How far event time has come in each component, in microseconds since 1970: the least of its tasks. Without those
        that have no event time, or of which nothing is known yet.
    ahead : Mapping[str, int]
        Rows of each component whose event times are too far ahead to move the watermark; without those that have none.
    late : Mapping[str, int]
        Rows that came too late for a windowed bolt, by bolt; without those that had none.
    set_aside : Mapping[str, SetAside]
        Rows of which a bolt raised an error, and which it does not fail for, by bolt; without those that had none.
    """

    txid: int
    attempt: int
    input_rows: int
    rows: Mapping[str, int]
    keys: Mapping[str, int]
    state_bytes: Mapping[str, int]
    found_keys: Mapping[str, int]
    stored_bytes: Mapping[str, int]
    bolt_ms: Mapping[str, Mapping[str, float]]
    duration_ms: Mapping[str, float]
    committed_at: float
    sources: Mapping[str, Any] = field(default_factory=dict)
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)
    trees: TreeReport = field(default=NOTHING)
    watermarks: Mapping[str, int] = field(default_factory=dict)
    ahead: Mapping[str, int] = field(default_factory=dict)
    late: Mapping[str, int] = field(default_factory=dict)
    set_aside: Mapping[str, SetAside] = field(default_factory=dict)

    def __str__(self) -> str:
        """Tell of the transaction in one line."""
        phases = ", ".join(f"{phase} {ms:.0f}" for phase, ms in self.duration_ms.items())
        return (
            f"transaction {self.txid}, attempt {self.attempt}: {self.input_rows:,} rows, "
            f"{sum(self.keys.values()):,} keys, {sum(self.duration_ms.values()):.0f} ms ({phases})"
        )

    @property
    def rows_per_second(self) -> float:
        """Input rows, by the time that the transaction took."""
        secs = sum(self.duration_ms.values()) / 1000
        return self.input_rows / secs if secs > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the progress in the shape of pyspark's ``lastProgress``: plain data."""
        return {
            "txid": self.txid,
            "attempt": self.attempt,
            "timestamp": iso(self.committed_at),
            "numInputRows": self.input_rows,
            "processedRowsPerSecond": round(self.rows_per_second, 1),
            "sources": dict(self.sources),
            "leftOut": {
                spout: {"gone": said.gone, "refused": said.refused, "why": said.why}
                for spout, said in self.left_out.items()
            },
            "watermarks": {name: time_of(each).isoformat() for name, each in self.watermarks.items()},
            "rowsAhead": dict(self.ahead),
            "rowsLate": dict(self.late),
            "rowsSetAside": {bolt: aside.rows for bolt, aside in self.set_aside.items()},
            "rows": dict(self.rows),
            "stateKeysChanged": dict(self.keys),
            "stateBytesChanged": dict(self.state_bytes),
            "stateKeys": dict(self.found_keys),
            "stateBytes": dict(self.stored_bytes),
            "boltMs": {bolt: dict(spent) for bolt, spent in self.bolt_ms.items()},
            "durationMs": {phase: round(ms, 3) for phase, ms in self.duration_ms.items()},
        }


def came_to(
    attempt: TransactionAttempt,
    acks: Mapping[TaskId, Ack],
    input_rows: int,
    stored_bytes: Mapping[str, int],
    secs: Mapping[str, float],
    committed_at: float,
) -> TransactionProgress:
    """Return what the acks of a committed attempt say, with the seconds that its phases have taken."""
    bolts = by_bolt(acks)
    stateful = {bolt: of for bolt, of in bolts.items() if any(ack.keys for ack in of)}
    return TransactionProgress(
        txid=attempt.txid,
        attempt=attempt.attempt,
        input_rows=input_rows,
        rows=received_rows(acks),
        keys={bolt: sum(ack.keys for ack in of) for bolt, of in stateful.items()},
        state_bytes={bolt: sum(ack.prepared_bytes for ack in of) for bolt, of in stateful.items()},
        found_keys={
            bolt: sum(ack.found_keys or 0 for ack in of)
            for bolt, of in bolts.items()
            if all(ack.found_keys is not None for ack in of)
        },
        stored_bytes=stored_bytes,
        bolt_ms={bolt: _spent(of) for bolt, of in bolts.items()},
        duration_ms={phase: taken * 1000 for phase, taken in secs.items()},
        committed_at=committed_at,
        sources={name: _counted(of) for name, of in bolts.items() if any(ack.counts for ack in of)},
        trees=merged(ack.trees for ack in acks.values()),
        watermarks={name: least for name, of in bolts.items() if (least := _watermark(of)) > BEGINNING},
        ahead=_ahead(acks),
        late={name: late for name, of in bolts.items() if (late := sum(a.time.late for a in of if a.time is not None))},
        set_aside={name: rows for name, of in bolts.items() if (rows := sum((a.set_aside for a in of), SetAside()))},
        left_out={name: said for name, of in bolts.items() if (said := sum((a.left_out for a in of), LeftOut()))},
    )


def _counted(acks: Iterable[Ack]) -> dict[str, int | float]:
    """Return what the tasks of a spout count: latencies of the slowest, all else added up."""
    found: dict[str, int | float] = {}
    for ack in acks:
        for name, count in ack.counts.items():
            found[name] = max(found.get(name, 0), count) if name.endswith("Ms") else found.get(name, 0) + count
    return found


def _watermark(acks: Iterable[Ack]) -> int:
    """Return how far event time has come in the tasks of one component; `BEGINNING`: nothing is known."""
    return min((ack.time.watermark for ack in acks if ack.time is not None), default=BEGINNING)


def _ahead(acks: Mapping[TaskId, Ack]) -> dict[str, int]:
    """Return how many rows had times that are too far ahead, by what has told of it."""
    found: dict[str, int] = {}
    for (component, _), ack in acks.items():
        if ack.time is not None and ack.time.ahead:
            found[component] = found.get(component, 0) + ack.time.ahead
    return found


def by_bolt(acks: Mapping[TaskId, Ack]) -> dict[str, list[Ack]]:
    """Return acks by the bolts of the user's that they are of."""
    found: dict[str, list[Ack]] = {}
    for (component, _), ack in acks.items():
        if not component.startswith(INTERNAL):
            found.setdefault(component, []).append(ack)
    return found


def received_rows(acks: Mapping[TaskId, Ack]) -> dict[str, int]:
    """Return how many rows each bolt received; spouts, whose acks name no edge, receive none."""
    found = by_bolt(acks).items()
    return {bolt: sum(sum(ack.received.values()) for ack in of) for bolt, of in found if any(a.received for a in of)}


def _spent(acks: Iterable[Ack]) -> dict[str, float]:
    """Add up what the tasks of one bolt say of their time."""
    found: dict[str, float] = {}
    slowest = 0.0
    for ack in acks:
        slowest = max(slowest, sum(ack.metrics.values()))
        for name, ms in ack.metrics.items():
            found[name] = found.get(name, 0.0) + ms
    return {name: round(ms, 3) for name, ms in (found | {"slowest": slowest}).items()}
