"""Decides, on the driver, whether a transaction attempt may be committed: every ack, every token, every row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from statefx.protocol.barrier import Ack
from statefx.protocol.failure import Failure, FailureKind
from statefx.protocol.identity import TaskId, TransactionAttempt

Acks = dict[TaskId, list[Ack]]

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
    """The acks of one transaction attempt. Raw DataFrames have no tasks; edges from them are not judged.

    Contract
    --------
    * Complete only if there is one choice of an ack per task in which the token of each ack is the one that
      every consumer task saw, and per edge rows received = rows emitted x multiplicity.
    * Acks of several attempts of one task may be given; those that do not fit the rest are passed over.
    * An ack of another transaction attempt changes nothing; it is kept in `stale`.
    * A fenced task makes the attempt incomplete whatever else was acked.
    """

    def __init__(self, attempt: TransactionAttempt, tasks: Iterable[TaskId], edges: Iterable[LedgerEdge]) -> None:
        self.attempt = attempt
        self.stale: list[Ack] = []
        self._acks: Acks = {task: [] for task in sorted(tasks)}
        self._tasks: dict[str, list[TaskId]] = {}
        for task in self._acks:
            self._tasks.setdefault(task.component, []).append(task)
        self._edges = tuple(edge for edge in edges if edge.source in self._tasks)
        self._sources: dict[TaskId, frozenset[TaskId]] = {task: frozenset(self._upstream(task)) for task in self._acks}
        self._consumers: dict[TaskId, list[TaskId]] = {task: [] for task in self._acks}
        for task, sources in self._sources.items():
            for source in sorted(sources):
                self._consumers[source].append(task)
        self._unexpected: list[Failure] = []

    def _upstream(self, task: TaskId) -> Iterator[TaskId]:
        for edge in self._edges:
            if edge.target == task.component:
                yield from [TaskId(edge.source, task.task)] if edge.local else self._tasks[edge.source]

    def add(self, ack: Ack) -> bool:
        """Take an ack, in any order and any number of times; False if it is another attempt's."""
        if ack.attempt != self.attempt:  # rule 6.4: a task may outlive its cancelled job by seconds, and still ack
            self.stale.append(ack)
            return False
        known = self._acks.get(ack.id)
        if known is None:
            self._unexpected.append(_misaligned(ack.id, "an ack of a task that is not known"))
        elif ack not in known:
            known.append(ack)
        return True

    def judge(self) -> Complete | Incomplete:
        """Decide on what has been added so far; call it when the job has ended."""
        failed = [ack.failed for acks in self._acks.values() for ack in acks if ack.failed]
        fenced = [failure for failure in failed if failure.kind is FailureKind.FENCED]
        if fenced:  # a newer driver is there: this one must end, whatever else has failed, and not try again
            return Incomplete(tuple(fenced))
        # Spark may have run a task twice, and only one of the runs have failed: a failed ack counts where it is alone.
        usable = {task: [ack for ack in acks if ack.failed is None] for task, acks in self._acks.items()}
        failures = self._unexpected + self._unusable(usable)
        if failures:
            return Incomplete(tuple(sorted(failures, key=lambda failure: failure.kind in _CONSEQUENCES)))
        chosen = self._choose(usable)
        failures = self._token_failures(chosen) or self._row_failures(chosen)
        if failures:
            return Incomplete(tuple(failures))
        return Complete({task: ack.token for task, ack in chosen.items()}, chosen)

    def _unusable(self, usable: Acks) -> list[Failure]:
        failures = []
        for task, acks in usable.items():
            if acks:
                continue
            failed = [ack.failed for ack in self._acks[task] if ack.failed is not None]
            failures += failed or [Failure(FailureKind.MISSING, *task, "no ack")]
        return failures

    def _choose(self, usable: Acks) -> dict[TaskId, Ack]:
        """Pick one ack per task, consistent with the others if that is possible; `judge` checks the pick.

        Spark runs a task twice when an executor is lost or slow, and consumers may have read different runs (rule 1.3).
        A task that was run twice has as a rule one ack that its consumers saw. Trying every combination would take
        exponential time; a pick that turns out not to fit costs a rollback, and never commits what is not whole (5.1).
        """
        left = {task: list(acks) for task, acks in usable.items()}
        self._prune(left)
        for task, acks in left.items():
            if len(acks) > 1:
                left[task] = acks[:1]
                self._prune(left)
        return {task: (acks or usable[task])[0] for task, acks in left.items()}

    def _prune(self, left: Acks) -> None:
        """Drop, until nothing changes, acks that fit no remaining ack of some neighbour."""
        changed = any(len(acks) > 1 for acks in left.values())
        while changed:
            changed = False
            for task, acks in left.items():
                fitting = [ack for ack in acks if self._fits(task, ack, left)]
                changed = changed or len(fitting) < len(acks)
                left[task] = fitting

    def _fits(self, task: TaskId, ack: Ack, left: Acks) -> bool:
        consumers = self._consumers[task]
        if not all(any(other.seen.get(task) == ack.token for other in left[consumer]) for consumer in consumers):
            return False
        sources = self._sources[task]
        return all(any(other.token == ack.seen.get(source) for other in left[source]) for source in sources)

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
