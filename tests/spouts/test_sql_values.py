"""SqlPartitionedSpout: what stands in the table arrives, or the value is refused; nothing is rounded or guessed."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from statefx import BasicBolt, TopologyBuilder
from statefx.connectors.sql import SqlPartitionedSpout
from statefx.errors import BoltError
from statefx.testing import TopologyTester


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
    with pytest.raises(BoltError, match=r"t\.v can't be read as v .*; declare another type, schema="):
        read(database, tmp_path, fields)
