"""The cookbook's bolts over many histories, each beside a plain recount of the same rows.

A history is cut into transactions at random, its rows come out of order within bounds, and new drivers go on with it:
nothing of that may show in what the bolts emit.
"""

import random
import sqlite3
import tempfile
from collections import Counter, defaultdict
from contextlib import chdir, closing
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import pytest

from statefx import StatefulBolt, TopologyBuilder
from statefx.testing import Crash, TopologyTester, rows
from tests.docs.test_code_blocks import ROOT, program

SEEDS = range(3)
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
LATENESS_SECS = 30  # of all inputs of the page on windows
END = NOON + timedelta(days=1)  # later than all histories


def at(secs):
    return NOON + timedelta(seconds=secs)


class Keep(StatefulBolt):
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


def played(topology, transactions, folder: Path, chance):
    """What `Keep` has in the end, by stream, each as often as it came; `chance` starts drivers anew."""
    tester = TopologyTester(topology, folder)
    for each in transactions:
        if chance.random() < 0.2:
            tester.close()
            tester = tester.restart()
        tester.send(each)
    kept = tester.state("keep")
    tester.close()
    found: dict[str, Counter] = {}
    for (_, stream, *row), times in kept.items():
        found.setdefault(stream, Counter())[tuple(row)] += times
    return found


def told(topology, input, bolt, transactions, folder, chance):
    """What a bolt emits, and what is late, over new drivers and until the watermark has passed all."""
    tester = TopologyTester(topology, folder, now=END)
    emitted, late = [], []
    for each in [*transactions, [], []]:  # behind a DataFrame the watermark is one transaction behind
        if chance.random() < 0.2:
            tester = tester.restart()
        sent = tester.send({input: each})
        emitted += sent.emitted(bolt)
        late += sent.emitted(bolt, "late") if bolt != "top" else []
    tester.close()
    return emitted, late


def shuffled(events, late, chance):
    return sorted(events, key=lambda event: event[0] + chance.randint(0, late))


def cut(events, chance, most=9):
    events = list(events)
    while events:
        size = chance.randint(1, most)
        yield events[:size]
        events = events[size:]


def history(events, chance, late=LATENESS_SECS):
    """Events (secs, user, what) as transactions of rows (user, at, what), and one that is later than all."""
    transactions = cut(shuffled(events, late, chance), chance)
    return [*([(user, at(secs), what) for secs, user, what in each] for each in transactions), [("end", END, None)]]


def payments(chance):
    return [(chance.randrange(600), chance.choice(["ann", "bob"]), chance.randrange(1, 60)) for _ in range(80)]


