"""Logs that grow, and are given other names: which file of a folder is which log.

A log is known by its file number (inode), which a new name doesn't change, and by how it begins: a file system gives
the number of a deleted file to the next new one. So ``app.log`` that was renamed to ``app.log.1`` is read to its end
under that name, and the new ``app.log`` is a new log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any
from zlib import crc32

from statefx.errors import FailedException, InputError

HEAD_BYTES = 1024
"""Of the beginning of a log: no two logs whose lines have times begin with as many equal bytes."""

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""What a rotation makes of a log that is no longer written."""

Stats = Mapping[str, os.stat_result]


def head_of(path: str, size: int) -> int:
    """Return a checksum of how a file begins, of which so many bytes count."""
    with open(path, "rb") as file:
        return crc32(file.read(min(size, HEAD_BYTES)))


def stats(folder: str, names: Iterator[os.DirEntry[str]]) -> dict[str, os.stat_result]:
    """Return what is known of the files of a folder, by name, in the order of names."""
    found = {}
    for each in sorted(names, key=lambda entry: entry.name):
        try:
            found[each.name] = each.stat()
        except FileNotFoundError:  # it was renamed or deleted meanwhile
            continue
    return found


def present_path(folder: str, metadata: Any) -> str:
    """Return where a log is now of which a batch was planned, perhaps under another name."""
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
    """The logs of a folder, by partition.

    Parameters
    ----------
    folder : str
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known: dict[int, Any] = {}
        """Partition -> the newest metadata."""
        self._looked_at: dict[int, tuple[int, int]] = {}
        """Partition -> size and time at which the log was seen to be the same one."""

    def take(self, partition: int, metadata: Any) -> None:
        """Take note of what was planned of a log."""
        self._known[partition] = metadata

    def locate(self, found: Stats) -> dict[int, str | None]:
        """Return by partition the present name of each log of which something was read; None: it is gone."""
        names = {said.st_ino: name for name, said in found.items()}
        return {partition: self._name(partition, log, names, found) for partition, log in self._known.items()}

    def _name(self, partition: int, log: Any, names: Mapping[int, str], found: Stats) -> str | None:
        name = names.get(log["stamp"])
        if name is None or name == log["file"]:
            return name  # under its name it is checked when a batch is planned
        return name if self.is_same(partition, os.path.join(self._folder, name), found[name], log) else None

    def is_same(self, partition: int, path: str, said: os.stat_result, log: Any) -> bool:
        """Tell whether a file of a log's number is that log, and has at least what was read of it."""
        if said.st_size < log["stop"]:
            return False
        state = said.st_size, said.st_mtime_ns
        if self._looked_at.get(partition) != state:
            if head_of(path, log["stop"]) != log["head"]:
                return False
            self._looked_at[partition] = state
        return True

    def refuse_copy(self, name: str, said: os.stat_result) -> None:
        """Refuse a new file that is a copy of a log: its lines would count twice."""
        if said.st_size < HEAD_BYTES:
            return
        path = os.path.join(self._folder, name)
        try:
            head = head_of(path, HEAD_BYTES)
        except OSError as error:
            raise FailedException(f"{path} can't be read: {error}") from error
        for log in self._known.values():
            if log["head"] == head and log["stop"] >= HEAD_BYTES:
                raise InputError(
                    f"{path} begins as {log['file']} does, and is another file: it is a copy, whose lines would count "
                    "twice. Have logs renamed and not copied when they are rotated (logrotate: create, not "
                    "copytruncate), and take the copy out of the folder",
                    path=path,
                )
