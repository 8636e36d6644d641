"""Spark's own stateful operators before a stream: refused before anything starts, with what to use instead."""

import sys

import pytest
from pyspark.sql import Row
from pyspark.sql.functions import expr
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupStateTimeout

from statefx import TopologyBuilder, submit
from statefx.errors import CheckpointError, TopologyError
from tests.spark.bolts import Keep
from tests.spark.running import feed, kept, kinds, lines_of, run

pytestmark = pytest.mark.slow

NOW = {"availableNow": True}


def keeping(frame):
    builder = TopologyBuilder("kept")
    builder.setStream("lines", frame)
    builder.setBolt("keep", Keep()).globalGrouping("lines")
    return builder.createTopology()


class Count(StatefulProcessor):
    def init(self, handle):
        self.handle = handle

    def handleInputRows(self, key, rows, timers):
        yield Row(value=key[0])


def with_state(key, batches, state):
    yield from batches


def timed(lines):
    return lines.selectExpr("value", "current_timestamp() as at").withWatermark("at", "1 minute")


def joined(lines, how="inner"):
    return lines.join(lines.selectExpr("value as other"), expr("value = other"), how).select("value")


KEEP = {
    "dropDuplicates": lambda lines: lines.dropDuplicates(["value"]).filter("value != 'x'"),
    "dropDuplicates, in time": lambda lines: timed(lines).dropDuplicatesWithinWatermark(["value"]),
    "dropDuplicates or distinct": lambda lines: lines.union(lines.distinct()),
    "an aggregation": lambda lines: lines.groupBy("value").count(),
    "an aggregation, of windows": lambda lines: timed(lines).groupBy(expr("window(at, '1 minute')")).count(),
    "a join of two streams": joined,
    "a join of two streams, which Spark refuses": lambda lines: joined(lines, "left"),
    "transformWithState": lambda lines: lines.groupBy("value").transformWithState(
        Count(), "value string", "Update", "None"
    ),
    "transformWithState, in pandas": lambda lines: lines.groupBy("value").transformWithStateInPandas(
        Count(), "value string", "Update", "None"
    ),
    "applyInPandasWithState": lambda lines: lines.groupBy("value").applyInPandasWithState(
        with_state, "value string", "n long", "update", GroupStateTimeout.NoTimeout
    ),
}


@pytest.mark.parametrize("what", KEEP)
def test_an_operator_that_keeps_state_is_refused_by_its_name_with_the_bolt_to_use(spark, place, what):
    (place / "in").mkdir()
    topology = keeping(KEEP[what](lines_of(spark, place / "in")))
    name = what.partition(", ")[0]
    with pytest.raises(TopologyError, match=rf"keeps state, {name}.*Use a StatefulBolt"):
        submit(topology, spark, place / "ck", trigger=NOW)
    assert not (place / "ck").exists()


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "through",
    [
        lambda lines: lines.repartition(2).selectExpr("upper(value) as value"),
        lambda lines: lines.join(lines.sparkSession.range(3).groupBy("id").count(), expr("value = id")),
        timed,
    ],
)
def test_operators_that_keep_nothing_are_taken(spark, place, through):
    feed(place / "in", a=["1", "2"])
    run(keeping(through(lines_of(spark, place / "in"))), spark, place / "ck", trigger=NOW)
    assert kinds(place / "ck")


def test_an_operator_that_is_not_known_begins_nothing(spark, place, monkeypatch):
    """Its state would be on the driver's machine, and gone with it."""
    monkeypatch.setattr(sys.modules["statefx.spark.preflight"], "_STATEFUL", {})
    feed(place / "in", a=["x"])
    topology = keeping(lines_of(spark, place / "in").dropDuplicates(["value"]))
    with pytest.raises(CheckpointError, match=r"keeps state before this topology.*in a bolt instead"):
        run(topology, spark, place / "ck", trigger=NOW)
    assert kinds(place / "ck") == []
    run(keeping(lines_of(spark, place / "in")), spark, place / "ck", trigger=NOW)
    assert kept(place / "ck", "keep", 1) == [[("x",)]]
