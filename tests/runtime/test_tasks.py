"""Tasks that are no bolts, the orders that reach them, the rows that come before an order, and tokens."""

import hashlib
import json
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from statefx import BasicBolt, KeyValueState
from statefx.coordinator.runs import text_for
from statefx.errors import (
    AttemptsExhaustedError,
    BoltError,
    FailedException,
    FencedError,
    StateCorruptedError,
    StateError,
)
from statefx.plan import wire
from statefx.plan.deployment import Deployment
from statefx.plan.levels import Plan
from statefx.protocol.commands import Resolution
from statefx.protocol.completeness import AckLedger, Complete, Incomplete, LedgerEdge
from statefx.protocol.identity import EMPTY, SnapshotRef, TaskId, TransactionAttempt, Version
from statefx.protocol.order import Emission, EmissionOrder, Order, ResolutionOrder, SentOrder, StateOrder
from statefx.protocol.reports import Ack, Barrier, FailureKind
from statefx.protocol.watermark import TimeOrder, UnitTime
from statefx.runtime import chain as ahead_chain
from statefx.runtime import outlets
from statefx.runtime.bolt_task import BoltTask
from statefx.runtime.chain import ChainAttempt, ReadAhead
from statefx.runtime.outlets import BatchQueue
from statefx.runtime.spout_task import SourceTask
from statefx.runtime.task import ACKED_BYTES_MAX, Prepared, Task
from statefx.runtime.worker import Worker
from statefx.state.contract.store import EMPTY as TOKEN_EMPTY
from statefx.state.contract.store import prepare_as
from statefx.testing.site import Site
from statefx.topology.graph import Component, ComponentKind, Edge, Grouping
from statefx_memory import MemoryStateProvider
from tests.runtime.one_chain import FIRST, chain_attempt, deployment, order_of, rows_of
from tests.testing.topologies import lines, totals, word_count, words

NUMBERS = pa.schema([("n", pa.int64()), ("text", pa.string())])
EACH = 10
"""Rows that each of two emitters emits, unless a test says otherwise."""


class Emitter(SourceTask):
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
    """Two emitters, each with a bolt behind it in the same chain, and two sinks."""
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

    def chain(self, level: int, partition: int, acks: list[Ack] | None = None) -> ChainAttempt:
        order = order_of(self.deployment)
        return chain_attempt(self.worker, self.deployment, order, level, partition, acks=acks, make_task=self.make_task)

    def emit(self) -> list[wire.WireRow]:
        return [row for partition in (0, 1) for row in rows_of(self.chain(0, partition, self.emitted).run([]))]

    def acks(self, given: list[wire.WireRow]) -> dict[TaskId, Ack]:
        """Run the second level over what the first has sent."""
        acks = list(self.emitted)
        for partition in (0, 1):
            own = [row for row in given if row[0] == partition]
            assert list(self.chain(1, partition, acks).run([wire.to_batch(own)])) == []
        return {ack.id: ack for ack in acks}

    def names(self) -> set[str]:
        return {path.name for path in self.staged.iterdir()}


def judged(acks: dict[TaskId, Ack]) -> Complete | Incomplete:
    found = plan()
    edges = [LedgerEdge(e.id, e.source, e.target, found.multiplicity(e), local=found.fused(e)) for e in found.edges]
    ledger = AckLedger(FIRST, found.tasks, edges)
    for ack in acks.values():
        ledger.add(ack)
    return ledger.check()


def test_the_acks_of_emitters_and_sinks_are_judged_as_those_of_bolts(place):
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
def test_an_emitter_lets_go_of_what_it_has_emitted_before_it_goes_on(place):
    class Large(Emitter):
        rows, text = 200, "x" * 500_000

    run = Run(place, numbers=Large)
    sending = run.chain(0, 0).run([])
    emitter = run.tasks[0]
    assert isinstance(emitter, Large)
    first = next(sending)
    assert first.nbytes < 2 * wire.BATCH_BYTES
    assert 0 < emitter.emitted < 100, "it has paused"
    rows = sum(row[2] for row in [*rows_of(iter([first])), *rows_of(sending)] if row[1] == wire.RECORDS)
    assert emitter.emitted == 200
    assert rows == 200 * 3, "of the bolt behind it, and a copy for each sink"


def test_a_sink_prepares_only_when_all_barriers_have_come(place):
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


