"""What is emitted arrives as it was, or is refused: for every type, at every depth, in the tester as on Spark."""

import datetime as dt
import enum
import fractions
import uuid
from collections import OrderedDict, deque, namedtuple
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row

from statefx import BasicBolt, TopologyBuilder
from statefx.errors import BoltError, ConfigError
from statefx.operators import parse_schema
from statefx.operators.fitting import MISFITS, fitted_table, fitter, to_array
from statefx.runtime.gathering import weight
from statefx.testing import rows
from tests.testing.topologies import Driver

NOON = dt.datetime(2026, 1, 1, 12)
NOON_UTC = NOON.replace(tzinfo=dt.UTC)
DAY = dt.date(2026, 1, 1)
Pair = namedtuple("Pair", "x y")
Swapped = namedtuple("Swapped", "y x")
Other = namedtuple("Other", "a b")


class Color(enum.IntEnum):
    RED = 1


class Word(enum.StrEnum):
    RED = "red"


KEPT: list[tuple[str, Any, Any]] = [
    ("long", 2**53 + 1, 2**53 + 1),
    ("long", np.int32(7), 7),
    ("long", np.uint64(7), 7),
    ("long", True, 1),
    ("long", Color.RED, 1),
    ("int", 2**31 - 1, 2**31 - 1),
    ("tinyint", -128, -128),
    ("double", 1.5, 1.5),
    ("double", np.float64(1.5), 1.5),
    ("double", np.float32(0.1), float(np.float32(0.1))),
    ("double", 3, 3.0),
    ("double", np.int64(3), 3.0),
    ("double", fractions.Fraction(1, 2), 0.5),
    ("double", float("inf"), float("inf")),
    ("float", 1.5, 1.5),
    ("float", 0.1, float(np.float32(0.1))),
    ("float", float("-inf"), float("-inf")),
    ("string", "a", "a"),
    ("string", Word.RED, "red"),
    ("string", np.str_("a"), "a"),
    ("binary", b"a", b"a"),
    ("boolean", True, True),
    ("boolean", np.bool_(False), False),
    ("decimal(4,2)", Decimal("1.5"), Decimal("1.50")),
    ("decimal(4,2)", 3, Decimal("3.00")),
    ("date", DAY, DAY),
    ("timestamp", NOON_UTC, NOON_UTC),
    ("timestamp", NOON, NOON_UTC),
    ("timestamp", NOON_UTC.astimezone(dt.timezone(dt.timedelta(hours=5))), NOON_UTC),
    ("timestamp", pd.Timestamp(NOON_UTC), NOON_UTC),
    ("timestamp_ntz", NOON, NOON),
    ("array<long>", [1, None, 2], [1, None, 2]),
    ("array<long>", (1, 2), [1, 2]),
    ("array<long>", range(2), [0, 1]),
    ("array<long>", deque([1, 2]), [1, 2]),
    ("array<long>", np.array([1, 2], np.int16), [1, 2]),
    ("array<double>", np.array([0.1, 2]), [0.1, 2.0]),
    ("array<array<double>>", np.array([[0.5], [2]]), [[0.5], [2.0]]),
    ("array<double>", pd.Series([0.5, 2]), [0.5, 2.0]),
    ("array<string>", ["abc"], ["abc"]),
    ("map<string,long>", {"a": 1}, [("a", 1)]),
    ("map<string,long>", OrderedDict(b=2, a=1), [("b", 2), ("a", 1)]),
    ("map<string,long>", [("a", 1), ["b", 2]], [("a", 1), ("b", 2)]),
    ("struct<x:long,y:string>", {"y": "a", "x": 1}, {"x": 1, "y": "a"}),
    ("struct<x:long,y:string>", {"x": 1}, {"x": 1, "y": None}),
    ("struct<x:long,y:string>", (1, "a"), {"x": 1, "y": "a"}),
    ("struct<x:long,y:long>", Pair(1, 2), {"x": 1, "y": 2}),
    ("struct<x:long,y:long>", Swapped(1, 2), {"x": 2, "y": 1}),
    ("struct<x:array<map<string,struct<y:double>>>>", {"x": [{"k": (1,)}]}, {"x": [[("k", {"y": 1.0})]]}),
]

