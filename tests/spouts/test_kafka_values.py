"""What KafkaSpout makes of records, and which arguments it refuses; without a broker."""

import io
import json
import pickle
import re
from datetime import UTC, date, datetime
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka import Message

from statefx import TopologyBuilder
from statefx.errors import ConfigError, TopologyError
from statefx.spouts import KafkaSpout
from statefx.spouts.kafka.planning import Limits, Shares
from statefx.spouts.kafka.rows import Place, Records

PLACE = Place("t", 3)
AVRO = {
    "type": "record",
    "name": "Payment",
    "fields": [
        {"name": "account", "type": "string"},
        {"name": "amount", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["IN", "OUT"]}},
        {"name": "of", "type": ["null", {"type": "record", "name": "Of", "fields": [{"name": "n", "type": "int"}]}]},
    ],
}
PAYMENT = {
    "account": "a", "amount": Decimal("1.50"), "day": date(2024, 2, 29), "at": datetime(2024, 2, 29, 12, tzinfo=UTC),
    "tags": ["x", "y"], "counts": {"k": 2}, "kind": "OUT", "of": {"n": 7},
}  # fmt: skip


def spout(value="bytes", schema=None, **options):
    return KafkaSpout("localhost:1", "t", value, schema, **{"columns": ("value",), **options})


def records(*values, **more):
    found = Records()
    found.add(
        [Message(topic="t", partition=3, offset=number, value=each, **more) for number, each in enumerate(values)]
    )
    return found


def read(reads, *values, **more):
    batch, refused = reads.rows.of(PLACE, records(*values, **more))
    assert batch.schema == reads.rows.schema
    return batch.to_pylist(), [each.offset for each in refused]


def avro(row, schema=AVRO, frame=b""):
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), row)
    return frame + data.getvalue()


def test_all_columns():
    reads = spout(
        "string", key="string", columns=("key", "value", "topic", "partition", "offset", "timestamp", "headers")
    )
    rows, refused = read(reads, b"v", None, key=b"k", timestamp=(1, 1_500), headers=[("h", b"1"), ("h", None)])
    assert refused == []
    at = datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)
    assert rows[0] == {
        "key": "k", "value": "v", "topic": "t", "partition": 3, "offset": 0, "timestamp": at,
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
    }  # fmt: skip
    assert rows[1]["value"] is None
    rows, _ = read(reads, b"v")
    assert (rows[0]["key"], rows[0]["timestamp"], rows[0]["headers"]) == (None, None, [])
    assert reads.outputFields.startswith("key string, value string, topic string, partition int")


def test_json_is_one_object_in_each_value():
    reads = spout("json", "name string, number long")
    good = [b'{"name": "a", "number": 1}', None, b' {"number": 2, "more": []}\n', b'{\n"name": "c"\n}', b"{}"]
    rows, refused = read(reads, *good)
    assert [(row["name"], row["number"]) for row in rows] == [
        ("a", 1),
        (None, None),
        (None, 2),
        ("c", None),
        (None, None),
    ]
    assert refused == []


@pytest.mark.parametrize(
    "bad",
    [b"", b"  ", b"[1]", b"7", b"null", b'{"number": "x"}', b'{"number": 1}{"number": 2}', b'{"number": 1', b"\xff"],
)
def test_json_that_is_none_is_found_by_its_offset(bad):
    rows, refused = read(spout("json", "number long"), b'{"number": 1}', bad, b'{"number": 3}')
    assert ([row["number"] for row in rows], refused) == ([1, 3], [1])


def test_two_values_that_make_one_object_together_are_none():
    rows, refused = read(spout("json", "number long"), b'{"number": 1}{"number":', b"2}", b'{"number": 3}')
    assert ([row["number"] for row in rows], refused) == ([3], [0, 1])
    rows, refused = read(spout("json", "number long"), b"", b'{"number": 1}\n{"number": 2}')
    assert (rows, refused) == ([], [0, 1])


def test_avro_of_a_schema():
    reads = pickle.loads(pickle.dumps(spout("avro", json.dumps(AVRO))))
    rows, refused = read(reads, avro(PAYMENT), avro(PAYMENT)[:-2], avro(PAYMENT) + b"x", None)
    assert refused == [1, 2]
    assert rows == [{**PAYMENT, "counts": [("k", 2)]}, dict.fromkeys(PAYMENT)]
    assert read(spout("avro", '"long"'), avro(5, "long"))[0] == [{"value": 5}]


