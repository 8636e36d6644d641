"""The cookbook's bolts over many histories, each beside a plain recount of the same rows.

A history is cut into transactions at random, its rows come out of order within bounds, and new drivers go on with it:
nothing of that may show in what the bolts emit.
"""

import random
import tempfile
from collections import Counter
from contextlib import chdir
from functools import cache
from pathlib import Path

import pytest

from statefx import StatefulBolt, TopologyBuilder
from statefx.testing import TopologyTester, rows
from tests.docs.test_code_blocks import ROOT, program
from tests.testing.places import place

__all__ = ["place"]

SEEDS = range(3)
END = 10**6  # later than all histories


class Keep(StatefulBolt):
    """Keeps what other bolts emit."""

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        key = (tup._source, tup._stream, *tup)
        self.state.put(key, self.state.get(key, 0) + 1)


@cache
def page(name):
    """What a page of the cookbook defines; its own examples run once."""
    names = {"__name__": name}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        exec(program((ROOT / "docs" / "cookbook" / f"{name}.md").read_text(encoding="utf-8")), names)
    return names


def played(topology, transactions, folder: Path, chance=None):
    """What `Keep` has in the end, by stream, each as often as it came; `chance` starts drivers anew."""
    tester = TopologyTester(topology, folder)
    for each in transactions:
        if chance and chance.random() < 0.2:
            tester.close()
            tester = tester.restart()
        tester.send(each)
    kept = tester.state("keep")
    tester.close()
    found: dict[str, Counter] = {}
    for (_, stream, *row), times in kept.items():
        found.setdefault(stream, Counter())[tuple(row)] += times
    return found


def shuffled(events, late, chance):
    """The events in an order in which none comes more than `late` after a newer one."""
    return sorted(events, key=lambda event: event[0] + chance.randint(0, late))


def cut(events, chance, most=9):
    """The events as transactions of at most so many."""
    events = list(events)
    while events:
        size = chance.randint(1, most)
        yield events[:size]
        events = events[size:]


def clocked(page, name, bolt, fields, streams, key):
    """A bolt that listens to the clock over these streams."""
    builder = TopologyBuilder(name)
    clock = builder.setBolt("clock", page["Clock"](*streams))
    declared = builder.setBolt(name, page[bolt](), parallelism=2).allGrouping("clock")
    for stream in streams:
        builder.setStream(stream, rows(fields))
        clock.globalGrouping(stream)
        declared.fieldsGrouping(stream, key)
    keep = builder.setBolt("keep", Keep())
    for stream in page[bolt].outputFields:
        keep.globalGrouping(name, stream=stream)
    return builder.createTopology()


def sessions(clicks, gap):
    """The sessions of some clicks, counted with all of them at hand."""
    found = []
    for user in {user for _, user in clicks}:
        times = sorted(at for at, one in clicks if one == user)
        began, last, events = times[0], times[0], 0
        for at in times:
            if at > last + gap:
                found.append((user, began, last, events))
                began, events = at, 0
            last, events = at, events + 1
        found.append((user, began, last, events))
    return Counter(found)


@pytest.mark.parametrize("cuts", [[3], [1, 1, 1], [1, 2], [2, 1]], ids=str)
def test_a_click_between_two_others_makes_them_one_session(place, cuts):
    names = page("windows")
    clicks = iter([(1000, "ann"), (1310, "ann"), (1290, "ann")])
    transactions = [{"clicks": [next(clicks) for _ in range(size)]} for size in cuts]
    topology = clocked(names, "sessions", "Sessions", "at long, user string", ["clicks"], "user")
    found = played(topology, [*transactions, {"clicks": [(END, "end")]}], place / "ck")
    assert found == {"default": Counter({("ann", 1000, 1310, 3): 1})}


