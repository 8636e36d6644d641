"""From one tuple at a time to pipelined batches: what each step of docs/how-to/faster.md brings.

Spout and bolts are those of the page. The steps take turns in one process: on a busy machine only figures of the same
minute can be compared. Each turn has a query of its own, whose first transactions are left out. The time of a
transaction is that from the commit before it to its own, on average over a turn: with several in flight, commits come
in bunches. Each stage has two tasks; there are eight cores, so that four waiting transactions can be in flight.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from measuring import LIVING, RECOMMENDED, SLOTS, arguments, mean_ms, session, take_turns

from statefx import BatchBolt, Checkpoint, StatefulBolt, TopologyBuilder, TransactionalSpout, submit

TASKS = 2
DROPPED = 6
"""Transactions of each turn that are left out: tasks unpack the topology, workers start, and the pipeline fills."""
WAIT_SECS = 0.2


class Words(TransactionalSpout):
    """Emits so many words in each transaction, a tuple at a time."""

    outputFields = "word string"

    def __init__(self, take: int, transactions: int, keys: int) -> None:
        self.take = take
        self.transactions = transactions
        self.keys = keys

    def open(self, context: Any) -> None:
        self.context = context
        self.vocabulary = pa.array([f"word-{number}" for number in range(self.keys)])

    def initializeTransaction(self, txid: int, previous: Any) -> Any:
        start = 0 if previous is None else previous["stop"]
        return {"start": start, "stop": start + self.take} if txid <= self.transactions else None

    def read(self, metadata: Any) -> pa.Array:
        """Return the share of this task."""
        numbers = np.arange(metadata["start"] + self.context.task, metadata["stop"], self.context.parallelism)
        return self.vocabulary.take(pa.array(numbers % self.keys))

    def emitBatch(self, attempt: Any, metadata: Any, collector: Any) -> None:
        for word in self.read(metadata).to_pylist():
            collector.emit((word,))


class ArrowWords(Words):
    """Emits the same words as Arrow batches."""

    def emitBatch(self, attempt: Any, metadata: Any, collector: Any) -> None:
        collector.emitBatch(pa.RecordBatch.from_arrays([self.read(metadata)], ["word"]))


class Count(StatefulBolt):
    """Counts a tuple at a time."""

    def initState(self, state: Any) -> None:
        self.counts = state

    def execute(self, tup: Any, collector: Any) -> None:
        self.counts.put(tup.word, self.counts.get(tup.word, 0) + 1)


class CountBatch(Count):
    """Counts an Arrow batch at a time."""

    def executeBatch(self, batch: pa.RecordBatch, collector: Any) -> None:
        found = batch.column("word").value_counts()
        self.add(found.field("values").to_pylist(), found.field("counts").to_pylist())

    def add(self, words: list[str], times: list[int]) -> None:
        """Add to the counts."""
        known = self.counts.getAll(words)
        self.counts.putAll({word: known.get(word, 0) + more for word, more in zip(words, times, strict=True)})


class CountSums(CountBatch):
    """Has its words counted by the tasks that emit them, and adds up."""

    combinedFields = "word string, times long"

    def combineBatch(self, batch: pa.RecordBatch) -> pa.Table:
        sums = pa.Table.from_batches([batch]).group_by("word").aggregate([([], "count_all")])
        return sums.rename_columns(["word", "times"])

    def executeBatch(self, batch: pa.RecordBatch, collector: Any) -> None:
        self.add(batch.column("word").to_pylist(), batch.column("times").to_pylist())


class Ask(BatchBolt):
    """Asks a service, once for all words of its task, which takes a while."""

    outputFields = "word string"

    def __init__(self) -> None:
        self.words: list[str] = []

    def execute(self, tup: Any, collector: Any) -> None:
        self.words.append(tup.word)

    def finishBatch(self, collector: Any) -> None:
        threading.Event().wait(WAIT_SECS)
        for word in self.words:
            collector.emit((word,))


@dataclass(frozen=True)
class Step:
    """What a step runs."""

    take: int
    spout: Callable[..., Words] = Words
    count: Callable[[], Count] = Count
    asks: bool = False
    pending: int = 1


parser = arguments(__doc__)
parser.add_argument("--turns", type=int, default=4)
args = parser.parse_args()
each = max(1, args.batches // args.turns)
some = min(10_000, args.rows)
spark = session(RECOMMENDED | LIVING, SLOTS)
steps: Mapping[str, Step] = {
    "1 row": Step(1),
    "100 rows": Step(100),
    f"{some:,} rows": Step(some),
    f"{args.rows:,} rows": Step(args.rows),
    f"{some:,} rows, waits, pending 1": Step(some, asks=True),
    f"{some:,} rows, waits, pending 4": Step(some, asks=True, pending=4),
    f"{args.rows:,} rows, emitBatch": Step(args.rows, ArrowWords),
    f"{args.rows:,} rows, executeBatch": Step(args.rows, ArrowWords, CountBatch),
    f"{args.rows:,} rows, combineBatch": Step(args.rows, ArrowWords, CountSums),
}


def ran(name: str, step: Step, turn: int) -> list[float]:
    """Run a turn of a step; return the mean time of its transactions."""
    builder = TopologyBuilder("steps")
    builder.setSpout("words", step.spout(step.take, DROPPED + each, args.keys), parallelism=TASKS)
    source = "words"
    if step.asks:
        builder.setBolt("ask", Ask(), parallelism=TASKS).localOrShuffleGrouping(source)
        source = "ask"
    builder.setBolt("count", step.count(), parallelism=TASKS).fieldsGrouping(source, "word")
    checkpoint = args.work / f"{name}-{turn}"
    config = {"topology.max.spout.pending": step.pending, "topology.state.provider": "rocksdb"}
    query = submit(builder.createTopology(), spark, checkpoint, config=config, trigger={"availableNow": True})
    query.awaitTermination()
    with Checkpoint(checkpoint).state("count") as counts:
        counted = sum(count for _, count in counts.items())
    if counted != step.take * (DROPPED + each):
        raise RuntimeError(f"{counted} words counted")
    shutil.rmtree(checkpoint)
    return [mean_ms(query.recentProgress, DROPPED)]


systems: dict[str, Callable[[int], list[float]]] = {name: partial(ran, name, step) for name, step in steps.items()}
rows = {name: step.take for name, step in steps.items()}
take_turns(args, systems, args.turns, references=("1 row",), rows_of=rows)
spark.stop()
