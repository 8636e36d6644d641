"""Random trees of tuples, held in state over transactions, against a model of Storm's rules.

Bolts write down what they do with each tuple. From what committed transactions did, the model tells in which of them
each message is acked or fails; the spout has to hear exactly that.
"""

import random
from collections import Counter, defaultdict, deque
from zlib import crc32

import pytest

from statefx import Bolt, Spout, Stateful, StatefulBolt, TopologyBuilder, isTick
from statefx.errors import FailedException
from statefx.operators.acker import ACKER
from statefx.testing import TopologyTester

TIMEOUT_SECS = 30

FED, HEARD, BREAKS = deque(), [], []
DID = defaultdict(list)
"""By task and transaction: (what, uid, parents); an attempt that is rolled back is written over."""
SEED = [0]


def draw(*of):
    return random.Random(crc32(repr((SEED[0], *of)).encode()))


class Fed(Spout):
    outputFields = "uid string, depth long"

    def nextTuple(self, collector):
        if FED:
            uid = FED.popleft()
            collector.emit((uid, 0), id=uid)

    def ack(self, id):
        HEARD.append(("ack", id))

    def fail(self, id):
        HEARD.append(("fail", id))


class Notes(Stateful):
    """Writes down what a task does."""

    def open(self, context):
        self.context = context

    def initState(self, state):
        context = self.context
        self.state, self.made = state, 0
        self.name = f"{context.component}/{context.task}"
        self.did = DID[self.name, context.txid] = []

    def note(self, what, tup, parents=()):
        self.did.append((what, tup if isinstance(tup, str) else tup.uid, [each.uid for each in parents]))


class Node(Notes, Bolt):
    """Emits tuples anchored to one or two others, holds some in state, fails some."""

    outputFields = "uid string, depth long"

    def execute(self, tup, collector):
        ticks = isTick(tup)
        chance, left = draw(self.name, self.context.txid if ticks else tup.uid), []
        for each in self.state.get("kept", []):
            self.deal(each, collector, chance, left, [0.3, 0.1, 0.15])
        if not ticks:
            self.note("got", tup)
            self.deal(tup, collector, chance, left, [0.4, 0.08, 0.02])
        self.state.put("kept", left)

    def deal(self, tup, collector, chance, left, shares):
        kind = chance.choices(["hold", "fail", "reset", "ack"], [*shares, 1 - sum(shares)])[0]
        if kind in ("hold", "reset"):
            left.append(tup)
            if kind == "reset":
                self.note("reset", tup)
                collector.resetTimeout(tup)
            if chance.random() < 0.7:
                return
        for _ in range(chance.choice([0, 1, 1, 2, 3]) if tup.depth < 3 else 0):
            parents = [tup, *([chance.choice(left)] if left and chance.random() < 0.4 else [])]
            self.made += 1
            uid = f"{self.name}:{self.context.txid}:{self.made}"
            self.note("emit", uid, parents)
            collector.emit((uid, tup.depth + 1), anchors=parents)
        if kind == "ack":
            self.note("end", tup)
            collector.ack(tup)
        elif kind == "fail":
            self.note("fail", tup)
            collector.fail(tup, "refused")


class Leaf(Notes, StatefulBolt):
    def execute(self, tup, collector):
        if draw(self.name, tup.uid).random() < 0.05:
            self.note("fail", tup)
            raise FailedException("refused")

    def prePrepare(self, txid):
        if BREAKS:
            raise BREAKS.pop()


class Model:
    """Trees as sets of tuples that tasks have and have not ended."""

    def __init__(self):
        self.roots = {}
        """By uid of a tuple: the messages that it belongs to."""
        self.open = {}
        """By message that goes on: (task, uid) of what was got and neither acked nor failed."""
        self.ends_ms = {}

    def transact(self, txid, messages, now_ms):
        ends_ms = now_ms + TIMEOUT_SECS * 1000
        for message in messages:
            self.roots[message], self.open[message], self.ends_ms[message] = {message}, set(), ends_ms
        said = [(name, *each) for (name, at), did in DID.items() if at == txid for each in did]
        emits = {uid: parents for _, what, uid, parents in said if what == "emit"}
        for uid in emits:
            self.roots_of(uid, emits)
        of = {
            kind: [(name, uid, self.roots[uid] & self.open.keys()) for name, what, uid, _ in said if what == kind]
            for kind in ("got", "end", "fail", "reset")
        }
        for name, uid, open_ in of["got"]:
            for message in open_:
                self.open[message].add((name, uid))
        for name, uid, open_ in of["end"] + of["fail"]:
            for message in open_:
                self.open[message].discard((name, uid))
        for _, _, open_ in of["reset"]:
            self.ends_ms.update(dict.fromkeys(open_, ends_ms))
        failed = {message for *_, open_ in of["fail"] for message in open_}
        failed |= {message for message, left in self.open.items() if left and self.ends_ms[message] <= now_ms}
        acked = {message for message, left in self.open.items() if not left} - failed
        for message in failed | acked:
            del self.open[message]
        return sorted([*(("fail", message) for message in failed), *(("ack", message) for message in acked)])

    def roots_of(self, uid, emits):
        """Return the messages of a tuple: those of all that it is anchored to."""
        if uid not in self.roots:
            self.roots[uid] = set().union(*(self.roots_of(parent, emits) for parent in emits[uid]))
        return self.roots[uid]


