"""Bytes of values: msgpack, with extension types for what msgpack does not have.

======  =====================================================================
code    payload
======  =====================================================================
1       tuple: msgpack array of its elements
2       namedtuple: msgpack array of its fields, its elements and its extra
3       int beyond 64 bits: two's complement, big endian
4       Decimal: its text, exact (``Decimal("1.00")`` keeps its zeros)
5       date: ordinal of the day
6       datetime: fields, fold and, if aware, its UTC offset in microseconds
7       timedelta: days, seconds and microseconds, as Python keeps them
======  =====================================================================

An aware datetime comes back with the offset it had, as a fixed one: the name of its zone is not kept.

Around them is an envelope, which tells the version of the bolt that wrote the value. A value of version 1 lies as its
codec wrote it. One of a later version, and one whose own bytes begin with the mark, has an envelope: the mark, the
version as a varint (7 bits a byte, low ones first), the codec's bytes. The standard codec's bytes never begin with the
mark, so bolts of version 1 pay nothing.

A value that is over at a time has that before all this: the mark, a zero, which is no version, and the milliseconds
since the epoch in 8 bytes, high ones first.
"""

from __future__ import annotations

import struct
from collections import namedtuple
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, cast

import msgpack

from statefx.errors import CodecError, StateCorruptedError
from statefx.state.encoding.keys import refusal

MAX_DEPTH = 64
"""Containers nested in containers; deeper values (and those that contain themselves) are refused."""

SCALARS: frozenset[type] = frozenset({type(None), bool, int, float, Decimal, str, bytes, date, datetime, timedelta})
"""Immutable types, by exact type."""

AS_IT_IS: frozenset[type] = SCALARS - {datetime}
"""Those that are kept as they are until they are encoded, which gives back the same. Of datetimes see `is_settled`."""

_TUPLE, _RECORD, _BIG_INT, _DECIMAL, _DATE, _DATETIME, _TIMEDELTA = range(1, 8)
# First bytes of values that hold nothing else and are no extension: msgpack needs no hook for them, and is quicker.
_PLAIN_HEADS = frozenset({*range(0x80), *range(0xA0, 0xC0), 0xC0, 0xC2, 0xC3, 0xC4, 0xC5, 0xC6})
_PLAIN_HEADS |= {*range(0xCA, 0xD4), 0xD9, 0xDA, 0xDB, *range(0xE0, 0x100)}
_NATIVE: frozenset[type] = frozenset({type(None), bool, int, float, str, bytes})
_SHORT_EXTENSION = struct.Struct(">BBb").pack
_LONG_EXTENSION = struct.Struct(">BIb").pack
_ordinal = struct.Struct(">I")
_moment = struct.Struct(">HBBBBBIB")
_span = struct.Struct(">iII")
_moment_aware = struct.Struct(">HBBBBBIBq")
_MICROSECOND = timedelta(microseconds=1)

Build = Callable[[tuple[str, ...], tuple[Any, ...], Any], Any]
Extra = Callable[[Any], Any]


def _build_namedtuple(fields: tuple[str, ...], elements: tuple[Any, ...], extra: Any) -> Any:
    return _namedtuple_class(fields)(*elements)


@lru_cache(maxsize=1024)
def _namedtuple_class(fields: tuple[str, ...]) -> Callable[..., Any]:
    return namedtuple("Tuple", fields, rename=True)


def _no_extra(value: Any) -> None:
    return None


_build: Build = _build_namedtuple
_extra: Extra = _no_extra


def register_namedtuples(build: Build, extra: Extra = _no_extra) -> None:
    """Say how namedtuples in values are rebuilt, in this process.

    Called once, when the module that defines the classes is imported. Without it they come back as plain
    ``collections.namedtuple`` classes of the same fields.

    Parameters
    ----------
    build : callable (fields, elements, extra) -> namedtuple
        Makes the instance again.
    extra : callable (namedtuple) -> value
        What else of an instance must be kept (anchors, a stream's name); any value that state can hold.
    """
    global _build, _extra
    _build, _extra = build, extra


def make_encoder() -> Callable[[Any], bytes]:
    """Return a function from a value to its bytes; not to be shared between threads.

    The function raises CodecError, with ``path`` and ``type``, for what state can't hold.
    """
    pack = msgpack.Packer(default=_extension, strict_types=True).pack
    native, scalars = _NATIVE, SCALARS

    def encode_value(value: Any) -> bytes:
        kind = type(value)
        try:
            if kind in native:
                return pack(value)  # type: ignore[no-any-return]
            if kind not in scalars:
                check_value(value, "value", 0)
                if kind is list or kind is dict:
                    return pack(value)  # type: ignore[no-any-return]
            code, payload = _payload(value, pack)
        except UnicodeEncodeError:
            return _pack_surrogates(value)
        except (ValueError, OverflowError) as error:
            raise CodecError(f"value can't be encoded: {error}", path="value", type=kind.__name__) from error
        if len(payload) > 0xFF:
            return _LONG_EXTENSION(0xC9, len(payload), code) + payload
        return _SHORT_EXTENSION(0xC7, len(payload), code) + payload

    return encode_value


