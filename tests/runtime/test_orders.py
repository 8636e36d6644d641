"""How orders get to tasks: each slot is sent what concerns its own tasks, however many tasks there are."""

from pathlib import Path
from typing import Any

import pytest

from statefx.coordinator.runs import text_for
from statefx.protocol.commands import Resolution
from statefx.protocol.identity import EMPTY, SnapshotRef, TaskId, TransactionAttempt, Version
from statefx.protocol.order import Emission, EmissionOrder, Order, ResolutionOrder, StateOrder, runs_of
from statefx.protocol.watermark import Heard, TimeOrder
from statefx.runtime.slot import SentOrder, SentResolution
from tests.runtime.one_slot import deployment
from tests.testing.topologies import word_count

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


def test_every_slot_reads_what_the_order_says_of_its_tasks(place: Path) -> None:
    found = deployment(place, word_count(40))
    given = order(found.plan.stateful)
    for chain in (chain for level in found.plan.levels for chain in level):
        sent = SentOrder(text_for(found.plan, given, chain), found)
        assert (sent.attempt, sent.generation) == (ATTEMPT, 4)
        for task in found.plan.stateful:
            if task in chain:
                assert sent.state(task) == given.state(task)
                assert sent.state(task) is sent.state(task), "read once"
            else:
                with pytest.raises(ValueError, match=f"the order says nothing of {task}"):
                    sent.state(task)


@pytest.mark.parametrize("left", [range(40), [3], [39, 0, 1, 17]])
def test_every_task_of_a_resolution_finds_out_which_one_it_is(place: Path, left: Any) -> None:
    found = deployment(place, word_count(40))
    tasks = tuple(found.plan.stateful[n] for n in left)
    before = {str(task): Version(5, f"{n:032d}") for n, task in enumerate(found.plan.stateful) if n % 2}
    given = ResolutionOrder(Resolution.COMMIT, order(found.plan.stateful), tasks, before)
    sent = SentResolution(text_for(found.plan, given, tasks), found)
    assert (sent.tasks, sent.resolution) == (list(tasks), Resolution.COMMIT)
    for task in tasks:
        assert sent.state(task) == given.state(task)
        assert sent.state(task).previous == before.get(str(task), EMPTY)


def test_of_a_large_order_a_slot_is_sent_a_few_hundred_bytes(place: Path) -> None:
    found = deployment(place, word_count(2000))
    given = order(found.plan.stateful)
    for number in (1234, 1):
        task = TaskId("count", number)
        text = text_for(found.plan, given, [task])
        assert len(text) < 400
        assert SentOrder(text, found).state(task) == given.state(task)


METADATA = {"": None, "a\nb": [1, 2.5, float("inf"), 1 << 80, "\ud800 \u00e4"], '["read/0",{': {"x": [{}, True]}}


def test_metadata_arrives_as_it_is(place: Path) -> None:
    found = deployment(place, word_count(2))
    tasks = [TaskId("read", n) for n in range(12)]
    told = {task: EmissionOrder(Emission.NEW, METADATA | {"n": task.task}, 3 + task.task) for task in tasks}
    times = {task: TimeOrder(heard={"read/0": Heard(task.task, 5)}) for task in tasks}
    sent = SentOrder(text_for(found.plan, Order(ATTEMPT, 4, emissions=told, times=times), tasks[3:]), found)
    for task in tasks[3:]:
        assert (sent.emission(task), sent.time(task)) == (told[task], times[task])
    with pytest.raises(ValueError, match="says nothing of read/0"):
        sent.emission(tasks[0])


def test_numbers_in_runs() -> None:
    assert runs_of([]) == ()
    assert runs_of(range(10_000)) == ((0, 10_000),)
    assert runs_of([5, 3, 4, 4]) == ((5, 1), (3, 2), (4, 1))


def test_what_a_state_order_leaves_out_is_the_empty_state() -> None:
    assert Order(ATTEMPT, 1).state(TaskId("count", 0)) == StateOrder(EMPTY, None, snapshot_due=False, previous=EMPTY)
