"""Ticks and timers of DataFrames; those of spouts are in `test_pipelined`."""

from datetime import timedelta

import pytest

from statefx import BasicBolt, StatefulBolt, TopologyBuilder, isTick, submit, transactions
from tests.spark.running import feed, lines_of, run, state, wait_for

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


class Timed(StatefulBolt):
    """Sets a timer of the clock for each row, and counts its ticks."""

    def initState(self, state):
        self.state = state

    def open(self, context):
        self.context = context

    def execute(self, tup, collector):
        if isTick(tup):
            self.state.put("ticks", self.state.get("ticks", 0) + 1)
        else:
            self.state.put(f"rows {tup.value}", self.state.get(f"rows {tup.value}", 0) + 1)
            self.timers.set(tup.value, self.context.processingTime + timedelta(seconds=0.3), processing=True)

    def onTimer(self, key, at, value, collector):
        self.state.put(f"fired {key}", True)


def test_ticks_and_timers_come_while_there_are_no_rows_and_no_batch_is_lost_or_doubled(spark, place):
    """Transactions without a batch stand between Spark's; the next start numbers its batches behind them."""
    feed(place / "in", a=["x"])
    builder = TopologyBuilder("idle")
    builder.setStream("lines", lines_of(spark, place / "in"))
    builder.setBolt("timed", Timed()).fieldsGrouping("lines", "value").setTicks(0.2)
    topology = builder.createTopology()
    for at, name in enumerate("bcd"):
        query = submit(topology, spark, place / "ck", trigger={"processingTime": "50 milliseconds"})
        query.processAllAvailable()
        had = state(place / "ck", "timed").get("ticks", 0)
        wait_for(lambda had=had: state(place / "ck", "timed").get("ticks", 0) >= had + 3, "ticks")
        feed(place / "in", **{name: ["x", name]})
        query.processAllAvailable()
        wait_for(lambda name=name: state(place / "ck", "timed").get(f"fired {name}"), "its timer to fire")
        query.stop()
        assert query.exception() is None
        found = state(place / "ck", "timed")
        rows = {key.removeprefix("rows "): count for key, count in found.items() if key.startswith("rows ")}
        assert rows == {"x": at + 2, **dict.fromkeys("bcd"[: at + 1], 1)}
