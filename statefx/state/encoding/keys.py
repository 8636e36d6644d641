"""Order-preserving bytes of keys: comparing two encodings as bytes compares the keys.

A key's bytes are a tag for its type, then its value. A string, bytes or a tuple ends with the key; inside a
tuple each element closes itself, so that no element's bytes are a prefix of a longer one's:

==============  =======================================================================================
type            bytes after the tag
==============  =======================================================================================
None, bool      none: the tag says it
int             8 bytes, biased by 2**63; beyond 64 bits: another tag, length, magnitude (negative: inverted)
float           IEEE 754 bits, sign flipped (negative: all inverted); -0.0 is 0.0
Decimal         sign and kind, adjusted exponent, digits in pairs, end (negative: inverted)
str, bytes      UTF-8, or the bytes; inside a tuple a NUL is ``00 FF`` and the end is ``00``
date            8 bytes: the day's ordinal
datetime        8 bytes: microseconds from 1970 to the instant
tuple           the elements; inside a tuple the end is ``00``
==============  =======================================================================================

Keys that are equal and of one type are one key: ``Decimal("1.0")`` is ``Decimal("1.00")`` and comes back as
``Decimal("1")``; 12:00 UTC is 14:00+02:00 and comes back in UTC. Keys of different types are different keys.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Any

from statefx.errors import CodecError, StateCorruptedError

KEY_TYPES = "None, bool, int, float, Decimal, str, bytes, date, aware datetime and tuples of them"
VALUE_TYPES = (
    "None, bool, int, float, Decimal, str, bytes, date, datetime, timedelta, and lists, tuples and dicts of them"
)


def refusal(value: Any, path: str, *, as_key: bool) -> CodecError:
    """Return the error for `value`, found at `path`, whose type state does not hold."""
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    where = "a key" if as_key else "a value"
    message = f"{path} is a {name}, which can't be {'in ' if path not in ('key', 'value') else ''}{where} of state"
    return CodecError(f"{message}; {_remedy(value, as_key)}", path=path, type=name)


def _remedy(value: Any, as_key: bool) -> str:
    module = type(value).__module__.partition(".")[0]
    if module in ("numpy", "pandas"):
        return "store .item() of a scalar, .tolist() of an array, .to_pydatetime() of a Timestamp"
    if isinstance(value, Enum):
        return "store its .value or .name"
    if isinstance(value, bytearray | memoryview):
        return "store bytes(...) of it"
    if isinstance(value, set | frozenset):
        return "store a sorted tuple of it" if as_key else "store a list of it, or a dict with None for values"
    if as_key and isinstance(value, slice):
        return "a range of keys is items(start, stop)"
    if as_key and isinstance(value, list):
        return "use tuple(...) of it"
    for plain in (bool, int, float, str, bytes, dict, list, tuple):
        if isinstance(value, plain) and type(value) is not plain:
            return f"only exact types come back as they went in: store {plain.__name__}(...) of it"
    return f"what can be: {KEY_TYPES if as_key else VALUE_TYPES}"


MAX_DEPTH = 64
"""Tuples nested in tuples; deeper keys are refused."""

# Spaced, so that a type can come between two others and what is stored stays in order.
_END = 0x00
_NONE, _FALSE, _TRUE = 0x10, 0x18, 0x19
_INT_BELOW, _INT, _INT_ABOVE = 0x20, 0x21, 0x22
_FLOAT, _DECIMAL, _STR, _BYTES = 0x28, 0x30, 0x38, 0x40
_DATE, _DATETIME, _TUPLE = 0x48, 0x50, 0x58

_STR_TAG = chr(_STR)
_BYTES_TAG = bytes([_BYTES])
_TUPLE_TAG = bytes([_TUPLE])
_BIAS = 1 << 63
_ALL_BITS = (1 << 64) - 1
_pack_tagged = struct.Struct(">BQ").pack
_pack_double = struct.Struct(">d").pack
_unpack_double = struct.Struct(">d").unpack
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOWEST_UTC = datetime.min.replace(tzinfo=UTC) - _EPOCH
_HIGHEST_UTC = datetime.max.replace(tzinfo=UTC) - _EPOCH
_unpack_number = struct.Struct(">Q").unpack_from
_MICROSECOND = timedelta(microseconds=1)
_INVERTED = bytes(255 - byte for byte in range(256))

_NEGATIVE_INFINITY, _NEGATIVE, _ZERO, _POSITIVE, _POSITIVE_INFINITY = range(1, 6)


@cache
def key_encoder(head: bytes = b"") -> Callable[[Any], bytes]:
    """Return the function that makes a key's bytes, which begin with `head` and order as the keys do.

    It takes None, bool, int, float, Decimal, str, bytes, date, datetime or a tuple of them, of exactly these types:
    subclasses are refused, because they would come back as another type. It raises CodecError, which carries ``path``,
    for other types, a NaN, a naive datetime and a lone surrogate.

    Parameters
    ----------
    head : bytes
        One byte below 0x80, or none.

    Examples
    --------
    >>> key_encoder(b"u")("one")
    b'u8one'
    >>> encode_key(1) < encode_key(1.0) < encode_key("1") < encode_key((1,))
    True
    """
    # The head joins the tag, which each type writes anyway, so that a key behind a head costs what a bare one costs.
    # Put before finished bytes, as `head + data`, it cost 30 ns of the 85 to 110 that a key takes.
    str_head, bytes_head, tuple_head = (head + bytes([tag]) for tag in (_STR, _BYTES, _TUPLE))
    str_prefix, int_head = str_head.decode(), int.from_bytes(head + bytes([_INT]), "big")
    pack_int = struct.Struct(">HQ" if head else ">BQ").pack

    def encode_key(key: Any) -> bytes:
        kind = type(key)
        try:
            if kind is str:
                return (str_prefix + key).encode()  # type: ignore[no-any-return]
            if kind is int:
                return pack_int(int_head, key + _BIAS)
            if kind is bytes:
                return bytes_head + key  # type: ignore[no-any-return]
            if kind is tuple:
                parts = [tuple_head]
                _append_elements(parts, key, 1)
                return b"".join(parts)
            encode = _FIXED.get(kind)
            if encode is None:
                raise _Refused(key)
            return head + encode(key)
        except struct.error:  # an int of more than 64 bits
            return head + _encode_big(key)
        except UnicodeEncodeError:
            refused = _Refused(key, _SURROGATE)
        except _Refused as error:
            refused = error
        raise refused.at("key")

    return encode_key


@cache
def key_decoder(head: bytes = b"") -> Callable[[bytes], Any]:
    """Return the function that makes of bytes from `key_encoder` an equal key of the same type.

    It raises StateCorruptedError for bytes that are no key's: what holds them is damaged or was written by another
    codec. It skips the head and does not look at it, for who scans a space gets no key of another one.
    """
    at, body = len(head), len(head) + 1
    int_size = body + 8

    def decode_key(data: bytes) -> Any:
        try:
            tag = data[at]
            if tag == _STR:
                return data[body:].decode()
            if tag == _INT and len(data) == int_size:
                return int.from_bytes(data[body:], "big") - _BIAS
            if tag == _BYTES:
                return data[body:]
            if tag == _TUPLE:
                return _read_elements(data, body, len(data))[0]
            key, end = _read(data, at)
        except (IndexError, ValueError, ArithmeticError, RecursionError, struct.error) as error:
            raise _damaged(data) from error
        if end != len(data):
            raise _damaged(data)
        return key

    return decode_key


encode_key, decode_key = key_encoder(), key_decoder()


def _damaged(data: bytes) -> StateCorruptedError:
    return StateCorruptedError(f"{data[:80]!r} is not the encoding of a key", data=data[:80])


# ---- writing

_SURROGATE = (
    "is a str with a lone surrogate, which has no place in the order of keys; decode the text properly, or use "
    'key.encode("utf-8", "surrogatepass")'
)
_NAN = "is NaN, which equals nothing and has no place in the order of keys"
_NAIVE = (
    "is a naive datetime: which instant it names depends on the reader; give it a time zone, for example "
    "key.replace(tzinfo=timezone.utc)"
)
_DEEP = f"is nested deeper than {MAX_DEPTH} tuples"


class _Refused(Exception):  # noqa: N818 - never leaves this module
    """An element can't be in a key; collects the path to it on the way out."""

    def __init__(self, element: Any, why: str = "") -> None:
        self.element = element
        self.why = why
        self.steps: list[int] = []

    def at(self, path: str) -> CodecError:
        """Return the error to raise for the key at `path`."""
        path += "".join(f"[{step}]" for step in reversed(self.steps))
        if not self.why:
            return refusal(self.element, path, as_key=True)
        return CodecError(f"{path} {self.why}: {self.element!r:.80}", path=path, type=type(self.element).__name__)


