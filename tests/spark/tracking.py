"""A driver whose spout hands out messages until all are acked: ``python -m tests.spark.tracking SETTINGS`` (JSON).

``acked`` in the work folder has a file for each message that was acked, and ``failed`` a line for each delivery that
failed. A file ``kill-WHAT-MESSAGE`` has the worker killed at that place, once.
"""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from statefx import BasicBolt, Bolt, FailedException, Spout, StatefulBolt, TopologyBuilder, submit
from tests.spark.counting import BOUND_SECS, session, tell
from tests.spark.running import wait_for

TASKS = 2
REFUSED = 7
"""Each so many-th message is refused when it is delivered first."""


def dies(work, what, message):
    """Kill this process if it is asked for, once."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(Path(work, f"kill-{what}-{message}"))
        os.kill(os.getpid(), signal.SIGKILL)


class Folder(Spout):
    outputFields = "message long"

    def __init__(self, work, each):
        self.work, self.each = str(work), each

    def open(self, context):
        done = {int(name) for name in os.listdir(Path(self.work, "acked"))}
        own = range(context.task * self.each, (context.task + 1) * self.each)
        self.left = [message for message in own if message not in done]

    def nextTuple(self, collector):
        if self.left:
            message = self.left.pop(0)
            dies(self.work, "emit", message)
            collector.emit((message,), id=message)

    def ack(self, id):
        dies(self.work, "ack", id)
        Path(self.work, "acked", str(id)).touch()

    def fail(self, id):
        with Path(self.work, "failed").open("a") as file:
            file.write(f"{id}\n")
        self.left.append(id)


class Refuses(BasicBolt):
    """Refuses some messages, as long as there is a file that says so."""

    outputFields = "message long"

    def __init__(self, work):
        self.work = str(work)

    def execute(self, tup, collector):
        dies(self.work, "execute", tup.message)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(Path(self.work, f"refuse-{tup.message}"))
            raise FailedException("refused once")
        collector.emit((tup.message,))


class ByHand(Bolt):
    outputFields = "message long"

    def execute(self, tup, collector):
        collector.emit((tup.message,), anchors=tup)
        collector.ack(tup)


class Tally(StatefulBolt):
    def __init__(self, work):
        self.work = str(work)

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put(tup.message, self.state.get(tup.message, 0) + 1)

    def prePrepare(self, txid):
        dies(self.work, "prepare", txid)


def topology(work, each, dedup=None):
    builder = TopologyBuilder("tracking")
    builder.setSpout("folder", Folder(work, each), TASKS, dedup=dedup)
    builder.setBolt("refuses", Refuses(work), TASKS).shuffleGrouping("folder")
    builder.setBolt("by-hand", ByHand(), 1).globalGrouping("refuses")
    builder.setBolt("tally", Tally(work), TASKS).fieldsGrouping("by-hand", "message")
    return builder.createTopology()


def prepared(work, each):
    """Make the folders, and let some messages be refused once."""
    Path(work, "acked").mkdir(parents=True)
    for message in range(0, TASKS * each, REFUSED):
        Path(work, f"refuse-{message}").touch()


def play(spark, work, each, dedup, **more):
    work = Path(work)
    query = submit(
        topology(work, each, dedup),
        spark,
        work / "ck",
        {
            "topology.state.provider": "rocksdb",
            "topology.max.spout.pending": 10,
            "topology.state.checkpoint.interval.ms": 20,
        },
    )
    tell(begun=True)

    def done():
        query.exception() and query.awaitTermination()
        return len(os.listdir(work / "acked")) == TASKS * each

    wait_for(done, "all messages to be acked", BOUND_SECS)
    progress, status = query.lastProgress, query.status
    query.stop()
    # A driver before it may have had all messages acked when it was killed: then this one has made no progress.
    tell(sources=progress and progress["sources"], runs=status["runs"])


def main(**given):
    spark = session("local[8]")
    play(spark, **given)
    spark.stop()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
