"""Rows that wait in the checkpoint, as a DataFrame: executors read them, not the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession

from statefx.errors import SinkError
from statefx.operators.schema import to_ddl
from statefx.spark.internals import worker_program


def frame_of(session: SparkSession | None, schema: pa.Schema, parts: Sequence[Iterable[pa.RecordBatch]]) -> DataFrame:
    """Return a DataFrame with one partition for each part; every use of it reads them again.

    Parts are picklable. Without a session, that of this process is used.

    Raises
    ------
    SinkError
        There is no session.
    """
    session = session or _session()
    with worker_program(session.sparkContext):
        width = max(1, len(parts))
        return session.range(0, len(parts), 1, width).mapInArrow(_reader(tuple(parts)), to_ddl(schema))


def _session() -> SparkSession:
    try:
        return SparkSession.active()
    except PySparkRuntimeError as error:
        raise SinkError(
            "a sink of this topology hands its rows over as a DataFrame, and there is no SparkSession: build one "
            "before, with SparkSession.builder.master('local[1]').getOrCreate(); or give the topology a CollectSink in "
            "this test"
        ) from error


def _reader(
    parts: Sequence[Iterable[pa.RecordBatch]],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from parts[number]

    return read
