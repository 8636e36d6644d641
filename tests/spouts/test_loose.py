"""Tuples that belong to no tree: their failure loses them alone; every mix is compared with a plain recount."""

import asyncio
from collections import Counter
from datetime import UTC, datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import statefx
from statefx import (
    BasicBolt,
    BatchBolt,
    Bolt,
    Spout,
    Stateful,
    StatefulAsyncBolt,
    StatefulBolt,
    TopologyBuilder,
    WindowedBolt,
    isTick,
)
from statefx.connectors import MemoryTransactionalSpout
from statefx.errors import AttemptsExhaustedError, BoltError, FailedException
from statefx.testing import TopologyTester
from tests.bolts import FailsOnce, Tally, WithState

FIELDS = "number long, first string, second string"
PASS, RAISE, FAIL, ERROR = "pass", "raise", "fail", "error"
TOLD = Counter()
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def told():
    TOLD.clear()
    return TOLD


class Messages(Spout):
    outputFields = FIELDS

    def __init__(self, messages):
        self.messages = messages

    def open(self, context):
        self.left = list(enumerate(self.messages))

    def nextTuple(self, collector):
        for number, (has_id, *does) in self.left:
            collector.emit((number, *does), id=number if has_id else None)
        self.left = []

    def ack(self, id):
        TOLD["ack", id] += 1

    def fail(self, id):
        TOLD["fail", id] += 1


class Does:
    outputFields = FIELDS

    def __init__(self, field):
        self.field = field

    def initState(self, state):
        self.counts = state

    def take(self, row, collector, **how):
        self.counts.put(row["number"], self.counts.get(row["number"], 0) + 1)
        collector.emit((row["number"], row["first"], row["second"]), **how)
        if row[self.field] == RAISE:
            raise FailedException("raised")
        if row[self.field] == ERROR:
            raise ValueError("an error")


class Basic(Does, StatefulBolt):
    def execute(self, tup, collector):
        self.take(tup, collector)
        if tup[self.field] == FAIL:
            collector.fail(tup, "failed")


class Async(Does, StatefulAsyncBolt):
    async def execute(self, tup, collector):
        await asyncio.sleep(0)
        self.take(tup, collector)
        if tup[self.field] == FAIL:
            collector.fail(tup, "failed")


class Batches(Does, StatefulBolt):
    def executeBatch(self, batch, collector):
        for row in batch.to_pylist():
            self.take(row, collector)


class Anchored(Does, Stateful, Bolt):
    def execute(self, tup, collector):
        self.take(tup, collector, anchors=tup)
        (collector.fail if tup[self.field] == FAIL else collector.ack)(tup)


class Unanchored(Does, Stateful, Bolt):
    def execute(self, tup, collector):
        self.take(tup, collector)
        (collector.fail if tup[self.field] == FAIL else collector.ack)(tup)


def topology(spout, first, second, tasks=1, mode="skip"):
    builder = TopologyBuilder("loose")
    builder.setSpout("messages", spout)
    source = "messages"
    for field, bolt in (("first", first), ("second", second)):
        on_error = "fail" if issubclass(bolt, Bolt) and not issubclass(bolt, BasicBolt) else mode
        builder.setBolt(field, bolt(field), tasks, onError=on_error).fieldsGrouping(source, "number")
        source = field
    builder.setBolt("count", Tally("number")).fieldsGrouping(source, "number")
    return builder.createTopology()


def transactions(tester):
    """Return how the transactions went that there are; where trees may go on, the first one is empty."""
    return [sent.progress for sent in (tester.emit(), tester.emit()) if sent is not None]


def lost(progress):
    return Counter(bolt for one in progress for bolt, of in one.set_aside.items() for _ in range(of.rows))


def recount(messages, first, second, acker):
    """Return what has to come of it: (counts of each bolt), what the spout is told, rows set aside."""
    counts, told, aside = {"first": Counter(), "second": Counter(), "count": Counter()}, Counter(), Counter()
    for number, (has_id, *does) in enumerate(messages):
        is_loose, has_failed, goes_on = not has_id or not acker, False, True
        for name, bolt, act in zip(("first", "second"), (first, second), does, strict=True):
            if not goes_on:
                break
            is_undone = act == ERROR or (act in (RAISE, FAIL) and (is_loose or bolt is Batches))
            is_undone = is_undone or (bolt is Async and act == RAISE)  # nothing of a call that raises is kept
            counts[name][number] += not is_undone
            goes_on = not is_undone
            if act == ERROR or (act != PASS and is_loose):
                aside[name] += 1
            elif act != PASS:
                has_failed = True
            is_loose = is_loose or bolt is Unanchored
        counts["count"][number] += goes_on
        if has_id:
            told["fail" if has_failed else "ack", number] += 1
    return {name: +counter for name, counter in counts.items()}, told, +aside


