"""Spouts that nothing comes from: when transactions begin, what stands still, what is away, what does not return."""

import itertools
import logging

import pyarrow as pa
import pytest

from statefx import BasicBolt, Context, Spout, TopologyBuilder, WindowedBolt
from statefx.connectors import MemoryTransactionalSpout
from statefx.coordinator.progress import SLOW_SECS, Progress
from statefx.coordinator.retrying import StoppedError
from statefx.coordinator.spouts import SpoutTrigger
from statefx.coordinator.times import AGAIN_MS, STILL_MS
from statefx.errors import BoltError, FailedException
from statefx.logs import iso
from statefx.protocol.identity import TaskId
from statefx.protocol.reports import TreeReport
from statefx.runtime import tracked_spout_task, user_objects
from statefx.runtime.tracked_spout_task import HANGS_SECS, SpoutHost
from statefx.state.view.time_index import EPOCH
from statefx.testing import TopologyTester, rows
from tests.spouts import timed
from tests.spouts.numbers import ALL, topology
from tests.spouts.numbers import Count as CountNumbers
from tests.spouts.numbers import Planned as PlannedNumbers
from tests.spouts.timed import START, Planned, PlannedEnds, Watch, Whole, at, begun
from tests.testing.topologies import Count


def beginnings(tmp_path, pending, interval_secs, transactions=9, work_secs=0.0, slow=4):
    class Noted(MemoryTransactionalSpout):
        def planPartitionBatch(self, partition, lastMetadata):
            if (found := super().planPartitionBatch(partition, lastMetadata)) is not None:
                began.append(round(tester._now - start, 6))
            return found

    class Slow(Count):
        def execute(self, tup, collector):
            super().execute(tup, collector)
            tester._now += work_secs if len(began) <= slow else 0

    began, start = [], 0.0
    builder = TopologyBuilder("words")
    builder.setSpout("words", Noted([[("a",)] * transactions], "word string", takePerBatch=1))
    builder.setBolt("count", Slow()).globalGrouping("words")
    with TopologyTester(builder.createTopology(), tmp_path / "ck", {"topology.max.spout.pending": pending}) as tester:
        start = tester._now

        def pause(secs):
            tester._now += secs
            return len(began) < transactions

        tester._coordinator.pause = pause
        with pytest.raises(StoppedError):
            tester._driving(lambda: tester._run_spouts(SpoutTrigger(interval_secs)))
    return began


@pytest.mark.slow
def test_with_one_in_flight_one_begins_in_each_interval(tmp_path):
    assert beginnings(tmp_path, 1, 1.0) == pytest.approx(range(9), abs=0.11)


@pytest.mark.slow
def test_several_in_flight_begin_evenly_within_the_interval(tmp_path):
    assert beginnings(tmp_path, 4, 1.0) == pytest.approx([n / 4 for n in range(9)], abs=0.11)


@pytest.mark.slow
def test_with_no_interval_each_begins_as_soon_as_there_is_room(tmp_path):
    assert beginnings(tmp_path, 1, 0.0) == [0.0] * 9


@pytest.mark.slow
def test_who_is_late_does_not_hurry_afterwards(tmp_path):
    """Transactions that take longer than the interval follow one another; what was missed is not made up for."""
    slow = beginnings(tmp_path, 1, 1.0, work_secs=2.5)
    assert slow[:5] == pytest.approx([0, 2.5, 5, 7.5, 10], abs=0.11)
    assert slow[5:] == pytest.approx([11, 12, 13, 14], abs=0.11)


@pytest.mark.slow
@pytest.mark.parametrize("slow", [1, 2, 3])
@pytest.mark.parametrize("work_secs", [1.3, 1.9, 2.1])
def test_the_interval_counts_from_a_late_beginning(tmp_path, work_secs, slow):
    """Else the transaction behind one that took nearly two intervals would begin at once."""
    began = beginnings(tmp_path, 1, 1.0, work_secs=work_secs, slow=slow)
    assert began[1] == pytest.approx(work_secs, abs=0.11)
    assert min(after - before for before, after in itertools.pairwise(began)) > 0.89


