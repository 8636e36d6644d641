"""Rows of a table as messages of a queue: several tasks, and other programs, take them without meeting."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statefx.connectors.queue import Message, PendingAcks, QueueSpout, check_idle_secs
from statefx.connectors.sql.columns import (
    check_columns,
    column_of,
    fields_of,
    is_of_data,
    read_as_text,
    reader,
    reuses_numbers,
    table_columns,
    unreadable,
)
from statefx.connectors.sql.connection import SqlConnection, SqlUrl, alchemy, count_up, open_engine, reason_of
from statefx.errors import ConfigError, InputError, SinkError, TopologyError, TransactionConflictError, UnreachableError
from statefx.operators.context import Context
from statefx.operators.json_values import refuse_keys
from statefx.operators.schema import parse_schema, to_ddl
from statefx.operators.sealed_names import Sealed, sealed_by
from statefx.operators.spouts import Backlog

if TYPE_CHECKING:
    import sqlalchemy as sa

_NAME = "SqlQueueSpout"

OWNER, UNTIL, TRIES = "statefx_owner", "statefx_until", "statefx_tries"
_NOTES = {OWNER: "text", UNTIL: "double precision", TRIES: "integer"}
_NOTE_FIELDS = pa.schema([(OWNER, pa.string()), (UNTIL, pa.float64()), (TRIES, pa.int32())])

POLL_SECS = 0.05
LOOK_LOCK_SECS = 1.0
"""How long a look at what waits may wait for whoever locks a SQLite file."""
CHUNK = 500
"""Rows that one statement names."""


class _Jobs:
    """The table, and who has which of its rows; plain data, and a connection that is made where it is needed."""

    is_text = False
    """Whether ids are texts; else they are whole numbers."""

    def __init__(self, url: str, location: str, name: str, id: str) -> None:
        self.url, self.name, self.id = url, name, id
        self.target = f"{location}#{name}"
        self._connection: SqlConnection | None = None
        self._lock = threading.RLock()  # a handler of signals may close it in the middle of a call

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("url", "name", "id", "target", "is_text")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._connection = None
        self._lock = threading.RLock()

    @cached_property
    def table(self) -> Any:
        sa = alchemy()
        space, _, plain = self.name.rpartition(".")
        notes = (sa.column(OWNER, sa.Text()), sa.column(UNTIL, sa.Float()), sa.column(TRIES, sa.Integer()))
        # Else the first of several ids gives all its type: behind one of 32 bits, PostgreSQL refuses larger ones.
        id = sa.column(self.id, sa.Text() if self.is_text else sa.BigInteger())
        return sa.table(plain, id, *notes, schema=space or None)

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Yield a connection within a transaction; UnreachableError if the database does not answer, or refuses.

        One thread at a time: a task takes rows while a thread of its own renews others, and the driver deletes rows
        while it sweeps. In one transaction of the database, each would end that of the other.
        """
        with self._lock:
            if self._connection is None:
                self._connection = SqlConnection(self.url, self.target, existing=True)
            try:
                with self._connection.transaction() as connection:
                    yield connection
            except SinkError as error:
                raise UnreachableError(error.message) from error

    def now(self, connection: sa.Connection) -> float:
        """Return the time by the clock that all who take rows have in common, in seconds."""
        if connection.dialect.name == "sqlite":  # a file of this machine
            return time.time()
        return float(connection.exec_driver_sql("select extract(epoch from clock_timestamp())").scalar_one())

    def free(self, now: float) -> Any:
        """Return the condition of rows that nobody has."""
        return alchemy().or_(self.table.c[OWNER].is_(None), self.table.c[UNTIL] < now)

    def rows(self, ids: Sequence[Any]) -> Iterator[Any]:
        """Yield conditions that name these rows, some at a time."""
        column = self.table.c[self.id]
        for at in range(0, len(ids), CHUNK):
            yield column.in_(ids[at : at + CHUNK])

    def of(self, prefix: str) -> Any:
        """Return the condition of rows whose owner, or name, begins so; no row that waits is read for it."""
        column = self.table.c[OWNER]
        # The first is a range of the index, without the rows that wait. LIKE is none for SQLite, nor for PostgreSQL
        # where texts are not ordered as in C.
        return alchemy().and_(column > "", column.startswith(prefix, autoescape=True))

    def owners(self, connection: sa.Connection, prefix: str) -> list[str]:
        """Return the owners that begin so and have rows, and the names of transactions."""
        column = self.table.c[OWNER]
        return list(connection.execute(alchemy().select(column).where(self.of(prefix)).distinct()).scalars())

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


