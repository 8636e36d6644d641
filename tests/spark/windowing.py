"""Windowed bolts, and bolts with timers, as a process of its own: ``python -m tests.spark.windowing SETTINGS`` (JSON).

Tasks wait, or are killed, at the places of `tests.spark.spouting`.
"""

import json
import os
import random
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

from statefx import StatefulBolt, TopologyBuilder, submit
from statefx.connectors import MemoryTransactionalSpout
from tests.runtime.recount import Recount, secs_of, windowed
from tests.runtime.test_windows import FIELDS, LATENESS, Tuples, Values, batches_of, shown
from tests.spark.counting import ONCE, session, tell
from tests.spark.running import feed, state, wait_for
from tests.spark.spouting import Places

TRANSACTIONS, ROWS_EACH = 20, 6
BATCHES = batches_of(random.Random(3), TRANSACTIONS, ROWS_EACH)

KINDS = {"tumbling": "tumbling", "sliding": "sliding, with panes of 1 s", "session": "session"}
VALUES = ("tumbling",)
"""The others keep tuples."""

ALARM_SECS = 10
SOON = timedelta(seconds=0.5)
SHORT = timedelta(seconds=1)
IDS = 17

ON_UNTIL_RUNG = {"processingTime": "1 millisecond"}
"""A topology of timers with this trigger is stopped when all of the clock's have fired."""


class Told(StatefulBolt):
    """Keeps each window and each late row in state, and how often it came."""

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        key = (tup._stream, tup.number) if tup._stream == "late" else ("window", *map(repr, shown(tup)))
        self.state.put(key, self.state.get(key, 0) + 1)


class HeldValues(Values):
    def __init__(self, work):
        self.places = Places(work)

    def open(self, context):
        self.context = context

    def addToWindow(self, value, tup):
        self.pass_by("execute")
        return super().addToWindow(value, tup)

    def emitWindow(self, window, value, collector):
        super().emitWindow(window, value, collector)
        self.pass_by("emit")

    def preCommit(self, txid):
        self.pass_by("commit")

    def pass_by(self, phase):
        self.places.pass_by(phase, self.context, self.context.txid)


def windows(spark, work, inputs):
    """Three windowed bolts, each behind it one that keeps what it emits."""
    builder = TopologyBuilder("windows")
    times = {"timestamp": "at", "lateness": f"{LATENESS} seconds"}
    if inputs == "frames":
        builder.setStream("rows", frame(spark, Path(work, "in")), **times)
    else:
        builder.setSpout("rows", spout(), **times)
    for name, kind in KINDS.items():
        bolt = HeldValues(work) if name in VALUES else Tuples()
        builder.setBolt(name, windowed(bolt, kind).withLateTupleStream("late"), 2).fieldsGrouping("rows", "user")
        builder.setBolt(f"{name}-told", Told()).globalGrouping(name).globalGrouping(name, stream="late")
    return builder.createTopology()


def spout():
    return MemoryTransactionalSpout([[row for batch in BATCHES for row in batch]], FIELDS, takePerBatch=ROWS_EACH)


def frame(spark, folder):
    """A stream of files; each is a micro-batch."""
    if not folder.exists():
        names = [field.split()[0] for field in FIELDS.split(", ")]
        rows = [[dict(zip(names, row, strict=True)) for row in batch] for batch in BATCHES]
        texts = [[json.dumps(row, default=lambda time: time.isoformat()) for row in batch] for batch in rows]
        feed(folder, **{f"{number:03}": lines for number, lines in enumerate(texts)})
    return spark.readStream.schema(FIELDS).option("maxFilesPerTrigger", 1).json(str(folder))


def told(work):
    """What the windowed bolts have emitted, each as often as it came."""
    return {name: state(Path(work, "ck"), f"{name}-told") for name in KINDS}


