"""A database: its URL, connections to it within limits of time, its errors in words, what databases do differently."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from statefx.errors import ConfigError, SinkError
from statefx.operators.sinks import Marker

if TYPE_CHECKING:
    import sqlalchemy as sa

# ---- a URL, read without connecting

_LIBPQ = {
    # A host that is gone never answers: without these a commit would wait for hours, and no status would say why.
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}


def alchemy() -> Any:
    """Return SQLAlchemy; ConfigError with the remedy if it is not installed."""
    try:
        import sqlalchemy  # noqa: PLC0415 - an extra: only who uses a database needs it
        import sqlalchemy.pool  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError("databases need SQLAlchemy: pip install 'statefx[sql]'") from error
    return sqlalchemy


def reason_of(error: BaseException) -> str:
    """Return what the driver says of an error, in one line."""
    return " ".join(str(getattr(error, "orig", error)).split())


def quoted(dialect: Any, *parts: str | None) -> str:
    """Return a name, with its schema in front where there is one, as the database writes it.

    SQLAlchemy doubles each percent sign of it, for statements with parameters: here it stands for itself, as it must in
    a parameter, in a statement without any, and in what a person is to type.
    """
    name = ".".join(map(dialect.identifier_preparer.quote, filter(None, parts)))
    return name.replace("%%", "%") if dialect.paramstyle in ("format", "pyformat") else name


class SqlUrl:
    """A database's URL, read without connecting; ConfigError if SQLAlchemy can't read it, or the database is in memory.

    `location` is what identifies the database in messages and in the log: backend, host, port and database. User,
    password and options are left out, so that they may change. Messages name `who`, and recommend `in_memory` instead
    of a database in memory.
    """

    def __init__(self, url: str, who: str, in_memory: str) -> None:
        sqlalchemy = alchemy()
        try:
            parsed = sqlalchemy.engine.make_url(url)
            dialect = parsed.get_dialect()
        except sqlalchemy.exc.NoSuchModuleError as error:
            raise ConfigError(
                f"{who}: SQLAlchemy does not know this kind of database ({error}): begin the URL as in "
                "sqlite:///file.db or postgresql+psycopg://, or install the database's package for SQLAlchemy"
            ) from None
        except (sqlalchemy.exc.ArgumentError, ValueError):  # what it says may hold the password
            raise ConfigError(
                f"{who} needs a URL as SQLAlchemy has it: sqlite:///file.db, postgresql+psycopg://user:password@host/db"
            ) from None
        self.backend = parsed.get_backend_name()
        self._who = who
        self._dialect, self._driver = dialect, parsed.drivername
        database = parsed.database or ""
        if self.backend == "sqlite":
            if database in ("", ":memory:") or "memory" in (parsed.query.get("mode"), database.partition("mode=")[2]):
                raise ConfigError(
                    f"{who}: a SQLite database in memory ends with its connection, and each connection has another "
                    f"one: name a file, sqlite:///results.db; or use {in_memory}"
                )
            self.location = f"sqlite:///{database}"
        else:
            host = parsed.host or parsed.query.get("host") or ""
            self.location = f"{self.backend}://{host}{f':{parsed.port}' if parsed.port else ''}/{database}"

    def check_table(self, table: str) -> None:
        """Refuse a table, optionally with a schema, whose name the database would cut; ConfigError says so."""
        for name in filter(None, table.rpartition(".")[::2]):
            if why := self.why_cut(name):
                raise ConfigError(f"{self._who}: {why}")

    def why_cut(self, name: str) -> str:
        """Return why the database would know a table or column under another name; empty if it would not.

        PostgreSQL cuts a name that is too long, with a notice that nobody reads: two applications could write to one
        table, and a start would not find the table that the former one made.
        """
        limit = self._dialect.max_identifier_length
        size, unit = len(name), "characters"
        if self.backend == "postgresql":
            size, unit = len(name.encode()), "bytes"
        if size <= limit:
            return ""
        return f"the name {name!r} has {size} {unit}, of which {self.backend} keeps {limit}: choose a shorter one"

    def require_driver(self) -> None:
        try:
            self._dialect.import_dbapi()
        except ImportError as error:
            remedy = ""
            if self.backend == "postgresql":
                remedy = ": pip install 'statefx[postgres]' brings one for postgresql+psycopg://"
            raise ConfigError(f"{self._who}: the driver of {self._driver} is not installed ({error}){remedy}") from None


NO_FILE = "unable to open database file"
"""What SQLite says of a file that it can't open, or may not make."""

