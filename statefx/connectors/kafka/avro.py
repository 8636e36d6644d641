"""Values in Avro as Arrow columns."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from statefx.errors import ConfigError, TopologyError

_ELSE = "Or read the values as bytes, and decode them in a bolt"


class Avro:
    """A value of an Avro schema in each; the fields of a record are columns.

    Parameters
    ----------
    schema : str or Mapping
        What the columns are made of.
    written : Mapping of int to schema, optional
        By the number that values begin with, as those of a schema registry do: a zero byte, four bytes of the number.
    """

    def __init__(self, schema: Any, written: Mapping[int, Any] | None) -> None:
        self._reader = _parsed("schema=", schema)
        expanded = _fastavro().schema.expand_schema(_known(_json("schema=", schema)))
        self._written = {}
        for number, each in ({} if written is None else _numbered(written)).items():
            where = f"schema {number} of schemas="
            _parsed(where, each)
            self._written[number] = _parsed(where, _meant(_json(where, each), expanded, where))
        self._framed = written is not None
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
        schema, start = self._reader, 0
        if self._framed:
            number = int.from_bytes(value[1:5], "big")
            if value[:1] != b"\0" or len(value) < 5:
                raise ValueError(
                    f"its value begins with {value[:5]!r}, not with a zero byte and the number of a schema"
                )
            if number not in self._written:
                known = ", ".join(map(str, sorted(self._written)))
                raise ValueError(f"its value is of schema {number}, and schemas= has {known}")
            schema, start = self._written[number], 5
        data = io.BytesIO(value)
        data.seek(start)
        try:
            read = _fastavro().schemaless_reader(data, schema, self._reader if self._framed else None)
        except (EOFError, IndexError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(self._other(value, repr(error))) from error
        except Exception as error:  # fastavro's own for schemas that do not fit has no base but Exception
            raise ValueError(self._other(value, str(error))) from error
        if left := len(value) - data.tell():
            raise ValueError(self._other(value, f"{left} bytes are left"))
        return read

    def _other(self, value: bytes, why: str) -> str:
        registry = not self._framed and value[:1] == b"\0" and len(value) > 5
        number = int.from_bytes(value[1:5], "big")
        return f"its value is not of the schema: {why}" + (
            f"; it may begin with the number of its schema, {number}, as those of a schema registry do, and then "
            "KafkaSpout needs schemas="
            if registry
            else ""
        )


def _fastavro() -> Any:
    try:
        import fastavro  # noqa: PLC0415 - an extra: only who reads Avro needs it
    except ImportError as error:
        raise ConfigError("values in Avro need fastavro: pip install 'statefx[avro]'") from error
    return fastavro


def _numbered(schemas: Any) -> Mapping[int, Any]:
    right = isinstance(schemas, Mapping) and schemas
    if not right or any(isinstance(number, bool) or not isinstance(number, int) or number < 0 for number in schemas):
        raise TopologyError(
            f"KafkaSpout: schemas= has schemas by their numbers in the registry, {{17: ..., 21: ...}}, not {schemas!r}"
        )
    checked: Mapping[int, Any] = schemas
    return checked


def _json(where: str, schema: Any) -> Any:
    """Return a schema of texts as JSON has it; the name of a type is one too."""
    if isinstance(schema, str) and schema.lstrip()[:1] in ("{", "[", '"'):
        try:
            return json.loads(schema)
        except ValueError as error:
            raise TopologyError(f"KafkaSpout: {where} is no Avro schema, which is JSON: {error}") from None
    return schema


def _parsed(where: str, schema: Any) -> Any:
    found = _known(_json(where, schema))
    avro = _fastavro()
    try:
        return avro.parse_schema(found)
    except (ValueError, TypeError, KeyError, avro.schema.SchemaParseException, avro.schema.UnknownType) as error:
        raise TopologyError(
            f"KafkaSpout: {where} is no Avro schema: {error}. It is as in {{'type': 'record', 'name': 'Payment', "
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


def _meant(written: Any, read: Any, where: str) -> Any:
    """Return the schema that values were written with, with what the other one says that its values mean.

    fastavro makes times of numbers by the schema that was written with alone: a long that later became a
    ``timestamp-millis`` would be taken for microseconds.
    """
    written = _known(written)
    if isinstance(written, list):
        return [_meant(each, read, where) for each in written]
    kind = _kind(written)
    if not isinstance(kind, str):
        return _meant(kind, read, where)
    choices = read if isinstance(read, list) else [read]
    same = next((each for each in choices if _kind(each) == kind), None)
    if kind in ("record", "error") and same is not None:
        fields = {name: each for each in same["fields"] for name in (each["name"], *each.get("aliases", ()))}
        return {
            **written,
            "fields": [
                {**each, "type": _meant(each["type"], fields[each["name"]]["type"], f"{where}, field {each['name']!r}")}
                if each["name"] in fields
                else each
                for each in written["fields"]
            ],
        }
    if kind in ("array", "map") and same is not None:
        name = "items" if kind == "array" else "values"
        return {**written, name: _meant(written[name], same[name], where)}
    return _as_meant(written, kind, same, choices, where)


def _as_meant(written: Any, kind: str, same: Any, choices: Sequence[Any], where: str) -> Any:
    """Return a type without parts, with the logical type of that which it is read as."""
    if same is None:
        times = [_logical(each) for each in choices if _LOGICAL.get(_logical(each) or "", ("",))[0] == "long"]
        if kind == "int" and times:
            raise TopologyError(
                f"KafkaSpout: {where} was written as int, and schema= reads it as {times[0]}, which is a long: no "
                f"number of a time fits into an int. Read it as int, or as long. {_ELSE}"
            )
        return written
    meant, own = _logical(same), _logical(written)
    if own is not None and meant is not None:
        return written
    bare = {name: each for name, each in written.items() if name != "logicalType"} if own else written
    if meant is None:
        return bare
    said = {name: same[name] for name in ("logicalType", "precision", "scale") if name in same}
    return ({"type": bare} if isinstance(bare, str) else bare) | said


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
        f"KafkaSpout has no column for {where!r} of the Avro schema, which is {what}. With schemas=, leave the field "
        f"out of schema=. {_ELSE}",
        field=where,
    )