def _encode_big(key: int) -> bytes:
    magnitude = abs(key)
    size = (magnitude.bit_length() + 7) // 8
    body = size.to_bytes(4, "big") + magnitude.to_bytes(size, "big")
    if key < 0:
        return bytes([_INT_BELOW]) + body.translate(_INVERTED)
    return bytes([_INT_ABOVE]) + body


def _encode_none(key: None) -> bytes:
    return bytes([_NONE])


def _encode_bool(key: bool) -> bytes:
    return bytes([_TRUE if key else _FALSE])


def _encode_float(key: float) -> bytes:
    if key != key:
        raise _Refused(key, _NAN)
    bits = int.from_bytes(_pack_double(key + 0.0), "big")
    return _pack_tagged(_FLOAT, bits ^ _ALL_BITS if bits & _BIAS else bits | _BIAS)


def _encode_decimal(key: Decimal) -> bytes:
    if key.is_nan():
        raise _Refused(key, _NAN)
    if key.is_infinite():
        return bytes([_DECIMAL, _NEGATIVE_INFINITY if key < 0 else _POSITIVE_INFINITY])
    if not key:
        return bytes([_DECIMAL, _ZERO])
    sign, digits, _ = key.as_tuple()
    text = "".join(map(str, digits)).lstrip("0").rstrip("0")
    pairs = bytes(int(text[at : at + 2].ljust(2, "0")) + 1 for at in range(0, len(text), 2))
    body = (key.adjusted() + _BIAS).to_bytes(8, "big") + pairs + b"\0"
    if sign:
        return bytes([_DECIMAL, _NEGATIVE]) + body.translate(_INVERTED)
    return bytes([_DECIMAL, _POSITIVE]) + body


