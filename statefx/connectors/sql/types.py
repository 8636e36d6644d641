"""Fields of rows and columns of tables: their types, and values as a database has them and as Arrow has them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC
from decimal import Decimal
from typing import Any

import pyarrow as pa

from statefx.connectors.sql.url import alchemy
from statefx.errors import TopologyError
from statefx.operators.json_values import NUMBER, JsonType


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
    """Tell whether a type, or one inside of it, is of a kind."""
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
