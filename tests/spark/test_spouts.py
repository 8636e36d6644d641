"""Spouts on real Spark: jobs without a query, several in flight, killed workers, stops."""

import os
import threading

import pytest

from statefx import TopologyBuilder, submit
from statefx.connectors import ForeachTransactionSink
from statefx.errors import ConfigError
from statefx.testing import TopologyTester
from tests.spark import tracking
from tests.spark.drivers import log_of
from tests.spark.running import BOUND_SECS, state, wait_for
from tests.spark.spouting import PENDING, PHASES, Places, config, expected, outcome, spouts
from tests.spark.test_drivers import held
from tests.spouts.numbers import ALL, Planned, topology


class Hangs(Planned):
    def __init__(self, place):
        super().__init__(place)
        self.hold, self.asked = place / "hold", place / "asked"

    def planPartitionBatch(self, partition, lastMetadata):
        if lastMetadata and lastMetadata["start"] and self.hold.exists():
            self.asked.touch()
            held(self.hold)
        return super().planPartitionBatch(partition, lastMetadata)


@pytest.mark.soak
def test_stop_returns_although_a_hook_on_the_driver_hangs(spark, place, caplog, monkeypatch):
    monkeypatch.setattr("statefx.spark.feeds.SLOW_SECS", 0.1)
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


# ---- Spouts, four transactions in flight, on one Spark session: stops, second drivers, killed workers in every phase.


ON = {"processingTime": "0 seconds"}
HELD = {
    # phase: what is held, and from which transaction of the driver on
    "emit": {"execute": 1, "emit": PENDING},
    "execute": {"execute": 1},
    "prepare": {"prepare": 1},
    "commit": {"commit": 1},
    "rollback": {"execute": 1},  # which then fails: held from the start, the recovery would wait as well
}


class Phases:
    """Starts a driver, and waits until its tasks wait in a phase."""

    def __init__(self, spark, place, each):
        self.spark, self.place, self.each, self.places = spark, place, each, Places(place)
        self.generation = 0

    def started(self, phase):
        """A query whose lowest transaction waits in `phase`, with as many behind it as there may be."""
        self.generation += 1
        first = self.log.committed + 1
        first += self.log.committing is not None  # which is committed first of all
        for waits, nth in HELD[phase].items():
            self.places.hold(waits, self.generation, first + nth - 1)
        query = submit(spouts(self.place, self.each), self.spark, self.place / "ck", config(), ON)
        wait_for(lambda: self.held("execute" if phase == "rollback" else phase), f"a task to be in {phase}")
        wait_for(lambda: len(self.log.in_flight) == PENDING, "four transactions to be in flight")
        if phase == "rollback":
            self.places.hold("rollback", self.generation)
            self.places.fail("execute", first)
            self.places.release("execute")
            wait_for(lambda: self.held("rollback"), "a task to be told of the rollback")
        return query

    def held(self, phase):
        return self.places.held(phase, self.generation)

    @property
    def log(self):
        return log_of(self.place)

    def end(self):
        self.places.release()
        with TopologyTester(spouts(self.place, self.each), self.place / "ck", config()) as tester:
            tester.drain()
        assert outcome(self.place) == (expected(self.each), expected(self.each))


@pytest.mark.soak
@pytest.mark.parametrize("timeout", [BOUND_SECS, 0])
def test_stop_in_every_phase(spark, place, timeout):
    """With time, the lowest transaction ends; without, it is rolled back, unless it is decided."""
    phases = Phases(spark, place, 60)
    for phase in PHASES:
        stopped(phases, phases.started(phase), timeout)
        assert not timeout or not phases.log.in_flight, "the next driver has nothing to recover"
    phases.end()


def stopped(phases, query, timeout):
    """Stop a query whose tasks wait, and let them go on when what is above the lowest transaction is rolled back."""
    stop = threading.Thread(target=query.stop, args=(timeout,))
    stop.start()
    wait_for(lambda: not query.isActive or len(phases.log.in_flight) < PENDING, "later ones to be rolled back")
    phases.places.release()
    stop.join(BOUND_SECS)
    assert not query.isActive
    assert query.exception() is None