GIVE_FILE = "give the URL of a file that is there, and that this user may read"
"""What to do about it where the file is only read."""


def open_engine(url: str, *, pooled: bool = False, lock_secs: float | None = None, existing: bool = False) -> Any:
    """Return what connects, within limits of time.

    By default the caller keeps one connection itself, because a pool would hand out one that a restarted server has
    forgotten. `lock_secs` is how long a connection waits for another one that locks a SQLite file. With `existing`, as
    for whoever reads what others have written, no SQLite file is made where there is none.
    """
    sqlalchemy = alchemy()
    parsed = sqlalchemy.engine.make_url(url)
    if existing and parsed.get_backend_name() == "sqlite" and "uri" not in parsed.query:
        parsed = parsed.set(database=f"file:{quote(parsed.database)}").update_query_dict({"mode": "rw", "uri": "true"})
    connect: dict[str, Any] = {}
    options: dict[str, Any] = {} if pooled else {"poolclass": sqlalchemy.pool.NullPool}
    if parsed.get_backend_name() == "sqlite":
        # Calls come from any thread, one after the other; Python's SQLite module minds unless told.
        connect = {"check_same_thread": False} | ({} if lock_secs is None else {"timeout": lock_secs})
    elif parsed.get_dialect().driver in ("psycopg", "psycopg2"):
        connect = {name: value for name, value in _LIBPQ.items() if name not in parsed.query}
        if parsed.get_dialect().driver == "psycopg":
            # Behind a pooler, the session of the next transaction may have another client's statement under the name:
            # rows would go into another table.
            connect["prepare_threshold"] = None
    return sqlalchemy.create_engine(parsed, connect_args=connect, **options)


BACKLOG_MAX = 100_000
"""Rows that wait are counted up to here: a table of a billion must not be read to its end for a metric."""

_BACKLOG_SECS = 5.0
"""How long a server may count."""


def count_up(engine: Any, queries: Sequence[Any]) -> int:
    """Return how many rows some queries select, each counted up to `BACKLOG_MAX`; nothing is locked.

    Raises what the driver raises, also if the server takes long.
    """
    sqlalchemy = alchemy()
    with engine.connect() as connection:
        if engine.name == "postgresql":
            connection.exec_driver_sql(f"set local statement_timeout = {int(_BACKLOG_SECS * 1000)}")
        found = 0
        for query in queries:
            some = query.limit(BACKLOG_MAX).subquery()
            found += connection.execute(sqlalchemy.select(sqlalchemy.func.count()).select_from(some)).scalar_one()
        connection.rollback()
    return found


# ---- one connection

# SET LOCAL, by a query: it ends with the transaction, so a pooler's next client has nothing of it. Who waits for a lock
# longer than this tells it, and tries again; a limit that the server or the URL gives is left alone. Of a host that is
# lost, the server keeps the locks for two hours unless it is to ask after a minute.
SETTINGS = """
    select set_config('application_name', %s, true), set_config('lock_timeout',
        case current_setting('lock_timeout') when '0' then '30s' else current_setting('lock_timeout') end, true),
        set_config('tcp_keepalives_idle', '30', true), set_config('tcp_keepalives_interval', '10', true),
        set_config('tcp_keepalives_count', '3', true)
"""

_ROW_STATES = ("20", "21", "38", "44", "54000", "P0")
"""How codes of PostgreSQL begin, besides those of its integrity and data errors, if a trigger (in PL/pgSQL or another
language) or a view refuses the row, or a value is too long."""

_ROW_CHECKS = ("exec_stmt_raise", "ExecWithCheckOptions")
"""Functions of PostgreSQL, as its errors name them, that refuse a row under a code which has other meanings too: RAISE
under a code of the trigger's choice, and a policy of row-level security under that of missing permissions."""


class RowRefusedError(SinkError):
    """The database refuses a row: by a constraint, or for a value that the column can't hold."""


