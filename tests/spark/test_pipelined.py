"""Topologies of spouts in one Spark job that lives: what fails is rolled back in place, or a new run begins."""

import itertools
import random
import re
from pathlib import Path

import pytest

from statefx import (
    Checkpoint,
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    TopologyBuilder,
    submit,
)
from statefx.errors import ConfigError
from tests.bolts import WithState
from tests.spark import living
from tests.spark.running import wait_for
from tests.spark.spouting import PHASES, Places, expected, outcome

pytestmark = [pytest.mark.slow, pytest.mark.spark]

EACH = 20


@pytest.fixture
def told(player, place):
    return lambda case: player.ask("tests.spark.living", work=str(place), case=case)


@pytest.fixture
def places(place):
    return Places(place)


@pytest.fixture
def ran(player, place):
    """Run the topology of `tests.spark.spouting` to its end; return what is said of it."""

    def run(**more):
        said = player.play("tests.spark.spouting", place, more=more, each=EACH)
        assert outcome(place) == (expected(EACH), expected(EACH))
        return said

    return run


def test_attempts_that_fail_are_rolled_back_in_place(places, ran):
    """Before the cut, and behind it with others in flight: no other run begins."""
    places.fail("emit", 2)
    places.fail("execute", 3)
    places.fail("prepare", 4)
    said = ran()
    assert said["runs"] == 1


def test_a_worker_is_killed_at_each_step_and_another_run_goes_on(place, places, ran):
    places.kill("emit", 1)
    places.kill("execute", 2)
    places.kill("prepare", 3)
    places.kill("commit", 4)
    places.fail("execute", 5)
    places.kill("rollback", 5)
    assert ran()["runs"] >= 6  # a machine that is very busy may lose another one
    assert {path.name for path in place.glob("killed-*")} == {f"killed-{phase}" for phase in PHASES}


@pytest.mark.soak
def test_a_worker_is_stopped_and_another_run_goes_on(places, ran):
    places.stop("execute", 2)
    assert ran(silence_secs=3)["runs"] >= 2


def many(tasks, levels=1):
    builder = TopologyBuilder("many")
    builder.setSpout("rows", Numbers(), tasks)
    for level in range(1, levels):
        builder.setBolt(f"count-{level}", HeldCount("never"), tasks).fieldsGrouping("rows", "key")
    return builder.createTopology()


def test_too_few_slots_are_told_before_anything_runs(spark, place):
    with pytest.raises(ConfigError) as refused:
        submit(many(20, 2), spark, place / "ck")
    assert "need 40 slots of Spark. local[32] has 32. Call spark.stop(), and take local[40] or more" in str(
        refused.value
    )
    assert not (place / "ck").exists()


@pytest.mark.parametrize(("tasks", "master"), [(20, "local[40,4]"), (33, "local[66,4]")])
def test_under_spark_submit_a_master_with_enough_slots_is_told(spark, place, monkeypatch, tasks, master):
    """`statefx.session` leaves the master to spark-submit there, and so has no more slots without one."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(ConfigError) as refused:
        submit(many(tasks, 2), spark, place / "ck")
    assert f"""If spark-submit chose local[32], give it --master '{master}'""" in str(refused.value)
    assert f"""or write statefx.session("statefx-tests", master="{master}"), or less parallelism""" in str(
        refused.value
    )


class Wide(OpaquePartitionedTransactionalSpout):
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


class Numbers(PartitionedTransactionalSpout):
    outputFields = "key long"
    transactions, rows = 6, 100

    def numPartitions(self):
        return 1

    def emitPartitionBatchNew(self, attempt, collector, partition, lastMetadata):
        done = (lastMetadata or 0) + 1
        if done > self.transactions:
            return None
        self.emitPartitionBatch(attempt, collector, partition, done)
        return done

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        for number in range(self.rows):
            collector.emit((number % 7,))


class HeldCount(WithState):
    def __init__(self, work):
        self.work = str(work)

    def execute(self, tup, collector):
        if self.state.get(0) is None:
            wait_for(Path(self.work, "go").exists, "the test")
        self.state.put(tup.key, self.state.get(tup.key, 0) + 1)


def netty_mb(spark):
    """Return what Spark's connections hold; they never give it back."""
    return spark._jvm.io.netty.util.internal.PlatformDependent.usedDirectMemory() / 1e6


