"""Logs that grow, and are given other names: which file of a folder is which log.

A log is known by its file number (inode), which a new name doesn't change, and by how it begins: a file system gives
the number of a deleted file to the next new one. So ``app.log`` that was renamed to ``app.log.1`` is read to its end
under that name, and the new ``app.log`` is a new log. A file that has number and name of a log, and is not that log, is
a new one if it was made at another time; else the log was cut.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any
from zlib import crc32

from statefx.errors import FailedException, InputError

HEAD_BYTES = 1024
"""Of the beginning of a log: no two logs whose lines have times begin with as many equal bytes."""

_HERE, _BIRTH = -100, 0x800
"""AT_FDCWD and STATX_BTIME of statx(2)."""

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""What a rotation makes of a log that is no longer written."""

Stats = Mapping[str, os.stat_result]


def head_of(path: str, size: int) -> int:
    """Return a checksum of how a file begins, of which so many bytes count."""
    with open(path, "rb") as file:
        return crc32(file.read(min(size, HEAD_BYTES)))


def born(path: str) -> int | None:
    """Return when a file was made, in ns; None where the system does not tell.

    Python has no call for it on Linux: ``os.stat`` leaves the time of birth out.
    """
    answer = ctypes.create_string_buffer(256)
    try:
        failed = ctypes.CDLL(None).statx(_HERE, os.fsencode(path), 0, _BIRTH, answer)
    except AttributeError:  # no Linux
        said = getattr(os.stat(path), "st_birthtime", None)
        return None if said is None else int(said * 1e9)
    (told,) = struct.unpack_from("I", answer)
    seconds, nanoseconds = struct.unpack_from("qI", answer, 80)
    return None if failed or not told & _BIRTH else seconds * 10**9 + nanoseconds


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
        if name is None:
            return None
        path = os.path.join(self._folder, name)
        try:
            if self.is_same(partition, path, found[name], log):
                return name
            # The number of the deleted log was given to a new file, which a rotation may have given its name as well.
            # One that was cut keeps its time of birth: that is refused when a batch is planned.
            times = log["born"], born(path)
        except FileNotFoundError:
            return None
        anew = None not in times and times[0] != times[1]
        return None if anew or name != log["file"] else name

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

    def has(self, path: str, said: os.stat_result) -> bool:
        """Tell whether a file of which a partition has read nothing is the log of another partition."""
        return any(
            log["stamp"] == said.st_ino and self.is_same(partition, path, said, log)
            for partition, log in self._known.items()
        )

    def refuse_copy(self, partition: int, path: str, said: os.stat_result) -> None:
        """Refuse a file that is a copy of the log of another partition: its lines would count twice."""
        known = self._known.get(partition)
        if said.st_size < HEAD_BYTES or (known is not None and known["stop"] >= HEAD_BYTES):
            return
        try:
            head = head_of(path, HEAD_BYTES)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise FailedException(f"{path} can't be read: {error}") from error
        for other, log in self._known.items():
            if other != partition and log["head"] == head and log["stop"] >= HEAD_BYTES:
                raise InputError(
                    f"{path} begins as {log['file']} does, and is another file: it is a copy, whose lines would count "
                    "twice. Have logs renamed and not copied when they are rotated (logrotate: create, not "
                    "copytruncate), and take the copy out of the folder",
                    path=path,
                )
