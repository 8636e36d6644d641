"""Tables of a database that SQLAlchemy reaches: as the target of a sink, as input, and for values of bolts.

::

    sink       sink         its arguments; the table; publishes rows and marker in one transaction of the database
    spout      spout        the hooks; the table that is read, and how far it can be
    queue      queue        a table of jobs: who has which row
    values     backend      values that bolts keep (`statefx.values`)
    all        connection   where a database is, its driver, connections and errors
               columns      types of the database and of Spark; which columns hold which values
"""

from typing import TYPE_CHECKING

from statefx.connectors.sql.backend import SqlBackend
from statefx.connectors.sql.queue import SqlQueueSpout
from statefx.connectors.sql.sink import SqlSink
from statefx.connectors.sql.spout import SqlPartitionedSpout
from statefx.elsewhere import lookup

__all__ = ["SqlBackend", "SqlPartitionedSpout", "SqlQueueSpout", "SqlSink"]

if not TYPE_CHECKING:
    __getattr__ = lookup(__name__)