def test_a_spout_that_has_nothing_is_asked_ever_more_seldom_until_it_has(tmp_path):
    """50 times a second at first, ten times at last; after a row as often as at first."""
    looks, began, ready = [], [], [10.05, 10.5]

    class Resting(MemoryTransactionalSpout):
        def isReady(self):
            looks.append(tester._now)
            return tester._now >= ready[len(began)]

        def planPartitionBatch(self, partition, lastMetadata):
            began.append(tester._now)
            return super().planPartitionBatch(partition, lastMetadata)

    builder = TopologyBuilder("words")
    builder.setSpout("words", Resting([[("a",)] * 2], "word string", takePerBatch=1))
    builder.setBolt("count", Count()).globalGrouping("words")
    with TopologyTester(builder.createTopology(), tmp_path / "ck") as tester:

        def pause(secs):
            tester._now += secs
            return len(began) < 2

        tester._coordinator.pause = pause
        with pytest.raises(StoppedError):
            tester._driving(lambda: tester._run_spouts(SpoutTrigger(0.1)))
    before = [at for at in looks if at <= began[0]]
    after = [at for at in looks if at > began[0]]
    assert len(before) < 110
    waits = [later - earlier for earlier, later in itertools.pairwise(before)]
    assert waits[:5] == pytest.approx([0.02, 0.04, 0.08, 0.1, 0.1])
    assert waits[-1] == pytest.approx(0.1)
    assert began[0] <= ready[0] + 0.1
    waits = [later - earlier for earlier, later in itertools.pairwise(after)]
    assert waits[:3] == pytest.approx([0.02, 0.04, 0.08])


# ---- A warning names what holds event time while rows come, once in ten minutes.


ROUNDS = 40


def warnings(caplog):
    return [
        record.message
        for record in caplog.records
        if record.message.partition("event time has ")[2].startswith(("stood still at", "not begun for"))
    ]


def ran(driver, secs=30):
    for _ in range(ROUNDS):
        driver.emit()
        driver.advance(secs)


def two(past, live):
    """Return a topology whose bolt reads from a spout that has ended, and from one that goes on."""
    builder = TopologyBuilder("two")
    watch = builder.setBolt("watch", Watch())
    for name, spout in (("past", past), ("live", live)):
        builder.setSpout(name, spout, timestamp="at", idleAfter="1 hour" if name == "live" else None)
        watch.fieldsGrouping(name, "partition")
    return builder.createTopology()


LIVE = [[[n]] for n in range(ROUNDS)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("past", "named"),
    [
        (PlannedEnds([[[3]]], [0]), "spout 'past', whose partitions are all finished or idle,"),
        (PlannedEnds([[[3], [2]], [[], [1]]], [0, 1]), "spout 'past', whose partitions are all finished or idle,"),
        (PlannedEnds([[[3], [5]]], [None, 0]), "partition 0 of spout 'past'"),
    ],
    ids=["finished", "later", "silent"],
)
def test_a_spout_that_has_ended_is_named_with_a_remedy_that_helps(past, named, tmp_path, caplog):
    with begun(two(past, Planned(LIVE)), tmp_path / "held") as driver:
        ran(driver)
        assert timed.watermarks(driver)[-1] == 3
    found = warnings(caplog)
    assert found
    assert f"{named} holds it, which has had rows up to 2026-01-01T00:00:03+00:00" in found[0]
    assert 'setSpout("past", ..., idleAfter="5 minutes")' in found[0]
    assert "isFinished" not in found[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "named"),
    [
        (
            timed.topology(Planned([[[n], [n] if n < 3 else []] for n in range(ROUNDS)]), 2),
            "partition 1 of spout 'spout' holds it, which has had rows up to 2026-01-01T00:00:02+00:00",
        ),
        (
            timed.topology(Whole([[[], [n]] for n in range(ROUNDS)]), 2, idleAfter="1 day"),
            "task 0 of spout 'spout' holds it, which has had no row yet",
        ),
        (
            timed.topology(PlannedEnds([[[n], [], []] for n in range(ROUNDS)], [None, 0, None])),
            "partition 2 of spout 'spout' holds it, which has had no row yet",
        ),
    ],
)
def test_the_slowest_is_named_with_the_remedy(of, named, tmp_path, caplog):
    with begun(of, tmp_path) as driver:
        ran(driver)
    found = warnings(caplog)
    # from a minute on, and then each ten minutes
    assert len(found) == 1 + (ROUNDS * 30_000 - STILL_MS) // AGAIN_MS
    assert named in found[0]
    assert 'setSpout("spout", ..., idleAfter="5 minutes")' in found[0] or "its idleAfter of 86400 s" in found[0]
    assert ("have isFinished of the spout say so" in found[0]) == ("partition" in named)


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "of",
    [
        timed.topology(Planned([[[n], [n]] for n in range(ROUNDS)]), 2),
        timed.topology(Planned([[[n], []] for n in range(ROUNDS)]), idleAfter="50 seconds"),
        timed.topology(PlannedEnds([[[n], []] for n in range(ROUNDS)], [None, 0])),
        timed.topology(Planned([[[n] if n < 2 else [], []] for n in range(ROUNDS)])),
        timed.topology(Planned([[[n], []] for n in range(ROUNDS)]), timestamp=None),
    ],
    ids=["it gets on", "idle", "finished", "no rows come", "no event time"],
)
def test_where_nothing_waits_nothing_is_warned_of(of, tmp_path, caplog):
    with begun(of, tmp_path) as driver:
        ran(driver)
    assert len(warnings(caplog)) == 0


