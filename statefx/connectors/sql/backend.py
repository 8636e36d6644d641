"""Values in a table of a database that SQLAlchemy reaches; each call is one transaction of the database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from statefx.connectors.sql.url import alchemy
from statefx.errors import ConfigError, FailedException
from statefx.values.backend import Row

if TYPE_CHECKING:
    import sqlalchemy as sa

_KEYS_AT_ONCE = 1000  # parameters of one statement: SQLite takes 32,766, PostgreSQL 65,535
_KEY_LENGTH = 255  # where a text can't be a primary key
_WAIT_SECS = (
    30  # for the lock of a SQLite file; far below a transaction's timeout, and the attempt after it waits again
)


class SqlBackend:
    """A table of keys, versions and values in a database that SQLAlchemy reaches (``pip install 'statefx[sql]'``).

    The table has the columns ``key``, ``version``, ``value`` and ``undo``; it is made if it is missing. ``value`` is
    JSON, and null in rows that are not there for readers: ``SELECT key, value FROM totals WHERE value IS NOT NULL``.

    Parameters
    ----------
    url : str
        As SQLAlchemy has it: ``sqlite:///totals.db``, ``postgresql+psycopg://user:password@host/database``. Each task
        connects, so a file must be there for all of them. Tested with SQLite and PostgreSQL.
    table : str

    Raises
    ------
    ConfigError
        SQLAlchemy is not installed, the URL is none, or the database is in memory.

    Contract
    --------
    * It can be pickled: it connects when it is first used.
    * All rows of a `multiPut` are written in one transaction of the database, or none.
    * A database that can't be reached, or stays locked, is a FailedException: the transaction is tried again.
    """

    atomic = True

    def __init__(self, url: str, table: str) -> None:
        sqlalchemy = alchemy()
        try:
            parsed = sqlalchemy.engine.make_url(url)
        except sqlalchemy.exc.ArgumentError:  # what it says may hold the password
            raise ConfigError("SqlBackend needs a URL as SQLAlchemy has it, such as sqlite:///totals.db") from None
        if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
            raise ConfigError("SqlBackend: a SQLite database in memory is seen by one task alone: name a file")
        self._url = url
        self.table = table
        self._opened: tuple[sa.Engine, sa.Table] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def multiGet(self, keys: Iterable[str]) -> dict[str, Row]:
        """See `KeyValueBackend`."""
        keys = list(keys)
        rows: dict[str, Row] = {}
        with self._transaction() as (connection, table):
            for first in range(0, len(keys), _KEYS_AT_ONCE):
                chosen = table.select().where(table.c.key.in_(keys[first : first + _KEYS_AT_ONCE]))
                rows.update((found.key, Row(*found[1:])) for found in connection.execute(chosen))
        return rows

    def multiPut(self, rows: Mapping[str, Row], expected: Mapping[str, str | None]) -> list[str]:
        """See `KeyValueBackend`; all keys together are one atomic act."""
        sqlalchemy = alchemy()
        wanted = sorted(rows.items())  # in one order, so that two writers of the same keys never wait for each other
        there = [{"of": key, "was": expected[key], **row._asdict()} for key, row in wanted if expected[key] is not None]
        new = [{"key": key, **row._asdict()} for key, row in wanted if expected[key] is None]
        try:
            with self._transaction() as (connection, table):
                if there:
                    of, was = map(sqlalchemy.bindparam, ("of", "was"))
                    update = table.update().where(table.c.key == of, table.c.version == was)
                    if connection.execute(update, there).rowcount != len(there):
                        raise _ChangedError
                if new:
                    connection.execute(table.insert(), new)
        except (_ChangedError, sqlalchemy.exc.IntegrityError):  # which undoes the whole transaction
            return list(rows)
        return []

    def close(self) -> None:
        """End its connections; it connects again if it is used again."""
        if self._opened is not None:
            self._opened[0].dispose()
            self._opened = None

    @contextmanager
    def _transaction(self) -> Iterator[tuple[sa.Connection, sa.Table]]:
        sqlalchemy = alchemy()
        try:
            engine, table = self._opened = self._opened or self._open()
            with engine.begin() as connection:
                yield connection, table
        except (sqlalchemy.exc.OperationalError, sqlalchemy.exc.InterfaceError) as error:
            raise FailedException(f"the table {self.table!r} can't be used now: {error.orig}") from error

    def _open(self) -> tuple[sa.Engine, sa.Table]:
        """Connect, and make the table if it is missing."""
        sqlalchemy = alchemy()
        parsed = sqlalchemy.engine.make_url(self._url)
        # Other tasks write to the same file, one after the other; Python's module would wait for 5 s alone.
        waits = {"timeout": _WAIT_SECS} if parsed.get_backend_name() == "sqlite" else {}
        engine = sqlalchemy.create_engine(parsed, connect_args=waits)
        text = sqlalchemy.Text()
        table = sqlalchemy.Table(
            self.table,
            sqlalchemy.MetaData(),
            sqlalchemy.Column("key", text.with_variant(sqlalchemy.String(_KEY_LENGTH), "mysql"), primary_key=True),
            sqlalchemy.Column("version", text, nullable=False),
            sqlalchemy.Column("value", text),
            sqlalchemy.Column("undo", text),
        )
        if not sqlalchemy.inspect(engine).has_table(self.table):
            try:
                table.create(engine)
            except sqlalchemy.exc.DBAPIError:  # another task has made it at the same moment
                if not sqlalchemy.inspect(engine).has_table(self.table):
                    raise
        return engine, table


class _ChangedError(Exception):
    """A row has not the version that was expected of it."""
