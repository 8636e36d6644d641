"""All that statefx asks of Spark beyond PySpark's public interface; no other module does (`tests/test_layers.py`).

PySpark keeps these names private, or they are the JVM's own, so a next version of Spark may change any of them. Each
function has a test against real Spark (`tests/spark/test_internals.py`): run these first with a new version.

What a function returns from the JVM is a handle for other functions here, and is called by nobody else. The one
exception is ``java.util.Properties``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyspark

from statefx.spark import is_too_old

if is_too_old(pyspark.__version__):  # before what it lacks is imported, which would say less
    _place = os.path.dirname(os.path.dirname(pyspark.__file__))
    _leading = [
        name
        for name in ("PYTHONPATH", "SPARK_HOME")
        if any(each and _place.startswith(each) for each in os.environ.get(name, "").split(os.pathsep))
    ]
    _remedy = f"unset {' and '.join(_leading)}" if _leading else "pip install 'pyspark>=4.3,<4.4'"
    raise ImportError(
        f"statefx needs PySpark 4.3 or later, and this is {pyspark.__version__} in {_place}: "
        + ("take the spark-submit of Spark 4.3" if "PYSPARK_GATEWAY_PORT" in os.environ else _remedy)
    )

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.serializers import BatchedSerializer, CPickleSerializer, NoOpSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's custom
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType, _load_from_socket

STAGE_NAME = "callSite.short"
"""The local property that names the stages which are made while it is set."""

STAGE_DETAILS = "callSite.long"

JOB_GROUP = ("spark.jobGroup.id", "spark.job.interruptOnCancel", "spark.sql.execution.id")
"""The local properties by which a job is cancelled with others, and shown with a query."""

_WORKERS = "STATEFX_WORKERS"

# ---- contexts and sessions


def is_stopped(context: SparkContext) -> bool:
    """Return whether a SparkContext was stopped; a Py4JError means that the JVM is gone."""
    inner = context._jsc  # once: another thread may stop it meanwhile
    return inner is None or bool(inner.sc().isStopped())


def stopped_here(context: SparkContext) -> bool:
    """Return whether a SparkContext was stopped by this process; costs no call into the JVM."""
    return context._jsc is None


def clone(session: SparkSession) -> SparkSession:
    """Return a session with the same settings and catalog whose settings can be changed freely."""
    return SparkSession(session.sparkContext, session._jsparkSession.cloneSession())


def activate(session: SparkSession) -> None:
    """Make `session` the one whose settings the JVM's thread of this thread uses.

    Spark does that by itself around what it runs. A part of a plan that is made directly otherwise uses Spark's
    defaults, whatever the user has set.
    """
    SparkSession._get_j_spark_session_class(_jvm(session.sparkContext)).setActiveSession(session._jsparkSession)


def rebase(frame: DataFrame, session: SparkSession) -> DataFrame:
    dataset = _jvm(session.sparkContext).org.apache.spark.sql.classic.Dataset
    return DataFrame(dataset.ofRows(session._jsparkSession, frame._jdf.queryExecution().logical()), session)


def name_of_running(session: SparkSession, query_id: str) -> str | None:
    """Return the name of the streaming query with an id that runs in this application; None if none does."""
    running = session._jsparkSession.sharedState().activeStreamingQueries()
    found = running.get(_jvm(session.sparkContext).java.util.UUID.fromString(query_id))
    return None if found is None else found.name() or ""


def has_read_all(query: StreamingQuery) -> bool:
    """Return whether an ended streaming query read its source to the end; otherwise it was stopped.

    Its last trigger has then asked its sources to the end, without a batch.
    """
    last = query._jsq.streamingQuery().getLatestExecutionContext()
    if last is None:  # it was stopped before it had begun
        return False
    looked = all(last.getDuration(name).isDefined() for name in ("latestOffset", "triggerExecution"))
    return looked and not last.isCurrentBatchConstructed()


def has_ended_trigger(query: StreamingQuery) -> bool:
    """Return whether an ended streaming query was through with its last trigger; otherwise it was stopped in it."""
    last = query._jsq.streamingQuery().getLatestExecutionContext()
    return last is not None and bool(last.getDuration("triggerExecution").isDefined())


def deny_log_lines(context: SparkContext, pattern: str) -> None:
    """Keep lines that contain what a regular expression matches out of Spark's log, as long as the JVM runs.

    A filter on the appenders, which only sees what would be written. One on Spark's loggers would give these a
    configuration of their own, and then pyspark's shell shows all their INFO lines.
    """
    with contextlib.suppress(Py4JError, TypeError, AttributeError):  # log4j was replaced, or the context has gone
        jvm = _jvm(context)
        log4j = jvm.org.apache.logging.log4j
        results = jvm.java.lang.Class.forName("org.apache.logging.log4j.core.Filter$Result")
        deny, neutral = (results.getField(name).get(None) for name in ("DENY", "NEUTRAL"))
        created = log4j.core.filter.RegexFilter.createFilter(f".*{pattern}.*", None, False, deny, neutral)
        for appender in log4j.LogManager.getContext(False).getConfiguration().getAppenders().values():
            if str(created) not in str(appender.getFilter()):
                appender.addFilter(created)


@contextlib.contextmanager
def own_properties(context: SparkContext) -> Iterator[Any]:
    """Let this thread have local properties of its own for as long as the block lasts.

    A streaming query goes on with what it had: its description, and the call site that names the stages of the
    user's own plan. Yields a copy of that (java.util.Properties).
    """
    inner = _scala(context)
    kept = inner.getLocalProperties()
    own = kept.clone()
    inner.setLocalProperties(own)
    try:
        yield own
    finally:
        if not stopped_here(context):
            inner.setLocalProperties(kept)


# ---- functions that run in Python workers


_wrapping = threading.RLock()
"""Of what `worker_program` sets: the thread that warms the JVM up wraps functions too, while `submit` goes on."""


def take_own_python(context: SparkContext) -> None:
    """Have the workers run the driver's own Python in local mode, whatever ``python3`` is on the path.

    Unless PYSPARK_PYTHON says otherwise.
    """
    if str(context.master).startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable


@contextlib.contextmanager
def worker_program(context: SparkContext, number: int = 0) -> Iterator[str]:
    """Let the functions that are wrapped in the block run as statefx's run; the context is as before afterwards.

    In local mode the workers run the driver's own Python (see `take_own_python`). Yields the program that they run.

    Spark starts workers through one program for each environment that functions bring along. Another `number` gives
    them another environment, and so a program of their own.
    """
    with _wrapping:
        chosen = context.pythonExec
        take_own_python(context)
        taken = context.pythonExec
        try:
            if number:
                context.environment[_WORKERS] = str(number)
            yield taken
        finally:
            if taken != chosen:  # else the user, or another thread of theirs, may have set it meanwhile
                context.pythonExec = chosen
            context.environment.pop(_WORKERS, None)


def wrapped(rdd: Any) -> Any:
    """Return an RDD of Python whose functions are wrapped now, and not only by the job that needs them."""
    with worker_program(rdd.context):
        rdd._jrdd  # noqa: B018 - wraps, and is kept
    return rdd


def mapping(
    function: Any, schema: StructType, columns: Sequence[str], number: int = 0
) -> Callable[[DataFrame], DataFrame]:
    """Return what ``frame.mapInArrow(function, schema)`` does for frames with `columns`, wrapped once for all.

    Run by the workers of that `number` (see `worker_program`).
    """
    context = SparkContext._active_spark_context
    assert context is not None
    with worker_program(context, number):
        wrapped = pandas_udf(function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)  # type: ignore[call-overload]
        column = wrapped(*[F.col(name) for name in columns])._jc
    return lambda frame: DataFrame(frame._jdf.mapInArrow(column, False, None), frame.sparkSession)


_STUCK = re.compile(r"java\.lang\.NullPointerException\n(?:\s+at .*\n)*\s+at [\w.]*PythonWorkerFactory\.createWorker")


def cant_start_workers(error: Exception) -> bool:
    """Return whether Spark will start no more workers for functions of the same environment, on some executor.

    When the program that forks them is killed while it starts, and the task that waits for it is interrupted (its job
    was cancelled, or failed elsewhere), Spark keeps the dead program, without the path of its socket. Each job that
    needs a worker from then on fails with a NullPointerException. Over TCP it would be a SocketException, after which
    Spark starts another program.
    """
    return _STUCK.search(str(error)) is not None


_CLOSED = re.compile(r"ClosedChannelException\n(?:\s+at .*\n)*\s+at [\w.]*PythonWorker\.refreshNonBlocking")


def got_closed_worker(error: Exception) -> bool:
    """Return whether Spark gave a task an idle worker whose connection was closed; nothing of the task was run.

    With ``spark.python.udf.pipelined.enabled``, the thread that gives a worker its rows is interrupted when the task
    ends. If it is still in its last write, Java closes the connection, and Spark has counted the worker as idle
    already. Spark 4.3 skips it only if its process has ended by the time the next task gets it.
    """
    return _CLOSED.search(str(error)) is not None


# ---- logical plans


class WatchedFrame(ClassicFrame):
    """The rows of `frame`; `filtered` gets the result of ``filter`` or ``where``, and returns its replacement."""

    def __init__(self, frame: DataFrame, filtered: Callable[[DataFrame], DataFrame]) -> None:
        super().__init__(frame._jdf, frame.sparkSession)
        self._filtered = filtered

    def filter(self, condition: Any) -> DataFrame:
        """Return the rows of which the condition is true; ``where`` comes here too."""
        return self._filtered(super().filter(condition))


_SET_FROM = "spark.sql.optimizer.inSetConversionThreshold"


def condition_upon_map(frame: DataFrame) -> str | None:
    """Return the condition of a DataFrame that is filters upon a mapInArrow, as Spark simplifies it, in Spark's JSON.

    None: the DataFrame is something else, such as one whose mapInArrow is cached; or there is nothing left to filter.
    """
    copy = clone(frame.sparkSession)
    copy.conf.set(_SET_FROM, "10000")  # JSON has no elements of a list that has become a set
    try:
        plan = rebase(frame, copy)._jdf.queryExecution().optimizedPlan()
    except (PySparkException, Py4JJavaError):  # such as 1/0, of which Spark tells when rows are read
        return None
    if _kind(plan) != "Filter" or _kind(plan.child()) != "MapInArrow":
        return None
    return str(plan.condition().toJSON())


def mapped_otherwise(frame: DataFrame, other: DataFrame) -> DataFrame:
    """Return `frame`, of filters upon a mapInArrow, with that of `other` in its place; columns of `frame` name its own.

    Both have the same columns.
    """

    def upon(plan: Any) -> Any:
        if _kind(plan) != "MapInArrow":
            return plan.withNewChildInternal(upon(plan.child()))
        new = _analyzed(other)
        return new.copy(new.functionExpr(), plan.output(), new.child(), new.isBarrier(), new.profile())

    dataset = _jvm(frame.sparkSession.sparkContext).org.apache.spark.sql.classic.Dataset
    return DataFrame(dataset.ofRows(frame.sparkSession._jsparkSession, upon(_analyzed(frame))), frame.sparkSession)


def check_streaming(frame: DataFrame) -> None:
    """Have Spark analyse a streaming query in output mode ``update``; AnalysisException if it refuses."""
    spark = _jvm(frame.sparkSession.sparkContext).org.apache.spark.sql
    mode = spark.streaming.OutputMode.Update()
    spark.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(_analyzed(frame), mode)


def streaming_operators(frame: DataFrame) -> Iterator[str]:
    """Yield the class names of the nodes of a plan that work on a stream; a join only if both of its inputs are."""
    left = [_analyzed(frame)]
    while left:
        node = left.pop()
        children = [node.children().apply(number) for number in range(node.children().size())]
        name = str(node.getClass().getSimpleName())
        if node.isStreaming() and (name != "Join" or all(child.isStreaming() for child in children)):
            yield name
        left += children


def streamed_paths(frame: DataFrame) -> Iterator[str]:
    """Yield the option ``path`` of the streams that a DataFrame reads."""
    for leaf in _leaves(_analyzed(frame)):
        if leaf.getClass().getSimpleName() == "StreamingRelation":
            path = leaf.dataSource().options().get("path")
            if path.isDefined():
                yield str(path.get())


_KEEPING = {"text", "json", "csv", "parquet", "orc", "xml", "kafka", "rate", "rate-micro-batch"}
"""Sources that keep what they have handed out; those of files only without the option ``cleanSource``."""

_CLEANED = re.compile(r"cleansource -> (?!off\b)")


def lets_go(frame: DataFrame) -> bool:
    """Return whether a stream may let go of rows when its callback has returned: Spark then calls ``Source.commit``."""
    for leaf in _leaves(_analyzed(frame)):
        kind = _kind(leaf)
        if kind == "StreamingRelation":
            source = leaf.dataSource()
            name = str(source.className()).lower()
            if name not in _KEEPING or _CLEANED.search(str(source.options().toString()).lower()):
                return True
        elif leaf.isStreaming() and (kind != "StreamingRelationV2" or str(leaf.sourceName()).lower() not in _KEEPING):
            return True
    return False


def sources_of(frame: DataFrame) -> list[int]:
    """Return the number of the source of each place where a streaming query reads, in the order of its offsets.

    Spark makes one source for all places that read the same stream, and yet writes its offset once for each.
    """
    known: list[Any] = []
    found: list[int] = []
    for leaf in _leaves(_analyzed(frame)):
        if leaf.isStreaming():
            number = next((at for at, each in enumerate(known) if each.equals(leaf)), len(known))
            known += [leaf] if number == len(known) else []
            found.append(number)
    return found


def places_of(frame: DataFrame) -> list[tuple[int, str]]:
    """Return as `sources_of`, with the folder of files that each place reads; "" where it is none, or is a pattern."""
    leaves = [leaf for leaf in _leaves(_analyzed(frame)) if leaf.isStreaming()]
    return list(zip(sources_of(frame), map(_folder, leaves), strict=True))


def _folder(leaf: Any) -> str:
    path = leaf.dataSource().options().get("path") if _kind(leaf) == "StreamingRelation" else None
    found = str(path.get()) if path is not None and path.isDefined() else ""
    return "" if re.search(r"[*?\[{]", found) else found


def keeps_shuffles(frame: DataFrame) -> bool:
    """Return whether every attempt over `frame` would read the same shuffle files.

    What a streaming query hands to foreachBatch stands on one RDD, and so does a batch DataFrame made of an RDD or of a
    cache; where that has shuffles of its own, a job after a lost executor would mix what is left of the first one with
    what is computed again.
    """
    return any(map(_stands_on_shuffles, _cached_leaves(frame)))


def stages_kept(frame: DataFrame) -> set[int] | None:
    """Return the stages, by their RDDs, whose former results a job over `frame` reads.

    None: a part of one is lost, so the job would mix it with what is computed again. Where a whole cache or shuffle is
    there, nothing that it comes from is needed, and none of it may run. It runs no job: of a cache that was not made
    yet, it looks at what that will be made of (`make_caches`).
    """
    inner = _scala(frame.sparkSession.sparkContext)
    cached = {info.id(): info.numCachedPartitions() / info.numPartitions() for info in inner.getRDDStorageInfo()}
    outputs = _map_outputs(frame.sparkSession.sparkContext)
    kept: set[int] = set()

    def is_whole(rdd: Any, share: float) -> bool:
        """Look at what `rdd` comes from, of which so large a share is cached."""
        share = max(share, cached.get(rdd.id(), 0.0))
        dependencies = rdd.dependencies()
        for dependency in (dependencies.apply(at) for at in range(dependencies.size())):
            before, share_before = dependency.rdd(), share
            if _kind(dependency) == "ShuffleDependency":
                lacking = before.getNumPartitions() - outputs.getNumAvailableOutputs(dependency.shuffleId())
                if share == 1 or not lacking:
                    kept.add(before.id())
                    share_before = 1.0
                elif share or lacking < before.getNumPartitions():
                    return False
            if not is_whole(before, share_before):
                return False
        return True

    return kept if all(is_whole(rdd, 0.0) for rdd in _rdds_there(_cached_leaves(frame))) else None


def make_caches(frame: DataFrame) -> bool:
    """Make those caches out of shuffles that `frame` reads and that were not made yet; return whether there were any.

    Spark computes what is behind a shuffle when it is read. But with adaptive execution it runs the shuffles themselves
    as soon as it is asked for the cache's RDD, in jobs of the thread that asks. Another thread that does the same at
    this time is waited for.
    """
    caches = [leaf.cacheBuilder() for leaf in _cached_leaves(frame) if _kind(leaf) == "InMemoryRelation"]
    unmade = [cache for cache in caches if _made(cache) is None and _has_shuffle(cache)]
    for cache in unmade:
        cache.cachedColumnBuffers()
    return bool(unmade)


def _cached_leaves(frame: DataFrame) -> Iterator[Any]:
    """Yield the leaves of the plan with what is cached in it, which Spark reads in the place of what it is made of."""
    return _leaves(frame._jdf.queryExecution().withCachedData())


def _rdds_there(leaves: Iterable[Any]) -> Iterator[Any]:
    """Yield the RDDs out of shuffles that leaves of a plan read, logical or physical, as far as they are there."""
    for leaf in leaves:
        kind = _kind(leaf)
        if kind in ("LogicalRDD", "RDDScanExec"):
            if _comes_from_shuffle(leaf.rdd()):
                yield leaf.rdd()
        elif kind == "InMemoryRelation":
            cache = leaf.cacheBuilder()
            made = _made(cache)
            if made is None:
                yield from _rdds_there(_leaves(cache.cachedPlan()))
            elif _has_shuffle(cache):
                yield made
        elif kind == "InMemoryTableScanExec":
            yield from _rdds_there([leaf.relation()])
        elif kind == "AdaptiveSparkPlanExec":
            yield from _rdds_there(_leaves(leaf.executedPlan()))
        elif kind == "TableCacheQueryStageExec":  # the next two: its plan had begun to run, and failed
            yield from _rdds_there([leaf.inMemoryTableScan()])
        elif kind == "ShuffleQueryStageExec":
            yield leaf.shuffle().execute()


def _made(cache: Any) -> Any:
    """Return the RDD of a cache, None if nobody has asked for it; as a field, since its method makes it."""
    field = cache.getClass().getDeclaredField("_cachedColumnBuffers")
    field.setAccessible(True)
    return field.get(cache)


def _map_outputs(context: SparkContext) -> Any:
    """Return Spark's table of shuffle files; as a field, since py4j fails over a method of SparkEnv's."""
    field = _jvm(context).java.lang.Class.forName("org.apache.spark.SparkEnv").getDeclaredField("mapOutputTracker")
    field.setAccessible(True)
    return field.get(_scala(context).env())


def has_shuffles(frame: DataFrame) -> bool:
    """Return whether a job over `frame` has more than one stage, or reads results of one that had."""
    if keeps_shuffles(frame):
        return True
    # What a streaming query hands over is one RDD: its lineage has told all.
    is_rdd = _kind(frame._jdf.queryExecution().logical()) == "LogicalRDD"
    return not is_rdd and "Exchange" in str(frame._jdf.queryExecution().executedPlan().toString())


def _stands_on_shuffles(leaf: Any) -> bool:
    """Return whether a leaf of a logical plan is an RDD or a cache that comes out of a shuffle."""
    kind = _kind(leaf)
    if kind == "LogicalRDD":
        return _comes_from_shuffle(leaf.rdd())
    return kind == "InMemoryRelation" and _has_shuffle(leaf.cacheBuilder())


def _comes_from_shuffle(rdd: Any) -> bool:
    lineage = str(rdd.toDebugString())
    return any(each in lineage for each in ("Shuffled", "CoGroupedRDD", "SubtractedRDD"))


def _has_shuffle(cache: Any) -> bool:
    return "Exchange" in str(cache.cachedPlan().toString()) or any(
        map(_stands_on_shuffles, _leaves(cache.logicalPlan()))
    )


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _analyzed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _leaves(plan: Any) -> Iterator[Any]:
    leaves = plan.collectLeaves()
    return (leaves.apply(at) for at in range(leaves.size()))


# ---- physical plans: stages of ours (MapInArrow) and the shuffles between them

_STAGE, _SHUFFLE = "MapInArrowExec", "ShuffleExchangeExec"


def chain_of(frame: DataFrame) -> tuple[list[tuple[str, Any]], Any]:
    """Return the nodes of a physical plan that is a chain, lowest first, and the node below them.

    Each with its kind: ``M`` for a MapInArrow, ``S`` for a shuffle.
    """
    nodes: list[tuple[str, Any]] = []
    node = frame._jdf.queryExecution().executedPlan()
    while (kind := node.getClass().getSimpleName()) in (_STAGE, _SHUFFLE):
        nodes.insert(0, ("M" if kind == _STAGE else "S", node))
        node = node.child()
    return nodes, node


def copied_onto(node: Any, child: Any) -> Any:
    """Return a copy of a node of a physical plan that reads another node; a copied exchange has a shuffle of its own.

    The copy goes by the settings of the thread's session (`activate`).
    """
    return node.withNewChildInternal(child)


def sql_settings(session: SparkSession) -> Any:
    """Return a session's settings as java.util.Properties; tasks look for them there (`own_properties`).

    Spark puts them there by itself for what runs as an SQL query.
    """
    properties = _jvm(session.sparkContext).java.util.Properties()
    for name, value in session.conf.getAll.items():
        if name.startswith("spark.sql."):
            properties.setProperty(name, value)
    return properties


# ---- shuffles


def pipelined_onto(exchange: Any, child: Any) -> Any:
    """Return a copy of an exchange that reads another node, and whose stages on both sides run at the same time.

    Spark pushes its rows from task to task over the network, in order for each pair of tasks, with nothing on disk. A
    task that fails fails the job; none is run again.
    """
    copied = exchange.withNewChildInternal(child)
    return copied.copy(
        copied.outputPartitioning(), copied.child(), copied.shuffleOrigin(), copied.advisoryPartitionSize(), True
    )


def task_slots(context: SparkContext) -> int:
    scala = _scala(context)
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def shuffle_of(exchange: Any) -> Any:
    """Return the shuffle of an exchange, which is made now if it is not there yet."""
    return exchange.shuffleDependency()


# ---- results of jobs


def collected(frame: DataFrame, column: str) -> list[bytes]:
    """Return a binary column of ``frame.collect()``; that would put a call site of its own in the place of ours."""
    rows = _served(frame._jdf.collectToPython(), BatchedSerializer(CPickleSerializer()))  # type: ignore[no-untyped-call]
    return [bytes(row[column]) for row in rows]


def collected_node(frame: DataFrame, node: Any, schema: pa.Schema, column: str) -> list[bytes]:
    """Run a job of a physical plan up to `node`; return a binary column of its rows.

    Not by `collect` of a DataFrame, which would plan, explain and record it as an SQL query: 10 ms for each job.
    `frame` is any one of the session with the columns of `schema`, which is that of the node's rows.
    """
    serve = _jvm(frame.sparkSession.sparkContext).org.apache.spark.api.python.PythonRDD.collectAndServe
    found: list[bytes] = []
    for batch in _served(serve(frame._jdf.toArrowBatchRdd(node)), NoOpSerializer()):
        found += pa.ipc.read_record_batch(pa.py_buffer(batch), schema).column(column).to_pylist()
    return found


def _served(served: Any, serializer: Any) -> list[Any]:
    """Read what the JVM serves at a socket."""
    with _load_from_socket(served, serializer) as rows:
        return list(rows)


# ---- what Spark knows of jobs


def ended_jobs(context: SparkContext, tag: str) -> Mapping[int, Sequence[int]] | None:
    """Return the stages of each job with `tag`, by its number; None until Spark's status store knows that all ended.

    The store hears of everything a little later than the driver.
    """
    tracker = _scala(context).statusTracker()
    found = [tracker.getJobInfo(job) for job in _numbers(context, tracker.getJobIdsForTag(tag))]
    jobs = [info.get() for info in found if info.isDefined()]
    if not jobs or any(str(job.status()) not in ("SUCCEEDED", "FAILED") for job in jobs):
        return None
    return {int(job.jobId()): _numbers(context, job.stageIds()) for job in jobs}


def tasks_run(context: SparkContext, tag: str) -> bool:
    """Return whether any task of the jobs with `tag` runs now, as far as the status store knows."""
    return any(stage.numActiveTasks() > 0 for stage in _stages(context, tag))


def waits_for_slots(context: SparkContext, tag: str) -> bool:
    """Return whether the jobs with `tag` have tasks to run, and none of them runs."""
    stages = list(_stages(context, tag))
    left = any(stage.submissionTime() > 0 and stage.numCompletedTasks() < stage.numTasks() for stage in stages)
    return left and not any(stage.numActiveTasks() > 0 for stage in stages)


def _stages(context: SparkContext, tag: str) -> Iterator[Any]:
    tracker = _scala(context).statusTracker()
    jobs = [tracker.getJobInfo(job) for job in _numbers(context, tracker.getJobIdsForTag(tag))]
    for job in jobs:
        if job.isDefined():
            found = [tracker.getStageInfo(stage) for stage in _numbers(context, job.get().stageIds())]
            yield from (stage.get() for stage in found if stage.isDefined())


def stage_tries(context: SparkContext, stage: int) -> int | None:
    """Return how often a stage was begun: 0 if a job passed over it, None if the status store has forgotten it."""
    try:
        info = _scala(context).statusTracker().getStageInfo(stage).get()
    except Py4JJavaError:  # of None's get
        return None
    tries = int(info.currentAttemptId()) + 1
    return tries if tries > 1 or info.submissionTime() > 0 else 0


def rdd_of_stage(context: SparkContext, stage: int) -> int:
    """Return the RDD that a stage has computed last; its other ones are of stages before it, or were on the way."""
    return int(_scala(context).statusStore().lastStageAttempt(stage).rddIds().apply(0))


def stages_completed(context: SparkContext, job: int) -> int | None:
    """Return how many stages of a job have run to their end; None if the status store has forgotten the job."""
    try:
        return int(_scala(context).statusStore().job(job).numCompletedStages())
    except Py4JJavaError:
        return None


def _numbers(context: SparkContext, array: Any) -> list[int]:
    """Read an int[] of the JVM with one call, not with one for each element."""
    found: list[int] = json.loads(str(_jvm(context).java.util.Arrays.toString(array)))
    return found


def _jvm(context: SparkContext) -> Any:
    return context._jvm


def _scala(context: SparkContext) -> Any:
    inner: Any = context._jsc
    return inner.sc()
