"""What becomes of unusual values in messages of a KafkaSink, and that nothing is decided which Kafka then refuses."""

import itertools
import json
import os
import random
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from statefx import TopologyBuilder
from statefx.connectors.kafka import KafkaSink
from statefx.errors import BoltError, SinkError
from statefx.testing import TopologyTester, rows
from tests.kafka.topics import read

pytestmark = pytest.mark.slow

NOW = datetime.now(UTC)


def started(kafka, place, topic, fields, **arguments):
    builder = TopologyBuilder("rows")
    builder.setStream("lines", rows(fields))
    builder.setSink("out", KafkaSink(kafka.address, topic, **arguments)).shuffleGrouping("lines")
    return TopologyTester(builder.createTopology(), place / topic)


def published(kafka, place, topic, fields, *some, **arguments):
    with started(kafka, place, topic, fields, **arguments) as running:
        running.send({"lines": list(some)})
    return read(kafka, topic)


def test_values_that_json_lacks_are_texts_that_every_reader_of_json_takes(kafka, tmp_path):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    fields = (
        "x double, xs array<float>, s struct<y:double,z:string>, m map<string,double>, n decimal(20,4), d date, "
        "t timestamp, l timestamp_ntz, b binary, w string"
    )
    zoned = datetime(2026, 1, 2, 5, 4, 5, 6, timezone(timedelta(hours=2)))
    row = (
        float("nan"), [1.5, float("inf"), None], (float("-inf"), None), {"a": float("nan"), "b": 1.0},
        Decimal("1.2500"),
        date(2026, 1, 2), zoned, datetime(2026, 1, 2), b"\xff\0", "ä\u2028\0",
    )  # fmt: skip
    (found,) = published(kafka, tmp_path, kafka.topic(), fields, row, key=["x", "m"])
    assert json.loads(found.value(), parse_constant=refuse) == {
        "x": "NaN", "xs": [1.5, "Infinity", None], "s": {"y": "-Infinity"}, "m": {"a": "NaN", "b": 1.0},
        "n": "1.2500", "d": "2026-01-02", "t": "2026-01-02T03:04:05.000006Z", "l": "2026-01-02T00:00:00",
        "b": "/wA=", "w": "ä\u2028\0",
    }  # fmt: skip
    assert json.loads(found.key(), parse_constant=refuse) == ["NaN", {"a": "NaN", "b": 1.0}]


@pytest.mark.parametrize(
    ("kind", "value", "key"),
    [
        ("double", float("nan"), b"NaN"),
        ("decimal(5,2)", Decimal("1.50"), b"1.50"),
        ("date", date(2026, 1, 2), b"2026-01-02"),
    ],
)
def test_a_key_of_another_type_is_its_text_without_quotes(kafka, tmp_path, kind, value, key):
    found = published(
        kafka, tmp_path, kafka.topic(), f"k {kind}, v string", (value, "x"), (None, "y"), key="k", value="v"
    )
    assert {each.value(): each.key() for each in found} == {b"x": key, b"y": None}


def test_empty_is_not_null(kafka, tmp_path):
    fields = "k string, v binary, h map<string,string>"
    some = [("", b"", {"": ""}), (None, None, None), ("a", b"", {})]
    found = published(kafka, tmp_path, kafka.topic(), fields, *some, key="k", value="v", headers="h")
    assert [(each.key(), each.value(), each.headers()) for each in found] == [
        (b"", b"", [("", b"")]),
        (None, None, None),
        (b"a", b"", None),
    ]


def test_a_row_of_nulls_is_an_empty_object_and_no_tombstone(kafka, tmp_path):
    (found,) = published(kafka, tmp_path, kafka.topic(), "k string, v string", (None, None), key="k")
    assert (found.key(), found.value()) == (None, b"{}")


