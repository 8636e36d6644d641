"""What of SqlSink depends on types: columns for fields, tables that fit, values as the driver takes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from decimal import Decimal
from typing import Any

import pyarrow as pa

from statefx.errors import SinkError, TopologyError
from statefx.sinks.sql_connection import alchemy


def sql_type(field: pa.Field, *, lite: bool) -> Any:
    """Return the column's type for a field of the stream.

    Raises
    ------
    TopologyError
        There is none.
    """
    kind = field.type
    for fits, make in _SQL_TYPES:
        if fits(kind):
            return make(alchemy(), kind, lite)
    raise TopologyError(f"field {field.name!r} is {kind}, for which SqlSink has no column type", field=field.name)


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
    (pa.types.is_timestamp, lambda sa, kind, lite: sa.DateTime(timezone=kind.tz is not None)),
    (pa.types.is_nested, lambda sa, kind, lite: sa.JSON()),
)


def has_dates(kind: pa.DataType) -> bool:
    """Tell whether there is a date or a time in values of a type."""
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return True
    return any(has_dates(kind.field(number).type) for number in range(kind.num_fields))


def converter(kind: pa.DataType, *, lite: bool) -> Callable[[Any], Any] | None:
    """Return what makes a value one that the database's driver takes; None where it takes it as it is."""
    if pa.types.is_nested(kind):
        return lambda value: json.dumps(value, default=plain)
    if lite and pa.types.is_decimal(kind):
        return str
    if lite and pa.types.is_timestamp(kind):
        if kind.tz is None:
            return lambda value: value.isoformat(" ", "microseconds")
        return lambda value: value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")
    if lite and pa.types.is_date(kind):
        return lambda value: value.isoformat()
    return None


def plain(value: Any) -> Any:
    """Return what JSON can hold for a value that it has no form for."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return dict(value)
    return str(value) if isinstance(value, Decimal) else value.isoformat()


def check_dead_letters(connection: Any, described: Any, others: Sequence[Any], target: str) -> None:
    """Refuse a table for dead letters that is another one's, or that can't take them.

    Parameters
    ----------
    connection
    described
        The table for dead letters.
    others
        The sink's own.
    target : str

    Raises
    ------
    SinkError
        Names the table, and what it lacks.
    """
    lite = connection.dialect.name == "sqlite"

    def place(table: Any) -> str:
        return str(table.fullname).lower().removeprefix("main.") if lite else str(table.fullname)

    what = f"{target}: deadLetter={described.fullname!r}"
    if place(described) in map(place, others):
        raise SinkError(f"{what} is a table that the sink needs itself: name another one", target=target)
    inspector = alchemy().inspect(connection)
    if not inspector.has_table(described.name, schema=described.schema):
        return
    found = [column["name"] for column in inspector.get_columns(described.name, schema=described.schema)]
    if missing := [name for name in list(described.columns.keys()) if name not in found]:
        raise SinkError(
            f"{what} is there and has no column {missing[0]!r} (it has {', '.join(found)}): name a table that is not "
            "there yet, and it is made",
            target=target,
        )


def check_table(connection: Any, described: Any, key: Sequence[str], target: str) -> None:
    """Refuse a table that is there and does not fit.

    Raises
    ------
    SinkError
        Names the column, both types, and the remedy.
    """
    inspector = alchemy().inspect(connection)
    table, space, fields = described.name, described.schema, list(described.columns.keys())
    if not inspector.has_table(table, schema=space):
        return
    found = {column["name"]: column for column in inspector.get_columns(table, schema=space)}
    for name in fields:
        if name not in found:
            raise SinkError(
                f"{target} has no column {name!r} (it has {', '.join(found)}): add it, or emit rows without that field",
                target=target,
                field=name,
            )
        sqlalchemy = alchemy()
        if isinstance(described.columns[name].type, sqlalchemy.JSON) and isinstance(
            found[name]["type"], sqlalchemy.ARRAY
        ):
            raise SinkError(
                f"{target}: column {name!r} is an array, and lists are written as JSON: make it JSON, JSONB or TEXT",
                target=target,
                field=name,
            )
    for name, column in found.items():
        filled = column["nullable"] or column.get("default") is not None or column.get("autoincrement") is True
        if name not in fields and not filled:
            raise SinkError(
                f"{target}: column {name!r} must not be null, and the rows have no such field: emit it, "
                "or give the column a default",
                target=target,
                field=name,
            )
    if key:
        unique = [inspector.get_pk_constraint(table, schema=space)["constrained_columns"]]
        unique += [each["column_names"] for each in inspector.get_unique_constraints(table, schema=space)]
        unique += [each["column_names"] for each in inspector.get_indexes(table, schema=space) if each["unique"]]
        if not any(set(each) == set(key) for each in unique):
            raise SinkError(
                f"{target} has no primary key or unique constraint on ({', '.join(key)}), "
                "the sink's key: without one, rows can't be replaced",
                target=target,
            )
