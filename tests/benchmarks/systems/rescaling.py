"""A bolt gets twice as many tasks, beside an export of the same state, which reads, writes and reads back as much.

Without Spark: each is a new process, whose memory is told. A row is a key of 25 characters and a number.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from measuring import arguments

from statefx import StatefulBolt, TopologyBuilder, export, rescale
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


def exported(work: Path, config: Mapping[str, Any]) -> None:
    """Export what was filled."""
    export(work / "plain", work / "export", config=config)


def rescaled(work: Path, config: Mapping[str, Any]) -> None:
    """Give it twice as many tasks."""
    print(rescale(work / "checkpoint", {"put": 4}, config), file=sys.stderr)


def copied(work: Path, config: Mapping[str, Any]) -> None:
    """Copy the folder."""
    shutil.copytree(work / "checkpoint", work / "plain")


def measured(
    call: Callable[[Path, Mapping[str, Any]], None], work: Path, config: Mapping[str, Any]
) -> tuple[float, float, float]:
    """Return seconds, seconds of processor time, and the most memory that the process has had, in MB."""
    began, used = time.perf_counter(), time.process_time()
    call(work, config)
    seconds, processor = time.perf_counter() - began, time.process_time() - used
    # ru_maxrss has that of the process before exec as well, which filled the state
    status = Path("/proc/self/status").read_text()
    return seconds, processor, int(status.partition("VmHWM:")[2].split()[0]) / 1e3


def main() -> None:
    """Fill the state, then measure."""
    given = arguments(__doc__).parse_args()
    checkpoint, config = given.work / "checkpoint", {"topology.state.provider": "rocksdb"}
    with TopologyTester(topology(2), checkpoint, config) as tester:
        for start in range(0, given.keys, BATCH):
            numbers = range(start, min(start + BATCH, given.keys))
            tester.send({"rows": [(f"user-{number * 2654435761 % 2**64:020d}", number) for number in numbers]})
    systems = []
    calls = {"a copy of the folder, by the system": copied, "export": exported, "rescale, 2 to 4 tasks": rescaled}
    for name, call in calls.items():
        # a new process each time: what was needed to fill the state is not its memory
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            seconds, processor, memory = pool.submit(measured, call, given.work, config).result()
        system = {"name": name, "rows_per_second": given.keys / seconds, "reference": call is exported}
        systems.append({**system, "processor_us_a_key": 1e6 * processor / given.keys, "memory_mb": memory})
    print(json.dumps({"measure": "throughput", "systems": systems}))


if __name__ == "__main__":
    main()
