"""Keyed count by statefx over files that its own tasks read: FilePartitionedSpout, rows hashed to two tasks in Python.

``--bolt tuple`` and ``batch`` are those of statefx_count.py, without a combiner. ``combined`` adds up by `combineBatch`
before rows are sent, and so do ``combined-batch``, whose bolt takes the sums as batches, and ``combined-tuple``, which
adds up by `combine`.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

import pyarrow as pa
from measuring import RECOMMENDED, arguments, session, throughput

from statefx import StatefulBolt, TopologyBuilder, openState, submit
from statefx.spouts import FilePartitionedSpout


class WordCount(StatefulBolt):
    """Counts a word at a time."""

    outputFields = "word string, count long"

    def initState(self, state: Any) -> None:
        self.counts = state

    def execute(self, tup: Any, collector: Any) -> None:
        count = self.counts.get(tup.word, 0) + 1
        self.counts.put(tup.word, count)
        collector.emit((tup.word, count))


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


class Combined(WordCount):
    """Adds up before rows are sent, by Arrow, and counts a sum at a time."""

    combinedFields = "word string, count long"

    def combineBatch(self, batch: pa.RecordBatch) -> pa.Table:
        sums = pa.Table.from_batches([batch]).group_by("word").aggregate([([], "count_all")])
        return sums.rename_columns(["word", "count"])

    def execute(self, tup: Any, collector: Any) -> None:
        count = self.counts.get(tup.word, 0) + tup["count"]
        self.counts.put(tup.word, count)
        collector.emit((tup.word, count))


class CombinedBatch(Combined):
    """Counts sums a batch at a time."""

    def executeBatch(self, batch: pa.RecordBatch, collector: Any) -> None:
        words, counts = (column.to_pylist() for column in batch.columns)
        before = self.counts.getAll(words)
        after = {word: before.get(word, 0) + more for word, more in zip(words, counts, strict=True)}
        self.counts.putAll(after)
        collector.emitBatch(pa.RecordBatch.from_pydict({"word": list(after), "count": list(after.values())}))


class CombinedTuple(WordCount):
    """Adds up before rows are sent, a tuple at a time."""

    combinedFields = Combined.combinedFields
    execute = Combined.execute

    def initCombine(self, tup: Any) -> tuple[str, int]:
        return tup.word, 1

    def combine(self, a: Any, b: Any) -> tuple[str, int]:
        return a.word, a[1] + b[1]


BOLTS = {
    "tuple": WordCount,
    "batch": WordCountBatch,
    "combined": Combined,
    "combined-batch": CombinedBatch,
    "combined-tuple": CombinedTuple,
}

parser = arguments(__doc__)
parser.add_argument("--format", choices=["parquet", "csv", "json"], default="parquet")
parser.add_argument("--bolt", choices=BOLTS, default="tuple")
parser.add_argument("--provider", choices=["memory", "rocksdb"], default="rocksdb")
args = parser.parse_args()

spark = session(RECOMMENDED)
builder = TopologyBuilder("count")
spout = FilePartitionedSpout(args.input, args.format, "word string", header=False, maxFiles=args.files)
builder.setSpout("words", spout, parallelism=2)
builder.setBolt("count", BOLTS[args.bolt](), parallelism=2).fieldsGrouping("words", "word")
checkpoint = args.work / "checkpoint"
config = {"topology.state.provider": args.provider}
query = submit(builder.createTopology(), spark, checkpoint, config=config, trigger={"availableNow": True})
query.awaitTermination()
with openState(checkpoint, "count") as counts:
    counted, keys = sum(count for _, count in counts.items()), len(counts)
if counted != args.rows * (args.warmup + args.batches):
    raise RuntimeError(f"{counted} words counted")
progress = query.recentProgress
committed = [datetime.fromisoformat(p["timestamp"]).timestamp() for p in progress]
spent = {name: progress[-1]["boltMs"][name] for name in ("words", "count")}
throughput(args, committed, state_rows=keys, bolt=args.bolt, format=args.format, provider=args.provider, spent=spent)
spark.stop()