def test_rows_of_later_transactions_wait_in_files_and_not_in_sparks_memory(spark, place):
    """Three transactions of 100 MB are in flight, and a bolt has not taken the second row of the first."""
    builder = TopologyBuilder("wide")
    builder.setSpout("rows", Wide(place, 3, 1000))
    builder.setBolt("count", HeldCount(place)).fieldsGrouping("rows", "key")
    before = netty_mb(spark)
    config = {"topology.max.spout.pending": 3, "topology.transaction.timeout.secs": 60}
    query = submit(builder.createTopology(), spark, place / "ck", config=config, trigger={"availableNow": True})
    wait_for((place / "emitted-3").exists, "the spout to have emitted all")
    assert netty_mb(spark) < before + 200  # of 300; each slot has an arena of 16 MB
    (place / "go").touch()
    query.awaitTermination()
    assert {progress["attempt"] for progress in query.recentProgress} == {0}
    with Checkpoint(place / "ck").state("count") as counts:
        assert sum(count for _, count in counts.items()) == 3 * 1000


@pytest.mark.soak
def test_a_control_port_that_slots_cant_reach_ends_the_query_at_once(own_player, place):
    found = own_player.ask("tests.spark.living", work=str(place), case="unreachable")
    error = found["error"]
    assert re.match(r"TransactionError: the driver at 127\.0\.0\.1:\d+ can't be reached \(Connection refused\)", error)
    assert "topology.control.port; open that port in the firewall" in error
    assert found["runs"] == 1, found
    assert found["right_when_started_again"]


def test_a_control_port_that_is_taken_is_refused_by_submit(told):
    found = told("taken_port")
    assert found["refused"].startswith(f"ConfigError: the driver can't listen at 127.0.0.1:{found['port']}")
    assert "choose another topology.control.port, or 0" in found["refused"]
    assert not found["begun"], "nothing was changed"
    assert found["right"], "of itself, when it is free"


def test_slots_that_cant_reach_the_driver_after_others_did_are_tried_again(told):
    found = told("unreachable_for_a_while")
    assert (found["error"], found["right"]) == (None, True)
    assert found["runs"] >= 3


def test_a_row_that_is_larger_than_any_buffer(told):
    found = told("large_row")
    assert found["error"] is None
    assert found["bytes"] == [living.LARGE, 3]


@pytest.mark.soak
def test_a_spout_that_emits_without_end_is_timed_out_in_place_and_takes_no_memory(told):
    found = told("endless_spout")
    assert found["error"].startswith("TransactionTimeoutError: transaction 1 failed 2 times")
    assert "it took longer than topology.transaction.timeout.secs (5 s), waiting for" in found["error"]
    assert found["runs"] == 1
    assert found["emitted_bytes"] > living.GROWN_MAX, "more than the worker may grow by"
    assert found["grown_bytes"] < living.GROWN_MAX


def test_a_bolt_that_does_not_return_loses_its_worker_and_nothing_else(told):
    found = told("bolt_that_hangs")
    assert (found["error"], found["right"]) == (None, True)
    assert found["runs"] >= 2
    assert any("it took longer than topology.transaction.timeout.secs" in reason for reason in found["reasons"])


@pytest.mark.parametrize("kind", ["planned", pytest.param("tracked", marks=pytest.mark.soak)])
def test_an_idle_topology_gets_its_ticks_and_nothing_else(told, kind):
    found = told(f"{kind}_that_ticks")
    periods = found["periods"]
    assert found["ticks"] >= 3
    ended = sum(before != after for before, after in itertools.pairwise(periods))
    assert found["ticks"] - ended in (0, 1)  # the first transaction may have one: it counts from the driver's start
    # The first ones read, and tell a Spout that its message was acked.
    assert len(periods) <= found["ticks"] + (2 if kind == "planned" else 4)
    assert found["rows"] == 1


@pytest.mark.soak
def test_two_topologies_in_one_session(told):
    found = told("two_topologies")
    assert [each["error"] for each in found["both"]] == [None, None]
    assert [each["right"] for each in found["both"]] == [True, True]
    assert (
        "need 4 slots of Spark. local[12] has 12, of which other topologies hold 10. Call spark.stop(), and take"
        in found["third"]
    )
    assert "or local[14] or more" in found["third"]
    assert not found["third_has_begun"]
