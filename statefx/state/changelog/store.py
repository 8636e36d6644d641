"""The store of every changelog-backed provider: phases and files; and committed versions in the process's memory."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import ClassVar, cast

from statefx.errors import StateCorruptedError
from statefx.protocol.identity import EMPTY, Namespace, Version
from statefx.state.changelog import sweeping
from statefx.state.changelog.chain import Changelog
from statefx.state.changelog.files import Chunk, check_fence, fence
from statefx.state.contract.ranges import OrderedEntries
from statefx.state.contract.store import (
    Prepared,
    Retention,
    SnapshotRef,
    StateContext,
    StateLocation,
    StateProvider,
    StateStore,
    StoreCalls,
    Write,
)
from statefx.storage import Storage, Stored

ADVANCES_MAX = 50
"""How many transactions an image takes before it is opened anew: opening costs as much as ten small transactions, and a
copy on disk may not lie hundreds behind (`statefx.state.changelog.merging.COVERED_MAX`). Nor may files be merged for
longer by the snapshot of when it was opened: what begins before a newer one has to name that among what it covers."""

ADVANCED_BYTES_MAX = 16 << 20
"""Of changelog files whose entries an image takes."""


class Image(ABC):
    """A committed version of one namespace; `apply` alone moves it on, and no other image with it."""

    read_secs: float = 0.0
    """As of `StateStore`."""

    @abstractmethod
    def get(self, keys: Sequence[bytes]) -> list[bytes | None]: ...
    @abstractmethod
    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]: ...
    def count(self, space: bytes) -> int | None:
        """Return how many keys begin with the byte `space`; None if only reading them could tell."""
        return None

    @abstractmethod
    def apply(self, version: Version, chunks: Iterable[Chunk]) -> None:
        """Go on to `version`, which changes what `chunks` hold, sorted by key; no scan goes on."""

    @abstractmethod
    def close(self) -> None: ...


class ChangelogStore(StateStore):
    """One namespace whose prepared and committed versions are files, read through an `Image`."""

    def __init__(self, changelog: Changelog, context: StateContext, image: Image) -> None:
        self._changelog = changelog
        self._context = context
        self._image = image
        self._calls = StoreCalls(changelog.namespace, context)
        self._size_bytes = 0
        self._advances = self._advanced_bytes = 0

    @property
    def version(self) -> Version:
        return self._calls.version

    @property
    def read_secs(self) -> float:  # type: ignore[override]
        return self._image.read_secs

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._calls.check_open("get")
        return self._image.get(keys)

    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self._calls.check_open("scan")
        return self._scan(start, stop, reverse)

    def _scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self._calls.check_open("scan")
        version = self._calls.version
        for row in self._image.scan(start, stop, reverse):
            if self._calls.closed:
                self._calls.check_open("scan")
            if self._calls.version is not version:
                raise self._calls.refusal("a scan can't go on after a commit")
            yield row

    def count(self, space: bytes) -> int | None:
        self._calls.check_open("count")
        return self._image.count(space)

    def prepare(self, txid: int, token: str, writes: Sequence[Write]) -> Prepared:
        version = Version(txid, token)
        self._calls.check_prepare(version)
        if self._calls.prepared is None:
            context = self._context
            self._size_bytes = self._changelog.prepare(
                version, context.generation, self._calls.version, writes, context.snapshot, context.files_max
            )
            self._calls.prepared = version
        return Prepared(token, self._size_bytes)

    def commit(self, txid: int, token: str) -> None:
        """Verify what `token` names and show it to reads; the transaction log is what commits it."""
        self._calls.check_writable("commit")
        self._check_fence()
        version = Version(txid, token)
        if version == self._calls.version:
            return
        if txid <= self._calls.version.txid:
            raise self._calls.refusal(f"commit({txid}) with another version committed already, {self._calls.version}")
        self._image.apply(version, self._changelog.prepared(version, self._calls.version))
        self._calls.commit(version)

    def advance(self, txid: int, token: str, writes: Sequence[Write]) -> bool:
        """Apply the prepared changes to the image; False when it has taken so many that it is better opened again."""
        version = Version(txid, token)
        size = self._advanced_bytes + self._size_bytes
        if self._calls.prepared != version or self._advances >= ADVANCES_MAX or size > ADVANCED_BYTES_MAX:
            return False
        self._advances, self._advanced_bytes = self._advances + 1, size
        if writes:
            self._image.apply(version, [([key for key, _ in writes], [value for _, value in writes])])
        self._calls.commit(version)
        return True

    def rollback(self, txid: int, token: str) -> None:
        """Forget what this object prepared; its file is left to the sweep, since nothing names it."""
        self._calls.check_writable("rollback")
        if Version(txid, token) == self._calls.version:
            raise self._calls.refusal(f"rollback({txid}, {token!r}) of a committed version")
        self._calls.rollback(Version(txid, token))

    def snapshot(self) -> SnapshotRef | None:
        """Write a full image of the committed version beside the changelogs; None while state is empty."""
        self._calls.check_writable("snapshot")
        if self._calls.version == EMPTY:
            return None
        return self._changelog.snapshot(self._calls.version, self._context.generation, self._scan(None, None))

    def close(self) -> None:
        if not self._calls.closed:
            self._calls.closed = True
            self._image.close()

    def _check_fence(self) -> None:
        check_fence(self._context.storage, self._changelog.namespace.lineage, self._context.generation)


class ChangelogProvider(StateProvider):
    """A provider whose state is files in the checkpoint; `open_image` says how a version is read."""

    location: ClassVar[StateLocation] = StateLocation.CHECKPOINT

    @abstractmethod
    def open_image(self, changelog: Changelog, context: StateContext) -> Image:
        """Return the image of ``context.version``, from a cache that can be caught up, or built privately."""

    def newState(self, namespace: Namespace, context: StateContext) -> StateStore:
        changelog = Changelog(namespace, context.storage)
        return ChangelogStore(changelog, context, self.open_image(changelog, context))

    def fence(self, lineage: str, generation: int, storage: Storage) -> None:
        fence(storage, lineage, generation)

    def artefacts(self, namespace: Namespace, storage: Storage) -> Sequence[Stored]:
        return list(storage.list(f"{namespace.prefix}/"))

    def sweep(self, namespace: Namespace, storage: Storage, found: Sequence[Stored], retained: Retention) -> int:
        return sweeping.sweep(Changelog(namespace, storage), found, retained)


_ENTRY_BYTES = 150
"""Python's bytes for an entry besides its own, about."""

