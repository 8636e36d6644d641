"""A database's URL: read without connecting, and connected to within limits of time."""

from __future__ import annotations

from typing import Any

from statefx.errors import ConfigError

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
        """Import the driver; ConfigError if it is not installed."""
        try:
            self._dialect.import_dbapi()
        except ImportError as error:
            remedy = ""
            if self.backend == "postgresql":
                remedy = ": pip install 'statefx[postgres]' brings one for postgresql+psycopg://"
            raise ConfigError(f"{self._who}: the driver of {self._driver} is not installed ({error}){remedy}") from None


def open_engine(url: str, *, pooled: bool = False, lock_secs: float | None = None) -> Any:
    """Return what connects, within limits of time.

    By default the caller keeps one connection itself, because a pool would hand out one that a restarted server has
    forgotten. `lock_secs` is how long a connection waits for another one that locks a SQLite file.
    """
    sqlalchemy = alchemy()
    parsed = sqlalchemy.engine.make_url(url)
    connect: dict[str, Any] = {}
    options: dict[str, Any] = {} if pooled else {"poolclass": sqlalchemy.pool.NullPool}
    if parsed.get_backend_name() == "sqlite":
        # Calls come from any thread, one after the other; Python's SQLite module minds unless told.
        connect = {"check_same_thread": False} | ({} if lock_secs is None else {"timeout": lock_secs})
    elif parsed.get_dialect().driver in ("psycopg", "psycopg2"):
        connect = {name: value for name, value in _LIBPQ.items() if name not in parsed.query}
    return sqlalchemy.create_engine(parsed, connect_args=connect, **options)
