"""Rows into Parquet files by statefx: through a FileSink, or by a last bolt that writes the same files and no more.

The bolt knows no transaction: what it writes is there twice when an attempt is repeated, and half when one fails. Files
are made durable in both, and both are given the same rows by the same bolt in the same number of tasks.
"""

from __future__ import annotations

import os
import statistics
import uuid
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from measuring import LIVING, RECOMMENDED, SLOTS, arguments, session, throughput, words

from statefx import BasicBolt, BatchBolt, TopologyBuilder, submit
from statefx.connectors.files import FileSink, committedFiles


class Measure(BasicBolt):
    """Adds the length of each word."""

    outputFields = "word string, length int"

    def executeBatch(self, batch: pa.RecordBatch, collector: Any) -> None:
        word = batch.column(0)
        collector.emitBatch(pa.RecordBatch.from_arrays([word, pc.utf8_length(word)], names=["word", "length"]))


class Write(BatchBolt):
    """Writes a file for each transaction."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def open(self, context: Any) -> None:
        self.batches: list[pa.RecordBatch] = []

    def executeBatch(self, batch: pa.RecordBatch, collector: Any) -> None:
        self.batches.append(batch)

    def finishBatch(self, collector: Any) -> None:
        batches, self.batches = self.batches, []
        if not batches:
            return
        table = pa.Table.from_batches(batches)
        with open(os.path.join(self.folder, f"{uuid.uuid4().hex}.snappy.parquet"), "xb") as file:
            with pq.ParquetWriter(file, table.schema, compression="snappy") as writer:
                writer.write_table(table)
            file.flush()
            os.fsync(file.fileno())


parser = arguments(__doc__)
parser.add_argument("--by", choices=["sink", "bolt"], required=True)
args = parser.parse_args()
spark = session(RECOMMENDED | LIVING, SLOTS)
out = args.work / "out"
builder = TopologyBuilder("files")
builder.setStream("words", words(spark, args))
builder.setBolt("measure", Measure(), parallelism=2).localOrShuffleGrouping("words")
if args.by == "sink":
    builder.setSink("write", FileSink(out), parallelism=2).localOrShuffleGrouping("measure")
else:
    out.mkdir()
    builder.setBolt("write", Write(str(out)), parallelism=2).localOrShuffleGrouping("measure")
query = submit(builder.createTopology(), spark, args.work / "checkpoint", trigger={"availableNow": True})
query.awaitTermination()
committed = [datetime.fromisoformat(p["timestamp"]).timestamp() for p in query.recentProgress]
files = committedFiles(out) if args.by == "sink" else [str(path) for path in out.iterdir()]
rows = sum(pq.read_metadata(file).num_rows for file in files)
if rows != args.rows * (args.warmup + args.batches):
    raise RuntimeError(f"{rows} rows written")
phases = [progress["durationMs"] for progress in query.recentProgress[args.warmup :]]
throughput(
    args,
    committed,
    files=len(files),
    bytes=sum(os.path.getsize(file) for file in files),
    phases_ms={name: statistics.median(each.get(name, 0) for each in phases) for name in phases[-1]},
)
spark.stop()
