"""Maps in a topology: whatever fails, the database has what the topology's own state has, after every transaction."""

import operator
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

import pytest

from statefx import BasicBolt, BatchBolt, Committer, Spout, Stateful, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.errors import BoltError, FailedException
from statefx.testing import Crash, TopologyTester
from statefx.values import MemoryBackend, OpaqueMap, TransactionalMap
from tests.spouts.numbers import ALL, Count, Emitted, Opaque, Planned, Whole
from tests.testing.living import LivingTester
from tests.values.actors import values


class Totals(Stateful, BatchBolt):
    def __init__(self, name, kind, fails=(), atomic=False):
        self.backend = MemoryBackend(name, atomic)
        self.kind, self.fails = kind, fails

    def open(self, context):
        self.context = context

    def initState(self, state):
        opaque = self.kind is OpaqueMap
        self.counts = OpaqueMap(self.backend, state, self.context) if opaque else self.kind(self.backend, self.context)
        self.new = Counter()

    def execute(self, tup, collector):
        self.new[str(tup.number)] += 1

    def finishBatch(self, collector):
        self.counts.multiUpdate(self.new, operator.add, 0)
        if self.context.attempt < self.fails.count(self.context.txid):
            raise FailedException("it has written, and fails")


class TakesBack(Totals):
    def preRollback(self):
        self.counts.rollback()


@pytest.fixture
def name(request):
    made = MemoryBackend(request.node.name)
    yield made.name
    made.rows.clear()


def topology(spout, totals):
    builder = TopologyBuilder("numbers")
    builder.setSpout("numbers", spout, parallelism=2)
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("numbers", "number")
    builder.setBolt("totals", totals, parallelism=2).fieldsGrouping("numbers", "number")
    return builder.createTopology()


def in_database(name):
    return {int(key): count for key, count in values(MemoryBackend(name)).items()}


MAPS = [(Opaque, OpaqueMap), (Planned, OpaqueMap), (Whole, TransactionalMap), (Emitted, TransactionalMap)]


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize(("spout", "kind"), MAPS)
def test_an_attempt_that_has_written_and_fails_leaves_nothing(spout, kind, name, tmp_path):
    """The opaque spout's next attempt has fewer rows: there are keys that only the failed one had."""
    totals = Totals(name, kind, fails=[1, 2, 2, 3])
    with TopologyTester(topology(spout(tmp_path), totals), tmp_path / "ck") as tester:
        while tester.state("count") != ALL:
            tester.emit()
            assert in_database(name) == tester.state("count")
        assert len(tester.pauses) == 4


@pytest.mark.slow
def test_a_key_that_only_the_failed_attempt_had_is_taken_back_without_another_transaction(name, tmp_path):
    totals = Totals(name, OpaqueMap, fails=[1])
    with TopologyTester(topology(Opaque(tmp_path), totals), tmp_path / "ck") as tester:
        tester.when("pause", lambda: written.update(in_database(name)))
        written = {}
        tester.emit()
        only = written.keys() - tester.state("count").keys()
        assert only, "else the test is of no use"
        assert not only & in_database(name).keys()


class Sparing(Totals):
    """Does not call its map if there is nothing to add; attempt 1 of transaction 1 has nothing."""

    def finishBatch(self, collector):
        if (self.context.txid, self.context.attempt) == (1, 1):
            self.new.clear()
        if self.new:
            super().finishBatch(collector)


@pytest.mark.slow
@pytest.mark.parametrize("atomic", [False, True])
def test_what_the_first_attempt_of_all_wrote_is_taken_back_if_the_committed_one_did_not_call_the_map(
    atomic, name, tmp_path
):
    """Of transaction 1 the bolt's state has no version of the values: that is not a state that was lost."""
    numbers = topology(Whole(tmp_path), Sparing(name, OpaqueMap, fails=[1], atomic=atomic))
    with TopologyTester(numbers, tmp_path / "ck") as tester:
        tester.emit()
        lost = tester.state("count")
        assert in_database(name) == lost, "attempt 0 wrote it, and nobody has taken it back"
    with TopologyTester(numbers, tmp_path / "ck") as successor:
        successor.drain()
        assert in_database(name) == {number: 1 for number in ALL if number not in lost}


