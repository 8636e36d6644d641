"""Keys and values of state as columns of Arrow: typed where the user says the types, else as JSON text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from json.encoder import encode_basestring_ascii
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statefx.errors import ConfigError
from statefx.operators.schema import Form, to_ddl
from statefx.state.contract.spaces import NameKind, Space, end_of, head_of
from statefx.state.encoding.codec import Codec, StandardCodec
from statefx.state.encoding.keys import encode_key
from statefx.state.encoding.values import EXPIRY_BYTES, NEVER, decode_values, expiry_of, unwrap
from statefx.state.view.changes import codec_for

Entries = Iterator[tuple[list[bytes], list[bytes]]]
"""Keys and their values, in order of the keys, many at a time."""

OWN_KEYS_SPACE = "state"
"""What the column ``space`` says of the bolt's own keys."""

Range = tuple[bytes, bytes]
"""Of the bytes of keys: from the first up to the second."""

_STR_TAG, _INT_TAG = encode_key("")[:1], encode_key(0)[:1]
_INT_BYTES = len(encode_key(0)) - 1
_BIAS = np.uint64(1 << 63)
_MISFITS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)

_ROWS = 1000

_UNESCAPED = bytes({*range(0x20, 0x7F)} - {*b'"\\'})
"""What stands in JSON as it is, if all that is not ASCII is escaped."""

_encode_json = json.JSONEncoder(allow_nan=False).encode


def json_text(value: Any) -> str:
    r"""Return a value as JSON; what JSON can't say becomes text as Python writes it.

    >>> json_text({"seen": (1, 2)}), json_text(b"x")
    ('{"seen": [1, 2]}', '"b\'x\'"')
    """
    try:
        return _encode_json(value)
    except (TypeError, ValueError):
        return json.dumps(repr(value))


def _json_column(things: Sequence[Any]) -> pa.Array:
    """Return the JSON of each, as `json_text` writes it."""
    kinds = set(map(type, things))
    plain = {str: pa.string(), int: pa.int64()}.get(kinds.pop()) if len(kinds) == 1 else None
    if plain is not None:
        with suppress(UnicodeError, *_MISFITS):
            return quick_json(pa.array(things, plain))
    return pa.array(map(json_text, things), pa.string(), size=len(things))


def quick_json(column: pa.Array) -> pa.Array:
    """Return the JSON of strings or ints; by passes over the whole column if nothing in it is escaped."""
    if column.type != pa.string():
        return column.cast(pa.string())
    text = column.buffers()[2]
    if text is not None and bytes(text).translate(None, _UNESCAPED):
        return pa.array(map(encode_basestring_ascii, column.to_pylist()), pa.string(), size=len(column))
    return pc.binary_join_element_wise('"', column, '"', "")


@dataclass(frozen=True)
class Shown:
    """Which keys are shown, of those that begin with `head`."""

    head: bytes
    space: str
    ranges: tuple[Range, ...]
    """In their order; no two of them overlap."""

    def living(self, entries: Entries, now_ms: int) -> Entries:
        """Yield what is not over, without what says when it is: only maps have such entries."""
        if self.head == Space.USER.value:
            yield from entries
            return
        for keys, values in entries:
            lives = [(key, value) for key, value in zip(keys, values, strict=True) if expiry_of(value) > now_ms]
            if lives:
                yield [key for key, _ in lives], [self.bare(value) for _, value in lives]

    def bare(self, value: bytes) -> bytes:
        """Return a value without what says when it is over."""
        return value if self.head == Space.USER.value or expiry_of(value) == NEVER else value[EXPIRY_BYTES:]


def shown_of(kind: NameKind | None, name: str, codec: Codec, start: Any = None, stop: Any = None) -> Shown:
    """Return which keys are shown, of the state itself or of a map; CodecError for a bound that can't be a key."""
    head = Space.USER.value if kind is None else head_of(kind, name)
    encode = codec_for(codec, head)[0].encode_key
    low = head if start is None else encode(start)
    high = end_of(head) if stop is None else encode(stop)
    return Shown(head, OWN_KEYS_SPACE if kind is None else f"{kind.value} {name}", ((low, max(low, high)),))


