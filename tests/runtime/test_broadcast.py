"""Broadcast inputs: every row is judged by the rules of its own transaction, whatever comes first."""

import random

import pyarrow as pa
import pytest

from statefx import BasicBolt, BatchBolt, Checkpoint, Stateful, StatefulBolt, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.errors import BoltError, FailedException, StatePhaseError
from statefx.protocol.completeness import Alignment
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.reports import Barrier
from statefx.runtime.chain import HeldRows
from statefx.runtime.outlets import HELD_BYTES_MAX
from statefx.testing import TopologyTester, rows
from statefx.topology.graph import Edge, Grouping
from tests.bolts import FailsOnce

PAYMENTS, RULES = "account string, cents long", "name string, cents long"


class Check(StatefulBolt):
    outputFields = "account string, cents long, limit long"

    def initState(self, state):
        self.rules = state.broadcast("rules")
        self.payments = state

    def executeBroadcast(self, rule, collector):
        self.rules.put(rule.name, rule.cents)

    def execute(self, payment, collector):
        self.payments.put(payment.account, self.payments.get(payment.account, 0) + 1)
        limit = self.rules.get("limit", 0)
        if payment.cents > limit:
            collector.emit((payment.account, payment.cents, limit))


def checked(payments, rules, bolt=None, tasks=3, take=1, sources=1):
    """Return a topology over partitions of payments and of rules, of which a transaction takes `take` rows each."""
    builder = TopologyBuilder("checked")
    builder.setSpout("payments", MemoryTransactionalSpout(payments, PAYMENTS, takePerBatch=take), len(payments))
    builder.setSpout("rules", MemoryTransactionalSpout(rules, RULES, takePerBatch=take), sources)
    check = builder.setBolt("check", bolt or Check(), tasks)
    check.fieldsGrouping("payments", "account").broadcastGrouping("rules")
    return builder.createTopology()


def frames(bolt=None, tasks=3):
    builder = TopologyBuilder("frames")
    builder.setStream("payments", rows(PAYMENTS))
    builder.setStream("rules", rows(RULES))
    check = builder.setBolt("check", bolt or Check(), tasks)
    check.fieldsGrouping("payments", "account").broadcastGrouping("rules")
    return builder.createTopology()


# ---- the order


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_rows_are_judged_by_the_rules_of_their_transaction(place, seed):
    payments = [[("ann", 10), ("ann", 20), ("ann", 30)], [("bob", 10), ("bob", 20), ("bob", 30)]]
    topology = checked(payments, [[("limit", 15), ("limit", 5), ("limit", 25)]])
    with TopologyTester(topology, place, seed=seed) as tester:
        found = [sorted(tester.emit().emitted("check")) for _ in range(3)]
        assert found == [[], [("ann", 20, 5), ("bob", 20, 5)], [("ann", 30, 25), ("bob", 30, 25)]]
        assert tester.state("check", map="rules") == {"limit": 25}
        assert tester.state("check") == {"ann": 3, "bob": 3}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_of_dataframes_too(place, seed):
    with TopologyTester(frames(), place, seed=seed) as tester:
        sent = tester.send({"payments": [("ann", 10), ("bob", 20)], "rules": [("limit", 5), ("limit", 15)]})
        assert sent.emitted("check") == [("bob", 20, 15)], "the later of two rows counts"
        assert tester.send({"payments": [("ann", 10)]}).emitted("check") == []
        sent = tester.send({"rules": [("limit", 1)]})
        assert sent.emitted("check") == []
        assert tester.send({"payments": [("ann", 10)]}).emitted("check") == [("ann", 10, 1)]


class Heard(StatefulBolt):
    def initState(self, state):
        self.heard = state.list("heard")

    def executeBroadcast(self, tup, collector):
        self.heard.append((tup._source, tup._stream, tup.name, tup.cents))

    def execute(self, tup, collector):
        self.heard.append((tup._source, tup.account))