IDLE_SECS = 60.0
"""Spark ends a Python worker that had nothing to do for a minute, with all it remembers. A worker that others keep busy
must not remember for longer than that what nobody asks for: a checkpoint that ended, a lineage that was left."""

IDLE_BYTES = 64 << 20
"""Bytes that may stay all the same, so that small state of a query that seldom triggers is not read again each time."""


@dataclass(slots=True, eq=False)
class Materialisation:
    """Entries of one version of one namespace; the only holder of a lease may move it on.

    `ordered` has all entries; or, of a partial one, those that are known, None standing for absent: every change of a
    txid after `since`, up to `version`, is among them. Once scanned, their order goes with them from version to
    version. `size_bytes` is a bound; of a complete one 0, until it is needed. A complete one has `counts`: how many
    keys begin with each byte, that is, with each space (`statefx.state.contract.spaces`).
    """

    namespace: Namespace
    version: Version
    generation: int
    ordered: OrderedEntries[bytes | None] = field(default_factory=OrderedEntries)
    leases: int = 0
    size_bytes: int = 0
    since: int = 0
    counts: Counter[bytes] = field(default_factory=Counter)
    used: float = 0.0

    @property
    def entries(self) -> dict[bytes, bytes | None]:
        """The entries by key; to be read."""
        return self.ordered.by_key

    def learn(self, found: dict[bytes, bytes | None]) -> None:
        self.ordered.apply(list(found), found.values())
        self.size_bytes += _size(found, found.values())

    def apply(self, chunks: Iterable[Chunk], limit_bytes: int | None) -> None:
        """Take changes; what is left after an error is of no version.

        A partial one, of `limit_bytes` at most, remembers what is deleted as well.
        """
        ordered, counts = self.ordered, self.counts
        for chunk in chunks:
            if limit_bytes is not None:
                ordered.apply(*chunk)
                self.size_bytes += _size(*chunk)
                continue
            for keys, values in _by_first_byte(*chunk):
                before = len(ordered)
                ordered.apply(keys, values)
                if None in values:
                    ordered.drop([key for key, value in zip(keys, values, strict=True) if value is None])
                counts[keys[0][:1]] += len(ordered) - before
        if limit_bytes is None:
            self.size_bytes = 0
        else:
            self.shrink(limit_bytes)

    def shrink(self, limit_bytes: int) -> None:
        if self.size_bytes <= limit_bytes:
            return
        self.size_bytes = _size(self.entries, self.entries.values())
        if self.size_bytes > limit_bytes * 3 // 4:
            kept = limit_bytes / 2 / self.size_bytes
            self.ordered.drop(list(islice(self.entries, round(len(self.entries) * (1 - kept)))))
            self.size_bytes = round(self.size_bytes * kept)
            self.since = self.version.txid


