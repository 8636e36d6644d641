"""Columns of tables that a user made: of every type, for fields of every type, each value equal or refused."""

import json
from contextlib import closing, suppress
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count

import psycopg
import pyarrow as pa
import pytest
from sqlalchemy import MetaData, NullPool, Table, create_engine
from sqlalchemy.dialects import mysql

from statefx.connectors.sql import SqlBackend, SqlPartitionedSpout, SqlQueueSpout
from statefx.connectors.sql.columns import _generic_column, _generic_holds, check_columns, converter, sql_type
from statefx.errors import ConfigError, SinkError, TopologyError
from tests.connectors.round_trips import emitted
from tests.connectors.values import AWKWARD
from tests.sinks.database import HandDriven

NOON = datetime(2026, 7, 1, 12, 0, 0, 123456)
FIELDS = {
    **AWKWARD,
    pa.int64(): [*AWKWARD[pa.int64()], 0, 7, 2**53],
    pa.float64(): [*AWKWARD[pa.float64()], 1.5, 1e300, 2.0**53, 1e18],
    pa.decimal128(10, 2): [*AWKWARD[pa.decimal128(10, 2)], Decimal("1.20"), Decimal("1.40")],
    pa.decimal128(20, 2): [Decimal("12345678901234567.89"), Decimal("1.25")],
    pa.string(): [*AWKWARD[pa.string()], "A", "007", "1e5", " 7 ", "a ", "a    ", "abcde ", "abcdef", '{"b":1, "b":2}'],
    pa.timestamp("us", "UTC"): [*AWKWARD[pa.timestamp("us", "UTC")], NOON.replace(tzinfo=UTC)],
    pa.timestamp("us"): [*AWKWARD[pa.timestamp("us")], NOON],
    pa.list_(pa.float64()): [[1.5, None, 1e22], []],
    pa.map_(pa.string(), pa.int64()): [[("b", 2**53 + 1), ("a", 1)], []],
    pa.struct([("at", pa.timestamp("us", "UTC")), ("price", pa.decimal128(9, 2))]): [
        {"at": NOON.replace(tzinfo=UTC), "price": Decimal("1.20")}
    ],
}

KEYS = (pa.int64(), pa.float64(), pa.decimal128(10, 2), pa.string(), pa.timestamp("us", "UTC"))

SQLITE = [
    "", "integer", "bigint", "tinyint(1)", "int", "real", "double", "float", "numeric", "numeric(10,0)",
    "decimal(20,2)", "boolean", "date", "datetime", "timestamp", "json", "text", "varchar(5)", "char(5)", "clob",
    "blob", "string", "text collate nocase", "varchar(9) collate rtrim", "any",
]  # fmt: skip
STRICT = ["int", "integer", "real", "text", "blob", "any"]

POSTGRES = [
    "boolean", "smallint", "integer", "bigint", "oid", "money", "bit(8)", "varbit", "real", "double precision",
    "numeric", "numeric(20,1)", "numeric(10,0)", "numeric(38,18)", "numeric(3,5)", "numeric(3,-2)", "text", "varchar",
    "varchar(5)", "char(5)", "bpchar", '"char"', "name", "citext", "mood", "uuid", "xml", "json", "jsonb", "bytea",
    "date", "time", "timetz", "interval", "timestamp", "timestamp(3)", "timestamp(6)", "timestamptz", "timestamptz(0)",
    "inet", "macaddr", "tsvector", "point", "int4range", "text[]", "bigint[]", "pair", "cents", "short", "shorter",
]  # fmt: skip

TYPES = """
    alter database {name} set timezone = 'Europe/Berlin';
    create type mood as enum ('a', 'A', '007');
    create type pair as (a int, b text);
    create domain cents as numeric(10,0);
    create domain short as varchar(5);
    create domain shorter as short check (length(value) < 4);
    create type citext;
    create function citextin(cstring) returns citext language internal immutable strict as 'textin';
    create function citextout(citext) returns cstring language internal immutable strict as 'textout';
    create type citext (input = citextin, output = citextout, internallength = variable, storage = extended,
        category = 'S');
    create cast (citext as text) without function as implicit;
    create cast (text as citext) without function as assignment;
    create function citext_compares(citext, citext) returns int language sql immutable strict
        as $$ select bttextcmp(lower($1::text), lower($2::text)) $$;
    create function citext_equals(citext, citext) returns bool language sql immutable strict
        as $$ select lower($1::text) = lower($2::text) $$;
    create function citext_less(citext, citext) returns bool language sql immutable strict
        as $$ select lower($1::text) < lower($2::text) $$;
    create operator = (leftarg = citext, rightarg = citext, function = citext_equals);
    create operator < (leftarg = citext, rightarg = citext, function = citext_less);
    create operator class citext_ops default for type citext using btree
        as operator 1 <, operator 3 =, function 1 citext_compares(citext, citext)
"""
"""The type of the extension citext, which not every server has, is made here as it makes it."""


