"""Values on their way into Arrow: what arrives is what was emitted, or the value is refused.

Arrow alone takes too much: 1.5 for a long becomes 1, a set for an array loses its order, a struct's unknown field
vanishes, a text for an array falls into letters. So each Arrow type has the Python types that it takes. What is exact
for the usual type (``int`` for a long) is found out for a whole column at once; only other types are looked at one by
one.

The one loss that is left is declared: a ``float`` field rounds to single precision.
"""

from __future__ import annotations

import math
import numbers
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from datetime import date, datetime
from decimal import Decimal
from operator import index
from typing import Any

import pyarrow as pa

Fit = Callable[[Any], Any]
"""Returns a value as Arrow takes it without a loss, a copy if it can change; TypeError says what to do instead."""

MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""Errors of a value that does not fit, here or in Arrow."""

_NONE = type(None)
_FLOAT_MAX = 3.4028235677973366e38
"""From here on a double becomes infinite as a float."""

_CODES = {pa.int8(): "b", pa.int16(): "h", pa.int32(): "i", pa.int64(): "q"}


def to_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return a column as Arrow, without a loss; raises MISFITS."""
    code = _CODES.get(kind)
    if code is not None:
        return _integers(values, kind, code)
    if pa.types.is_nested(kind):
        return pa.array(values, kind)
    if pa.types.is_string(kind):
        with suppress(*MISFITS):  # mixed types: the fitter says which value it is
            # Asked what they are, Arrow says string for texts only, and no slower than if told.
            found = pa.array(values)
            if found.type == kind:
                return found
    usual, fit = _usual(kind), fitter(kind)
    return pa.array(values if usual.issuperset(map(type, values)) else list(map(fit, values)), kind)


def fitted_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of any type as Arrow, without a loss; those of nested types are fitted on the way."""
    return to_array(list(map(fitter(kind), values)) if pa.types.is_nested(kind) else values, kind)


def fitted_column(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return an Arrow column as one of another type, with the values that `fitted_array` takes; raises MISFITS."""
    if column.type == kind:
        return column
    if any(alike(column.type) and alike(kind) for alike in (pa.types.is_integer, _is_any_text)):
        return column.cast(kind)  # refuses what is out of range
    return fitted_array(column.to_pylist(), kind)


def fitted_table(table: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Return the fields of a schema, by their names, each as `fitted_column`; raises MISFITS."""
    columns = {field.name: fitted_column(table.column(field.name), field.type) for field in schema}
    return pa.table(columns).cast(schema)  # only looks for nulls where the schema has none


def _is_any_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _integers(values: Sequence[Any], kind: pa.DataType, code: str) -> pa.Array:
    """Build an array of integers by way of Python's own, which takes nothing else and is twice as quick as Arrow."""
    try:
        found = array(code, values)
    except (TypeError, OverflowError):  # a None, or a misfit
        return pa.array(list(map(_integer, values)), kind)
    return pa.Array.from_buffers(kind, len(found), [None, pa.py_buffer(found)])


def fitter(kind: pa.DataType) -> Fit:
    """Return the function that fits a value, None included, to a type of any depth."""
    if pa.types.is_list(kind):
        return _list(kind.value_type)
    if pa.types.is_map(kind):
        return _map(kind)
    if pa.types.is_struct(kind):
        return _struct(kind)
    usual, unusual = _usual(kind), _unusual(kind)
    return lambda value: value if type(value) in usual else unusual(value)


def _usual(kind: pa.DataType) -> frozenset[type]:
    """Return the types whose every value Arrow takes without a loss, or refuses by itself."""
    return _USUAL.get(kind, frozenset({Decimal, int, _NONE}) if pa.types.is_decimal(kind) else frozenset({_NONE}))


def _unusual(kind: pa.DataType) -> Fit:
    return _UNUSUAL.get(kind, _decimal if pa.types.is_decimal(kind) else _integer)


def _refused(value: Any, why: str) -> TypeError:
    return TypeError(f"{shown(value)} ({type(value).__name__}) {why}")


def shown(value: Any) -> str:
    """Return a value for an error's text; of a long one the beginning."""
    whole = repr(value[:_SHOWN] if isinstance(value, str | bytes) else value)
    return whole if len(whole) <= _SHOWN else f"{whole[:_SHOWN]}..."


_SHOWN = 200


def _integer(value: Any) -> int | None:
    if value is None:
        return None
    try:
        return index(value)
    except TypeError:
        raise _refused(value, "is no integer: emit an int (round it, or declare the field otherwise)") from None


def _double(value: Any) -> float | int | None:
    if isinstance(value, float):
        return float(value)
    if isinstance(value, numbers.Integral):
        return index(value)
    if isinstance(value, numbers.Real) and float(value) == value:  # numpy.float32, not a longdouble with more digits
        return float(value)
    raise _refused(value, "is no float, or not exactly: emit float(value)")


def _single(value: Any) -> float | int | None:
    if value is None:
        return None
    found = _double(value)
    if found is not None and not math.isinf(found) and abs(found) >= _FLOAT_MAX:
        raise _refused(value, "is too large for a float: declare the field as double")
    return found


def _text(value: Any) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, tuple | list):
        raise _refused(value, "is no text: emit a str, and of several rows each by itself")
    raise _refused(value, "is no text: emit a str (str(value), or value.decode() for bytes)")


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    raise _refused(value, "is no bytes: emit bytes(value), or value.encode() for a text")


def _bool(value: Any) -> bool:
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise _refused(value, "is no bool: emit bool(value)")


