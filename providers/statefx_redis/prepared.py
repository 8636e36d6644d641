"""What a token names: changes in key order, in chunks that the server applies one by one."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgpack

from statefx.state.contract.store import Version, Write
from statefx_redis.answers import damaged
from statefx_redis.names import Names

if TYPE_CHECKING:
    from statefx_redis.server import Server

CHUNK_ENTRIES = 500
"""Entries in a chunk: one script call moves no more, and Lua hands 8,000 arguments to a command at most."""

CHUNK_BYTES = 256 << 10
"""Keys and values, or rows, in a chunk; one that is longer has a chunk of its own."""

BATCH_BYTES = 1 << 20
"""Chunks sent in one round trip, unless one is longer. A sink's transaction that fits in one is not staged first."""

_Item = TypeVar("_Item")

INDEX = "index"
"""The field that holds the first key of each chunk."""


@dataclass(frozen=True, slots=True)
class Entry:
    """How a prepared token is registered; `base` is the committed version that it changes."""

    txid: int
    generation: int
    base_txid: int
    base_token: str
    chunks: int
    """-1 until it is complete."""

    @property
    def base(self) -> Version:
        """The committed version that it changes."""
        return Version(self.base_txid, self.base_token)


def grouped(sized: Iterable[tuple[_Item, int]], most_bytes: int, most: float = math.inf) -> Iterator[list[_Item]]:
    """Yield the items in lists of `most` at most and of `most_bytes`; one that is longer has a list of its own."""
    group: list[_Item] = []
    size = 0
    for item, more in sized:
        if group and (len(group) >= most or size + more > most_bytes):
            yield group
            group, size = [], 0
        group.append(item)
        size += more
    if group:
        yield group


def _chunk(writes: Sequence[Write]) -> tuple[bytes, bytes]:
    """Return (first key, chunk) for `writes`, which are sorted by key; a chunk is [deleted keys], [key, value, ...]."""
    gone = [key for key, value in writes if value is None]
    put = [part for key, value in writes if value is not None for part in (key, value)]
    return writes[0][0], packed([gone, put])


def batches(writes: Sequence[Write]) -> Iterator[tuple[list[str | bytes], int]]:
    """Yield (fields with their chunks, chunks so far or -1 if more follow) for each round trip of a prepare."""
    sized = ((write, len(write[0]) + len(write[1] or b"")) for write in writes)
    chunks = map(_chunk, grouped(sized, CHUNK_BYTES, CHUNK_ENTRIES))
    firsts: list[bytes] = []
    fields: list[str | bytes] = []
    for batch in grouped(((each, len(each[1])) for each in chunks), BATCH_BYTES):
        if fields:
            yield fields, -1
        fields = []
        for first, chunk in batch:
            fields += (str(len(firsts)), chunk)
            firsts.append(first)
    yield [*fields, INDEX, packed(firsts)], len(firsts)


def packed(parts: Sequence[list[bytes]] | Sequence[bytes]) -> bytes:
    """Return `parts` as the server's scripts read them: raw strings, which any server's cmsgpack knows."""
    data: bytes = msgpack.packb(parts, use_bin_type=False)
    return data


class GoneError(Exception):
    """What is prepared is no longer there: it has just been committed, or was deleted."""


class PreparedChanges:
    """Reads the changes that a token names; what was read is kept, for it never changes."""

    def __init__(self, server: Server, names: Names, token: str) -> None:
        self.token = token
        self._server = server
        self._key = names.prepared(token)
        self._firsts: list[bytes] | None = None
        self._chunks: dict[int, dict[bytes, bytes | None]] = {}

    def of(self, keys: Sequence[bytes]) -> dict[bytes, bytes | None]:
        """Return the changes of `keys`; those that are not changed are missing."""
        firsts = self._index()
        places = {key: bisect_right(firsts, key) - 1 for key in keys}
        self._load({at for at in places.values() if at >= 0})
        return {key: self._chunks[at][key] for key, at in places.items() if at >= 0 and key in self._chunks[at]}

    def between(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> list[Write]:
        """Return the changes with start <= key < stop, in key order or in the reverse."""
        firsts = self._index()
        lowest = 0 if start is None else max(0, bisect_right(firsts, start) - 1)
        inside = range(lowest, len(firsts) if stop is None else bisect_left(firsts, stop))
        self._load(set(inside))
        found = {key: value for at in inside for key, value in self._chunks[at].items()}
        return sorted(
            (
                (key, value)
                for key, value in found.items()
                if (start is None or key >= start) and (stop is None or key < stop)
            ),
            reverse=reverse,
        )

    def _index(self) -> list[bytes]:
        if self._firsts is None:
            [index] = self._fields([INDEX])
            firsts = _unpack(index)
            if not _is_texts(firsts):
                raise damaged(self._key, "its index is not what was written")
            self._firsts = firsts
        return self._firsts

    def _load(self, wanted: set[int]) -> None:
        missing = sorted(wanted - self._chunks.keys())
        for begin in range(0, len(missing), 16):
            some = missing[begin : begin + 16]
            for at, chunk in zip(some, self._fields([str(at) for at in some]), strict=True):
                changes = _changes(_unpack(chunk))
                if changes is None:
                    raise damaged(self._key, f"its chunk {at} is not what was written")
                self._chunks[at] = changes

    def _fields(self, fields: list[str]) -> list[bytes]:
        found: list[bytes | None] = self._server.call(self._key, lambda client: client.hmget(self._key, fields))
        if None in found:
            raise GoneError
        return [each for each in found if each is not None]


def _unpack(data: bytes) -> Any:
    """Return what `packed` made, or None for other bytes."""
    try:
        return msgpack.unpackb(data, raw=True)
    except (ValueError, msgpack.UnpackException):
        return None


def _changes(chunk: Any) -> dict[bytes, bytes | None] | None:
    """Return what a chunk changes, or None if it is not one of ours."""
    if not isinstance(chunk, list) or len(chunk) != 2 or not all(map(_is_texts, chunk)) or len(chunk[1]) % 2:
        return None
    gone, put = chunk
    return {**dict.fromkeys(gone), **dict(zip(put[::2], put[1::2], strict=True))}


def _is_texts(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(each, bytes) for each in found)
