"""FileSink: rows as files in a folder, seen by Spark when their transaction is committed."""

from __future__ import annotations

import json
import os
import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from operator import attrgetter

import pyarrow as pa
from xxhash import xxh3_128

from statefx.errors import ConfigError, SinkError, StagedRowsLostError, TopologyError
from statefx.operators.sinks import (
    COMMITTABLE_BYTES_MAX,
    UNFENCED,
    Committable,
    CommitterContext,
    Marker,
    Reached,
    Sink,
    SinkCommitter,
    SinkWriter,
    WriterContext,
    starting_point,
)
from statefx.protocol.identity import TransactionAttempt
from statefx.sinks.formats import FORMATS, FileFormat
from statefx.sinks.held import HeldFile
from statefx.sinks.layout import Layout
from statefx.sinks.manifest import AddedFile, Manifest
from statefx.storage import FolderStorage, Storage
from statefx.storage.contract import at_once

FILE_BYTES = 128 << 20
"""Spark's readers split at 128 MB, and a file that is not split needs no second look at its footer."""

FILES_OPEN_MAX = 32
"""A file being written holds buffers: Parquet's about 1 MB a column."""

HELD_BYTES = 32 << 20
"""Rows that a task holds before it writes a group of them; of partitions, all that are open share this."""

_LISTS = "_statefx/lists"
_FOLDER_NAME_BYTES_MAX = 255
"""Of Linux's file systems. A longer name fails as a disk does, which would be tried again for ever."""

_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_TO_ESCAPE = re.compile(r'["#%\'*/:=?\\\x7f{\[\]^\x00-\x1f]')
"""What Hive, and so Spark, writes as %XX in the name of a partition's folder."""


_NO_FOLDER = (
    pa.types.is_nested,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_duration,
)
"""Types whose values are no text."""


