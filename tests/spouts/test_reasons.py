"""Why a message has failed: what the spout finds in its context, what the log says, what a dead letter carries."""

import logging

import pytest

from statefx import BasicBolt, BatchBolt, Bolt, FailedException, Spout, StatefulBolt, TopologyBuilder
from statefx.connectors import Message, QueueSpout
from statefx.protocol.trees import OTHERS, REASONS_MAX, REASONS_TOLD_MAX, TreeReport, root_of
from statefx.testing import TopologyTester
from tests.spouts.test_tracked import Refuses

HEARD = []
"""What the spout was told: what, id, ``context.failure``."""


@pytest.fixture(autouse=True)
def cleared():
    HEARD.clear()


class Words(Spout):
    """Emits words, each with itself as id."""

    outputFields = "word string"

    def __init__(self, *words):
        self.words = words

    def open(self, context):
        self.context, self.left = context, list(self.words)

    def nextTuple(self, collector):
        assert self.context.failure == ""
        while self.left:
            collector.emit((self.left[0],), id=self.left.pop(0))

    def ack(self, id):
        HEARD.append(("ack", id, self.context.failure))

    def fail(self, id):
        HEARD.append(("fail", id, self.context.failure))


def behind(spout, bolt):
    builder = TopologyBuilder("reasons")
    builder.setSpout("words", spout)
    builder.setBolt("check", bolt).globalGrouping("words")
    return builder.createTopology()


def heard(place, spout, bolt, **config):
    with TopologyTester(behind(spout, bolt), place, config) as tester:
        tester.drain()
    return {id: (what, why) for what, id, why in HEARD}


def test_fail_finds_the_bolt_and_its_reason_and_the_next_call_none(place, caplog):
    with caplog.at_level(logging.WARNING):
        assert heard(place, Words("bad", "a", "worse", "bad too"), Refuses()) == {
            "bad": ("fail", "bolt 'check': bad is refused"),
            "a": ("ack", ""),
            "worse": ("ack", ""),
            "bad too": ("fail", "bolt 'check': bad too is refused"),
        }
    assert "2 tuples of spouts have failed, the first: bolt 'check': bad is refused" in caplog.text


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ((), "it failed the tuple, without a reason"),
        (("no card",), "no card"),
        ((ValueError("no card"),), "no card"),
        (("half \ud800 of a pair",), r"half \ud800 of a pair"),
        (("x" * 1000,), "x" * 200),
    ],
)
def test_a_plain_bolt_may_give_anything_as_the_reason(place, given, why):
    class Fails(Bolt):
        def execute(self, tup, collector):
            collector.fail(tup, *given)

    assert heard(place, Words("a"), Fails()) == {"a": ("fail", f"bolt 'check': {why}")}


def test_a_task_gives_a_hundred_reasons_and_then_others(place):
    words = [f"bad {number}" for number in range(REASONS_MAX + 2)]
    found = heard(place, Words(*words), Refuses())
    own = [f"bolt 'check': {word} is refused" for word in words[:REASONS_MAX]]
    assert [found[word] for word in words] == [("fail", why) for why in [*own, *[f"bolt 'check': {OTHERS}"] * 2]]


def test_slots_are_told_the_reasons_of_their_own_roots_up_to_a_bound():
    roots = [root_of(7, number % 2, number) for number in range(4 * REASONS_TOLD_MAX)]
    failed = {f"why {number}": (root,) for number, root in enumerate(roots)}
    part = TreeReport(failed).part_of({1: "words/1"}).failed
    assert len(part) == REASONS_TOLD_MAX + 1
    assert part["why 1"] == (roots[1],)
    assert "why 0" not in part
    assert sorted(root for own in part.values() for root in own) == roots[1::2]
    assert len(part[OTHERS]) == REASONS_TOLD_MAX


def test_a_rollback_is_told_with_the_topologys_name(place, caplog):
    class Once(BatchBolt):
        def execute(self, tup, collector):
            pass

        def finishBatch(self, collector):
            if (collector.attempt.txid, collector.attempt.attempt) == (1, 0):
                raise FailedException("once")

    assert heard(place, Words("a"), Once()) == {"a": ("ack", "")}
    assert any(
        each.startswith("reasons: transaction 1, attempt 0 was rolled back: ") and "once" in each
        for each in caplog.messages
    )


def test_a_time_out_is_a_reason(place):
    class Forgets(Bolt):
        def execute(self, tup, collector):
            pass

    config = {"topology.message.timeout.secs": 10}
    with TopologyTester(behind(Words("a"), Forgets()), place, config) as tester:
        tester.drain()
        tester.advance(11)
        tester.drain()
    assert HEARD == [("fail", "a", "it was not acked within 10 s")]


# ---- dead letters

QUEUE = {}


class Jobs(QueueSpout):
    """What is in `QUEUE`, with how often each was tried before."""

    def receive(self, limit):
        return [Message(text, (text,), tries) for text, tries in QUEUE.items()]

    def finish(self, ids):
        for id in ids:
            del QUEUE[id]


class Dead(StatefulBolt):
    """Keeps dead letters; fails each the first time."""

    seen = set()

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        if tup.word not in self.seen:
            self.seen.add(tup.word)
            raise FailedException("the dead letter is refused")
        self.state[tup.word] = tup["_id"], tup["_tries"], tup["_reason"]


def test_a_dead_letter_says_why_its_message_failed_last(place):
    tries = []

    class Numbered(BasicBolt):
        def execute(self, tup, collector):
            if tup.word == "bad":
                tries.append(tup)
                raise FailedException(f"refused, time {len(tries)}")

    Dead.seen.clear()
    QUEUE.update({"a": 0, "bad": 0, "tried before": 3})
    builder = TopologyBuilder("reasons")
    builder.setSpout("jobs", Jobs("word string", maxTries=3, retryDelay=0))
    builder.setBolt("check", Numbered()).globalGrouping("jobs")
    builder.setBolt("dead", Dead()).globalGrouping("jobs", stream="dead")
    with TopologyTester(builder.createTopology(), place) as tester:
        for _ in range(100):
            tester.drain()
            if not QUEUE:
                break
        assert tester.state("dead") == {
            "bad": ("bad", 4, "bolt 'check': refused, time 3"),
            "tried before": ("tried before", 4, None),
        }
    assert QUEUE == {}