def test_half_a_surrogate_pair_is_refused_before_the_decision(kafka, tmp_path):
    topic = kafka.topic()
    with started(kafka, tmp_path, topic, "v string") as running, pytest.raises(Exception, match=r"surrogates|utf-8"):
        running.send({"lines": [("\ud800",)]})
    assert read(kafka, topic, "read_uncommitted") == []


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("settings", "arguments", "row", "told"),
    [
        ({}, {"partition": "p"}, {"p": 5_000_000_000}, "for partition 5000000000, and the topic has 1"),
        ({}, {"timestamp": "at"}, {"at": datetime(1970, 1, 1, tzinfo=UTC)}, r"is 1970-01-01T00:00:00\.000Z, and Kafka"),
        ({}, {"timestamp": "at"}, {"at": datetime(1969, 1, 1, tzinfo=UTC)}, r"is 1969-01-01T00:00:00\.000Z, and"),
        ({}, {"timestamp": "at"}, {"at": NOW + timedelta(hours=2)}, r"3600 s ahead: raise its message\.timest"),
        (
            {"message_timestamp_before_max_ms": 60_000},
            {"timestamp": "at"},
            {"at": NOW - timedelta(hours=1)},
            r"over 60 s old: raise its message\.timestamp\.before",
        ),
        ({"cleanup_policy": "compact"}, {"key": "k"}, {"k": None}, "no key, and the topic is compacted: leave out"),
    ],
)  # fmt: skip
def test_what_the_topic_would_refuse_fails_its_transaction_before_the_decision(
    kafka, tmp_path, settings, arguments, row, told
):
    topic = kafka.topic(**settings)
    given = {"k": "a", "v": "x", "at": NOW, "p": 0} | row
    with started(kafka, tmp_path, topic, "k string, v string, at timestamp, p long", value="v", **arguments) as running:
        with pytest.raises(BoltError, match=told):
            running.send({"lines": [tuple(given.values())]})
        assert running.txid == 0
    assert read(kafka, topic, "read_uncommitted") == []


def test_a_sink_without_keys_is_refused_by_a_compacted_topic_at_the_start(kafka, tmp_path):
    with pytest.raises(SinkError, match="takes no message without a key: give KafkaSink key="):
        started(kafka, tmp_path, kafka.topic(cleanup_policy="compact,delete"), "v string")


def test_a_topic_that_sets_times_itself_takes_any(kafka, tmp_path):
    topic = kafka.topic(message_timestamp_type="LogAppendTime")
    (found,) = published(
        kafka, tmp_path, topic, "v string, at timestamp", ("a", NOW + timedelta(days=9)), timestamp="at"
    )
    assert found.timestamp()[1] < (NOW + timedelta(hours=1)).timestamp() * 1000


def test_limits_that_are_raised_while_the_topology_runs_hold_at_once(kafka, tmp_path):
    topic = kafka.topic(max_message_bytes=1000)
    with started(kafka, tmp_path, topic, "v string, p int", value="v", partition="p") as running:
        running.send({"lines": [("x" * 800, 0)]})
        kafka.alter(topic, max_message_bytes=5000)
        kafka.add_partitions(topic, 2)
        running.send({"lines": [("x" * 4000, 1)]})
    assert [(each.partition(), len(each.value())) for each in read(kafka, topic)] == [(0, 800), (1, 4000)]


USUAL = [("gzip", "none"), ("producer", "zstd")]
PACKED = [
    pytest.param(pair, id=" ".join(pair), marks=[] if pair in USUAL else pytest.mark.soak)
    for pair in itertools.product(["producer", "gzip", "snappy", "lz4", "zstd"], ["none", "zstd"])
]


@pytest.mark.daily(1)
@pytest.mark.parametrize("packed", PACKED)
def test_whatever_is_not_refused_is_published(kafka, tmp_path, packed):
    """Rows up to the last byte, which can't be compressed; a broker that packs them anew looks at their size again."""
    repacked, compression = packed
    rng = random.Random(" ".join(packed))
    for limit in (400, 3_000, 300_000):
        topic = kafka.topic(max_message_bytes=limit, compression_type=repacked)
        most = limit - 100 - (0 if repacked == "producer" else 64 + limit // 1024)
        values = [most - 11, most - 12, most - 20] + [rng.randrange(limit // 2) for _ in range(12)]
        named = {"key": "k", "value": "v", "config": {"compression.type": compression}}
        with started(kafka, tmp_path, topic, "k string, v binary", **named) as running:
            running.send({"lines": [("k", os.urandom(size)) for size in values]})
            running.send({"lines": [("k", os.urandom(most - 1))]})
            with pytest.raises(BoltError, match=r"max\.message\.bytes, or make the row smaller"):
                running.send({"lines": [("k", os.urandom(most))]})
        assert len(read(kafka, topic)) == len(values) + 1
