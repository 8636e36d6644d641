"""KafkaSink against a real broker: the contract of sinks, what a message is made of, and what is refused."""

import json
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from statefx import BasicBolt, TopologyBuilder
from statefx.connectors.kafka import KafkaSink, clients
from statefx.connectors.kafka.topic import Questions
from statefx.errors import BoltError, ConfigError, SinkError, TopologyError
from statefx.testing import TopologyTester, rows
from statefx.testing.sink_contract import SinkContract
from tests.kafka.topics import STEPS, read, steps
from tests.testing.lives import seeds

pytestmark = pytest.mark.slow


# What comes after one step is what comes before the next; a look at the marker changes nothing, but may be old.
PAUSES = [*(f"before {step}" for step in STEPS), "after _commit"]
CRASHES = [moment for moment in PAUSES if moment != "before _stable_marker"]


class TestContract(SinkContract):
    stride = 7

    @pytest.fixture(autouse=True)
    def broker(self, kafka, monkeypatch, quick):
        monkeypatch.setattr("os.fsync", lambda descriptor: None)
        self.kafka, self.topics = kafka, {}
        self.first = 1 + next(seeds(0)) % self.stride
        yield
        for deleted in kafka.admin.delete_topics([*self.topics.values()]).values():
            deleted.result(30)

    def make(self, place):
        if place not in self.topics:
            self.topics[place] = self.kafka.topic(partitions=2)
        return KafkaSink(self.kafka.address, self.topics[place], key="word", value="word")

    def read(self, sink):
        return [message.value().decode() for message in read(self.kafka, sink.publisher.topic)]

    @contextmanager
    def steps(self, step):
        with super().steps(step), steps(lambda now: now in CRASHES and step()):
            yield

    @contextmanager
    def pauses(self, step):
        with super().steps(step), steps(lambda now: now in PAUSES and step()):
            yield


class Pass(BasicBolt):
    def __init__(self, fields):
        self.outputFields = fields

    def execute(self, tup, collector):
        collector.emit(tuple(tup))


def topology(sink, fields):
    builder = TopologyBuilder("rows")
    builder.setStream("lines", rows(fields))
    builder.setBolt("pass", Pass(fields)).shuffleGrouping("lines")
    builder.setSink("out", sink).shuffleGrouping("pass")
    return builder.createTopology()


def published(kafka, place, fields, *some, **arguments):
    """Return the messages that a topology has published of some rows."""
    topic = kafka.topic(partitions=2, retention_ms=-1)  # by default a message of last year would be deleted at once
    sink = KafkaSink(kafka.address, topic, **arguments)
    with TopologyTester(topology(sink, fields), place / topic) as tester:
        tester.send({"lines": list(some)})
    return read(kafka, topic)


# ---- what a message is made of


def test_a_row_is_a_json_object_and_keys_are_text(kafka, tmp_path):
    found = published(kafka, tmp_path, "id long, name string", (7, "ann"), (8, None), (None, "x"), key="id")
    assert {each.key(): json.loads(each.value()) for each in found} == {
        b"7": {"id": 7, "name": "ann"},
        b"8": {"id": 8},
        None: {"name": "x"},
    }


def test_several_fields_of_a_key_are_a_json_array(kafka, tmp_path):
    (found,) = published(kafka, tmp_path, "id long, name string", (7, "ann"), key=["name", "id"])
    assert found.key() == b'["ann",7]'


def test_bytes_and_texts_are_published_as_they_are_and_null_is_a_tombstone(kafka, tmp_path):
    found = published(kafka, tmp_path, "k binary, v string", (b"\0\xff", "ä"), (b"b", None), key="k", value="v")
    assert {each.key(): each.value() for each in found} == {b"\0\xff": "ä".encode(), b"b": None}


