"""Errors that end attempts, backoff, and the rounds of a commit or rollback until every participant is done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from statefx.coordinator.attempt import Attempt, Engine, Work
from statefx.coordinator.progress import Progress
from statefx.errors import (
    AttemptsExhaustedError,
    BoltError,
    FailedException,
    FencedError,
    StatefxError,
    TransactionError,
    TransactionTimeoutError,
)
from statefx.operators.user_errors import RAISED
from statefx.protocol.commands import Resolution, Unresolved
from statefx.protocol.order import ResolutionOrder
from statefx.protocol.reports import FailureKind

logger = logging.getLogger("statefx")


class AttemptFailedError(TransactionError):
    """The attempt is rolled back and may be tried again; ``data["kind"]`` is the FailureKind, where tasks told one."""


class JobFailedError(AttemptFailedError):
    """The attempt ended without a bolt's error: a run was lost, or it was cancelled."""


class RenewInputError(TransactionError):
    """The transaction is rolled back and may be tried again, but over a newly planned input only."""


class StoppedError(TransactionError):
    """The query is being stopped; the attempt is rolled back and not tried again."""


BACKOFF_FIRST_SECS = 0.1
BACKOFF_MAX_SECS = 10.0
"""A server or a file system that fails comes back; looking for it six times a minute loads neither."""


def backoff_secs(tries: int, first_secs: float = BACKOFF_FIRST_SECS, max_secs: float = BACKOFF_MAX_SECS) -> float:
    """Return how long to wait after so many tries that failed: `first_secs`, and twice as long each time."""
    doublings = min(max(tries - 1, 0), 64)  # a commit may be tried for ever
    return min(max(max_secs, first_secs), first_secs * 2.0**doublings)


def is_retryable(failure: StatefxError) -> bool:
    """Return whether another attempt may succeed: nothing is known to be wrong with a bolt or with state."""
    # Rule 6.7: a bolt that raises would raise again. Rule 6.8: machines come back.
    return isinstance(failure, AttemptFailedError | FailedException)


def exhausted(txid: int, tries: int, last: StatefxError) -> TransactionError:
    kind = TransactionTimeoutError if last.data.get("timeout") else AttemptsExhaustedError
    error = kind(
        f"transaction {txid} failed {tries} times (topology.transaction.attempts.max); last: "
        f"{last.message.rstrip('.')}. It was rolled back. Fix the cause or raise the setting, then start "
        "again: the start retries it first",
        **{**last.data, "txid": txid, "attempts": tries},
    )
    error.__cause__ = last
    return error


class Wait(NamedTuple):
    """Time before the next round of a commit or a rollback (`then`), or before a transaction's next attempt (None)."""

    secs: float
    since: float
    then: Unresolved | None


@dataclass
class Waits:
    """All pending waits. There may be two: a commit fails, and the next transaction has failed too."""

    clock: Callable[[], float]
    _waits: list[Wait] = field(default_factory=list, init=False)

    def __bool__(self) -> bool:
        return bool(self._waits)

    def add(self, secs: float, then: Unresolved | None = None) -> None:
        self._waits.append(Wait(secs, self.clock(), then))

    def first(self) -> Wait | None:
        return min(self._waits, key=self.left_secs, default=None)

    def left_secs(self, wait: Wait) -> float:
        return max(0.0, wait.secs - (self.clock() - wait.since))

    def remove(self, wait: Wait) -> None:
        self._waits.remove(wait)

    @property
    def attempt(self) -> bool:
        return any(wait.then is None for wait in self._waits)

    @property
    def resolution(self) -> bool:
        return any(wait.then is not None for wait in self._waits)


_REASONS_SHOWN = 3

_REMEDIES = {
    Resolution.COMMIT: "It is decided: fix the cause and start again; the start commits it first",
    Resolution.ROLLBACK: "The next start goes on with it",
}
_WARNINGS = {
    Resolution.COMMIT: "commit of transaction %d is tried again: %s. It is decided and can't be rolled back: fix the "
    "cause, or stop and start again with fixed code",
    Resolution.ROLLBACK: "rollback of transaction %d is tried again: %s",
}


