"""Event time of spouts: the watermark in tasks, what holds it, and that it never goes back."""

import pickle
import random
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from statefx import BasicBolt, BatchBolt, PartitionedTransactionalSpout, TopologyBuilder
from statefx.coordinator.times import Numbers
from statefx.errors import FailedException, TopologyError
from statefx.log.log import read_state
from statefx.storage import FolderStorage
from statefx.testing import Crash, Limits
from statefx.testing.faults import HooksFail, JobFails
from tests.spouts import timed
from tests.spouts.timed import (
    START,
    Emitted,
    EmittedEnds,
    Ends,
    Living,
    Opaque,
    OpaqueEnds,
    Planned,
    PlannedEnds,
    Relay,
    Watch,
    Whole,
    begun,
    secs,
    seen,
    watermarks,
)

KINDS = [Whole, Planned, Emitted, Opaque]
EACH = pytest.mark.parametrize("kind", KINDS)


def ran(script, place, kind=Planned, **options):
    """Run a script to its end; return the watermarks."""
    with timed.begun(timed.topology(kind(script), **options), place) as tester:
        for _ in script:
            tester.emit()
        return watermarks(tester)


@EACH
def test_it_is_the_greatest_time_less_the_lateness(kind, tmp_path):
    script = [[[10, 30, 20]], [[25]], [[40]]]
    assert ran(script, tmp_path, kind, lateness="5 seconds") == [25, 25, 35]


def test_tuples_of_a_spout_that_lives_in_its_task_move_it(tmp_path):
    timed.FED[:] = [[[10, 30], [50]], [[20], [21]]]
    with timed.begun(timed.topology(Living(), tasks=2, lateness="1 second"), tmp_path) as tester:
        tester.drain()
        assert watermarks(tester)[-1] == 20


def test_more_lateness_after_a_restart_does_not_take_it_back(tmp_path):
    script = [[[100]], [[110]], [[200]]]
    tester = timed.begun(timed.topology(Planned(script)), tmp_path)
    tester.emit()
    tester.close()
    tester = tester.restart(timed.topology(Planned(script), lateness="1 minute"))
    tester.drain()
    assert watermarks(tester) == [100, 100, 140]


def test_an_attempt_that_is_rolled_back_leaves_nothing_of_it(tmp_path):
    class Opaquely(Opaque):
        def emitPartitionBatch(self, attempt, collector, partition, lastMetadata):
            if attempt.attempt == 0:
                collector.emit((partition, timed.at(1000)))
            return super().emitPartitionBatch(attempt, collector, partition, lastMetadata)

    class Fails(Relay):
        def open(self, context):
            self.context = context

        def execute(self, tup, collector):
            if self.context.attempt == 0:
                collector.fail(tup)
            super().execute(tup, collector)

    builder = TopologyBuilder("timed")
    builder.setSpout("spout", Opaquely([[[10]]]), timestamp="at")
    builder.setBolt("fails", Fails()).shuffleGrouping("spout")
    builder.setBolt("watch", Watch()).fieldsGrouping("fails", "partition")
    with timed.begun(builder.createTopology(), tmp_path) as tester:
        tester.emit()
        assert watermarks(tester) == [10]


# ---- several inputs


def two(first, second, **times):
    builder = TopologyBuilder("two")
    builder.setSpout("first", first, timestamp="at")
    builder.setSpout("second", second, **times)
    watch = builder.setBolt("watch", Watch())
    watch.fieldsGrouping("first", "partition").fieldsGrouping("second", "partition")
    return builder.createTopology()


