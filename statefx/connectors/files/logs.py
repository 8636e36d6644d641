"""Logs that grow and are renamed: which file of a folder is which log.

A log is known by its file number (inode), which a new name doesn't change, and by how it begins, because a file system
gives the number of a deleted file to the next new one. So ``app.log`` that was renamed to ``app.log.1`` is read to its
end under that name, and the new ``app.log`` is a new log.

Renaming is followed because nearly every program rotates its logs so; by names alone each line would come twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Set
from typing import Any
from zlib import crc32

from statefx.errors import FailedException, InputError

HEAD_BYTES = 1024
"""The beginning of a log that identifies it: no two logs whose lines have times begin with as many equal bytes."""

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""How names end when a rotation has compressed a log."""

Stats = Mapping[str, os.stat_result]


def head_of(path: str, size: int) -> int:
    """Return a checksum of the first `HEAD_BYTES` of a file that count, of which it has `size`."""
    with open(path, "rb") as file:
        return crc32(file.read(min(size, HEAD_BYTES)))


def stats(folder: str, names: Iterator[os.DirEntry[str]]) -> dict[str, os.stat_result]:
    """Return what is known of the files of a folder, by name, in the order of names.

    A file that has several names, hard or symbolic links, comes once: under the first name that is no symbolic link.
    """
    found, numbers = {}, set()
    for each in sorted(names, key=lambda entry: (entry.is_symlink(), entry.name)):
        try:
            said = each.stat()
        except FileNotFoundError:  # it was renamed or deleted meanwhile
            continue
        if (said.st_dev, said.st_ino) not in numbers:
            numbers.add((said.st_dev, said.st_ino))
            found[each.name] = said
    return dict(sorted(found.items()))


def present_path(folder: str, metadata: Any) -> str:
    """Return the present path of a log from which a batch was planned; it may have been renamed."""
    path = os.path.join(folder, metadata["file"])
    for _ in range(3):  # a name can change between two looks
        try:
            if os.stat(path).st_ino == metadata["stamp"]:
                break
        except FileNotFoundError:
            pass
        with os.scandir(folder) as found:
            path = next((each.path for each in found if each.inode() == metadata["stamp"]), path)
    return path


class Logs:
    """The logs of a folder, by partition."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known: dict[int, Any] = {}
        """Partition -> the newest metadata."""
        self._looked_at: dict[int, tuple[int, int]] = {}
        """Partition -> size and time of the log when its beginning was compared last."""

    def take(self, partition: int, metadata: Any) -> None:
        """Remember what was planned of a log."""
        self._known[partition] = metadata

    def is_gone(self, partition: int) -> bool:
        """Tell whether a log that was read to its end had left the folder when something was planned of it last."""
        return bool(self._known.get(partition, {}).get("gone"))

    def locate(self, found: Stats) -> dict[int, str | None]:
        """Return by partition the present name of each log that was read from; None: it is gone, or was cut."""
        names = {said.st_ino: name for name, said in found.items()}
        located = {partition: names.get(log["stamp"]) for partition, log in self._known.items()}
        return {
            partition: name if name is not None and self._is_same(partition, name, found[name]) else None
            for partition, name in located.items()
        }

    def _is_same(self, partition: int, name: str, said: os.stat_result) -> bool:
        """Tell whether a file with a log's number begins as the log, and has at least what was read of it."""
        log, state = self._known[partition], (said.st_size, said.st_mtime_ns)
        if said.st_size < log["stop"]:
            return False
        if log.get("gone") and log["stop"] < HEAD_BYTES:
            # The number is free, and so few bytes tell no log from the next: taken for the log, a new file that begins
            # alike would lose them. `refuse_copy` refuses it.
            return False
        if self._looked_at.get(partition) != state:
            try:
                if head_of(os.path.join(self._folder, name), log["stop"]) != log["head"]:
                    return False
            except FileNotFoundError:  # it was renamed once more: the next look finds it
                return True
            self._looked_at[partition] = state
        return True

    def refuse_copy(self, partition: int, path: str, said: os.stat_result, gone: Set[int]) -> None:
        """Refuse a file that begins as the log of another partition does: its lines would count twice.

        `gone` are partitions whose logs are gone, or were cut. If nothing was read of the file, it is also refused if
        it begins with the few bytes of such a log; others may well begin alike.
        """
        known = self._known.get(partition)
        if known is not None and known["stop"] >= HEAD_BYTES:
            return
        for other, log in self._known.items():
            enough = log["stop"] >= HEAD_BYTES or (known is None and other in gone)
            if other == partition or not enough or said.st_size < min(log["stop"], HEAD_BYTES):
                continue
            try:
                same = head_of(path, log["stop"]) == log["head"]
            except FileNotFoundError:
                raise
            except OSError as error:
                raise FailedException(f"{path} can't be read: {error}") from error
            if same:
                raise InputError(
                    f"{path} begins as {log['file']} does, and is another file: it is a copy, whose lines would count "
                    "twice. Have logs renamed and not copied when they are rotated (logrotate: create, not "
                    "copytruncate), and take the copy out of the folder",
                    path=path,
                )
