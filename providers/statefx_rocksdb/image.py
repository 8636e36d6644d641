"""Reading a version from RocksDB with the newest changes over it; damage is replaced while reading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from statefx.state.changelog_store import Image, overlaid
from statefx_rocksdb.database import UnusableError
from statefx_rocksdb.place import Place


class RocksDbImage(Image):
    """The image of one version; moves to a private copy when it comes upon damage."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._opened = place.open()

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys`, None where absent; sorted look-ups are much quicker for RocksDB."""
        changes = self._opened.changes
        order = sorted(key for key in set(keys) if key not in changes)
        found = dict(zip(order, self._stored(order), strict=True))
        found.update((key, changes[key]) for key in keys if key in changes)
        return [found[key] for key in keys]

    def _stored(self, keys: Sequence[bytes]) -> list[bytes | None]:
        database = self._opened.database
        if database is None or not keys:
            return [None] * len(keys)
        try:
            return database.get(keys)
        except UnusableError:
            self._move()
            return self.get(keys)

    def scan(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) with start <= key < stop, in key order."""
        try:
            for row in self._scan(start, stop):
                yield row
                start = row[0] + b"\x00"
        except UnusableError:
            self._move()
            yield from self._scan(start, stop)

    def _scan(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        database, changes = self._opened.database, self._opened.changes
        rows = iter(()) if database is None else database.scan(start, stop)
        return overlaid(rows, changes, start, stop) if changes else rows

    def _move(self) -> None:
        """Give the damaged copy up for a private one."""
        if self._opened.folder is None:
            self._place.report_damage()
        private = self._place.private()
        self._opened.close()
        self._opened = private

    def close(self) -> None:
        """Release the files."""
        self._opened.close()
