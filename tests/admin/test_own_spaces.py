"""What statefx keeps for bolts, shown to users: open windows, rows that wait in joins, ids of dedup, open trees."""

import json
import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from math import gcd

import pytest

from statefx import Checkpoint, Count, IntervalJoin, JoinBolt, Spout, StatefulBolt, TopologyBuilder, WindowedBolt
from statefx.command import main
from statefx.errors import BoltError, CheckpointError, ConfigError
from statefx.testing import TopologyTester, rows
from tests.spouts.test_held import FED, Fed, Gathers
from tests.testing.places import place

__all__ = ["place"]


def at(minute):
    return datetime(2026, 5, 1, 12, tzinfo=UTC) + timedelta(minutes=minute)


class Values(WindowedBolt):
    outputFields = "n long"

    def initWindow(self):
        return 0

    def addToWindow(self, n, tup):
        return n + tup.minute + 1000

    def mergeWindows(self, a, b):
        return a + b

    def emitWindow(self, window, n, collector):
        collector.emit((n,))


class Tuples(WindowedBolt):
    outputFields = "n long"

    def execute(self, window, collector):
        collector.emit((len(list(window)),))


def clicks(bolt):
    builder = TopologyBuilder("clicks")
    builder.setStream("clicks", rows("user string, minute long, at timestamp"), timestamp="at")
    builder.setBolt("windows", bolt, 2).fieldsGrouping("clicks", "user")
    return builder.createTopology()


def kept(bolt, minutes):
    """Return what a window keeps of tuples of some minutes, as it is shown."""
    if isinstance(bolt, Values):
        return sum(1000 + minute for minute in minutes)
    return sorted(minutes)


def timed(length, slide):
    """Return the open panes of tuples of a key, given the watermark's minute."""
    size = gcd(length, slide)

    def expected(minutes, watermark):
        panes = defaultdict(list)
        for minute in minutes:
            pane = minute - minute % size
            if pane - pane % slide + length > watermark:
                panes[at(pane), at(pane + size)].append(minute)
        return panes

    return expected


def sessions(minutes, watermark):
    found = []
    for minute in sorted(minutes):
        if found and minute < found[-1][-1] + 30:
            found[-1].append(minute)
        else:
            found.append([minute])
    return {(at(each[0]), at(each[-1] + 30)): each for each in found if each[-1] + 30 > watermark}


def counted(length, slide):
    size = gcd(length, slide)

    def expected(minutes, watermark):
        begin = len(minutes) // slide * slide + slide - length
        blocks = [(first, min(first + size, len(minutes))) for first in range(0, len(minutes), size)]
        opened = [block for block in blocks if block[1] > begin]
        return {(a - opened[0][0], b - opened[0][0]): minutes[a:b] for a, b in opened}

    return expected


WINDOWS = {
    "tumbling": (lambda bolt: bolt.withTumblingWindow("10 minutes"), timed(10, 10)),
    "sliding": (lambda bolt: bolt.withWindow("15 minutes", "10 minutes"), timed(15, 10)),
    "sessions": (lambda bolt: bolt.withSessionWindow("30 minutes"), sessions),
    "counted": (lambda bolt: bolt.withTumblingWindow(Count(3)), counted(3, 3)),
    "counted, sliding": (lambda bolt: bolt.withWindow(Count(6), Count(4)), counted(6, 4)),
}


def simple(value):
    return value if isinstance(value, int) else sorted(row["minute"] for row in value["clicks"])


