"""What the coordinator asks of the engine: carry out jobs, several at a time, and say what came of each.

A job is a segment of an attempt, a round of commits or rollbacks, or a call on the driver; it is no job of Spark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from statefx.errors import TransactionError
from statefx.protocol.barrier import Ack, Report
from statefx.protocol.commands import Segment
from statefx.protocol.order import Order, ResolutionOrder


class AttemptFailedError(TransactionError):
    """The attempt is rolled back and may be tried again; ``data["kind"]`` is the FailureKind, where tasks told one."""


class JobFailedError(AttemptFailedError):
    """The attempt ended without a bolt's error: a run was lost, or it was cancelled."""


class RenewInputError(TransactionError):
    """The transaction is rolled back and may be tried again, but over a newly planned input only."""


class StoppedError(TransactionError):
    """The query is being stopped; the attempt is rolled back and not tried again."""


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """A job that runs one segment of an attempt; it ends with the acks of the segment's tasks."""

    segment: Segment
    order: Order
    work: Any
    """Of a client's transaction, what it changes."""


@dataclass(frozen=True, slots=True)
class DriverCall:
    """A job that calls something on the driver, and ends with nothing, or with what the call raised.

    It is a job because it may take long, such as the commit of a sink: transactions behind it go on meanwhile.
    """

    call: Callable[[], object]

    def run(self, job_id: str) -> Finished:
        """Call it, and say what came of it."""
        try:
            self.call()
        except Exception as error:  # noqa: BLE001 - whoever reads what came of the job decides
            return Finished(job_id, failure=error)
        return Finished(job_id)


Work = SegmentRun | ResolutionOrder | DriverCall


@dataclass(frozen=True, slots=True)
class Job:
    """Something that an engine runs; `id` is never used again."""

    id: str
    work: Work


@dataclass(frozen=True, slots=True)
class Finished:
    """What came of a job: acks of a SegmentRun, reports of a ResolutionOrder."""

    job_id: str
    acks: tuple[Ack, ...] = ()
    reports: tuple[Report, ...] = ()
    failure: BaseException | None = None
    """BoltError: a bolt's code raised. JobFailedError:
    infrastructure; the same may be tried again. StoppedError: the query is being stopped. Another TransactionError:
    trying again would not help. Of a DriverCall, whatever the call raised. Anything else ends the driver."""


class Engine(Protocol):
    """Carries out jobs: as orders to tasks that live (`statefx.coordinator.runs`), or in this process.

    Contract
    --------
    * All methods but `interrupt` are called by one thread.
    * Jobs end in any order; what came of each is told once.
    * No job makes a task wait for another transaction (rule 2.6: what must wait is ordered later).
    * A job that was cancelled may go on for a while, and may still be told of by `next` (rule 6.4).
    """

    def start(self, job: Job) -> None:
        """Begin `job`; returns at once."""

    def next(self, timeout_secs: float | None) -> Finished | None:
        """Wait until a job has ended; None after `timeout_secs`, or when it was interrupted. None seconds are for ever.

        With one job at a time an engine may run it here, in the caller's thread.
        """

    def cancel(self, job_id: str) -> None:
        """Cancel a job; nobody waits for its end."""

    def interrupt(self) -> None:
        """Let `next` return; called by another thread."""

    def status(self) -> dict[str, Any]:
        """Return what ``query.status`` says of it: JSON; called by any thread."""

    def close(self) -> None:
        """Release what it holds: no job is begun any more, and none is under way."""


class InProcessEngine(ABC):
    """An engine whose jobs run when `next` is called, one after the other; `jobs` are those that have begun."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def start(self, job: Job) -> None:
        """Begin a job: it runs when `next` is called."""
        self.jobs.append(job)

    def next(self, timeout_secs: float | None) -> Finished | None:
        """Run one of the jobs that have begun."""
        if not self.jobs:
            return None
        job = self.take()
        try:
            match job.work:
                case SegmentRun():
                    return Finished(job.id, acks=self.run_segment(job.work))
                case ResolutionOrder():
                    return Finished(job.id, reports=self.resolve(job.work))
                case DriverCall():
                    return job.work.run(job.id)
        except Exception as error:  # noqa: BLE001 - whoever reads what came of the job decides
            return Finished(job.id, failure=error)

    def take(self) -> Job:
        """Take the job that runs next."""
        return self.jobs.pop(0)

    @abstractmethod
    def run_segment(self, run: SegmentRun) -> tuple[Ack, ...]:
        """Run a segment of an attempt to its end."""

    @abstractmethod
    def resolve(self, order: ResolutionOrder) -> tuple[Report, ...]:
        """Run the commit or the rollback of tasks."""

    def cancel(self, job_id: str) -> None:
        """Drop a job that has not run."""
        self.jobs = [job for job in self.jobs if job.id != job_id]

    def interrupt(self) -> None:
        """Do nothing: `next` never waits."""

    def status(self) -> dict[str, Any]:
        """Return its name."""
        return {"engine": "in-process"}

    def close(self) -> None:
        """Do nothing: it holds nothing."""
