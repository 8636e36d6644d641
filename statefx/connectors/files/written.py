"""What tasks of a FileSink write: files under their final names, which count when the commit has named them.

::

    <folder>/part-<txid>-<task>-<token>-<n><suffix>      rows of one task in one attempt; they count once they are named
    <folder>/_statefx/lists/part-<txid>-<task>-<token>   names of a task's files, where those are too many for the log
"""

from __future__ import annotations

import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import BinaryIO

import pyarrow as pa
from xxhash import xxh3_128

from statefx.connectors.files.writers import FileFormat
from statefx.connectors.held import HeldFile
from statefx.errors import StagedRowsLostError
from statefx.operators.sinks import COMMITTABLE_BYTES_MAX, Committable, SinkWriter, WriterContext
from statefx.storage import FolderStorage
from statefx.storage.contract import at_once

FILE_BYTES = 128 << 20
"""Spark's readers split at 128 MB, and a file that is not split needs no second look at its footer."""

FILES_OPEN_MAX = 32
"""A file being written holds buffers: Parquet's about 1 MB a column."""

_LISTS = "_statefx/lists"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a task has written.

    Attributes
    ----------
    name : str
        Below the folder.
    size_bytes : int
    modified_ms : int
        Since the epoch.
    """

    name: str
    size_bytes: int
    modified_ms: int


@dataclass
class _Open:
    """A file being written, and what turns rows into its bytes."""

    held: HeldFile
    rows: FileFormat


class FileWriter(SinkWriter):
    """Writes a task's rows to files of their own.

    Parameters
    ----------
    context : WriterContext
    folder : str
    suffix : str
        How the names of files end.
    file_bytes : int
        A file that has become larger is closed, and the next one begun.
    parts : callable
        Yields the rows of each folder below the sink's own, with its name: ``""``, or one that ends with a slash.
    begin : callable
        Returns what writes rows into a new file.
    """

    def __init__(
        self,
        context: WriterContext,
        folder: str,
        suffix: str,
        file_bytes: int,
        parts: Callable[[pa.RecordBatch], Iterable[tuple[str, pa.RecordBatch]]],
        begin: Callable[[BinaryIO, pa.Schema], FileFormat],
    ) -> None:
        self._context = context
        self._storage = FolderStorage(folder)
        self._suffix, self._file_bytes = suffix, file_bytes
        self._parts, self._begin_rows = parts, begin
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._ready: list[WrittenFile] = []
        self._list: str | None = None
        self._begun = 0
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._rows += batch.num_rows
        for folder, part in self._parts(batch):
            self._write(folder, part)

    def _write(self, folder: str, batch: pa.RecordBatch) -> None:
        found = self._open.get(folder) or self._begin(folder)
        self._open.move_to_end(folder)
        found.rows.write(batch)
        if found.held.file.tell() >= self._file_bytes:
            self._end(folder)

    def _begin(self, folder: str) -> _Open:
        while len(self._open) >= FILES_OPEN_MAX:
            self._end(next(iter(self._open)))
        held = HeldFile(self._storage, f"{folder}{self._own_name}-{self._begun:04d}{self._suffix}")
        self._begun += 1
        try:
            self._open[folder] = _Open(held, self._begin_rows(held.file, self._context.schema))
        except BaseException:
            held.drop()
            raise
        return self._open[folder]

    @property
    def _own_name(self) -> str:
        """How names of this attempt begin: the txid is for `sweep`, the token because Spark may run a task twice."""
        context = self._context
        return f"part-{context.attempt.txid:010d}-{context.task:05d}-{context.token}"

    def _end(self, folder: str) -> None:
        found = self._open.pop(folder)
        try:
            found.rows.close()
            size = found.held.file.tell()
        except BaseException:
            found.held.drop()
            raise
        found.held.keep()
        self._ready.append(WrittenFile(found.held.name, size, int(time.time() * 1000)))

    def prepare(self, txid: int) -> Committable | None:
        # Together: an fsync waits for the disk, and a task may have a file in each of many folders.
        at_once(list(self._open), self._end)
        if not self._ready:
            return None
        self._ready.sort(key=attrgetter("name"))
        listed = [asdict(each) for each in self._ready]
        size = sum(each.size_bytes for each in self._ready)
        told: Committable = {"files": listed, "rows": self._rows, "bytes": size}
        if len(text := json.dumps(told)) < COMMITTABLE_BYTES_MAX:
            return told
        self._list = f"{_LISTS}/{self._own_name}.json"
        self._storage.put(self._list, text.encode())
        return {
            "list": self._list,
            "checksum": xxh3_128(text.encode()).hexdigest(),
            "rows": self._rows,
            "bytes": size,
        }

    def abort(self) -> None:
        while self._open:
            _, found = self._open.popitem()
            with suppress(Exception):  # a writer that is not closed complains when it is collected
                found.rows.close()
            found.held.drop()
        self._storage.delete([each.name for each in self._ready] + ([self._list] if self._list else []))


def written_files(storage: FolderStorage, committables: Mapping[int, Committable]) -> list[WrittenFile]:
    """Return the files of a transaction, in the order of the tasks, each of which is there.

    Raises
    ------
    StagedRowsLostError
        One is missing, or has another length than it was given. Its bytes are not read: the driver would read again
        what all tasks have written.
    """
    found = [each for task in sorted(committables) for each in _files(storage, committables[task])]
    for file, size_bytes in zip(found, storage.sizes([each.name for each in found]), strict=True):
        if size_bytes != file.size_bytes:
            path = storage.path(file.name)
            seen = "is missing" if size_bytes is None else f"has {size_bytes} bytes, not {file.size_bytes}"
            raise StagedRowsLostError(
                f"{path} {seen}: it holds rows of a transaction that is decided, and that is not published yet. "
                "Restore the file; the sink goes on by itself then",
                file=path,
            )
    return found


def _files(storage: FolderStorage, committable: Committable) -> Iterator[WrittenFile]:
    """Yield the files of a task; a long list of them is in a file of its own."""
    if "files" not in committable:
        name = str(committable["list"])
        try:
            data = storage.read(name)
        except FileNotFoundError:
            data = b""
        if xxh3_128(data).hexdigest() != committable["checksum"]:
            raise StagedRowsLostError(
                f"{storage.url}/{name} is missing or damaged: it names files of a transaction that is decided. Restore "
                "it; the sink goes on by itself then",
                file=name,
            )
        committable = json.loads(data)
    for each in committable["files"]:
        yield WrittenFile(**each)


def txid_of_file(name: str) -> int | None:
    """Return the transaction of a file that a writer named; None if the name is not a writer's."""
    found = re.match(r"part-(\d{10})-", name.rpartition("/")[2])
    return None if found is None else int(found[1])
