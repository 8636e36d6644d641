"""What several systems run in Spark's workers, in a module which these import."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from statefx import StatefulBolt

ROWS = "target int, kind int, rows long, head binary, payload binary"
frozen = [0]


class Count(StatefulBolt):
    """Counts a word at a time."""

    outputFields = "word string, count long"

    def initState(self, state: Any) -> None:
        self.counts = state

    def execute(self, tup: Any, collector: Any) -> None:
        count = self.counts.get(tup.word, 0) + 1
        self.counts.put(tup.word, count)
        collector.emit((tup.word, count))


class Forward(StatefulBolt):
    """A stateful stage with a consumer, for the cost of small transactions with several stages."""

    outputFields = "word string"

    def initState(self, state: Any) -> None:
        self.seen = state

    def execute(self, tup: Any, collector: Any) -> None:
        self.seen.put(tup.word, self.seen.get(tup.word, 0) + 1)
        collector.emit((tup.word,))


def settle() -> None:
    """Spare the worker the collection that PySpark makes after each task, as statefx does."""
    if frozen[0] < 2:
        frozen[0] += 1
        gc.collect()
        gc.freeze()


def emit(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Send a row to each of two tasks."""
    for _ in batches:
        pass
    columns = ([0, 1], [0, 0], [1, 1], [b"", b""], [b"", b""])
    types = (pa.int32(), pa.int32(), pa.int64(), pa.binary(), pa.binary())
    arrays = [pa.array(column, type) for column, type in zip(columns, types, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, names=[field.split()[0] for field in ROWS.split(", ")])
    settle()


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on."""
    yield from batches
    settle()
