"""Ten sick topologies on real Spark, and that `why` names the sickness of each before all else.

Each is so sick that it is the first on a machine that is full, too: what it waits for takes most of the time, or there
is hardly a row beside it. What depends on how full the machine is stands in a table of figures, in tests/test_why.py.
"""

import os
import random
import socketserver
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from statefx import (
    BasicBolt,
    Checkpoint,
    PartitionedTransactionalSpout,
    Stateful,
    StatefulBolt,
    TopologyBuilder,
    submit,
)
from statefx.connectors import ForeachTransactionSink
from statefx.connectors.kafka import KafkaSpout
from tests.spark.running import wait_for

BOUND_SECS = 120
ROWS, FEW = 100, 2
"""Of each of two partitions in a transaction; few cost next to nothing."""

START = datetime(2026, 1, 1, tzinfo=UTC)


class Endless(PartitionedTransactionalSpout):
    """Rows without end: of `keys` keys, or most of them of the first one."""

    outputFields = "number long, at timestamp"

    def __init__(self, keys=1000, hot=0.0, idle=None, rows=ROWS):
        self.keys, self.hot, self.idle, self.rows = keys, hot, idle, rows

    def numPartitions(self):
        return 2

    def planPartitionBatch(self, partition, lastMetadata):
        start = 0 if lastMetadata is None else lastMetadata["stop"]
        if partition == self.idle and start:
            return None
        return {"start": start, "stop": start + self.rows}

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        for number in range(metadata["start"], metadata["stop"]):
            key = 0 if random.random() < self.hot else number % self.keys
            collector.emit((key, START + timedelta(minutes=number)))


class Light(StatefulBolt):
    def initState(self, state):
        self.counts = state

    def execute(self, tup, collector):
        self.counts.put(tup.number, self.counts.get(tup.number, 0) + 1)


class Slow(Light):
    def execute(self, tup, collector):
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass


class AsksServer(BasicBolt):
    def __init__(self, port):
        self.port = port

    def execute(self, tup, collector):
        import socket

        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.recv(1)


class Collects(BasicBolt):
    """Makes cycles, which the collector alone frees, beside many objects that it looks at each time."""

    def open(self, context):
        import gc

        self.held = [[] for _ in range(30_000)]
        gc.set_threshold(700, 2, 2)

    def execute(self, tup, collector):
        for _ in range(3000):
            one = {}
            one["self"] = one


class ReadsMuch(Stateful, BasicBolt):
    """Reads at random from more state than its cache holds."""

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        if tup.number not in self.state:
            for each in range(20):
                self.state.put((tup.number, each), os.urandom(20_000))
            self.state.put(tup.number, 1)
        for _ in range(20):
            self.state.get((random.randrange(1000), random.randrange(20)))


class Answers(socketserver.BaseRequestHandler):
    def handle(self):
        threading.Event().wait(0.05)
        self.request.sendall(b"x")


@contextmanager
def late_server():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answers) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def topology(spout, bolt, **more):
    builder = TopologyBuilder("sick")
    builder.setSpout("numbers", spout, parallelism=2, **more)
    builder.setBolt("bolt", bolt, parallelism=2).fieldsGrouping("numbers", "number")
    return builder.createTopology()


@contextmanager
def running(topology, spark, place, config=None, trigger=None):
    query = submit(topology, spark, place / "ck", config, trigger or {"processingTime": "0 seconds"})
    try:
        yield query
    finally:
        query.stop()


def named(query, name, component=None):
    """Wait until `why` names a sickness first, and return that."""
    said = {}

    def first():
        found = query.why()
        said["last"] = f"{found}\n{query.observation()['components']}"
        return found.diagnoses and found.diagnoses[0].name == name and found.diagnoses[0]

    try:
        diagnosis = wait_for(first, f"{name} to be named first", BOUND_SECS)
    except AssertionError as error:
        raise AssertionError(f"{error}; the last answer: {said['last']}") from None
    assert component is None or diagnosis.component == component
    assert diagnosis.remedy
    return diagnosis


def test_a_slow_bolt_is_named_with_those_that_wait_for_it(spark, place):
    with running(topology(Endless(), Slow()), spark, place) as query:
        found = named(query, "slow bolt", "bolt")
        written = wait_for(lambda: Checkpoint(place / "ck").why().diagnoses, "the document to be written", BOUND_SECS)
        assert written[0].component == "bolt"
    assert "It is its own code" in found.sentence


@pytest.mark.soak
def test_a_hot_key_is_named_with_its_task(spark, place):
    with running(topology(Endless(hot=0.95), Slow()), spark, place) as query:
        found = named(query, "skew", "bolt")
        tasks = query.observation()["components"]["bolt"]["tasks"]
    assert max(tasks, key=lambda task: task["rowsIn"])["task"] == found.task
    assert "partialKeyGrouping" in found.remedy


def publish_slowly(frame, txid):
    threading.Event().wait(1.0)


