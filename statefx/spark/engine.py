"""Runs attempts, commits and rollbacks of a topology of DataFrames as Spark jobs."""

from __future__ import annotations

import contextlib
import queue
import threading
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from statefx.coordinator.engine import DriverCall, Finished, Job, JobFailedError, SegmentRun, StoppedError
from statefx.coordinator.orders import OrderSender
from statefx.errors import StatefxError, TransactionError
from statefx.plan.deployment import Deployment
from statefx.protocol.barrier import Ack, Report
from statefx.protocol.commands import Resolution
from statefx.protocol.order import ResolutionOrder
from statefx.spark import internals
from statefx.spark.deadline import Deadline
from statefx.spark.failures import CONTEXT_STOPPED, job_error
from statefx.spark.frames import WIRE, Chain
from statefx.spark.labels import Labels
from statefx.spark.session import is_local
from statefx.spark.worker import ORDER_PROPERTY, TRIES_PROPERTY, Hooks, Parcel

_STATUS_POLLS = 500
_STATUS_POLL_SECS = 0.01
_STAGES_UNKNOWN = "Spark's status store does not tell whether a stage of the job was run again"


class SparkEngine:
    """Runs one deployment on one Spark session; `stopping` is set when the query is being stopped."""

    def __init__(
        self, deployment: Deployment, frame: DataFrame, timeout_secs: float, stopping: threading.Event
    ) -> None:
        self._plan = deployment.plan
        self._parcel = Parcel.pack(deployment)
        self._frame = frame
        self._workers = 0
        details = f"topology {deployment.name}\ncheckpoint {deployment.storage.url}\ngeneration {deployment.generation}"
        self._labels = Labels(deployment.name, deployment.plan, details)
        self._timeout_secs = timeout_secs
        self._storage = deployment.storage
        self._orders = OrderSender(deployment.plan, deployment.storage)
        self._tags: dict[str, str] = {}
        self._waiting: deque[Job] = deque()
        self._interrupts: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._session: SparkSession | None = None
        self._query: StreamingQuery | None = None
        self._stopping = stopping
        self._wrap()

    def _wrap(self) -> None:
        """Wrap what is run, for the workers of the current number."""
        self._chain = Chain(self._plan, self._parcel, self._frame, self._workers)
        self._hooks = internals.mapping(Hooks(self._parcel), WIRE, ["id"], self._workers)

    def bind(self, session: SparkSession, query: StreamingQuery | None = None) -> None:
        """Use `session` for the jobs that follow: a query's callback runs in a clone of the user's.

        With Spark's `query` that calls back: when somebody has stopped it, jobs that fail were stopped with it.
        """
        self._query = query
        if self._session is not None and internals.is_same(self._session, session):
            return
        self._session = session
        session.conf.set("spark.sql.adaptive.enabled", "false")
        session.conf.set("spark.sql.classic.shuffleDependency.fileCleanup.enabled", "true")

    def stop(self) -> None:
        """Cancel the jobs under way; their attempts end as stopped. Called by any thread."""
        self._stopping.set()
        for tag in list(self._tags.values()):
            self._context().cancelJobsWithTag(tag)
        self.interrupt()

    def start(self, job: Job) -> None:
        """Begin a job (see `Engine.start`).

        It runs when `next` is called, in the caller's thread: that belongs to the query of Spark that calls back.
        """
        self._tags[job.id] = f"statefx-{uuid.uuid4().hex}"
        self._waiting.append(job)

    def next(self, timeout_secs: float | None) -> Finished | None:
        """Run the job that waits (see `Engine.next`)."""
        if self._waiting:
            return self._run(self._waiting.popleft())
        with contextlib.suppress(queue.Empty):
            self._interrupts.get(timeout=timeout_secs)
        return None

    def cancel(self, job_id: str) -> None:
        """Drop a job that has not run (see `Engine.cancel`)."""
        self._tags.pop(job_id, None)
        self._waiting = deque(job for job in self._waiting if job.id != job_id)

    def interrupt(self) -> None:
        """Let `next` return."""
        self._interrupts.put(None)

    def status(self) -> dict[str, Any]:
        """Return its name."""
        return {"engine": "jobs"}

    def close(self) -> None:
        """Do nothing: Spark frees what a job has held when it ends."""

    def _run(self, job: Job) -> Finished:
        try:
            match job.work:
                case SegmentRun():
                    return Finished(job.id, acks=self._segment(job.id, job.work))
                case ResolutionOrder():
                    return Finished(job.id, reports=self._resolve(job.id, job.work))
                case DriverCall():
                    self._call(job.id, job.work)
        except Exception as error:  # noqa: BLE001 - the coordinator decides
            return Finished(job.id, failure=error)
        finally:
            self._tags.pop(job.id, None)
        return Finished(job.id)

    def _call(self, job_id: str, work: DriverCall) -> None:
        """Call on the driver; what it runs on Spark is cancelled with the query's own jobs, and at no other time."""
        context = self._context()
        try:
            with contextlib.ExitStack() as stack:
                # where it was stopped, a call that needs no Spark goes through all the same
                if not internals.stopped_here(context):
                    stack.enter_context(internals.own_properties(context))
                    context.addJobTag(self._tags[job_id])
                work.call()
        except Exception:
            self._check_stopped(stoppable=True)  # it would fail for ever
            raise

    def _segment(self, job_id: str, run: SegmentRun) -> tuple[Ack, ...]:
        """Run a transaction as one Spark job; return the acks of its tasks."""
        assert self._session is not None
        with self._orders.sent(run.order) as text:
            acks = self._job(job_id, text, lambda own: self._run_over(own, run, run.work), check=True)
            if not acks:  # Spark leaves out what it knows to be empty (rule 5.6)
                empty = self._no_rows(run.work)
                acks = self._job(job_id, text, lambda own: self._run_over(own, run, empty), check=True)
        return tuple(map(Ack.unpack, acks))

    def _run_over(self, own: Any, run: SegmentRun, frame: DataFrame) -> list[bytes]:
        """Run a whole transaction over `frame`; return its acks."""
        assert self._session is not None
        # The plan's shuffles are made by the settings of the thread.
        internals.activate(self._session)
        acks = self._chain.over(frame)
        names = self._labels.name_stages(own, run.order.attempt)
        internals.make_shuffles(acks, len(self._plan.levels), own, names)
        return internals.collected(acks, "payload")

    def reuses(self, work: DataFrame) -> bool:
        """Tell whether all attempts over `work` read the same shuffle files (see `Engine.reuses`)."""
        try:
            return internals.keeps_shuffles(work)
        except (PySparkException, Py4JError):
            return True

    def _resolve(self, job_id: str, order: ResolutionOrder) -> tuple[Report, ...]:
        """Run commits or rollbacks as one Spark job.

        A rollback is run also while the query is being stopped: it belongs to the stop.
        """
        stoppable = order.resolution is not Resolution.ROLLBACK
        width = len(order.tasks)

        def collect(own: Any) -> list[bytes]:
            assert self._session is not None
            self._labels.name_hooks(own, order)
            return internals.collected(self._hooks(self._session.range(0, width, 1, width)), "payload")

        with self._orders.sent(order) as text:
            rows = self._job(job_id, text, collect, stoppable=stoppable)
        return tuple(map(Report.unpack, rows))

    def _no_rows(self, work: DataFrame) -> DataFrame:
        """Return an empty frame that Spark does not optimise away, so that every task runs."""
        assert self._session is not None
        rdd: Any = self._session.sparkContext.parallelize([], 1)
        return self._session.createDataFrame(rdd, work.schema)

    def _job(
        self,
        job_id: str,
        order: str,
        run: Callable[[Any], list[bytes]],
        *,
        check: bool = False,
        stoppable: bool = True,
    ) -> list[bytes]:
        """Run what `run` does, which is given the thread's local properties, as a job that can be cancelled."""
        context = self._context()
        tag = self._tags.get(job_id)
        if tag is None:
            raise JobFailedError("the job was cancelled before it began")
        deadline = Deadline(
            self._timeout_secs,
            self._storage,
            cancel=lambda: context.cancelJobsWithTag(tag),
            waits=lambda: internals.waits_for_slots(context, tag),
        )
        # stop() may have come before there was a tag to cancel
        if self._stopping.is_set() or internals.stopped_here(context):
            self._check_stopped(stoppable=stoppable)
        try:
            with internals.own_properties(context) as own:
                context.addJobTag(tag)
                own.setProperty(ORDER_PROPERTY, order)
                own.setProperty(TRIES_PROPERTY, str(internals.task_tries(context)))
                with deadline:
                    rows = run(own)
                if check and rows and self._ran_again(tag):
                    raise JobFailedError("a stage of the job had to be run again: rows may have been routed otherwise")
        except (AnalysisException, StatefxError):
            raise
        except Exception as error:
            self._check_stopped(stoppable=stoppable)
            if not isinstance(error, (PySparkException, Py4JError)):
                raise
            raise self._translated(error, deadline) from error
        return rows

    def _ran_again(self, tag: str) -> bool:
        """Tell whether any stage of the jobs with `tag` ran more than once: rows may have gone elsewhere (rule 5.4)."""
        for _ in range(_STATUS_POLLS):
            jobs = internals.ended_jobs(self._context(), tag)
            if jobs is not None:
                return any(self._job_ran_again(job, stages) for job, stages in jobs.items())
            self._stopping.wait(_STATUS_POLL_SECS)
        raise JobFailedError(_STAGES_UNKNOWN)

    def _job_ran_again(self, job: int, stages: Sequence[int]) -> bool:
        """Tell whether any stage of a job that has ended ran more than once.

        A full store forgets stages, and those first that a job passed over, however new they are. So a stage that is
        not there was passed over, if as many are there as the job has completed.
        """
        tries = [internals.stage_tries(self._context(), stage) for stage in stages]
        if any(each is not None and each > 1 for each in tries):
            return True
        if None in tries:
            completed = internals.stages_completed(self._context(), job)
            if completed is None or sum(each == 1 for each in tries) < completed:
                raise JobFailedError(_STAGES_UNKNOWN)
        return False

    def _check_stopped(self, *, stoppable: bool) -> None:
        """Raise if the query, Spark's own, or the SparkContext has been stopped: only this tells, no failure's text."""
        context_stopped, query_stopped = self._found_stopped()
        if self._stopping.is_set() or query_stopped:
            if stoppable or context_stopped:
                raise StoppedError("the query was stopped")
        elif context_stopped:
            raise TransactionError(CONTEXT_STOPPED)

    def _found_stopped(self) -> tuple[bool, bool]:
        """Tell whether somebody has stopped the SparkContext, and the query of Spark that calls back, if there is one.

        A stopped context ends a streaming query as its own stop does; a batch that was not applied is an error.
        """
        try:
            context_stopped = internals.is_stopped(self._context())
            if self._query is None:
                return context_stopped, False
            return context_stopped, context_stopped or not self._query.isActive
        except Py4JError:  # the JVM is gone: report nothing as stopped, let the caller raise
            return False, False

    def _translated(self, error: Exception, deadline: Deadline) -> StatefxError:
        """Say what a failed job means."""
        found = job_error(error, local=is_local(self._context()))
        if internals.cant_start_workers(error):
            self._workers += 1
            self._wrap()
        if deadline.passed and isinstance(found, JobFailedError):
            return JobFailedError(deadline.timeout_message(), timeout=True)
        return found

    def _context(self) -> Any:
        assert self._session is not None
        return self._session.sparkContext
