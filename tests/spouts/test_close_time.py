"""Event time that is closed at the end of the input: all that waits for it ends once, whatever crashes."""

import random
from collections import deque
from contextlib import suppress
from datetime import timedelta

import pytest

import statefx
from statefx import BasicBolt, BatchBolt, IntervalJoin, Stateful, TopologyBuilder, WindowedBolt
from statefx.connectors import MemoryTransactionalSpout
from statefx.errors import BoltError, ConfigError, FailedException, InputError
from statefx.operators import joins
from statefx.runtime import bolt_task
from statefx.state.view.time_index import LAST
from statefx.testing import Crash, TopologyTester, rows
from statefx.testing.steps import every_crash
from tests.bolts import WithState
from tests.spouts import test_time_model as model
from tests.spouts.test_event_time import Source
from tests.spouts.timed import Emitted, Living, Opaque, Planned, Whole, at, begun, seen

KINDS = [Planned, Emitted, Opaque]


class PerTen(WindowedBolt):
    outputFields = "start timestamp, rows long"

    def initWindow(self):
        return 0

    def addToWindow(self, value, tup):
        return value + 1

    def emitWindow(self, window, value, collector):
        collector.emit((window.start, value))


def per_ten(field):
    return PerTen().withTimestampField(field).withTumblingWindow("10 seconds").withLateTupleStream("late")


class Keep(WithState):
    def execute(self, tup, collector):
        row = (tup._source, tup._stream, *tup)
        self.state[row] = self.state.get(row, 0) + 1


class Timed(WithState):
    outputFields = "what string, at timestamp"

    def execute(self, tup, collector):
        self.timers.set((tup.partition, tup.at), min(tup.at, LAST - timedelta(days=9)) + timedelta(days=1), "first")

    def onTimer(self, key, at, value, collector):
        collector.emit((value, at))
        if value == "first":
            self.timers.set(key, at + timedelta(days=1), "second")


def topology(spout, tasks=1, **times):
    """Return spout -> windows of windows, a join of the spout with itself, and timers -> keep."""
    builder = TopologyBuilder("closing")
    builder.setSpout("spout", spout, tasks, timestamp="at", **times)
    windows = PerTen().withTumblingWindow("10 seconds").withLateTupleStream("late")
    builder.setBolt("windows", windows, timestamp="start").globalGrouping("spout")
    builder.setBolt("again", PerTen().withTumblingWindow("20 seconds")).globalGrouping("windows")
    builder.setBolt("timed", Timed()).globalGrouping("spout")
    builder.setSpout("others", MemoryTransactionalSpout([[(9, at(5)), (1, at(5))]], spout.outputFields), timestamp="at")
    join = IntervalJoin(
        "spout", "others", on="partition", between=("0 seconds", "1 day"), select="partition, spout.at, others.at as by"
    )
    builder.setBolt("join", join).fieldsGrouping("spout", "partition").fieldsGrouping("others", "partition")
    # What they emit beyond the limit of a transaction must not be late here.
    builder.setBolt("behind", per_ten("at")).globalGrouping("timed")
    builder.setBolt("alone", per_ten("at")).globalGrouping("join", stream="unmatchedLeft")
    keep = builder.setBolt("keep", Keep()).globalGrouping("windows").globalGrouping("again").globalGrouping("timed")
    keep.globalGrouping("join", stream="unmatchedLeft").globalGrouping("join", stream="unmatchedRight").globalGrouping(
        "join"
    )
    keep.globalGrouping("windows", stream="late").globalGrouping("behind").globalGrouping("behind", stream="late")
    keep.globalGrouping("alone").globalGrouping("alone", stream="late")
    return builder.createTopology()


SCRIPT = [[[1, 12], [2]], [[], [25]]]
DAY = 86_400
TENS = {0: 2, 10: 1, 20: 1}
WANTED = {
    ("windows", "default", at(0), 2): 1,
    ("windows", "default", at(10), 1): 1,
    ("windows", "default", at(20), 1): 1,
    ("again", "default", at(0), 2): 1,
    ("again", "default", at(20), 1): 1,
    ("join", "default", 1, at(2), at(5)): 1,
    ("join", "unmatchedLeft", 0, at(1)): 1,
    ("join", "unmatchedLeft", 0, at(12)): 1,
    ("join", "unmatchedLeft", 1, at(25)): 1,
    ("join", "unmatchedRight", 9, at(5)): 1,
    **{
        ("timed", "default", text, at(secs + days * DAY)): 1
        for days, text in ((1, "first"), (2, "second"))
        for secs in (1, 2, 12, 25)
    },
    **{("behind", "default", at(secs + days * DAY), rows): 1 for days in (1, 2) for secs, rows in TENS.items()},
    **{("alone", "default", at(secs), 1): 1 for secs in TENS},
}


