"""Spouts that a test feeds: each kind is wired, timed, acked and recovered as in production."""

from datetime import UTC, datetime

import pytest

from statefx import (
    BasicBolt,
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    Spout,
    TopologyBuilder,
    TransactionalSpout,
    WindowedBolt,
)
from statefx.connectors import QueueSpout
from statefx.connectors.kafka import KafkaSpout
from statefx.connectors.queue import PendingAcks
from statefx.errors import ConfigError, FailedException, TopologyError
from statefx.testing import TopologyTester, rows
from statefx.testing.steps import Crash
from statefx_redis import RedisStreamSpout
from tests.bolts import WithState

FIELDS = "word string, at timestamp"


def at(secs):
    return datetime.fromtimestamp(secs, UTC)


class NotOpened:
    """Its source is not there in a test."""

    outputFields = {"default": FIELDS, "refused": "text string"}

    def open(self, context):
        raise AssertionError("the source of a fed spout is never opened")


class Transactional(NotOpened, TransactionalSpout):
    def initializeTransaction(self, txid, previous):
        raise AssertionError

    def emitBatch(self, attempt, metadata, collector):
        raise AssertionError


class Partitions(NotOpened):
    def numPartitions(self):
        raise AssertionError


class Planned(Partitions, PartitionedTransactionalSpout):
    def planPartitionBatch(self, partition, lastMetadata):
        raise AssertionError

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        raise AssertionError


class Partitioned(Partitions, PartitionedTransactionalSpout):
    def emitPartitionBatchNew(self, attempt, collector, partition, lastMetadata):
        raise AssertionError

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        raise AssertionError


class Opaque(Partitions, OpaquePartitionedTransactionalSpout):
    def emitPartitionBatch(self, attempt, collector, partition, lastMetadata):
        raise AssertionError


class Tracked(NotOpened, Spout):
    def nextTuple(self, collector):
        raise AssertionError


class Acks(PendingAcks):
    target = "nowhere#jobs"

    def seal(self, *given):
        raise AssertionError

    acknowledge = sealed = release = seal


class Queue(QueueSpout):
    def __init__(self):
        super().__init__(FIELDS, exactlyOnce=True)

    def connect(self, context):
        raise AssertionError

    def receive(self, limit):
        raise AssertionError

    finish = receive

    def pendingAcks(self):
        return Acks()


REPLAYING = [Transactional, Planned, Partitioned, Opaque]
EXACT = [*REPLAYING, Queue]
KINDS = [*EXACT, Tracked]


class Count(WithState):
    outputFields = "word string, count long"

    def execute(self, tup, collector):
        self.state.put(tup.word, self.state.get(tup.word, 0) + 1)
        collector.emit((tup.word, self.state.get(tup.word)))


class Words(WindowedBolt):
    outputFields = "words array<string>"

    def initWindow(self):
        return []

    def addToWindow(self, value, tup):
        return [*value, tup.word]

    def emitWindow(self, window, value, collector):
        collector.emit((sorted(value),))


class Fails(BasicBolt):
    outputFields = "word string"

    def execute(self, tup, collector):
        if tup.word == "bad":
            raise FailedException("refused")
        collector.emit((tup.word,))


def topology(kind, parallelism=1, **options):
    builder = TopologyBuilder("fed")
    builder.setSpout("jobs", kind(), parallelism, timestamp="at", **options)
    builder.setBolt("count", Count(), 2).fieldsGrouping("jobs", "word")
    builder.setBolt("words", Words().withTumblingWindow("10 seconds")).globalGrouping("jobs")
    return builder.createTopology()


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_take_the_ways_of_the_topology(place, kind, parallelism):
    with TopologyTester(topology(kind, parallelism), place, fed="jobs") as tester:
        sent = tester.send({"jobs": [("to", at(1)), ("be", at(2)), ("to", at(3))]})
        assert sorted(sent.emitted("count")) == [("be", 1), ("to", 1), ("to", 2)]
        assert sent.emitted("words") == []
        sent = tester.send({"jobs": [("or", at(11 + number)) for number in range(3)]})
        assert tester.state("count") == {"to": 2, "be": 1, "or": 3}
        assert tester.emitted("words") == [(["be", "to", "to"],)]
        assert tester.txid == sent.txid
        assert tester.drain() in (0, 1), "nothing is left; the kinds that can't plan may look once more"
        assert tester.state("count") == {"to": 2, "be": 1, "or": 3}


def sent(tester, works):
    for work in works:
        try:
            tester.send(work)
        except Crash:
            tester = tester.restart(crash_at=None)
            tester.drain()
    return tester


def run(tester, works):
    """Run all again after a crash: what was sent before is not sent again."""
    try:
        tester.run(iter(works))
    except Crash:
        tester = tester.restart(crash_at=None)
        tester.run(iter(works))
    return tester


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("live", [sent, run])
@pytest.mark.parametrize("kind", EXACT)
def test_a_crash_at_any_moment_counts_each_row_once(place, kind, live, stride):
    works = [{"jobs": [(word, at(number)) for number, word in enumerate(words)]} for words in ("ab", "bc", "ad")]

    def life(name, crash_at):
        tester = TopologyTester(topology(kind, 2), place / name, fed=["jobs"], crash_at=crash_at)
        begun = len(tester.steps)
        tester = live(tester, works)
        assert tester.state("count") == {"a": 2, "b": 2, "c": 1, "d": 1}
        tester.close()
        return begun, len(tester.steps)

    begun, ended = life("whole", None)
    for moment in range(begun + 1 + EXACT.index(kind) % stride, ended, stride):
        life(str(moment), moment)


