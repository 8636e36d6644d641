"""Which rows come to which task: every grouping, every shape of a topology, in several orders of arrival."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from statefx import (
    AsyncBolt,
    BasicBolt,
    BatchBolt,
    Spout,
    Stateful,
    StatefulAsyncBolt,
    StatefulBolt,
    Topology,
    TopologyBuilder,
)
from statefx.errors import BoltError, ConfigError
from statefx.plan.hashing import row_hasher
from statefx.plan.levels import compile_plan
from statefx.plan.wire import BATCH_BYTES
from statefx.testing import rows
from tests.testing.topologies import Driver

ROWS = [(f"key-{n % 7}", n) for n in range(100)]


class Pass(BasicBolt):
    outputFields = "key string, n long"

    def execute(self, tup, collector):
        collector.emit((tup.key, tup.n))


class Vector(BasicBolt):
    outputFields = "key string, n long"

    def executeBatch(self, batch, collector):
        collector.emitBatch(batch)


class Fan(BasicBolt):
    outputFields = {"default": "key string, n long", "odd": "key string, n long", "all": "n long"}

    def execute(self, tup, collector):
        if tup.n % 2:
            collector.emit((tup.key, tup.n), stream="odd")
        else:
            collector.emit((tup.key, tup.n))
        collector.emit((tup.n,), stream="all")


class Chooser(BasicBolt):
    outputFields = "key string, n long"

    def execute(self, tup, collector):
        collector.emit((tup.key, tup.n), task=tup.n % 3)


class Seen(Stateful, BatchBolt):
    outputFields = "key string, n long"

    def open(self, context):
        self.me = context.task

    def initState(self, state):
        self.state = state
        self.rows = []

    def execute(self, tup, collector):
        self.rows.append([tup._source, tup._stream, *tup])
        collector.emit((getattr(tup, "key", ""), tup.n))

    def finishBatch(self, collector):
        self.state.put(("rows", self.me), self.rows)


def shares(tester: Any, id: str = "seen") -> dict[int, list[tuple[Any, ...]]]:
    """Task -> the rows that it got in the last transaction."""
    return {task: [tuple(row[2:]) for row in found] for (_, task), found in tester.state(id).items()}


def sources(tester: Any, id: str = "seen") -> Counter[tuple[str, str]]:
    return Counter((row[0], row[1]) for found in tester.state(id).values() for row in found)


def built(declare: Callable[[TopologyBuilder], Any], streams: tuple[str, ...] = ("numbers",)) -> Topology:
    builder = TopologyBuilder("routes")
    for name in streams:
        builder.setStream(name, rows("key string, n long"))
    declare(builder)
    return builder.createTopology()


def run(place: Path, topology: Topology, work: dict[str, Any] | None = None, times: int = 2) -> Any:
    """Run it in two orders of arrival; return the latter."""
    tester = None
    for seed in (0, 7):
        driver = Driver(place, name=f"seed-{seed}")
        tester = driver.start(topology, seed=seed)
        for _ in range(times):
            assert tester.send(work or {"numbers": ROWS}).progress.attempt == 0
    return tester


GROUPINGS = ["shuffle", "fields", "global", "all", "none", "local", "partialKey", "direct"]


def grouped(declarer: Any, kind: str, source: str) -> Any:
    method = {"local": "localOrShuffleGrouping"}.get(kind, f"{kind}Grouping")
    return getattr(declarer, method)(source, *(["key"] if kind in ("fields", "partialKey") else []))


def check_shares(kind: str, found: dict[int, list[tuple[Any, ...]]]) -> None:
    everything = sorted(row for share in found.values() for row in share)
    assert everything == sorted(ROWS * 3 if kind == "all" else ROWS)
    tasks_of = {key: {task for task, share in found.items() for k, _ in share if k == key} for key, _ in ROWS}
    if kind == "fields":
        hasher = row_hasher(pa.schema([("key", pa.string())]), ["key"])
        assert tasks_of == {key: {hasher((key,)) % 3} for key in tasks_of}
    elif kind == "partialKey":
        assert all(len(tasks) <= 2 for tasks in tasks_of.values())
        assert len({task for tasks in tasks_of.values() for task in tasks}) == 3
    elif kind == "global":
        assert [len(found[task]) for task in range(3)] == [100, 0, 0]
    elif kind == "all":
        assert all(sorted(share) == sorted(ROWS) for share in found.values())
    elif kind == "direct":
        assert all(n % 3 == task for task, share in found.items() for _, n in share)
    else:
        assert all(abs(len(share) - 100 / 3) < 5 for share in found.values())


@pytest.mark.daily(6)
@pytest.mark.slow
@pytest.mark.parametrize("kind", GROUPINGS)
@pytest.mark.parametrize("first", [Pass, Vector])
def test_a_grouping_between_bolts(place, kind, first):
    def declare(b: TopologyBuilder) -> None:
        b.setBolt("first", Chooser() if kind == "direct" else first(), 2).shuffleGrouping("numbers")
        grouped(b.setBolt("seen", Seen(), 3), kind, "first")

    check_shares(kind, shares(run(place, built(declare))))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in GROUPINGS if kind != "direct"])
def test_a_grouping_of_a_stream(place, kind):
    check_shares(kind, shares(run(place, built(lambda b: grouped(b.setBolt("seen", Seen(), 3), kind, "numbers")))))


@pytest.mark.slow
def test_a_chain_without_a_shuffle_is_fused_and_gets_the_same_rows(place):
    def declare(b: TopologyBuilder) -> None:
        b.setBolt("one", Pass(), 3).shuffleGrouping("numbers")
        b.setBolt("two", Vector(), 3).localOrShuffleGrouping("one")
        b.setBolt("three", Pass(), 3).noneGrouping("two")
        b.setBolt("seen", Seen(), 3).shuffleGrouping("three")

    topology = built(declare)
    assert len(compile_plan(topology).levels) == 1
    tester = run(place, topology)
    check_shares("shuffle", shares(tester))
    assert tester.send({}).progress.rows == {"one": 0, "two": 0, "three": 0, "seen": 0}


@pytest.mark.slow
def test_a_chain_that_forks(place):
    """Two bolts are fused behind one; a third reads both by key."""

    def declare(b: TopologyBuilder) -> None:
        b.setBolt("fan", Fan(), 2).shuffleGrouping("numbers")
        b.setBolt("even", Pass(), 2).shuffleGrouping("fan")
        b.setBolt("odd", Pass(), 2).localOrShuffleGrouping("fan", stream="odd")
        b.setBolt("seen", Seen(), 3).fieldsGrouping("even", "key").fieldsGrouping("odd", "key")

    topology = built(declare)
    assert len(compile_plan(topology).levels) == 2
    tester = run(place, topology)
    check_shares("fields", shares(tester))
    assert sources(tester) == {("even", "default"): 50, ("odd", "default"): 50}


@pytest.mark.slow
def test_several_output_streams_one_of_them_unread(place):
    def declare(b: TopologyBuilder) -> None:
        b.setBolt("fan", Fan(), 2).shuffleGrouping("numbers")
        b.setBolt("seen", Seen(), 2).fieldsGrouping("fan", "key").globalGrouping("fan", stream="odd")

    tester = run(place, built(declare))
    assert sources(tester) == {("fan", "default"): 50, ("fan", "odd"): 50}
    assert tester.state("seen")["rows", 1]
    assert all(row[3] % 2 == 0 for row in tester.state("seen")["rows", 1])
    assert len(tester.emitted("fan", "all")) == 200, "seen by a test, read by no bolt"


@pytest.mark.slow
def test_one_stream_read_twice_comes_twice(place):
    def declare(b: TopologyBuilder) -> None:
        b.setBolt("first", Pass(), 2).shuffleGrouping("numbers").fieldsGrouping("numbers", "key")
        b.setBolt("seen", Seen(), 2).fieldsGrouping("first", "key").allGrouping("first")

    tester = run(place, built(declare))
    assert sources(tester) == {("first", "default"): 600}


@pytest.mark.slow
def test_several_streams_and_a_join(place):
    def declare(b: TopologyBuilder) -> None:
        b.setBolt("left", Pass(), 2).shuffleGrouping("a")
        b.setBolt("seen", Seen(), 3).fieldsGrouping("left", "key").fieldsGrouping("b", "key").globalGrouping("c")

    topology = built(declare, ("a", "b", "c"))
    tester = run(place, topology, {"a": ROWS[:50], "b": ROWS[50:]})
    check_shares("fields", shares(tester))
    assert sources(tester) == {("left", "default"): 50, ("b", "default"): 50}
    tester.send({"c": ROWS})
    assert {task: sorted(share) for task, share in shares(tester).items()} == {0: sorted(ROWS), 1: [], 2: []}
    tester.send({})
    assert shares(tester) == {0: [], 1: [], 2: []}


@pytest.mark.slow
def test_a_diamond_with_ways_of_different_length(place):
    """The short way skips two levels, relayed through the tasks of both."""

    def declare(b: TopologyBuilder) -> None:
        b.setBolt("top", Pass(), 2).shuffleGrouping("numbers")
        b.setBolt("long1", Pass(), 3).fieldsGrouping("top", "key")
        b.setBolt("long2", Pass(), 2).fieldsGrouping("long1", "key")
        b.setBolt("seen", Seen(), 3).fieldsGrouping("top", "key").fieldsGrouping("long2", "key")
        b.setBolt("end", Pass(), 1).globalGrouping("seen").globalGrouping("top")

    topology = built(declare)
    assert len(compile_plan(topology).levels) == 5
    tester = run(place, topology)
    assert sources(tester) == {("top", "default"): 100, ("long2", "default"): 100}
    assert len(tester.emitted("end")) == 2 * 300
    hasher = row_hasher(pa.schema([("key", pa.string())]), ["key"])
    assert all(hasher((key,)) % 3 == task for task, share in shares(tester).items() for key, _ in share)


@pytest.mark.slow
def test_a_stream_read_at_a_late_level(place):
    """It is relayed; also by a bolt that reads it early."""

    def declare(b: TopologyBuilder) -> None:
        b.setBolt("first", Pass(), 2).fieldsGrouping("numbers", "key")
        b.setBolt("second", Pass(), 2).fieldsGrouping("first", "key")
        seen = b.setBolt("seen", Seen(), 3)
        seen.fieldsGrouping("second", "key").fieldsGrouping("numbers", "key").allGrouping("more")

    tester = run(place, built(declare, ("numbers", "more")), {"numbers": ROWS, "more": ROWS[:10]})
    assert sources(tester) == {("second", "default"): 100, ("numbers", "default"): 100, ("more", "default"): 30}
    rows_seen = tester.send({"numbers": ROWS}).progress.rows
    assert rows_seen == {"first": 100, "second": 100, "seen": 200}


@pytest.mark.slow
def test_rows_from_one_task_to_one_task_come_in_order(place):
    def declare(b: TopologyBuilder) -> None:
        b.setBolt("first", Pass(), 1).globalGrouping("numbers")
        b.setBolt("seen", Seen(), 3).fieldsGrouping("first", "key")

    many = [(f"key-{n % 7}", n) for n in range(30_000)]
    tester = run(place, built(declare), {"numbers": many}, times=1)
    found = shares(tester)
    assert sum(map(len, found.values())) == 30_000
    assert all([n for _, n in share] == sorted(n for _, n in share) for share in found.values())


@pytest.mark.slow
def test_a_bolt_that_keeps_state_in_whole_batches(place):
    def declare(b: TopologyBuilder) -> None:
        b.setBolt("first", Vector(), 2).shuffleGrouping("numbers")
        b.setBolt("sums", Sums(), 2).fieldsGrouping("first", "key")

    tester = run(place, built(declare), times=3)
    expected = {key: 3 * sum(n for k, n in ROWS if k == key) for key, _ in ROWS}
    assert tester.state("sums") == expected
    assert max(tester.emitted("sums")) == ("key-6", expected["key-6"])


class Sums(Stateful, BatchBolt):
    outputFields = "key string, total long"

    def initState(self, state):
        self.state = state

    def executeBatch(self, batch, collector):
        sums = pa.Table.from_batches([batch]).group_by("key").aggregate([("n", "sum")])
        for row in sums.to_pylist():
            self.state.put(row["key"], self.state.get(row["key"], 0) + row["n_sum"])
        collector.emitBatch(
            pa.RecordBatch.from_pylist(
                [{"key": key, "total": self.state.get(key)} for key in pc.unique(batch["key"]).to_pylist()],
                schema=pa.schema([("key", pa.string()), ("total", pa.int64())]),
            )
        )


class Misdirected(BasicBolt):
    outputFields = "key string, n long"

    def __init__(self, task):
        self.task = task

    def execute(self, tup, collector):
        collector.emit((tup.key, tup.n), task=self.task)


@pytest.mark.parametrize(
    ("task", "says"),
    [(3, r"emitted to task 3 of 'seen', which has tasks 0\.\.2"), (-1, "task -1"), (None, "name the task")],
)
def test_a_direct_row_needs_a_task_that_there_is(driver, task, says):
    def declare(b: TopologyBuilder) -> None:
        b.setBolt("first", Misdirected(task), 1).shuffleGrouping("numbers")
        b.setBolt("seen", Seen(), 3).directGrouping("first")

    with pytest.raises(BoltError, match=f"hook execute, .*{says}"):
        driver.start(built(declare)).send({"numbers": ROWS})


class Guesses:
    """Names a task that there is not, for one of its rows."""

    outputFields = Misdirected.outputFields

    def emit(self, tup, collector):
        if isinstance(self, Stateful):
            self.state.put(tup.n, True)
        collector.emit((tup.key, tup.n), task=7 if tup.n == 2 else tup.n % 3)


class GuessesTuples(Guesses, StatefulBolt):
    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.emit(tup, collector)


class GuessesCalls(Guesses, AsyncBolt):
    async def execute(self, tup, collector):
        await asyncio.sleep(0)
        self.emit(tup, collector)


class GuessesCallsWithState(Guesses, StatefulAsyncBolt):
    initState, execute = GuessesTuples.initState, GuessesCalls.execute


class GuessesBatches(Guesses, AsyncBolt):
    async def executeBatch(self, batch, collector):
        for tup in batch:
            self.emit(tup, collector)


@pytest.mark.parametrize("bolt", [GuessesTuples, GuessesCalls, GuessesCallsWithState, GuessesBatches])
def test_a_row_for_a_task_that_there_is_not_is_set_aside(driver, bolt):
    def declare(b: TopologyBuilder) -> None:
        b.setBolt("first", bolt(), onError="skip").fieldsGrouping("numbers", "key")
        b.setBolt("seen", Seen(), 3).directGrouping("first")

    tester = driver.start(built(declare))
    assert tester.send({"numbers": ROWS[:5]}).progress.set_aside["first"].rows == 1
    assert sorted(n for share in shares(tester).values() for _, n in share) == [0, 1, 3, 4]
    if issubclass(bolt, Stateful):
        assert sorted(tester.state("first")) == [0, 1, 3, 4]


class Stubborn(BasicBolt):
    """Goes on after each error of its emit; the last row of a call comes after a whole batch."""

    outputFields = {"default": "key string, n long", "whole": "key string, n long"}

    def execute(self, tup, collector):
        for values, task in (((tup.key,), 0), ((tup.key, tup.n), 2), ((tup.key, tup.n), None)):
            with suppress(BoltError):
                collector.emit(values, task=task)
        collector.emit((tup.key, tup.n), task=tup.n % 2)
        collector.emitBatch(pa.record_batch([["whole"], [tup.n]], ["key", "n"]), stream="whole")
        collector.emit((tup.key, tup.n), task=1 - tup.n % 2)


@pytest.mark.parametrize("mode", ["fail", "skip"])
def test_tasks_are_those_of_the_rows_that_were_emitted(driver, mode, monkeypatch):
    """Not of a row that was refused, nor of one that waits for the end of its call while others leave."""
    monkeypatch.setattr("statefx.runtime.guard.BATCH_BYTES", 1)  # each row fills a batch

    def declare(b: TopologyBuilder) -> None:
        b.setBolt("first", Stubborn(), onError=mode).shuffleGrouping("numbers")
        b.setBolt("seen", Seen(), 3).directGrouping("first")
        b.setBolt("less", Seen(), 2).directGrouping("first")
        b.setBolt("whole", Seen()).globalGrouping("first", stream="whole")

    tester = driver.start(built(declare))
    tester.send({"numbers": ROWS[:4]})
    for reader in ("seen", "less"):
        found = shares(tester, reader)
        assert [found[task] for task in (0, 1)] == [ROWS[:4], ROWS[:4]]


def test_a_tracked_batch_that_is_cut_keeps_its_tasks(driver):
    class Messages(Spout):
        outputFields = "n long"

        def open(self, context):
            self.left = [0, 1, 2]

        def nextTuple(self, collector):
            while self.left:
                collector.emit((self.left[0],), id=self.left.pop(0))

    class Large(BasicBolt):
        outputFields = "key string, n long"

        def execute(self, tup, collector):
            collector.emit(("x" * (BATCH_BYTES // 2), tup.n), task=tup.n % 2)

    builder = TopologyBuilder("cut")
    builder.setSpout("messages", Messages())
    builder.setBolt("large", Large()).globalGrouping("messages")
    builder.setBolt("seen", Seen(), 2).directGrouping("large")
    tester = driver.start(builder.createTopology())
    tester.emit()
    assert {task: [n for _, n in found] for task, found in shares(tester).items()} == {0: [0, 2], 1: [1]}


def test_a_stream_that_is_not_the_topologys_is_refused(driver):
    with pytest.raises(ConfigError, match="no stream 'letters'; its streams are numbers"):
        driver.start(built(lambda b: b.setBolt("seen", Seen()).globalGrouping("numbers"))).send({"letters": ROWS})
