"""Slots that live, in this process: random orders of arrival, refusals, lost and frozen slots; against a recount."""

import random
from collections import Counter
from pathlib import Path

import pytest

from statefx import BasicBolt, BatchBolt, FailedException, Stateful, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from tests.testing.living import LivingTester
from tests.testing.topologies import Count

REFUSE = random.Random(0)


class Flaky(BasicBolt):
    """Refuses a transaction now and then, `often` out of 1."""

    outputFields = "word string"

    def __init__(self, often):
        self.often = often

    def execute(self, tup, collector):
        if REFUSE.random() < self.often:
            raise FailedException("not now")
        collector.emit((tup.word,))


class Total(Stateful, BatchBolt):
    outputFields = {}

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put("rows", self.state.get("rows", 0) + 1)

    def preCommit(self, txid):
        """Have the commit go to the tasks."""


def topology(words, flaky, relay):
    builder = TopologyBuilder("living")
    builder.setSpout("words", MemoryTransactionalSpout(words, "word string", takePerBatch=3), parallelism=2)
    builder.setBolt("same", Flaky(0.02 if flaky else 0), parallelism=2).fieldsGrouping("words", "word")
    builder.setBolt("count", Count(), parallelism=3).fieldsGrouping("same", "word")
    total = builder.setBolt("total", Total(), parallelism=2).fieldsGrouping("count", "word")
    if relay:
        total.fieldsGrouping("words", "word")
    return builder.createTopology()


def run(tmp_path: Path, seed: int, pending: int, break_things: bool, relay: bool) -> None:
    REFUSE.seed(seed)
    chance = random.Random(seed)
    words = [[(f"w{chance.randrange(6)}",) for _ in range(chance.randrange(0, 20))] for _ in range(2)]
    config = {
        "topology.state.provider": chance.choice(["memory", "rocksdb"]),
        "topology.max.spout.pending": pending,
        "topology.transaction.attempts.max": 1000,
        "topology.state.checkpoint.interval.ms": 1,
    }
    topologies = topology(words, break_things, relay)
    with LivingTester(
        topologies, tmp_path / "ck", config, seed=seed, breaks=break_things, freshObjects=False
    ) as tester:
        tester.drain()
        tester.wake()
        expected = Counter(word for part in words for (word,) in part)
        assert tester.state("count") == dict(expected)
        rows = sum(value for task in range(2) for value in tester.state("total", task).values())
        assert rows == sum(expected.values()) * (2 if relay else 1)


@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("relay", [False, True])
def test_every_order_of_arrival_gives_the_same(tmp_path, pending, relay):
    for seed in range(8):
        run(tmp_path / str(seed), seed, pending, False, relay)


@pytest.mark.parametrize("pending", [1, 3])
@pytest.mark.parametrize("relay", [False, True])
def test_refused_lost_and_frozen(tmp_path, pending, relay):
    for seed in range(8):
        run(tmp_path / str(seed), seed, pending, True, relay)
