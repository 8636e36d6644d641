"""FileSink: rows as files in a folder, seen by Spark when their transaction is committed."""

from __future__ import annotations

import json
import os
import re
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from operator import attrgetter
from typing import BinaryIO, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_128

from statefx.config import is_count
from statefx.connectors.files.manifest import LISTS, Layout, Manifest, WrittenFile, txid_of_file, written_files
from statefx.connectors.staged import UnfinishedFile
from statefx.errors import ConfigError, SinkError, TopologyError
from statefx.operators.folders import InFolder
from statefx.operators.json_values import JsonRows, refuse_keys
from statefx.operators.sinks import (
    COMMITTABLE_BYTES_MAX,
    UNFENCED,
    CheckpointPosition,
    Committable,
    CommitterContext,
    Marker,
    Sink,
    SinkCommitter,
    SinkWriter,
    WriterContext,
    starting_point,
)
from statefx.protocol.identity import TransactionAttempt
from statefx.storage import FolderStorage, path_of
from statefx.storage.contract import at_once
from statefx.storage.folder import probe

# ---- how rows become files, as Spark writes and reads them


class FileFormat(ABC):
    """Writes one file; made with the file open for writing."""

    suffix: ClassVar[str]

    reading: ClassVar[Mapping[str, str]] = {}
    """Options with which Spark reads such files as they were written."""

    @classmethod
    def refuse(cls, schema: pa.Schema) -> None:
        """Raise TopologyError for a field that a file of this format can't hold."""

    @abstractmethod
    def __init__(self, file: BinaryIO, schema: pa.Schema, held_bytes_max: int) -> None:
        """Begin a file; rows of at most `held_bytes_max` bytes may wait in memory."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""

    @abstractmethod
    def close(self) -> None:
        """Write the rows that wait in memory. The caller closes the file."""


class Parquet(FileFormat):
    """Apache Parquet, compressed by snappy, as Spark's is."""

    suffix = ".snappy.parquet"

    def __init__(self, file: BinaryIO, schema: pa.Schema, held_bytes_max: int) -> None:
        import pyarrow.parquet  # noqa: PLC0415 - 35 ms at every start of a worker, most of which write no Parquet

        # Microseconds: Spark reads nanoseconds only with a switch. Pages have checksums, as Spark's have: a reader
        # then notices damage whenever it happened. They cost 4 % of the time that writing takes.
        self._writer = pyarrow.parquet.ParquetWriter(
            file, schema, compression="snappy", coerce_timestamps="us", store_schema=False, write_page_checksum=True
        )
        self._waiting: list[pa.RecordBatch] = []
        self._bytes, self._bytes_max = 0, held_bytes_max

    def write(self, batch: pa.RecordBatch) -> None:
        # Every call of the writer makes a row group. One for each batch of 10,000 rows took a fifth more time, and the
        # files were a sixth larger.
        self._waiting.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= self._bytes_max:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
            self._waiting, self._bytes = [], 0

    def close(self) -> None:
        try:
            self._flush()
        finally:
            self._writer.close()


_CSV_NULL = "\0null"
"""The text that Spark reads as null, besides an empty field: without such a text it would read ``""`` as null."""


