"""Where rows go: the hash of fieldsGrouping, pinned and as the JVM has it, and the choice of each grouping."""

from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import StructField, StructType

from statefx.errors import SchemaError
from statefx.operators.schema import parse_schema
from statefx.operators.tuples import tuple_class
from statefx.plan.groupings import ROUTERS
from statefx.plan.hashing import partial_key_chooser, row_hasher, task_chooser
from statefx.topology.graph import PROMISES, Edge, Grouping, Promise
from tests.plan.vectors import VECTORS

IDS = [ddl for ddl, _, _ in VECTORS]


@pytest.mark.parametrize(("ddl", "rows", "hashes"), VECTORS, ids=IDS)
def test_rows_hash_as_pinned(ddl, rows, hashes):
    schema = parse_schema(ddl)
    assert list(map(row_hasher(schema, schema.names), rows)) == hashes


MANY = 99_991


@pytest.mark.parametrize(("ddl", "rows", "hashes"), VECTORS, ids=IDS)
def test_rows_that_have_travelled_as_arrow_hash_the_same(ddl, rows, hashes):
    schema = parse_schema(ddl)
    columns = [
        pa.array(list(column), field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    batch = pa.record_batch(columns, schema=schema)
    travelled = zip(*(column.to_pylist() for column in batch.columns), strict=True)
    assert list(map(row_hasher(schema, schema.names), travelled)) == hashes
    choose = task_chooser(schema, MANY)
    tasks = [found % MANY for found in hashes]
    assert choose(batch.columns).to_pylist() == tasks
    for times in (40, 400):  # by the row, and by the column
        assert choose([pa.concat_arrays([column] * times) for column in batch.columns]).to_pylist() == tasks * times


def hash_one(ddl, value):
    return row_hasher(parse_schema(f"a {ddl}"), ["a"])((value,))


@pytest.mark.parametrize(
    ("ddl", "given_value", "sent"),
    [
        ("double", 1, 1.0),
        ("float", 1e300, float("inf")),
        ("float", -1e-60, 0.0),
        ("string", b"word", "word"),
        ("binary", "word", b"word"),
        ("binary", bytearray(b"word"), b"word"),
        ("decimal(10,2)", 5, Decimal("5.00")),
        ("decimal(10,2)", Decimal("1.5"), Decimal("1.50")),
        ("timestamp", datetime(2020, 1, 1), datetime(2020, 1, 1, tzinfo=UTC)),
        (
            "timestamp",
            datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=2))),
            datetime(2019, 12, 31, 22, tzinfo=UTC),
        ),
        ("timestamp_ntz", datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=2))), datetime(2019, 12, 31, 22)),
        ("date", datetime(2020, 1, 1, 23), datetime(2020, 1, 1).date()),
        ("struct<x: int, y: string>", {"y": "b", "x": 1}, (1, "b")),
        ("struct<x: int, y: string>", {"x": 1}, (1, None)),
        ("struct<x: int, y: string>", [("x", 1), ("y", "b")], (1, "b")),
        ("array<int>", (1, 2), [1, 2]),
    ],
)
def test_a_value_is_hashed_as_what_arrow_sends(ddl, given_value, sent):
    assert hash_one(ddl, given_value) == hash_one(ddl, sent)
    kind = parse_schema(f"a {ddl}").field("a").type
    assert pa.array([given_value], kind).equals(pa.array([sent], kind))


