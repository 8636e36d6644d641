"""One Spark job that holds all tasks of a topology, over Spark's pipelined shuffle, and the orders to them.

Spark's planner makes an ordinary plan of `mapInArrow` and `repartitionById`. Its nodes are copied, the exchanges as
pipelined ones (`internals.pipelined_onto`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's custom
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructType
from pyspark.util import InheritableThread

from statefx import logs
from statefx.coordinator.retrying import JobFailedError
from statefx.coordinator.runs import ControlUnreachableError, RunEngine
from statefx.coordinator.worker_lines import WorkerLines
from statefx.errors import TransactionError
from statefx.plan import wire
from statefx.plan.deployment import Deployment
from statefx.plan.levels import Plan
from statefx.protocol import messages
from statefx.protocol.messages import ChainId, FrameKind
from statefx.spark import internals
from statefx.spark.control import ControlServer
from statefx.spark.failures import CONTEXT_STOPPED, job_error
from statefx.spark.internals import STAGE_DETAILS, STAGE_NAME
from statefx.spark.session import PIPELINED_PYTHON, is_local
from statefx.spark.worker import Parcel, Rendezvous, ResidentLevel, levels_here, wanted_here

logger = logging.getLogger("statefx")


DESCRIPTION = "spark.job.description"

_SHOWN = 120
"""Characters of bolts in one name: a topology may have hundreds of bolts, and the UI's tables don't fold."""

_THEN = " → "
"""Between bolts: the UI shows ``>`` as ``&gt;``."""


class Labels:
    """The names of one topology's jobs; the UI shows `details` where a stage is unfolded."""

    def __init__(self, name: str, plan: Plan, details: str) -> None:
        self._name = name
        self._details = details
        self._levels = [_bolts(plan, level) for level in range(len(plan.levels))]
        self._read = f"read {_short(', '.join(plan.streams))}"

    def name_staging(self, own: Any, txid: int) -> None:
        own.setProperty(DESCRIPTION, f"{self._name} tx {txid}: {self._read}")
        own.setProperty(STAGE_DETAILS, self._details)
        own.setProperty(STAGE_NAME, f"{self._read} tx {txid}")

    def name_run(self, own: Any, run: str) -> list[str]:
        """Name the job of a run, which holds all tasks; return the names of its stages, lowest first."""
        own.setProperty(DESCRIPTION, f"{self._name} run {run}: {_short(_THEN.join(self._levels))}")
        own.setProperty(STAGE_DETAILS, self._details)
        return list(self._levels)


def _bolts(plan: Plan, level: int) -> str:
    """Name the bolts whose tasks run at a level, with how many there are of each."""
    chains = {tuple(component for component, _ in chain): None for chain in plan.levels[level]}
    return _short(", ".join(_THEN.join(_bolt(plan, component) for component in chain) for chain in chains))


def _bolt(plan: Plan, component: str) -> str:
    return f"{component}[{plan.components[component].parallelism}]"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


WIRE = (
    StructType()
    .add("target", IntegerType())
    .add("kind", IntegerType())
    .add("rows", LongType())
    .add("head", BinaryType())
    .add("payload", BinaryType())
)