def test_an_input_without_event_time_does_not_hold_it(tmp_path):
    of = two(Planned([[[10]], [[20]]]), Whole([[[1]], [[1]]]))
    with timed.begun(of, tmp_path) as tester:
        tester.drain()
        assert watermarks(tester) == [10, 20]


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_a_partition_that_wakes_up_holds_it_in_any_task(tasks, tmp_path):
    """Of two tasks, the one that reads partitions 0 and 2 has come to 10 when 0 brings its first row."""
    script = [[[], [5], [10]], [[], [5], [10]], [[3], [8], []], [[9], [], []]]
    of = timed.topology(Planned(script), tasks, idleAfter="1 minute")
    with timed.begun(of, tmp_path) as driver:
        for _ in script:
            driver.emit()
            driver.advance(31)
            driver.advance(31 if driver.txid == 1 else 0)
        assert watermarks(driver) == [None, 5, 5, 8]


def test_nobody_is_idle_right_after_a_week_of_standing_still(tmp_path):
    """What came meanwhile waits in all partitions, and need not be read in one transaction."""
    script = [[[10], [10]], [[20], []], [[30], [15]]]
    tester = timed.begun(timed.topology(Planned(script), idleAfter="1 minute"), tmp_path)
    tester.emit()
    tester.close()
    tester = tester.restart(now=START + timedelta(days=7))
    tester.drain()
    assert watermarks(tester) == [10, 10, 15]


@pytest.mark.parametrize("secs", [-3600, -40, -2, 40, 3600])
def test_nobody_is_idle_since_the_clock_was_set(secs, tmp_path):
    """A partition without a row in just the transaction after it is not one that had none since the driver began."""
    script = [[[10], [10]], [[20], [15]], [[30], []], [[40], []], [[50], [18]]]
    with timed.begun(timed.topology(Planned(script), idleAfter="1 minute"), tmp_path) as driver:
        for number in range(len(script)):
            driver.advance(100 if number == 1 else 1)
            if number == 2:
                driver._began += secs
            driver.emit()
        assert watermarks(driver) == [10, 15, 15, 15, 18]


class Commits(Watch):
    """Has something to do at each commit."""

    def preCommit(self, txid):
        pass


class Away(Planned):
    """Can't say what there is as often as it is told to."""

    times = []
    unready = []

    def isReady(self):
        return not (self.unready and self.unready.pop())

    def planPartitionBatch(self, partition, lastMetadata):
        if self.times:
            raise FailedException(self.times.pop())
        return super().planPartitionBatch(partition, lastMetadata)


def fail(driver):
    driver.inject(JobFails(), JobFails())


def commit_later(driver):
    driver.inject(HooksFail(), HooksFail())
    driver.when("pause", lambda: driver.advance(300))


def fail_to_plan(driver):
    Away.times[:] = ["away"]
    driver.when("pause", lambda: driver.advance(300))


def wait_for_a_spout(driver):
    Away.unready[:] = [True]
    assert driver.emit() is None
    driver.advance(300)


