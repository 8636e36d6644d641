"""A small transaction whose checkpoint is in a folder, and one whose checkpoint is in S3 behind a network of 10 ms.

The pipelined engine, RocksDB, spout and count of four tasks each; both take turns in one process. A request to the
store takes 10 ms, the server's own time included, unless that takes longer on a busy machine. The time of a transaction
is that from the commit before it to its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import datetime

from in_workers import Count
from measuring import LIVING, RECOMMENDED, SLOTS, arguments, session, take_turns

from statefx import Checkpoint, TopologyBuilder, submit
from statefx.connectors import MemoryTransactionalSpout
from tests.storage.network import slow_s3
from tests.storage.s3_server import as_users_have_it

TASKS = 4
DROPPED = 3
"""Transactions of each turn that are left out: tasks unpack the topology, and workers start."""

REQUEST_SECS = 0.01

parser = arguments(__doc__)
parser.add_argument("--turns", type=int, default=5)
args = parser.parse_args()
each = args.warmup + args.batches


def ran(checkpoint: str) -> list[float]:
    """Run a turn; return the times of its transactions."""
    share = args.rows // TASKS
    rows = [[(f"word-{n % args.keys}",) for n in range(share * (each + DROPPED))] for _ in range(TASKS)]
    builder = TopologyBuilder("store")
    builder.setSpout("words", MemoryTransactionalSpout(rows, "word string", takePerBatch=share), parallelism=TASKS)
    builder.setBolt("count", Count(), parallelism=TASKS).fieldsGrouping("words", "word")
    config = {"topology.state.provider": "rocksdb"}
    query = submit(builder.createTopology(), spark, checkpoint, config=config, trigger={"availableNow": True})
    query.awaitTermination()
    with Checkpoint(checkpoint).state("count") as counts:
        counted = sum(count for _, count in counts.items())
    if counted != share * TASKS * (each + DROPPED):
        raise RuntimeError(f"{counted} words counted of {share * TASKS * (each + DROPPED)}")
    committed = [datetime.fromisoformat(p["timestamp"]).timestamp() * 1000 for p in query.recentProgress]
    return [after - before for before, after in itertools.pairwise(committed)][DROPPED - 1 :]


with slow_s3(REQUEST_SECS) as address, as_users_have_it(address) as made:
    spark = session(RECOMMENDED | LIVING, SLOTS)  # workers have the environment that there is when the JVM begins
    systems: dict[str, Callable[[int], list[float]]] = {
        "a folder": lambda turn: ran(str(args.work / f"turn-{turn}")),
        "S3, 10 ms a request": lambda turn: ran(made()),
    }
    take_turns(args, systems, args.turns, references=("a folder",))
    spark.stop()