@pytest.mark.slow
def test_pre_rollback_takes_back_before_the_next_attempt(name, tmp_path):
    seen = []
    totals = TakesBack(name, OpaqueMap, fails=[2])
    with TopologyTester(topology(Opaque(tmp_path), totals), tmp_path / "ck") as tester:
        tester.emit()
        before = in_database(name)
        tester.when("pause", lambda: seen.append(in_database(name)))
        tester.drain()
        assert seen == [before]
        assert in_database(name) == tester.state("count") == ALL


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize(("spout", "kind", "pending"), [(*MAPS[0], 1), (*MAPS[0], 3), (*MAPS[3], 3)])
def test_a_crash_at_any_moment_leaves_the_values_exact(spout, kind, pending, name, tmp_path):
    config = {"topology.max.spout.pending": pending}
    moment = 0
    while True:
        moment += 7 + 4 * pending  # every moment takes 10 s, and finds what these find
        place = tmp_path / str(moment)
        place.mkdir()
        MemoryBackend(name).rows.clear()
        numbers, crashed = spout(place), False
        totals = (TakesBack if kind is OpaqueMap and moment % 3 == 0 else Totals)(name, kind, [2], moment % 2 == 0)
        try:
            TopologyTester(topology(numbers, totals), place / "ck", config, crash_at=moment).drain()
        except Crash:
            crashed = True
        with TopologyTester(topology(numbers, totals), place / "ck", config) as successor:
            successor.drain()
            assert in_database(name) == successor.state("count") == ALL, f"crash at moment {moment}"
        if not crashed:
            assert moment > 20
            return


class Messages(Spout):
    outputFields = "key string, value double"

    def __init__(self, rows, at_once):
        self.rows, self.at_once = rows, at_once

    def open(self, context):
        self.left = list(enumerate(self.rows))

    def nextTuple(self, collector):
        for id, row in self.left[: self.at_once]:
            collector.emit(row, id=id)
        del self.left[: self.at_once]

    def fail(self, id):
        self.left.append((id, self.rows[id]))


@dataclass(frozen=True)
class LocksOnce(MemoryBackend):
    at: str = ""

    def multiGet(self, keys):
        self.look("multiGet", keys)
        return super().multiGet(keys)

    def multiPut(self, rows, expected):
        refused = super().multiPut(rows, expected)
        self.look("multiPut", rows)
        return refused

    def look(self, at, keys):
        if at == self.at and "b" in keys and LOCKS:
            raise FailedException(LOCKS.pop())


LOCKS = []


class OneByOne(Stateful, BasicBolt):
    """Updates its map with each row, or, as a batch bolt does, with each batch."""

    def __init__(self, name, atomic, at=""):
        self.backend = LocksOnce(name, atomic, at)

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.totals = OpaqueMap(self.backend, state, self.context)

    def execute(self, tup, collector):
        self.totals.multiUpdate({tup.key: tup.value}, operator.add, 0)


class ByBatch(OneByOne):
    execute = BasicBolt.execute

    def executeBatch(self, batch, collector):
        new = Counter()
        for row in batch.to_pylist():
            new[row["key"]] += row["value"]
        self.totals.multiUpdate(new, operator.add, 0)


def updating(spout, bolt, **more):
    builder = TopologyBuilder("updating")
    builder.setSpout("rows", spout)
    builder.setBolt("totals", bolt, **more).globalGrouping("rows")
    return builder.createTopology()


