"""How long a pipelined topology takes from `submit` to its first commit, with the state that it finds.

Each start is a driver of its own, on the checkpoint that the one before has left: the Spark session is there, and Spark
has run nothing in it yet. A spout and three bolts, two tasks each; the last bolt has the keys. The machine's caches of
state are there, as after a driver that was restarted; ``--cold`` starts without them, as on another machine.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any

from in_workers import Count, Waits, Words
from measuring import LIVING, RECOMMENDED, SLOTS, arguments, processor_secs, session, tell

from statefx import TopologyBuilder, submit
from statefx.topology.graph import Topology

STARTS_MAX = 10
FILLS = 10
WAIT_SECS = 300


def topology(spout: Words) -> Topology:
    """Return the words counted, behind two bolts that do nothing."""
    builder = TopologyBuilder("start")
    builder.setSpout("words", spout, parallelism=2)
    builder.setBolt("first", Waits(0.0), parallelism=2).fieldsGrouping("words", "word")
    builder.setBolt("second", Waits(0.0), parallelism=2).fieldsGrouping("first", "word")
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("second", "word")
    return builder.createTopology()


def start(args: Any) -> None:
    """Start, commit what there is, and print how long the first commit has taken."""
    filling = args.start <= FILLS
    spark = session(RECOMMENDED | LIVING, SLOTS)
    spout = Words(FILLS, args.keys, max(1, args.keys // 2 // FILLS)) if filling else Words(args.start, args.keys)
    config = {"topology.state.provider": args.provider}
    before, began = processor_secs(), time.perf_counter()
    query = submit(topology(spout), spark, args.work / "checkpoint", config=config, trigger={"availableNow": True})
    submitted = time.perf_counter() - began
    while not query.lastProgress:
        if query.awaitTermination(0.005) and not query.lastProgress:
            raise RuntimeError("nothing was committed")
    took = {"ms": (time.perf_counter() - began) * 1000, "processor_secs": processor_secs() - before}
    query.awaitTermination()
    spark.stop()
    print(json.dumps({**took, "submit_ms": submitted * 1000}))


def main() -> None:
    """Fill the state, and measure starts."""
    parser = arguments(__doc__)
    parser.add_argument("--provider", choices=["rocksdb", "memory"], default="rocksdb")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--start", type=int, help="what a driver of its own is given: its number")
    args = parser.parse_args()
    if args.start is not None:
        start(args)
        return
    found = []
    own = args.work / "caches"  # of the state: they lie below the temporary folder
    for number in [FILLS, *range(FILLS + 1, FILLS + 1 + min(args.batches, STARTS_MAX))]:
        if args.cold or number == FILLS:
            shutil.rmtree(own, ignore_errors=True)
            own.mkdir()
        done = subprocess.run(
            [sys.executable, *sys.argv, "--start", str(number)],
            capture_output=True, text=True, timeout=WAIT_SECS, check=False, env={**os.environ, "TMPDIR": str(own)},
        )  # fmt: skip
        if done.returncode:
            raise ChildProcessError(done.stderr[-3000:])
        found.append(json.loads(done.stdout.strip().rpartition("\n")[2]))
    measured = [each["ms"] for each in found[1:]]
    tell(
        args,
        measure="latency",
        trigger_ms_median=statistics.median(measured),
        trigger_ms=measured,
        submit_ms=[each["submit_ms"] for each in found[1:]],
        processor_secs=[round(each["processor_secs"], 2) for each in found[1:]],
    )


if __name__ == "__main__":
    main()
