"""Spouts on real Spark: jobs without a query, several in flight, killed workers, stops."""

import threading

import pytest

from statefx import ForeachTransactionSink, TopologyBuilder, submit
from tests.spark.running import BOUND_SECS, state, wait_for
from tests.spark.test_faults import held
from tests.spouts.numbers import ALL, Planned, topology

pytestmark = pytest.mark.slow


class Hangs(Planned):
    """Its copy on the driver hangs in the third transaction, as long as a file exists."""

    def __init__(self, place):
        super().__init__(place)
        self.hold, self.asked = place / "hold", place / "asked"

    def planPartitionBatch(self, partition, lastMetadata):
        if lastMetadata and lastMetadata["start"] and self.hold.exists():
            self.asked.touch()
            held(self.hold)
        return super().planPartitionBatch(partition, lastMetadata)


def test_stop_returns_although_a_hook_on_the_driver_hangs(spark, place, caplog, monkeypatch):
    monkeypatch.setattr("statefx.spark.spout_feed.SLOW_SECS", 0.1)
    spout = Hangs(place)
    spout.hold.touch()
    query = submit(topology(spout), spark, place / "ck", {"topology.max.spout.pending": 3})
    try:
        wait_for(spout.asked.exists, "the hook to be called")
        wait_for(lambda: "in planPartitionBatch on the driver for" in caplog.text, "a warning")
        query.stop(timeout=1)
        assert query.isActive
        assert "stop does not wait for it" in caplog.text
    finally:
        spout.hold.unlink()
    assert query.awaitTermination(BOUND_SECS), "it ends when the hook returns"
    submit(topology(Planned(place)), spark, place / "ck", trigger={"availableNow": True}).awaitTermination()
    assert state(place / "ck", "count") == ALL


def test_stop_returns_although_the_commit_of_a_sink_hangs(spark, place, caplog, monkeypatch):
    monkeypatch.setattr("statefx.spark.query._CALL_SECS", 0.5)
    calling, returning, called = threading.Event(), threading.Event(), []

    def hang(frame, txid):
        calling.set()
        assert returning.wait(BOUND_SECS)
        called.append(txid)

    def sinking(write):
        builder = TopologyBuilder("numbers")
        builder.setSpout("numbers", Planned(place), parallelism=2)
        builder.setSink("out", ForeachTransactionSink(write)).globalGrouping("numbers")
        return builder.createTopology()

    query = submit(sinking(hang), spark, place / "ck")
    try:
        assert calling.wait(BOUND_SECS)
        query.stop(timeout=0)
        assert query.isActive
        assert "the commit of 'out' has been running on the driver for" in caplog.text
    finally:
        returning.set()
    assert query.awaitTermination(BOUND_SECS), "it ends when the call returns"
    rest = sinking(lambda frame, txid: called.append(txid))
    submit(rest, spark, place / "ck", trigger={"availableNow": True}).awaitTermination()
    assert called == list(range(1, len(called) + 1))
    assert len(called) > 1


def test_it_waits_for_what_comes_later_and_stops(spark, place):
    """`processAllAvailable` waits for all that the spout has now; `once` is one transaction."""
    more = place / "more"

    class Growing(Planned):
        def upcoming(self, last):
            self.each = 10 if more.exists() else 4
            return super().upcoming(last)

    query = submit(topology(Growing(place)), spark, place / "ck", trigger={"processingTime": "0 seconds"})
    query.processAllAvailable()
    assert state(place / "ck", "count").keys() == {key for key in ALL if key % 1000 < 4}
    more.touch()
    wait_for(lambda: query.lastProgress["txid"] > 1, "what came later to be read")
    query.processAllAvailable()
    assert state(place / "ck", "count") == ALL
    assert query.lastProgress["numInputRows"]
    query.stop()
    assert query.exception() is None
    submit(topology(Growing(place)), spark, place / "ck", trigger={"once": True}).awaitTermination()
    assert state(place / "ck", "count") == ALL