def kept_by(tester, tasks):
    found = {}
    for task in range(tasks):
        own = tester.state(ACKER, task)
        assert not own.keys() & found.keys(), "a block of trees lies in one task"
        found |= own
    return found


def play(seed, place, restarts=0.1):
    """Live one life; with each restart, the acker may get another number of tasks."""
    for each in (FED, HEARD, BREAKS, DID):
        each.clear()
    SEED[0] = seed
    chance, model = random.Random(seed), Model()
    builder = TopologyBuilder("trees")
    builder.setSpout("fed", Fed(), chance.randrange(1, 3))
    builder.setBolt("one", Node(), chance.randrange(1, 3)).fieldsGrouping("fed", "uid").setTicks(20)
    builder.setBolt("two", Node(), chance.randrange(1, 3)).fieldsGrouping("one", "uid")
    builder.setBolt("leaf", Leaf(), 1).globalGrouping("one").globalGrouping("two")
    config = {
        "topology.message.timeout.secs": TIMEOUT_SECS,
        "topology.acker.executors": chance.randrange(1, 3),
        "topology.state.provider": chance.choice(["memory", "rocksdb"]),
        "topology.transaction.attempts.max": 100,
        "topology.spout.batch.ms": 60_000,  # all that is fed is of one transaction
    }
    tester = TopologyTester(builder.createTopology(), place, config, seed=seed)
    tester.emit()  # the first transaction opens the spout
    number, outcomes = 0, Counter()

    def step(count):
        nonlocal number
        fed = [f"m{number + at}" for at in range(count)]
        number += count
        FED.extend(fed)
        before = len(HEARD)
        tester.emit()
        assert not FED
        told = model.transact(tester.txid, fed, int(tester._time() * 1000))
        assert sorted(HEARD[before:]) == told, f"seed {seed}, transaction {tester.txid}"
        outcomes.update(what for what, _ in told)

    for _ in range(chance.randrange(6, 20)):
        if chance.random() < restarts:
            for _ in range(3):  # the acker is told which messages go on
                step(0)
            before = kept_by(tester, config["topology.acker.executors"])
            config["topology.acker.executors"] = chance.randrange(1, 5)
            tester = tester.restart(config=config)
            assert kept_by(tester, config["topology.acker.executors"]) == before
            tester.advance(chance.choice([0, 21, TIMEOUT_SECS + 1]))  # trees end as the spout asks which go on
            step(0)
        if chance.random() < 0.15:
            BREAKS.append(FailedException("rolled back"))
        tester.advance(chance.choice([0, 0, 1.13, 5.3, 16.5]))  # no sums of them are the timeout
        step(chance.choice([0, 1, 3, 10, 40]))
    while model.open:  # a tick that comes with it may restart the time of some
        tester.advance(TIMEOUT_SECS + 1)
        step(0)
    assert kept_by(tester, config["topology.acker.executors"]) == {}
    tester.close()
    assert sum(outcomes.values()) == number
    return outcomes


@pytest.mark.slow
def test_open_trees_go_with_their_block_when_the_acker_gets_other_tasks(place):
    """They end when they would have ended, and time out when they would have."""
    outcomes = play(0, place, restarts=0.6)
    assert min(outcomes["ack"], outcomes["fail"]) > 10


@pytest.mark.slow
@pytest.mark.parametrize("lives", [3, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_the_spout_hears_what_storms_rules_say(place, lives):
    outcomes = Counter()
    for seed in range(lives):
        outcomes += play(seed, place / str(seed))
    assert min(outcomes["ack"], outcomes["fail"]) > 10 * lives
