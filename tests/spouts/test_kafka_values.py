"""What KafkaSpout makes of records, and which arguments it refuses; without a broker."""

import io
import json
import math
import pickle
import re
from datetime import UTC, date, datetime
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka import Message

from statefx import TopologyBuilder
from statefx.connectors.kafka import KafkaSpout
from statefx.connectors.kafka.planning import SHOWN, Shares, distances
from statefx.connectors.kafka.rows import TRACED_ROWS, TRACES_MAX, Records, TopicPartition, traces_of
from statefx.errors import ConfigError, TopologyError

PLACE = TopicPartition("t", 3)
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


def test_each_record_has_its_own_offset_whether_offsets_follow_each_other_or_not():
    reads = spout(columns=("offset", "value"))
    found = Records(reads.rows.wanted)
    takes = [[5], [6, 7, 8], [], [10, 11, 13], [14, 16]]
    for take in takes:
        found.add([Message(topic="t", offset=offset, value=b"%d" % offset) for offset in take])
    rows, refused = reads.rows.of(PLACE, found)
    assert (rows.to_pylist(), refused) == ([{"offset": n, "value": b"%d" % n} for take in takes for n in take], [])
    objects = spout("json", "n long", columns=("offset", "value"))
    found.add([Message(topic="t", offset=offset, value=b'{"n": 1}') for offset in (18, 21)])
    rows, refused = objects.rows.of(PLACE, found)
    assert rows["offset"].to_pylist() == [18, 21]
    assert [each.offset for each in refused] == [offset for take in takes for offset in take]


def test_records_become_batches_of_many_rows_and_a_refused_one_is_told_with_those_before_it():
    reads = spout("string", columns=("value", "offset"))
    parts = [records(*[b"x"] * 2_000) for _ in range(11)]
    found = list(reads.rows.batches(PLACE, parts))
    assert [(len(batch), refused) for batch, refused in found] == [(10_000, []), (10_000, []), (2_000, [])]
    parts.insert(1, records(b"y", b"\xff", b"z"))
    first, *rest = reads.rows.batches(PLACE, parts)
    assert (len(first[0]), [each.offset for each in first[1]]) == (2_002, [1])
    assert [(len(batch), refused) for batch, refused in rest] == [(10_000, []), (10_000, [])]
    assert list(reads.rows.batches(PLACE, [])) == []


def test_empty_values_are_no_tombstones():
    assert read(spout("string"), b"", None) == ([{"value": ""}, {"value": None}], [])
    assert read(spout("bytes"), b"", None) == ([{"value": b""}, {"value": None}], [])
    assert read(spout("json", "a int"), None, b"") == ([{"a": None}], [1])
    assert read(spout("avro", '"long"'), None, b"") == ([{"value": None}], [1])


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


def test_json_of_another_type_is_told_by_its_field_and_both_types():
    reads = spout("json", "amount long, at struct<x:int>")
    _, refused = reads.rows.of(PLACE, records(b'{"amount": "7"}', b'{"at": {"x": []}}', b"{}"))
    assert [each.reason.removeprefix("its value is no JSON of these fields: ") for each in refused] == [
        'Expected `int | null`, got `str` - at `$.amount`: b\'{"amount": "7"}\'',
        'Expected `int | null`, got `array` - at `$.at.x`: b\'{"at": {"x": []}}\'',
    ]


def test_json_as_others_write_it():
    """A mark of the byte order, line feeds, texts for dates, great numbers."""
    reads = spout("json", "number long, day date, price decimal(9,2)")
    rows, refused = read(
        reads,
        b'\xef\xbb\xbf{"number": 9223372036854775807}',
        b'\xef\xbb\xbf {\n"day": "2024-02-29"}\r\n',
        b'{"price": 1.5}',
        b'{"more": {"a": 1, "a": 2}}',
    )
    assert refused == []
    assert [tuple(row.values()) for row in rows] == [
        (2**63 - 1, None, None),
        (None, date(2024, 2, 29), None),
        (None, None, Decimal("1.50")),
        (None, None, None),
    ]