@pytest.mark.daily(3)
@pytest.mark.slow
@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_all_that_waits_for_event_time_ends_once(kind, tasks, tmp_path):
    with begun(topology(kind(SCRIPT), tasks), tmp_path) as driver:
        assert driver.closeTime() >= 2
        assert driver.state("keep") == WANTED
        # Spouts whose tasks find out what there is are asked once more.
        assert driver.closeTime() == driver.drain() == (kind is not Planned)
        assert driver.state("keep") == WANTED


@pytest.mark.slow
def test_a_crash_at_any_moment_ends_nothing_twice(stride, tmp_path):
    for crash in every_crash(stride):
        pending = 1 if crash % 2 else 3
        place = tmp_path / str(crash)
        config = {"topology.max.spout.pending": pending}
        with suppress(Crash), begun(topology(Planned(SCRIPT)), place, config=config, crash_at=crash) as driver:
            driver.closeTime()
            return
        with begun(topology(Planned(SCRIPT)), place, config=config) as driver:
            driver.closeTime()
            assert driver.state("keep") == WANTED, crash


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 12))])
def test_random_schedules_close_as_the_recount_says(seed, tmp_path):
    chance = random.Random(seed)
    sources = [Source(chance, [Whole, *KINDS]) for _ in range(chance.randint(1, 2))]
    kinds = [chance.choice([kind for kind in model.WINDOWS if kind != "session" or len(sources) == 1]) for _ in "ab"]
    of = model.topology(sources, kinds, chance.randint(1, 2), None)
    driver = model.drive(chance, of, tmp_path, crashes=True)
    while True:
        with suppress(Crash):
            driver = driver.restart(crash_at=chance.choice([None, chance.randint(10, 60)]))
            driver.closeTime()
            break
    rounds = seen(driver)
    assert driver.state("keep") == dict(model.expected(sources, kinds, rounds))
    driver.close()


@pytest.mark.parametrize("streaming", [True, False])
def test_streams_and_batches_close_as_well(streaming, tmp_path):
    def of():
        builder = TopologyBuilder("streams")
        builder.setStream("rows", rows("partition int, at timestamp", streaming=streaming), timestamp="at")
        builder.setBolt("windows", PerTen().withTumblingWindow("10 seconds")).globalGrouping("rows")
        return builder.createTopology()

    with TopologyTester(of(), tmp_path, now=at(100)) as tester:
        assert tester.closeTime() == 0, "no row was ever read: nothing to close"
        tester.send({"rows": [(0, at(1)), (0, at(11))]})
        assert tester.closeTime() == 1
        assert tester.emitted("windows") == [(at(0), 1), (at(10), 1)]
    with TopologyTester(of(), tmp_path, now=at(100)) as tester:
        assert tester.closeTime() == 0
        with pytest.raises(InputError, match=r"closed by transaction 2 .*\)\.restore\(txid=1\)"):
            tester.send({"rows": [(0, at(1000))]})


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_rows_after_the_close_are_refused_and_none_is_lost(kind, tmp_path):
    with begun(topology(kind(SCRIPT)), tmp_path) as driver:
        driver.closeTime()
        closed = driver.txid
    for _ in range(2):
        refused = pytest.raises(InputError, match=f"closed by transaction {closed} ")
        with begun(topology(kind([*SCRIPT, [[1000], []]])), tmp_path) as driver, refused:
            driver.drain()
        with begun(topology(kind(SCRIPT)), tmp_path) as driver:
            assert driver.state("keep") == WANTED
    statefx.Checkpoint(tmp_path).restore(txid=closed - 1)
    with begun(topology(kind([*SCRIPT, [[1000], [24]]])), tmp_path) as driver:
        driver.closeTime()
        found = driver.state("keep")
    assert found["windows", "default", at(1000), 1] == 1
    assert found["windows", "default", at(20), 1 if kind is None else 2] == 1, "it was open again"


@pytest.mark.slow
def test_ticks_and_the_clock_go_on_after_the_close(tmp_path):
    with begun(topology(Planned(SCRIPT)), tmp_path) as driver:
        driver.closeTime()
        assert driver.emit() is None


