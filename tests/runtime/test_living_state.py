"""State that stays open over many transactions, while the files that it was opened from are merged and swept."""

import os
import random
from datetime import UTC, datetime

import pytest

from statefx import FailedException, StatefulBolt, TopologyBuilder, openState
from statefx.connectors import MemoryTransactionalSpout
from statefx.errors import BoltError
from statefx.state.changelog.store import ADVANCES_MAX, DictImage
from statefx.state.contract.store import EMPTY
from statefx.state.view.changes import StoreReads
from statefx.state.view.task_state import NAMES_MAX
from statefx.testing import Crash, Limits, TopologyTester
from statefx.testing.site import Site, prepare, writes
from statefx_memory import MemoryStateProvider

ROWS = 80
FAIL = []


class Large(StatefulBolt):
    """Has large values, and looks at all of them at the end only."""

    outputFields = {}

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        if tup.number in FAIL:  # the next attempt opens the state again, in a process that remembers what was changed
            FAIL.remove(tup.number)
            raise FailedException("not now")
        self.state.put(tup.number, os.urandom(200_000))  # more than comes with the head of a file
        if tup.number == ROWS - 1:
            assert len(list(self.state.items())) == ROWS


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["memory", "rocksdb"])
def test_a_scan_of_state_that_was_opened_long_ago(tmp_path, provider):
    FAIL[:] = [6]
    builder = TopologyBuilder("long")
    numbers = [[(number,) for number in range(ROWS)]]
    builder.setSpout("numbers", MemoryTransactionalSpout(numbers, "number long", takePerBatch=1))
    builder.setBolt("large", Large()).fieldsGrouping("numbers", "number")
    config = {
        "topology.state.provider": provider,
        "topology.state.checkpoint.interval.ms": 1,
    }
    limits = Limits(min_age_secs=0.0, sweep_every=10, versions_kept=20)
    with TopologyTester(builder.createTopology(), tmp_path / "ck", config, limits=limits, freshObjects=False) as tester:
        tester.drain()
        assert len(tester.state("large")) == ROWS


class Asked(DictImage):
    """Notes how many keys it is asked for."""

    asked = 0

    def get(self, keys):
        self.asked += len(keys)
        return super().get(keys)


def test_how_many_keys_there_are_costs_what_has_changed(tmp_path, monkeypatch):
    """A task that lives says so in each transaction; it went through all that was laid over the image."""
    monkeypatch.setattr("statefx_memory.DictImage", Asked)
    chance = random.Random(7)
    site = Site(MemoryStateProvider({}), tmp_path)
    base = site.commit(EMPTY, {b"u%d" % number: b"1" for number in range(0, 2000, 2)} | {b"s1": b"1"})
    store, known = site.open(base), {b"u%d" % number for number in range(0, 2000, 2)}
    for txid in range(2, 40):
        drawn = {b"u%d" % chance.randrange(2000) for _ in range(50)}
        changes = {key: None if chance.random() < 0.3 else b"%d" % txid for key in drawn} | {b"s%d" % txid: b"1"}
        known = {key for key in known | drawn if changes.get(key, b"") is not None}
        token = prepare(store, txid, writes(changes))
        assert store.advance(txid, token, writes(changes))
        before = store._image.asked
        assert store.count(b"u") == len(known)
        assert store._image.asked - before <= 50
    assert store.count(b"s") == 39
    assert store._image.asked < 39 * 2 * 60
    site.close()


class Counts(StatefulBolt):
    """Counts under one key, and keeps a list under another."""

    outputFields = {}

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put("n", self.state.get("n", 0) + 1)
        self.state.put("rows", [*self.state.get("rows", []), tup.number])


@pytest.mark.slow
def test_what_is_known_stays_known_when_a_store_is_opened_anew(tmp_path, monkeypatch):
    """A store is opened anew after so many transactions, else each merge of its files would leave it further behind."""
    opened, read = [], []
    monkeypatch.setattr(MemoryStateProvider, "newState", _noting(opened, MemoryStateProvider.newState))
    monkeypatch.setattr(StoreReads, "get", _noting(read, StoreReads.get))
    builder = TopologyBuilder("hot")
    numbers = [[(number,) for number in range(3 * ADVANCES_MAX)]]
    builder.setSpout("numbers", MemoryTransactionalSpout(numbers, "number long", takePerBatch=1))
    builder.setBolt("counts", Counts()).globalGrouping("numbers")
    config = {"topology.state.checkpoint.interval.ms": 1}
    with TopologyTester(builder.createTopology(), tmp_path / "ck", config, freshObjects=False) as tester:
        tester.drain()
        assert 3 <= len(opened) <= 5
        assert sum(len(keys) for _, keys in read) == 2, "each key is read once"
        assert tester.state("counts") == {"n": len(numbers[0]), "rows": list(range(len(numbers[0])))}


