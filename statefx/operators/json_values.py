"""Values of rows as JSON: one form for files, databases, Kafka and Redis, and what is written by one is read by all.

================================  ============================================================================
type                              JSON
================================  ============================================================================
boolean, integers                 ``true``, ``1``
float, double                     a number; NaN and the infinities are ``"NaN"``, ``"Infinity"``, ``"-Infinity"``
decimal                           a text: ``"12.30"``; numbers are read as well
string                            a text
binary                            a text in base64
date                              a text: ``"2024-02-29"``
timestamp                         a text with a zone: ``"2024-02-29T12:00:00.5Z"``; read without one, it is in UTC
timestamp_ntz                     a text without a zone; one with a zone is refused
array                             an array
struct                            an object without the fields that are null
map                               an object; keys are strings
================================  ============================================================================

It is what Spark reads, and writes, but for decimals, which Spark writes as numbers: most readers of JSON make a float
of a number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from operator import itemgetter
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from statefx.errors import TopologyError

_FLOAT_MAX = 3.4028235677973366e38
"""From here on a double becomes infinite as a float."""

_BELOW_MICROSECONDS = re.compile(r"[.,]\d{6}\d*[1-9]")

_encode = msgspec.json.Encoder(decimal_format="string").encode


def refuse_keys(schema: pa.Schema, where: str) -> None:
    """Refuse maps whose keys are no strings: the names in a JSON object are, and readers would not know the type.

    The TopologyError begins with `where`: what the rows go to or come from.
    """
    for field in schema:
        for kind in _inner(field.type):
            if kinds.is_map(kind) and not kinds.is_string(kind.key_type):
                raise TopologyError(
                    f"{where}, field {field.name!r}: {kind} has no JSON, whose objects have texts as names. Make the "
                    "keys strings, or the map an array of structs",
                    field=field.name,
                )


def _inner(kind: pa.DataType) -> Iterable[pa.DataType]:
    """Yield a type and all types inside of it."""
    yield kind
    for number in range(kind.num_fields):
        yield from _inner(kind.field(number).type)


class JsonType:
    """Reads and writes values of one type, as ``pyarrow.Array.to_pylist`` has them; a map may also be a dict.

    The type's maps have strings as keys (`refuse_keys`).
    """

    def __init__(self, kind: pa.DataType) -> None:
        self._plain = _change(kind, writing=True)
        self._restored = _change(kind, writing=False)
        self._read = _Reader(kind, _json_type(kind) | None)

    def encode(self, value: Any) -> bytes:
        """Return a value as JSON in UTF-8; ValueError if a map has a key twice."""
        return _encode(value if value is None or self._plain is None else self._plain(value))

    def decode(self, text: bytes | str) -> Any:
        """Return the value that JSON holds; ValueError says what is wrong in it, and where."""
        value = self._read(text)
        return value if value is None or self._restored is None else self._restored(value)


class JsonRows:
    """Reads and writes rows of one schema, each as a JSON object.

    The name of a field, of a struct's as well, may differ in the case of its letters, where that does not tell two
    names apart. Fields that an object lacks are null, and names that are not fields are passed over.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        kind = pa.struct(list(schema))
        self._read = _Reader(kind, _json_type(kind))
        self._plain = [_change(field.type, writing=True) for field in schema]
        self._restored = [_change(field.type, writing=False) for field in schema]

    def __reduce__(self) -> tuple[type[JsonRows], tuple[pa.Schema]]:
        return JsonRows, (self.schema,)

    def encode(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return each row of a batch as a JSON object.

        ValueError names a field with a value that has no JSON: a time outside of the years 1 to 9999, or a map that has
        a key twice.
        """
        columns = []
        for name, column, plain in zip(self.schema.names, batch.columns, self._plain, strict=True):
            try:
                values = column.to_pylist()
                columns.append(values if plain is None or _is_finite(column) else _each(plain)(values))
            except (ValueError, OverflowError) as error:
                raise ValueError(f"field {name!r} has a value that JSON does not have: {error}") from error
        names, rows = self.schema.names, zip(*columns, strict=True)
        if any(column.null_count for column in batch.columns):
            return [
                _encode({name: value for name, value in zip(names, row, strict=True) if value is not None})
                for row in rows
            ]
        return [_encode(dict(zip(names, row, strict=True))) for row in rows]

    def decode(self, texts: Sequence[bytes]) -> pa.RecordBatch:
        """Return the rows of JSON objects; InvalidJsonError if a text is no object of these fields."""
        try:
            return self._batch(texts)
        except ValueError as error:
            for number, text in enumerate(texts):
                try:
                    self._batch([text])
                except ValueError as of_one:
                    raise InvalidJsonError(str(of_one), number) from None
            raise error  # no text alone: a column of more than 2 GB

    def _batch(self, texts: Sequence[bytes]) -> pa.RecordBatch:
        rows = list(map(self._read, texts))
        for number, row in enumerate(rows):
            if len(row) < len(self.schema):
                rows[number] = dict.fromkeys(self.schema.names) | row
        columns = []
        for field, restored in zip(self.schema, self._restored, strict=True):
            values = list(map(itemgetter(field.name), rows))
            columns.append(pa.array(values if restored is None else _each(restored)(values), field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


class _Reader:
    """Reads values of one type, with the names of its fields in any case; ValueError if a text is no such value."""

    def __init__(self, kind: pa.DataType, json_type: Any) -> None:
        self._decode = msgspec.json.Decoder(json_type).decode
        decimals = _has_decimals(kind)
        self._check = msgspec.json.Decoder(_json_type(kind, strict=True) | None).decode if decimals else None
        self._lacks, self._named = _lacking(kind), _naming(kind)

    def __call__(self, text: bytes | str) -> Any:
        try:
            value = self._decode(text)
            if value is not None and self._lacks is not None and self._lacks(value):
                text = bytes(self._named(msgspec.Raw(text)))  # what it lacks may be there in another case
                value = self._decode(text)
            if self._check is not None and _may_be_odd(text):
                self._check(text)
            return value
        except RecursionError:
            raise ValueError("its arrays or objects are too many within each other") from None


def _has_decimals(kind: pa.DataType) -> bool:
    return bool(kinds.is_decimal(kind)) or any(
        map(_has_decimals, (kind.field(at).type for at in range(kind.num_fields)))
    )


def _may_be_odd(text: bytes | str) -> bool:
    """Return whether a text may have what only Python takes for a number: ``1_0``, and digits of other scripts."""
    return not text.isascii() or (
        b"_" in text or b"\\" in text if isinstance(text, bytes) else "_" in text or "\\" in text
    )


def _lacking(kind: pa.DataType) -> Callable[[Any], bool] | None:
    """Return what tells whether a struct in a value lacks a field; None if there is no struct."""
    if kinds.is_struct(kind):
        size, inner = kind.num_fields, [(field.name, lacks) for field in kind if (lacks := _lacking(field.type))]
        return lambda row: len(row) < size or any(row[name] is not None and lacks(row[name]) for name, lacks in inner)
    if not kinds.is_list(kind) and not kinds.is_map(kind):
        return None
    lacks = _lacking(kind.item_type if kinds.is_map(kind) else kind.value_type)
    if lacks is None:
        return None
    return lambda values: any(
        value is not None and lacks(value) for value in (values.values() if kinds.is_map(kind) else values)
    )


def _naming(kind: pa.DataType) -> Callable[[msgspec.Raw], msgspec.Raw]:
    """Return what gives the fields of structs in a JSON text the names that the type has."""
    change: Callable[[Any], Any]
    if kinds.is_struct(kind):
        change = partial(_named_fields, {field.name: _naming(field.type) for field in kind})
    elif kinds.is_map(kind):
        item = _naming(kind.item_type)
        change = lambda values: {key: item(value) for key, value in values.items()}  # noqa: E731 - short beside its kind
    elif kinds.is_list(kind):
        change = _each(_naming(kind.value_type))
    else:
        return _same
    read = (_ELEMENTS if kinds.is_list(kind) else _FIELDS).decode

    def named(text: msgspec.Raw) -> msgspec.Raw:
        found = read(text)
        return text if found is None else msgspec.Raw(_encode(change(found)))

    return named


def _named_fields(inner: Mapping[str, Callable[[msgspec.Raw], msgspec.Raw]], given: dict[str, msgspec.Raw]) -> Any:
    folded = [name.casefold() for name in inner]
    found: dict[str, msgspec.Raw] = {}
    for name, value in given.items():
        same = [field for field, fold in zip(inner, folded, strict=True) if fold == name.casefold()]
        field = name if name in inner else same[0] if len(same) == 1 else None
        if field is None or (field != name and field in given):
            continue
        if field in found:
            raise ValueError(f"it has more than one field {field!r}, in different cases of letters")
        found[field] = inner[field](value)
    return found


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw] | None)


class InvalidJsonError(ValueError):
    """A text is no JSON of the fields that are read: the one of this number among those that were given."""

    def __init__(self, problem: str, number: int) -> None:
        super().__init__(problem)
        self.number = number


def _json_type(kind: pa.DataType, *, strict: bool = False) -> Any:
    """Return what msgspec reads JSON as; `_change` makes the value of it.

    `strict`: the values are thrown away, and texts of decimals are looked at.
    """
    if kinds.is_list(kind):
        element = _json_type(kind.value_type, strict=strict)
        return list[element | None]  # type: ignore[valid-type]  # made when the program runs, as the others
    if kinds.is_map(kind):
        item = _json_type(kind.item_type, strict=strict)
        return dict[str, item | None]  # type: ignore[valid-type]
    if kinds.is_struct(kind):
        fields = {field.name: _json_type(field.type, strict=strict) | None for field in kind}
        return TypedDict("object", fields, total=False)  # type: ignore[operator]
    return _DECIMAL if strict and kinds.is_decimal(kind) else _JSON_TYPES.get(kind.id, str)


NUMBER = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
"""A number as a text: of ASCII's digits alone, and decimal."""

_DECIMAL: Any = Annotated[str, msgspec.Meta(pattern=NUMBER)] | int | float


_JSON_TYPES: Mapping[int, Any] = {
    pa.bool_().id: bool,
    **{
        kind.id: Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]
        for kind, bits in ((pa.int8(), 8), (pa.int16(), 16), (pa.int32(), 32), (pa.int64(), 64))
    },
    pa.float32().id: float | Literal["NaN", "Infinity", "-Infinity"],
    pa.float64().id: float | Literal["NaN", "Infinity", "-Infinity"],
    pa.decimal128(1).id: Decimal,
    pa.binary().id: bytes,
    pa.date32().id: date,
}
"""By the id of an Arrow type. Of others JSON has a text, also of times: msgspec would round their nanoseconds."""


