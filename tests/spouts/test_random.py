"""Random lives of topologies of spouts come to what one without failure comes to (rule 8.1); `make soak` plays more."""

import logging
import random

import pytest

from statefx import BasicBolt, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.errors import FailedException
from statefx.log import beside as metadata
from tests.spouts.fuzzing import Life
from tests.testing.lives import seeds
from tests.testing.ruling import PAYMENTS, RULES, Judge, given, recounted


@pytest.fixture(autouse=True)
def loud():
    yield
    logging.disable(logging.NOTSET)


def play(seed, folder, monkeypatch):
    random.seed(seed)
    monkeypatch.setattr(metadata, "INLINE_MAX_BYTES", random.choice([10, 64 << 10]))
    life = Life(seed, folder)
    folder.mkdir()
    counts, published = life.play()
    expected = life.expected()
    assert counts == expected, f"seed {seed}: {life.spouts}, {life.told}"
    assert published == sorted(expected), f"seed {seed}: {life.spouts}, {life.told}"
    return life


@pytest.mark.slow
@pytest.mark.parametrize("secs", [2, pytest.param(300, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_random_lives_lose_and_double_nothing(place, monkeypatch, secs):
    """Their chains and connections are lost at any step."""
    logging.disable(logging.CRITICAL)
    for seed in seeds(secs):
        play(seed, place / str(seed), monkeypatch)


# ---- Random lives of topologies with rules: each row is judged by its own transaction's.


class Pass(BasicBolt):
    def __init__(self, fields, failing):
        self.outputFields, self.failing = fields, failing

    def execute(self, tup, collector):
        fail(self.failing)
        collector.emit(tuple(tup))


class Failing(Judge):
    def __init__(self, failing):
        self.failing = failing

    def executeBroadcast(self, rule, collector):
        fail(self.failing)
        super().executeBroadcast(rule, collector)


class Told(Failing):
    """Has hooks, so that a commit and a rollback are jobs, which may fail."""

    def preCommit(self, txid):
        if random.random() < 0.05:
            raise OSError("the mail server is down")

    def preRollback(self):
        pass


def fail(chance):
    if random.random() < chance:
        raise FailedException("by chance")


class RuledLife(Life):
    """A life as those of spouts, over payments (``s0``) and rules (``s1``), which may skip a level or not."""

    def __init__(self, seed, folder):
        super().__init__(seed, folder)
        choose = self.rng.choice
        self.spouts = ["payments", "rules"]
        self.count = choose([Failing, Told])
        self.payments, self.rules = given(seed, choose([1, 2, 3]), each=8)
        self.take, self.tasks, self.parses = choose([1, 2, 3]), choose([1, 2, 3]), choose([False, True])
        self.there = {"partitions": 1, "each": 1}

    def grow(self, partitions, each):
        """All rows are there from the beginning, so that what a transaction has of them is known."""

    def topology(self):
        builder = TopologyBuilder("ruled")
        builder.setSpout("s0", MemoryTransactionalSpout(self.payments, PAYMENTS, self.take), self.rng.choice([1, 2]))
        builder.setSpout("s1", MemoryTransactionalSpout(self.rules, RULES, self.take), len(self.rules))
        builder.setBolt("pass", Pass(PAYMENTS, self.failing), 2).shuffleGrouping("s0")
        if self.parses:
            parse = builder.setBolt("parse", Pass(RULES, self.failing), len(self.rules))
            parse.localOrShuffleGrouping("s1")
        judges = builder.setBolt("count", self.count(self.failing), self.tasks)
        judges.broadcastGrouping("parse" if self.parses else "s1").fieldsGrouping("pass", "account")
        return builder.createTopology()

    def expected(self):
        return recounted(self.payments, self.rules, self.take)[0]

    def published(self):
        """The rules of each task."""
        with self.start() as last:
            return [last.state("count", task=task, map="rules") for task in range(self.tasks)]


def ruled_play(seed, folder):
    random.seed(seed)
    folder.mkdir()
    life = RuledLife(seed, folder)
    judged, rules = life.play()
    expected, known = recounted(life.payments, life.rules, life.take)
    assert judged == expected, f"seed {seed}: {life.told}"
    assert rules == [known] * life.tasks, f"seed {seed}: {life.told}"


@pytest.mark.slow
@pytest.mark.parametrize("secs", [1, pytest.param(120, marks=[pytest.mark.soak, pytest.mark.timeout(1200)])])
def test_random_lives_judge_each_row_once_by_the_rules_of_its_transaction(place, secs):
    logging.disable(logging.CRITICAL)
    for seed in seeds(secs):
        ruled_play(seed, place / str(seed))
