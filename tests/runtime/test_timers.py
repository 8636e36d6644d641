"""Timers of bolts: when they fire, over rollbacks, restarts and failures."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from statefx import BatchBolt, Checkpoint, Stateful, StatefulBolt, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.errors import BoltError, FailedException
from statefx.testing import TopologyTester, rows

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
FAIL = []


def at(secs):
    return NOON + timedelta(seconds=secs)


def secs_of(time):
    return (time - NOON).total_seconds()


class Sessions(Stateful, BatchBolt):
    """Ends a session when a user has been silent for 10 seconds; fails where it is told to."""

    outputFields = "user string, ended timestamp, clicks long"

    def initState(self, state):
        self.clicks = state

    def execute(self, tup, collector):
        if tup.user in FAIL:
            FAIL.remove(tup.user)
            raise FailedException("not now")
        clicks, last = self.clicks.get(tup.user, (0, tup.at))
        last = max(last, tup.at)
        self.clicks.put(tup.user, (clicks + 1, last))
        self.timers.set(tup.user, last + timedelta(seconds=10))

    def onTimer(self, user, time, value, collector):
        clicks, last = self.clicks.delete(user)
        assert time == last + timedelta(seconds=10)
        if f"timer {user}" in FAIL:
            FAIL.remove(f"timer {user}")
            raise FailedException("not now")
        collector.emit((user, last, clicks))


def sessions(clicks, lateness, parallelism=2):
    builder = TopologyBuilder("sessions")
    spout = MemoryTransactionalSpout(clicks, "user string, at timestamp", takePerBatch=1)
    builder.setSpout("clicks", spout, timestamp="at", lateness=lateness)
    builder.setBolt("sessions", Sessions(), parallelism=parallelism).fieldsGrouping("clicks", "user")
    return builder.createTopology()


def by_hand(batches, lateness_secs):
    """Sessions as they end when time passes, transaction by transaction."""
    open_sessions, ended, newest = {}, [], None
    for batch in batches:
        for user, time in batch:
            clicks, last = open_sessions.get(user, (0, time))
            open_sessions[user] = clicks + 1, max(last, time)
            newest = time if newest is None else max(newest, time)
        watermark = newest - timedelta(seconds=lateness_secs)
        for user, (clicks, last) in sorted(open_sessions.items(), key=lambda each: (each[1][1], each[0])):
            if last + timedelta(seconds=10) <= watermark:
                ended.append((user, last, clicks))
                del open_sessions[user]
    return ended


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_sessions_end_as_they_do_by_hand(tmp_path, seed):
    """With rows out of order, users who fall silent, attempts that fail before and in onTimer, and restarts."""
    chance = random.Random(seed)
    users = "abcdef"
    batches = [[(chance.choice(users), at(3 * number + chance.randint(-4, 4)))] for number in range(40)]
    FAIL[:] = [chance.choice(users), f"timer {chance.choice(users)}"]
    topology = sessions([[row for batch in batches for row in batch]], "5 seconds")
    emitted = []
    tester = TopologyTester(topology, tmp_path / "ck", now=NOON, seed=seed)
    while (sent := tester.emit()) is not None:
        emitted += sent.emitted("sessions")
        if chance.random() < 0.2:
            tester = tester.restart()
    tester.close()
    assert sorted(emitted) == sorted(by_hand(batches, 5))


class Reminds(StatefulBolt):
    """Says each word again after some seconds, by the clock; three times if it is "again"."""

    outputFields = "word string, at timestamp, name string"

    def open(self, context):
        self.context = context

    def initState(self, state):
        pass

    def execute(self, tup, collector):
        now = self.context.processingTime
        self.timers.set(tup.word, now + timedelta(seconds=tup.secs), 1, processing=True)
        if tup.word == "two":
            self.timers.set(tup.word, now + timedelta(seconds=tup.secs + 5), name="second", processing=True)

    def onTimer(self, word, time, times, collector):
        collector.emit((word, time, self.timers.fired.name))
        if word == "again" and times < 3:
            self.timers.set(word, time + timedelta(seconds=10), times + 1, processing=True)


def reminders(batches):
    builder = TopologyBuilder("reminders")
    builder.setSpout("words", MemoryTransactionalSpout([batches], "word string, secs long", takePerBatch=1))
    builder.setBolt("reminds", Reminds(), parallelism=2).fieldsGrouping("words", "word")
    return builder.createTopology()


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [False, True])
def test_timers_of_the_clock_begin_a_transaction_though_nothing_is_there_to_read(tmp_path, restarts):
    tester = TopologyTester(reminders([("a", 30), ("two", 60)]), tmp_path / "ck", now=NOON)
    assert tester.emit().emitted("reminds") == []
    assert tester.emit().emitted("reminds") == []

    def pass_time(secs):
        nonlocal tester
        tester.advance(secs)
        if restarts:
            tester = tester.restart()
        sent = tester.emit()
        return None if sent is None else [(word, secs_of(time), name) for word, time, name in sent.emitted("reminds")]

    assert pass_time(29) is None
    assert pass_time(1) == [("a", 30, "")]
    assert pass_time(0) is None
    assert pass_time(29) is None
    assert pass_time(100) == [("two", 60, ""), ("two", 65, "second")], "what a pause has left is fired in order"
    assert pass_time(1000) is None
    tester.close()


@pytest.mark.slow
def test_a_timer_that_is_set_for_a_time_that_has_passed_fires_in_the_same_transaction(tmp_path):
    with TopologyTester(reminders([("again", 5)]), tmp_path / "ck", now=NOON) as tester:
        tester.emit()
        tester.advance(24)
        assert [secs_of(each[1]) for each in tester.emit().emitted("reminds")] == [5, 15]
        assert tester.emit() is None, "the next one is due a second later"
        tester.advance(1)
        assert [secs_of(each[1]) for each in tester.emit().emitted("reminds")] == [25]
        tester.advance(1000)
        assert tester.emit() is None


def test_with_available_now_nothing_waits_for_a_timer(tmp_path):
    with TopologyTester(reminders([("a", 5)]), tmp_path / "ck", now=NOON) as tester:
        assert tester.drain() == 1
        tester.advance(10)
        assert tester.drain() == 0
        assert tester.emit().emitted("reminds") == [("a", at(5), "")]


def test_behind_dataframes_timers_fire_with_the_next_batch(tmp_path):
    builder = TopologyBuilder("frames")
    builder.setStream("words", rows("word string, secs long"))
    builder.setBolt("reminds", Reminds()).fieldsGrouping("words", "word")
    with TopologyTester(builder.createTopology(), tmp_path / "ck", now=NOON) as tester:
        tester.send({"words": [("a", 5)]})
        tester.advance(10)
        assert tester.send({}).emitted("reminds") == [("a", at(5), "")]


def test_more_than_a_transaction_fires_follow_in_the_next_ones(tmp_path, monkeypatch):
    monkeypatch.setattr("statefx.runtime.bolt_task.FIRED_MAX", 2)
    words = [(f"a{number}", number) for number in range(5)]
    builder = TopologyBuilder("many")
    builder.setSpout("words", MemoryTransactionalSpout([words], "word string, secs long"))
    builder.setBolt("reminds", Reminds()).globalGrouping("words")
    with TopologyTester(builder.createTopology(), tmp_path / "ck", now=NOON) as tester:
        tester.emit()
        tester.advance(100)
        fired = [[word for word, *_ in tester.emit().emitted("reminds")] for _ in range(2)]
        assert [tester.emitted("reminds")[0][0], *fired] == ["a0", ["a1", "a2"], ["a3", "a4"]]
        assert tester.emit() is None


class Late(Stateful, BatchBolt):
    """Sets a timer of event time when all others have fired."""

    outputFields = "key string"

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put("rows", self.state.get("rows", 0) + 1)

    def finishBatch(self, collector):
        if self.state.get("rows", 0) and not self.state.get("set", False):
            self.state.put("set", True)
            self.timers.set("late", NOON)

    def onTimer(self, key, time, value, collector):
        collector.emit((key,))


def test_what_is_set_when_the_others_have_fired_has_a_transaction_of_its_own(tmp_path):
    builder = TopologyBuilder("late")
    builder.setSpout("rows", MemoryTransactionalSpout([[(at(100),)]], "at timestamp"), timestamp="at")
    builder.setBolt("late", Late()).globalGrouping("rows")
    with TopologyTester(builder.createTopology(), tmp_path / "ck", now=at(100)) as tester:
        assert tester.emit().emitted("late") == []
        assert tester.emit().emitted("late") == [("late",)]
        assert tester.emit() is None


class Upgraded(StatefulBolt):
    """Its state was numbers, and is pairs; its timers' values stay what they were."""

    outputFields = "value string"
    stateVersion = 2

    def initState(self, state):
        self.state = state

    def migrateState(self, version, key, value):
        return value, 0

    def execute(self, tup, collector):
        assert self.state.get("key") == (1, 0)

    def onTimer(self, key, time, value, collector):
        collector.emit((value,))


