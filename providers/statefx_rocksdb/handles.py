"""Databases that this process has open for reading; kept for a while, since opening one takes milliseconds.

A kept one shows the version it was opened at, whatever has become of the directory since: its files stay open.
"""

from __future__ import annotations

import contextlib
import threading

from statefx_rocksdb.database import Database, Head, UnusableError
from statefx_rocksdb.settings import Settings

KEPT = 16


class Handle:
    """An open database and its head; `close` gives it back.

    Parameters
    ----------
    database : Database
        Open for reading.
    kept : bool
        It is closed only when it is dropped and nobody uses it any more.
    """

    __slots__ = ("_kept", "_lock", "_users", "database", "head")

    def __init__(self, database: Database, *, kept: bool = False) -> None:
        self.database = database
        self.head: Head | None = database.head()
        self._kept = kept
        self._users = 1
        self._lock = threading.Lock()

    def taken(self) -> Handle:
        """Return this handle, with one more user."""
        with self._lock:
            self._users += 1
        return self

    def close(self) -> None:
        """Give it back."""
        self._end(users=1)

    def drop(self) -> None:
        """Keep it no longer than it is used."""
        self._end(users=0)

    def _end(self, users: int) -> None:
        with self._lock:
            self._users -= users
            self._kept = self._kept and users > 0
            over = not self._kept and self._users == 0
        if over:
            with contextlib.suppress(UnusableError):
                self.database.close()


class Handles:
    """The handles that a process keeps, the last used of them.

    Parameters
    ----------
    limit : int
        How many; each holds its files' indexes and filters in memory.
    """

    def __init__(self, limit: int = KEPT) -> None:
        self._limit = limit
        self._kept: dict[str, Handle] = {}
        self._lock = threading.Lock()

    def open(self, path: str, settings: Settings, *, fresh: bool = False) -> Handle:
        """Return a handle of the database in `path`: a kept one, unless it has to be `fresh`.

        Raises
        ------
        UnusableError
            There is none, or it is damaged.
        """
        with self._lock:
            found = self._kept.pop(path, None)
            if found is not None and fresh:
                found.drop()
                found = None
            if found is None:
                found = _opened(path, settings)
                while len(self._kept) >= self._limit:
                    self._kept.pop(next(iter(self._kept))).drop()
            else:
                found.taken()
            self._kept[path] = found
            return found

    def drop(self, path: str) -> None:
        """Keep the database in `path` no longer."""
        with self._lock:
            found = self._kept.pop(path, None)
        if found is not None:
            found.drop()


def _opened(path: str, settings: Settings) -> Handle:
    database = Database(path, settings)
    try:
        return Handle(database, kept=True)
    except UnusableError:
        with contextlib.suppress(UnusableError):
            database.close()
        raise
