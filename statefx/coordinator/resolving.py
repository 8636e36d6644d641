"""Tells all participants of an attempt to commit or to roll back, until every one of them has done it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from statefx.coordinator.engine import DriverCall, Engine, Finished, Job, JobFailedError, SegmentRun, StoppedError, Work
from statefx.coordinator.progress import Progress
from statefx.coordinator.retrying import backoff_secs
from statefx.errors import AttemptsExhaustedError, BoltError, FencedError
from statefx.protocol.commands import Resolution
from statefx.protocol.failure import FailureKind
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.order import ResolutionOrder

logger = logging.getLogger("statefx")

_REASONS_SHOWN = 3

_REMEDIES = {
    Resolution.COMMIT: "It is decided: mend what fails and start again, and it is committed first",
    Resolution.ROLLBACK: "The next start goes on with it",
}
_WARNINGS = {
    Resolution.COMMIT: "commit of transaction %d is tried again: %s. It is decided and can't be rolled back: mend what "
    "fails, or stop and start again with mended code",
    Resolution.ROLLBACK: "rollback of transaction %d is tried again: %s",
}


@dataclass
class Resolver:
    """One commit or rollback at a time, round by round; a round has those do it who have not done it yet.

    So a participant that fails keeps no other from ending, and none is told again once it has said that it is done. One
    at a time is enough: the pipeline commits a transaction before it lets the next one be decided (rule 2.4), and tells
    tasks of a rollback only when all transactions before it are committed (rule 6.3).
    """

    engine: Engine
    progress: Progress
    attempts_max: int
    """How often a rollback is tried. A commit is tried for ever: it is decided."""
    _resolution: Resolution = field(default=Resolution.COMMIT, init=False)
    _attempt: TransactionAttempt | None = field(default=None, init=False)
    """What is under way."""
    _left: dict[str, Work] = field(default_factory=dict, init=False)
    """What participants have still to do, by their names."""
    _reasons: list[str] = field(default_factory=list, init=False)
    """Why this round has left something to do."""
    _running: dict[str, str] = field(default_factory=dict, init=False)
    """Participants by the jobs that run."""
    _told: str = field(default="", init=False)
    """The reason that the log has been told last."""
    _tries: int = field(default=0, init=False)

    def round(self, resolution: Resolution, attempt: TransactionAttempt, works: Mapping[str, Work]) -> bool:
        """Start a round of jobs; tell whether there was nothing left to do.

        `works` is what each participant has to do, by its name; passed over where this attempt is under way already.
        """
        if (resolution, attempt) != (self._resolution, self._attempt):
            self._resolution, self._attempt = resolution, attempt
            self._left, self._tries = dict(works), 0
        if not self._left:
            self._end()
            return True
        self._tries += 1
        self._reasons = []
        for name, work in self._left.items():
            # The try is in the id: a job of an earlier round that is told of late is none of this round's (rule 6.4).
            job = Job(f"{resolution} {attempt.txid}/{attempt.attempt} of {name}, try {self._tries}", work)
            self._running[job.id] = name
            if isinstance(work, DriverCall):
                self.progress.calling(name)
            self.engine.start(job)
        return False

    @property
    def under_way(self) -> tuple[Resolution, TransactionAttempt]:
        """What the round under way is about."""
        assert self._attempt is not None
        return self._resolution, self._attempt

    def runs(self, job_id: str) -> bool:
        """Tell whether a job is one of the round under way."""
        return job_id in self._running

    @property
    def running(self) -> tuple[str, ...]:
        """The jobs of the round under way."""
        return tuple(self._running)

    def finished(self, finished: Finished) -> bool | None:
        """Take what came of a job; tell whether all is done. None: other jobs of the round go on.

        Raises
        ------
        FencedError
            A newer generation has taken over.
        BoltError
            A hook did what no further try would mend.
        StoppedError
            The query is being stopped; the next driver goes on.
        """
        name = self._running.pop(finished.job_id)
        self.progress.called(name)
        work, reasons = self._judged(name, self._left.pop(name), finished)
        if work is not None:
            self._left[name] = work
            self._reasons += reasons
            self.progress.failing(name, "; ".join(reasons).removeprefix(f"{name}: "))
        elif self._resolution is Resolution.COMMIT:
            self.progress.published(name)
        if self._running:
            return None
        if self._left:
            return False
        self._end()
        return True

    def wait_secs(self) -> float:
        """Say, and show in the status, what is stuck; return how long to wait before the next round.

        AttemptsExhaustedError: a rollback has failed too often.
        """
        assert self._attempt is not None
        txid, reason = self._attempt.txid, self._reason
        # Once, at the first try; another reason at tries 2, 4, 8, ...: the status has it at any time.
        if self._tries.bit_count() == 1 and (self._tries == 1 or reason != self._told):
            self._told = reason
            logger.warning(_WARNINGS[self._resolution], txid, reason)
        self.progress.stuck(self._resolution, txid, reason)
        if self._resolution is Resolution.ROLLBACK and self._tries >= self.attempts_max:
            raise AttemptsExhaustedError(
                f"the rollback of transaction {txid} failed {self._tries} times: {reason}", txid=txid
            )
        return backoff_secs(self._tries)

    def stopped(self) -> StoppedError:
        """Return the error of a driver that is stopped before the next round."""
        assert self._attempt is not None
        return StoppedError(
            f"stopped while the {self._resolution} of transaction {self._attempt.txid} went on: {self._reason}. "
            f"{_REMEDIES[self._resolution]}"
        )

    @property
    def _reason(self) -> str:
        return "; ".join(self._reasons[:_REASONS_SHOWN])

    def _end(self) -> None:
        self.progress.stuck(None, 0, "")
        self._attempt = None

    def _judged(self, name: str, work: Work, finished: Finished) -> tuple[Work | None, list[str]]:
        """Return what is left of `work`, and why."""
        failure = finished.failure
        match work:
            case DriverCall():
                if failure is None:
                    return None, []
                # Whatever a sink's client raises: it is decided, and may be done again (rule 10.4). What is no
                # Exception ends the driver; FencedError and StoppedError do as well.
                if not isinstance(failure, Exception) or isinstance(failure, FencedError | StoppedError):
                    raise failure
                return work, [f"{name}: {getattr(failure, 'message', None) or f'{type(failure).__name__}: {failure}'}"]
            case ResolutionOrder():
                if failure is not None and not isinstance(failure, JobFailedError):
                    raise failure
                return self._tasks_left(work, finished)
            case SegmentRun():
                raise AssertionError(f"{name} can't be resolved by a segment")

    def _tasks_left(self, order: ResolutionOrder, finished: Finished) -> tuple[ResolutionOrder | None, list[str]]:
        message = "no report" if finished.failure is None else str(getattr(finished.failure, "message", ""))
        failed = dict.fromkeys(order.tasks, message)  # a task without a report may have done it or not: told again
        for report in finished.reports:
            if report.kind is FailureKind.FENCED:  # the successor carries it out (rule 6.5)
                raise FencedError(report.error or "", component=report.component, task=report.task)
            if report.kind is FailureKind.MISUSE:
                raise BoltError(f"{report.error}. {_REMEDIES[order.resolution]}", **report.facts)
            if report.error is None:
                failed.pop(report.id, None)
            else:
                failed[report.id] = report.error
        if not failed:
            return None, []
        tasks = tuple(task for task in order.tasks if task in failed)
        return replace(order, tasks=tasks), [f"{task.component}[{task.task}]: {failed[task]}" for task in tasks]
