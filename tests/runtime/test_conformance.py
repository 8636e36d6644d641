"""What Storm's StatefulBoltExecutorTest asks of one task: barriers, the order of hooks, rollbacks."""

from typing import Any

import pytest

from statefx import BasicBolt, TopologyBuilder
from statefx.errors import BoltError, FailedException
from statefx.plan import wire
from statefx.protocol.commands import Resolution
from statefx.protocol.identity import TaskId, TransactionAttempt, Version
from statefx.protocol.order import Order, ResolutionOrder
from statefx.protocol.reports import Ack, Barrier
from statefx.runtime.bolt_task import BoltTask
from statefx.runtime.outlets import Outbox
from statefx.runtime.worker import Worker
from statefx.testing import rows
from statefx.testing.faults import HooksFail, JobFails
from tests.runtime.one_chain import FIRST, chain_attempt, deployment, order_of, rows_of, run
from tests.testing import eager
from tests.testing.topologies import Split, hooks, lines, witnessed, word_count


def test_b1_no_tuple_before_the_state(driver):
    tester = driver.start(witnessed())
    for n in range(3):
        driver.journal.clear()
        tester.send(lines("a", "b"), *([JobFails()] if n == 1 else []))
        calls = hooks(driver.journal, "open")
        assert calls[0] == "initState"
        for at, call in enumerate(calls):
            if call == "execute":
                assert "initState" in calls[:at]


@pytest.mark.parametrize("resolution", Resolution)
def test_b2_commit_and_rollback_are_executed_in_a_process_that_has_seen_nothing(place, resolution):
    journal: list[Any] = []
    made, task = deployment(place, witnessed(), journal=journal), TaskId("witness", 0)
    token = run(Worker(), made, order_of(made))[task].token
    journal.clear()
    versions = {str(task): Version(FIRST.txid, token)} if resolution is Resolution.COMMIT else {}
    order = ResolutionOrder(resolution, Order(FIRST, 1, versions), (task,))
    report = BoltTask(Worker(), made, task).resolve(order)
    assert report.error is None
    assert hooks(journal) == [
        "open",
        "initState",
        {"commit": "preCommit", "rollback": "preRollback"}[resolution],
        "close",
    ]


def test_b2_prepare_before_the_state_is_refused(place):
    made = deployment(place, witnessed(), journal=[])
    task = BoltTask(Worker(), made, TaskId("witness", 0))
    task.enter(order_of(made), "token", (), Outbox(0, 0, ()))
    with pytest.raises(AssertionError):
        task.prepare()
    assert not (place / "state").exists()


def test_b3_hooks_come_before_what_they_are_named_for(driver):
    driver.config["topology.state.provider"] = eager.REFERENCE
    tester = driver.start(witnessed(), freshObjects=False)
    for txid in (1, 2):
        tester.when(f"before prepare witness/0 for {txid}", lambda: driver.journal.append(("prepareCommit",)))
        tester.when(f"before commit witness/0 for {txid}", lambda: driver.journal.append(("commit",)))
        tester.when(f"before ROLLED_BACK({txid}, 0)", lambda: driver.journal.append(("rollback",)))
    tester.send(lines("a"))
    assert hooks(driver.journal) == [
        "open", "initState", "execute", "finishBatch", "prePrepare", "prepareCommit",
        "open", "initState", "preCommit", "close", "commit",
    ]  # fmt: skip
    driver.journal.clear()
    tester.send(lines("a"), JobFails())
    assert hooks(driver.journal)[:11] == [
        "initState", "execute", "finishBatch", "prePrepare", "prepareCommit",
        "close",  # its chain has ended
        "open", "initState", "preRollback", "close", "rollback",
    ]  # fmt: skip


def test_b3_then_the_barrier_goes_on_then_the_ack(place):
    made = deployment(place, word_count())
    acks: list[Ack] = []
    sent = []
    for row in rows_of(chain_attempt(Worker(), made, order_of(made, lines("a b a b")), acks=acks).run([])):
        assert not acks
        sent.append(row)
    kinds = [kind for _, kind, *_ in sent]
    assert kinds == sorted(kinds), "records, barriers"
    assert kinds.count(wire.BARRIER) == len(made.plan.levels[1])
    assert [ack.id for ack in acks] == [("lines", 0), ("split", 0)]
    tokens = {Barrier.unpack(payload).token for _, kind, *_, payload in sent if kind == wire.BARRIER}
    tokens |= {payload[:32].decode() for _, kind, *_, payload in sent if kind == wire.RECORDS}
    assert tokens == {acks[1].token}


@pytest.mark.parametrize("hook", ["open", "initState", "execute", "finishBatch", "prePrepare"])
def test_b4_a_hook_that_raises_fails_the_transaction_and_is_named(driver, hook):
    tester = driver.start(witnessed(2, "allGrouping"))
    if hook != "open":
        tester.send(lines("a"))
    driver.config["failing"] = {hook: [ZeroDivisionError("by zero")]}
    tester = driver.start(witnessed(2, "allGrouping"))
    txid = tester.txid + 1
    with pytest.raises(BoltError, match="ZeroDivisionError: by zero") as caught:
        tester.send(lines("b"))
    error = caught.value
    [task] = driver.failed
    assert (error.component, error.task, error.hook, error.txid) == ("witness", task, hook, txid)
    for word in ("'witness'", f"task {task}", hook, f"transaction {txid}"):
        assert word in str(error)
    assert tester.steps[-1] == f"after ROLLED_BACK({txid}, 0)"
    restarted = driver.start(witnessed(2, "allGrouping"))
    restarted.send(lines("b"))
    assert restarted.state("witness", task=1) == {"seen": txid}


