"""Reading a version from RocksDB with the newest changes over it; damage is replaced while reading."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

from statefx.state.changelog.chain import Changelog
from statefx.state.changelog.files import Chunk
from statefx.state.changelog.store import Image, MaterialisationCache
from statefx.state.contract.ranges import OrderedEntries, merge
from statefx.state.contract.store import StateContext, Version
from statefx_rocksdb.database import UnusableError
from statefx_rocksdb.place import Place

_UNKNOWN = object()


class RocksDbImage(Image):
    """The image of one version; moves to a private copy when it finds damage.

    `hot` is what the process remembers of the namespace. What it does not know is looked up in the changes that the
    database lacks, which are read when they are needed, and then in the database.
    """

    def __init__(self, place: Place, hot: MaterialisationCache, changelog: Changelog, context: StateContext) -> None:
        self._place = place
        self._hot = hot
        self._limit_bytes = hot.limit_bytes or 0
        self._opened = place.open()
        self._applied: list[Chunk] = []
        self._changes: OrderedEntries[bytes | None] | None = None
        try:
            self._leased = hot.lease(changelog, context)
            self._covered = self._is_covered()
            if not self._covered:
                self._lacking()
        except BaseException:
            self._opened.close()
            raise

    def _is_covered(self) -> bool:
        """Return whether `hot` knows every change that the database lacks."""
        return self._leased.since <= self._opened.txid

    def _lacking(self) -> OrderedEntries[bytes | None]:
        """Return what the database lacks; None deletes."""
        if self._changes is None:
            self._changes = OrderedEntries()
            for keys, values in (*self._opened.lacking(), *self._applied):
                self._changes.apply(keys, values)
        return self._changes

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys`, None where absent."""
        values: list[Any] = list(map(self._leased.entries.get, keys, repeat(_UNKNOWN)))
        if _UNKNOWN in values:
            unknown = {key for key, value in zip(keys, values, strict=True) if value is _UNKNOWN}
            found = self._found(unknown)
            values = [found[key] if value is _UNKNOWN else value for key, value in zip(keys, values, strict=True)]
            if self._leased.size_bytes < self._limit_bytes:
                self._leased.learn(found)
        return values

    def _found(self, keys: set[bytes]) -> dict[bytes, bytes | None]:
        """Look `keys` up below what is remembered; RocksDB is much quicker with sorted keys."""
        changes = {} if self._covered else self._lacking().by_key
        found = {key: changes[key] for key in keys & changes.keys()}
        order = sorted(keys - found.keys() if found else keys)
        found.update(zip(order, self._stored(order), strict=True))
        return found

    def _stored(self, keys: Sequence[bytes]) -> list[bytes | None]:
        database = self._opened.database
        if database is None or not keys:
            return [None] * len(keys)
        try:
            return database.get(keys)
        except UnusableError:
            self._move()
            return self._stored(keys)

    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) with start <= key < stop, in key order or in the reverse."""
        try:
            for row in self._scan(start, stop, reverse):
                yield row
                if reverse:
                    stop = row[0]
                else:
                    start = row[0] + b"\x00"
        except UnusableError:
            self._move()
            yield from self._scan(start, stop, reverse)

    def _scan(self, start: bytes | None, stop: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        database, changes = self._opened.database, self._lacking()
        rows = iter(()) if database is None else database.scan(start, stop, reverse)
        return merge(changes.between(start, stop, reverse), rows, reverse) if changes else rows

    def _move(self) -> None:
        """Give the damaged copy up for a private one."""
        if self._opened.folder is not None:
            raise UnusableError(f"{self._opened.folder.path}: a new copy is damaged too; check this machine's disk")
        self._place.report_damage()
        private = self._place.private()
        self._opened.close()
        self._opened, self._changes = private, None
        self._covered = self._is_covered()

    def apply(self, version: Version, chunks: Iterable[Chunk]) -> None:
        """Go on to `version`, in memory alone."""
        chunks = list(chunks)
        self._leased = self._hot.advance(self._leased, version, chunks)
        self._covered = self._is_covered()
        self._applied += chunks
        if self._changes is not None:
            for keys, values in chunks:
                self._changes.apply(keys, values)

    def close(self) -> None:
        """Release the files."""
        self._opened.close()
        self._hot.release(self._leased)
