"""Rules 13.2 to 13.9 under every order of events, within bounds, and each line without which some order breaks one.

What a chain prepares has been made from each row of its attempt, once, and from no other; nothing is prepared by a
chain that knows that its connection is gone; nothing of a run that is over is heard; when nothing is on its way any
more, no chain waits in an attempt; and from each state the last transaction is committed without another fault.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from types import FunctionType, ModuleType

import pytest

from statefx.coordinator import runs
from statefx.coordinator.retrying import JobFailedError
from statefx.errors import StatefxError
from statefx.protocol import pipeline
from statefx.protocol.commands import Failed, Idle, Offered, StartSegment
from statefx.protocol.messages import FrameKind
from statefx.protocol.pipeline import Shape
from statefx.protocol.reports import Ack, Report
from statefx.runtime import chain
from tests.runtime.chains_model import Frame, Player
from tests.runtime.runs_model import Budget, Job, Model, ModelEngine, Step, World, chain_moves

pytestmark = pytest.mark.slow

ONE, HOOKS = Shape(commits_at_decision=True), Shape()
TWO, TWO_HOOKS = Shape(pending=2, segments=2, commits_at_decision=True), Shape(pending=2, segments=2)
BOUNDS = {
    # shape, transactions, chains of the first and of the second level, faults
    "a connection is lost, two senders": (ONE, 2, 2, 1, Budget(lost=1)),
    "a connection is lost, two readers": (ONE, 1, 1, 2, Budget(lost=1)),
    "a driver dies, two senders": (ONE, 2, 2, 1, Budget(crashes=1)),
    "refused, then late": (HOOKS, 2, 1, 1, Budget(refused=1, late=1)),
    "late twice": (ONE, 1, 1, 1, Budget(late=2)),
    "stuck": (HOOKS, 2, 1, 1, Budget(stuck=1)),
    "hooks, a connection is lost": (HOOKS, 2, 1, 1, Budget(lost=1, crashes=1)),
    "two pending, no fault, two senders": (TWO, 2, 2, 1, Budget()),
    "two pending, a connection is lost": (TWO_HOOKS, 2, 1, 1, Budget(lost=1)),
    "two pending, refused": (TWO_HOOKS, 2, 1, 1, Budget(refused=1)),
    "two pending, a driver dies": (TWO_HOOKS, 2, 1, 1, Budget(crashes=1)),
}
WIDER = {
    "late, two readers": (ONE, 1, 1, 2, Budget(late=1)),
    "two pending, late": (TWO, 2, 1, 1, Budget(late=1)),
    "two pending, stuck": (TWO, 2, 1, 1, Budget(stuck=1)),
    "late, two senders": (ONE, 1, 2, 1, Budget(late=1)),
    "refused, lost, late, and a driver dies": (HOOKS, 2, 1, 1, Budget(refused=1, lost=1, late=1, crashes=1)),
    "two senders, refused and lost": (HOOKS, 1, 2, 1, Budget(refused=1, lost=1)),
    "two pending, refused and lost": (TWO, 2, 1, 1, Budget(refused=1, lost=1)),
    "two pending, late and lost": (TWO, 2, 1, 1, Budget(late=1, lost=1)),
    "two pending, two senders, refused": (TWO, 2, 2, 1, Budget(refused=1)),
    "two pending, two senders, lost": (TWO, 2, 2, 1, Budget(lost=1)),
}


def moves(world: World) -> Iterator[World]:
    """Everything that may happen next without a fault or another attempt; a lost connection is noticed."""
    pipeline, engine = world.pipeline, world.engine
    if pipeline.on(Idle())[1]:
        (step := Step(world)).on(Idle())
        yield step.done()
    if engine._run is None:
        return
    if not engine._ready:
        step = Step(world)
        step.engine.on_ready(step.engine._run)
        yield step.done()
        return
    for at, connection in enumerate(world.chains.connections):
        if connection.to_driver and not decides(engine, connection.to_driver[0]):
            (step := Step(world)).hear(at)
            yield step.done()
            return
    yield from (step.done() for step in chain_moves(world))
    for at, connection in enumerate(world.chains.connections):
        if connection.to_driver:
            (step := Step(world)).hear(at)
            yield step.done()
        if connection.lost:
            step = Step(world)
            step.engine.on_ended(step.engine._run, JobFailedError("lost"))
            yield step.done()
    if any(connection.stuck for connection in world.chains.connections):
        yield from time_passes(Step(world))


def decides(engine: ModelEngine, frame: Frame) -> bool:
    """Return whether a frame ends a job; until one does, the driver may hear what chains report at any time."""
    if frame[0] is FrameKind.CONFIRMED:
        return False
    said = (Ack if frame[0] is FrameKind.ACK else Report).unpack(frame[1])
    return any(each.waiting == {said.id} for each in engine._pending)


def offered(world: World) -> list[World]:
    """The next transaction, or the next attempt, begins."""
    if not world.pipeline.admits or world.pipeline.next.txid > world.model.transactions:
        return []
    (step := Step(world)).on(Offered())
    return [step.done()]


def time_passes(step: Step) -> Iterator[World]:
    """Let the time of what is due next be over."""
    engine = step.engine
    dues = [due for _, due in engine._deadlines()] + [until for _, until in engine._unconfirmed.values()]
    if dues:
        engine.now = min(dues)
        engine._look_at_times(engine.now)
        yield step.done()


def faults(world: World) -> Iterator[World]:
    """Every fault that may happen next."""
    budget, engine = world.budget, world.engine
    for job, command in world.jobs:
        pending = engine.pending(job)
        if budget.refused and isinstance(command, StartSegment) and pending is not None and len(pending.waiting) == 1:
            step = Step(world)
            step.budget = replace(budget, refused=budget.refused - 1)
            # The last ack would say so; the job has ended then, in all chains.
            yield from refused(step, job)
    if budget.lost and world.chains is not None and engine._ready:
        yield from losses(world)
    if budget.stuck and world.chains is not None and engine._ready:
        for at, (played, connection) in enumerate(zip(world.chains.played, world.chains.connections, strict=True)):
            if played.in_task:
                step = Step(world)
                step.budget = replace(budget, stuck=budget.stuck - 1)
                step._connect(at, replace(connection, stuck=True))
                yield step.done()
    if budget.late and engine._run is not None and engine._ready:
        step = Step(world)
        step.budget = replace(budget, late=budget.late - 1)
        yield from time_passes(step)
    if budget.crashes:
        step = Step(world)
        step.budget = replace(budget, crashes=budget.crashes - 1)
        if step.chains is not None:
            step.end_run()
        step.engine, step.jobs = ModelEngine(world.model.plan), {}
        yield step.begin()


def losses(world: World) -> Iterator[World]:
    """A connection is lost; or the run is over while the driver does what follows from the end of a job."""
    budget = replace(world.budget, lost=world.budget.lost - 1)
    for at, connection in enumerate(world.chains.connections):
        if not connection.lost:
            step = Step(world)
            step.budget = budget
            step.lose(at)
            yield step.done()
        if connection.to_driver and decides(world.engine, connection.to_driver[0]):
            step = Step(world)
            step.budget = budget
            step.hear(at)
            step.engine.on_ended(step.engine._run, JobFailedError("lost"))
            yield step.done()


def refused(step: Step, job: Job) -> Iterator[World]:
    """The job's last ack is on its way: it says that the bolt refuses the attempt."""
    pending = step.engine.pending(job)
    assert pending is not None
    (task,) = pending.waiting
    at = step.model.places.index(step.engine._chain_of[task])
    frames = step.chains.connections[at].to_driver if step.chains is not None else ()
    ack = Ack.unpack(frames[0][1]) if frames and frames[0][0] is FrameKind.ACK else None
    if ack is not None and ack.id == task and ack.attempt == job[0]:
        del step.jobs[job]
        step.hear(at)
        step.on(Failed(job[0]))
        yield step.done()


