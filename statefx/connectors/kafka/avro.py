"""Values in Avro as Arrow columns."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from statefx.errors import ConfigError, TopologyError


class Avro:
    """A value of an Avro schema in each; the fields of a record are columns.

    Parameters
    ----------
    schema : str or Mapping
        What the columns are made of.
    """

    def __init__(self, schema: Any) -> None:
        self._schema = _parsed(schema)
        expanded = _fastavro().schema.expand_schema(_known(_json(schema)))
        self._record = isinstance(expanded, Mapping) and expanded["type"] in ("record", "error")
        if self._record:
            fields = [(field["name"], _arrow(field["type"], field["name"])) for field in expanded["fields"]]
            if not fields:
                raise TopologyError(
                    "KafkaSpout: the record of schema= has no fields, so its rows would have no columns"
                )
            self.schema = pa.schema(fields)
        else:
            self.schema = pa.schema({"value": _arrow(expanded, "value")})

    def decode(self, values: list[bytes | None]) -> list[pa.Array]:
        """Decode them one by one; ValueError if one of them is of another schema."""
        rows = [None if value is None else self._one(value) for value in values]
        if not self._record:
            return [pa.array(rows, self.schema.field(0).type)]
        return [
            pa.array([None if row is None else row[field.name] for row in rows], field.type) for field in self.schema
        ]

    def _one(self, value: bytes) -> Any:
        data = io.BytesIO(value)
        try:
            read = _fastavro().schemaless_reader(data, self._schema, None)
        except (EOFError, IndexError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(_other(value, repr(error))) from error
        except Exception as error:  # fastavro's own for schemas that do not fit has no base but Exception
            raise ValueError(_other(value, str(error))) from error
        if left := len(value) - data.tell():
            raise ValueError(_other(value, f"{left} bytes are left"))
        return read


def _other(value: bytes, why: str) -> str:
    said = f"its value is not of the schema: {why}"
    if value[:1] != b"\0" or len(value) < 6:
        return said
    number = int.from_bytes(value[1:5], "big")
    return (
        f"{said}; it may begin with the number of its schema, {number}, as those of a schema registry do: read the "
        "values as bytes, and decode them in a bolt by the registry's own deserializer"
    )


def _fastavro() -> Any:
    try:
        import fastavro  # noqa: PLC0415 - an extra: only who reads Avro needs it
    except ImportError as error:
        raise ConfigError("values in Avro need fastavro: pip install 'statefx[avro]'") from error
    return fastavro


def _json(schema: Any) -> Any:
    """Return a schema of texts as JSON has it; the name of a type is one too."""
    if isinstance(schema, str) and schema.lstrip()[:1] in ("{", "[", '"'):
        try:
            return json.loads(schema)
        except ValueError as error:
            raise TopologyError(f"KafkaSpout: schema= is no Avro schema, which is JSON: {error}") from None
    return schema


def _parsed(schema: Any) -> Any:
    found = _known(_json(schema))
    avro = _fastavro()
    try:
        return avro.parse_schema(found)
    except (ValueError, TypeError, KeyError, avro.schema.SchemaParseException, avro.schema.UnknownType) as error:
        raise TopologyError(
            f"KafkaSpout: schema= is no Avro schema: {error}. It is as in {{'type': 'record', 'name': 'Payment', "
            "'fields': [{'name': 'amount', 'type': 'long'}]}, or that as JSON"
        ) from None


_PLAIN: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}

_LOGICAL: Mapping[str, tuple[str, pa.DataType]] = {
    "date": ("int", pa.date32()),
    "timestamp-millis": ("long", pa.timestamp("us", tz="UTC")),
    "timestamp-micros": ("long", pa.timestamp("us", tz="UTC")),
    "local-timestamp-millis": ("long", pa.timestamp("us")),
    "local-timestamp-micros": ("long", pa.timestamp("us")),
}
"""Logical types that have a column of their own, and what they are written as. Decimals have one too."""


def _known(schema: Any) -> Any:
    """Return a schema without the logical types that there is no column for: what is under them is read."""
    if isinstance(schema, Mapping):
        return {
            name: _known(each)
            for name, each in schema.items()
            if name != "logicalType" or each in _LOGICAL or each == "decimal"
        }
    return [_known(each) for each in schema] if isinstance(schema, list | tuple) else schema


def _kind(schema: Any) -> Any:
    return schema["type"] if isinstance(schema, Mapping) and "type" in schema else schema


def _logical(schema: Any) -> str | None:
    return schema.get("logicalType") if isinstance(schema, Mapping) else None


def _arrow(schema: Any, where: str) -> pa.DataType:
    """Return the Arrow type of an Avro type whose names are expanded."""
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise _columnless(where, f"a union of {len(others)} types: {schema}")
        return _arrow(others[0], where)
    kind, logical = _kind(schema), _logical(schema) or ""
    if not isinstance(kind, str):
        return _arrow(kind, where)
    if logical == "decimal":
        precision = schema.get("precision")
        if not isinstance(precision, int) or not 1 <= precision <= 38:
            raise _columnless(where, f"a decimal of {precision} digits: it has from 1 to 38")
        return pa.decimal128(precision, schema.get("scale", 0))
    if logical in _LOGICAL and _LOGICAL[logical][0] == kind:
        return _LOGICAL[logical][1]
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind == "array":
        return pa.list_(_arrow(schema["items"], where))
    if kind == "map":
        return pa.map_(pa.string(), _arrow(schema["values"], where))
    if isinstance(schema, Mapping) and kind in ("record", "error"):
        return pa.struct([(each["name"], _arrow(each["type"], f"{where}.{each['name']}")) for each in schema["fields"]])
    raise _columnless(where, "nothing but null" if kind == "null" else f"the record {kind!r}, which contains itself")


def _columnless(where: str, what: str) -> TopologyError:
    return TopologyError(
        f"KafkaSpout has no column for {where!r} of the Avro schema, which is {what}. Read the values as bytes, and "
        "decode them in a bolt",
        field=where,
    )