@pytest.mark.parametrize(
    ("ddl", "value"),
    [("string", 5), ("bigint", "5"), ("bigint", 2**63), ("int", 2**31), ("date", "x"), ("string", "\ud800"),
     ("decimal(5,2)", Decimal(10**30)), ("array<int>", ["x"]), ("timestamp", "now"), ("binary", 10**12)],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_a_schema_error_that_names_the_field(ddl, value):
    with pytest.raises(SchemaError, match="the field 'a' is of type") as caught:
        hash_one(ddl, value)
    assert caught.value.field == "a"


def test_a_row_of_another_length_is_a_schema_error():
    with pytest.raises(SchemaError, match="1 values were emitted for the fields a, b"):
        row_hasher(parse_schema("a string, b string"), ["b"])(("x",))


def test_only_the_fields_named_count_and_their_order_matters():
    schema = parse_schema("a string, b string")
    hasher = row_hasher(schema, ["b"])
    assert hasher(("x", "k")) == hasher(("y", "k")) != hasher(("x", "l"))
    assert row_hasher(schema, ["a", "b"])(("x", "y")) == row_hasher(schema, ["b", "a"])(("y", "x"))
    assert row_hasher(schema, ["a", "b"])(("x", "y")) != row_hasher(schema, ["b", "a"])(("x", "y"))


def test_rows_may_be_tuples_of_a_stream_and_lists():
    schema = parse_schema("word string, count bigint")
    hasher = row_hasher(schema, ["count"])
    assert hasher(tuple_class(schema)("a", 7)) == hasher(["a", 7]) == hasher(("a", 7))


@pytest.mark.slow
@given(st.integers(-(2**31), 2**31 - 1))
def test_int_and_long_hash_differently(number):
    assert hash_one("int", number) != hash_one("bigint", number)


@pytest.mark.slow
@given(
    st.one_of(st.none(), st.text(st.characters(codec="utf-8"))), st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
)
def test_the_quick_ways_for_one_string_and_one_long_agree_with_the_general_one(word, count):
    schema = parse_schema("word string, count bigint, nothing int")
    row = (word, count, None)
    for field in ("word", "count"):
        assert row_hasher(schema, [field])(row) == row_hasher(schema, [field, "nothing"])(row)


def test_a_map_has_no_hash():
    with pytest.raises(TypeError, match="map"):
        row_hasher(parse_schema("a map<string, int>"), ["a"])


def test_a_batch_with_years_that_python_lacks_can_be_hashed():
    schema = parse_schema("a timestamp")
    batch = pa.record_batch([pa.array([10**18], pa.int64()).cast(schema.field("a").type)], schema=schema)
    plain = task_chooser(parse_schema("a bigint"), MANY)([pa.array([10**18])])
    assert task_chooser(schema, MANY)(batch.columns) == plain


WORDS = parse_schema("word string")


def test_partial_key_uses_at_most_two_tasks_for_a_key_and_halves_a_heavy_one():
    choose = partial_key_chooser(WORDS, ["word"], 8)
    loads = Counter(choose(("heavy",)) for _ in range(1000))
    assert sorted(loads.values()) == [500, 500]
    ways = {word: {choose((word,)) for _ in range(50)} for word in map(str, range(200))}
    assert all(len(tasks) <= 2 for tasks in ways.values())
    assert set().union(*ways.values()) == set(range(8))


def test_partial_key_takes_the_less_loaded_task():
    choose = partial_key_chooser(WORDS, ["word"], 2)  # with two tasks, both are the choice of every key
    assert [choose(("a",)), choose(("b",)), choose(("c",)), choose(("d",))].count(0) == 2


def test_partial_key_is_the_same_again_for_the_same_rows():
    rows = [(str(number % 37),) for number in range(500)]
    first, again = partial_key_chooser(WORDS, ["word"], 5), partial_key_chooser(WORDS, ["word"], 5)
    assert list(map(first, rows)) == list(map(again, rows))


def test_partial_key_with_one_task():
    assert partial_key_chooser(WORDS, ["word"], 1)(("a",)) == 0


VALUES = {
    "string": st.text(st.characters(codec="utf-8"), max_size=40),
    "binary": st.binary(max_size=40),
    "boolean": st.booleans(),
    "tinyint": st.integers(-128, 127),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "date": st.dates(),
    "timestamp_ntz": st.datetimes(),
    "decimal(10,2)": st.decimals(-100, 100, places=2),
}


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [2, 7, MANY])
@pytest.mark.parametrize("repeats", [False, True])
@given(st.data())
@settings(max_examples=30)
def test_the_tasks_of_many_rows_are_those_of_each(parallelism, repeats, data):
    kinds = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=1 if repeats else 3))
    schema = parse_schema(", ".join(f"f{place} {kind}" for place, kind in enumerate(kinds)))
    columns = [
        pa.array(data.draw(st.lists(st.none() | VALUES[kind], min_size=12, max_size=12)), schema.field(place).type)
        for place, kind in enumerate(kinds)
    ]
    times = 30
    if not repeats:  # beside a column of which each value is another: the columns are hashed and not the few values
        schema = schema.append(pa.field("n", pa.string()))
        columns.append(pa.array([chr(97 + place) * place for place in range(12)]))
    grown = [pa.concat_arrays([column] * times).slice(5, 300) for column in columns]
    hasher = row_hasher(schema, schema.names)
    rows = zip(*(column.to_pylist() for column in grown), strict=True)
    assert task_chooser(schema, parallelism)(grown).to_pylist() == [hasher(row) % parallelism for row in rows]


@pytest.mark.parametrize("length", [0, 1, 3, 4, 7, 8, 11, 12, 15, 16, 28, 31, 32, 33, 100])
def test_texts_of_every_length_hash_by_the_column_as_by_the_row(length):
    words = [f"{number:x}".rjust(length, "-")[:length] for number in range(1000)]
    column = pa.array([*words, "another", None, ""])
    hasher = row_hasher(WORDS, ["word"])
    assert task_chooser(WORDS, MANY)([column]).to_pylist() == [hasher((word,)) % MANY for word in column.to_pylist()]


# ---- The JVM confirms the pinned hashes, so that tuples and DataFrames with equal keys meet in one task.