def recounted(inputs):
    """The same, from lists of all rows."""
    found = {}
    for name, kind in KINDS.items():
        recount, newest, watermark = Recount(kind), float("-inf"), None
        for batch in BATCHES:
            rows = [(user, secs_of(time), number) for user, time, number in batch]
            newest = max([newest, *(secs for _, secs, _ in rows if secs is not None)])
            before, watermark = watermark, newest - LATENESS
            # The watermark of a DataFrame is known one transaction later.
            recount.take(rows, before if inputs == "frames" else watermark)
        # As `shown` has them, whose times are floats.
        rows = [
            (key, float(start), float(end), *parts[: 1 if name in VALUES else 3])
            for key, start, end, *parts in recount.found
        ]
        keys = [*(("window", *map(repr, row)) for row in rows), *(("late", number) for number in recount.late)]
        found[name] = dict(Counter(keys))
    return found


class Alarms(StatefulBolt):
    """Timers of event time by user and of the clock by row; what is seen, for long and for short."""

    stateSchema = {"maps": {"fired": {}, "rung": {}, "firsts": {}}}  # read before anything is in them

    def __init__(self, work):
        self.places = Places(work)

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.fired, self.rung, self.firsts = state.map("fired"), state.map("rung"), state.map("firsts")
        self.long = state.map("long", ttl="1 hour")
        self.short, self.puts = state.map("short", ttl=SHORT), state.map("puts")

    def execute(self, row, collector):
        self.pass_by("execute")
        now, put = self.context.processingTime, self.puts.get(row.user)
        assert self.short.get(row.user) == (put if put is not None and now - put < SHORT else None)
        self.short.put(row.user, now)
        self.puts.put(row.user, now)
        thing = row.user, row.number % IDS
        if thing not in self.long:
            self.long.put(thing, True)
            self.firsts.put(thing, self.firsts.get(thing, 0) + 1)
        if row.at is not None:
            self.timers.set(row.user, row.at + timedelta(seconds=ALARM_SECS), row.number)
        self.timers.set(row.number, now + SOON, processing=True)

    def onTimer(self, key, at, value, collector):
        found, place = (self.rung, key) if self.timers.fired.processing else (self.fired, (key, at, value))
        found.put(place, found.get(place, 0) + 1)
        self.pass_by("emit")

    def preCommit(self, txid):
        self.pass_by("commit")

    def pass_by(self, phase):
        self.places.pass_by(phase, self.context, self.context.txid)


def alarms(work):
    builder = TopologyBuilder("alarms")
    builder.setSpout("rows", spout(), timestamp="at", lateness=f"{LATENESS} seconds")
    builder.setBolt("alarms", Alarms(work), 2).fieldsGrouping("rows", "user")
    return builder.createTopology()


def alarmed(work):
    """What the timers have done, and what was seen for the first time."""
    return {name: state(Path(work, "ck"), "alarms", map=name) for name in ("fired", "rung", "firsts")}


def recounted_alarms():
    """The same, from lists of all rows."""
    fired, set_, newest = Counter(), {}, None
    for batch in BATCHES:
        for user, at, number in batch:
            if at is not None:
                set_[user] = at + timedelta(seconds=ALARM_SECS), number
                newest = at if newest is None else max(newest, at)
        for user, (at, number) in list(set_.items()):
            if at <= newest - timedelta(seconds=LATENESS):
                fired[user, at, number] += 1
                del set_[user]
    rows = [row for batch in BATCHES for row in batch]
    firsts = {(user, number % IDS): 1 for user, _, number in rows}
    return {"fired": dict(fired), "rung": {number: 1 for _, _, number in rows}, "firsts": firsts}


def begun(spark, work, what, trigger=ONCE):
    """Return what `submit` is given."""
    topology = alarms(work) if what == "alarms" else windows(spark, work, what)
    settings = {"topology.state.provider": "rocksdb", "topology.transaction.retry.delay.ms": 10}
    return topology, spark, f"{work}/ck", settings, trigger


def play(spark, work, provider, options, trigger, what):
    query = submit(*begun(spark, work, what, trigger))
    tell(recoveries=query.recoveries)
    if trigger == ON_UNTIL_RUNG:
        wait_for(lambda: query.exception() or len(alarmed(work)["rung"]) == TRANSACTIONS * ROWS_EACH, "all timers")
        query.stop()
    query.awaitTermination()
    tell(**query.status)


def main(what, **given):
    spark = session("local[12]", **{"spark.executorEnv.PYTHONPATH": os.getcwd()})
    play(spark, what=what, **given)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