@pytest.mark.parametrize("at", ["multiGet", "multiPut"])
@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("bolt", [OneByOne, ByBatch])
def test_a_database_that_is_away_for_one_tuple_fails_the_transaction_and_no_update_is_lost(
    bolt, atomic, at, name, tmp_path
):
    """A failed tuple of a spout is no failed transaction otherwise."""
    LOCKS[:] = ["database is locked"]
    messages = Messages([("a", 1.0), ("b", 1.0), ("a", 1.0), ("c", 1.0)], at_once=2)
    with TopologyTester(updating(messages, bolt(name, atomic, at)), tmp_path / "ck") as tester:
        for _ in range(4):
            tester.emit()
        assert not LOCKS
        assert len(tester.pauses) == 1
    assert values(MemoryBackend(name)) == {"a": 2, "b": 1, "c": 1}


@pytest.mark.parametrize("spout", [Messages, MemoryTransactionalSpout])
@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("bolt", [OneByOne, ByBatch])
def test_a_row_that_a_map_refuses_is_set_aside_alone(bolt, atomic, spout, name, tmp_path):
    rows = [("a", 1.0), ("b", float("nan")), ("a", 1.0), ("b", 1.0), ("c", 1.0)]
    source = Messages(rows, 4) if spout is Messages else spout([rows], Messages.outputFields, takePerBatch=4)
    with TopologyTester(updating(source, bolt(name, atomic), onError="skip"), tmp_path / "ck") as tester:
        aside = [tester.emit().progress.as_dict()["rowsSetAside"] for _ in range(2)]
        assert aside == [{"totals": 1}, {}]
        assert values(MemoryBackend(name)) == {"a": 2, "b": 1, "c": 1}


class Renewed(Totals):
    """Its values have a new form; what the map keeps in its state is none of them."""

    stateVersion = 2

    def migrateState(self, version, key, value):
        raise AssertionError(f"{key} is not the bolt's own")


@pytest.mark.slow
def test_a_bolt_of_a_new_version_is_not_asked_for_what_the_map_keeps(name, tmp_path):
    numbers = Opaque(tmp_path)
    with TopologyTester(topology(numbers, Totals(name, OpaqueMap)), tmp_path / "ck") as tester:
        tester.emit()
        assert list(tester.state("totals", 0)) == ["statefx.values.OpaqueMap totals"]
    with tester.restart(topology(numbers, Renewed(name, OpaqueMap))) as renewed:
        renewed.drain()
        assert in_database(name) == ALL


class Plain(BatchBolt):
    """Has no state, and is no committer."""

    def __init__(self, name, fails):
        self.backend, self.fails = MemoryBackend(name), fails

    def open(self, context):
        self.context = context
        self.counts = TransactionalMap(self.backend, context)
        self.new = Counter()

    def execute(self, tup, collector):
        self.new[str(tup.number)] += 1

    def finishBatch(self, collector):
        self.counts.multiUpdate(self.new, operator.add, 0)
        if self.context.attempt < self.fails.count(self.context.txid):
            raise FailedException("it has written, and fails")


class PlainInOrder(Plain, Committer):
    """A committer without state, as in Storm."""


class Decided(Stateful, BatchBolt):
    """Writes behind the decision, what it has put into its state."""

    def __init__(self, name, fails):
        self.backend, self.fails = MemoryBackend(name), fails

    def open(self, context):
        self.context = context
        self.counts = TransactionalMap(self.backend, context)

    def initState(self, state):
        self.state, self.new = state, Counter()

    def execute(self, tup, collector):
        self.new[str(tup.number)] += 1

    def finishBatch(self, collector):
        self.state.put("new", dict(self.new))
        if self.context.attempt < self.fails.count(self.context.txid):
            raise FailedException("it has not written, and fails")

    def preCommit(self, txid):
        self.counts.multiUpdate(self.state.get("new"), operator.add, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spout", "bolt", "first"), [(Planned, PlainInOrder, 5), (Emitted, PlainInOrder, 18), (Opaque, Decided, 31)]
)
def test_a_transactional_map_is_exact_in_a_committer_and_behind_the_decision(spout, bolt, first, name, tmp_path):
    """Behind it also with an opaque spout: of all attempts of a transaction, one comes so far."""
    config = {"topology.max.spout.pending": 3}
    for moment in count(first, 41):
        MemoryBackend(name).rows.clear()
        place = tmp_path / str(moment)
        place.mkdir()
        builder = TopologyBuilder("numbers")
        builder.setSpout("numbers", spout(place), parallelism=2)
        builder.setBolt("totals", bolt(name, [2]), parallelism=2).fieldsGrouping("numbers", "number")
        numbers = builder.createTopology()
        crashed = True
        with suppress(Crash), TopologyTester(numbers, place / "ck", config, crash_at=moment) as tester:
            tester.drain()
            crashed = False
        with TopologyTester(numbers, place / "ck", config) as successor:
            successor.drain()
        assert in_database(name) == ALL, f"crash at moment {moment}"
        if not crashed:
            break