def test_headers_time_and_partition_come_from_fields_and_are_not_in_the_json(kafka, tmp_path):
    fields = "word string, h map<string,binary>, at timestamp, p int"
    at = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
    given = [("a", {"x": b"1", "y": None}, at, 1), ("b", None, None, None), ("c", {}, at, 0)]
    named = {"headers": "h", "timestamp": "at", "partition": "p"}
    found = {json.loads(each.value())["word"]: each for each in published(kafka, tmp_path, fields, *given, **named)}
    assert json.loads(found["a"].value()) == {"word": "a"}
    assert found["a"].headers() == [("x", b"1"), ("y", None)]
    assert found["a"].timestamp()[1] == at.timestamp() * 1000
    assert (found["a"].partition(), found["c"].partition()) == (1, 0)
    assert not found["b"].headers()
    assert found["b"].timestamp()[1] > at.timestamp() * 1000


def test_rows_of_a_key_are_in_the_partition_where_producers_of_java_put_it(kafka, tmp_path):
    topic = kafka.topic(partitions=16)
    sink = KafkaSink(kafka.address, topic, key="word", value="word")
    with TopologyTester(topology(sink, "word string"), tmp_path) as tester:
        tester.send({"lines": [("ann",), ("bob",), ("ann",)]})
    # murmur2, as Java's DefaultPartitioner has it: "ann" 0x54b8a2c7 and "bob" by Kafka's own Utils.murmur2.
    assert {each.value(): each.partition() for each in read(kafka, topic)} == {
        word.encode(): (murmur2(word.encode()) & 0x7FFFFFFF) % 16 for word in ("ann", "bob")
    }