def decode_value(data: bytes) -> Any:
    """Return the value that was encoded as `data`: equal to it, of the same types, and new at each call.

    StateCorruptedError: the bytes are no value; they are damaged or were written by another codec.
    """
    try:
        if data[0] in _PLAIN_HEADS:
            return msgpack.unpackb(data)
        return _unpack(data)
    except UnicodeDecodeError:
        pass
    except _UNREADABLE as error:
        raise _damaged(data) from error
    try:
        return _unpack_surrogates(data)
    except _UNREADABLE as error:
        raise _damaged(data) from error


def decode_values(data: Sequence[bytes]) -> list[Any]:
    """Return what `decode_value` makes of each, all at once, which takes a fifth of the time; raises as it does."""
    try:
        found = _unpack(b"\xdd" + len(data).to_bytes(4, "big") + b"".join(data))  # an array, of what follows
    except (UnicodeDecodeError, *_UNREADABLE):
        return [decode_value(each) for each in data]
    return cast("list[Any]", found)


def is_settled(value: Any) -> bool:
    """Return whether `value` can be kept as it is: nothing can change it, and its bytes give back the same.

    So are scalars and plain tuples of them, but for datetimes with the zone of a place, which come back with the offset
    they had. Kept as they are, a day later would be another moment before the end of a transaction than after it.
    """
    kind = type(value)
    if kind in AS_IT_IS:
        return True
    if kind is tuple:
        return AS_IT_IS.issuperset(map(type, value)) or all(
            type(each) in AS_IT_IS or (type(each) is datetime and _has_offset(each)) for each in value
        )
    return kind is datetime and _has_offset(value)


def zone_in(value: Any) -> datetime | None:
    """Return a datetime in `value` that comes back with another zone, or None if there is none."""
    kind = type(value)
    if kind is datetime:
        return None if _has_offset(value) else value
    if kind is dict:
        parts: Any = (*value, *value.values()) if not AS_IT_IS.issuperset(map(type, value)) else value.values()
    elif kind is list or isinstance(value, tuple):
        parts = value
    else:
        return None
    if AS_IT_IS.issuperset(map(type, parts)):
        return None
    return next(filter(None, map(zone_in, parts)), None)


def _has_offset(value: datetime) -> bool:
    zone = value.tzinfo
    return zone is None or zone is UTC or (type(zone) is timezone and zone.__getinitargs__()[1:] == ())  # type: ignore[attr-defined]


def check_value(value: Any, path: str, depth: int) -> None:
    """Raise CodecError, with its path, for the first thing in `value` that state can't hold."""
    kind = type(value)
    if kind in SCALARS:
        return
    if depth >= MAX_DEPTH:
        raise CodecError(
            f"{path} is nested deeper than {MAX_DEPTH} containers, or contains itself", path=path, type=kind.__name__
        )
    if kind is dict:
        if not SCALARS.issuperset(map(type, value)):
            for key in value:
                check_value(key, f"{path} key {key!r}", depth + 1)
        if not SCALARS.issuperset(map(type, value.values())):
            for key, element in value.items():
                check_value(element, f"{path}[{key!r}]", depth + 1)
    elif kind is list or kind is tuple or _is_namedtuple(value):
        if not SCALARS.issuperset(map(type, value)):
            for at, element in enumerate(value):
                check_value(element, f"{path}[{at}]", depth + 1)
        if kind is not list and kind is not tuple and _extra is not _no_extra:
            check_value(_extra(value), f"extra of {path}", depth + 1)
    else:
        raise refusal(value, path, as_key=False)


def _is_namedtuple(value: Any) -> bool:
    # msgpack's own ExtType is a namedtuple too, and would be packed as an extension of ours
    return isinstance(value, tuple) and hasattr(value, "_fields") and type(value) is not msgpack.ExtType


def _payload(value: Any, pack: Callable[[Any], bytes]) -> tuple[int, bytes]:
    kind = type(value)
    if kind is tuple:
        return _TUPLE, pack(list(value))
    if kind is int:
        return _BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
    if kind is Decimal:
        return _DECIMAL, str(value).encode()
    if kind is datetime:
        return _DATETIME, _pack_datetime(value)
    if kind is date:
        return _DATE, _ordinal.pack(value.toordinal())
    if kind is timedelta:
        return _TIMEDELTA, _span.pack(value.days, value.seconds, value.microseconds)
    if _is_namedtuple(value):
        return _RECORD, pack([list(value._fields), list(value), _extra(value)])
    raise refusal(value, "value", as_key=False)


_spare: list[Any] = []  # a packer can't be entered again while it packs: one for each level that is nested now


def _pack_nested(value: Any) -> bytes:
    packer = _spare.pop() if _spare else msgpack.Packer(default=_extension, strict_types=True)
    try:
        return packer.pack(value)  # type: ignore[no-any-return]
    finally:
        _spare.append(packer)


