"""SqlSink: rows into a table, and the marker into another, in one transaction of the database."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cache, cached_property
from itertools import chain, groupby
from operator import itemgetter
from sys import getsizeof
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from statefx.connectors.sql.columns import (
    Mask,
    changed_values,
    check_columns,
    columns_of,
    contains,
    converter,
    listed_columns,
    sql_type,
    unique_keys,
)
from statefx.connectors.sql.connection import (
    RowRefusedError,
    SqlConnection,
    SqlUrl,
    alchemy,
    is_replaced,
    quoted,
    reason_of,
    session_name,
)
from statefx.connectors.staged import StagedRows, StagedSink, Stager, Target, refuse_nulls
from statefx.errors import ConfigError, SinkError, TopologyError
from statefx.operators.json_values import JsonRows, JsonType, refuse_keys
from statefx.operators.sinks import Committable, Marker, SinkWriter, WriterContext

if TYPE_CHECKING:
    import sqlalchemy as sa


logger = logging.getLogger("statefx")

# ---- the table and its marker

MARKERS = "statefx_markers"

_TEXT_MAX = 200

_COLUMNS_MAX = {"postgresql": 1600, "sqlite": 2000}
"""How many columns a table may have; of SQLite as it is built by default."""

_MARKER_FIELDS = pa.schema(
    [
        *((name, pa.string()) for name in ("target", "application", "origin")),
        *((name, pa.int64()) for name in ("generation", "txid")),
    ]
)
_DEAD_FIELDS = pa.schema([*((name, pa.string()) for name in ("target", "reason", "content")), ("txid", pa.int64())])

_ROLLS_BACK = re.compile(r"\b(?:conflict|or)\s+rollback\b|\braise\s*\(\s*rollback\b", re.IGNORECASE)

_STYLES = {"qmark": "qmark", "numeric": "numeric", "named": "numeric"}

_CHUNK_ROWS, _CHUNK_BYTES = 30, 1 << 20
"""How many rows one statement of PostgreSQL writes: it plans each anew, and takes 1 GB and 65,535 values at most."""

Parameters = tuple[Any, ...]
"""A row as the database's driver takes it."""

Refused = Callable[["sa.Connection", pa.RecordBatch, str], None]
"""Given a batch of one row, and the reason."""