class Named(StatefulBolt):
    """Keeps a sum by remainder, the last numbers and how many there were, each under a name; some numbers fail once."""

    outputFields = {}

    def initState(self, state):
        self.sums, self.last, self.seen = state.map("sums"), state.list("last"), state.value("seen")

    def execute(self, tup, collector):
        if tup.number in FAIL:
            FAIL.remove(tup.number)
            self.last.append("lost")
            self.sums.put("lost", 1)
            raise FailedException("not now")
        self.sums.put(tup.number % 3, self.sums.get(tup.number % 3, 0) + tup.number)
        self.last.append(tup.number)
        if tup.number % 2:
            self.last.truncate(5)
        self.seen.put(self.seen.get(0) + 1)


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["memory", "rocksdb"])
@pytest.mark.parametrize("fresh", [True, False])
def test_what_is_kept_under_names_over_transactions_and_failures(tmp_path, provider, fresh):
    FAIL[:] = [4, 17, 18]
    builder = TopologyBuilder("named")
    numbers = [[(number,) for number in range(40)]]
    builder.setSpout("numbers", MemoryTransactionalSpout(numbers, "number long", takePerBatch=1))
    builder.setBolt("named", Named()).globalGrouping("numbers")
    config = {
        "topology.state.provider": provider,
        "topology.state.checkpoint.interval.ms": 1,
    }
    with TopologyTester(builder.createTopology(), tmp_path / "ck", config, freshObjects=fresh) as tester:
        tester.drain()
        assert tester.state("named", map="sums") == {each: sum(range(each, 40, 3)) for each in range(3)}
        assert tester.state("named") == tester.state("named", map="other") == {}
    with openState(tmp_path / "ck", "named") as view:
        assert view.list("last") == {0: [35, 36, 37, 38, 39]}
        assert view.value("seen") == {0: 40}
        assert view.names() == {"map": ["sums"], "list": ["last"], "value": ["seen"], "broadcast": []}


class Daily(StatefulBolt):
    """Has a map for each day, and empties that of the day before."""

    outputFields = {}

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.map(f"day {tup.number}").put("rows", 1)
        self.state.map(f"day {tup.number - 1}").deleteRange(None, None)


@pytest.mark.slow
def test_names_may_change_for_ever_if_few_are_taken_at_a_time(tmp_path):
    builder = TopologyBuilder("daily")
    numbers = [[(number,) for number in range(NAMES_MAX + 10)]]
    builder.setSpout("numbers", MemoryTransactionalSpout(numbers, "number long", takePerBatch=1))
    builder.setBolt("daily", Daily()).globalGrouping("numbers")
    config = {"topology.state.checkpoint.interval.ms": 1}
    with TopologyTester(builder.createTopology(), tmp_path / "ck", config, freshObjects=False) as tester:
        tester.drain()
    with openState(tmp_path / "ck", "daily") as view:
        assert view.names()["map"] == [f"day {len(numbers[0]) - 1}"]


class Recent(StatefulBolt):
    """Tells of each number whether it was there lately; some numbers fail once."""

    outputFields = "number long, times long"

    def initState(self, state):
        self.seen = state.map("seen", ttl="10 seconds")
        self.read = state.map("read", ttl=10, touch="read")

    def execute(self, tup, collector):
        number = tup.number % 1000
        if tup.number in FAIL:
            FAIL.remove(tup.number)
            self.seen.put("lost", 1)
            raise FailedException("not now")
        times = self.seen.get(number, 0) + 1
        self.seen.put(number, times)
        if "first" not in self.read:
            self.read.put("first", tup.number)
        collector.emit((tup.number, times))

    def preCommit(self, txid):
        HEARD.append((txid, dict(self.seen.items())))


