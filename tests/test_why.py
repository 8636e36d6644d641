"""`why` on documents: each diagnosis by the figures that tell it, their order, and documents that lack things."""

import json
from itertools import combinations

import pytest

from statefx.log.observation import TRANSACTIONS, health
from statefx.logs import iso
from statefx.why import DIAGNOSES, NOTHING, PAUSED, why
from tests.docs.tables import DOCS


def task(number=0, busy=0.05, rows=100.0, committing=0.0, restoring=0.0, blocked=0.0, **ms):
    rest = max(0.0, 1 - busy - committing - restoring - blocked)
    return {
        "task": number,
        "rowsInPerSec": rows,
        "activity": {
            "busy": busy, "blocked": blocked, "committing": committing, "restoring": restoring, "idle": rest,
        },
        "msPerSec": {"own": 1000 * busy, "cpu": 950 * busy, **ms},
    }  # fmt: skip


NOW = 1_000_000.0


def transactions(phases, every_secs=None, count=TRANSACTIONS):
    """Committed transactions one after the other, or so many seconds apart; the last has just ended."""
    took = sum(phases.values()) / 1000
    return [
        {
            "txid": count - number, "attempt": 0, "outcome": "committed", "durationMs": phases,
            "began": iso(NOW - number * (every_secs or took) - took), "ended": iso(NOW - number * (every_secs or took)),
        }
        for number in reversed(range(count))
    ]  # fmt: skip


def document(*tasks, kind="bolt", provider=None, blocked=0.0, phases=None, **more):
    """A document of a spout and what reads from it, which has `tasks`."""
    components = {
        "lines": {"activity": {"busy": 0.05, "blocked": blocked, "idle": 0.95 - blocked}, "tasks": [task()]},
        "count": {"activity": {}, "tasks": list(tasks) or [task()]},
    }
    graph = [{"name": "lines", "kind": "spout"}, {"name": "count", "kind": kind, "provider": provider}]
    return {
        "topology": "sick",
        "startedAt": iso(NOW - 3600),
        "writtenAt": iso(NOW),
        "health": {"state": "healthy", "sentence": "well"},
        "status": {"runs": 3},
        "ratesOverSecs": 10.0,
        "graph": {"components": graph, "edges": [{"from": "lines", "to": "count", "stream": "default"}]},
        "components": components,
        "transactions": transactions(phases or {"run": 100.0, "hooks": 1.0, "log": 5.0}),
        **more,
    }


