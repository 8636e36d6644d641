"""The versions of one namespace as a chain of files: head, its predecessor, ... back to a snapshot or nothing."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from statefx.errors import StateCorruptedError, StatePhaseError
from statefx.protocol.identity import EMPTY, Namespace, Version
from statefx.state.changelog import artefacts, merging
from statefx.state.changelog.artefacts import CHANGELOG, SNAPSHOT, Artefact, Chunk, Identity, corrupted
from statefx.state.changelog.merging import TIERS, Intake, covers, start_of
from statefx.state.contract.store import FILES_MAX, SnapshotRef, Write

logger = logging.getLogger("statefx")


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
    """The files of `namespace` in `folder`, as one store needs them; their names are known, so none is looked for.

    Heads that were read are remembered, so that whoever asks for a second route reads none twice.
    """

    namespace: Namespace
    folder: str
    _heads: dict[Version, Artefact] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def state_folder(self) -> str:
        """``<checkpointLocation>/state``, two above the namespace's own."""
        return os.path.dirname(os.path.dirname(os.path.abspath(self.folder)))

    def prepare(
        self,
        version: Version,
        generation: int,
        previous: Version,
        writes: Sequence[Write],
        snapshot: SnapshotRef | None = None,
        files_max: int = FILES_MAX,
    ) -> int:
        """Write what `version` changes on top of `previous`; with what it takes in, where there are many files.

        Parameters
        ----------
        version, previous : Version
        generation : int
        writes : sequence of (key, value)
            Sorted by key; None deletes.
        snapshot : SnapshotRef, optional
            The newest one that the log names; what is before it is not taken in.
        files_max : int
            How many files of like size are left, at least.

        Returns
        -------
        int
            Bytes by which the files of the chain have grown; negative if they take less than before.
        """
        oldest = 0 if snapshot is None else snapshot.version.txid
        files_max = merging.files_of(self.namespace, files_max)
        try:
            intake = merging.intake(self._find, previous, oldest, files_max, lambda: _size(writes))
            written = self._write(version, generation, intake, writes)
        except StateCorruptedError as error:  # of what is prepared already: not the fault of this transaction
            logger.warning("changelogs of %s can't be merged: %s", self.namespace, error)
            intake = Intake(previous, (), (0,) * TIERS)
            written = self._write(version, generation, intake, writes)
        return written.size_bytes - sum(file.size_bytes for file in intake.files)

    def _write(self, version: Version, generation: int, intake: Intake, writes: Sequence[Write]) -> Artefact:
        identity = Identity(
            CHANGELOG, self.namespace, version, generation, intake.predecessor, intake.covers, intake.beneath
        )
        entries = merging.merged(writes, intake.files) if intake.files else writes
        return artefacts.write(self.folder, identity, entries)

    def prepared(self, version: Version, predecessor: Version) -> list[Chunk]:
        """Return the entries of `version`, verified to the last, as something that can follow `predecessor`."""
        artefact = self._find(version)
        if artefact.identity.predecessor != predecessor and not covers(artefact, predecessor):
            raise StatePhaseError(
                f"{artefact.path} was prepared on top of {artefact.identity.predecessor}, but this store is at "
                f"{predecessor}; open the store at the version that the transaction log names",
                path=artefact.path,
                txid=version.txid,
            )
        return list(artefacts.read(artefact))

    def route(self, version: Version, snapshot: SnapshotRef | None, cached: Version | None) -> Route:
        """Return how to reach `version`, from a cache at `cached` if that is in the chain.

        Raises
        ------
        StateCorruptedError
            A file of the chain is damaged, foreign or missing (``missing`` is then True).
        """
        steps: list[Artefact] = []
        at = version
        while at not in (cached, EMPTY) and (snapshot is None or at != snapshot.version):
            steps.append(self._find(at))
            at = start_of(steps[-1], (cached, None if snapshot is None else snapshot.version))
        steps.reverse()
        if at == cached:
            return Route(at, True, None, tuple(steps))
        if snapshot is None or at != snapshot.version:
            return Route(EMPTY, False, None, tuple(steps))
        image = self.find_snapshot(snapshot)
        older = None if cached is None else self._older(cached, image)
        if older is not None and cached is not None:
            return Route(cached, True, None, (*older, *steps))
        return Route(snapshot.version, False, image, tuple(steps))

    def _older(self, cached: Version, image: Artefact) -> list[Artefact] | None:
        """Return the steps from a cache older than the snapshot, if they are there and less to read than it is."""
        steps: list[Artefact] = []
        at, size = image.identity.version, 0
        while at != cached:
            if at.txid <= cached.txid:
                return None
            try:
                steps.append(self._find(at))
            except StateCorruptedError as error:
                if error.missing:
                    return None
                raise
            at, size = start_of(steps[-1], (cached,)), size + steps[-1].size_bytes
            if size > image.size_bytes:
                return None
        return steps[::-1]

    def follows(self, later: Version, version: Version) -> bool:
        """Say whether `later` came from `version`, by the files that are there.

        What is committed is one chain. So a cache that is at neither an ancestor nor a descendant of a committed
        version is of a history that is over: the checkpoint was restored from a backup, and went on from there.
        """
        at = later
        while at.txid > version.txid:
            try:
                at = start_of(self._find(at), (version,))
            except StateCorruptedError:  # what it came from was deleted with that history
                return False
        return at == version

    def _find(self, version: Version) -> Artefact:
        """Return the changelog of `version`, which must be this namespace's."""
        found = self._heads.get(version)
        if found is None:
            path = os.path.join(self.folder, artefacts.changelog_name(version))
            found = self._heads[version] = self._verified(path, CHANGELOG, version)
        return found

    def find_snapshot(self, snapshot: SnapshotRef) -> Artefact:
        """Return the snapshot that the log names.

        Raises
        ------
        StateCorruptedError
            It is missing or damaged.
        """
        path = os.path.join(self.folder, artefacts.snapshot_name(snapshot.version, snapshot.checksum))
        artefact = self._verified(path, SNAPSHOT, snapshot.version)
        if artefact.checksum != snapshot.checksum:
            raise corrupted(path, f"checksum {artefact.checksum}", f"checksum {snapshot.checksum}")
        return artefact

    def _verified(self, path: str, kind: str, version: Version) -> Artefact:
        """Return the file if it is what its name and the log say; its lineage may be the one this is a fork of."""
        artefact = artefacts.read_head(path)
        identity = artefact.identity
        namespace = replace(self.namespace, lineage=identity.namespace.lineage)
        if identity != replace(identity, kind=kind, namespace=namespace, version=version):
            raise corrupted(path, f"it is the file of {identity}", f"{self.namespace} at {version}")
        if kind == CHANGELOG and identity.predecessor.txid >= version.txid:
            raise corrupted(path, f"it follows {identity.predecessor}", f"a version before {version.txid}")
        return artefact

    def snapshot(self, version: Version, generation: int, entries: Iterable[tuple[bytes, bytes]]) -> SnapshotRef:
        """Write a full image of `version`; two writers of one image write the same bytes."""
        identity = Identity(SNAPSHOT, self.namespace, version, generation, version)
        artefact = artefacts.write(self.folder, identity, entries)
        return SnapshotRef(version, artefact.checksum, artefact.size_bytes)


def _size(writes: Sequence[Write]) -> int:
    return sum(len(key) for key, _ in writes) + sum(len(value) for _, value in writes if value)
