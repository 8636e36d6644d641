"""Rows of tables as the input of transactions, in the order of a column that grows.

How far a table can be read: below which value no row can come any more.
A value is taken before its row is committed, so rows don't come in the order of their values::

    transaction A    takes 5 ......................... commits: now row 5 is there, and a reader that is at 6 misses it
    transaction B             takes 6, commits

PostgreSQL: first the spout reads the largest value, then which transactions write to the table. A transaction locks the
table before it takes a value, and holds the lock until its row can be seen. So once these transactions have ended, all
rows up to that value are there. The oldest transaction's number (``pg_snapshot_xmin``) would tell less: a transaction
may take its value before it is given a number, and transactions of other tables would be waited for.

``default now()`` is the time at which the transaction began, before it had the lock. So for timestamps the spout waits
for all transactions of the database that were open.

Why `settleSecs` alone does not do: it is a guess. A transaction that is open for longer loses its rows, and nothing
tells of it; and every row comes that much later. So it is left to what no query can tell.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statefx.config import is_count, is_number
from statefx.connectors.sql.columns import (
    column_of,
    fields_of,
    is_of_data,
    read_as_text,
    reader,
    reuses_numbers,
    table_columns,
    unique_keys,
    unreadable,
)
from statefx.connectors.sql.connection import (
    GIVE_FILE,
    NO_FILE,
    SqlUrl,
    alchemy,
    count_up,
    open_engine,
    quoted,
    reason_of,
)
from statefx.errors import ConfigError, FailedException, InputError, TopologyError
from statefx.operators.context import Collector, Context
from statefx.operators.fitting import MISFITS, fitted_array
from statefx.operators.json_values import refuse_keys
from statefx.operators.schema import parse_schema, to_ddl
from statefx.operators.spouts import Backlog, PartitionedTransactionalSpout
from statefx.protocol.identity import TransactionAttempt

if TYPE_CHECKING:
    import sqlalchemy as sa

logger = logging.getLogger("statefx")

# ---- the table that is read in the order of a column


@dataclass(frozen=True, slots=True)
class SourceTable:
    """One table, under the name that was given, and what is read of it."""

    name: str
    fields: pa.Schema
    order: str
    """The column that grows."""
    numeric: bool
    """Whether its values are whole numbers; else they are timestamps."""
    unique: bool
    """Whether no two rows have the same."""
    ties: bool
    """Whether a row can come with a value that another row has: the column is neither unique, nor given its values by a
    sequence, nor by a clock of microseconds (which has gone on when a row that has its time can be seen)."""
    view: bool
    text_columns: frozenset[str]
    """Columns that the database has as text."""
    as_text: frozenset[str]
    """Columns that it makes a text of (see `read_as_text`)."""

    @property
    def space(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def plain(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def clause(self) -> Any:
        return alchemy().table(self.plain, schema=self.space or None)

    @property
    def order_column(self) -> Any:
        sa = alchemy()
        return sa.column(self.order, sa.BigInteger() if self.numeric else sa.DateTime(timezone=True))

    def to_json(self, value: Any) -> Any:
        return value if self.numeric else value.isoformat()

    def from_json(self, value: Any) -> Any:
        return value if self.numeric else datetime.fromisoformat(value)


def inspect_table(connection: Any, name: str, order: str, given: pa.Schema | None, database: str) -> SourceTable:
    """Look at a table; TopologyError if it is not there, lacks a column, or can't be read in the order of `order`."""
    sqlalchemy = alchemy()
    space, _, plain = name.rpartition(".")
    inspector = sqlalchemy.inspect(connection)
    columns = table_columns(connection, name, [order, *(given.names if given is not None else [])], database)
    view = plain in inspector.get_view_names(schema=space or None)
    kind = columns[order]["type"]
    numeric = isinstance(kind, sqlalchemy.Integer)
    what = f"{database}: {name}.{order}"
    if isinstance(kind, sqlalchemy.DateTime) and not getattr(kind, "timezone", False):
        raise TopologyError(
            f"{what} has no time zone, so it may run backwards where clocks are changed: order by an id, or by a "
            "timestamp with time zone"
        )
    if not numeric and not isinstance(kind, sqlalchemy.DateTime):
        raise TopologyError(
            f"{what} is {kind}, of which nobody knows that new rows come last: order by a whole number that grows, "
            "such as an id, or by a timestamp with time zone"
        )
    key = inspector.get_pk_constraint(plain, schema=space or None)["constrained_columns"]
    if columns[order]["nullable"] and key != [order] and not view:
        raise TopologyError(
            f"{what} may be null, and rows with a null in it would never be read: make it NOT NULL, or order by "
            "another column"
        )
    if key == [order]:
        _warn_of_reuse(connection, plain, what)
    keys = unique_keys(inspector, plain, space or None)
    indexes = [index["column_names"] for index in inspector.get_indexes(plain, schema=space or None)]
    if not view and not any(columns[:1] == [order] for columns in [*keys, *indexes]):
        logger.warning(
            "%s has no index, so that each look for new rows reads the whole table: CREATE INDEX ON %s (%s)",
            what, name, order,
        )  # fmt: skip
    unique, lite = [order] in keys, connection.dialect.name == "sqlite"
    fields = fields_of(columns, f"{database}: {name}", lite=lite) if given is None else given
    if given is not None and not lite:
        _check_zones(given, columns, f"{database}: {name}")
    text_columns = frozenset(name for name, column in columns.items() if isinstance(column["type"], sqlalchemy.String))
    ties = not unique and not _in_turn(columns[order])
    as_text = read_as_text(fields, columns, lite=lite)
    return SourceTable(name, fields, order, numeric, unique, ties, view, text_columns, as_text)


