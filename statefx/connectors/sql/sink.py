"""SqlSink: rows into a table, and the marker into another, in one transaction of the database."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from statefx.connectors.sql.target import SqlTable
from statefx.connectors.sql.types import contains, sql_type
from statefx.connectors.sql.url import SqlUrl
from statefx.connectors.staged import StagedRows, StagedSink, refuse_nulls
from statefx.errors import ConfigError, SinkError, TopologyError
from statefx.operators.json_values import JsonType, refuse_keys
from statefx.operators.sinks import Committable, SinkWriter, WriterContext

_UPSERTS = ("sqlite", "postgresql")


class SqlSink(StagedSink):
    """Writes rows to a table of a database that SQLAlchemy reaches; each transaction once, and atomically.

    The rows of a transaction and the marker (table ``statefx_markers``) are written in one transaction of the database:
    both or neither. Rows wait in the checkpoint until then.

    Parameters
    ----------
    url : str
        As SQLAlchemy has it: ``sqlite:///results.db``, ``postgresql+psycopg://user:password@host/database``. The
        driver of the topology connects, and with `validate` the executors.
    table : str
        Optionally with a schema, ``schema.table``. Made if it is missing, from the stream's schema; else checked.
    key : str or sequence of str, optional
        Fields that name a row: a row whose key is in the table replaces the one there. Without a key rows are added.
        A null in it fails the transaction while it can be rolled back; with `deadLetter` the database decides.
        Of several rows with one key in one transaction the last one counts; group by the key, so that all of them come
        from one task, in its order.
    deadLetter : str, optional
        A table for rows that the database refuses, as JSON with the reason and the transaction; written in the same
        transaction. Without it the first such row stops the sink, and ``query.status`` names it.
    validate : bool
        Whether each task tries its statement in prepare, and takes it back: rows that the database refuses then fail
        the transaction while it can still be rolled back. It costs a second write.
    txid : str, optional
        A column that the sink fills with the number of a row's transaction, BIGINT: then
        ``restore(..., sinks="rewind")`` can take rows back. Not with `key`: of a row that was replaced nothing is left.
        Whoever takes the table over empties the column of the rows that are there, for its numbers are others.

    Raises
    ------
    ConfigError
        An argument can't be used, or SQLAlchemy is not installed.

    Notes
    -----
    Types: integers by width, DOUBLE, BOOLEAN, TEXT, bytes, DATE, TIMESTAMP (with time zone where the stream's has one),
    NUMERIC with its digits; lists, maps and structs as JSON. SQLite has no decimals nor time zones: there, decimals are
    TEXT, and times UTC.
    """

    def __init__(
        self,
        url: str,
        table: str,
        key: str | Sequence[str] | None = (),
        *,
        deadLetter: str | None = None,
        validate: bool = False,
        txid: str | None = None,
    ) -> None:
        parsed = SqlUrl(url, "SqlSink", "CollectSink to look at rows")
        if not isinstance(table, str) or not table:
            raise ConfigError(f"SqlSink needs the name of a table, got {table!r}")
        for name in filter(None, (table, deadLetter)):
            parsed.check_table(name)
        if validate and deadLetter is not None:
            raise ConfigError(
                "SqlSink can refuse a transaction for a row (validate), or put the row aside (deadLetter): not both"
            )
        self.url = url
        self.table = table
        self.key = (key,) if isinstance(key, str) else tuple(key or ())
        self.dead_letter = deadLetter
        self.validate = validate
        if txid is not None and (not isinstance(txid, str) or not txid):
            raise ConfigError(f"SqlSink: txid must be the name of a column, got {txid!r}")
        if txid is not None and (why := parsed.why_cut(txid)):
            raise ConfigError(f"SqlSink: txid: {why}")
        if txid is not None and self.key:
            raise ConfigError(
                "SqlSink: rows that are replaced by their key can't be taken back, so txid= is for a table without a "
                "key: leave out one of them"
            )
        self.txid = txid
        self.rewinds = txid is not None
        self._location = parsed.location
        self.backend = parsed.backend
        if self.key and self.backend not in _UPSERTS:
            raise ConfigError(
                f"SqlSink can replace rows by key in {' and '.join(_UPSERTS)}, not in {self.backend}: leave out the "
                "key, or write a StagedSink of your own"
            )
        parsed.require_driver()

    @property
    def target(self) -> str:
        """The database, by which neither user nor password nor options count, and the table."""
        return f"{self._location}#{self.table}"

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse keys that there are not, and types without a column's."""
        refuse_keys(schema, "SqlSink")
        parsed = SqlUrl(self.url, "SqlSink", "CollectSink to look at rows")
        for field in schema:
            sql_type(field, lite=self.backend == "sqlite")
            if why := parsed.why_cut(field.name):
                raise TopologyError(f"SqlSink: {why}, and emit the field under that", field=field.name)
        if self.backend == "sqlite" and (twins := _alike(schema.names)):
            raise TopologyError(
                f"SqlSink: fields {' and '.join(map(repr, twins))} are one column of SQLite, which takes capital "
                "letters for small ones: rename one of them",
                field=twins[0],
            )
        if self.txid is not None and self.txid in schema.names:
            raise TopologyError(
                f"SqlSink: the rows have a field {self.txid!r} already: give the transaction's column another name",
                field=self.txid,
            )
        for name in self.key:
            if schema.get_field_index(name) < 0:
                raise TopologyError(f"SqlSink's key is {name!r}; its rows have {', '.join(schema.names)}", field=name)

    def writer(self, context: WriterContext) -> SinkWriter:
        """Make what stages the rows of one task, and looks whether they can be written."""
        return _SqlWriter(self, context, super().writer(context))

    def connect(self, schema: pa.Schema) -> SqlTable:
        """Return the table; it connects when it is asked something."""
        return SqlTable(self.url, self.target, self.table, self.key, self.dead_letter, schema, self.txid)


class _SqlWriter(SinkWriter):
    """Stages rows, and refuses those that could never be written while the transaction can still be rolled back."""

    def __init__(self, sink: SqlSink, context: WriterContext, stager: SinkWriter) -> None:
        self._sink = sink
        self._context = context
        self._stager = stager
        checks = [  # not even as dead letters
            (
                pa.types.is_temporal,
                _has_far_date,
                "a time outside of the years 1 to 9999, which no driver of Python can write",
            ),
            (pa.types.is_map, _has_key_twice, "a map with a key that comes twice, which JSON can't hold"),
        ]
        if sink.dead_letter is None and sink.backend == "sqlite":
            checks.append((pa.types.is_floating, _has_nan, "a NaN, which SQLite would make a null"))
        if sink.dead_letter is None and sink.backend == "postgresql":
            checks.append((_is_text, _has_nul, "a text with a NUL character, which PostgreSQL can't hold"))
        self._checks = [
            (number, check, what)
            for number, field in enumerate(context.schema)
            for fits, check, what in checks
            if contains(field.type, fits)
        ]

    def write(self, batch: pa.RecordBatch) -> None:
        target = self._sink.target
        if self._sink.dead_letter is None:  # else the database refuses the row, and it is put aside with the others
            refuse_nulls(target, self._sink.key, batch)
        for number, check, what in self._checks:
            if check(batch.column(number)):
                name = batch.schema.field(number).name
                raise SinkError(
                    f"{target}: field {name!r} has {what}: leave such rows out before the sink",
                    target=target,
                    field=name,
                )
        self._stager.write(batch)

    def prepare(self, txid: int) -> Committable | None:
        committable = self._stager.prepare(txid)
        if committable is not None and self._sink.validate:
            context = self._context
            with self._sink.connect(context.schema) as target:
                target.try_rows(StagedRows(context.storage, context.schema, {context.task: committable}))
        return committable

    def abort(self) -> None:
        self._stager.abort()

    def close(self) -> None:
        self._stager.close()


def _alike(names: Sequence[str]) -> list[str]:
    """Return the first names that SQLite takes for one; it knows the letters of ASCII alone."""
    spelled: dict[str, list[str]] = {}
    for name in names:
        spelled.setdefault("".join(map(_small, name)), []).append(name)
    return next((alike for alike in spelled.values() if len(alike) > 1), [])


def _small(letter: str) -> str:
    return letter.lower() if letter.isascii() else letter


def _has_far_date(column: pa.Array) -> bool:
    try:
        column.to_pylist() if pa.types.is_nested(column.type) else pc.min_max(column).as_py()
    except (OverflowError, ValueError):
        return True
    return False


def _has_key_twice(column: pa.Array) -> bool:
    try:
        list(map(JsonType(column.type).encode, column.to_pylist()))
    except ValueError:
        return True
    return False


def _has_nan(column: pa.Array) -> bool:
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _has_nul(column: pa.Array) -> bool:
    """Look at all texts of a column, of any depth."""
    kind = column.type
    if pa.types.is_struct(kind):
        return any(map(_has_nul, column.flatten()))
    if pa.types.is_map(kind):
        # `keys` and `items` are those of the whole array, of which this one may be a slice.
        start, stop = column.offsets[0].as_py(), column.offsets[-1].as_py()
        return any(_has_nul(part.slice(start, stop - start)) for part in (column.keys, column.items))
    if pa.types.is_list(kind):
        return _has_nul(column.flatten())
    return _is_text(kind) and bool(pc.any(pc.match_substring(column, "\0")).as_py())