def _change(kind: pa.DataType, *, writing: bool) -> Callable[[Any], Any] | None:
    """Return what makes of a value, which is not None, what msgspec writes; None if it is the value itself.

    Not `writing`: what makes the value of what msgspec has read.
    """
    if kinds.is_list(kind):
        element = _change(kind.value_type, writing=writing)
        return None if element is None else _each(element)
    if kinds.is_map(kind):
        item = _change(kind.item_type, writing=writing) or _same
        if writing:
            return _object(item)
        return lambda found: [(key, None if value is None else item(value)) for key, value in found.items()]
    if kinds.is_struct(kind):
        changes = {field.name: _change(field.type, writing=writing) or _same for field in kind}
        return lambda row: {
            name: None if value is None else changes[name](value)
            for name, value in row.items()
            if value is not None or not writing
        }
    return _plain(kind) if writing else _restored(kind)


def _plain(kind: pa.DataType) -> Callable[[Any], Any] | None:
    if kinds.is_floating(kind):
        return lambda value: value if math.isfinite(value) else _NOT_FINITE[str(value)]
    if kinds.is_timestamp(kind) and kind.tz not in (None, "UTC"):
        return lambda value: value.astimezone(UTC)
    return None


def _restored(kind: pa.DataType) -> Callable[[Any], Any] | None:
    if kinds.is_timestamp(kind):
        return _local_time if kind.tz is None else _moment
    if kinds.is_floating(kind):
        return float if kinds.is_float64(kind) else _single
    return None


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _is_finite(column: pa.Array) -> bool:
    """Return whether a column is one of numbers that JSON has."""
    return kinds.is_floating(column.type) and bool(pc.all(pc.is_finite(column)).as_py())