def test_the_dataframe_without_rows_is_named(tmp_path, caplog):
    builder = TopologyBuilder("streams")
    watch = builder.setBolt("watch", Watch())
    for name in ("fast", "slow"):
        builder.setStream(name, rows("partition int, at timestamp"), timestamp="at")
        watch.fieldsGrouping(name, "partition")
    with TopologyTester(builder.createTopology(), tmp_path, now=START) as tester:
        for number in range(5):
            tester.send({"fast": [(0, at(number))]})
            tester.advance(30)
    [found] = warnings(caplog)
    assert "the DataFrame 'slow' holds it, which has had no row yet" in found
    assert 'setStream("slow", ..., idleAfter="5 minutes")' in found


# ---- A source that is away, or slow, is seen: in the status, and in what ends the driver.


class Away(PlannedNumbers):
    """`hook` of the driver's copy raises as often as ``config["failures"]`` says."""

    def __init__(self, folder, hook):
        super().__init__(folder)
        self.hook = hook

    def open(self, context):
        self.failures = context.config["failures"]

    def fail(self, hook):
        if hook == self.hook and self.failures:
            self.failures.pop()
            raise FailedException("the server is away")

    def isReady(self):
        self.fail("isReady")
        return True

    def numPartitions(self):
        self.fail("numPartitions")
        return super().numPartitions()

    def planPartitionBatch(self, partition, lastMetadata):
        self.fail("planPartitionBatch")
        return super().planPartitionBatch(partition, lastMetadata)


class CountsInWindows(WindowedBolt):
    outputFields = "word string"

    def execute(self, window, collector):
        for tup in window:
            collector.emit((tup.word,))


def started(tmp_path, hook, failures):
    return TopologyTester(topology(Away(tmp_path, hook)), tmp_path / "ck", {"failures": [None] * failures}, now=EPOCH)


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["isReady", "numPartitions", "planPartitionBatch"])
def test_the_status_says_why_nothing_is_read_and_since_when_until_the_spout_answers(hook, tmp_path):
    with started(tmp_path, hook, 2) as tester:
        seen = []

        def look():
            seen.append(tester.status["stuck"])
            if len(seen) < 3:  # the third is after the second failure
                tester.when("pause", look)

        tester.when("pause", look)
        tester.advance(5)
        tester.drain()
        assert "stuck" not in tester.status
        assert tester.state("count") == ALL
    reason = f"spout 'numbers', {hook}: the server is away"
    assert seen == [{"phase": "PLANNING", "txid": 1, "since": iso(tester._began + 5), "reason": reason}] * 3


