"""The JSON of values: what is written is valid JSON and is read as it was, for every type; what is not is refused."""

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given

from statefx.errors import TopologyError
from statefx.operators.json_values import InvalidJsonError, JsonRows, JsonType, key_writer, refuse_keys
from statefx.operators.schema import parse_schema
from tests.connectors.values import content, tables

MAPS = "a map<string, struct<b: map<string, double>>>"


def refuse_constant(name):
    raise AssertionError(f"{name} is not JSON")


@pytest.mark.slow
@given(tables())
def test_every_value_is_valid_json_and_comes_back(rows):
    try:
        refuse_keys(rows.schema, "this")
    except TopologyError:
        assert any("map<int64" in str(field.type) for field in rows.schema)
        return
    form = pickle.loads(pickle.dumps(JsonRows(rows.schema)))
    texts = form.encode(rows)
    for text in texts:
        assert isinstance(json.loads(text, parse_constant=refuse_constant), dict)
        assert b"\n" not in text
    assert content(form.decode(texts)) == content(rows)
    for field, column in zip(rows.schema, rows.columns, strict=True):
        kind = JsonType(field.type)
        texts = [kind.encode(value) for value in column.to_pylist()]
        assert content(pa.table([pa.array(map(kind.decode, texts), field.type)], ["f"])) == content(
            pa.table([column], ["f"])
        )


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("boolean", True, "true"),
        ("double", 1.5, "1.5"),
        ("double", float("nan"), '"NaN"'),
        ("float", float("-inf"), '"-Infinity"'),
        ("decimal(10,2)", Decimal("12.30"), '"12.30"'),
        ("binary", b"\0\xff", '"AP8="'),
        ("date", date(2024, 2, 29), '"2024-02-29"'),
        ("timestamp", datetime(2024, 2, 29, 12, tzinfo=UTC), '"2024-02-29T12:00:00Z"'),
        ("timestamp_ntz", datetime(2024, 2, 29, 12, 0, 0, 5), '"2024-02-29T12:00:00.000005"'),
        ("array<double>", [1.0, None, float("inf")], '[1.0,null,"Infinity"]'),
        ("struct<b: int, c: string>", {"b": None, "c": "x"}, '{"c":"x"}'),
        ("map<string, int>", [("b", 1), ("a", None)], '{"b":1,"a":null}'),
    ],
)
def test_each_type_has_one_form(kind, value, text):
    assert JsonType(parse_schema(f"a {kind}").field(0).type).encode(value).decode() == text


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("a double", '{"a": 1}', 1.0),
        ("a decimal(10,2)", '{"a": 1.1}', Decimal("1.10")),
        ("a timestamp", '{"a": "2024-02-29 12:00:00"}', datetime(2024, 2, 29, 12, tzinfo=UTC)),
        ("a timestamp", '{"a": "2024-02-29T14:00:00.500+02:00"}', datetime(2024, 2, 29, 12, 0, 0, 500000, UTC)),
        ("a timestamp", '{"a": "2024-02-29"}', datetime(2024, 2, 29, tzinfo=UTC)),
        ("a timestamp_ntz", '{"a": "2024-02-29T14:00"}', datetime(2024, 2, 29, 14)),
        ("a int", '{"A": 1}', 1),
        ("a int", '{"A": 2, "a": 1, "b": [{}]}', 1),
        ("a int", '{"a": null, "A": 1}', None),
        ("a int", "{}", None),
        ("a decimal(20,2), b int", '{"A": 12345678901234567.89, "b": 1}', Decimal("12345678901234567.89")),
        ("a int, A int", '{"A": 1}', None),
        (
            "a struct<x: int, y: double>",
            '{"a": {"X": 1, "Y": "NaN", "z": 3}}',
            {"x": 1, "y": pytest.approx(float("nan"), nan_ok=True)},
        ),
        ("a struct<x: int, X: int>", '{"a": {"X": 1}}', {"x": None, "X": 1}),
        (
            "a array<struct<x: int>>",
            '{"a": [{"X": 1}, null, {}, {"x": null, "X": 2}]}',
            [{"x": 1}, None, {"x": None}, {"x": None}],
        ),
        (
            "a map<string, struct<x: array<int>>>",
            '{"A": {"M": {"X": [1, null]}, "n": null}}',
            [("M", {"x": [1, None]}), ("n", None)],
        ),
        ("a array<struct<x: int>>", '{"A": null}', None),
    ],
)
def test_json_of_others_is_read(field, text, value):
    rows = JsonRows(parse_schema(field)).decode([text.encode()])
    assert rows.column(0).to_pylist() == [value]


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("a int", '{"a": "1"}', r"Expected `int \| null`, got `str` - at `\$.a`"),
        ("a int", '{"a": 1.5}', "got `float`"),
        ("a int", '{"a": true}', "got `bool`"),
        ("a byte", '{"a": 128}', "<= 127"),
        ("a long", '{"a": 9223372036854775808}', "<= 9223372036854775807"),
        ("a boolean", '{"a": 0}', "got `int`"),
        ("a float", '{"a": 1e39}', "too large for a float"),
        ("a double", '{"a": "x"}', "Invalid enum value 'x'"),
        ("a decimal(4,2)", '{"a": 1.001}', "data loss"),
        ("a decimal(4,2)", '{"a": 100.0}', "precision"),
        ("a binary", '{"a": "a text"}', "base64"),
        ("a date", '{"a": "yesterday"}', r"`\$.a`"),
        ("a timestamp_ntz", '{"a": "2024-02-29T12:00:00Z"}', "has a zone"),
        ("a array<timestamp_ntz>", '{"a": ["2024-02-29T12:00:00+01:00"]}', "has a zone"),
        ("a timestamp", '{"a": "2024-02-29T12:00:00.000000001Z"}', "no whole number of microseconds"),
        ("a timestamp", '{"a": "0001-01-01T00:00:00+10:00"}', "outside of the years 1 to 9999 in UTC"),
        ("a timestamp", '{"a": "noon"}', "noon"),
        ("abc int", '{"Abc": 1, "ABC": 2}', "more than one field 'abc'"),
        ("a int", "null", "Expected `object`, got `null`"),
        ("a struct<abc: int>", '{"a": {"Abc": 1, "ABC": 2}}', "more than one field 'abc'"),
        ("a int", '{"b": ' + "[" * 100_000 + "]" * 100_000 + "}", "too many within each other"),
        ("a int", '{"A": ' + "[" * 100_000 + "]" * 100_000 + "}", "too many within each other"),
        ("a int", '{"a": 1} {"a": 2}', "trailing"),
        ("a double", '{"a": NaN}', "malformed"),
    ],
)
def test_what_does_not_fit_is_refused_and_its_number_told(field, text, said):
    with pytest.raises(InvalidJsonError, match=said) as caught:
        JsonRows(parse_schema(field)).decode([b"{}", text.encode(), b"{}"])
    assert caught.value.number == 1


