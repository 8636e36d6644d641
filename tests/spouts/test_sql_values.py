"""SqlPartitionedSpout: what stands in the table arrives, or the value is refused; nothing is rounded or guessed."""

from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from statefx import BasicBolt, TopologyBuilder
from statefx.connectors.sql import SqlBackend, SqlPartitionedSpout, SqlQueueSpout
from statefx.errors import BoltError, InputError, ValueMismatchError
from statefx.testing import TopologyTester
from statefx.values.backend import Row
from tests.spouts.queues import NOTES


class Reader(BasicBolt):
    def execute(self, tup, collector):
        pass


def read(database, place, fields=None):
    """Return the values of column v of table t, as bolts get them."""
    builder = TopologyBuilder("values")
    schema = None if fields is None else f"id long, v {fields}"
    builder.setSpout("rows", SqlPartitionedSpout(database.url, "t", "id", schema))
    builder.setBolt("reader", Reader()).globalGrouping("rows")
    with TopologyTester(builder.createTopology(), place / "ck") as tester:
        return [row[1] for row in tester.emit().emitted("rows")]


def table(database, kind, *literals):
    database.run(f"create table t (id integer primary key, v {kind})")
    for number, literal in enumerate(literals):
        database.run(f"insert into t values ({number}, {literal})")


ON_BOTH: list[tuple[str, str, str, Any]] = [
    ("double precision", "2.5", "double", 2.5),
    ("double precision", "0.30000000000000004", "string", "0.30000000000000004"),
    ("text", "'2020-01-01'", "date", date(2020, 1, 1)),
    ("text", "'[1, null]'", "array<bigint>", [1, None]),
    ("bigint", "7", "decimal(10, 2)", Decimal("7.00")),
    ("text", "'1.5'", "decimal(10, 2)", Decimal("1.50")),
    ("boolean", "true", "boolean", True),
]
SQLITE = [
    ("text", "'2020-01-01 00:00:00+05:00'", "timestamp", datetime(2019, 12, 31, 19, tzinfo=UTC)),
    ("text", "'2020-01-01T00:00:00Z'", "timestamp", datetime(2020, 1, 1, tzinfo=UTC)),
    ("datetime", "'2020-01-01 00:00:00'", "timestamp", datetime(2020, 1, 1, tzinfo=UTC)),
    ("datetime", "'2020-01-01 00:00:00.1234560'", "timestamp_ntz", datetime(2020, 1, 1, microsecond=123456)),
    ("decimal(10, 2)", "'0.10'", "decimal(10, 2)", Decimal("0.10")),
    ("integer", "7", "string", "7"),
]
POSTGRES = [
    ("integer[]", "'{1,2}'", "array<int>", [1, 2]),
    ("jsonb", """'{"a": 1}'""", "struct<a: int>", {"a": 1}),
    ("real", "0.5", "float", 0.5),
    ("timestamptz", "'2020-01-01 00:00:00+05'", "timestamp", datetime(2019, 12, 31, 19, tzinfo=UTC)),
    ("uuid", f"'{'0' * 8}-0000-0000-0000-{'0' * 12}'", "string", "00000000-0000-0000-0000-000000000000"),
]


@pytest.mark.parametrize(("kind", "literal", "fields", "value"), ON_BOTH)
def test_a_value_arrives_as_the_field_s_type(kind, literal, fields, value, database, tmp_path):
    table(database, kind, literal, "null")
    assert read(database, tmp_path, fields) == [value, None]


@pytest.mark.parametrize(("kind", "literal", "fields", "value"), SQLITE)
def test_values_that_sqlite_has_no_types_for(kind, literal, fields, value, sqlite_database, tmp_path):
    table(sqlite_database, kind, literal, "null")
    assert read(sqlite_database, tmp_path, fields) == [value, None]


@pytest.mark.parametrize(("kind", "literal", "fields", "value"), POSTGRES)
def test_values_of_postgresql_s_own_types(kind, literal, fields, value, postgres_database, tmp_path):
    table(postgres_database, kind, literal, "null")
    assert read(postgres_database, tmp_path, fields) == [value, None]


@pytest.mark.daily(14)
@pytest.mark.parametrize(
    ("kind", "literal", "fields"),
    [
        ("integer", "1.5", None),
        ("double precision", "2.9", "bigint"),
        ("double precision", "2.0", "bigint"),
        ("text", "'5'", "bigint"),
        ("text", "'0'", "boolean"),
        ("bigint", "2", "boolean"),
        ("bigint", "9007199254740993", "double"),
        ("bigint", "300", "tinyint"),
        ("text", "'[1.5]'", "array<bigint>"),
        ("text", "'[true]'", "array<string>"),
        ("text", '\'{"a": "1"}\'', "struct<a: bigint>"),
        ("text", "'no JSON'", "array<bigint>"),
        ("text", "'1.005'", "decimal(10, 2)"),
        ("text", "'2020-01-01 00:00:00'", "date"),
        ("text", "'2020-01-01 00:00:00.1234567'", "timestamp_ntz"),
        ("text", "'2020-01-01 00:00:00,1234567'", "timestamp_ntz"),
        ("text", "'2020-01-01 00:00:00+05:00'", "timestamp_ntz"),
        ("text", "'x'", "binary"),
        ("timestamp", "1577836800", "timestamp"),
        ("text", "x'ff'", "string"),
    ],
)
def test_a_value_that_its_field_can_t_hold_is_refused(kind, literal, fields, database, tmp_path):
    if database.postgres and (kind, literal) in [("integer", "1.5"), ("timestamp", "1577836800"), ("text", "x'ff'")]:
        pytest.skip("PostgreSQL puts no value of another type into a column")
    table(database, kind, literal)
    with pytest.raises(BoltError, match=r"t\.v can't be read as v .* row with id=0: declare another type, schema="):
        read(database, tmp_path, fields)