def test_a_tester_whose_spout_stays_away_says_why_it_ends(tmp_path):
    with (
        started(tmp_path, "numPartitions", 1000) as tester,
        pytest.raises(StoppedError, match=r"stopped.*spout 'numbers', numPartitions: the server is away"),
    ):
        tester.emit()


def test_a_hook_that_takes_long_is_shown_while_it_runs():
    now = [0.0]
    progress = Progress(clock=lambda: now[0], now=lambda: 1000 + now[0])
    with progress.asking("numbers", "planPartitionBatch", 3):
        assert "stuck" not in progress.status()
        now[0] = SLOW_SECS
        assert progress.status()["stuck"] == {
            "phase": "PLANNING",
            "txid": 3,
            "since": "1970-01-01T00:16:40.000+00:00",
            "reason": "spout 'numbers' has been in planPartitionBatch on the driver for 10 s",
        }
    assert "stuck" not in progress.status()


def sleeping(asleep):
    """A topology whose second spout is not ready at some of its looks, by their numbers."""
    looks = itertools.count()

    class Sleeps(MemoryTransactionalSpout):
        def isReady(self):
            return next(looks) not in asleep

    builder = TopologyBuilder("words")
    minutes = CountsInWindows().withTumblingWindow("1 minute")
    declarer = builder.setBolt("minutes", minutes)
    for name, kind in (("awake", MemoryTransactionalSpout), ("sleeps", Sleeps)):
        fed = kind([[(name, at(0))] * 3], "word string, at timestamp", takePerBatch=1)
        builder.setSpout(name, fed, timestamp="at")
        declarer.globalGrouping(name)
    builder.setBolt("count", Count()).globalGrouping("minutes")
    return builder.createTopology()


@pytest.mark.parametrize("asleep", [{0}, {1}, {3}, {0, 1, 2}], ids=["at first", "amid", "at last", "for long"])
def test_a_run_that_ends_when_all_is_read_waits_for_a_spout_that_is_not_ready(asleep, tmp_path):
    with TopologyTester(sleeping(asleep), tmp_path, now=START) as tester:
        tester.closeTime()
        assert tester.state("count") == {"awake": 3, "sleeps": 3}
        assert "stuck" not in tester.status


def test_a_spout_that_such_a_run_waits_for_is_named(tmp_path):
    reason, seen = "spout 'sleeps' is not ready, and the query ends when all is read", []
    with TopologyTester(sleeping(range(1000)), tmp_path, now=START) as tester:
        tester.when("pause", lambda: seen.append(tester.status["stuck"]))
        with pytest.raises(StoppedError, match=reason):
            tester.drain()
    assert seen == [{"phase": "PLANNING", "txid": 1, "since": iso(tester._began), "reason": reason}]


class Breaks(PlannedNumbers):
    def planPartitionBatch(self, partition, lastMetadata):
        raise ValueError("no offsets")


def test_what_the_driver_s_copy_raises_is_said_to_be_of_the_driver(tmp_path):
    says = "spout 'numbers', on the driver, hook planPartitionBatch, transaction 1: ValueError: no offsets"
    with TopologyTester(topology(Breaks(tmp_path)), tmp_path / "ck") as tester, pytest.raises(BoltError, match=says):
        tester.emit()


def test_rows_of_the_progress_are_those_that_bolts_received(tmp_path):
    with TopologyTester(topology(PlannedNumbers(tmp_path)), tmp_path / "ck") as tester:
        done = tester.emit().progress
    assert done.rows == {"count": done.input_rows}
    assert done.input_rows


def test_a_stream_of_a_spout_is_not_said_to_be_a_bolt_s(tmp_path):
    builder = TopologyBuilder("direct")
    builder.setSpout("numbers", PlannedNumbers(tmp_path))
    builder.setBolt("count", CountNumbers()).directGrouping("numbers")
    says = r"spout 'numbers', task 0, .*transaction 1: stream 'default' of 'numbers' is read by 'count' with direct"
    with TopologyTester(builder.createTopology(), tmp_path / "ck") as tester, pytest.raises(BoltError, match=says):
        tester.emit()


# ---- A method of a spout that does not return: the driver warns, and names it.


