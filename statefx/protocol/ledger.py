"""Decides, on the driver, whether a transaction attempt may be committed: every ack, every token, every row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from statefx.protocol.barrier import Ack
from statefx.protocol.failure import Failure, FailureKind
from statefx.protocol.identity import TaskId, TransactionAttempt

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
    """The attempt must be rolled back; causes first, what merely follows from them last."""

    failures: tuple[Failure, ...]

    @property
    def failure(self) -> Failure:
        """The first cause."""
        return self.failures[0]


class AckLedger:
    """The acks of one transaction attempt, one of each task.

    Contract
    --------
    * Complete only if the token of each ack is the one that every consumer task saw, and per edge rows received = rows
      emitted x multiplicity.
    * An ack of another transaction attempt changes nothing; it is kept in `stale`. Nor does one that comes again.
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

    def judge(self) -> Complete | Incomplete:
        """Decide on what has been added so far; call it when no more acks are awaited."""
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