class SqlTable(Target):
    """A table, and its line in `MARKERS`, which is in the same schema; messages call it `name`."""

    def __init__(
        self,
        url: str,
        name: str,
        table: str,
        key: tuple[str, ...],
        dead_letter: str | None,
        fields: pa.Schema,
        txid: str | None = None,
    ) -> None:
        self._name = name
        self._key = key
        self._txid = txid
        self._fields = fields = fields if txid is None else fields.append(pa.field(txid, pa.int64()))
        self._key_types = [fields.field(name).type for name in key]
        self._database = SqlConnection(url, name)
        self._schema, _, self._table_name = table.rpartition(".")
        self._dead_letter = dead_letter
        self._changed_values: list[tuple[int, str, Mask]] | None = None
        self._convert = [converter(field.type, lite=self._database.lite) for field in fields]
        if self._database.lite:  # names there are alike in small letters and in capitals
            self._table_name = _small(self._table_name)
            self._schema = "" if self._schema.lower() == "main" else self._schema

    # ---- descriptions

    def _find_schema(self, connection: sa.Connection) -> None:
        """Find out in which schema the table is: all sessions must have the marker in the same one (rule 10.2).

        What a name without a schema means depends on the session's ``search_path``.
        """
        if self._schema or not self._database.postgres:
            return
        found = connection.exec_driver_sql(
            "select coalesce((select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace "
            "where c.oid = to_regclass(%s)), current_schema())",
            (quoted(self._database.dialect, self._table_name),),
        ).scalar()
        if found is None:
            raise SinkError(
                f"{self._name}: the session's search_path has no schema that exists: name one, SqlSink(url, "
                f"'schema.{self._table_name}')",
                target=self._name,
            )
        self._schema = found

    @property
    def _quoted(self) -> str:
        return quoted(self._database.dialect, self._table.schema, self._table.name)

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
        schema, _, name = name.rpartition(".")
        described: sa.Table = sqlalchemy.Table(
            name, sqlalchemy.MetaData(), *columns, schema=schema or self._schema or None
        )
        return described

    # ---- marker

    def marker(self) -> Marker | None:
        with self._database.transaction() as connection:
            self._find_schema(connection)
            return self._read_marker(connection) if self._exists(connection, self._markers) else None

    def _read_marker(self, connection: sa.Connection, *, lock: bool = False) -> Marker | None:
        query = self._markers.select().where(self._markers.c.target == self._table_name)
        found = connection.execute(query.with_for_update() if lock and not self._database.lite else query).one_or_none()
        return None if found is None else Marker(found.application, found.origin, found.generation, found.txid)

    # ---- before a start

    def check(self) -> None:
        with self._database.transaction(keep=False) as connection:
            self._find_schema(connection)
            _check_table(connection, self._table, self._key, self._name)
            if self._dead_letters is not None:
                _check_dead_letters(connection, self._dead_letters, (self._table, self._markers), self._name)
            for table, fields, key in (
                (self._table, self._fields, self._key),
                (self._markers, _MARKER_FIELDS, ("target",)),
                (self._dead_letters, _DEAD_FIELDS, ()),
            ):
                if table is not None and self._exists(connection, table):
                    what = self._name if table is self._table else f"{self._name}: table {table.fullname!r}"
                    check_columns(connection, table, fields, key, what)
            for table in self._tables:
                if self._exists(connection, table):
                    if self._database.lite:
                        _check_rollbacks(connection, table, self._name)
                    self._rehearse(connection, table)
                else:
                    self._check_made(connection, table)

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

    def _check_made(self, connection: sa.Connection, table: sa.Table) -> None:
        """Refuse a table that the database would not make: it is made after other drivers have been replaced."""
        count, most = len(table.columns), _COLUMNS_MAX.get(self._database.dialect.name)
        if most is not None and count > most:
            raise SinkError(
                f"{self._name}: table {table.name!r} would have {count:,} columns, and the database makes tables of at "
                f"most {most:,}: put some fields into one of a nested type, or make fewer",
                target=self._name,
            )
        if not self._database.postgres:
            return
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

    def _exists(self, connection: sa.Connection, table: sa.Table) -> bool:
        return bool(alchemy().inspect(connection).has_table(table.name, schema=table.schema))

    def _make_tables(self, connection: sa.Connection) -> None:
        for table in self._tables:
            # IF NOT EXISTS alone would ask for the permission to make tables also where they are there.
            if not self._exists(connection, table):
                connection.execute(alchemy().schema.CreateTable(table, if_not_exists=True))

    def try_rows(self, rows: StagedRows) -> None:
        """Write rows and take them back; SinkError says which row the database would not take, and why."""
        try:
            with self._database.transaction(keep=False) as connection:
                self._find_schema(connection)
                self._insert(connection, self._numbered(rows, 0))
                self._check_constraints(connection)
        except RowRefusedError:
            with self._database.transaction(keep=False) as connection:
                self._insert_parts(
                    connection, self._numbered(rows, 0), lambda _, row, reason: self._raise_refused(row, reason)
                )

    # ---- rows

    def _numbered(self, rows: StagedRows, txid: int) -> StagedRows:
        return rows if self._txid is None else rows.numbered(self._txid, txid)

    def rewind(self, marker: Marker, after: int) -> None:
        assert self._txid is not None
        with self._database.transaction(name=session_name(marker, self._table.fullname)) as connection:
            if self._read_marker(connection, lock=True) != marker:
                raise SinkError(f"{self._name}: another driver has published meanwhile", target=self._name)
            connection.execute(self._table.delete().where(self._table.c[self._txid] > after))
            if (aside := self._dead_letters) is not None:
                mine = aside.c.target == self._table_name
                connection.execute(aside.delete().where(mine & (aside.c.txid > after)))

    def _disown(self, connection: sa.Connection) -> None:
        """Forget of which transactions the rows of another checkpoint are: its numbers are not this one's."""
        if self._txid is None:
            return
        number = self._table.c[self._txid]
        connection.execute(self._table.update().where(number.is_not(None)).values({number: None}))
        if (aside := self._dead_letters) is not None:
            mine = aside.c.target == self._table_name
            connection.execute(aside.update().where(mine & aside.c.txid.is_not(None)).values(txid=None))

    def publish(self, marker: Marker, previous: Marker | None, rows: StagedRows) -> None:
        rows = self._numbered(rows, marker.txid)
        try:
            self._publish(marker, previous, lambda connection: self._insert(connection, rows))
        except RowRefusedError:
            # Statements of all rows were refused. In parts it is slower, and finds out which row it is.
            aside = 0

            def insert(connection: sa.Connection) -> None:
                nonlocal aside
                aside = self._insert_parts(
                    connection, rows, lambda connection, row, reason: self._put_aside(connection, marker, row, reason)
                )

            self._publish(marker, previous, insert)
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
            if previous is None or previous.origin != marker.origin:
                self._disown(connection)
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
        self._find_changed_values(connection)
        cursor: Any = connection.connection.cursor()
        try:
            if self._database.dialect.driver == "psycopg" and not self._key and self._takes_copy(connection):
                self._copy(cursor, rows)
            elif self._database.postgres and self._key:
                for size, chunks in groupby(self._chunks(rows), len):
                    cursor.executemany(self._statement(size), ([*chain(*chunk)] for chunk in chunks))
            else:
                cursor.executemany(self._statement(1), self._all_rows(rows))
        finally:
            cursor.close()

    def _takes_copy(self, connection: sa.Connection) -> bool:
        """Return whether COPY does what INSERT does: it fails on views and under row security, and ignores rules."""
        query = (
            "select relkind in ('r', 'p') and not relhasrules and not row_security_active(oid) from pg_class "
            "where oid = to_regclass(%s)"
        )
        return bool(connection.exec_driver_sql(query, (self._quoted,)).scalar())

    def _copy(self, cursor: Any, rows: StagedRows) -> None:
        """Add rows by PostgreSQL's COPY, which takes a third of the time of INSERT."""
        names = ", ".join(quoted(self._database.dialect, name) for name in self._fields.names)
        with cursor.copy(f"COPY {self._quoted} ({names}) FROM STDIN") as copy:
            for row in self._all_rows(rows):
                copy.write_row(row)

    def _chunks(self, rows: StagedRows) -> Iterator[list[Parameters]]:
        """Yield rows that one statement writes, which may not replace a row twice."""
        key_of = itemgetter(*map(self._fields.names.index, self._key))
        chunk, size = dict[Any, Parameters](), 0
        for row in self._all_rows(rows):
            key = key_of(row)
            if key in chunk or len(chunk) == _CHUNK_ROWS or size > _CHUNK_BYTES:
                yield list(chunk.values())
                chunk, size = {}, 0
            chunk[key] = row
            size += sum(map(getsizeof, row))
        if chunk:
            yield list(chunk.values())

    def _all_rows(self, rows: StagedRows) -> Iterator[Parameters]:
        for batch in self._batches(rows):
            for reason, _ in self._changed(batch):
                raise RowRefusedError(f"{self._name}: {reason}", target=self._name)
            yield from self._rows(batch)

    def _find_changed_values(self, connection: sa.Connection) -> None:
        if self._changed_values is None:
            self._changed_values = changed_values(connection, self._table, self._fields)

    def _changed(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.BooleanArray]]:
        assert self._changed_values is not None
        for number, reason, mask in self._changed_values:
            changed = mask(batch.column(number))
            if changed.true_count:
                yield reason, changed

    def _rows(self, batch: pa.RecordBatch) -> Iterator[Parameters]:
        columns = (
            values if convert is None else [None if value is None else convert(value) for value in values]
            for convert, values in zip(self._convert, (column.to_pylist() for column in batch), strict=True)
        )
        return zip(*columns, strict=True)

    def _batches(self, rows: StagedRows) -> Iterator[pa.RecordBatch]:
        """Yield the rows to be written: with a key, of a task's rows with one key the last.

        PostgreSQL takes n * n steps to replace one row n times in a transaction. All rows of a task are looked at
        together, so that the result does not depend on where its batches end. With dead letters every row is written:
        the last one may be refused, and then the one before it has to stay.
        """
        if not self._key or self._dead_letter is not None or any(map(pa.types.is_nested, self._key_types)):
            yield from rows
            return
        for part in rows.parts():
            table = pa.Table.from_batches(part, self._fields)
            keys = table.select(self._key).rename_columns(list(map(str, range(len(self._key)))))
            numbered = keys.append_column("row", pa.array(range(len(table)), pa.int64()))
            last = numbered.group_by(keys.column_names).aggregate([("row", "max")])["row_max"]
            yield from (table if len(last) == len(table) else table.take(last.sort())).to_batches()

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
    def _statement(self) -> Callable[[int], str]:
        """The statement for some rows, as text with positional parameters: through SQLAlchemy a row costs 2 us."""
        return cache(self._compiled)

    def _compiled(self, rows: int) -> str:
        sqlalchemy = alchemy()
        dialect = self._database.dialect
        style = _STYLES.get(dialect.paramstyle, "format")
        named = [{name: sqlalchemy.bindparam(f"{name} {row}") for name in self._fields.names} for row in range(rows)]
        return str(self._insertion().values(named).compile(dialect=type(dialect)(paramstyle=style)))

    # ---- rows that the database refuses

    def _check_constraints(self, connection: sa.Connection) -> None:
        """Have no constraint wait for COMMIT, which would refuse all rows, and name none."""
        if self._database.postgres:
            connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")

    def _insert_parts(self, connection: sa.Connection, rows: StagedRows, refused: Refused) -> int:
        """Insert in halves of halves, down to the rows that are refused, and return how many these are."""
        try:
            with connection.begin_nested():  # a row may refer to one that comes behind it
                count = self._insert_halves(connection, rows, refused)
                self._check_constraints(connection)
                return count
        except Exception as error:
            if not self._database.is_refusal(error):
                raise
        self._check_constraints(connection)
        return self._insert_halves(connection, rows, refused)

    def _insert_halves(self, connection: sa.Connection, rows: StagedRows, refused: Refused) -> int:
        count = 0
        self._find_changed_values(connection)
        for batch in self._batches(rows):
            changed = dict[int, str]()
            for reason, mask in self._changed(batch):
                changed |= dict.fromkeys(pc.indices_nonzero(mask).to_pylist(), reason)
            for number, reason in sorted(changed.items()):
                refused(connection, batch.slice(number, 1), reason)
            if changed:
                batch = batch.take(pa.array([number for number in range(len(batch)) if number not in changed]))
            count += len(changed) + self._insert_part(connection, batch, list(self._rows(batch)), refused)
        return count

    def _insert_part(
        self, connection: sa.Connection, batch: pa.RecordBatch, rows: list[Parameters], refused: Refused
    ) -> int:
        if not rows:
            return 0
        try:
            with connection.begin_nested():
                cursor: Any = connection.connection.cursor()
                try:
                    cursor.executemany(self._statement(1), rows)
                finally:
                    cursor.close()
        except Exception as error:
            if not self._database.is_refusal(error):
                raise
            if len(rows) == 1:
                refused(connection, batch, reason_of(error))
                return 1
            half = len(rows) // 2
            return self._insert_part(connection, batch.slice(0, half), rows[:half], refused) + self._insert_part(
                connection, batch.slice(half), rows[half:], refused
            )
        return 0

    def _put_aside(self, connection: sa.Connection, marker: Marker, row: pa.RecordBatch, reason: str) -> None:
        if self._dead_letters is None:
            self._raise_refused(
                row,
                reason,
                f" of transaction {marker.txid}",
                ": change the table so that it takes the row; or stop, and start again with "
                "SqlSink(..., deadLetter='table')",
            )
        (content,) = JsonRows(self._fields).encode(row)
        connection.execute(
            self._dead_letters.insert().values(
                txid=marker.txid, reason=reason, content=content.decode(), target=self._table_name
            )
        )

    def _raise_refused(self, row: pa.RecordBatch, reason: str, which: str = "", remedy: str = "") -> NoReturn:
        (values,) = row.to_pylist()
        told = {
            name: text if len(text := repr(value)) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..."
            for name, value in values.items()
        }
        shown = "{" + ", ".join(f"{name!r}: {text}" for name, text in told.items()) + "}"
        raise SinkError(
            f"{self._name} refuses a row{which}: {reason}; the row is {shown}{remedy}", target=self._name, row=values
        )

    def close(self) -> None:
        self._database.close()


