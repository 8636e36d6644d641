"""The store of every changelog-backed provider: phases and files here, reading an image in the provider."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from statefx.protocol.identity import EMPTY, Namespace, Version
from statefx.state.changelog import fencing, sweeping
from statefx.state.changelog.chain import Changelog
from statefx.state.changelog.reading import Chunk
from statefx.state.contract.calls import StoreCalls
from statefx.state.contract.store import (
    Prepared,
    Retention,
    SnapshotRef,
    StateContext,
    StateLocation,
    StateProvider,
    StateStore,
    Write,
)
from statefx.storage import Storage, Stored

ADVANCES_MAX = 50
"""How many transactions an image takes before it is opened anew: opening costs as much as ten small transactions, and a
copy on disk may not lie hundreds behind (`statefx.state.changelog.merging.COVERED_MAX`)."""

ADVANCED_BYTES_MAX = 16 << 20
"""Of changelog files whose entries an image takes."""


class Image(ABC):
    """A committed version of one namespace; `apply` alone moves it on, and no other image with it."""

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
    def apply(self, version: Version, chunks: Iterable[Chunk]) -> None:
        """Go on to `version`, which changes what `chunks` hold, sorted by key; no scan goes on."""

    @abstractmethod
    def close(self) -> None:
        """Release what the image holds; called once."""


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
        """The committed version that reads see."""
        return self._calls.version

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the committed values of `keys`, None where absent."""
        self._calls.check_open("get")
        return self._image.get(keys)

    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Yield committed (key, value) with start <= key < stop, in key order or in the reverse."""
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
        """Return how many committed keys begin with the byte `space`, if the image knows how many it has."""
        self._calls.check_open("count")
        return self._image.count(space)

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
        self._image.apply(version, self._changelog.prepared(version, self._calls.version))
        self._calls.commit(version)

    def advance(self, txid: int, token: str, writes: Sequence[Write]) -> bool:
        """Have the image take what was prepared; False when it has taken so much that it is better opened anew."""
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
        """Release the image; closing again is a no-op."""
        if not self._calls.closed:
            self._calls.closed = True
            self._image.close()

    def _check_fence(self) -> None:
        fencing.check(self._context.storage, self._changelog.namespace.lineage, self._context.generation)


class ChangelogProvider(StateProvider):
    """A provider whose state is files in the checkpoint; `open_image` says how a version is read."""

    location: ClassVar[StateLocation] = StateLocation.CHECKPOINT

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
