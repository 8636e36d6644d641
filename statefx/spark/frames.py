"""DataFrames around the stages: the raw input united and routed, the chain of stages behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's custom
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StructType

from statefx.plan import wire
from statefx.plan.groupings import ROUTERS, RowExpressions, Spread
from statefx.plan.levels import EDGE_COLUMN, Plan
from statefx.protocol.identity import TaskId
from statefx.spark import internals
from statefx.spark.worker import LevelFunction, Parcel
from statefx.topology.graph import Edge

_STREAM = "__stream"
_TARGET = "__target"
WIRE = (
    StructType()
    .add("target", IntegerType())
    .add("kind", IntegerType())
    .add("rows", LongType())
    .add("head", BinaryType())
    .add("payload", BinaryType())
)


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
    # A union wants the same columns in the same order. So each frame has the columns of all, with nulls in those of the
    # others, and bolts cut theirs out (`Plan.raw_rows`).
    padded = []
    for number, frame in enumerate(frames.values()):
        renamed = frame.toDF(*[f"n{i}" for i in range(len(frame.columns))])
        own = iter(renamed.columns)
        columns = [
            (F.col(next(own)) if owner == number else F.lit(None).cast(kind)).alias(f"c{i}")
            for i, (owner, kind) in enumerate(types)
        ]
        padded.append(renamed.select(*columns, F.lit(number).alias(_STREAM)))
    return reduce(DataFrame.union, padded)


class Intake:
    """Sends the rows of the united frame to the partitions of the first level.

    Columns are built once, not for each transaction: every expression costs a call into the JVM. `route` gives a frame
    one partition for each task of the first level.
    """

    def __init__(self, plan: Plan, frame: DataFrame) -> None:
        # Rows of a DataFrame have no barriers, so nobody downstream could tell that a stage which ran twice has sent a
        # row elsewhere (rule 5.4): no expression here may depend on anything but the row.
        self._plan = plan
        self._hashable = [f.name for f in frame.schema.fields if "map<" not in f.dataType.simpleString()]
        self._columns = [f.name for f in frame.schema.fields if f.name != _STREAM]
        self.route = self._router()

    def _router(self) -> Callable[[DataFrame], DataFrame]:
        width = self._plan.widths[0]
        only = self._plan.raw[0] if len(self._plan.raw) == 1 else None
        if only is not None:
            spread = ROUTERS[only.grouping.kind].spread
            if spread is Spread.STAYING:
                return lambda frame: _narrowed(frame, width)
            if spread is Spread.EVENLY:
                return lambda frame: frame.repartition(width)
            targets = self._targets(only)
            if len(targets) == 1:  # no row is copied: `explode` would cost each row an array and a generator
                return lambda frame: frame.repartitionById(width, targets[0])
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
        start, schema = self._plan.layout[edge.source]
        fields = [self._columns[start + schema.get_field_index(name)] for name in edge.grouping.fields]
        tasks = self._plan.components[edge.target].parallelism
        first = self._plan.place[TaskId(edge.target, 0)][1]
        chosen = ROUTERS[edge.grouping.kind].targets(ColumnExpressions(self._hashable), fields, tasks)
        return [(task + first).cast("int") for task in chosen]


class ColumnExpressions(RowExpressions):
    """What a grouping asks of a row, as columns of Spark's; `hashable` are the frame's columns that have a hash."""

    def __init__(self, hashable: Sequence[str]) -> None:
        self._hashable = hashable

    def number(self, value: int) -> Column:
        """Return a literal."""
        return F.lit(value)

    def share_of_key(self, fields: Sequence[str], ways: int, *salt: int) -> Column:
        """Return `statefx.plan.hashing`'s hash of columns modulo `ways`."""
        return self.around(F.xxhash64(*[F.col(name) for name in fields], *map(F.lit, salt)), ways)

    def share_of_row(self, ways: int) -> Column:
        """Return the hash of all columns that have one modulo `ways`."""
        return self.share_of_key(self._hashable, ways)

    def around(self, number: Any, ways: int) -> Column:
        """Return `number` modulo `ways`, never negative."""
        return F.pmod(number, F.lit(ways))

    def either(self, which: Any, if_zero: Any, if_one: Any) -> Column:
        """Return one of two columns."""
        return F.when(which == 0, if_zero).otherwise(if_one)


class Chain:
    """The stages of a topology as one chain of DataFrames.

    Built once: a plan from Python costs milliseconds a stage when its functions are wrapped again for each transaction.
    It is run by the workers of `number` (see `internals.worker_program`).
    """

    def __init__(self, plan: Plan, parcel: Parcel, frame: DataFrame, number: int = 0) -> None:
        self._route = Intake(plan, frame).route
        self._widths = plan.widths
        self._target = F.col("target")
        routed = self._route(frame).columns
        self._stages = [
            internals.mapping(LevelFunction(parcel, level), WIRE, wire.SCHEMA.names if level else routed, number)
            for level in range(len(plan.levels))
        ]

    def over(self, rows: DataFrame) -> DataFrame:
        """Return what the tasks send to the driver: their acks."""
        rows = self._route(rows)
        for level, stage in enumerate(self._stages):
            if level:
                # By the number itself: `repartition` would hash it, and put two tasks of a level into one partition.
                rows = rows.repartitionById(self._widths[level], self._target)
            rows = stage(rows)
        return rows


def _narrowed(frame: DataFrame, width: int) -> DataFrame:
    """Leave rows where Spark has them, in `width` partitions; they are moved only where there are fewer."""
    if frame.isStreaming:  # asked for its columns only: it has no partitions yet
        return frame
    found = internals.partitions(frame)
    # also where there are just as many: what runs is planned again, and may have more by then
    return frame.coalesce(width) if found >= width else frame.repartition(width)
