"""``dedup``: what a source delivers again, after a crash between a commit and its ack, changes state and sinks once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from statefx import BasicBolt, Spout, StatefulBolt, TopologyBuilder
from statefx.connectors import CollectSink
from statefx.errors import CheckpointMismatchError, FailedException, TopologyError
from statefx.testing import TopologyTester
from statefx.testing.crashes import crashes
from tests.sinks.database import SqliteDatabase
from tests.spouts.queues import SqlQueue

WORDS = ["to", "be", "or", "not"] * 3


class Source:
    """A queue: what was handed out and not acked it delivers again when a spout opens."""

    def __init__(self, words: list[str], twice: bool = False) -> None:
        self.words = words
        self.twice = twice
        self.acked: list[int] = []
        self.delivered: Counter[int] = Counter()

    def open(self) -> None:
        self.left = [number for number in range(len(self.words)) if number not in self.acked]
        if self.twice:
            self.left += self.left


SOURCES: dict[str, Source] = {}


class Messages(Spout):
    outputFields = {"default": "word string", "other": "n int"}

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, context: Any) -> None:
        self.source = SOURCES[self.name]
        self.source.open()
        self.out: set[int] = set()

    def nextTuple(self, collector: Any) -> None:
        fresh = [number for number in self.source.left if number not in self.out]
        if fresh:
            number = fresh[0]
            self.source.left.remove(number)
            self.source.delivered[number] += 1
            self.out.add(number)
            collector.emit((self.source.words[number],), id=number)
            collector.emit((number,), stream="other")

    def ack(self, id: Any) -> None:
        self.out.discard(id)
        self.source.acked.append(id)


class Passes(BasicBolt):
    outputFields = "word string, source string"

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit((tup.word, tup._source))


class Count(StatefulBolt):
    def initState(self, state: Any) -> None:
        self.state = state

    def execute(self, tup: Any, collector: Any) -> None:
        assert tup.source == "messages"
        self.state.put(tup.word, self.state.get(tup.word, 0) + 1)


class Others(StatefulBolt):
    def initState(self, state: Any) -> None:
        self.state = state

    def execute(self, tup: Any, collector: Any) -> None:
        self.state.put(tup.n, self.state.get(tup.n, 0) + 1)


def topology(
    source: Source,
    name: str,
    bolt: BasicBolt | None = None,
    dedup: str | None = "10 minutes",
    parallelism: int = 1,
) -> Any:
    SOURCES[name] = source
    builder = TopologyBuilder("dedup")
    builder.setSpout("messages", Messages(name), parallelism, dedup=dedup)
    builder.setBolt("passes", bolt or Passes(), 2).shuffleGrouping("messages")
    builder.setBolt("count", Count(), 2).fieldsGrouping("passes", "word")
    builder.setBolt("others", Others(), 2).fieldsGrouping("messages", "n", stream="other")
    return builder.createTopology()


@pytest.mark.slow
def test_what_comes_again_in_the_same_transaction_or_in_another_counts_once(place):
    source = Source(WORDS, twice=True)
    with TopologyTester(topology(source, "twice"), place) as tester:
        tester.drain()
        assert tester.state("count") == Counter(WORDS)
        source.left += range(len(WORDS))
        tester.drain()
        assert tester.state("count") == Counter(WORDS)
        assert min(source.delivered.values()) >= 3
        # What was emitted without an id is passed on, however often it comes.
        assert tester.state("others") == dict(source.delivered)
    assert sorted(source.acked) == sorted([*range(len(WORDS))] * 3)


@pytest.mark.slow
def test_a_crash_at_any_step_counts_each_message_once(place):
    source = Source(WORDS)
    made = topology(source, "any")

    def life(steps=None):
        with TopologyTester(made, place, steps=steps) as tester:
            tester.drain()
            return tester

    again = 0
    for _point in crashes(place, life, source):
        tester = life()
        assert sorted(set(source.acked)) == list(range(len(WORDS)))
        assert tester.state("count") == Counter(WORDS)
        again += max(source.delivered.values()) > 1
    assert again, "nothing was delivered twice"


@pytest.mark.slow
def test_an_id_is_forgotten_when_its_time_is_over_and_not_before(place):
    source = Source(["to"])
    with TopologyTester(topology(source, "time"), place) as tester:
        tester.drain()
        for secs, count in ((590, 1), (9, 1), (1, 2), (599, 2), (1, 3)):
            tester.advance(secs)
            source.left.append(0)
            tester.drain()
            assert tester.state("count") == {"to": count}, secs
        assert len(tester.state("__dedup-messages")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("later", ["1 minute", "20 minutes"])
def test_the_time_may_change_between_two_starts(place, later):
    source = Source(["to"])
    with TopologyTester(topology(source, "before"), place) as tester:
        tester.advance(5000)
        tester.drain()
    source.acked.clear()
    with TopologyTester(topology(source, "after", dedup=later), place) as tester:
        tester.advance(5000 + 50)
        tester.drain()
        assert tester.state("count") == {"to": 1}
        assert source.acked == [0]
        for secs in (700, 900, 400):
            tester.advance(secs)
            source.left.append(0)
            tester.drain()
        assert tester.state("count") == {"to": 3 if later == "20 minutes" else 4}
        assert len(tester.state("__dedup-messages")) == 1


def test_a_clock_that_goes_back_forgets_nothing(place):
    source = Source(["to"])
    with TopologyTester(topology(source, "back"), place) as tester:
        tester.advance(5000)
        tester.drain()
        tester.advance(-4000)
        source.left.append(0)
        tester.drain()
        assert tester.state("count") == {"to": 1}


def test_what_can_not_change_later_is_named_as_the_user_knows_it(place):
    source = Source(WORDS)
    with TopologyTester(topology(source, "first"), place) as tester:
        tester.drain()
    match = r"ids of messages of spout 'messages' .* setSpout\('messages', ...\) its dedup again"
    with pytest.raises(CheckpointMismatchError, match=match):
        TopologyTester(topology(source, "second", dedup=None), place)


@pytest.mark.slow
def test_a_spout_with_dedup_may_get_other_tasks_and_its_ids_go_with_them(place):
    source, tester = Source(WORDS), None
    for tasks in (1, 3, 2, 4):
        made = topology(source, "tasks", parallelism=tasks)
        tester = TopologyTester(made, place) if tester is None else tester.restart(made)
        tester.drain()
        assert tester.state("count") == Counter(WORDS)
        ids = [set(tester.state("__dedup-messages", task)) for task in range(tasks)]
        assert sum(map(len, ids)) == len(set().union(*ids)) == len(WORDS)
        tester.advance(100)
        source.left += range(len(WORDS))  # all of them come again
        tester.drain()
        assert tester.state("count") == Counter(WORDS)
    tester.advance(1201)  # all are over, also those that were kept in other tasks
    tester.drain()
    source.left.append(0)
    tester.drain()
    assert tester.state("count")[WORDS[0]] == Counter(WORDS)[WORDS[0]] + 1
    assert sum(len(tester.state("__dedup-messages", task)) for task in range(4)) == 1
    assert min(source.delivered.values()) >= 4
    tester.close()


class RefusesOnce(Passes):
    def execute(self, tup: Any, collector: Any) -> None:
        if collector.attempt.attempt == 0:
            raise FailedException("refused")
        super().execute(tup, collector)


def test_a_message_that_a_bolt_fails_has_its_transaction_tried_again(place):
    source = Source(WORDS)
    with TopologyTester(topology(source, "fails", RefusesOnce()), place) as tester:
        tester.drain()
        assert tester.state("count") == Counter(WORDS)
    assert sorted(source.acked) == list(range(len(WORDS)))


def test_mistakes(place):
    builder = TopologyBuilder("mistakes")
    for given in ("10", "ten minutes", "0 minutes", "10 lightyears", 600):
        with pytest.raises(TopologyError, match="'a': dedup is a time, such as '10 minutes'"):
            builder.setSpout("a", Messages("none"), dedup=given)
    queue = SqlQueue(SqliteDatabase(place))
    with pytest.raises(TopologyError, match=r"acknowledged in the transaction.*leave out dedup"):
        builder.setSpout("a", queue.spout(), dedup="1 day")
    SOURCES["direct"] = Source(WORDS)
    builder.setSpout("b", Messages("direct"), dedup="1 day")
    builder.setBolt("c", Passes()).directGrouping("b")
    builder.setSink("out", CollectSink()).shuffleGrouping("c")
    with pytest.raises(TopologyError, match="'c' reads spout 'b' by directGrouping"):
        TopologyTester(builder.createTopology(), place / "ck")
