"""The store of every changelog-backed provider: phases and files here, reading an image in the provider."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

from statefx.errors import StateClosedError, StatePhaseError
from statefx.protocol.identity import EMPTY, Namespace, Version
from statefx.state.changelog import fencing, sweeping
from statefx.state.changelog.chain import Changelog
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

    What this object commits is laid over the image; caches catch up when a store is next opened.

    Parameters
    ----------
    changelog : Changelog
        The namespace's files.
    context : StateContext
        Where it was opened, and at which version.
    image : Image
        The image of ``context.version``; closed with the store.
    """

    def __init__(self, changelog: Changelog, context: StateContext, image: Image) -> None:
        self._changelog = changelog
        self._context = context
        self._image = image
        self._version = context.version
        self._committed: OrderedEntries[bytes | None] = OrderedEntries()
        self._prepared: Version | None = None
        self._size_bytes = 0
        self._closed = False

    @property
    def version(self) -> Version:
        """The committed version that reads see."""
        return self._version

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the committed values of `keys`, None where absent."""
        self._check_open("get")
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
        self._check_open("scan")
        return self._scan(start, stop, reverse)

    def _scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self._check_open("scan")
        rows = self._image.scan(start, stop, reverse)
        if self._committed:
            rows = merge(self._committed.between(start, stop, reverse), rows, reverse)
        for row in rows:
            if self._closed:
                self._check_open("scan")
            yield row

    def count(self, space: bytes) -> int | None:
        """Return how many committed keys begin with the byte `space`, if the image knows how many it has."""
        self._check_open("count")
        count = self._image.count(space)
        if count is not None and self._committed:
            above = {key: data for key, data in self._committed.by_key.items() if key[:1] == space}
            count += sum(data is not None for data in above.values())
            count -= sum(data is not None for data in self._image.get(list(above)))
        return count

    def prepare(self, txid: int, token: str, writes: Sequence[Write]) -> Prepared:
        """Write `writes` to a changelog file of their own, named by `token`."""
        self._check_writable("prepare")
        version = Version(txid, token)
        if self._prepared is not None and self._prepared != version:
            raise self._phase(f"prepare of {version} while {self._prepared} is prepared: commit or roll it back first")
        if txid <= self._version.txid:
            raise self._phase(f"prepare({txid}) at or below the committed txid {self._version.txid}")
        if self._prepared is None:
            context = self._context
            self._size_bytes = self._changelog.prepare(
                version, context.generation, self._version, writes, context.snapshot, context.files_max
            )
            self._prepared = version
        return Prepared(token, self._size_bytes)

    def commit(self, txid: int, token: str) -> None:
        """Verify what `token` names and let reads see it; the transaction log is what commits it."""
        self._check_writable("commit")
        self._check_fence()
        version = Version(txid, token)
        if version == self._version:
            return
        if txid <= self._version.txid:
            raise self._phase(f"commit({txid}) with another version committed already, {self._version}")
        for keys, values in self._changelog.prepared(version, self._version):
            self._committed.apply(keys, values)
        self._version = version
        self._prepared = None

    def rollback(self, txid: int, token: str) -> None:
        """Forget what this object prepared; its file is left to the sweep, since nothing names it."""
        self._check_writable("rollback")
        if Version(txid, token) == self._version:
            raise self._phase(f"rollback({txid}, {token!r}) of a committed version")
        if self._prepared == Version(txid, token):
            self._prepared = None

    def snapshot(self) -> SnapshotRef | None:
        """Write a full image of the committed version beside the changelogs; None while state is empty."""
        self._check_writable("snapshot")
        if self._version == EMPTY:
            return None
        return self._changelog.snapshot(self._version, self._context.generation, self._scan(None, None))

    def close(self) -> None:
        """Release the image; closing again is a no-op."""
        if not self._closed:
            self._closed = True
            self._image.close()

    def _check_open(self, call: str) -> None:
        if self._closed:
            raise StateClosedError(f"{call} after close of the state of {self._changelog.namespace}")

    def _check_writable(self, call: str) -> None:
        self._check_open(call)
        if self._context.read_only:
            raise self._phase(f"{call} on state that was opened read-only")

    def _check_fence(self) -> None:
        fencing.check(self._context.storage, self._changelog.namespace.lineage, self._context.generation)

    def _phase(self, message: str) -> StatePhaseError:
        return StatePhaseError(
            f"{message} ({self._changelog.namespace})", namespace=self._changelog.namespace, version=self._version
        )


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