def with_origin(rows: Iterable[list[pa.Array]], task: int, space: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield columns with those that say whose they are; these are made once for the most rows, and cut for others."""
    own: list[pa.Array] = []
    for columns in rows:
        size = len(columns[0])
        if not own or len(own[0]) < size:
            values = zip((task, space), schema.types[-2:], strict=True)
            own = [pa.repeat(pa.scalar(value, kind), size) for value, kind in values]
        yield pa.RecordBatch.from_arrays([*columns, *(column.slice(0, size) for column in own)], schema=schema)


class Decoder:
    """Makes columns of the bytes of one state's keys, which begin with `head`, and of its values."""

    def __init__(self, codec: Codec, head: bytes, form: Form, state_version: int) -> None:
        self._head = head
        self._versions = state_version > 1  # of version 1, the standard codec's values lie as they are
        self._form = form
        self._standard = type(codec) is StandardCodec
        self._codec, _ = codec_for(codec, head)

    def rows(self, entries: Entries) -> Iterator[list[pa.Array]]:
        """Yield the columns of key and value."""
        for keys, values in entries:
            if keys:
                yield [*self.keys(keys), *self._columns("value", self.decoded(values), keys)]

    def columns(self, rows: Iterable[tuple[Any, Any]]) -> Iterator[list[pa.Array]]:
        """Yield the columns of keys and values that are decoded already."""
        rows = iter(rows)
        while some := list(islice(rows, _ROWS)):
            keys, values = map(list, zip(*some, strict=True))
            yield [*self._columns("key", keys, keys), *self._columns("value", values, keys)]

    def values(self, keys: list[bytes], values: Sequence[bytes | None]) -> pa.Array:
        """Return one column of values, of which some are not there."""
        present = [at for at, value in enumerate(values) if value is not None]
        decoded = self.decoded([value for value in values if value is not None])
        columns = self._columns("value", decoded, [keys[at] for at in present])
        names = [field.name for field in self._form.fields("value")]
        column = columns[0] if len(columns) == 1 else pa.StructArray.from_arrays(columns, names)
        places = np.full(len(values), -1, np.int64)
        places[present] = np.arange(len(present))
        return column.take(pa.array(places, mask=places < 0))

    def keys(self, data: list[bytes]) -> list[pa.Array]:
        """Return the columns of keys, which are in order."""
        fields = self._form.fields("key")
        if self._standard and len(fields) == 1:
            quick = self._quick(data, fields[0].type)
            if quick is not None:
                return [quick]
        return self._columns("key", list(map(self._codec.decode_key, data)), data)

    def _quick(self, data: list[bytes], kind: pa.DataType) -> pa.Array | None:
        """Return the column of keys if all of them are strings, or all ints."""
        if self._form.key is not None:
            return quick_keys(data, self._head, kind)
        for plain in (pa.string(), pa.int64()):
            if (found := quick_keys(data, self._head, plain)) is not None:
                return quick_json(found)
        return None

    def decoded(self, values: list[bytes]) -> list[Any]:
        """Return values as Python has them, without what tells which version of the bolt has written them."""
        if self._standard:
            return decode_values([unwrap(value)[1] for value in values] if self._versions else values)
        return [self._codec.decode_value(unwrap(value)[1]) for value in values]

    def shown(self, part: str, thing: Any, key: bytes) -> list[Any]:
        """Return what the columns show of one key or value; `key` is for the error."""
        return [_python(column)[0] for column in self._columns(part, [thing], [key])]

    def _columns(self, part: str, things: list[Any], keys: list[Any]) -> list[pa.Array]:
        """Return the columns of a part of entries."""
        if getattr(self._form, part) is None:
            return [_json_column(things)]
        fields = self._form.fields(part)
        try:
            columns = [things] if len(fields) == 1 else _by_field(things, [field.name for field in fields])
            return [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]
        except (*_MISFITS, _MisfitError):
            if len(things) > 1:
                for thing, key in zip(things, keys, strict=True):
                    self._columns(part, [thing], [key])  # raises for the first one that does not fit
                raise
            key = self._codec.decode_key(keys[0]) if type(keys[0]) is bytes else keys[0]
            what = f"a key is {key!r:.200}" if part == "key" else f"the value of {key!r} is {things[0]!r:.200}"
            wanted = to_ddl(getattr(self._form, part))
            raise ConfigError(
                f"schema: {what}, which does not fit {part}={wanted!r}. One "
                "field is the thing itself; several are the elements of a tuple or list, or the items of a dict",
                part=part,
            ) from None


class _MisfitError(Exception):
    """What is no tuple, list or dict of so many fields has no columns."""


class UnfitError(Exception):
    """A type can't say what the row `at` of a column has."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


def values_of(column: pa.Array, kind: pa.DataType) -> list[Any]:
    """Return what a column has, as Python has values of a type; UnfitError for one that would become another one.

    >>> values_of(pa.array([1, 2.0, None]), pa.int64()), values_of(pa.array([1]), pa.float64())
    ([1, 2, None], [1.0])
    """
    try:
        given = _python(column)
        if column.type == kind or column.null_count == len(column):
            return given
        found = _python(column.cast(kind))
    except (*_MISFITS, KeyError):
        if len(column) == 1:
            raise UnfitError(0) from None
        for at in range(len(column)):
            try:
                values_of(column.slice(at, 1), kind)
            except UnfitError:
                raise UnfitError(at) from None
        raise UnfitError(0) from None
    for at, (each, becomes) in enumerate(zip(given, found, strict=True)):
        if not says(becomes, each):
            raise UnfitError(at)
    return found


def _python(column: pa.Array) -> list[Any]:
    """Return a column's values, with dicts for maps; KeyError: a map has a key twice."""
    values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    return values


def says(found: Any, given: Any) -> bool:
    """Return whether a column's value says what it was made of: 2 says 2.0, and 1 does not say True.

    >>> says([1, 2], (1, 2.0)), says({"a": 1}, [("a", 1)]), says(1, True), says(2, "2")
    (True, True, False, False)
    """
    if isinstance(given, dict):
        alike = isinstance(found, dict) and given.keys() <= found.keys()
        # A struct has a null where the dict lacks an item.
        return alike and all(says(each, given.get(name)) for name, each in found.items())
    if isinstance(found, dict) and isinstance(given, list | tuple):  # a map of pairs
        found = [*found.items()]
    if isinstance(given, list | tuple):
        alike = isinstance(found, list | tuple) and len(given) == len(found)
        return alike and all(map(says, found, given))
    if isinstance(given, bool) != isinstance(found, bool):
        return False
    return bool(given == found) or (given != given and found != found)  # as NaN is NaN


def elements(thing: Any, fields: Sequence[pa.Field]) -> Sequence[Any]:
    """Return what the columns of a key or value are made of."""
    return [thing] if len(fields) == 1 else _elements(thing, [field.name for field in fields])


def _by_field(things: list[Any], names: Sequence[str]) -> list[list[Any]]:
    """Return the columns of tuples, lists and dicts."""
    rows = [_elements(thing, names) for thing in things]
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in names]


