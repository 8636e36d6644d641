"""The table that SqlSink writes to, and the marker beside it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statefx.connectors.sql.checks import check_dead_letters, check_table
from statefx.connectors.sql.connection import RowRefusedError, SqlConnection, is_replaced, session_name
from statefx.connectors.sql.types import converter, plain, sql_type
from statefx.connectors.sql.url import alchemy
from statefx.connectors.staged import StagedRows, Target
from statefx.errors import SinkError
from statefx.operators.sinks import Marker

if TYPE_CHECKING:
    import sqlalchemy as sa

logger = logging.getLogger("statefx")

MARKERS = "statefx_markers"

_TEXT_MAX = 200

_STYLES = {"qmark": "qmark", "numeric": "numeric", "named": "numeric"}

Row = tuple[Any, ...]


class SqlTable(Target):
    """A table, and its line in `MARKERS`, which is in the same schema.

    Parameters
    ----------
    url : str
    name : str
        What the place is called in messages.
    table : str
        Optionally with a schema.
    key : tuple of str
    dead_letter : str, optional
    fields : pyarrow.Schema
    """

    def __init__(
        self, url: str, name: str, table: str, key: tuple[str, ...], dead_letter: str | None, fields: pa.Schema
    ) -> None:
        self._name = name
        self._key = key
        self._fields = fields
        self._database = SqlConnection(url, name)
        self._space, _, self._table_name = table.rpartition(".")
        self._dead_letter = dead_letter
        self._convert = [converter(field.type, lite=self._database.lite) for field in fields]
        if self._database.lite:  # names there are alike in small letters and in capitals
            self._table_name = self._table_name.lower()
            self._space = "" if self._space.lower() == "main" else self._space

    # ---- descriptions

    def _look(self, connection: sa.Connection) -> None:
        """Find out in which schema the table is: all sessions must have the marker in the same one (rule 10.2).

        What a name without a schema means depends on the session's ``search_path``.
        """
        if self._space or not self._database.postgres:
            return
        quoted = self._database.dialect.identifier_preparer.quote(self._table_name)
        found = connection.exec_driver_sql(
            "select coalesce((select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace "
            "where c.oid = to_regclass(%s)), current_schema())",
            (quoted,),
        ).scalar()
        if found is None:
            raise SinkError(
                f"{self._name}: the session's search_path has no schema that exists: name one, SqlSink(url, "
                f"'schema.{self._table_name}')",
                target=self._name,
            )
        self._space = found

    @cached_property
    def _table(self) -> sa.Table:
        sqlalchemy = alchemy()
        columns = [
            sqlalchemy.Column(
                field.name,
                sql_type(field, lite=self._database.lite),
                primary_key=field.name in self._key,
                autoincrement=False,
                nullable=field.name not in self._key,
            )
            for field in self._fields
        ]
        return self._described(self._table_name, columns)

    @cached_property
    def _markers(self) -> sa.Table:
        sqlalchemy = alchemy()
        columns = [
            sqlalchemy.Column("target", sqlalchemy.String(255), primary_key=True),
            sqlalchemy.Column("application", sqlalchemy.String(255), nullable=False),
            sqlalchemy.Column("origin", sqlalchemy.String(64), nullable=False),
            sqlalchemy.Column("generation", sqlalchemy.BigInteger, nullable=False),
            sqlalchemy.Column("txid", sqlalchemy.BigInteger, nullable=False),
        ]
        return self._described(MARKERS, columns)

    @cached_property
    def _dead_letters(self) -> sa.Table | None:
        if self._dead_letter is None:
            return None
        sqlalchemy = alchemy()
        columns = [
            sqlalchemy.Column("target", sqlalchemy.String(255)),
            sqlalchemy.Column("txid", sqlalchemy.BigInteger),
            sqlalchemy.Column("reason", sqlalchemy.Text),
            sqlalchemy.Column("content", sqlalchemy.Text),
        ]
        return self._described(self._dead_letter, columns)

    def _described(self, name: str, columns: Sequence[Any]) -> sa.Table:
        sqlalchemy = alchemy()
        space, _, name = name.rpartition(".")
        described: sa.Table = sqlalchemy.Table(
            name, sqlalchemy.MetaData(), *columns, schema=space or self._space or None
        )
        return described

    # ---- marker

    def marker(self) -> Marker | None:
        with self._database.transaction() as connection:
            self._look(connection)
            return self._read_marker(connection) if self._is_there(connection, self._markers) else None

    def _read_marker(self, connection: sa.Connection, *, lock: bool = False) -> Marker | None:
        query = self._markers.select().where(self._markers.c.target == self._table_name)
        found = connection.execute(query.with_for_update() if lock and not self._database.lite else query).one_or_none()
        return None if found is None else Marker(found.application, found.origin, found.generation, found.txid)

    # ---- before a start

    def check(self) -> None:
        """Refuse a table that does not fit, and permissions that are missing (see `Target.check`)."""
        with self._database.transaction(keep=False) as connection:
            self._look(connection)
            check_table(connection, self._table, self._key, self._name)
            if self._dead_letters is not None:
                check_dead_letters(connection, self._dead_letters, (self._table, self._markers), self._name)
            for table in self._tables:
                if self._is_there(connection, table):
                    self._rehearse(connection, table)
                elif self._database.postgres:
                    self._check_space(connection, table)

    def _rehearse(self, connection: sa.Connection, table: sa.Table) -> None:
        """Run a statement over no rows: the database says what it would not do, does nothing, and waits for nobody."""
        sqlalchemy = alchemy()
        nothing = sqlalchemy.false()
        values = [
            # Text fits whatever the database reads from text; of others the type decides.
            sqlalchemy.null()
            if isinstance(c.type, sqlalchemy.Text | sqlalchemy.JSON)
            else sqlalchemy.cast(None, c.type)
            for c in table.columns
        ]
        insertion = self._insertion() if table is self._table else table.insert()
        names = [column.name for column in table.columns]
        connection.execute(insertion.from_select(names, sqlalchemy.select(*values).where(nothing)))
        if table is self._markers:
            connection.execute(table.update().where(nothing).values(txid=0))

    def _check_space(self, connection: sa.Connection, table: sa.Table) -> None:
        may = connection.exec_driver_sql(
            "select has_schema_privilege(oid, 'CREATE') from pg_namespace where nspname = %s", (table.schema,)
        ).scalar()
        if not may:
            found = "there is no schema" if may is None else "this user may not make tables in schema"
            raise SinkError(
                f"{self._name}: {found} {table.schema!r}, where table {table.name!r} would be made: make it, or grant "
                "USAGE and CREATE on the schema",
                target=self._name,
            )

    @property
    def _tables(self) -> list[sa.Table]:
        return [table for table in (self._markers, self._table, self._dead_letters) if table is not None]

    def _is_there(self, connection: sa.Connection, table: sa.Table) -> bool:
        return bool(alchemy().inspect(connection).has_table(table.name, schema=table.schema))

    def _make_tables(self, connection: sa.Connection) -> None:
        for table in self._tables:
            # IF NOT EXISTS alone would ask for the permission to make tables also where they are there.
            if not self._is_there(connection, table):
                connection.execute(alchemy().schema.CreateTable(table, if_not_exists=True))

    def try_rows(self, rows: StagedRows) -> None:
        """Write rows and take them back, to see whether the database would take them.

        Raises
        ------
        SinkError
            It would not; says which row and why.
        """
        try:
            with self._database.transaction(keep=False) as connection:
                self._look(connection)
                self._insert(connection, rows)
        except RowRefusedError:
            with self._database.transaction(keep=False) as connection:
                self._insert_parts(connection, rows, self._raise_refused)

    # ---- rows

    def publish(self, marker: Marker, previous: Marker | None, rows: StagedRows) -> None:
        try:
            self._publish(marker, previous, lambda connection: self._insert(connection, rows))
        except RowRefusedError:
            # Statements of all rows were refused. In parts it is slower, and finds out which row it is.
            aside = 0

            def refused(connection: sa.Connection, row: Row, reason: str) -> None:
                nonlocal aside
                self._refused(connection, marker, row, reason)
                aside += 1

            self._publish(marker, previous, lambda connection: self._insert_parts(connection, rows, refused))
            if aside:
                logger.warning(
                    "%s: rows of transaction %d were refused, and are in %s: %d",
                    self._name,
                    marker.txid,
                    self._dead_letter,
                    aside,
                )

    def _publish(self, marker: Marker, previous: Marker | None, insert: Callable[[sa.Connection], None]) -> None:
        starts = previous is None or not previous.is_of(marker) or previous.generation != marker.generation
        if starts:
            self._database.end_sessions(lambda name: is_replaced(name, marker, previous, self._table.fullname))
        with self._database.transaction(name=session_name(marker, self._table.fullname)) as connection:
            if starts:
                self._make_tables(connection)
            if self._read_marker(connection, lock=True) != previous:
                raise SinkError(f"{self._name}: another driver has published meanwhile", target=self._name)
            insert(connection)
            values = asdict(marker)
            if previous is None:
                connection.execute(self._markers.insert().values(target=self._table_name, **values))
            else:
                mine = self._markers.c.target == self._table_name
                connection.execute(self._markers.update().where(mine).values(**values))

    def _insert(self, connection: sa.Connection, rows: StagedRows) -> None:
        """Run the statement over all rows, on the bare driver: SQLAlchemy would look at each row again."""
        if not len(rows):
            return
        cursor: Any = connection.connection.cursor()
        try:
            if self._database.dialect.driver == "psycopg" and not self._key:
                self._copy(cursor, rows)
            else:
                cursor.executemany(self._statement, chain.from_iterable(map(self._rows, rows)))
        finally:
            cursor.close()

    def _copy(self, cursor: Any, rows: StagedRows) -> None:
        """Add rows by PostgreSQL's COPY, which takes a third of the time of INSERT."""
        quote = self._database.dialect.identifier_preparer
        names = ", ".join(map(quote.quote, self._fields.names))
        # SQLAlchemy doubles each % of a name, for statements with parameters; this one has none.
        statement = f"COPY {quote.format_table(self._table)} ({names}) FROM STDIN".replace("%%", "%")
        with cursor.copy(statement) as copy:
            for row in chain.from_iterable(map(self._rows, rows)):
                copy.write_row(row)

    def _rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        """Return rows as the database's driver takes them, converted by columns; of one key the last one."""
        columns = [
            values if convert is None else [None if value is None else convert(value) for value in values]
            for convert, values in zip(self._convert, (column.to_pylist() for column in batch), strict=True)
        ]
        every = zip(*columns, strict=True)
        if not self._key:
            return every
        # Each row is a statement of its own, so the last one wins also across batches: here rows that would be replaced
        # at once are spared. A null equals nothing, in SQL.
        at = [self._fields.get_field_index(name) for name in self._key]
        keys: Iterable[Any] = columns[at[0]] if len(at) == 1 else zip(*(columns[i] for i in at), strict=True)
        if any(batch.column(i).null_count for i in at):
            keys = (object() if key is None or (len(at) > 1 and None in key) else key for key in keys)
        return iter(dict(zip(keys, every, strict=True)).values())

    def _insertion(self) -> Any:
        sqlalchemy = alchemy()
        if not self._key:
            return sqlalchemy.insert(self._table)
        dialects: Any = __import__(f"sqlalchemy.dialects.{self._database.dialect.name}", fromlist=["insert"])
        insert = dialects.insert(self._table)
        rest = {name: insert.excluded[name] for name in self._fields.names if name not in self._key}
        key = list(self._key)
        if not rest:
            return insert.on_conflict_do_nothing(index_elements=key)
        return insert.on_conflict_do_update(index_elements=key, set_=rest)

    @cached_property
    def _statement(self) -> str:
        """The statement as text with positional parameters: rows through SQLAlchemy cost 2 us each."""
        sqlalchemy = alchemy()
        dialect = self._database.dialect
        style = _STYLES.get(dialect.paramstyle, "format")
        named = {name: sqlalchemy.bindparam(name) for name in self._fields.names}
        return str(self._insertion().values(named).compile(dialect=type(dialect)(paramstyle=style)))

    # ---- rows that the database refuses

    def _insert_parts(
        self, connection: sa.Connection, rows: StagedRows, refused: Callable[[sa.Connection, Row, str], None]
    ) -> None:
        """Insert in halves of halves, down to the rows that are refused."""
        if self._database.postgres:  # what is put off to COMMIT is refused there for all rows, and names none
            connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")
        for batch in rows:
            self._insert_part(connection, list(self._rows(batch)), refused)

    def _insert_part(
        self, connection: sa.Connection, rows: list[Row], refused: Callable[[sa.Connection, Row, str], None]
    ) -> None:
        try:
            with connection.begin_nested():
                cursor: Any = connection.connection.cursor()
                try:
                    cursor.executemany(self._statement, rows)
                finally:
                    cursor.close()
        except Exception as error:
            if not self._database.is_refusal(error):
                raise
            if len(rows) == 1:
                refused(connection, rows[0], " ".join(str(getattr(error, "orig", error)).split()))
                return
            half = len(rows) // 2
            self._insert_part(connection, rows[:half], refused)
            self._insert_part(connection, rows[half:], refused)

    def _refused(self, connection: sa.Connection, marker: Marker, row: Row, reason: str) -> None:
        """Put a row into the dead-letter table, or raise with its name."""
        if self._dead_letters is None:
            raise SinkError(
                f"{self._name} refuses a row of transaction {marker.txid}: {reason}; the row is {self._told(row)}: "
                "change the table so that it takes the row; or stop, and start again with "
                "SqlSink(..., deadLetter='table')",
                target=self._name,
                row=dict(zip(self._fields.names, row, strict=True)),
            )
        content = json.dumps(dict(zip(self._fields.names, row, strict=True)), default=plain)
        connection.execute(
            self._dead_letters.insert().values(
                txid=marker.txid, reason=reason, content=content, target=self._table_name
            )
        )

    def _raise_refused(self, connection: sa.Connection, row: Row, reason: str) -> None:
        raise SinkError(
            f"{self._name} refuses a row: {reason}; the row is {self._told(row)}",
            target=self._name,
            row=dict(zip(self._fields.names, row, strict=True)),
        )

    def _told(self, row: Row) -> str:
        """Return a row for a message, long values shortened."""
        values = (text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..." for text in map(repr, row))
        return (
            "{" + ", ".join(f"{name!r}: {value}" for name, value in zip(self._fields.names, values, strict=True)) + "}"
        )

    def close(self) -> None:
        self._database.close()