def _check_dead_letters(
    connection: sa.Connection, described: sa.Table, others: Sequence[sa.Table], target: str
) -> None:
    """Refuse a table for dead letters that the sink uses for something else, or that lacks a column."""
    lite = connection.dialect.name == "sqlite"

    def name_of(table: Any) -> str:
        return _small(table.fullname).removeprefix("main.") if lite else str(table.fullname)

    what = f"{target}: deadLetter={described.fullname!r}"
    if name_of(described) in map(name_of, others):
        raise SinkError(f"{what} is a table that the sink needs itself: name another one", target=target)
    inspector = alchemy().inspect(connection)
    if not inspector.has_table(described.name, schema=described.schema):
        return
    found = columns_of(connection, described)
    if missing := [name for name in list(described.columns.keys()) if name not in found]:
        raise SinkError(
            f"{what} is there and has no column {missing[0]!r} (it has {', '.join(found)}): name a table that is not "
            "there yet, and it is made",
            target=target,
        )


def _check_rollbacks(connection: sa.Connection, table: sa.Table, target: str) -> None:
    """Refuse a table of SQLite that ends the whole transaction when it refuses one row, which none could be told by."""
    schema = "main" if table.schema is None else table.schema
    listed = f"{quoted(connection.dialect, schema)}.sqlite_master"
    query = f"select type, name, sql from {listed} where tbl_name = ? collate nocase and sql is not null"
    for kind, name, text in connection.exec_driver_sql(query, (table.name,)):
        if found := _ROLLS_BACK.search(text):
            raise SinkError(
                f"{target}: {kind} {name!r} has {found[0]}, which takes back all rows of a transaction when it refuses "
                "one, and the sink could never finish: write ABORT in place of ROLLBACK",
                target=target,
            )


