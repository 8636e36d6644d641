"""A driver of a cut topology on Spark, with several transactions in flight, over inputs that are planned."""

import threading

from statefx import TopologyBuilder
from statefx.coordinator.launch import Launch
from statefx.coordinator.source import Batch
from statefx.spark.engine import SparkEngine
from statefx.spark.frames import unite
from statefx.spark.pickling import dumps
from statefx.spark.session import clone
from statefx.testing.streams import identity
from tests.spark.bolts import Count, Split


def count_twice(lines, split=None, count=None):
    """Words are counted by one committer, and counted again behind it."""
    builder = TopologyBuilder("in-flight")
    builder.setStream("lines", lines)
    builder.setBolt("split", split or Split(), parallelism=2).shuffleGrouping("lines")
    builder.setBolt("count", count or Count(), parallelism=3).fieldsGrouping("split", "word")
    builder.setBolt("again", Count(), parallelism=2).fieldsGrouping("count", "word")
    return builder.createTopology()


class InFlight:
    """One driver; it is also the source of its transactions, whose inputs are there from the start.

    Parameters
    ----------
    spark : SparkSession
    location : path
    works : sequence of sequence of str
        Lines, by transaction.
    pending : int
    config : Mapping, optional
    **bolts : Bolt
        Those of `count_twice`.
    """

    def __init__(self, spark, location, works, pending=3, config=None, **bolts):
        self.works = works
        self.spark = clone(spark)
        frame = self.frame(["none"])
        topology = count_twice(frame, **bolts)
        launch = Launch(topology, config, location, None, caller="submit", dumps=dumps, pending=pending)
        launch.check_checkpoint()
        log = launch.take_generation()
        stopping = threading.Event()
        self.engine = SparkEngine(
            launch.deployment(log), unite({"lines": frame}), launch.settings.transaction_timeout_secs, stopping
        )
        self.engine.bind(self.spark)
        self.coordinator = launch.coordinator(
            log, self.engine, launch.janitor(log), pause=lambda secs: not stopping.wait(secs)
        )
        self.coordinator.recover()

    def frame(self, lines):
        return self.spark.createDataFrame([(line,) for line in lines], "value string").coalesce(2)

    def drive(self):
        """Take all transactions that are not committed yet through the coordinator."""
        self.coordinator.run(self)
        self.coordinator.ended()
        return self

    def ready(self, txid):
        return not self.ended(txid)

    def next(self, txid):
        lines = self.works[txid - 1]
        return Batch(identity(txid - 1, {"lines": [(line,) for line in lines]}), unite({"lines": self.frame(lines)}))

    def ended(self, txid):
        return txid > len(self.works)