class SqlQueueSpout(QueueSpout):
    """Emits the rows of a table of jobs, each to one task; a row that is processed is deleted.

    Who has a row stands in three columns of the table, which it must have::

        ALTER TABLE jobs ADD COLUMN statefx_owner text;
        ALTER TABLE jobs ADD COLUMN statefx_until double precision;
        ALTER TABLE jobs ADD COLUMN statefx_tries integer;
        CREATE INDEX jobs_statefx_owner ON jobs (statefx_owner);

    A row is free while ``statefx_owner`` is null, or the time ``statefx_until`` is over. On PostgreSQL tasks take rows
    with ``SELECT ... FOR UPDATE SKIP LOCKED``, and none waits for another; on SQLite one after the other.

    Parameters
    ----------
    url : str
        As SQLAlchemy has it: ``sqlite:///jobs.db``, ``postgresql+psycopg://user:password@host/database``. Driver and
        executors connect.
    table : str
        Optionally with a schema, ``schema.table``.
    fields : str, StructType or None
        The columns to emit. By default all columns but the three, by their types.
    id : str
        The column that names a row: unique, of whole numbers or texts, and never given to another row later on. Rows
        are taken in its order, as far as several tasks keep one.
    idleSecs : float
        How long a row stays taken, in seconds by the database's clock, unless its task renews that; tasks that live do.
    maxTries, retryDelay, exactlyOnce
        As of `QueueSpout`.

    Raises
    ------
    ConfigError
        SQLAlchemy or the driver is not installed, or `url` is not a URL of SQLite or PostgreSQL.
    TopologyError
        There is no such table or column, or it lacks the columns above.
    InputError
        The database can't be reached, to look at the table.
    """

    pollSecs = POLL_SECS

    def __init__(
        self,
        url: str,
        table: str,
        fields: Any = None,
        *,
        id: str = "id",
        idleSecs: float = 60.0,
        maxTries: int = 5,
        retryDelay: float = 1.0,
        exactlyOnce: bool = False,
    ) -> None:
        parsed = SqlUrl(url, _NAME, "MemoryTransactionalSpout for rows that the program has")
        parsed.require_driver()
        if parsed.backend not in ("sqlite", "postgresql"):
            raise ConfigError(f"{_NAME} reads tables of SQLite and PostgreSQL, not of {parsed.backend}")
        check_idle_secs(_NAME, idleSecs)
        self._jobs = _Jobs(url, parsed.location, table, id)
        self._idle_secs, self.renewSecs = float(idleSecs), idleSecs / 4
        try:
            with self._jobs.transaction() as connection:
                schema = self._inspect(connection, parsed.location, None if fields is None else parse_schema(fields))
        except UnreachableError as error:
            raise InputError(f"{_NAME}: {error.message}") from error
        finally:
            self._jobs.close()
        refuse_keys(schema, _NAME)
        super().__init__(to_ddl(schema), maxTries=maxTries, retryDelay=retryDelay, exactlyOnce=exactlyOnce)

    def _inspect(self, connection: sa.Connection, location: str, given: pa.Schema | None) -> pa.Schema:
        jobs = self._jobs
        columns = table_columns(connection, jobs.name, [jobs.id, *(given.names if given is not None else [])], location)
        lacking = [name for name in _NOTES if name not in columns]
        if lacking:
            adds = [f"ALTER TABLE {jobs.name} ADD COLUMN {name} {_NOTES[name]}" for name in lacking]
            index = f"CREATE INDEX {jobs.name.rpartition('.')[2]}_{OWNER} ON {jobs.name} ({OWNER})"
            raise TopologyError(
                f"{location}: {jobs.name} lacks columns in which tasks note who has a row: {'; '.join([*adds, index])}"
            )
        kind, lite = columns[jobs.id]["type"], connection.dialect.name == "sqlite"
        jobs.is_text = isinstance(kind, alchemy().String)
        if not jobs.is_text and not isinstance(kind, alchemy().Integer):
            raise TopologyError(f"{location}: {jobs.name}.{jobs.id} is {kind}; an id is a whole number or a text")
        try:
            check_columns(connection, jobs.table, _NOTE_FIELDS, (), f"{location}: {jobs.name}")
        except SinkError as error:
            raise TopologyError(error.message) from None
        if lite and not jobs.is_text:
            _refuse_reuse(connection, jobs, location)
        others = {name: column for name, column in columns.items() if name not in _NOTES}
        schema = fields_of(others, f"{location}: {jobs.name}", lite=lite) if given is None else given
        self._as_text = read_as_text(schema, columns, lite=lite)
        self._texts = frozenset(
            name for name, column in columns.items() if isinstance(column["type"], alchemy().String)
        )
        return schema

    def reads(self, target: str) -> bool:
        return target == self._jobs.target

    def backlog(self) -> Backlog:
        """Count the rows that are free, up to 100,000."""
        jobs, engine = self._jobs, open_engine(self._jobs.url, lock_secs=LOOK_LOCK_SECS, existing=True)
        try:
            with engine.connect() as connection:
                free = jobs.free(jobs.now(connection))
            return Backlog(count_up(engine, [alchemy().select(jobs.table.c[jobs.id]).where(free)]))
        finally:
            engine.dispose()

    def pendingAcks(self) -> PendingAcks:
        return _PendingAcks(self._jobs, self._idle_secs)

    def connect(self, context: Context) -> None:
        self._begun = False
        self._reads = [  # here: they can't be pickled
            None if pa.types.is_string(field.type) and field.name in self._texts else reader(field.type)
            for field in self.schema
        ]

    def receive(self, limit: int) -> Iterable[Message]:
        sa, jobs = alchemy(), self._jobs
        table = jobs.table
        with jobs.transaction() as connection:
            if not self._begun:
                self._free_own(connection)
            now = jobs.now(connection)
            columns = [column_of(field, self._as_text) for field in self.schema]
            free = jobs.free(now)
            key, tries = table.c[jobs.id].label("_id"), sa.func.coalesce(table.c[TRIES], 0).label("_tries")
            asked = sa.select(key, tries, *columns).select_from(table).where(free)
            asked = asked.order_by(table.c[jobs.id]).limit(limit).with_for_update(skip_locked=True)
            try:
                rows = connection.execute(asked).all()
                messages = [Message(row[0], self._values(row[2:]), row[1]) for row in rows]
            except Exception as error:
                if is_of_data(error):
                    raise self._unreadable(connection, free, limit) from error
                raise
            if rows:
                taken = {
                    OWNER: self.owner,
                    UNTIL: now + self._idle_secs,
                    TRIES: sa.func.coalesce(table.c[TRIES], 0) + 1,
                }
                for some in jobs.rows([row[0] for row in rows]):
                    connection.execute(table.update().where(some).values(taken))
        self._begun = True
        return messages

    def _unreadable(self, connection: sa.Connection, free: Any, limit: int) -> Exception:
        sa, jobs = alchemy(), self._jobs
        connection.rollback()
        id, what = jobs.table.c[jobs.id], jobs.target.replace("#", ": ")
        try:
            keys = connection.execute(sa.select(id).where(free).order_by(id).limit(limit)).scalars().all()
        except Exception as error:
            if not is_of_data(error):
                raise
            connection.rollback()
            return InputError(
                f"{what}.{jobs.id} can't be read: {reason_of(error)}; it names a row, and none is taken while one of "
                f"the next {limit} has such a name: correct it (UPDATE {jobs.name} SET {jobs.id} = ...)",
                field=jobs.id,
            )

        def read(keys: Sequence[Any], fields: pa.Schema) -> None:
            columns = [column_of(field, self._as_text) for field in fields]
            chosen = [self._reads[self.schema.get_field_index(field.name)] for field in fields]
            try:
                for row in connection.execute(sa.select(*columns).select_from(jobs.table).where(id.in_(keys))):
                    [value if read is None else read(value) for read, value in zip(chosen, row, strict=True)]
            finally:
                connection.rollback()

        return unreadable(what, jobs.id, keys, self.schema, read) or UnreachableError(f"{what} was changed meanwhile")

    def finish(self, ids: Sequence[Any]) -> None:
        """Delete rows, unless somebody else has taken them over: by now it may be another row that has the number."""
        table = self._jobs.table
        with self._jobs.transaction() as connection:
            for some in self._jobs.rows(ids):
                connection.execute(table.delete().where(some, table.c[OWNER] == self.owner))

    def renew(self, ids: Sequence[Any]) -> None:
        table = self._jobs.table
        with self._jobs.transaction() as connection:
            until = {UNTIL: self._jobs.now(connection) + self._idle_secs}
            for some in self._jobs.rows(ids):
                # Not those that are sealed, whose owner has another name.
                connection.execute(table.update().where(some, table.c[OWNER] == self.owner).values(until))

    def close(self) -> None:
        super().close()
        self._jobs.close()

    def _free_own(self, connection: sa.Connection) -> None:
        """Free what other objects of this task had."""
        jobs = self._jobs
        for name in filter(self.succeeds, jobs.owners(connection, self.place)):
            free = jobs.table.update().where(jobs.table.c[OWNER] == name)
            connection.execute(free.values({OWNER: None, UNTIL: None}))

    def _values(self, row: Sequence[Any]) -> tuple[Any, ...]:
        return tuple([value if read is None else read(value) for read, value in zip(self._reads, row, strict=True)])


