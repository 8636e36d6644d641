"""Decides, for one task, whether its whole input of one transaction attempt has arrived.

Judged at the end of the input and never by the order of rows: there is none between senders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from statefx.protocol.barrier import Barrier
from statefx.protocol.failure import Failure, FailureKind
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.watermark import Part, least, together

Channel = tuple[int, str, int]
"""(edge id, source component, source task): what one task expects rows and a barrier from."""

_REASONS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class AlignmentResult:
    """What `Alignment.finish` decides."""

    seen: Mapping[TaskId, str]  # source task -> token of its barrier
    received: Mapping[int, int]  # edge id -> rows
    failure: Failure | None  # None when aligned
    stale: tuple[Barrier, ...]  # barriers of other attempts or of transactions already seen: ignored, to be logged
    watermark: int | None = None  # the least of the barriers'; None: none of them holds it
    parts: Mapping[str, Part] = field(default_factory=dict)  # those of all barriers

    @property
    def aligned(self) -> bool:
        """Whether the task may prepare."""
        return self.failure is None


class Alignment:
    """The input of one task in one transaction attempt; each attempt has one of its own, so nothing leaks to the next.

    Barriers at or below `last_txid` are ignored.

    Contract
    --------
    * Aligned only if there is a barrier of this attempt from every source task, with one token each, every row
      carries its barrier's token, and every channel received as many rows as its barrier says.
    * A failed barrier makes the result a failure of kind ``upstream`` with its reason.
    * The order of calls does not change the result.
    """

    def __init__(
        self,
        component: str,
        task: int,
        attempt: TransactionAttempt,
        channels: Iterable[Channel],
        last_txid: int = 0,
    ) -> None:
        if attempt.txid <= last_txid:
            raise ValueError(f"transaction {attempt.txid} is not after the last one seen, {last_txid}")
        self.component = component
        self.task = task
        self.attempt = attempt
        self._channels = frozenset(channels)
        self._sources = sorted({TaskId(source, number) for _, source, number in self._channels})
        self._barriers: dict[TaskId, list[Barrier]] = {}
        self._stale: list[Barrier] = []
        # By token too: a source task that was taken for lost may send rows beside its successor (rule 1.3), and the
        # numbers of both could add up by chance to what one barrier says.
        self._rows: dict[tuple[int, str, int, str], int] = {}

    def records(self, source: str, task: int, token: str, edge: int, rows: int) -> None:
        """Count `rows` that arrived from one source task on one edge, carrying `token`."""
        key = (edge, source, task, token)
        self._rows[key] = self._rows.get(key, 0) + rows

    def barrier(self, barrier: Barrier) -> None:
        """Take a barrier; one of another attempt or an earlier transaction is kept aside as stale."""
        if barrier.attempt != self.attempt:  # of a cancelled or a former attempt (rule 6.4)
            self._stale.append(barrier)
            return
        known = self._barriers.setdefault(TaskId(barrier.source, barrier.task), [])
        if barrier not in known:
            known.append(barrier)

    def is_whole(self, channel: Channel) -> bool:
        """Tell whether a channel's barrier has come, and all rows that it counts; never of a task that has failed."""
        edge, source, task = channel
        return any(
            barrier.failed is None and self._rows.get((*channel, barrier.token), 0) >= barrier.counts.get(edge, 0)
            for barrier in self._barriers.get(TaskId(source, task), ())
        )

    def finish(self) -> AlignmentResult:
        """Judge what has arrived; call it when the input has ended."""
        seen = {source: self._barriers[source][0].token for source in self._sources if source in self._barriers}
        received = dict.fromkeys(sorted({edge for edge, _, _ in self._channels}), 0)
        for (edge, *_), rows in sorted(self._rows.items()):
            received[edge] = received.get(edge, 0) + rows
        barriers = [barrier for each in self._barriers.values() for barrier in each]
        watermark = least(barrier.watermark for barrier in barriers)
        parts = together(barrier.parts for barrier in barriers)
        return AlignmentResult(seen, received, self._failure(), tuple(self._stale), watermark, parts)

    def _failure(self) -> Failure | None:
        # First, because all else may follow from it: a task that failed sends its barrier, and not all of its rows. The
        # reason travels on to the driver, which would see only rows that are missing (rule 6.6).
        upstream = [
            f"{name}[{task}]: {barrier.failed}"
            for (name, task), barriers in sorted(self._barriers.items())
            for barrier in barriers
            if barrier.failed is not None
        ]
        if upstream:
            return self._fail(FailureKind.UPSTREAM, upstream)
        reasons = self._barrier_reasons() + self._row_reasons()
        return self._fail(FailureKind.MISALIGNED, reasons) if reasons else None

    def _barrier_reasons(self) -> list[str]:
        reasons = []
        for source, task in self._sources:
            barriers = self._barriers.get(TaskId(source, task), [])
            if not barriers:
                reasons.append(f"no barrier from {source}[{task}]")
            elif (
                len({barrier.token for barrier in barriers}) > 1
            ):  # rule 5.1: one of the runs must be the one that counts
                tokens = ", ".join(sorted(barrier.token for barrier in barriers))
                reasons.append(f"barriers of several attempts of {source}[{task}]: {tokens}")
            elif len(barriers) > 1:
                reasons.append(f"barriers of {source}[{task}] with one token and different counts")
        unknown = sorted(set(self._barriers) - set(self._sources))
        reasons += [f"a barrier from {source}[{task}], which is no input" for source, task in unknown]
        return reasons

    def _row_reasons(self) -> list[str]:
        reasons = []
        arrived: dict[Channel, int] = {}
        for (edge, source, task, token), rows in sorted(self._rows.items()):
            barriers = self._barriers.get(TaskId(source, task), [])
            if (edge, source, task) not in self._channels:
                reasons.append(f"{rows} rows on edge {edge} from {source}[{task}], which is no input")
            elif barriers and token != barriers[0].token:
                reasons.append(f"{rows} rows of {source}[{task}] carry token {token}, its barrier {barriers[0].token}")
            else:
                arrived[edge, source, task] = arrived.get((edge, source, task), 0) + rows
        for (source, task), barriers in sorted(self._barriers.items()):
            counts = barriers[0].counts
            edges = {edge for edge, name, number in self._channels if (name, number) == (source, task)}
            for edge in sorted(edges | set(counts)):
                sent, got = counts.get(edge, 0), arrived.get((edge, source, task), 0)
                if sent != got:
                    reasons.append(f"{source}[{task}] sent {sent} rows on edge {edge}, {got} arrived")
        return reasons

    def _fail(self, kind: FailureKind, reasons: list[str]) -> Failure:
        shown = "; ".join(reasons[:_REASONS_SHOWN])
        more = len(reasons) - _REASONS_SHOWN
        return Failure(kind, self.component, self.task, shown + (f"; and {more} more" if more > 0 else ""))
