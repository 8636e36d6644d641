"""Values in a table of a database that SQLAlchemy reaches; each call is one transaction of the database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statefx.connectors.sql.columns import check_columns, is_of_data
from statefx.connectors.sql.connection import SETTINGS, SqlUrl, alchemy, open_engine
from statefx.errors import ConfigError, FailedException, SinkError, ValueMismatchError
from statefx.values.backend import Row

if TYPE_CHECKING:
    import sqlalchemy as sa

_FIELDS = pa.schema([(name, pa.string()) for name in ("key", "version", "value", "undo")])
_KEYS_SHOWN = 1000
_KEYS_AT_ONCE = 1000  # parameters of one statement: SQLite takes 32,766, PostgreSQL 65,535
_KEY_LENGTH = 255  # where a text can't be a primary key
_LOCK_SECS = 30  # other tasks write to the same SQLite file, one after the other; far below a transaction's timeout


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
        SQLAlchemy or the driver is not installed, the URL can't be read, the database is in memory, or it would cut
        the table's name.

    Contract
    --------
    * It can be pickled: it connects when it is first used.
    * All rows of a `multiPut` are written in one transaction of the database, or none.
    * If the database can't be reached, or stays locked, FailedException is raised: the transaction is tried again.
    """

    atomic = True

    def __init__(self, url: str, table: str) -> None:
        parsed = SqlUrl(url, "SqlBackend", "MemoryBackend for values of one process")
        parsed.require_driver()
        parsed.check_table(table)
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
                try:
                    rows.update((found.key, Row(*found[1:])) for found in connection.execute(chosen))
                except Exception as error:
                    if not is_of_data(error):
                        raise
                    raise ValueMismatchError(
                        f"the table {self.table!r} has a row that can't be read, of a key among "
                        f"{', '.join(map(repr, keys[first : first + _KEYS_AT_ONCE]))[:_KEYS_SHOWN]}: {error}; correct "
                        "the row, or delete it and its key starts over"
                    ) from error
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
                if engine.name == "postgresql":  # a host that is lost leaves rows locked until the server notices
                    connection.exec_driver_sql(SETTINGS, ("statefx",))
                yield connection, table
        except (sqlalchemy.exc.OperationalError, sqlalchemy.exc.InterfaceError) as error:
            raise FailedException(f"the table {self.table!r} can't be used now: {error.orig}") from error

    def _open(self) -> tuple[sa.Engine, sa.Table]:
        sqlalchemy = alchemy()
        engine = open_engine(self._url, pooled=True, lock_secs=_LOCK_SECS)
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
        with engine.connect() as connection:
            try:
                check_columns(connection, table, _FIELDS, ("key",), f"SqlBackend: {self.table}")
            except SinkError as error:
                raise ConfigError(error.message) from None
        return engine, table


class _ChangedError(Exception):
    """A row has not the version that was expected of it."""
