"""What sinks have published, and what they have not yet, as Spark's DataFrames.

Spark's own file source reads here, because it honours a FileSink's manifest. This module adds what Spark can't know,
the format and the fields before the first row is written, and refuses settings that make Spark ignore the manifest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from statefx.connectors.files.manifest import INTERVAL, LISTS, Layout, Manifest, txid_of_file
from statefx.connectors.files.sink import FORMATS
from statefx.connectors.staged import FOLDER, txid_of_staged
from statefx.errors import ConfigError, SinkError
from statefx.log.location import Folders, checkpoint_location
from statefx.log.log import read_state
from statefx.operators.schema import to_ddl_type
from statefx.storage import Storage, path_of

_SETTINGS = {
    "spark.sql.streaming.fileStreamSink.ignoreMetadata": "false",  # else Spark reads files that are not committed
    "spark.sql.streaming.fileSink.log.compactInterval": str(INTERVAL),  # else it looks for manifests that are not there
}
"""What a session must not change; these are Spark's own values."""


def readCommitted(spark: Any, path: str | os.PathLike[str], *, stream: bool = False, txid: str | None = None) -> Any:
    """Return the rows that a FileSink has published, each committed transaction whole and once.

    Format, fields and their types, also those of partitions, are those that the sink has written down.

    Parameters
    ----------
    spark : SparkSession
    path : str or path
        Of the FileSink.
    stream : bool
        A streaming DataFrame: what is there, then what comes. A micro-batch has whole transactions: those since the
        last one, in their order. So the first has all that are there.
    txid : str, optional
        Name of a column to add, a long: which transaction of the sink's topology a row is of.

    Returns
    -------
    DataFrame
        Without rows if nothing is committed yet. Fields that came with a later start are null in older rows.

    Raises
    ------
    ConfigError
        A setting of the session keeps Spark from reading manifests, or there is a field of the name `txid`.
    SinkError
        No FileSink has started to write to `path`: format and fields are not known before. Or its manifest is damaged
        or gone.
    """
    for name, value in _SETTINGS.items():
        if (given := spark.conf.get(name, value)).lower() != value:
            raise ConfigError(
                f"this session has {name} = {given}, and would not read what is committed: set it to {value}"
            )
    manifest, layout = _written(path)
    manifest.files()  # of a damaged manifest Spark says neither which folder's it is nor what to do
    # No option limits a micro-batch, because Spark counts files: it would take transactions apart.
    reader = spark.readStream if stream else spark.read
    return _selected(_set_up(reader, layout).load(manifest.storage.root), layout, txid)


def readUncommitted(
    spark: Any, path: str | os.PathLike[str], sink: str | None = None, *, txid: str | None = None
) -> Any:
    """Return rows that tasks have made ready and that are not committed: for looking, and nothing else.

    They may be committed at the next moment, or never: attempts that were rolled back leave some until they are swept.
    Rows of a task that is still writing are not among them. Reading may fail when a file is swept meanwhile.

    Parameters
    ----------
    spark : SparkSession
    path : str or path
        Of a FileSink; or, with `sink`, a checkpoint location.
    sink : str, optional
        Component of a sink whose rows wait in the checkpoint, such as a SqlSink.
    txid : str, optional
        Name of a column to add, a long: which transaction a row is of.

    Returns
    -------
    DataFrame
        A batch one. Of a checkpoint in which no rows wait, it has no fields either.

    Raises
    ------
    CheckpointError
        There is no checkpoint at `path`.
    ConfigError, SinkError
        As `readCommitted`.
    """
    if sink is not None:
        return _staged(spark, path, sink, txid)
    manifest, layout = _written(path)
    storage = manifest.storage
    # Listed first: what is committed between the two is in the manifest then, and not shown.
    found = {stored.name for stored in storage.list() if txid_of_file(stored.name) is not None}
    found -= {file.name for file in manifest.files()}
    files = [storage.path(name) for name in sorted(found) if not name.startswith(f"{LISTS}/")]
    if not files:
        nulls = (f"cast(null as {to_ddl_type(field.type)}) as {_quoted(field.name)}" for field in layout.fields)
        return spark.range(0).selectExpr(*nulls, *_null(txid))
    # A partition's value may have a brace, and Spark would take the name for a pattern.
    reader = _set_up(spark.read, layout).option("basePath", storage.root).option("__globPaths__", "false")
    return _selected(reader.load(files), layout, txid)


def _written(path: str | os.PathLike[str]) -> tuple[Manifest, Layout]:
    manifest = Manifest(os.path.realpath(path_of(os.fspath(path))))
    layout = manifest.layout()
    if layout is None:
        raise SinkError(
            f"no FileSink has begun to write to {path}: submit its topology first; or use spark.read, if other "
            "programs have written there",
            path=path,
        )
    manifest.marker()  # raises if manifests are gone: Spark would take every file in the folder for committed
    return manifest, layout


def _set_up(reader: Any, layout: Layout) -> Any:
    return reader.format(layout.format).schema(layout.ddl_as_files).options(**FORMATS[layout.format].reading)


def _selected(frame: Any, layout: Layout, txid: str | None) -> Any:
    """Return the columns in the order in which the rows had them; files are named after their transaction."""
    more = []
    if txid is not None:
        _refuse_field(layout.fields, txid)
        more = [f"cast(regexp_extract(_metadata.file_name, 'part-([0-9]+)-', 1) as bigint) as {_quoted(txid)}"]
    return frame.selectExpr(*map(_quoted, layout.fields.names), *more)


def _null(txid: str | None) -> list[str]:
    return [] if txid is None else [f"cast(null as bigint) as {_quoted(txid)}"]


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _refuse_field(schema: pa.Schema, txid: str) -> None:
    if txid.lower() in map(str.lower, schema.names):  # Spark takes them for one
        raise ConfigError(f"the rows have a field {txid!r} already: give the transaction's column another name")


def _staged(spark: Any, path: str | os.PathLike[str], sink: str, txid: str | None) -> Any:
    storage = Folders(checkpoint_location(path)).storage
    committed = read_state(storage).committed
    names = [stored.name for stored in storage.list(f"{FOLDER}/{sink}/") if txid_of_staged(stored.name) > committed]
    if not names:
        return spark.range(0).selectExpr(*_null(txid))
    with storage.reader(names[0]) as file, pa.ipc.open_stream(file) as reader:
        schema = reader.schema
    if txid is not None:
        _refuse_field(schema, txid)
        schema = schema.append(pa.field(txid, pa.int64()))
    from statefx.spark.tables import frame_of  # noqa: PLC0415 - pyspark, which sinks do without

    return frame_of(spark, schema, [_Staged(storage, name, schema, txid) for name in names])


@dataclass(frozen=True, slots=True)
class _Staged:
    """The rows of a staged file, which Spark's tasks read."""

    storage: Storage
    name: str
    schema: pa.Schema
    txid: str | None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        with self.storage.reader(self.name) as file, pa.ipc.open_stream(file) as reader:
            for batch in reader:
                columns = batch.columns
                if self.txid is not None:
                    columns = [*columns, pa.repeat(pa.scalar(txid_of_staged(self.name), pa.int64()), len(batch))]
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
