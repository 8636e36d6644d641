"""Committed state as a DataFrame, and a DataFrame as state.

State is read with one partition for each task, where the partition is. Rows that become state are encoded and sorted by
the executors, and written by the driver.

What a frame's filters leave out is not read. Spark has an interface for that, `DataSourceReader.pushFilters`, but
Spark 4.3 keeps one answer for all uses of a source that was loaded once: where a frame is filtered in two ways in one
query, or filtered and later read as a whole, rows are missing. So the frame looks at its filters itself, and puts one
that reads less in its place; Spark still filters the rows.

Staged rows are read as a DataFrame too, by the executors and not by the driver.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession

from statefx.admin.narrowing import Comparison, narrowed
from statefx.admin.reading import Progress, StateTable
from statefx.admin.state_writing import Encoded, Encoder, StateWriter, Written
from statefx.errors import CheckpointError, ConfigError, SinkError
from statefx.operators.schema import to_ddl
from statefx.spark.executors import with_open_workers
from statefx.spark.failures import last_line
from statefx.spark.internals import WatchedFrame, condition_upon_map, mapped_otherwise, worker_program
from statefx.spark.preflight import unseen
from statefx.storage import is_remote

_SIGNS = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "In": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
_READERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), int),
    "string": str,
    "double": float,
    "date": date.fromisoformat,
}
"""Of constants, by Spark's name of their type. That of a timestamp has no time zone, that of bytes no bytes."""

_Tree = tuple[Mapping[str, Any], Sequence[Any]]
"""An expression, and those in it."""


def comparisons(condition: str) -> list[Comparison]:
    """Return comparisons of columns with constants that hold wherever the condition does; others are left out."""
    return list(_compared(_tree(iter(json.loads(condition)))))


def _tree(nodes: Iterator[Mapping[str, Any]]) -> _Tree:
    """Read an expression from a list in which each stands before those in it."""
    node = next(nodes)
    return node, [_tree(nodes) for _ in range(node["num-children"])]


def _compared(tree: _Tree) -> Iterator[Comparison]:
    node, inner = tree
    kinds = [_name(each) for each, _ in inner]
    if _name(node) == "And":
        for each in inner:
            yield from _compared(each)
    elif sign := _SIGNS.get(_name(node)):
        if kinds == ["Literal", "AttributeReference"]:
            sign, inner, kinds = _TURNED[sign], inner[::-1], kinds[::-1]
        if kinds[0] == "AttributeReference" and set(kinds[1:]) == {"Literal"}:
            with suppress(KeyError, ValueError):  # a constant of another type, or a date that Python does not have
                constants = [_constant(each) for each, _ in inner[1:]]
                yield Comparison(inner[0][0]["name"], sign, tuple(constants))


def _constant(literal: Mapping[str, Any]) -> Any:
    read = _READERS[literal["dataType"]]
    return None if literal["value"] is None else read(literal["value"])


def _name(node: Mapping[str, Any]) -> str:
    return str(node["class"]).rpartition(".")[2]


def state_frame(spark: SparkSession, table: StateTable) -> DataFrame:
    """Return the rows of a table as a DataFrame, with a partition for each task."""
    return _watched(_frame(spark, table), table)


def _frame(session: SparkSession, table: StateTable) -> DataFrame:
    width = len(table.tasks)
    with worker_program(session.sparkContext):
        return session.range(0, width, 1, max(width, 1)).mapInArrow(_reader(table), to_ddl(table.schema))


def _watched(frame: DataFrame, table: StateTable) -> DataFrame:
    """Return `frame`, which shows rows of `table`, as one whose filters limit what is read of the table."""

    def filtered(wide: DataFrame) -> DataFrame:
        condition = condition_upon_map(wide)
        less = table if condition is None else narrowed(table, comparisons(condition))
        if (less.tasks, less.shown) == (table.tasks, table.shown):
            return _watched(wide, table)
        return _watched(mapped_otherwise(wide, _frame(wide.sparkSession, less)), less)

    return WatchedFrame(frame, filtered)


def _reader(table: StateTable) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        location = table.folders.location
        for batch in batches:
            for number in batch.column(0).to_pylist():
                if not is_remote(location) and not os.path.isdir(location):
                    raise CheckpointError(unseen(f"checkpointLocation {location}", socket.gethostname()), path=location)
                yield from table.read(table.tasks[number])

    return read


_ENCODED = pa.schema([pa.field("task", pa.int32()), pa.field("key", pa.binary()), pa.field("value", pa.binary())])
_DDL = "task int, key binary, value binary"
_BATCH_ROWS = 8192


def is_batch(rows: object) -> bool:
    """Return whether `rows` is a DataFrame that is no stream."""
    return isinstance(rows, DataFrame) and not rows.isStreaming


def write_frame(df: DataFrame, writer: StateWriter, progress: Progress | None) -> Written:
    """Write the rows of a DataFrame, which the executors encode and sort; raises as ``Checkpoint.write``."""
    columns = writer.check_columns(df.columns)

    def written() -> Written:
        # A DataFrame that has failed goes on to fail with the same error, so each try has its own.
        with worker_program(df.sparkSession.sparkContext):
            encoded = df.select(*(f"`{name}`" for name in columns)).mapInArrow(_encode(writer.encoder), _DDL)
            # In as many parts as tasks: `orderBy` has as many as the session's shuffles, each a job for the driver.
            parts = encoded.repartitionByRange(writer.encoder.tasks, "task").sortWithinPartitions("task", "key")
            frames = parts.mapInArrow(_as_binary, "data binary")
        return writer.write(_entries(frames), progress)

    try:
        return with_open_workers(written)
    except (PySparkException, Py4JError) as error:  # it comes from the rows, which are read before anything is written
        raise ConfigError(
            f"write: the rows can't be written, and nothing was changed: {last_line(str(error))}"
        ) from error


def _encode(encoder: Encoder) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def encode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for at in range(0, batch.num_rows, _BATCH_ROWS):
                rows = list(encoder.encode(batch.slice(at, _BATCH_ROWS)))
                columns = [list(column) for column in zip(*rows, strict=True)]
                arrays = [pa.array(column, kind) for column, kind in zip(columns, _ENCODED.types, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=_ENCODED)

    return encode


def _as_binary(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make one row of each batch: the driver takes rows one by one, and such a row is thousands."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield pa.RecordBatch.from_pydict({"data": pa.array([sink.getvalue().to_pybytes()], pa.binary())})


def _entries(framed: DataFrame) -> Iterator[Encoded]:
    for row in framed.toLocalIterator():
        with pa.ipc.open_stream(bytes(row.data)) as stream:
            for batch in stream:
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def frame_of(session: SparkSession | None, schema: pa.Schema, parts: Sequence[Iterable[pa.RecordBatch]]) -> DataFrame:
    """Return a DataFrame with one partition for each part, which are picklable; every use of it reads them again.

    Without a session, that of this process is used; SinkError if there is none.
    """
    session = session or _session()
    with worker_program(session.sparkContext):
        width = max(1, len(parts))
        return session.range(0, len(parts), 1, width).mapInArrow(_staged_reader(tuple(parts)), to_ddl(schema))


def _session() -> SparkSession:
    try:
        return SparkSession.active()
    except PySparkRuntimeError as error:
        raise SinkError(
            "a sink of this topology hands its rows over as a DataFrame, and there is no SparkSession: build one "
            "before, with SparkSession.builder.master('local[1]').getOrCreate(); or give the topology a CollectSink in "
            "this test"
        ) from error


def _staged_reader(
    parts: Sequence[Iterable[pa.RecordBatch]],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from parts[number]

    return read
