"""Ticks: which tasks get one, in which transaction, and what they may do with it."""

import pickle
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from statefx import (
    BasicBolt,
    BatchBolt,
    Bolt,
    IntervalJoin,
    JoinBolt,
    OpaquePartitionedTransactionalSpout,
    ReplayDeadLetters,
    Spout,
    Stateful,
    TopologyBuilder,
    isTick,
)
from statefx.connectors import CollectSink, MemoryTransactionalSpout
from statefx.coordinator.spouts import SpoutTrigger
from statefx.errors import ConfigError, FailedException, TopologyError
from statefx.testing import Crash, TopologyTester, rows
from tests.bolts import Tally, WithState
from tests.testing.living import LivingTester

TICK = "tick"


class Shows(BasicBolt):
    outputFields = "what string, task int"

    def open(self, context):
        self.task = context.task

    def execute(self, tup, collector):
        collector.emit((TICK if isTick(tup) else tup.word, self.task))


class Flushes(WithState):
    outputFields = "words string"

    def execute(self, tup, collector):
        if isTick(tup):
            collector.emit((" ".join(self.state.get("words", [])),))
            self.state.put("words", [])
        else:
            self.state.put("words", [*self.state.get("words", []), tup.word])


def wired(bolt, secs=5, *, spout=None, tasks=1, reader=None):
    builder = TopologyBuilder("ticking")
    if spout is None:
        builder.setStream("words", rows("word string"))
    else:
        builder.setSpout("words", spout)
    declarer = builder.setBolt("bolt", bolt, tasks).shuffleGrouping("words")
    if secs is not None:
        declarer.setTicks(secs)
    if reader is not None:
        builder.setBolt("reader", reader).shuffleGrouping("bolt")
    return builder.createTopology()


def words(*given):
    return {"words": [(word,) for word in given]}


def spout(*transactions):
    return MemoryTransactionalSpout([[(word,) for word in transactions]], "word string", takePerBatch=1)


class Idle(Spout):
    outputFields = "word string"

    def nextTuple(self, collector):
        pass

    def ack(self, id):
        pass

    def fail(self, id):
        pass


# ---- which transaction


def test_each_task_gets_one_behind_its_input_when_a_period_is_over(tmp_path):
    with TopologyTester(wired(Shows(), tasks=2), tmp_path) as tester:
        assert tester.send(words("a")).emitted("bolt") == [("a", 0)]
        tester.advance(4.9)
        assert tester.send(words("b")).emitted("bolt") == [("b", 0)]
        tester.advance(0.2)
        assert tester.send(words("c", "d")).emitted("bolt") == [("c", 0), (TICK, 0), ("d", 1), (TICK, 1)]
        assert tester.send(words("e")).emitted("bolt") == [("e", 0)]


@pytest.mark.slow
def test_when_several_periods_have_passed_there_is_one(tmp_path):
    with TopologyTester(wired(Shows()), tmp_path) as tester:
        tester.advance(23)
        assert tester.send({}).emitted("bolt") == [(TICK, 0)]
        assert tester.send({}).emitted("bolt") == []
        tester.advance(2)  # 25: they fall on multiples of the period, however late the last one was
        assert tester.send({}).emitted("bolt") == [(TICK, 0)]


@pytest.mark.slow
def test_a_period_of_less_than_a_second(tmp_path):
    with TopologyTester(wired(Shows(), 0.25), tmp_path) as tester:
        found = []
        for _ in range(10):
            tester.advance(0.125)
            found += tester.send({}).emitted("bolt")
    assert found == [(TICK, 0)] * 5


def test_a_clock_that_is_set_back_holds_up_no_tick(tmp_path):
    with TopologyTester(wired(Shows()), tmp_path) as tester:
        tester.send({})
        tester._began -= 3600
        assert tester.send({}).emitted("bolt") == [(TICK, 0)]
        assert tester.send({}).emitted("bolt") == []
        tester.advance(5)
        assert tester.send({}).emitted("bolt") == [(TICK, 0)]


