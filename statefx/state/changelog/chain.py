"""The versions of one namespace as a chain of files: head, its predecessor, ... back to a snapshot or nothing.

It is natural to name a file by its transaction, and to open a state by listing the folder and applying all files in
order. Three orders of events break that:

* Attempt 0 of t is presumed lost, attempt 1 prepares t and is decided; then attempt 0 writes ``t.changelog``. So a
  file's name has a token of its attempt, and preparing never replaces a file (rules 1.3 and 4.1).
* t is rolled back, and its files lie there until a sweep. A listing takes them for state. So nothing is listed: the
  log names the head, and each file names the version before it. What no chain reaches is garbage.
* A machine has a cache at attempt 0 of t, and attempt 1 was decided. Its number is right, or even ahead, and its
  content is not. So a cache is used only if its version is in the chain (rule 1.4), and is built again otherwise.

A chain that is followed file by file costs a round trip each. So a file names up to `LINKS_MAX` of those before it:
the head is read first, and then all that are needed together. For the same reason `find_damage` can go on where a
reader ends: a damaged file does not hide those before it.

One would also merge files in the background. A reader of an older version then loses files under its hands, and the
merge needs a decision of its own. Here a prepare merges: its file takes in those of like size before it, and is
decided or rolled back with its transaction. It holds final values, so it may be applied to any version that it takes
in.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from statefx.errors import StateCorruptedError, StateError, StatePhaseError
from statefx.protocol.identity import EMPTY, Namespace, SnapshotRef, Version
from statefx.state.changelog import merging
from statefx.state.changelog.files import (
    CHANGELOG,
    SNAPSHOT,
    Artefact,
    Chunk,
    Identity,
    Listed,
    changelog_name,
    corrupted,
    line_of,
    listed,
    problem_of,
    read_blocks,
    read_file,
    read_head,
    read_heads,
    read_in_order,
    read_range,
    snapshot_name,
    version_of,
    write_file,
)
from statefx.state.changelog.merging import LINKS_MAX, covers, start_of
from statefx.state.contract.store import FILES_MAX, Write
from statefx.storage import Storage

logger = logging.getLogger("statefx")


@dataclass(frozen=True, slots=True)
class Route:
    """How to get an image to a version: where to start, and what to apply then, in this order.

    It starts from the cache, if `cached`, or from `snapshot`, or from nothing; `start` is the version there. `steps`
    are changelogs, oldest first.
    """

    storage: Storage
    start: Version
    cached: bool
    snapshot: Artefact | None
    steps: tuple[Artefact, ...]

    @property
    def size_bytes(self) -> int:
        return sum(step.size_bytes for step in self.steps) + (self.snapshot.size_bytes if self.snapshot else 0)

    def chunks(self) -> Iterator[Chunk]:
        """Yield all that has to be applied to `start`, verified; the first may be a snapshot."""
        files = (*((self.snapshot,) if self.snapshot else ()), *self.steps)
        return read_in_order(self.storage, files)

    def entries(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield the entries with start <= key < stop that a route from nothing or a snapshot comes to, in key order.

        Reads the files side by side, and holds a block of each in memory.
        """
        files = (*((self.snapshot,) if self.snapshot else ()), *self.steps)
        if start is None and stop is None:
            return merging.image_of([read_file(self.storage, file) for file in files])
        return merging.image_of([read_range(self.storage, file, start, stop) for file in files])