REFUSED: list[tuple[str, Any, str]] = [
    ("long", 1.5, "is no integer"),
    ("long", 1.0, "is no integer"),
    ("long", np.float64(1.5), r"np.float64\(1.5\) \(float64\) is no integer"),
    ("long", np.float32(1.5), "is no integer"),
    ("long", np.float16(1.5), "is no integer"),
    ("long", np.longdouble("0.1"), "is no integer"),
    ("long", np.bool_(True), "is no integer"),
    ("long", Decimal("1.5"), "is no integer"),
    ("long", fractions.Fraction(3, 2), "is no integer"),
    ("long", uuid.UUID(int=1), "is no integer"),
    ("long", np.datetime64("2026-01-01T00:00:00.123456789"), "is no integer"),
    ("long", "1", "is no integer"),
    ("long", 2**63, "."),
    ("int", 2**31, "."),
    ("int", np.float64(2.0), "is no integer"),
    ("double", Decimal("1.5"), "is no float"),
    ("double", np.longdouble("0.1"), "is no float, or not exactly"),
    ("double", fractions.Fraction(1, 3), "is no float, or not exactly"),
    ("double", 2**53 + 1, "."),
    ("double", np.uint64(2**64 - 1), "."),
    ("double", "1.5", "is no float"),
    ("float", 1e300, "too large for a float"),
    ("float", 3.4028235677973366e38, "too large for a float"),
    ("float", 2**24 + 1, "."),
    ("string", b"a", "is no text"),
    ("string", bytearray(b"a"), "is no text"),
    ("string", memoryview(b"a"), "is no text"),
    ("string", "\ud800", "."),
    ("binary", "a", "is no bytes"),
    ("binary", bytearray(b"a"), r"emit bytes\(value\)"),
    ("boolean", 1, "is no bool"),
    ("boolean", "", "is no bool"),
    ("decimal(4,2)", 1.5, "is no Decimal"),
    ("decimal(4,2)", Decimal("1.234"), "."),
    ("date", NOON, "is no date"),
    ("date", 1, "is no date"),
    ("date", 1.5, "is no date"),
    ("date", pd.NaT, "is no date"),
    ("timestamp", 1.5, "is no datetime"),
    ("timestamp", 1_700_000_000, "is no datetime"),
    ("timestamp", DAY, "is no datetime"),
    ("timestamp", pd.Timestamp("2026-01-01T00:00:00.123456789"), "finer one than microseconds"),
    ("timestamp", pd.NaT, "finer one than microseconds"),
    ("timestamp_ntz", NOON_UTC, "has a time zone"),
    ("array<long>", {3, 1}, r"is no array: emit a list \(of a set, sorted\(value\)"),
    ("array<long>", {1: 2}, "is no array"),
    ("array<long>", iter([1]), "is no array"),
    ("array<long>", 1, "is no array"),
    ("array<long>", np.array(1), "is no array"),
    ("array<long>", b"ab", "is no array"),
    ("array<string>", "abc", "is no array"),
    ("array<long>", [1, 1.5], r"\[1\]: 1.5 \(float\) is no integer"),
    ("array<long>", np.array([1.5]), r"\[0\]: 1.5 \(float\) is no integer"),
    ("array<array<long>>", [[1], [2, Decimal("1.5")]], r"\[1\]: \[1\]: Decimal"),
    ("map<string,long>", {"a": 1.5}, r"\[0\]: 1.5 \(float\) is no integer"),
    ("map<string,long>", {1: 1}, "is no text"),
    ("map<string,long>", {None: 1}, "."),
    ("map<string,long>", ["ab"], "is no map"),
    ("map<string,long>", [("a", 1, 2)], "is no map"),
    ("map<string,long>", "ab", "is no map"),
    ("struct<x:long,y:string>", {"x": 1, "z": 2}, "has 'z', which the struct has not: its fields are x, y"),
    ("struct<x:long,y:string>", {"x": 1.5}, r"\.x: 1.5 \(float\) is no integer"),
    ("struct<x:long,y:string>", (1,), "has 1 values: the struct's fields are x, y"),
    ("struct<x:long,y:string>", [1, "a"], "is no struct"),
    ("struct<x:long,y:long>", Row("x", "x")(1, 2), "has 1 values: the struct's fields are x, y"),
    ("struct<x:long,y:long>", Other(1, 2), "has 'a', 'b', which the struct has not"),
    ("struct<x:array<map<string,struct<y:long>>>>", {"x": [{"k": (1.5,)}]}, r"\.x: \[0\]: \[0\]: \.y: 1.5"),
]


