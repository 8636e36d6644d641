"""Chains that live over transactions: random orders, lost and frozen chains, long-open state, attempts given up."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from statefx import BasicBolt, BatchBolt, Checkpoint, Stateful, StatefulBolt, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.coordinator.runs import text_for
from statefx.errors import BoltError, FailedException
from statefx.plan import wire
from statefx.protocol import messages
from statefx.protocol.commands import Resolution
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.messages import ChainId, FrameKind
from statefx.protocol.order import Order, ResolutionOrder
from statefx.runtime.chain import AbandonedError
from statefx.runtime.worker import Worker
from statefx.state.changelog.store import ADVANCES_MAX, DictImage
from statefx.state.contract.store import EMPTY
from statefx.state.view.changes import StoreReads
from statefx.state.view.task_state import NAMES_MAX
from statefx.testing import Crash, Limits, TopologyTester, rows
from statefx.testing.faults import JobFails
from statefx.testing.site import Site, prepare, writes
from statefx_memory import MemoryStateProvider
from tests.bolts import WithState
from tests.runtime.chains_model import ModelTask, Player
from tests.runtime.one_chain import chain_attempt, deployment, order_of
from tests.runtime.runs_model import planned
from tests.testing.lives import seeds
from tests.testing.living import LivingTester
from tests.testing.topologies import Count, lines, witnessed

REFUSE = random.Random(0)
PATIENT = Limits(pauses=10_000)


class Flaky(BasicBolt):
    outputFields = "word string"

    def __init__(self, often):
        self.often = often

    def execute(self, tup, collector):
        if REFUSE.random() < self.often:
            raise FailedException("not now")
        collector.emit((tup.word,))


class Total(Stateful, BatchBolt):
    outputFields = {}

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put("rows", self.state.get("rows", 0) + 1)

    def preCommit(self, txid):
        pass


def topology(words, flaky, relay):
    builder = TopologyBuilder("living")
    builder.setSpout("words", MemoryTransactionalSpout(words, "word string", takePerBatch=3), parallelism=2)
    builder.setBolt("same", Flaky(0.02 if flaky else 0), parallelism=2).fieldsGrouping("words", "word")
    builder.setBolt("count", Count(), parallelism=3).fieldsGrouping("same", "word")
    total = builder.setBolt("total", Total(), parallelism=2).fieldsGrouping("count", "word")
    if relay:
        total.fieldsGrouping("words", "word")
    return builder.createTopology()


def run(folder: Path, seed: int, pending: int, break_things: bool, relay: bool) -> None:
    REFUSE.seed(seed)
    chance = random.Random(seed)
    words = [[(f"w{chance.randrange(6)}",) for _ in range(chance.randrange(0, 20))] for _ in range(2)]
    config = {
        "topology.state.provider": chance.choice(["memory", "rocksdb"]),
        "topology.max.spout.pending": pending,
        "topology.transaction.attempts.max": 1000,
        "topology.state.checkpoint.interval.ms": 1,
    }
    topologies = topology(words, break_things, relay)
    with LivingTester(
        topologies, folder, config, seed=seed, breaks=break_things, freshObjects=False, limits=PATIENT
    ) as tester:
        tester.drain()
        tester.wake()
        expected = Counter(word for part in words for (word,) in part)
        assert tester.state("count") == dict(expected)
        rows = sum(value for task in range(2) for value in tester.state("total", task).values())
        assert rows == sum(expected.values()) * (2 if relay else 1)


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize(("pending", "relay"), [(1, True), (3, False)])
def test_every_order_of_arrival_gives_the_same(place, pending, relay):
    for seed in seeds(0.3):
        run(place / str(seed), seed, pending, False, relay)


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize(("pending", "relay"), [(1, True), (3, False)])
def test_refused_lost_and_frozen(place, pending, relay):
    for seed in seeds(1):
        run(place / str(seed), seed, pending, True, relay)


@pytest.mark.slow
@pytest.mark.parametrize("pending", [2, pytest.param(1, marks=pytest.mark.soak)])
def test_a_connection_is_lost_after_each_of_its_frames(place, pending, stride):
    """Of each chain, after each frame of either way that a run without failure carries: the next run ends the same."""

    def outcome(folder, seed, cut_at=None):
        words = [[("a",), ("b",), ("a",), ("c",), ("b",)], [("a",), ("c",), ("c",), ("a",)]]
        config = {"topology.state.provider": "memory", "topology.max.spout.pending": pending}
        built = topology(words, False, True)
        with LivingTester(built, place / folder, config, seed=seed, cut_at=cut_at) as tester:
            tester.drain()
            tester.wake()
            totals = [tester.state("total", task) for task in range(2)]
            return (tester.state("count"), totals), tester.carried, tester.runs

    wanted, carried, _ = outcome("whole", 0)
    assert wanted[0] == {"a": 4, "b": 2, "c": 3}
    runs = cuts = 0
    for (id, way), frames in carried.items():
        for after in range(pending, frames + 1, stride):
            # With each seed another order of arrival, and another end that notices first.
            found, _, begun = outcome(f"{id.level}-{id.partition}-{way}-{after}", after, (id, way, after))
            assert found == wanted, f"chain {id}, {way}, after {after} frames"
            runs, cuts = runs + begun - 1, cuts + 1
    assert runs > cuts / 2  # an order of arrival may send fewer frames than were counted


@pytest.mark.parametrize("moment", ["before COMMITTING(1, 0)", "before COMMITTING(2, 0)", "after COMMITTING(2, 0)"])
@pytest.mark.slow
def test_a_chain_is_lost_while_the_driver_appends(place, moment):
    """What has emitted is done, and what reads it is not ordered yet: it is of a run that is over.

    The chains of the next one waited for its rows, until ``topology.transaction.timeout.secs`` were over.
    """
    words = [[(f"w{number % 4}",) for number in range(12)] for _ in range(2)]
    config = {"topology.state.provider": "memory", "topology.max.spout.pending": 3}
    for seed in range(2):
        with LivingTester(topology(words, False, True), place / str(seed), config, seed=seed) as tester:
            tester.when(moment, tester.lose)
            tester.drain()
            assert tester.runs == 2
            assert tester.state("count") == Counter(word for part in words for (word,) in part)


# ---- State that stays open over many transactions, while the files that it was opened from are merged and swept.


ROWS = 80
FAIL = []


class Large(WithState):
    outputFields = {}

    def execute(self, tup, collector):
        if tup.number in FAIL:  # the next attempt opens the state again, in a process that remembers what was changed
            FAIL.remove(tup.number)
            raise FailedException("not now")
        self.state.put(tup.number, os.urandom(200_000))  # more than comes with the head of a file
        if tup.number == ROWS - 1:
            assert len(list(self.state.items())) == ROWS


@pytest.mark.soak
@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("provider", ["memory", "rocksdb"])
def test_a_scan_of_state_that_was_opened_long_ago(tmp_path, provider):
    FAIL[:] = [6]
    builder = TopologyBuilder("long")
    numbers = [[(number,) for number in range(ROWS)]]
    builder.setSpout("numbers", MemoryTransactionalSpout(numbers, "number long", takePerBatch=1))
    builder.setBolt("large", Large()).fieldsGrouping("numbers", "number")
    config = {"topology.state.provider": provider, "topology.state.checkpoint.interval.ms": 1}
    limits = Limits(min_age_secs=0.0, sweep_every=10, versions_kept=20)
    with TopologyTester(builder.createTopology(), tmp_path / "ck", config, limits=limits, freshObjects=False) as tester:
        tester.drain()
        assert len(tester.state("large")) == ROWS


class Asked(DictImage):
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


class Counts(WithState):
    outputFields = {}

    def execute(self, tup, collector):
        self.state.put("n", self.state.get("n", 0) + 1)
        self.state.put("rows", [*self.state.get("rows", []), tup.number])


@pytest.mark.soak
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


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize("provider", ["memory", "rocksdb"])
@pytest.mark.parametrize("fresh", [True, False])
def test_what_is_kept_under_names_over_transactions_and_failures(tmp_path, provider, fresh):
    FAIL[:] = [4, 17, 18]
    builder = TopologyBuilder("named")
    numbers = [[(number,) for number in range(40)]]
    builder.setSpout("numbers", MemoryTransactionalSpout(numbers, "number long", takePerBatch=1))
    builder.setBolt("named", Named()).globalGrouping("numbers")
    config = {"topology.state.provider": provider, "topology.state.checkpoint.interval.ms": 1}
    with TopologyTester(builder.createTopology(), tmp_path / "ck", config, freshObjects=fresh) as tester:
        tester.drain()
        assert tester.state("named", map="sums") == {each: sum(range(each, 40, 3)) for each in range(3)}
        assert tester.state("named") == tester.state("named", map="other") == {}
    with Checkpoint(tmp_path / "ck").state("named") as view:
        assert view.list("last") == {0: [35, 36, 37, 38, 39]}
        assert view.value("seen") == {0: 40}
        assert view.names() == {"map": ["sums"], "list": ["last"], "value": ["seen"], "broadcast": []}


class Daily(WithState):
    outputFields = {}

    def execute(self, tup, collector):
        self.state.map(f"day {tup.number}").put("rows", 1)
        self.state.map(f"day {tup.number - 1}").deleteRange(None, None)


@pytest.mark.soak
@pytest.mark.slow
def test_names_may_change_for_ever_if_few_are_taken_at_a_time(tmp_path):
    builder = TopologyBuilder("daily")
    numbers = [[(number,) for number in range(NAMES_MAX + 10)]]
    builder.setSpout("numbers", MemoryTransactionalSpout(numbers, "number long", takePerBatch=1))
    builder.setBolt("daily", Daily()).globalGrouping("numbers")
    config = {"topology.state.checkpoint.interval.ms": 1}
    with TopologyTester(builder.createTopology(), tmp_path / "ck", config, freshObjects=False) as tester:
        tester.drain()
    with Checkpoint(tmp_path / "ck").state("daily") as view:
        assert view.names()["map"] == [f"day {len(numbers[0]) - 1}"]


class Recent(StatefulBolt):
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
    config = {"topology.state.provider": provider, "topology.state.checkpoint.interval.ms": 1}
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
    with Checkpoint(tmp_path / "ck").state("recent", map="seen") as view:
        assert dict(view) == {}, "by the clock of who reads, which has gone on since the tester's"
        assert view.names()["map"] == []


class Outbox(StatefulBolt):
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


# ---- An attempt that is abandoned while its chain sends on what it has emitted.


class FirstLarge(BasicBolt):
    outputFields = "text string"

    def open(self, context):
        self.journal = context.config["journal"]

    def execute(self, tup, collector):
        self.journal.append(tup.n)
        if not tup.n:
            collector.emit(("x" * wire.BATCH_BYTES,))


def test_it_ends_before_the_next_tuple(place):
    """It was noticed by what was pressing to leave, and that was taken back when it had left."""
    builder = TopologyBuilder("abandoned")
    builder.setStream("ticks", rows("n long"))
    builder.setBolt("first", FirstLarge()).shuffleGrouping("ticks")
    builder.setBolt("same", FirstLarge(), 2).shuffleGrouping("first")
    journal: list[int] = []
    found = deployment(place, builder.createTopology(), journal=journal)
    one = chain_attempt(Worker(), found, order_of(found, {"ticks": [(n,) for n in range(100)]}))
    sent = one.run([])
    next(sent)
    one.abandon()
    with pytest.raises(AbandonedError):
        next(sent)
    assert journal == [0]


# ---- Exceptions that are no ``Exception``, raised by a bolt: errors of the bolt's like all others.


class Odd(BaseException):
    """As trio and others have them."""


INTERRUPTIONS = [asyncio.CancelledError, KeyboardInterrupt, GeneratorExit, SystemExit, Odd]


@pytest.mark.parametrize("kind", INTERRUPTIONS)
@pytest.mark.parametrize("hook", ["open", "initState", "execute", "finishBatch", "prePrepare"])
def test_a_hook_that_raises_one_fails_the_transaction_and_is_named(driver, hook, kind):
    driver.config["failing"] = {hook: [kind("why")]}
    tester = driver.start(witnessed())
    with pytest.raises(BoltError, match=f"hook {hook}, transaction 1: {kind.__name__}: why") as caught:
        tester.send(lines("a"))
    assert (caught.value.component, caught.value.hook) == ("witness", hook)
    assert tester.steps[-1] == "after ROLLED_BACK(1, 0)"


@pytest.mark.parametrize("kind", INTERRUPTIONS)
@pytest.mark.parametrize(("hook", "fault"), [("preCommit", ()), ("preRollback", (JobFails(),))])
def test_a_hook_of_a_phase_that_is_repeated_is_run_again(driver, hook, fault, kind):
    driver.config["failing"] = {hook: [kind("why")]}
    tester = driver.start(witnessed())
    stuck: list[Any] = []
    tester.when("pause", lambda: stuck.append(tester.status["stuck"]))
    tester.send(lines("a"), *fault)
    assert f"hook {hook}, transaction 1: {kind.__name__}: why" in stuck[0]["reason"]
    assert tester.state("witness") == {"seen": 1}


@pytest.mark.parametrize("kind", INTERRUPTIONS)
def test_one_in_close_changes_nothing(driver, kind):
    driver.config["failing"] = {"close": [kind("why")]}
    tester = driver.start(witnessed())
    tester.send(lines("a"))
    assert tester.state("witness") == {"seen": 1}


def test_a_process_that_dies_in_a_hook_is_no_error_of_the_bolts(driver):
    driver.config["failing"] = {"execute": [Crash("here")]}
    with pytest.raises(Crash):
        driver.start(witnessed()).send(lines("a"))


# ---- Single frames and rows that a resident chain must not act on, each given to it alone.


PLAN = planned(2, 1, 1)
READER = ChainId(len(PLAN.widths) - 1, 0)
ONE, TWO, AGAIN = TransactionAttempt(1, 0), TransactionAttempt(2, 0), TransactionAttempt(2, 1)


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[TaskId]:
    tasks: list[TaskId] = []
    resolve = ModelTask.resolve

    def noting(task: ModelTask, order: object) -> object:
        tasks.append(task.id)
        return resolve(task, order)

    monkeypatch.setattr(ModelTask, "resolve", noting)
    return tasks


def frame(kind: FrameKind, body: str | bytes) -> tuple[object, ...]:
    return "frame", (kind, body.encode() if isinstance(body, str) else body)


def run_of(attempt: TransactionAttempt) -> tuple[object, ...]:
    return frame(FrameKind.RUN, text_for(PLAN, Order(attempt, 1), []))


def row(attempt: TransactionAttempt, sender: int, kind: int = wire.RECORDS) -> tuple[object, ...]:
    address = wire.Address(1, 0, -1, 0, sender, attempt.txid, attempt.attempt)
    return "row", (0, kind, address.pack())


@pytest.mark.parametrize(("lost", "expected"), [((), 1), ((("gone",),), 0)], ids=["connected", "lost"])
def test_hooks_of_a_commit_run_only_while_connected(resolved, lost, expected):
    """Frames that came before are still handed out then, and by now another run may have the task."""
    order = ResolutionOrder(Resolution.COMMIT, Order(ONE, 1), (TaskId("count", 0),))
    body = text_for(PLAN, order, order.tasks)
    played = Player(PLAN, READER, (frame(FrameKind.RESOLVE, body), *lost, ("go",))).play()
    assert len(resolved) == expected
    assert played.at == ("ended" if lost else "control")


ABANDONED = {
    "by a sender": row(TWO, 0, wire.ABANDONED),
    "by the driver": frame(FrameKind.ABANDON, messages.pack_attempt(TWO.txid, TWO.attempt)),
}


@pytest.mark.parametrize("abandoned", ABANDONED)
def test_late_rows_of_an_abandoned_attempt_are_dropped(abandoned):
    """While transaction 1 runs, nothing else would delete them: they would fill memory, and then files."""
    script = (run_of(ONE), ABANDONED[abandoned], row(TWO, 1), row(TWO, 0))
    assert Player(PLAN, READER, script).early == set()
    assert Player(PLAN, READER, (*script, row(AGAIN, 0))).early == {AGAIN}


def test_earlier_rows_of_an_abandoned_attempt_are_dropped():
    assert Player(PLAN, READER, (run_of(ONE), row(TWO, 1))).early == {TWO}
    assert Player(PLAN, READER, (run_of(ONE), row(TWO, 1), ABANDONED["by a sender"])).early == set()
