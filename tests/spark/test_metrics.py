"""Metrics of a real run: time that adds up to the wall clock, a bottleneck by name, and Prometheus over HTTP."""

import socket
import time
from contextlib import closing
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from statefx import BasicBolt, StatefulBolt, TopologyBuilder, TransactionalSpout, submit
from statefx.errors import ConfigError, FencedError
from statefx.protocol.reports import ACTIVITIES
from tests.metrics.reading import value, values
from tests.ports import free_port
from tests.spark.running import BOUND_SECS, reasons

pytestmark = pytest.mark.slow


class Numbers(TransactionalSpout):
    """A few rows in each transaction, without an end."""

    outputFields = "value long"

    def initializeTransaction(self, txid, previous):
        return txid

    def emitBatch(self, attempt, metadata, collector):
        for number in range(20):
            collector.emit((number,))


class Slow(BasicBolt):
    outputFields = "value long"

    def open(self, context):
        self.seen = context.metrics.counter("seen")

    def execute(self, tup, collector):
        end = time.perf_counter() + 0.002
        while time.perf_counter() < end:
            pass
        self.seen.inc()
        collector.emit(tuple(tup))


class Keep(StatefulBolt):
    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put(tup.value, self.state.get(tup.value, 0) + 1)


def topology(name="measured"):
    builder = TopologyBuilder(name)
    builder.setSpout("numbers", Numbers())
    builder.setBolt("slow", Slow(), parallelism=2).shuffleGrouping("numbers")
    builder.setBolt("keep", Keep()).globalGrouping("slow")
    return builder.createTopology()


def until(query, txid):
    end = time.monotonic() + BOUND_SECS
    while (query.lastProgress or {"txid": 0})["txid"] < txid:
        assert query.isActive
        assert time.monotonic() < end, query.status
    return query.lastProgress["txid"]


def times(query):
    found = values(query.metrics, "statefx_task_time_seconds_total", "component", "task", "activity")
    tasks = {(component, task) for component, task, _ in found}
    return {task: {activity: found[*task, activity] for activity in ACTIVITIES} for task in tasks}


@pytest.mark.soak
def test_time_of_tasks_adds_up_and_names_the_bottleneck(spark, place):
    config = {"topology.metrics.port": 0, "topology.state.checkpoint.interval.ms": 0}
    query = submit(topology(), spark, place / "ck", config)
    try:
        txid = until(query, 5)
        began, before = time.monotonic(), times(query)
        until(query, txid + 60)
        ended, after = time.monotonic(), times(query)
        with closing(urlopen(query.metricsUrl, timeout=10)) as answer:
            families = {family.name: family for family in parse(answer.read().decode())}
        activity = query._coordinator.progress.measures.registry.activity(10)
    finally:
        query.stop()
    assert set(after) == {("numbers", "0"), ("slow", "0"), ("slow", "1"), ("keep", "0")}
    wall = ended - began
    for task, spent in after.items():
        assert sum(spent.values()) - sum(before[task].values()) == pytest.approx(wall, rel=0.1, abs=0.1)
    shares = {
        component: sum(each["busy"] for each in tasks.values()) / len(tasks) for component, tasks in activity.items()
    }
    assert max(shares, key=shares.__getitem__) == "slow"
    assert all(sum(each.values()) == pytest.approx(1) for tasks in activity.values() for each in tasks.values())
    assert {"statefx_transactions", "statefx_task_time_seconds", "seen"} <= families.keys()
    found = query.metrics
    txid = query.lastProgress["txid"]
    assert value(found, "seen_total", component="slow") == 20 * txid
    assert value(found, "statefx_runs_total") == 1
    assert value(found, "statefx_last_commit_timestamp_seconds") == pytest.approx(time.time(), abs=60)
    assert reasons(place / "ck") == []

    query = submit(topology(), spark, place / "ck")  # another driver: counters go on
    try:
        until(query, txid + 1)
    finally:
        query.stop()
    assert query.metricsUrl is None
    assert value(query.metrics, "seen_total", component="slow") == 20 * query.lastProgress["txid"]


@pytest.mark.soak
def test_an_idle_topology_counts_idle_time(spark, place):
    class Once(Numbers):
        def initializeTransaction(self, txid, previous):
            return txid if txid == 1 else None

    builder = TopologyBuilder("once")
    builder.setSpout("numbers", Once())
    builder.setBolt("keep", Keep()).globalGrouping("numbers")
    query = submit(builder.createTopology(), spark, place / "ck")
    try:
        until(query, 1)
        began, before = time.monotonic(), times(query)
        while times(query)["keep", "0"]["idle"] - before["keep", "0"]["idle"] < 0.5:
            assert time.monotonic() < began + BOUND_SECS
        assert time.monotonic() - began == pytest.approx(0.5, abs=0.3)
        assert times(query)["keep", "0"]["busy"] == before["keep", "0"]["busy"]
    finally:
        query.stop()


class Waits(BasicBolt):
    outputFields = "value long"

    def execute(self, tup, collector):
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            pass


def test_a_long_attempt_shows_its_activity_before_it_ends(spark, place):
    builder = TopologyBuilder("long")
    builder.setSpout("numbers", Numbers())
    builder.setBolt("waits", Waits()).globalGrouping("numbers")
    query = submit(builder.createTopology(), spark, place / "ck")
    try:
        end = time.monotonic() + BOUND_SECS
        while (
            values(query.metrics, "statefx_task_time_seconds_total", "activity", "component").get(("busy", "waits"), 0)
            < 1
        ):
            assert time.monotonic() < end
            assert query.lastProgress is None, "the first transaction takes 6 seconds"
    finally:
        query.stop(timeout=0)


def test_a_port_that_is_taken_is_refused_before_anything_is_changed(spark, place):
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"{port}.*another port, or 0"):
            submit(topology("counting"), spark, place / "ck", {"topology.metrics.port": port})
    assert not (place / "ck").exists()


def test_a_query_that_is_submitted_again_has_the_port_of_the_one_that_it_ends(spark, place):
    """As a cell of a notebook that is run again."""
    config = {"topology.metrics.port": free_port()}
    first = submit(topology("counting"), spark, place / "ck", config)
    again = submit(topology("counting"), spark, place / "ck", config)
    try:
        with pytest.raises(FencedError):
            first.awaitTermination(BOUND_SECS)
        until(again, 1)
        with closing(urlopen(again.metricsUrl, timeout=10)) as answer:
            assert b'statefx_generation{topology="counting"} 2.0' in answer.read()
    finally:
        again.stop()
