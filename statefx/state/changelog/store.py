"""The store of every changelog-backed provider: phases and files here, reading an image in the provider."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

from statefx.protocol.identity import EMPTY, Namespace, Version
from statefx.state.changelog import fencing, sweeping
from statefx.state.changelog.chain import Changelog
from statefx.state.contract.calls import StoreCalls
from statefx.state.contract.ranges import OrderedEntries, merge
from statefx.state.contract.store import (
    Capabilities,
    Prepared,
    Retention,
    SnapshotRef,
    StateContext,
    StateProvider,
    StateStore,
    Write,
)
from statefx.storage import Storage, Stored

ADVANCES_MAX = 50
"""How many transactions are laid over an image before it catches up: opening costs as much as ten small transactions,
and a copy on disk may not lie hundreds behind (`statefx.state.changelog.merging.COVERED_MAX`)."""

ADVANCED_BYTES_MAX = 16 << 20
"""Of changelog files whose entries are laid over an image."""


class Image(ABC):
    """A committed version of one namespace that never changes while it is open."""

    @abstractmethod
    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys`, None where absent."""

    @abstractmethod
    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) with start <= key < stop, in key order or in the reverse."""

    def count(self, space: bytes) -> int | None:
        """Return how many keys begin with the byte `space`; None if only reading them could tell."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release what the image holds; called once."""


class ChangelogStore(StateStore):
    """One namespace whose prepared and committed versions are files, read through an `Image`.

    What this object commits is laid over the image of ``context.version``, which is closed with the store; caches
    catch up when a store is next opened.
    """

    def __init__(self, changelog: Changelog, context: StateContext, image: Image) -> None:
        self._changelog = changelog
        self._context = context
        self._image = image
        self._calls = StoreCalls(changelog.namespace, context)
        self._committed: OrderedEntries[bytes | None] = OrderedEntries()
        self._counts: dict[bytes, int] = {}
        """How many keys a space has, of those that were asked for: a task that lives is asked in each transaction."""
        self._size_bytes = 0
        self._laid = self._laid_bytes = 0

    @property
    def version(self) -> Version:
        """The committed version that reads see."""
        return self._calls.version

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the committed values of `keys`, None where absent."""
        self._calls.check_open("get")
        if not self._committed:
            return self._image.get(keys)
        committed = self._committed.by_key
        values = [committed.get(key) for key in keys]
        absent = [at for at, key in enumerate(keys) if key not in committed]
        for at, value in zip(absent, self._image.get([keys[at] for at in absent]), strict=True):
            values[at] = value
        return values

    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield committed (key, value) with start <= key < stop, in key order or in the reverse."""
        self._calls.check_open("scan")
        return self._scan(start, stop, reverse)

    def _scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self._calls.check_open("scan")
        rows = self._image.scan(start, stop, reverse)
        if self._committed:
            rows = merge(self._committed.between(start, stop, reverse), rows, reverse)
        for row in rows:
            if self._calls.closed:
                self._calls.check_open("scan")
            yield row

    def count(self, space: bytes) -> int | None:
        """Return how many committed keys begin with the byte `space`, if the image knows how many it has."""
        self._calls.check_open("count")
        if space not in self._counts:
            count = self._image.count(space)
            if count is None:
                return None
            above = {key: data for key, data in self._committed.by_key.items() if key[:1] == space}
            count += sum(data is not None for data in above.values())
            count -= sum(data is not None for data in self._image.get(list(above)))
            self._counts[space] = count
        return self._counts[space]

    def _count_changes(self, writes: Sequence[Write]) -> None:
        """Bring the counts up to date with what is about to be laid over the image."""
        counted = [(key, value) for key, value in writes if key[:1] in self._counts]
        for (key, value), before in zip(counted, self.get([key for key, _ in counted]), strict=True):
            self._counts[key[:1]] += (value is not None) - (before is not None)

    def prepare(self, txid: int, token: str, writes: Sequence[Write]) -> Prepared:
        """Write `writes` to a changelog file of their own, named by `token`."""
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
        """Verify what `token` names and let reads see it; the transaction log is what commits it."""
        self._calls.check_writable("commit")
        self._check_fence()
        version = Version(txid, token)
        if version == self._calls.version:
            return
        if txid <= self._calls.version.txid:
            raise self._calls.refusal(f"commit({txid}) with another version committed already, {self._calls.version}")
        for keys, values in self._changelog.prepared(version, self._calls.version):
            self._committed.apply(keys, values)
        self._counts.clear()
        self._calls.commit(version)

    def advance(self, txid: int, token: str, writes: Sequence[Write]) -> bool:
        """Lay what was prepared over the image; False when there is so much over it that the image should catch up."""
        version = Version(txid, token)
        size = self._laid_bytes + self._size_bytes
        if self._calls.prepared != version or self._laid >= ADVANCES_MAX or size > ADVANCED_BYTES_MAX:
            return False
        self._laid, self._laid_bytes = self._laid + 1, size
        if self._counts:
            self._count_changes(writes)
        self._committed.apply([key for key, _ in writes], [value for _, value in writes])
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
        """Release the image; closing again is a no-op."""
        if not self._calls.closed:
            self._calls.closed = True
            self._image.close()

    def _check_fence(self) -> None:
        fencing.check(self._context.storage, self._changelog.namespace.lineage, self._context.generation)


class ChangelogProvider(StateProvider):
    """A provider whose state is files in the checkpoint; `open_image` says how a version is read."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        durable=True, shared=False, lazy_commit=True, fences_writers=True
    )

    @abstractmethod
    def open_image(self, changelog: Changelog, context: StateContext) -> Image:
        """Return the image of ``context.version``, from a cache that can be caught up, or built privately."""

    def newState(self, namespace: Namespace, context: StateContext) -> StateStore:
        """Open the store of `namespace` at ``context.version``; never deletes and never fences."""
        changelog = Changelog(namespace, context.storage)
        return ChangelogStore(changelog, context, self.open_image(changelog, context))

    def fence(self, lineage: str, generation: int, storage: Storage) -> None:
        """Refuse commits and deletions of generations older than `generation` from now on."""
        fencing.fence(storage, lineage, generation)

    def artefacts(self, namespace: Namespace, storage: Storage) -> Sequence[Stored]:
        """Return the namespace's files."""
        return list(storage.list(f"{namespace.prefix}/"))

    def sweep(self, namespace: Namespace, storage: Storage, found: Sequence[Stored], retained: Retention) -> int:
        """Delete those of the files `found` that no retained version needs; return how many."""
        return sweeping.sweep(Changelog(namespace, storage), found, retained)