@pytest.mark.daily(5)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("windows", "bolt", "seed"),
    [
        (windows, bolt, [0, 1, 3][(number + other) % 3])
        for number, windows in enumerate(WINDOWS)
        for other, bolt in enumerate([Values, Tuples])
    ],
)
def test_open_windows_are_shown_as_a_recount_has_them(windows, bolt, seed, place, capsys):
    chance = random.Random(seed)
    make, expected = WINDOWS[windows]
    bolt = make(bolt())
    with TopologyTester(clicks(bolt), place / "ck", now=at(10_000)) as tester:
        given, now = defaultdict(list), 0
        for _ in range(6):
            sent = []
            for _ in range(chance.randint(1, 12)):
                now += chance.choice([0, 1, 3, 20])
                user = chance.choice(["ann", "bob", "eve"])
                given[user].append(now)
                sent.append((user, now, at(now)))
            tester.send({"clicks": sent})
    wanted = {
        (user, *window): kept(bolt, minutes)
        for user, of_user in given.items()
        for window, minutes in expected(of_user, now).items()
    }
    assert wanted
    with Checkpoint(place / "ck").state("windows", map="windows") as view:
        assert {key: simple(value) for key, value in view.items()} == wanted
        assert len(view) == len(wanted)
        assert all(simple(view[key]) == value and key in view for key, value in wanted.items())
        assert ("nobody", *next(iter(wanted))[1:]) not in view
        assert view.names()["statefx"] == ["windows"]
    shown = Checkpoint(place / "ck").table("windows", map="windows")
    in_table = {(json.loads(r["key"]), r["start"], r["end"]): json.loads(r["value"]) for r in shown.to_pylist()}
    assert {key: simple(value) for key, value in in_table.items()} == wanted
    assert main(["state", str(place / "ck"), "windows", "--map", "windows", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == len(wanted)
    for line in lines:
        bounds = [datetime.fromisoformat(b) if isinstance(b, str) else b for b in (line["start"], line["end"])]
        assert simple(line["value"]) == wanted[line["key"], *bounds]
    for user in given:
        of_user = {key[1:]: value for key, value in wanted.items() if key[0] == user}
        now_there = [
            task.value
            for task in Checkpoint(place / "ck").explain("windows", user, map="windows").tasks
            if task.present
        ]
        assert len(now_there) == bool(of_user)
        found = [simple(row["value"]) for value in now_there for row in value]
        assert found == [of_user[key] for key in sorted(of_user)]


def test_explain_lists_the_files_that_changed_a_keys_windows(place):
    with TopologyTester(clicks(Tuples().withTumblingWindow("10 minutes")), place / "ck", now=at(10_000)) as tester:
        for minute, user in enumerate(["ann", "bob", "ann"]):
            tester.send({"clicks": [(user, minute, at(minute))]})
    (task,) = Checkpoint(place / "ck").explain("windows", "ann", map="windows").tasks
    assert task.transactions == ((3, 3), (1, 1))
    assert [[simple(row["value"]) for row in file.value] for file in task.files] == [[[2]], [[0]]]


def test_windows_of_a_join_bolt_show_rows_by_input(place):
    builder = TopologyBuilder("join")
    for name in ("left", "right"):
        builder.setStream(name, rows(f"user string, {name} long, at timestamp"), timestamp="at")
    bolt = JoinBolt("left", "user").join("right", "user", "left").select("left.left, right.right")
    declared = builder.setBolt("joined", bolt.withTumblingWindow("10 minutes"), 2)
    declared.fieldsGrouping("left", "user").fieldsGrouping("right", "user")
    with TopologyTester(builder.createTopology(), place / "ck", now=at(100)) as tester:
        tester.send({"left": [("ann", 1, at(1))], "right": [("ann", 2, at(2)), ("ann", 3, at(3))]})
        found = tester.state("joined", map="windows")
    assert found == {
        ("ann", at(0), at(10)): {
            "left": [{"user": "ann", "left": 1, "at": at(1)}],
            "right": [{"user": "ann", "right": number, "at": at(number)} for number in (2, 3)],
        }
    }


@pytest.mark.parametrize("keys", [["user"], ["user", "item"]])
def test_rows_that_wait_in_a_join_are_shown_by_input(keys, place):
    builder = TopologyBuilder("join")
    for name in ("orders", "payments"):
        builder.setStream(name, rows("user string, item long, number long, at timestamp"), timestamp="at")
    bolt = IntervalJoin("orders", "payments", keys, ("0 seconds", "1 hour"), "orders.number, payments.number as paid")
    builder.setBolt("paid", bolt, 2).fieldsGrouping("orders", *keys).fieldsGrouping("payments", *keys)
    with TopologyTester(builder.createTopology(), place / "ck", now=at(1000)) as tester:
        orders = [(user, 7, number, at(number)) for number in range(12) for user in ("ann", "bob")]
        tester.send({"orders": orders, "payments": [("ann", 7, 50, at(5)), ("eve", 7, 51, at(5))]})
    with Checkpoint(place / "ck").state("paid") as view:
        found, names = dict(view.items()), view.names()
        assert view["ann" if len(keys) == 1 else ("ann", 7)] == found["ann" if len(keys) == 1 else ("ann", 7)]
    assert names == {"map": [], "list": [], "value": [], "broadcast": [], "statefx": ["waiting"]}
    shown = {
        key if len(keys) == 1 else key[0]: {
            name: [(row["row"]["number"], row["matched"]) for row in rows] for name, rows in sides.items()
        }
        for key, sides in found.items()
    }
    assert shown == {
        "ann": {"orders": [(number, number <= 5) for number in range(12)], "payments": [(50, True)]},
        "bob": {"orders": [(number, False) for number in range(12)], "payments": []},
        "eve": {"orders": [], "payments": [(51, False)]},
    }
    assert Checkpoint(place / "ck").table("paid").num_rows == 3


class Numbers(Spout):
    outputFields = "n long"

    def open(self, context):
        self.left = [0, 1]

    def nextTuple(self, collector):
        if self.left:
            number = self.left.pop()
            collector.emit((number,), id=("id", number))


class Keep(StatefulBolt):
    def initState(self, state):
        self.state, self.recent = state, state.map("recent")

    def execute(self, tup, collector):
        self.state[tup[0]] = self.recent[tup[0]] = 1


def test_ids_of_dedup_are_shown_as_the_spout_gave_them(place, capsys):
    builder = TopologyBuilder("ids")
    builder.setSpout("numbers", Numbers(), dedup="10 minutes")
    builder.setBolt("keep", Keep()).fieldsGrouping("numbers", "n")
    with TopologyTester(builder.createTopology(), place / "ck", now=at(0)) as tester:
        tester.drain()
    with Checkpoint(place / "ck").state("__dedup-numbers") as view:
        assert dict(view.items()) == {("id", number): at(10) for number in range(2)}
    assert main(["explain", str(place / "ck"), "__dedup-numbers", '["id", 1]', "--json"]) == 0
    assert '"now"' in capsys.readouterr().out


@pytest.mark.slow
def test_open_trees_are_shown_with_spout_and_id(place):
    builder = TopologyBuilder("trees")
    builder.setSpout("fed", Fed())
    builder.setBolt("gathers", Gathers(3)).shuffleGrouping("fed")
    FED.extend(["a", "b"])
    with TopologyTester(builder.createTopology(), place / "ck", now=at(0)) as tester:
        for _ in range(4):
            tester.emit()
    with Checkpoint(place / "ck").state("__acker") as view:
        found = list(view.values())
    assert [(each["spout"], each["task"], each["id"]) for each in found] == [("fed", 0, "a"), ("fed", 0, "b")]


def keeping(place, bolt=None):
    builder = TopologyBuilder("keeping")
    builder.setStream("rows", rows("word string"))
    builder.setBolt("keep", bolt or Keep(), 2).fieldsGrouping("rows", "word")
    with TopologyTester(builder.createTopology(), place / "ck") as tester:
        tester.send({"rows": [("a",)]})
    return place / "ck"


@pytest.mark.parametrize("task", [None, 0, 1])
def test_an_unknown_map_is_an_error_that_lists_those_there_are(task, place):
    folder = keeping(place)
    with pytest.raises(CheckpointError, match=r"in a map 'recnet' in .*; its maps are \['recent'\]"):
        Checkpoint(folder).state("keep", task, map="recnet")
    with pytest.raises(CheckpointError, match=r"its maps are \['recent'\]"):
        Checkpoint(folder)._table("keep", task=task, map="recnet")
    with Checkpoint(folder).state("keep", task, map="recent") as view:
        assert task is None or len(view) <= 1
    assert Checkpoint(folder).table("keep", task=task, map="recent").num_rows <= 1


def test_a_declared_map_that_is_empty_is_known(place):
    class Declared(Keep):
        stateSchema = {"maps": {"other": {"key": "word string"}}}

    folder = keeping(place, Declared())
    with Checkpoint(folder).state("keep", map="other") as view:
        assert dict(view.items()) == {}
    assert Checkpoint(folder).table("keep", map="other").num_rows == 0


def test_the_maps_of_a_bolt_are_listed(place, capsys):
    assert main(["maps", str(keeping(place)), "keep", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "recent", "kind": "map"}


def test_open_windows_have_no_ranges_and_no_comparison(place):
    with TopologyTester(clicks(Values().withTumblingWindow("10 minutes")), place / "ck", now=at(100)) as tester:
        tester.send({"clicks": [("ann", 1, at(1))]})
    for more in ({"start": "a"}, {"diff": (0, 1)}):
        with pytest.raises(ConfigError, match="read them at both transactions"):
            Checkpoint(place / "ck")._table("windows", map="windows", **more)
    schema = {"key": "user string, begins timestamp, ends timestamp", "value": "n long"}
    typed = Checkpoint(place / "ck").table("windows", map="windows", schema=schema)
    assert typed.select(["user", "n"]).to_pylist() == [{"user": "ann", "n": 1001}]


def test_a_windowed_bolts_map_named_windows_is_refused(place):
    class Own(Values):
        def initState(self, state):
            state.map("windows")

    with (
        TopologyTester(clicks(Own().withTumblingWindow("10 minutes")), place / "ck", now=at(100)) as tester,
        pytest.raises(BoltError, match="give the map another name"),
    ):
        tester.send({"clicks": [("ann", 1, at(1))]})
