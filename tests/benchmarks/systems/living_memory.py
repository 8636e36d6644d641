"""What a run keeps of its transactions: memory, threads and open files of a pipelined topology, the longer it lives.

A spout, a bolt that passes words on and a bolt that counts them, two tasks each, run nearly empty transactions one
after the other, as fast as they go. Each `--every` transactions everything is written down: resident memory of Spark's
Python workers, of the driver and of the JVM, the JVM's heap behind a full collection, threads, open files, and how many
objects of each type Python's collector follows in the workers and in the driver.

The result is bytes for each transaction, as a line through all samples but the first tenth, when caches fill. The table
of all samples stands on standard error; ``--transactions 100000`` gives that of a whole day at a transaction a second.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from in_workers import Forward, Words
from measuring import LIVING, RECOMMENDED, arguments, processes_below, session, tell

from statefx import StatefulBolt, TopologyBuilder, submit

SAMPLES = 20
LOOK_SECS = 0.02


class Weighed(StatefulBolt):
    """Counts words, and writes down now and then what its process holds."""

    outputFields = "word string"

    def __init__(self, every: int, folder: str) -> None:
        self.every, self.folder = every, folder

    def open(self, context: Any) -> None:
        self.task = context.task

    def initState(self, state: Any) -> None:
        self.counts = state

    def execute(self, tup: Any, collector: Any) -> None:
        self.counts.put(tup.word, self.counts.get(tup.word, 0) + 1)

    def prePrepare(self, txid: int) -> None:
        if txid % self.every == 0 and self.task == 0:
            Path(self.folder, f"{txid}.json").write_text(json.dumps(objects()), encoding="utf-8")


def objects() -> dict[str, int]:
    """Return how many objects there are of each type that the collector follows, and Arrow's bytes."""
    gc.collect()
    found = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    return {**dict(found.most_common(200)), "arrow bytes": pa.total_allocated_bytes()}


def of_process(pid: int) -> dict[str, int]:
    """Return resident megabytes times 1000, threads and open files of a process."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    return {
        "rss": int(fields.get("VmRSS", ["0"])[0]) * 1024,  # none of a process that has just ended
        "threads": int(fields["Threads"][0]),
        "files": len(os.listdir(f"/proc/{pid}/fd")),
    }


def main() -> None:
    """Run it and print what grew."""
    parser = arguments(__doc__)
    parser.add_argument("--transactions", type=int, required=True)
    parser.add_argument("--every", type=int, help="transactions between two samples (a twentieth of all)")
    parser.add_argument("--provider", choices=["rocksdb", "memory"], default="rocksdb")
    args = parser.parse_args()
    every = args.every or max(1, args.transactions // SAMPLES)
    spark = session(RECOMMENDED | LIVING | {"spark.driver.memory": "1g"}, "local[8]")
    (args.work / "objects").mkdir()
    builder = TopologyBuilder("memory")
    builder.setSpout("words", Words(args.transactions, args.keys), parallelism=2)
    builder.setBolt("forward", Forward(), parallelism=2).fieldsGrouping("words", "word")
    weighed = Weighed(every, str(args.work / "objects"))
    builder.setBolt("count", weighed, parallelism=2).fieldsGrouping("forward", "word")
    config = {"topology.state.provider": args.provider}
    began = time.monotonic()
    query = submit(
        builder.createTopology(), spark, args.work / "checkpoint", config=config, trigger={"availableNow": True}
    )
    memory = spark._jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    samples: list[dict[str, Any]] = []
    wait = threading.Event()
    while query.isActive and len(samples) < args.transactions // every - 1:  # at the last one the workers end
        txid = (query.lastProgress or {"txid": 0})["txid"]
        if txid < every * (len(samples) + 1):
            wait.wait(LOOK_SECS)
            continue
        memory.gc()
        tree = processes_below(os.getpid())
        java = [pid for pid, command in tree.items() if Path(command.split(" ")[0]).name == "java"]
        workers = [pid for pid, command in tree.items() if ".daemon pyspark.worker" in command]
        sample: dict[str, Any] = {"txid": txid, "secs": round(time.monotonic() - began, 1)}
        sample["heap"] = memory.getHeapMemoryUsage().getUsed()
        for name, pids in (("driver", [os.getpid()]), ("jvm", java), ("worker", workers)):
            all_of = [of_process(pid) for pid in pids]
            sample[name] = {key: sum(each[key] for each in all_of) for key in ("rss", "threads", "files")}
        sample["objects"] = objects()
        samples.append(sample)
        parts = [
            f"{name} {sample[name]['rss'] >> 10:,} K {sample[name]['threads']} threads {sample[name]['files']} files"
            for name in ("worker", "driver", "jvm")
        ]
        line = "  ".join([f"{txid:>8} {sample['secs']:>7} s", f"heap {sample['heap'] >> 10:,} K", *parts])
        print(line, file=sys.stderr, flush=True)
    query.awaitTermination()
    in_worker = [json.loads((args.work / "objects" / f"{n}.json").read_text()) for n in
                 range(every, every * len(samples) + 1, every)]  # fmt: skip
    spark.stop()
    kept = samples[len(samples) // 10 + (len(samples) > 2) :]

    def slope(values: list[int]) -> float:
        return float(np.polyfit([each["txid"] for each in kept], values, 1)[0]) if len(kept) > 1 else 0.0

    def grown(found: list[dict[str, int]]) -> dict[str, int]:
        first, last = found[len(found) // 10 + (len(found) > 2)], found[-1]
        more = {name: count - first.get(name, 0) for name, count in last.items()}
        return {name: count for name, count in sorted(more.items(), key=lambda each: -each[1])[:12] if count > 0}

    rows = {
        "workers, resident": [each["worker"]["rss"] for each in kept],
        "driver, resident": [each["driver"]["rss"] for each in kept],
        "JVM, heap in use": [each["heap"] for each in kept],
        "JVM, resident": [each["jvm"]["rss"] for each in kept],
    }
    tell(
        args,
        measure="growth",
        systems=[
            {"name": name, "bytes_a_transaction": slope(values), "first": values[0], "last": values[-1]}
            for name, values in rows.items()
        ],
        transactions=args.transactions,
        samples=[{name: value for name, value in each.items() if name != "objects"} for each in samples],
        grown_in_worker=grown(in_worker),
        grown_in_driver=grown([each["objects"] for each in samples]),
    )


if __name__ == "__main__":
    main()