@pytest.mark.parametrize(
    "bad",
    [
        b"", b"  ", b"[1]", b"7", b"null", b'{"number": "x"}', b'{"number": 1}{"number": 2}', b'{"number": 1', b"\xff",
        b'{"number": 9223372036854775808}', b'{"number": 1.5}', b'{"text": "\xff"}', b'{"text": "a\nb"}', b'{} null {}',
        b'\0\0\0\0\1{"number": 1}', b'{\n"number": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)  # fmt: skip
def test_json_that_is_none_is_found_by_its_offset(bad):
    reads = spout("json", "number long, text string")
    rows, refused = read(reads, b'{"number": 1}', bad, b'{"number": 3}')
    assert ([row["number"] for row in rows], refused) == ([1, 3], [1])


def test_what_json_has_no_number_for_is_read_as_kafka_sink_writes_it():
    reads = spout("json", "x double, of map<string,double>")
    rows, refused = read(reads, b'{"x": "NaN", "of": {"k": "-Infinity"}}', b'{"x": 1, "x": 2}')
    assert refused == []
    assert math.isnan(rows[0]["x"])
    assert rows[0]["of"] == [("k", -math.inf)]
    assert rows[1]["x"] == 2, "of a name that comes twice, the last one"


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


def test_logical_types_of_avro_that_have_no_column_are_what_they_are_written_as():
    kinds = {
        "id": {"type": "string", "logicalType": "uuid"},
        "at": {"type": "int", "logicalType": "time-millis"},
        "nanos": {"type": "long", "logicalType": "timestamp-nanos"},
        "local": {"type": "long", "logicalType": "local-timestamp-micros"},
        "price": {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 5, "scale": 2},
        "other": ["null", "F"],  # a name stands for the type that was called so
    }
    schema = {"type": "record", "name": "P", "fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}
    price = Decimal("1.23")
    row = {"id": "u", "at": 1, "nanos": 2, "local": datetime(2024, 2, 29), "price": price, "other": price}
    assert read(spout("avro", schema), avro(row, schema)) == ([row], [])


@pytest.mark.parametrize(
    ("reads", "value", "words"),
    [
        (("avro", '"long"'), b"\0\0\0\0\7\2", "the number of its schema, 7"),
        (("json", "a int"), b"\0\0\0\0\7{}", r"JSON is malformed: invalid character (byte 0): b'\x00\x00"),
        (("json", "a int"), b'{"a": "x"}', "Expected `int | null`, got `str` - at `$.a`"),
        (("string",), b"\xff", "its value is no text in UTF-8"),
    ],
)
def test_what_is_wrong_with_a_value_is_said(reads, value, words):
    _, refused = spout(*reads).rows.of(PLACE, records(value))
    assert words in refused[0].reason
    assert "row" not in refused[0].reason


def field(kind, **more):
    return {"type": "record", "name": "P", "fields": [{"name": "f", "type": kind, **more}]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"value": "xml"}, "bytes, string, json and avro"),
        ({"value": "json"}, "need schema=, such as"),
        ({"value": "avro"}, "need schema=, an Avro schema"),
        ({"schema": "a int"}, "say 'json' or 'avro'"),
        ({"value": "json", "schema": "a lng"}, "'lng' is not a type"),
        ({"value": "json", "schema": "a map<int,int>"}, "has no JSON, whose objects have texts as names"),
        ({"value": "avro", "schema": "a int"}, "no Avro schema"),
        ({"value": "avro", "schema": 5}, "no Avro schema"),
        ({"value": "avro", "schema": '{"type": "recrd"}'}, "no Avro schema"),
        ({"value": "avro", "schema": '{"type": "record"'}, "which is JSON"),
        ({"value": "avro", "schema": {"type": "record", "name": "P", "fields": []}}, "has no fields"),
        ({"value": "avro", "schema": ["int", "string"]}, "union of 2"),
        ({"value": "avro", "schema": field(["null", "int", "string"])}, "no column for 'f'"),
        ({"value": "avro", "schema": field(["null", "P"])}, "contains itself"),
        ({"value": "avro", "schema": field("null")}, "nothing but null"),
        ({"value": "avro", "schema": field({"type": "bytes", "logicalType": "decimal", "precision": 39})}, "1 to 38"),
        ({"value": "json", "schema": "key int", "columns": ("key", "value")}, "two columns 'key'"),
        ({"columns": ("valeu",)}, "no column 'valeu'"),
        ({"columns": "value"}, "columns= names what is emitted"),
        ({"columns": ()}, "columns= names what is emitted"),
        ({"value": "json", "schema": "account int", "columns": ("account",)}, "'value' stands for all fields"),
        ({"key": "json"}, "no keys as 'json'"),
        ({"start": "first"}, "start is"),
        ({"start": date(2024, 1, 1)}, "start is"),
        ({"start": datetime(2024, 1, 1)}, "no time zone"),
        ({"start": {}}, "start is"),
        ({"start": {"t": 5}}, "whole numbers from 0"),
        ({"start": {"t": {"0": 5}}}, "whole numbers from 0"),
        ({"start": {"t": {0: -1}}}, "whole numbers from 0"),
        ({"start": {"payments": {0: 5}}}, "'payments', which topics= does not name"),
        ({"topics": re.compile("p-.*"), "start": {"payments": {0: 5}}}, "'payments', which topics= does not name"),
        ({"maxRows": 0}, "maxRows"),
        ({"maxRows": 1.0}, "maxRows"),
        ({"patience": 0}, "patience"),
        ({"patience": "30"}, "patience"),
        ({"patience": float("inf")}, "patience"),
        ({"isolation": "dirty"}, "isolation is"),
        ({"lost": "ignore"}, "lost is"),
        ({"unavailable": True}, "unavailable is 'wait' or 'skip'"),
        ({"group": ""}, "group is"),
        ({"group": "g-{topology}"}, "group is"),
        ({"topics": None}, "topics are"),
        ({"topics": []}, "topics are"),
        ({"topics": ["a", "a"]}, "named twice"),
        ({"topics": "a,b"}, "several names are a list"),
        ({"topics": "payments-.*"}, "re.compile('payments-.*')"),
        ({"topics": re.compile(b"p")}, "of a text"),
        ({"columns": ("value", "offset", "value")}, "names 'value' twice"),
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
    assert Shares(None).of({0: 5, 1: 0, 2: 7}) == {0: 5, 2: 7}
    assert Shares(10).of({0: 100, 1: 2, 2: 100}) == {1: 2, 0: 4, 2: 4}
    shares = Shares(2)
    turns = [sorted(shares.of(dict.fromkeys(range(5), 10))) for _ in range(3)]
    assert turns == [[0, 1], [2, 3], [0, 4]]


def test_how_far_it_is_behind_what_there_is():
    read = {TopicPartition("a", 0): 5, TopicPartition("a", 10): 7, TopicPartition("gone", 0): 1}
    assert distances(read, {TopicPartition("a", 0): 9, TopicPartition("a", 10): 7}) == {
        "partitions": 3,
        "minOffsetsBehindLatest": 0,
        "avgOffsetsBehindLatest": 1.3,
        "maxOffsetsBehindLatest": 4,
        "endOffset": {"a": {"0": 5, "10": 7}, "gone": {"0": 1}},
        "latestOffset": {"a": {"0": 9, "10": 7}},
    }
    many = {TopicPartition("a", number): number for number in range(SHOWN + 1)}
    assert "endOffset" not in distances(many, many)
    assert distances({}, {})["avgOffsetsBehindLatest"] == 0


PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([("traceparent", PARENT.encode())], [PARENT]),
        ([("traceparent", PARENT)], [PARENT]),
        ([("h", b"1"), ("traceparent", PARENT.encode()), ("tracestate", b"k=v")], [PARENT]),
        ([("Traceparent", PARENT.encode())], []),
        ([("traceparent", None)], []),
        ([("traceparent", b"ann@example.org")], []),
        ([("traceparent", b"\xff" * 55)], []),
        ([("traceparent", PARENT.encode() + b"\n")], []),
        ([("traceparent", PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32).encode())], []),
        ([("traceparent", PARENT.replace("00f067aa0ba902b7", "0" * 16).encode())], []),
        ([], []),
        (None, []),
    ],
)
def test_a_trace_context_is_what_w3c_says(headers, found):
    assert traces_of([Message(topic="t", partition=3, offset=0, value=b"v", headers=headers)]) == found


def parents(count):
    return [f"00-{number + 1:032x}-{number + 1:016x}-01" for number in range(count)]


def messages(traces):
    return [Message(topic="t", headers=[("traceparent", each.encode())]) for each in traces]


def test_traces_of_a_spout_are_few_and_each_is_told_once():
    reads, given = spout(), parents(TRACES_MAX + 5)
    reads._trace(messages([given[0], given[0]]))
    assert reads._traces == given[:1]
    reads._trace(messages(given))
    assert reads._traces == given[:TRACES_MAX]


def test_of_messages_that_come_together_the_first_few_are_looked_into():
    reads, given = spout(), parents(1)
    reads._trace([*[Message(topic="t")] * TRACED_ROWS, *messages(given)])
    assert list(reads._traces) == []