@pytest.mark.slow
def test_what_takes_several_transactions_is_ended_in_them(tmp_path, monkeypatch):
    monkeypatch.setattr(bolt_task, "FIRED_MAX", 3)
    monkeypatch.setattr(joins, "EXPIRED_MAX", 1)
    for crash in every_crash():
        with suppress(Crash), begun(topology(Planned(SCRIPT)), tmp_path / str(crash), crash_at=crash * 37) as driver:
            assert driver.closeTime() > 4
            return
        with begun(topology(Planned(SCRIPT)), tmp_path / str(crash)) as driver:
            # What is closed in part goes on also without the trigger: then for what is left.
            while crash % 2 and driver.emit() is not None:
                pass
            driver.closeTime()
            assert driver.state("keep") == WANTED, crash


class InFinishBatch(Stateful, BatchBolt):
    """Sets timers for its rows when all others have fired, in one key and out of order."""

    outputFields = "what string, at timestamp"

    def initState(self, state):
        self.times = []

    def execute(self, tup, collector):
        self.times.append(tup.at)

    def finishBatch(self, collector):
        for time in self.times:
            self.timers.set(time, time)

    def onTimer(self, key, time, value, collector):
        collector.emit(("late", time))


class OnTime(Timed):
    def execute(self, tup, collector):
        self.timers.set((tup.partition, tup.at), tup.at)

    def onTimer(self, key, at, value, collector):
        collector.emit(("", at))


class Earlier(BasicBolt):
    """Its rows have times of their own, before those of its input."""

    outputFields = "start timestamp"

    def execute(self, tup, collector):
        collector.emit((tup.at - timedelta(seconds=30),))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("own_times", [False, True, "behind"])
@pytest.mark.parametrize("bolt", [OnTime, InFinishBatch])
def test_nothing_that_fires_in_a_later_transaction_is_late_behind_it(bolt, own_times, seed, tmp_path, monkeypatch):
    """Each row of the input comes out of windows once, however few timers fire in a transaction."""
    chance = random.Random(seed)
    monkeypatch.setattr(bolt_task, "FIRED_MAX", chance.randint(1, 3))
    builder = TopologyBuilder("fires")
    builder.setStream("rows", rows("partition int, at timestamp"), timestamp="at")
    builder.setBolt("fires", bolt(), timestamp="at" if own_times is True else None).globalGrouping("rows")
    windows = PerTen().withTumblingWindow("10 seconds").withLateTupleStream("late")
    if own_times == "behind":
        builder.setBolt("earlier", Earlier(), timestamp="start").globalGrouping("fires")
        builder.setBolt("windows", windows).globalGrouping("earlier")
    else:
        timed = windows if own_times else windows.withTimestampField("at")
        builder.setBolt("windows", timed).globalGrouping("fires")
    builder.setBolt("keep", Keep()).globalGrouping("windows").globalGrouping("windows", stream="late")
    given = [at(number) for number in range(60)]
    with TopologyTester(builder.createTopology(), tmp_path, now=at(100)) as tester:
        left = deque(given)
        while left:
            some = [left.popleft() for _ in range(min(len(left), chance.choice([0, 1, 5, 20])))]
            tester.send({"rows": [(number, time) for number, time in enumerate(some)]})
        tester.closeTime()
        starts = range(-30, 30, 10) if own_times == "behind" else range(0, 60, 10)
        assert tester.state("keep") == {("windows", "default", at(start), 10): 1 for start in starts}


@pytest.mark.slow
@pytest.mark.parametrize("amid", ["PREPARING", "COMMITTING"])
@pytest.mark.parametrize("kind", [Whole, *KINDS])
def test_rows_that_come_amid_the_close_do_not_stop_it(kind, amid, tmp_path, monkeypatch):
    monkeypatch.setattr(bolt_task, "FIRED_MAX", 1)
    of, more = topology(kind(SCRIPT)), topology(kind([*SCRIPT, [[1000], []]]))
    with begun(of, tmp_path / "whole") as whole:
        last = whole.closeTime()
        wanted = whole.state("keep")
        crash_at = whole.steps.index(f"before {amid}({last}, 0)") + 1
    place = tmp_path / "crash"
    with begun(of, place, crash_at=crash_at) as driver, pytest.raises(Crash):
        driver.closeTime()
    with begun(more, place) as driver:
        driver.closeTime()
        assert driver.state("keep") == wanted
        with pytest.raises(InputError, match="closed by transaction"):
            driver.drain()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Whole, *KINDS])
