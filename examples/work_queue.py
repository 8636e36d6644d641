"""A work queue in a table: tasks take jobs, jobs that fail are tried again, and what fails too often is a dead letter.

Each row of the table is a job. A job whose effects are committed is deleted; one that a bolt refuses comes again after
a pause, three times at most, and then goes to a table of dead letters, in the transaction in which it leaves the queue.

``python work_queue.py exactly-once`` acknowledges the jobs in the transaction itself, so that no crash has a job
counted twice. There are no tries then: what the bolt can't use it emits on a stream of its own.
It needs `pip install ".[sql]"`.
"""

import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from statefx import BasicBolt, Checkpoint, StatefulBolt, TopologyBuilder, session, submit
from statefx.connectors.sql import SqlQueueSpout, SqlSink
from statefx.errors import FailedException

EXACTLY_ONCE = "exactly-once" in sys.argv
ORDERS = [("ann", 10), ("bob", 20), ("ann", -1), ("cid", 5), ("bob", 1)]
WAIT_SECS = 120

TABLE = """
    create table orders (
        id integer primary key autoincrement, customer text, amount integer,
        statefx_owner text, statefx_until double precision, statefx_tries integer
    );
    create index orders_statefx_owner on orders (statefx_owner);
"""


class Check(BasicBolt):
    outputFields = {
        "default": "customer string, amount long",
        "refused": "customer string, amount long, _reason string",
    }

    def execute(self, tup, collector):
        if tup.amount >= 0:
            collector.emit((tup.customer, tup.amount))
        elif EXACTLY_ONCE:
            collector.emit((tup.customer, tup.amount, f"{tup.amount} is no amount"), stream="refused")
        else:
            raise FailedException(f"{tup.amount} is no amount")  # fails this job: it is tried again


class Bill(StatefulBolt):
    def initState(self, state):
        self.totals = state

    def execute(self, tup, collector):
        self.totals[tup.customer] = self.totals.get(tup.customer, 0) + tup.amount


def count(path, table):
    """Return how many rows a table has."""
    with closing(sqlite3.connect(path)) as database:
        return database.execute(f"select count(*) from {table}").fetchone()[0]


spark = session("work-queue", config={"spark.log.level": "ERROR"})
with tempfile.TemporaryDirectory() as folder:
    path = str(Path(folder, "orders.db"))
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(TABLE)
        database.executemany("insert into orders (customer, amount) values (?, ?)", ORDERS)

    options = {"exactlyOnce": True} if EXACTLY_ONCE else {"maxTries": 3, "retryDelay": 0.1}
    builder = TopologyBuilder("work-queue")
    builder.setSpout("orders", SqlQueueSpout(f"sqlite:///{path}", "orders", **options), parallelism=2)
    builder.setBolt("check", Check(), parallelism=2).shuffleGrouping("orders")
    builder.setBolt("bill", Bill(), parallelism=2).fieldsGrouping("check", "customer")
    letters = builder.setSink("dead", SqlSink(f"sqlite:///{path}", "dead"))  # it makes the table
    if EXACTLY_ONCE:
        letters.shuffleGrouping("check", stream="refused")
    else:
        letters.shuffleGrouping("orders", stream="dead")
    query = submit(builder.createTopology(), spark, Path(folder, "checkpoint"))

    ends = time.monotonic() + WAIT_SECS
    while count(path, "orders"):
        if query.awaitTermination(0.1) or time.monotonic() > ends:
            raise SystemExit(f"not all orders were processed: {query.status}")
    query.stop()

    with Checkpoint(Path(folder, "checkpoint")).state("bill") as totals:
        print(f"billed: {dict(sorted(totals.items()))}")
    with closing(sqlite3.connect(path)) as database:
        for customer, amount, reason in database.execute("select customer, amount, _reason from dead"):
            print(f"dead letter: {customer}, {amount}: {reason}")
spark.stop()
