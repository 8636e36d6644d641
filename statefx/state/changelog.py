"""The versions of one namespace as a chain of files: head, its predecessor, ... back to a snapshot or nothing."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from statefx.errors import StateCorruptedError, StatePhaseError
from statefx.protocol.identity import EMPTY, Namespace, Version
from statefx.state import artefacts, fencing
from statefx.state.artefacts import CHANGELOG, SNAPSHOT, Artefact, Chunk, Identity, Listed, corrupted
from statefx.state.store import Retention, Snapshot, Write


@dataclass(frozen=True, slots=True)
class Route:
    """How to get an image to a version: where to start, and what to apply then, in this order.

    Attributes
    ----------
    start : Version
        The cached version, or the snapshot's, or EMPTY.
    cached : bool
        True: start from the cache; False: from `snapshot`, or from nothing.
    snapshot : Artefact | None
        The full image to start from.
    steps : tuple of Artefact
        Changelogs, oldest first.
    """

    start: Version
    cached: bool
    snapshot: Artefact | None
    steps: tuple[Artefact, ...]

    @property
    def size_bytes(self) -> int:
        """What has to be read."""
        return sum(step.size_bytes for step in self.steps) + (self.snapshot.size_bytes if self.snapshot else 0)

    def chunks(self) -> Iterator[Chunk]:
        """Yield all that has to be applied to `start`, verified; the first may be a snapshot."""
        for artefact in (*((self.snapshot,) if self.snapshot else ()), *self.steps):
            yield from artefacts.read(artefact)


@dataclass(frozen=True, slots=True)
class Changelog:
    """The files of `namespace` in `folder`."""

    namespace: Namespace
    folder: str

    @property
    def state_folder(self) -> str:
        """``<checkpointLocation>/state``, two above the namespace's own."""
        return os.path.dirname(os.path.dirname(os.path.abspath(self.folder)))

    def prepare(self, version: Version, generation: int, predecessor: Version, writes: Sequence[Write]) -> Artefact:
        """Write what `version` changes on top of `predecessor`."""
        identity = Identity(CHANGELOG, self.namespace, version, generation, predecessor)
        return artefacts.write(self.folder, identity, writes)

    def prepared(self, version: Version, predecessor: Version) -> list[Chunk]:
        """Return the entries of `version`, verified to the last, as something that can follow `predecessor`."""
        artefact = self._find(version, artefacts.listing(self.folder))
        if artefact.identity.predecessor != predecessor:
            raise StatePhaseError(
                f"{artefact.path} was prepared on top of {artefact.identity.predecessor}, but this store is at "
                f"{predecessor}; open the store at the version that the transaction log names",
                path=artefact.path,
                txid=version.txid,
            )
        return list(artefacts.read(artefact))

    def route(self, version: Version, snapshot: Snapshot | None, cached: Version | None) -> Route:
        """Return how to reach `version`, from a cache at `cached` if that is in the chain.

        Raises
        ------
        StateCorruptedError
            A file of the chain is damaged, foreign or missing (``missing`` is then True).
        """
        files = artefacts.listing(self.folder)
        steps: list[Artefact] = []
        at = version
        while at not in (cached, EMPTY) and (snapshot is None or at != snapshot.version):
            steps.append(self._find(at, files))
            at = steps[-1].identity.predecessor
        steps.reverse()
        if at == cached:
            return Route(at, True, None, tuple(steps))
        if snapshot is None or at != snapshot.version:
            return Route(EMPTY, False, None, tuple(steps))
        image = self._find_snapshot(snapshot, files)
        older = None if cached is None else self._older(cached, image, files)
        if older is not None and cached is not None:
            return Route(cached, True, None, (*older, *steps))
        return Route(snapshot.version, False, image, tuple(steps))

    def _older(self, cached: Version, image: Artefact, files: Sequence[Listed]) -> list[Artefact] | None:
        """Return the steps from a cache older than the snapshot, if they are there and less to read than it is."""
        steps: list[Artefact] = []
        at, size = image.identity.version, 0
        while at != cached:
            if at.txid <= cached.txid:
                return None
            try:
                steps.append(self._find(at, files))
            except StateCorruptedError as error:
                if error.missing:
                    return None
                raise
            at, size = steps[-1].identity.predecessor, size + steps[-1].size_bytes
            if size > image.size_bytes:
                return None
        return steps[::-1]

    def _find(self, version: Version, files: Iterable[Listed]) -> Artefact:
        """Return the changelog of `version`, which must be this namespace's."""
        for listed in files:
            if listed.kind == CHANGELOG and listed.version == version:
                return self._verified(listed, version)
        path = os.path.join(self.folder, f"{version.txid:020d}-*-{version.token}.{CHANGELOG}")
        raise corrupted(path, "the file is missing", f"what was prepared for {version}", missing=True)

    def _find_snapshot(self, snapshot: Snapshot, files: Iterable[Listed]) -> Artefact:
        found = [each for each in files if each.kind == SNAPSHOT and each.version == snapshot.version]
        errors: list[StateCorruptedError] = []
        for listed in found:
            try:
                artefact = self._verified(listed, snapshot.version)
            except StateCorruptedError as error:
                errors.append(error)
                continue
            if artefact.checksum == snapshot.checksum:
                return artefact
            errors.append(corrupted(listed.path, f"checksum {artefact.checksum}", f"checksum {snapshot.checksum}"))
        if errors:
            raise errors[0]
        path = os.path.join(self.folder, f"{snapshot.version.txid:020d}-*-{snapshot.version.token}.{SNAPSHOT}")
        raise corrupted(path, "the file is missing", f"checksum {snapshot.checksum}", missing=True)

    def _verified(self, listed: Listed, version: Version) -> Artefact:
        """Return the file if it is what its name and the log say; its lineage may be the one this is a fork of."""
        artefact = artefacts.read_head(listed.path)
        identity = artefact.identity
        namespace = replace(self.namespace, lineage=identity.namespace.lineage)
        expected = Identity(listed.kind, namespace, version, listed.generation, identity.predecessor)
        if identity != expected:
            raise corrupted(listed.path, f"it is the file of {identity}", f"{self.namespace} at {version}")
        if listed.kind == CHANGELOG and identity.predecessor.txid >= version.txid:
            raise corrupted(listed.path, f"it follows {identity.predecessor}", f"a version before {version.txid}")
        return artefact

    def snapshot(self, version: Version, generation: int, entries: Iterable[tuple[bytes, bytes]]) -> Snapshot:
        """Write a full image of `version`; two writers of one image write the same bytes."""
        identity = Identity(SNAPSHOT, self.namespace, version, generation, version)
        artefact = artefacts.write(self.folder, identity, entries)
        return Snapshot(version, artefact.checksum, artefact.size_bytes)

    def sweep(self, retention: Callable[[], Retention], clock: Callable[[], float] = time.time) -> int:
        """Delete what no retained version needs; see `StateProvider.sweep`."""
        files = artefacts.listing(self.folder)
        retained = retention()
        keep = self._needed(retained, files)
        deleted = 0
        for listed in files:
            if listed.path in keep or listed.generation > retained.generation:
                continue
            if listed.version.txid > retained.head.txid or not _older_than(listed, clock() - retained.min_age_secs):
                continue
            fencing.check(self.state_folder, self.namespace.lineage, retained.generation)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(listed.path)
                deleted += 1
        return deleted

    def _needed(self, retained: Retention, files: Sequence[Listed]) -> set[str]:
        snapshots = [self._find_snapshot(snapshot, files).path for snapshot in retained.snapshots]
        oldest = retained.snapshots[0] if retained.snapshots else None
        route = self.route(retained.head, oldest, None)
        if oldest is not None and route.snapshot is None:
            raise StatePhaseError(f"{self.folder}: {oldest.version} is not a version that {retained.head} came from")
        return {*snapshots, *(step.path for step in route.steps)}


def _older_than(listed: Listed, limit: float) -> bool:
    try:
        return os.stat(listed.path).st_mtime <= limit
    except FileNotFoundError:
        return False