def test_rows_that_were_begun_with_amid_the_close_are_not_lost(kind, tmp_path, monkeypatch):
    """What is planned counts as read when its transaction is committed, and so that one does not close."""
    monkeypatch.setattr(bolt_task, "FIRED_MAX", 1)
    of, more = topology(kind(SCRIPT)), topology(kind([*SCRIPT, [[1000], []]]))
    with begun(of, tmp_path / "whole") as whole:
        last = whole.closeTime()
        crash_at = whole.steps.index(f"before PREPARING({last}, 0)") + 1
    place = tmp_path / "crash"
    with begun(of, place, crash_at=crash_at) as driver, pytest.raises(Crash):
        driver.closeTime()
    for _ in range(2):
        with begun(more, place) as driver, pytest.raises(InputError, match="closed by transaction") as refused:
            driver.drain()
        with begun(more, place) as driver, suppress(InputError):
            driver.closeTime()
    statefx.Checkpoint(place).restore(txid=refused.value.closed - 1)
    with begun(more, place) as driver:
        driver.drain()
        driver.closeTime()
        assert driver.state("keep")["windows", "default", at(1000), 1] == 1


class Late(Planned):
    """Has its rows from the second look on."""

    def open(self, context):
        super().open(context)
        self.looks = 0

    def planPartitionBatch(self, partition, lastMetadata):
        self.looks += 1
        return super().planPartitionBatch(partition, lastMetadata) if self.looks > 1 else None


class Once(Opaque):
    """Has rows in the first attempt of all, and none in any other: their server is away then."""

    def emitPartitionBatch(self, attempt, collector, partition, lastMetadata):
        first = (attempt.txid, attempt.attempt) == (1, 0)
        return super().emitPartitionBatch(attempt, collector, partition, lastMetadata) if first else None


class FailsFirst(Keep):
    def execute(self, tup, collector):
        if FIRST:
            raise FailedException(FIRST.pop())
        super().execute(tup, collector)


FIRST = []


@pytest.mark.slow
@pytest.mark.parametrize("end", ["closeTime", "drain"])
def test_what_was_planned_is_read_if_nothing_came_before(end, tmp_path):
    FIRST[:] = ["once"]
    builder = TopologyBuilder("begun")
    builder.setSpout("planned", Late([[[5]]]), timestamp="at")
    builder.setSpout("opaque", Once([[[5]]]), timestamp="at")
    builder.setBolt("keep", FailsFirst()).globalGrouping("planned").globalGrouping("opaque")
    with begun(builder.createTopology(), tmp_path, config={"topology.max.spout.pending": 2}) as driver:
        getattr(driver, end)()
        assert "after ROLLED_BACK(2, 0)" in driver.steps, "it was planned when the one before failed"
        assert driver.state("keep") == {("planned", "default", 0, at(5)): 1}


@pytest.mark.slow
def test_a_timer_that_sets_itself_for_ever_is_refused(tmp_path):
    class Beats(Timed):
        def onTimer(self, key, at, value, collector):
            self.timers.set(key, at + timedelta(seconds=1))

    builder = TopologyBuilder("beats")
    builder.setSpout("spout", Planned(SCRIPT), timestamp="at")
    builder.setBolt("beats", Beats()).globalGrouping("spout")
    with begun(builder.createTopology(), tmp_path) as driver, pytest.raises(BoltError, match="Set none where"):
        driver.closeTime()


@pytest.mark.slow
def test_rows_of_the_last_day_that_there_is_end_as_well(tmp_path):
    script = [[[LAST], [LAST - timedelta(seconds=1)]]]
    with begun(topology(Planned(script)), tmp_path) as driver:
        driver.closeTime()
        found = driver.state("keep")
    assert sum(count for (source, *_), count in found.items() if source == "windows") == 1
    assert sum(count for (source, *_), count in found.items() if source == "join") == 4


@pytest.mark.parametrize(
    ("spout", "times", "message"),
    [(Planned(SCRIPT), None, "no input has any"), (Living(), "at", "hands out tuples one by one")],
)
def test_what_has_no_end_or_no_time_is_refused(spout, times, message, tmp_path):
    builder = TopologyBuilder("wrong")
    builder.setSpout("spout", spout, timestamp=times)
    builder.setBolt("keep", Keep()).globalGrouping("spout")
    with begun(builder.createTopology(), tmp_path) as driver, pytest.raises(ConfigError, match=message):
        driver.closeTime()
