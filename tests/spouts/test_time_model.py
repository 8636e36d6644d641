"""Event time, windows, timers, a time to live: all together under random schedules, against a plain reference.

Rows out of order, without a time and far ahead, several spouts and partitions, idle inputs, clocks that jump, restarts,
crashes, chains and connections that are lost. What each bolt emits is kept with its transaction, so that the reference
is asked in which one it has to come.
"""

import random
from collections import Counter
from datetime import timedelta

import pytest

from statefx import StatefulBolt, TopologyBuilder, WindowedBolt
from statefx.testing import Crash, Limits
from tests.bolts import WithState
from tests.runtime.recount import KINDS, Recount, windowed
from tests.spouts import timed
from tests.spouts.test_event_time import ROUNDS, Source
from tests.spouts.timed import START, Emitted, Opaque, Planned, Watch, Whole, secs, seen
from tests.testing.lives import seeds
from tests.testing.living import LivingTester

TTL = 15.5
WINDOWS = [kind for kind in KINDS if not kind.startswith("counted")]


class Keep(WithState):
    def execute(self, tup, collector):
        place = self.context.txid, tup._source, tup._stream, tup.what
        self.state.put(place, self.state.get(place, 0) + 1)


class Values(WindowedBolt):
    outputFields = "what string"

    def initWindow(self):
        return ()

    def addToWindow(self, value, tup):
        return (*value, secs(tup.at))

    def mergeWindows(self, a, b):
        return a + b

    def emitWindow(self, window, value, collector):
        collector.emit((repr((window.key, secs(window.start), secs(window.end), sorted(value))),))


class Tuples(WindowedBolt):
    outputFields = "what string"

    def execute(self, window, collector):
        numbers = sorted(secs(tup.at) for tup in window)
        collector.emit((repr((window.key, secs(window.start), secs(window.end), numbers)),))


class Late(StatefulBolt):
    outputFields = "what string"

    def initState(self, state):
        pass

    def execute(self, tup, collector):
        collector.emit((repr(("late", tup.partition, secs(tup.at))),))


class Timed(StatefulBolt):
    outputFields = "what string"

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.recent = state.map("recent", ttl=f"{TTL} seconds")

    def execute(self, tup, collector):
        now, key = self.context.processingTime, f"{tup._source}/{tup.partition}"  # rows of two spouts have no order
        collector.emit((repr(("recent", key, self.recent.get(key))),))
        self.recent.put(key, secs(now))
        self.timers.set(key, now + timedelta(seconds=after(tup.at)), processing=True)
        if tup.at is not None:
            self.timers.set(key, tup.at + timedelta(seconds=after(tup.at)))
            if int(secs(tup.at)) % 5 == 0:
                self.timers.delete(key)

    def onTimer(self, key, at, value, collector):
        collector.emit((repr(("timer", self.timers.fired.processing, key, secs(at))),))


def after(time):
    return 4 if time is None else 2 + int(secs(time)) % 7


class Timers:
    def __init__(self):
        self.set = {False: {}, True: {}}
        self.recent = {}

    def take(self, rows, watermark, clock):
        found = []
        for key, time in rows:
            seen_at = self.recent.get(key)
            alive = seen_at is not None and clock < seen_at + TTL
            found.append(("recent", key, seen_at if alive else None))
            self.recent[key] = clock
            self.set[True][key] = clock + after(timed.at(time))
            if time is not None:
                self.set[False][key] = time + after(timed.at(time))
                if int(time) % 5 == 0:
                    del self.set[False][key]
        for processing, limit in ((False, watermark), (True, clock)):
            for key, time in list(self.set[processing].items()):
                if limit is not None and time <= limit:
                    del self.set[processing][key]
                    found.append(("timer", processing, key, float(time)))
        return found