def _extension(value: Any) -> msgpack.ExtType:
    return msgpack.ExtType(*_payload(value, _pack_nested))


def _pack_surrogates(value: Any) -> bytes:
    """Encode strings that UTF-8 has no bytes for; rare, so packers are made as needed."""

    def extension(inner: Any) -> msgpack.ExtType:
        return msgpack.ExtType(*_payload(inner, _pack_surrogates))

    return msgpack.packb(  # type: ignore[no-any-return]
        value, default=extension, strict_types=True, unicode_errors="surrogatepass"
    )


def _pack_datetime(value: datetime) -> bytes:
    fields = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, value.fold)
    offset = value.utcoffset()
    return _moment.pack(*fields) if offset is None else _moment_aware.pack(*fields, offset // _MICROSECOND)


def _read_datetime(data: bytes) -> datetime:
    if len(data) == _moment.size:
        year, month, day, hour, minute, second, micro, fold = _moment.unpack(data)
        return datetime(year, month, day, hour, minute, second, micro, fold=fold)  # noqa: DTZ001 - it was naive
    year, month, day, hour, minute, second, micro, fold, offset = _moment_aware.unpack(data)
    return datetime(year, month, day, hour, minute, second, micro, _zone(offset), fold=fold)


@lru_cache(maxsize=256)
def _zone(offset_us: int) -> tzinfo:
    return timezone(timedelta(microseconds=offset_us)) if offset_us else UTC


def _read_extension(code: int, data: bytes, unpack: Callable[[bytes], Any] | None = None) -> Any:
    unpack = unpack or _unpack
    if code == _TUPLE:
        return tuple(unpack(data))
    if code == _RECORD:
        fields, elements, extra = unpack(data)
        return _build(tuple(fields), tuple(elements), extra)
    if code == _BIG_INT:
        return int.from_bytes(data, "big", signed=True)
    if code == _DECIMAL:
        return Decimal(data.decode())
    if code == _DATE:
        return date.fromordinal(*_ordinal.unpack(data))
    if code == _DATETIME:
        return _read_datetime(data)
    if code == _TIMEDELTA:
        return timedelta(*_span.unpack(data))
    raise ValueError(f"unknown extension type {code}")


_unpack = partial(msgpack.unpackb, ext_hook=_read_extension, strict_map_key=False)
_unpack_surrogates = partial(msgpack.unpackb, strict_map_key=False, unicode_errors="surrogatepass")
_unpack_surrogates.keywords["ext_hook"] = partial(_read_extension, unpack=_unpack_surrogates)
_UNREADABLE = (ValueError, TypeError, IndexError, ArithmeticError, RecursionError, struct.error)


def _damaged(data: bytes) -> StateCorruptedError:
    return StateCorruptedError(f"{data[:80]!r} is not the encoding of a value", data=data[:80])


MARK = b"\xc1"
"""The one byte that msgpack never uses."""

VERSION_MAX = 2**31 - 1
_VARINT_BYTES_MAX = 5


def wrap(version: int, data: bytes) -> bytes:
    r"""Return the bytes that are stored for a value of a version.

    >>> wrap(1, b"plain"), wrap(300, b"x")
    (b'plain', b'\xc1\xac\x02x')
    """
    if version == 1 and data[:1] != MARK:
        return data
    return envelope(version) + data


def envelope(version: int) -> bytes:
    """Return the prefix of the bytes of a value of `version`."""
    head = bytearray(MARK)
    while version > 0x7F:
        head.append(version & 0x7F | 0x80)
        version >>= 7
    head.append(version)
    return bytes(head)


_EXPIRES = MARK + b"\x00"
EXPIRY_BYTES = 10
"""Mark of a value that is over at a time."""

NEVER = 2**63
"""When a value is over that has no such time."""


def expiring(expiry_ms: int) -> bytes:
    """Return the prefix of the stored bytes of a value that is over at `expiry_ms`."""
    return _EXPIRES + expiry_ms.to_bytes(8, "big")


def expiry_of(data: bytes) -> int:
    r"""Return when a value is over, as it is stored: in milliseconds since the epoch, or `NEVER`.

    >>> expiry_of(expiring(1000) + b"x"), expiry_of(b"x") == NEVER
    (1000, True)
    """
    if not data.startswith(_EXPIRES) or len(data) < EXPIRY_BYTES:  # damaged: whoever decodes it says so
        return NEVER
    return int.from_bytes(data[2:EXPIRY_BYTES], "big")


def unwrap(data: bytes) -> tuple[int, bytes]:
    """Return version and codec's bytes of a stored value; StateCorruptedError if the envelope is damaged."""
    if data[:1] != MARK:
        return 1, data
    version = 0
    for at, byte in enumerate(data[1 : 1 + _VARINT_BYTES_MAX]):
        version |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            if 1 <= version <= VERSION_MAX:
                return version, data[at + 2 :]
            break
    raise StateCorruptedError(f"{data[:80]!r} does not tell its version", data=data[:80])
