"""Random lives of bolts whose calls overlap come to a plain recount, key by key; `make soak` plays more."""

import asyncio
import logging
import random
import threading

import pytest

from statefx import AsyncBolt, StatefulAsyncBolt, TopologyBuilder
from statefx.connectors.files import FileSink
from statefx.errors import FailedException
from tests.spouts.fuzzing import Life
from tests.testing.lives import seeds

BAD = 5
"""Of so many numbers one is bad: its call raises, at whichever moment."""


@pytest.fixture(autouse=True)
def loud():
    yield
    logging.disable(logging.NOTSET)


async def wait():
    """Wait a little, or not at all."""
    for _ in range(random.choice([0, 0, 1, 3])):
        await asyncio.sleep(random.choice([0, 0, 0.0003]))


class Call(AsyncBolt):
    outputFields = "number long, key long"

    def __init__(self, failing, **settings):
        self.failing = failing
        vars(self).update(settings)

    async def execute(self, tup, collector):
        await wait()
        if random.random() < self.failing:
            raise FailedException("by chance")
        collector.emit((tup.number, tup.number % 7))
        await wait()


class InThreads(Call):
    threads = 3

    def execute(self, tup, collector):
        if random.random() < 0.2:
            threading.Event().wait(0.0003)
        collector.emit((tup.number, tup.number % 7))


class InBatches(AsyncBolt):
    """Batches of several rows raise at times, and are called again in halves."""

    outputFields, maxWaitMs = Call.outputFields, 0.5

    def __init__(self, failing, **settings):
        self.failing, self.maxBatch = failing, min(random.choice([1, 3, 10]), settings["capacity"])
        vars(self).update(settings)

    async def executeBatch(self, batch, collector):
        await wait()
        self.emit_all(batch, collector)
        await wait()

    def emit_all(self, batch, collector):
        if random.random() < self.failing:
            raise FailedException("by chance")
        for tup in batch[:: random.choice([1, -1])]:
            collector.emit((tup.number, tup.number % 7), anchors=random.choice([tup, [tup], ()]))
        if len(batch) > 1 and random.random() < 0.1:
            raise ValueError("by chance")


class BatchesInThreads(InBatches):
    threads = 3

    def executeBatch(self, batch, collector):
        if random.random() < 0.2:
            threading.Event().wait(0.0003)
        self.emit_all(batch, collector)


class Sums(StatefulAsyncBolt):
    """Counts each number, and adds up the numbers of each key, both of what it has read before it waited."""

    def __init__(self, failing, **settings):
        self.failing = failing
        vars(self).update(settings)

    def initState(self, state):
        self.counts, self.sums = state, state.map("sums")

    async def execute(self, tup, collector):
        count, sum = self.counts.get(tup.number, 0), self.sums.get(tup.key, 0)
        await wait()
        if random.random() < self.failing:
            raise FailedException("by chance")
        self.sums.put(tup.key, sum + tup.number)
        self.counts.put(tup.number, count + 1)
        if not tup.number % BAD:
            raise ValueError("a bad row")


class AsyncLife(Life):
    """A life as those of spouts, whose bolts make calls."""

    def __init__(self, seed, folder):
        super().__init__(seed, folder)
        self.settings = {"capacity": self.rng.choice([1, 3, 100]), "ordered": self.rng.random() < 0.5}
        self.kind = self.rng.choice([Call, InThreads, InBatches, InBatches, BatchesInThreads])

    def topology(self):
        builder = TopologyBuilder("calls")
        mode = "skip" if issubclass(self.kind, InBatches) else "fail"
        passing = builder.setBolt("pass", self.kind(self.failing, **self.settings), parallelism=2, onError=mode)
        for number, spout in enumerate(self.spouts):
            builder.setSpout(f"s{number}", spout(self.folder, number), parallelism=self.rng.choice([1, 2, 3]))
            passing.shuffleGrouping(f"s{number}")
        sums = builder.setBolt("count", Sums(self.failing, **self.settings), parallelism=2, onError="skip")
        sums.fieldsGrouping("pass", "key")
        builder.setSink("out", FileSink(str(self.folder / "out"))).shuffleGrouping("pass")
        return builder.createTopology()

    def expected(self):
        return {number: 1 for number in super().expected() if number % BAD}

    def published(self):
        with self.start() as last:
            return super().published(), last.state("count", map="sums")


def play(seed, folder):
    random.seed(seed)
    folder.mkdir()
    life = AsyncLife(seed, folder)
    counts, (published, sums) = life.play()
    expected, every = life.expected(), sorted(Life.expected(life))
    assert counts == expected, f"seed {seed}: {life.spouts}, {life.told}"
    assert published == every, f"seed {seed}: {life.spouts}, {life.told}"
    recounted = {}
    for number in expected:
        recounted[number % 7] = recounted.get(number % 7, 0) + number
    assert sums == recounted, f"seed {seed}: {life.spouts}, {life.told}"


@pytest.mark.slow
@pytest.mark.parametrize("secs", [2, pytest.param(300, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_random_lives_lose_and_double_no_call_s_rows_or_state(place, secs):
    """Their chains and connections are lost, cut off and frozen at any step, and drivers are replaced."""
    logging.disable(logging.CRITICAL)
    for seed in seeds(secs):
        play(seed, place / str(seed))
