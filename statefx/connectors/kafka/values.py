"""What the values of records mean: bytes, texts or JSON, each as Arrow columns; Avro has a module of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from statefx.connectors.files.fields import given_schema, texts_for_dates
from statefx.errors import TopologyError

Values = list[bytes | None]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_ROW = re.compile(r" in row \d+$")
"""How Arrow names the row of a batch, which is left out: errors name the record by its offset."""

_OTHER = re.compile(r"Column\(/([^)]*)\) changed from (\w+) to (\w+)")
"""How Arrow says that a value has another type than its field."""


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
        """Return them."""
        return [_texts(values, self.schema.names[0])]


def _texts(values: Sequence[bytes | None], name: str) -> pa.Array:
    """Return values as texts; the cast looks whether all of it is UTF-8."""
    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        raise ValueError(f"its {name} is no text in UTF-8") from None


class Json:
    """An object in each value; fields that it lacks are null, and others are passed over."""

    def __init__(self, schema: Any) -> None:
        self.schema = given_schema("json", schema)
        for field in self.schema:
            if "map<" in str(field.type):
                raise TopologyError(f"field {field.name!r}: a map can't be read from JSON")
        self._parse = pyarrow.json.ParseOptions(
            explicit_schema=texts_for_dates(self.schema), unexpected_field_behavior="ignore", newlines_in_values=False
        )

    def decode(self, values: Values) -> list[pa.Array]:
        """Parse them all at once, each as a line.

        Each value begins with ``{`` and ends with ``}``, so no object goes from one line to the next: behind a ``}``
        only a new object may begin with ``{``. If there are as many objects as values, then each value is one.
        """
        lines = [b"{}" if value is None else value.strip() for value in values]
        # The parser does not look whether texts are UTF-8, and bolts could not read them.
        whole = _texts(lines, "value")
        if not _are_objects(whole):
            lines = [line.removeprefix(_BYTE_ORDER_MARK).lstrip() for line in lines]
            if not _are_objects(_texts(lines, "value")):
                raise ValueError(f"its value is no object of JSON: {_shown(values[0])}")
        data = b"\n".join(lines)
        if data.count(b"\n") >= len(lines):
            # Of line feeds in a value, carriage returns: white space as well between two parts, and as wrong in a text.
            data = b"\n".join([line.replace(b"\n", b"\r") for line in lines])
        read = pyarrow.json.ReadOptions(block_size=len(data) + 1, use_threads=False)
        try:
            table = pyarrow.json.read_json(pa.BufferReader(data), read, self._parse)
            if len(table) != len(values):
                raise ValueError("it is more than one object")
            return [table.column(field.name).cast(field.type).combine_chunks() for field in self.schema]
        except ValueError as error:
            reason = _ROW.sub("", str(error)).removeprefix("JSON parse error: ")
            reason = _OTHER.sub(r"field '\1' is declared as \2, and is \3", reason)
            raise ValueError(f"its value is no JSON of these fields: {reason}") from None


def _are_objects(lines: pa.Array) -> bool:
    return bool(pc.all(pc.and_(pc.starts_with(lines, "{"), pc.ends_with(lines, "}"))).as_py())


def _shown(value: bytes | None) -> str:
    """Return how a value begins; what is no text is a bad serializer's, and its first bytes say which."""
    return repr((value or b"")[:20]) + ("..." if value is not None and len(value) > len(value[:20]) else "")