def _check_table(connection: sa.Connection, described: sa.Table, key: Sequence[str], target: str) -> None:
    """Refuse a table that exists and does not fit the rows; names the column, both types, and the remedy."""
    inspector = alchemy().inspect(connection)
    table, schema, fields = described.name, described.schema, list(described.columns.keys())
    if not inspector.has_table(table, schema=schema):
        return
    found = listed_columns(inspector, table, schema)
    for name in fields:
        if name not in found:
            raise SinkError(
                f"{target} has no column {name!r} (it has {', '.join(found)}): add it, or emit rows without that field",
                target=target,
                field=name,
            )
    catalog = columns_of(connection, described)
    for name, column in found.items():
        filled = column["nullable"] or column.get("default") is not None or column.get("autoincrement") is True
        filled = filled or column.get("computed") or catalog[name].rowid
        if name not in fields and not filled:
            raise SinkError(
                f"{target}: column {name!r} must not be null, and the rows have no such field: emit it, "
                "or give the column a default",
                target=target,
                field=name,
            )
    if key and not any(set(unique) == set(key) for unique in unique_keys(inspector, table, schema)):
        name, *columns = (quoted(connection.dialect, each) for each in (f"{table}_key", *key))
        raise SinkError(
            f"{target} has no primary key or unique constraint on ({', '.join(key)}), "
            "the sink's key: without one, rows can't be replaced. Make one: CREATE UNIQUE INDEX "
            f"{name} ON {quoted(connection.dialect, schema, table)} ({', '.join(columns)})",
            target=target,
        )