def _elements(thing: Any, names: Sequence[str]) -> Sequence[Any]:
    if isinstance(thing, dict):
        return [thing.get(name) for name in names]
    if thing is None:
        return [None] * len(names)
    if not isinstance(thing, tuple | list) or len(thing) != len(names):
        raise _MisfitError
    return thing


def quick_keys(data: list[bytes], head: bytes, kind: pa.DataType) -> pa.Array | None:
    """Return a column of keys that are all strings, or all ints, made by passes over all of their bytes; else None.

    Keys are in order, and their type stands before them: if it is that of the first and of the last, it is that of all.
    """
    if not data:
        return None
    tag = head + (_STR_TAG if kind == pa.string() else _INT_TAG)
    if not (data[0].startswith(tag) and data[-1].startswith(tag)):
        return None
    if kind == pa.string():
        return pc.binary_replace_slice(pa.array(data, pa.binary()), 0, len(tag), b"").cast(kind)
    if not pa.types.is_signed_integer(kind):
        return None
    size = len(tag) + _INT_BYTES
    joined = b"".join(data)
    if len(joined) != size * len(data):
        return None
    numbers = np.frombuffer(joined, np.uint8).reshape(len(data), size)[:, len(tag) :].copy().view(">u8").ravel()
    wide = pa.array((numbers.astype(np.uint64) ^ _BIAS).view(np.int64))
    try:
        return wide.cast(kind)
    except pa.ArrowInvalid:  # beyond a smaller type: whoever looks at them one by one tells which
        return None
