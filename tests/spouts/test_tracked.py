"""Spouts that live in their tasks: what is acked, failed and emitted again by Storm's rules, and why it failed."""

import logging
import random
from collections import Counter, defaultdict
from zlib import crc32

import pytest

from statefx import BasicBolt, BatchBolt, Bolt, Spout, Stateful, StatefulBolt, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout, Message, QueueSpout
from statefx.errors import BoltError, CodecError, FailedException, SchemaError
from statefx.protocol.reports import OTHERS, REASONS_MAX, REASONS_TOLD_MAX, TreeReport, root_of
from statefx.testing import Limits, TopologyTester
from tests.bolts import Tally, WithState
from tests.metrics.reading import value, values
from tests.testing.living import LivingTester

HEARD = []
"""What spouts were told, as (what, id); cleared by `heard`."""


@pytest.fixture(autouse=True)
def heard():
    HEARD.clear()
    return HEARD


class Words(Spout):
    outputFields = "word string"

    def __init__(self, *words, at_once=1):
        self.words, self.at_once = words, at_once

    def open(self, context):
        self.left = list(enumerate(self.words))

    def nextTuple(self, collector):
        for id, word in self.left[: self.at_once]:
            collector.emit((word,), id=id)
        del self.left[: self.at_once]

    def ack(self, id):
        HEARD.append(("ack", id))

    def fail(self, id):
        HEARD.append(("fail", id))


class Twice(BasicBolt):
    outputFields = "word string"

    def execute(self, tup, collector):
        collector.emit((tup.word,))
        collector.emit((tup.word,))


class Refuses(BasicBolt):
    outputFields = "word string"

    def execute(self, tup, collector):
        if tup.word.startswith("bad"):
            raise FailedException(f"{tup.word} is refused")
        collector.emit((tup.word,))


def chain(spout, *bolts, parallelism=2):
    builder, source = TopologyBuilder("tracked"), "words"
    builder.setSpout("words", spout)
    for number, bolt in enumerate(bolts):
        builder.setBolt(f"bolt-{number}", bolt, parallelism).fieldsGrouping(source, "word")
        source = f"bolt-{number}"
    builder.setBolt("count", Tally("word"), 2).fieldsGrouping(source, "word")
    return builder.createTopology()


def test_what_is_processed_is_acked_once_it_is_committed(place):
    when = []

    class Watching(Words):
        def ack(self, id):
            when.append(tester.state("count"))
            super().ack(id)

    with TopologyTester(chain(Watching("a", "b", "a"), Twice()), place) as tester:
        tester.emit()
        assert tester.state("count") == {"a": 4, "b": 2}
    assert HEARD == [("ack", 0), ("ack", 1), ("ack", 2)]
    assert when == [{"a": 4, "b": 2}] * 3


def test_what_a_tree_has_changed_before_it_failed_stays(place):
    """As in Storm: a message that is delivered again counts again in what had counted it before."""
    builder = TopologyBuilder("tracked")
    builder.setSpout("words", Words("bad", "a"))
    builder.setBolt("count", Tally("word")).globalGrouping("words")
    builder.setBolt("refuses", Refuses()).globalGrouping("words")
    builder.setBolt("end", Tally("word")).globalGrouping("refuses")
    with TopologyTester(builder.createTopology(), place) as tester:
        tester.emit()
        assert tester.state("count") == {"bad": 1, "a": 1}
    assert HEARD == [("fail", 0), ("ack", 1)]


def test_what_nobody_processes_is_acked(place):
    class Other(Words):
        outputFields = {"default": "word string", "unread": "word string"}

        def nextTuple(self, collector):
            if self.left:
                id, word = self.left.pop(0)
                collector.emit((word,), id=id, stream="unread" if id % 2 else "default")

    with TopologyTester(chain(Other("a", "b", "c")), place) as tester:
        tester.emit()
        assert tester.state("count") == {"a": 1, "c": 1}
    assert HEARD == [("ack", 0), ("ack", 1), ("ack", 2)]