@pytest.mark.parametrize("seed", range(8))
def test_all_tasks_are_given_them_in_one_order(place, seed):
    builder = TopologyBuilder("ordered")
    builder.setSpout("payments", MemoryTransactionalSpout([[("ann", 1)], [("bob", 1)]], PAYMENTS), 2)
    first = [[("a", n) for n in range(3)], [("b", n) for n in range(3)]]
    builder.setSpout("first", MemoryTransactionalSpout(first, RULES), 2)
    builder.setSpout("second", MemoryTransactionalSpout([[("c", 0)]], RULES))
    heard = builder.setBolt("heard", Heard(), 3).broadcastGrouping("second")
    heard.fieldsGrouping("payments", "account").broadcastGrouping("first")
    with TopologyTester(builder.createTopology(), place, seed=seed) as tester:
        tester.emit()
    with Checkpoint(place).state("heard") as view:
        heard = view.list("heard")
    rules = [("second", "default", "c", 0), *(("first", "default", *rule) for part in first for rule in part)]
    assert [each[:7] for each in heard.values()] == [rules] * 3
    assert sorted(row for each in heard.values() for row in each[7:]) == [("payments", "ann"), ("payments", "bob")]


class Parse(BasicBolt):
    outputFields = {"payments": PAYMENTS, "rules": RULES}

    def execute(self, tup, collector):
        collector.emit(tuple(tup), stream="rules" if tup.account == "limit" else "payments")


def test_rules_and_rows_may_be_streams_of_one_bolt(place):
    builder = TopologyBuilder("streams")
    events = [[("ann", 10), ("limit", 15)], [("limit", 5), ("bob", 10)]]
    builder.setSpout("events", MemoryTransactionalSpout(events, PAYMENTS), 2)
    builder.setBolt("parse", Parse(), 1).shuffleGrouping("events")
    check = builder.setBolt("check", Check(), 2).broadcastGrouping("parse", stream="rules")
    check.fieldsGrouping("parse", "account", stream="payments")
    with TopologyTester(builder.createTopology(), place, seed=1) as tester:
        limit = next(iter(tester.emit() and tester.state("check", map="rules").values()))
        assert {row[2] for row in tester.emitted("check")} <= {limit}


class Batches(StatefulBolt):
    outputFields = "above long, limit long"

    def initState(self, state):
        self.rules = state.broadcast("rules")

    def executeBroadcast(self, rule, collector):
        self.rules.put(rule.name, rule.cents)

    def executeBatch(self, batch, collector):
        limit = self.rules.get("limit")
        collector.emit((sum(cents > limit for cents in batch.column("cents").to_pylist()), limit))


@pytest.mark.parametrize("seed", range(4))
def test_a_bolt_that_takes_batches_gets_rules_as_tuples(place, seed):
    with TopologyTester(frames(Batches(), tasks=1), place, seed=seed) as tester:
        sent = tester.send({"payments": [("ann", 10), ("bob", 20)], "rules": [("limit", 15)]})
        assert sent.emitted("check") == [(1, 15)]


class Echo(Check):
    def executeBroadcast(self, rule, collector):
        super().executeBroadcast(rule, collector)
        collector.emit((rule.name, rule.cents, 0))


def test_each_task_emits_what_it_emits_of_a_rule(place):
    with TopologyTester(frames(Echo()), place) as tester:
        assert tester.send({"rules": [("limit", 5)]}).emitted("check") == [("limit", 5, 0)] * 3


# ---- what may change the map


class Meddles(Stateful, BatchBolt):
    def __init__(self, where, how):
        self.where, self.how = where, how

    def initState(self, state):
        self.rules = state.broadcast("rules")
        self.meddle("initState")

    def executeBroadcast(self, rule, collector):
        self.rules.put(rule.name, rule.cents)

    def execute(self, payment, collector):
        self.meddle("execute")
        self.timers.set("due", self.now, processing=True)

    def open(self, context):
        self.now = context.processingTime

    def onTimer(self, key, at, value, collector):
        self.meddle("onTimer")

    def finishBatch(self, collector):
        self.meddle("finishBatch")

    def prePrepare(self, txid):
        self.meddle("prePrepare")

    def meddle(self, where):
        if where == self.where:
            self.how(self.rules)