def _in_turn(column: Any) -> bool:
    """Return whether a later row has another value than those that can be seen, though nothing forbids it."""
    if isinstance(column["type"], alchemy().DateTime):
        return getattr(column["type"], "precision", None) in (None, 6)
    return bool(column.get("identity")) or "nextval(" in (column.get("default") or "")


def _warn_of_reuse(connection: Any, table: str, what: str) -> None:
    """Warn of a key that SQLite continues from the largest row that is there, also after rows were deleted."""
    if reuses_numbers(connection, table):
        logger.warning(
            "%s has no AUTOINCREMENT, so SQLite gives the numbers of rows that were deleted to new rows, which are "
            "then not read: keep the row of the largest number, or make the column 'integer primary key autoincrement'",
            what,
        )


def _check_zones(fields: pa.Schema, columns: Any, what: str) -> None:
    """Refuse to read times with a zone as times without one, and the other way round: nobody says which zone."""
    for field in fields:
        kind = columns[field.name]["type"]
        times = pa.types.is_timestamp(field.type) and isinstance(kind, alchemy().DateTime)
        if times and (field.type.tz is not None) != bool(kind.timezone):
            has, word = ("a", "timestamp") if kind.timezone else ("no", "timestamp_ntz")
            raise TopologyError(f"{what}.{field.name} has {has} time zone: declare it as {word}", field=field.name)


# ---- how far it can be read

Holders = Callable[[Any], set[str]]

# Partitions and inheriting tables have locks of their own. Transactions that are prepared (two-phase commit) have no
# process, and after a restart of the server a name such as -1/4711.
_WRITERS = """
    with recursive tree(oid) as (
        select cast(cast(:table as regclass) as oid)
        union select inhrelid from pg_inherits join tree on inhparent = tree.oid)
    select distinct virtualtransaction from pg_locks
    where locktype = 'relation' and mode = 'RowExclusiveLock' and granted
        and database = (select oid from pg_database where datname = current_database())
        and relation in (select oid from tree) and pid is distinct from pg_backend_pid()
"""

# Of others' sessions, a user without pg_read_all_stats is shown the database and the user, and null for the rest, such
# as backend_type. Only sessions that run no user's statements, such as autovacuum's, have no user.
_OPEN = """
    select distinct l.virtualtransaction from pg_locks l join pg_stat_activity a on a.pid = l.pid
    where l.locktype = 'virtualxid' and l.mode = 'ExclusiveLock' and a.datname = current_database()
        and a.usesysid is not null and l.pid <> pg_backend_pid()
"""