def test_acks_and_fails_of_a_spout_are_told(place):
    builder = TopologyBuilder("acked")
    builder.setSpout("jobs", Tracked())
    builder.setBolt("fails", Fails()).shuffleGrouping("jobs")
    builder.setBolt("count", Count(), 2).fieldsGrouping("fails", "word")
    made = builder.createTopology()
    with TopologyTester(made, place, {"topology.max.spout.pending": 2}, fed="jobs") as tester:
        tester.send({"jobs": [(word, at(0)) for word in ("a", "bad", "b", "c")]})
        assert tester.acked("jobs") == [0]
        assert {number: reason.rpartition(": ")[2] for number, reason in tester.failed("jobs").items()} == {
            1: "refused"
        }
        tester.drain()
        assert tester.acked("jobs") == [0, 2, 3]
        assert tester.state("count") == {"a": 1, "b": 1, "c": 1}
        with pytest.raises(ConfigError, match="'fails' is no Spout that is fed"):
            tester.acked("fails")


@pytest.mark.slow
def test_a_restart_hands_on_what_is_not_acked(place):
    tester = TopologyTester(topology(Tracked, 2), place, fed="jobs")
    tester.send({"jobs": [("a", at(0)), ("b", at(0))]})
    tester.when("before COMMITTING(2, 0)", crash)
    with pytest.raises(Crash):
        tester.send({"jobs": [("c", at(0)), ("d", at(0))]})
    with tester.restart() as successor:
        successor.drain()
        assert successor.state("count") == {"a": 1, "b": 1, "c": 1, "d": 1}
        assert sorted(successor.acked("jobs")) == [0, 1, 2, 3]


def crash():
    raise Crash("in the test")


def test_dedup_and_other_streams_are_fed_too(place):
    builder = TopologyBuilder("streams")
    builder.setSpout("jobs", Tracked(), dedup="1 minute")
    builder.setSpout("other", Planned())
    builder.setBolt("count", Count(), 2).fieldsGrouping("jobs", "word")
    builder.setBolt("refused", Texts()).globalGrouping("jobs", stream="refused").globalGrouping(
        "other", stream="refused"
    )
    with TopologyTester(builder.createTopology(), place, fed=("jobs", "other")) as tester:
        tester.send({"jobs": [("a", at(0))], ("jobs", "refused"): [("b",)], ("other", "refused"): [("c",)]})
        assert tester.state("count") == {"a": 1}
        assert tester.state("refused") == {"b": 1, "c": 1}


class Texts(WithState):
    def execute(self, tup, collector):
        self.state.put(tup.text, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", REPLAYING)
def test_another_tester_reads_on_behind_what_is_committed(place, kind):
    with TopologyTester(topology(kind), place, fed="jobs") as tester:
        tester.send({"jobs": [("a", at(0)), ("b", at(0))]})
    with TopologyTester(topology(kind), place, fed="jobs") as tester:
        tester.send({"jobs": [("c", at(0))]})
        assert tester.state("count") == {"a": 1, "b": 1, "c": 1}


def test_mistakes_name_the_call(place):
    with pytest.raises(TopologyError, match="fed names 'job', which is no spout; the spouts are jobs"):
        TopologyTester(topology(Planned), place / "a", fed="job")
    with pytest.raises(TopologyError, match="fed names spouts, as in fed='jobs', or a list of them; not True"):
        TopologyTester(topology(Planned), place / "a", fed=True)
    with TopologyTester(topology(Planned), place / "b", fed="jobs") as tester:
        with pytest.raises(ConfigError, match="no row was sent, and nothing else is due"):
            tester.send({})
        with pytest.raises(ConfigError, match=r"a row of stream .* is a tuple \(word, at\), not \('a',\)"):
            tester.send({"jobs": [("a",)]})
        with pytest.raises(ConfigError, match="spout 'jobs' gets no ack or fail: only a Spout does"):
            tester.acked("jobs")
    builder = TopologyBuilder("unfed")
    builder.setSpout("jobs", MemorySpout())
    builder.setBolt("count", Count()).fieldsGrouping("jobs", "word")
    made = builder.createTopology()
    with TopologyTester(made, place / "c") as tester, pytest.raises(ConfigError, match=r"Tester\(\.\.\., fed='jobs'\)"):
        tester.send({"jobs": [("a",)]})


class MemorySpout(Planned):
    def open(self, context):
        pass

    def numPartitions(self):
        return 0


def test_rows_of_streams_are_sent_as_before(place):
    builder = TopologyBuilder("streams")
    builder.setStream("lines", rows("word string"))
    builder.setBolt("count", Count()).fieldsGrouping("lines", "word")
    with TopologyTester(builder.createTopology(), place) as tester:
        tester.send({"lines": [("a",)]})
        assert tester.state("count") == {"a": 1}


def test_spouts_of_kafka_and_redis_are_fed_without_a_server(place):
    builder = TopologyBuilder("servers")
    builder.setSpout("kafka", KafkaSpout("localhost:1", "jobs", "json", "text string"))
    builder.setSpout("redis", RedisStreamSpout("redis://localhost:1/0", "jobs", "text string", "workers"))
    builder.setBolt("texts", Texts()).globalGrouping("kafka").globalGrouping("redis")
    made = builder.createTopology()
    with TopologyTester(made, place, fed=("kafka", "redis")) as tester:
        fields = made.component("kafka").outputs["default"].names
        record = tuple("a" if name == "text" else None for name in fields)
        tester.send({"kafka": [record], "redis": [("b",)]})
        assert tester.state("texts") == {"a": 1, "b": 1}
        assert tester.acked("redis") == [0]