class FileSink(Sink):
    """Writes files that Spark, and `committedFiles`, see when their transaction is committed: all of it or nothing.

    Files are written by the tasks, under their final names. A manifest in Spark's own format says which are committed,
    so ``spark.read.parquet(path)`` and ``spark.readStream`` see those alone. Programs that do not know the manifest
    (pandas, DuckDB) are given ``statefx.committedFiles(path)``.

    Parameters
    ----------
    path : str or path
        A folder that the driver and the executors see at this path, of this sink alone; made if there is none.
    format : str
        ``parquet``, ``json`` (a JSON object a line) or ``csv`` (with a line of names).
    partitionBy : sequence of str
        Fields whose values become folders, as in ``DataFrameWriter.partitionBy``; the files do not hold them.
    maxFileBytes : int
        A file that has become larger is closed, and the next one begun.

    Raises
    ------
    ConfigError
        An argument can't be used.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: str = "parquet",
        *,
        partitionBy: Sequence[str] = (),
        maxFileBytes: int = FILE_BYTES,
    ) -> None:
        text = os.fspath(path)
        if not isinstance(text, str) or not text or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text):
            raise ConfigError(f"FileSink needs a folder's path that driver and executors see, got {path!r}")
        if re.search(r"[{}\[\]*?\\]", os.path.realpath(text)):
            raise ConfigError(
                f"FileSink can't write to {path!r}: Spark's streams take {{}}[]*?\\ for patterns, and read uncommitted "
                "rows then. Give a folder without them"
            )
        if format not in FORMATS:
            raise ConfigError(f"FileSink has no format {format!r}; there are {', '.join(map(repr, FORMATS))}")
        if isinstance(maxFileBytes, bool) or not isinstance(maxFileBytes, int) or maxFileBytes < 1:
            raise ConfigError(f"maxFileBytes must be a number of bytes, got {maxFileBytes!r}")
        self.path = os.path.realpath(text)
        self.format = format
        self.partition_by = (partitionBy,) if isinstance(partitionBy, str) else tuple(partitionBy)
        self.max_file_bytes = maxFileBytes

    @property
    def target(self) -> str:
        """The folder."""
        return self.path

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse fields that the format can't hold, and partition fields that there are not."""
        for name in self.partition_by:
            if schema.get_field_index(name) < 0:
                raise TopologyError(f"FileSink is partitioned by {name!r}; its rows have {', '.join(schema.names)}")
            kind = schema.field(name).type
            if any(fits(kind) for fits in _NO_FOLDER):
                raise TopologyError(f"FileSink can't be partitioned by {name!r}, which is {kind}", field=name)
        if len(set(self.partition_by)) == len(schema):
            raise TopologyError("FileSink is partitioned by all fields: none is left for the files")
        FORMATS[self.format].refuse(self.schema_of_files(schema))

    def schema_of_files(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema without the fields that are folders."""
        return pa.schema([field for field in schema if field.name not in self.partition_by])

    def writer(self, context: WriterContext) -> SinkWriter:
        """Make what writes the files of one task."""
        return _Writer(self, context)

    def committer(self, context: CommitterContext) -> SinkCommitter:
        """Make what publishes them."""
        return _Committer(self, context)


def committedFiles(path: str | os.PathLike[str]) -> list[str]:
    """Return the files of a FileSink's folder that are committed, in the order of their transactions.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    list of str
        Absolute paths: ``pandas.concat(map(pandas.read_parquet, committedFiles(path)))``.

    Raises
    ------
    SinkError
        There is no such folder, no FileSink has written there, or the manifest is damaged.
    """
    manifest = Manifest(os.path.realpath(os.fspath(path)))
    if manifest.newest() is None:
        raise SinkError(f"{path} holds no committed files: there is no manifest of a FileSink, or of Spark", path=path)
    return [manifest.storage.path(each.name) for each in manifest.files()]


@dataclass
class _Open:
    """A file being written, and what turns rows into its bytes."""

    held: HeldFile
    format: FileFormat


class _Writer(SinkWriter):
    """Writes a task's rows to files of their own, one for each partition and `FILE_BYTES`."""

    def __init__(self, sink: FileSink, context: WriterContext) -> None:
        self._sink = sink
        self._context = context
        self._storage = FolderStorage(sink.path)
        self._schema = sink.schema_of_files(context.schema)
        self._open: OrderedDict[str, _Open] = OrderedDict()
        shares = FILES_OPEN_MAX if sink.partition_by else 1
        self._held_bytes_max = min(HELD_BYTES // shares, sink.max_file_bytes)
        self._ready: list[AddedFile] = []
        self._list: str | None = None
        self._numbers = 0
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._rows += batch.num_rows
        for folder, part in _partitions(batch, self._sink.partition_by):
            self._write(folder, part)

    def _write(self, folder: str, batch: pa.RecordBatch) -> None:
        found = self._open.get(folder) or self._begin(folder)
        self._open.move_to_end(folder)
        found.format.write(batch)
        if found.held.file.tell() >= self._sink.max_file_bytes:
            self._end(folder)

    def _begin(self, folder: str) -> _Open:
        while len(self._open) >= FILES_OPEN_MAX:
            self._end(next(iter(self._open)))
        context, kind = self._context, FORMATS[self._sink.format]
        name = f"{folder}part-{context.attempt.txid:010d}-{context.task:05d}-{context.token}-{self._numbers:04d}"
        self._numbers += 1
        held = HeldFile(self._storage, name + kind.suffix)
        self._open[folder] = _Open(held, kind(held.file, self._schema, self._held_bytes_max))
        return self._open[folder]

    def _end(self, folder: str) -> None:
        found = self._open.pop(folder)
        try:
            found.format.close()
            size = found.held.file.tell()
        except BaseException:
            found.held.drop()
            raise
        found.held.keep()
        self._ready.append(AddedFile(found.held.name, size, int(time.time() * 1000)))

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
        context = self._context
        self._list = f"{_LISTS}/part-{context.attempt.txid:010d}-{context.task:05d}-{context.token}.json"
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
                found.format.close()
            found.held.drop()
        self._storage.delete([each.name for each in self._ready] + ([self._list] if self._list else []))


def _partitions(batch: pa.RecordBatch, fields: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the folder, with its slash, and the rows of each partition, without the fields that are folders."""
    if not fields:
        yield "", batch
        return
    table = pa.table(batch.select(list(fields)))
    order = pa.array(range(batch.num_rows), pa.int64())
    groups = table.append_column("__at", order).group_by(list(fields), use_threads=False).aggregate([("__at", "list")])
    rest = batch.drop_columns(list(fields))
    folders = [[_folder(name, text) for text in _texts(groups.column(name))] for name in fields]
    for number, at in enumerate(groups.column("__at_list")):
        yield "".join(of_field[number] for of_field in folders), rest.take(at.values)


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    """Return values as Spark writes them; pyarrow writes the double 1.0 as 1, from which Spark would infer integers."""
    if pa.types.is_floating(column.type):
        return [None if value is None else _NOT_FINITE.get(str(value), str(value)) for value in column.to_pylist()]
    texts: list[str | None] = column.cast(pa.string()).to_pylist()
    return texts


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""Of numbers that Python and Java do not write alike."""


def _folder(field: str, text: str | None) -> str:
    """Return the name of a partition's folder, with its slash.

    Raises
    ------
    SinkError
        The value is too long.
    """
    name = f"{_escaped(field)}={_escaped(text) if text else _NULL_PARTITION}"
    if len(name.encode()) > _FOLDER_NAME_BYTES_MAX:
        raise SinkError(
            f"FileSink is partitioned by {field!r}, and a folder's name has {_FOLDER_NAME_BYTES_MAX} bytes at most: "
            f"{name[:60]}... has {len(name.encode())}",
            field=field,
        )
    return name + "/"


def _escaped(text: str) -> str:
    return _TO_ESCAPE.sub(lambda found: f"%{ord(found[0]):02X}", text)


class _Committer(SinkCommitter):
    """Publishes files by naming them in the manifest."""

    def __init__(self, sink: FileSink, context: CommitterContext) -> None:
        self._sink = sink
        self._owner = context.owner
        self._manifest = Manifest(sink.path)
        self._layout = Layout.of(sink.format, sink.partition_by, context.schema)

    def check(self, reached: Reached, *, takeover: bool) -> None:
        self._manifest.layout(self._layout)
        if not takeover:
            starting_point(self._manifest.marker(), self._owner, reached, self._sink.path, takeover=False)

    def fence(self, reached: Reached, *, takeover: bool) -> None:
        self._manifest.fence(self._owner, reached, self._layout, takeover=takeover)

    def commit(self, attempt: TransactionAttempt, committables: Mapping[int, Committable]) -> None:
        def files() -> list[AddedFile]:
            storage = self._manifest.storage
            found = [each for task in sorted(committables) for each in _files(storage, committables[task])]
            sizes = storage.sizes([each.name for each in found])
            for each, size_bytes in zip(found, sizes, strict=True):
                self._check(each, size_bytes)
            return found

        self._manifest.publish(self._owner, attempt.txid, files)

    def _check(self, file: AddedFile, size_bytes: int | None) -> None:
        """Make sure that what is published can be read: a manifest that names a lost file breaks every reader."""
        if size_bytes != file.size_bytes:
            path = self._manifest.storage.path(file.name)
            found = "is missing" if size_bytes is None else f"has {size_bytes} bytes, not {file.size_bytes}"
            raise StagedRowsLostError(
                f"{path} {found}: it holds rows of a transaction that is decided, and that is not published yet. "
                "Restore the file; the sink goes on by itself then",
                file=path,
            )

    def sweep(self, committed: int) -> None:
        """Delete files of transactions up to `committed` that no manifest names, and what writers left unfinished.

        The order matters (rule 4.3). Files are listed before the owner is asked for: those of who takes over come
        later, so they are not among them; its transactions may have smaller numbers than `committed`.
        """
        storage = self._manifest.storage
        found = [each.name for each in storage.list() if txid_of_file(each.name) is not None]
        marker = self._manifest.marker()
        if marker is None or marker.txid == UNFENCED or marker != Marker.of(self._owner, marker.txid):
            return
        named = {each.name for each in self._manifest.files()}
        storage.delete(name for name in found if name not in named and (txid_of_file(name) or 0) <= committed)
        storage.discard_unfinished("")
        self._manifest.forget_old()


def _files(storage: Storage, committable: Committable) -> list[AddedFile]:
    """Return what a task has written, which it may have put into a file of its own."""
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
    return [AddedFile(**each) for each in committable["files"]]


def txid_of_file(name: str) -> int | None:
    """Return the transaction of a file that a writer named; None if it is none of those."""
    found = re.match(r"part-(\d{10})-", name.rpartition("/")[2])
    return None if found is None else int(found[1])