class Csv(FileFormat):
    """Comma-separated values with a line of names. Null is an empty field, and a text is in quotes."""

    suffix = ".csv"
    # A text may have quotes, which are doubled, and line ends. Spark expects neither unless it is told.
    reading: ClassVar[Mapping[str, str]] = {
        "header": "true",
        "escape": '"',
        "multiLine": "true",
        "nullValue": _CSV_NULL,
        "nanValue": "nan",
        "positiveInf": "inf",
        "negativeInf": "-inf",
    }

    @classmethod
    def refuse(cls, schema: pa.Schema) -> None:
        for field in schema:
            if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
                raise TopologyError(
                    f"field {field.name!r} is {field.type}, which CSV can't hold: write Parquet or JSON, or take the "
                    "field apart in a bolt",
                    field=field.name,
                )

    def __init__(self, file: BinaryIO, schema: pa.Schema, held_bytes_max: int) -> None:
        import pyarrow.csv  # noqa: PLC0415 - as above

        self._writer = pyarrow.csv.CSVWriter(file, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_columns == 1 and batch.column(0).null_count:
            raise SinkError(
                f"a row of a CSV file has one field, {batch.schema.names[0]!r}, and it is null: that is an empty line, "
                "which readers skip. Write Parquet or JSON, give the rows another field, or leave such rows out"
            )
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if pa.types.is_string(field.type) and pc.any(pc.equal(column, _CSV_NULL)).as_py():
                raise SinkError(f"field {field.name!r} is {_CSV_NULL!r}, which Spark would read as null: write Parquet")
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class JsonLines(FileFormat):
    """One JSON object a line (`statefx.operators.json_values`)."""

    suffix = ".json"

    @classmethod
    def refuse(cls, schema: pa.Schema) -> None:
        refuse_keys(schema, "FileSink")

    def __init__(self, file: BinaryIO, schema: pa.Schema, held_bytes_max: int) -> None:
        self._file = file
        self._rows = JsonRows(schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._file.write(b"".join(row + b"\n" for row in self._rows.encode(batch)))

    def close(self) -> None:
        pass


FORMATS: Mapping[str, type[FileFormat]] = {"parquet": Parquet, "json": JsonLines, "csv": Csv}


# ---- the sink

FILE_BYTES = 128 << 20
"""Spark's readers split at 128 MB, and a file that is not split needs no second look at its footer."""

FILES_OPEN_MAX = 32
"""A file being written holds buffers: Parquet's about 1 MB a column."""

HELD_BYTES = 32 << 20
"""Rows that wait in a task before it writes a group of them. Partitions whose files are open share this."""

_FOLDER_NAME_BYTES_MAX = 255
"""The limit of Linux's file systems. A longer name fails like a broken disk, which would be tried again for ever."""

_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_TO_ESCAPE = re.compile(r'["#%\'*/:=?\\\x7f{\[\]^\x00-\x1f]')
"""What Hive, and so Spark, writes as %XX in the name of a partition's folder."""


class FileSink(InFolder, Sink):
    """Writes files that Spark, and `committedFiles`, see when their transaction is committed: all of it or nothing.

    Files are written by the tasks, under their final names. A manifest in Spark's own format says which are committed,
    so ``spark.read.parquet(path)`` and ``spark.readStream`` see those alone. Programs that do not know the manifest
    (pandas, pyarrow) are given ``statefx.connectors.files.committedFiles(path)``.

    Parameters
    ----------
    path : str or path
        A folder for this sink alone, which the driver and the executors see at this path. It is made if it is missing.
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

    rewinds = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: str = "parquet",
        *,
        partitionBy: Sequence[str] = (),
        maxFileBytes: int = FILE_BYTES,
    ) -> None:
        text = path_of(os.fspath(path)) if isinstance(os.fspath(path), str) else ""
        if not text or "\0" in text or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text):
            raise ConfigError(
                f"FileSink needs a folder's path that driver and executors see, got {path!r}: mount what is elsewhere, "
                "such as an object store"
            )
        if re.search(r"[{}\[\]*?\\]", os.path.realpath(text)):
            raise ConfigError(
                f"FileSink can't write to {path!r}: Spark's streams take {{}}[]*?\\ for patterns, and read uncommitted "
                "rows then. Give a folder without them"
            )
        if format not in FORMATS:
            raise ConfigError(f"FileSink has no format {format!r}; there are {', '.join(map(repr, FORMATS))}")
        if not is_count(maxFileBytes):
            raise ConfigError(f"maxFileBytes must be a number of bytes, got {maxFileBytes!r}")
        self.path = os.path.realpath(text)
        self.format = format
        self.partition_by = (partitionBy,) if isinstance(partitionBy, str) else tuple(partitionBy)
        self.max_file_bytes = maxFileBytes

    @property
    def target(self) -> str:
        return self.path

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse fields that the format can't hold, or Spark can't read, and partition fields that do not exist."""
        _refuse_same_but_for_case("FileSink's rows", schema)
        for name in self.partition_by:
            if schema.get_field_index(name) < 0:
                raise TopologyError(f"FileSink is partitioned by {name!r}; its rows have {', '.join(schema.names)}")
            kind = schema.field(name).type
            if pa.types.is_nested(kind) or pa.types.is_binary(kind):  # it has no text that Spark reads
                raise TopologyError(f"FileSink can't be partitioned by {name!r}, which is {kind}", field=name)
        if len(set(self.partition_by)) == len(schema):
            raise TopologyError("FileSink is partitioned by all fields: none is left for the files")
        FORMATS[self.format].refuse(_without(schema, self.partition_by))

    def writer(self, context: WriterContext) -> SinkWriter:
        return _Writer(self, context)

    def committer(self, context: CommitterContext) -> SinkCommitter:
        return _Committer(self, context)


def _refuse_same_but_for_case(where: str, fields: Iterable[pa.Field]) -> None:
    """Refuse names that Spark takes for one; also in structs."""
    known: dict[str, str] = {}
    for field in fields:
        if (other := known.setdefault(field.name.lower(), field.name)) != field.name:
            raise TopologyError(
                f"{where} have the fields {other!r} and {field.name!r}, which Spark takes for one: rename one of them",
                field=field.name,
            )
        inner = [field.type.field(number) for number in range(field.type.num_fields)]
        _refuse_same_but_for_case(f"{where}, in {field.name!r},", inner)


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
    manifest = Manifest(os.path.realpath(path_of(os.fspath(path))))
    if manifest.newest() is None:
        raise SinkError(f"{path} holds no committed files: there is no manifest of a FileSink, or of Spark", path=path)
    return [manifest.storage.path(file.name) for file in manifest.files()]


def _without(schema: pa.Schema, fields: Sequence[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in fields])


def _partitions(batch: pa.RecordBatch, fields: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the folder, with its slash, and the rows of each partition, without the fields that are folders."""
    if not fields:
        yield "", batch
        return
    table = pa.table({name: _one_zero(batch.column(name)) for name in fields})
    order = pa.array(range(batch.num_rows), pa.int64())
    groups = table.append_column("__at", order).group_by(list(fields), use_threads=False).aggregate([("__at", "list")])
    rest = batch.drop_columns(list(fields))
    folders = [[_folder(name, text) for text in _texts(groups.column(name))] for name in fields]
    for number, at in enumerate(groups.column("__at_list")):
        yield "".join(of_field[number] for of_field in folders), rest.take(at.values)


def _one_zero(column: pa.Array) -> pa.Array:
    """Return a column with 0.0 for -0.0, which are one key everywhere: of one value there is one folder."""
    return pc.add(column, pa.scalar(0, column.type)) if pa.types.is_floating(column.type) else column


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    """Return values as Spark writes them; pyarrow writes the double 1.0 as 1, from which Spark would infer integers."""
    if pa.types.is_floating(column.type):
        return [None if value is None else _NOT_FINITE.get(str(value), str(value)) for value in column.to_pylist()]
    texts: list[str | None] = column.cast(pa.string()).to_pylist()
    return texts


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""Of numbers that Python and Java do not write alike."""


def _folder(field: str, text: str | None) -> str:
    """Return the name of a partition's folder; SinkError if readers would take it for null, or it is too long."""
    if text in ("", _NULL_PARTITION):
        raise SinkError(
            f"FileSink is partitioned by {field!r}, and readers take the folder of {text!r} for that of null: give "
            "such rows another text, or partition by another field",
            field=field,
        )
    name = f"{_escaped(field)}={_NULL_PARTITION if text is None else _escaped(text)}"
    if len(name.encode()) > _FOLDER_NAME_BYTES_MAX:
        raise SinkError(
            f"FileSink is partitioned by {field!r}, and a folder's name has {_FOLDER_NAME_BYTES_MAX} bytes at most: "
            f"{name[:60]}... has {len(name.encode())}",
            field=field,
        )
    return name + "/"


def _escaped(text: str) -> str:
    return _TO_ESCAPE.sub(lambda found: f"%{ord(found[0]):02X}", text)


@contextmanager
def _refused(folder: str) -> Iterator[None]:
    """Translate an error of the file system to a SinkError: which folder can't be used, why, and what to do."""
    try:
        yield
    except OSError as error:
        raise SinkError(
            f"FileSink can't write to the folder {folder} ({error}): give a folder in which this user may create "
            "files, on the driver and on the executors",
            path=folder,
        ) from error


class _Writer(SinkWriter):
    """Writes a task's rows to files of their own."""

    def __init__(self, sink: FileSink, context: WriterContext) -> None:
        self._sink = sink
        self._context = context
        self._format = FORMATS[sink.format]
        self._schema = _without(context.schema, sink.partition_by)
        self._storage = FolderStorage(sink.path)
        self._open: OrderedDict[str, tuple[UnfinishedFile, FileFormat]] = OrderedDict()
        self._ready: list[WrittenFile] = []
        self._list: str | None = None
        self._begun = 0
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._rows += batch.num_rows
        for folder, part in _partitions(batch, self._sink.partition_by):
            held, rows = self._open.get(folder) or self._begin(folder)
            self._open.move_to_end(folder)
            rows.write(part)
            if held.file.tell() >= self._sink.max_file_bytes:
                self._end(folder)

    def _begin(self, folder: str) -> tuple[UnfinishedFile, FileFormat]:
        while len(self._open) >= FILES_OPEN_MAX:
            self._end(next(iter(self._open)))
        held = UnfinishedFile(self._storage, f"{folder}{self._own_name}-{self._begun:04d}{self._format.suffix}")
        self._begun += 1
        held_bytes_max = HELD_BYTES // (FILES_OPEN_MAX if self._sink.partition_by else 1)
        try:
            rows = self._format(held.file, self._schema, min(held_bytes_max, self._sink.max_file_bytes))
        except BaseException:
            held.drop()
            raise
        self._open[folder] = held, rows
        return held, rows

    @property
    def _own_name(self) -> str:
        """The beginning of this attempt's names: the txid is for `sweep`, the token for tasks that were lost."""
        context = self._context
        return f"part-{context.attempt.txid:010d}-{context.task:05d}-{context.token}"

    def _end(self, folder: str) -> None:
        held, rows = self._open.pop(folder)
        try:
            rows.close()
            size = held.file.tell()
        except BaseException:
            held.drop()
            raise
        held.keep()
        self._ready.append(WrittenFile(held.name, size, int(time.time() * 1000)))

    def prepare(self, txid: int) -> Committable | None:
        # Together: an fsync waits for the disk, and a task may have a file in each of many folders.
        at_once(list(self._open), self._end)
        if not self._ready:
            return None
        self._ready.sort(key=attrgetter("name"))
        told: Committable = {"rows": self._rows, "bytes": sum(file.size_bytes for file in self._ready)}
        named = {"files": [asdict(file) for file in self._ready], **told}
        text = json.dumps(named).encode()
        if len(text) < COMMITTABLE_BYTES_MAX:
            return named
        self._list = f"{LISTS}/{self._own_name}.json"
        self._storage.put(self._list, text)
        return {"list": self._list, "checksum": xxh3_128(text).hexdigest(), **told}

    def abort(self) -> None:
        while self._open:
            _, (held, rows) = self._open.popitem()
            with suppress(Exception):  # a writer that is not closed complains when it is collected
                rows.close()
            held.drop()
        self._storage.delete([file.name for file in self._ready] + ([self._list] if self._list else []))


class _Committer(SinkCommitter):
    """Publishes files by naming them in the manifest."""

    def __init__(self, sink: FileSink, context: CommitterContext) -> None:
        self._sink = sink
        self._owner = context.owner
        self._manifest = Manifest(sink.path)
        self._layout = Layout.of(sink.format, sink.partition_by, context.schema)

    def check(self, reached: CheckpointPosition, *, takeover: bool) -> None:
        with _refused(self._sink.path):
            # The owner comes first: if the folder is another application's, an error about its layout does not help.
            # Also with `takeover`: a newer generation refuses it, and must do so before a generation is taken.
            marker = self._manifest.marker(takeover=takeover)
            starting_point(marker, self._owner, reached, self._sink.path, takeover=takeover)
            self._manifest.layout(self._layout)
            with probe(self._sink.path):
                pass

    def fence(self, reached: CheckpointPosition, *, takeover: bool) -> None:
        self._manifest.fence(self._owner, reached, self._layout, takeover=takeover)

    def commit(self, attempt: TransactionAttempt, committables: Mapping[int, Committable]) -> None:
        storage = self._manifest.storage
        self._manifest.publish(self._owner, attempt.txid, lambda: written_files(storage, committables))

    def rewind(self, after: int) -> None:
        """Name the files of later transactions no more; the next sweep deletes them."""
        self._manifest.rewind(self._owner, after)

    def sweep(self, committed: int) -> None:
        """Delete files that no manifest names, what writers left unfinished, and manifests that nobody needs.

        The order matters (rule 4.3). Files are listed before the owner is asked for: those of who takes over come
        later, so they are not among them; its transactions may have smaller numbers than `committed`.
        """
        manifest = self._manifest
        found = [stored.name for stored in manifest.storage.list() if txid_of_file(stored.name) is not None]
        newest = manifest.marker()
        if newest is None or newest.txid == UNFENCED or newest != Marker.of(self._owner, newest.txid):
            return
        named = {file.name for file in manifest.files()}
        manifest.storage.delete(name for name in found if name not in named and (txid_of_file(name) or 0) <= committed)
        manifest.storage.discard_unfinished("")
        manifest.forget_old()