class Calls(Spout):
    outputFields = "word string"

    def __init__(self, inside, *words):
        self.inside, self.left = inside, list(words)

    def nextTuple(self, collector):
        self.inside("nextTuple")
        if self.left:
            collector.emit((self.left[0],), id=self.left.pop(0))

    def ack(self, id):
        self.inside("ack")

    def fail(self, id):
        self.inside("fail")


class Alone:
    """A spout in its task, and another thread that looks, as the test says."""

    def __init__(self, *words):
        self.now, self.said, self.looks = 0.0, [], {}
        self.spout = Calls(self.inside, *words)
        self.spout.__dict__[user_objects._CONTEXT] = Context({}, "jobs", 3, 4, 1)
        schema = pa.schema([("word", pa.string())])
        self.host = SpoutHost(
            TaskId("jobs", 3), self.spout, {"default": schema}, 0, batch_secs=0.05, pending_max=None, clock=self.clock
        )

    def clock(self):
        return self.now

    def inside(self, name):
        for _ in range(self.looks.get(name, 0)):
            self.look()

    def look(self):
        """Look as with each sign of life, once a second."""
        self.now += 1
        self.said += filter(None, [self.host.hangs()])


def test_a_call_that_does_not_return_is_told_once_with_what_to_do():
    alone = Alone("a")
    alone.host.batch(1)
    alone.looks["nextTuple"] = int(HANGS_SECS)
    alone.host.ask()
    assert alone.said == []  # it has returned before its time was over
    alone.looks["nextTuple"] = int(HANGS_SECS) * 3
    alone.host.ask()
    alone.host.ask()
    (said,) = alone.said
    assert said == (
        "spout 'jobs', task 3: nextTuple has not returned for 10 s, and transactions, acks and fails wait for it: "
        "emit what there is now, and return without waiting for more; it is called again"
    )


@pytest.mark.parametrize(("failed", "name"), [({}, "ack"), ({"bolt 'check': no": None}, "fail")])
def test_acks_and_fails_are_told_too(failed, name):
    alone = Alone("a")
    ((*_, root),) = alone.host.batch(1)
    alone.looks[name] = int(HANGS_SECS) + 1
    alone.host.on_committed(1, TreeReport(dict.fromkeys(failed, (root,))))
    (said,) = alone.said
    assert said.startswith(f"spout 'jobs', task 3: {name} has not returned for 10 s")
    assert said.endswith("give what it calls a time-out")


def test_many_quick_calls_are_no_hanging_one():
    alone = Alone()
    alone.host.batch(1)
    alone.looks["nextTuple"] = 1
    for _ in range(5 * int(HANGS_SECS)):
        alone.host.ask()
    assert alone.said == []


def test_nothing_is_called_between_two_looks():
    alone = Alone()
    alone.host.batch(1)
    for _ in range(5 * int(HANGS_SECS)):
        alone.look()
    assert alone.said == []


@pytest.mark.slow
def test_the_driver_logs_it_and_nothing_else_changes(place, caplog, monkeypatch):
    class Check(BasicBolt):
        def execute(self, tup, collector):
            if tup.word == "bad":
                raise FailedException("bad")

    seen = []

    def inside(name):
        seen.append(name)
        for chain in tester._engine.runs[-1].chains.values():  # as the thread that reads from the driver does
            chain.alive()
            chain.alive()

    monkeypatch.setattr(tracked_spout_task, "HANGS_SECS", 0.0)
    monkeypatch.setattr(Calls, "__deepcopy__", lambda self, memo: Calls(inside, *self.left), raising=False)
    builder = TopologyBuilder("slow")
    builder.setSpout("jobs", Calls(None, "a", "bad"))
    builder.setBolt("check", Check()).globalGrouping("jobs")
    with caplog.at_level(logging.WARNING), TopologyTester(builder.createTopology(), place) as tester:
        tester.drain()
    assert {"nextTuple", "ack", "fail"} <= set(seen)
    warnings = [each.split(" has not")[0] for each in caplog.messages if "has not returned" in each]
    assert sorted(warnings) == [f"slow: spout 'jobs', task 0: {name}" for name in ("ack", "fail", "nextTuple")]