def test_maps_have_strings_as_keys_and_each_once():
    refuse_keys(parse_schema(MAPS), "FileSink")
    with pytest.raises(TopologyError, match=r"FileSink, field 'a'.*Make the keys strings, or the map an array"):
        refuse_keys(parse_schema("a array<map<int, string>>"), "FileSink")
    with pytest.raises(ValueError, match="a key twice"):
        JsonType(pa.map_(pa.string(), pa.int64())).encode([("a", 1), ("a", 2)])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, 3_000_000], pa.int32()).cast(pa.date32()),
        pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array([[], [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())),
    ],
    ids=lambda column: str(column.type),
)
def test_a_value_that_json_does_not_have_is_refused_with_its_field(column):
    rows = pa.record_batch({"number": pa.array([1, 2]), "value": column})
    with pytest.raises(ValueError, match="field 'value' has a value that JSON does not have: "):
        JsonRows(rows.schema).encode(rows)


def test_keys_of_records_are_texts_or_arrays():
    assert key_writer([pa.string()])(['a"b']) == b'a"b'
    assert key_writer([pa.binary()])([b"\0"]) == b"\0"
    assert key_writer([pa.int64()])([5]) == b"5"
    assert key_writer([pa.date32()])([date(2024, 2, 29)]) == b"2024-02-29"
    assert (
        key_writer([pa.string(), pa.int64(), pa.date32()])(["a", None, date(2024, 2, 29)]) == b'["a",null,"2024-02-29"]'
    )
