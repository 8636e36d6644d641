"""SqlSink: rows into a table, and the marker beside them, in one transaction of the database."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statefx.errors import ConfigError, SinkError, TopologyError
from statefx.operators.sinks import Committable, Marker, SinkWriter, WriterContext
from statefx.sinks.sql_types import alchemy, check_table, converter, sql_type
from statefx.sinks.staged import StagedRows, StagedSink, Target

if TYPE_CHECKING:
    import sqlalchemy as sa

MARKERS = "statefx_markers"

_UPSERTS = ("sqlite", "postgresql")

Row = tuple[Any, ...]


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
        Of several rows with one key in one transaction the last one counts; group by the key, so that all of them come
        from one task, in its order.
    deadLetter : str, optional
        A table for rows that the database refuses, as JSON with the reason and the transaction; written in the same
        transaction. Without it the first such row stops the sink, and ``query.status`` names it.
    validate : bool
        Whether each task tries its statement in prepare, and takes it back: rows that the database refuses then fail
        the transaction while it can still be rolled back. It costs a second write.

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
        key: str | Sequence[str] = (),
        *,
        deadLetter: str | None = None,
        validate: bool = False,
    ) -> None:
        sqlalchemy = alchemy()
        try:
            parsed = sqlalchemy.engine.make_url(url)
        except sqlalchemy.exc.ArgumentError as error:
            raise ConfigError(f"SqlSink: {error}") from None
        if not isinstance(table, str) or not table:
            raise ConfigError(f"SqlSink needs the name of a table, got {table!r}")
        self.url = url
        self.table = table
        self.key = (key,) if isinstance(key, str) else tuple(key)
        self.dead_letter = deadLetter
        self.validate = validate
        self._shown = parsed.render_as_string(hide_password=True)
        self.backend = parsed.get_backend_name()
        if self.key and self.backend not in _UPSERTS:
            raise ConfigError(
                f"SqlSink can replace rows by key in {' and '.join(_UPSERTS)}, not in {self.backend}: leave out the "
                "key, or write a StagedSink of your own"
            )

    @property
    def target(self) -> str:
        """The URL without its password, and the table."""
        return f"{self._shown}#{self.table}"

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse keys that there are not."""
        for name in self.key:
            if schema.get_field_index(name) < 0:
                raise TopologyError(f"SqlSink's key is {name!r}; its rows have {', '.join(schema.names)}", field=name)

    def writer(self, context: WriterContext) -> SinkWriter:
        """Make what stages the rows of one task, and tries them if that was asked for."""
        stager = super().writer(context)
        return _TryingWriter(self, context, stager) if self.validate else stager

    def connect(self, schema: pa.Schema) -> SqlTarget:
        """Connect to the database, and make or check the table."""
        return SqlTarget(self, schema)


class _TryingWriter(SinkWriter):
    """Stages rows, and has the database say whether it would take them while the transaction can be rolled back."""

    def __init__(self, sink: SqlSink, context: WriterContext, stager: SinkWriter) -> None:
        self._sink = sink
        self._context = context
        self._stager = stager

    def write(self, batch: pa.RecordBatch) -> None:
        self._stager.write(batch)

    def prepare(self, txid: int) -> Committable | None:
        committable = self._stager.prepare(txid)
        if committable is not None:
            context = self._context
            with self._sink.connect(context.schema) as target:
                target.try_rows(StagedRows(context.storage, context.schema, {context.task: committable}))
        return committable

    def abort(self) -> None:
        self._stager.abort()

    def close(self) -> None:
        self._stager.close()