def test_an_attempt_that_is_rolled_back_emits_the_same_and_the_spout_is_not_asked(place):
    asked, seen = [], defaultdict(list)

    class Asked(Words):
        def nextTuple(self, collector):
            asked.append(len(self.left))
            super().nextTuple(collector)

    class Notes(BatchBolt):
        outputFields = "word string"

        def execute(self, tup, collector):
            seen[collector.attempt.attempt].append(tup.word)
            collector.emit((tup.word,))

        def finishBatch(self, collector):
            if collector.attempt.attempt < 2:
                raise FailedException("twice")

    with TopologyTester(chain(Asked("a", "b"), Notes(), parallelism=1), place) as tester:
        tester.emit()
        assert tester.state("count") == {"a": 1, "b": 1}
    assert seen == {0: ["a", "b"], 1: ["a", "b"], 2: ["a", "b"]}
    assert asked[:3] == [2, 1, 0]
    assert HEARD == [("ack", 0), ("ack", 1)]


def test_an_id_comes_back_as_it_was_given(place):
    ids = [1, "1", 1.0, True, b"1", ("a", (2, None))]

    class Ids(Words):
        def nextTuple(self, collector):
            while self.left:
                self.left.pop()
                collector.emit(("w",), id=ids[len(self.left)])

    with TopologyTester(chain(Ids(*"abcdef")), place) as tester:
        tester.emit()
    assert sorted(map(repr, ids)) == sorted(repr(id) for _, id in HEARD)


def test_no_more_than_pending_are_out(place):
    out = []

    class Watching(Words):
        def nextTuple(self, collector):
            out.append(len(self.words) - len(self.left) - len(HEARD))
            super().nextTuple(collector)

    with TopologyTester(chain(Watching(*"abcdefg")), place, {"topology.max.spout.pending": 3}) as tester:
        tester.drain()
        assert sum(tester.state("count").values()) == 7
        assert tester.txid >= 3
    assert max(out) == 2  # asked with two out, it emits the third
    assert sorted(HEARD) == [("ack", id) for id in range(7)]


@pytest.mark.slow
def test_what_the_end_of_a_batch_emits_belongs_to_no_message(place):
    """It comes of many: if it fails, the transaction fails."""

    class Sums(BatchBolt):
        outputFields = "word string"

        def open(self, context):
            self.words = []

        def execute(self, tup, collector):
            self.words.append(tup.word)

        def finishBatch(self, collector):
            collector.emit(("".join(self.words),))

    class Once(Refuses):
        def execute(self, tup, collector):
            if collector.attempt.attempt == 0:
                raise FailedException("once")
            collector.emit((tup.word,))

    with TopologyTester(chain(Words("a", "b"), Sums(), Once(), parallelism=1), place) as tester:
        assert tester.emit().progress.attempt == 1
        assert tester.state("count") == {"ab": 1}
    assert HEARD == [("ack", 0), ("ack", 1)]


def test_what_is_added_up_before_it_is_sent_belongs_to_no_message(place):
    class Adds(WithState):
        combinedFields = "word string, count long"

        def initCombine(self, tup):
            return (tup.word, 1)

        def combine(self, a, b):
            return (a[0], a[1] + b[1])

        def execute(self, tup, collector):
            self.state.put(tup.word, self.state.get(tup.word, 0) + tup.count)

    builder = TopologyBuilder("tracked")
    builder.setSpout("words", Words(*"aabab", at_once=5))
    builder.setBolt("adds", Adds(), 2).fieldsGrouping("words", "word")
    with TopologyTester(builder.createTopology(), place) as tester:
        tester.emit()
        assert tester.state("adds") == {"a": 3, "b": 2}
    assert [("ack", id) for id in range(5)] == HEARD


# ---- at random, against Storm's rules

SOURCE = {}
"""The messages of each task that were not acked, with how often each was delivered."""
DELIVERED = Counter()
TOLD = defaultdict(list)
"""By delivery: what the spout was told."""


