"""One observation for all pages: what changed in it, and what it may cost."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefx import Checkpoint
from statefx.ui.watched import LIVE_SECS, SHARE, Watched, summary


class Machine:
    """A clock, and the processor's time that observations take."""

    def __init__(self, cost=0.0):
        self.now, self.used, self.cost, self.made = 0.0, 0.0, cost, 0
        self.document = {}

    def observe(self):
        self.made += 1
        self.used += self.cost
        return dict(self.document)

    def watched(self, **more):
        clock = {"clock": lambda: self.now, "now": lambda: 0.0, "spent": lambda: self.used}
        return Watched("bank", Checkpoint("checkpoint"), self.observe, **clock, **more)


def test_an_observation_is_shared_until_it_is_old():
    machine = Machine()
    watched = machine.watched()
    watched.snapshot()
    for _ in range(5):
        assert watched.newest is watched.snapshot()
    assert machine.made == 1
    machine.now += LIVE_SECS
    assert watched.newest is None
    watched.snapshot()
    assert machine.made == 2


def test_half_a_surrogate_pair_costs_no_page():
    """An error may quote a row, and a partition be named after a file whose name is no UTF-8."""
    machine = Machine()
    strange = b"caf\xe9".decode("utf-8", "surrogateescape")
    machine.document = {"sources": {"files": {strange: float("nan"), "at": ["x", Path(strange)]}}, "error": None}
    found = json.loads(machine.watched().snapshot().changed(0))
    assert found["sources"] == {"files": {"caf\\udce9": None, "at": ["x", "caf\\udce9"]}}


@pytest.mark.slow
@given(st.floats(0.001, 0.2))
def test_observations_that_take_long_are_made_less_often(cost):
    machine = Machine(cost)
    watched = machine.watched()
    while machine.now < 1000:
        watched.snapshot()
        machine.now += 0.1
    assert machine.used <= SHARE * machine.now + 2 * cost


DOCUMENTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.none() | st.integers() | st.lists(st.text()))


@pytest.mark.slow
@given(st.lists(DOCUMENTS, min_size=1, max_size=8), st.data())
def test_changes_put_together_are_the_whole(documents, data):
    """Whichever snapshots a page has missed."""
    machine = Machine()
    watched = machine.watched(least_secs=0.0)
    seen, shown = 0, {}
    for document in documents:
        machine.document = {"a": 0, "b": 0, "c": 0} | document
        found = watched.snapshot()
        if data.draw(st.booleans()):
            shown |= json.loads(found.changed(seen))
            seen = found.number
    shown |= json.loads(found.changed(seen))
    assert {key: shown[key] for key in "abc"} == {"a": 0, "b": 0, "c": 0} | documents[-1]


def test_what_json_has_not_becomes_null_or_text():
    machine = Machine()
    machine.document = {"rate": float("nan"), "most": float("inf"), "place": Checkpoint}
    found = json.loads(machine.watched().snapshot().changed(0))
    assert (found["rate"], found["most"], found["place"]) == (None, None, str(Checkpoint))


def test_a_graph_is_laid_out_once():
    machine = Machine()
    watched = machine.watched(least_secs=0.0)
    machine.document = {"graph": {"components": [{"name": "a", "kind": "bolt"}], "edges": []}}
    first = watched.snapshot().document["layout"]
    assert [each["name"] for each in first["nodes"]] == ["a"]
    assert watched.snapshot().document["layout"] is first


def test_a_document_of_another_form_is_shown_as_far_as_it_is_known():
    for odd in ({"graph": 7}, {"components": [1]}, {"components": {"a": None}}, {"graph": {}}, {"health": "well"}):
        machine = Machine()
        machine.document = odd
        watched = machine.watched()
        assert json.loads(watched.snapshot().changed(0))["unread"] is None
        assert watched.health == "unknown"


def test_skew_is_the_largest_task_over_the_mean():
    def of(*rows):
        tasks = [{"task": number, "rowsIn": each} for number, each in enumerate(rows)]
        return summary({"components": {"count": {"tasks": tasks}}})["components"]["count"]

    assert of(10, 10, 40) == {"skew": {"ratio": 2.0, "task": 2}}
    assert of(0, 0) == of(5) == of() == {}
    assert of(0, 1) == of(0, 19) == {}, "so few rows tell nothing"