def test_an_emitter_that_fails_its_attempt_fails_it_at_the_sinks_too(place):
    class Stale(Emitter):
        def emit(self) -> bool:
            super().emit()
            raise FailedException("the feed is stale")

    run = Run(place, numbers=Stale)
    acks = run.acks(run.emit())
    kinds = {id.component: ack.failed.kind for id, ack in acks.items() if ack.failed is not None}
    assert kinds == {"numbers": FailureKind.FAILED, "doubled": FailureKind.UPSTREAM, "sink": FailureKind.UPSTREAM}
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
def test_what_fails_a_sinks_attempt_goes_to_the_driver_and_what_it_staged_is_gone(place, when, error, kind):
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


@pytest.mark.parametrize("error", [FailedException, OSError, StateError])
def test_of_a_long_reason_the_driver_hears_the_beginning(place, error):
    """A whole answer of a server in an exception would be more than a message to the driver may have."""
    run = Run(place, sink=type("Failing", (Sink,), {"when": "feed", "error": error("the \ud800" + "x" * 3_000_000)}))
    ack = run.acks(run.emit())[TaskId("sink", 0)]
    assert ack.failed is not None
    assert "the \\ud800xxx" in ack.failed.reason
    assert len(ack.failed.reason.encode()) < 3000


def test_a_task_that_is_cancelled_leaves_nothing_staged(place):
    run = Run(place)
    given = run.emit()

    def cancelled() -> Iterator[pa.RecordBatch]:
        yield wire.to_batch([row for row in given if row[0] == 0])
        assert len(run.names()) == 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run.chain(1, 0).run(cancelled()))
    assert run.names() == set()


def test_two_runs_of_a_sinks_task_stage_side_by_side(place):
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
def test_what_is_too_large_for_an_ack_is_refused(place, name):
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


# ---- How orders get to tasks: each chain is sent what concerns its own tasks, however many tasks there are.


ATTEMPT = TransactionAttempt(7, 2)


def version(n: int) -> Version:
    return Version(6, f"{n:032x}")


def order(tasks: tuple[TaskId, ...]) -> Order:
    """Every third task is empty, every second one has a snapshot, every fifth one is to write another."""
    named = [(n, str(task)) for n, task in enumerate(tasks) if n % 3]
    return Order(
        ATTEMPT,
        4,
        {name: version(n) for n, name in named},
        {name: SnapshotRef(Version(n % 6, "b" * 32), "c" * 64, n * 1000) for n, name in named if n % 2 == 0},
        frozenset(name for n, name in named if n % 5 == 0),
    )


def test_every_chain_reads_what_the_order_says_of_its_tasks(place):
    found = deployment(place, word_count(40))
    given = order(found.plan.stateful)
    for chain in (chain for level in found.plan.levels for chain in level):
        sent = SentOrder(text_for(found.plan, given, chain))
        assert (sent.attempt, sent.generation) == (ATTEMPT, 4)
        for task in found.plan.stateful:
            if task in chain:
                assert sent.state(task) == given.state(task)
                assert sent.state(task) is sent.state(task), "read once"
            else:
                with pytest.raises(ValueError, match=f"the instruction has no entry for {task}"):
                    sent.state(task)


@pytest.mark.parametrize("left", [range(40), [3], [39, 0, 1, 17]])
def test_every_task_of_a_resolution_finds_out_which_one_it_is(place, left):
    found = deployment(place, word_count(40))
    tasks = tuple(found.plan.stateful[n] for n in left)
    before = {str(task): Version(5, f"{n:032d}") for n, task in enumerate(found.plan.stateful) if n % 2}
    given = ResolutionOrder(Resolution.COMMIT, order(found.plan.stateful), tasks, before)
    sent = SentOrder(text_for(found.plan, given, tasks))
    assert (sent.tasks, sent.resolution) == (list(tasks), Resolution.COMMIT)
    for task in tasks:
        assert sent.state(task) == given.state(task)
        assert sent.state(task).previous == before.get(str(task), EMPTY)


def test_of_a_large_order_a_chain_is_sent_a_few_hundred_bytes(place):
    found = deployment(place, word_count(2000))
    given = order(found.plan.stateful)
    for number in (1234, 1):
        task = TaskId("count", number)
        text = text_for(found.plan, given, [task])
        assert len(text) < 400
        assert SentOrder(text).state(task) == given.state(task)


METADATA = {"": None, "a\nb": [1, 2.5, float("inf"), 1 << 80, "\ud800 \u00e4"], '["split/0",{': {"x": [{}, True]}}


