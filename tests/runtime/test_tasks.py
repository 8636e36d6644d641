"""A task need be no bolt: an emitter without inputs and a sink without outputs, through barriers and acks."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from statefx import BasicBolt
from statefx.errors import BoltError, FailedException, FencedError, StateCorruptedError
from statefx.plan import wire
from statefx.plan.deployment import Deployment
from statefx.plan.levels import Plan
from statefx.protocol.barrier import Ack, Barrier
from statefx.protocol.failure import FailureKind
from statefx.protocol.identity import TaskId
from statefx.protocol.ledger import AckLedger, Complete, Incomplete, LedgerEdge
from statefx.runtime.bolt_task import BoltTask
from statefx.runtime.slot import SlotAttempt
from statefx.runtime.spout_task import SourceTask
from statefx.runtime.task import ACKED_BYTES_MAX, Prepared, Task
from statefx.runtime.worker import Worker
from statefx.topology.graph import Component, ComponentKind, Edge, Grouping
from tests.runtime.one_slot import FIRST, deployment, order_of, rows_of, slot

NUMBERS = pa.schema([("n", pa.int64()), ("text", pa.string())])
EACH = 10
"""Rows that each of two emitters emits, unless a test says otherwise."""


class Emitter(SourceTask):
    """Partition i emits i, i + 2, i + 4, ..."""

    rows, text = EACH, ""

    def begin(self) -> None:
        super().begin()
        self.emitted = 0

    def _emission(self) -> Iterator[None]:
        while self.emitted < self.rows:
            with self._hook("emit"):
                self.attempt.collector.emit((self.id.task + 2 * self.emitted, self.text))
            self.emitted += 1
            yield

    def prepare(self) -> Prepared:
        return Prepared(metadata={"next": self.id.task + 2 * self.emitted})


class Sink(Task):
    """Stages rows in a file of its token, which is there for the commit only if it has been prepared."""

    when: str = ""
    error: BaseException | None = None

    def begin(self) -> None:
        super().begin()
        folder: Path = self.deployment.config["staged"]
        self.path = folder / f"{self.id.task}-{self.attempt.token}"
        self.file = self.path.open("x")
        self._fails("begin")

    def feed(self, edge: Edge, batch: pa.RecordBatch) -> bool:
        with self._hook("write"):
            for row in batch.to_pylist():
                self.file.write(json.dumps(row["n"]) + "\n")
        self._fails("feed")
        return False

    def prepare(self) -> Prepared:
        self._fails("prepare")
        self.file.close()
        data = self.path.read_bytes()
        named = {"file": self.path.name, "sha256": hashlib.sha256(data).hexdigest(), "rows": data.count(b"\n")}
        return Prepared(committable=named)

    def keep(self) -> None:
        self.file.close()

    def drop(self, *, acked: bool) -> None:
        self.file.close()
        if not acked:
            self.path.unlink(missing_ok=True)

    def _fails(self, when: str) -> None:
        if self.when == when and self.error is not None:
            raise self.error


class Doubled(BasicBolt):
    def execute(self, tup, collector):
        collector.emit((tup.n * 2, tup.text))


def plan() -> Plan:
    """Two emitters, each with a bolt behind it in the same slot, and two sinks."""
    pairs = [(TaskId("numbers", i), TaskId("doubled", i)) for i in (0, 1)]
    return Plan(
        components={
            "numbers": Component("numbers", ComponentKind.BOLT, 2, {"default": NUMBERS}),
            "doubled": Component("doubled", ComponentKind.BOLT, 2, {"default": NUMBERS}, Doubled()),
            "sink": Component("sink", ComponentKind.BOLT, 2, {}, committer=True),
        },
        edges=(
            Edge(0, "numbers", "default", "doubled", Grouping("local")),
            Edge(1, "doubled", "default", "sink", Grouping("fields", ("n",))),
            Edge(2, "numbers", "default", "sink", Grouping("all")),
        ),
        levels=(tuple(pairs), ((TaskId("sink", 0),), (TaskId("sink", 1),))),
    )


class Run:
    """Runs both levels."""

    def __init__(self, place: Path, **kinds: type[Task]) -> None:
        self.staged = place / "staged"
        self.staged.mkdir(exist_ok=True)
        self.kinds: dict[str, type[Task]] = {"numbers": Emitter, "doubled": BoltTask, "sink": Sink} | kinds
        self.worker, self.deployment = Worker(), deployment(place, plan(), staged=self.staged)
        self.emitted: list[Ack] = []
        """The acks of the first level."""
        self.tasks: list[Task] = []

    def make_task(self, worker: Worker, deployment: Deployment, id: TaskId) -> Task:
        self.tasks.append(self.kinds[id.component](worker, deployment, id))
        return self.tasks[-1]

    def slot(self, level: int, partition: int, acks: list[Ack] | None = None) -> SlotAttempt:
        order = order_of(self.deployment)
        return slot(self.worker, self.deployment, order, level, partition, acks=acks, make_task=self.make_task)

    def emit(self) -> list[wire.WireRow]:
        """Run the first level."""
        return [row for partition in (0, 1) for row in rows_of(self.slot(0, partition, self.emitted).run([]))]

    def acks(self, given: list[wire.WireRow]) -> dict[TaskId, Ack]:
        """Run the second level over what the first has sent."""
        acks = list(self.emitted)
        for partition in (0, 1):
            own = [row for row in given if row[0] == partition]
            assert list(self.slot(1, partition, acks).run([wire.to_batch(own)])) == []
        return {ack.id: ack for ack in acks}

    def names(self) -> set[str]:
        return {path.name for path in self.staged.iterdir()}


def judged(acks: dict[TaskId, Ack]) -> Complete | Incomplete:
    found = plan()
    edges = [LedgerEdge(e.id, e.source, e.target, found.multiplicity(e), local=found.fused(e)) for e in found.edges]
    ledger = AckLedger(FIRST, found.tasks, edges)
    for ack in acks.values():
        ledger.add(ack)
    return ledger.judge()


def test_the_acks_of_emitters_and_sinks_are_judged_as_those_of_bolts(place: Path) -> None:
    run = Run(place)
    acks = run.acks(run.emit())
    assert isinstance(judged(acks), Complete)
    assert [acks[TaskId("numbers", i)].metadata for i in (0, 1)] == [{"next": 20}, {"next": 21}]
    assert acks[TaskId("numbers", 0)].seen == {}
    assert all(acks[TaskId("sink", i)].metadata is None for i in (0, 1))
    committables = [acks[TaskId("sink", i)].committable for i in (0, 1)]
    assert {named["file"] for named in committables} == run.names()
    staged = []
    for named in committables:
        data = (run.staged / named["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == named["sha256"]
        staged.append(sorted(map(int, data.split())))
        assert len(staged[-1]) == named["rows"]
    everything = list(range(2 * EACH))
    assert sorted(staged[0] + staged[1]) == sorted(2 * everything + [2 * n for n in everything])
    assert not set(everything) - set(staged[0])
    assert not set(everything) - set(staged[1])


@pytest.mark.slow
def test_an_emitter_lets_go_of_what_it_has_emitted_before_it_goes_on(place: Path) -> None:
    class Large(Emitter):
        rows, text = 200, "x" * 500_000

    run = Run(place, numbers=Large)
    sending = run.slot(0, 0).run([])
    emitter = run.tasks[0]
    assert isinstance(emitter, Large)
    first = next(sending)
    assert first.nbytes < 2 * wire.BATCH_BYTES
    assert 0 < emitter.emitted < 100, "it has paused"
    rows = sum(row[2] for row in [*rows_of(iter([first])), *rows_of(sending)] if row[1] == wire.RECORDS)
    assert emitter.emitted == 200
    assert rows == 200 * 3, "of the bolt behind it, and a copy for each sink"


def test_a_sink_prepares_only_when_all_barriers_have_come(place: Path) -> None:
    run = Run(place)
    given = run.emit()
    lost = next(row for row in given if row[1] == wire.BARRIER and Barrier.unpack(row[4]).source == "numbers")
    acks = run.acks([row for row in given if row is not lost])
    failed = acks[TaskId("sink", lost[0])]
    assert failed.failed is not None
    assert failed.failed.kind is FailureKind.MISALIGNED
    assert failed.committable is None
    assert run.names() == {acks[TaskId("sink", 1 - lost[0])].committable["file"]}
    assert isinstance(judged(acks), Incomplete)


def test_an_emitter_that_fails_its_attempt_fails_it_at_the_sinks_too(place: Path) -> None:
    class Stale(Emitter):
        def emit(self) -> bool:
            super().emit()
            raise FailedException("the feed is stale")

    run = Run(place, numbers=Stale)
    acks = run.acks(run.emit())
    kinds = {id.component: ack.failed.kind for id, ack in acks.items() if ack.failed is not None}
    assert kinds == {
        "numbers": FailureKind.FAILED,
        "doubled": FailureKind.UPSTREAM,
        "sink": FailureKind.UPSTREAM,
    }
    assert run.names() == set(), "nothing that was staged is left"
    verdict = judged(acks)
    assert isinstance(verdict, Incomplete)
    assert verdict.failure.reason == "the feed is stale"


@pytest.mark.parametrize("when", ["begin", "feed", "prepare"])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FailedException("again, please"), FailureKind.FAILED),
        (FencedError("a newer driver"), FailureKind.FENCED),
        (StateCorruptedError("damaged"), FailureKind.CORRUPTED),
        (OSError("no space left"), FailureKind.STORE),
        (BoltError("no such column", component="sink", task=0), FailureKind.BOLT),
    ],
)
def test_what_fails_a_sinks_attempt_goes_to_the_driver_and_what_it_staged_is_gone(
    place: Path, when: str, error: Exception, kind: FailureKind
) -> None:
    run = Run(place, sink=type("Failing", (Sink,), {"when": when, "error": error}))
    acks = run.acks(run.emit())
    for i in (0, 1):
        ack = acks[TaskId("sink", i)]
        assert ack.failed is not None
        assert ack.failed.kind is kind
        assert str(error) in ack.failed.reason
        assert ack.failed.facts == getattr(error, "data", {}) or kind is not FailureKind.BOLT
        assert ack.committable is None
    assert run.names() == set()


def test_a_task_that_is_cancelled_leaves_nothing_staged(place: Path) -> None:
    run = Run(place)
    given = run.emit()

    def cancelled() -> Iterator[pa.RecordBatch]:
        yield wire.to_batch([row for row in given if row[0] == 0])
        assert len(run.names()) == 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run.slot(1, 0).run(cancelled()))
    assert run.names() == set()


def test_two_runs_of_a_sinks_task_stage_side_by_side(place: Path) -> None:
    """Rule 4.1: of two runs of the task, the driver takes the one whose token is in the acks."""
    run = Run(place)
    given = run.emit()
    first, second = run.acks(given), run.acks(given)
    files = [acks[TaskId("sink", i)].committable["file"] for acks in (first, second) for i in (0, 1)]
    assert len(set(files)) == 4
    assert run.names() == set(files)
    for acks in (first, second):
        assert all(acks[TaskId("sink", i)].token in acks[TaskId("sink", i)].committable["file"] for i in (0, 1))


@pytest.mark.parametrize("name", ["committable", "metadata"])
def test_what_is_too_large_for_an_ack_is_refused(place: Path, name: str) -> None:
    class Large(Sink):
        size = ACKED_BYTES_MAX - 2  # and the quotes

        def prepare(self) -> Prepared:
            return replace(super().prepare(), **{name: "x" * self.size})

    run = Run(place, sink=Large)
    given = run.emit()
    assert isinstance(judged(run.acks(given)), Complete)
    Large.size += 1
    failure = run.acks(given)[TaskId("sink", 0)].failed
    assert failure is not None
    assert failure.kind is FailureKind.BOLT
    assert f"'sink', task 0: its {name} has {ACKED_BYTES_MAX + 1} bytes" in failure.reason
    assert failure.facts["size_bytes"] == ACKED_BYTES_MAX + 1
