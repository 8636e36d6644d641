"""Runs segments, commits and rollbacks as orders to the tasks of one Spark job."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
import weakref
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.util import InheritableThread

from statefx.coordinator.retrying import JobFailedError
from statefx.coordinator.runs import RunEngine, UnreachableError
from statefx.errors import TransactionError
from statefx.plan.deployment import Deployment
from statefx.plan.levels import Plan
from statefx.protocol.messages import Kind, SlotId
from statefx.spark import internals
from statefx.spark.failures import CONTEXT_STOPPED, job_error
from statefx.spark.labels import Labels
from statefx.spark.pipelined.control import ControlServer
from statefx.spark.pipelined.level import LivingLevel, Rendezvous
from statefx.spark.pipelined.plan import RunPlan
from statefx.spark.session import PIPELINED_PYTHON, is_local
from statefx.spark.worker import Parcel

logger = logging.getLogger("statefx")

FILLERS = 1, 32_000
"""Behind the barriers, so that Spark's shuffle sends what it has gathered: it does when 0.9 of 32 KB are full, or after
50 ms (spark.shuffle.streaming.networkBufferSize, ...MaxWaitTimeMs)."""

FILLERS_PLAIN = 2, 70_000
"""The same in a session whose Python workers are not pipelined: what they send waits in a buffer of 64 KB. The second
batch pushes the end of the first one out, and its own end may stay there."""

END_SECS = 5.0
"""How long the slots of a run may take to end when they are told to; then Spark's job is cancelled."""


_open: weakref.WeakSet[PipelinedEngine] = weakref.WeakSet()


def held_slots(but: str = "") -> int:
    """Return how many of Spark's slots the topologies of this process hold that have not ended.

    `but` is the checkpoint of one that is about to end, since another driver of it starts.
    """
    return sum(len(engine.slots) for engine in list(_open) if engine.checkpoint != but)


def warm_up(session: SparkSession, plan: Plan) -> None:
    """Have the JVM load in a thread what it plans a run with, while `submit` looks at checkpoint and executors.

    It plans one of the same form, which is never run. The first plan of a JVM takes a second, another one a tenth.
    """

    def plan_once() -> None:
        with contextlib.suppress(Exception):  # what is wrong is wrong with the run's own plan too, which tells it
            RunPlan(session, plan, lambda level: lambda batches: batches, 0).prepare()

    InheritableThread(target=plan_once, name="statefx-warm-up", daemon=True).start()


