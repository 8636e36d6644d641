"""Entries many at a time: a block is a list of keys, in order, and the list of their values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol, TypeVar, runtime_checkable

Value = TypeVar("Value", bound="bytes | None")

Block = tuple[list[bytes], list[bytes]]

BLOCK_ENTRIES = 8192


@runtime_checkable
class InBlocks(Protocol):
    """What can give its entries block by block, so that no step is taken for each of them."""

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
