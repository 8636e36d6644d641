"""DataFrames around the stages: the raw input united and routed, the chain of stages behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's custom
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StructType
from pyspark.util import PythonEvalType

from statefx.errors import TopologyError
from statefx.plan import wire
from statefx.plan.levels import Plan
from statefx.protocol.identity import TaskId
from statefx.runtime.slot import EDGE_COLUMN
from statefx.spark.session import worker_program
from statefx.spark.worker import Parcel, Stage
from statefx.topology.graph import Edge

_STREAM = "__stream"
_TARGET = "__target"
_WIRE = (
    StructType()
    .add("target", IntegerType())
    .add("kind", IntegerType())
    .add("rows", LongType())
    .add("head", BinaryType())
    .add("payload", BinaryType())
)
_STAYING = ("local", "none")


def unite(frames: Mapping[str, DataFrame]) -> DataFrame:
    """Put the rows of all raw DataFrames into one, each in columns of its own; only then can one query run them.

    A single frame keeps its columns; names become positions, so that any name is allowed.
    """
    if len(frames) == 1:
        frame = next(iter(frames.values()))
        return frame.toDF(*[f"c{i}" for i in range(len(frame.columns))])
    types: list[tuple[int, DataType]] = [
        (number, field.dataType) for number, frame in enumerate(frames.values()) for field in frame.schema.fields
    ]
    padded = []
    for number, frame in enumerate(frames.values()):
        own = iter(frame.toDF(*[f"n{i}" for i in range(len(frame.columns))]).columns)
        renamed = frame.toDF(*[f"n{i}" for i in range(len(frame.columns))])
        columns = [
            (F.col(next(own)) if owner == number else F.lit(None).cast(kind)).alias(f"c{i}")
            for i, (owner, kind) in enumerate(types)
        ]
        padded.append(renamed.select(*columns, F.lit(number).alias(_STREAM)))
    return reduce(DataFrame.union, padded)


class Router:
    """Sends the rows of the united frame to the partitions of the first level.

    Columns are built once, not for each transaction: every expression costs a call into the JVM.

    Parameters
    ----------
    plan : Plan
    frame : DataFrame
        The united frame, for its schema.
    """

    def __init__(self, plan: Plan, frame: DataFrame) -> None:
        self._plan = plan
        self._width = len(plan.levels[0])
        self._hashable = [f.name for f in frame.schema.fields if "map<" not in f.dataType.simpleString()]
        self._columns = [f.name for f in frame.schema.fields if f.name != _STREAM]
        self.route = self._router()

    def _router(self) -> Callable[[DataFrame], DataFrame]:
        """Return a function that gives a frame one partition for each task of the first level."""
        width = self._width
        only = self._plan.raw[0] if len(self._plan.raw) == 1 else None
        if only is not None and only.grouping.kind in _STAYING:
            return lambda frame: _narrowed(frame, width)
        if only is not None and only.grouping.kind == "shuffle":
            return lambda frame: frame.repartition(width)
        if only is not None and only.grouping.kind != "all":
            target = self._targets(only)[0]
            return lambda frame: frame.repartitionById(width, target)
        copied: list[Any] = [*self._columns, F.explode(self._copies()).alias("__to")]
        routed: list[Any] = [*self._columns, F.col("__to.edge").alias(EDGE_COLUMN), F.col("__to.target").alias(_TARGET)]
        target = F.col(_TARGET)
        return lambda frame: frame.select(*copied).select(*routed).repartitionById(width, target)

    def _copies(self) -> Column:
        """For a row of any stream: the (edge, partition) pairs it goes to."""
        chosen: Column | None = None
        for number, stream in enumerate(self._plan.streams):
            copies = F.array(
                *[
                    F.struct(F.lit(edge.id).alias("edge"), target.alias("target"))
                    for edge in self._plan.raw
                    if edge.source == stream
                    for target in self._targets(edge)
                ]
            )
            if len(self._plan.streams) == 1:
                return copies
            here = F.col(_STREAM) == number
            chosen = F.when(here, copies) if chosen is None else chosen.when(here, copies)
        assert chosen is not None
        return chosen

    def _targets(self, edge: Edge) -> list[Column]:
        """Partitions of the first level that a row of `edge` goes to."""
        kind = edge.grouping.kind
        tasks = self._plan.components[edge.target].parallelism
        first = self._plan.place[TaskId(edge.target, 0)][1]
        if kind == "all":
            return [F.lit(first + task) for task in range(tasks)]
        if kind == "global":
            return [F.lit(first)]
        if kind == "fields":
            share = self._share(self._keys(edge), tasks)
        elif kind == "partialKey":  # two candidates by the key, and the rest of the row decides which
            share = self._one_of_two(self._keys(edge), tasks)
        else:
            share = self._share(self._hashable, tasks)
        return [(share + first).cast("int")]

    def _share(self, columns: Sequence[str], ways: int) -> Column:
        if not columns:
            raise TopologyError(
                "a stream of map columns only can't be distributed: Spark hashes no maps; add a column to it"
            )
        return F.pmod(F.xxhash64(*[F.col(c) for c in columns]), F.lit(ways))

    def _one_of_two(self, keys: Sequence[str], tasks: int) -> Column:
        """The tasks of `partial_key_chooser`; a hash of the whole row stands in for the load: Spark can't count."""
        one = self._share(keys, tasks)
        if tasks == 1:
            return one
        further = F.pmod(F.xxhash64(*[F.col(c) for c in keys], F.lit(1)), F.lit(tasks - 1)) + 1
        return F.when(self._share(self._hashable, 2) == 0, one).otherwise(F.pmod(one + further, F.lit(tasks)))

    def _keys(self, edge: Edge) -> Sequence[str]:
        start, schema = self._plan.layout[edge.source]
        return [self._columns[start + schema.get_field_index(name)] for name in edge.grouping.fields]


