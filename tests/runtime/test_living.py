"""Slots that live, in this process: random orders of arrival, refusals, lost and frozen slots; against a recount."""

import random
from collections import Counter
from pathlib import Path

import pytest

from statefx import BasicBolt, BatchBolt, FailedException, Stateful, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.testing import Limits
from tests.testing.lives import seeds
from tests.testing.living import LivingTester
from tests.testing.topologies import Count

REFUSE = random.Random(0)
PATIENT = Limits(pauses=10_000)


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


def run(folder: Path, seed: int, pending: int, break_things: bool, relay: bool) -> None:
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
        topologies, folder, config, seed=seed, breaks=break_things, freshObjects=False, limits=PATIENT
    ) as tester:
        tester.drain()
        tester.wake()
        expected = Counter(word for part in words for (word,) in part)
        assert tester.state("count") == dict(expected)
        rows = sum(value for task in range(2) for value in tester.state("total", task).values())
        assert rows == sum(expected.values()) * (2 if relay else 1)


@pytest.mark.slow
@pytest.mark.parametrize(("pending", "relay"), [(1, True), (3, False)])
def test_every_order_of_arrival_gives_the_same(place, pending, relay):
    for seed in seeds(0.3):
        run(place / str(seed), seed, pending, False, relay)


@pytest.mark.slow
@pytest.mark.parametrize(("pending", "relay"), [(1, True), (3, False)])
def test_refused_lost_and_frozen(place, pending, relay):
    for seed in seeds(1):
        run(place / str(seed), seed, pending, True, relay)


@pytest.mark.slow
@pytest.mark.parametrize("pending", [2, pytest.param(1, marks=pytest.mark.soak)])
def test_a_connection_is_lost_after_each_of_its_frames(place, pending, stride):
    """Of each slot, after each frame of either way that a run without failure carries: the next run ends the same."""

    def outcome(folder, seed, cut_at=None):
        words = [[("a",), ("b",), ("a",), ("c",), ("b",)], [("a",), ("c",), ("c",), ("a",)]]
        config = {"topology.state.provider": "memory", "topology.max.spout.pending": pending}
        built = topology(words, False, True)
        with LivingTester(built, place / folder, config, seed=seed, cut_at=cut_at) as tester:
            tester.drain()
            tester.wake()
            totals = [tester.state("total", task) for task in range(2)]
            return (tester.state("count"), totals), tester.carried, tester.runs

    wanted, carried, _ = outcome("whole", 0)
    assert wanted[0] == {"a": 4, "b": 2, "c": 3}
    runs = cuts = 0
    for (slot, way), frames in carried.items():
        for after in range(pending, frames + 1, stride):
            # With each seed another order of arrival, and another end that notices first.
            found, _, begun = outcome(f"{slot.level}-{slot.partition}-{way}-{after}", after, (slot, way, after))
            assert found == wanted, f"slot {slot}, {way}, after {after} frames"
            runs, cuts = runs + begun - 1, cuts + 1
    assert runs > cuts / 2  # an order of arrival may send fewer frames than were counted


@pytest.mark.parametrize("moment", ["before COMMITTING(1, 0)", "before COMMITTING(2, 0)", "after COMMITTING(2, 0)"])
@pytest.mark.slow
def test_a_slot_is_lost_while_the_driver_appends(place, moment):
    """What has emitted is done, and what reads it is not ordered yet: it is of a run that is over.

    The slots of the next one waited for its rows, until ``topology.transaction.timeout.secs`` were over.
    """
    words = [[(f"w{number % 4}",) for number in range(12)] for _ in range(2)]
    config = {"topology.state.provider": "memory", "topology.max.spout.pending": 3}
    for seed in range(2):
        with LivingTester(topology(words, False, True), place / str(seed), config, seed=seed) as tester:
            tester.when(moment, tester.lose)
            tester.drain()
            assert tester.runs == 2
            assert tester.state("count") == Counter(word for part in words for (word,) in part)
