"""Topologies of spouts in one Spark job that lives: what fails is rolled back in place, or a new run begins."""

import random
from pathlib import Path

import pytest

from statefx import OpaquePartitionedTransactionalSpout, StatefulBolt, TopologyBuilder, openState, submit
from statefx.errors import ConfigError
from tests.spark.running import wait_for
from tests.spark.spouting import Places, begun, expected, outcome

pytestmark = pytest.mark.slow

EACH = 20


@pytest.fixture
def places(place):
    return Places(place)


@pytest.fixture
def ran(drivers, place):
    """Run a driver with the pipelined engine to its end; return what it said."""

    def run(**more):
        driver = drivers(
            place, "rocksdb", program="tests.spark.spouting", more={"engine": "pipelined", **more}, each=EACH
        )
        driver.end()
        assert outcome(place) == (expected(EACH), expected(EACH))
        return driver.said

    return run


def test_attempts_that_fail_are_rolled_back_in_place(places, ran):
    """Before the cut, and behind it with others in flight: no other run begins."""
    places.fail("emit", 2)
    places.fail("execute", 3)
    places.fail("prepare", 4)
    said = ran()
    assert (said["engine"], said["runs"]) == ("pipelined", 1)


def test_a_worker_is_killed_at_each_step_and_another_run_goes_on(places, ran):
    places.kill("emit", 1)
    places.kill("execute", 2)
    places.kill("prepare", 3)
    places.kill("commit", 4)
    assert ran()["runs"] >= 5  # a machine that is very busy may lose another one


def test_a_worker_is_stopped_and_another_run_goes_on(places, ran):
    places.stop("execute", 2)
    assert ran(silence_secs=3)["runs"] >= 2


def test_too_few_slots_are_told_before_anything_runs(spark, place):
    with pytest.raises(ConfigError) as refused:
        submit(*begun(spark, place, {"each": EACH}, engine="pipelined"))
    assert "need 6 slots of Spark" in str(refused.value)
    assert "local[2] has 2: take local[n] for a larger n" in str(refused.value)
    assert not (place / "ck").exists()


class Wide(OpaquePartitionedTransactionalSpout):
    """Emits so many rows of 100 kB, which compress badly, in each transaction; a file says when it has."""

    outputFields = "key long, filling binary"

    def __init__(self, work, transactions, rows):
        self.work, self.transactions, self.rows = str(work), transactions, rows

    def numPartitions(self):
        return 1

    def emitPartitionBatch(self, attempt, collector, partition, lastMetadata):
        done = lastMetadata or 0
        if done == self.transactions:
            return None
        chance = random.Random(0)
        for number in range(self.rows):
            collector.emit((number % 7, chance.randbytes(100_000)))
            yield
        Path(self.work, f"emitted-{attempt.txid}").touch()
        return done + 1


class HeldCount(StatefulBolt):
    """Counts keys, and waits at its first row until a file is there."""

    def __init__(self, work):
        self.work = str(work)

    def initState(self, state):
        self.counts = state

    def execute(self, tup, collector):
        if self.counts.get(0) is None:
            wait_for(Path(self.work, "go").exists, "the test")
        self.counts.put(tup.key, self.counts.get(tup.key, 0) + 1)


def netty_mb(spark):
    """Return what Spark's connections hold; they never give it back."""
    return spark._jvm.io.netty.util.internal.PlatformDependent.usedDirectMemory() / 1e6


def test_rows_of_later_transactions_wait_in_files_and_not_in_sparks_memory(spark, place):
    """Three transactions of 100 MB are in flight, and a bolt has not taken the second row of the first."""
    builder = TopologyBuilder("wide")
    builder.setSpout("rows", Wide(place, 3, 1000))
    builder.setBolt("count", HeldCount(place)).fieldsGrouping("rows", "key")
    before = netty_mb(spark)
    config = {"topology.engine": "auto", "topology.max.spout.pending": 3, "topology.transaction.timeout.secs": 60}
    query = submit(builder.createTopology(), spark, place / "ck", config=config, trigger={"availableNow": True})
    wait_for((place / "emitted-3").exists, "the spout to have emitted all")
    assert netty_mb(spark) < before + 100
    assert query.status["engine"] == "pipelined"
    (place / "go").touch()
    query.awaitTermination()
    assert {progress["attempt"] for progress in query.recentProgress} == {0}
    with openState(place / "ck", "count") as counts:
        assert sum(count for _, count in counts.items()) == 3 * 1000
