"""Each line that a rule needs is changed in turn: the model must find the order of events that breaks without it."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

from statefx.errors import StatefxError
from statefx.protocol import batches, log_rules, metadata, pipeline, transaction
from statefx.protocol.transaction import ActionKind, Event, Phase, Step
from tests.protocol import spouts_model
from tests.protocol import test_pipeline_model as model

pytestmark = pytest.mark.slow

P2, E2 = "two pending, planned and opaque", "two pending, emitted and opaque"
PLANNED, EMITTED, OPAQUE = "three pending, planned", "three pending, emitted", "three pending, opaque"

DECISION = "entry.is_rolling_back or entry.stage >= Stage.DECIDING"
AGAIN_UNLESS_DECIDED = "() if any(each.phase is Phase.COMMITTING for each in in_flight) else (Deliver(committed),)"
MUTANTS = [
    # (module, line, what it becomes, shape, what happens)
    (pipeline, f"if entry is None or {DECISION}:", "if entry is None or entry.is_rolling_back:", P2, "crash"),
    (pipeline, "entry.stage < Stage.DECIDING and not entry.is_rolling_back]", "not entry.is_rolling_back]", P2, "stop"),
    (pipeline, "            if entry.txid != self.committed + 1:", "            if False:", P2, "crash"),
    (pipeline, "turn = turn and entry.decided", "turn = True", P2, "crash"),
    (pipeline, "if entry.txid >= lowest and not entry.is_rolling_back:", "if entry.txid == lowest:", P2, "crash"),
    (pipeline, "entries=self.entries[:-1]", "entries=self.entries[1:]", P2, "crash"),
    (pipeline, "any(entry.is_rolling_back for entry in self.entries)", "False", P2, "crash"),
    (pipeline, "or self.entries[-1].stage >= Stage.PROCESSED", "or True", P2, "crash"),
    (pipeline, "Stage.EMITTED if self.shape.writes_processed else Stage.PROCESSED", "Stage.PROCESSED", E2, "crash"),
    (pipeline, "if entry.stage is not wanted:", "if False:", P2, "crash"),
    (pipeline, 'append.kind == "PREPARING" and not entry.is_rolling_back', 'append.kind == "PREPARING"', P2, "stop"),
    (pipeline, 'append.kind == "PROCESSED" and not entry.is_rolling_back', 'append.kind == "PROCESSED"', E2, "stop"),
    (pipeline, "if append != self.appending:", "if False:", P2, "crash"),
    (pipeline, "if entry.name == attempt)", "if entry.txid == attempt.txid)", P2, "crash"),
    (pipeline, "unwritten=not committed", "unwritten=False", P2, "crash"),
    (pipeline, "(Deliver(committed),) if committed else ()", "()", P2, "crash"),
    (pipeline, "(Deliver(committed),) if committed else ()", AGAIN_UNLESS_DECIDED, P2, "crash"),
    (pipeline, "(Deliver(entry.txid),) if committed else ()", "(Deliver(entry.txid),)", P2, "crash"),
    (pipeline, "if self.unwritten and self.shape.commits_at_decision:", "if False:", "", "recovery"),
    (batches, "return Batches({**emitted, txid: said})", "return Batches({txid: said, **emitted})", OPAQUE, "crash"),
    (batches, "self.emitted.get(number, {}).get(spout, {})", "{}", P2, "crash"),
    (batches, "durable = durable_batch(state, spout, number, read)", "durable = None", PLANNED, "crash"),
    (batches, "layer = decided.committing.emitted.get(spout)", "layer = None", P2, "crash"),
    (batches, "            return Emission.AGAIN, durable",
     "            return Emission.AGAIN, {**self.last(committed, state, spout, txid, read), **durable}",
     PLANNED, "crash"),
    (batches, "        if durable is not None:", "        if False:", EMITTED, "crash"),
    (batches, " if spout not in durable}", "}", PLANNED, "crash"),
    (batches, "if order.emission is emission:", "if order.emission is not Emission.AGAIN:", E2, "crash"),
    (metadata, "all(name in now for name in before)", "True", OPAQUE, "crash"),
    (log_rules, "in_flight=state.in_flight[:-1], planned=planned,",
     "in_flight=state.in_flight[:-1], planned_metadata={}, planned=planned,", PLANNED, "crash"),
    (log_rules, "*entry.committing.emitted.items())", ")", OPAQUE, "crash"),
    (log_rules, "planned_metadata={number: said for number, said in state.planned_metadata.items() if number > txid}",
     "planned_metadata={}", PLANNED, "crash"),
]  # fmt: skip

PHASES = [
    (Phase.PREPARING, Event.START, Step(Phase.COMMITTING, ActionKind.COMMIT)),
    (Phase.PREPARING, Event.FAILED, Step(Phase.COMMITTING, ActionKind.COMMIT)),
    (Phase.COMMITTING, Event.START, Step(Phase.ROLLING_BACK, ActionKind.ROLLBACK)),
    (Phase.COMMITTING, Event.FAILED, Step(Phase.ROLLING_BACK, ActionKind.ROLLBACK)),
    (Phase.ROLLED_BACK, Event.PREPARE, Step(Phase.PREPARING, ActionKind.PREPARE, "PREPARING")),
]


def mutated(module: ModuleType, line: str, other: str) -> ModuleType:
    source = inspect.getsource(module)
    assert source.count(line) == 1, "which line is it?"
    made = ModuleType(module.__name__)
    exec(compile(source.replace(line, other), module.__name__, "exec"), made.__dict__)
    return made


def survives(shape: str, way: str) -> bool:
    """Tell whether the model finds nothing, be it by an assertion of its own or by what the code refuses."""
    try:
        if way == "recovery":
            model.test_a_recovery_that_crashes()
        else:
            {"crash": model.test_every_interleaving_with_a_crash, "stop": model.test_every_interleaving_with_a_stop}[
                way
            ](shape)
    except (AssertionError, StatefxError):
        return False
    return True


@pytest.mark.daily(16)
@pytest.mark.parametrize(("module", "line", "other", "shape", "way"), MUTANTS)
def test_the_model_finds_what_breaks_without_a_line(monkeypatch, module, line, other, shape, way):
    made = mutated(module, line, other)
    names = {pipeline: ["Pipeline"], log_rules: ["apply"], metadata: ["read_now"], batches: []}[module]
    for name in names:
        for user in (model, spouts_model, batches):
            if hasattr(user, name):
                monkeypatch.setattr(user, name, getattr(made, name))
    if module is batches:
        monkeypatch.setattr(spouts_model, "batches", made)
    assert not survives(shape, way)


@pytest.mark.parametrize(("phase", "event", "step"), PHASES)
def test_the_model_finds_what_breaks_with_another_table(monkeypatch, phase, event, step):
    monkeypatch.setitem(transaction.TABLE[phase], event, step)
    assert not survives(P2, "crash")


def test_the_model_finds_nothing_in_what_there_is():
    assert survives(P2, "stop")