def test_bolts_have_periods_of_their_own_and_what_is_not_asked_gets_none(tmp_path):
    builder = TopologyBuilder("ticking")
    builder.setStream("words", rows("word string"))
    for secs in (2, 3, None):
        declarer = builder.setBolt(f"each-{secs}", Shows()).shuffleGrouping("words")
        if secs:
            declarer.setTicks(secs)
    found = {"each-2": [], "each-3": [], "each-None": []}
    with TopologyTester(builder.createTopology(), tmp_path) as tester:
        for second in range(1, 7):
            tester.advance(1)
            sent = tester.send({})
            for name, seconds in found.items():
                seconds += [second for what in sent.emitted(name) if what == (TICK, 0)]
    assert found == {"each-2": [2, 4, 6], "each-3": [3, 6], "each-None": []}


@pytest.mark.slow
def test_the_setting_gives_them_to_all_bolts_of_the_users_that_have_no_period_of_their_own(tmp_path):
    class Kept(Bolt):
        def execute(self, tup, collector):
            collector.ack(tup)

    class Ids(Idle):
        def open(self, context):
            self.left = ["a"]

        def nextTuple(self, collector):
            if self.left:
                collector.emit((self.left[0],), id=self.left.pop())

    builder = TopologyBuilder("ticking")
    builder.setSpout("words", Ids(), dedup="1 minute")  # with a dedup and an acker behind it, which are statefx's own
    builder.setBolt("shows", Shows()).shuffleGrouping("words")
    builder.setBolt("seldom", Shows()).shuffleGrouping("words").setTicks(60)
    builder.setBolt("kept", Kept()).shuffleGrouping("words")
    sink = CollectSink()
    builder.setSink("out", sink).shuffleGrouping("shows")
    with TopologyTester(builder.createTopology(), tmp_path, {"topology.tick.tuple.freq.secs": 5}) as tester:
        tester.emit()
        tester.advance(6)
        sent = tester.emit()
        assert sent.emitted("shows") == [(TICK, 0)]
        assert sent.emitted("seldom") == []


AT = datetime(2026, 1, 1, tzinfo=UTC)


def replaying(builder):
    builder.setStream("letters", rows("row string, bolt string, at timestamp"), timestamp="at")
    builder.setBolt("made", ReplayDeadLetters("word string", bolt="words")).shuffleGrouping("letters")
    return {"letters": [('{"word":"a"}', "words", AT)]}


def interval_join(builder):
    return joining(builder, IntervalJoin("left", "right", "word", ("0 seconds", "1 hour"), "left.word"))


def join_bolt(builder):
    join = JoinBolt("left", "word").join("right", "word", "left").select("left.word")
    return joining(builder, join.withTumblingWindow("1 second"))


def joining(builder, bolt):
    declarer, sides = builder.setBolt("made", bolt), ("left", "right")
    for side in sides:
        builder.setStream(side, rows("word string, at timestamp"), timestamp="at")
        declarer.fieldsGrouping(side, "word")
    return {side: [("a", AT)] for side in sides}


@pytest.mark.parametrize("build", [replaying, interval_join, join_bolt])
def test_the_setting_changes_nothing_for_a_bolt_that_is_ready_made(build, tmp_path):
    builder = TopologyBuilder("ticking")
    given = build(builder)
    builder.setBolt("seen", Tally("word")).globalGrouping("made").setTicks(3600)
    with TopologyTester(builder.createTopology(), tmp_path, {"topology.tick.tuple.freq.secs": 5}) as tester:
        for sent in (given, {}, {}):
            tester.advance(6)
            tester.send(sent)
        tester.closeTime()
        assert tester.state("seen") == {"a": 1}


# ---- exactly once


