"""What one call of a bolt emits does not have to fit into the memory of its worker."""

import resource

import pyarrow as pa
import pytest

from statefx import BatchBolt, StatefulBolt, TopologyBuilder
from tests.spark.running import run, state

pytestmark = pytest.mark.slow

BATCHES, ROWS, BYTES = 100, 100_000, 40
MB = 1 << 20


class Flood(BatchBolt):
    """Emits 10 M rows of 480 MB at the end of its input, and by how much its process has grown meanwhile."""

    outputFields = {"default": "number long, text string", "growth": "bytes long"}

    def execute(self, tup, collector):
        pass

    def finishBatch(self, collector):
        before = peak()
        texts = pa.array(["x" * BYTES] * ROWS)
        for n in range(BATCHES):
            numbers = pa.array(range(n * ROWS, (n + 1) * ROWS), pa.int64())
            collector.emitBatch(pa.record_batch({"number": numbers, "text": texts}))
        collector.emit((peak() - before,), stream="growth")


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


class Sums(StatefulBolt):
    def initState(self, state):
        self.sums = state

    def executeBatch(self, batch, collector):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name != "text":
                self.sums[name] = self.sums.get(name, 0) + sum(column.to_pylist())
        self.sums["rows"] = self.sums.get("rows", 0) + batch.num_rows


@pytest.mark.soak
@pytest.mark.parametrize("fused", [False, True])
def test_ten_million_rows_of_one_call(spark, fused, tmp_path):
    builder = TopologyBuilder("flood")
    builder.setStream("ticks", spark.range(1).toDF("n"))
    builder.setBolt("flood", Flood()).globalGrouping("ticks")
    sums = builder.setBolt("sums", Sums())
    for stream in Flood.outputFields:
        (sums.shuffleGrouping if fused else sums.globalGrouping)("flood", stream=stream)
    run(builder.createTopology(), spark, tmp_path / "ck")
    found = state(tmp_path / "ck", "sums")
    rows = BATCHES * ROWS
    assert (found["rows"], found["number"]) == (rows + 1, rows * (rows - 1) // 2)
    assert found["bytes"] < 200 * MB
