"""Where the image of one namespace comes from: the machine's shared copy, caught up, or a private one.

::

    <cache>/<lineage>/<component>/<task>/
        db/         the shared copy; its head says of which version
        lock        held only while db/ is written or replaced
        damaged     someone read damage in db/: the next one who needs it replaces it
        private-*/  copies under construction or of a single store

Readers need no lock: an open database never changes under its reader. What the shared copy lacks is laid
over it in memory while that is little, and written to it when it is more. A process keeps the shared copies that it
has open (`Handles`): opening one takes longer than a small transaction's reads.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any
from urllib.parse import quote

from statefx.errors import StateCorruptedError
from statefx.state.changelog.chain import Changelog, Route
from statefx.state.changelog.files import Chunk
from statefx.state.changelog.merging import COVERED_MAX
from statefx.state.changelog.store import Image, MaterialisationCache
from statefx.state.contract.caches import own_folder
from statefx.state.contract.ranges import OrderedEntries, merge
from statefx.state.contract.store import StateContext, Version
from statefx_rocksdb.database import BATCH_BYTES, Database, Head, UnusableError
from statefx_rocksdb.provider import Settings

LOCK_SECS = 2.0
"""How long to wait for another process that brings the same cache up to date, before reading past it."""

_PAUSE_SECS = 0.01
_NEVER = threading.Event()
_PREFIX = "private-"
_OWNER = "owner"
_stuck: set[str] = set()
"""Locks that others did not free in time: not waited for again until they are free."""


@contextlib.contextmanager
def locked(
    path: str,
    timeout_secs: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = _NEVER.wait,
) -> Iterator[bool]:
    """Hold the lock file `path`; yields False if it was not to be had in `timeout_secs`.

    The kernel frees it when its holder dies, but not when the holder is stopped: a wait has to end.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = clock() + (0 if path in _stuck else timeout_secs)
        held = _try_lock(descriptor)
        while not held and clock() < deadline:
            pause(_PAUSE_SECS)
            held = _try_lock(descriptor)
        (_stuck.discard if held else _stuck.add)(path)
        yield held
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class PrivateFolder:
    """A folder of one process, deleted at `close`, or by `sweep` when its process has died.

    Without a `parent` it is among the system's temporary folders.
    """

    def __init__(self, parent: str | None) -> None:
        if parent is not None:
            os.makedirs(parent, exist_ok=True)
        self.path = tempfile.mkdtemp(prefix=_PREFIX if parent else "statefx-", dir=parent)
        owner = os.path.join(self.path, _OWNER)
        self._descriptor = os.open(f"{owner}.new", os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        os.rename(f"{owner}.new", owner)

    def join(self, name: str) -> str:
        return os.path.join(self.path, name)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def sweep_private(parent: str) -> None:
    """Delete the private folders in `parent` whose processes have died."""
    for name in os.listdir(parent):
        if name.startswith(_PREFIX):
            _sweep(os.path.join(parent, name))


def _sweep(folder: str) -> None:
    try:
        descriptor = os.open(os.path.join(folder, _OWNER), os.O_RDWR)
    except OSError:
        return
    try:
        if _try_lock(descriptor):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


_STEPS_MAX = 16
_VERSIONS_MAX = COVERED_MAX // 2
"""How far the shared copy may lie behind, however little has changed: merged files name only so many of the versions to
which they can be applied, and a copy that is at an older one would be built again."""

_OVERLAY_BYTES = 32 << 20

KEPT = 16
"""Databases that a process keeps open. One shows the version it was opened at, whatever has become of the directory
since: its files stay open."""


class Handle:
    """A database open for reading, and its head; `close` gives it back.

    A `kept` one is closed only when it is dropped and nobody uses it any more.
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
        self._end(users=1)

    def drop(self) -> None:
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
    """The handles that a process keeps, the last used of them; each holds its files' indexes and filters in memory."""

    def __init__(self, limit: int = KEPT) -> None:
        self._limit = limit
        self._kept: dict[str, Handle] = {}
        self._lock = threading.Lock()

    def open(self, path: str, settings: Settings, *, fresh: bool = False) -> Handle:
        """Return a handle of the database in `path`: a kept one, unless it has to be `fresh`.

        Raises UnusableError: there is none, or it is damaged.
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


_handles = Handles()
"""The process's own: Spark's worker processes outlive tasks, and see a namespace again and again."""


@dataclass(slots=True, eq=False)
class OpenImage:
    """An image: a database at some version, the way on from there, and the folder to delete at the end."""

    handle: Handle | None
    route: Route | None = None
    folder: PrivateFolder | None = None

    @property
    def database(self) -> Database | None:
        return None if self.handle is None else self.handle.database

    @property
    def txid(self) -> int:
        """The transaction at which the database is; 0 without one."""
        return 0 if self.handle is None or self.handle.head is None else self.handle.head.version.txid

    @property
    def is_in_memory(self) -> bool:
        """Whether the files that have the changes need not be read any more."""
        route = self.route
        return route is None or (route.snapshot is None and all(step.whole for step in route.steps))

    def lacking(self) -> Iterator[Chunk]:
        """Yield the changes that the database lacks."""
        return iter(()) if self.route is None else self.route.chunks()

    def close(self) -> None:
        _close(self.handle)
        if self.folder is not None:
            self.folder.close()


@dataclass(frozen=True, slots=True)
class _Look:
    """Use of the shared copy: `handle` is there only if its version is in the chain."""

    handle: Handle | None
    head: Head | None
    route: Route


class LocalImages:
    """The copies of one namespace on this machine, as one store wants them."""

    def __init__(self, settings: Settings, changelog: Changelog, context: StateContext) -> None:
        namespace = changelog.namespace
        lineage = os.path.join(settings.dir or own_folder(context.cache), namespace.lineage)
        if not context.read_only:
            os.makedirs(lineage, 0o700, exist_ok=True)  # `dir` may be a folder that others can enter
        component = quote(namespace.component, safe="").replace(".", "%2E")
        self.folder = os.path.join(lineage, component, str(namespace.task))
        self._path = os.path.join(self.folder, "db")
        self._damaged = os.path.join(self.folder, "damaged")
        self._settings = settings
        self._changelog = changelog
        self._context = context

    def open(self) -> OpenImage:
        look = self._look()
        try:
            if self._near(look.route):
                return OpenImage(look.handle, look.route)
            if not self._context.read_only and self._may_replace(look):
                os.makedirs(self.folder, exist_ok=True)
                with locked(os.path.join(self.folder, "lock"), LOCK_SECS) as held:
                    if held:
                        _close(look.handle)
                        look = replace(look, handle=None)
                        return self._advanced()
            if look.route.cached and look.route.size_bytes <= _OVERLAY_BYTES:
                return OpenImage(look.handle, look.route)
        except BaseException:
            _close(look.handle)
            raise
        _close(look.handle)
        return self.private()

    def private(self) -> OpenImage:
        """Return the image from a copy of its own, built from the changelog alone."""
        folder = PrivateFolder(None if self._context.read_only else self.folder)
        try:
            return OpenImage(Handle(self._built(folder)), folder=folder)
        except BaseException:
            folder.close()
            raise

    def report_damage(self) -> None:
        """Have the shared copy replaced by the next one who needs it."""
        _handles.drop(self._path)
        if not self._context.read_only:
            with contextlib.suppress(OSError):
                os.close(os.open(self._damaged, os.O_CREAT | os.O_WRONLY, 0o644))

    def _look(self, *, fresh: bool = False) -> _Look:
        """See how far the shared copy is, by what this process has of it; `fresh`: by what is there now."""
        handle, head = None, None
        if not os.path.exists(self._damaged):
            with contextlib.suppress(UnusableError):
                handle = self._opened(fresh=fresh)
                head = handle.head
        if head is not None and not (head.complete and head.namespace == self._changelog.namespace):
            head = None
        try:
            cached = None if head is None else head.version
            route = self._changelog.route(self._context.version, self._context.snapshot, cached)
        except BaseException:
            _close(handle)
            raise
        if not route.cached:
            _close(handle)
            handle = None
        return _Look(handle, head, route)

    def _opened(self, *, fresh: bool) -> Handle:
        if self._context.read_only:  # someone who looks now and then, not a worker
            return Handle(Database(self._path, self._settings))
        return _handles.open(self._path, self._settings, fresh=fresh)

    def _near(self, route: Route) -> bool:
        """Say whether what is missing is so little that it need not be written down."""
        if not route.steps and route.snapshot is None:
            return True
        if self._context.version.txid - route.start.txid > _VERSIONS_MAX:
            return False
        return route.size_bytes <= self._settings.catch_up_kb << 10 and len(route.steps) <= _STEPS_MAX

    def _may_replace(self, look: _Look) -> bool:
        """Say whether the shared copy is behind, or of a history that is over; it is never taken back.

        A task that is late finds a copy that came from its own version, and leaves it. Numbers alone don't tell that
        from a checkpoint that was restored: then the copy may be of a higher generation and txid than any that is to
        come for a long time, and every transaction would build a private one.
        """
        head, context = look.head, self._context
        if head is None or look.route.cached or context.generation > head.generation:
            return True
        return not self._changelog.follows(head.version, context.version)

    def _advanced(self) -> OpenImage:
        """Bring the shared copy to the version, with the lock held, and open it."""
        sweep_private(self.folder)
        look = self._look(fresh=True)
        if self._near(look.route):
            return OpenImage(look.handle, look.route)
        _close(look.handle)
        if not self._may_replace(look):
            return self.private()
        if look.route.cached:
            # Damage of files: of those that are older than the snapshot, maybe, and a new copy needs none of them.
            with contextlib.suppress(UnusableError, StateCorruptedError):
                self._write(self._path, look.route, shared=True)
                return self._written()
        self._replace()
        return self._written()

    def _written(self) -> OpenImage:
        """Open the shared copy that has just been written; a private one if somebody got past the lock."""
        handle = self._opened(fresh=True)
        if handle.head is not None and handle.head.complete and handle.head.version == self._context.version:
            return OpenImage(handle)
        handle.close()
        return self.private()

    def _replace(self) -> None:
        """Put a new copy in the place of the shared one; its readers keep their files."""
        folder = PrivateFolder(self.folder)
        try:
            self._built(folder).close()
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._path, folder.join("old"))
            os.rename(folder.join("db"), self._path)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._damaged)
        finally:
            folder.close()

    def _built(self, folder: PrivateFolder) -> Database:
        route = self._changelog.route(self._context.version, self._context.snapshot, None)
        self._write(folder.join("db"), route)
        return Database(folder.join("db"), self._settings)

    def _write(self, path: str, route: Route, *, shared: bool = False) -> None:
        head = Head(self._changelog.namespace, self._context.version, self._context.generation)
        database = Database(path, self._settings, writable=True)
        try:
            several = len(route.steps) > 1 and route.size_bytes <= BATCH_BYTES
            database.apply(_newest(route) if several else route.chunks(), route.size_bytes, head)
            if shared:
                database.merge()
        finally:
            database.close()


def _newest(route: Route) -> Iterator[Chunk]:
    """Yield what several files come to as one chunk: sorted, each key once.

    RocksDB takes longest to find the place of each key that it is given. Of five files with the same 50,000 keys,
    writing each took 140 ms of processor time, and this takes 33; with 250,000 different keys 165 and 155 ms.
    """
    newest: dict[bytes, bytes | None] = {}
    for keys, values in route.chunks():
        newest.update(zip(keys, values, strict=True))
    order = sorted(newest)
    yield order, [newest[key] for key in order]


def _close(handle: Handle | None) -> None:
    if handle is not None:
        handle.close()


_UNKNOWN = object()


class RocksDbImage(Image):
    """The image of one version; moves to a private copy when it finds damage of the shared one or on the way from it.

    `hot` is what the process remembers of the namespace. What it does not know is looked up in the changes that the
    database lacks, which are read when they are needed, and then in the database.
    """

    def __init__(
        self, local: LocalImages, hot: MaterialisationCache, changelog: Changelog, context: StateContext
    ) -> None:
        self._local = local
        self._hot = hot
        self._limit_bytes = hot.limit_bytes or 0
        self._opened = local.open()
        self._applied: list[Chunk] = []
        self._changes: OrderedEntries[bytes | None] | None = None
        try:
            self._leased = hot.lease(changelog, context)
            self._covered = self._is_covered()
            # Not when a scan needs them: this may stay open for 50 transactions, and their sweeps delete files.
            if not (self._covered and self._opened.is_in_memory):
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
            try:
                chunks = [*self._opened.lacking()]
            except StateCorruptedError:
                self._move()  # what is damaged may be older than the snapshot, and a new copy lacks nothing
                chunks = []
            self._changes = OrderedEntries()
            for keys, values in (*chunks, *self._applied):
                self._changes.apply(keys, values)
        return self._changes

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
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
        began = time.perf_counter()
        try:
            return database.get(keys)
        except UnusableError:
            self._move()
            return self._stored(keys)
        finally:
            self.read_secs += time.perf_counter() - began

    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
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
        changes, database = self._lacking(), self._opened.database  # in this order: the first may replace the second
        rows = iter(()) if database is None else database.scan(start, stop, reverse)
        return merge(changes.between(start, stop, reverse), rows, reverse) if changes else rows

    def _move(self) -> None:
        """Give the damaged copy up for a private one.

        Raises UnusableError: there is none to be had, so that the store has to be opened anew.
        """
        if self._opened.folder is not None:
            raise UnusableError(f"{self._opened.folder.path}: a new copy is damaged too; check this machine's disk")
        self._local.report_damage()
        try:
            private = self._local.private()
        except StateCorruptedError as error:
            if not (error.missing and self._applied):
                raise
            # Of the version that was opened, sweeps have left nothing since; the committed one is whole.
            raise UnusableError(f"{error.message}; it was of a version that is over: open the state again") from error
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
        self._opened.close()
        self._hot.release(self._leased)
