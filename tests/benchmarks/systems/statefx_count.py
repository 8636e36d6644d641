"""Keyed count by statefx: a StatefulBolt fed by the DataFrame itself, its rows hashed to two tasks by Spark."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

import pyarrow as pa
from in_workers import Count, Forward
from measuring import LIVING, RECOMMENDED, SLOTS, arguments, latency, session, throughput, words

from statefx import BatchBolt, Checkpoint, StatefulBolt, TopologyBuilder, submit


class WordCountBatch(StatefulBolt):
    """Counts an Arrow batch at a time."""

    outputFields = "word string, count long"

    def initState(self, state: Any) -> None:
        self.counts = state

    def executeBatch(self, batch: pa.RecordBatch, collector: Any) -> None:
        grown = Counter(batch.column(0).to_pylist())
        before = self.counts.getAll(grown)
        after = {word: before.get(word, 0) + more for word, more in grown.items()}
        self.counts.putAll(after)
        collector.emitBatch(pa.RecordBatch.from_pydict({"word": list(after), "count": list(after.values())}))


class Combine(BatchBolt):
    """Adds up what its own task sees, before anything is sent."""

    outputFields = "word string, count long"

    def open(self, context: Any) -> None:
        self.seen: list[pa.RecordBatch] = []

    def executeBatch(self, batch: pa.RecordBatch, collector: Any) -> None:
        self.seen.append(batch)

    def finishBatch(self, collector: Any) -> None:
        seen, self.seen = self.seen, []
        if seen:
            grown = pa.Table.from_batches(seen).group_by("word").aggregate([([], "count_all")])
            for part in grown.rename_columns(["word", "count"]).to_batches():
                collector.emitBatch(part)


class Sum(StatefulBolt):
    """Adds up what was combined."""

    outputFields = "word string, count long"

    def initState(self, state: Any) -> None:
        self.counts = state

    def execute(self, tup: Any, collector: Any) -> None:
        count = self.counts.get(tup.word, 0) + tup["count"]
        self.counts.put(tup.word, count)
        collector.emit((tup.word, count))


parser = arguments(__doc__)
parser.add_argument("--bolt", choices=["tuple", "batch", "combined"], default="tuple")
parser.add_argument("--provider", choices=["memory", "rocksdb"], default="rocksdb")
parser.add_argument("--measure", choices=["throughput", "latency"], default="throughput")
parser.add_argument("--stages", type=int, default=1, help="levels of bolts")
parser.add_argument("--session", choices=["default", "recommended"], default="recommended")
args = parser.parse_args()

spark = session(RECOMMENDED | LIVING if args.session == "recommended" else {}, SLOTS)
builder = TopologyBuilder("count")
builder.setStream("words", words(spark, args))
source = "words"
for level in range(1, args.stages):
    builder.setBolt(f"forward{level}", Forward(), parallelism=2).fieldsGrouping(source, "word")
    source = f"forward{level}"
if args.bolt == "combined":
    builder.setBolt("combine", Combine(), parallelism=2).localOrShuffleGrouping(source)
    source = "combine"
bolt = {"tuple": Count, "batch": WordCountBatch, "combined": Sum}[args.bolt]()
builder.setBolt("count", bolt, parallelism=2).fieldsGrouping(source, "word")
checkpoint = args.work / "checkpoint"
query = submit(
    builder.createTopology(),
    spark,
    checkpoint,
    config={"topology.state.provider": args.provider},
    trigger={"availableNow": True},
)
streaming = spark.streams.active[0] if spark.streams.active else None
query.awaitTermination()
with Checkpoint(checkpoint).state("count") as counts:
    counted, keys = sum(count for _, count in counts.items()), len(counts)
if counted != args.rows * (args.warmup + args.batches):
    raise RuntimeError(f"{counted} words counted")
if args.measure == "throughput":
    committed = [datetime.fromisoformat(p["timestamp"]).timestamp() for p in query.recentProgress]
    throughput(args, committed, state_rows=keys, bolt=args.bolt, provider=args.provider)
else:
    if streaming is None:
        raise RuntimeError("the query had ended before its progress could be taken")
    trigger_ms = [p["durationMs"]["triggerExecution"] for p in streaming.recentProgress if p["numInputRows"]]
    latency(args, trigger_ms, stages=args.stages, provider=args.provider)
spark.stop()
