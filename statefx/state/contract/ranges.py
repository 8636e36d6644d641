"""Entries by key bytes: in key order and in either direction, one layer laid over another, and many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, Protocol, TypeVar, runtime_checkable

from sortedcontainers import SortedList

V = TypeVar("V")


class OrderedEntries(Generic[V]):
    """A dict whose keys are sorted at the first scan, and are kept in order from then on.

    Without a scan there is no cost for order. With one, keys are sorted once, and each new key costs a logarithm: one
    flat sorted list moves eight bytes for every key after a new one, which is half a millisecond with a million of
    them. `by_key` is to be read; `apply` and `drop` alone change it.
    """

    __slots__ = ("_order", "by_key")

    def __init__(self, by_key: dict[bytes, V] | None = None) -> None:
        self.by_key: dict[bytes, V] = {} if by_key is None else by_key
        self._order: SortedList[bytes] | None = None

    def __len__(self) -> int:
        return len(self.by_key)

    def apply(self, keys: Sequence[bytes], values: Iterable[V]) -> None:
        """Set the entries of `keys`, which are distinct."""
        if self._order is not None:
            known = self.by_key
            self._order.update([key for key in keys if key not in known])
        self.by_key.update(zip(keys, values, strict=True))

    def drop(self, keys: Iterable[bytes]) -> None:
        """Remove the entries of `keys`, which are there."""
        by_key, order = self.by_key, self._order
        for key in keys:
            del by_key[key]
            if order is not None:
                order.remove(key)

    def between(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, V]]:
        """Yield (key, value) with start <= key < stop, in key order or in the reverse; not to be changed meanwhile."""
        if self._order is None:
            self._order = SortedList(self.by_key)
        by_key = self.by_key
        for key in self._order.irange(start, stop, (True, False), reverse):
            yield key, by_key[key]

    def copy(self) -> OrderedEntries[V]:
        other: OrderedEntries[V] = OrderedEntries(self.by_key.copy())
        if self._order is not None:
            other._order = self._order.copy()
        return other


def merge(
    changes: Iterable[tuple[bytes, V | None]], rows: Iterable[tuple[bytes, V]], reverse: bool = False
) -> Iterator[tuple[bytes, V]]:
    """Yield the entries of both, each sorted by key, in their order: a change hides a row, None removes it.

    >>> list(merge([(b"a", b"1"), (b"b", None)], [(b"b", b"0"), (b"c", b"0")]))
    [(b'a', b'1'), (b'c', b'0')]
    >>> list(merge([(b"b", None), (b"a", b"1")], [(b"c", b"0"), (b"b", b"0")], reverse=True))
    [(b'c', b'0'), (b'a', b'1')]
    """
    pending = iter(changes)
    change = next(pending, None)
    for row in rows:
        key = row[0]
        while change is not None and (change[0] > key if reverse else change[0] < key):
            if change[1] is not None:
                yield change[0], change[1]
            change = next(pending, None)
        if change is None or change[0] != key:
            yield row
    while change is not None:
        if change[1] is not None:
            yield change[0], change[1]
        change = next(pending, None)


Value = TypeVar("Value", bound="bytes | None")

Block = tuple[list[bytes], list[bytes]]

BLOCK_ENTRIES = 8192


@runtime_checkable
class InBlocks(Protocol):
    """A source of entries block by block, so that no step is taken for each of them."""

    def blocks(self) -> Iterator[Block]:
        """Yield all entries in key order; each call begins anew."""


def in_blocks(entries: Iterable[tuple[bytes, Value]]) -> Iterator[tuple[list[bytes], list[Value]]]:
    """Yield blocks of `BLOCK_ENTRIES`, the last one of fewer."""
    rows = iter(entries)
    while batch := list(islice(rows, BLOCK_ENTRIES)):
        yield [key for key, _ in batch], [value for _, value in batch]


def regrouped(
    blocks: Iterable[tuple[Sequence[bytes], Sequence[Value]]],
) -> Iterator[tuple[list[bytes], list[Value]]]:
    """Yield the entries of blocks of any size as `in_blocks` would: the bounds depend on the entries alone.

    >>> [len(keys) for keys, _ in regrouped([([b"a"] * 5000, [b""] * 5000)] * 3)]
    [8192, 6808]
    """
    keys: list[bytes] = []
    values: list[Value] = []
    for some_keys, some_values in blocks:
        keys.extend(some_keys)
        values.extend(some_values)
        while len(keys) >= BLOCK_ENTRIES:
            yield keys[:BLOCK_ENTRIES], values[:BLOCK_ENTRIES]
            del keys[:BLOCK_ENTRIES], values[:BLOCK_ENTRIES]
    if keys:
        yield keys, values