@pytest.mark.parametrize(("hook", "fault"), [("preCommit", None), ("preRollback", JobFails())])
def test_b4_a_hook_that_raises_in_a_phase_that_is_repeated_is_named_in_the_status(driver, hook, fault):
    driver.config["failing"] = {hook: [ZeroDivisionError("by zero")]}
    tester = driver.start(witnessed())
    stuck: list[Any] = []
    tester.when("pause", lambda: stuck.append(tester.status["stuck"]))
    tester.send(lines("a"), *([fault] if fault else []))
    phase = {"preCommit": "commit", "preRollback": "rollback"}[hook]
    assert (stuck[0]["phase"], stuck[0]["txid"]) == (phase, 1)
    for word in ("'witness'", "task 0", hook, "transaction 1", "ZeroDivisionError: by zero"):
        assert word in stuck[0]["reason"]
    assert tester.state("witness") == {"seen": 1}


@pytest.mark.parametrize("hook", ["open", "initState", "execute", "finishBatch", "prePrepare"])
def test_b4_a_failed_exception_in_any_hook_fails_the_transaction_and_not_the_query(driver, hook):
    driver.config["failing"] = {hook: [FailedException("the feed is stale")] * 2}
    tester = driver.start(witnessed())
    sent = tester.send(lines("a", "b"))
    assert tester.state("witness") == {"seen": 2}
    assert sent.emitted("witness") == [("a", 1), ("b", 2)]
    rolled_back = [entry for entry in driver.journal if entry[0] == "preRollback"]
    if hook in ("open", "initState"):
        assert rolled_back == [("preRollback", 1, 0)], "the second failed the rollback, which was tried again"
    else:
        assert rolled_back == [("preRollback", 1, 0), ("preRollback", 1, 1)]
    assert sent.progress.attempt == len(rolled_back)


def test_b5_a_barrier_of_an_earlier_transaction_or_attempt_is_ignored_and_the_task_acks(place):
    made = deployment(place, word_count())
    order = order_of(made, attempt=TransactionAttempt(2, 1))
    barriers = [
        Barrier(TransactionAttempt(*attempt), "split", task, f"{n}" * 32)
        for n, attempt in enumerate([(1, 0), (2, 0), (2, 1)])
        for task in (0, 1)
    ]
    outbox = Outbox(0, 0, (2, 2))
    for barrier in barriers:
        address = wire.Address(
            1, 0, -1, made.plan.index["split"], barrier.task, barrier.attempt.txid, barrier.attempt.attempt
        )
        outbox.send(address, wire.BARRIER, 0, barrier.pack())
    acks: list[Ack] = []
    assert list(chain_attempt(Worker(), made, order, 1, 0, acks=acks).run(list(outbox.take()))) == []
    [ack] = acks
    assert ack.failed is None
    assert ack.attempt == order.attempt
    assert set(ack.seen.values()) == {"2" * 32}


def test_b6_a_bolt_that_came_through_a_failed_attempt_is_kept_without_its_caches(driver):
    """The task of a failed attempt succeeded: its object is kept and must still begin anew."""
    tester = driver.start(witnessed())
    tester.send(lines("a"), JobFails())
    inits = [entry for entry in driver.journal if entry[0] == "initState" and entry[2] == 1]
    assert inits == [("initState", 1, 1, 0), ("initState", 1, 1, 1)], "of the attempt, and of its preCommit"
    assert tester.state("witness") == {"seen": 1}


def test_b9_a_topology_without_state_runs_without_prepares_and_hooks(driver):
    builder = TopologyBuilder("stateless")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("split", Split(), parallelism=2).shuffleGrouping("lines")
    builder.setBolt("upper", Upper(), parallelism=3).fieldsGrouping("split", "word")
    tester = driver.start(builder.createTopology())
    assert sorted(tester.send(lines("a b", "c")).emitted("upper")) == [("A",), ("B",), ("C",)]
    assert not [step for step in tester.steps if "prepare" in step or "hooks" in step]
    assert not list((driver.folder / "state").glob("[!.]*"))


class Upper(BasicBolt):
    outputFields = "value string"

    def execute(self, tup, collector):
        collector.emit((tup.word.upper(),))


def test_hooks_that_fail_on_one_task_are_repeated_on_that_task_alone(driver):
    driver.config["failing"] = {"preCommit": [RuntimeError("once")]}
    tester = driver.start(witnessed(3, "allGrouping"))
    tester.send(lines("a"))
    assert hooks(driver.journal).count("preCommit") == 4
    times = [tester.steps.count(f"before commit hooks witness/{task} for 1") for task in range(3)]
    assert times == [2 if [task] == driver.failed else 1 for task in range(3)]


def test_hooks_whose_job_was_lost_are_repeated_on_all(driver):
    tester = driver.start(witnessed(3, "allGrouping"))
    done: list[int] = []

    def end_lost_run() -> None:
        tester.wake()
        done.append(hooks(driver.journal).count("preCommit"))

    tester.when("pause", end_lost_run)
    tester.send(lines("a"), HooksFail())
    assert 1 <= done[0] <= 3
    assert hooks(driver.journal).count("preCommit") == done[0] + 3
