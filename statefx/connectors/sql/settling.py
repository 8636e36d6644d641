"""How far a table can be read: below which value no row can come any more.

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
    """Return the function that names the transactions that may still commit rows with values up to the largest."""

    def holders(connection: Any) -> set[str]:
        if connection.dialect.name != "postgresql" or table.view:
            return set()  # SQLite has one writer at a time; others need settleSecs
        if connection.exec_driver_sql("select pg_is_in_recovery()").scalar():
            return set()
        text = alchemy().text
        quote = connection.dialect.identifier_preparer.quote
        name = ".".join(map(quote, filter(None, (table.space, table.plain))))
        found = set(connection.execute(text(_WRITERS), {"table": name}).scalars())
        if not table.numeric:
            found.update(connection.execute(text(_OPEN)).scalars())
        return found

    return holders


@dataclass
class Settling:
    """How far one table can be read."""

    holders: Holders
    """Returns the names of the transactions that may still commit lower values. Names are never used again."""
    secs: float
    """How long a value must have been there, as well."""
    settled: Any = field(default=None, init=False)
    _waiting: tuple[Any, set[str], float] | None = field(default=None, init=False)
    """The largest value when it was looked at, the transactions that may still commit lower ones, the look's time."""
    _table: str = field(default="", init=False)

    @property
    def blocked(self) -> bool:
        """Whether rows are there, and none can be read yet."""
        return self.settled is None and self._waiting is not None

    def reason(self) -> str:
        """Say what is waited for."""
        assert self._waiting is not None
        value, holders, _ = self._waiting
        what = f"{len(holders)} open transactions" if holders else f"{self.secs:g} s"
        return f"rows of {self._table} up to {value} wait for {what}, as rows of lower values may still come"

    def advance(self, connection: Any, table: SourceTable, now: float) -> Any:
        """Return the value up to which all rows are there; None if none is known yet."""
        self._table = table.name
        if self._waiting is not None:
            value, holders, since = self._waiting
            holders &= self.holders(connection) if holders else set()
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