# ---- Spouts of three kinds with four transactions in flight: drivers are killed, and the next ones recover and go on.


EACH = 20
"""Rows of a partition: five transactions, and some more where an opaque spout takes fewer."""


class Chain:
    """Drivers on one checkpoint; each is killed while its tasks wait in a phase."""

    def __init__(self, drivers, player, place):
        self.drivers, self.player, self.place, self.places = drivers, player, place, Places(place)
        self.fell, self.generation = [], 0

    def kill(self, phase, left=PENDING, processed=False, **held):
        """Start a driver, and kill it when so many transactions are in flight, and a task waits in `phase`."""
        self.generation += 1
        for each, txid in (held or {phase: 1}).items():
            self.places.hold(each, self.generation, txid)

        def reached(log):
            there = log.generation == self.generation and self.places.held(phase, self.generation)
            return there and len(log.in_flight) == left and (log.in_flight[-1].processed or not processed)

        driver = self.drivers(self.place, "rocksdb", program="tests.spark.spouting", each=EACH)
        driver.wait_until(reached, f"{phase} of generation {self.generation}")
        driver.kill()
        self.fell.append((phase, str(log_of(self.place).in_flight[0].phase)))
        self.places.release()

    def end(self):
        """Nobody kills the last driver; return what it recovers."""
        said = self.player.play("tests.spark.spouting", self.place, each=EACH)
        assert outcome(self.place) == (expected(EACH), expected(EACH))
        return said["recoveries"]


def test_the_driver_is_killed_while_tasks_commit(drivers, player, place):
    chain = Chain(drivers, player, place)
    chain.kill("commit")
    recoveries = chain.end()
    assert chain.fell == [("commit", "COMMITTING")]
    assert [each["rolled"] for each in recoveries] == ["forward", *["back"] * (PENDING - 1)]


@pytest.mark.soak
def test_the_driver_is_killed_in_every_phase(drivers, player, place):
    """Also in its recovery from what the one before has left."""
    chain = Chain(drivers, player, place)
    chain.kill("emit", execute=1, emit=PENDING)
    chain.kill("rollback", left=1)  # the later ones are rolled back by then
    chain.kill("execute", processed=True)
    chain.kill("prepare")
    chain.kill("commit")
    chain.kill("commit", left=2)  # committers of the second one may have run: its rollback waits for this commit
    assert chain.end() == [{"txid": 1, "rolled": "forward"}, {"txid": 2, "rolled": "back"}]
    assert [phase for _, phase in chain.fell] == ["PREPARING"] * 4 + ["COMMITTING"] * 2


# ---- Spouts that live in their tasks, on Spark: against what lies at the source.


TRACKED_EACH = 60
MESSAGES = range(tracking.TASKS * TRACKED_EACH)
REFUSED = sorted(message for message in MESSAGES if message % tracking.REFUSED == 0)


def acked(place):
    return sorted(map(int, os.listdir(place / "acked")))


def failed(place):
    return sorted(map(int, (place / "failed").read_text().split()))


@pytest.mark.spark
def test_each_message_is_counted_once_and_acked_and_those_that_fail_come_again(player, place):
    tracking.prepared(place, TRACKED_EACH)
    said = player.play("tests.spark.tracking", place, more={"each": TRACKED_EACH})
    assert acked(place) == list(MESSAGES)
    assert failed(place) == REFUSED
    assert state(place / "ck", "tally") == dict.fromkeys(MESSAGES, 1)
    counts = said["sources"]["folder"]
    assert counts["pending"] <= 2 * 10
    assert said["runs"] == 1


@pytest.mark.spark
def test_a_trigger_that_ends_is_refused_before_anything_runs(spark, place):
    tracking.prepared(place, 1)
    topology = tracking.topology(place, 1)
    with pytest.raises(ConfigError, match=r"availableNow, but spout 'folder'.*query.stop"):
        submit(topology, spark, place / "ck", trigger={"availableNow": True})
    assert not (place / "ck").exists()