class Queue(Spout):
    """Hands out what its source has; what fails, and what was handed out by an object that is gone, comes again."""

    outputFields = {
        "default": "task long, message long, delivery long",
        "side": "task long, message long, delivery long",
    }

    def open(self, context):
        self.task, self.chance = context.task, random.Random(context.task)
        self.left = list(SOURCE[self.task])

    def nextTuple(self, collector):
        for _ in range(self.chance.randrange(3)):
            if self.left:
                message = self.left.pop(0)
                DELIVERED[self.task, message] += 1
                delivery = DELIVERED[self.task, message]
                stream = "side" if (message + delivery) % 5 == 0 else "default"
                collector.emit((self.task, message, delivery), id=(message, delivery), stream=stream)

    def ack(self, id):
        TOLD[self.task, *id].append("ack")
        SOURCE[self.task].discard(id[0])

    def fail(self, id):
        TOLD[self.task, *id].append("fail")
        self.left.append(id[0])


def draw(*of):
    return crc32(repr(of).encode())


def fails(bolt, tup):
    """Tell whether a bolt refuses a delivery, in each of its attempts the same."""
    return draw(bolt, tup.task, tup.message, tup.delivery) % 9 == 0


class Grows(BasicBolt):
    outputFields = "task long, message long, delivery long, leaf long"

    def __init__(self, name):
        self.name = name

    def execute(self, tup, collector):
        leaves = draw(self.name, tup.message) % 3
        for leaf in range(leaves):
            collector.emit((tup.task, tup.message, tup.delivery, leaf))
        if fails(self.name, tup):
            raise FailedException(self.name)


class Joins(Bolt):
    outputFields = "task long, message long, delivery long, leaf long"

    def execute(self, tup, collector):
        if fails("joins", tup):
            collector.fail(tup, "joins")
            return
        collector.emit((tup.task, tup.message, tup.delivery, tup.leaf), anchors=[tup])
        collector.ack(tup)


def trees():
    builder = TopologyBuilder("trees")
    builder.setSpout("queue", Queue(), 2)
    builder.setBolt("grows", Grows("grows"), 2).fieldsGrouping("queue", "message").shuffleGrouping(
        "queue", stream="side"
    )
    builder.setBolt("again", Grows("again"), 3).fieldsGrouping("queue", "task")
    builder.setBolt("joins", Joins(), 2).fieldsGrouping("grows", "message")
    builder.setBolt("tally", Tally("task", "message", "delivery", "leaf"), 2).fieldsGrouping("joins", "message", "leaf")
    builder.setBolt("other", Tally("task", "message", "delivery", "leaf"), 1).globalGrouping("again")
    return builder.createTopology()


class _Delivered:
    def __init__(self, task, message, delivery):
        self.task, self.message, self.delivery = task, message, delivery


def expected(task, message, delivery):
    """Return what Storm tells of a delivery that is processed."""
    tup = _Delivered(task, message, delivery)
    side = (message + delivery) % 5 == 0
    failed = fails("grows", tup) or (not side and fails("again", tup))
    failed = failed or (draw("grows", message) % 3 > 0 and fails("joins", tup))
    return "fail" if failed else "ack"


def live(place, seed, breaks):
    chance = random.Random(seed)
    SOURCE.clear()
    DELIVERED.clear()
    TOLD.clear()
    SOURCE.update({task: set(range(chance.randrange(1, 4 if breaks else 12))) for task in range(2)})
    config = {
        "topology.transaction.attempts.max": 1000,
        "topology.state.provider": chance.choice(["memory", "rocksdb"]),
    }
    if chance.random() < 0.5:
        config["topology.max.spout.pending"] = chance.randrange(1, 5)
    wanted = {(task, message) for task, messages in SOURCE.items() for message in messages}
    with LivingTester(trees(), place, config, seed=seed, breaks=breaks, limits=Limits(pauses=10_000)) as tester:
        for _ in range(200):
            if not any(SOURCE.values()):
                break
            tester.drain()
        assert not any(SOURCE.values()), "messages that were never acked"
        tester.wake()
        tallies = [tester.state("tally", task) for task in range(2)]
        tallies.append(tester.state("other", 0))
    assert {(task, message) for (task, message, _), said in TOLD.items() if "ack" in said} == wanted
    for delivery, said in TOLD.items():
        assert said == [expected(*delivery)], delivery
    counted = Counter()
    for tally in tallies[:2]:
        for (task, message, delivery, _), count in tally.items():
            assert count == 1
            counted[task, message, delivery] += 1
    for (task, message, delivery), said in TOLD.items():
        leaves = draw("grows", message) % 3
        whole = leaves if said == ["ack"] or not fails("joins", _Delivered(task, message, delivery)) else 0
        assert counted[task, message, delivery] == whole
    return tester.runs


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_trees(place, seed):
    live(place, seed, breaks=False)