def holders_of(table: SourceTable) -> Holders:
    """Return the function that names the transactions that may still commit rows with values up to the largest."""

    def holders(connection: Any) -> set[str]:
        if connection.dialect.name != "postgresql" or table.view:
            return set()  # SQLite has one writer at a time; others need settleSecs
        # The server lists sessions once in a transaction: without the second call, the list would lack a session that
        # has come since an earlier look, and takes a lower time than the largest value that was read after that look.
        if connection.exec_driver_sql("select pg_is_in_recovery(), pg_stat_clear_snapshot()").scalar():
            return set()
        text, name = alchemy().text, quoted(connection.dialect, table.space, table.plain)
        found = set(connection.execute(text(_WRITERS), {"table": name}).scalars())
        if not table.numeric:
            found.update(connection.execute(text(_OPEN)).scalars())
        return found

    return holders


@dataclass
class Settling:
    """The value up to which one table can be read."""

    holders: Holders
    """Returns the names of the transactions that may still commit lower values."""
    secs: float
    """The time for which a value must have been there, as well."""
    settled: Any = dataclasses.field(default=None, init=False)
    _waiting: tuple[Any, set[str], float] | None = dataclasses.field(default=None, init=False)
    """The largest value when it was looked at, the transactions that may still commit lower ones, the look's time."""
    _table: str = dataclasses.field(default="", init=False)

    @property
    def blocked(self) -> bool:
        return self.settled is None and self._waiting is not None

    def reason(self) -> str:
        assert self._waiting is not None
        value, holders, _ = self._waiting
        what = f"{len(holders)} open transactions" if holders else f"{self.secs:g} s"
        return f"rows of {self._table} up to {value} wait for {what}, as rows of lower values may still come"

    def advance(self, connection: Any, table: SourceTable, now: float) -> Any:
        """Return the value up to which all rows are there; None if none is known yet."""
        self._table = table.name
        if self._waiting is not None:
            value, holders, since = self._waiting
            if holders:
                # A prepared transaction may be one of them under another name, which a restart of the server gives it.
                holders = {name for name in self.holders(connection) if name in holders or name.startswith("-1/")}
            self._waiting = value, holders, since
            if not holders and now - since >= self.secs:
                self.settled, self._waiting = value, None
        if self._waiting is None:
            greatest = alchemy().select(alchemy().func.max(table.order_column)).select_from(table.clause)
            value = connection.execute(greatest).scalar()
            if value is not None and value != self.settled:
                # After the look at the value: a transaction that has a lower value holds the lock by now, or has ended.
                holders = self.holders(connection)
                if holders or self.secs:
                    self._waiting = value, holders, now
                else:
                    self.settled = value
        return self.settled


# ---- the spout

_FETCH_ROWS = 10_000
"""Of one round trip and of one Arrow batch: some 10 MB as Python objects."""

_NAME = "SqlPartitionedSpout"


