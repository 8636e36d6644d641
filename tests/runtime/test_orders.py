"""How orders get to tasks: each task reads what concerns itself, however many tasks there are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statefx.coordinator.engine import JobFailedError
from statefx.coordinator.orders import FOLDER, OrderSender, sweep
from statefx.plan import wire
from statefx.plan.deployment import Deployment
from statefx.protocol.barrier import Ack
from statefx.protocol.commands import Resolution
from statefx.protocol.failure import FailureKind
from statefx.protocol.identity import EMPTY, SnapshotRef, TaskId, TransactionAttempt, Version
from statefx.protocol.order import Emission, EmissionOrder, Order, ResolutionOrder, StateOrder, runs_of
from statefx.runtime.orders import SentOrder, SentResolution
from statefx.runtime.resolution import resolve_task
from statefx.runtime.slot import Slot
from statefx.runtime.worker import Worker
from statefx.storage import FolderStorage
from statefx.testing.engine import Limits
from tests.runtime.test_conformance import deployment
from tests.testing.topologies import Driver, lines, witnessed, word_count

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


class Counted(FolderStorage):
    """Notes what is read, and how many bytes of it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: list[tuple[str, int]] = []

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        found = super().read(name, start, stop)
        self.reads.append((name, len(found)))
        return found


def wide(place: Path, parallelism: int) -> tuple[Deployment, Counted]:
    storage = Counted(place)
    found = deployment(place, word_count(parallelism))
    object.__setattr__(found, "storage", storage)
    return found, storage


@pytest.mark.parametrize("carried", [0, 1 << 20])
def test_every_task_reads_what_the_order_says_of_it(place: Path, carried: int) -> None:
    found, storage = wide(place, 40)
    tasks = found.plan.stateful
    assert len(tasks) == 40
    given = order(tasks)
    with OrderSender(found.plan, storage, carried).sent(given) as text:
        for task in tasks:
            sent = SentOrder(text, found)
            assert (sent.attempt, sent.generation) == (ATTEMPT, 4)
            assert sent.state(task) == given.state(task)
            assert sent.state(task) is sent.state(task), "read once"
    assert len(storage.reads) == (40 if carried == 0 else 0)
    assert list(storage.list()) == [], "the file is there for as long as the job"


@pytest.mark.parametrize("carried", [0, 1 << 20])
@pytest.mark.parametrize("left", [range(40), [3], [39, 0, 1, 17]])
def test_every_task_of_a_resolution_finds_out_which_one_it_is(place: Path, carried: int, left: Any) -> None:
    found, storage = wide(place, 40)
    tasks = tuple(found.plan.stateful[n] for n in left)
    before = {str(task): Version(5, f"{n:032d}") for n, task in enumerate(found.plan.stateful) if n % 2}
    given = ResolutionOrder(Resolution.COMMIT, order(found.plan.stateful), tasks, before)
    with OrderSender(found.plan, storage, carried).sent(given) as text:
        assert SentResolution(text, found).tasks == list(tasks)
        for place_of_task, task in enumerate(tasks):
            sent = SentResolution(text, found)
            assert (sent.task(place_of_task), sent.resolution) == (task, Resolution.COMMIT)
            assert sent.state(task) == given.state(task)
            assert sent.state(task).previous == before.get(str(task), EMPTY)


def test_of_a_large_order_a_task_is_given_a_few_hundred_bytes_and_reads_one_file(place: Path) -> None:
    found, storage = wide(place, 2000)
    given = order(found.plan.stateful)
    with OrderSender(found.plan, storage).sent(given) as text:
        assert len(text) < 300
        sent = SentOrder(text, found)
        assert [sent.state(TaskId("count", n)) for n in (1234, 1)] == [
            given.state(TaskId("count", n)) for n in (1234, 1)
        ]
        [(name, _)] = storage.reads
        assert name.startswith(FOLDER)


METADATA = {"": None, "a\nb": [1, 2.5, float("inf"), 1 << 80, "\ud800 \u00e4"], '["read/0",{': {"x": [{}, True]}}


@pytest.mark.parametrize("carried", [0, 1 << 20])
def test_metadata_arrives_as_it_is(place: Path, carried: int) -> None:
    found = deployment(place, word_count(2))
    told = {TaskId("read", n): EmissionOrder(Emission.NEW, METADATA | {"n": n}, 3 + n) for n in range(12)}
    with OrderSender(found.plan, found.storage, carried).sent(Order(ATTEMPT, 4, emissions=told)) as text:
        sent = SentOrder(text, found)
        assert {task: sent.emission(task) for task in told} == told


