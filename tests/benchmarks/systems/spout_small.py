"""A nearly empty transaction of a spout beside a streaming DataFrame's, and beside the floor of Spark jobs.

All have the same bolts. They take turns in one process: on a busy machine only figures of the same minute can be
compared. Each turn has a query of its own, whose first transactions are left out. The time of a transaction is that
from the commit before it to its own.

The floor is a bare loop of Spark jobs: stages and tasks are those of the spout's transaction, their functions do
nothing, and nothing is kept or checked.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from datetime import datetime

from in_workers import ROWS, Count, Forward, emit, identity
from measuring import LIVING, RECOMMENDED, SLOTS, arguments, session, take_turns

from statefx import Checkpoint, TopologyBuilder, submit
from statefx.connectors import MemoryTransactionalSpout

TASKS = 2
DROPPED = 3
"""Transactions of each turn that are left out: tasks unpack the topology, and workers start."""

parser = arguments(__doc__)
parser.add_argument("--stages", type=int, required=True, help="levels of bolts")
parser.add_argument("--turns", type=int, default=5)
args = parser.parse_args()
turns = min(args.turns, (args.warmup + args.batches) // (DROPPED + 2))  # each turn of the stream reads files of its own
each = (args.warmup + args.batches) // turns - DROPPED
files = sorted(args.input.iterdir())
spark = session(RECOMMENDED | LIVING, SLOTS)
spark.conf.set("spark.sql.adaptive.enabled", "false")


def bolts(builder: TopologyBuilder, source: str) -> TopologyBuilder:
    """Put the bolts behind `source`."""
    for level in range(1, args.stages):
        builder.setBolt(f"forward{level}", Forward(), parallelism=TASKS).fieldsGrouping(source, "word")
        source = f"forward{level}"
    builder.setBolt("count", Count(), parallelism=TASKS).fieldsGrouping(source, "word")
    return builder


def ran(builder: TopologyBuilder, system: str, turn: int) -> list[float]:
    """Run a turn of a topology; return the times of its transactions."""
    checkpoint = args.work / f"{system}-{turn}"
    query = submit(
        bolts(builder, "words").createTopology(),
        spark,
        checkpoint,
        config={"topology.state.provider": "rocksdb"},
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    with Checkpoint(checkpoint).state("count") as counts:
        counted = sum(count for _, count in counts.items())
    if counted != args.rows * (each + DROPPED):
        raise RuntimeError(f"{counted} words counted of {args.rows * (each + DROPPED)}")
    committed = [datetime.fromisoformat(p["timestamp"]).timestamp() * 1000 for p in query.recentProgress]
    return [after - before for before, after in itertools.pairwise(committed)][DROPPED - 1 :]


def stream(turn: int) -> list[float]:
    """Run a turn of the streaming DataFrame."""
    folder = args.work / f"in-{turn}"
    folder.mkdir()
    size = args.files * (each + DROPPED)
    for file in files[turn * size : (turn + 1) * size]:
        (folder / file.name).hardlink_to(file)
    words = spark.readStream.schema("word string").option("maxFilesPerTrigger", args.files).parquet(str(folder))
    builder = TopologyBuilder("stream")
    builder.setStream("words", words)
    return ran(builder, "stream", turn)


def spout(turn: int) -> list[float]:
    """Run a turn of the spout."""
    share = args.rows // TASKS
    rows = [[(f"word-{n % args.keys}",) for n in range(share * (each + DROPPED))] for _ in range(TASKS)]
    builder = TopologyBuilder("spout")
    builder.setSpout("words", MemoryTransactionalSpout(rows, "word string", takePerBatch=share), parallelism=TASKS)
    return ran(builder, "spout", turn)


chain = spark.range(0, TASKS, 1, TASKS).mapInArrow(emit, ROWS)
for _ in range(args.stages):
    chain = chain.repartitionById(TASKS, "target").mapInArrow(identity, ROWS)


def floor(turn: int) -> list[float]:
    """Run a turn of the bare loop."""
    times = []
    for _ in range(each + DROPPED):
        began = time.perf_counter()
        chain.alias("again").collect()  # without an alias, Spark would run the last stage alone
        times.append((time.perf_counter() - began) * 1000)
    return times[DROPPED:]


systems: dict[str, Callable[[int], list[float]]] = {
    "streaming DataFrame": stream,
    "spout": spout,
    "bare loop": floor,
}
take_turns(args, systems, turns, references=("streaming DataFrame", "bare loop"), stages=args.stages)
spark.stop()
