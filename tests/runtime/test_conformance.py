"""What Storm's StatefulBoltExecutorTest asks of one task: barriers, the order of hooks, rollbacks."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statefx import BasicBolt, TopologyBuilder
from statefx.errors import BoltError, FailedException, TopologyError
from statefx.plan import wire
from statefx.plan.deployment import Deployment
from statefx.plan.levels import compile_plan
from statefx.protocol.barrier import Ack, Barrier
from statefx.protocol.commands import Resolution
from statefx.protocol.identity import TaskId, TransactionAttempt, Version
from statefx.protocol.order import Order, ResolutionOrder
from statefx.runtime.bolt_operator import BoltOperator
from statefx.runtime.outbox import Outbox
from statefx.runtime.resolution import resolve_task
from statefx.runtime.slot import Slot
from statefx.runtime.worker import Worker
from statefx.storage import FolderStorage
from statefx.testing import rows
from statefx.testing.faults import Doubled, HooksFail, JobFails, Lost, Rerun
from tests.testing import eager
from tests.testing.topologies import Driver, Split, Witness, hooks, lines, witnessed, word_count


def deployment(place: Path, topology: Any, **config: Any) -> Deployment:
    return Deployment(
        name=topology.name,
        plan=compile_plan(topology),
        config=config,
        provider="statefx_memory:MemoryStateProvider",
        options={},
        lineage="l" * 32,
        generation=1,
        storage=FolderStorage(place),
        cache=str(place / "cache"),
    )


def sent_by(slot: Slot, batches: list[Any]) -> list[tuple[int, wire.Address, bytes]]:
    """Run a slot and return (kind, address, payload) of the rows that it sends."""
    found = [row for batch in slot.run(batches) for row in wire.rows_of(batch)]
    return [(kind, wire.Address.unpack(head), payload) for kind, _, head, payload in found]


FIRST = Order(TransactionAttempt(1, 0), 1)


def test_b1_no_tuple_before_the_state(place: Path) -> None:
    with Driver(place) as driver:
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
def test_b2_commit_and_rollback_are_executed_in_a_process_that_has_seen_nothing(
    place: Path, resolution: Resolution
) -> None:
    journal: list[Any] = []
    made = deployment(place, witnessed(), journal=journal)
    sent = sent_by(Slot(Worker(), made, FIRST, 0, 0), [])
    acks = [Ack.unpack(payload) for kind, _, payload in sent if kind == wire.ACK]
    journal.clear()
    versions = {str(TaskId("witness", 0)): _version(acks[0])} if resolution is Resolution.COMMIT else {}
    order = ResolutionOrder(resolution, Order(FIRST.attempt, 1, versions), (TaskId("witness", 0),))
    report = resolve_task(Worker(), made, order, TaskId("witness", 0))
    assert report.error is None
    assert hooks(journal) == [
        "open",
        "initState",
        {"commit": "preCommit", "rollback": "preRollback"}[resolution],
        "close",
    ]


def _version(ack: Ack) -> Version:
    return Version(ack.attempt.txid, ack.token)


def test_b2_prepare_before_the_state_is_refused(place: Path) -> None:
    made = deployment(place, witnessed(), journal=[])
    assert "witness" in made.plan.components
    with pytest.raises(AssertionError):
        BoltOperator().finish()
    assert not (place / "state").exists()


def test_b3_hooks_come_before_what_they_are_named_for(place: Path) -> None:
    with Driver(place) as driver:
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
        assert hooks(driver.journal)[:9] == [
            "initState", "execute", "finishBatch", "prePrepare", "prepareCommit",
            "open", "initState", "preRollback", "close",
        ]  # fmt: skip
        assert hooks(driver.journal)[9] == "rollback"


def test_b3_then_the_barrier_goes_on_then_the_ack(place: Path) -> None:
    made = deployment(place, word_count())
    [width] = {len(made.plan.levels[0])}
    sent = sent_by(Slot(Worker(), made, FIRST, 0, 0), _raw(["a b a b"]))
    kinds = [kind for kind, _, _ in sent]
    assert kinds == sorted(kinds), "records, barriers, ack"
    assert kinds.count(wire.BARRIER) == width
    assert kinds.count(wire.ACK) == 1
    ack = Ack.unpack(sent[-1][2])
    tokens = {Barrier.unpack(payload).token for kind, _, payload in sent if kind == wire.BARRIER}
    tokens |= {payload[:32].decode() for kind, _, payload in sent if kind == wire.RECORDS}
    assert tokens == {ack.token}


def _raw(texts: list[str]) -> list[Any]:
    return [pa.RecordBatch.from_arrays([pa.array(texts)], names=["c0"])]


@pytest.mark.parametrize("hook", ["open", "initState", "execute", "finishBatch", "prePrepare"])
def test_b4_a_hook_that_raises_fails_the_transaction_and_is_named(place: Path, hook: str) -> None:
    with Driver(place) as driver:
        tester = driver.start(witnessed(2, "allGrouping"))
        if hook != "open":
            tester.send(lines("a"))
        driver.config["failing"] = {hook: [ZeroDivisionError("by zero")]}
        tester = driver.start(witnessed(2, "allGrouping"))
        txid = tester.txid + 1
        with pytest.raises(BoltError, match="ZeroDivisionError: by zero") as caught:
            tester.send(lines("b"))
        error = caught.value
        assert (error.component, error.task, error.hook, error.txid) == ("witness", 0, hook, txid)
        for word in ("'witness'", "task 0", hook, f"transaction {txid}"):
            assert word in str(error)
        assert tester.steps[-1] == f"after ROLLED_BACK({txid}, 0)"
        restarted = driver.start(witnessed(2, "allGrouping"))
        restarted.send(lines("b"))
        assert restarted.state("witness", task=1) == {"seen": txid}


@pytest.mark.parametrize(("hook", "fault"), [("preCommit", None), ("preRollback", JobFails())])
def test_b4_a_hook_that_raises_in_a_phase_that_is_repeated_is_named_in_the_status(
    place: Path, hook: str, fault: Any
) -> None:
    with Driver(place) as driver:
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
def test_b4_a_failed_exception_in_any_hook_fails_the_transaction_and_not_the_query(place: Path, hook: str) -> None:
    with Driver(place) as driver:
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


def test_b5_a_barrier_of_an_earlier_transaction_or_attempt_is_ignored_and_the_task_acks(place: Path) -> None:
    made = deployment(place, word_count())
    order = Order(TransactionAttempt(2, 1), 1)
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
    [(kind, _, payload)] = sent_by(Slot(Worker(), made, order, 1, 0), list(outbox.take()))
    ack = Ack.unpack(payload)
    assert kind == wire.ACK
    assert ack.failed is None
    assert ack.attempt == order.attempt
    assert set(ack.seen.values()) == {"2" * 32}


def test_b6_after_a_rollback_the_bolt_is_initialised_again(place: Path) -> None:
    """The bolt keeps its count in an attribute: if that outlived the rollback, the count would be wrong."""
    with Driver(place) as driver:
        tester = driver.start(witnessed())
        for _ in range(3):
            tester.send(lines("a", "b"), JobFails(), JobFails())
        assert tester.state("witness") == {"seen": 6}
        inits = [entry for entry in driver.journal if entry[0] == "initState" and entry[1] == 2]
        assert next(entry for entry in inits if entry[2] == 1) == ("initState", 2, 1, 2)
        assert hooks(driver.journal).count("open") > 1


def test_b6_a_bolt_that_came_through_a_failed_attempt_is_kept_without_its_caches(place: Path) -> None:
    """The task of a failed attempt succeeded: its object is kept and must still begin anew."""
    with Driver(place) as driver:
        tester = driver.start(witnessed())
        tester.send(lines("a"), JobFails())
        inits = [entry for entry in driver.journal if entry[0] == "initState" and entry[2] == 1]
        assert inits == [("initState", 1, 1, 0), ("initState", 1, 1, 1)], "of the attempt, and of its preCommit"
        assert tester.state("witness") == {"seen": 1}


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Lost("split", 0, "barrier"), Lost("split", 0), Doubled("split", 1)])
def test_b7_a_partly_received_barrier_never_leaks_into_the_next_transaction(place: Path, fault: Any) -> None:
    with Driver(place) as driver:
        tester = driver.start(word_count())
        for n in range(1, 5):
            sent = tester.send(lines("a b", "b c"), fault)
            assert sent.progress.attempt == 1
            assert sent.progress.rows == {"split": 2, "count": 4}
            assert tester.state("count") == {"a": n, "b": 2 * n, "c": n}


def test_b8_prepared_only_when_the_barrier_has_come_from_every_input(place: Path) -> None:
    with Driver(place) as driver:
        tester = driver.start(word_count())
        tester.send(lines("a b", "b c"), Lost("split", 1, "barrier"))
        first, second = (tester.steps.index(f"before PREPARING(1, {attempt})") for attempt in (0, 1))
        assert not [step for step in tester.steps[first:second] if "prepare" in step]
        assert [step for step in tester.steps[second:] if "prepare" in step]


@pytest.mark.slow
def test_b8_no_row_of_the_next_transaction_is_in_what_is_prepared(place: Path) -> None:
    with Driver(place) as driver:
        tester = driver.start(word_count())
        for n in range(1, 6):
            tester.send(lines(*["a"] * n), Rerun("split", 0, readers={n % 2}))
            assert tester.state("count") == {"a": sum(range(n + 1))}


def test_b9_a_topology_without_state_runs_without_prepares_and_hooks(place: Path) -> None:
    builder = TopologyBuilder("stateless")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("split", Split(), parallelism=2).shuffleGrouping("lines")
    builder.setBolt("upper", Upper(), parallelism=3).fieldsGrouping("split", "word")
    with Driver(place) as driver:
        tester = driver.start(builder.createTopology())
        assert sorted(tester.send(lines("a b", "c")).emitted("upper")) == [("A",), ("B",), ("C",)]
        assert not [step for step in tester.steps if "prepare" in step or "hooks" in step]
        assert not list((driver.folder / "state").glob("[!.]*"))


def test_b9_stateless_bolts_forward_barriers_without_code_of_their_own(place: Path) -> None:
    builder = TopologyBuilder("mixed")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("split", Split(), parallelism=2).shuffleGrouping("lines")
    builder.setBolt("upper", Upper(), parallelism=3).fieldsGrouping("split", "word")
    builder.setBolt("witness", Witness()).globalGrouping("upper")
    with Driver(place) as driver:
        tester = driver.start(builder.createTopology())
        tester.send(lines("a b", "c"))
        assert tester.state("witness") == {"seen": 3}


class Upper(BasicBolt):
    outputFields = "value string"

    def execute(self, tup, collector):
        collector.emit((tup.word.upper(),))


@pytest.mark.parametrize(
    ("declare", "names"),
    [
        (lambda b: b.setBolt("w", Split(), parallelism=0).shuffleGrouping("lines"), "parallelism"),
        (lambda b: b.setBolt("w", Split()).shuffleGrouping("linse"), "'linse'"),
        (lambda b: b.setBolt("w", Split()).shuffleGrouping("lines", stream="late"), "'late'"),
        (lambda b: b.setBolt("lines", Split()).shuffleGrouping("lines"), "already used"),
        (lambda b: b.setBolt("w", Split()).fieldsGrouping("lines", "word"), "'word'"),
        (
            lambda b: (b.setBolt("v", Split()).shuffleGrouping("w"), b.setBolt("w", Split()).shuffleGrouping("v")),
            "cycle",
        ),
    ],
)
def test_b10_a_topology_that_is_wired_wrong_is_refused_before_anything_runs(declare: Any, names: str) -> None:
    builder = TopologyBuilder("wrong")
    builder.setStream("lines", rows("value string"))

    def build() -> None:
        declare(builder)
        builder.createTopology()

    with pytest.raises(TopologyError, match=names):
        build()


def test_hooks_that_fail_on_one_task_are_repeated_on_that_task_alone(place: Path) -> None:
    with Driver(place) as driver:
        driver.config["failing"] = {"preCommit": [RuntimeError("once")]}
        tester = driver.start(witnessed(3, "allGrouping"))
        tester.send(lines("a"))
        assert hooks(driver.journal).count("preCommit") == 4
        assert [s for s in tester.steps if s.startswith("before commit hooks witness/0")] == [
            "before commit hooks witness/0 for 1"
        ] * 2
        assert tester.steps.count("before commit hooks witness/2 for 1") == 1


def test_hooks_whose_job_was_lost_are_repeated_on_all(place: Path) -> None:
    with Driver(place) as driver:
        tester = driver.start(witnessed(3, "allGrouping"))
        tester.send(lines("a"), HooksFail(done=2))
        assert hooks(driver.journal).count("preCommit") == 5
