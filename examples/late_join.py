"""A join that acks late: an order is acked when its payment has come, maybe many transactions later.

Orders and payments are messages of two spouts, in two tables of SQLite. The join keeps each in its state until the
other side comes; then it sends the pair on, and acks both. What has no other side is neither acked nor failed: it waits
until its time is over, is handed out again, and takes its own place.
"""

import random
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from statefx import Bolt, Checkpoint, Spout, Stateful, StatefulBolt, TopologyBuilder, session, submit

ORDERS = {number: f"item {number}" for number in range(60)}
PAYMENTS = {number: 100 * number for number in range(3, 62)}  # orders 0 to 2 are not paid, 60 and 61 were never made
OTHER = {"orders": "payments", "payments": "orders"}
WAIT_SECS = 120


class Messages(Spout):
    """Hands out the rows of a table, and notes which are done."""

    def __init__(self, path, table, fields):
        self.path, self.table, self.outputFields = path, table, fields

    def open(self, context):
        self.database = sqlite3.connect(self.path, isolation_level=None)
        # This object is new. What is still held by the join (context.pending) is passed over when it is emitted again.
        self.database.execute(f"update {self.table} set state = 'new' where state = 'out'")

    def nextTuple(self, collector):
        rows = self.database.execute(f"select id, value from {self.table} where state = 'new' limit 10").fetchall()
        self.database.executemany(f"update {self.table} set state = 'out' where id = ?", [(id,) for id, _ in rows])
        for id, value in rows:
            collector.emit((id, value), id=id)

    def ack(self, id):
        self.database.execute(f"update {self.table} set state = 'done' where id = ?", (id,))

    def fail(self, id):  # its time was over: it takes its own place in the join
        self.database.execute(f"update {self.table} set state = 'new' where id = ?", (id,))

    def close(self):
        self.database.close()


class Join(Stateful, Bolt):
    """Keeps whole tuples in its state, with the trees that they belong to."""

    outputFields = "id long, item string, cents long"

    def initState(self, state):
        self.waiting = state

    def execute(self, tup, collector):
        other = self.waiting.get((tup.id, OTHER[tup._source]))
        if other is None:
            self.waiting[tup.id, tup._source] = tup
            return
        order, payment = (tup, other) if tup._source == "orders" else (other, tup)
        collector.emit((tup.id, order.item, payment.cents), anchors=[order, payment])
        collector.ack(order)
        collector.ack(payment)
        del self.waiting[tup.id, OTHER[tup._source]]


class Sales(StatefulBolt):
    def initState(self, state):
        self.sales = state

    def execute(self, tup, collector):
        self.sales[tup.id] = (*self.sales.get(tup.id, ()), (tup.item, tup.cents))


def add(database, table, rows):
    """Put messages into a table, in any order."""
    shuffled = random.sample(list(rows.items()), len(rows))
    with database:
        database.executemany(f"insert into {table} values (?, ?, 'new')", shuffled)


def count(database, table, state):
    return database.execute(f"select count(*) from {table} where state = ?", (state,)).fetchone()[0]


def wait_until(query, condition):
    ends = time.monotonic() + WAIT_SECS
    while not condition():
        if query.awaitTermination(0.1) or time.monotonic() > ends:
            raise SystemExit(f"it takes too long: {query.status}")


spark = session("late-join", config={"spark.log.level": "ERROR"})
with tempfile.TemporaryDirectory() as folder:
    path, checkpoint = str(Path(folder, "messages.db")), Path(folder, "checkpoint")
    with closing(sqlite3.connect(path)) as database:
        for table in OTHER:
            database.execute(f"create table {table} (id integer primary key, value, state text)")

        builder = TopologyBuilder("late-join")
        builder.setSpout("orders", Messages(path, "orders", "id long, item string"))
        builder.setSpout("payments", Messages(path, "payments", "id long, cents long"))
        builder.setBolt("join", Join(), parallelism=2).fieldsGrouping("orders", "id").fieldsGrouping("payments", "id")
        builder.setBolt("sales", Sales()).fieldsGrouping("join", "id")
        query = submit(builder.createTopology(), spark, checkpoint)

        add(database, "orders", ORDERS)
        wait_until(query, lambda: count(database, "orders", "out") == len(ORDERS))
        query.processAllAvailable()
        print(f"before there are payments, {count(database, 'orders', 'done')} of {len(ORDERS)} orders are acked")

        add(database, "payments", PAYMENTS)
        both = ORDERS.keys() & PAYMENTS.keys()
        wait_until(query, lambda: all(count(database, table, "done") == len(both) for table in OTHER))
        query.stop()

    recount = {number: ((ORDERS[number], PAYMENTS[number]),) for number in both}
    with Checkpoint(checkpoint).state("sales") as sales, Checkpoint(checkpoint).state("join") as waiting:
        print(f"{len(both)} orders are sold and acked; each once, as a recount says: {dict(sales.items()) == recount}")
        print(f"waiting: {sorted(waiting)}")
spark.stop()