def topology(sources, kinds, width, idle):
    builder = TopologyBuilder("model")
    bolts = {
        "watch": (Watch(), 1),
        "values": (windowed(Values(), kinds[0]).withLateTupleStream("late"), width),
        "tuples": (windowed(Tuples(), kinds[1]).withLateTupleStream("late"), width),
        "timed": (Timed(), width),
    }
    declared = {id: builder.setBolt(id, *given) for id, given in bolts.items()}
    for number, source in enumerate(sources):
        builder.setSpout(f"spout-{number}", source.kind(source.script), source.tasks, **source.options())
        for one in declared.values():
            one.fieldsGrouping(f"spout-{number}", "partition")
    keep = builder.setBolt("keep", Keep())
    for id in ("values", "tuples"):
        builder.setBolt(f"{id}-late", Late()).globalGrouping(id, stream="late")
        keep.globalGrouping(f"{id}-late").globalGrouping(id)
    keep.globalGrouping("timed")
    return builder.createTopology()


def drive(chance, of, place, crashes):
    clock, driver, done, breaks = START + timedelta(minutes=1), None, 0, crashes and chance.random() < 0.5
    while done < 3:  # behind the script come timers of the clock
        try:
            if driver is None:
                crash = chance.randint(10, 90) if crashes and chance.random() < 0.7 else None
                limits = Limits(fold_after=chance.choice([2, 100]), pauses=10_000)
                options = {"now": clock, "crash_at": crash, "seed": chance.randint(0, 99), "limits": limits}
                driver = LivingTester(of, place, {"topology.transaction.attempts.max": 1000}, breaks=breaks, **options)
            driver.advance(chance.choice([0, 3, 11, 60 if done else 4]))
            if driver.emit() is None or driver.txid > ROUNDS:
                done += 1
            ends = chance.random() < 0.25
        except Crash:
            ends = True
        if driver is not None:  # else it crashed while it began
            clock = START + timedelta(
                seconds=driver._time() - START.timestamp()
            )  # it passes while chains are silent, too
        if driver is not None and ends:
            driver.close()
            driver = None
    return driver if driver is not None else timed.begun(of, place, now=clock)


def expected(sources, kinds, rounds):
    found = Counter()
    recounts = {"values": Recount(kinds[0]), "tuples": Recount(kinds[1])}
    timers = Timers()
    for txid, (_, watermark, now, _) in rounds.items():
        rows = [
            (f"spout-{number}/{part}", part, time)
            for number, source in enumerate(sources)
            for part in range(source.parts)
            for time in (source.script[txid - 1][part] if txid <= ROUNDS else ())
        ]
        for id, recount in recounts.items():
            recount.found, recount.late = [], []
            recount.take([(part, time, (part, time)) for _, part, time in rows], watermark)
            for key, start, end, numbers, *_ in recount.found:
                text = repr((key, float(start), float(end), sorted(float(time) for _, time in numbers)))
                found[txid, id, "default", text] += 1
            for part, time in recount.late:
                found[txid, f"{id}-late", "default", repr(("late", part, None if time is None else float(time)))] += 1
        for one in timers.take([(key, time) for key, _, time in rows], watermark, secs(now)):
            found[txid, "timed", "default", repr(one)] += 1
    return found


def check(seed, place, crashes):
    chance = random.Random(f"{seed}, {crashes}")
    sources = [Source(chance, [Whole, Planned, Emitted, Opaque]) for _ in range(chance.randint(1, 2))]
    # Of two spouts the rows of one key have no order, and whether a late row finds its session open depends on it.
    kinds = [chance.choice([kind for kind in WINDOWS if kind != "session" or len(sources) == 1]) for _ in range(2)]
    of = topology(sources, kinds, chance.randint(1, 2), None)
    with drive(chance, of, place, crashes) as driver:
        kept = driver.state("keep")
        assert kept == dict(expected(sources, kinds, seen(driver)))
    return sum(kept.values())


@pytest.mark.daily(1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_all_of_time_is_as_the_reference_says(seed, tmp_path):
    assert check(seed, tmp_path, crashes=False)


@pytest.mark.slow
def test_all_of_time_is_as_the_reference_says_with_crashes(tmp_path):
    assert sum(check(seed, tmp_path / str(seed), crashes=True) for seed in seeds(1, at_least=1))


@pytest.mark.soak
@pytest.mark.parametrize("hundred", range(10))
def test_a_thousand_schedules(hundred, tmp_path):
    for seed in range(1000 + 100 * hundred, 1100 + 100 * hundred):
        check(seed, tmp_path / str(seed), crashes=seed % 2 == 0)