def check_quiet(world: World) -> None:
    """Nothing is on its way, and only another transaction would change that: nobody waits, and nothing is kept."""
    assert not world.engine._unconfirmed, "13.5: a chain never confirms"
    if world.chains is None or any(each.lost or each.stuck for each in world.chains.connections):
        return
    for place, played in zip(world.model.places, world.chains.played, strict=True):
        assert played.at == "control", f"13.5: chain {place} waits for {played.at}"
        if world.committed == world.model.transactions:  # before that, the next attempt's rows replace those of one
            assert not Player(world.model.plan, place, played.given).early, f"13.3: chain {place} keeps rows"


def explore(model: Model) -> int:
    """Visit every state; from each the last commit is reached without another fault. Return how many there are."""
    first = model.started()
    before: dict[object, list[object]] = {first.key: []}  # state -> those it is reached from without a fault
    ends: list[object] = []
    todo = deque([first])
    while todo:
        world = todo.popleft()
        going, offers = list(moves(world)), offered(world)
        if not going:
            check_quiet(world)
            assert offers or world.committed == model.transactions, f"nothing can happen any more: {world.pipeline}"
        for after in (*going, *offers, *faults(world)):
            if after.key not in before:
                before[after.key] = []
                todo.append(after)
            if after.budget == world.budget:
                before[after.key].append(world.key)
        if world.committed == model.transactions:
            ends.append(world.key)
    reaching = set(ends)
    while ends:
        found = set(before[ends.pop()]) - reaching
        reaching |= found
        ends += found
    assert len(reaching) == len(before), "from some state the last commit can't be reached"
    return len(before)


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", BOUNDS)
def test_every_order_of_events(name):
    assert explore(Model(*BOUNDS[name])) > 100


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", WIDER)
def test_every_order_of_more_events(name):
    assert explore(Model(*WIDER[name])) > 1_000