def acts(bolt, mode):
    """What a bolt may do: those that take batches have no tuple to fail, and by hand none may skip errors."""
    error = [ERROR] if mode == "skip" else []
    if bolt is Batches:
        return [PASS, RAISE, *error]
    return [PASS, RAISE, FAIL, *(error if bolt in (Basic, Async) else [])]


@st.composite
def mixes(draw):
    first, second = (draw(st.sampled_from([Basic, Async, Batches, Anchored, Unanchored])) for _ in range(2))
    acker, mode = draw(st.booleans()), draw(st.sampled_from(["skip", "fail"]))
    # What comes of many messages of which some have ids fails the transaction, as it did: no row of it may fail.
    ids = st.booleans() if first is not Batches or draw(st.booleans()) else st.just(False)
    messages = draw(
        st.lists(st.tuples(ids, st.sampled_from(acts(first, mode)), st.sampled_from(acts(second, mode))), max_size=12)
    )
    if first is Batches and acker and any(has_id for has_id, _, _ in messages):
        messages = [(has_id, one, other if other == ERROR else PASS) for has_id, one, other in messages]
    return messages, first, second, acker, mode


@pytest.mark.slow
@settings(max_examples=30)
@given(mix=mixes(), tasks=st.integers(1, 2))
@example(mix=([(False, FAIL, PASS), (True, FAIL, PASS), (False, PASS, FAIL)], Async, Async, True, "skip"), tasks=1)
def test_mixes_of_trees_and_loose_tuples_equal_the_recount(tmp_path_factory, mix, tasks):
    messages, first, second, acker, mode = mix
    TOLD.clear()
    config = {} if acker else {"topology.acker.executors": 0}
    folder = tmp_path_factory.mktemp("loose")
    with TopologyTester(topology(Messages(messages), first, second, tasks, mode), folder, config) as tester:
        progress = transactions(tester)
        counts = {name: Counter(tester.state(name)) for name in ("first", "second", "count")}
    assert (counts, TOLD, lost(progress)) == recount(messages, first, second, acker)
    assert not any(one.attempt for one in progress)


# ---- single rules


class Words(Spout):
    outputFields = "word string"

    def __init__(self, *words):
        self.words = words

    def open(self, context):
        self.context, self.left = context, list(self.words)

    def nextTuple(self, collector):
        for word in self.left:
            collector.emit((word,), id=word if word[0].isupper() else None)
        self.left = []

    def ack(self, id):
        TOLD["ack", id] += 1

    def fail(self, id):
        TOLD["fail", id, self.context.failure] += 1


def play(place, words, *bolts, config=None, transactions=2):
    """Run words through bolts in a row, and return what the tally counts and what was set aside."""
    builder, source = TopologyBuilder("loose"), "words"
    builder.setSpout("words", Words(*words))
    for number, bolt in enumerate((*bolts, Tally("word"))):
        builder.setBolt(f"bolt-{number}", bolt).globalGrouping(source)
        source = f"bolt-{number}"
    with TopologyTester(builder.createTopology(), place, config) as tester:
        progress = [sent.progress for sent in (tester.emit() for _ in range(transactions)) if sent is not None]
        return tester.state(source), lost(progress)


def test_replayable_rows_beside_a_spout_fail_the_transaction(place):
    class Once(BasicBolt):
        outputFields = "word string"

        def execute(self, tup, collector):
            if tup.word == "replayed" and collector.attempt.attempt < 2:
                raise FailedException("not yet")
            if tup.word == "loose":
                raise FailedException("never")
            collector.emit((tup.word,))

    builder = TopologyBuilder("both")
    builder.setSpout("words", Words("loose", "Tree"))
    builder.setSpout("batches", MemoryTransactionalSpout([[("replayed",)]], "word string"))
    builder.setBolt("once", Once()).globalGrouping("words").globalGrouping("batches")
    builder.setBolt("tally", Tally("word")).globalGrouping("once")
    with TopologyTester(builder.createTopology(), place) as tester:
        sent = tester.emit()
        assert (sent.progress.attempt, lost([sent.progress])) == (2, {"once": 1})
        assert tester.state("tally") == {"replayed": 1, "Tree": 1}


