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
from statefx.admin.reading import Progress
from statefx.admin.routing import GroupingKey
from statefx.admin.state_table import At, StateTable, state_table
from statefx.admin.state_writing import Encoded, Encoder, StateWriter, Written, state_writer
from statefx.errors import CheckpointError, ConfigError, SinkError
from statefx.operators.schema import to_ddl
from statefx.spark.executors import with_open_workers
from statefx.spark.failures import last_line
from statefx.spark.internals import WatchedFrame, condition_upon_map, mapped_otherwise, worker_program
from statefx.spark.preflight import unseen
from statefx.spark.session import check_session
from statefx.state import Codec
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


def readState(
    spark: SparkSession,
    checkpointLocation: str | os.PathLike[str],
    component: str,
    *,
    task: int | None = None,
    start: Any = None,
    stop: Any = None,
    map: str | None = None,
    at: At = None,
    diff: tuple[At, At] | None = None,
    schema: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    codec: Codec | None = None,
) -> DataFrame:
    """Return the committed state of one bolt as a DataFrame, with a partition for each task; also while it runs.

    Parameters
    ----------
    spark : SparkSession
        A classic session whose executors see the checkpoint.
    checkpointLocation, component, config, codec
        As of `statefx.openState`.
    task : int, optional
        Read one task's state only.
    start, stop : optional
        Read the keys with start <= key < stop, and no others.
    map : str, optional
        Read ``state.map(name)`` or ``state.broadcast(name)``, in place of the bolt's own keys.
    at : int or str, optional
        A transaction, of which about a hundred stay readable, or a savepoint's name; by default the last decided one.
    diff : tuple of two, optional
        Two such: show what is not the same in both.
    schema : Mapping, optional
        As of ``StateView.to_arrow``; by default the bolt's ``stateSchema``.

    Returns
    -------
    DataFrame
        Columns of key and value, as of ``StateView.to_arrow``; with `diff` ``op`` ("insert", "update" or "delete"),
        the key, ``before``, ``after``, ``task`` and ``space``.

    Raises
    ------
    ConfigError, CodecError
        An argument is wrong; or a server keeps the state, which has no other transaction than the last.
    CheckpointError
        There is no such checkpoint, bolt, task, savepoint or transaction, or it is not kept any more.

    Contract
    --------
    * Comparisons of ``task`` and of the key's columns with constants, in ``filter`` or ``where`` of the DataFrame
      itself, also one after another, find their place in the files as `task`, `start` and `stop` do. No filter changes
      which rows come out.
    * The transaction is that of the call, whenever rows are read. When its files are deleted, reading fails and says
      so. Where a server keeps the state, each read shows its tasks as last committed.

    Examples
    --------
    >>> changed = readState(spark, "checkpoints/word-count", "count", diff=(3, 7))          # doctest: +SKIP
    """
    session = check_session(spark, "readState")
    table = state_table(
        checkpointLocation, component, task=task, start=start, stop=stop, map=map, at=at, diff=diff, schema=schema,
        config=config, codec=codec,
    )  # fmt: skip
    return _watched(_frame(session, table), table)


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
                    raise CheckpointError(unseen(location, socket.gethostname()), path=location)
                yield from table.read(table.tasks[number])

    return read


_ENCODED = pa.schema([pa.field("task", pa.int32()), pa.field("key", pa.binary()), pa.field("value", pa.binary())])
_DDL = "task int, key binary, value binary"
_BATCH_ROWS = 8192


def writeState(
    df: DataFrame | pa.Table,
    checkpointLocation: str | os.PathLike[str],
    component: str,
    *,
    mode: str = "merge",
    schema: Mapping[str, Any] | None = None,
    groupingKey: GroupingKey | None = None,
    config: Mapping[str, Any] | None = None,
    codec: Codec | None = None,
    progress: Progress | None = None,
) -> Written:
    """Write the rows of a DataFrame or a table into the committed state of one bolt; its topology must not run.

    The rows are as `readState` shows them: columns of key and value; others, such as ``task``, are not looked at. Each
    key goes to the task that its grouping's fields hash to.

    Parameters
    ----------
    df : DataFrame or pyarrow.Table
        A table is encoded and sorted here, in memory and without Spark.
    checkpointLocation, component, config, codec
        As of `openState`. Something must have been committed there before.
    mode : str
        ``"merge"``: rows take the place of entries with the same keys, a row whose value is null deletes its key, and
        other keys stay. ``"overwrite"``: the bolt has the keys of these rows and no others. Maps and timers stay.
    schema : Mapping, optional
        As of ``StateView.to_arrow``: by default the bolt's ``stateSchema``; without either, columns ``key`` and
        ``value`` have JSON. Several fields are a tuple.
    groupingKey, progress : callable, optional
        As of `rescale`: what of a key is grouped by, where that can't be shown; is told how far it is.

    Returns
    -------
    Written
        How much was written, and how much there is now.

    Raises
    ------
    ConfigError
        An argument is wrong, the DataFrame lacks a column, two rows have one key, or a key or a value is none that the
        bolt can keep; nothing was changed.
    CheckpointError
        There is no such checkpoint or bolt, it has committed nothing yet, a transaction is under way, or nothing shows
        which task a key belongs to; nothing was changed. `StateError` if a disk is full.

    Contract
    --------
    * One record makes it so: after a crash all rows are there, or none.
    * A driver that runs on the checkpoint is fenced.
    * Sources stay where they are, and so do savepoints.
    * State in a server is written under a new name there. What was there is deleted by the next start's first sweep.

    Examples
    --------
    >>> writeState(counts, "checkpoints/word-count", "count", schema={"key": "word string", "value": "n long"})
    ...                                                                                     # doctest: +SKIP
    """
    if not isinstance(df, pa.Table) and (not isinstance(df, DataFrame) or df.isStreaming):
        raise ConfigError(f"writeState: give a DataFrame that is no stream, or a pyarrow.Table, got {df!r}")
    writer = state_writer(checkpointLocation, component, mode, schema, groupingKey, config, codec)
    if isinstance(df, pa.Table):
        return writer.write_table(df, progress)
    return _written(df, writer, progress)


def _written(df: DataFrame, writer: StateWriter, progress: Progress | None) -> Written:
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
            f"writeState: the rows can't be written, and nothing was changed: {last_line(str(error))}"
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
        return session.range(0, len(parts), 1, width).mapInArrow(_staged_staged_reader(tuple(parts)), to_ddl(schema))


def _session() -> SparkSession:
    try:
        return SparkSession.active()
    except PySparkRuntimeError as error:
        raise SinkError(
            "a sink of this topology hands its rows over as a DataFrame, and there is no SparkSession: build one "
            "before, with SparkSession.builder.master('local[1]').getOrCreate(); or give the topology a CollectSink in "
            "this test"
        ) from error


def _staged_staged_reader(
    parts: Sequence[Iterable[pa.RecordBatch]],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from parts[number]

    return read
