"""Makes durable what Spark keeps of a micro-batch; Spark itself renames it into place without fsync.

What is done for a transaction grows with what is new, not with what is there: lists of files and versions of state are
found by their numbers, and other folders are listed only when they have changed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from zlib import crc32

from statefx.coordinator.location import Folders
from statefx.errors import CheckpointError
from statefx.spark import offsets

_AT_ONCE = 16
"""Files that are synced at the same time have their journal written once."""

_CHANGES = (".delta", ".changelog")
"""How the names of files end that alone bring a store of Spark's from the version before to theirs."""

_LISTED_EVERY = 8
"""A store is listed at every so many versions, its snapshots come to light then. Before they are needed instead of the
changes, Spark keeps these for 100 versions more."""


@dataclass(frozen=True, slots=True)
class _Listing:
    """What was in a folder when it was last listed.

    Attributes
    ----------
    changed_ns : int
        The folder's own time. Between two looks at it lies a whole micro-batch, which is longer than a tick of the
        file system's clock: what came since shows.
    entries : frozenset of (name, inode)
        With inodes, since Spark replaces files by others when it runs a batch again.
    folders : tuple of str
        The names of those that are folders.
    kinds : frozenset of str
        Which of `_CHANGES` there were.
    """

    changed_ns: int
    entries: frozenset[tuple[str, int]]
    folders: tuple[str, ...]
    kinds: frozenset[str]


class Durable:
    """Spark's part of a checkpoint, as far as it was made durable.

    The offsets need no fsync, as the transaction log has their text; checksums need none, as Hadoop passes over broken
    ones. Nor do the notes of what was committed: Spark runs a batch again that it has no note of.

    Parameters
    ----------
    folders : Folders
    """

    def __init__(self, folders: Folders) -> None:
        self._spark = folders.spark
        self._metadata = 0
        self._listed: dict[str, int] = {}
        self._listings: dict[str, _Listing] = {}

    def sync_input(self, text: str) -> None:
        """Make durable what tells what a batch reads; called before its transaction begins.

        Offsets don't say it by themselves: a file source has lists of files of its own.

        Parameters
        ----------
        text : str
            The batch's offsets, as Spark wrote them.

        Raises
        ------
        CheckpointError
            It can't be: nothing may be begun.
        """
        self._sync(self._input(text))

    def sync_state(self, batch_id: int) -> None:
        """Make durable what Spark's own stateful operators keep; called before Spark notes that the batch has ended.

        From then on Spark does not run the batch again, and can't do without.

        Parameters
        ----------
        batch_id : int
            Its state is of the version after that.

        Raises
        ------
        CheckpointError
            It can't be: Spark must not go on.
        """
        self._sync(self._new_in(os.path.join(self._spark, "state"), batch_id + 1))

    def _sync(self, new: Iterable[str]) -> None:
        try:
            found = set(new)
            paths = sorted(found | {os.path.dirname(path) for path in found})
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(_fsync, paths))
        except OSError as error:
            raise CheckpointError(
                f"Spark's part of the checkpoint, {self._spark}, can't be made durable: {error}", path=self._spark
            ) from error

    def _input(self, text: str) -> Iterator[str]:
        metadata, sources = (os.path.join(self._spark, name) for name in ("metadata", "sources"))
        with suppress(FileNotFoundError):
            inode = os.stat(metadata).st_ino
            if inode != self._metadata:
                self._metadata = inode
                yield self._spark
                yield metadata
        lists = {os.path.join(sources, str(source)): number for source, number in offsets.lists(text).items()}
        yield from self._new_in(sources, passed_over=[folder for folder in lists if folder in self._listed])
        for folder, number in lists.items():
            for each in range(self._listed.get(folder, number) + 1, number + 1):
                yield from (path for kind in ("", ".compact") if os.path.exists(path := f"{folder}/{each}{kind}"))
            self._listed[folder] = number

    def _new_in(self, folder: str, version: int | None = None, passed_over: Collection[str] = ()) -> Iterator[str]:
        """Yield what is new below a folder, and the folder when it is new itself.

        Parameters
        ----------
        folder : str
        version : int, optional
            Of Spark's state: the changes of this version count as new, and are mostly all that is needed of a store.
        passed_over : collection of str
            Folders below that are not looked at.
        """
        try:
            changed_ns = os.stat(folder).st_mtime_ns
        except FileNotFoundError:
            return
        before = self._listings.get(folder)
        if before is None:
            yield folder
        changes: list[str] = []
        if before is not None and version is not None:
            changes = [path for kind in before.kinds if os.path.exists(path := f"{folder}/{version}{kind}")]
            yield from changes
        turn = crc32(folder.removeprefix(self._spark).encode())  # spreads stores over versions
        due = not changes or version is None or (version - turn) % _LISTED_EVERY == 0
        if before is None or (due and before.changed_ns != changed_ns):
            now = self._listings[folder] = _listing(folder, changed_ns)
            known = frozenset() if before is None else before.entries
            yield from (os.path.join(folder, name) for name, _ in now.entries - known)
            before = now
        for name in before.folders:
            if (path := os.path.join(folder, name)) not in passed_over:
                yield from self._new_in(path, version)


def _listing(folder: str, changed_ns: int) -> _Listing:
    entries, folders, kinds = [], [], set()
    with os.scandir(folder) as found:
        for entry in found:
            if entry.name.startswith("."):  # checksums, and what is being written
                continue
            entries.append((entry.name, entry.inode()))
            number, dot, kind = entry.name.partition(".")
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            elif number.isdecimal() and dot + kind in _CHANGES:
                kinds.add(dot + kind)
    return _Listing(changed_ns, frozenset(entries), tuple(folders), frozenset(kinds))


def _fsync(path: str) -> None:
    """Make a file or folder durable; one that has gone meanwhile needs it no more."""
    with suppress(FileNotFoundError):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