class SqlConnection:
    """One connection, opened when it is needed; errors name `target`."""

    def __init__(self, url: str, target: str, *, existing: bool = False) -> None:
        self._target, self._existing = target, existing
        self._engine = open_engine(url, existing=existing)
        self._connection: sa.Connection | None = None
        self.dialect: Any = self._engine.dialect
        self.lite = self.dialect.name == "sqlite"
        self.postgres = self.dialect.name == "postgresql"

    @contextmanager
    def transaction(self, *, keep: bool = True, name: str = "statefx") -> Iterator[sa.Connection]:
        """Yield the connection within a transaction of the database that can't lose a race for the marker.

        RowRefusedError if the database refuses a row; SinkError if it can't be reached, or refuses something else.
        """
        try:
            with self._transaction(keep, name) as connection:
                yield connection
        except Exception as error:
            if not self._is_of_driver(error):
                raise
            kind = RowRefusedError if self.is_refusal(error) else SinkError
            reason = reason_of(error)
            if self.lite and reason.endswith("is locked"):
                reason += ": another process writes to it, or was stopped while it did: end that process"
            elif self.lite and reason.endswith(NO_FILE):
                reason += f": {GIVE_FILE if self._existing else 'make its folder, and let this user write there'}"
            raise kind(f"{self._target}: {reason}", target=self._target) from error

    @contextmanager
    def _transaction(self, keep: bool, name: str) -> Iterator[sa.Connection]:
        connection = self._begun(name)
        try:
            yield connection
            if self.lite:
                connection.exec_driver_sql("COMMIT" if keep else "ROLLBACK")
            if keep:
                connection.commit()
            else:
                connection.rollback()
        except BaseException:
            # Nothing is known of a connection that has failed, not even whether its COMMIT was done: the marker tells.
            self._drop(connection)
            raise

    def _begun(self, name: str) -> sa.Connection:
        """Return the connection, in a transaction; another one if the server has ended it since the last one."""
        kept = self._connection is not None
        try:
            return self._begin(name)
        except Exception as error:
            if not (kept and getattr(error, "connection_invalidated", False)):
                raise
        return self._begin(name)  # it has failed before anything was done

    def _begin(self, name: str) -> sa.Connection:
        if self._connection is None:
            self._connection = self._engine.connect()
            if self.lite:  # Python's module begins transactions late, and then only for reading
                self._connection = self._connection.execution_options(isolation_level="AUTOCOMMIT")
        connection = self._connection
        try:
            if self.lite:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            elif self.postgres:
                connection.exec_driver_sql(SETTINGS, (name,))
        except BaseException:
            self._drop(connection)
            raise
        return connection

    def _drop(self, connection: sa.Connection) -> None:
        self._connection = None
        with suppress(Exception):
            connection.invalidate()
            connection.close()

    def _is_of_driver(self, error: Exception) -> bool:
        return isinstance(getattr(error, "orig", error), self.dialect.dbapi.Error)

    def is_refusal(self, error: Exception) -> bool:
        driver, found = self.dialect.dbapi, getattr(error, "orig", error)
        if isinstance(found, driver.IntegrityError | driver.DataError):
            return True
        diagnosis = getattr(found, "diag", None)
        if (getattr(diagnosis, "sqlstate", None) or "").startswith(_ROW_STATES):
            return True
        # A trigger that raises an operational error, such as a serialization failure, asks for a retry.
        raised = getattr(diagnosis, "source_function", None) in _ROW_CHECKS
        return raised and not isinstance(found, driver.OperationalError)

    def end_sessions(self, chosen: Callable[[str], bool]) -> None:
        """End sessions of drivers that were replaced, by the name of their transaction; where the database can.

        One that is stopped in the middle of its transaction would hold the marker's lock for as long as it is stopped,
        and one whose host is lost until the server finds that out.
        """
        if not self.postgres:
            return
        with self.transaction() as connection:
            # Of the same user: who may not end one waits for the lock, and the status says so.
            sessions = connection.exec_driver_sql(
                "select pid, application_name from pg_stat_activity where datname = current_database() "
                "and usename = current_user and pid <> pg_backend_pid() and starts_with(application_name, 'statefx ')"
            ).all()
            for pid, name in sessions:
                if chosen(name):
                    connection.exec_driver_sql("select pg_terminate_backend(%s)", (pid,))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._engine.dispose()


def session_name(marker: Marker, table: str) -> str:
    """Return the name of a transaction that moves a marker, as other sessions see it: of 63 bytes at most."""
    whose = "\0".join((marker.application, marker.origin, table))
    return f"statefx {hashlib.sha256(whose.encode()).hexdigest()[:16]} {marker.generation}"


def is_replaced(name: str, marker: Marker, previous: Marker | None, table: str) -> bool:
    """Return whether a session is that of a driver that `marker`, the next after `previous`, replaces."""
    whose, _, generation = name.rpartition(" ")
    mine, _, _ = session_name(marker, table).rpartition(" ")
    if whose == mine:
        return generation.isdigit() and int(generation) < marker.generation
    return previous is not None and whose == session_name(previous, table).rpartition(" ")[0]