def murmur2(data):
    """Return MurmurHash2 by Austin Appleby, 32 bits, with the seed that Kafka's clients in Java use."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    if data[whole:]:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return h ^ (h >> 15)


# ---- what is refused


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"servers": ""}, "'host:9092'"),
        ({"topic": "a b"}, "name of a topic"),
        ({"config": {"acks": "1"}}, "'acks': a transaction of Kafka needs all"),
        ({"config": {"transactional.id": "x"}}, "give transactionalId"),
        ({"config": {"message.timeout.ms": 1}}, "give transactionTimeoutSecs"),
        ({"config": {"log.connection.close": False}}, "must hear of each connection that is lost"),
        ({"transactionTimeoutSecs": 0}, "from 1 to"),
        ({"transactionTimeoutSecs": "60"}, "a number from 1 to 86400, not '60'"),
        ({"key": 3}, "key is a field, or several .* not 3"),
        ({"key": ("a", None)}, "key is a field, or several"),
        ({"value": b"v"}, "value is the name of a field"),
        ({"transactionalId": ""}, "transactionalId"),
    ],
)
def test_arguments_that_can_not_be_used(arguments, told):
    with pytest.raises(ConfigError, match=told):
        KafkaSink(**{"servers": "127.0.0.1:1", "topic": "words", **arguments})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"key": "id"}, "key is 'id'; its rows have word, n"),
        ({"value": "n"}, "value is a string or binary; field 'n' is int64"),
        ({"headers": "word"}, "headers is a map"),
        ({"partition": "word"}, "partition is a whole number"),
        ({"timestamp": "n"}, "timestamp is a timestamp"),
    ],
)
def test_fields_that_do_not_fit(arguments, told):
    schema = pa.schema([("word", pa.string()), ("n", pa.int64())])
    with pytest.raises(TopologyError, match=told):
        KafkaSink("127.0.0.1:1", "words", **arguments).check_schema(schema)


def test_two_sinks_of_one_topic_need_two_transactional_ids(kafka, tmp_path):
    topic = kafka.topic()

    def both(**second):
        builder = TopologyBuilder("rows")
        builder.setStream("lines", rows("word string"))
        builder.setSink("one", KafkaSink(kafka.address, topic, value="word")).shuffleGrouping("lines")
        builder.setSink("two", KafkaSink(kafka.address, topic, value="word", **second)).shuffleGrouping("lines")
        return builder.createTopology()

    with pytest.raises(TopologyError, match="both write to"):
        both()
    with TopologyTester(both(transactionalId="second"), tmp_path) as tester:
        tester.send({"lines": [("a",)]})
    assert [each.value() for each in read(kafka, topic)] == [b"a", b"a"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_two_sinks_of_different_topics_need_two_transactional_ids(kafka, host):
    builder = TopologyBuilder("rows")
    builder.setStream("lines", rows("word string"))
    for topic, servers in (("one", kafka.address), ("two", f"{host}:{kafka.port}")):
        sink = KafkaSink(servers, topic, transactionalId="mine")
        builder.setSink(topic, sink).shuffleGrouping("lines")
    with pytest.raises(TopologyError, match="'one' and 'two' both have the transactionalId 'mine'"):
        builder.createTopology()


def test_what_a_broker_has_said_tells_more_than_a_last_call_that_had_no_time(monkeypatch):
    monkeypatch.setattr(clients, "BELIEVED_SECS", 0.2)
    codes = iter(["UNKNOWN_TOPIC_OR_PART"])

    def call(secs):
        if (code := next(codes, None)) is None:
            threading.Event().wait(secs + 0.01)
            code = "_TIMED_OUT"
        raise KafkaException(KafkaError(getattr(KafkaError, code)))

    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
        clients.patiently(call, 60)


def test_a_topic_that_is_not_there_is_told_at_the_start(kafka, tmp_path, monkeypatch):
    monkeypatch.setattr(clients, "BELIEVED_SECS", 0.1)
    sink = KafkaSink(kafka.address, "nowhere", value="word")
    with pytest.raises(SinkError, match="make topic 'nowhere' first"):
        TopologyTester(topology(sink, "word string"), tmp_path)
    assert "nowhere" not in kafka.admin.list_topics(timeout=30).topics, "the sink has made it"


def test_a_transaction_that_the_broker_does_not_allow_so_long_is_told_at_the_start(kafka, tmp_path):
    sink = KafkaSink(kafka.address, kafka.topic(), value="word", transactionTimeoutSecs=3600)
    with pytest.raises(SinkError, match=r"allows 900 s: lower it, or raise"):
        TopologyTester(topology(sink, "word string"), tmp_path)


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("arguments", "row", "told"),
    [
        ({}, ("k", "x" * 900, None, 0), r"with key b'k' has 1001 bytes .* takes 1000: raise the topic's"),
        ({"headers": "h"}, ("k", "x", {"a": b"x" * 900}, 0), "takes 1000"),
        ({"partition": "p"}, ("k", "x", None, 2), "for partition 2, and the topic has 2"),
        ({"partition": "p"}, ("k", "x", None, -1), "for partition -1"),
    ],
)
def test_a_message_that_the_topic_refuses_fails_its_transaction_before_the_decision(
    kafka, tmp_path, arguments, row, told
):
    topic = kafka.topic(partitions=2, max_message_bytes=1000)
    fields = "k string, v string, h map<string,binary>, p int"
    sink = KafkaSink(kafka.address, topic, key="k", value="v", **arguments)
    with TopologyTester(topology(sink, fields), tmp_path) as tester:
        tester.send({"lines": [("a", "1", None, 0)]})
        with pytest.raises(BoltError, match=told):
            tester.send({"lines": [row]})
    assert [each.value() for each in read(kafka, topic, "read_uncommitted")] == [b"1"]


def test_a_message_as_large_as_the_topic_allows_is_published(kafka, tmp_path):
    topic = kafka.topic(max_message_bytes=2_000_000)
    sink = KafkaSink(kafka.address, topic, value="v")
    with TopologyTester(topology(sink, "v string"), tmp_path) as tester:
        tester.send({"lines": [("x" * (2_000_000 - 100),)]})
    assert [len(each.value()) for each in read(kafka, topic)] == [2_000_000 - 100]


def test_brokers_that_do_not_count_themselves_yet_do_not_say_how_long_a_transaction_may_be():
    """One that has just started answers with no broker at all, for a moment that can't be hit."""
    questions = Questions(KafkaSink("localhost", "words").publisher)
    questions._admin = SimpleNamespace(list_topics=lambda timeout: SimpleNamespace(brokers={}))
    assert questions.timeout_ms_max() is None
