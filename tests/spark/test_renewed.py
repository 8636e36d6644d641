"""Inputs that can't be tried again as they are: Spark's query is started again, within the same bounds."""

import logging
import os
from pathlib import Path

import pytest
from pyspark.sql.functions import udf

from statefx import StatefulBolt, TopologyBuilder
from statefx.errors import FailedException, TransactionTimeoutError
from tests.spark.bolts import Once
from tests.spark.drivers import log_of
from tests.spark.running import feed, kinds, lines_of, reasons, run, state
from tests.spark.test_faults import held, timed

__all__ = ["timed"]

pytestmark = pytest.mark.slow

FILES = {name: [f"{name} {number}" for number in range(20)] for name in "ab"}
NOW = {"trigger": {"availableNow": True}}


class Fails(StatefulBolt):
    """Counts how often a key comes, and does something odd in the second transaction."""

    def __init__(self, odd):
        self.odd = odd

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.counts = state

    def execute(self, tup, collector):
        self.counts.put(tup[0], self.counts.get(tup[0], 0) + 1)
        if self.context.txid == 2:
            self.odd()


def counting(frame, odd):
    builder = TopologyBuilder("counting")
    builder.setStream("rows", frame)
    builder.setBolt("count", Fails(odd), parallelism=2).fieldsGrouping("rows", "value")
    return builder.createTopology()


@pytest.mark.parametrize("shuffled", [True, False])
def test_after_a_verdict_too_nothing_is_left_of_a_shuffled_input(spark, place, caplog, shuffled):
    """An executor lost since then would have it partly computed again, and its rows routed otherwise."""
    feed(place / "in", **FILES)
    computed = place / "computed"
    once = Once(place)

    @udf("string")
    def noted(value):
        with open(computed, "a", encoding="ascii") as file:
            file.write(f"{value}\n")
        return value

    def odd():
        if once:
            raise FailedException("the feed is stale")

    lines = lines_of(spark, place / "in").select(noted("value").alias("value"))
    frame = lines.repartition("value") if shuffled else lines
    with caplog.at_level(logging.WARNING, "statefx"):
        run(counting(frame, odd), spark, place / "ck", **NOW)
    assert state(place / "ck", "count") == dict.fromkeys(FILES["a"] + FILES["b"], 1)
    assert log_of(place).generation == 1
    assert ("Spark's query is started again" in caplog.text) is shuffled
    told = reasons(place / "ck")
    # Spark may give a task a worker whose connection it has closed with a query that was stopped before.
    (stale,) = [reason for reason in told if "ClosedChannelException" not in reason]
    assert "the feed is stale" in stale
    tries = 1 + len(told)
    assert computed.read_text(encoding="ascii").split("\n").count("b 0") == tries
    rolled_back = [(kind, 2, attempt) for attempt in range(tries - 1) for kind in ("PREPARING", "ROLLED_BACK")]
    assert kinds(place / "ck")[-2 * tries :] == [
        *rolled_back,
        ("PREPARING", 2, tries - 1),
        ("COMMITTING", 2, tries - 1),
    ]


def test_tries_over_renewed_inputs_are_bounded_as_all_others(spark, place, timed):
    feed(place / "in", **FILES)
    hold = str(place / "hold")
    Path(hold).touch()
    timed(lambda: kinds(place / "ck")[-1][:2] == ("PREPARING", 2))
    config = {"topology.transaction.attempts.max": 2, "topology.transaction.timeout.secs": 1}
    frame = lines_of(spark, place / "in").repartition("value")
    with pytest.raises(TransactionTimeoutError, match=r"transaction 2 failed 2 times.*took longer than") as caught:
        run(counting(frame, lambda: held(hold)), spark, place / "ck", config, **NOW)
    os.unlink(hold)
    assert (caught.value.txid, caught.value.attempts, caught.value.timeout) == (2, 2, True)
    assert [record for record in kinds(place / "ck") if record[0] == "ROLLED_BACK"] == [
        ("ROLLED_BACK", 2, 0),
        ("ROLLED_BACK", 2, 1),
    ]