def deletes(rules):
    del rules["limit"]


CHANGES = {
    "put": lambda rules: rules.put("limit", 1),
    "item": lambda rules: rules.__setitem__("limit", 1),
    "putAll": lambda rules: rules.putAll({"limit": 1}),
    "delete": lambda rules: rules.delete("limit"),
    "del": deletes,
    "deleteRange": lambda rules: rules.deleteRange(None, None),
    "scan and put": lambda rules: (list(rules.items()), rules.put("limit", 1)),
}


@pytest.mark.parametrize(
    ("where", "how"),
    [("execute", how) for how in CHANGES]
    + [(where, "put") for where in ("initState", "onTimer", "finishBatch", "prePrepare")],
)
def test_only_execute_broadcast_changes_it(place, where, how):
    with (
        TopologyTester(frames(Meddles(where, CHANGES[how]), tasks=1), place) as tester,
        pytest.raises(BoltError, match=r"outside of executeBroadcast.* take state\.map") as caught,
    ):
        tester.send({"payments": [("ann", 1)], "rules": [("limit", 5)]})
    assert caught.value.hook == where
    assert isinstance(caught.value.cause, StatePhaseError) or "StatePhaseError" in str(caught.value)


@pytest.mark.parametrize("where", ["finishBatch", "prePrepare"])
def test_nothing_changes_it_behind_rules_alone(place, where):
    with (
        TopologyTester(frames(Meddles(where, CHANGES["put"]), tasks=1), place) as tester,
        pytest.raises(BoltError, match="outside of executeBroadcast"),
    ):
        tester.send({"rules": [("limit", 5)]})


class Replaces(Check):
    def executeBroadcast(self, rule, collector):
        for name in [*self.rules]:
            self.rules.delete(name)
        self.rules.putAll({rule.name: rule.cents, "last": rule.name})
        if rule.cents < 0:
            self.rules.deleteRange(None, None)


def test_execute_broadcast_reads_changes_and_deletes(place):
    with TopologyTester(frames(Replaces()), place) as tester:
        tester.send({"rules": [("limit", 1), ("most", 2)]})
        assert tester.state("check", map="rules") == {"most": 2, "last": "most"}
        tester.send({"rules": [("limit", 1), ("most", -1)]})
        assert tester.state("check", map="rules") == {}
        with Checkpoint(place).state("check") as view:
            assert view.names()["broadcast"] == []


# ---- what is kept, and shown


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["memory", "rocksdb"])
def test_rules_survive_a_restart_and_are_shown_once(place, provider):
    payments = [[("ann", 10), ("ann", 20)], [("bob", 20), ("bob", 10)]]
    topology = checked(payments, [[("limit", 15)]])
    config = {"topology.state.provider": provider}
    with TopologyTester(topology, place, config) as tester:
        assert tester.emit().emitted("check") == [("bob", 20, 15)]
        with tester.restart() as later:
            assert later.emit().emitted("check") == [("ann", 20, 15)]
    with Checkpoint(place).state("check", map="rules") as view:
        assert (dict(view.items()), len(view), view["limit"]) == ({"limit": 15}, 1, 15)
        assert view.names() == {"map": [], "list": [], "value": [], "broadcast": ["rules"]}
    with Checkpoint(place).state("check", map="rules", byTask=True) as view:
        assert dict(view.items()) == {(task, "limit"): 15 for task in range(3)}
    with Checkpoint(place).state("check", 2, map="rules") as view:
        assert dict(view.items()) == {"limit": 15}


