"""Sliding count: tuples of each key in ten minutes, every ten seconds, by statefx and by Spark over the same files.

A batch holds the rows of ten seconds, out of order by up to `LATENESS` seconds. What is emitted is compared with a
plain computation: how many windows, and a checksum of key, end and count of each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from measuring import LIVING, RECOMMENDED, ROCKSDB, SLOTS, arguments, commit_times, session, throughput
from pyspark.sql import DataFrame, Row, SparkSession, functions
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from statefx import Checkpoint, StatefulBolt, TopologyBuilder, TransactionalSpout, WindowedBolt, submit

BEGIN, SLIDE, LENGTH, LATENESS = 1_700_000_400, 10, 600, 5
MIX, PRIME = 1_000_003, 998_244_353
FIELDS = "key long, at timestamp"


def drawn(keys: int, rows: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys of a batch, and the times in microseconds since 1970."""
    random = np.random.default_rng([keys, rows, batch])
    whens = random.integers(0 if batch == 0 else -LATENESS * 1_000_000, SLIDE * 1_000_000, rows)
    whens[0] = SLIDE * 1_000_000 - 1  # the watermark is the same in all systems
    return random.integers(0, keys, rows), whens + (BEGIN + batch * SLIDE) * 1_000_000


def write(folder: Path, keys: int, rows: int, batches: int, files: int) -> None:
    """Write the input."""
    folder.mkdir()
    for batch in range(batches):
        columns = drawn(keys, rows, batch)
        for part in range(files):
            key, when = (column[part::files] for column in columns)
            path = folder / f"batch-{batch:05d}-{part}.parquet"
            pq.write_table(pa.table({"key": key, "at": pa.array(when, pa.timestamp("us", "UTC"))}), path)
            os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))


def checksum(key: Any, end: Any, count: Any) -> Any:
    """Return what stands for a window, of numbers or of Spark's columns; `end` in seconds."""
    return (key * MIX + end) % PRIME * count


