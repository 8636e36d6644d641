"""What the values of records mean: bytes, texts or JSON, each as Arrow columns; Avro has a module of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from statefx.connectors.fields import given_schema
from statefx.operators.json_values import JsonRows

Values = list[bytes | None]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


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
        self._rows = JsonRows(self.schema)

    def decode(self, values: Values) -> list[pa.Array]:
        """Parse them."""
        texts = [b"{}" if value is None else value.removeprefix(_BYTE_ORDER_MARK) for value in values]
        try:
            return self._rows.decode(texts).columns  # type: ignore[no-any-return]
        except (ValueError, RecursionError) as error:
            first = repr(texts[0][:20]) + ("..." if len(texts[0]) > 20 else "")
            raise ValueError(f"its value is no JSON of these fields: {error}: {first}") from None
