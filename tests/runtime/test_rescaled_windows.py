"""Windows and joins that get other tasks while windows are open: nothing is lost, and nothing comes twice."""

import random
from collections import Counter
from contextlib import closing
from datetime import timedelta
from functools import partial

import pyarrow as pa
import pytest

from statefx import BasicBolt, Checkpoint, IntervalJoin, JoinBolt, Spout, TopologyBuilder, WindowedBolt
from statefx.admin.reading import kept_provider, open_task
from statefx.admin.routing import router_of
from statefx.connectors import MemoryTransactionalSpout
from statefx.errors import CheckpointError
from statefx.log.location import Folders
from statefx.log.log import read_state
from statefx.state.contract.spaces import Space, name_of
from statefx.storage import FolderStorage
from statefx.testing import TopologyTester, rows
from tests.runtime.joining import Life, check
from tests.runtime.recount import KINDS, at, windowed
from tests.runtime.test_windows import (
    FAIL,
    FIELDS,
    LATENESS,
    PROVIDERS,
    Tuples,
    Values,
    batches_of,
    expected,
    shown,
)

BY_KEY = {"windows": lambda key: key}
"""For `Tuples`, which keep a count by key in a state of their own, and have too few keys to prove anything."""


def given_tasks(place, bolt, tasks):
    """Rescale, and return how many tasks the log says there are."""
    Checkpoint(place).rescale({bolt: tasks}, groupingKey=BY_KEY if bolt == "windows" else None)
    return read_state(FolderStorage(place)).topology.stateful[bolt].parallelism


def kept(place, bolt):
    """What a bolt keeps by key: all entries, but for what belongs to a task."""
    storage = FolderStorage(place)
    state = read_state(storage)
    known = state.topology.stateful[bolt]
    provider, found = kept_provider(state, known, bolt, None), {}
    for task in range(known.parallelism):
        with closing(open_task(provider, Folders(str(place)), state, bolt, task)[0]) as store:
            for key, value in store.scan(None, None):
                named = key[:1] == Space.NAMED.value
                if key[:1] == Space.SYSTEM.value or (named and name_of(key)[1] in ("marks", "forms", "notes")):
                    continue
                assert key not in found, "each key lies in one task"
                found[key] = value
    return found


# ---- by event time, against a recount


def by_event_time(batches, bolt, tasks):
    builder = TopologyBuilder("windows")
    spout = MemoryTransactionalSpout(
        [[row for batch in batches for row in batch]], FIELDS, takePerBatch=len(batches[0])
    )
    builder.setSpout("rows", spout, timestamp="at", lateness=f"{LATENESS} seconds")
    builder.setBolt("windows", bolt, tasks).fieldsGrouping("rows", "user")
    return builder.createTopology()


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [Values, Tuples])
def test_windows_of_bolts_that_get_other_tasks_are_those_of_a_recount(form, kind, tmp_path):
    """Also against a run that has never been given others, entry by entry."""
    chance = random.Random(f"{form}, {kind}")
    batches = batches_of(chance, transactions=8)
    FAIL[:] = []
    config = {"topology.state.provider": chance.choice(PROVIDERS)}
    start = partial(TopologyTester, config=config, now=at(10_000))
    of = partial(by_event_time, batches, windowed(form(), kind))
    tester, same = start(of(2), tmp_path / "ck"), start(of(3), tmp_path / "same")
    emitted, tasks, changes = [], 2, 0
    while (sent := tester.emit()) is not None:
        unchanged = same.emit()
        assert sorted(sent.emitted("windows")) == sorted(unchanged.emitted("windows"))
        emitted += map(shown, sent.emitted("windows"))
        if tester.txid % 3 == 0:
            tester.close()
            tasks = given_tasks(
                tmp_path / "ck", "windows", chance.choice([each for each in range(1, 5) if each != tasks])
            )
            assert kept(tmp_path / "ck", "windows") == kept(tmp_path / "same", "windows")
            tester = start(of(tasks), tmp_path / "ck")
            changes += 1
    tester.close()
    same.close()
    assert changes > 1
    assert sorted(emitted, key=repr) == expected(kind, batches, True, form is Values)[0]


# ---- by the clock


def by_the_clock(bolt, tasks):
    builder = TopologyBuilder("windows")
    builder.setStream("rows", rows("user string, number long"))
    builder.setBolt("windows", bolt, tasks).fieldsGrouping("rows", "user")
    return builder.createTopology()