def test_avro_with_the_number_of_the_schema_it_was_written_with():
    former = {"type": "record", "name": "P", "fields": [{"name": "n", "type": "int"}]}
    later = {
        "type": "record",
        "name": "P",
        "fields": [{"name": "n", "type": "long"}, {"name": "m", "type": "int", "default": 9}],
    }
    reads = spout("avro", later, schemas={1: former, 2: later})
    values = [avro({"n": 4}, former, b"\0\0\0\0\1"), avro({"n": 5, "m": 6}, later, b"\0\0\0\0\2")]
    rows, refused = read(reads, *values, avro({"n": 4}, former, b"\0\0\0\0\7"), avro({"n": 4}, former), b"")
    assert rows == [{"n": 4, "m": 9}, {"n": 5, "m": 6}]
    assert refused == [2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"value": "xml"}, "bytes, string, json and avro"),
        ({"value": "json"}, "needs schema="),
        ({"schema": "a int"}, "have no schema"),
        ({"value": "avro", "schema": '{"type": "recrd"}'}, "no Avro schema"),
        ({"value": "avro", "schema": ["int", "string"]}, "union of 2"),
        ({"value": "json", "schema": "key int", "columns": ("key", "value")}, "two columns 'key'"),
        ({"columns": ("valeu",)}, "no column 'valeu'"),
        ({"key": "json"}, "no keys as 'json'"),
        ({"start": "first"}, "start is"),
        ({"start": datetime(2024, 1, 1)}, "no time zone"),
        ({"start": {0: 5}}, "names no offsets"),
        ({"maxRows": 0}, "maxRows"),
        ({"patience": 0}, "patience"),
        ({"isolation": "dirty"}, "isolation is"),
        ({"lost": "ignore"}, "lost is"),
        ({"topics": []}, "topics are names"),
        ({"topics": ["a", "a"]}, "named twice"),
        ({"schemas": {1: "int"}}, "schemas= is for"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(arguments, words):
    given = {"servers": "localhost:1", "topics": "t", **arguments}
    with pytest.raises(TopologyError, match=re.escape(words)):
        KafkaSpout(**given)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"group.id": "x"}, "group="),
        ({"enable.auto.commit": True}, "checkpoint"),
        ({"isolation.level": "read_uncommitted"}, "isolation="),
        ({"auto.offset.reset": "latest"}, "start="),
        ({"bootstrap.servers": "x"}, "servers="),
        ({"no.such.setting": 1}, "no.such.setting"),
        ({"security.protocol": "pigeon"}, "pigeon"),
    ],
)
def test_settings_that_would_break_the_promise_or_are_none_are_refused(config, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        spout(config=config)


def test_a_spout_goes_into_a_topology_and_over_the_wire():
    reads = pickle.loads(pickle.dumps(spout("json", "account string, amount decimal(9,2)", start={"t": {0: 1}})))
    builder = TopologyBuilder("kafka")
    builder.setSpout("records", reads)
    assert reads.rows.schema == pa.schema([("account", pa.string()), ("amount", pa.decimal128(9, 2))])


def test_shares_are_bounded_fair_and_leave_nobody_behind():
    assert Shares(Limits(None, None, None)).of({0: 5, 1: 0, 2: 7}, {}) == {0: 5, 2: 7}
    assert Shares(Limits(10, None, None)).of({0: 100, 1: 2, 2: 100}, {}) == {1: 2, 0: 4, 2: 4}
    shares = Shares(Limits(2, None, None))
    turns = [sorted(shares.of(dict.fromkeys(range(5), 10), {})) for _ in range(3)]
    assert turns == [[0, 1], [2, 3], [0, 4]]
    assert sum(Shares(Limits(None, 1_000, None)).of({0: 50, 1: 50}, {0: 50.0, 1: 150.0}).values()) == 10
    assert sum(Shares(Limits(None, 10, None)).of({0: 50}, {0: 500.0}).values()) == 1, "one record at least"
    assert sorted(Shares(Limits(None, None, 2)).of(dict.fromkeys(range(5), 10), {})) == [0, 1]
