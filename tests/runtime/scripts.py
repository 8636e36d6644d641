"""A bolt whose rows say what it does with each kind of state and stream, and where it raises an error."""

import json
import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from statefx import BatchBolt, Checkpoint, Stateful, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.errors import CheckpointError
from statefx.testing import TopologyTester
from tests.bolts import WithState

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
FIELDS = "number long, steps string"
STREAMS = {
    "default": "what string, n long",
    "side": "items array<long>, at timestamp",
    "direct": "n long",
    "batches": "n long",
}


class Script(Stateful, BatchBolt):
    """Does the steps of each row: [method, arguments...]."""

    outputFields = STREAMS

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.state = state
        self.map = state.map("map")
        self.short = state.map("short", ttl="30 minutes")
        self.touched = state.map("touched", ttl="30 minutes", touch="read")
        self.list, self.value = state.list("list"), state.value("value")
        self.scans, self.has_rows = [], False

    def execute(self, tup, collector):
        self.collector, self.has_rows = collector, True
        for name, *given in json.loads(tup.steps):
            getattr(self, f"do_{name}")(*given)

    def onTimer(self, key, at, value, collector):
        self.state.put(f"fired {key}", value)
        collector.emit((f"timer {key} {value} {self.timers.fired.name}", int((at - NOON).total_seconds())))

    def finishBatch(self, collector):
        self.collector = collector
        if self.has_rows:  # a timer that was deleted may still begin a transaction, in which nothing happens
            self.do_show()

    # ---- state

    def do_put(self, where, key, value):
        getattr(self, where).put(tuple(key) if isinstance(key, list) else key, value)

    def do_delete(self, where, key):
        getattr(self, where).delete(tuple(key) if isinstance(key, list) else key)

    def do_own_ttl(self, key, value, secs):
        self.short.put(tuple(key) if isinstance(key, list) else key, value, ttl=secs)

    def do_new(self, name, key, value):
        self.state.map(f"new {name}").put(key, value)

    def do_get(self, where, key):
        self.collector.emit((f"{where} {key} {getattr(self, where).get(key)}", 0))

    def do_put_all(self, where, values):
        getattr(self, where).putAll(values)

    def do_delete_range(self, where, start, stop):
        getattr(self, where).deleteRange(start, stop)

    def do_append(self, *values):
        self.list.extend(values)

    def do_truncate(self, keep):
        self.list.truncate(keep)

    def do_value(self, value):
        self.value.put(value) if value is not None else self.value.delete()

    def do_set(self, key, secs, value, name, processing):
        self.timers.set(key, NOON + timedelta(seconds=secs), value, name=name, processing=processing)

    def do_unset(self, key, name, processing):
        self.timers.delete(key, name=name, processing=processing)

    def do_scan(self, where):
        """Begin a scan, and read a little; the rest is read by a later row."""
        scan = iter(getattr(self, where).items())
        next(scan, None)
        self.scans.append(scan)

    def do_go_on(self):
        if self.scans:
            self.collector.emit((f"scan {list(self.scans.pop())}", 0))

    def do_show(self):
        for name in ("state", "map", "short", "touched"):
            self.collector.emit((f"{name} {list(getattr(self, name).items())}", 0))
        self.collector.emit((f"names {list(self.state.names())}", 0))
        self.collector.emit((f"list {list(self.list)} {len(self.list)} value {self.value.get()}", 0))
        for key in "ab":
            for name in ("", "other"):
                for processing in (False, True):
                    at = self.timers.get(key, name=name, processing=processing)
                    self.collector.emit((f"timer {key} {name} {processing} {at}", 0))

    # ---- streams

    def do_emit(self, n):
        self.collector.emit((f"row {n} ü", n))

    def do_side(self, items, secs):
        self.collector.emit((items, NOON + timedelta(seconds=secs)), stream="side")

    def do_direct(self, n, task):
        self.collector.emit((n,), stream="direct", task=task)

    def do_batch(self, *numbers):
        self.collector.emitBatch(pa.record_batch([pa.array(numbers, pa.int64())], ["n"]), stream="batches")

    def do_late(self, n):
        self.collector.emit((n,), stream="batches")

    def do_flood(self, rows, chars):
        for n in range(rows):
            self.collector.emit(("x" * chars, n))

    # ---- errors

    def do_raise(self):
        raise ValueError("the row is bad")

    def do_no_key(self):
        self.state.put(["a list"], 1)

    def do_no_value(self):
        self.map.put("a", {"b": object()})

    def do_too_wide(self):
        self.collector.emit(("a", 1, 2))

    def do_no_number(self):
        self.collector.emit(("a", "1"))

    def do_too_large(self):
        self.collector.emit(("a", 1 << 63))

    def do_no_text(self):
        self.collector.emit(("\ud800", 1))

    def do_nested(self):
        self.collector.emit(([1, 1 << 63], None), stream="side")

    def do_no_stream(self):
        self.collector.emit((1,), stream="none")

    def do_no_task(self):
        self.collector.emit((1,), stream="direct", task=7)


