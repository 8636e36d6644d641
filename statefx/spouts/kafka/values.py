"""What the values of records mean: bytes, texts, JSON or Avro; each as Arrow columns."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from statefx.errors import ConfigError, TopologyError
from statefx.operators import parse_schema

Values = list[bytes | None]


class Format(Protocol):
    """One of them.

    Attributes
    ----------
    schema : pyarrow.Schema
        Its columns.
    """

    schema: pa.Schema

    def decode(self, values: Values) -> list[pa.Array]:
        """Return the columns of these values; ValueError, of which Arrow's errors are, if one of them is none."""


class Bytes:
    """Values as they are."""

    def __init__(self, name: str) -> None:
        self.schema = pa.schema({name: pa.binary()})

    def decode(self, values: Values) -> list[pa.Array]:
        """Return them."""
        return [pa.array(values, pa.binary())]


class Text:
    """Values in UTF-8."""

    def __init__(self, name: str) -> None:
        self.schema = pa.schema({name: pa.string()})

    def decode(self, values: Values) -> list[pa.Array]:
        """Return them; the cast looks whether all of it is UTF-8."""
        return [pa.array(values, pa.binary()).cast(pa.string())]


class Json:
    """An object in each value; fields that it lacks are null, and others are passed over."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema if isinstance(schema, pa.Schema) else parse_schema(schema)
        self._parse = pyarrow.json.ParseOptions(
            explicit_schema=self.schema, unexpected_field_behavior="ignore", newlines_in_values=False
        )

    def decode(self, values: Values) -> list[pa.Array]:
        """Parse them all at once, each as a line.

        A value with line feeds in it is written anew: in one that begins with ``{`` and ends with ``}`` there is then
        one object, or the number of objects is another one. So no object counts for a value that it does not stand in.
        """
        lines = [b"{}" if value is None else value.strip() for value in values]
        data = b"\n".join(lines)
        if data.count(b"\n") != len(lines) - 1:
            lines = [json.dumps(json.loads(line)).encode() if b"\n" in line else line for line in lines]
            data = b"\n".join(lines)
        whole = pa.array(lines, pa.binary())
        if not pc.all(pc.and_(pc.starts_with(whole, "{"), pc.ends_with(whole, "}"))).as_py():
            raise ValueError("it is no object of JSON")
        read = pyarrow.json.ReadOptions(block_size=len(data) + 1, use_threads=False)
        table = pyarrow.json.read_json(pa.BufferReader(data), read, self._parse)
        if len(table) != len(values):
            raise ValueError("it is more than one object of JSON")
        return [table.column(field.name).cast(field.type).combine_chunks() for field in self.schema]


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
        avro = _fastavro()
        try:
            self._reader = avro.parse_schema(_parsed(schema))
            self._written = {number: avro.parse_schema(_parsed(each)) for number, each in (written or {}).items()}
        except (ValueError, avro.schema.SchemaParseException, avro.schema.UnknownType) as error:
            raise TopologyError(f"KafkaSpout: this is no Avro schema: {error}") from None
        self._framed = written is not None
        self._record = isinstance(self._reader, Mapping) and self._reader["type"] == "record"
        if self._record:
            self.schema = pa.schema([(field["name"], _arrow(field["type"])) for field in self._reader["fields"]])
        else:
            self.schema = pa.schema({"value": _arrow(self._reader)})

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def decode(self, values: Values) -> list[pa.Array]:
        """Decode them one by one."""
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
                raise ValueError("it does not begin with the number of a schema")
            if number not in self._written:
                raise ValueError(f"it is of schema {number}, which schemas= has not")
            schema, start = self._written[number], 5
        data = io.BytesIO(value)
        data.seek(start)
        try:
            read = _fastavro().schemaless_reader(data, schema, self._reader if self._framed else None)
        except (EOFError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"it is not of the schema: {error!r}") from error
        except Exception as error:  # fastavro's own for schemas that do not fit has no base but Exception
            raise ValueError(f"it is not of the schema: {error}") from error
        if data.tell() != len(value):
            raise ValueError(f"it is not of the schema: {len(value) - data.tell()} bytes are left")
        return read


def _fastavro() -> Any:
    try:
        import fastavro  # noqa: PLC0415 - an extra: only who reads Avro needs it
    except ImportError as error:
        raise ConfigError("values in Avro need fastavro: pip install 'statefx[avro]'") from error
    return fastavro


def _parsed(schema: Any) -> Any:
    """Return a schema of texts as JSON has it; the name of a type is one too."""
    return json.loads(schema) if isinstance(schema, str) and schema.lstrip()[:1] in ("{", "[", '"') else schema


_PLAIN: Mapping[str, pa.DataType] = {
    "null": pa.null(),
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

_LOGICAL: Mapping[str, pa.DataType] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.null(),  # fastavro makes UUIDs of them, which Arrow has no type for
}


def _arrow(schema: Any) -> pa.DataType:
    """Return the Arrow type of an Avro type."""
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise TopologyError(f"KafkaSpout has no column for a union of {len(others)} types of Avro: {schema}")
        return _arrow(others[0])
    kind = schema["type"] if isinstance(schema, Mapping) else schema
    if isinstance(kind, Mapping | list):
        return _arrow(kind)
    logical = schema.get("logicalType") if isinstance(schema, Mapping) else None
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if (found := _LOGICAL.get(logical or "", _PLAIN.get(kind))) is not None and not pa.types.is_null(found):
        return found
    if kind == "array":
        return pa.list_(_arrow(schema["items"]))
    if kind == "map":
        return pa.map_(pa.string(), _arrow(schema["values"]))
    if kind == "record" and isinstance(schema, Mapping):
        return pa.struct([(field["name"], _arrow(field["type"])) for field in schema["fields"]])
    raise TopologyError(f"KafkaSpout has no column for the type {logical or kind!r} of Avro")
