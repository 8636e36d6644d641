"""Spouts whose rows have times, as a script says: round by round, and in each by partition or task.

A time is seconds after `START`, None, or a datetime. A row is (partition, at).
"""

from datetime import UTC, datetime, timedelta

from statefx import (
    BasicBolt,
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    Spout,
    StatefulBolt,
    TopologyBuilder,
    TransactionalSpout,
)
from statefx.testing import TopologyTester

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(secs):
    return secs if secs is None or isinstance(secs, datetime) else START + timedelta(seconds=secs)


class Scripted:
    outputFields = "partition int, at timestamp"

    def __init__(self, script):
        self.script = script

    def open(self, context):
        self.context = context

    def upcoming(self, last):
        number = 0 if last is None else last["round"] + 1
        return {"round": number} if number < len(self.script) else None

    def rows(self, number, partition):
        return [(partition, at(secs)) for secs in (self.script[number] + [[]] * (partition + 1))[partition]]

    def emit(self, collector, number, partition):
        for row in self.rows(number, partition):
            collector.emit(row)


class Parts(Scripted):
    def numPartitions(self):
        return max(map(len, self.script))


class Whole(Scripted, TransactionalSpout):
    def initializeTransaction(self, txid, previous):
        return self.upcoming(previous)

    def emitBatch(self, attempt, metadata, collector):
        self.emit(collector, metadata["round"], self.context.task)


class Planned(Parts, PartitionedTransactionalSpout):
    def planPartitionBatch(self, partition, lastMetadata):
        return self.upcoming(lastMetadata)

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        self.emit(collector, metadata["round"], partition)


class Emitted(Parts, PartitionedTransactionalSpout):
    def emitPartitionBatchNew(self, attempt, collector, partition, lastMetadata):
        upcoming = self.upcoming(lastMetadata)
        if upcoming is not None:
            self.emit(collector, upcoming["round"], partition)
        return upcoming

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        self.emit(collector, metadata["round"], partition)


class Opaque(Parts, OpaquePartitionedTransactionalSpout):
    def emitPartitionBatch(self, attempt, collector, partition, lastMetadata):
        upcoming = self.upcoming(lastMetadata)
        if upcoming is not None:
            self.emit(collector, upcoming["round"], partition)
        return upcoming


class Ends:
    """Its partitions are finished with rounds of these numbers; None: never."""

    def __init__(self, script, ends):
        super().__init__(script)
        self.ends = ends

    def isFinished(self, partition, metadata):
        return self.ends[partition] is not None and metadata["round"] >= self.ends[partition]


class PlannedEnds(Ends, Planned):
    pass


class EmittedEnds(Ends, Emitted):
    pass


class OpaqueEnds(Ends, Opaque):
    pass


FED = []
"""What the tasks of `Living` emit next, by task: rounds that nobody has taken."""


class Living(Spout):
    outputFields = "partition int, at timestamp"

    def open(self, context):
        self.task = context.task

    def nextTuple(self, collector):
        if self.task < len(FED) and FED[self.task]:
            for secs in FED[self.task].pop(0):
                collector.emit((self.task, at(secs)))

    def ack(self, id):
        pass

    def fail(self, id):
        pass


class Watch(StatefulBolt):
    """Keeps for each transaction (watermark in execute, in prePrepare, processingTime, generation)."""

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.state = state
        self.before = self.context.watermark

    def execute(self, tup, collector):
        assert self.context.watermark == self.before
        self.state["rows"] = self.state.get("rows", 0) + 1

    def prePrepare(self, txid):
        context = self.context
        self.state[txid] = (self.before, context.watermark, context.processingTime, context.generation)


class Relay(BasicBolt):
    outputFields = "partition int, at timestamp"

    def execute(self, tup, collector):
        collector.emit(tuple(tup))


def topology(spout, tasks=1, width=1, relay=0, **times):
    """Return spout -> (relay) -> watch."""
    builder = TopologyBuilder("timed")
    builder.setSpout("spout", spout, tasks, **{"timestamp": "at"} | times)
    if relay:
        builder.setBolt("relay", Relay(), relay).shuffleGrouping("spout")
    builder.setBolt("watch", Watch(), width).fieldsGrouping("relay" if relay else "spout", "partition")
    return builder.createTopology()


def begun(of, place, **options):
    options = {"now": START + timedelta(hours=1)} | options
    return TopologyTester(of, place, **options)


def seen(driver, task=0):
    """Return what `Watch` kept, by txid, with watermarks in seconds after `START`."""
    found = driver.state("watch", task)
    found.pop("rows", None)
    return {txid: (secs(before), secs(after), now, of) for txid, (before, after, now, of) in sorted(found.items())}


def watermarks(driver, task=0):
    return [after for _, after, _, _ in seen(driver, task).values()]


def secs(time):
    return None if time is None else (time - START).total_seconds()