def test_a_task_without_state_reads_nothing_of_it(place: Path) -> None:
    found, storage = wide(place, 40)
    with OrderSender(found.plan, storage, 0).sent(order(found.plan.stateful)) as text:
        list(Slot(Worker(), found, SentOrder(text, found), 0, 0).run([]))
    assert storage.reads == []


def damage(place: Path, what: str) -> None:
    [path] = (place / FOLDER).iterdir()
    data = path.read_bytes()
    if what == "gone":
        path.unlink()
    elif what == "cut off":
        path.write_bytes(data[: data.index(b"count/1")])
    elif what == "empty":
        path.write_bytes(b"")
    else:
        path.write_bytes(data.replace(b'"txid":6', b'"txid":5'))


@pytest.mark.parametrize("what", ["gone", "cut off", "empty", "edited"])
def test_a_task_that_cant_read_its_order_fails_its_attempt_as_infrastructure(place: Path, what: str) -> None:
    found, storage = wide(place, 2)
    with OrderSender(found.plan, storage, 0).sent(order(found.plan.stateful)) as text:
        damage(place, what)
        sent = Slot(Worker(), found, SentOrder(text, found), 1, 1).run([])
        [ack] = [Ack.unpack(payload) for kind, _, _, payload in _rows(sent) if kind == wire.ACK]
    assert ack.failed is not None
    assert ack.failed.kind is FailureKind.STORE
    assert not (place / "state").exists(), "nothing was prepared"


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from wire.rows_of(batch)


def test_a_task_that_cant_read_its_order_reports_that_it_has_not_committed(place: Path) -> None:
    found = deployment(place, witnessed(), journal=[])
    [task] = found.plan.stateful
    given = ResolutionOrder(Resolution.COMMIT, order((task,)), (task,))
    with OrderSender(found.plan, found.storage, 0).sent(given) as text:
        damage(place, "gone")
        sent = SentResolution(text, found)
        report = resolve_task(Worker(), found, sent, sent.task(0))
    assert report.id == task
    assert report.kind is FailureKind.STORE


def test_an_order_that_cant_be_written_is_infrastructure_too(place: Path) -> None:
    found, storage = wide(place, 2)
    (place / FOLDER.rstrip("/")).write_text("no folder")
    with (
        pytest.raises(JobFailedError, match=r"the order of TransactionAttempt\(txid=7, attempt=2\)"),
        OrderSender(found.plan, storage, 0).sent(order(found.plan.stateful)),
    ):
        pass


def test_a_driver_sweeps_the_orders_that_those_before_it_have_left(place: Path) -> None:
    storage = FolderStorage(place)
    names = [f"{FOLDER}{generation}-7-0-{'a' * 32}" for generation in (3, 9, 10, 11)]
    names.append(f"{FOLDER}notes.txt")  # no driver has left that one, and none trips over it
    for name in names:
        storage.put(name, b"x")
    sweep(storage, 10)
    assert [each.name for each in storage.list()] == sorted(names[2:])


def test_transactions_whose_orders_are_in_files_leave_none(place: Path) -> None:
    with Driver(place) as driver:
        stray = driver.folder / FOLDER / f"0-1-0-{'a' * 32}"
        tester = driver.start(word_count(), limits=Limits(carried_bytes_max=0, sweep_every=2))
        stray.parent.mkdir()
        stray.write_text("of a driver that died")
        for n in (1, 2, 3):
            tester.send(lines("a b", "b"))
            assert tester.state("count") == {"a": n, "b": 2 * n}
        assert list(stray.parent.iterdir()) == []


def test_numbers_in_runs() -> None:
    assert runs_of([]) == ()
    assert runs_of(range(10_000)) == ((0, 10_000),)
    assert runs_of([5, 3, 4, 4]) == ((5, 1), (3, 2), (4, 1))


def test_what_a_state_order_leaves_out_is_the_empty_state() -> None:
    assert Order(ATTEMPT, 1).state(TaskId("count", 0)) == StateOrder(EMPTY, None, snapshot_due=False, previous=EMPTY)
