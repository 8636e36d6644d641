"""Files of a folder as the input of transactions, read by pyarrow in the tasks.

A file is a partition. A batch of it is a range: of row groups or record batches where the format has them, else of
bytes that end behind a line. The metadata of a batch names the file and says how long it was, so that one that was cut
short or replaced since is noticed.

**Logs.** A log is known by its file number (inode), which a new name doesn't change, and by how it begins, because a
file system gives the number of a deleted file to the next new one. So ``app.log`` that was renamed to ``app.log.1`` is
read to its end under that name, and the new ``app.log`` is a new log. Renaming is followed because nearly every program
rotates its logs so; by names alone each line would come twice.

**Looks.** A look costs what is new and what is not read to its end. Files that were, are looked at in turn, some at
each look, so that one that was changed is noticed; of those that are gone nothing is left to do. A file that was read
is not read again if it comes back, so each name is kept: while the file is there, and of the last ones that went, as
the metadata of its partition; then as 12 bytes in a list of some hundred, which is the metadata of a partition of its
own (`GoneFiles`). A million names are kept.
"""

from __future__ import annotations

import os
import re
import sys
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from itertools import islice
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from statefx.config import is_count
from statefx.connectors.fields import given_schema, spark_schema
from statefx.connectors.files.readers import (
    READERS,
    UNITS,
    Range,
    ShorterError,
    behind_last_line,
    behind_last_row,
    is_fault,
    parts_of,
    read,
    unreadable,
)
from statefx.errors import FailedException, InputError, TopologyError
from statefx.operators.context import DRIVER, Collector, Context
from statefx.operators.folders import InFolder
from statefx.operators.schema import to_ddl
from statefx.operators.spouts import PartitionedTransactionalSpout
from statefx.protocol.identity import TransactionAttempt
from statefx.storage import path_of

# ---- logs that grow and are renamed

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
    for entry in sorted(names, key=lambda entry: (entry.is_symlink(), entry.name)):
        try:
            said = entry.stat()
        except FileNotFoundError:  # it was renamed or deleted meanwhile
            continue
        if (said.st_dev, said.st_ino) not in numbers:
            numbers.add((said.st_dev, said.st_ino))
            found[entry.name] = said
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
            path = next((entry.path for entry in found if entry.inode() == metadata["stamp"]), path)
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
        self._known[partition] = metadata

    def is_gone(self, partition: int) -> bool:
        """Return whether a log that was read to its end had left the folder when something was planned of it last."""
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
        """Return whether a file with a log's number begins as the log, and has at least what was read of it."""
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


# ---- which file is which partition, and which of them a look has to look at

CHECKED = 100
"""Of the files that were read to their end, how many each look compares with what was read."""


LISTED = 500
"""So many files go before a list is made, of all of them."""

NAMES_MAX = 1_000_000
"""So many names are in lists, and some more: 16 MB in the checkpoint, and 12 MB in the driver."""