FOUND = AssertionError, StatefxError, chain.AbandonedError, StopIteration
BREAKS = [
    # rule, module, line, what it becomes, bounds
    ("13.2", chain, "self._early.put(of, row)", "pass", "two pending, no fault, two senders"),
    ("13.2", chain, "for batch in self._early.take(attempt):", "for batch in ():",
     "two pending, no fault, two senders"),
    ("13.2", runs, "for chain, own_tasks in own.items()}", "for chain, own_tasks in list(own.items())[:1]}",
     "a connection is lost, two senders"),
    ("13.3", chain, "elif of == attempt:", "elif True:", "two pending, no fault, two senders"),
    ("13.3", chain, "elif of == attempt:", "elif of.txid == attempt.txid:", "late twice"),
    ("13.4", chain, "missing = set(self._closing)", "missing = set(list(self._closing)[:1])",
     "two pending, no fault, two senders"),
    ("13.4", chain, "missing.discard(_closed_by(batch))", "pass", "two pending, no fault, two senders"),
    ("13.5", chain, "self._control.send(FrameKind.CONFIRMED,", "(FrameKind.CONFIRMED,", "late twice"),
    ("13.5", chain, "if self._readers:", "if False:", "late twice"),
    ("13.5", chain, "        except AbandonedError:", "        except ZeroDivisionError:", "late twice"),
    ("13.5", runs, "for chain in self.chains:\n            self._run.send(chain, FrameKind.ABANDON",
     "for chain in ():\n            self._run.send(chain, FrameKind.ABANDON", "late twice"),
    ("13.6", runs, "failed = self._pop_failing_jobs(failure)", "failed = list[str]()",
     "a connection is lost, two readers"),
    ("13.6", runs, "            self._unconfirmed.clear()\n", "", "stuck"),
    ("13.6", runs, "            self._emitted = frozenset()\n", "", "two pending, a connection is lost"),
    ("13.6", runs, "elif stuck and run is not None:", "elif False:", "stuck"),
    ("13.7", chain, "                self._check()\n", "", "a connection is lost, two senders"),
    ("13.8", chain, "            self._control.send(FrameKind.REPORT, report.pack())\n", "",
     "hooks, a connection is lost"),
    ("13.9", pipeline, "turn = turn and entry.decided", "turn = True", "two pending, no fault, two senders"),
    ("6.4", runs, "if attempt.name == ack.attempt and", "if", "late twice"),
    ("6.4", runs, "            if run is not self._run:\n                return\n            match kind:",
     "            match kind:", "hooks, a connection is lost"),
    ("6.4", runs, "                return\n            self._run, self._ready = None, False",
     "                pass\n            self._run, self._ready = None, False", "hooks, a connection is lost"),
]  # fmt: skip


def break_line(monkeypatch: pytest.MonkeyPatch, module: ModuleType, line: str, other: str) -> None:
    """Put another line into a module's classes."""
    source = inspect.getsource(module)
    assert source.count(line) == 1, "which line is it?"
    made = ModuleType(module.__name__)
    exec(compile(source.replace(line, other), module.__name__, "exec"), made.__dict__)
    if module is chain:
        made.__dict__["AbandonedError"] = chain.AbandonedError
    for name, kind in list(vars(module).items()):
        if isinstance(kind, type) and kind.__module__ == module.__name__ and name in vars(made):
            for each, function in vars(vars(made)[name]).items():
                if isinstance(function, FunctionType | property | classmethod):
                    monkeypatch.setattr(kind, each, function)


@pytest.mark.daily(1)
@pytest.mark.parametrize(("rule", "module", "line", "other", "name"), BREAKS)
def test_without_a_line_some_order_breaks(monkeypatch, rule, module, line, other, name):
    break_line(monkeypatch, module, line, other)
    with pytest.raises(FOUND):
        explore(Model(*BOUNDS[name]))