class ByTheClock(Values):
    outputFields = "user string, end timestamp, numbers array<long>"

    def emitWindow(self, window, value, collector):
        collector.emit((window.key, window.end, value))


class TuplesByTheClock(WindowedBolt):
    outputFields = "user string, end timestamp, numbers array<long>"

    def execute(self, window, collector):
        collector.emit((window.key, window.end, sorted(tup.number for tup in window)))


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("counted")])
@pytest.mark.parametrize("form", [ByTheClock, TuplesByTheClock])
def test_no_window_of_the_clock_is_given_again_by_a_task_that_had_none_yet(form, kind, tmp_path):
    """A task that had rows seldom has given windows up to long ago: its new tasks go by the latest of all."""
    chance = random.Random(f"{form}, {kind}")
    start = partial(TopologyTester, config={"topology.state.provider": "memory"})
    of, now, number = partial(by_the_clock, windowed(form(), kind)), at(0), 0
    testers = {"ck": start(of(4), tmp_path / "ck", now=now), "same": start(of(4), tmp_path / "same", now=now)}
    tasks, changes, given = 4, 0, 0
    for step in range(12):
        work = [(chance.choice("aaaaab"), number := number + 1) for _ in range(chance.randint(0, 3))]
        found = [sorted(tester.send({"rows": work}).emitted("windows")) for tester in testers.values()]
        assert found[0] == found[1]
        given += len(found[0])
        now += timedelta(seconds=(secs := chance.choice([2, 3, 6])))
        for tester in testers.values():
            tester.advance(secs)
        if step % 4 == 3:
            testers["ck"].close()
            tasks = given_tasks(
                tmp_path / "ck", "windows", chance.choice([each for each in (1, 2, 3, 4) if each != tasks])
            )
            testers["ck"] = start(of(tasks), tmp_path / "ck", now=now)
            changes += 1
    for tester in testers.values():
        tester.close()
    assert changes > 2
    assert given > 2


@pytest.mark.slow
@pytest.mark.parametrize("form", [ByTheClock, TuplesByTheClock])
def test_what_one_task_has_given_is_not_given_again_because_others_had_nothing_for_long(form, tmp_path):
    of = partial(by_the_clock, windowed(form(), "sliding"))  # of 20 s, by 10 s
    with TopologyTester(of(4), tmp_path / "ck", now=at(1)) as tester:
        tester.send({"rows": [(key, 0) for key in "bcdefghij"]})
        tester.advance(40)
        assert len(tester.send({}).emitted("windows")) == 18, "all tasks have given some, up to the 40th second"
        tester.advance(20)
        tester.send({"rows": [("a", 1)]})
        tester.advance(10)
        assert tester.send({}).emitted("windows") == [("a", at(70), [1])]
    Checkpoint(tmp_path / "ck").rescale({"windows": 1})
    with TopologyTester(of(1), tmp_path / "ck", now=at(75)) as tester:
        assert tester.send({}).emitted("windows") == []
        tester.advance(6)
        assert tester.send({}).emitted("windows") == [("a", at(80), [1])]


@pytest.mark.parametrize("form", [Values, Tuples])
def test_the_first_window_of_all_tasks_is_the_first_of_the_new_one(form, tmp_path):
    def of(tasks):
        builder = TopologyBuilder("windows")
        builder.setStream("rows", rows(FIELDS), timestamp="at", lateness="40 seconds")
        builder.setBolt("windows", windowed(form(), "sliding"), tasks).fieldsGrouping("rows", "user")
        return builder.createTopology()

    with TopologyTester(of(4), tmp_path / "ck", now=at(100)) as tester:
        # So late are rows that nothing ends in this transaction.
        tester.send({"rows": [("a", at(1), 0), *((key, at(35), 0) for key in "bcdefghij")]})
    assert given_tasks(tmp_path / "ck", "windows", 1) == 1
    later = {"rows": [("z", at(65), 0)]}
    with TopologyTester(of(1), tmp_path / "ck", now=at(100)) as tester:
        assert [shown(row)[:3] for row in tester.send(later).emitted("windows")] == [("a", -10, 10), ("a", 0, 20)]


# ---- joins


