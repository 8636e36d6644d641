"""What many partitions cost: nearly empty transactions of a spout with 2 partitions, and of one with many.

``few new``: four partitions have something new in each transaction. ``all new``: all have, so the metadata of all of
them is planned, written and sent to the tasks; rows come from four. The systems take turns in one process. The time of
a transaction is that from the commit before it to its own; ``start_ms`` is that from `submit` to the first commit.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial

from in_workers import Count, Many
from measuring import LIVING, RECOMMENDED, SLOTS, arguments, session, take_turns

from statefx import TopologyBuilder, submit

TASKS = 2
DROPPED = 3
"""Transactions of each turn that are left out: tasks unpack the topology, and workers start."""

parser = arguments(__doc__)
parser.add_argument("--partitions", type=int, default=10_000)
parser.add_argument("--turns", type=int, default=5)
args = parser.parse_args()
turns = min(args.turns, args.batches)
each = args.batches // turns
spark = session(RECOMMENDED | LIVING, SLOTS)
starts: dict[str, list[float]] = {}


def ran(name: str, partitions: int, step: int, turn: int) -> list[float]:
    """Run a turn; return the times of its transactions."""
    builder = TopologyBuilder("partitions")
    builder.setSpout("many", Many(partitions, step, DROPPED + each), parallelism=TASKS)
    builder.setBolt("count", Count(), parallelism=TASKS).fieldsGrouping("many", "word")
    began = time.time()
    query = submit(
        builder.createTopology(),
        spark,
        args.work / f"{name}-{turn}",
        config={"topology.state.provider": "rocksdb"},
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    committed = [datetime.fromisoformat(p["timestamp"]).timestamp() for p in query.recentProgress]
    if len(committed) != DROPPED + each:
        raise RuntimeError(f"{len(committed)} transactions")
    starts.setdefault(name, []).append(1000 * (committed[0] - began))
    return [1000 * (after - before) for before, after in itertools.pairwise(committed)][DROPPED - 1 :]


few = f"{args.partitions:,} partitions, few new"
every = f"{args.partitions:,} partitions, all new"
shapes = {"2 partitions": (2, 1), few: (args.partitions, args.partitions // 4), every: (args.partitions, 1)}
systems: dict[str, Callable[[int], list[float]]] = {
    name: partial(ran, name, partitions, step) for name, (partitions, step) in shapes.items()
}
take_turns(args, systems, turns, references=("2 partitions",), start_ms=starts)
spark.stop()