SETTINGS = {
    # Rows are handed to Python one by one, as they come: by default Spark waits for 10,000 of them, or 64 KB.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    "spark.sql.execution.pandas.udf.buffer.size": "256",
    "spark.sql.adaptive.enabled": "false",
    # Spark's compiler takes half a second to load and to run. It would make projections of rows faster, which are few.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Of the session that a run is planned in."""


def planning_session(session: SparkSession) -> SparkSession:
    """Return a session like that of the user, with the settings of runs.

    Its Python workers are those of runs: Spark starts another program to fork workers from for each size of buffers.
    """
    own = internals.clone(session)
    for name, value in SETTINGS.items():
        own.conf.set(name, value)
    return own


class RunPlan:
    """The levels of a topology as a chain of stages; `level` makes the function of a level, for ``mapInArrow``."""

    def __init__(self, session: SparkSession, plan: Plan, level: Callable[[int], Any], workers: int) -> None:
        frame: DataFrame = session.range(0, plan.widths[0], 1, plan.widths[0])  # a partition for each chain
        for number, width in enumerate(plan.widths):
            if number:
                frame = frame.repartitionById(width, F.col("target"))
            columns = wire.SCHEMA.names if number else frame.columns
            frame = internals.mapping(level(number), WIRE, columns, workers)(frame)
        self._frame = frame

    def prepare(self) -> None:
        """Have Spark make the physical plan, which `run` does too."""
        internals.chain_of(self._frame)

    def run(self, own: Any, names: Sequence[str]) -> None:
        """Run the job until all its tasks have ended.

        `own` are the thread's local properties, `names` those of the stages, lowest first.
        """
        session = self._frame.sparkSession
        internals.activate(session)  # the nodes that are copied go by the settings of the thread
        own.putAll(internals.sql_settings(session))  # from the session alone, tasks do not see them
        nodes, node = internals.chain_of(self._frame)
        shuffles = 0
        for kind, each in nodes:
            if kind == "S":
                node = internals.pipelined_onto(each, node)
                own.setProperty(internals.STAGE_NAME, names[shuffles])
                internals.shuffle_of(node)
                shuffles += 1
            else:
                node = internals.copied_onto(each, node)
        own.setProperty(internals.STAGE_NAME, names[shuffles])
        internals.collected_node(self._frame, node, wire.SCHEMA, "payload")


FILLERS = 1, 32_000
"""Behind the barriers, so that Spark's shuffle sends what it has gathered: it does when 0.9 of 32 KB are full, or after
50 ms (spark.shuffle.streaming.networkBufferSize, ...MaxWaitTimeMs)."""

FILLERS_PLAIN = 2, 70_000
"""The same in a session whose Python workers are not pipelined: what they send waits in a buffer of 64 KB. The second
batch pushes the end of the first one out, and its own end may stay there."""

END_SECS = 5.0
"""How long the chains of a run may take to end when they are told to; then Spark's job is cancelled."""


_open: weakref.WeakSet[PipelinedEngine] = weakref.WeakSet()


def held_slots(but: str = "") -> int:
    """Return how many of Spark's slots the topologies of this process hold that have not ended.

    `but` is the checkpoint of one that is about to end, since another driver of it starts.
    """
    return sum(len(engine.chains) for engine in list(_open) if engine.checkpoint != but)


def addresses(session: SparkSession) -> tuple[str, str]:
    """Return where tasks reach the driver, and where it listens for them."""
    conf = session.sparkContext.getConf()
    # In local mode Spark's own connections may stand at the machine's name; ours need no more than loopback.
    host = "127.0.0.1" if is_local(session.sparkContext) else str(conf.get("spark.driver.host"))
    return host, str(conf.get("spark.driver.bindAddress", host))


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

    The settings of `session` are the run's: it is one of its own, from `planning_session`. Port 0 is any that is free.
    `stopping` is set when the query is being stopped.
    """

    def __init__(
        self, deployment: Deployment, session: SparkSession, timeout_secs: float, port: int, stopping: threading.Event
    ) -> None:
        super().__init__(deployment.plan, deployment.name, timeout_secs)
        self._parcel = Parcel.pack(deployment)
        self._wanted = wanted_here(local=is_local(session.sparkContext))
        self.lines = WorkerLines(deployment.name)
        self._stopping_event = stopping
        self._session = session
        conf = session.sparkContext.getConf()
        self._host, self._bind = addresses(session)
        self._port = port
        self._calls = f"statefx-{uuid.uuid4().hex}"
        """The tag of all jobs that calls on the driver run."""
        self._fillers = FILLERS if conf.get(PIPELINED_PYTHON, "false") == "true" else FILLERS_PLAIN
        self._workers = 0
        self.reached = False
        """Whether any chain has ever reached the driver."""
        details = f"topology {deployment.name}\ncheckpoint {deployment.storage.url}\ngeneration {deployment.generation}"
        _open.add(self)
        self.staged, self.checkpoint = deployment.staged, deployment.storage.url
        self.labels = Labels(deployment.name, deployment.plan, details)

    def close(self) -> None:
        _open.discard(self)
        super().close()
        self.lines.close()

    def send_levels(self) -> None:
        """Give the workers the levels that this process's loggers have now; later runs begin with them."""
        self._parcel.levels = levels_here()
        self._wanted = wanted_here(local=is_local(self._session.sparkContext))
        self.send_to_all(FrameKind.LEVELS, messages.pack_levels(self._parcel.levels))

    def start_run(self) -> SparkRun:
        """Begin a Spark job with all chains; TransactionError if the SparkContext was stopped."""
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
        """End everything in flight; any thread may call it."""
        self._stopping_event.set()
        super().stop()
        self.cancel_tag(self._calls)

    def job_over(self, run: SparkRun, error: Exception | None) -> None:
        """Handle the end of Spark's job."""
        if self._is_stopped:
            self.on_ended(run, TransactionError(CONTEXT_STOPPED))
            return
        if error is None:  # a chain that has lost its connection ends without an error
            self.on_ended(run, JobFailedError(run.lost or "the job that holds all tasks has ended"))
            return
        if internals.cant_start_workers(error):
            self._workers += 1
        failure = job_error(error, local=is_local(self._session.sparkContext))
        if isinstance(failure, ControlUnreachableError) and not self.reached:
            # Not a loss but a setting: no further run would get a connection either.
            failure = TransactionError(failure.message)
        self.on_ended(run, failure)

    def call_aside(self, name: str, call: Callable[[], None]) -> None:
        """Run `call` in a thread that has one of its own in the JVM; what it runs on Spark ends with the query.

        TransactionError if the SparkContext was stopped: nothing but this call could go on, and one that fails would
        be repeated for ever.
        """
        if self._is_stopped:
            raise TransactionError(CONTEXT_STOPPED)

        def tagged() -> None:
            context = self._session.sparkContext
            with contextlib.ExitStack() as stack:
                with contextlib.suppress(Exception):  # stopped just now: a call that needs no Spark goes through
                    stack.enter_context(internals.own_properties(context))
                    context.addJobTag(self._calls)
                call()

        threading.Thread(target=tagged, name=f"statefx-{name}", daemon=True).start()

    def serve(self, run: bytes, secret: bytes, on_frame: Any, lost: Any) -> ControlServer:
        return ControlServer(self._bind, self._port, run, secret, self.chains, on_frame, lost)

    def planned(self, run: str, secret: bytes, control: ControlServer) -> RunPlan:
        meeting = Rendezvous((self._host, control.address[1]), run.encode(), secret, self._fillers, self._wanted)
        return RunPlan(
            self._session, self._plan, lambda level: ResidentLevel(self._parcel, level, meeting), self._workers
        )

    def run_job(self, plan: RunPlan, run: str, tag: str) -> None:
        context = self._session.sparkContext
        with internals.own_properties(context) as own:
            # Not of the group of whoever has begun it: Spark's query cancels what its callback has begun.
            for name in internals.JOB_GROUP:
                own.remove(name)
            context.addJobTag(tag)
            plan.run(own, self.labels.name_run(own, run[:8]))

    def cancel_tag(self, tag: str) -> None:
        context = self._session.sparkContext
        # The context was stopped, and the job with it: None has no such attribute.
        with contextlib.suppress(Py4JError, AttributeError):
            context.cancelJobsWithTag(tag)


class SparkRun:
    """A Spark job in which all chains are resident, and its control connections (see `PipelinedRun`)."""

    def __init__(self, engine: PipelinedEngine) -> None:
        self._engine = engine
        self.id = uuid.uuid4().hex
        self._tag = f"statefx-{self.id}"
        self._connected: set[ChainId] = set()
        self.lost = ""
        """Which chain was lost first, and why."""
        secret = os.urandom(32)
        self._control = engine.serve(self.id.encode(), secret, self._on_frame, self._lost)
        try:
            self._plan = engine.planned(self.id, secret, self._control)
        except BaseException:
            self._control.close()
            raise
        self._thread = InheritableThread(target=logs.carrying(self._run_job), name="statefx-run", daemon=True)
        self._thread.start()

    def send(self, chain: ChainId, kind: FrameKind, body: bytes = b"") -> None:
        self._control.send(chain, kind, body)

    def wait(self) -> None:
        self._thread.join(END_SECS)

    def end(self) -> None:
        """Close the connections, and cancel the job if it runs."""
        self._control.close()
        if self._thread.is_alive():
            self._engine.cancel_tag(self._tag)

    def _on_frame(self, chain: ChainId, kind: FrameKind, body: bytes) -> None:
        if kind is FrameKind.LINES:  # also of a run that is over: they tell how it has ended
            self._engine.lines.take(body)
            return
        if kind is not FrameKind.HELLO:
            self._engine.on_frame(self, chain, kind, body)
            return
        self._connected.add(chain)
        self._engine.reached = True
        if len(self._connected) == len(self._engine.chains):
            self._engine.on_ready(self)

    def _lost(self, chain: ChainId, why: str) -> None:
        # The job tells more, and ends in tenths of a second: a worker that was killed fails its task.
        self.lost = self.lost or f"the task at level {chain.level}, partition {chain.partition} was lost: {why}"
        timer = threading.Timer(1.0, logs.carrying(self._engine.on_ended), (self, JobFailedError(self.lost)))
        timer.daemon = True
        timer.start()

    def _run_job(self) -> None:
        error: Exception | None = None
        try:
            self._engine.run_job(self._plan, self.id, self._tag)
        except Exception as found:  # noqa: BLE001 - whoever runs the attempts decides
            error = found
        self._engine.job_over(self, error)
