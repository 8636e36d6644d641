"""Which tasks and which ranges of keys can hold the rows that a filter of a table keeps.

What is left out holds no such row; what is left may hold others too, and whoever filters looks at each row. So only a
comparison is used that keys in the files can be found by:

* Of the tasks: any.
* Of a column of a key's type: keys of the same type lie in the column's order. Keys of other types stay, since the
  column may show them as this type (an int as a double), or reading them may be an error.
* Of a column of JSON: that it is equal to a text. Its order is another than that of keys.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from typing import Any, NamedTuple

import pyarrow as pa

from statefx.admin.columns import Range
from statefx.admin.reading import StateTable
from statefx.errors import CodecError
from statefx.state.encoding.codec import StandardCodec
from statefx.state.encoding.keys import encode_key

POINTS_MAX = 32
"""More keys than that are not looked up one by one: the range from the first to the last is read."""

_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_BEHIND_ALL = b"\xff"
"""Behind the bytes of every key, and behind whatever may follow an element of a tuple."""


class Comparison(NamedTuple):
    """A condition on a column: it is equal to one of the values, or less or greater than the only one."""

    column: str
    sign: str
    """``=``, ``<``, ``<=``, ``>`` or ``>=``."""
    values: tuple[Any, ...]


def narrowed(table: StateTable, comparisons: Sequence[Comparison]) -> StateTable:
    """Return a table that has all rows of which every comparison is true, and as few others as can be."""
    of_task = [each for each in comparisons if each.column == "task" and set(map(type, each.values)) == {int}]
    tasks = tuple(task for task in table.tasks if all(_holds(task, each) for each in of_task))
    ranges: Sequence[Range] = table.shown.ranges
    if table.own is None and type(table.codec or table.encoding.build()) is StandardCodec:
        narrow = _by_json if table.form.key is None else _by_fields
        ranges = narrow(table, comparisons)
    return replace(table, tasks=tasks, shown=replace(table.shown, ranges=tuple(ranges)))


def _holds(value: int, given: Comparison) -> bool:
    return value in given.values if given.sign == "=" else _HOLDS[given.sign](value, given.values[0])


def _by_fields(table: StateTable, comparisons: Sequence[Comparison]) -> Sequence[Range]:
    """Narrow by typed columns: of a tuple by its first elements, as far as these are equal to values, and the next."""
    fields = table.form.fields("key")
    ranges: Sequence[Range] = table.shown.ranges
    encode = StandardCodec(table.shown.head).encode_key
    if len(fields) == 1:
        found = _found(fields[0], comparisons, table.shown.head, encode, b"\0")
        return ranges if found is None else found.cut(ranges)
    begins: list[tuple[Any, ...]] = [()]
    for field in fields:
        following = []
        for begin in begins:
            found = _found(field, comparisons, encode(begin), lambda each, begin=begin: encode((*begin, each)))  # type: ignore[misc]
            if found is None:
                return ranges
            ranges = found.cut(ranges)
            following += [(*begin, point) for point in found.points]
        begins = following
        if not 0 < len(begins) <= POINTS_MAX:
            break
    return ranges


class _Found(NamedTuple):
    """Where the keys of one type lie that comparisons keep."""

    region: Range
    """Of all keys of this type."""
    kept: Sequence[Range]
    points: Sequence[Any] = ()
    """The values that a column is equal to."""

    def cut(self, ranges: Iterable[Range]) -> list[Range]:
        """Return what is in `ranges` and is kept, or of another type."""
        low, high = self.region
        kept = [(max(start, low), min(stop, high)) for start, stop in self.kept]
        parts = [(b"", low), *kept, (high, _BEHIND_ALL)]
        both = [(max(a, c), min(b, d)) for a, b in ranges for c, d in parts]
        return [(start, stop) for start, stop in both if start < stop]


def _found(
    field: pa.Field,
    comparisons: Sequence[Comparison],
    begin: bytes,
    encode: Callable[[Any], bytes],
    behind: bytes = _BEHIND_ALL,
) -> _Found | None:
    """Find the keys that begin with `begin` and whose next part is of a column's type; None: nothing is known of them.

    `encode` makes a key of such a part. A part's bytes and `behind` are behind all that is equal to it.
    """
    kind = _kind(field.type)
    given = [each for each in comparisons if each.column == field.name and set(map(type, each.values)) == {kind}]
    bounds = [(each.sign, encoded) for each in given if (encoded := _encoded(encode, each.values))]
    if kind is None or not bounds:
        return None
    region = _region(begin, kind)
    low, high, points = *region, {}
    for sign, encoded in bounds:
        first, last = min(encoded), max(encoded)
        if sign in ("=", ">", ">="):
            low = max(low, first)
        if sign in ("=", "<", "<="):
            high = min(high, last if sign == "<" else last + behind)
        if sign == "=" and len(encoded) <= POINTS_MAX:
            points = encoded
    inside = [each for each in sorted(points) if low <= each < high]
    kept = [(each, each + behind) for each in inside] if points else [(low, high)]
    return _Found(region, kept, [points[each] for each in inside])


def _by_json(table: StateTable, comparisons: Sequence[Comparison]) -> Sequence[Range]:
    """Narrow by JSON texts that a key is equal to. A text of letters may also be what no JSON says, such as a date."""
    ranges: Sequence[Range] = table.shown.ranges
    head = table.shown.head
    for each in comparisons:
        if each.column != "key" or each.sign != "=" or len(each.values) > POINTS_MAX:
            continue
        try:
            values = [json.loads(text) for text in each.values]
        except (ValueError, TypeError, RecursionError):
            continue
        points = _encoded(StandardCodec(head).encode_key, map(as_key, values))
        kept = [(point, point + b"\0") for point in sorted(points)]
        for kind in (int, str, tuple):
            if kind is not tuple or not any(isinstance(value, str) for value in values):
                ranges = _Found(_region(head, kind), kept).cut(ranges)
    return ranges


def as_key(value: Any) -> Any:
    """Return the key that a value of JSON stands for: an array is a tuple."""
    return tuple(map(as_key, value)) if isinstance(value, list) else value


def _encoded(encode: Callable[[Any], bytes], values: Iterable[Any]) -> dict[bytes, Any]:
    """Return values by their bytes, without those that can't be a key: a NaN, a lone surrogate."""
    found = {}
    for value in values:
        with suppress(CodecError):
            found[encode(value)] = value
    return found


def _kind(column: pa.DataType) -> type | None:
    """Return the type of keys that lie in the order of a column, and are shown there as they are."""
    if column == pa.string():
        return str
    if pa.types.is_signed_integer(column):
        return int
    return {pa.float64(): float, pa.date32(): date}.get(column)


def _region(begin: bytes, kind: type) -> Range:
    tag = encode_key(kind() if kind is not date else date.min)[0]
    return begin + bytes([tag]), begin + bytes([tag + 1])


def key_of(text: str) -> Any:
    """Return the key that a text means, as on the command line: JSON, an array for a tuple; else the text itself.

    >>> key_of('"7"'), key_of("7"), key_of("seven"), key_of('["a", 1]')
    ('7', 7, 'seven', ('a', 1))
    """
    try:
        return as_key(json.loads(text))
    except ValueError:
        return text