@dataclass(frozen=True, slots=True)
class Changelog:
    """The files of `namespace` in a checkpoint, as one store needs them; their names are known, so none is looked for.

    Each file names those before it (`Identity.beneath`): so when the newest one has been read, all others that are
    needed are read at once, and not one after the other. Heads that were read are remembered, with the entries of small
    files: who asks for a second route reads none twice.
    """

    namespace: Namespace
    storage: Storage
    _files: dict[Version, Artefact] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def where(self) -> str:
        """The location of these files, which nothing else has."""
        return f"{self.storage.url}/{self.namespace.prefix}"

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

        What begins before `snapshot`, the newest one that the log names, is not taken in. Returns the bytes by which
        the files of the chain have grown; negative if they take less than before.
        """
        oldest = 0 if snapshot is None else snapshot.version.txid
        try:
            lines, sizes = self._beneath(previous, oldest)
            taken = merging.taken_in(sizes, merging.files_of(self.namespace, files_max), lambda: _size(writes))
            files = self._load([version_of(line) for line in lines[:taken]])
            if files and files[-1].identity.predecessor.txid < oldest:
                # It began before the snapshot, and names it. Taken in again and again it would forget it, and lead back
                # to files that the sweep has deleted.
                del files[-1]
            beneath = lines[len(files) :], sizes[len(files) :]
            written = self._write(version, generation, previous, beneath, files, writes)
        except StateCorruptedError as error:  # of what is prepared already: not the fault of this transaction
            logger.warning("changelogs of %s can't be merged: %s", self.namespace, error)
            files = []
            written = self._write(version, generation, previous, ([], []), files, writes)
        return written.size_bytes - sum(file.size_bytes for file in files)

    def _beneath(self, previous: Version, oldest: int) -> tuple[list[str], list[int]]:
        if previous.txid <= oldest:
            return [], []
        file = self._file(previous)
        lines = [line_of(previous), *file.identity.beneath.splitlines()][:LINKS_MAX]
        if oldest:
            lines = list(takewhile(lambda line: version_of(line).txid > oldest, lines))
        return lines, [file.body_bytes, *file.identity.sizes][: len(lines)]

    def _write(
        self,
        version: Version,
        generation: int,
        previous: Version,
        beneath: tuple[list[str], list[int]],
        files: Sequence[Artefact],
        writes: Sequence[Write],
    ) -> Artefact:
        identity = Identity(
            CHANGELOG,
            self.namespace,
            version,
            generation,
            predecessor=files[-1].identity.predecessor if files else previous,
            covers=merging.marks_of(files),
            beneath="\n".join(beneath[0]),
            sizes=tuple(beneath[1]),
        )
        entries = merging.merged(self.storage, writes, files) if files else writes
        written = write_file(self.storage, self.namespace.prefix, identity, entries)
        while len(self._files) > LINKS_MAX:  # of a store that lives long
            del self._files[next(iter(self._files))]
        self._files[version] = written  # what is prepared next stands on it, and need not read it
        return written

    def prepared(self, version: Version, predecessor: Version) -> list[Chunk]:
        """Return the entries of `version`, verified to the last, as something that can follow `predecessor`."""
        artefact = self._file(version)
        if artefact.identity.predecessor != predecessor and not covers(artefact, predecessor):
            path = self._path(artefact.name)
            raise StatePhaseError(
                f"{path} was prepared on top of {artefact.identity.predecessor}, but this store is at "
                f"{predecessor}; open the store at the version that the transaction log names",
                path=path,
                txid=version.txid,
            )
        return list(read_file(self.storage, artefact))

    def route(self, version: Version, snapshot: SnapshotRef | None, cached: Version | None) -> Route:
        """Return how to reach `version`, from a cache at `cached` if that is in the chain.

        Raises StateCorruptedError: a file of the chain is damaged, foreign or missing (``missing`` is then True).
        """
        base = None if snapshot is None else snapshot.version
        found, at = self._back(version, (cached, base))
        steps = tuple(reversed(found))
        if at == cached:
            return Route(self.storage, at, True, None, steps)
        if snapshot is None or at != base:
            return Route(self.storage, EMPTY, False, None, steps)
        older = None if cached is None else self._older(cached, snapshot)
        if older is not None and cached is not None:
            return Route(self.storage, cached, True, None, (*older, *steps))
        return Route(self.storage, at, False, self.find_snapshot(snapshot), steps)

    def _older(self, cached: Version, snapshot: SnapshotRef) -> list[Artefact] | None:
        """Return the steps from a cache older than the snapshot, if they are there and less to read than it is.

        Their entries are not read yet: who finds them damaged takes the route without the cache.
        """
        try:
            found, at = self._back(snapshot.version, (cached,), cached.txid, snapshot.size_bytes)
        except StateCorruptedError:
            return None
        return found[::-1] if at == cached else None

    def _back(
        self, version: Version, wanted: Collection[Version | None], down_to: int = 0, limit_bytes: float = float("inf")
    ) -> tuple[list[Artefact], Version]:
        """Go back from file to file until a version is `wanted`; return the files, newest first, and that version.

        Ends early at a version of txid `down_to` or before, or after more than `limit_bytes`.
        """
        files: list[Artefact] = []
        at, size = version, 0
        ahead = ""
        while at.txid > down_to and at not in wanted and size <= limit_bytes:
            if at not in self._files:
                # all that is needed before the next version that may be wanted, in one go
                floor = max((each.txid for each in wanted if each is not None and each.txid < at.txid), default=down_to)
                known = map(version_of, ahead.splitlines())
                self._load([at, *(each for each in known if floor < each.txid < at.txid)])
            file = self._files[at]
            files.append(file)
            at, size, ahead = start_of(file, wanted), size + file.size_bytes, file.identity.beneath
        return files, at

    def follows(self, later: Version, version: Version) -> bool:
        """Return whether `later` came from `version`, by the files that are there.

        What is committed is one chain. So a cache that is at neither an ancestor nor a descendant of a committed
        version is of a history that is over: the checkpoint was restored from a backup, and went on from there.
        """
        try:
            _, at = self._back(later, (version,), version.txid)
        except StateCorruptedError:  # what it came from was deleted with that history
            return False
        return at == version

    def _file(self, version: Version) -> Artefact:
        return self._load([version])[0]

    def _load(self, versions: Sequence[Version]) -> list[Artefact]:
        absent = [version for version in versions if version not in self._files]
        names = [changelog_name(self.namespace.prefix, version) for version in absent]
        for version, found in zip(absent, read_heads(self.storage, names), strict=True):
            self._files[version] = self.verified(found, CHANGELOG, version)
        return [self._files[version] for version in versions]

    def find_snapshot(self, snapshot: SnapshotRef) -> Artefact:
        """Return the snapshot that the log names; StateCorruptedError if it is missing or damaged."""
        name = snapshot_name(self.namespace.prefix, snapshot.version, snapshot.checksum)
        artefact = self.verified(read_head(self.storage, name), SNAPSHOT, snapshot.version)
        if artefact.checksum != snapshot.checksum:
            raise corrupted(self._path(name), f"checksum {artefact.checksum}", f"checksum {snapshot.checksum}")
        return artefact

    def verified(self, found: Artefact | StateError, kind: str, version: Version) -> Artefact:
        """Return the file if it is what its name and the log say; its lineage may be the one this is a fork of."""
        if isinstance(found, StateError):
            raise found
        identity, namespace = found.identity, found.identity.namespace
        if (identity.kind, identity.version, namespace.id) != (kind, version, self.namespace.id):
            raise corrupted(self._path(found.name), f"it is the file of {identity}", f"{self.namespace} at {version}")
        if kind == CHANGELOG and identity.predecessor.txid >= version.txid:
            follows = f"it follows {identity.predecessor}"
            raise corrupted(self._path(found.name), follows, f"a version before {version.txid}")
        return found

    def _path(self, name: str) -> str:
        return f"{self.storage.url}/{name}"

    def snapshot(self, version: Version, generation: int, entries: Iterable[tuple[bytes, bytes]]) -> SnapshotRef:
        """Write a full image of `version`; two writers of one image write the same bytes."""
        identity = Identity(SNAPSHOT, self.namespace, version, generation, version)
        artefact = write_file(self.storage, self.namespace.prefix, identity, entries)
        return SnapshotRef(version, artefact.checksum, artefact.size_bytes)


def _size(writes: Sequence[Write]) -> int:
    return sum(len(key) for key, _ in writes) + sum(len(value) for _, value in writes if value)


def committed(found: Iterable[Listed], steps: Sequence[Artefact]) -> list[Listed]:
    """Return those of the files `found` that are changelogs of which the chain's `steps`, oldest first, know.

    These are the steps themselves, and what they took in. What an attempt left that was rolled back is not among them.
    """
    txids = [step.identity.version.txid for step in steps]
    kept = []
    for each in found:
        at = bisect_left(txids, each.version.txid)
        if each.kind == CHANGELOG and at < len(steps):
            step = steps[at]
            if each.name == step.name or covers(step, each.version):
                kept.append(each)
    return kept


_HEADS = 64
"""Heads that are read at once: with them come the first bytes of their files."""

Kept = tuple[Version, SnapshotRef | None]
"""A version that has to be readable, and the oldest snapshot that it is read from."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """Damage of a file, or of a part of it.

    `missing`: there is no such file. `first` and `last` are the transactions whose changes it has; `first` is 0 if
    unknown. `after` and `before` are the keys between which the damage is, as far as neighbouring blocks tell.
    """

    name: str
    problem: str
    missing: bool
    first: int
    last: int
    after: bytes | None = None
    before: bytes | None = None


def find_damage(
    changelog: Changelog,
    kept: Sequence[Kept],
    snapshots: Iterable[SnapshotRef],
    read: Callable[[int], object],
    whole: set[str],
) -> list[Damaged]:
    """Return the damage of the files that the versions `kept` need, and of `snapshots`.

    `read` is called with the size of each file that was read; 0 of one whose head is damaged. Entries of files that
    `whole` names are not read, and it gets the names of those that were read and have no damage.
    """
    found: dict[str, Damaged] = {}
    bodies: dict[str, Artefact] = {}
    spare: dict[str, Artefact] = {}
    """What was taken in; nobody needs it: what took it in may serve as well."""
    for version, oldest in kept:
        steps = list(_chain(changelog, version, oldest, found))
        bodies.update({step.name: step for step in steps})
        listing = filter(None, map(listed, changelog.storage.list(f"{changelog.namespace.prefix}/")))
        taken_in = [each for each in committed(listing, steps[::-1]) if each.name not in bodies]
        for version_in, head in _heads(changelog, [each.version for each in taken_in]):
            if isinstance(head, Artefact):
                spare[head.name] = head
            elif not getattr(head, "missing", False):
                found.setdefault(*_of_head(changelog, version_in, 0, head))
    for snapshot in snapshots:
        try:
            head = changelog.find_snapshot(snapshot)
            bodies[head.name] = head
        except StateError as error:
            name = snapshot_name(changelog.namespace.prefix, snapshot.version, snapshot.checksum)
            found[name] = Damaged(name, problem_of(error), getattr(error, "missing", False), 1, snapshot.version.txid)
    damaged = list(found.values())
    for _ in (each for each in damaged if not each.missing):
        read(0)
    for name, body in {**bodies, **spare}.items():
        if name in whole:
            continue
        problems = _of_body(changelog, body)
        if not problems:
            whole.add(name)
        # A topology that runs has perhaps deleted it since its head was read.
        damaged += [each for each in problems if name in bodies or not each.missing]
        read(body.size_bytes)
    return sorted(damaged, key=lambda each: (each.last, each.name, each.after or b""))


def _chain(
    changelog: Changelog, version: Version, oldest: SnapshotRef | None, found: dict[str, Damaged]
) -> Iterator[Artefact]:
    """Yield the files from `version` back to `oldest`, newest first; those that can't be read are put into `found`."""
    base = None if oldest is None else oldest.version
    floor = 0 if base is None else base.txid
    heads: dict[Version, Artefact | StateError] = {}
    ahead: list[Version] = []
    while version.txid > floor:
        if version not in heads:
            heads.update(_heads(changelog, [version, *(each for each in ahead if each.txid > floor)]))
        head = heads[version]
        ahead = [each for each in ahead if each.txid < version.txid]
        if isinstance(head, Artefact):
            yield head
            ahead = list(map(version_of, head.identity.beneath.splitlines())) or ahead
            version = start_of(head, (base,))
            continue
        following = ahead[0] if ahead else Version(floor, "")
        found.setdefault(*_of_head(changelog, version, following.txid + 1 if ahead else 0, head))
        version = following


