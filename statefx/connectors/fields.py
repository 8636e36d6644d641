"""The fields that a user gives a spout: what Spark has no type for gets the nearest one that holds every value."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from statefx.errors import TopologyError
from statefx.operators.json_values import refuse_keys
from statefx.operators.schema import parse_schema, to_ddl_type


def given_schema(form: str, fields: Any) -> pa.Schema:
    """Return the fields that a user has named; TopologyError if the format can't have a field of such a type."""
    schema = spark_schema(fields, "schema=") if isinstance(fields, pa.Schema) else parse_schema(fields)
    if form == "text" and schema.names != ["value"]:
        raise TopologyError(
            f"text files have one field, value, and not {', '.join(schema.names)}: leave out schema=, and part the "
            "lines in a bolt; or read them as format 'csv' or 'json'"
        )
    if form == "json":
        refuse_keys(schema, "schema=")
    for field in schema:
        if form == "csv" and kinds.is_nested(field.type):
            raise TopologyError(
                f"schema=, field {field.name!r}: {field.type} can't be read from CSV. Declare a string, and parse it "
                "in a bolt"
            )
    return schema


def spark_schema(schema: pa.Schema, where: str) -> pa.Schema:
    """Return the schema with types that Spark has, to which all values can be cast.

    Times become microseconds, unsigned numbers the next wider signed ones, dictionaries their values. Of other types
    the TopologyError names `where`, the field and the remedy.
    """
    return pa.schema([field.with_type(_spark_type(field, where)) for field in schema])


def _spark_type(field: pa.Field, where: str) -> pa.DataType:
    kind = _nearest(field.type)
    try:
        to_ddl_type(kind)
    except TopologyError as error:
        raise TopologyError(
            f"{where}, field {field.name!r}: {error.message}. Name all fields that you need, this one with a type to "
            f"which it can be cast, or leave it out: schema='{field.name} string, ...'"
        ) from None
    return kind


_NEAREST = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}


def _nearest(kind: pa.DataType) -> pa.DataType:
    """Return the nearest type that Spark has, also of what is inside of the type."""
    if kinds.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if kinds.is_fixed_size_binary(kind):
        return pa.binary()
    if kinds.is_dictionary(kind):
        return _nearest(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _nearest(kind.storage_type)
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return pa.list_(_field(kind.value_field))
    if kinds.is_struct(kind):
        return pa.struct(map(_field, kind))
    if kinds.is_map(kind):
        return pa.map_(_nearest(kind.key_type), _field(kind.item_field))
    return _NEAREST.get(kind, kind)


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(_nearest(field.type))