def test_metadata_arrives_as_it_is(place):
    found = deployment(place, word_count(2))
    tasks = [TaskId("split", n) for n in range(12)]
    told = {task: EmissionOrder(Emission.NEW, METADATA | {"n": task.task}, 3 + task.task) for task in tasks}
    times = {task: TimeOrder(unit_times={"read/0": UnitTime(task.task, 5)}) for task in tasks}
    sent = SentOrder(text_for(found.plan, Order(ATTEMPT, 4, emissions=told, times=times), tasks[3:]))
    for task in tasks[3:]:
        assert (sent.emission(task), sent.time(task)) == (told[task], times[task])
    with pytest.raises(ValueError, match="no entry for split/0"):
        sent.emission(tasks[0])


def test_what_a_state_order_leaves_out_is_the_empty_state():
    assert Order(ATTEMPT, 1).state(TaskId("count", 0)) == StateOrder(EMPTY, None, snapshot_due=False, previous=EMPTY)


# ---- Rows that are read before their order has come: in order, bounded in memory, and with what went wrong.


def row(number, size=1000, kind=wire.RECORDS, attempt=(1, 0)):
    """What a level sends; it says its number as the number of rows."""
    head = b"" if kind == wire.FILLER else wire.Address(1, 0, -1, 0, 0, *attempt).pack()
    return 0, kind, number, head, bytes(size)


def batch(number, size=1000, **more):
    return wire.to_batch([row(number, size, **more)])


def numbers(batches):
    return [each.column("rows")[0].as_py() for each in batches]


def test_all_is_read_before_anybody_asks_and_little_of_it_is_in_memory(monkeypatch):
    monkeypatch.setattr(outlets, "HELD_BYTES_MAX", 10_000)
    read = threading.Event()

    def rows():
        for number in range(100):
            yield batch(number)
        read.set()

    ahead = ReadAhead(rows())
    assert read.wait(10)
    assert ahead._queue.held_bytes <= 10_000
    assert numbers(ahead) == list(range(100))
    ahead.close()


def test_who_asks_first_waits_for_a_row():
    go = threading.Event()

    def rows():
        go.wait(10)
        yield batch(7)

    ahead = ReadAhead(rows())
    threading.Timer(0.05, go.set).start()
    assert numbers(ahead) == [7]


def test_what_the_rows_have_raised_is_raised_behind_the_last_of_them():
    def rows():
        yield batch(1)
        raise EOFError("the job ends")

    ahead = ReadAhead(rows())
    assert numbers([next(ahead)]) == [1]
    with pytest.raises(EOFError, match="the job ends"):
        next(ahead)


