"""Input in event time: files that hold a minute each, read by Spark or by a spout, and what is measured over them."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measuring import commit_times
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from statefx import BatchBolt, Checkpoint, Stateful, Topology, TransactionalSpout, submit

BEGIN = datetime(2026, 5, 1, tzinfo=UTC)
TASKS = 2


def at_of(minute: int, random: np.random.Generator, rows: int) -> pa.Array:
    """Return times in a minute, in whole milliseconds."""
    micros = random.integers(0, 60_000, rows) * 1000 + minute * 60_000_000
    return pa.array(micros + int(BEGIN.timestamp()) * 1_000_000, pa.timestamp("us", tz="UTC"))


def write(folder: Path, minute: int, table: pa.Table) -> None:
    """Write a minute, a file for each task; Spark takes the oldest files first."""
    folder.mkdir(exist_ok=True)
    for task in range(TASKS):
        path = folder / f"minute-{minute:05d}-{task}"
        pq.write_table(table.slice(task * len(table) // TASKS, len(table) // TASKS), path)
        os.utime(path, (1_700_000_000 + minute, 1_700_000_000 + minute))


def frame(spark: SparkSession, folder: Path, fields: str) -> DataFrame:
    """Return the files as a stream, a minute in a batch."""
    return spark.readStream.schema(fields).option("maxFilesPerTrigger", TASKS).parquet(str(folder))


class Minutes(TransactionalSpout):
    """Reads a minute in each transaction, each task its file."""

    def __init__(self, folder: Path, fields: str, minutes: int) -> None:
        self.folder, self.outputFields, self.minutes = folder, fields, minutes

    def open(self, context: Any) -> None:
        self.task = context.task

    def initializeTransaction(self, txid: int, previous: Any) -> Any:
        minute = 0 if previous is None else previous["minute"] + 1
        return {"minute": minute} if minute < self.minutes else None

    def emitBatch(self, attempt: Any, metadata: Any, collector: Any) -> None:
        collector.emitBatch(pq.read_table(self.folder / f"minute-{metadata['minute']:05d}-{self.task}"))


class Rows(Stateful, BatchBolt):
    """Counts what comes out."""

    def initState(self, state: Any) -> None:
        self.state = state

    def executeBatch(self, batch: pa.RecordBatch, collector: Any) -> None:
        self.state.put("rows", self.state.get("rows", 0) + batch.num_rows)


def between(committed: Sequence[float], minutes: int, dropped: int) -> list[float]:
    """Return the milliseconds of each transaction that counts."""
    if len(committed) < minutes:
        raise RuntimeError(f"expected {minutes} commits, got {len(committed)}")
    return [(after - before) * 1000 for before, after in itertools.pairwise(committed[:minutes])][dropped - 1 :]


def of_spark(out: DataFrame, checkpoint: Path, minutes: int) -> tuple[int, list[float]]:
    """Run a query of Spark's; return how many rows came out, and when each minute was committed."""
    counted = out.observe("out", sf.count(sf.lit(1)).alias("rows"))
    writer = counted.writeStream.format("noop").outputMode("append").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    rows = sum(progress.observedMetrics["out"]["rows"] for progress in query.recentProgress if progress.observedMetrics)
    committed = commit_times(checkpoint, minutes)
    shutil.rmtree(checkpoint)
    return rows, committed


def of_statefx(topology: Topology, spark: SparkSession, checkpoint: Path) -> tuple[int, list[float]]:
    """Run a topology whose bolt `rows` counts what comes out; return the same."""
    config = {"topology.state.provider": "rocksdb"}
    query = submit(topology, spark, checkpoint, config=config, trigger={"availableNow": True})
    query.awaitTermination()
    with Checkpoint(checkpoint).state("rows", byTask=True) as counts:
        rows = sum(dict(counts.items()).values())
    shutil.rmtree(checkpoint)
    return rows, [datetime.fromisoformat(p["timestamp"]).timestamp() for p in query.recentProgress]
