"""Transactions of a spout, several in flight or one after the other: the same topology, in turns in one process.

Two shapes. ``waits``: in each transaction a bolt before the first one with state waits for 200 ms, as for a service, on
8 cores. ``works``: spout and stateful bolt compute, 0.4 s in each task, on 2 cores, so that nothing can be won by it,
and something may be lost.

The time of a transaction is that from the commit before it to its own, on average over a turn: commits come in bunches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from in_workers import Busy, Count, Tick, Waits
from measuring import LIVING, RECOMMENDED, SLOTS, arguments, mean_ms, session, take_turns

from statefx import Checkpoint, TopologyBuilder, submit

DROPPED = 6
"""Transactions of each turn that are left out: tasks unpack the topology, workers start, and the pipeline fills."""

parser = arguments(__doc__)
parser.add_argument("--shape", choices=["waits", "works"], required=True)
parser.add_argument("--mode", choices=["FIFO", "FAIR"], default="FIFO", help="spark.scheduler.mode")
parser.add_argument("--pending", type=int, nargs="+", default=[1, 4])
parser.add_argument("--turns", type=int, default=3)
args = parser.parse_args()
each = args.batches // args.turns
waits = args.shape == "waits"
tasks = 2

spark = session({**RECOMMENDED, **LIVING, "spark.scheduler.mode": args.mode}, SLOTS)


def topology() -> TopologyBuilder:
    """Return what all of them run."""
    builder = TopologyBuilder("pipelining")
    builder.setSpout("ticks", Tick(DROPPED + each, 0.0 if waits else 0.4), parallelism=tasks)
    source = "ticks"
    if waits:
        builder.setBolt("waits", Waits(0.2), parallelism=tasks).localOrShuffleGrouping(source)
        source = "waits"
    builder.setBolt("count", Count() if waits else Busy(0.4), parallelism=tasks).fieldsGrouping(source, "word")
    return builder


def ran(pending: int, turn: int) -> list[float]:
    """Run a turn with so many in flight; return the mean time of its transactions."""
    checkpoint = args.work / f"{pending}-{turn}"
    config = {"topology.max.spout.pending": pending, "topology.state.provider": "rocksdb"}
    query = submit(topology().createTopology(), spark, checkpoint, config=config, trigger={"availableNow": True})
    query.awaitTermination()
    with Checkpoint(checkpoint).state("count") as counts:
        counted = sum(count for _, count in counts.items())
    if counted != tasks * (DROPPED + each):
        raise RuntimeError(f"{counted} words counted")
    return [mean_ms(query.recentProgress, DROPPED)]


systems: dict[str, Callable[[int], list[float]]] = {
    f"{pending} in flight": partial(ran, pending) for pending in args.pending
}
take_turns(args, systems, args.turns, references=(f"{args.pending[0]} in flight",), shape=args.shape, mode=args.mode)
spark.stop()
