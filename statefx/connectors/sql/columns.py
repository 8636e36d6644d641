"""Fields of rows and columns of tables: types, values, and which columns hold every value of a field as it is.

A database changes values to fit a column: it rounds, cuts, pads, reads a text as a number, or shifts a time into the
session's zone. Databases refuse few of these assignments, so the columns of tables that a user made are looked up in
the catalog, and others are refused before a row is lost. A value that a column refuses aloud (out of range, too long)
is a row that the database refuses.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from statefx.connectors.sql.connection import alchemy, quoted, reason_of
from statefx.errors import InputError, SinkError, TopologyError
from statefx.operators.fitting import MISFITS
from statefx.operators.json_values import NUMBER, JsonType
from statefx.operators.schema import to_ddl

if TYPE_CHECKING:
    import sqlalchemy as sa

Mask = Callable[[pa.Array], pa.BooleanArray]
"""Return which values of a column of rows would be changed; never null."""

# ---- types and values


def sql_type(field: pa.Field, *, lite: bool) -> Any:
    """Return the column's type for a field of the stream; TopologyError if there is none."""
    kind = field.type
    for fits, make in _SQL_TYPES:
        if fits(kind):
            return make(alchemy(), kind, lite)
    raise TopologyError(f"field {field.name!r} is {kind}, for which databases have no column type", field=field.name)


_SQL_TYPES: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any, Any, bool], Any]]] = (
    (pa.types.is_boolean, lambda sa, kind, lite: sa.Boolean()),
    (pa.types.is_int8, lambda sa, kind, lite: sa.SmallInteger()),
    (pa.types.is_int16, lambda sa, kind, lite: sa.SmallInteger()),
    # SQLite fills a null in an INTEGER that is the key with a number of its own, instead of refusing it.
    (pa.types.is_int32, lambda sa, kind, lite: sa.BigInteger() if lite else sa.Integer()),
    (pa.types.is_int64, lambda sa, kind, lite: sa.BigInteger()),
    (pa.types.is_floating, lambda sa, kind, lite: sa.Double()),
    (pa.types.is_decimal, lambda sa, kind, lite: sa.Text() if lite else sa.Numeric(kind.precision, kind.scale)),
    (pa.types.is_string, lambda sa, kind, lite: sa.Text()),
    (pa.types.is_large_string, lambda sa, kind, lite: sa.Text()),
    (pa.types.is_binary, lambda sa, kind, lite: sa.LargeBinary()),
    (pa.types.is_date, lambda sa, kind, lite: sa.Date()),
    (pa.types.is_timestamp, lambda sa, kind, lite: _timestamp(sa, zoned=kind.tz is not None)),
    (pa.types.is_nested, lambda sa, kind, lite: sa.JSON()),
)


def _timestamp(sa: Any, *, zoned: bool) -> Any:
    """Return a type for times of microseconds, which MySQL keeps only if it is told to."""
    from sqlalchemy.dialects.mysql import DATETIME  # noqa: PLC0415 - an extra

    return sa.DateTime(timezone=zoned).with_variant(DATETIME(fsp=6), "mysql", "mariadb")


def contains(kind: pa.DataType, fits: Callable[[pa.DataType], bool]) -> bool:
    """Return whether a type, or one inside of it, is of a kind."""
    return fits(kind) or any(contains(kind.field(number).type, fits) for number in range(kind.num_fields))


def converter(kind: pa.DataType, *, lite: bool) -> Callable[[Any], Any] | None:
    """Return what makes a value one that the database's driver takes; None where it takes it as it is."""
    if pa.types.is_nested(kind):
        encode = JsonType(kind).encode
        return lambda value: encode(value).decode()
    if lite and pa.types.is_decimal(kind):
        return str
    if lite and pa.types.is_timestamp(kind):
        if kind.tz is None:
            return lambda value: value.isoformat(" ", "microseconds")
        return lambda value: value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")
    if lite and pa.types.is_date(kind):
        return lambda value: value.isoformat()
    return None


def arrow_type(kind: Any, *, lite: bool) -> pa.DataType | None:
    """Return the type of the field that a column's values fit; None if that has to be said."""
    sa = alchemy()
    if isinstance(kind, sa.Numeric) and not isinstance(kind, sa.Float):
        digits, scale = kind.precision, kind.scale or 0
        return pa.decimal128(digits, scale) if digits and digits <= DECIMAL_DIGITS and not lite else None
    if isinstance(kind, sa.DateTime):
        return pa.timestamp("us", tz="UTC" if kind.timezone else None)
    found = next((field for column, field in _FIELDS if isinstance(kind, getattr(sa, column))), None)
    return pa.int64() if lite and found is not None and pa.types.is_integer(found) else found