@pytest.mark.slow
def test_a_transactional_map_is_changed_by_bolts_that_see_one_transaction_after_the_other(name, tmp_path):
    builder = TopologyBuilder("numbers")
    builder.setSpout("numbers", Planned(tmp_path), parallelism=2)
    builder.setBolt("totals", Plain(name, []), parallelism=2).fieldsGrouping("numbers", "number")
    numbers = builder.createTopology()
    with (
        TopologyTester(numbers, tmp_path / "many", {"topology.max.spout.pending": 3}) as tester,
        pytest.raises(BoltError, match=r"changed by 'totals', which works on several transactions.*Committer"),
    ):
        tester.drain()
    assert in_database(name) == {}
    with TopologyTester(numbers, tmp_path / "one") as tester:
        tester.drain()
    assert in_database(name) == ALL


@pytest.mark.slow
def test_a_second_topology_on_the_table_is_refused_by_name(name, tmp_path):
    with TopologyTester(topology(Whole(tmp_path), Totals(name, OpaqueMap)), tmp_path / "ck") as tester:
        tester.emit()
    refused = r"ValueMismatchError: .*opaque totals/\d@.*give each map a table of its own"
    with (
        TopologyTester(topology(Whole(tmp_path), Totals(name, OpaqueMap)), tmp_path / "other") as tester,
        pytest.raises(BoltError, match=refused),
    ):
        tester.emit()
    with TopologyTester(topology(Whole(tmp_path), Totals(name, OpaqueMap)), tmp_path / "ck") as tester:
        tester.drain()
    assert in_database(name) == ALL


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("spout", "kind"), MAPS[:3])
def test_tasks_that_are_lost_or_wake_up_late_leave_the_values_exact(spout, kind, seed, name, tmp_path):
    numbers = topology(spout(tmp_path), Totals(name, kind, atomic=seed % 2 == 1))
    limits = {"topology.transaction.attempts.max": 20}
    with LivingTester(numbers, tmp_path / "ck", limits, seed=seed, breaks=True) as tester:
        while tester.state("count") != ALL:
            tester.emit()
            assert in_database(name) == tester.state("count")
        tester.wake()
        assert in_database(name) == ALL


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_second_driver_and_the_first_ones_late_tasks_leave_the_values_exact(seed, name, tmp_path):
    """The first driver is gone when its tasks have begun with transaction 2; they go on while the second one works."""
    numbers, totals = Opaque(tmp_path), Totals(name, OpaqueMap)
    first = LivingTester(topology(numbers, totals), tmp_path / "ck", {}, seed=seed)
    first.emit()
    steps = count(random.Random(seed).randint(-20, -5))
    first._before_step = lambda engine: crash() if next(steps) == 0 else None
    with pytest.raises(Crash):
        first.emit()
    first.vanish()
    with TopologyTester(topology(numbers, totals), tmp_path / "ck") as second:
        second.emit()
        while first.step_orphans():
            pass
        assert in_database(name) == second.state("count")
        second.drain()
        assert in_database(name) == ALL
    first.close()


def crash():
    raise Crash("the driver is gone")