def test_a_click_that_is_too_late_opens_no_session(place):
    names = page("windows")
    topology = clocked(names, "sessions", "Sessions", "at long, user string", ["clicks"], "user")
    clicks = [(1000, "ann"), (2000, "bob"), (1200, "ann"), (END, "end")]
    found = played(topology, [{"clicks": [click]} for click in clicks], place / "ck")
    assert found == {
        "default": Counter({("ann", 1000, 1000, 1): 1, ("bob", 2000, 2000, 1): 1}),
        "late": Counter({(1200, "ann"): 1}),
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_sessions_are_those_of_a_recount(place, monkeypatch, seed):
    names, chance = page("windows"), random.Random(seed)
    monkeypatch.setitem(names, "LATE_SECS", 250)  # so that a click often comes when a newer one of its session is there
    clicks = [(chance.randrange(6000), chance.choice(["ann", "bob", "eve"])) for _ in range(60)]
    ordered = shuffled(clicks, names["LATE_SECS"], chance)
    transactions = [{"clicks": each} for each in cut(ordered, chance)]
    topology = clocked(names, "sessions", "Sessions", "at long, user string", ["clicks"], "user")
    found = played(topology, [*transactions, {"clicks": [(END, "end")]}], place / "ck", chance)
    assert found == {"default": sessions(clicks, names["GAP"])}


@pytest.mark.parametrize("bolt", ["Totals", "Sliding"])
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_windows_are_those_of_a_recount(place, bolt, seed):
    names, chance = page("windows"), random.Random(seed)
    payments = [(chance.randrange(600), chance.choice(["ann", "bob"]), chance.randrange(100)) for _ in range(60)]
    ordered = shuffled(payments, names["LATE_SECS"], chance)
    transactions = [{"payments": each} for each in cut(ordered, chance)]
    topology = clocked(names, "totals", bolt, "at long, user string, cents long", ["payments"], "user")
    found = played(topology, [*transactions, {"payments": [(END, "end", 0)]}], place / "ck", chance)
    every = 60 if bolt == "Totals" else names["SLIDE"]
    expected = Counter()
    for at, user, cents in payments:
        for start in range(-60, 600, every):
            expected[(start, user)] += cents if start <= at < start + 60 else 0
    assert {row[:2]: row[2] for row in found.pop("default") if row[2]} == +expected
    assert found == {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_each_payment_counts_once_or_is_told_to_be_late(place, seed):
    """With more disorder than the clock allows."""
    names, chance = page("windows"), random.Random(seed)
    payments = [(chance.randrange(600), "ann", 1) for _ in range(60)]
    transactions = [{"payments": each} for each in cut(shuffled(payments, 300, chance), chance)]
    topology = clocked(names, "totals", "Totals", "at long, user string, cents long", ["payments"], "user")
    found = played(topology, [*transactions, {"payments": [(END, "end", 0)]}], place / "ck", chance)
    assert found["late"]
    assert sum(cents for _, _, cents in found["default"]) + found["late"].total() == len(payments)


@pytest.mark.parametrize("ahead", ["orders", "payments"])
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_no_pair_is_lost_where_one_input_is_ahead(place, ahead, seed):
    names, chance = page("windows"), random.Random(seed)
    within, late = names["WITHIN_SECS"], names["LATE_SECS"]
    inputs = {
        name: shuffled([(chance.randrange(9000), chance.randrange(9)) for _ in range(50)], late, chance)
        for name in ("orders", "payments")
    }
    behind = "payments" if ahead == "orders" else "orders"
    parts = {name: [[(id, at) for at, id in each] for each in cut(inputs[name], chance)] for name in inputs}
    early = min(names["IDLE"] - 1, len(parts[ahead]))
    transactions = [{ahead: each} for each in parts[ahead][:early]]  # as long as the other one is not idle
    transactions += [
        {ahead: each, behind: other}
        for each, other in zip(
            parts[ahead][early:] + [[]] * len(parts[behind]), parts[behind] + [[]] * len(parts[ahead]), strict=False
        )
        if each or other
    ]
    transactions += [{"orders": [(-1, END)], "payments": [(-2, END)]}]
    topology = clocked(names, "pairs", "Pairs", "id long, at long", ["orders", "payments"], "id")
    found = played(topology, transactions, place / "ck", chance)

    pairs, alone = Counter(), Counter(("orders", id, at) for at, id in inputs["orders"])
    alone += Counter(("payments", id, at) for at, id in inputs["payments"])
    for ordered, id in inputs["orders"]:
        for paid, other in inputs["payments"]:
            if id == other and abs(ordered - paid) <= within:
                pairs[(id, ordered, paid)] += 1
                alone.pop(("orders", id, ordered), None)
                alone.pop(("payments", id, paid), None)
    assert pairs
    assert alone
    assert found == {"default": pairs, "alone": alone}


def test_an_idle_input_holds_the_clock_back_no_longer_and_its_rows_are_told_to_be_late(place):
    names = page("windows")
    topology = clocked(names, "pairs", "Pairs", "id long, at long", ["orders", "payments"], "id")
    silent = [{"orders": [(number, 1000 + number)]} for number in range(names["IDLE"] - 1)]
    assert played(topology, [*silent, {"payments": [(0, 900)]}], place / "1") == {
        "default": Counter({(0, 1000, 900): 1})
    }
    found = played(topology, [*silent, {"orders": [(99, 5000)]}, {"payments": [(0, 900)]}], place / "2")
    assert found == {
        "alone": Counter(("orders", number, 1000 + number) for number in range(names["IDLE"] - 1)),
        "late": Counter({("payments", 0, 900): 1}),
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_passes_once_or_is_told_to_be_old(place, seed):
    names, chance = page("dedup"), random.Random(seed)
    keep = names["KEEP_SECS"]
    events = [(chance.randrange(3 * keep), f"id{number}", "x") for number in range(25)]
    copies = [event for event in events for _ in range(chance.randint(1, 3))]
    transactions = [
        {"events": [(id, at, body) for at, id, body in each]}
        for each in cut(shuffled(copies, keep * 3, chance), chance)
    ]
    builder = TopologyBuilder("distinct")
    builder.setStream("events", rows("id string, at long, body string"))
    builder.setBolt("distinct", names["Distinct"](), parallelism=1).fieldsGrouping("events", "id")
    builder.setBolt("keep", Keep()).globalGrouping("distinct").globalGrouping("distinct", stream="old")
    found = played(builder.createTopology(), transactions, place / "ck", chance)
    assert set(found["default"].values()) == {1}
    assert {row[:2] for row in found["default"] + found["old"]} == {(id, at) for at, id, _ in events}
    newest, judged = 0, set()
    for each in transactions:  # what is not old when it first comes passes, whatever comes later
        judged |= {(id, at) for id, at, _ in each["events"] if at >= newest - keep}
        newest = max([newest, *(at for _, at, _ in each["events"])])
    assert {row[:2] for row in found["default"]} == judged
    assert found["old"]