def fitted(ddl: str, value: Any) -> pa.Array:
    kind = parse_schema(f"a {ddl}").field("a").type
    return to_array([fitter(kind)(value)] if pa.types.is_nested(kind) else [value], kind)


@pytest.mark.parametrize(("ddl", "value", "arrives"), KEPT)
def test_what_fits_arrives_equal(ddl: str, value: Any, arrives: Any) -> None:
    assert fitted(ddl, value).to_pylist() == [arrives]


@pytest.mark.parametrize(("ddl", "value", "says"), REFUSED)
def test_what_would_be_changed_is_refused(ddl: str, value: Any, says: str) -> None:
    with pytest.raises(MISFITS, match=says):
        fitted(ddl, value)


@pytest.mark.parametrize("depth", ["array<{}>", "struct<x:{}>", "map<int,{}>"])
@pytest.mark.parametrize(("ddl", "value", "says"), [case for case in REFUSED if "<" not in case[0]])
def test_it_is_refused_at_any_depth(ddl: str, value: Any, says: str, depth: str) -> None:
    nested = {"array<{}>": [value], "struct<x:{}>": {"x": value}, "map<int,{}>": {1: value}}[depth]
    with pytest.raises(MISFITS, match=says):
        fitted(depth.format(ddl), nested)


@pytest.mark.parametrize(("ddl", "value", "says"), [case for case in REFUSED if "<" not in case[0]])
def test_a_misfit_is_found_among_many_that_fit(ddl: str, value: Any, says: str) -> None:
    fits = next(given for other, given, _ in KEPT if other == ddl)
    for column in ([fits] * 300 + [value], [value] + [fits] * 300, [None, value, None]):
        with pytest.raises(MISFITS):
            to_array(column, parse_schema(f"a {ddl}").field("a").type)


@pytest.mark.parametrize("ddl", sorted({ddl for ddl, _, _ in KEPT}))
def test_null_fits_everywhere(ddl: str) -> None:
    assert fitted(ddl, None).to_pylist() == [None]


@pytest.mark.parametrize(
    ("value", "size_bytes"),
    [
        (None, 8),
        ([1, 2], 16),
        ([None, 1.5], 16),
        (["abc", "d"], 4),
        ([("a", 1)], 9),
        ({"x": 1, "y": ["ab"]}, 10),
    ],
)
def test_values_of_nested_types_are_weighed(value: Any, size_bytes: int) -> None:
    assert weight(value) == size_bytes


class Emits(BasicBolt):
    def __init__(self, ddl: str, value: Any) -> None:
        self.outputFields = f"a {ddl}"
        self.value = value

    def execute(self, tup, collector):
        collector.emit((self.value,))


class Tells(BasicBolt):
    """Emits what came to it, as text."""

    outputFields = "a string"

    def execute(self, tup, collector):
        collector.emit((repr(tup.a),))


def chain(ddl: str, value: Any) -> Any:
    builder = TopologyBuilder("chain")
    builder.setStream("ticks", rows("n int"))
    builder.setBolt("emits", Emits(ddl, value)).globalGrouping("ticks")
    builder.setBolt("tells", Tells(), 2).shuffleGrouping("emits")
    return builder.createTopology()


@pytest.mark.parametrize(
    ("ddl", "value", "says"),
    [
        ("long", np.float64(1.5), r"emitted np.float64\(1.5\) \(float64\).*declare `a bigint`: .*is no integer"),
        ("array<long>", [1, Decimal("1.5")], r"declare `a array<bigint>`: \[1\]: Decimal\('1.5'\).*is no integer"),
        ("string", np.array([1, 2]), r"emitted array\(\[1, 2\]\) \(ndarray\) on stream .*is no text"),
        ("long", np.array([1, 2]), r"\(ndarray\) on stream .*is no integer"),
        ("string", "x" * 10_000 + "\ud800", r"emitted 'x{199}\.\.\."),
    ],
)
def test_the_error_names_bolt_stream_and_value(place: Path, ddl: str, value: Any, says: str) -> None:
    with Driver(place) as driver, pytest.raises(BoltError, match=says) as caught:
        driver.start(chain(ddl, value)).send({"ticks": [(1,)]})
    assert caught.value.component == "emits"