@pytest.fixture(scope="module")
def spark():
    running = SparkSession.getActiveSession()
    started = running or SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    session = started.newSession()  # settings of its own
    session.conf.set("spark.sql.session.timeZone", "UTC")
    yield session
    if running is None:
        started.stop()


@pytest.mark.daily(8)
@pytest.mark.slow
@pytest.mark.parametrize(("ddl", "rows", "hashes"), VECTORS, ids=IDS)
def test_spark_makes_the_pinned_hashes(spark, ddl, rows, hashes):
    frame = spark.createDataFrame(rows, ddl)
    assert [row[0] for row in frame.select(F.xxhash64(*frame.columns)).collect()] == hashes


@pytest.mark.slow
def test_a_frames_schema_is_read_as_spark_itself_hands_it_to_arrow(spark):
    """All types in one frame: the seconds that Spark takes are those of a job."""
    fields, row = [], ()
    for number, (ddl, rows, _) in enumerate(VECTORS):
        fields += [StructField(f"{field.name}{number}", field.dataType) for field in StructType.fromDDL(ddl)]
        row += rows[0]
    frame = spark.createDataFrame([row], StructType(fields))
    read = parse_schema(frame.schema)
    assert list(read) == list(frame.toArrow().schema)
    assert list(read) == list(parse_schema(frame.schema.simpleString()))


@pytest.mark.slow
def test_spark_and_python_route_to_the_same_task(spark):
    rows = [(f"word-{number}", number) for number in range(200)]
    frame = spark.createDataFrame(rows, "word string, count long")
    routed = frame.select(F.expr("cast(pmod(xxhash64(word, count), 7) as int)")).collect()
    hasher = row_hasher(parse_schema(frame.schema), ["word", "count"])
    assert [row[0] for row in routed] == [hasher(row) % 7 for row in rows]


@pytest.mark.slow
def test_types_without_a_counterpart_are_refused_by_column(spark):
    frame = spark.sql("select 1 as fine, interval 1 day as wait")
    with pytest.raises(ValueError, match="column 'wait' has the type interval day"):
        parse_schema(frame.schema)
    frame = spark.sql("select named_struct('inner', array(parse_json('1'))) as outer")
    with pytest.raises(ValueError, match=r"column 'outer\.inner' has the type variant"):
        parse_schema(frame.schema)


# ---- To which tasks each grouping sends a row, by values and by whole batches.


SCHEMA = pa.schema([("key", pa.string()), ("number", pa.int64())])
Row = tuple[str | None, int]
ROWS = st.lists(st.tuples(st.one_of(st.none(), st.text(max_size=3)), st.integers(-9, 9)), min_size=1, max_size=40)


def sent(kind: str, rows: list[Row], width: int, *, values: bool) -> dict[int, list[Any]]:
    columns = [list(column) for column in zip(*rows, strict=True)]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )
    edge = Edge(0, "source", "default", "target", Grouping(kind, ("key",) if Grouping(kind).by_key else ()))
    router = ROUTERS[kind](edge, SCHEMA, width, 0)
    found: dict[int, list[Any]] = {}
    for task, part in router.split(batch, columns if values else None):
        found.setdefault(task, []).extend(tuple(row.values()) for row in part.to_pylist())
    return found


def tasks_of(kind: str, rows: list[Row], width: int) -> list[list[int]]:
    match kind:
        case "fields":
            key_hash = row_hasher(SCHEMA, ["key"])
            return [[key_hash(row) % width] for row in rows]
        case "partialKey":
            choose = partial_key_chooser(SCHEMA, ["key"], width)
            return [[choose(row)] for row in rows]
        case "global":
            return [[0] for _ in rows]
        case _:
            return [list(range(width)) for _ in rows]


def test_every_grouping_that_can_be_declared_has_a_router():
    assert ROUTERS.keys() == PROMISES.keys()


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize("values", [True, False], ids=["values", "batch"])
@pytest.mark.parametrize("kind", ["fields", "partialKey", "global", "all", "broadcast"])
@given(rows=ROWS, width=st.integers(1, 5))
def test_a_row_goes_where_the_grouping_promises(kind, values, rows, width):
    expected: dict[int, list[Row]] = {}
    for row, tasks in zip(rows, tasks_of(kind, rows, width), strict=True):
        for task in tasks:
            expected.setdefault(task, []).append(row)
    assert sent(kind, rows, width, values=values) == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind, promise in PROMISES.items() if promise is Promise.ANY])
@given(rows=ROWS, width=st.integers(1, 5))
def test_rows_that_may_go_anywhere_all_arrive_in_even_shares(kind, rows, width):
    found = sent(kind, rows, width, values=True)
    assert Counter(row for part in found.values() for row in part) == Counter(rows)
    assert max(map(len, found.values())) - min(len(found.get(task, ())) for task in range(width)) <= 1
