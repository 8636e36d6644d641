"""Rules from spouts that live in their tasks: a rule is acked when every task has it, and no task has it alone."""

import pytest

from statefx import Bolt, FailedException, Stateful, StatefulBolt, TopologyBuilder
from statefx.testing import TopologyTester
from tests.spouts.test_tracked import HEARD, Words, heard

__all__ = ["heard"]

TASKS = 3


class Rules(Words):
    """Tells what becomes of its messages by names that begin with ``rule``."""

    def ack(self, id):
        HEARD.append(("ack rule", id))

    def fail(self, id):
        HEARD.append(("fail rule", id))


class Judge(StatefulBolt):
    outputFields = "word string"

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.rules, self.seen = state.broadcast("rules"), state

    def executeBroadcast(self, tup, collector):
        self.rules.put(tup.word, True)

    def execute(self, tup, collector):
        self.seen.put(tup.word, sorted(self.rules))


class ByHand(Stateful, Bolt):
    """Acks and fails by itself."""

    outputFields = "word string"
    open, initState = Judge.open, Judge.initState

    def executeBroadcast(self, tup, collector):
        self.rules.put(tup.word, True)
        if tup.word == "bad" and self.context.task == 1:
            collector.fail(tup)
        else:
            collector.ack(tup)

    def execute(self, tup, collector):
        self.seen.put(tup.word, sorted(self.rules))
        collector.ack(tup)


class Doubts(Judge):
    """One of its tasks can't take a rule at the first attempt."""

    def executeBroadcast(self, tup, collector):
        super().executeBroadcast(tup, collector)
        if self.context.task == 1 and self.context.attempt == 0:
            raise FailedException("not at the first attempt")


def judged(judge, words, rules):
    builder = TopologyBuilder("judged")
    builder.setSpout("words", Words(*words, at_once=len(words)))
    builder.setSpout("rules", Rules(*rules, at_once=len(rules)))
    builder.setBolt("judge", judge, TASKS).fieldsGrouping("words", "word").broadcastGrouping("rules")
    return builder.createTopology()


def run(tester):
    """Run all; return the words with the rules by which they were judged, and the rules of each task."""
    tester.drain()
    return tester.state("judge"), [sorted(tester.state("judge", task, map="rules")) for task in range(TASKS)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("judge", [Judge(), ByHand()])
def test_a_rule_is_acked_when_all_tasks_have_it(place, judge, seed):
    with TopologyTester(judged(judge, "abc", ["first", "second"]), place, seed=seed) as tester:
        words, rules = run(tester)
    assert rules == [["first", "second"]] * TASKS
    assert sorted(words) == ["a", "b", "c"]
    assert sorted(HEARD) == [("ack", 0), ("ack", 1), ("ack", 2), ("ack rule", 0), ("ack rule", 1)]


@pytest.mark.parametrize("seed", range(4))
def test_a_rule_that_one_task_can_not_take_is_taken_by_none(place, seed):
    with TopologyTester(judged(Doubts(), "abc", ["first"]), place, seed=seed) as tester:
        words, rules = run(tester)
        assert max(each.progress.attempt for each in tester._transactions) == 1, "the transaction was tried again"
    assert (sorted(words), rules) == (["a", "b", "c"], [["first"]] * TASKS)
    assert ("fail rule", 0) not in HEARD


def test_a_rule_that_a_task_fails_by_hand_is_failed_once(place):
    with TopologyTester(judged(ByHand(), "a", ["good", "bad"]), place) as tester:
        _, rules = run(tester)
    assert rules == [["bad", "good"]] * TASKS, "what it has put stays, as in Storm"
    assert sorted(HEARD) == [("ack", 0), ("ack rule", 0), ("fail rule", 1)]