class SqlPartitionedSpout(PartitionedTransactionalSpout):
    """Emits the rows of one or more tables to which rows are added, each once, in the order of a column that grows.

    A batch is a range of that column, so it is the same rows again as long as nobody changes or deletes them.

    **Rows that come late.** A number is taken before its row is committed: row 6 may be there while row 5 is not. So a
    range ends at a value below which no row can come any more. On SQLite, where one transaction writes at a time,
    that is the largest value. On PostgreSQL it is a value at which every transaction has ended that wrote to the table
    when it was the largest one; for a timestamp, every transaction of the database that was open then. It holds for
    values that the insert itself takes (``serial``, ``identity``, ``default now()``); for those that a program fetches
    before or makes up, and for sequences with a cache, give `settleSecs`.

    Parameters
    ----------
    url : str
        As SQLAlchemy has it: ``sqlite:///events.db``, ``postgresql+psycopg://user:password@host/database``. Driver and
        executors connect.
    table : str or sequence of str
        Optionally with a schema, ``schema.table``. Of several, all have the same fields; new ones go behind the others.
    orderBy : str
        A column of whole numbers or of timestamps with time zone, never null, that grows: an id, or when the row came.
        It needs an index. Where a later row can have the value of an earlier one, as with whole seconds, give
        `settleSecs`.
    schema : str, StructType or pyarrow.Schema, optional
        The columns to read, as fields. By default all columns, by their types in the first table.
    partitions : int
        Parts of each table, which are read side by side.
    partitionBy : str, optional
        An SQL expression of a whole number, such as ``hashtext(account)``: rows go to the part of its remainder. By
        default `orderBy`, if that is whole numbers.
    takePerBatch : int
        Rows of each part in a transaction, at most, and all that have the last one's value.
    settleSecs : float, optional
        A value counts as one below which no row can come if it was there so long ago: longer than any transaction takes
        from taking a value to its commit, and as long as new rows get one value. Required where statefx can't tell: for
        columns that are not unique, for views, for a standby of PostgreSQL, and for databases other than these two.

    Raises
    ------
    ConfigError
        SQLAlchemy or the driver is not installed, `url` is not a URL, or `settleSecs` is required.
    TopologyError
        There is no such table or column, or the column can't be the order.
    InputError
        The database can't be reached, to look at the tables.
    """

    def __init__(
        self,
        url: str,
        table: str | Sequence[str],
        orderBy: str,
        schema: Any = None,
        *,
        partitions: int = 1,
        partitionBy: str | None = None,
        takePerBatch: int = 10_000,
        settleSecs: float | None = None,
    ) -> None:
        parsed = SqlUrl(url, _NAME, "MemoryTransactionalSpout for rows that the program has")
        parsed.require_driver()
        tables = [table] if isinstance(table, str) else list(table)
        _check_arguments(tables, partitions, takePerBatch, settleSecs)
        self.database = parsed.location
        self._url = url
        self.parts, self.take, self.settle_secs = partitions, takePerBatch, settleSecs
        given = None if schema is None else schema if isinstance(schema, pa.Schema) else parse_schema(schema)
        self._engine: Any = None
        self._connection: sa.Connection | None = None
        try:
            with self._connected() as connection:
                found = [inspect_table(connection, name, orderBy, given, parsed.location) for name in tables]
                self._check_late_rows(connection, found)
        except FailedException as failure:
            raise InputError(f"{_NAME}: {failure.message}") from failure
        finally:
            self.close()
        self.tables = found
        self.schema = found[0].fields
        refuse_keys(self.schema, _NAME)
        for source in found:
            if source.fields != self.schema:
                raise TopologyError(
                    f"{parsed.location}: {source.name} has the fields {to_ddl(source.fields)}, and {found[0].name} has "
                    f"{to_ddl(self.schema)}: name those that all tables have, schema='...', or make a spout for each"
                )
        if partitions > 1 and partitionBy is None and not found[0].numeric:
            raise TopologyError(
                f"{_NAME}: rows can't be parted by {orderBy!r}, which is no whole number: "
                "partitionBy='an SQL expression of a whole number'"
            )
        self.part_by = partitionBy
        self.outputFields = to_ddl(self.schema)

    def _check_late_rows(self, connection: sa.Connection, tables: Sequence[SourceTable]) -> None:
        if self.settle_secs is not None:
            return
        why = ""
        if connection.dialect.name == "postgresql":
            views = [table.name for table in tables if table.view]
            why = f"{views[0]} is a view" if views else "the server is a standby" if _is_standby(connection) else ""
        elif connection.dialect.name != "sqlite":
            why = f"{connection.dialect.name} does not tell which transactions still write to a table"
        if why:
            raise ConfigError(
                f"{_NAME}: {why}, so that rows which are committed late can't be waited for: settleSecs=..., more "
                "than any transaction takes from its insert to its commit"
            )
        for table in tables:
            if table.ties:
                raise ConfigError(
                    f"{_NAME}: several rows of {table.name} can have one {table.order}, so that a row may come with "
                    "the value that was read last, and would never be read: order by a unique column, such as an id, "
                    "make this one unique, or give settleSecs=..., more than the time in which rows get one value and "
                    "are committed"
                )

    def reads(self, target: str) -> bool:
        return target in [f"{self.database}#{table.name}" for table in self.tables]

    # ---- on the driver

    def open(self, context: Context) -> None:
        self._settling = [Settling(holders_of(table), self.settle_secs or 0.0) for table in self.tables]
        self._bounds: list[Any] = [None] * len(self.tables)
        self._read: dict[int, Any] = {}
        self._ends = False

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._engine is not None:
            self._engine.dispose()
        self._engine = self._connection = None

    def prepareForAvailableNow(self) -> None:
        """Begin when each table can be read: other tables may have nothing new, and the query would end."""
        self._ends = True

    def initPartitions(self, metadata: Mapping[int, Any]) -> None:
        """Refuse other tables, parts or columns than before: numbers of partitions and values stand for them."""
        for number, said in sorted(metadata.items()):
            index = number // self.parts
            names = [table.name for table in self.tables]
            if index < len(names) and said["order"] != self.tables[index].order:
                raise InputError(
                    f"{_NAME}: {names[index]} was read in the order of {said['order']!r}, up to {said['to']}, which "
                    f"says nothing of {self.tables[index].order!r}: go back to orderBy={said['order']!r}, or start "
                    "with a new checkpointLocation"
                )
            if index >= len(names) or (said["table"], said["parts"]) != (names[index], self.parts):
                raise InputError(
                    f"{_NAME}: partition {number} was a part of {said['table']!r} in {said['parts']}, and now there "
                    f"are {', '.join(names)} in {self.parts}: go back to the former tables, in their order, and to "
                    f"partitions={said['parts']}; new tables go behind the others"
                )
            if self.parts > 1 and said["by"] != self._partitioned_by(self.tables[index]):
                raise InputError(
                    f"{_NAME}: the rows of {names[index]} were parted by {said['by']!r}, and each part was read up to "
                    f"a value of its own: go back to partitionBy={said['by']!r}, or start with a new checkpointLocation"
                )

    def isReady(self) -> bool:
        """Look how far each table can be read; FailedException if rows are there, and none can be read yet.

        With ``availableNow`` also if those of one table can't.
        """
        with self._connected() as connection:
            self._check_primary(connection)
            for number, (table, settling) in enumerate(zip(self.tables, self._settling, strict=True)):
                try:
                    self._bounds[number] = settling.advance(connection, table, time.monotonic())
                except Exception as error:
                    if not is_of_data(error):
                        raise
                    raise InputError(
                        f"{self.database}: the largest {table.name}.{table.order} can't be read: {reason_of(error)}; "
                        "rows are read ordered by it, so none is read: correct the value",
                        field=table.order,
                    ) from error
            connection.rollback()
        waiting = [settling for settling in self._settling if settling.blocked]
        if waiting and (self._ends or all(bound is None for bound in self._bounds)):
            # Else a query that ends when there is nothing to read would end before it has read what is there.
            raise FailedException(f"{self.database}: {waiting[0].reason()}")
        return True

    def numPartitions(self) -> int:
        return len(self.tables) * self.parts

    def planPartitionBatch(self, partition: int, lastMetadata: Any) -> Any:
        index, part = divmod(partition, self.parts)
        table, bound = self.tables[index], self._bounds[index]
        after = None if lastMetadata is None else table.from_json(lastMetadata["to"])
        if bound is not None and after is not None and bound < after:
            raise InputError(
                f"{self.database}: {table.name} was read up to the {table.order} {table.to_json(after)}, and now the "
                f"largest is {table.to_json(bound)}: either values start over, and rows with them would never be read, "
                "or the last rows were deleted. Let new rows have higher values (SQLite: autoincrement; PostgreSQL: "
                "setval), and delete the row of the largest value last, or start with a new checkpointLocation"
            )
        if bound is None or self._read.get(partition) == bound or (after is not None and after >= bound):
            return None
        seen = self._read.get(partition)
        # Rows of other parts are looked at once: up to here this part has none, and none with a lower value can come.
        lower = seen if seen is not None and seen < bound and (after is None or after < seen) else after
        with self._connected() as connection:
            self._check_primary(connection)
            sqlalchemy = alchemy()
            order = table.order_column
            conditions = self._conditions(table, part, lower, bound)
            some = sqlalchemy.select(order).select_from(table.clause).where(*conditions)
            some = some.order_by(order).limit(self.take).subquery()
            to, rows = connection.execute(
                sqlalchemy.select(sqlalchemy.func.max(some.c[table.order]), sqlalchemy.func.count())
            ).one()
            if to is not None and not table.unique:  # with all rows that have the last one's value
                conditions = self._conditions(table, part, lower, to)
                rows = connection.execute(
                    sqlalchemy.select(sqlalchemy.func.count()).select_from(table.clause).where(*conditions)
                ).scalar()
            connection.rollback()
        if to is None:
            self._read[partition] = bound
            return None
        metadata = {
            "table": table.name,
            "parts": self.parts,
            "order": table.order,
            "to": table.to_json(to),
            "rows": rows,
        }
        if self.parts > 1:
            metadata["by"] = self._partitioned_by(table)
        return metadata if after is None else {**metadata, "after": table.to_json(after)}

    # ---- in the tasks

    def emitPartitionBatch(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, metadata: Any
    ) -> Iterator[None]:
        index, part = divmod(partition, self.parts)
        table = self.tables[index]
        after = table.from_json(metadata["after"]) if "after" in metadata else None
        conditions = self._conditions(table, part, after, table.from_json(metadata["to"]))
        rows = 0
        with self._connected() as connection:
            self._check_primary(connection)
            batches = self._batches(connection, table, self.schema, conditions)
            while (batch := self._next(connection, batches, table, conditions)) is not None:
                rows += batch.num_rows
                collector.emitBatch(batch)
                yield
            connection.rollback()
        if rows != metadata["rows"]:
            where = alchemy().and_(*conditions).compile(connection, compile_kwargs={"literal_binds": True})
            found = _change_of_plan(table.name, table.order, str(where).replace("%%", "%"), metadata["rows"], rows)
            raise InputError(f"{self.database}: {found}")

    def _batches(
        self, connection: sa.Connection, table: SourceTable, fields: pa.Schema, conditions: Sequence[Any]
    ) -> Iterator[pa.RecordBatch]:
        columns = [column_of(field, table.as_text) for field in fields]
        asked = alchemy().select(*columns).select_from(table.clause).where(*conditions)
        streamed = connection.execution_options(stream_results=True, yield_per=_FETCH_ROWS)
        for rows in streamed.execute(asked.order_by(table.order_column)).partitions():
            arrays = []
            for field, values in zip(fields, zip(*rows, strict=True), strict=True):
                text = pa.types.is_string(field.type) and field.name in table.text_columns
                read = None if text else reader(field.type)
                arrays.append(fitted_array(values if read is None else list(map(read, values)), field.type))
            yield pa.RecordBatch.from_arrays(arrays, schema=fields)

    def _next(
        self, connection: sa.Connection, batches: Iterator[pa.RecordBatch], table: SourceTable, conditions: list[Any]
    ) -> pa.RecordBatch | None:
        """Return the next batch; InputError names the value that can't be read, and None is the end."""
        try:
            return next(batches, None)
        except Exception as error:
            if not isinstance(error, MISFITS) and not is_of_data(error):
                raise
            failed = error
        connection.rollback()
        order = table.order_column
        asked = alchemy().select(order).select_from(table.clause).where(*conditions).order_by(order)
        keys = connection.execute(asked).scalars().all()

        def read(keys: Sequence[Any], fields: pa.Schema) -> None:
            try:
                for _ in self._batches(connection, table, fields, [*conditions, order >= keys[0], order <= keys[-1]]):
                    pass
            finally:
                connection.rollback()

        found = unreadable(f"{self.database}: {table.name}", table.order, keys, self.schema, read)
        raise found or FailedException(f"{self.database} can't be read: {failed}") from failed

    # ---- both

    def _check_primary(self, connection: sa.Connection) -> None:
        """Refuse a standby, to which a URL of several hosts or a failover may lead: FailedException, and a later retry.

        A standby knows no writers of the primary's. It may also lack rows that the primary had when they were planned.
        """
        if self.settle_secs is None and connection.dialect.name == "postgresql" and _is_standby(connection):
            raise FailedException(
                f"{self.database} is a standby now, where rows that are committed late can't be waited for: let the "
                "URL lead to the primary, as with ?target_session_attrs=read-write, or give settleSecs=..."
            )

    def _partitioned_by(self, table: SourceTable) -> str:
        return self.part_by or table.order

    def backlog(self, metadata: Mapping[int, Any]) -> Backlog:
        """Count the rows behind what is committed, of each part up to 100,000."""
        queries = []
        for index, table in enumerate(self.tables):
            for part in range(self.parts):
                read = metadata.get(index * self.parts + part)
                after = None if read is None else table.from_json(read["to"])
                wanted = alchemy().select(table.order_column).select_from(table.clause)
                queries.append(wanted.where(*self._conditions(table, part, after, None)))
        engine = open_engine(self._url, lock_secs=1.0, existing=True)
        try:
            return Backlog(count_up(engine, queries))
        finally:
            engine.dispose()

    def _conditions(self, table: SourceTable, part: int, after: Any, to: Any) -> list[Any]:
        """Return the conditions of the rows of a part after one value, up to another one, or all if that is None."""
        sqlalchemy = alchemy()
        order = table.order_column
        found = [] if after is None else [order > after]
        if to is not None:
            found.append(order <= to)
        if self.parts > 1:
            by = (
                order
                if self.part_by is None
                else sqlalchemy.literal_column(f"({self.part_by})", sqlalchemy.BigInteger())
            )
            whole = sqlalchemy.func.coalesce(by, 0)
            found.append((whole % self.parts + self.parts) % self.parts == part)  # a remainder may be negative
        return found

    @contextmanager
    def _connected(self) -> Iterator[sa.Connection]:
        try:
            if self._engine is None:
                self._engine = open_engine(self._url, existing=True)
            if self._connection is None:
                # Each statement sees what is committed by then: with one view for a whole transaction, rows whose
                # writers have ended since it began would be missing.
                options = {"isolation_level": "READ COMMITTED"} if self._engine.name == "postgresql" else {}
                self._connection = self._engine.connect().execution_options(**options)
            yield self._connection
        except BaseException as error:
            self.close()  # nothing is known of a connection that has failed
            if not isinstance(error, alchemy().exc.DBAPIError):
                raise
            reason = reason_of(error)
            if reason.endswith(NO_FILE):
                reason += f": {GIVE_FILE}"
            away = isinstance(error, alchemy().exc.OperationalError | alchemy().exc.InterfaceError)
            if away and not reason.startswith("no such "):  # of SQLite: a table or a column is gone
                raise FailedException(f"{self.database} can't be read: {reason}") from error
            raise InputError(f"{self.database}: {reason}") from error


