"""Says of a value that state can't hold what to store instead."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from typing import Any

from statefx.errors import CodecError

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
    if module == "numpy":
        return "store .item() of a scalar, .tolist() of an array"
    if module == "pandas":
        return "store what .to_pydatetime() (a Timestamp) or .tolist() (a Series) gives"
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
    if as_key and isinstance(value, timedelta):
        return "use its total_seconds(), or value // timedelta(microseconds=1), which is exact"
    for plain in (bool, int, float, str, bytes, dict, list, tuple):
        if isinstance(value, plain):
            return f"only exact types come back as they went in: store {plain.__name__}(...) of it"
    return f"what can be: {KEY_TYPES if as_key else VALUE_TYPES}"