# ---- the sink

_UPSERTS = ("sqlite", "postgresql")
_BACKENDS = (*_UPSERTS, "mysql", "mariadb")
"""Whose locks keep a driver that was replaced from moving the marker. SQL Server, for one, has no ``FOR UPDATE``."""


class SqlSink(StagedSink):
    """Writes rows to a table of SQLite, PostgreSQL, MySQL or MariaDB; each transaction once, and atomically.

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
        the transaction while it can still be rolled back. Constraints that are put off to COMMIT are checked for the
        rows of one task, without those of others. It costs a second write.
    txid : str, optional
        A column that the sink fills with the number of a row's transaction, BIGINT: then
        ``Checkpoint.restore(..., sinks="rewind")`` can take rows back. Not with `key`: of a row that was replaced
        nothing is left. Whoever takes the table over empties the column of the rows that are there, for its numbers are
        others.

    Raises
    ------
    ConfigError
        An argument can't be used, the database is another one, or SQLAlchemy is not installed.

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
        if parsed.backend not in _BACKENDS:
            raise ConfigError(
                f"SqlSink writes to {', '.join(_BACKENDS)}, not to {parsed.backend}, where rows might come twice: "
                "write a StagedSink of your own, or use ForeachTransactionSink"
            )
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
        return _SqlWriter(self, context)

    def connect(self, schema: pa.Schema) -> SqlTable:
        return SqlTable(self.url, self.target, self.table, self.key, self.dead_letter, schema, self.txid)


class _SqlWriter(Stager):
    """Stages rows, and refuses those that could never be written while the transaction can still be rolled back."""

    def __init__(self, sink: SqlSink, context: WriterContext) -> None:
        super().__init__(context)
        self._sink = sink
        checks = [  # not even as dead letters
            (pa.types.is_temporal, _has_far_date, "a time outside of the years 1 to 9999, which Python does not have"),
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
        super().write(batch)

    def prepare(self, txid: int) -> Committable | None:
        committable = super().prepare(txid)
        if committable is not None and self._sink.validate:
            context = self._context
            with self._sink.connect(context.schema) as target:
                target.try_rows(StagedRows(context.storage, context.schema, {context.task: committable}))
        return committable


def _alike(names: Sequence[str]) -> list[str]:
    """Return the first names that SQLite takes for one."""
    spelled: dict[str, list[str]] = {}
    for name in names:
        spelled.setdefault(_small(name), []).append(name)
    return next((alike for alike in spelled.values() if len(alike) > 1), [])


def _small(name: str) -> str:
    """Return a name in small letters, as far as SQLite knows letters: those of ASCII."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


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
