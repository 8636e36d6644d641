"""Ticks and timers of DataFrames; those of spouts are in `test_pipelined`."""

from datetime import timedelta

import pytest

from statefx import StatefulBolt, TopologyBuilder, isTick, submit
from tests.spark.running import feed, lines_of, state, wait_for

pytestmark = pytest.mark.slow


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