@pytest.mark.slow
def test_a_join_bolt_gets_other_tasks_though_they_had_rows_of_its_inputs_in_another_order(tmp_path):
    """The shapes of rows are numbered alike in all tasks, so that rows of both inputs stay what they are."""

    def of(tasks):
        builder = TopologyBuilder("joined")
        for name, fields in (("orders", "id long, item string"), ("payments", "order long, cents long, by string")):
            builder.setStream(name, rows(f"{fields}, at timestamp"), timestamp="at", lateness="20 seconds")
        join = JoinBolt("orders", "id").join("payments", "order", "orders").select("orders.id, item, cents, by")
        declared = builder.setBolt("joined", join.withWindow("20 seconds", "10 seconds"), tasks)
        declared.fieldsGrouping("orders", "id").fieldsGrouping("payments", "order")
        return builder.createTopology()

    orders = [(id, f"item {id}", at(id % 19)) for id in range(40)]
    payments = [(id, 100 * id, "card", at(id % 17)) for id in range(0, 40, 3)]
    work = [
        # Each first transaction gives some tasks orders alone, and others payments alone.
        {"orders": [row for row in orders if row[0] % 2], "payments": [row for row in payments if not row[0] % 2]},
        {"orders": [row for row in orders if not row[0] % 2], "payments": [row for row in payments if row[0] % 2]},
        {"orders": [(99, "end", at(100))], "payments": [(99, 0, "end", at(100))]},
        {},
    ]
    testers = {name: TopologyTester(of(4), tmp_path / name, now=at(0)) for name in ("ck", "same")}
    found = {name: [] for name in testers}
    for sent, tasks in zip(work, (3, 1, 5, None), strict=True):
        for name, tester in testers.items():
            found[name] += tester.send(sent).emitted("joined")
        if tasks is not None:
            testers["ck"].close()
            given_tasks(tmp_path / "ck", "joined", tasks)
            assert kept(tmp_path / "ck", "joined") == kept(tmp_path / "same", "joined")
            testers["ck"] = TopologyTester(of(tasks), tmp_path / "ck", now=at(0))
    for tester in testers.values():
        tester.close()
    assert sorted(found["ck"]) == sorted(found["same"])
    assert len(found["ck"]) > 20


@pytest.mark.soak
@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 8))])
def test_an_interval_join_that_gets_other_tasks_joins_as_a_plain_recount_does(seed, tmp_path, monkeypatch):
    """Chunks of times are parted by key, rows wait together and apart, and more is over than one transaction drops."""
    random.seed(seed)
    for limit, values in {
        "EXPIRED_MAX": (2, 100_000),
        "_READ_AHEAD": (1, 10),
        "CHUNK": (2, 100),
        "TOGETHER_MAX": (0, 1, 8),
    }.items():
        monkeypatch.setattr(f"statefx.operators.joins.{limit}", random.choice(values))
    life = Life(seed)
    config = {
        "topology.state.provider": PROVIDERS[seed % 2],
        "topology.transaction.attempts.max": 100,
    }
    now, tasks, idle, changes = at(0), 2, 0, 0
    tester = TopologyTester(life.topology(tasks, 0.02), tmp_path / "ck", config, seed=seed, now=now)
    while idle < 3:
        now += timedelta(seconds=20)
        tester.advance(20)
        idle += tester.emit() is None
        if random.random() < 0.4:
            tester.close()
            tasks = given_tasks(
                tmp_path / "ck", "paid", random.choice([each for each in (1, 2, 3, 4) if each != tasks])
            )
            tester = TopologyTester(life.topology(tasks, 0.02), tmp_path / "ck", config, seed=seed, now=now)
            changes += 1
    tester.close()
    check(life, tmp_path)
    assert changes > 1


# ---- what is refused


def test_windows_of_a_task_stay_where_they_are(tmp_path):
    builder = TopologyBuilder("windows")
    builder.setStream("rows", rows("user string, number long"))
    builder.setBolt("windows", windowed(ByTheClock(), "tumbling"), 2).shuffleGrouping("rows")
    with TopologyTester(builder.createTopology(), tmp_path / "ck", now=at(0)) as tester:
        tester.send({"rows": [("a", 1), ("b", 2)]})
    with pytest.raises(CheckpointError, match=r"its windows belong to a task and to no key\. Give its rows to a bolt"):
        Checkpoint(tmp_path / "ck").rescale({"windows": 3})