def expected(keys: int, rows: int, batches: int) -> list[int]:
    """Return how many windows have ended at the last watermark, and their checksum."""
    counts = np.zeros((batches + 1, keys), np.int64)
    for batch in range(batches):
        key, when = drawn(keys, rows, batch)
        np.add.at(counts, (when // 1_000_000 // SLIDE - BEGIN // SLIDE, key), 1)
    windows = total = 0
    for slides in range(1, batches):  # the last one's end is beyond the watermark
        sums = counts[max(0, slides - LENGTH // SLIDE) : slides].sum(axis=0)
        there = np.nonzero(sums)[0]
        windows += len(there)
        total += int(checksum(there, BEGIN + slides * SLIDE, sums[there]).sum())
    return [windows, total]


class Rows(TransactionalSpout):
    """Emits the files of a batch, one by each task."""

    outputFields = FIELDS

    def __init__(self, folder: Path, batches: int) -> None:
        self.folder, self.batches = folder, batches

    def open(self, context: Any) -> None:
        self.part = context.task

    def initializeTransaction(self, txid: int, previous: Any) -> Any:
        return txid - 1 if txid <= self.batches else None

    def emitBatch(self, attempt: Any, metadata: Any, collector: Any) -> None:
        for batch in pq.read_table(self.folder / f"batch-{metadata:05d}-{self.part}.parquet").to_batches():
            collector.emitBatch(batch)


class Counts(WindowedBolt):
    """Counts tuple by tuple."""

    outputFields = "key long, end timestamp, count long"

    def initWindow(self) -> int:
        return 0

    def addToWindow(self, value: int, tup: Any) -> int:
        return value + 1

    def mergeWindows(self, a: int, b: int) -> int:
        return a + b

    def emitWindow(self, window: Any, value: int, collector: Any) -> None:
        collector.emit((window.key, window.end, value))


class CountsBatch(Counts):
    """Counts Arrow batches."""

    def executeBatch(self, batch: pa.RecordBatch) -> pa.Table:
        return pa.Table.from_batches([batch]).group_by(["key", "window"]).aggregate([([], "count_all")])


class Check(StatefulBolt):
    """Adds up what stands for the windows."""

    def initState(self, state: Any) -> None:
        self.sums = state

    def executeBatch(self, batch: pa.RecordBatch, collector: Any) -> None:
        ends = pc.divide(batch.column("end").cast(pa.int64()), 1_000_000)
        key, end, count = (np.asarray(each) for each in (batch.column("key"), ends, batch.column("count")))
        windows, total = self.sums.get("sums", (0, 0))
        self.sums.put("sums", (windows + batch.num_rows, total + int(checksum(key, end, count).sum())))


class Slides(StatefulProcessor):
    """The same by hand: the counts of a key's slides in a value state, and a timer for the next end."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        longs = ArrayType(LongType())
        fields = [StructField("end", LongType()), StructField("panes", longs), StructField("counts", longs)]
        self.held = handle.getValueState("held", StructType(fields))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        held = self.held.get()
        panes: dict[int, int] = {} if held is None else dict(zip(held[1], held[2], strict=True))
        for row in rows:
            pane = row.pane
            panes[pane] = panes.get(pane, 0) + 1
        end = min(panes) + SLIDE if held is None else min(held[0], max(panes) + SLIDE)
        passed = timerValues.getCurrentWatermarkInMs() // 1000
        first = next((pane + SLIDE for pane in sorted(panes) if pane + SLIDE > passed), end)
        end = min(end, first)
        if held is None or held[0] != end:
            if held is not None:
                self.handle.deleteTimer(held[0] * 1000)
            self.handle.registerTimer(end * 1000)
        self.held.update((end, list(panes), list(panes.values())))
        return iter(())

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: Any,
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Row]:
        end, starts, counts = self.held.get()
        panes = dict(zip(starts, counts, strict=True))
        passed = timerValues.getCurrentWatermarkInMs() // 1000
        while panes and end <= passed:
            count = sum(count for pane, count in panes.items() if pane < end)
            if count:
                yield Row(key=key[0], end=end, count=count)
            panes.pop(end - LENGTH, None)
            end += SLIDE
        if panes:
            self.held.update((end, list(panes), list(panes.values())))
            self.handle.registerTimer(end * 1000)
        else:
            self.held.clear()

    def close(self) -> None:
        pass


def by_hand(rows: DataFrame) -> DataFrame:
    """Return the counts of transformWithState; which slide a row is in, is Spark's to find out."""
    pane = (functions.unix_seconds("at") - functions.unix_seconds("at") % SLIDE).alias("pane")
    return (
        rows.select("key", "at", pane)
        .groupBy("key")
        .transformWithState(
            statefulProcessor=Slides(),
            outputStructType=StructType([StructField(name, LongType()) for name in ("key", "end", "count")]),
            outputMode="Append",
            timeMode="EventTime",
        )
    )


def native(rows: DataFrame) -> DataFrame:
    """Return the counts of Spark's own windows."""
    counts = rows.groupBy(
        "key", functions.window("at", f"{LENGTH} seconds", f"{SLIDE} seconds").alias("window")
    ).count()
    return counts.select("key", functions.unix_seconds("window.end").alias("end"), "count")


SPARK = {"transformWithState": by_hand, "native": native}
BOLTS = {"tuple": Counts, "batch": CountsBatch}


def by_spark(spark: SparkSession, args: Any, folder: Path) -> tuple[list[float], list[int]]:
    """Return when each batch was committed, and what stands for the windows."""
    rows = spark.readStream.schema(FIELDS).option("maxFilesPerTrigger", args.files).parquet(str(folder))
    counts = SPARK[args.system](rows.withWatermark("at", f"{LATENESS} seconds"))
    value = checksum(functions.col("key"), functions.col("end"), functions.col("count"))
    counts = counts.observe(
        "check", functions.count(functions.lit(1)).alias("windows"), functions.sum(value).alias("total")
    )
    checkpoint = args.work / "checkpoint"
    writer = counts.writeStream.format("noop").outputMode("append").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    seen = [progress.observedMetrics["check"] for progress in query.recentProgress if progress.observedMetrics]
    found = [sum(each["windows"] for each in seen), sum(each["total"] or 0 for each in seen)]
    return commit_times(checkpoint, args.warmup + args.batches), found


def by_statefx(spark: SparkSession, args: Any, folder: Path) -> tuple[list[float], list[int]]:
    """Return when each transaction was committed, and what stands for the windows."""
    builder = TopologyBuilder("sliding")
    spout = Rows(folder, args.warmup + args.batches)
    builder.setSpout("rows", spout, parallelism=args.files, timestamp="at", lateness=f"{LATENESS} seconds")
    bolt = BOLTS[args.system]().withWindow(f"{LENGTH} seconds", f"{SLIDE} seconds")
    builder.setBolt("counts", bolt, parallelism=2).fieldsGrouping("rows", "key")
    builder.setBolt("check", Check()).globalGrouping("counts")
    checkpoint = args.work / "checkpoint"
    config = {"topology.state.provider": args.provider}
    query = submit(builder.createTopology(), spark, checkpoint, config=config, trigger={"availableNow": True})
    query.awaitTermination()
    with Checkpoint(checkpoint).state("check") as sums:
        found = list(sums.get("sums", (0, 0)))
    return [datetime.fromisoformat(p["timestamp"]).timestamp() for p in query.recentProgress], found


def main() -> None:
    """Run a system, compare its windows, and print its result."""
    parser = arguments(__doc__)
    parser.add_argument("--system", choices=[*BOLTS, *SPARK], required=True)
    parser.add_argument("--provider", choices=["memory", "rocksdb"], default="rocksdb")
    args = parser.parse_args()
    folder, batches = args.work / "in", args.warmup + args.batches
    write(folder, args.keys, args.rows, batches, args.files)
    if args.system in SPARK:
        spark = session(RECOMMENDED | ROCKSDB | {"spark.sql.session.timeZone": "UTC"})
        committed, found = by_spark(spark, args, folder)
    else:
        spark = session(RECOMMENDED | LIVING, SLOTS)
        committed, found = by_statefx(spark, args, folder)
    wanted = expected(args.keys, args.rows, batches)
    if found != wanted:
        raise RuntimeError(f"windows and checksum are {found}, and not {wanted}")
    throughput(args, committed, windows=found[0])
    spark.stop()


if __name__ == "__main__":
    main()
