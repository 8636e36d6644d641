"""Tells the tasks of an attempt to commit or to roll back, until every one of them has done it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from statefx.coordinator.engine import Engine, JobFailedError, StoppedError
from statefx.coordinator.progress import Progress
from statefx.errors import AttemptsExhaustedError, BoltError, FencedError
from statefx.protocol.commands import Resolution
from statefx.protocol.failure import FailureKind
from statefx.protocol.identity import TaskId
from statefx.protocol.order import ResolutionOrder

logger = logging.getLogger("statefx")

BACKOFF_FIRST_SECS = 0.1
BACKOFF_MAX_SECS = 10.0

_MEND = {
    Resolution.COMMIT: "It is decided: mend what fails and start again, and it is committed first",
    Resolution.ROLLBACK: "The next start goes on with it",
}
_AGAIN = {
    Resolution.COMMIT: "commit of transaction %d is tried again: %s. It is decided and can't be rolled back: mend what "
    "fails; if that is the bolt's code, call query.stop(), mend it and submit again",
    Resolution.ROLLBACK: "rollback of transaction %d is tried again: %s",
}


def backoff_secs(tries: int) -> float:
    """Return how long to wait after so many tries that failed."""
    doublings = min(tries - 1, 64)  # a commit may be tried for ever
    return min(BACKOFF_MAX_SECS, BACKOFF_FIRST_SECS * 2.0**doublings)


@dataclass
class Resolver:
    """One commit or rollback at a time, round by round; a round asks those tasks that have not done it yet.

    Parameters
    ----------
    engine : Engine
    progress : Progress
        Shows what is stuck, since when, and why.
    attempts_max : int
        How often a rollback is tried. A commit is tried for ever: it is decided.
    pause : callable
        Waits the given seconds; returns False if the query is being stopped.
    """

    engine: Engine
    progress: Progress
    attempts_max: int
    pause: Callable[[float], bool]
    _order: ResolutionOrder | None = field(default=None, init=False)
    _left: tuple[TaskId, ...] = field(default=(), init=False)
    _tries: int = field(default=0, init=False)

    def round(self, order: ResolutionOrder) -> bool:
        """Run one round of `order`; tell whether all tasks have done it. If not, call it again with the same order.

        Raises
        ------
        FencedError
            A newer generation has taken over.
        AttemptsExhaustedError
            A rollback has failed too often.
        BoltError
            A hook did what no further try would mend.
        StoppedError
            The query is being stopped; the next driver goes on.
        """
        if order != self._order:
            self._order, self._left, self._tries = order, order.tasks, 0
        if self._left:
            self._tries += 1
            failed = self._run(replace(order, tasks=self._left))
            self._left = tuple(task for task in self._left if task in failed)
            if self._left:
                shown = (f"{task.component}[{task.task}]: {failed[task]}" for task in self._left[:3])
                self._wait(order, "; ".join(shown))
                return False
        self.progress.stuck(None, 0, "")
        self._order = None
        return True

    def _wait(self, order: ResolutionOrder, reason: str) -> None:
        txid = order.attempt.txid
        if self._tries.bit_count() == 1:  # at the first try, and then as rarely as it has lasted
            logger.warning(_AGAIN[order.resolution], txid, reason)
        self.progress.stuck(order.resolution, txid, reason)
        if order.resolution is Resolution.ROLLBACK and self._tries >= self.attempts_max:
            raise AttemptsExhaustedError(
                f"the rollback of transaction {txid} failed {self._tries} times: {reason}", txid=txid
            )
        if not self.pause(backoff_secs(self._tries)):
            raise StoppedError(
                f"stopped while the {order.resolution} of transaction {txid} went on: {reason}. "
                f"{_MEND[order.resolution]}"
            )

    def _run(self, order: ResolutionOrder) -> dict[TaskId, str]:
        """Return the tasks that have not done it, with the reason."""
        failed: dict[TaskId, str] = dict.fromkeys(order.tasks, "no report")
        try:
            for report in self.engine.hooks(order):
                if report.kind is FailureKind.FENCED:
                    raise FencedError(report.error or "", component=report.component, task=report.task)
                if report.kind is FailureKind.MISUSE:
                    raise BoltError(f"{report.error}. {_MEND[order.resolution]}", **report.facts)
                if report.error is None:
                    failed.pop(report.id, None)
                else:
                    failed[report.id] = report.error
        except JobFailedError as error:
            return dict.fromkeys(order.tasks, error.message)
        return failed