class GoneFiles:
    """Names of files that were read and are gone, by their hashes, with what tells whether one is the same file."""

    def __init__(self) -> None:
        self._lists: dict[int, tuple[Any, Any]] = {}
        """By partition, the oldest first: hashes of names, and of sizes and times."""
        self._names: Any = np.empty(0, "<u8")
        self._files: Any = np.empty(0, "<u4")

    def listed(self, files: Mapping[str, int]) -> dict[str, str]:
        """Return the metadata of a list of names, each with `file_hash` of its file."""
        names = np.fromiter(map(_name_hash, files), "<u8", len(files))
        return {"gone": _text(names), "hashes": _text(np.fromiter(files.values(), "<u4", len(files)))}

    def take(self, lists: Mapping[int, Mapping[str, str]]) -> None:
        for number, said in sorted(lists.items()):
            self._lists[number] = _array(said["gone"], "<u8"), _array(said["hashes"], "<u4")
        self._index()

    def drop_oldest(self) -> list[int]:
        """Return the partitions of lists that are too many; their names are forgotten."""
        dropped, left = [], len(self._names)
        for number, (names, _) in list(self._lists.items()):
            left -= len(names)
            if left < NAMES_MAX:
                break
            del self._lists[number]
            dropped.append(number)
        if dropped:
            self._index()
        return dropped

    def _index(self) -> None:
        names = np.concatenate([np.empty(0, "<u8"), *(names for names, _ in self._lists.values())])
        order = np.argsort(names, kind="stable")
        self._names = names[order]
        self._files = np.concatenate([np.empty(0, "<u4"), *(files for _, files in self._lists.values())])[order]

    def among(self, names: Collection[str]) -> dict[str, int]:
        """Return those of `names` that are known, each with `file_hash` of the file that was read."""
        if not len(self._names) or not names:
            return {}
        hashes = np.fromiter(map(_name_hash, names), "<u8", len(names))
        places = np.minimum(np.searchsorted(self._names, hashes), len(self._names) - 1)
        same = self._names[places] == hashes
        return {name: int(self._files[place]) for name, place, is_it in zip(names, places, same, strict=True) if is_it}


def file_hash(size: int, stamp: int) -> int:
    """Return what tells a file from another one of its name."""
    return xxh3_64_intdigest(f"{size} {stamp}".encode()) & 0xFFFFFFFF


def _name_hash(name: str) -> int:
    return xxh3_64_intdigest(os.fsencode(name))


def _text(numbers: Any) -> str:
    return b64encode(numbers.tobytes()).decode()


def _array(text: str, kind: str) -> Any:
    return np.frombuffer(b64decode(text), kind)


class KnownFiles:
    """The files of a folder, each of them a partition."""

    def __init__(self) -> None:
        self._names: list[str | None] = []
        """By partition; None: it can be another file."""
        self._numbers: dict[str, int] = {}
        self._free: list[int] = []
        self._unread: dict[int, None] = {}
        """Partitions that may have something new, in the order in which they came."""
        self._ended: dict[int, int] = {}
        """Of files that were read to their end, what `file_hash` says of them."""
        self._gone = GoneFiles()
        self._list: tuple[int, list[int]] | None = None
        """The partition of a list that is to be made or was planned, and those whose names are in it."""
        self._back: set[str] = set()
        """Files that are there again, and were compared with what was read."""
        self._turn: Iterator[int] = iter(())
        self._there: Set[str] = frozenset()
        self._begun_with: Mapping[int, int] = {}

    def __len__(self) -> int:
        return len(self._names)

    def name(self, partition: int) -> str | None:
        return self._names[partition]

    def take(self, metadata: Mapping[int, Any]) -> None:
        """Begin with what was read before.

        The first look compares all files that are there: a run may have no second one. Partitions without metadata are
        those of names in a list: they become no other file, since they count as finished.
        """
        files = {number: said for number, said in sorted(metadata.items()) if "gone" not in said}
        self._gone.take({number: said for number, said in metadata.items() if "gone" in said})
        self._begun_with = {n: file_hash(said["size"], said["stamp"]) for n, said in files.items() if said["end"]}
        self._names = [None] * (max(metadata, default=-1) + 1)
        for number, said in files.items():
            self._names[number] = said["file"]
        self._numbers = {said["file"]: number for number, said in files.items()}
        self._unread = dict.fromkeys(files)

    def look(self, there: Set[str]) -> dict[str, int]:
        """Give each new file a partition, in the order of their names.

        Returns the files that were read, were gone and are back, each with `file_hash` of what was read.
        """
        self._there = there
        for number, hashed in self._begun_with.items():
            if self._names[number] not in there:
                self.end(number, hashed)
        self._begun_with = {}
        self._back &= there
        new = there - self._numbers.keys() - self._back
        back = self._gone.among(new)
        for name in sorted(new - back.keys()):
            if self._free:
                number = self._free.pop(0)
                self._names[number] = name
            else:
                number = len(self._names)
                self._names.append(name)
            self._numbers[name] = number
            self._unread[number] = None
        self._list_gone()
        return back

    def compared(self, name: str) -> None:
        self._back.add(name)

    def _list_gone(self) -> None:
        if self._list is not None or len(self._ended) - len(self._there) < LISTED:
            return
        gone = [number for number in self._ended if self._names[number] not in self._there]
        if len(gone) >= LISTED:
            self._list = len(self._names), gone
            self._names.append(None)

    def listing(self, partition: int, last: Any) -> dict[str, str] | None:
        """Return the metadata of the list that is to be made; None if the partition is none, or was planned."""
        if self._list is None or self._list[0] != partition:
            return None
        if last is None:
            return self._gone.listed({str(self._names[number]): self._ended[number] for number in self._list[1]})
        for number in self._list[1]:  # it is durable: from here on the list knows their names
            name = self._names[number]
            assert name is not None
            del self._numbers[name], self._ended[number]
            self._names[number] = None
        self._list = None
        self._gone.take({partition: last})
        return None

    def to_forget(self, planned: bool) -> list[int]:
        """Return partitions whose metadata is needed no more, if the list was planned now: a list has their names."""
        return [*self._list[1], *self._gone.drop_oldest()] if self._list is not None and planned else []

    def forget(self, partition: int) -> None:
        """Let a partition be another file: nothing was read of its own, which is gone."""
        name = self._names[partition]
        if name is not None:
            del self._numbers[name], self._unread[partition]
            self._names[partition] = None
            self._free.append(partition)

    def end(self, partition: int, hashed: int) -> None:
        """Take note that a file was read to its end; `hashed` is `file_hash` of it."""
        self._unread.pop(partition, None)
        self._ended[partition] = hashed

    def to_plan(self) -> Iterable[int]:
        """Return the partitions that this look has to look at."""
        checked = list(islice(self._turn, CHECKED))
        if len(checked) < CHECKED:  # from the first one again: what is gone can't change
            self._turn = iter([number for number in self._ended if self._names[number] in self._there])
        listed = [] if self._list is None else [self._list[0]]
        return [*listed, *self._unread, *checked]


