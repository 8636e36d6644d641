"""Ticks of DataFrames come with the batches that Spark makes; those of spouts are in `test_pipelined`."""

import pytest

from statefx import BasicBolt, StatefulBolt, TopologyBuilder, isTick, transactions
from tests.spark.running import feed, lines_of, run, state

pytestmark = pytest.mark.slow


class Ticks(StatefulBolt):
    """Counts ticks, and what came with them."""

    outputFields = "ticks long"

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        what = "ticks" if isTick(tup) else "rows"
        self.state.put(what, self.state.get(what, 0) + 1)
        if isTick(tup):
            collector.emit((self.state.get("ticks"),))


class Newest(StatefulBolt):
    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put("newest", tup.ticks)


class Batches(BasicBolt):
    """Says of each batch what it is."""

    outputFields = "ticks long"

    def executeBatch(self, batch, collector):
        if isTick(batch):
            assert batch.to_pylist() == [{"rate_secs": 0.001}]
            collector.emit((batch.num_rows,))


def test_with_dataframes_each_task_has_its_tick_in_the_batches_that_spark_makes(spark, place):
    feed(place / "in", a=["x", "y", "z"])
    builder = TopologyBuilder("ticking")
    builder.setStream("lines", lines_of(spark, place / "in"))
    builder.setBolt("ticks", Ticks(), 2).fieldsGrouping("lines", "value").setTicks(0.001)
    builder.setBolt("newest", Newest()).globalGrouping("ticks")
    builder.setBolt("batches", Batches()).shuffleGrouping("lines").setTicks(0.001)
    builder.setBolt("seen", Newest()).globalGrouping("batches")
    topology = builder.createTopology()
    run(topology, spark, place / "ck", trigger={"availableNow": True})
    feed(place / "in", b=["x"])
    run(topology, spark, place / "ck", trigger={"availableNow": True})
    run(topology, spark, place / "ck", trigger={"availableNow": True})  # nothing is there: no batch, no tick
    done = len(transactions(place / "ck"))
    assert done == 2
    tasks = [state(place / "ck", "ticks", task) for task in range(2)]
    assert [task["ticks"] for task in tasks] == [done, done]
    assert sum(task.get("rows", 0) for task in tasks) == 4
    assert state(place / "ck", "newest") == {"newest": done}
    assert state(place / "ck", "seen") == {"newest": 1}
