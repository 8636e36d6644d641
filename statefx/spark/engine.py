"""Runs attempts and hooks as Spark jobs."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from statefx.coordinator.engine import JobFailedError, StoppedError
from statefx.errors import StatefxError, TransactionError
from statefx.protocol.barrier import Ack
from statefx.protocol.order import HookOrder, Order
from statefx.protocol.report import Report
from statefx.runtime import restoring
from statefx.spark.deadline import Deadline
from statefx.spark.failures import meaning
from statefx.spark.frames import Chain, keeps_shuffles, mapping
from statefx.spark.worker import ORDER_PROPERTY, Hooks, Parcel
from statefx.topology.deployment import Deployment

_STATUS_LOOKS = 500
_STATUS_LOOK_SECS = 0.01
_UNTOLD = "Spark's status store does not tell whether a stage of the job was run again"


class SparkEngine:
    """Runs one deployment on one Spark session.

    Parameters
    ----------
    deployment : Deployment
    frame : DataFrame
        The united raw frame, for its schema.
    timeout_secs : float
        After it the attempt's jobs are cancelled.
    stopping : threading.Event
        Set when the query is being stopped.
    """

    def __init__(
        self, deployment: Deployment, frame: DataFrame, timeout_secs: float, stopping: threading.Event
    ) -> None:
        parcel = Parcel.pack(deployment)
        self._chain = Chain(deployment.plan, parcel, frame)
        self._hooks = mapping(Hooks(parcel), ["id"])
        self._timeout_secs = timeout_secs
        self._folder = restoring.folder(deployment.location)
        self._tag = ""
        self._session: SparkSession | None = None
        self._query: StreamingQuery | None = None
        self._stopping = stopping

    def bind(self, session: SparkSession, query: StreamingQuery | None = None) -> None:
        """Use `session` for the jobs that follow: a query's callback runs in a clone of the user's.

        With Spark's `query` that calls back: when somebody has stopped it, jobs that fail were stopped with it.
        """
        self._query = query
        if self._session is not None and self._session._jsparkSession.equals(session._jsparkSession):
            return
        self._session = session
        session.conf.set("spark.sql.adaptive.enabled", "false")
        session.conf.set("spark.sql.classic.shuffleDependency.fileCleanup.enabled", "true")

    def stop(self) -> None:
        """Cancel the job under way; the attempt ends as stopped."""
        self._stopping.set()
        if self._tag:
            self._context().cancelJobsWithTag(self._tag)

    def attempt(self, order: Order, work: DataFrame) -> Iterable[Ack]:
        """Run one attempt as one Spark job (see `Engine.attempt`)."""
        text = order.to_json()
        rows = self._job(text, lambda: self._chain.over(work).collect(), check=True)
        if not rows:
            rows = self._job(text, lambda: self._chain.over(self._no_rows(work)).collect(), check=True)
        return [Ack.unpack(bytes(row.payload)) for row in rows]

    def reuses(self, work: DataFrame) -> bool:
        """Tell whether all attempts over `work` read the same shuffle files (see `Engine.reuses`)."""
        try:
            return keeps_shuffles(work)
        except (PySparkException, Py4JError):
            return True

    def hooks(self, order: HookOrder) -> Iterable[Report]:
        """Run commits or rollbacks as one Spark job (see `Engine.hooks`).

        A rollback is run also while the query is being stopped: it belongs to the stop.
        """
        stoppable = order.phase != "rollback"
        width = len(order.tasks)

        def run() -> Any:
            assert self._session is not None
            return self._hooks(self._session.range(0, width, 1, width)).select("payload").collect()

        return [Report.unpack(bytes(row.payload)) for row in self._job(order.to_json(), run, stoppable=stoppable)]

    def _no_rows(self, work: DataFrame) -> DataFrame:
        """Return an empty frame that Spark does not optimise away, so that every task runs."""
        assert self._session is not None
        rdd: Any = self._session.sparkContext.parallelize([], 1)
        return self._session.createDataFrame(rdd, work.schema)

    def _job(self, order: str, run: Callable[[], Any], *, check: bool = False, stoppable: bool = True) -> Any:
        context = self._context()
        tag = self._tag = f"statefx-{uuid.uuid4().hex}"
        deadline = Deadline(self._timeout_secs, self._folder, lambda: context.cancelJobsWithTag(tag))
        if self._stopping.is_set() or context._jsc is None:  # stop() may have come before there was a tag to cancel
            self._check_stopped(stoppable=stoppable)
        context.addJobTag(tag)
        context.setLocalProperty(ORDER_PROPERTY, order)
        try:
            with deadline:
                rows = run()
            if check and rows and self._rerun(tag):
                raise JobFailedError("a stage of the job had to be run again: rows may have been routed differently")
        except (AnalysisException, StatefxError):
            raise
        except Exception as error:
            self._check_stopped(stoppable=stoppable)
            if not isinstance(error, (PySparkException, Py4JError)):
                raise
            raise self._translated(error, deadline) from error
        finally:
            if context._jsc is not None:
                context.removeJobTag(tag)
        return rows

    def _check_stopped(self, *, stoppable: bool) -> None:
        """Raise if the query, Spark's own, or the SparkContext has been stopped: only this tells, no failure's text."""
        context_stopped, query_stopped = self._found_stopped()
        if self._stopping.is_set() or query_stopped:
            if stoppable or context_stopped:
                raise StoppedError("the query was stopped")
        elif context_stopped:
            raise TransactionError("the SparkContext was stopped while the query was running")

    def _found_stopped(self) -> tuple[bool, bool]:
        """Tell whether somebody has stopped the SparkContext, and the query of Spark that calls back, if there is one.

        A stopped context ends a streaming query as its own stop does; a batch that was not applied is an error.
        """
        context = self._context()._jsc
        try:
            context_stopped = context is None or bool(context.sc().isStopped())
            if self._query is None:
                return context_stopped, False
            return context_stopped, context_stopped or not self._query.isActive
        except Py4JError:  # nothing can be asked any more
            return False, False

    def _rerun(self, tag: str) -> bool:
        """Tell whether any stage of the jobs with `tag` ran more than once."""
        tracker = self._context()._jsc.sc().statusTracker()
        for job in self._ended_jobs(tracker, tag):
            for stage in job.stageIds():
                found = tracker.getStageInfo(stage)
                if found.isEmpty():
                    raise JobFailedError(_UNTOLD)
                if found.get().currentAttemptId() > 0:
                    return True
        return False

    def _ended_jobs(self, tracker: Any, tag: str) -> list[Any]:
        """Wait until Spark's status store knows that the jobs with `tag` have ended: it hears of it a little later."""
        for _ in range(_STATUS_LOOKS):
            found = [tracker.getJobInfo(job) for job in tracker.getJobIdsForTag(tag)]
            jobs = [info.get() for info in found if info.isDefined()]
            if jobs and all(str(job.status()) in ("SUCCEEDED", "FAILED") for job in jobs):
                return jobs
            self._stopping.wait(_STATUS_LOOK_SECS)
        raise JobFailedError(_UNTOLD)

    def _translated(self, error: Exception, deadline: Deadline) -> StatefxError:
        """Say what a failed job means."""
        found = meaning(error, local=str(self._context().master).startswith("local"))
        if deadline.passed and isinstance(found, JobFailedError):
            return JobFailedError(deadline.told(), timeout=True)
        return found

    def _context(self) -> Any:
        assert self._session is not None
        return self._session.sparkContext