@pytest.fixture(scope="module")
def types(postgres, tmp_path_factory):
    """Return a database that has columns of all types."""
    from tests.sinks.database import PostgresDatabase

    database = PostgresDatabase(postgres, tmp_path_factory.mktemp("types"))
    database.run(TYPES.format(name=database.name))
    return database


numbers = count()


def check_column(database, column, more=""):
    """Write fields of all types into columns of one type: each field is refused, or each value is there or refused."""
    kinds = list(FIELDS)
    schema = pa.schema([("n", pa.int64()), *((f"v{at}", kind) for at, kind in enumerate(kinds))])
    table = f"t{next(numbers)}"
    listed = ", ".join(f"v{at} {column}" for at in range(len(kinds)))
    database.run(f"create table {table} (n int, {listed}){more}")
    taken = holding(database, table, schema)
    rows = [
        (at, value)
        for at, kind in enumerate(kinds)
        if schema.field(at + 1) in taken
        for value in pa.array([*FIELDS[kind], None], kind).to_pylist()
    ]
    write(database, table, taken, rows)
    for at, kind in enumerate(kinds):
        if kind in KEYS and schema.field(at + 1) in taken:
            table = f"t{next(numbers)}"
            with suppress(psycopg.Error):  # of a type without an order
                database.run(f"create table {table} (n int, v{at} {column} primary key){more}")
                fields = pa.schema([schema.field(0), schema.field(at + 1)])
                if holding(database, table, fields, key=(f"v{at}",)) == list(fields):
                    values = pa.array(FIELDS[kind], kind).to_pylist()
                    write(database, table, list(fields), [(at, value) for value in values], key=f"v{at}")


def holding(database, table, schema, key=()):
    """Return the fields that are not refused, each with a look at the table for it alone."""
    engine = create_engine(database.url, poolclass=NullPool)
    described = Table(table, MetaData(), schema="public" if database.postgres else None)
    taken = []
    with closing(engine.connect()) as connection:
        for field in schema:
            try:
                check_columns(connection, described, pa.schema([field]), key if field.name in key else (), "t")
                taken.append(field)
            except SinkError:
                continue
    return taken


def write(database, table, fields, rows, key=()):
    """Write values, each in a row of its own, and see whether each is there as it was, or was refused by name."""
    columns = {field.name: [value if f"v{at}" == field.name else None for at, value in rows] for field in fields}
    columns["n"] = range(len(rows))
    with closing(HandDriven(database, table, pa.schema(fields), key=key, deadLetter=f"dead{table}")) as sink:
        sink.check()
        sink.commit([columns])
    refused = {json.loads(row[0])["n"] for row in database.run(f"select content from dead{table}")}
    kinds = {field.name: field.type for field in fields}
    kept, wanted = {}, {}
    for number, (at, value) in enumerate(rows):
        wanted[number] = stored(database, kinds[f"v{at}"], value)
    for name, kind in list(kinds.items())[1:]:
        as_text = "::text" if database.postgres and pa.types.is_string(kind) else ""  # the driver would read JSON
        mine = [number for number, (at, _) in enumerate(rows) if f"v{at}" == name]
        found = database.run(f"select n, {name}{as_text} from {table} where n between {mine[0]} and {mine[-1]}")
        for number, value in found:
            kept[number] = value
            what = f"{kind}, {'key ' if key else ''}{wanted[number]!r} became {value!r}"
            assert same(value, wanted[number], kind), what
    for number in wanted.keys() - kept.keys() - refused:
        assert key, f"{wanted[number]!r} was lost"
        assert any(wanted[number] == wanted[other] for other in kept), f"{wanted[number]!r} was lost"


def stored(database, kind, value):
    """Return a value as the page says that the database has it."""
    convert = converter(kind, lite=not database.postgres)
    return value if value is None or convert is None else convert(value)


def same(found, wanted, kind):
    """Return whether two values are equal: a text is no number, NaN is NaN, and JSON has no order and no spaces."""
    if found is None or wanted is None:
        return found is wanted
    if pa.types.is_float32(kind):  # PostgreSQL writes as few digits as name it
        found = pa.scalar(found, kind).as_py()
    if isinstance(found, dict | list):
        found = json.dumps(found)
    if found != found and wanted != wanted:
        return True
    if pa.types.is_nested(kind):
        return json.loads(found) == json.loads(wanted)
    return found == wanted and isinstance(found, str | bytes) == isinstance(wanted, str | bytes)


@pytest.mark.daily(8)
@pytest.mark.slow
@pytest.mark.parametrize("column", SQLITE)
def test_sqlite_column_holds_values_or_is_refused(sqlite_database, column):
    check_column(sqlite_database, column)


@pytest.mark.slow
@pytest.mark.parametrize("column", STRICT)
def test_strict_sqlite_column_holds_values_or_is_refused(sqlite_database, column):
    check_column(sqlite_database, column, " strict")


@pytest.mark.daily(15)
@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("column", POSTGRES)
def test_postgres_column_holds_values_or_is_refused(types, column):
    check_column(types, column)