class SqlTarget(Target):
    """A table, and its line in `MARKERS`."""

    def __init__(self, sink: SqlSink, schema: pa.Schema) -> None:
        sqlalchemy = alchemy()
        self._sink = sink
        self._schema = schema
        # One connection, kept by us; a pool would hand out one that a restarted server has forgotten.
        # Commits are calls of any thread, one after the other; Python's SQLite module minds unless told.
        threads = {"check_same_thread": False} if sink.backend == "sqlite" else {}
        self._engine = sqlalchemy.create_engine(sink.url, poolclass=sqlalchemy.pool.NullPool, connect_args=threads)
        self._lite = self._engine.dialect.name == "sqlite"
        metadata = sqlalchemy.MetaData()
        self._markers = sqlalchemy.Table(
            MARKERS,
            metadata,
            sqlalchemy.Column("target", sqlalchemy.String(255), primary_key=True),
            sqlalchemy.Column("application", sqlalchemy.String(255), nullable=False),
            sqlalchemy.Column("origin", sqlalchemy.String(64), nullable=False),
            sqlalchemy.Column("generation", sqlalchemy.BigInteger, nullable=False),
            sqlalchemy.Column("txid", sqlalchemy.BigInteger, nullable=False),
        )
        self._table = self._described(sink.table, metadata)
        self._convert = [converter(field.type, lite=self._lite) for field in schema]
        self._connection: sa.Connection | None = None

    def _described(self, name: str, metadata: sa.MetaData) -> sa.Table:
        sqlalchemy = alchemy()
        space, _, table = name.rpartition(".")
        columns = [
            sqlalchemy.Column(
                field.name,
                sql_type(field, lite=self._lite),
                primary_key=field.name in self._sink.key,
                autoincrement=False,
                nullable=field.name not in self._sink.key,
            )
            for field in self._schema
        ]
        described: sa.Table = sqlalchemy.Table(table, metadata, *columns, schema=space or None)
        return described

    # ---- marker

    def marker(self) -> Marker | None:
        sqlalchemy = alchemy()
        with self._transaction() as connection:
            return self._read_marker(connection) if sqlalchemy.inspect(connection).has_table(MARKERS) else None

    def check(self) -> None:
        """Refuse a table that does not fit (see `Target.check`)."""
        with self._transaction(keep=False) as connection:
            check_table(connection, self._table, self._sink.key, self._sink.target)

    def _read_marker(self, connection: sa.Connection, *, lock: bool = False) -> Marker | None:
        markers = self._markers
        query = markers.select().where(markers.c.target == self._sink.table)
        found = connection.execute(query.with_for_update() if lock and not self._lite else query).one_or_none()
        return None if found is None else Marker(found.application, found.origin, found.generation, found.txid)

    # ---- rows

    def publish(self, marker: Marker, previous: Marker | None, rows: StagedRows) -> None:
        copies = self._engine.driver == "psycopg" and not self._sink.key
        try:
            self._publish(marker, previous, rows, self._copy if copies else self._insert)
        except Exception as error:
            if not self._is_refusal(error):
                raise
            # The whole statement was refused. Row by row is slow, and finds out which row it is.
            self._publish(marker, previous, rows, self._insert_each)

    def _publish(
        self,
        marker: Marker,
        previous: Marker | None,
        rows: StagedRows,
        insert: Callable[[sa.Connection, Marker, StagedRows], None],
    ) -> None:
        with self._transaction() as connection:
            if previous is None or previous.txid == marker.txid:  # the start of a driver
                self._make_tables(connection)
            if self._read_marker(connection, lock=True) != previous:
                raise SinkError(
                    f"{self._sink.target}: another driver has published meanwhile", target=self._sink.target
                )
            if len(rows):
                insert(connection, marker, rows)
            values = asdict(marker)
            if previous is None:
                connection.execute(self._markers.insert().values(target=self._sink.table, **values))
            else:
                mine = self._markers.c.target == self._sink.table
                connection.execute(self._markers.update().where(mine).values(**values))

    def _insert(self, connection: sa.Connection, marker: Marker, rows: StagedRows) -> None:
        """Run the statement over all rows, on the bare driver: SQLAlchemy would look at each row again."""
        cursor: Any = connection.connection.cursor()
        try:
            cursor.executemany(self._statement(), self._every(rows))
        finally:
            cursor.close()

    def _copy(self, connection: sa.Connection, marker: Marker, rows: StagedRows) -> None:
        """Add rows by PostgreSQL's COPY, which takes a third of the time of INSERT."""
        quote = self._engine.dialect.identifier_preparer
        names = ", ".join(map(quote.quote, self._schema.names))
        cursor: Any = connection.connection.cursor()
        with cursor, cursor.copy(f"COPY {quote.format_table(self._table)} ({names}) FROM STDIN") as copy:
            for row in chain.from_iterable(map(self._rows, rows)):
                copy.write_row(row)

    def _every(self, rows: StagedRows) -> Iterator[Row]:
        every = chain.from_iterable(map(self._rows, rows))
        if not self._sink.key:
            return every
        # Of one key the last row counts, and some databases refuse a statement that has it twice.
        at = [self._schema.get_field_index(name) for name in self._sink.key]
        return iter({tuple(row[i] for i in at): row for row in every}.values())

    def _rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        """Return rows as the database's driver takes them, converted by columns."""
        columns = (
            values if convert is None else [None if value is None else convert(value) for value in values]
            for convert, values in zip(self._convert, (column.to_pylist() for column in batch), strict=True)
        )
        return zip(*columns, strict=True)

    def _statement(self) -> str:
        """Return the statement as text with positional parameters: rows through SQLAlchemy cost 2 us each."""
        sqlalchemy = alchemy()
        names = self._schema.names
        if self._sink.key:
            dialects: Any = __import__(f"sqlalchemy.dialects.{self._engine.dialect.name}", fromlist=["insert"])
            insert = dialects.insert(self._table)
            rest = {name: insert.excluded[name] for name in names if name not in self._sink.key}
            key = list(self._sink.key)
            insert = (
                insert.on_conflict_do_update(index_elements=key, set_=rest)
                if rest
                else insert.on_conflict_do_nothing(index_elements=key)
            )
        else:
            insert = sqlalchemy.insert(self._table)
        style = "qmark" if self._engine.dialect.positional and self._engine.dialect.paramstyle == "qmark" else "format"
        dialect = type(self._engine.dialect)(paramstyle=style)
        return str(insert.values({name: sqlalchemy.bindparam(name) for name in names}).compile(dialect=dialect))

    def _insert_each(self, connection: sa.Connection, marker: Marker, rows: StagedRows) -> None:
        sqlalchemy = alchemy()
        statement = self._statement()
        for row in self._every(rows):
            try:
                with connection.begin_nested():
                    connection.exec_driver_sql(statement, row)
            except sqlalchemy.exc.DBAPIError as error:
                if not self._is_refusal(error):
                    raise
                self._refused(connection, marker, row, str(error.orig).strip())

    def _refused(self, connection: sa.Connection, marker: Marker, row: Row, reason: str) -> None:
        """Put a row that the database refuses into the dead-letter table, or raise with its name."""
        told = dict(zip(self._schema.names, row, strict=True))
        if self._sink.dead_letter is None:
            raise SinkError(
                f"{self._sink.target} refuses a row of transaction {marker.txid}: {reason}; the row is {told!r}. The "
                "transaction is decided and can't be rolled back: change the table so that it takes the row, and the "
                "sink goes on by itself; or start the topology with SqlSink(..., deadLetter='table')",
                target=self._sink.target,
                row=told,
            )
        connection.execute(
            self._dead_letters()
            .insert()
            .values(txid=marker.txid, reason=reason, content=json.dumps(told, default=str), target=self._sink.table)
        )

    def _dead_letters(self) -> sa.Table:
        sqlalchemy = alchemy()
        space, _, name = (self._sink.dead_letter or "").rpartition(".")
        described: sa.Table = sqlalchemy.Table(
            name,
            sqlalchemy.MetaData(),
            sqlalchemy.Column("target", sqlalchemy.String(255)),
            sqlalchemy.Column("txid", sqlalchemy.BigInteger),
            sqlalchemy.Column("reason", sqlalchemy.Text),
            sqlalchemy.Column("content", sqlalchemy.Text),
            schema=space or None,
        )
        return described

    def _is_refusal(self, error: Exception) -> bool:
        """Tell whether the database refuses a row: by a constraint, or for a value that the column can't hold."""
        driver: Any = self._engine.dialect.dbapi
        return isinstance(getattr(error, "orig", error), driver.IntegrityError | driver.DataError)

    def try_rows(self, rows: StagedRows) -> None:
        """Write rows and take them back, to see whether the database would take them.

        Raises
        ------
        SinkError
            It would not; says which row and why.
        """
        with self._transaction(keep=False) as connection:
            cursor: Any = connection.connection.cursor()
            try:
                cursor.executemany(self._statement(), self._every(rows))
            except Exception as error:
                if not self._is_refusal(error):
                    raise
                raise SinkError(f"{self._sink.target} refuses a row: {error}", target=self._sink.target) from error
            finally:
                cursor.close()

    # ---- the table

    def _make_tables(self, connection: sa.Connection) -> None:
        self._markers.create(connection, checkfirst=True)
        self._table.create(connection, checkfirst=True)
        if self._sink.dead_letter:
            self._dead_letters().create(connection, checkfirst=True)

    # ---- the connection

    @contextmanager
    def _transaction(self, *, keep: bool = True) -> Iterator[sa.Connection]:
        """Yield a connection within a transaction of the database that can't lose a race for the marker."""
        if self._connection is None:
            self._connection = self._engine.connect()
            if self._lite:  # Python's module begins transactions late, and then only for reading
                self._connection = self._connection.execution_options(isolation_level="AUTOCOMMIT")
        connection = self._connection
        if self._lite:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            self._end(connection, keep=False)
            raise
        self._end(connection, keep=keep)

    def _end(self, connection: sa.Connection, *, keep: bool) -> None:
        if self._lite:
            connection.exec_driver_sql("COMMIT" if keep else "ROLLBACK")
        if keep:
            connection.commit()
        else:
            connection.rollback()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._engine.dispose()
