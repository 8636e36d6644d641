"""Every kind of component that keeps something under its id, renamed and dropped, by a start and by the tool."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import cycle

import pytest

from statefx import AsyncBolt, Checkpoint, IntervalJoin, Spout, StatefulBolt, TopologyBuilder, WindowedBolt
from statefx.errors import BoltError, CheckpointError, CheckpointMismatchError
from statefx.testing import TopologyTester, rows
from tests.spouts.numbers import Opaque, Planned, Whole
from tests.spouts.test_held import GathersInState

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def at(minute):
    return NOW + timedelta(minutes=minute)


class Count(StatefulBolt):
    def initState(self, state):
        self.counts, self.last, self.newest = state, state.map("last"), state.value("newest")

    def execute(self, tup, collector):
        self.counts.put(tup[0], self.counts.get(tup[0], 0) + 1)
        self.last.put(tup[0], tup[0])
        self.newest.put(tup[0])


class Clicks(WindowedBolt):
    outputFields = "key string, n long"

    def initWindow(self):
        return 0

    def addToWindow(self, n, tup):
        return n + 1

    def emitWindow(self, window, n, collector):
        collector.emit((window.key, n))


class Redelivers(Spout):
    """Hands out all numbers whenever it is opened: its source has missed each ack."""

    outputFields = "word string"

    def open(self, context):
        self.left = [word for word in "abcd" if word not in context.pending]

    def nextTuple(self, collector):
        if self.left:
            word = self.left.pop(0)
            collector.emit((word,), id=word)


def fed(builder, name, bolt, **more):
    builder.setStream("rows", rows("key string, at timestamp"), **more)
    builder.setBolt(name, bolt, 2).fieldsGrouping("rows", "key")


def stateful(builder, name, place):
    fed(builder, name, Count())


def windowed(builder, name, place):
    fed(builder, name, Clicks().withTumblingWindow("10 minutes"), timestamp="at")
    builder.setBolt("seen", Count()).globalGrouping(name)


def joining(builder, name, place):
    for source in ("rows", "others"):
        builder.setStream(source, rows("key string, at timestamp"), timestamp="at")
    bolt = IntervalJoin("rows", "others", "key", ("0 seconds", "1 hour"), "key")
    builder.setBolt(name, bolt, 2).fieldsGrouping("rows", "key").fieldsGrouping("others", "key")
    builder.setBolt("seen", Count()).globalGrouping(name)


def replaying(kind):
    def build(builder, name, place):
        builder.setSpout(name, kind(place, each=20), 2)
        builder.setBolt("seen", Count(), 2).fieldsGrouping(name, "number")

    return build


def redelivering(held, dedup):
    def build(builder, name, place):
        builder.setSpout(name, Redelivers(), dedup="1 hour" if dedup else None)
        if held:  # three are held over the start, and their trees go on
            builder.setBolt("gathers", GathersInState(8)).globalGrouping(name)
        builder.setBolt("seen", Count()).globalGrouping(name)

    return build


BOLTS = {"bolt with state": stateful, "windowed bolt": windowed, "interval join": joining}
SPOUTS = {
    "transactional spout": replaying(Whole),
    "partitioned spout": replaying(Planned),
    "opaque spout": replaying(Opaque),
    "spout with held trees": redelivering(held=True, dedup=False),
    "spout with dedup": redelivering(held=False, dedup=True),
    "spout with dedup and held trees": redelivering(held=True, dedup=True),
}
KINDS = BOLTS | SPOUTS


class Life:
    """One checkpoint, over a start with another name."""

    def __init__(self, kind, place):
        self.kind, self.place, self.folder = kind, place, place / "ck"
        self.minute = 0

    def topology(self, name):
        builder = TopologyBuilder("life")
        KINDS[self.kind](builder, name, self.place)
        return builder.createTopology()

    def run(self, name, transactions, **more):
        """Run some transactions, and return what the component has and what came of it."""
        with TopologyTester(self.topology(name), self.folder, now=at(10_000), **more) as tester:
            emitted = []
            for _ in range(transactions):
                if self.kind in SPOUTS:
                    tester.emit()
                    continue
                self.minute += 4
                sent = [(key, at(self.minute)) for key in "xyz"]
                streams = ("rows", "others") if self.kind == "interval join" else ("rows",)
                tester.send(dict.fromkeys(streams, sent))
            if self.kind in SPOUTS:
                return tester.state("seen")
            emitted = [] if self.kind == "bolt with state" else tester.state("seen")
            shown = "windows" if self.kind == "windowed bolt" else None
            return tester.state(name, map=shown), emitted


def by_start(life, names, drop):
    return {"rename": names, "drop": drop}


def by_tool(life, names, drop):
    Checkpoint(life.folder).rename(names, drop=drop)
    return {}


@pytest.mark.daily(5)
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "how"), [*zip(KINDS, cycle([by_start, by_tool]), strict=False)])
def test_a_renamed_component_goes_on_as_if_it_had_its_name(kind, how, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    renamed, same = Life(kind, tmp_path / "a"), Life(kind, tmp_path / "b")
    renamed.run("old", 4)
    same.run("old", 4)
    with pytest.raises(CheckpointMismatchError, match=r"rename=\{'old': its name\}"):
        renamed.run("new", 0)
    found = renamed.run("new", 3, **how(renamed, {"old": "new"}, []))
    assert found == same.run("old", 3)
    assert renamed.run("new", 0) == same.run("old", 0)
    if kind in SPOUTS:
        assert set(found.values()) == {1}, "nothing was counted twice"


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "how"), [*zip(KINDS, cycle([by_tool, by_start]), strict=False)])
def test_a_dropped_component_begins_with_nothing(kind, how, tmp_path):
    life = Life(kind, tmp_path)
    life.run("old", 2)
    found = life.run("new", 4, **how(life, {}, ["old"]))
    if kind in SPOUTS:
        assert 2 in set(found.values()), "what was read before is read again"
    else:
        counts = {"bolt with state": found[0], "windowed bolt": None, "interval join": None}[kind]
        assert counts is None or set(counts.values()) == {4}
    assert life.run("new", 0) == found


@pytest.mark.slow
@pytest.mark.parametrize("held", [False, True])
def test_a_living_spouts_ids_are_given_up_by_their_own_name(held, tmp_path, monkeypatch):
    monkeypatch.setitem(KINDS, "without", redelivering(held, dedup=False))
    monkeypatch.setitem(SPOUTS, "without", KINDS["without"])
    life = Life("spout with dedup and held trees" if held else "spout with dedup", tmp_path)
    life.run("old", 2)
    life.kind = "without"
    with pytest.raises(CheckpointMismatchError, match=r"with drop=\['__dedup-old'\]"):
        life.run("old", 0)
    found = life.run("old", 4, drop=["__dedup-old"])
    assert Counter(found.values())[2] > 0 or held


def test_the_tool_lists_a_spout_with_dedup_by_its_own_id(tmp_path):
    life = Life("spout with dedup", tmp_path)
    life.run("old", 1)
    with pytest.raises(CheckpointError, match=r"'odl' keeps nothing; in .* there are \['old', 'seen'\]"):
        Checkpoint(life.folder).rename({"odl": "new"})


class Calls(AsyncBolt):
    """Calls a service that is away for the first minute."""

    outputFields = "key string"
    retries, retryDelay = 9, "10 seconds"

    def open(self, context):
        self.context = context

    async def execute(self, tup, collector):
        if self.context.processingTime < at(1):
            raise ConnectionError("away")
        collector.emit((tup.key,))


def calling(builder, name, others):
    """Also where another input has the same fields, its tuples are its own, and none is taken for another's."""
    calls = builder.setBolt("calls", Calls()).fieldsGrouping(name, "key")
    builder.setStream(name, rows("key string"))
    for other, fields in others.items():
        builder.setStream(other, rows(fields))
        calls.fieldsGrouping(other, "key")
    builder.setBolt("seen", Count()).globalGrouping("calls")
    return builder.createTopology()


@pytest.mark.parametrize(
    ("others", "goes_on"), [({}, True), ({"other": "key string, n long"}, True), ({"other": "key string"}, False)]
)
def test_tuples_that_wait_for_calls_go_on_where_their_input_is_renamed(others, goes_on, tmp_path):
    def start(name, minute):
        builder = TopologyBuilder("calling")
        config = {"topology.state.provider": "memory"}
        names = {"rename": {"old": "new"}} if name == "new" else {}
        return TopologyTester(calling(builder, name, others), tmp_path, config, now=at(minute), **names)

    with start("old", 0) as tester:
        tester.send({"old": [("a",), ("b",)]})
    with start("new", 2) as tester:
        if goes_on:
            tester.send({"new": [("c",)]})
            assert tester.state("seen") == {"a": 1, "b": 1, "c": 1}
        else:
            with pytest.raises(BoltError, match=r"of 'old' .* or which was renamed. Start with the topology of before"):
                tester.send({"new": [("c",)]})
