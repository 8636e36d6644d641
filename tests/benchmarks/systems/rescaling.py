"""A bolt gets twice as many tasks, beside `restore(to=)` of the same state, which reads, writes and reads back as much.

Each is a new process, whose memory is told; of the one with Spark, that of the largest worker. A row is a key of 25
characters and a number.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from measuring import arguments

from statefx import Checkpoint, StatefulBolt, TopologyBuilder, session
from statefx.testing import TopologyTester, rows

BATCH = 200_000


class Put(StatefulBolt):
    """Keeps the last value of each key."""

    def initState(self, state):
        self.state = state

    def executeBatch(self, batch, collector):
        keys, values = (batch.column(number).to_pylist() for number in range(2))
        self.state.putAll(dict(zip(keys, values, strict=True)))


def topology(tasks: int):
    builder = TopologyBuilder("rescaled")
    builder.setStream("rows", rows("key string, value long"))
    builder.setBolt("put", Put(), tasks).fieldsGrouping("rows", "key")
    return builder.createTopology()


def copied_by_restore(work: Path, config: Mapping[str, Any], spark: Any) -> None:
    """Copy what was filled to a checkpoint of its own."""
    Checkpoint(work / "plain", config).restore(to=work / "copy")


def rescaled(work: Path, config: Mapping[str, Any], spark: Any) -> None:
    """Give it twice as many tasks."""
    print(Checkpoint(work / "checkpoint", config).rescale({"put": 4}, spark=spark), file=sys.stderr)


def copied(work: Path, config: Mapping[str, Any], spark: Any) -> None:
    """Copy the folder."""
    shutil.copytree(work / "checkpoint", work / "plain")


def measured(
    call: Callable[[Path, Mapping[str, Any], Any], None], work: Path, config: Mapping[str, Any], on_spark: bool
) -> tuple[float, float, float]:
    """Return seconds, seconds of this process's processor time, and the most memory that a process has had, in MB."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session(master="local[2]") if on_spark else None
    began, used = time.perf_counter(), time.process_time()
    call(work, config, spark)
    seconds, processor = time.perf_counter() - began, time.process_time() - used
    memory = max(map(most_memory, workers() if on_spark else ["self"]))
    if spark is not None:
        spark.stop()
    return seconds, processor, memory


def workers() -> list[str]:
    """Return the Python workers that there are."""
    lines = {path.parent.name: path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")}
    return [pid for pid, line in lines.items() if b"statefx.spark.daemon" in line]


def most_memory(pid: str) -> float:
    """Return in MB what `ru_maxrss` does not: it has that of the process before exec, which filled the state."""
    return int(Path("/proc", pid, "status").read_text().partition("VmHWM:")[2].split()[0]) / 1e3


def main() -> None:
    """Fill the state, then measure."""
    given = arguments(__doc__).parse_args()
    checkpoint, config = given.work / "checkpoint", {"topology.state.provider": "rocksdb"}
    with TopologyTester(topology(2), checkpoint, config) as tester:
        for start in range(0, given.keys, BATCH):
            numbers = range(start, min(start + BATCH, given.keys))
            tester.send({"rows": [(f"user-{number * 2654435761 % 2**64:020d}", number) for number in numbers]})
    systems = []
    here = "rescale, 2 to 4 tasks"
    slots = f"{here}, two slots"
    by_system, by_restore = "a copy of the folder, by the system", "restore(to=)"
    calls = {by_system: copied, by_restore: copied_by_restore, slots: rescaled, here: rescaled}
    for name, call in calls.items():
        on_spark = name is slots
        # a new process each time: what was needed to fill the state is not its memory
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            seconds, processor, memory = pool.submit(measured, call, given.work, config, on_spark).result()
        system = {"name": name, "rows_per_second": given.keys / seconds, "reference": call is copied_by_restore}
        if on_spark:  # the next one does the same
            shutil.rmtree(checkpoint)
            shutil.copytree(given.work / "plain", checkpoint)
        systems.append({**system, "processor_us_a_key": 1e6 * processor / given.keys, "memory_mb": memory})
    print(json.dumps({"measure": "throughput", "systems": systems}))


if __name__ == "__main__":
    main()
