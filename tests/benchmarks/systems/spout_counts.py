"""Keyed count over files that a spout's tasks read, beside Spark's own groupBy().count() over the same files.

The systems take turns in one process: on a busy machine only figures of the same minute can be compared. Each turn has
a query and a checkpoint of its own, whose first transactions are left out. The time of a transaction is that from the
commit before it to its own, as it stands on disk.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from in_workers import Count, Sum, SumBatch, SumByTuple
from measuring import LIVING, RECOMMENDED, ROCKSDB, SLOTS, arguments, commit_times, session, take_turns, words

from statefx import Checkpoint, StatefulBolt, TopologyBuilder, submit
from statefx.connectors.files import FilePartitionedSpout

NATIVE, STREAM = "groupBy().count()", "setStream, tuple"
BOLTS: dict[str, type[StatefulBolt]] = {
    "spout, combineBatch, batch": SumBatch,
    "spout, combineBatch, tuple": Sum,
    "spout, combine, tuple": SumByTuple,
    "spout, tuple": Count,
}
DROPPED = 3
"""Transactions of each turn that are left out: tasks unpack the topology, and workers start."""

parser = arguments(__doc__)
parser.add_argument("--format", choices=["parquet", "csv", "json"], default="parquet")
parser.add_argument("--turns", type=int, default=4)
args = parser.parse_args()
turns = min(args.turns, args.batches)
each = args.batches // turns
spark = session(RECOMMENDED | ROCKSDB | LIVING, SLOTS)
source = args.work / "in"
source.mkdir()
for file in sorted(args.input.iterdir())[: args.files * (each + DROPPED)]:
    (source / file.name).hardlink_to(file)
args.input = source


def between(committed: Sequence[float]) -> list[float]:
    """Return the milliseconds of each transaction that counts."""
    if len(committed) != each + DROPPED:
        raise RuntimeError(f"expected {each + DROPPED} commits, got {len(committed)}")
    return [(after - before) * 1000 for before, after in itertools.pairwise(committed)][DROPPED - 1 :]


def native(turn: int) -> list[float]:
    """Run a turn of Spark's own count."""
    checkpoint = args.work / f"native-{turn}"
    counts = words(spark, args, args.format).groupBy("word").count()
    writer = counts.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    return between(commit_times(checkpoint, each + DROPPED))


def spout(builder: TopologyBuilder) -> None:
    """Let tasks read the files."""
    of = FilePartitionedSpout(source, args.format, "word string", header=False, maxFiles=args.files)
    builder.setSpout("words", of, parallelism=2)


def stream(builder: TopologyBuilder) -> None:
    """Let the JVM read the files."""
    builder.setStream("words", words(spark, args, args.format))


def ran(name: str, given: Callable[[TopologyBuilder], None], bolt: StatefulBolt, turn: int) -> list[float]:
    """Run a turn of a topology."""
    builder = TopologyBuilder("count")
    given(builder)
    builder.setBolt("count", bolt, parallelism=2).fieldsGrouping("words", "word")
    checkpoint: Path = args.work / f"{name}-{turn}"
    config = {"topology.state.provider": "rocksdb"}
    query = submit(builder.createTopology(), spark, checkpoint, config=config, trigger={"availableNow": True})
    query.awaitTermination()
    with Checkpoint(checkpoint).state("count") as counts:
        counted = sum(count for _, count in counts.items())
    if counted != args.rows * (each + DROPPED):
        raise RuntimeError(f"{counted} words counted")
    shutil.rmtree(checkpoint)
    progress = query.recentProgress
    spent[name] = {
        "ms": progress[-1]["durationMs"],
        "tasks": {component: progress[-1]["boltMs"].get(component) for component in ("words", "count")},
    }
    return between([datetime.fromisoformat(p["timestamp"]).timestamp() for p in progress])


spent: dict[str, object] = {}
systems: dict[str, Callable[[int], list[float]]] = {NATIVE: native}
systems |= {name: partial(ran, name, spout, bolt()) for name, bolt in BOLTS.items()}
if args.format == "parquet":
    systems[STREAM] = partial(ran, STREAM, stream, Count())
take_turns(args, systems, turns, references=(NATIVE, STREAM), format=args.format, spent=spent)
spark.stop()