@dataclass
class Resolver:
    """Runs one commit or rollback at a time, in rounds; a round includes only the participants that are not done.

    So a participant that fails keeps no other from ending, and none that is done is called again. One at a time is
    enough: the pipeline commits a transaction before it lets the next one be decided (rule 2.4), and rolls back in
    tasks only when all transactions before it are committed (rule 6.3).
    """

    engine: Engine
    progress: Progress
    attempts_max: int
    """How often a rollback is tried. A commit is tried for ever: it is decided."""
    attempt: Attempt | None = field(default=None, init=False)
    """The one under way."""
    _told: str = field(default="", init=False)
    """The reason that the log has been told last."""

    def begin(self, resolution: Resolution, attempt: Attempt, works: Mapping[str, Work]) -> bool:
        """Begin the first round of `works`, which are by participant; return whether there is nothing to do."""
        self.attempt, attempt.resolution, attempt.left, attempt.rounds = attempt, resolution, dict(works), 0
        return self.round(attempt)

    def round(self, attempt: Attempt) -> bool:
        """Call the participants that are not done; return whether none is left."""
        if not attempt.left:
            self._end()
            return True
        attempt.rounds += 1
        attempt.reasons = []
        attempt.running = set(attempt.left)
        for name, work in attempt.left.items():
            if isinstance(work, ResolutionOrder):
                self.engine.resolve(attempt, name, work)
            else:
                self.progress.calling(name)
                self.engine.call(attempt, name, work)
        return False

    def answered(self, attempt: Attempt, name: str, failure: BaseException | None) -> bool | None:
        """Take one participant's outcome; return whether all are done, or None while others of the round go on.

        FencedError: a newer generation has taken over. BoltError: a hook failed in a way that no retry mends.
        StoppedError: the query is being stopped; the next driver goes on.
        """
        self.progress.called(name)
        work, reasons = self._remaining(name, attempt, failure)
        if work is not None:
            attempt.left[name] = work
            attempt.reasons += reasons
            self.progress.failing(name, "; ".join(reasons).removeprefix(f"{name}: "))
        else:
            del attempt.left[name]
            if attempt.resolution is Resolution.COMMIT:
                self.progress.published(name)
        if attempt.running:
            return None
        if attempt.left:
            return False
        self._end()
        return True

    def wait_secs(self, attempt: Attempt) -> float:
        """Log, and show in the status, what is stuck; return how long to wait before the next round.

        AttemptsExhaustedError: a rollback has failed too often.
        """
        txid, rounds, resolution, reason = attempt.name.txid, attempt.rounds, attempt.resolution, _reason(attempt)
        assert resolution is not None
        # Once, at the first try; another reason at tries 2, 4, 8, ...: the status has it at any time.
        if rounds.bit_count() == 1 and (rounds == 1 or reason != self._told):
            self._told = reason
            logger.warning(_WARNINGS[resolution], txid, reason)
        self.progress.stuck(resolution, txid, reason)
        if resolution is Resolution.ROLLBACK and rounds >= self.attempts_max:
            raise AttemptsExhaustedError(
                f"the rollback of transaction {txid} failed {rounds} times: {reason}", txid=txid
            )
        return backoff_secs(rounds)

    def stopped(self) -> StoppedError:
        """Return the error of a driver that is stopped before the next round."""
        attempt = self.attempt
        assert attempt is not None
        assert attempt.resolution is not None
        return StoppedError(
            f"stopped while the {attempt.resolution} of transaction {attempt.name.txid} went on: {_reason(attempt)}. "
            f"{_REMEDIES[attempt.resolution]}"
        )

    def _end(self) -> None:
        self.progress.stuck(None, 0, "")
        self.attempt = None

    def _remaining(self, name: str, attempt: Attempt, failure: BaseException | None) -> tuple[Work | None, list[str]]:
        """Return a participant's remaining work, and why it remains."""
        work = attempt.left[name]
        if isinstance(work, ResolutionOrder):
            if failure is not None and not isinstance(failure, JobFailedError):
                raise failure
            return self._tasks_left(work, attempt, failure)
        if failure is None:
            return None, []
        # Whatever a sink's client raises: it is decided, and may be done again (rule 10.4). Whatever is none of
        # `RAISED` ends the driver, as FencedError and StoppedError do.
        if not isinstance(failure, RAISED) or isinstance(failure, FencedError | StoppedError):
            raise failure
        if not isinstance(failure, StatefxError):
            self.progress.raised(failure, name)
        return work, [f"{name}: {getattr(failure, 'message', None) or f'{type(failure).__name__}: {failure}'}"]

    def _tasks_left(
        self, order: ResolutionOrder, attempt: Attempt, failure: JobFailedError | None
    ) -> tuple[ResolutionOrder | None, list[str]]:
        # A task without a report may have done it or not: told again.
        failed = dict.fromkeys(order.tasks, "no report" if failure is None else failure.message)
        for report in attempt.reports:
            if report.kind is FailureKind.FENCED:  # the successor carries it out (rule 6.5)
                raise FencedError(report.error or "", component=report.component, task=report.task)
            if report.kind is FailureKind.MISUSE:
                raise BoltError(f"{report.error}. {_REMEDIES[order.resolution]}", **report.facts)
            if report.error is None:
                failed.pop(report.id, None)
            else:
                failed[report.id] = report.error
                if report.kind is FailureKind.BOLT:
                    of = {"component": report.component, "task": report.task}
                    self.progress.raised(BoltError(report.error, **{**of, **report.facts}))
        if not failed:
            return None, []
        tasks = tuple(task for task in order.tasks if task in failed)
        return replace(order, tasks=tasks), [f"{task.component}[{task.task}]: {failed[task]}" for task in tasks]


def _reason(attempt: Attempt) -> str:
    return "; ".join(attempt.reasons[:_REASONS_SHOWN])