def _refuse_reuse(connection: sa.Connection, jobs: _Jobs, location: str) -> None:
    """Refuse a key of SQLite's that is given again when its row is deleted: two messages would have one id."""
    keys = alchemy().inspect(connection).get_pk_constraint(jobs.name)["constrained_columns"]
    if keys == [jobs.id] and reuses_numbers(connection, jobs.name):
        raise TopologyError(
            f"{location}: {jobs.name}.{jobs.id} has no AUTOINCREMENT, so SQLite gives the numbers of rows that were "
            f"processed to new rows, and one would be taken for the other: make it 'integer primary key autoincrement'"
        )


class _PendingAcks(PendingAcks):
    """A name stands in the place of the owner, with no time."""

    def __init__(self, jobs: _Jobs, idle_secs: float) -> None:
        self._jobs = jobs
        self._idle_secs = idle_secs

    @property
    def target(self) -> str:
        return self._jobs.target

    def seal(self, owner: str, ids: Sequence[str], name: str) -> None:
        jobs = self._jobs
        table, sealed = jobs.table, Sealed.read(name)
        assert sealed is not None
        with jobs.transaction() as connection:
            before = [
                held
                for held in jobs.owners(connection, sealed_by(owner))
                if (found := Sealed.read(held)) is not None and found.precedes(sealed)
            ]
            mine = table.c[OWNER].in_([owner, name, *before])
            count = 0
            for some in jobs.rows(list(ids) if jobs.is_text else list(map(int, ids))):
                change = table.update().where(some, mine).values({OWNER: name, UNTIL: None})
                count += connection.execute(change).rowcount
            if count != len(ids):
                raise TransactionConflictError(
                    f"{jobs.target}: {len(ids) - count} of {len(ids)} rows were taken over by another reader, or "
                    "deleted: they were not renewed for longer than idleSecs. Nothing of the transaction is kept, and "
                    "no message is lost: start again, and set idleSecs higher"
                )

    def acknowledge(self, name: str) -> None:
        with self._jobs.transaction() as connection:
            connection.execute(self._jobs.table.delete().where(self._jobs.table.c[OWNER] == name))

    def sealed(self, prefix: str) -> Mapping[str, int]:
        sa, jobs = alchemy(), self._jobs
        column = jobs.table.c[OWNER]
        counted = sa.select(column, sa.func.count()).where(jobs.of(prefix)).group_by(column)
        with jobs.transaction() as connection:
            return {name: count for name, count in connection.execute(counted) if Sealed.read(name) is not None}

    def release(self, name: str) -> None:
        found = Sealed.read(name)
        assert found is not None
        table = self._jobs.table
        with self._jobs.transaction() as connection:
            until = self._jobs.now(connection) + self._idle_secs  # the owner may live, and renew it
            connection.execute(table.update().where(table.c[OWNER] == name).values({OWNER: found.owner, UNTIL: until}))

    def close(self) -> None:
        self._jobs.close()