def _date(value: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    raise _refused(value, "is no date: emit a datetime.date (value.date() drops the time of a datetime)")


def _timestamp(value: Any) -> datetime:
    if isinstance(value, datetime) and getattr(value, "nanosecond", 0) == 0:
        return value
    raise _refused(value, "is no datetime, or a finer one than microseconds: emit a datetime.datetime")


def _local(value: Any) -> datetime | None:
    if value is None:
        return None
    if _timestamp(value).tzinfo is None:
        return value  # type: ignore[no-any-return]  # a datetime: it has just been looked at
    raise _refused(value, "has a time zone, which timestamp_ntz can't keep: declare the field as timestamp")


def _decimal(value: Any) -> Decimal | int:
    if isinstance(value, Decimal):
        return value
    try:
        return index(value)
    except TypeError:
        raise _refused(value, "is no Decimal: emit Decimal(str(value))") from None


def _list(kind: pa.DataType) -> Fit:
    fit = fitter(kind)
    usual = frozenset({_NONE}) if pa.types.is_nested(kind) else _usual(kind)

    def fit_list(value: Any) -> list[Any] | None:
        if value is None:
            return None
        found = value if type(value) is list else _sequence(value)
        if usual.issuperset(map(type, found)):
            return found.copy() if type(found) is list else list(found)
        try:
            return [fit(each) for each in found]
        except TypeError:
            raise _located(found, fit) from None

    return fit_list


def _sequence(value: Any) -> Sequence[Any]:
    """Return a sequence as Python's own values, also of numpy and pandas."""
    if isinstance(value, list | tuple):
        return value
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return value
    raise _refused(value, "is no array: emit a list (of a set, sorted(value): it has no order)")


def _located(found: Sequence[Any], fit: Fit) -> TypeError:
    """Name the element that did not fit."""
    for place, each in enumerate(found):
        try:
            fit(each)
        except TypeError as error:
            return TypeError(f"[{place}]: {error}")
    return TypeError("an element does not fit")


def _map(kind: pa.DataType) -> Fit:
    fit_key, fit_item = fitter(kind.key_type), fitter(kind.item_type)

    def fit_map(value: Any) -> list[tuple[Any, Any]] | None:
        if value is None:
            return None
        if isinstance(value, Mapping):
            pairs: Sequence[Any] = list(value.items())
        elif isinstance(value, list | tuple) and all(isinstance(p, list | tuple) and len(p) == 2 for p in value):
            pairs = value
        else:
            raise _refused(value, "is no map: emit a dict, or a list of pairs")
        try:
            return [(fit_key(key), fit_item(item)) for key, item in pairs]
        except TypeError:
            raise _located(pairs, lambda pair: (fit_key(pair[0]), fit_item(pair[1]))) from None

    return fit_map


def _struct(kind: pa.DataType) -> Fit:
    fits = {field.name: fitter(field.type) for field in kind}
    usual = {field.name: frozenset() if pa.types.is_nested(field.type) else _usual(field.type) for field in kind}
    names = tuple(fits)

    def fit_struct(value: Any) -> dict[str, Any] | None:
        if value is None:
            return None
        given = value if isinstance(value, Mapping) else _by_name(value, names)
        if given.keys() == fits.keys():
            found = dict(given)
        elif unknown := [name for name in given if name not in fits]:
            listed = ", ".join(map(repr, unknown))
            raise _refused(value, f"has {listed}, which the struct has not: its fields are {', '.join(names)}")
        else:
            found = {name: given.get(name) for name in names}  # fields that are left out are null
        for name, each in found.items():
            if type(each) not in usual[name]:
                try:
                    found[name] = fits[name](each)
                except TypeError as error:
                    raise TypeError(f".{name}: {error}") from None
        return found

    return fit_struct


def own_names(value: Any) -> Sequence[str] | None:
    """Return the names that a tuple has for its values: those of statefx, of a namedtuple, of a Row of Spark's."""
    return next((found for name in ("_names", "_fields", "__fields__") if (found := getattr(value, name, None))), None)


def _by_name(value: Any, names: tuple[str, ...]) -> Mapping[str, Any]:
    """Return a tuple's values by the names of the struct's fields; those of a namedtuple by its own."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields_of(value)}
    if not isinstance(value, tuple):
        raise _refused(value, f"is no struct: emit a dict, or a tuple of {', '.join(names)}")
    own = own_names(value) or names[: len(value)]
    if len(value) != len(names) or len(set(own)) != len(names):  # a Row of Spark's may have a name twice
        raise _refused(value, f"has {len(set(own))} values: the struct's fields are {', '.join(names)}")
    return dict(zip(own, value, strict=True))


_USUAL: dict[pa.DataType, frozenset[type]] = {
    pa.bool_(): frozenset({bool, _NONE}),
    pa.int8(): frozenset({int, _NONE}),
    pa.int16(): frozenset({int, _NONE}),
    pa.int32(): frozenset({int, _NONE}),
    pa.int64(): frozenset({int, _NONE}),
    pa.float64(): frozenset({float, int, _NONE}),
    pa.string(): frozenset({str, _NONE}),
    pa.binary(): frozenset({bytes, _NONE}),
    pa.date32(): frozenset({date, _NONE}),
    pa.timestamp("us", tz="UTC"): frozenset({datetime, _NONE}),
}
"""Types that need a look at each value are not there: a float may be too large, a datetime may have a zone."""

_UNUSUAL: dict[pa.DataType, Fit] = {
    pa.bool_(): _bool,
    pa.float32(): _single,
    pa.float64(): _double,
    pa.string(): _text,
    pa.binary(): _bytes,
    pa.date32(): _date,
    pa.timestamp("us", tz="UTC"): _timestamp,
    pa.timestamp("us"): _local,
}