def _encode_date(key: date) -> bytes:
    return _pack_tagged(_DATE, key.toordinal())


def _encode_datetime(key: datetime) -> bytes:
    if key.utcoffset() is None:
        raise _Refused(key, _NAIVE)
    return _pack_tagged(_DATETIME, (key - _EPOCH) // _MICROSECOND + _BIAS)


_FIXED: dict[type, Callable[[Any], bytes]] = {
    type(None): _encode_none,
    bool: _encode_bool,
    float: _encode_float,
    Decimal: _encode_decimal,
    date: _encode_date,
    datetime: _encode_datetime,
}


def _append_elements(parts: list[bytes], elements: tuple[Any, ...], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _Refused(elements, _DEEP)
    for at, element in enumerate(elements):
        kind = type(element)
        try:
            if kind is str:
                body = (_STR_TAG + element).encode()
                parts.append(body.replace(b"\0", b"\0\xff") + b"\0")
            elif kind is int:
                parts.append(encode_key(element))
            elif kind is bytes:
                parts.append(_BYTES_TAG + element.replace(b"\0", b"\0\xff") + b"\0")
            elif kind is tuple:
                parts.append(_TUPLE_TAG)
                _append_elements(parts, element, depth + 1)
                parts.append(b"\0")
            elif kind in _FIXED:
                parts.append(_FIXED[kind](element))
            else:
                raise _Refused(element)
        except UnicodeEncodeError:
            refused = _Refused(element, _SURROGATE)
        except _Refused as error:
            refused = error
        else:
            continue
        refused.steps.append(at)
        raise refused


# ---- reading


def _read(data: bytes, at: int) -> tuple[Any, int]:
    """Return the self-delimiting key at `at`, and where the next one starts."""
    tag = data[at]
    at += 1
    if tag == _STR:
        body, at = _read_escaped(data, at)
        return body.decode(), at
    if tag == _BYTES:
        return _read_escaped(data, at)
    if tag == _TUPLE:
        return _read_elements(data, at, None)
    if tag in _MARKS:
        return _MARKS[tag], at
    if tag == _DECIMAL:
        return _read_decimal(data, at)
    if tag in (_INT_ABOVE, _INT_BELOW):
        return _read_big(data, at, negative=tag == _INT_BELOW)
    number = int.from_bytes(data[at : at + 8], "big")
    if at + 8 > len(data) or tag not in _NUMBERS:
        raise ValueError(tag)
    return _NUMBERS[tag](number), at + 8


def _read_escaped(data: bytes, at: int) -> tuple[bytes, int]:
    start = at
    while True:
        end = data.index(0, at)
        if data[end + 1 : end + 2] != b"\xff":
            return data[start:end].replace(b"\0\xff", b"\0"), end + 1
        at = end + 2


def _read_elements(data: bytes, at: int, stop: int | None) -> tuple[tuple[Any, ...], int]:
    elements: list[Any] = []
    while at != stop:
        tag = data[at]
        if tag == _INT:  # ints and strings without a NUL are most of what keys are made of: twice as quick as by _read
            elements.append(_unpack_number(data, at + 1)[0] - _BIAS)
            at += 9
            continue
        if tag == _STR:
            end = data.index(0, at + 1)
            if data[end + 1 : end + 2] != b"\xff":
                elements.append(data[at + 1 : end].decode())
                at = end + 1
                continue
        if stop is None and tag == _END:
            return tuple(elements), at + 1
        element, at = _read(data, at)
        elements.append(element)
    return tuple(elements), at


def _read_big(data: bytes, at: int, negative: bool) -> tuple[int, int]:
    table = _INVERTED if negative else None
    size = int.from_bytes(data[at : at + 4].translate(table), "big")
    end = at + 4 + size
    if end > len(data):
        raise ValueError(size)
    magnitude = int.from_bytes(data[at + 4 : end].translate(table), "big")
    return (-magnitude if negative else magnitude), end


def _read_decimal(data: bytes, at: int) -> tuple[Decimal, int]:
    kind = data[at]
    at += 1
    if kind == _ZERO:
        return Decimal(0), at
    if kind in (_NEGATIVE_INFINITY, _POSITIVE_INFINITY):
        return Decimal("-Infinity" if kind == _NEGATIVE_INFINITY else "Infinity"), at
    table = _INVERTED if kind == _NEGATIVE else None
    end = data.index(0xFF if table else 0x00, at + 8)
    exponent = int.from_bytes(data[at : at + 8].translate(table), "big") - _BIAS
    text = "".join(f"{pair - 1:02d}" for pair in data[at + 8 : end].translate(table)).rstrip("0")
    digits = tuple(map(int, text))
    return Decimal((int(kind == _NEGATIVE), digits, exponent - len(digits) + 1)), end + 1


def _read_float(bits: int) -> float:
    raw = bits ^ _BIAS if bits & _BIAS else bits ^ _ALL_BITS
    value: float = _unpack_double(raw.to_bytes(8, "big"))[0]
    if math.isnan(value):
        raise ValueError(bits)
    return value


def _read_datetime(number: int) -> datetime:
    since = timedelta(microseconds=number - _BIAS)
    if since < _LOWEST_UTC:  # years 1 and 9999 have instants that only another offset can write
        return datetime.min.replace(tzinfo=timezone(_LOWEST_UTC - since))
    if since > _HIGHEST_UTC:
        return datetime.max.replace(tzinfo=timezone(_HIGHEST_UTC - since))
    return _EPOCH + since


_MARKS = {_NONE: None, _FALSE: False, _TRUE: True}
_NUMBERS: dict[int, Callable[[int], Any]] = {
    _INT: lambda number: number - _BIAS,
    _FLOAT: _read_float,
    _DATE: date.fromordinal,
    _DATETIME: _read_datetime,
}
