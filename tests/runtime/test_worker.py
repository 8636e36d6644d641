"""What one process keeps between tasks, and that it lets go of all that belongs to a run which is over."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statefx import BasicBolt, Topology, TopologyBuilder
from statefx.errors import BoltError
from statefx.plan.deployment import Deployment
from statefx.protocol.barrier import Ack
from statefx.protocol.failure import FailureKind
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.runtime.worker import RUNS_KEPT, Worker
from statefx.testing import rows
from tests.runtime.one_slot import FIRST, deployment, order_of, slot

journal: list[tuple[str, int]] = []
"""(what, number of the object): bolts are copied, and so would be anything that they hold."""


class Numbered(BasicBolt):
    """Notes in the journal when it is opened and closed; objects are numbered as they are opened."""

    def open(self, context):
        self.number = len([what for what, _ in journal if what == "open"])
        journal.append(("open", self.number))

    def execute(self, tup, collector):
        pass

    def close(self):
        journal.append(("close", self.number))


@pytest.fixture(autouse=True)
def _journal() -> Iterator[None]:
    journal.clear()
    yield
    journal.clear()


def topology(parallelism: int = 1) -> Topology:
    builder = TopologyBuilder("numbered")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("numbered", Numbered(), parallelism).shuffleGrouping("lines")
    return builder.createTopology()


def run(
    worker: Worker,
    deployment: Deployment,
    attempt: TransactionAttempt = FIRST,
    task: int = 0,
    meanwhile: Callable[[], object] | None = None,
) -> list[Ack]:
    acks: list[Ack] = []
    given = _stopping(meanwhile) if meanwhile is not None else []
    list(slot(worker, deployment, order_of(deployment, attempt=attempt), 0, task, acks=acks).run(given))
    return acks


def still_open() -> set[int]:
    return {n for what, n in journal if what == "open"} - {n for what, n in journal if what == "close"}


def test_a_bolt_is_kept_for_the_next_attempt_of_its_task_and_for_no_other(place: Path) -> None:
    worker, found = Worker(), deployment(place, topology(2))
    for txid in (1, 2, 3):
        for task in (0, 1):
            run(worker, found, TransactionAttempt(txid, 0), task)
    assert journal == [("open", 0), ("open", 1)]
    worker.close()
    assert still_open() == set()


def test_a_row_emitted_too_late_fails_each_attempt_of_its_task(place: Path) -> None:
    """Else the next one would go on without the row, which is lost."""
    worker, found, task = Worker(), deployment(place, topology()), TaskId("numbered", 0)
    run(worker, found)
    worker.keep_late(found, task, BoltError("the row is lost"))
    for number in range(2):
        *_, ack = run(worker, found, TransactionAttempt(2, number))
        assert ack.failed is not None
        assert (ack.id, ack.failed.kind, ack.failed.reason) == (task, FailureKind.BOLT, "the row is lost")
    worker.close()


def test_what_one_worker_keeps_no_other_has(place: Path) -> None:
    found = deployment(place, topology())
    for worker in (Worker(), Worker()):
        run(worker, found)
    assert journal == [("open", 0), ("open", 1)]


def test_a_worker_that_keeps_no_bolts_closes_each_after_its_attempt(place: Path) -> None:
    worker = Worker(keeps_bolts=False)
    for _ in range(2):
        run(worker, deployment(place, topology()))
    assert journal == [("open", 0), ("close", 0), ("open", 1), ("close", 1)]


@pytest.mark.parametrize("generation", [1, 2])
def test_a_bolt_of_an_earlier_run_is_closed_when_the_next_run_begins(place: Path, generation: int) -> None:
    """Also if the generation comes again, as it does when a checkpoint was replaced by a backup."""
    worker, former = Worker(), deployment(place, topology(2))
    for task in (0, 1):
        run(worker, former, task=task)
    run(worker, replace(deployment(place, topology(2)), generation=generation))
    assert journal[2:] == [("close", 0), ("close", 1), ("open", 2)]
    worker.close()
    assert still_open() == set()


def test_the_next_run_closes_them_also_if_it_has_no_bolt_to_keep(place: Path) -> None:
    worker = Worker()
    run(worker, deployment(place, topology()))
    worker.deployment("the next", lambda: deployment(place, topology()))
    assert still_open() == set()


def test_a_late_task_of_an_earlier_run_does_not_bring_its_bolt_back(place: Path) -> None:
    worker, former = Worker(), deployment(place, topology())
    run(worker, former, meanwhile=lambda: run(worker, deployment(place, topology())))
    assert journal == [("open", 0), ("open", 1), ("close", 0)]
    worker.close()
    assert still_open() == set()


def _stopping(meanwhile: Callable[[], object]) -> Iterator[Any]:
    meanwhile()
    yield from ()


def test_of_two_attempts_of_a_task_in_one_process_one_bolt_is_kept(place: Path) -> None:
    worker, found = Worker(), deployment(place, topology())
    run(worker, found, meanwhile=lambda: run(worker, found))
    assert journal == [("open", 0), ("open", 1), ("close", 1)]
    worker.close()
    assert still_open() == set()


def test_the_bolts_of_other_topologies_are_closed_when_there_are_too_many_runs(place: Path) -> None:
    worker = Worker()
    for n in range(RUNS_KEPT + 3):
        run(worker, replace(deployment(place, topology()), lineage=f"{n}" * 32))
    assert still_open() == set(range(3, RUNS_KEPT + 3))
    worker.close()
    assert still_open() == set()


def test_a_deployment_is_loaded_once_and_its_provider_built_once(place: Path) -> None:
    loaded, built = [], []

    def load() -> Deployment:
        loaded.append(deployment(place, topology()))
        return replace(loaded[-1], run="r")

    def build(found: Deployment) -> Any:
        built.append(found.build_provider())
        return built[-1]

    worker = Worker(build)
    providers = {id(worker.provider(worker.deployment("r", load))) for _ in range(3)}
    assert (len(loaded), len(built), len(providers)) == (1, 1, 1)
