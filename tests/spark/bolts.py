"""Bolts for tests on Spark, and topologies made of them."""

import os
import threading
from collections import Counter

from statefx import BasicBolt, BatchBolt, Stateful, TopologyBuilder
from statefx.connectors import CollectSink
from tests.bolts import Count, Split, WithState


class Keep(WithState):
    def execute(self, tup, collector):
        number = self.state.get("n", 0)
        self.state.putAll({"n": number + 1, number: list(tup)})


class PassBatch(BasicBolt):
    def __init__(self, fields):
        self.outputFields = fields

    def execute(self, tup, collector):
        raise AssertionError("executeBatch goes first")

    def executeBatch(self, batch, collector):
        collector.emitBatch(batch)


class Sum(Stateful, BatchBolt):
    outputFields = "total long"

    def initState(self, state):
        self.state = state
        self.sum = 0

    def execute(self, tup, collector):
        self.sum += tup[-1]

    def finishBatch(self, collector):
        total = self.state.get("total", 0) + self.sum
        self.state.put("total", total)
        collector.emit((total,))


class Once:
    """Something that happens once for a folder, whichever process comes first."""

    def __init__(self, folder, name="once"):
        self.path = os.path.join(folder, name)

    def __bool__(self):
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    @property
    def happened(self):
        return os.path.exists(self.path)


def word_count(lines, name="word-count", parallelism=2, split=None, count=None, sink=None):
    """A topology; `sink`, if given, takes the words."""
    builder = TopologyBuilder(name)
    builder.setStream("lines", lines)
    builder.setBolt("split", split or Split(), parallelism=2).shuffleGrouping("lines")
    builder.setBolt("count", count or Count(), parallelism=parallelism).fieldsGrouping("split", "word")
    if sink is not None:
        builder.setSink("words", sink, parallelism=2).localOrShuffleGrouping("split")
    return builder.createTopology()


def recount(texts):
    return dict(Counter(word for text in texts for word in text.split()))


class Unclosable(CollectSink):
    """What its target raises when it is closed, in the query's own thread, is no Exception even."""

    def connect(self, schema):
        target = super().connect(schema)
        target.close = self.refuse
        return target

    def refuse(self):
        if threading.current_thread() is not threading.main_thread():
            raise SystemExit(1)
