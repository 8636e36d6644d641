"""Makes what Spark's sources keep of a micro-batch durable; Spark itself renames it into place without fsync."""

from __future__ import annotations

import contextlib
import os

from statefx.coordinator.checkpoint import Folders
from statefx.errors import CheckpointError


class Durable:
    """The sources' part of a checkpoint, as far as it was made durable.

    Offsets don't say by themselves what a batch has read: a file source has lists of files of its own. The offsets
    need no fsync, as the transaction log has their text; checksums need none, as Hadoop passes over broken ones.

    Parameters
    ----------
    folders : Folders
    """

    def __init__(self, folders: Folders) -> None:
        self._spark = folders.spark
        self._synced: set[str] = set()

    def sync(self) -> None:
        """Make durable what has come since the last call; called before a transaction begins.

        Raises
        ------
        CheckpointError
            It can't be: nothing may be begun.
        """
        try:
            found = self._found()
            new = found - self._synced
            for path in sorted(new | {os.path.dirname(path) for path in new}):
                _fsync(path)
        except OSError as error:
            raise CheckpointError(
                f"Spark's part of the checkpoint, {self._spark}, can't be made durable: {error}", path=self._spark
            ) from error
        self._synced = found

    def _found(self) -> set[str]:
        """Return the files that have to be durable, and the folders down to them."""
        found = {self._spark, os.path.join(self._spark, "metadata")}
        for folder, _, names in os.walk(os.path.join(self._spark, "sources")):
            found |= {folder, *(os.path.join(folder, name) for name in names if not name.startswith("."))}
        return found


def _fsync(path: str) -> None:
    """Make a file or folder durable; one that has gone meanwhile needs it no more."""
    with contextlib.suppress(FileNotFoundError):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