def _heads(changelog: Changelog, versions: Sequence[Version]) -> Iterator[tuple[Version, Artefact | StateError]]:
    for start in range(0, len(versions), _HEADS):
        part = versions[start : start + _HEADS]
        names = [changelog_name(changelog.namespace.prefix, version) for version in part]
        for version, head in zip(part, read_heads(changelog.storage, names), strict=True):
            if isinstance(head, Artefact):
                try:
                    changelog.verified(head, CHANGELOG, version)
                except StateError as error:
                    yield version, error
                    continue
                head = replace(head, whole=b"")  # a thousand of them are not held in memory
            yield version, head


def _of_head(changelog: Changelog, version: Version, first: int, error: StateError) -> tuple[str, Damaged]:
    name = changelog_name(changelog.namespace.prefix, version)
    return name, Damaged(name, problem_of(error), getattr(error, "missing", False), first, version.txid)


def _of_body(changelog: Changelog, file: Artefact) -> list[Damaged]:
    """Read the entries of a file to the end, also past a block that is damaged."""
    first = 1 if file.identity.kind == SNAPSHOT else file.identity.predecessor.txid + 1
    whole = Damaged(file.name, "", missing=False, first=first, last=file.identity.version.txid)
    found, last = list[Damaged](), None
    try:
        with changelog.storage.reader(file.name) as source:
            for chunk in read_blocks(file.name, source, file):
                if isinstance(chunk, StateError):
                    found.append(replace(whole, problem=problem_of(chunk), after=last))
                else:
                    found = [each if each.before else replace(each, before=chunk[0][0]) for each in found]
                    last = chunk[0][-1]
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        return [replace(whole, problem="the file is missing" if missing else str(error), missing=missing)]
    return found