def test_an_attempt_that_is_rolled_back_gives_its_tick_again_and_counts_once(tmp_path):
    fails = [True]

    class Once(Flushes):
        def prePrepare(self, txid):
            if txid == 2 and fails:
                fails.pop()
                raise FailedException("once")

    with TopologyTester(wired(Once()), tmp_path) as tester:
        tester.send(words("a"))
        tester.advance(5)
        assert tester.send(words("b")).emitted("bolt") == [("a b",)]
        assert tester.pauses  # it was tried twice
        assert tester.send(words("c")).emitted("bolt") == []
        assert tester.state("bolt") == {"words": ["c"]}


@pytest.mark.slow
def test_a_restart_gives_no_tick_again_and_loses_none(tmp_path):
    tester = TopologyTester(wired(Flushes()), tmp_path)
    tester.send(words("a"))
    tester.advance(6)
    assert tester.send(words("b")).emitted("bolt") == [("a b",)]
    tester = tester.restart()
    tester.advance(3)  # 9: in the same period
    assert tester.send(words("c")).emitted("bolt") == []
    tester = tester.restart()
    tester.advance(2)  # 11: it ended while no driver was there
    assert tester.restart().send({}).emitted("bolt") == [("c",)]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before COMMITTING(2, 0)", "after COMMITTING(2, 0)"])
def test_a_driver_that_dies_in_the_transaction_of_a_tick(tmp_path, moment):
    """What is rolled back has had no tick; what is rolled forward has had its own."""

    def dies():
        raise Crash(moment)

    class Counts(Flushes):
        def execute(self, tup, collector):
            self.state.put("ticks", self.state.get("ticks", 0) + 1)

        def preCommit(self, txid):
            pass

    tester = TopologyTester(wired(Counts()), tmp_path)
    tester.send({})
    tester.advance(6)
    tester.when(moment, dies)
    with pytest.raises(Crash):
        tester.send({})
    with tester.restart() as successor:
        successor.send({})
        assert successor.state("bolt") == {"ticks": 1}


@pytest.mark.slow
def test_a_changed_period_is_the_same_topology(tmp_path):
    tester = TopologyTester(wired(Flushes(), 5), tmp_path)
    tester.send(words("a"))
    with tester.restart(wired(Flushes(), 60)) as slower:
        slower.advance(59)
        assert slower.send({}).emitted("bolt") == []
        slower.advance(1)
        assert slower.send({}).emitted("bolt") == [("a",)]
    with slower.restart(wired(Flushes(), None)) as without:
        without.advance(100)
        assert without.send({}).emitted("bolt") == []


# ---- what a bolt is given, and may do with it


def test_what_a_tick_looks_like(tmp_path):
    found = []

    class Looks(BasicBolt):
        def execute(self, tup, collector):
            found.append((tup._source, tup._stream, tup.rate_secs, tup["rate_secs"], tuple(tup), isTick(tup)))

    with TopologyTester(wired(Looks(), 2.5), tmp_path) as tester:
        tester.advance(3)
        tester.send({})
    assert found == [("__system", "__tick", 2.5, 2.5, (2.5,), True)]


def test_a_bolt_that_takes_batches_gets_a_batch_of_one_row(tmp_path):
    found = []

    class Batches(BasicBolt):
        def executeBatch(self, batch, collector):
            found.append((isTick(batch), dict(batch.schema.metadata), batch.to_pylist()))

    with TopologyTester(wired(Batches()), tmp_path) as tester:
        tester.advance(5)
        tester.send(words("a", "b"))
    assert found == [
        (False, {b"source": b"words", b"stream": b"default"}, [{"word": "a"}, {"word": "b"}]),
        (True, {b"source": b"__system", b"stream": b"__tick"}, [{"rate_secs": 5.0}]),
    ]


@pytest.mark.parametrize("thing", [None, "tick", (5,), pa.table({"rate_secs": [5.0]}), pa.record_batch({"a": [1]})])
def test_what_is_no_tick(thing):
    assert not isTick(thing)