class Twice(Check):
    def open(self, context):
        self.context = context

    def execute(self, payment, collector):
        super().execute(payment, collector)
        if payment.account == "bob" and self.context.attempt == 0:
            raise FailedException("not at the first attempt")


@pytest.mark.slow
def test_what_is_rolled_back_leaves_no_rule(place):
    class Adds(Twice):
        def executeBroadcast(self, rule, collector):
            self.rules.put(rule.name, self.rules.get(rule.name, 0) + rule.cents)

    topology = checked([[("ann", 10), ("ann", 10)], [("bob", 10), ("bob", 10)]], [[("limit", 3), ("limit", 4)]], Adds())
    with TopologyTester(topology, place) as tester:
        assert sorted(tester.emit().emitted("check")) == [("ann", 10, 3), ("bob", 10, 3)]
        assert sorted(tester.emit().emitted("check")) == [("ann", 10, 7), ("bob", 10, 7)]


class Needs(Check):
    def execute(self, payment, collector):
        collector.emit((payment.account, payment.cents, self.rules["limit"]))


@pytest.mark.parametrize("seed", range(4))
def test_no_row_is_judged_where_the_rules_have_not_come_whole(place, seed):
    """Else the bolt would raise for want of a rule, and the query end, for what only fails an attempt."""
    builder = TopologyBuilder("needs")
    builder.setSpout("payments", MemoryTransactionalSpout([[("ann", 1)]], PAYMENTS))
    builder.setSpout("rules", MemoryTransactionalSpout([[("limit", 5)]], RULES))
    builder.setBolt("parse", FailsOnce(RULES)).shuffleGrouping("rules")
    builder.setBolt("check", Needs(), 2).fieldsGrouping("payments", "account").broadcastGrouping("parse")
    with TopologyTester(builder.createTopology(), place, seed=seed) as tester:
        sent = tester.emit()
        assert (sent.progress.attempt, sent.emitted("check")) == (1, [("ann", 1, 5)])


# ---- what is held


def test_a_barrier_that_comes_before_its_rows_opens_nothing():
    alignment = Alignment("check", 0, TransactionAttempt(1, 0), [(0, "rules", 0)])
    held = HeldRows(alignment, [(0, "rules", 0)])
    alignment.barrier(Barrier(TransactionAttempt(1, 0), "rules", 0, "token", {0: 2}))
    for token, whole in (("token", False), ("another run", False), ("token", True)):
        alignment.records("rules", 0, token, 0, 1)
        assert held.is_whole() is whole


@pytest.mark.slow
def test_what_is_held_is_bounded_in_memory_and_comes_in_order():
    attempt = TransactionAttempt(1, 0)
    edges = {
        n: Edge(n, source, "default", "check", Grouping(kind))
        for n, (source, kind) in enumerate([("payments", "fields"), ("rules", "broadcast")])
    }
    channels = [(0, "payments", 0), (1, "rules", 0), (1, "rules", 1)]
    alignment = Alignment("check", 0, attempt, channels)
    held = HeldRows(alignment, channels[1:])
    batch = pa.RecordBatch.from_arrays([pa.array([bytes(HELD_BYTES_MAX // 4)])], names=["data"])
    given = [(0, 0), (1, 1), (0, 0), (1, 0)] * 8
    chance = random.Random(1)
    chance.shuffle(given)
    for edge, task in given:
        alignment.records(edges[edge].source, task, f"token-{task}", edge, 1)
        held.put(edges[edge], task, batch)
    queues = [*held._first.values(), held._others]
    assert sum(queue.held_bytes for queue in queues) <= 2 * HELD_BYTES_MAX, "of 8 times as much"
    for task in (1, 0):
        assert not held.is_whole()
        alignment.barrier(Barrier(attempt, "rules", task, f"token-{task}", {1: 8}))
    assert held.is_whole()
    assert [edge.source for edge, _ in held.take()] == ["rules"] * 16 + ["payments"] * 16
