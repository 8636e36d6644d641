"""A spout that hands out messages until all are acked, played by the process of `tests.spark.playing`.

``acked`` in the work folder has a file for each message that was acked, and ``failed`` a line for each delivery that
failed.
"""

import contextlib
import os
from pathlib import Path

from statefx import BasicBolt, Bolt, Spout, TopologyBuilder, submit
from statefx.errors import FailedException
from tests.bolts import Tally
from tests.spark.counting import BOUND_SECS, tell
from tests.spark.running import wait_for

TASKS = 2
REFUSED = 7
"""Each so many-th message is refused when it is delivered first."""


class Folder(Spout):
    outputFields = "message long"

    def __init__(self, work, each):
        self.work, self.each = str(work), each

    def open(self, context):
        self.left = list(range(context.task * self.each, (context.task + 1) * self.each))

    def nextTuple(self, collector):
        if self.left:
            message = self.left.pop(0)
            collector.emit((message,), id=message)

    def ack(self, id):
        Path(self.work, "acked", str(id)).touch()

    def fail(self, id):
        with Path(self.work, "failed").open("a") as file:
            file.write(f"{id}\n")
        self.left.append(id)


class Refuses(BasicBolt):
    outputFields = "message long"

    def __init__(self, work):
        self.work = str(work)

    def execute(self, tup, collector):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(Path(self.work, f"refuse-{tup.message}"))
            raise FailedException("refused once")
        collector.emit((tup.message,))


class ByHand(Bolt):
    outputFields = "message long"

    def execute(self, tup, collector):
        collector.emit((tup.message,), anchors=tup)
        collector.ack(tup)


def topology(work, each):
    builder = TopologyBuilder("tracking")
    builder.setSpout("folder", Folder(work, each), TASKS)
    builder.setBolt("refuses", Refuses(work), TASKS).shuffleGrouping("folder")
    builder.setBolt("by-hand", ByHand(), 1).globalGrouping("refuses")
    builder.setBolt("tally", Tally("message"), TASKS).fieldsGrouping("by-hand", "message")
    return builder.createTopology()


def prepared(work, each):
    """Make the folders, and let some messages be refused once."""
    Path(work, "acked").mkdir(parents=True)
    for message in range(0, TASKS * each, REFUSED):
        Path(work, f"refuse-{message}").touch()


def play(spark, work, each, **more):
    work = Path(work)
    query = submit(
        topology(work, each),
        spark,
        work / "ck",
        {
            "topology.state.provider": "rocksdb",
            "topology.max.spout.pending": 10,
            "topology.state.checkpoint.interval.ms": 20,
        },
    )

    def done():
        query.exception() and query.awaitTermination()
        return len(os.listdir(work / "acked")) == TASKS * each

    wait_for(done, "all messages to be acked", BOUND_SECS)
    progress, status = query.lastProgress, query.status
    query.stop()
    tell(sources=progress["sources"], runs=status["runs"])
