"""All that a store holds: summed up, and as the writes of one prepare, without ever being in memory as a whole."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import overload

from xxhash import xxh3_128

from statefx.state.contract.store import StateStore, Write

_LENGTHS = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True)
class Sum:
    """What entries amount to; equal sums are equal entries in equal order.

    Attributes
    ----------
    keys, bytes : int
        How many there are, and the size of their keys and values.
    checksum : str
        Of every key and value, and of where one ends and the next begins.
    """

    keys: int
    bytes: int
    checksum: str

    def __str__(self) -> str:
        return f"{self.keys} keys, {self.bytes} bytes, checksum {self.checksum}"


def sum_of(entries: Iterable[tuple[bytes, bytes]]) -> Sum:
    """Sum up `entries`.

    >>> str(sum_of([(b"ab", b"c")])) == str(sum_of([(b"a", b"bc")]))
    False
    """
    keys = size = 0
    checksum = xxh3_128()
    for key, value in entries:
        keys += 1
        size += len(key) + len(value)
        checksum.update(_LENGTHS.pack(len(key), len(value)))
        checksum.update(key)
        checksum.update(value)
    return Sum(keys, size, checksum.hexdigest())


class Entries(Sequence[Write]):
    """The entries of `store` in key order, read when they are asked for: a sequence for ``StateStore.prepare``.

    Going through it once, entry by entry or slice by slice, reads the store once. Going back reads it again.

    Parameters
    ----------
    store : StateStore
        Does not change meanwhile.
    count : int
        How many entries it holds.
    """

    def __init__(self, store: StateStore, count: int) -> None:
        self._store = store
        self._count = count
        self._rows: Iterator[Write] = iter(())
        self._at = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Write]:
        yield from self._store.scan(None, None)

    @overload
    def __getitem__(self, at: int) -> Write: ...
    @overload
    def __getitem__(self, at: slice) -> list[Write]: ...
    def __getitem__(self, at: int | slice) -> Write | list[Write]:
        wanted = range(self._count)[at]
        if isinstance(wanted, int):
            return self._read(wanted, wanted + 1)[0]
        if wanted.step == 1:
            return self._read(wanted.start, wanted.stop)
        return [self[each] for each in wanted]

    def _read(self, start: int, stop: int) -> list[Write]:
        if start >= stop:
            return []
        if start < self._at:
            self._rows, self._at = iter(self), 0
        found = list(islice(self._rows, start - self._at, stop - self._at))
        self._at = stop
        return found