def test_what_fits_travels(place: Path) -> None:
    with Driver(place) as driver:
        tester = driver.start(chain("array<struct<x:long>>", [{"x": np.int64(1)}, (2,)]))
        assert tester.send({"ticks": [(1,)]}).emitted("tells") == [("[{'x': 1}, {'x': 2}]",)]


class Changes(BasicBolt):
    """Changes its lists after it has emitted them."""

    outputFields = "tags array<string>, pair struct<x:array<long>>, by map<string,array<long>>, n int"

    def execute(self, tup, collector):
        tags, inner = [f"tag-{tup.n}"], [tup.n]
        collector.emit((tags, {"x": inner}, {"k": inner}, tup.n))
        tags[0] = "changed"
        tags.append("more")
        inner.append(99)


class Here(BasicBolt):
    outputFields = "here int, tags array<string>, x array<long>, k array<long>, n int"

    def open(self, context):
        self.task = context.task

    def execute(self, tup, collector):
        collector.emit((self.task, tup.tags, tup.pair["x"], tup.by[0][1], tup.n))


def test_a_list_that_is_changed_after_it_was_emitted_arrives_as_it_was_and_where_it_belongs(place: Path) -> None:
    builder = TopologyBuilder("changes")
    builder.setStream("ticks", rows("n int"))
    builder.setBolt("changes", Changes()).globalGrouping("ticks")
    builder.setBolt("here", Here(), 3).fieldsGrouping("changes", "tags")
    with Driver(place) as driver:
        tester = driver.start(builder.createTopology())
        sent = tester.send({"ticks": [(n % 5,) for n in range(10)]})
        assert min(sent.emitted("changes")) == (["tag-0"], {"x": [0]}, [("k", [0])], 0)
        found = sent.emitted("here")
        assert sorted(row[1:] for row in found) == sorted(([f"tag-{n}"], [n], [n], n) for n in list(range(5)) * 2)
        assert len({(row[0], row[4]) for row in found}) == 5, "equal keys meet in one task"


@pytest.mark.parametrize("value", [1.5, np.float64(1.5), Decimal("1.5"), "1"])
def test_rows_that_are_given_to_the_tester_are_not_changed_either(place: Path, value: Any) -> None:
    builder = TopologyBuilder("input")
    builder.setStream("ticks", rows("a long, tags array<long>"))
    builder.setBolt("tells", Tells()).globalGrouping("ticks")
    for row in ((value, [1]), (1, [value])):
        with Driver(place) as driver, pytest.raises(ConfigError, match="rows of stream 'ticks' do not fit its schema"):
            driver.start(builder.createTopology()).send({"ticks": [row]})


ZONED = dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5)))


@pytest.mark.parametrize(
    ("ddl", "column", "fits"),
    [
        ("timestamp_ntz", pa.array([ZONED], pa.timestamp("us", "+05:00")), False),
        ("array<timestamp_ntz>", pa.array([[ZONED]], pa.list_(pa.timestamp("us", "+05:00"))), False),
        ("timestamp", pa.array([ZONED], pa.timestamp("us", "+05:00")), True),
        ("date", pa.array([dt.datetime(2026, 1, 1, 5)], pa.timestamp("us")), False),
        ("array<date>", pa.array([[dt.datetime(2026, 1, 1, 5)]], pa.list_(pa.timestamp("us"))), False),
        ("timestamp", pa.array([1_000_001], pa.timestamp("ns")), False),
        ("timestamp", pa.array([1_000_000], pa.timestamp("ns", "UTC")), True),
        ("boolean", pa.array([2]), False),
        ("string", pa.array([5]), False),
        ("string", pa.array(["a"], pa.large_string()), True),
        ("float", pa.array([1e300]), False),
        ("int", pa.array([2**31]), False),
        ("int", pa.array([2**31 - 1]), True),
        ("double", pa.array([2**53 + 1]), False),
        ("struct<a: int>", pa.array([{"a": 1, "b": 2}]), False),
        ("struct<a: bigint, b: bigint>", pa.array([{"b": 2, "a": 1}]), True),
    ],
)
def test_a_column_of_another_type_has_the_same_values_or_is_refused(ddl, column, fits):
    """`pyarrow.Table.cast` drops zones, times of days and fields of structs without a word."""
    schema = parse_schema(f"v {ddl}")
    with nullcontext() if fits else pytest.raises(MISFITS):
        found = fitted_table(pa.table({"v": column}), schema)
        assert found.schema == schema
        assert found.to_pylist() == [{"v": value} for value in column.to_pylist()]