class Gathers(Bolt):
    outputFields = "word string"

    def __init__(self, how):
        self.how = how

    def open(self, context):
        self.held = []

    def execute(self, tup, collector):
        if tup.word.isupper():
            self.held.append(tup)
            return
        for held in self.held:
            collector.emit((held.word,), anchors=held)
            collector.ack(held)
        if self.how == RAISE:
            raise FailedException("raised")
        collector.fail(tup, "failed")


def test_a_raise_takes_back_what_the_call_said_of_others(place):
    """Their rows are undone, so they must not be acked: they are still held."""
    assert play(place, ["A", "B", "c"], Gathers(RAISE)) == ({}, {"bolt-0": 1})
    assert not TOLD


def test_fail_keeps_what_the_call_did_for_other_tuples(place):
    assert play(place, ["A", "B", "c"], Gathers(FAIL)) == ({"A": 1, "B": 1}, {"bolt-0": 1})
    assert TOLD == {("ack", "A"): 1, ("ack", "B"): 1}


def test_a_raise_takes_no_ack_of_another_call_back(place):
    class Holds(Stateful, Bolt):
        outputFields = "word string"

        def initState(self, state):
            self.state = state

        def execute(self, tup, collector):
            if tup.word.isupper():
                self.state["held"] = tup
            else:
                collector.ack(self.state["held"])
            if tup.word == "raise":
                raise FailedException("raised")

    assert play(place, ["A", "pass", "raise"], Holds(), transactions=3) == ({}, {"bolt-0": 1})
    assert TOLD == {("ack", "A"): 1}


def test_without_an_acker_a_held_tuple_needs_nobody(place):
    """As in Storm: a message is acked whatever becomes of it."""
    config = {"topology.acker.executors": 0}
    assert play(place, ["A", "B"], Gathers(FAIL), config=config) == ({}, {})
    assert TOLD == {("ack", "A"): 1, ("ack", "B"): 1}


def test_a_loose_tuple_that_fails_becomes_a_dead_letter(place):
    class Refuses(WithState):
        outputFields = "word string"

        def execute(self, tup, collector):
            self.state.put(tup.word, 1)
            raise FailedException(f"no {tup.word}")

    class Letters(Tally):
        def execute(self, tup, collector):
            self.state.put(tup.row, tup.message.split(",")[0])

    builder = TopologyBuilder("letters")
    builder.setSpout("words", Words("loose", "Tree"))
    builder.setBolt("refuses", Refuses(), onError="deadLetter").globalGrouping("words")
    builder.setBolt("letters", Letters()).globalGrouping("refuses", stream="deadLetter")
    with TopologyTester(builder.createTopology(), place) as tester:
        tester.emit()
        tester.emit()
        [(row, message)] = tester.state("letters").items()
        assert row == '{"word":"loose"}'
        assert message.startswith("FailedException: no loose")
        assert tester.state("refuses") == {"Tree": 1}  # as ever: what a tree has changed before it failed stays
    assert TOLD == {("fail", "Tree", "bolt 'refuses': no Tree"): 1}


# ---- the end of a batch


class AtEnd(BatchBolt):
    """Deals with its tuples in finishBatch, as one that makes its calls to a service together."""

    outputFields = "word string"

    def __init__(self, anchored=True):
        self.anchored = anchored

    def open(self, context):
        self.tuples = []

    def execute(self, tup, collector):
        self.tuples.append(tup)

    def finishBatch(self, collector):
        for tup in self.tuples:
            if tup.word.startswith(("bad", "Bad")):
                collector.fail(tup, f"HTTP 500 for {tup.word}")
            else:
                collector.emit((tup.word,), **({"anchors": tup} if self.anchored else {}))
                collector.ack(tup)
        if self.anchored and len(self.tuples) > 1:
            collector.emit(("all",), anchors=self.tuples)


class Refuses(BasicBolt):
    outputFields = "word string"

    def execute(self, tup, collector):
        if tup.word in ("Refused", "refused", "all"):
            raise FailedException("refused")
        collector.emit((tup.word,))


