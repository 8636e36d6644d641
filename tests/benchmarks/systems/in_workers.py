"""What several systems run in Spark's workers, in a module which these import."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from statefx import BasicBolt, PartitionedTransactionalSpout, StatefulBolt

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


class Totals(StatefulBolt):
    """Adds up the payments of each account, a payment at a time."""

    outputFields = "account string, payment long, total long, due long"

    def initState(self, state: Any) -> None:
        self.totals = state

    def execute(self, tup: Any, collector: Any) -> None:
        total = self.totals.get(tup.account, 0) + tup.amount
        self.totals.put(tup.account, total)
        collector.emit((tup.account, tup.payment, total, tup.due))


class Forward(StatefulBolt):
    """A stateful stage with a consumer, for the cost of small transactions with several stages."""

    outputFields = "word string"

    def initState(self, state: Any) -> None:
        self.seen = state

    def execute(self, tup: Any, collector: Any) -> None:
        self.seen.put(tup.word, self.seen.get(tup.word, 0) + 1)
        collector.emit((tup.word,))


class Numbered(PartitionedTransactionalSpout):
    """Has two partitions, and so many transactions; the number of a transaction is its metadata."""

    outputFields = "word string"

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def numPartitions(self) -> int:
        return 2

    def planPartitionBatch(self, partition: int, lastMetadata: Any) -> Any:
        number = 1 if lastMetadata is None else lastMetadata + 1
        return number if number <= self.batches else None


class Tick(Numbered):
    """Emits a word from each partition in each transaction, after some work."""

    def __init__(self, batches: int, secs: float) -> None:
        super().__init__(batches)
        self.secs = secs

    def emitPartitionBatch(self, attempt: Any, collector: Any, partition: int, metadata: Any) -> None:
        compute(self.secs)
        collector.emit((f"word-{partition}",))


class Words(Numbered):
    """Emits `rows` words from each partition in each transaction, all `keys` of them in turn."""

    def __init__(self, batches: int, keys: int, rows: int = 1) -> None:
        super().__init__(batches)
        self.keys = keys
        self.rows = rows

    def emitPartitionBatch(self, attempt: Any, collector: Any, partition: int, metadata: Any) -> None:
        for number in range(metadata * self.rows, (metadata + 1) * self.rows):
            collector.emit((f"word-{(2 * number + partition) % self.keys}",))


class Many(PartitionedTransactionalSpout):
    """Has many partitions, of which one in `step` has something new in each transaction; four of them emit a word."""

    outputFields = "word string"

    def __init__(self, partitions: int, step: int, batches: int) -> None:
        self.partitions = partitions
        self.step = step
        self.batches = batches
        self.emitting = max(1, partitions // 4)

    def numPartitions(self) -> int:
        return self.partitions

    def planPartitionBatch(self, partition: int, lastMetadata: Any) -> Any:
        number = 1 if lastMetadata is None else lastMetadata["number"] + 1
        if lastMetadata is not None and (partition % self.step or number > self.batches):
            return None
        return {"number": number, "offset": 1000 * number}

    def emitPartitionBatch(self, attempt: Any, collector: Any, partition: int, metadata: Any) -> None:
        if partition % self.emitting == 0:
            collector.emit((f"word-{partition}",))


class Waits(BasicBolt):
    """Waits for something else in each transaction, as for an answer."""

    outputFields = "word string"

    def __init__(self, secs: float) -> None:
        self.secs = secs

    def execute(self, tup: Any, collector: Any) -> None:
        threading.Event().wait(self.secs)
        collector.emit((tup.word,))


class Busy(Count):
    """Counts, and computes in each transaction, in all tasks."""

    def __init__(self, secs: float) -> None:
        self.secs = secs

    def prePrepare(self, txid: int) -> None:
        compute(self.secs)


def compute(secs: float) -> None:
    """Use processor time; the same amount of it also where others use the processor meanwhile."""
    until = time.process_time() + secs
    while time.process_time() < until:
        pass


class Sum(Count):
    """Counts words that were added up by Arrow before they were sent, a sum at a time."""

    combinedFields = "word string, count long"

    def combineBatch(self, batch: pa.RecordBatch) -> pa.Table:
        sums = pa.Table.from_batches([batch]).group_by("word").aggregate([([], "count_all")])
        return sums.rename_columns(["word", "count"])

    def execute(self, tup: Any, collector: Any) -> None:
        count = self.counts.get(tup.word, 0) + tup["count"]
        self.counts.put(tup.word, count)
        collector.emit((tup.word, count))


class SumBatch(Sum):
    """Counts sums a batch at a time."""

    def executeBatch(self, batch: pa.RecordBatch, collector: Any) -> None:
        words, counts = (column.to_pylist() for column in batch.columns)
        before = self.counts.getAll(words)
        after = {word: before.get(word, 0) + more for word, more in zip(words, counts, strict=True)}
        self.counts.putAll(after)
        collector.emitBatch(pa.RecordBatch.from_pydict({"word": list(after), "count": list(after.values())}))


class SumByTuple(Count):
    """Counts words that were added up a tuple at a time."""

    combinedFields = Sum.combinedFields
    execute = Sum.execute

    def initCombine(self, tup: Any) -> tuple[str, int]:
        return tup.word, 1

    def combine(self, a: Any, b: Any) -> tuple[str, int]:
        return a.word, a.count + b.count


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
