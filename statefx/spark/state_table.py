"""Committed state as a DataFrame: one partition for each task, read where the partition is.

What its filters leave out is not read. Spark has an interface for that, `DataSourceReader.pushFilters`, but Spark 4.3
keeps one answer for all uses of a source that was loaded once: where a frame is filtered in two ways in one query, or
filtered and later read as a whole, rows are missing. So the frame looks at its filters itself, and puts one that reads
less in its place; Spark still filters the rows.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from statefx.admin.narrowing import narrowed
from statefx.admin.state_table import At, StateTable, state_table
from statefx.errors import CheckpointError
from statefx.operators.schema import to_ddl
from statefx.spark.conditions import comparisons
from statefx.spark.internals import WatchedFrame, condition_upon_map, mapped_otherwise, worker_program
from statefx.spark.preflight import unseen
from statefx.spark.session import check_session
from statefx.state import Codec
from statefx.storage import is_remote


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
    """Return `frame`, which shows rows of `table`, as one whose filters say what of the table is read."""

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