class Chain:
    """The stages of a topology as one chain of DataFrames.

    Built once: a plan from Python costs milliseconds a stage when its functions are wrapped anew each time.

    Parameters
    ----------
    plan : Plan
    parcel : Parcel
    frame : DataFrame
        The united frame, for its schema.
    number : int
        Of the workers that run it (see `worker_program`).
    """

    def __init__(self, plan: Plan, parcel: Parcel, frame: DataFrame, number: int = 0) -> None:
        self._router = Router(plan, frame)
        self._widths = [len(level) for level in plan.levels]
        self._target = F.col("target")
        routed = self._router.route(frame).columns
        self._stages = [
            mapping(Stage(parcel, level), wire.SCHEMA.names if level else routed, number)
            for level in range(len(plan.levels))
        ]

    def over(self, frame: DataFrame) -> DataFrame:
        """Return the frame whose rows are the acks of one attempt over `frame`."""
        rows = self._router.route(frame)
        for level, stage in enumerate(self._stages):
            if level:
                rows = rows.repartitionById(self._widths[level], self._target)
            rows = stage(rows)
        return rows


def _narrowed(frame: DataFrame, width: int) -> DataFrame:
    """Leave rows where Spark has them, in `width` partitions; they are moved only where there are fewer."""
    if frame.isStreaming:  # asked for its columns only: it has no partitions yet
        return frame
    found = int(frame._jdf.queryExecution().toRdd().getNumPartitions())
    # also where there are just as many: what runs is planned anew, and may come to more by then
    return frame.coalesce(width) if found >= width else frame.repartition(width)


def keeps_shuffles(frame: DataFrame) -> bool:
    """Tell whether every attempt over `frame` would read the same shuffle files.

    What a streaming query hands to foreachBatch stands on one RDD, and so does a batch DataFrame made of an RDD or of
    a cache; where that has shuffles of its own, attempts after a lost executor would mix what is left of the first run
    with what is computed again.
    """
    leaves = frame._jdf.queryExecution().withCachedData().collectLeaves()
    return any(_stands_on_shuffles(leaves.apply(at)) for at in range(leaves.size()))


def _stands_on_shuffles(leaf: Any) -> bool:
    """Tell whether a leaf of a logical plan is an RDD or a cache that comes out of a shuffle."""
    kind = leaf.getClass().getSimpleName()
    if kind == "LogicalRDD":
        lineage = str(leaf.rdd().toDebugString())
        return any(rdd in lineage for rdd in ("Shuffled", "CoGroupedRDD", "SubtractedRDD"))
    return kind == "InMemoryRelation" and "Exchange" in str(leaf.cacheBuilder().cachedPlan().toString())


def mapping(function: Any, columns: Sequence[str], number: int = 0) -> Callable[[DataFrame], DataFrame]:
    """Return what ``frame.mapInArrow(function, wire.DDL)`` does for frames with `columns`, wrapped once for all.

    Run by the workers of that `number` (see `worker_program`).
    """
    context = SparkContext._active_spark_context
    assert context is not None
    with worker_program(context, number):
        wrapped = pandas_udf(function, returnType=_WIRE, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)  # type: ignore[call-overload]
        column = wrapped(*[F.col(name) for name in columns])._jc
    return lambda frame: DataFrame(frame._jdf.mapInArrow(column, False, None), frame.sparkSession)