def test_fail_at_the_end_fails_its_messages_with_the_reason(place):
    counts, aside = play(place, ["Good", "Bad", "good", "bad"], AtEnd(anchored=False))
    assert (counts, aside) == ({"Good": 1, "good": 1}, {"bolt-0": 1})
    assert TOLD == {("ack", "Good"): 1, ("fail", "Bad", "bolt 'bolt-0': HTTP 500 for Bad"): 1}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["Refused"], {("fail", "Refused", "bolt 'bolt-1': refused"): 1}),
        (["Good"], {("ack", "Good"): 1}),
        (["Good", "Other"], {("fail", word, "bolt 'bolt-1': refused"): 1 for word in ("Good", "Other")}),
    ],
)
def test_rows_anchored_at_the_end_are_of_those_trees(place, words, wanted):
    play(place, words, AtEnd(), Refuses())
    assert wanted == TOLD


def test_rows_at_the_end_of_loose_tuples_are_loose(place):
    assert play(place, ["refused", "good"], AtEnd(anchored=False), Refuses()) == ({"good": 1}, {"bolt-1": 1})


class Later(StatefulBolt):
    outputFields = "word string"

    def initState(self, state):
        self.state, self.ended = state, False

    def execute(self, tup, collector):
        if tup.word[0].isupper():
            self.state.put(tup.word, 1)
        else:
            self.timers.set(0, START, processing=True)

    def onTimer(self, key, at, value, collector):
        for word in [word for word, _ in self.state.items()]:
            self.state.delete(word)
            collector.emit((word,))


class LaterAtEnd(Later, BatchBolt):
    def execute(self, tup, collector):
        if tup.word[0].isupper():
            self.state.put(tup.word, 1)
        else:
            self.ended = True

    def finishBatch(self, collector):
        if self.ended:
            self.onTimer(None, None, None, collector)


class LaterAtTick(Later):
    def execute(self, tup, collector):
        if isTick(tup):
            self.onTimer(None, None, None, collector)
        elif tup.word[0].isupper():
            self.state.put(tup.word, 1)


class LaterInWindow(WindowedBolt):
    outputFields = "word string"

    def initWindow(self):
        return []

    def addToWindow(self, value, tup):
        return [*value, tup.word]

    def emitWindow(self, window, value, collector):
        for word in value:
            if word[0].isupper():
                collector.emit((word,))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Later, LaterAtEnd, LaterAtTick, LaterInWindow])
def test_rows_of_state_are_not_lost_with_loose_tuples(kind, place):
    """Their messages were acked when they came: nobody would give them again."""
    fed = [["Kept"]]

    class Fed(Words):
        def nextTuple(self, collector):
            self.left = fed.pop() if fed else []
            super().nextTuple(collector)

    later = kind().withTumblingWindow(statefx.Count(2)) if kind is LaterInWindow else kind()
    builder = TopologyBuilder("later")
    builder.setSpout("words", Fed())
    bolt = builder.setBolt("later", later).globalGrouping("words")
    if kind is LaterAtTick:
        bolt.setTicks(60)
    builder.setBolt("away", FailsOnce("word string")).globalGrouping("later")
    builder.setBolt("tally", Tally("word")).globalGrouping("away")
    with TopologyTester(builder.createTopology(), place) as tester:
        transactions(tester)
        tester.emit()
        assert TOLD == {("ack", "Kept"): 1}
        fed.append(["loose"])
        tester.advance(61)
        tester.emit()
        assert tester.state("tally") == {"Kept": 1}


def test_fail_at_the_end_of_replayable_input_tells_the_reason(place):
    builder = TopologyBuilder("replayed")
    builder.setSpout("words", MemoryTransactionalSpout([[("bad",)]], "word string"))
    builder.setBolt("at-end", AtEnd()).globalGrouping("words")
    config = {"topology.transaction.attempts.max": 1}
    with (
        pytest.raises(AttemptsExhaustedError, match="HTTP 500 for bad"),
        TopologyTester(builder.createTopology(), place, config) as tester,
    ):
        tester.emit()


def test_fail_of_a_tuple_that_was_acked_is_refused(place):
    class Late(BasicBolt):
        outputFields = "word string"

        def open(self, context):
            self.first = None

        def execute(self, tup, collector):
            self.first = self.first or tup
            if self.first is not tup:
                collector.fail(self.first)

    with pytest.raises(BoltError, match=r"which is not the tuple that execute was given.*finishBatch"):
        play(place, ["A", "B"], Late())