@pytest.mark.slow
@pytest.mark.parametrize("lives", [1, pytest.param(500, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_random_trees_with_chains_lost_and_frozen(place, lives):
    runs = sum(live(place / str(seed), seed, breaks=True) for seed in range(lives))
    assert runs > 1.5 * lives  # chains were lost


# ---- mistakes


def refused(place, spout, *bolts, config=None):
    with TopologyTester(chain(spout, *bolts, parallelism=1), place, config) as tester:
        tester.drain()


@pytest.mark.parametrize("method", ["open", "activate", "nextTuple", "ack", "fail"])
def test_a_spout_that_raises_ends_the_query_and_is_named(place, method):
    class Raises(Words):
        pass

    def raises(self, *arguments):
        raise ZeroDivisionError(method)

    setattr(Raises, method, raises)
    topology = chain(Raises("a", "bad"), Refuses(), parallelism=1)
    with pytest.raises(BoltError, match=rf"words.*\b{method}\b") as raised, TopologyTester(topology, place) as tester:
        tester.drain()
    assert raised.value.data["hook"] == method


def test_a_failed_exception_of_a_spout_ends_the_query_at_once(place):
    """No transaction could be tried again because of it: it is raised between two of them."""

    class Fails(Words):
        def nextTuple(self, collector):
            raise FailedException("not now")

    with pytest.raises(BoltError, match=r"words.*nextTuple.*not now"):
        refused(place, Fails("a"))


def test_an_id_that_is_pending_is_refused(place):
    class Same(Words):
        def nextTuple(self, collector):
            collector.emit(("a",), id=7)

    with pytest.raises(BoltError, match=r"id 7, and .* neither acked nor failed"):
        refused(place, Same())


def test_an_id_that_no_state_could_hold_is_refused(place):
    class Odd(Words):
        def nextTuple(self, collector):
            collector.emit(("a",), id=[1])

    with pytest.raises((BoltError, CodecError), match="list"):
        refused(place, Odd())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("emit", "match"),
    [
        (lambda collector: collector.emit(("a", "b"), id=1), "2 values"),
        (lambda collector: collector.emit(("a",), stream="other"), "does not declare|do not declare"),
        (lambda collector: collector.emit(wrod="a"), "nearest is 'word'"),
        (lambda collector: collector.emit((5,)), "string"),
    ],
)
def test_rows_that_do_not_fit_are_refused(place, emit, match):
    class Misfit(Words):
        def nextTuple(self, collector):
            emit(collector)

    with pytest.raises((BoltError, SchemaError), match=match):
        refused(place, Misfit())


@pytest.mark.slow
def test_anchoring_to_what_was_acked_is_refused(place):
    class Late(Bolt):
        outputFields = "word string"

        def execute(self, tup, collector):
            collector.ack(tup)
            collector.emit((tup.word,), anchors=tup)

    with pytest.raises(BoltError, match="acked or failed: emit first"):
        refused(place, Words("a"), Late())


def test_a_near_miss_of_a_methods_name_is_refused():
    with pytest.raises(TypeError, match="nextTuple"):
        type("Near", (Spout,), {"outputFields": "a long", "next_tuple": lambda self, collector: None})


def test_it_takes_no_other_methods_arguments():
    with pytest.raises(TypeError, match="def ack"):
        type(
            "Odd",
            (Spout,),
            {"outputFields": "a long", "nextTuple": lambda self, collector: None, "ack": lambda self: 0},
        )


def test_beside_a_spout_of_transactions(place):
    """Both emit in the same transactions."""
    builder = TopologyBuilder("both")
    builder.setSpout("words", Words("a", "b"))
    builder.setSpout("batches", MemoryTransactionalSpout([[("a",), ("c",)]], "word string"))
    builder.setBolt("count", Tally("word")).globalGrouping("words").globalGrouping("batches")
    with TopologyTester(builder.createTopology(), place) as tester:
        tester.drain()
        assert tester.state("count") == {"a": 2, "b": 1, "c": 1}
    assert sorted(HEARD) == [("ack", 0), ("ack", 1)]


@pytest.mark.slow
def test_a_spout_that_emits_without_end_is_refused(place):
    class Endless(Words):
        def nextTuple(self, collector):
            while True:
                collector.emit(("a",))

    with pytest.raises(BoltError, match="nextTuple does not return: let it emit a few"):
        refused(place, Endless())


# ---- Rules from spouts that live in their tasks: a rule is acked when every task has it, and no task has it alone.


__all__ = ["heard"]

TASKS = 3


class Rules(Words):
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


@pytest.mark.slow
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


# ---- Why a message has failed: what the spout finds in its context, what the log says, what a dead letter carries.


@pytest.fixture(autouse=True)
def cleared():
    HEARD.clear()


class ReasonWords(Spout):
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


def reason_heard(place, spout, bolt, **config):
    with TopologyTester(behind(spout, bolt), place, config) as tester:
        tester.drain()
    return {id: (what, why) for what, id, why in HEARD}


def test_fail_finds_the_bolt_and_its_reason_and_the_next_call_none(place, caplog):
    with caplog.at_level(logging.WARNING):
        assert reason_heard(place, ReasonWords("bad", "a", "worse", "bad too"), Refuses()) == {
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

    assert reason_heard(place, ReasonWords("a"), Fails()) == {"a": ("fail", f"bolt 'check': {why}")}


def test_a_task_gives_a_hundred_reasons_and_then_others(place):
    words = [f"bad {number}" for number in range(REASONS_MAX + 2)]
    found = reason_heard(place, ReasonWords(*words), Refuses())
    own = [f"bolt 'check': {word} is refused" for word in words[:REASONS_MAX]]
    assert [found[word] for word in words] == [("fail", why) for why in [*own, *[f"bolt 'check': {OTHERS}"] * 2]]


def test_chains_are_told_the_reasons_of_their_own_roots_up_to_a_bound():
    roots = [root_of(7, number % 2, number) for number in range(4 * REASONS_TOLD_MAX)]
    failed = {f"why {number}": (root,) for number, root in enumerate(roots)}
    [part] = (each.failed for each in TreeReport(failed).parts([{1: "words/1"}], {}))
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

    assert reason_heard(place, ReasonWords("a"), Once()) == {"a": ("ack", "")}
    assert any(
        each.startswith("reasons: transaction 1, attempt 0 was rolled back: ") and "once" in each
        for each in caplog.messages
    )


def test_a_time_out_is_a_reason(place):
    class Forgets(Bolt):
        def execute(self, tup, collector):
            pass

    config = {"topology.message.timeout.secs": 10}
    with TopologyTester(behind(ReasonWords("a"), Forgets()), place, config) as tester:
        tester.drain()
        tester.advance(11)
        tester.drain()
    assert HEARD == [("fail", "a", "it was not acked within 10 s")]


# ---- dead letters

QUEUE = {}


class Jobs(QueueSpout):
    def receive(self, limit):
        return [Message(text, (text,), tries) for text, tries in QUEUE.items()]

    def finish(self, ids):
        for id in ids:
            del QUEUE[id]


class Dead(WithState):
    seen = set()

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
        assert values(tester.metrics, "statefx_messages_total", "outcome")["redelivered"] == 4 + 2
        assert value(tester.metrics, "statefx_dead_letters_total", component="jobs") == 2 + 2
    assert QUEUE == {}
