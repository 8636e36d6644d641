"""A bolt gets twice as many tasks, beside an export of the same state, which reads, writes and reads back as much.

Without Spark: each is a program of one process. A row is a key of 25 characters and a number.
"""

from __future__ import annotations

import json
import resource
import shutil
import time

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


def main() -> None:
    """Fill the state, then measure."""
    given = arguments(__doc__).parse_args()
    checkpoint, config = given.work / "checkpoint", {"topology.state.provider": "rocksdb"}
    with TopologyTester(topology(2), checkpoint, config) as tester:
        for start in range(0, given.keys, BATCH):
            numbers = range(start, min(start + BATCH, given.keys))
            tester.send({"rows": [(f"user-{number * 2654435761 % 2**64:020d}", number) for number in numbers]})
    began = time.perf_counter()
    shutil.copytree(checkpoint, given.work / "plain")
    plain = time.perf_counter() - began
    began = time.perf_counter()
    export(checkpoint, given.work / "export", config=config)
    exported = time.perf_counter() - began
    done = rescale(checkpoint, {"put": 4}, config)
    assert done.keys == given.keys, done
    systems = [
        {"name": "export", "rows_per_second": given.keys / exported, "reference": True},
        {"name": "rescale, 2 to 4 tasks", "rows_per_second": given.keys / done.seconds},
        {"name": "a copy of the folder, by the system", "rows_per_second": given.keys / plain},
    ]
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(json.dumps({"measure": "throughput", "systems": systems, "memory_mb": memory_mb}))


if __name__ == "__main__":
    main()