def test_a_disk_that_is_full_is_told(monkeypatch, tmp_path):
    def refuse(*arguments, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(outlets, "HELD_BYTES_MAX", 1)
    monkeypatch.setattr(outlets.tempfile, "TemporaryFile", refuse)
    ahead = ReadAhead(iter([batch(1), batch(2)]))
    ahead._thread.join(10)
    assert numbers([next(ahead)]) == [1]
    with pytest.raises(OSError, match="No space left"):
        next(ahead)


def test_a_batch_of_several_rows_is_read_row_by_row():
    ahead = ReadAhead(iter([wire.to_batch([row(1), row(2, kind=wire.FILLER), row(3, attempt=(2, 0))])]))
    assert [(each.num_rows, *numbers([each])) for each in ahead] == [(1, 1), (1, 3)]


def test_of_a_transaction_that_is_tried_again_only_the_newest_attempt_is_kept(monkeypatch):
    """A chain that waits for its order kept those of all attempts that failed before it, in files without a bound."""
    monkeypatch.setattr(outlets, "HELD_BYTES_MAX", 5_000)
    opened = []
    make = outlets.tempfile.TemporaryFile
    monkeypatch.setattr(outlets.tempfile, "TemporaryFile", lambda **named: opened.append(make(**named)) or opened[-1])

    def rows():
        yield batch(1, attempt=(6, 0))
        for attempt in range(50):
            for number in range(10):
                yield batch(number, attempt=(7, attempt))
            yield batch(100, attempt=(8, 0))
            yield batch(attempt, kind=wire.ABANDONED, attempt=(7, attempt))
        yield batch(11, attempt=(7, 48))  # late, by another sender

    ahead = ReadAhead(rows())
    ahead._thread.join(10)
    assert len(ahead._queue) == 1 + 10 + 50 + 50
    assert ahead._queue.held_bytes <= 5_000 + 2_000
    left = [(each.column("kind")[0].as_py(), *numbers([each])) for each in ahead]
    assert [number for kind, number in left if kind == wire.RECORDS] == [1, *[100] * 49, *range(10), 100]
    assert [number for kind, number in left if kind == wire.ABANDONED] == list(range(50))
    assert all(each.closed for each in opened)


def test_of_transactions_long_ago_nothing_is_known(monkeypatch):
    monkeypatch.setattr(ahead_chain, "TRANSACTIONS_MAX", 3)
    ahead = ReadAhead(batch(txid, attempt=(txid, 1)) for txid in range(100))
    assert numbers(ahead) == list(range(100))
    assert list(ahead._newest) == [97, 98, 99]


def test_closing_reads_to_the_end_and_keeps_nothing(monkeypatch):
    monkeypatch.setattr(outlets, "HELD_BYTES_MAX", 1)
    left = list(range(10))
    ahead = ReadAhead(batch(left.pop()) for _ in range(10))
    ahead.close()
    assert not left
    assert not ahead._queue


def test_rows_that_do_not_end_keep_the_process_from_being_used_again(monkeypatch):
    monkeypatch.setattr(ahead_chain, "END_SECS", 0.05)
    never = threading.Event()

    def rows():
        never.wait(10)
        yield batch(1)

    ahead = ReadAhead(rows())
    with pytest.raises(TimeoutError, match="have not ended"):
        ahead.close()
    never.set()


@pytest.mark.slow
def test_the_files_of_a_queue_that_never_empties_do_not_grow(monkeypatch):
    monkeypatch.setattr(outlets, "FILE_BYTES", 20_000)
    opened = []
    make = outlets.tempfile.TemporaryFile
    monkeypatch.setattr(outlets.tempfile, "TemporaryFile", lambda **named: opened.append(make(**named)) or opened[-1])
    queue = BatchQueue(1)
    for number in range(5):
        queue.append(None, batch(number))
    for number in range(5, 500):
        queue.append(None, batch(number))
        assert numbers([queue.popleft()[1]]) == [number - 5]
        assert sum(not each.closed for each in opened) <= 2
    assert len(opened) > 10
    queue.close()
    assert all(each.closed for each in opened)


# ---- What a task prepares is named by the token that its rows carry, or the transaction is not decided.


class NamesItself(MemoryStateProvider):
    returns = staticmethod(lambda prepared: prepared)

    def newState(self, namespace, context):
        store = super().newState(namespace, context)
        prepare = store.prepare
        store.prepare = lambda txid, token, writes: self.returns(prepare(txid, self.named(token), writes))
        return store

    def named(self, token):
        return uuid.uuid4().hex


class ReturnsTheBareToken(NamesItself):
    returns = staticmethod(lambda prepared: prepared.token)

    def named(self, token):
        return token


@pytest.mark.slow
def test_a_provider_that_ignores_its_token_commits_nothing_and_the_checkpoint_lives(driver, monkeypatch):
    work = [lines("to be"), lines("or not to be")]
    config = {"topology.state.provider": f"{__name__}:NamesItself", "topology.transaction.attempts.max": 2}
    with monkeypatch.context() as mended:
        mended.setattr(NamesItself, "named", lambda self, token: token)
        driver.start(totals(), config=config).run(work[:1])
    with pytest.raises(AttemptsExhaustedError, match="must keep what is prepared under the token that it is given"):
        driver.start(totals(), config=config).run(work)
    monkeypatch.setattr(NamesItself, "named", lambda self, token: token)
    again = driver.start(totals(), config=config)
    assert again.txid == 1
    again.run(work)
    assert again.state("count") == words(work)


@pytest.mark.parametrize("kind", [NamesItself, ReturnsTheBareToken])
def test_what_comes_back_is_compared(kind, place):
    site = Site(kind({}), place)
    site.start(1)
    with pytest.raises(StateError, match=r"prepare\(1, 'given', ...\) returned .* return Prepared\(token\)"):
        prepare_as(site.open(), 1, "given", [])
    state = site.state()
    state.put("a", 1)
    with pytest.raises(StateError, match="under the token that it is given"):
        state.prepareCommit(1, token="given")
    assert state.version == TOKEN_EMPTY
    site.close()


def test_prepare_commit_takes_a_token_and_makes_one_up_without(place):
    site = Site(MemoryStateProvider({}), place)
    site.start(1)
    state: KeyValueState = site.state()
    assert state.prepareCommit(1, token="given") == state.token == "given"
    assert state.prepareCommit(1) == "given"
    state.commit(1)
    made = state.prepareCommit(2)
    assert made not in ("", "given")
    state.commit(2)
    assert site.state(state.version).version.token == made
    site.close()
