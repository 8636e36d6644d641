"""Checks that all rows have arrived: a task's over its input, and the driver's over the acks (rules 5.1 to 5.3).

A task checks once, when its input ends. Row order is ignored: Spark guarantees none between blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.reports import Ack, Barrier, Failure, FailureKind
from statefx.protocol.watermark import Part, least, together

Channel = tuple[int, str, int]
"""(edge id, source component, source task): what one task expects rows and a barrier from."""

_REASONS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class AlignmentResult:
    """The decision of `Alignment.finish`."""

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

    * Aligned only if there is a barrier of this attempt from every source task, with one token each, every row carries
      its barrier's token, and every channel received as many rows as its barrier says.
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
        """Take a barrier; one of another attempt or an earlier transaction is set aside as stale."""
        if barrier.attempt != self.attempt:  # of a cancelled or a former attempt (rule 6.4)
            self._stale.append(barrier)
            return
        known = self._barriers.setdefault(TaskId(barrier.source, barrier.task), [])
        if barrier not in known:
            known.append(barrier)

    def is_whole(self, channel: Channel) -> bool:
        """Return whether a channel's barrier has come, and all rows that it counts; never of a task that has failed."""
        edge, source, task = channel
        return any(
            barrier.failed is None and self._rows.get((*channel, barrier.token), 0) >= barrier.counts.get(edge, 0)
            for barrier in self._barriers.get(TaskId(source, task), ())
        )

    def finish(self) -> AlignmentResult:
        """Check what has arrived; called when the input has ended."""
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


_CONSEQUENCES = (FailureKind.UPSTREAM, FailureKind.MISSING)
"""A task that got a failed barrier, or never ran, did so because of another task: its failure is shown last."""


@dataclass(frozen=True, slots=True)
class LedgerEdge:
    """One edge of the topology, as far as counting goes."""

    id: int
    source: str
    target: str
    # How many consumer tasks one emitted row reaches: the consumer's parallelism for an allGrouping, else 1.
    multiplicity: int = 1
    # Rows stay with the task of the same number: task i of the consumer has only task i of the source.
    local: bool = False


@dataclass(frozen=True, slots=True)
class Complete:
    """The attempt may be committed with these tokens."""

    tokens: Mapping[TaskId, str]  # task -> the token that every consumer saw
    acks: Mapping[TaskId, Ack]  # the acks those tokens belong to


@dataclass(frozen=True, slots=True)
class Incomplete:
    """The attempt must be rolled back; causes come first, their consequences last."""

    failures: tuple[Failure, ...]

    @property
    def failure(self) -> Failure:
        return self.failures[0]


class AckLedger:
    """The acks of one transaction attempt, one of each task.

    * Complete only if the token of each ack is the one that every consumer task saw, and per edge rows received = rows
      emitted x multiplicity.
    * An ack of another transaction attempt changes nothing; it is kept in `stale`. Nor does a repeated one.
    * A fenced task makes the attempt incomplete whatever else was acked.
    """

    def __init__(self, attempt: TransactionAttempt, tasks: Iterable[TaskId], edges: Iterable[LedgerEdge]) -> None:
        self.attempt = attempt
        self.stale: list[Ack] = []
        self._acks: dict[TaskId, Ack] = {}
        self._tasks: dict[str, list[TaskId]] = {}
        for task in sorted(tasks):
            self._tasks.setdefault(task.component, []).append(task)
        self._edges = tuple(edge for edge in edges if edge.source in self._tasks)
        every = [task for numbers in self._tasks.values() for task in numbers]
        self._sources: dict[TaskId, frozenset[TaskId]] = {task: frozenset(self._upstream(task)) for task in every}
        self._unexpected: list[Failure] = []

    def _upstream(self, task: TaskId) -> Iterator[TaskId]:
        for edge in self._edges:
            if edge.target == task.component:
                yield from [TaskId(edge.source, task.task)] if edge.local else self._tasks[edge.source]

    def add(self, ack: Ack) -> bool:
        """Take an ack, in any order and any number of times; False if it is another attempt's."""
        if ack.attempt != self.attempt:  # rule 6.4: a task may outlive its attempt, and still ack
            self.stale.append(ack)
            return False
        if ack.id not in self._sources:
            self._unexpected.append(_misaligned(ack.id, "an ack of a task that is not known"))
        elif self._acks.setdefault(ack.id, ack) != ack:  # rule 1.3: of two runs of a task nobody knows which counts
            self._unexpected.append(ack.failed or _misaligned(ack.id, "two acks that differ"))
        return True

    def check(self) -> Complete | Incomplete:
        """Decide on the acks so far; called when no more are awaited."""
        failures = [*self._unexpected, *self._failed()]
        fenced = [failure for failure in failures if failure.kind is FailureKind.FENCED]
        if fenced:  # a newer driver is there: this one must end, whatever else has failed, and not try again
            return Incomplete(tuple(fenced))
        if failures:
            return Incomplete(tuple(sorted(failures, key=lambda failure: failure.kind in _CONSEQUENCES)))
        failures = self._token_failures(self._acks) or self._row_failures(self._acks)
        if failures:
            return Incomplete(tuple(failures))
        return Complete({task: self._acks[task].token for task in self._sources}, self._acks)

    def _failed(self) -> Iterator[Failure]:
        for task in self._sources:
            ack = self._acks.get(task)
            if ack is None:
                yield Failure(FailureKind.MISSING, *task, "no ack")
            elif ack.failed is not None:
                yield ack.failed

    def _token_failures(self, chosen: Mapping[TaskId, Ack]) -> list[Failure]:
        failures = []
        for task, ack in chosen.items():
            if not ack.token:
                failures.append(_misaligned(task, "its ack carries no token"))
            if set(ack.seen) != self._sources[task]:
                odd = ", ".join(f"{name}[{number}]" for name, number in sorted(self._sources[task] ^ set(ack.seen)))
                failures.append(_misaligned(task, f"its inputs are not those of the topology: {odd}"))
                continue
            for source, token in sorted(ack.seen.items()):
                acked = chosen[source].token
                if token != acked:
                    reason = f"saw token {token} of {source.component}[{source.task}], whose ack carries {acked}"
                    failures.append(_misaligned(task, reason))
        return failures

    def _row_failures(self, chosen: Mapping[TaskId, Ack]) -> list[Failure]:
        failures = []
        for edge in self._edges:
            emitted = sum(chosen[task].emitted.get(edge.id, 0) for task in self._tasks[edge.source])
            received = sum(chosen[task].received.get(edge.id, 0) for task in self._tasks.get(edge.target, ()))
            # Each task has judged its own channels (5.3). A row that was emitted and is in no barrier shows here (5.2).
            if received != emitted * edge.multiplicity:
                reason = (
                    f"edge {edge.id} from {edge.source}: {emitted} rows emitted x {edge.multiplicity}, "
                    f"{received} received by all tasks"
                )
                failures.append(_misaligned(TaskId(edge.target, -1), reason))
        return failures


def _misaligned(task: TaskId, reason: str) -> Failure:
    return Failure(FailureKind.MISALIGNED, task.component, task.task, reason)
