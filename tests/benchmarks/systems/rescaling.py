"""A bolt gets twice as many tasks, beside an export of the same state, which reads, writes and reads back as much.

Without Spark: both are programs of one process. ``--keys`` of 32 bytes with their values.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import tempfile
import time
from pathlib import Path

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    given = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="statefx-rescaling-"))
    config = {"topology.state.provider": "rocksdb"}
    try:
        with TopologyTester(topology(2), work / "ck", config) as tester:
            for start in range(0, given.keys, BATCH):
                numbers = range(start, min(start + BATCH, given.keys))
                tester.send({"rows": [(f"user-{number * 2654435761 % 2**64:020d}", number) for number in numbers]})
        size = sum(path.stat().st_size for path in (work / "ck/state").rglob("*") if path.is_file())
        began = time.perf_counter()
        shutil.copytree(work / "ck", work / "plain")
        plain = time.perf_counter() - began
        began = time.perf_counter()
        export(work / "ck", work / "copy", config=config)
        exported = time.perf_counter() - began
        done = rescale(work / "ck", {"put": 4}, config)
        assert done.keys == given.keys, done
        print(json.dumps({
            "keys": given.keys, "state_mb": size / 1e6, "plain_copy_secs": plain, "export_secs": exported,
            "rescale_secs": done.seconds, "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        }))
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
