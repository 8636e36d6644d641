"""Keyed count by transformWithState with Row objects: a Python StatefulProcessor, RocksDB store, changelog."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from measuring import RECOMMENDED, ROCKSDB, arguments, commit_times, finish, session, throughput, words
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StringType, StructField, StructType


class WordCount(StatefulProcessor):
    """One ValueState a word, which holds its count."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", StructType([StructField("count", LongType())]))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        before = self.count.get()
        count = (before[0] if before is not None else 0) + sum(1 for _ in rows)
        self.count.update((count,))
        yield Row(word=key[0], count=count)

    def close(self) -> None:
        pass


args = arguments(__doc__).parse_args()
spark = session(RECOMMENDED | ROCKSDB)
checkpoint = args.work / "checkpoint"
counts = (
    words(spark, args)
    .groupBy("word")
    .transformWithState(
        statefulProcessor=WordCount(),
        outputStructType=StructType([StructField("word", StringType()), StructField("count", LongType())]),
        outputMode="Update",
        timeMode="None",
    )
)
query = (
    counts.writeStream.format("noop")
    .outputMode("update")
    .option("checkpointLocation", str(checkpoint))
    .trigger(availableNow=True)
    .start()
)
progress = finish(query, args)
committed = commit_times(checkpoint, args.warmup + args.batches)
throughput(args, committed, state_rows=progress[-1]["stateOperators"][0]["numRowsTotal"])
spark.stop()