# ---- the spout

BATCH_BYTES = 64 << 20
"""Of one file in one transaction: a task holds it in memory as text and as Arrow, some 300 MB."""

_HIDDEN = ("_", ".")
_LOGS = "; if lines are added to it, start with growing=True and a new checkpointLocation"
_GONE = ""
"""In the place of the name of a log that is in the folder under no name."""

_MANIFESTS = ("_spark_metadata", "_statefx")


class FilePartitionedSpout(InFolder, PartitionedTransactionalSpout):
    """Emits the rows of files in a folder; files that come later are read later.

    Each file is a partition, and files are read side by side, each by one task. A file must be complete when it appears
    in the folder (written elsewhere, and renamed), unless `growing`. Names that begin with ``_`` or ``.`` are
    ignored. A file of which all was read may be deleted.

    Parameters
    ----------
    path : str or path
        A folder of the file system, which the driver and all executors see. Its subfolders are ignored; URLs other
        than ``file:`` are refused.
    format : str
        ``parquet``, ``arrow`` (IPC files), ``json`` (an object in each line), ``csv`` or ``text`` (a field ``value``).
    schema : str, StructType or pyarrow.Schema, optional
        The fields of the rows. Required for JSON and CSV; of Parquet and Arrow files, all fields of the first file,
        with Spark's types: times in microseconds, unsigned numbers as wider signed ones, categories as their values.
    header : bool
        Whether the first line of a CSV file has names. Columns are then taken by their names, whatever their order.
    maxBytesPerFile : int
        Of one file in one transaction, at most; a row group or record batch is never split.
    growing : bool
        Files are logs, to which lines are added: a line is read when it has ended. A log that is renamed in its folder
        is followed; names that end with ``.gz`` and the like are ignored. Not for Parquet and Arrow.
    maxFiles : int, optional
        Files that one transaction reads, at most; by default all there are. Not with `growing`.

    Raises
    ------
    TopologyError
        An argument can't be used, or no file is there to read the schema from.
    InputError
        The file from which the schema is read does not have the format.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: str = "parquet",
        schema: Any = None,
        *,
        header: bool = True,
        maxBytesPerFile: int = BATCH_BYTES,
        growing: bool = False,
        maxFiles: int | None = None,
    ) -> None:
        if format not in READERS:
            raise TopologyError(f"FilePartitionedSpout has no format {format!r}; there are {', '.join(READERS)}")
        if growing and format in UNITS:
            raise TopologyError(f"{format} files can't grow: leave out growing=True, or write lines of JSON")
        if not is_count(maxBytesPerFile):
            raise TopologyError(f"maxBytesPerFile={maxBytesPerFile!r}: it is a whole number of bytes, 1 or more")
        # Of logs, the first ones would keep those behind them waiting.
        if maxFiles is not None and (growing or not is_count(maxFiles)):
            raise TopologyError(f"maxFiles={maxFiles!r}: it is 1 or more, and not for files that grow")
        self.path = _folder(path)
        _refuse_manifest(self.path)
        self.format = format
        self.header = header and format == "csv"
        self.growing = growing
        self.bytes_max = maxBytesPerFile
        self.files_max = maxFiles
        self.schema = self._schema(schema)
        self.outputFields = to_ddl(self.schema)
        self._files = KnownFiles()
        self._names_of_logs: list[str | None] = []
        self._logs = Logs(self.path)
        self._inodes: dict[str, int] = {}
        """Of logs, by their names at the last look."""
        self._planned = 0
        self._listed = False
        """Whether this look has planned a list of names."""
        self._bounded = False
        self._until: dict[str | int, int] | None = None
        """The input of a run that ends (availableNow): names of files or inodes of logs, with their sizes then."""

    def _schema(self, given: Any) -> pa.Schema:
        if given is not None:
            return given_schema(self.format, given)
        if self.format == "text":
            return pa.schema({"value": pa.string()})
        if self.format not in UNITS:
            raise TopologyError(
                f"FilePartitionedSpout needs the fields of {self.format} files: schema='account string, amount long'"
            )
        names = self._names() if os.path.isdir(self.path) else []
        if not names:
            raise TopologyError(
                f"{self.path} has no {self.format} file to read the fields from: correct the path, or give them: "
                "schema='account string, amount long'"
            )
        path = os.path.join(self.path, names[0])
        return spark_schema(parts_of(self.format, path).schema, path)

    def reads(self, target: str) -> bool:
        return target == os.path.realpath(self.path)

    # ---- on the driver

    def open(self, context: Context) -> None:
        """Refuse a folder that is not there when the topology starts; one that goes later is waited for."""
        if context.task == DRIVER and not os.path.isdir(self.path):  # it would be waited for without an end
            raise InputError(
                f"{self.path} is not there, or the driver may not see it: correct the path (a relative one begins at "
                "the folder in which the program runs), or make the folder before the start",
                path=self.path,
            )
        _refuse_manifest(self.path)
        self._files, self._names_of_logs, self._logs = KnownFiles(), [], Logs(self.path)
        self._bounded, self._until = False, None

    def prepareForAvailableNow(self) -> None:
        """Read the files that there are at the first look, and logs up to where they end then."""
        self._bounded = True

    def initPartitions(self, metadata: Mapping[int, Any]) -> None:
        """Take over which file is which partition; InputError if `growing` is another, which identifies files."""
        self._listed = False
        for said in metadata.values():
            if ("head" in said) != self.growing:
                path = os.path.join(self.path, said.get("file", ""))
                raise InputError(
                    f"{path} was read with growing={not self.growing}, and now growing={self.growing}: go back, or "
                    "start with a new checkpointLocation",
                    path=path,
                )
        if not self.growing:
            self._files.take(metadata)
            return
        files = {number: said["file"] for number, said in metadata.items()}
        self._names_of_logs = [files.get(number) for number in range(max(files, default=-1) + 1)]
        for number, said in metadata.items():
            self._logs.take(number, said)

    def numPartitions(self) -> int:
        """Return how many files there have been; new ones are the last, in the order of their names."""
        self._planned = 0  # the coordinator calls this first when it looks for input
        if self._bounded and self._until is None:
            there = stats(self.path, self._entries()).values() if self.growing else ()
            self._until = {said.st_ino: said.st_size for said in there}
            self._until |= {} if self.growing else dict.fromkeys(self._names(), sys.maxsize)
        if self.growing:
            return self._follow_logs()
        self._listed = False
        for name, hashed in self._files.look({entry.name for entry in self._entries()}).items():
            self._take_back(name, hashed)
        return len(self._files)

    def _take_back(self, name: str, hashed: int) -> None:
        """See that a file which was read, and was gone for long, is the same one; InputError if not."""
        path = os.path.join(self.path, name)
        try:
            said = os.stat(path)
        except FileNotFoundError:  # it went once more
            return
        if file_hash(said.st_size, self._stamp(said)) != hashed:
            raise self._replaced(path)
        self._files.compared(name)

    def partitionsToForget(self) -> Iterable[int]:
        """Return the files that are gone for long, when their names are in a list."""
        return () if self.growing else self._files.to_forget(self._listed)

    def partitionsToPlan(self) -> Iterable[int]:
        """Return the files of which not all was read, and some of the others, in turn, to see whether they changed."""
        if not self.growing:
            return self._files.to_plan()
        return [
            number for number, name in enumerate(self._names_of_logs) if name != _GONE or not self._logs.is_gone(number)
        ]

    def _follow_logs(self) -> int:
        """Find each log under its present name; files of which nothing was read are new logs."""
        found = stats(self.path, self._entries())
        self._inodes = {name: said.st_ino for name, said in found.items()}
        located = self._logs.locate(found)
        waiting = set(found).difference(name for name in located.values() if name is not None)
        # A name of which nothing was read may be the new name of a log that is followed already.
        names = [name if name in waiting else None for name in self._names_of_logs]
        for partition, name in located.items():
            names[partition] = _GONE if name is None else name
        known = set(names)
        new = iter([name for name in found if name not in known])
        self._names_of_logs = [next(new, None) if name is None else name for name in names]
        self._names_of_logs += new
        return len(self._names_of_logs)

    def _names(self) -> list[str]:
        return sorted(entry.name for entry in self._entries())

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        passed_over = COMPRESSED if self.growing else ()
        try:
            with os.scandir(self.path) as found:
                for entry in found:
                    if not entry.name.startswith(_HIDDEN) and not entry.name.endswith(passed_over) and entry.is_file():
                        yield entry
        except OSError as error:
            raise FailedException(f"{self.path} can't be listed: {error}") from error

    def planPartitionBatch(self, partition: int, lastMetadata: Any) -> Any:
        if not self.growing and (listed := self._files.listing(partition, lastMetadata)) is not None:
            self._listed = True
            return listed
        name = self._names_of_logs[partition] if self.growing else self._files.name(partition)
        if name is None or self._planned == self.files_max:
            return None
        start = 0 if lastMetadata is None else lastMetadata["stop"]
        path = os.path.join(self.path, lastMetadata["file"] if name == _GONE else name)
        try:
            if name == _GONE:
                raise FileNotFoundError
            said = os.stat(path)
            size, stamp = said.st_size, self._stamp(said)
            if self.growing and stamp != self._inodes[name]:
                return None  # it was renamed after the look; the next one finds both
            self._check(path, size, stamp, lastMetadata)
            if self.growing:
                gone = {number for number, log in enumerate(self._names_of_logs) if log == _GONE}
                self._logs.refuse_copy(partition, path, said, gone)
            if lastMetadata is not None and size == lastMetadata["size"] and lastMetadata["end"]:
                if not self.growing:
                    self._files.end(partition, file_hash(size, stamp))
                return None
            until = self._readable(name, said)
            if until is None or (part := self._part(path, start, until, stamp)) is None:
                return None
            stop, end, head = part
        except FileNotFoundError:
            return self._missing(partition, path, lastMetadata)
        if stop == start and (self.growing or lastMetadata is not None):  # an empty file is read to its end as well
            return None
        self._planned += 1
        planned = {
            "file": name,
            "start": start,
            "stop": stop,
            "size": size,
            "stamp": stamp,
            "end": end and until == size,
        }
        if self.growing:
            planned["head"] = head
            self._logs.take(partition, planned)
        return planned

    def _missing(self, partition: int, path: str, last: Any) -> Any:
        """Plan nothing of a file that is not there, but that a log is gone; InputError if some was not read."""
        if last is None:
            if self.growing:
                self._names_of_logs[partition] = None
            else:
                self._files.forget(partition)
        elif last["end"]:  # all of it was read: it may go
            if not self.growing:
                self._files.end(partition, file_hash(last["size"], last["stamp"]))
            elif not last.get("gone") and self._is_gone(partition):
                gone = {**last, "start": last["stop"], "gone": True}
                self._logs.take(partition, gone)
                return gone
        elif not self.growing or self._is_gone(partition):
            raise InputError(
                f"{path} was deleted{', cut' if self.growing else ''} or moved away before all of it was read: put it "
                "back, or start with a new checkpointLocation",
                path=path,
            )
        return None  # or it was renamed while the folder was listed: the next look finds it

    def _is_gone(self, partition: int) -> bool:
        """Return whether a log is in the folder under no name, by another look."""
        return self._logs.locate(stats(self.path, self._entries()))[partition] is None

    def isFinished(self, partition: int, metadata: Any) -> bool:
        """Return whether a file was read to its end, or a log that was read to its end has left the folder."""
        if metadata is None:  # it was forgotten: a list has its name
            return not self.growing
        return bool(metadata.get("gone") or (not self.growing and metadata["end"]))

    def _readable(self, name: str, said: os.stat_result) -> int | None:
        """Return up to which byte this run reads a file; None: the file came after the beginning of the run."""
        if self._until is None:
            return said.st_size
        until = self._until.get(said.st_ino if self.growing else name)
        return None if until is None else min(said.st_size, until)

    def _stamp(self, said: os.stat_result) -> int:
        """Return what identifies a file: its time, or the inode of a log, whose time changes with each line."""
        return said.st_ino if self.growing else said.st_mtime_ns

    def _check(self, path: str, size: int, stamp: int, last: Any) -> None:
        fits = last is None or size == last["size"] or (self.growing and size > last["size"])
        if fits and (last is None or stamp == last["stamp"]):
            return
        if fits:
            raise self._replaced(path)
        how = "is shorter than it was" if size < last["size"] else "has grown"
        remedy = "" if size < last["size"] or self.format in UNITS else _LOGS
        raise InputError(
            f"{path} {how} ({size:,} bytes, and {last['size']:,} when it was read last): it was cut, replaced or "
            f"written to. Restore it, and give new rows a file of their own{remedy}",
            path=path,
        )

    def _replaced(self, path: str) -> InputError:
        what = "another file than" if self.growing else "newer than"
        return InputError(
            f"{path} is {what} the one that was read: it was replaced or written to. Put the former one back"
            f"{'' if self.growing else ' with its time (cp -p)'}, and give new rows a file of their own"
            f"{' (logrotate: create, not copytruncate)' if self.growing else ''}",
            path=path,
        )

    def _part(self, path: str, start: int, until: int, stamp: int) -> tuple[int, bool, int | None] | None:
        """Return where a batch ends, whether the file ends there, and how a log begins; None if that was rotated.

        Else the log of transactions had the beginning of the new file for that of the old one, and no start could pass.
        """
        stop, end = self._stop(path, start, until)
        if not self.growing:
            return stop, end, None
        head = head_of(path, stop)
        return (stop, end, head) if os.stat(path).st_ino == stamp else None

    def _stop(self, path: str, start: int, size: int) -> tuple[int, bool]:
        """Return where a batch that begins at `start` ends, and whether the file ends there."""
        if self.format in UNITS:
            sizes = parts_of(self.format, path).sizes
            stop, taken = start, 0
            while stop < len(sizes) and (stop == start or taken + sizes[stop] <= self.bytes_max):
                taken += sizes[stop]
                stop += 1
            return stop, stop == len(sizes)
        if start == 0 and path.endswith(COMPRESSED):
            raise InputError(
                f"{path} is compressed, and can't be read in ranges of lines: unpack it, or write Parquet, which is "
                "compressed inside. Take it out of the folder",
                path=path,
            )
        stop = min(size, start + self.bytes_max)
        if stop == size and not self.growing:
            return stop, True
        found = (behind_last_row if self.format == "csv" else behind_last_line)(path, start, stop)
        if found == start and stop < size:
            raise InputError(
                f"{path} has a line of more than {self.bytes_max:,} bytes at {start:,}: set maxBytesPerFile higher"
                f"{', and look for a quote that is not closed' if self.format == 'csv' else ''}",
                path=path,
            )
        return found, found == size

    # ---- in the tasks

    def emitPartitionBatch(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, metadata: Any
    ) -> Iterator[None]:
        if metadata.get("start") == metadata.get("stop"):  # also of a list of names
            return
        path = present_path(self.path, metadata) if self.growing else os.path.join(self.path, metadata["file"])
        try:
            said = os.stat(path)
            if self.growing and present_path(self.path, metadata) != path:
                raise _rotated(path)
            self._check(path, said.st_size, self._stamp(said), metadata)
            if self.growing and head_of(path, metadata["stop"]) != metadata["head"]:
                self._check_same(path, metadata)
                raise self._replaced(path)
            part = Range(path, metadata["start"], metadata["stop"])
            for batch in read(self.format, self.schema, self.header, part):
                collector.emitBatch(batch)
                yield
            self._check_same(path, metadata)
        except (pa.ArrowException, OSError) as error:
            if is_fault(error) or isinstance(error, ShorterError):
                raise FailedException(f"{path} can't be read: {error}") from error
            raise unreadable(self.format, path, f", from {metadata['start']} to {metadata['stop']}", error) from error

    def _check_same(self, path: str, metadata: Any) -> None:
        """Raise FailedException if a log was rotated since its path was found: what was read may be of the new one."""
        if self.growing and os.stat(path).st_ino != metadata["stamp"]:
            raise _rotated(path)


def _rotated(path: str) -> FailedException:
    return FailedException(f"{path} was rotated while it was read")


def _folder(given: Any) -> str:
    """Return the absolute path of a folder, which need not be there yet; TopologyError for URLs and files."""
    path = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(path, str) or not path.strip():
        raise TopologyError(f"path={given!r}: it is a folder, such as 'data/in'")
    path = path_of(path)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", path):
        raise TopologyError(
            f"path={path!r}: FilePartitionedSpout reads folders of the file system, and no URLs. Mount it, or let "
            "Spark read it: setStream(id, spark.readStream.format(...).schema(...).load(path))"
        )
    path = os.path.abspath(path)
    if os.path.exists(path) and not os.path.isdir(path):
        raise TopologyError(
            f"{path} is no folder: FilePartitionedSpout reads all files of a folder. Put the file into a folder of its "
            "own, and name that"
        )
    return path


def _refuse_manifest(folder: str) -> None:
    """Refuse a folder in which a manifest, not the presence of a file, says what is committed."""
    for name in _MANIFESTS:
        if os.path.exists(os.path.join(folder, name)):
            raise TopologyError(
                f"{folder} has {name}: a sink writes there, and its folder also has files of transactions that "
                "are not committed. Read it with setStream(id, readCommitted(spark, path, stream=True))"
            )