class Before(StatefulBolt):
    outputFields = "value string"

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put("key", 1)
        self.timers.set("key", at(5), "as set", processing=True)

    def onTimer(self, key, time, value, collector):
        raise AssertionError("its time has not come")


def upgraded(bolt):
    builder = TopologyBuilder("upgraded")
    builder.setStream("rows", rows("key long"))
    builder.setBolt("bolt", bolt).globalGrouping("rows")
    return builder.createTopology()


def test_the_value_of_a_timer_comes_as_it_was_set_also_by_an_older_version(tmp_path):
    with TopologyTester(upgraded(Before()), tmp_path / "ck", now=NOON) as tester:
        tester.send({"rows": [(1,)]})
        with tester.restart(upgraded(Upgraded())) as later:
            later.advance(10)
            assert later.send({"rows": [(1,)]}).emitted("bolt") == [("as set",)]


class Ordered(StatefulBolt):
    """Sets all of its timers in the order in which rows come, of both clocks."""

    outputFields = "key long, processing boolean"

    def initState(self, state):
        pass

    def execute(self, tup, collector):
        self.timers.set(tup.key, at(tup.secs), processing=tup.processing)

    def onTimer(self, key, time, value, collector):
        collector.emit((key, self.timers.fired.processing))


@pytest.mark.parametrize("seed", range(5))
def test_timers_fire_in_one_order_whatever_the_order_of_rows(tmp_path, seed):
    builder = TopologyBuilder("ordered")
    builder.setStream("rows", rows("key long, secs long, processing boolean, at timestamp"), timestamp="at")
    builder.setBolt("ordered", Ordered()).globalGrouping("rows")
    given = [(key, key // 3, key % 2 == 0, at(1000)) for key in range(-6, 30)]
    random.Random(seed).shuffle(given)
    with TopologyTester(builder.createTopology(), tmp_path / "ck", now=at(1000)) as tester:
        sent = tester.send({"rows": given})
        odd, even = [key for key in range(-6, 30) if key % 2], [key for key in range(-6, 30) if key % 2 == 0]
        assert sent.emitted("ordered") == [*((key, False) for key in odd), *((key, True) for key in even)]


class Wrong(StatefulBolt):
    """Does what it is told to be wrong."""

    def __init__(self, what):
        self.what = what

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.timers.set("key", self.what if isinstance(self.what, datetime | int) else NOON, processing=True)

    def onTimer(self, key, time, value, collector):
        if self.what == "raises":
            raise KeyError("lost")
        return self.what


class NoHook(StatefulBolt):
    """Has no onTimer."""

    def initState(self, state):
        pass

    def execute(self, tup, collector):
        self.timers.set("key", NOON)


@pytest.mark.parametrize(
    ("bolt", "message"),
    [
        (Wrong("raises"), "hook onTimer, transaction 1: KeyError: 'lost'"),
        (Wrong("returns"), "onTimer returned 'returns'"),
        (Wrong(5), "a timer's time is a datetime"),
        (Wrong(datetime(2026, 5, 1)), "needs a time zone"),
        (NoHook(), r"NoHook has no timers, .*define onTimer\(self, key, at, value, collector\)"),
    ],
)
def test_what_is_wrong_names_the_hook_and_the_remedy(tmp_path, bolt, message):
    builder = TopologyBuilder("wrong")
    builder.setStream("rows", rows("key long"))
    builder.setBolt("wrong", bolt).globalGrouping("rows")
    with (
        TopologyTester(builder.createTopology(), tmp_path / "ck", now=at(10)) as tester,
        pytest.raises(BoltError, match=message),
    ):
        tester.send({"rows": [(1,)]})


def test_an_own_attribute_named_timers_stays_the_bolts(tmp_path):
    class Own(StatefulBolt):
        outputFields = "n long"

        def initState(self, state):
            self.timers = {"n": 3}

        def execute(self, tup, collector):
            collector.emit((self.timers["n"],))

    builder = TopologyBuilder("own")
    builder.setStream("rows", rows("key long"))
    builder.setBolt("own", Own()).globalGrouping("rows")
    with TopologyTester(builder.createTopology(), tmp_path / "ck") as tester:
        assert tester.send({"rows": [(1,)]}).emitted("own") == [(3,)]


@pytest.mark.parametrize("provider", ["memory", "rocksdb"])
def test_timers_are_not_among_the_keys_of_the_bolt(tmp_path, provider):
    config = {"topology.state.provider": provider}
    with TopologyTester(reminders([("a", 30)]), tmp_path / "ck", config, now=NOON) as tester:
        tester.emit()
    with Checkpoint(tmp_path / "ck").state("reminds") as view:
        assert dict(view.items()) == {}
        assert not any(view.names().values())


@pytest.mark.parametrize("processing", [False, True])
def test_a_timer_of_event_time_without_event_time_is_refused(processing, tmp_path):
    class Sets(StatefulBolt):
        def initState(self, state):
            self.state = state

        def execute(self, tup, collector):
            self.timers.set(tup.key, NOON, processing=processing)

        def onTimer(self, key, at, value, collector):
            self.state.put(key, at)

    builder = TopologyBuilder("untimed")
    builder.setStream("rows", rows("key long"))
    builder.setStream("others", rows("key long"))
    sets = builder.setBolt("sets", Sets()).fieldsGrouping("rows", "key")
    sets.fieldsGrouping("others", "key")
    with TopologyTester(builder.createTopology(), tmp_path / "ck", now=NOON) as tester:
        if processing:
            tester.send({"rows": [(1,)]})
            assert tester.state("sets") == {1: NOON}
            return
        with pytest.raises(BoltError, match=r"none of its inputs \(others, rows\) has event time. Say timestamp="):
            tester.send({"rows": [(1,)]})
