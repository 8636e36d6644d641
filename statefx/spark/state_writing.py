"""A DataFrame as state: rows are encoded and sorted by the executors, and written by the driver."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from statefx.admin.reading import Progress
from statefx.admin.routing import GroupingKey
from statefx.admin.state_writing import Encoded, Encoder, StateWriter, Written, state_writer
from statefx.errors import ConfigError
from statefx.spark.executors import with_open_workers
from statefx.spark.failures import last_line
from statefx.spark.internals import worker_program
from statefx.state import Codec

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
            frames = parts.mapInArrow(_frame, "data binary")
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


def _frame(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