BAD = ("raise", "no_key", "no_value", "too_wide", "no_number", "too_large", "no_text", "nested", "no_stream", "no_task")


class Keep(WithState):
    def execute(self, tup, collector):
        self.state.put((tup._stream, self.state.get("n", 0)), [str(value) for value in tup])
        self.state.put("n", self.state.get("n", 0) + 1)


def topology(scripts, on_error="fail", take=5, bolt=None, timestamps=False):
    """Rows of scripts, the bolt, and one that keeps what comes of each of its streams; dead letters as well."""
    builder = TopologyBuilder("scripts")
    data = [[(number, json.dumps(steps)) for number, steps in enumerate(scripts)]]
    builder.setSpout("rows", MemoryTransactionalSpout(data, FIELDS, takePerBatch=take))
    builder.setBolt("script", bolt or Script(), onError=on_error).globalGrouping("rows")
    keep = builder.setBolt("keep", Keep(), 2)
    keep.fieldsGrouping("script", "what").shuffleGrouping("script", stream="side")
    keep.directGrouping("script", stream="direct").globalGrouping("script", stream="batches")
    if on_error == "deadLetter":
        builder.setBolt("letters", Keep()).globalGrouping("script", stream="deadLetter")
    return builder.createTopology()


def random_steps(chance, number):
    """What one row does: a few steps of any kind, over few keys."""
    key = lambda: chance.choice(["a", "b", "c", 1, ["a", 1], None])  # noqa: E731 - short
    text = lambda: chance.choice("abc")  # noqa: E731 - as above
    value = lambda: chance.choice([number, "ü", [number], {"a": number}, None])  # noqa: E731 - as above
    anywhere = lambda: chance.choice(["state", "map", "short", "touched"])  # noqa: E731 - as above
    kinds = {
        "put": lambda: [anywhere(), key(), value()],
        "delete": lambda: [anywhere(), key()],
        "own_ttl": lambda: [key() if number % 2 else text(), value(), chance.choice([600, 3600])],
        "new": lambda: [text(), text(), value()],
        "get": lambda: [anywhere(), text()],
        "put_all": lambda: [anywhere(), {text(): chance.choice([number, [number]]) for _ in range(2)}],
        "delete_range": lambda: [anywhere(), "a", text()],
        "append": lambda: [number, [number]],
        "truncate": lambda: [chance.randrange(4)],
        "value": lambda: [value()],
        "set": lambda: [text(), 60 * number + chance.randint(-900, 900), value(), chance.choice(["", "other"]), True],
        "unset": lambda: [text(), chance.choice(["", "other"]), True],
        "scan": lambda: [anywhere()],
        "go_on": list,
        "show": list,
        "emit": lambda: [number],
        "side": lambda: [[number, None], number],
        "direct": lambda: [number, chance.randrange(2)],
        "batch": lambda: [number, number + 1],
        "late": lambda: [number],
    }
    names = chance.choices(list(kinds), k=chance.randint(1, 6))
    return [[name, *kinds[name]()] for name in names]


def run(place, given, config=None, restart=None, **options):
    """Run it to its end, ten minutes after each transaction; return all that it has come to."""
    config = {"topology.state.checkpoint.interval.ms": 0, **(config or {})}
    emitted, aside, letters = {stream: [] for stream in STREAMS}, 0, []
    tester = TopologyTester(given, place, config, now=NOON, **options)
    while (sent := tester.emit()) is not None:
        for stream in STREAMS:
            emitted[stream] += sent.emitted("script", stream)
        aside += sent.progress.as_dict()["rowsSetAside"].get("script", 0)
        if "deadLetter" in given.component("script").outputs:
            letters += sent.emitted("script", "deadLetter")
        tester.advance(600)
        if restart is not None and restart():
            tester = tester.restart()
    tester.close()
    states = {}
    for bolt, tasks in (("script", 1), ("keep", 2)):
        for task in range(tasks):
            with Checkpoint(place, config).state(bolt, task) as view:
                states[bolt, task] = dict(view.items())
    with Checkpoint(place, config).state("script", 0) as view:
        states["list"] = list(view.list("list"))
    for name in ("map", "short", "touched", "new a", "new b", "new c"):
        with suppress(CheckpointError), Checkpoint(place, config).state("script", 0, map=name) as view:
            states[name] = dict(view.items())  # one in which nothing was ever kept is unknown
    return {"emitted": emitted, "states": states}, aside, letters


def scripts_of(seed, number=60):
    """Random scripts, of which some raise in their middle; and those without what the bad ones do."""
    chance, scripts, good, bad = random.Random(seed), [], [], []
    for each in range(number):
        steps = random_steps(chance, each)
        if chance.random() < 0.3:
            steps = [step for step in steps if step[0] not in ("scan", "go_on")]  # attributes can't be undone
            steps.insert(chance.randint(len(steps) // 2, len(steps)), [chance.choice(BAD)])
            bad.append(each)
        scripts.append(steps)
        good.append([] if each in bad else steps)
    return scripts, good, bad
