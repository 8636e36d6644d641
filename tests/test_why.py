"""`why` on documents: each diagnosis by the figures that tell it, their order, and documents that lack things."""

import json
from itertools import combinations

import pytest

from statefx.why import DIAGNOSES, NOTHING, why
from tests.docs.tables import DOCS


def task(number=0, busy=0.05, rows=100.0, committing=0.0, restoring=0.0, blocked=0.0, **ms):
    rest = max(0.0, 1 - busy - committing - restoring - blocked)
    return {
        "task": number,
        "rowsInPerSec": rows,
        "activity": {
            "busy": busy, "blocked": blocked, "committing": committing, "restoring": restoring, "idle": rest,
        },
        "msPerSec": {"cpu": 950 * busy, **ms},
    }  # fmt: skip


def document(*tasks, kind="bolt", provider=None, blocked=0.0, phases=None, **more):
    """A document of a spout and what reads from it, which has `tasks`."""
    components = {
        "lines": {"activity": {"busy": 0.05, "blocked": blocked, "idle": 0.95 - blocked}, "tasks": [task()]},
        "count": {"activity": {}, "tasks": list(tasks) or [task()]},
    }
    graph = [{"name": "lines", "kind": "spout"}, {"name": "count", "kind": kind, "provider": provider}]
    transactions = [
        {"txid": txid, "outcome": "committed", "durationMs": phases or {"run": 100.0, "hooks": 1.0, "log": 5.0}}
        for txid in range(1, 20)
    ]
    return {
        "topology": "sick",
        "writtenAt": "2026-01-01T00:00:00.000+00:00",
        "health": {"state": "healthy", "sentence": "well"},
        "graph": {"components": graph, "edges": [{"from": "lines", "to": "count", "stream": "default"}]},
        "components": components,
        "transactions": transactions,
        **more,
    }


def health(state, sentence):
    return {"state": state, "sentence": sentence, "remedy": "do this", "since": None}


CASES = {
    "slots": document(health=health("stuck", "The topology waits for slots since 12 s")),
    "unwell": document(health=health("failing", "Transaction 7 fails again and again")),
    "slow bolt": document(task(busy=0.9), blocked=0.6),
    "slow spout": document(task(busy=0.9), kind="spout"),
    "skew": document(task(0, busy=0.95, rows=1000.0), task(1, busy=0.1, rows=50.0)),
    "garbage collection": document(task(busy=0.9, gc=500.0)),
    "cache": document(task(busy=0.9, reads=600.0), provider="rocksdb"),
    "waits outside": document(task(busy=0.9, cpu=50.0, queued=100.0)),
    "source": document(task(busy=0.9, cpu=50.0), kind="spout", sources={"count": {"lagRecords": 5000}}),
    "quota": document(task(busy=0.9, cpu=50.0, throttled=800.0), kind="spout"),
    "slow sink": document(phases={"run": 20.0, "hooks": 400.0, "log": 5.0}, sinks={"out": {"commitMs": 390.0}}),
    "hooks": document(phases={"run": 20.0, "hooks": 400.0, "log": 5.0}),
    "slow disk": document(task(committing=0.3), phases={"run": 60.0, "hooks": 1.0, "log": 110.0}),
    "idle partition": document(
        sources={"lines": {"eventTime": {"heldBackBy": "3", "behindSecs": 500.0, "silentSecs": 90.0}}}
    ),
    "restoring": document(task(restoring=0.6)),
}


@pytest.mark.parametrize("name", CASES)
def test_each_sickness_is_named_first_with_a_remedy(name):
    found = why(CASES[name]).diagnoses
    assert found[0].name == name, str(why(CASES[name]))
    assert found[0].remedy
    assert found[0].sentence
    assert str(found[0]) in str(why(CASES[name]))


def test_no_two_sicknesses_say_the_same():
    said = {name: why(each).diagnoses[0].sentence for name, each in CASES.items()}
    assert all(said[one] != said[other] for one, other in combinations(CASES, 2))


def test_those_that_wait_are_named_with_the_one_that_they_wait_for():
    [found] = why(CASES["slow bolt"]).diagnoses
    assert (found.component, found.task) == ("count", 0)
    assert "90 %" in found.sentence
    assert "'lines' waits for it" in found.sentence


def test_a_task_that_waits_for_a_processor_is_not_said_to_wait_outside():
    [found] = why(document(task(busy=0.9, cpu=300.0, queued=550.0))).diagnoses
    assert found.name == "slow bolt"
    assert "61 % ready to run" in found.sentence
    assert "more tasks on it don't help" in found.remedy


def test_of_two_sicknesses_the_one_that_costs_more_comes_first():
    phases = {"run": 50.0, "hooks": 30.0, "log": 5.0}
    both = document(task(busy=0.9), phases=phases, sinks={"out": {"commitMs": 30.0}})
    assert [each.name for each in why(both).diagnoses] == ["slow bolt", "slow sink"]
    phases = {"run": 10.0, "hooks": 300.0, "log": 5.0}
    both = document(task(busy=0.3), phases=phases, sinks={"out": {"commitMs": 300.0}})
    assert [each.name for each in why(both).diagnoses] == ["slow sink", "slow bolt"]


@pytest.mark.parametrize(
    "rows", [[100.0, 100.0], [100.0, 140.0], [500.0], [0.0, 0.0], [90.0, 110.0, 100.0, 150.0]], ids=str
)
def test_rows_that_spread_well_are_not_called_skewed(rows):
    busiest = max(rows)
    tasks = [task(number, busy=0.9 if each == busiest else 0.5, rows=each) for number, each in enumerate(rows)]
    assert why(document(*tasks)).diagnoses[0].name == "slow bolt"


def test_an_input_that_counts_as_idle_holds_nothing():
    times = {"heldBackBy": "3", "behindSecs": 500.0, "silentSecs": 90.0, "idleAfterSecs": 60.0}
    assert why(document(sources={"lines": {"eventTime": times}})).diagnoses == ()


def test_a_topology_that_waits_for_input_has_no_diagnosis():
    found = why(document())
    assert found.diagnoses == ()
    assert NOTHING in str(found)


@pytest.mark.parametrize("name", CASES)
def test_what_is_missing_in_a_document_is_not_looked_at(name):
    """A reader copes with older drivers, with documents that were cut, and with a start that has just begun."""
    whole = CASES[name]
    for key in whole:
        for nothing in (None, "absent"):
            lacking = {each: value for each, value in whole.items() if each != key}
            why(lacking if nothing == "absent" else lacking | {key: nothing})
    assert why({}).diagnoses == ()
    bare = document({"task": 0, "activity": None, "msPerSec": None}, {"task": 1})
    assert why(bare).diagnoses == ()


def test_it_is_plain_data_too():
    found = why(CASES["skew"]).as_dict()
    assert json.loads(json.dumps(found)) == found
    assert found["diagnoses"][0]["name"] == "skew"


def test_the_page_has_every_diagnosis():
    page = (DOCS / "observing.md").read_text(encoding="utf-8")
    rows = page.partition("| `why` says |")[2].partition("\n\n")[0].splitlines()[2:]
    assert {row.split("|")[1].strip() for row in rows} == set(CASES)
    assert len({row.name for row in DIAGNOSES}) == len(DIAGNOSES)