def _size(keys: Collection[bytes], values: Iterable[bytes | None]) -> int:
    return len(keys) * _ENTRY_BYTES + sum(map(len, keys)) + sum(map(len, filter(None, values)))


class MaterialisationCache:
    """The materialisations of a process, the newest of each folder.

    A leased one is copied before it is caught up, so that an older reader stays right. An older store gets one of its
    own; what is shared never goes back to an older version.

    Without `limit_bytes` materialisations are complete. Those in use are not bounded; of those that were not opened for
    `IDLE_SECS`, the last used are kept, `IDLE_BYTES` in all. With it they are partial (they hold what was read or
    changed of late) and together hold about this much.
    """

    def __init__(self, limit_bytes: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_bytes = limit_bytes
        self._clock = clock
        self._newest: dict[tuple[str, str], Materialisation] = {}
        self._look_again = 0.0
        self._lock = threading.RLock()

    def lease(self, changelog: Changelog, context: StateContext) -> Materialisation:
        """Return a materialisation of ``context.version``, to be given back with `release`."""
        with self._lock:
            place = context.cache, changelog.where
            cached = self._newest.pop(place, None)
            if cached is not None and cached.namespace != changelog.namespace:
                cached = None
            try:
                found = self._at(changelog, context, cached)
            except BaseException:
                self._keep(place, cached)
                raise
            found.leases += 1
            found.used = self._clock()
            shared = found is cached or (not context.read_only and _replaces(changelog, context, cached))
            self._keep(place, found if shared else cached)
            return found

    def advance(self, leased: Materialisation, version: Version, chunks: Iterable[Chunk]) -> Materialisation:
        """Return `leased` moved on to `version`, in its place, or a copy if it has other leases as well."""
        with self._lock:
            found = leased
            if leased.leases > 1:
                leased.leases -= 1
                found = replace(leased, ordered=leased.ordered.copy(), counts=leased.counts.copy(), leases=1)
                for place, each in self._newest.items():
                    if each is leased:
                        self._newest[place] = found
            found.version = version
            try:
                found.apply(chunks, self.limit_bytes)
            except BaseException:
                found.version = _SPOILED
                raise
            return found

    def release(self, leased: Materialisation) -> None:
        with self._lock:
            leased.leases -= 1
            leased.used = self._clock()
            if self.limit_bytes is not None and not leased.leases:
                leased.shrink(self.limit_bytes)

    def _keep(self, place: tuple[str, str], kept: Materialisation | None) -> None:
        """Put `kept` last in the order of use, and forget the first while all are too many."""
        if kept is None or kept.version is _SPOILED:
            return
        self._newest[place] = kept
        if self.limit_bytes is None:
            if self._clock() >= self._look_again:
                self._forget_idle()
            return
        size = sum(each.size_bytes for each in self._newest.values())
        for other in list(self._newest)[:-1]:
            if size > self.limit_bytes:
                size -= self._newest.pop(other).size_bytes

    def _forget_idle(self) -> None:
        """Forget complete ones that were not used for long, except the last used of them.

        Not at each lease: whoever has thousands would look at all of them for each transaction of each.
        """
        now = self._clock()
        size, limit, self._look_again = 0, now - IDLE_SECS, now + IDLE_SECS / 60
        for place, each in list(reversed(self._newest.items())):
            if not each.leases and each.used <= limit:
                each.size_bytes = each.size_bytes or _size(each.entries, each.entries.values())
                size += each.size_bytes
                if size > IDLE_BYTES:
                    del self._newest[place]

    def _at(self, changelog: Changelog, context: StateContext, cached: Materialisation | None) -> Materialisation:
        found = Materialisation(changelog.namespace, context.version, context.generation, since=context.version.txid)
        if cached is None and self.limit_bytes is not None:
            return found
        route = changelog.route(context.version, context.snapshot, None if cached is None else cached.version)
        if cached is not None and route.cached:
            if not route.steps:
                return cached
            ordered, counts = cached.ordered, cached.counts
            if cached.leases or context.read_only:
                ordered, counts = ordered.copy(), counts.copy()
            else:
                cached.version = _SPOILED
            found = replace(
                cached,
                version=context.version,
                generation=max(context.generation, cached.generation),
                ordered=ordered,
                counts=counts,
                leases=0,
            )
        elif self.limit_bytes is not None:
            return found
        try:
            found.apply(route.chunks(), self.limit_bytes)
        except StateCorruptedError:
            if context.snapshot is None or not route.cached or route.start.txid >= context.snapshot.version.txid:
                raise
            return self._at(changelog, context, None)  # what is damaged may be older than the snapshot
        return found


_SPOILED = Version(-1, "")
"""The version of a materialisation whose entries were given to its successor, or changed in part."""


def _by_first_byte(keys: list[bytes], values: list[bytes | None]) -> Iterator[Chunk]:
    """Yield a chunk in parts whose keys begin with one byte; almost always it is one part as it is."""
    at = 0
    while at < len(keys):
        first = keys[at][:1]
        end = len(keys)
        if keys[-1][:1] != first:  # sorted, so the part ends before the first key that begins with a later byte
            end = bisect_right(keys, first, at, key=lambda key: key[:1])
        yield (keys, values) if end - at == len(keys) else (keys[at:end], values[at:end])
        at = end


def _replaces(changelog: Changelog, context: StateContext, cached: Materialisation | None) -> bool:
    """Return whether a store of `context` may replace the materialisation `cached`: not if it is older."""
    if cached is None or cached.version is _SPOILED or context.generation > cached.generation:
        return True
    return not changelog.follows(cached.version, context.version)


class DictImage(Image):
    """The image in a complete materialisation."""

    def __init__(self, cache: MaterialisationCache, changelog: Changelog, context: StateContext) -> None:
        self._cache = cache
        self._leased = cache.lease(changelog, context)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._leased.entries.get, keys))

    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        rows = self._leased.ordered.between(start, stop, reverse)
        return cast("Iterator[tuple[bytes, bytes]]", rows)  # a complete one has no None

    def count(self, space: bytes) -> int:
        return self._leased.counts[space]

    def apply(self, version: Version, chunks: Iterable[Chunk]) -> None:
        self._leased = self._cache.advance(self._leased, version, chunks)

    def close(self) -> None:
        self._cache.release(self._leased)
