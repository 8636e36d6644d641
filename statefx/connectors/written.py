"""The base of sinks whose tasks write files that stay where they are; the commit names them.

::

    <folder>/part-<txid>-<task>-<token>-<n><suffix>      rows of one task in one attempt; they count once they are named
    <folder>/_statefx/lists/part-<txid>-<task>-<token>   names of a task's files, where those are too many for the log
"""

from __future__ import annotations

import json
import os
import re
import time
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
from xxhash import xxh3_128

from statefx.connectors.held import HeldFile
from statefx.connectors.marked import MarkedCommitter, Place
from statefx.errors import StagedRowsLostError, TopologyError
from statefx.operators.sinks import (
    COMMITTABLE_BYTES_MAX,
    UNFENCED,
    Committable,
    CommitterContext,
    Marker,
    Owner,
    Sink,
    SinkCommitter,
    SinkWriter,
    WriterContext,
)
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


class RowsFile(Protocol):
    """Turns rows into the bytes of one file: writers of ``pyarrow.parquet`` and ``pyarrow.csv`` are such."""

    def write(self, batch: pa.RecordBatch, /) -> Any:
        """Add rows."""

    def close(self) -> Any:
        """Write what is held back; the file itself is closed by who opened it."""


class WritesFiles(Sink):
    """A sink whose tasks write files that stay where they are, in a folder or below it.

    A subclass says which folder (`target`: absolute, where the driver and the executors see it), and how rows become
    bytes (`begin`).

    Attributes
    ----------
    suffix : str
        How the names of files end.
    max_file_bytes : int
        A file that has become larger is closed, and the next one begun.
    """

    suffix: str = ""
    max_file_bytes: int = FILE_BYTES

    @abstractmethod
    def begin(self, file: BinaryIO, schema: pa.Schema) -> RowsFile:
        """Return what writes rows into a new file; called in the tasks."""

    def parts(self, batch: pa.RecordBatch) -> Iterable[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each folder below the sink's own, with its name; ``""``, or one that ends with a slash."""
        yield "", batch

    def writer(self, context: WriterContext) -> SinkWriter:
        """Make what writes the files of one task."""
        return _Writer(self, context)


class WrittenSink(WritesFiles):
    """A sink whose tasks write files that stay where they are, and that count once a catalog names them.

    Beside what `WritesFiles` asks for, a subclass gives a `Catalog` (`connect`), which names files and keeps the marker
    beside the names. The folder is the sink's alone. A file whose transaction is over and that is not named is deleted.
    """

    @abstractmethod
    def connect(self, schema: pa.Schema) -> Catalog:
        """Open the catalog; called on the driver, again after an error."""

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse a folder whose path means another one in each process."""
        if not os.path.isabs(self.target):
            raise TopologyError(
                f"{type(self).__name__} writes to {self.target!r}: its 'target' must be an absolute path, which means "
                "the same folder for the driver and the executors"
            )

    def committer(self, context: CommitterContext) -> SinkCommitter:
        """Make what publishes them."""
        return _Committer(self.target, context, lambda: self.connect(context.schema))


class Catalog(Place[Sequence[WrittenFile]]):
    """Names the files of a folder that count, and keeps the marker beside the names.

    Every method may raise anything; the error is shown in ``query.status`` and the call is repeated.
    """

    @abstractmethod
    def publish(self, marker: Marker, previous: Marker | None, files: Sequence[WrittenFile]) -> None:
        """Name all `files` and write `marker` in one atomic act.

        Must do nothing and raise if the marker there is not `previous` any more: another driver was here (rule 10.8).
        At the start of a driver there are no files, and only the owner in the marker changes.
        """

    @abstractmethod
    def names(self) -> Iterable[str]:
        """Return the names of all files that were ever published and are not given up: `sweep` leaves them alone."""


@dataclass
class _Open:
    """A file being written, and what turns rows into its bytes."""

    held: HeldFile
    rows: RowsFile


class _Writer(SinkWriter):
    """Writes a task's rows to files of their own, one for each part and `max_file_bytes`."""

    def __init__(self, sink: WritesFiles, context: WriterContext) -> None:
        self._sink = sink
        self._context = context
        self._storage = FolderStorage(sink.target)
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._ready: list[WrittenFile] = []
        self._list: str | None = None
        self._numbers = 0
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._rows += batch.num_rows
        for folder, part in self._sink.parts(batch):
            self._write(folder, part)

    def _write(self, folder: str, batch: pa.RecordBatch) -> None:
        found = self._open.get(folder) or self._begin(folder)
        self._open.move_to_end(folder)
        found.rows.write(batch)
        if found.held.file.tell() >= self._sink.max_file_bytes:
            self._end(folder)

    def _begin(self, folder: str) -> _Open:
        while len(self._open) >= FILES_OPEN_MAX:
            self._end(next(iter(self._open)))
        held = HeldFile(self._storage, f"{folder}{self._own_name}-{self._numbers:04d}{self._sink.suffix}")
        self._numbers += 1
        try:
            self._open[folder] = _Open(held, self._sink.begin(held.file, self._context.schema))
        except BaseException:
            held.drop()
            raise
        return self._open[folder]

    @property
    def _own_name(self) -> str:
        """How names of this attempt begin: the txid for `sweep`, the token because Spark may run a task twice."""
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


class _Committer(MarkedCommitter[Catalog]):
    """Has the catalog name the files of a transaction, unless its marker says that they are named."""

    def __init__(self, folder: str, context: CommitterContext, connect: Callable[[], Catalog]) -> None:
        super().__init__(folder, context, connect)
        self._storage = FolderStorage(folder)

    def _content(self, committables: Mapping[int, Committable]) -> Sequence[WrittenFile]:
        return written_files(self._storage, committables)

    def sweep(self, committed: int) -> None:
        with self._connected() as catalog:
            sweep(self._storage, self._context.owner, committed, catalog.marker, catalog.names)


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
    """Yield what a task has written, which it may have put into a file of its own."""
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


def sweep(
    storage: FolderStorage,
    owner: Owner,
    committed: int,
    marker: Callable[[], Marker | None],
    names: Callable[[], Iterable[str]],
) -> bool:
    """Delete files of transactions up to `committed` that are not named, and what writers left unfinished.

    The order matters (rule 4.3). Files are listed before the owner is asked for: those of who takes over come later, so
    they are not among them; its transactions may have smaller numbers than `committed`.

    Returns
    -------
    bool
        Whether `owner` still has the folder. If not, nothing was deleted.
    """
    found = [each.name for each in storage.list() if txid_of_file(each.name) is not None]
    newest = marker()
    if newest is None or newest.txid == UNFENCED or newest != Marker.of(owner, newest.txid):
        return False
    named = set(names())
    storage.delete(name for name in found if name not in named and (txid_of_file(name) or 0) <= committed)
    storage.discard_unfinished("")
    return True


def txid_of_file(name: str) -> int | None:
    """Return the transaction of a file that a writer named; None if it is none of those."""
    found = re.match(r"part-(\d{10})-", name.rpartition("/")[2])
    return None if found is None else int(found[1])