def by_minute(events):
    found = defaultdict(list)
    for secs, user, cents in events:
        found[user, at(secs - secs % 60)].append(cents)
    return found


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_averages_are_those_of_a_recount(place, seed):
    names, chance = page("windows"), random.Random(seed)
    events = payments(chance)
    topology = names["averages"](rows("user string, at timestamp, cents long"))
    emitted, late = told(topology, "payments", "averages", history(events, chance), place / "ck", chance)
    expected = [(*key, len(all), sum(all) / len(all)) for key, all in by_minute(events).items()]
    assert (sorted(emitted), late) == (sorted(expected), [])


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["averages", "visits"])
@pytest.mark.parametrize("seed", SEEDS)
def test_each_row_counts_once_or_is_told_to_be_late(place, recipe, seed):
    """With more disorder than the lateness allows."""
    names, chance = page("windows"), random.Random(seed)
    events = [(chance.randrange(30_000), "ann", number) for number in range(80)]
    if recipe == "averages":
        input, fields = "payments", "user string, at timestamp, cents long"
    else:
        input, fields = "clicks", "user string, at timestamp, page string"
        events = [(secs, user, f"{number}") for secs, user, number in events]
    transactions = history(events, chance, late=20_000)
    emitted, late = told(names[recipe](rows(fields)), input, recipe, transactions, place / "ck", chance)
    counted = sum(row[2] if recipe == "averages" else len(row[2]) for row in emitted)
    assert late
    assert counted + len(late) == len(events)


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_top_words_are_those_of_a_recount(place, seed):
    names, chance = page("windows"), random.Random(seed)
    words = [(chance.randrange(2400), chance.choice("abcdefgh"), chance.choice("abcd")) for _ in range(120)]
    transactions = [
        [(time, f"{one} {two}" if two else one) for one, time, two in each] for each in history(words, chance)
    ]
    topology = names["top_words"](rows("at timestamp, text string"))
    emitted, _ = told(topology, "lines", "top", transactions, place / "ck", chance)
    expected = []
    for end in range(60, 3600, 60):
        counts = Counter(word for secs, *both in words for word in both if end - 600 <= secs < end)
        if counts:
            expected.append((at(end), sorted(counts, key=lambda word, all=counts: (-all[word], word))[:3]))
    assert sorted(emitted) == expected


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_visits_are_those_of_a_recount(place, seed):
    names, chance = page("windows"), random.Random(seed)
    times = chance.sample(range(60_000), 100)
    clicks = [(secs, chance.choice(["ann", "bob", "eve"]), f"/{secs}") for secs in times]
    topology = names["visits"](rows("user string, at timestamp, page string"))
    emitted, late = told(topology, "clicks", "visits", history(clicks, chance), place / "ck", chance)
    expected = []
    for user in ("ann", "bob", "eve"):
        last = None
        for secs, one, what in sorted(clicks):
            if one != user:
                continue
            if last is None or secs - last >= 1800:
                expected.append((user, at(secs), []))
            expected[-1][2].append(what)
            last = secs
    assert (sorted(emitted), late) == (sorted(expected), [])


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_each_alert_comes_once_and_as_soon_as_it_can(place, seed):
    names, chance = page("windows"), random.Random(seed)
    transactions = history(payments(chance), chance)
    transactions[-1] = [("end", END, 0)]
    topology = names["alerts"](rows("user string, at timestamp, cents long"))
    with TopologyTester(topology, place / "ck", now=END) as tester:
        known = []
        for each in transactions:
            sent = tester.send({"payments": each})
            before = {key for key, all in by_minute(known).items() if sum(all) > names["LIMIT"]}
            known += [((time - NOON).total_seconds(), user, cents) for user, time, cents in each]
            now = {key for key, all in by_minute(known).items() if sum(all) > names["LIMIT"]}
            assert sorted(sent.emitted("alerts")) == sorted(now - before)
            assert sent.emitted("alerts", "late") == []
        tester.send({})
        assert len(tester.emitted("alerts")) > 5, "else nothing is tried"
        left = {key for task in range(4) for key in tester.state("alerts", task)}
        assert left == {("end", END)}


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


PAID = [{"payments": [("ann", 5), ("bob", 7)]}, {"payments": [("ann", 1)]}, {"payments": [("bob", 2)]}]


def died(place, at):
    """Run the bills with a driver that dies at its step `at`, then with another one; return whether it died."""
    path = place / f"bills-{at}.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE messages (user, cents); CREATE TABLE seen (task PRIMARY KEY, txid);")
    topology = page("outbox")["topology"]
    for crash_at in (at, None):
        bills = topology(rows("user string, cents long"), path)
        try:
            with TopologyTester(bills, place / f"checkpoint-{at}", crash_at=crash_at) as tester:
                tester.run(PAID)  # goes on with what is not committed
        except Crash:
            continue
        break
    with closing(sqlite3.connect(path)) as connection:
        sent = sorted(connection.execute("SELECT user, cents FROM messages"))
    assert sent == [("ann", 5), ("ann", 6), ("bob", 7), ("bob", 9)], at
    return crash_at is None


@pytest.mark.slow
def test_a_message_is_sent_once_wherever_the_driver_dies(place):
    deaths = 0
    while died(place, deaths + 1):
        deaths += 1
    assert deaths > 20
