"""Slots that live, in this process: random orders of arrival, refusals, lost and frozen slots; against a recount."""

import random
from collections import Counter
from pathlib import Path

import pytest

from statefx import BasicBolt, BatchBolt, FailedException, Stateful, StatefulBolt, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.testing import TopologyTester
from statefx.testing.living import LocalRunEngine
from statefx.testing.processes import Process

REFUSE = random.Random(0)


class Same(BasicBolt):
    outputFields = "word string"

    def execute(self, tup, collector):
        collector.emit((tup.word,))


class Flaky(BasicBolt):
    """Refuses a transaction now and then."""

    outputFields = "word string"

    def execute(self, tup, collector):
        if REFUSE.random() < 0.02:
            raise FailedException("not now")
        collector.emit((tup.word,))


class Count(StatefulBolt):
    outputFields = "word string, count long"

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        count = self.state.get(tup.word, 0) + 1
        self.state.put(tup.word, count)
        collector.emit((tup.word, count))


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
    builder.setBolt("same", (Flaky if flaky else Same)(), parallelism=2).fieldsGrouping("words", "word")
    builder.setBolt("count", Count(), parallelism=3).fieldsGrouping("same", "word")
    total = builder.setBolt("total", Total(), parallelism=2).fieldsGrouping("count", "word")
    if relay:
        total.fieldsGrouping("words", "word")
    return builder.createTopology()


class LivingTester(TopologyTester):
    def __init__(self, *args, timeout_secs=600.0, **options):
        self.timeout_secs = timeout_secs
        super().__init__(*args, **options)

    def _make_engine(self, deployment, seed):
        def worker():
            return Process(deployment, self._steps, self._cache, fresh=False)

        return LocalRunEngine(deployment, worker, seed or 0, self.timeout_secs, self._clock)


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
    with LivingTester(topology(words, break_things, relay), tmp_path / "ck", config, seed=seed) as tester:
        engine = tester._engine

        def chances(engine: LocalRunEngine) -> None:
            run = engine.runs[-1] if engine.runs else None
            if not break_things or run is None or run.is_over or not run._told_ready:
                return
            slot = chance.choice(list(run.slots.values()))
            draw = chance.random()
            if draw < 0.003:
                run.lose(slot.slot)
            elif draw < 0.006:  # a frozen worker: found out by its silence, and woken when the run is over
                slot.frozen = True
                run.fail("silence")
            elif draw < 0.02:
                for old in engine.runs:
                    for each in old.slots.values():
                        each.frozen = False

        engine.chances = chances
        tester.drain()
        for old in engine.runs:
            for each in old.slots.values():
                each.frozen = False
        engine.settle()
        expected = Counter(word for part in words for (word,) in part)
        assert tester.state("count") == dict(expected)
        rows = sum(value for task in range(2) for value in tester.state("total", task).values())
        assert rows == sum(expected.values()) * (2 if relay else 1)
        engine.close()


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