def _same(value: Any) -> Any:
    return value


def _each(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: [None if value is None else change(value) for value in values]


def _object(item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def plain(value: Any) -> dict[str, Any]:
        pairs = list(value.items() if isinstance(value, Mapping) else value)
        found = {name: None if each is None else item(each) for name, each in pairs}
        if len(found) != len(pairs):
            raise ValueError(f"a map has a key twice: {sorted(name for name, _ in pairs)}")
        return found

    return plain


def _moment(text: str) -> datetime:
    found = _time(text)
    try:
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except OverflowError:  # Arrow would take it, and Python could not read it from there
        raise ValueError(f"{text!r} is outside of the years 1 to 9999 in UTC") from None


def _local_time(text: str) -> datetime:
    found = _time(text)
    if found.tzinfo is not None:
        raise ValueError(f"{text!r} has a zone, and a timestamp_ntz has none: read it as timestamp")
    return found


def _time(text: str) -> datetime:
    if _BELOW_MICROSECONDS.search(text):
        raise ValueError(f"{text!r} is no whole number of microseconds")
    return datetime.fromisoformat(text)


def _single(value: Any) -> float:
    found = float(value)
    if _FLOAT_MAX <= abs(found) < math.inf:
        raise ValueError(f"{found} is too large for a float: read it as double")
    return found


def key_writer(types: Sequence[pa.DataType]) -> Callable[[Sequence[Any]], bytes]:
    """Return what makes the key of a record of the values of its key's fields, none of which is nested.

    The key of one field is its text, or its bytes, as they are, and other values as JSON without quotes. That of
    several fields is a JSON array.
    """
    fields = [_key_field(kind) for kind in types]
    if len(types) > 1:
        return lambda values: b"[" + b",".join(field(each) for field, each in zip(fields, values, strict=True)) + b"]"
    [kind], [field] = types, fields
    if kinds.is_string(kind):
        return lambda values: values[0].encode()
    if kinds.is_binary(kind):
        return lambda values: values[0]
    return lambda values: field(values[0]).strip(b'"')


def _key_field(kind: pa.DataType) -> Callable[[Any], bytes]:
    encode = JsonType(kind).encode
    if not kinds.is_floating(kind):
        return encode
    # -0.0 is the key 0.0, as in state and in groupings: else the older one of the two would stay beside the newer.
    return lambda value: encode(value if value is None else value + 0.0)
