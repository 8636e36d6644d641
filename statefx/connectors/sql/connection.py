"""The connection to a database: its transactions, its errors in words, and what databases do differently."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from statefx.connectors.sql.url import open_engine
from statefx.errors import SinkError
from statefx.operators.sinks import Marker

if TYPE_CHECKING:
    import sqlalchemy as sa

# SET LOCAL, by a query: it ends with the transaction, so a pooler's next client has nothing of it. Who waits for a lock
# longer than this tells the status, and tries again; a limit that the server or the URL gives is left alone.
_SETTINGS = """
    select set_config('application_name', %s, true), set_config('lock_timeout',
        case current_setting('lock_timeout') when '0' then '30s' else current_setting('lock_timeout') end, true)
"""

_ROW_STATES = ("P0001", "44000", "54000")
"""Of PostgreSQL, besides its integrity and data errors: a trigger or a view refuses the row; a value is too long."""


class RowRefusedError(SinkError):
    """The database refuses a row: by a constraint, or for a value that the column can't hold."""


class SqlConnection:
    """One connection, opened when it is needed; errors name `target`."""

    def __init__(self, url: str, target: str) -> None:
        self._target = target
        self._engine = open_engine(url)
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
            reason = " ".join(str(getattr(error, "orig", error)).split())
            if self.lite and reason.endswith("is locked"):
                reason += ": another process writes to it, or was stopped while it did: end that process"
            elif self.lite and reason.endswith("unable to open database file"):
                reason += ": make its folder, and let this user write there"
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
                connection.exec_driver_sql(_SETTINGS, (name,))
        except BaseException:
            self._drop(connection)
            raise
        return connection

    def _drop(self, connection: sa.Connection) -> None:
        """Forget a connection that has failed."""
        self._connection = None
        with suppress(Exception):
            connection.invalidate()
            connection.close()

    def _is_of_driver(self, error: Exception) -> bool:
        return isinstance(getattr(error, "orig", error), self.dialect.dbapi.Error)

    def is_refusal(self, error: Exception) -> bool:
        """Tell whether the database refuses a row: by a constraint, or for a value that the column can't hold."""
        driver, found = self.dialect.dbapi, getattr(error, "orig", error)
        return (
            isinstance(found, driver.IntegrityError | driver.DataError)
            or getattr(found, "sqlstate", None) in _ROW_STATES
        )

    def end_sessions(self, chosen: Callable[[str], bool]) -> None:
        """End sessions of drivers that were replaced, by the name of their transaction; where the database can.

        One that is stopped in the middle of its transaction would hold the marker's lock for as long as it is stopped,
        and one whose host is lost until the server finds that out: two hours by default.
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
    """Tell whether a session is that of a driver that `marker`, the next after `previous`, replaces."""
    whose, _, generation = name.rpartition(" ")
    mine, _, _ = session_name(marker, table).rpartition(" ")
    if whose == mine:
        return generation.isdigit() and int(generation) < marker.generation
    return previous is not None and whose == session_name(previous, table).rpartition(" ")[0]
