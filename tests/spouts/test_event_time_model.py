"""Event time under random schedules, against a plain reference: scripts, idle partitions, restarts and crashes."""

import random
from datetime import timedelta

import pytest

from statefx import TopologyBuilder
from statefx.testing import Crash, Limits
from tests.spouts import timed
from tests.spouts.timed import (
    START,
    Emitted,
    EmittedEnds,
    Ends,
    Opaque,
    OpaqueEnds,
    Planned,
    PlannedEnds,
    Relay,
    Watch,
    Whole,
    seen,
)

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


@pytest.mark.parametrize("seed", range(6))
def test_with_several_in_flight_it_may_lag_and_never_goes_back(seed, tmp_path):
    chance = random.Random(seed)
    source = Source(chance, [Planned, Opaque])
    source.idle = None
    of = topology([source], 1, 1)
    config = {"topology.max.spout.pending": PENDING}
    with timed.begun(of, tmp_path, config=config, now=START + timedelta(minutes=1), seed=seed) as driver:
        driver.drain()
        rounds = list(seen(driver).values())[:ROUNDS]
        whole = expected([source], [each[2] for each in rounds], [rounds[0][2]] * ROUNDS)
        lowest = float("-inf")
        most = [lowest if each is None else each for each in whole]
        found = [lowest if each[1] is None else each[1] for each in rounds]
        assert found == sorted(found)
        for number, watermark in enumerate(found):
            assert watermark <= most[number]
            assert number < PENDING or watermark >= most[number - PENDING], "it lags by no more than what was in flight"


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
    driver.close()


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
