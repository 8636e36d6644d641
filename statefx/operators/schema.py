"""Schemas of streams: from what users write to Arrow, and back to Spark's DDL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from statefx.errors import TopologyError
from statefx.operators.collector import DEFAULT_STREAM
from statefx.operators.ddl import parse_ddl, parse_type
from statefx.operators.tuples import in_source


def parse_schema(fields: Any) -> pa.Schema:
    """Return the Arrow schema of Spark DDL text or of a pyspark StructType.

    Parameters
    ----------
    fields : str or StructType
        ``"word string, count long"``, ``"struct<word:string,count:bigint>"``, or the object.

    Raises
    ------
    TopologyError
        The text is malformed (the message marks the place), or a type has no counterpart in Arrow (``column``).

    Examples
    --------
    >>> parse_schema("word string, count long").names
    ['word', 'count']
    """
    if isinstance(fields, str):
        return _told_apart(parse_ddl(fields))
    if not hasattr(fields, "fields"):
        raise TopologyError(f"a schema is Spark DDL such as 'word string, count long', or a StructType; not {fields!r}")
    names = [field.name for field in fields.fields]
    if len(set(names)) != len(names):
        raise TopologyError(f"field names must differ: {', '.join(names)}. Rename one with an alias.")
    return _told_apart(pa.schema([_field(field, field.name) for field in fields.fields]))


def _told_apart(schema: pa.Schema) -> pa.Schema:
    """Return the schema; TopologyError for two names of one form in Python's source, where they are one attribute."""
    forms: dict[str, str] = {}
    for name in schema.names:
        other = forms.setdefault(in_source(name), name)
        if other != name:
            raise TopologyError(
                f"the fields {other!a} and {name!a} are one name for Python, which reads names in the form NFKC: "
                "rename one of them, in a DataFrame with withColumnRenamed",
                field=name,
            )
    return schema


def parse_streams(output_fields: Any) -> dict[str, pa.Schema]:
    """Return the schema of every stream that a bolt's ``outputFields`` declares; empty if it emits nothing."""
    if output_fields is None:
        return {}
    if callable(output_fields):
        raise TopologyError("outputFields is a method; make it a class attribute or a property")
    if not isinstance(output_fields, Mapping):
        return {DEFAULT_STREAM: parse_schema(output_fields)}
    return {stream: _stream(stream, fields) for stream, fields in output_fields.items()}


def to_ddl(schema: pa.Schema | Iterable[pa.Field]) -> str:
    """Return Spark DDL for an Arrow schema; what `parse_schema` makes of it equals `schema`.

    Raises
    ------
    TopologyError
        A type has no counterpart in Spark.
    """
    return ", ".join(f"{_named(field, ' ')}" for field in schema)


def to_ddl_type(kind: pa.DataType) -> str:
    """Return the DDL of one type, such as ``array<bigint>``."""
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{to_ddl_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{to_ddl_type(kind.key_type)},{to_ddl_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(_named(field, ': ') for field in kind)}>"
    if kind not in _WRITTEN:
        raise TopologyError(f"the Arrow type {kind} has no counterpart in Spark")
    return _WRITTEN[kind]


_WRITTEN = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}


def _named(field: pa.Field, mark: str) -> str:
    plain = re.fullmatch(r"[A-Za-z_]\w*", field.name)
    name = field.name if plain else f"`{field.name.replace('`', '``')}`"
    return f"{name}{mark}{to_ddl_type(field.type)}{'' if field.nullable else ' NOT NULL'}"


def _stream(stream: Any, fields: Any) -> pa.Schema:
    if not isinstance(stream, str) or not stream:
        raise TopologyError(f"the name of a stream is a text, not {stream!r}")
    if stream.startswith("__"):
        raise TopologyError(f"stream {stream!r}: names that begin with '__' are statefx's own; take another")
    try:
        return parse_schema(fields)
    except TopologyError as error:
        raise TopologyError(f"stream {stream!r}: {error.message}", **error.data) from None


def _field(field: Any, column: str) -> pa.Field:
    return pa.field(field.name, _type(field.dataType, column), field.nullable)


def _type(kind: Any, column: str) -> pa.DataType:
    """Convert a pyspark type by the attributes it has, so that pyspark need not be imported."""
    if hasattr(kind, "fields"):
        return pa.struct([_field(field, f"{column}.{field.name}") for field in kind.fields])
    if hasattr(kind, "elementType"):
        return pa.list_(pa.field("element", _type(kind.elementType, column), kind.containsNull))
    if hasattr(kind, "keyType"):
        value = pa.field("value", _type(kind.valueType, column), kind.valueContainsNull)
        return pa.map_(_type(kind.keyType, column), value)
    try:
        return parse_type(kind.simpleString())
    except TopologyError:
        raise TopologyError(
            f"column {column!r} has the type {kind.simpleString()}, which can't travel to a bolt. "
            f"Cast the column to a plain type, or drop it.",
            column=column,
        ) from None
