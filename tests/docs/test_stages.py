"""The drawn stages of a transaction are those that the pipeline goes through, whatever happens in whatever order."""

import dataclasses
import xml.etree.ElementTree as ET
from collections import deque
from itertools import chain, product

import pytest

from statefx.protocol import pipeline as module
from statefx.protocol.commands import (
    Acked,
    Appended,
    Failed,
    Idle,
    Offered,
    Resolution,
    Resolved,
    Segment,
    Stop,
    Unresolved,
)
from statefx.protocol.pipeline import Pipeline, Shape
from statefx.protocol.transaction import Event, Phase, TransactionState
from tests.docs.tables import DOCS

TRANSACTIONS = 1
SHAPES = [
    Shape(pending=pending, segments=segments, writes_processed=writes, settles=settles, attempts_max=1)
    for pending, segments, writes, settles in product((1, 2), (1, 2), (False, True), (False, True))
    if segments == 2 or (pending == 1 and not writes)
]


def happenings(pipeline):
    yield from (Offered(), Idle(), Stop(now=False), Stop(now=True))
    if pipeline.appending is not None:
        yield Appended(pipeline.appending)
    for entry in pipeline.entries:
        yield Failed(entry.name)
        yield from (Acked(segment, entry.name) for segment in Segment)
        yield from (kind(each, entry.name) for kind in (Resolved, Unresolved) for each in Resolution)


def named(entry):
    return f"{entry.phase}/{entry.stage.name}"


def every_state(pipeline):
    """Each event in each state that any order of events leads to: the state before, the event, the state after."""
    known, waiting = {pipeline}, deque([pipeline])
    while waiting:
        before = waiting.popleft()
        for each in happenings(before):
            after, _ = before.on(each)
            yield before, each, after
            if after not in known and after.committed < TRANSACTIONS:
                known.add(after)
                waiting.append(after)


@pytest.fixture
def steps(monkeypatch):
    """Where a watched pipeline notes the single steps of its transactions, as the picture names them."""
    found, commit, step = set(), Pipeline._commit, TransactionState.step

    def note(before, after):
        if isinstance(before, TransactionState) and before.name == after.name and named(before) != named(after):
            found.add(f"{named(before)} {named(after)}")
        return after

    def replace(value, **changes):
        return note(value, dataclasses.replace(value, **changes))

    def stepping(state, event, *stage):
        after = step(state, event, *stage)
        return after if event is Event.START else note(state, after)

    def committing(self, entry):
        outcome = commit(self, entry)
        if outcome is not None and outcome[0].committed == entry.txid:
            found.add(f"{named(entry)} end")
        return outcome

    monkeypatch.setattr(module, "replace", replace)
    monkeypatch.setattr(TransactionState, "step", stepping)
    monkeypatch.setattr(Pipeline, "_commit", committing)
    return found


@pytest.mark.slow
def test_the_drawn_stages_are_those_of_the_pipeline(steps):
    for shape in SHAPES:
        left = [TransactionState(phase, 1) for phase in (Phase.PREPARING, Phase.COMMITTING)]  # by a former driver
        beginnings = [Pipeline(shape), *(Pipeline.found(shape, 0, [state], {1: 1})[0] for state in left)]
        for before, event, after in chain.from_iterable(map(every_state, beginnings)):
            if isinstance(event, Offered) and len(after.entries) > len(before.entries):
                steps.add(f"start {named(after.entries[-1])}")
            if isinstance(event, Appended) and event.append.kind == "ROLLED_BACK":
                steps.add(f"{named(before.entries[-1])} end")
    arrows = ET.parse(DOCS / "_static" / "stages.svg").iter("{http://www.w3.org/2000/svg}path")
    drawn = [step for arrow in arrows for step in arrow.get("data-steps", "").split("; ") if step]
    assert sorted(drawn) == sorted(steps)