def test_it_comes_before_finish_batch(tmp_path):
    class Both(BatchBolt):
        outputFields = "what string"

        def execute(self, tup, collector):
            collector.emit((TICK if isTick(tup) else tup.word,))

        def finishBatch(self, collector):
            collector.emit(("end",))

    with TopologyTester(wired(Both()), tmp_path) as tester:
        tester.advance(5)
        assert tester.send(words("a")).emitted("bolt") == [("a",), (TICK,), ("end",)]


def test_who_reads_from_the_bolt_gets_what_it_emits_for_a_tick_in_the_same_transaction(tmp_path):
    class Words(WithState):
        def execute(self, tup, collector):
            self.state.put(tup.words, True)

    with TopologyTester(wired(Flushes(), reader=Words()), tmp_path) as tester:
        tester.send(words("a"))
        tester.advance(5)
        tester.send(words("b"))
        assert tester.state("reader") == {"a b": True}


def test_one_that_fails_its_tick_fails_the_transaction_and_one_that_raises_ends_it(tmp_path):
    class Fails(Shows):
        def execute(self, tup, collector):
            if isTick(tup):
                if collector.attempt.attempt == 0:
                    raise FailedException("not now")
                raise ValueError("a bolt that knows no ticks")
            super().execute(tup, collector)

    with TopologyTester(wired(Fails()), tmp_path) as tester:
        tester.advance(5)
        with pytest.raises(Exception, match=r"bolt.*execute.*a bolt that knows no ticks"):
            tester.send(words("a"))


def test_a_bolt_that_knows_no_ticks_is_told_what_it_got(tmp_path):
    class Words(BasicBolt):
        def execute(self, tup, collector):
            collector.emit((tup.word,))

    with TopologyTester(wired(Words()), tmp_path) as tester:
        tester.advance(5)
        with pytest.raises(Exception, match="'Tick' object has no attribute 'word'"):
            tester.send({})


def test_a_tick_can_be_pickled_and_kept_in_state(tmp_path):
    class Keeps(WithState):
        def execute(self, tup, collector):
            self.state.put("tick", tup)
            assert tuple(pickle.loads(pickle.dumps(tup))) == tuple(tup)

    with TopologyTester(wired(Keeps()), tmp_path) as tester:
        tester.advance(5)
        tester.send({})
        assert tester.state("bolt")["tick"].rate_secs == 5


def test_a_combiner_sees_none_and_its_bolt_does(tmp_path):
    combined = []

    class Sum(Stateful, BasicBolt):
        outputFields = "total long"
        combinedFields = "word string, count long"

        def initState(self, state):
            self.state = state

        def initCombine(self, tup):
            combined.append(isTick(tup))
            return tup.word, 1

        def combine(self, a, b):
            return a.word, a["count"] + b["count"]

        def execute(self, tup, collector):
            if isTick(tup):
                collector.emit((self.state.get("total", 0),))
            else:
                self.state.put("total", self.state.get("total", 0) + tup["count"])

    builder = TopologyBuilder("summing")
    builder.setSpout("words", spout("a"))
    builder.setBolt("sum", Sum()).fieldsGrouping("words", "word").setTicks(5)
    with TopologyTester(builder.createTopology(), tmp_path) as tester:
        tester.advance(6)
        assert tester.emit().emitted("sum") == [(1,)]
    assert combined == [False]


# ---- trees of tuples


