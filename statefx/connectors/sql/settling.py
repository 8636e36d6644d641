"""How far a table can be read: below which value no row can come any more.

A value is taken before its row is committed, so rows don't come in the order of their values::

    transaction A    takes 5 ......................... commits: now row 5 is there, and who has read up to 6 misses it
    transaction B             takes 6, commits

PostgreSQL: the largest value is looked at first, then who writes to the table. Who has taken a lower value had the
table's lock before it took it, and keeps the lock until its row can be seen. So when all of these have ended, all rows
up to that value are there. Compared with the oldest transaction's number (``pg_snapshot_xmin``), that leaves no gap
between taking a value and being given a number, and it does not wait for transactions of other tables.

``default now()`` is the time at which the transaction began, before it had the lock: for timestamps all transactions of
the database are waited for that were open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from statefx.connectors.sql.source import SourceTable
from statefx.connectors.sql.url import alchemy

Holders = Callable[[Any], set[str]]

# Partitions and inheriting tables have locks of their own. Transactions that are prepared (two-phase commit) have no
# process, and a name such as -1/4711.
_WRITERS = """
    with recursive tree(oid) as (
        select cast(cast(:table as regclass) as oid)
        union select inhrelid from pg_inherits join tree on inhparent = tree.oid)
    select distinct virtualtransaction from pg_locks
    where locktype = 'relation' and mode = 'RowExclusiveLock' and granted
        and database = (select oid from pg_database where datname = current_database())
        and relation in (select oid from tree) and pid is distinct from pg_backend_pid()
"""

_OPEN = """
    select distinct l.virtualtransaction from pg_locks l join pg_stat_activity a on a.pid = l.pid
    where l.locktype = 'virtualxid' and l.mode = 'ExclusiveLock' and a.datname = current_database()
        and a.backend_type <> 'autovacuum worker' and l.pid <> pg_backend_pid()
"""


def holders_of(table: SourceTable) -> Holders:
    """Return what names the transactions that may still commit rows with values up to the largest."""

    def holders(connection: Any) -> set[str]:
        if connection.dialect.name != "postgresql" or table.view:
            return set()  # SQLite has one writer at a time; elsewhere time must do
        if connection.exec_driver_sql("select pg_is_in_recovery()").scalar():
            return set()
        text = alchemy().text
        quote = connection.dialect.identifier_preparer.quote
        name = ".".join(map(quote, filter(None, (table.space, table.plain))))
        found = set(connection.execute(text(_WRITERS), {"table": name}).scalars())
        if not table.counts:
            found.update(connection.execute(text(_OPEN)).scalars())
        return found

    return holders


@dataclass
class Settling:
    """How far one table can be read.

    Parameters
    ----------
    holders : callable
        Names the transactions that may still commit lower values; those that have ended are not named again.
    secs : float
        How old a value must be, besides.
    """

    holders: Holders
    secs: float
    settled: Any = field(default=None, init=False)
    _waiting: tuple[Any, set[str], float] | None = field(default=None, init=False)
    """A value that was the largest, who may still commit lower ones, and when it was looked at."""
    _table: str = field(default="", init=False)

    @property
    def first_waits(self) -> bool:
        """Whether nothing was settled yet, and something is there."""
        return self.settled is None and self._waiting is not None

    def reason(self) -> str:
        """Say what is waited for."""
        assert self._waiting is not None
        value, holders, _ = self._waiting
        what = f"{len(holders)} open transactions" if holders else f"{self.secs:g} s"
        return f"rows of {self._table} up to {value} wait for {what}, as rows of lower values may still come"

    def look(self, connection: Any, table: SourceTable, now: float) -> Any:
        """Return the value up to which all rows are there; None if none is known yet."""
        self._table = table.name
        if self._waiting is not None:
            value, holders, since = self._waiting
            holders &= self.holders(connection) if holders else set()
            self._waiting = value, holders, since
            if not holders and now - since >= self.secs:
                self.settled, self._waiting = value, None
        if self._waiting is None:
            value = self._largest(connection, table)
            if value is not None and value != self.settled:
                # Second: who has taken a lower value by now is among them, or has ended.
                holders = self.holders(connection)
                if holders or self.secs:
                    self._waiting = value, holders, now
                else:
                    self.settled = value
        return self.settled

    @staticmethod
    def _largest(connection: Any, table: SourceTable) -> Any:
        sqlalchemy = alchemy()
        kind = sqlalchemy.BigInteger() if table.counts else sqlalchemy.DateTime(timezone=True)
        order = sqlalchemy.column(table.order, kind)
        source = sqlalchemy.table(table.plain, schema=table.space or None)
        return connection.execute(sqlalchemy.select(sqlalchemy.func.max(order)).select_from(source)).scalar()