class PipelinedEngine(RunEngine):
    """Runs one deployment as one Spark job that holds all its tasks.

    Parameters
    ----------
    deployment : Deployment
    session : SparkSession
        Its settings are the run's: one of its own, as `planning_session` returns.
    timeout_secs : float
    port : int
        Where the driver listens for its tasks; 0: any that is free.
    stopping : threading.Event
        Set when the query is being stopped.
    """

    def __init__(
        self, deployment: Deployment, session: SparkSession, timeout_secs: float, port: int, stopping: threading.Event
    ) -> None:
        super().__init__(deployment.plan, deployment.name, timeout_secs)
        self._parcel = Parcel.pack(deployment)
        self._stopping_event = stopping
        self._session = session
        conf = session.sparkContext.getConf()
        # In local mode Spark's own connections may stand at the machine's name; ours need no more than loopback.
        host = "127.0.0.1" if is_local(session.sparkContext) else str(conf.get("spark.driver.host"))
        self._host, self._bind = host, str(conf.get("spark.driver.bindAddress", host))
        self._port = port
        self._calls = f"statefx-{uuid.uuid4().hex}"
        """The tag of all jobs that calls on the driver run."""
        self._fillers = FILLERS if conf.get(PIPELINED_PYTHON, "false") == "true" else FILLERS_PLAIN
        self._workers = 0
        self.reached = False
        """Whether any slot has ever reached the driver."""
        details = f"topology {deployment.name}\ncheckpoint {deployment.storage.url}\ngeneration {deployment.generation}"
        _open.add(self)
        self.staged, self.checkpoint = deployment.staged, deployment.storage.url
        self.labels = Labels(deployment.name, deployment.plan, details)

    def close(self) -> None:
        """End the run."""
        _open.discard(self)
        super().close()

    def start_run(self) -> SparkRun:
        """Begin a Spark job with all slots; TransactionError if the SparkContext was stopped."""
        try:
            if not self._is_stopped:
                return SparkRun(self)
        except Exception as error:  # of a session that is stopped meanwhile, also that None has no such attribute
            if not self._is_stopped:
                if isinstance(error, (PySparkException, Py4JError)):
                    raise job_error(error, local=is_local(self._session.sparkContext)) from error
                raise
        raise TransactionError(CONTEXT_STOPPED)

    @property
    def _is_stopped(self) -> bool:
        try:
            return internals.is_stopped(self._session.sparkContext)
        except Py4JError:  # the JVM is gone
            return True

    def stop(self) -> None:
        """End what is under way; called by any thread."""
        self._stopping_event.set()
        super().stop()
        self.cancel_tag(self._calls)

    def job_over(self, run: SparkRun, error: Exception | None) -> None:
        """Tell that Spark's job has ended."""
        if self._is_stopped:
            self.over(run, TransactionError(CONTEXT_STOPPED))
            return
        if error is None:  # a slot that has lost its connection ends without an error
            self.over(run, JobFailedError(run.lost or "the job that holds all tasks has ended"))
            return
        if internals.cant_start_workers(error):
            self._workers += 1
        failure = job_error(error, local=is_local(self._session.sparkContext))
        if isinstance(failure, UnreachableError) and not self.reached:
            # Not a loss but a setting: no further run would get a connection either.
            failure = TransactionError(failure.message)
        self.over(run, failure)

    def call_aside(self, name: str, call: Callable[[], None]) -> None:
        """Run `call` in a thread that has one of its own in the JVM; what it runs on Spark ends with the query."""

        def tagged() -> None:
            context = self._session.sparkContext
            with contextlib.ExitStack() as stack:
                if not internals.stopped_here(context):  # else a call that needs no Spark goes through all the same
                    stack.enter_context(internals.own_properties(context))
                    context.addJobTag(self._calls)
                call()

        InheritableThread(target=tagged, name=f"statefx-{name}", daemon=True).start()

    def serve(self, run: bytes, secret: bytes, heard: Any, lost: Any) -> ControlServer:
        """Listen for the slots of a run."""
        return ControlServer(self._bind, self._port, run, secret, self.slots, heard, lost)

    def planned(self, run: str, secret: bytes, control: ControlServer) -> RunPlan:
        """Have Spark plan a run."""
        meeting = Rendezvous((self._host, control.address[1]), run.encode(), secret, self._fillers)
        return RunPlan(
            self._session, self._plan, lambda level: LivingLevel(self._parcel, level, meeting), self._workers
        )

    def run_job(self, plan: RunPlan, run: str, tag: str) -> None:
        """Run Spark's job to its end."""
        context = self._session.sparkContext
        with internals.own_properties(context) as own:
            # Not of the group of whoever has begun it: Spark's query cancels what its callback has begun.
            for name in internals.JOB_GROUP:
                own.remove(name)
            context.addJobTag(tag)
            plan.run(own, self.labels.name_run(own, run[:8]))

    def cancel_tag(self, tag: str) -> None:
        """Cancel Spark's job."""
        context = self._session.sparkContext
        with contextlib.suppress(Py4JError):  # the context was stopped, and the job with it
            if not internals.stopped_here(context):
                context.cancelJobsWithTag(tag)


class SparkRun:
    """A Spark job in which all slots live, and its control connections (see `statefx.coordinator.runs.Run`)."""

    def __init__(self, engine: PipelinedEngine) -> None:
        self._engine = engine
        self.id = uuid.uuid4().hex
        self._tag = f"statefx-{self.id}"
        self._connected: set[SlotId] = set()
        self.lost = ""
        """Which slot was lost first, and why."""
        secret = os.urandom(32)
        self._control = engine.serve(self.id.encode(), secret, self._heard, self._lost)
        try:
            self._plan = engine.planned(self.id, secret, self._control)
        except BaseException:
            self._control.close()
            raise
        self._thread = InheritableThread(target=self._run_job, name="statefx-run", daemon=True)
        self._thread.start()

    def send(self, slot: SlotId, kind: Kind, body: bytes = b"") -> None:
        """Send a slot a frame (see `Run.send`)."""
        self._control.send(slot, kind, body)

    def wait(self) -> None:
        """Wait until the job has ended, for `END_SECS`."""
        self._thread.join(END_SECS)

    def end(self) -> None:
        """Close the connections, and cancel the job if it runs."""
        self._control.close()
        if self._thread.is_alive():
            self._engine.cancel_tag(self._tag)

    def _heard(self, slot: SlotId, kind: Kind, body: bytes) -> None:
        if kind is not Kind.HELLO:
            self._engine.heard(self, slot, kind, body)
            return
        self._connected.add(slot)
        self._engine.reached = True
        if len(self._connected) == len(self._engine.slots):
            self._engine.ready(self)

    def _lost(self, slot: SlotId, why: str) -> None:
        # The job tells more, and ends in tenths of a second: a worker that was killed fails its task.
        self.lost = self.lost or f"the task at level {slot.level}, partition {slot.partition} was lost: {why}"
        timer = threading.Timer(1.0, self._engine.over, (self, JobFailedError(self.lost)))
        timer.daemon = True
        timer.start()

    def _run_job(self) -> None:
        error: Exception | None = None
        try:
            self._engine.run_job(self._plan, self.id, self._tag)
        except Exception as found:  # noqa: BLE001 - whoever runs the attempts decides
            error = found
        self._engine.job_over(self, error)
