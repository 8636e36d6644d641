"""Makes durable what Spark keeps of a micro-batch; Spark itself renames it into place without fsync."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from statefx.coordinator.checkpoint import Folders
from statefx.errors import CheckpointError

_AT_ONCE = 16
"""Files that are synced at the same time have their journal written once."""


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
        self._synced: dict[str, set[tuple[str, int]]] = {}

    def sync_input(self) -> None:
        """Make durable what tells what a batch reads; called before its transaction begins.

        Offsets don't say it by themselves: a file source has lists of files of its own.

        Raises
        ------
        CheckpointError
            It can't be: nothing may be begun.
        """
        self._sync("metadata", "sources")

    def sync_state(self) -> None:
        """Make durable what Spark's own stateful operators keep; called before Spark notes that the batch has ended.

        From then on Spark does not run the batch again, and can't do without.

        Raises
        ------
        CheckpointError
            It can't be: Spark must not go on.
        """
        self._sync("state")

    def _sync(self, *names: str) -> None:
        try:
            found = {(self._spark, 0), *self._below(names)}
            new = {path for path, _ in found - self._synced.get(names[0], set())}
            paths = sorted(new | {os.path.dirname(path) for path in new})
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(_fsync, paths))
        except OSError as error:
            raise CheckpointError(
                f"Spark's part of the checkpoint, {self._spark}, can't be made durable: {error}", path=self._spark
            ) from error
        self._synced[names[0]] = found

    def _below(self, names: tuple[str, ...]) -> Iterator[tuple[str, int]]:
        """Yield the files and folders below these names, and themselves, with their inodes."""
        for name in names:
            path = os.path.join(self._spark, name)
            with contextlib.suppress(FileNotFoundError):
                yield path, os.stat(path).st_ino
            yield from _walk(path)


def _walk(folder: str) -> Iterator[tuple[str, int]]:
    """Yield what is in a folder, with inodes: when Spark runs a batch again, it replaces files by others."""
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if not entry.name.startswith("."):  # checksums, and what is being written
            yield entry.path, entry.inode()
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path)


def _fsync(path: str) -> None:
    """Make a file or folder durable; one that has gone meanwhile needs it no more."""
    with contextlib.suppress(FileNotFoundError):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
