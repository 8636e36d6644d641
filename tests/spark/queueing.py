"""A driver that takes jobs off a table, in the transaction: ``python -m tests.spark.queueing SETTINGS`` (JSON).

A file ``kill-WHAT-NUMBER`` in the work folder has the process killed that comes to that place, once: a worker that
executes a job, prepares or seals a transaction, or the driver that acknowledges one.
"""

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from statefx import BasicBolt, SqlSink, TopologyBuilder, submit
from statefx.connectors.queue import PendingAcks
from statefx.connectors.sql import SqlQueueSpout
from statefx.operators.sealed_names import Sealed
from tests.spark.counting import BOUND_SECS, session, tell
from tests.spark.running import wait_for
from tests.spark.tracking import Tally, dies

TASKS = 2


def url(work):
    return f"sqlite:///{work}/jobs.db"


def run(work, statement):
    """Run a statement, and return what it finds."""
    with closing(sqlite3.connect(Path(work, "jobs.db"), timeout=60)) as database, database:
        return database.execute(statement).fetchall()


class Deadly(PendingAcks):
    """Has its process killed before or after a step."""

    def __init__(self, work, acks):
        self.work, self.acks = work, acks

    @property
    def target(self):
        return self.acks.target

    def seal(self, owner, ids, name):
        dies(self.work, "before-seal", Sealed.read(name).txid)
        self.acks.seal(owner, ids, name)
        dies(self.work, "after-seal", Sealed.read(name).txid)

    def acknowledge(self, name):
        dies(self.work, "before-acknowledge", Sealed.read(name).txid)
        self.acks.acknowledge(name)
        dies(self.work, "after-acknowledge", Sealed.read(name).txid)

    def sealed(self, prefix):
        return self.acks.sealed(prefix)

    def release(self, name):
        self.acks.release(name)

    def close(self):
        self.acks.close()


class DeadlyQueue(SqlQueueSpout):
    def __init__(self, work):
        super().__init__(url(work), "jobs", "message long", exactlyOnce=True)
        self.work = str(work)

    def pendingAcks(self):
        return Deadly(self.work, super().pendingAcks())

    def receive(self, limit):
        return super().receive(min(limit, 3))


class Passes(BasicBolt):
    outputFields = "message long"

    def __init__(self, work):
        self.work = str(work)

    def execute(self, tup, collector):
        dies(self.work, "execute", tup.message)
        collector.emit((tup.message,))


def topology(work):
    builder = TopologyBuilder("queueing")
    builder.setSpout("jobs", DeadlyQueue(work), TASKS)
    builder.setBolt("passes", Passes(work), TASKS).shuffleGrouping("jobs")
    builder.setBolt("tally", Tally(work), TASKS).fieldsGrouping("passes", "message")
    builder.setSink("out", SqlSink(url(work), "out")).shuffleGrouping("passes")
    return builder.createTopology()


def prepared(work, count):
    """Make the table, and put jobs into it."""
    work.mkdir(exist_ok=True)
    run(
        work,
        "create table jobs (id integer primary key autoincrement, message integer, "
        "statefx_owner text, statefx_until double precision, statefx_tries integer)",
    )
    run(work, "create index jobs_owner on jobs (statefx_owner)")
    run(work, f"insert into jobs (message) values {', '.join(f'({number})' for number in range(count))}")


def play(spark, work, **more):
    work = Path(work)
    config = {
        "topology.state.provider": "rocksdb",
        "topology.max.spout.pending": 6,
        "topology.state.checkpoint.interval.ms": 20,
    }
    query = submit(topology(work), spark, work / "ck", config)
    tell(begun=True)

    def done():
        query.exception() and query.awaitTermination()
        return run(work, "select count(*) from jobs") == [(0,)]

    wait_for(done, "the table to be empty", BOUND_SECS)
    status = query.status
    query.stop()
    tell(runs=status["runs"])


def main(**given):
    spark = session("local[8]")
    play(spark, **given)
    spark.stop()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
