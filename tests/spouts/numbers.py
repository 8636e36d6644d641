"""Spouts of numbers: partition p has p * 1000, p * 1000 + 1, and so on; each writes down what it was asked for.

`first` is added to all numbers of a spout, so that those of several can be told apart.
"""

import json
from pathlib import Path

from statefx import (
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    TopologyBuilder,
    TransactionalSpout,
)
from tests.bolts import WithState

PARTITIONS, EACH, TAKEN = 3, 10, 4
ALL = {partition * 1000 + number: 1 for partition in range(PARTITIONS) for number in range(EACH)}


class Notes:
    """What a spout was asked for, in a file: tasks run in processes of their own, and crash."""

    outputFields = "number long"

    def __init__(self, folder, each=EACH, first=0):
        self.path = str(Path(folder) / "notes")
        self.each = each
        self.first = first

    def note(self, attempt, *what):
        with open(self.path, "a") as notes:
            notes.write(json.dumps([attempt.txid, attempt.attempt, *what]) + "\n")

    def notes(self):
        return list(map(json.loads, Path(self.path).read_text().splitlines()))

    def upcoming(self, last):
        start = 0 if last is None else last["stop"]
        return {"start": start, "stop": min(self.each, start + TAKEN)}

    def emit(self, collector, partition, metadata):
        for number in range(metadata["start"], metadata["stop"]):
            collector.emit((self.first + partition * 1000 + number,))


class Partitions(Notes):
    def numPartitions(self):
        return PARTITIONS


class Whole(Notes, TransactionalSpout):
    def initializeTransaction(self, txid, previous):
        batch = self.upcoming(previous)
        return batch if batch["start"] < batch["stop"] else None

    def open(self, context):
        self.context = context

    def emitBatch(self, attempt, metadata, collector):
        self.note(attempt, self.context.task, metadata)
        for partition in range(self.context.task, PARTITIONS, self.context.parallelism):
            self.emit(collector, partition, metadata)


class Planned(Partitions, PartitionedTransactionalSpout):
    def planPartitionBatch(self, partition, lastMetadata):
        batch = self.upcoming(lastMetadata)
        return batch if batch["start"] < batch["stop"] else None

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        self.note(attempt, partition, metadata)
        self.emit(collector, partition, metadata)


class Emitted(Partitions, PartitionedTransactionalSpout):
    def emitPartitionBatchNew(self, attempt, collector, partition, lastMetadata):
        batch = self.upcoming(lastMetadata)
        if batch["start"] == batch["stop"] or (partition == 1 and attempt.txid == 2):
            return None
        self.note(attempt, partition, batch, "new")
        self.emit(collector, partition, batch)
        return batch

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        self.note(attempt, partition, metadata)
        self.emit(collector, partition, metadata)


class Opaque(Partitions, OpaquePartitionedTransactionalSpout):
    """A generator: it lets what it has emitted go after each number. Other attempts take other numbers of rows."""

    def emitPartitionBatch(self, attempt, collector, partition, lastMetadata):
        batch = self.upcoming(lastMetadata)
        batch["stop"] = max(min(batch["start"] + 1, self.each), batch["stop"] - attempt.attempt)
        self.note(attempt, partition, batch)
        for number in range(batch["start"], batch["stop"]):
            collector.emit((self.first + partition * 1000 + number,))
            yield
        return batch


class Count(WithState):
    def execute(self, tup, collector):
        self.state.put(tup.number, self.state.get(tup.number, 0) + 1)


def topology(spout, bolt=None):
    builder = TopologyBuilder("numbers")
    builder.setSpout("numbers", spout, parallelism=2)
    builder.setBolt("count", bolt or Count(), parallelism=2).fieldsGrouping("numbers", "number")
    return builder.createTopology()