def _is_standby(connection: sa.Connection) -> bool:
    return bool(connection.exec_driver_sql("select pg_is_in_recovery()").scalar())


def _change_of_plan(table: str, order: str, where: str, planned: int, rows: int) -> str:
    """Return why an attempt that finds `rows` in the range of its plan can't go on, and what the user can do."""
    what = f"{table} had {planned:,} rows WHERE {where} when they were planned, and has {rows:,}"
    if rows < planned:
        return (
            f"{what}: rows must stay until they are committed, and the plan is never changed: put them back and start "
            "again, or start with a new checkpointLocation"
        )
    return (
        f"{what}: some came late, and the plan is never changed: give {rows - planned:,} of them a higher {order} than "
        f"any other row has (UPDATE {table} SET {order} = ... WHERE {where}) and start again. Against more of them, "
        "give or raise settleSecs=..., longer than any transaction takes from its value to its commit"
    )


def _check_arguments(tables: Sequence[str], partitions: Any, take: Any, settle_secs: Any) -> None:
    if not tables or len(set(tables)) < len(tables):
        raise TopologyError(f"{_NAME}: table names one table, or several different ones, not {list(tables)!r}")
    for name, value in (("partitions", partitions), ("takePerBatch", take)):
        if not is_count(value):
            raise TopologyError(f"{_NAME}: {name} is a whole number from 1, not {value!r}")
    if settle_secs is not None and not is_number(settle_secs):
        raise TopologyError(f"{_NAME}: settleSecs is a number of seconds from 0, not {settle_secs!r}")
