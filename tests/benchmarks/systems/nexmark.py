"""Queries in the spirit of Nexmark on windowed bolts, each compared with a plain computation of the same events."""

from datetime import datetime

from measuring import LIVING, RECOMMENDED, SLOTS, arguments, session, throughput
from nexmark_queries import expected, topology

from statefx import Checkpoint, submit

RATE = 10_000
"""Events that happen in a second."""

parser = arguments(__doc__)
parser.add_argument("--query", choices=["q5", "q7", "q8", "q11"], required=True)
args = parser.parse_args()
spark = session(RECOMMENDED | LIVING, SLOTS)
size = args.warmup + args.batches, args.rows, RATE
checkpoint = args.work / "checkpoint"
config = {"topology.state.provider": "rocksdb"}
query = submit(topology(args.query, *size), spark, checkpoint, config=config, trigger={"availableNow": True})
query.awaitTermination()
with Checkpoint(checkpoint).state("results") as results:
    found = dict(results.items())
if found != expected(args.query, *size):
    raise RuntimeError(f"{args.query} has found something else than a plain computation")
committed = [datetime.fromisoformat(p["timestamp"]).timestamp() for p in query.recentProgress]
throughput(args, committed[:-1], results=len(found))  # the last one ends all windows
spark.stop()