@pytest.mark.slow
def test_a_tick_belongs_to_no_tree_and_acks_what_was_held(tmp_path):
    """A plain bolt gathers, and acks at the tick what it has gathered; acking the tick itself changes nothing."""
    heard, left = [], ["a", "b", "c"]

    class Ids(Idle):
        def nextTuple(self, collector):
            if left:
                word = left.pop(0)
                collector.emit((word,), id=word)

        def ack(self, id):
            heard.append(id)

    class Holds(Bolt):
        outputFields = "word string"

        def open(self, context):
            self.held = []

        def execute(self, tup, collector):
            if not isTick(tup):
                self.held.append(tup)
                return
            collector.emit((f"anchored to {len(self.held)}",), anchors=self.held)
            collector.emit(("to the tick",), anchors=tup)
            collector.emit(("to nothing",))
            for each in self.held:
                collector.ack(each)
            self.held = []
            collector.ack(tup)
            collector.resetTimeout(tup)

    class Drops(Bolt):
        def execute(self, tup, collector):
            collector.ack(tup)

    topology = wired(Holds(), spout=Ids(), reader=Drops())
    with TopologyTester(topology, tmp_path, {"topology.message.timeout.secs": 100}, freshObjects=False) as tester:
        for _ in range(3):
            tester.emit()
        assert (heard, left) == ([], [])
        tester.advance(5)
        assert tester.emit().emitted("bolt") == [("anchored to 3",), ("to the tick",), ("to nothing",)]
        tester.emit()
        assert sorted(heard) == ["a", "b", "c"]
        assert tester.state("__acker") == {}


@pytest.mark.slow
def test_failing_a_tick_fails_the_transaction(tmp_path):
    class Fails(Bolt):
        outputFields = "attempt int"

        def execute(self, tup, collector):
            if collector.attempt.attempt == 0:
                collector.fail(tup)
            collector.emit((collector.attempt.attempt,))

    with TopologyTester(wired(Fails(), spout=Idle()), tmp_path) as tester:
        tester.advance(5)
        assert tester.emit().emitted("bolt") == [(1,)]


# ---- a topology that has nothing to read


def test_a_tick_comes_though_there_is_nothing_to_read_and_nothing_else_does(tmp_path):
    with TopologyTester(wired(Shows(), spout=spout("a")), tmp_path) as tester:
        assert tester.emit().emitted("bolt") == [("a", 0)]
        assert tester.emit() is None
        tester.advance(6)
        assert tester.emit().emitted("bolt") == [(TICK, 0)]
        assert tester.emit() is None


def test_a_spout_in_its_task_that_is_idle_gets_a_transaction_for_a_tick(tmp_path):
    with TopologyTester(wired(Shows(), spout=Idle()), tmp_path) as tester:
        tester.emit()
        source = tester._launch.spout_source(tester._coordinator, SpoutTrigger())
        tester._engine.woken.clear()
        assert not source.ready(tester.txid + 1)
        tester.advance(5)
        assert source.ready(tester.txid + 1)


def test_spouts_that_cannot_plan_are_asked_at_once_for_a_tick(tmp_path):
    """While they have nothing, an empty transaction comes each second at most; a tick does not wait for that."""

    class Nothing(OpaquePartitionedTransactionalSpout):
        outputFields = "word string"

        def numPartitions(self):
            return 1

        def emitPartitionBatch(self, attempt, collector, partition, metadata):
            return metadata

    topology = wired(Shows(), 0.25, spout=Nothing())
    with TopologyTester(topology, tmp_path) as tester:
        for _ in range(10):
            tester.emit()
        source = tester._launch.spout_source(tester._coordinator, SpoutTrigger())
        source._empty, source._empties, source._began = tester.txid, 10, tester._clock()
        tester.advance(0.125)
        assert not source.ready(tester.txid + 1)
        tester.advance(0.125)
        assert source.ready(tester.txid + 1)


def test_what_ends_when_all_is_read_ends_though_ticks_are_due(tmp_path):
    class Slow(Shows):
        def execute(self, tup, collector):
            tester._now += 10
            super().execute(tup, collector)

    with TopologyTester(wired(Slow(), spout=spout("a", "b", "c")), tmp_path) as tester:
        assert tester.drain() == 3
        ticks = tester.emitted("bolt").count((TICK, 0))
        assert ticks == 2  # of the second and the third: they came with transactions that had something to read
        tester.advance(10)
        assert tester.drain() == 0