@pytest.mark.soak
def test_a_slow_sink_is_named(spark, place):
    builder = TopologyBuilder("sick")
    builder.setSpout("numbers", Endless(rows=FEW), parallelism=2)
    builder.setSink("out", ForeachTransactionSink(publish_slowly)).globalGrouping("numbers")
    with running(builder.createTopology(), spark, place) as query:
        found = named(query, "slow sink", "out")
    assert "publishes" in found.sentence


@pytest.mark.soak
def test_an_idle_partition_that_holds_the_watermark_is_named(spark, place, monkeypatch):
    monkeypatch.setattr("statefx.why.BEHIND_SECS", 2.0)
    paced = {"processingTime": "500 milliseconds"}
    with running(topology(Endless(idle=1, rows=FEW), Light(), timestamp="at"), spark, place, trigger=paced) as query:
        found = named(query, "idle partition", "numbers")
    assert "task 1 of" in found.sentence
    assert "idleAfter" in found.remedy


def test_a_disk_whose_fsync_takes_50_ms_is_named(spark, place, monkeypatch):
    fsync = os.fsync

    def slow(file):
        threading.Event().wait(0.05)
        fsync(file)

    monkeypatch.setattr("os.fsync", slow)
    with running(topology(Endless(rows=FEW), Light()), spark, place) as query:
        found = named(query, "slow disk")
    assert "durable" in found.sentence


@pytest.mark.soak
def test_too_few_slots_are_named(spark, place):
    context = spark.sparkContext
    sleeping = spark.range(0, 31, 1, 31).selectExpr("java_method('java.lang.Thread', 'sleep', cast(60000 as bigint))")

    def hold():
        context.setJobGroup("holds-slots", "holds slots", True)
        with pytest.raises(Exception, match="cancel"):
            sleeping.collect()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        wait_for(lambda: len(context.statusTracker().getActiveStageIds()) > 0, "the slots to be taken")
        begun = {}
        starting = threading.Thread(
            target=lambda: begun.update(query=submit(topology(Endless(), Light()), spark, place / "ck"))
        )
        starting.start()
        found = wait_for(
            lambda: (
                next((each for each in Checkpoint(place / "ck").why().diagnoses if each.name == "slots"), None)
                if (place / "ck" / "observed.json").exists()
                else None
            ),
            "the want of slots to be named",
            BOUND_SECS,
        )
        assert "slots" in found.remedy
    finally:
        context.cancelJobGroup("holds-slots")
        thread.join(BOUND_SECS)
    starting.join(BOUND_SECS)
    begun["query"].stop()


@pytest.mark.soak
def test_a_bolt_that_waits_for_the_network_is_told_from_a_slow_one(spark, place):
    with late_server() as port, running(topology(Endless(rows=20), AsksServer(port)), spark, place) as query:
        found = named(query, "waits outside", "bolt")
    assert "network" in found.sentence


@pytest.mark.soak
def test_state_that_does_not_fit_its_cache_is_named(spark, place):
    config = {"topology.state.provider": "rocksdb", "topology.state.provider.config": {"hot_cache_mb": 0}}
    with running(topology(Endless(), ReadsMuch()), spark, place, config) as query:
        found = named(query, "cache", "bolt")
    assert "hot_cache_mb" in found.remedy


@pytest.mark.soak
def test_the_collector_of_garbage_is_named(spark, place):
    with running(topology(Endless(), Collects()), spark, place) as query:
        found = named(query, "garbage collection", "bolt")
    assert "gc.freeze" in found.remedy


class Drop(BasicBolt):
    def execute(self, tup, collector):
        pass


@pytest.mark.soak
def test_a_quota_of_kafka_that_is_full_is_named(spark, kafka, place):
    topic = kafka.topic()
    kafka.send(topic, *[os.urandom(1000)] * 40_000)
    kafka.limit_consumers("limited", 1_000_000)
    spout = KafkaSpout(kafka.address, topic, columns=["value"], maxRows=1000, config={"client.id": "limited"})
    builder = TopologyBuilder("sick")
    builder.setSpout("records", spout)
    builder.setBolt("drop", Drop()).shuffleGrouping("records")
    with running(builder.createTopology(), spark, place) as query:
        found = named(query, "quota", "records")
    assert "consumer_byte_rate" in found.remedy


def test_a_topology_that_is_well_is_accused_of_nothing(spark, place):
    """Whatever the machine is: a full one makes a bolt slow and a disk slow, and nothing else."""
    with running(topology(Endless(), Light()), spark, place) as query:
        for rows in (1, 500, 2000, 10_000):  # also at its start, of which little is known
            wait_for(lambda rows=rows: query.observation()["components"]["bolt"]["rowsIn"] > rows, "rows")
            found = query.why()
            assert {each.name for each in found.diagnoses} <= {"slow bolt", "slow spout", "slow disk"}, str(found)