CASES = {
    "slots": document(health=health("stuck", None, "The topology waits for slots since 12 s", "do this")),
    "unwell": document(health=health("failing", None, "Transaction 7 fails again and again", "do this")),
    "slow bolt": document(task(busy=0.9), blocked=0.6),
    "slow spout": document(task(busy=0.9), kind="spout"),
    "skew": document(task(0, busy=0.95, rows=1000.0), task(1, busy=0.1, rows=50.0)),
    "garbage collection": document(task(busy=0.9, gc=500.0)),
    "cache": document(task(busy=0.9, reads=600.0), provider="rocksdb"),
    "waits outside": document(task(busy=0.9, cpu=50.0, queued=100.0)),
    "source": document(task(busy=0.9, cpu=50.0), kind="spout", sources={"count": {"lagRecords": 5000}}),
    "quota": document(task(busy=0.9, cpu=50.0, throttled=800.0), kind="spout"),
    "rate": document(task(busy=0.9, cpu=50.0, throttled=800.0)),
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
    text = str(why(CASES[name]))
    assert text.count(found[0].sentence) == text.count(found[0].remedy) == 1, "said once, in the head or in the list"
    assert f"\n   -> {found[0].remedy}" in text


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


def test_a_bolt_whose_time_is_its_own_gets_more_tasks():
    [found] = why(document(task(busy=0.9), task(1, busy=0.9))).diagnoses
    assert "95 % of it on the processor" in found.sentence
    assert "more than its 2 tasks (parallelism" in found.remedy


WAITS = {"busy": 0.9, "cpu": 50.0, "queued": 10.0}
"""A task whose code waits for something outside."""


@pytest.mark.parametrize(
    ("figures", "secs", "name"),
    [
        (WAITS, 10.0, "waits outside"),
        ({**WAITS, "own": 500.0}, 10.0, "waits outside"),
        # On a loaded machine, 0.7 s after its first transaction: rates were of all the time since the driver began.
        ({"busy": 0.21, "own": 9.0, "cpu": 6.0, "queued": 1.0}, 12.0, None),
        ({**WAITS, "busy": 0.45}, 10.0, None),
        # Its chain works, and hardly its code: rows of a light bolt cost more on their way than in it.
        ({**WAITS, "own": 300.0}, 10.0, "slow bolt"),
        # A transaction of a minute is under way, of which no task has reported its costs.
        ({"busy": 0.98, "own": 20.0, "cpu": 10.0}, 10.0, "slow bolt"),
        (WAITS, 0.6, "slow bolt"),
        (WAITS, 0.0, "slow bolt"),
        ({**WAITS, "queued": 600.0}, 10.0, "slow bolt"),
    ],
)
def test_a_bolt_is_said_to_wait_outside_on_evidence_alone(figures, secs, name):
    found = why(document(task(**figures)) | {"ratesOverSecs": secs}).diagnoses
    assert [each.name for each in found] == ([name] if name else []), found
    if name == "slow bolt" and "queued" in figures and figures["queued"] < 100:
        assert "or what that waits for" in found[0].sentence


def test_where_nothing_tells_of_the_processor_nothing_is_said_of_it():
    known = task(busy=0.9)
    del known["msPerSec"]["cpu"]
    [found] = why(document(known)).diagnoses
    assert found.name == "slow bolt"
    assert "processor" not in found.sentence


@pytest.mark.parametrize(
    ("tasks", "names"),
    [
        # Each of a transaction's steps takes its part, and none bounds it.
        ([(0.21, 0.2), (0.21, 0.0), (0.2, 0.0)], []),
        ([(0.49, 0.0), (0.3, 0.0)], []),
        ([(0.51, 0.0), (0.3, 0.0)], ["slow bolt"]),
        # Three bolts in one chain, which is one thread: the first is blocked while the others work.
        ([(0.3, 0.55), (0.35, 0.2), (0.2, 0.0)], ["slow bolt"]),
    ],
)
def test_a_task_bounds_throughput_if_it_works_most_of_the_time(tasks, names):
    tasks = [task(number, busy=busy, blocked=blocked) for number, (busy, blocked) in enumerate(tasks)]
    assert [each.name for each in why(document(*tasks)).diagnoses] == names


def test_of_two_sicknesses_the_one_that_costs_more_comes_first():
    phases = {"run": 50.0, "hooks": 30.0, "log": 5.0}
    both = document(task(busy=0.9), phases=phases, sinks={"out": {"commitMs": 30.0}})
    assert [each.name for each in why(both).diagnoses] == ["slow bolt", "slow sink"]
    phases = {"run": 10.0, "hooks": 300.0, "log": 5.0}
    both = document(task(busy=0.6), phases=phases, sinks={"out": {"commitMs": 300.0}})
    assert [each.name for each in why(both).diagnoses] == ["slow sink", "slow bolt"]


@pytest.mark.parametrize(
    "rows", [[100.0, 100.0], [100.0, 140.0], [500.0], [0.0, 0.0], [90.0, 110.0, 100.0, 150.0]], ids=str
)
def test_rows_that_spread_well_are_not_called_skewed(rows):
    busiest = max(rows)
    tasks = [task(number, busy=0.9 if each == busiest else 0.5, rows=each) for number, each in enumerate(rows)]
    assert why(document(*tasks)).diagnoses[0].name == "slow bolt"


WELL = document(task(busy=0.9, restoring=0.6), phases={"run": 20.0, "hooks": 400.0, "log": 300.0})
"""Of a driver that has a slow bolt, a slow sink, a slow disk, and lost tasks."""


@pytest.mark.parametrize(
    ("state", "status", "said"),
    [
        ("idle", {"paused": {"since": "s"}}, PAUSED),
        ("ended", {}, "it has ended"),
        ("failed", {}, None),
        ("dead", {}, None),
    ],
)
def test_one_that_does_not_work_now_is_accused_of_nothing(state, status, said):
    assert len(why(WELL).diagnoses) > 2
    found = why(WELL | {"health": health(state, None, "It is so", "do this"), "status": {"runs": 3} | status})
    assert found.bounds == ()
    assert [each.name for each in found.diagnoses] == ([] if said else ["unwell"])
    assert said is None or said in str(found)
    assert NOTHING not in str(found)
    assert str(found).count("It is so") == str(found).count("do this") == 1


@pytest.mark.parametrize(
    ("every_secs", "share"), [(None, 0.94), (0.5, 0.6), (2.0, 0.15), (5.0, 0.06), (60.0, 0.03)], ids=str
)
def test_shares_are_of_the_wall_clock(every_secs, share):
    """Also of the time between transactions, in which nothing is to be done."""
    phases = {"run": 15.0, "hooks": 300.0, "log": 5.0}
    found = why(document(sinks={"out": {"commitMs": 300.0}}) | {"transactions": transactions(phases, every_secs)})
    assert [each.name for each in found.diagnoses] == (["slow sink"] if share >= 0.2 else [])
    if share >= 0.2:
        assert found.diagnoses[0].weight == pytest.approx(share, abs=0.02)
        assert f"{100 * found.diagnoses[0].weight:.0f} % of the time" in found.diagnoses[0].sentence


def test_a_driver_that_has_just_started_is_measured_since_then():
    phases = {"run": 15.0, "hooks": 300.0, "log": 5.0}
    young = document() | {"startedAt": iso(NOW - 1), "transactions": transactions(phases, count=2)}
    assert why(young).diagnoses[0].weight == pytest.approx(0.6, abs=0.02)


@pytest.mark.parametrize(("runs", "names"), [(None, []), (0, []), (1, []), (2, ["restoring"]), (9, ["restoring"])])
def test_tasks_that_open_their_state_for_the_first_time_are_no_fault(runs, names):
    found = why(document(task(restoring=0.66)) | {"status": {} if runs is None else {"runs": runs}})
    assert [each.name for each in found.diagnoses] == names


@pytest.mark.parametrize("state", ["starting", "unknown"])
def test_where_nothing_is_known_nothing_is_said_to_wait_for_input(state):
    found = why({"topology": "t", "health": health(state, None, "It is so")})
    assert NOTHING not in str(found)
    assert "Nothing is known" in str(found)


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
    rows = page.partition("| name (")[2].partition("\n\n")[0].splitlines()[2:]
    assert {row.split("|")[1].strip() for row in rows} == set(CASES)
    assert len({row.name for row in DIAGNOSES}) == len(DIAGNOSES)