def pause(driver):
    driver._coordinator.hold(True)
    driver.advance(300)
    driver._coordinator.hold(False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("stand_still", [fail, commit_later, fail_to_plan, wait_for_a_spout, pause])
def test_windows_are_those_of_a_run_in_which_nothing_stood_still(stand_still, seed, tmp_path):
    """What comes meanwhile waits in all partitions: none is idle for having had no row in that time (rule 14.5)."""
    chance = random.Random(seed)
    script = [[[10 * number], [10 * number - 5] if chance.random() < 0.4 else []] for number in range(12)]
    breaks = [0, *chance.sample(range(1, 11), 3)]
    secs = [chance.choice([5, 20, 40]) for _ in script]

    def run(place, stand_still):
        builder = TopologyBuilder("stands")
        builder.setSpout("spout", Away(script), timestamp="at", idleAfter="1 minute")
        builder.setBolt("watch", Commits()).fieldsGrouping("spout", "partition")
        config = {"topology.transaction.retry.delay.ms": 120_000}
        with begun(builder.createTopology(), place, config=config) as driver:
            for number in range(len(script)):
                driver.advance(secs[number])
                if number in breaks:
                    stand_still(driver)
                driver.emit()
            return watermarks(driver), driver._time() - START.timestamp()

    wanted, lasted = run(tmp_path / "smooth", lambda driver: None)
    assert len(set(wanted)) > 3, "it gets on while a partition is idle"
    found, took = run(tmp_path / "breaks", stand_still)
    assert took > lasted + 300
    assert found == wanted


# ---- times that are wrong


def test_a_row_from_the_far_future_does_not_move_it_and_is_told_once(tmp_path, caplog):
    far = datetime(2300, 1, 1, tzinfo=UTC)
    with timed.begun(timed.topology(Planned([[[10, far, None]], [[far, 20]]])), tmp_path) as tester:
        tester.emit()
        assert tester._transactions[-1].progress.as_dict()["rowsAhead"] == {"spout": 1}
        tester.emit()
        assert watermarks(tester) == [10, 20]
    assert caplog.text.count("further ahead of this machine's clock than maxAhead") == 1
    assert "1 rows of 'spout'" in caplog.text


def test_maxahead_is_by_the_clock_of_the_driver(tmp_path):
    script = [[[0, 3600 + 60]], [[0, 3600 + 61]]]
    assert ran(script, tmp_path / "a", maxAhead="1 minute") == [3660, 3660]


@pytest.mark.parametrize("years", [1, 1969, 1677])
def test_times_of_long_ago(years, tmp_path):
    time = datetime(years, 1, 1, tzinfo=UTC)
    assert ran([[[time]]], tmp_path) == [secs(time)]


def test_a_watermark_before_the_first_year_is_shown_as_its_beginning(tmp_path):
    found = ran([[[datetime(1, 1, 1, tzinfo=UTC)]]], tmp_path, lateness="1000 days")
    assert found == [secs(datetime.min.replace(tzinfo=UTC))]


def test_a_time_without_a_zone_is_utc(tmp_path):
    assert ran([[[datetime(2026, 1, 1, 0, 0, 7)]]], tmp_path) == [7]


# ---- what bolts make of it


def test_a_bolt_gives_its_output_times_of_its_own(tmp_path):
    class Parse(BasicBolt):
        outputFields = "partition int, at timestamp"

        def execute(self, tup, collector):
            collector.emit((tup.partition, tup.at + timedelta(hours=-1)))

    builder = TopologyBuilder("parsed")
    builder.setSpout("spout", Planned([[[3610, 3620], [3700]], [[3630], []]]), 2)
    parse = builder.setBolt("parse", Parse(), 2, timestamp="at", lateness="5 seconds")
    parse.shuffleGrouping("spout")  # each task reads the partition of its number
    builder.setBolt("watch", Watch()).fieldsGrouping("parse", "partition")
    with timed.begun(builder.createTopology(), tmp_path) as tester:
        tester.drain()
        assert watermarks(tester) == [15, 25]


def test_finishbatch_sees_the_new_one_and_what_it_emits_has_times_that_count(tmp_path):
    class Batch(BatchBolt):
        outputFields = "partition int, at timestamp"

        def open(self, context):
            self.context = context

        def execute(self, tup, collector):
            self.before = self.context.watermark

        def finishBatch(self, collector):
            assert self.before is None or self.before < self.context.watermark
            collector.emit((0, self.context.watermark + timedelta(hours=1)))

    builder = TopologyBuilder("batches")
    builder.setSpout("spout", Planned([[[10]], [[20]]]), timestamp="at")
    builder.setBolt("batch", Batch(), timestamp="at", maxAhead="2 hours").shuffleGrouping("spout")
    builder.setBolt("watch", Watch()).fieldsGrouping("batch", "partition")
    with timed.begun(builder.createTopology(), tmp_path) as tester:
        tester.drain()
        assert watermarks(tester) == [3610, 3620]


@pytest.mark.parametrize("kind", [Whole, Planned])
def test_the_slower_of_two_streams_of_a_spout_holds_it_if_it_is_read(kind, tmp_path):
    class Both(kind):
        outputFields = {"default": "partition int, at timestamp", "slow": "late timestamp"}

        def emit(self, collector, number, partition):
            super().emit(collector, number, partition)
            for _, time in self.rows(number, partition):
                collector.emit((time - timedelta(seconds=5),), stream="slow")

    def ended(folder, reads):
        builder = TopologyBuilder("streams")
        builder.setSpout("spout", Both([[[10]], [[30]]]), timestamp={"default": "at", "slow": "late"})
        watch = builder.setBolt("watch", Watch()).fieldsGrouping("spout", "partition")
        if reads:
            watch.globalGrouping("spout", stream="slow")
        with timed.begun(builder.createTopology(), folder) as tester:
            tester.drain()
            return watermarks(tester)

    assert ended(tmp_path / "both", reads=True) == [5, 25]
    assert ended(tmp_path / "one", reads=False) == [10, 30], "nobody waits for a stream that nobody reads"


def test_processing_time_is_that_of_the_attempt(tmp_path):
    with timed.begun(timed.topology(Planned([[[10]], [[20]]]), width=2), tmp_path) as tester:
        tester.emit()
        tester.advance(7)
        tester.emit()
        now = START + timedelta(hours=1)
        for task in (0, 1):
            assert [each[2] for each in seen(tester, task).values()] == [now, now + timedelta(seconds=7)]


def test_last_progress_tells_of_each_component(tmp_path):
    with timed.begun(timed.topology(Planned([[[10]]]), relay=1), tmp_path) as tester:
        sent = tester.emit()
        told = (START + timedelta(seconds=10)).isoformat()
        assert sent.progress.as_dict()["watermarks"] == {"spout": told, "relay": told, "watch": told}


def test_without_timestamp_nothing_of_it_is_in_the_log(tmp_path):
    with timed.begun(timed.topology(Planned([[[10]]]), timestamp=None), tmp_path) as tester:
        tester.emit()
        assert watermarks(tester) == [None]
        state = read_state(FolderStorage(tester._folders.location))
        assert (state.watermarks, state.unit_times) == ({}, {})


# ---- what is refused


class Typed(Planned):
    outputFields = {"default": "at timestamp, day date, text string, secs long, local timestamp_ntz", "other": "n int"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timestamp": "when"}, "names the field 'when' of stream 'default'; its fields are at, day"),
        ({"timestamp": {"late": "at"}}, "names the stream 'late'; its streams are default, other"),
        ({"timestamp": "day"}, r"'day' has the type date, .* as by to_timestamp\(field\)"),
        ({"timestamp": "text"}, r"'text' has the type string, .* as by to_timestamp\(field\)"),
        ({"timestamp": "secs"}, r"'secs' has the type bigint, .* as by timestamp_seconds\(field\)"),
        ({"timestamp": "local"}, r"'local' has the type timestamp_ntz, .* it says nothing of the zone"),
        ({"timestamp": {"other": "n"}}, r"'n' has the type int, .* timestamp_seconds"),
        ({"timestamp": {}}, "names no field"),
        ({"timestamp": 5}, "names the field 5"),
        ({"timestamp": "at", "lateness": "soon"}, "spout 'spout': lateness is a time, such as"),
        ({"timestamp": "at", "maxAhead": 5}, "spout 'spout': maxAhead is a time, such as"),
        ({"timestamp": "at", "idleAfter": "1"}, "spout 'spout': idleAfter is a time, such as"),
        ({"lateness": "1 minute"}, "spout 'spout': lateness needs event time"),
        ({"idleAfter": "1 minute"}, "spout 'spout': idleAfter needs event time"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_remedy(options, message):
    with pytest.raises(TopologyError, match=message):
        TopologyBuilder("wrong").setSpout("spout", Typed([]), **options)


@pytest.mark.parametrize("pending", [1, 2])
def test_what_finished_partitions_had_in_flight_counts(pending, tmp_path):
    """The task that finishes them does not know yet what the transaction before has had."""
    builder = TopologyBuilder("finished")
    builder.setSpout("spout", PlannedEnds([[[100], []], [[5], [6]]], [1, 1]), timestamp="at")
    builder.setBolt("watch", Watch()).globalGrouping("spout").setTicks(60)
    config = {"topology.max.spout.pending": pending}
    with begun(builder.createTopology(), tmp_path, config=config) as driver:
        driver.drain()
        driver.advance(61)
        driver.emit()
        assert watermarks(driver)[-1] == 100


@pytest.mark.parametrize("seed", range(20))
def test_numbers_are_those_that_came_in_whatever_order(seed):
    chance = random.Random(seed)
    came = chance.sample(range(30), chance.randint(0, 30))
    cuts = sorted(chance.randint(0, len(came)) for _ in range(4))
    numbers = Numbers(came[: cuts[0]])
    for start, stop in pairwise([*cuts, len(came)]):
        numbers.update(came[start:stop])
    for stop in (0, *cuts, 30, 35):
        assert numbers.lacking(stop) == [number for number in range(stop) if number not in came]
    assert [number for number in range(-1, 35) if number in numbers] == sorted(came)


@pytest.mark.parametrize("open_now", [[], [0], [0, 7, 9_998]])
def test_partitions_that_are_finished_cost_nothing_beside_some_that_stay_open(open_now):
    numbers = Numbers()
    for number in range(10_000):
        if number not in open_now:
            numbers.update([number])
    assert len(pickle.dumps(numbers)) < 200
    assert numbers.lacking(10_001) == [*open_now, 10_000]


class Forgetting(PartitionedTransactionalSpout):
    """What it finds at each look is told: how many partitions, the times and the end of each, and whom it forgets."""

    outputFields = "partition int, at timestamp"
    looks: ClassVar[list[Any]] = []

    def numPartitions(self):
        self.count, self.found, self.forgotten = self.looks.pop(0) if self.looks else (0, {}, ())
        Forgetting.most = max(Forgetting.most, self.count)
        return Forgetting.most

    def planPartitionBatch(self, partition, lastMetadata):
        return self.found.get(partition)

    def partitionsToForget(self):
        return self.forgotten

    def isFinished(self, partition, metadata):
        return metadata is None or "end" in metadata

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        for each in metadata["at"]:
            collector.emit((partition, timed.at(each)))


def forgetting(place, monkeypatch, *looks, **options):
    monkeypatch.setattr(Forgetting, "looks", list(looks))
    monkeypatch.setattr(Forgetting, "most", 0, raising=False)
    builder = TopologyBuilder("forgets")
    builder.setSpout("spout", Forgetting(), timestamp="at")
    builder.setBolt("watch", Watch()).globalGrouping("spout")
    return begun(builder.createTopology(), place, **options)


END_OF_0 = {"at": [1], "end": True}


@pytest.mark.slow
def test_a_partition_that_comes_with_a_start_is_not_taken_for_a_forgotten_one(tmp_path, monkeypatch):
    """Nothing is planned of it at first, and something of one with a greater number."""
    tester = forgetting(tmp_path, monkeypatch, (2, {0: END_OF_0, 1: {"at": [5]}}, ()), (2, {1: {"at": [6]}}, (0,)))
    for _ in range(2):
        tester.emit()
    with tester.restart() as other:
        for found in ({1: {"at": [100]}, 3: {"at": [90]}}, {2: {"at": [50]}}, {2: {"at": [95]}}):
            Forgetting.looks.append((4, found, ()))
            other.emit()
        assert watermarks(other) == [5, 6, 6, 50, 90]


@pytest.mark.slow
def test_a_partition_that_is_forgotten_in_flight_holds_it_with_its_last_rows_after_a_crash(tmp_path, monkeypatch):
    looks = (2, {0: {"at": [1]}, 1: {"at": [50]}}, ()), (2, {0: END_OF_0}, ()), (2, {1: {"at": [60]}}, (0,))
    pending = {"config": {"topology.max.spout.pending": 4}}
    with forgetting(tmp_path / "rehearsal", monkeypatch, *looks, **pending) as rehearsal:
        rehearsal.drain()
        at = rehearsal.steps.index("after PREPARING(3, 0)") + 1
        assert at < rehearsal.steps.index("before COMMITTING(1, 0)")
    with pytest.raises(Crash):
        forgetting(tmp_path / "ck", monkeypatch, *looks, **pending, crash_at=at).drain()
    with forgetting(tmp_path / "ck", monkeypatch, (2, {}, ()), **pending) as other:
        other.drain()
        assert watermarks(other)[:2] == [1, 1]


# ---- Event time under random schedules, against a plain reference: scripts, idle partitions, restarts and crashes.


ROUNDS, PENDING = 8, 4


class Source:
    def __init__(self, chance, kinds, paces=(0,)):
        self.parts = chance.randint(1, 3)
        self.pace = [chance.choice(paces) for _ in range(self.parts)]
        self.kind = chance.choice(kinds)
        # A spout without partitions has a task for each part of the script: those are what gets on.
        self.tasks = self.parts if self.kind is Whole else chance.randint(1, 3)
        self.lateness = chance.choice([0, 0, 7])
        self.idle = chance.choice([None, None, 20])
        self.ends = [None] * self.parts
        self.script = [[self.rows(chance, number, pace) for pace in self.pace] for number in range(ROUNDS)]

    def rows(self, chance, number, pace):
        if chance.random() < 0.4:
            return []
        near = [pace + number * 10 + chance.randint(-15, 15) for _ in range(chance.randint(1, 4))]
        return [chance.choice([secs, secs, secs, None, secs + 100_000]) for secs in near]

    def end(self, chance):
        self.ends = [chance.choice([None, *range(ROUNDS), ROUNDS - 1]) for _ in range(self.parts)]
        for number, parts in enumerate(self.script):
            for part, end in enumerate(self.ends):
                if end is not None and number > end:
                    parts[part] = []

    def spout(self):
        return self.kind(self.script, self.ends) if issubclass(self.kind, Ends) else self.kind(self.script)

    def options(self):
        found = {"timestamp": "at", "maxAhead": "1 day"}
        if self.lateness:
            found["lateness"] = f"{self.lateness} seconds"
        if self.idle:
            found["idleAfter"] = f"{self.idle} seconds"
        return found

    def units(self, clocks, starts):
        """Yield for each round the watermark of each unit: None is unknown, "idle" does not hold.

        Those that are finished are one, which has come as far as the furthest, and counts where no other one holds.
        """
        greatest, last = {}, {}
        for number, (clock, start, parts) in enumerate(zip(clocks, starts, self.script, strict=False)):
            units = []
            for part, end in enumerate(self.ends):
                ahead = clock + timedelta(days=1)
                times = [secs for secs in parts[part] if secs is not None and timed.at(secs) <= ahead]
                if times:
                    greatest[part] = max([*times, greatest.get(part, min(times))])
                    last[part] = clock
                if end is None or number < end:
                    units.append(self.unit(part, greatest, last, clock, start))
                elif part in greatest:
                    greatest["finished"] = max(greatest.pop(part), greatest.get("finished", float("-inf")))
                    last["finished"] = clock
            if "finished" in greatest and all(unit == "idle" for unit in units):
                units = [self.unit("finished", greatest, last, clock, start)]
            yield units

    def unit(self, name, greatest, last, clock, start):
        since = max(start, last.get(name, start))
        idle = self.idle and clock - since >= timedelta(seconds=self.idle)
        return "idle" if idle else greatest[name] - self.lateness if name in greatest else None


def expected(sources, clocks, starts):
    """Return the watermark at the end of each round: the least of what is not idle, and never back."""
    found, watermark = [], None
    for rounds in zip(*(source.units(clocks, starts) for source in sources), strict=True):
        units = [unit for own in rounds for unit in own if unit != "idle"]
        if units and None not in units:
            watermark = min(units) if watermark is None else max(watermark, min(units))
        found.append(watermark)
    return found


def other_tasks(chance, sources, width):
    """Return a topology of the same sources with other numbers of tasks, and relays that come, go and are fused."""
    for source in sources:
        source.tasks = chance.randint(1, 4)
    return topology(sources, chance.choice([0, 1, 2, 3, sources[0].tasks]), width)


def topology(sources, relay, width):
    builder = TopologyBuilder("model")
    watch = builder.setBolt("watch", Watch(), width)
    for number, source in enumerate(sources):
        name = f"spout-{number}"
        builder.setSpout(name, source.spout(), source.tasks, **source.options())
        if relay:
            builder.setBolt(f"relay-{number}", Relay(), relay).shuffleGrouping(name)
            name = f"relay-{number}"
        watch.fieldsGrouping(name, "partition")
    return builder.createTopology()


def drive(chance, of, place, crashes, again=None):
    """Run all rounds, with time that passes, restarts and crashes; return when each driver began by generation.

    `again` makes the topology of each further start.
    """
    began, clock = {}, START + timedelta(minutes=1)
    driver = None
    while driver is None or driver.txid < ROUNDS:
        try:
            if driver is None:
                crash = chance.randint(10, 60) if crashes and chance.random() < 0.7 else None
                # A small log is folded often, and small orders go by a file.
                limits = Limits(fold_after=chance.choice([2, 100]))
                options = {"now": clock, "crash_at": crash, "seed": chance.randint(0, 99), "limits": limits}
                driver = timed.begun(of, place, **options)
            clock += timedelta(seconds=chance.choice([0, 3, 11]))
            driver.advance((clock - START).total_seconds() - (driver._time() - START.timestamp()))
            began.setdefault(driver.generation, clock)
            driver.emit()
            if chance.random() < (0.25 if again is None else 0.5):
                driver.close()
                driver = None
        except Crash:
            driver = None
        of = of if again is None else again()
    return driver, began


def some(lives):
    """Return seeds of which `make test` plays six."""
    return [*range(6), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(6, lives))]


@pytest.mark.slow
@pytest.mark.parametrize("seed", some(20))
def test_every_task_sees_what_the_reference_says(seed, tmp_path):
    chance = random.Random(seed)
    sources = [Source(chance, [Whole, Planned, Emitted, Opaque]) for _ in range(chance.randint(1, 2))]
    width = chance.randint(1, 2)
    of = topology(sources, chance.choice([0, 1, 2]), width)
    driver, began = drive(chance, of, tmp_path, crashes=seed % 2 == 1)
    for task in range(width):
        rounds = list(seen(driver, task).values())[:ROUNDS]  # behind it there may be an empty one, after a restart
        clocks, starts = [each[2] for each in rounds], [began[each[3]] for each in rounds]
        after = expected(sources, clocks, starts)
        assert [each[1] for each in rounds] == after
        assert [each[0] for each in rounds] == [None, *after[:-1]], "what execute saw"
    driver.close()


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize("seed", some(16))
def test_other_tasks_at_each_start_move_no_watermark(seed, tmp_path):
    """What a partition has reached is the partition's: which task reads it, and with which others, changes nothing."""
    chance = random.Random(seed)
    sources = [Source(chance, [Planned, Emitted, Opaque], paces=(0, 50, 200)) for _ in range(chance.randint(1, 2))]
    width = chance.randint(1, 2)

    def again():
        return other_tasks(chance, sources, width)

    driver, began = drive(chance, again(), tmp_path, chance.random() < 0.3, again)
    for task in range(width):
        rounds = list(seen(driver, task).values())[:ROUNDS]
        assert [each[1] for each in rounds] == expected(
            sources, [each[2] for each in rounds], [began[each[3]] for each in rounds]
        )
    driver.close()


@pytest.mark.slow
@pytest.mark.parametrize("idle", [None, 20])
@pytest.mark.parametrize("seed", range(7, 13))
def test_with_several_in_flight_it_may_lag_and_never_goes_back(seed, idle, tmp_path):
    """Whoever has had rows in one that is in flight is not idle; one that wakes there was so before."""
    chance = random.Random(seed)
    source = Source(chance, [Planned, Opaque], paces=(0, 50))
    source.idle = idle
    of = topology([source], 1, 1)
    config = {"topology.max.spout.pending": PENDING}
    with timed.begun(of, tmp_path, config=config, now=START + timedelta(minutes=1), seed=seed) as driver:
        for txid in range(1, ROUNDS + 1):
            driver.when(f"before PREPARING({txid}, 0)", partial(driver.advance, chance.choice([3, 9, 15])))
        driver.drain()
        rounds = list(seen(driver).values())[:ROUNDS]
        clocks, lowest = [each[2] for each in rounds], float("-inf")
        whole = expected([source], clocks, [clocks[0]] * ROUNDS)
        most = [lowest if each is None else each for each in whole]
        found = [lowest if each[1] is None else each[1] for each in rounds]
        assert found == sorted(found)
        units = list(source.units(clocks, [clocks[0]] * ROUNDS))
        bound = lowest
        for number, watermark in enumerate(found):
            recent = list(zip(*units[max(0, number - PENDING) : number + 1], strict=True))
            held = [lowest if part[-1] is None else part[-1] for part in recent if "idle" not in part]
            bound = max(bound, min(held, default=float("inf")))
            assert watermark <= (most[number] if idle is None else bound)
            late = number >= PENDING and idle is None
            assert not late or watermark >= most[number - PENDING], "it lags by no more than what was in flight"


@pytest.mark.daily(3)
@pytest.mark.slow
@pytest.mark.parametrize("seed", some(20))
def test_finished_partitions_hold_no_watermark(seed, tmp_path):
    chance = random.Random(seed)
    kinds = [PlannedEnds, EmittedEnds, OpaqueEnds]
    sources = [Source(chance, kinds, paces=(0, 50, 200)) for _ in range(chance.randint(1, 2))]
    for source in sources:
        source.end(chance)

    def again():
        return other_tasks(chance, sources, 1)

    driver, began = drive(chance, again(), tmp_path, chance.random() < 0.3, again)
    rounds = list(seen(driver).values())[:ROUNDS]
    clocks, starts = [each[2] for each in rounds], [began[each[3]] for each in rounds]
    assert [each[1] for each in rounds] == expected(sources, clocks, starts)
    left = set(read_state(FolderStorage(tmp_path)).unit_times)
    finished = {
        f"spout-{number}/{part}"
        for number, one in enumerate(sources)
        for part in range(one.parts)
        if one.ends[part] is not None
    }
    assert not left & finished, "they are one unit, however many they are"
    driver.close()


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(3, 1), (2, 4), (3, 2), (1, 2)])
@pytest.mark.parametrize("own_times", [False, True])
def test_other_tasks_come_as_far_as_the_slowest_had(own_times, before, after, tmp_path):
    """Without partitions the shares are the tasks': after a start with others each may hold rows of the slowest."""
    first = [[100 * (before - task) + 10] for task in range(before)]
    script = [first, [[5], *[[900] for _ in range(after - 1)]], [[1000] for _ in range(after)]]

    def of(tasks):
        builder = TopologyBuilder("shares")
        name, times = "spout", {"timestamp": "at"}
        builder.setSpout(name, Whole(script), tasks, **({} if own_times else times))
        if own_times:
            name = "parse"
            builder.setBolt(name, Relay(), tasks, **times).shuffleGrouping("spout")
        builder.setBolt("watch", Watch()).fieldsGrouping(name, "partition")
        return builder.createTopology()

    with timed.begun(of(before), tmp_path) as driver:
        driver.emit()
    with timed.begun(of(after), tmp_path) as driver:
        driver.drain()
        assert timed.watermarks(driver) == [110, 110, 1000]