HEARD = []


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["memory", "rocksdb"])
@pytest.mark.parametrize("fresh", [True, False])
def test_entries_are_over_at_their_time_in_a_task_that_lives(tmp_path, provider, fresh):
    """By the driver's clock, whether the process remembers an entry or reads it, and whether an attempt has failed."""
    FAIL[:], HEARD[:] = [7, 2003], []
    numbers = [(5,), (7,), (3,), (1005,), (2005,), (3005,), (2003,), (3,), (5,)]
    builder = TopologyBuilder("recent")
    builder.setSpout("numbers", MemoryTransactionalSpout([numbers], "number long", takePerBatch=1))
    builder.setBolt("recent", Recent()).globalGrouping("numbers")
    config = {
        "topology.state.provider": provider,
        "topology.state.checkpoint.interval.ms": 1,
    }
    now = datetime(2026, 1, 1, tzinfo=UTC)
    with TopologyTester(builder.createTopology(), tmp_path / "ck", config, freshObjects=fresh, now=now) as tester:

        def times(number):
            sent = tester.emit()
            assert [row[0] for row in sent.emitted("recent")] == [number]
            return sent.emitted("recent")[0][1]

        assert [times(5), times(7), times(3)] == [1, 1, 1]
        tester.advance(6)
        assert [times(1005), times(2005)] == [2, 3]
        tester.advance(5)
        assert tester.state("recent", map="seen") == {5: 3}
        assert [times(3005), times(2003)] == [4, 1], "3 and 7 are over; 5 was put again"
        assert {5: 4, 3: 1} in [seen for _, seen in HEARD], "preCommit sees by the same clock"
        assert all(7 not in seen for txid, seen in HEARD if txid > 5)
        tester.advance(9)
        assert times(3) == 2
        assert tester.state("recent", map="read") == {"first": 5}, "each read has begun its time anew"
        tester.advance(9)
        tester = tester.restart()
        assert tester.state("recent", map="seen") == {3: 2}
        tester.advance(2)
        assert tester.state("recent", map="seen") == tester.state("recent", map="read") == {}
        assert times(5) == 1
        assert tester.state("recent", map="read") == {"first": 5}
    with openState(tmp_path / "ck", "recent", map="seen") as view:
        assert dict(view) == {}, "by the clock of who reads, which has gone on since the tester's"
        assert view.names()["map"] == []


class Outbox(StatefulBolt):
    """Sends what it has kept for a minute when the transaction is certain."""

    outputFields = {}

    def initState(self, state):
        self.outbox = state.map("outbox", ttl=60)

    def execute(self, tup, collector):
        self.outbox.put(tup.number, 1)

    def preCommit(self, txid):
        HEARD.append((txid, dict(self.outbox.items())))


def test_pre_commit_sees_what_was_prepared_however_late_it_comes(tmp_path):
    HEARD[:] = []
    builder = TopologyBuilder("outbox")
    builder.setSpout("numbers", MemoryTransactionalSpout([[(7,)]], "number long"))
    builder.setBolt("outbox", Outbox()).globalGrouping("numbers")
    tester = TopologyTester(builder.createTopology(), tmp_path / "ck")
    tester.when("after COMMITTING(1, 0)", _crash)
    with pytest.raises(Crash):
        tester.emit()
    tester.advance(600)
    with tester.restart():
        assert HEARD == [(1, {7: 1})]


def _crash():
    raise Crash("after COMMITTING(1, 0)")


class Keeps(StatefulBolt):
    """Keeps a map of the transaction before."""

    outputFields = {}

    def initState(self, state):
        if not hasattr(self, "recent"):
            self.recent = state.map("recent")

    def execute(self, tup, collector):
        self.recent.put(tup.number, 1)


def test_a_map_ends_with_its_transaction(tmp_path):
    builder = TopologyBuilder("keeps")
    builder.setSpout("numbers", MemoryTransactionalSpout([[(1,), (1,)]], "number long", takePerBatch=1))
    builder.setBolt("keeps", Keeps()).globalGrouping("numbers")
    with (
        TopologyTester(builder.createTopology(), tmp_path / "ck", freshObjects=False) as tester,
        pytest.raises(BoltError, match="Use the one that initState was given last"),
    ):
        tester.drain()


def _noting(calls, function):
    def noting(*arguments):
        calls.append(arguments)
        return function(*arguments)

    return noting