@pytest.mark.slow
def test_a_bolt_with_windows_and_keys_of_its_own_in_one_task_says_by_what_these_are_grouped(tmp_path):
    batches = batches_of(random.Random(1), transactions=12)
    FAIL[:] = []
    of = partial(by_event_time, batches, windowed(Tuples(), "tumbling"))
    with TopologyTester(of(1), tmp_path / "ck", now=at(10_000)) as tester:
        while tester.emit() is not None:
            pass
    with pytest.raises(CheckpointError, match=r"has one task, .*\(user\).*=\{'windows': lambda key: key\}"):
        Checkpoint(tmp_path / "ck").rescale({"windows": 3})
    assert given_tasks(tmp_path / "ck", "windows", 3) == 3


# ---- what lies in a wrong task


class Renaming(Values):
    """Returns other keys than its rows have."""

    def executeBatch(self, batch):
        keys = pa.array([f"{user}'" for user in batch.column("user").to_pylist()])
        values = pa.array([[number] for number in batch.column("number").to_pylist()])
        return pa.table({"user": keys, "window": batch.column("window"), "numbers": values}).slice(0, 1)


@pytest.mark.slow
def test_a_window_under_another_key_than_its_rows_have_is_refused(tmp_path):
    bolt = windowed(Renaming(), "tumbling")
    with TopologyTester(by_the_clock(bolt, 2), tmp_path / "ck", now=at(0)) as tester:
        for key in "abcdefgh":
            tester.send({"rows": [(key, 1)]})
    before = kept(tmp_path / "ck", "windows")
    with pytest.raises(CheckpointError, match=r"of key .* lies in task \d, .*executeBatch must return the key"):
        Checkpoint(tmp_path / "ck").rescale({"windows": 3})
    assert kept(tmp_path / "ck", "windows") == before


class Ids(Spout):
    outputFields = FIELDS

    def open(self, context):
        self.left = list(range(12))

    def nextTuple(self, collector):
        if self.left:
            number = self.left.pop()
            collector.emit((f"user {number}", at(number), number), id=number)


class Same(BasicBolt):
    outputFields = FIELDS

    def execute(self, tup, collector):
        collector.emit(tuple(tup))


def keeping():
    """Windows, rows of a join, and ids, all of which are kept when the input ends."""
    builder = TopologyBuilder("keeping")
    builder.setSpout("rows", Ids(), parallelism=2, dedup="1 hour", timestamp="at", lateness="1 hour")
    builder.setBolt("windows", windowed(Values(), "tumbling"), 2).fieldsGrouping("rows", "user")
    builder.setBolt("sessions", windowed(Tuples(), "session"), 2).fieldsGrouping("rows", "user")
    builder.setBolt("same", Same(), timestamp="at").shuffleGrouping("rows")
    join = IntervalJoin("rows", "same", on="user", between=("1 day", "2 days"), select="rows.user")
    builder.setBolt("joined", join, 2).fieldsGrouping("rows", "user").fieldsGrouping("same", "user")
    return builder.createTopology()


@pytest.mark.slow
def test_an_entry_of_statefx_in_a_wrong_task_is_refused(tmp_path):
    """Of windows, joins and ids alike: each is read as if it lay in the other task."""
    with TopologyTester(keeping(), tmp_path / "ck", now=at(0)) as tester:
        tester.drain()
    state, folders, refused = read_state(FolderStorage(tmp_path / "ck")), Folders(str(tmp_path / "ck")), Counter()
    for bolt, known in state.topology.stateful.items():
        router = router_of(bolt, known, None)
        for task in range(known.parallelism):
            with closing(open_task(kept_provider(state, known, bolt, None), folders, state, bolt, task)[0]) as store:
                entries = list(store.scan(None, None))
            for entry in entries:
                router.route(iter([entry]), task, 2, taken := [Entries()])
                if taken[0].keys and router.own is not None:
                    with pytest.raises(CheckpointError, match=f"lies in task {1 - task}"):
                        router.route(iter([entry]), 1 - task, 2, [Entries()])
                    refused[bolt] += 1
    assert min(refused[bolt] for bolt in ("windows", "sessions", "joined")) >= 12, refused
    assert len(refused) == 4, "ids too"


class Entries:
    """Takes entries."""

    def __init__(self):
        self.keys = []

    def add(self, key, value):
        self.keys.append(key)
