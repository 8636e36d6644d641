"""Single frames and rows that a resident slot must not act on, each given to it alone."""

from __future__ import annotations

import pytest

from statefx.coordinator.runs import text_for
from statefx.plan import wire
from statefx.protocol import messages
from statefx.protocol.commands import Resolution
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.messages import Kind, SlotId
from statefx.protocol.order import Order, ResolutionOrder
from tests.runtime.runs_model import planned
from tests.runtime.slots_model import ModelTask, Player

PLAN = planned(2, 1, 1)
READER = SlotId(len(PLAN.widths) - 1, 0)
ONE, TWO, AGAIN = TransactionAttempt(1, 0), TransactionAttempt(2, 0), TransactionAttempt(2, 1)


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[TaskId]:
    """The tasks whose hooks ran."""
    tasks: list[TaskId] = []
    resolve = ModelTask.resolve

    def noting(task: ModelTask, order: object) -> object:
        tasks.append(task.id)
        return resolve(task, order)

    monkeypatch.setattr(ModelTask, "resolve", noting)
    return tasks


def frame(kind: Kind, body: str | bytes) -> tuple[object, ...]:
    return "frame", (kind, body.encode() if isinstance(body, str) else body)


def run(attempt: TransactionAttempt) -> tuple[object, ...]:
    return frame(Kind.RUN, text_for(PLAN, Order(attempt, 1), []))


def row(attempt: TransactionAttempt, sender: int, kind: int = wire.RECORDS) -> tuple[object, ...]:
    address = wire.Address(1, 0, -1, 0, sender, attempt.txid, attempt.attempt)
    return "row", (0, kind, address.pack())


@pytest.mark.parametrize(("lost", "expected"), [((), 1), ((("gone",),), 0)], ids=["connected", "lost"])
def test_hooks_of_a_commit_run_only_while_connected(resolved, lost, expected):
    """Frames that came before are still handed out then, and by now another run may have the task."""
    order = ResolutionOrder(Resolution.COMMIT, Order(ONE, 1), (TaskId("count", 0),))
    body = text_for(PLAN, order, order.tasks)
    played = Player(PLAN, READER, (frame(Kind.RESOLVE, body), *lost, ("go",))).play()
    assert len(resolved) == expected
    assert played.at == ("ended" if lost else "control")


ABANDONED = {
    "by a sender": row(TWO, 0, wire.ABANDONED),
    "by the driver": frame(Kind.ABANDON, messages.pack_attempt(TWO.txid, TWO.attempt)),
}


@pytest.mark.parametrize("abandoned", ABANDONED)
def test_late_rows_of_an_abandoned_attempt_are_dropped(abandoned):
    """While transaction 1 runs, nothing else would delete them: they would fill memory, and then files."""
    script = (run(ONE), ABANDONED[abandoned], row(TWO, 1), row(TWO, 0))
    assert Player(PLAN, READER, script).early == set()
    assert Player(PLAN, READER, (*script, row(AGAIN, 0))).early == {AGAIN}


def test_earlier_rows_of_an_abandoned_attempt_are_dropped():
    assert Player(PLAN, READER, (run(ONE), row(TWO, 1))).early == {TWO}
    assert Player(PLAN, READER, (run(ONE), row(TWO, 1), ABANDONED["by a sender"])).early == set()