def refused(database, schema, **options):
    with closing(HandDriven(database, "t", pa.schema(schema), **options)) as sink, pytest.raises(SinkError) as error:
        sink.check()
    return error.value.message


@pytest.mark.parametrize(
    ("column", "kind"),
    [("integer", pa.int64()), ("real", pa.float64()), ("numeric", pa.float64()), ("text", pa.decimal128(9, 2))],
)
def test_sqlite_column_of_the_right_affinity_is_taken(sqlite_database, column, kind):
    sqlite_database.run(f"create table t (v {column} primary key)")
    with closing(HandDriven(sqlite_database, "t", pa.schema([("v", kind)]), key=("v",))) as sink:
        sink.check()


@pytest.mark.parametrize("text", ["v text collate nocase primary key", "v text collate rtrim, unique (v)"])
def test_key_with_a_collation_of_equal_texts_is_refused(sqlite_database, text):
    sqlite_database.run(f"create table t ({text})")
    said = refused(sqlite_database, [("v", pa.string())], key=("v",))
    assert "the key 'v' is compared by the collation" in said
    assert "TEXT COLLATE BINARY" in said


def test_null_for_an_integer_primary_key_is_a_refused_row(sqlite_database):
    sqlite_database.run("create table t (v integer primary key, w text)")
    with closing(HandDriven(sqlite_database, "t", pa.schema([("v", pa.int64()), ("w", pa.string())]))) as sink:
        sink.commit([{"v": [5], "w": ["a"]}])
        with pytest.raises(SinkError, match=r"makes a number of a null in 'v'.*; the row is {'v': None, 'w': 'c'}"):
            sink.commit([{"v": [6, None], "w": ["b", "c"]}])
    assert sqlite_database.run("select * from t") == [(5, "a")]


def test_table_of_dead_letters_that_changes_them_is_refused(sqlite_database):
    sqlite_database.run("create table dead (target text, txid text, reason text, content text)")
    said = refused(sqlite_database, [("v", pa.string())], deadLetter="dead")
    assert "table 'dead': column 'txid' is TEXT" in said


@pytest.mark.slow
@pytest.mark.server
def test_text_whose_spaces_postgresql_cuts_fails_with_validate(types):
    types.run("create table t (v varchar(3))")
    with closing(HandDriven(types, "t", pa.schema([("v", pa.string())]), validate=True)) as sink:
        sink.start()
        sink.prepare([{"v": ["abc", "ab ", None]}])
        with pytest.raises(SinkError, match=r"too long for type character varying\(3\).*{'v': 'abc '}"):
            sink.prepare([{"v": ["abc", "abc "]}])


@pytest.mark.slow
@pytest.mark.server
def test_column_with_a_collation_of_its_own_is_looked_at(types):
    types.run('create table collated (id bigserial primary key, v text collate "POSIX", j jsonb)')
    schema = pa.schema([("v", pa.string()), ("j", pa.list_(pa.int64()))])
    with closing(HandDriven(types, "collated", schema)) as sink:
        sink.check()
        sink.commit([{"v": ["a"], "j": [[2**53 + 1]]}])
    spout = SqlPartitionedSpout(types.url, "collated", "id", "v string, j array<bigint>")
    assert emitted(spout, schema, types.place / "collated").to_pylist() == [{"v": "a", "j": [2**53 + 1]}]


@pytest.mark.slow
@pytest.mark.server
def test_queue_s_column_that_rounds_times_is_refused(types):
    types.run("create table jobs (id bigserial primary key, statefx_owner text, statefx_until real, statefx_tries int)")
    with pytest.raises(TopologyError, match="column 'statefx_until' is real"):
        SqlQueueSpout(types.url, "jobs")


def test_table_of_values_that_takes_two_keys_for_one_is_refused(sqlite_database):
    sqlite_database.run("create table t (key text collate nocase primary key, version text, value text, undo text)")
    with closing(SqlBackend(sqlite_database.url, "t")) as backend, pytest.raises(ConfigError, match="key 'key'"):
        backend.multiGet(["a"])


def test_mysql_column_holds_its_field_or_is_refused():
    """By SQLAlchemy's types alone: no server of it runs here."""
    dialect = mysql.dialect()
    for kind in FIELDS:
        column = _generic_column(sql_type(pa.field("v", kind), lite=False).dialect_impl(dialect), zones=False)
        assert _generic_holds(kind, column), kind
    assert sql_type(pa.field("v", pa.timestamp("us")), lite=False).compile(dialect=dialect) == "DATETIME(6)"
    for kind, narrow in (
        (pa.timestamp("us"), mysql.DATETIME()),
        (pa.float64(), mysql.FLOAT()),
        (pa.decimal128(10, 2), mysql.DECIMAL(10, 1)),
        (pa.string(), mysql.CHAR(9)),
        (pa.string(), mysql.INTEGER()),
        (pa.int64(), mysql.TEXT()),
    ):
        assert not _generic_holds(kind, _generic_column(narrow, zones=False)), kind
