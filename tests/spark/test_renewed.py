"""Rows are staged once for all attempts; staging that fails is tried again, within a bound."""

import os
import signal
import time

import pytest
from pyspark.sql.functions import udf

from statefx import StatefulBolt, TopologyBuilder
from statefx.errors import AttemptsExhaustedError, FailedException
from tests.spark.bolts import Once
from tests.spark.drivers import log_of
from tests.spark.running import feed, kinds, lines_of, run, state, wait_for

pytestmark = pytest.mark.slow

FILES = {name: [f"{name} {number}" for number in range(20)] for name in "ab"}
NOW = {"trigger": {"availableNow": True}}


class Fails(StatefulBolt):
    """Counts how often a key comes, and fails the first attempt of the second transaction."""

    def __init__(self, once):
        self.once = once

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.counts = state

    def execute(self, tup, collector):
        self.counts.put(tup[0], self.counts.get(tup[0], 0) + 1)
        if self.context.txid == 2 and self.once:
            raise FailedException("the feed is stale")


def counting(frame, once=False):
    builder = TopologyBuilder("counting")
    builder.setStream("rows", frame)
    builder.setBolt("count", Fails(once), parallelism=2).fieldsGrouping("rows", "value")
    return builder.createTopology()


@pytest.mark.parametrize("shuffled", [True, False])
def test_another_attempt_reads_what_was_staged(spark, place, shuffled):
    """Rule 15.2: also of a DataFrame that would be computed otherwise the second time."""
    feed(place / "in", **FILES)
    computed = place / "computed"

    @udf("string")
    def noted(value):
        with open(computed, "a", encoding="ascii") as file:
            file.write(f"{value}\n")
        return value

    lines = lines_of(spark, place / "in").select(noted("value").alias("value"))
    run(counting(lines.repartition("value") if shuffled else lines, Once(place)), spark, place / "ck", **NOW)
    assert state(place / "ck", "count") == dict.fromkeys(FILES["a"] + FILES["b"], 1)
    assert log_of(place).generation == 1
    assert computed.read_text(encoding="ascii").split("\n").count("b 0") == 1
    assert kinds(place / "ck")[-4:] == [
        ("PREPARING", 2, 0),
        ("ROLLED_BACK", 2, 0),
        ("PREPARING", 2, 1),
        ("COMMITTING", 2, 1),
    ]


@pytest.mark.parametrize(
    ("shuffled", "says"),
    [(True, r"Spark's query had to be started again 3 times"), (False, r"transaction 2 failed 2 times")],
)
def test_staging_that_fails_each_time_ends_the_query(spark, place, shuffled, says):
    """Where Spark keeps a shuffle, only a new query computes it anew; both are bounded."""
    feed(place / "in", **FILES)

    @udf("string")
    def killing(value):
        if value == "b 0":
            os.kill(os.getpid(), signal.SIGKILL)
        return value

    lines = lines_of(spark, place / "in")
    frame = (lines.repartition("value") if shuffled else lines).select(killing("value").alias("value"))
    config = {"topology.transaction.attempts.max": 2}
    with pytest.raises(AttemptsExhaustedError, match=says):
        run(counting(frame), spark, place / "ck", config, **NOW)
    assert state(place / "ck", "count") == dict.fromkeys(FILES["a"], 1)
    assert kinds(place / "ck")[-1] == ("COMMITTING", 1, 0)  # nothing has begun that could not be read


class There(StatefulBolt):
    """Looks for the file that its row was read from, until it is gone or two seconds are over."""

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        path, end = tup.path.removeprefix("file://"), time.monotonic() + 2
        while os.path.exists(path) and time.monotonic() < end:
            time.sleep(0.01)  # noqa: TID251 - a wait with a bound
        self.state.put(os.path.basename(path), os.path.exists(path))


def test_a_source_keeps_what_is_not_committed(spark, place):
    """Spark tells it to let go of a batch when it plans the next one."""
    feed(place / "in", a=["x"], b=["x"], c=["x"])
    reading = spark.readStream.schema("value string").option("cleanSource", "delete")
    frame = reading.option("maxFilesPerTrigger", 1).text(str(place / "in")).selectExpr("input_file_name() as path")
    builder = TopologyBuilder("cleaned")
    builder.setStream("rows", frame)
    builder.setBolt("there", There()).globalGrouping("rows")
    run(builder.createTopology(), spark, place / "ck", **NOW)
    assert state(place / "ck", "there") == {"a": True, "b": True, "c": True}
    wait_for(lambda: not (place / "in" / "a").exists(), "the first file to be cleaned away")