UNREADABLE = [
    ("sqlite", "text", "cast(x'636166e9' as text)", "string", "Could not decode to UTF-8"),
    ("postgres", "date", "'infinity'", "date", "date too large"),
    ("postgres", "timestamptz", "'10000-01-01 00:00:00+00'", "timestamp", "timestamp too large"),
    ("postgres", "timestamp", "'0044-03-15 00:00:00 BC'", "timestamp_ntz", "BC"),
]


@pytest.fixture(
    params=[
        pytest.param(case, marks=[pytest.mark.slow, pytest.mark.server] if case[0] == "postgres" else [], id=case[1])
        for case in UNREADABLE
    ]
)
def unreadable(request):
    """Return a database, and a type of column, a value that can't be read of it, a field, and what is said of it."""
    return request.getfixturevalue(f"{request.param[0]}_database"), *request.param[1:]


@pytest.mark.daily(4)
@pytest.mark.parametrize("number", [0, 5, 9])
def test_unreadable_value_is_named_at_once_with_its_key(unreadable, number, tmp_path, caplog):
    database, kind, literal, fields, said = unreadable
    table(database, kind, *["null"] * number, literal, *["null"] * (9 - number))
    named = rf"t\.v can't be read as v {fields}: .*{said}.*in the row with id={number}: .*WHERE id = {number}\)"
    with pytest.raises(BoltError, match=f"(?s)hook emitPartitionBatch.*InputError.*{named}"):
        read(database, tmp_path, fields)
    assert caplog.text.count("was rolled back") <= 1, "it was tried again"


@pytest.mark.slow
def test_unreadable_value_of_a_queue_ends_it_with_its_key(unreadable, tmp_path):
    database, kind, literal, fields, said = unreadable
    table(database, kind, "null", "null", literal)
    for name, of in (("owner", "text"), ("until", "double precision"), ("tries", "integer")):
        database.run(f"alter table t add column statefx_{name} {of}")
    if not database.postgres:  # which gives numbers of rows again
        notes = "statefx_owner, statefx_until, statefx_tries"
        database.run(f"create table u (id integer primary key autoincrement, v text, {notes})")
        database.run("insert into u select * from t")
    builder = TopologyBuilder("queue")
    builder.setSpout("rows", SqlQueueSpout(database.url, "t" if database.postgres else "u", f"id long, v {fields}"))
    builder.setBolt("reader", Reader()).globalGrouping("rows")
    named = rf"[tu]\.v can't be read as v {fields}: .*{said}.*in the row with id=2"
    with (
        TopologyTester(builder.createTopology(), tmp_path / "ck") as tester,
        pytest.raises(BoltError, match=f"(?s)hook nextTuple.*InputError.*{named}"),
    ):
        tester.drain()


@pytest.mark.slow
def test_unreadable_value_that_rows_are_ordered_by_is_named(postgres_database, tmp_path):
    postgres_database.run("create table t (at timestamptz not null, v text); create index on t (at)")
    postgres_database.run("insert into t values (now(), 'a'), ('infinity', 'b')")
    builder = TopologyBuilder("ordered")
    builder.setSpout("rows", SqlPartitionedSpout(postgres_database.url, "t", "at", "v string"))
    builder.setBolt("reader", Reader()).globalGrouping("rows")
    with (
        TopologyTester(builder.createTopology(), tmp_path / "ck") as tester,
        pytest.raises(InputError, match=r"the largest t\.at can't be read: timestamp too large"),
    ):
        tester.drain()


def test_unreadable_name_of_a_queue_s_row_ends_it(sqlite_database, tmp_path):
    sqlite_database.run(f"create table jobs (id text primary key, v text, {', '.join(NOTES)})")
    sqlite_database.run("insert into jobs (id, v) values ('a', 'x'), (cast(x'636166e9' as text), 'y')")
    builder = TopologyBuilder("queue")
    builder.setSpout("rows", SqlQueueSpout(sqlite_database.url, "jobs", "v string"))
    builder.setBolt("reader", Reader()).globalGrouping("rows")
    named = r"jobs\.id can't be read: Could not decode to UTF-8.*correct it \(UPDATE jobs SET id = "
    with (
        TopologyTester(builder.createTopology(), tmp_path / "ck") as tester,
        pytest.raises(BoltError, match=f"(?s)hook nextTuple.*InputError.*{named}"),
    ):
        tester.drain()


def test_unreadable_row_of_values_is_no_outage(sqlite_database):
    with closing(SqlBackend(sqlite_database.url, "totals")) as backend:
        backend.multiPut({"a": Row("1", "4", None)}, {"a": None})
        sqlite_database.run("update totals set value = cast(x'e9' as text)")
        with pytest.raises(ValueMismatchError, match="row that can't be read, of a key among 'a', 'b'"):
            backend.multiGet(["a", "b"])
