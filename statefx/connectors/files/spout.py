"""Files of a folder as the input of transactions, read by pyarrow in the tasks.

A file is a partition. A batch of it is a range: of row groups or record batches where the format has them, else of
bytes that end behind a line. The metadata of a batch names the file and says how long it was, so that one that was cut
short or replaced since is noticed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from statefx.connectors.fields import given_schema, spark_schema
from statefx.connectors.files.known import KnownFiles, file_hash
from statefx.connectors.files.logs import COMPRESSED, Logs, head_of, present_path, stats
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
from statefx.operators import Collector, Context, PartitionedTransactionalSpout, to_ddl
from statefx.operators.context import DRIVER
from statefx.protocol.identity import TransactionAttempt
from statefx.storage import path_of

BATCH_BYTES = 64 << 20
"""Of one file in one transaction: a task holds it in memory as text and as Arrow, some 300 MB."""

_HIDDEN = ("_", ".")
_LOGS = "; if lines are added to it, start with growing=True and a new checkpointLocation"
_GONE = ""
"""In the place of the name of a log that is in the folder under no name."""

_MANIFESTS = ("_spark_metadata", "_statefx")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


class FilePartitionedSpout(PartitionedTransactionalSpout):
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
        if not _is_count(maxBytesPerFile):
            raise TopologyError(f"maxBytesPerFile={maxBytesPerFile!r}: it is a whole number of bytes, 1 or more")
        # Of logs, the first ones would keep those behind them waiting.
        if maxFiles is not None and (growing or not _is_count(maxFiles)):
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
        """What a run that ends (availableNow) reads: names of files or inodes of logs, with their sizes then."""

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
        """Tell whether it is the folder."""
        return target == os.path.realpath(self.path)

    # ---- on the driver

    def open(self, context: Context) -> None:
        """Begin with no file.

        Raises
        ------
        InputError
            The folder is not there when the topology starts. One that goes later is waited for.
        """
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
        """Take over from the log of transactions which file is which partition.

        Raises
        ------
        InputError
            `growing` is another than before: a log is identified in another way than a file.
        """
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
        for name, hashed in self._files.look({each.name for each in self._entries()}).items():
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
        return sorted(each.name for each in self._entries())

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        """Yield the files that are read."""
        passed_over = COMPRESSED if self.growing else ()
        try:
            with os.scandir(self.path) as found:
                for each in found:
                    if not each.name.startswith(_HIDDEN) and not each.name.endswith(passed_over) and each.is_file():
                        yield each
        except OSError as error:
            raise FailedException(f"{self.path} can't be listed: {error}") from error

    def planPartitionBatch(self, partition: int, lastMetadata: Any) -> Any:
        """Return the next range of a file."""
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
            if (until := self._readable(name, said)) is None:
                return None
            stop, end = self._stop(path, start, until)
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
            planned["head"] = head_of(path, stop)
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
        """Tell whether a log is in the folder under no name, by another look."""
        return self._logs.locate(stats(self.path, self._entries()))[partition] is None

    def isFinished(self, partition: int, metadata: Any) -> bool:
        """Tell whether a file was read to its end, or a log that was read to its end has left the folder."""
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
        """Refuse a file that is not the one from which a part was read."""
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
        """Emit a range of a file, batch by batch."""
        if metadata.get("start") == metadata.get("stop"):  # also of a list of names
            return
        path = present_path(self.path, metadata) if self.growing else os.path.join(self.path, metadata["file"])
        try:
            said = os.stat(path)
            self._check(path, said.st_size, self._stamp(said), metadata)
            if self.growing and head_of(path, metadata["stop"]) != metadata["head"]:
                raise self._replaced(path)
            part = Range(path, metadata["start"], metadata["stop"])
            for batch in read(self.format, self.schema, self.header, part):
                collector.emitBatch(batch)
                yield
        except (pa.ArrowException, OSError) as error:
            if is_fault(error) or isinstance(error, ShorterError):
                raise FailedException(f"{path} can't be read: {error}") from error
            raise unreadable(self.format, path, f", from {metadata['start']} to {metadata['stop']}", error) from error


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