DECIMAL_DIGITS = 38

_FIELDS: Sequence[tuple[str, pa.DataType]] = (
    ("Boolean", pa.bool_()),
    ("SmallInteger", pa.int16()),
    ("BigInteger", pa.int64()),
    ("Integer", pa.int32()),
    ("Float", pa.float64()),
    ("Enum", pa.string()),
    ("String", pa.string()),
    ("Uuid", pa.string()),
    ("LargeBinary", pa.binary()),
    ("Date", pa.date32()),
)
"""The first that fits counts: classes of SQLAlchemy are each other's bases."""


def reader(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return what turns a value from the database's driver into one for `statefx.operators.fitting`; None: it is one.

    It undoes what `converter` does, and reads the texts and numbers that SQLite has in place of types. A value that it
    can't read it returns as it is, or raises ValueError; it never rounds.
    """
    if pa.types.is_nested(kind):
        decode = JsonType(kind).decode
        return lambda value: decode(value) if isinstance(value, str | bytes) else value  # PostgreSQL's arrays are lists
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        decode = JsonType(kind).decode
        return lambda value: decode(json.dumps(value)) if isinstance(value, str) else value
    if pa.types.is_boolean(kind):
        return lambda value: bool(value) if type(value) is int and value in (0, 1) else value
    if pa.types.is_decimal(kind):  # a REAL as it is shown: SQLite makes one of the text 0.10 in a column of decimals
        return _decimal
    if pa.types.is_string(kind):
        return lambda value: str(value) if isinstance(value, int | float) else value
    return None


def _decimal(value: Any) -> Any:
    if isinstance(value, str) and not re.match(NUMBER, value):  # Python also takes 1_0, and digits of other scripts
        raise ValueError(f"{value!r} is no decimal")
    return Decimal(str(value)) if isinstance(value, str | int | float) else value


# ---- which columns of a table hold every value of a field as it is


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the catalog has it."""

    shown: str  # the type as the database writes it
    base: str  # PostgreSQL's type, below all domains; SQLite's affinity; SQLAlchemy's class elsewhere
    size: tuple[int, ...] = ()  # of a varchar, precision and scale of a numeric, digits of a second; () without a limit
    strict: bool = False  # of SQLite: a value of another storage class is refused
    rowid: bool = False  # of SQLite: the INTEGER PRIMARY KEY, which gets a number where a row has a null


def check_columns(
    connection: sa.Connection, table: sa.Table, fields: pa.Schema, key: Sequence[str], target: str
) -> None:
    """Refuse a table of a user's with a column that changes values of its field, or takes two keys for one.

    SinkError names the column, both types, and the change that helps.
    """
    dialect = connection.dialect
    columns = columns_of(connection, table)
    for field in fields:
        column = columns[field.name]
        if not _holds(dialect.name, field.type, column):
            wanted = sql_type(field, lite=dialect.name == "sqlite").compile(dialect=dialect)
            raise SinkError(
                f"{target}: column {field.name!r} is {column.shown}, which does not hold every value of the field "
                f"{to_ddl(pa.schema([field]))} as it is, so that values would be changed or refused. Make the column "
                f"{wanted}{_altered(dialect, table, field.name, wanted)}, or emit a field that the column holds",
                target=target,
                field=field.name,
            )
    for name, why in _folding(connection, table, key, columns):
        raise SinkError(
            f"{target}: the key {name!r} is {why}, so that two keys may count as one and a row be lost: make the "
            f"column, and the index on it, {'TEXT COLLATE BINARY' if dialect.name == 'sqlite' else 'TEXT'} (with a "
            "collation by which only equal texts are equal), or give the sink another key",
            target=target,
            field=name,
        )


def _altered(dialect: Any, table: sa.Table, name: str, wanted: str) -> str:
    """Return the statement that changes a column's type, where the database has one."""
    if dialect.name != "postgresql":
        return ""
    place = quoted(dialect, table.schema, table.name)
    return f" (ALTER TABLE {place} ALTER COLUMN {quoted(dialect, name)} TYPE {wanted})"


def changed_values(connection: sa.Connection, table: sa.Table, fields: pa.Schema) -> list[tuple[int, str, Mask]]:
    """Return which values a database would change in columns that hold all others: field, reason and test of each."""
    lite, postgres = connection.dialect.name == "sqlite", connection.dialect.name == "postgresql"
    columns = columns_of(connection, table) if lite or postgres else {}
    found: list[tuple[int, str, Mask]] = []
    for number, field in enumerate(fields):
        column = columns.get(field.name)
        if lite and pa.types.is_floating(field.type):
            found.append((number, "SQLite makes a null of a NaN", _is_nan))
        if column is not None and column.rowid:
            found.append((number, f"SQLite makes a number of a null in {field.name!r}, INTEGER PRIMARY KEY", _is_null))
        if column is not None and postgres and column.base == "varchar" and column.size:
            reason = f"value too long for type {column.shown}: PostgreSQL cuts off its spaces"
            found.append((number, reason, partial(_ends_in_cut_spaces, column.size[0])))
    return found


def _is_nan(column: pa.Array) -> pa.BooleanArray:
    return pc.is_nan(column).fill_null(False)


def _is_null(column: pa.Array) -> pa.BooleanArray:
    return column.is_null()


def _ends_in_cut_spaces(limit: int, column: pa.Array) -> pa.BooleanArray:
    """Tell what is too long by spaces alone: of the other long texts, PostgreSQL says that they are."""
    if pa.types.is_nested(column.type):  # JSON ends in a bracket
        return pa.repeat(False, len(column))
    return pc.and_(pc.greater(pc.utf8_length(column), limit), pc.ends_with(column, " ")).fill_null(False)


def columns_of(connection: sa.Connection, table: sa.Table) -> dict[str, Column]:
    if connection.dialect.name == "sqlite":
        return _lite_columns(connection, table)
    if connection.dialect.name == "postgresql":
        return _postgres_columns(connection, table)
    zones = connection.dialect.name not in ("mysql", "mariadb")
    listed = listed_columns(alchemy().inspect(connection), table.name, table.schema)
    return {name: _generic_column(column["type"], zones=zones) for name, column in listed.items()}


def _holds(database: str, kind: pa.DataType, column: Column) -> bool:
    return _HOLDS.get(database, _generic_holds)(kind, column)


# ---- PostgreSQL

_COLUMNS = """
    with recursive based as (
        select a.attnum, a.attname, a.atttypid as type, a.atttypmod as modifier,
               format_type(a.atttypid, a.atttypmod) as shown
        from pg_attribute a where a.attrelid = to_regclass(%s) and a.attnum > 0 and not a.attisdropped
        union all
        select b.attnum, b.attname, t.typbasetype, t.typtypmod, b.shown
        from based b join pg_type t on t.oid = b.type where t.typtype = 'd'
    )
    select b.attname, b.shown, t.typname, b.modifier
    from based b join pg_type t on t.oid = b.type where t.typtype <> 'd' order by b.attnum
"""

# Rows of pg_collation as JSON: before PostgreSQL 12 it has no such column, and every collation tells texts apart.
_COLLATIONS = """
    select a.attname, c.collname
    from pg_index i
    cross join lateral unnest(i.indkey::int2[], i.indcollation::oid[]) as part(attnum, indexed)
    join pg_attribute a on a.attrelid = i.indrelid and a.attnum = part.attnum
    join pg_collation c on c.oid in (part.indexed, a.attcollation)
    where i.indrelid = to_regclass(%s) and i.indisunique and to_jsonb(c) ->> 'collisdeterministic' = 'false'
"""


def _postgres_columns(connection: sa.Connection, table: sa.Table) -> dict[str, Column]:
    rows = connection.exec_driver_sql(_COLUMNS, (quoted(connection.dialect, table.schema, table.name),)).all()
    return {name: Column(shown, base, _size(base, modifier)) for name, shown, base, modifier in rows}


def _size(base: str, modifier: int) -> tuple[int, ...]:
    if modifier < 0:
        return ()
    if base == "numeric":
        scale = (modifier - 4) & 0x7FF
        return ((modifier - 4) >> 16, scale - 0x800 if scale >= 0x400 else scale)
    return (modifier - 4,) if base in ("varchar", "bpchar") else (modifier,)


def _postgres_holds(kind: pa.DataType, column: Column) -> bool:
    types, base, size = pa.types, column.base, column.size
    if types.is_integer(kind):
        if base in ("float4", "float8"):
            return bool(kind.bit_width < (24 if base == "float4" else 53))
        return base in ("int2", "int4", "int8") or (base == "numeric" and (not size or size[1] >= 0))
    if types.is_decimal(kind):
        if base == "numeric":
            return not size or bool(size[1] >= kind.scale)
        return bool(kind.scale == 0) and base in ("int2", "int4", "int8")
    if types.is_timestamp(kind):
        return base == ("timestamp" if kind.tz is None else "timestamptz") and size in ((), (6,))
    return next((base in bases for fits, bases in _POSTGRES if fits(kind)), False)


_POSTGRES: Sequence[tuple[Callable[[pa.DataType], bool], tuple[str, ...]]] = (
    (pa.types.is_boolean, ("bool",)),
    (pa.types.is_float32, ("float4", "float8")),
    (pa.types.is_float64, ("float8",)),
    # Not types that read a text and write another one (jsonb, uuid), nor enum and json, for which a text needs a cast.
    (pa.types.is_string, ("text", "varchar", "citext")),
    (pa.types.is_large_string, ("text", "varchar", "citext")),
    (pa.types.is_binary, ("bytea",)),
    (pa.types.is_date, ("date",)),
    (pa.types.is_nested, ("json", "jsonb", "text", "varchar")),
)


# ---- SQLite


def _lite_columns(connection: sa.Connection, table: sa.Table) -> dict[str, Column]:
    strict = any(row.strict for row in _pragma(connection, table, "table_list", table.name) if hasattr(row, "strict"))
    listed = _pragma(connection, table, "table_xinfo", table.name)
    named = [row for row in listed if row.pk]
    indexed = any(row.origin == "pk" for row in _pragma(connection, table, "index_list", table.name))
    return {
        row.name: Column(
            row.type or "a column without a type",
            _affinity(row.type, strict=strict),
            strict=strict and row.type.upper() != "ANY",
            rowid=not indexed and [row] == named and row.type.upper() == "INTEGER",
        )
        for row in listed
    }


def _pragma(connection: sa.Connection, table: sa.Table, name: str, argument: str) -> Sequence[Any]:
    quote = connection.dialect.identifier_preparer.quote_identifier
    schema = "" if table.schema is None else f"{quote(table.schema)}."
    return connection.exec_driver_sql(f"pragma {schema}{name}({quote(argument)})").all()


def _affinity(declared: str, *, strict: bool) -> str:
    """Return what SQLite makes of values in a column (section 3.1 of its page on data types)."""
    name = declared.upper()
    if "INT" in name:
        return "INTEGER"
    if any(part in name for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if not name or "BLOB" in name or (strict and name == "ANY"):
        return "BLOB"
    return "REAL" if any(part in name for part in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def _lite_holds(kind: pa.DataType, column: Column) -> bool:
    """Return whether SQLite keeps what `types.converter` makes of the field's values."""
    types, affinity = pa.types, column.base
    number = types.is_integer(kind) or types.is_boolean(kind)
    stored = "INTEGER" if number else "REAL" if types.is_floating(kind) else "TEXT"
    stored = "BLOB" if types.is_binary(kind) else stored
    if (column.strict or column.rowid) and stored != affinity:
        return stored == "INTEGER" and affinity == "REAL" and types.is_integer(kind) and kind.bit_width < 53
    if stored == "INTEGER":
        whole = affinity == "REAL" and (types.is_boolean(kind) or kind.bit_width > 53)
        return affinity != "TEXT" and not whole
    if stored == "REAL":  # in columns of integers and numerics whole ones become integers, and equal
        return affinity != "TEXT"
    # Times and JSON never look like a number.
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_decimal(kind)
    return not text or affinity in ("TEXT", "BLOB")


# ---- others, by what SQLAlchemy knows of their types


_CLASSES = (
    "Boolean", "Integer", "Double", "REAL", "Float", "Numeric", "CHAR", "Uuid", "Enum", "String", "LargeBinary",
    "DateTime", "Date", "JSON",
)  # fmt: skip
"""The first that fits counts: classes of SQLAlchemy are each other's bases."""


def _generic_column(kind: Any, *, zones: bool) -> Column:
    """Return a column by its type; without `zones`, drivers write times in UTC and leave out the zone."""
    base = next((name for name in _CLASSES if isinstance(kind, getattr(alchemy(), name))), "")
    size: tuple[int, ...] = ()
    if base in ("Numeric", "Float"):
        size = (kind.precision or getattr(kind, "binary_precision", None) or 0, kind.scale or 0)
    if base == "DateTime":
        size = (getattr(kind, "fsp", 6) or 0,)
        base += "" if not zones else " with zone" if kind.timezone else " without zone"
    return Column(str(kind), base, size)


def _generic_holds(kind: pa.DataType, column: Column) -> bool:
    if pa.types.is_decimal(kind):
        return column.base == "Numeric" and column.size[1] >= kind.scale
    if pa.types.is_floating(kind):
        return column.base == "Double" or (column.base == "Float" and column.size[0] >= 53)
    if pa.types.is_timestamp(kind):
        zone = "without" if kind.tz is None else "with"
        return column.base in ("DateTime", f"DateTime {zone} zone") and column.size == (6,)
    return next((column.base in bases for fits, bases in _GENERIC if fits(kind)), False)


_GENERIC: Sequence[tuple[Callable[[pa.DataType], bool], tuple[str, ...]]] = (
    (pa.types.is_boolean, ("Boolean", "Integer")),
    (pa.types.is_integer, ("Integer", "Numeric")),
    (pa.types.is_string, ("String",)),
    (pa.types.is_large_string, ("String",)),
    (pa.types.is_binary, ("LargeBinary",)),
    (pa.types.is_date, ("Date",)),
    (pa.types.is_nested, ("JSON", "String")),
)

_HOLDS = {"postgresql": _postgres_holds, "sqlite": _lite_holds}


# ---- keys


def _folding(
    connection: sa.Connection, table: sa.Table, key: Sequence[str], columns: dict[str, Column]
) -> Iterator[tuple[str, str]]:
    """Yield fields of the key that a database compares in a way by which different texts are equal, and that way."""
    if not key:
        return
    if connection.dialect.name == "postgresql":
        yield from ((name, columns[name].shown) for name in key if columns[name].base == "citext")
        name = quoted(connection.dialect, table.schema, table.name)
        for field, collation in connection.exec_driver_sql(_COLLATIONS, (name,)):
            if field in key:
                yield field, f"compared by the collation {collation!r}"
    if connection.dialect.name == "sqlite":
        for index in _pragma(connection, table, "index_list", table.name):
            parts = [part for part in _pragma(connection, table, "index_xinfo", index.name) if part.key]
            if index.unique and {part.name for part in parts} == set(key):
                yield from (
                    (part.name, f"compared by the collation {part.coll}") for part in parts if part.coll != "BINARY"
                )


# ---- reading columns of a user's table


def listed_columns(inspector: Any, table: str, schema: str | None) -> dict[str, Any]:
    """Return what SQLAlchemy tells of a table's columns, by their names; NoSuchTableError if there is no table."""
    with warnings.catch_warnings():  # of types that it does not know: nobody may read or write these
        warnings.simplefilter("ignore", alchemy().exc.SAWarning)
        return {column["name"]: column for column in inspector.get_columns(table, schema=schema)}


def unique_keys(inspector: Any, table: str, schema: str | None) -> list[list[str]]:
    """Return by which columns no two rows of a table are equal; an index of some of the rows tells nothing."""
    indexes = [
        index
        for index in inspector.get_indexes(table, schema=schema)
        if index["unique"] and not any(option.endswith("_where") for option in index.get("dialect_options", {}))
    ]
    keys = [*inspector.get_unique_constraints(table, schema=schema), *indexes]
    primary = inspector.get_pk_constraint(table, schema=schema)["constrained_columns"]
    return [primary, *(key["column_names"] for key in keys)]


def table_columns(connection: Any, name: str, wanted: Sequence[str], database: str) -> dict[str, Any]:
    """Return what SQLAlchemy tells of a table's columns; TopologyError if one of `wanted` is not there, or no table."""
    sqlalchemy = alchemy()
    space, _, plain = name.rpartition(".")
    inspector = sqlalchemy.inspect(connection)
    try:
        columns = listed_columns(inspector, plain, space or None)
    except sqlalchemy.exc.NoSuchTableError:
        near = ", ".join(sorted(inspector.get_table_names(schema=space or None))[:10]) or "none"
        raise TopologyError(f"{database} has no table {name!r}; there are {near}") from None
    for column in wanted:
        if column not in columns:
            raise TopologyError(f"{database}: {name} has no column {column!r} (it has {', '.join(columns)})")
    return columns


def read_as_text(fields: pa.Schema, columns: Any, *, lite: bool) -> frozenset[str]:
    """Return the fields that the database makes a text of: strings of another type, and JSON.

    Of JSON, PostgreSQL's driver would make floats of all numbers with a point.

    SQLite would make a text of 15 digits of a double, and has JSON as text.
    """
    sqlalchemy = alchemy()
    if lite:
        return frozenset()
    return frozenset(
        field.name
        for field in fields
        if isinstance(kind := columns[field.name]["type"], sqlalchemy.JSON)
        or (pa.types.is_nested(field.type) and not isinstance(kind, sqlalchemy.ARRAY))
        or (pa.types.is_string(field.type) and not isinstance(kind, sqlalchemy.String))
    )


def column_of(field: pa.Field, as_text: Collection[str]) -> Any:
    """Return what a field is read by: the column as the driver gives it, or a text that the database makes of it.

    SQLAlchemy's types have no part in it: they round numbers, and take any value for a boolean.
    """
    sqlalchemy = alchemy()
    column = sqlalchemy.column(field.name)
    return sqlalchemy.cast(column, sqlalchemy.Text).label(field.name) if field.name in as_text else column


def reuses_numbers(connection: Any, table: str) -> bool:
    """Return whether SQLite gives the numbers of a table's deleted rows to new ones, if they are its key."""
    if connection.dialect.name != "sqlite":
        return False
    made = connection.exec_driver_sql("select sql from sqlite_master where name = ?", (table,)).scalar()
    return "autoincrement" not in (made or "").lower()


def fields_of(columns: Any, what: str, *, lite: bool) -> pa.Schema:
    """Return the fields that the columns fit; TopologyError for one of which that has to be said."""
    found = {}
    for name, column in columns.items():
        kind = arrow_type(column["type"], lite=lite)
        if kind is None:
            unknown = isinstance(column["type"], alchemy().types.NullType)
            raise TopologyError(
                f"{what}.{name} is {'no type that SQLAlchemy knows' if unknown else column['type']}, for which there "
                "is no one type: declare what is read, schema='id long, ...', where a string takes anything as text",
                field=name,
            )
        found[name] = kind
    return pa.schema(found)


def is_of_data(error: Exception) -> bool:
    """Return whether reading failed for a value that stands in the table, which no retry changes.

    SQLite's module raises the error of a lost connection for a text that is not UTF-8; drivers raise errors of Python
    for values that Python does not have.
    """
    cause = getattr(error, "orig", None) or error
    if isinstance(error, alchemy().exc.DataError) or isinstance(cause, ValueError | ArithmeticError):
        return True
    return "Could not decode to UTF-8" in str(cause)


Keys = Sequence[Any]


def unreadable(
    table: str, order: str, keys: Keys, fields: pa.Schema, read: Callable[[Keys, pa.Schema], None]
) -> InputError | None:
    """Return the error of the first value that can't be read, by its column and key; None if all can be read now.

    `read` reads fields of the rows of some keys, and raises what it is that can't be read.
    """

    def failure(keys: Keys, fields: pa.Schema) -> Exception | None:
        try:
            read(keys, fields)
        except Exception as error:
            if not isinstance(error, MISFITS) and not is_of_data(error):
                raise
            return error
        return None

    error = failure(keys, fields)
    while error is not None and len(keys) > 1:
        first = keys[: len(keys) // 2]
        error = failure(first, fields)
        keys = first if error is not None else keys[len(first) :]
        error = error or failure(keys, fields)
    for field in fields if error is not None else ():
        if (cause := failure(keys, pa.schema([field]))) is not None:
            return InputError(
                f"{table}.{field.name} can't be read as {to_ddl(pa.schema([field]))}: {reason_of(cause)}; it is in the "
                f"row with {order}={keys[0]!r}: declare another type, schema='...', or correct the value (UPDATE "
                f"{table.rpartition(' ')[2]} SET {field.name} = ... WHERE {order} = {keys[0]!r})",
                field=field.name,
                key=keys[0],
            )
    return None