@pytest.mark.slow
def test_ticks_of_several_transactions_in_flight(tmp_path):
    """Each transaction counts from the one before it, which may be in flight: none ticks for a period twice."""

    class Clock(Shows):
        def execute(self, tup, collector):
            tester._now += 0.5
            super().execute(tup, collector)

    builder = TopologyBuilder("flying")
    builder.setSpout("words", spout(*"abcdefghij"))
    builder.setBolt("clock", Clock()).globalGrouping("words").setTicks(1)
    builder.setBolt("flushes", Flushes()).globalGrouping("words").setTicks(1)
    config = {"topology.max.spout.pending": 4}
    with LivingTester(builder.createTopology(), tmp_path, config, seed=3) as tester:
        tester.drain()
        secs = tester._now
        flushed = tester.emitted("flushes")
        assert len(flushed) == tester.emitted("clock").count((TICK, 0))
        assert 3 <= len(flushed) <= secs + 1
        rest = tester.state("flushes")["words"]
        assert [word for (each,) in flushed for word in each.split()] + rest == list("abcdefghij")


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_whatever_breaks_nothing_is_flushed_twice_or_lost(tmp_path, seed):
    class Clock(BasicBolt):
        outputFields = "word string"

        def execute(self, tup, collector):
            tester._now += 0.3
            collector.emit(tup)

    given = [str(number) for number in range(30)]
    builder = TopologyBuilder("breaking")
    builder.setSpout("words", spout(*given))
    builder.setBolt("clock", Clock()).globalGrouping("words")
    builder.setBolt("flushes", Flushes()).globalGrouping("clock").setTicks(1)
    builder.setSink("out", CollectSink()).globalGrouping("flushes")
    topology, config = builder.createTopology(), {"topology.max.spout.pending": 3}
    with LivingTester(topology, tmp_path, config, seed=seed, breaks=True) as tester:
        tester.drain()
        flushed = tester.emitted("flushes")
        rest = tester.state("flushes").get("words", [])
        assert flushed
        assert [word for (each,) in flushed for word in each.split()] + rest == given


# ---- what is refused


@pytest.mark.parametrize("secs", [0, -1, float("nan"), float("inf"), "5", "5 seconds", None, True, 2**31])
def test_what_is_no_period(secs):
    builder = TopologyBuilder("ticking")
    builder.setStream("words", rows("word string"))
    with pytest.raises(TopologyError, match=r"bolt 'bolt': setTicks takes a number of seconds.*setTicks\(5\); not"):
        builder.setBolt("bolt", Shows()).shuffleGrouping("words").setTicks(secs)


def test_the_setting_is_checked_as_all_are(tmp_path):
    with pytest.raises(ConfigError, match=r"topology.tick.tuple.freq.secs is 0"):
        TopologyTester(wired(Shows(), None), tmp_path, {"topology.tick.tuple.freq.secs": 0})


def test_a_sink_gets_none():
    builder = TopologyBuilder("ticking")
    builder.setStream("words", rows("word string"))
    with pytest.raises(TopologyError, match="sink 'out' takes rows alone: let a bolt before it"):
        builder.setSink("out", CollectSink()).shuffleGrouping("words").setTicks(5)


def test_their_names_are_nobody_elses():
    builder = TopologyBuilder("ticking")
    with pytest.raises(TopologyError, match="'__system' can't be a component's id"):
        builder.setStream("__system", rows("word string"))

    class Emits(Shows):
        outputFields = {"__tick": "rate_secs double"}

    with pytest.raises(TopologyError, match="__tick"):
        builder.setBolt("bolt", Emits())


def test_a_description_shows_them():
    assert "bolt: Shows x 1, a tick each 0.5 s" in wired(Shows(), 0.5).describe()
