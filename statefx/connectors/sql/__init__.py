"""Tables of a database that SQLAlchemy reaches: as the target of a sink, as input, and for values of bolts.

::

    sink       sink         its arguments, and rows as the database takes them
               target       the table; publishes rows and the marker of a transaction in one transaction of the database
               connection   the connection for it, and errors
    spout      spout        the hooks
               source       the table that is read
               settling     which rows are there for good, with no transaction open that may add more before them
    queue      queue        a table of jobs: who has which row
    values     backend      values that bolts keep (`statefx.values`)
    all        url          where a database is, and its driver
               types        types of the database, and of Spark
"""

from statefx.connectors.sql.backend import SqlBackend
from statefx.connectors.sql.queue import SqlQueueSpout
from statefx.connectors.sql.sink import SqlSink
from statefx.connectors.sql.spout import SqlPartitionedSpout

__all__ = ["SqlBackend", "SqlPartitionedSpout", "SqlQueueSpout", "SqlSink"]
