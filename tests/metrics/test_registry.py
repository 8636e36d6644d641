"""The registry: counting, bounds, and the divided time of tasks."""

import logging
import threading

import pytest

from statefx.metrics import registry as module
from statefx.metrics.catalog import METRICS, PREFIX, Kind
from statefx.metrics.registry import OTHER, Registry, empty_histogram
from statefx.protocol.identity import TaskId
from statefx.protocol.reports import ACTIVITIES
from tests.metrics.reading import value, values

A, B = TaskId("split", 0), TaskId("split", 1)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def registry(clock):
    return Registry("words", clock)


def times(**secs):
    return {activity: secs.get(activity, 0.0) * 1000 for activity in ACTIVITIES}


def test_names_follow_prometheus():
    names = [metric.exposed for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.name.startswith(PREFIX)
        assert not metric.name.endswith("_total")
        assert {"key", "txid", "topology"}.isdisjoint(metric.labels)
        assert metric.help.endswith(".")
        if metric.unit and metric.kind is not Kind.COUNTER:
            assert metric.name.endswith(metric.unit)


def test_counters_add_up_by_label(registry):
    registry.add("statefx_transactions", 1, "committed")
    registry.add("statefx_transactions", 2, "committed")
    registry.add("statefx_transactions", 1, "rolled_back")
    found = registry.as_dicts()
    assert values(found, "statefx_transactions_total", "outcome") == {"committed": 3, "rolled_back": 1}
    assert all(each["labels"]["topology"] == "words" for each in found)


def test_histogram_buckets_are_cumulative(registry):
    for secs in (0.002, 0.002, 0.2, 1000.0):
        registry.observe("statefx_log_append_seconds", secs, "COMMITTING")
    found = value(registry.as_dicts(), "statefx_log_append_seconds", record="COMMITTING")
    assert found["count"] == 4
    assert found["sum"] == pytest.approx(1000.204)
    assert found["buckets"][0] == [0.001, 0]
    assert found["buckets"][1] == [0.0025, 2]
    assert found["buckets"][-2:] == [[300.0, 3], ["+Inf", 4]]
    assert empty_histogram((1.0,)).with_one(1.0).counts == (1, 0)  # a bound belongs to its bucket


def test_series_beyond_the_bound_are_counted_together(registry, monkeypatch, caplog):
    monkeypatch.setattr(module, "SERIES_MAX", 3)
    with caplog.at_level(logging.WARNING):
        for number in range(10):
            registry.add("statefx_rows_late", 1, f"bolt-{number}")
    found = registry.as_dicts()
    late = values(found, "statefx_rows_late_total", "component")
    assert late == {"bolt-0": 1, "bolt-1": 1, "bolt-2": 1, OTHER: 7}
    assert value(found, "statefx_series_left_out_total", metric="statefx_rows_late") == 7
    assert len(caplog.records) == 1


def test_gathered_series_are_bounded_too(registry, monkeypatch):
    monkeypatch.setattr(module, "SERIES_MAX", 3)
    registry.gather(lambda: [registry.sample("statefx_state_keys", 1, f"bolt-{number}") for number in range(10)])
    assert len(values(registry.as_dicts(), "statefx_state_keys", "component")) == 3
    assert value(registry.as_dicts(), "statefx_series_left_out_total", metric="statefx_state_keys") == 1


def test_what_can_not_be_gathered_hides_nothing_else(registry, caplog):
    registry.add("statefx_runs")
    registry.gather(lambda: [registry.sample("statefx_generation", 1 / 0)])
    assert value(registry.as_dicts(), "statefx_runs_total") == 1
    assert "can't be read" in caplog.text


def test_time_of_a_task_goes_on_while_it_is_idle(registry, clock):
    registry.spent({A: times(busy=1, idle=2)})
    registry.idle(on=True)
    clock.now += 5
    found = values(registry.as_dicts(), "statefx_task_time_seconds_total", "task", "activity")
    assert found["0", "idle"] == 7
    assert found["0", "busy"] == 1
    registry.idle(on=False)
    registry.spent({A: times(busy=2, idle=6.9, committing=0.1)})
    found = values(registry.as_dicts(), "statefx_task_time_seconds_total", "task", "activity")
    assert found["0", "idle"] == 7, "a counter never goes back"
    assert found["0", "busy"] == 2


def test_time_goes_on_over_runs(registry):
    registry.spent({A: times(busy=3), B: times(busy=1)})
    registry.begin_run()
    registry.spent({A: times(busy=2)})
    found = values(registry.as_dicts(), "statefx_task_time_seconds_total", "task", "activity")
    assert found["0", "busy"] == 5
    assert found["1", "busy"] == 1


def test_an_older_report_changes_nothing(registry):
    registry.spent({A: times(busy=3)})
    registry.spent({A: times(busy=2)})
    assert values(registry.as_dicts(), "statefx_task_time_seconds_total", "activity")["busy"] == 3


def test_activity_is_of_the_last_seconds_and_adds_up(registry, clock):
    registry.spent({A: times(busy=100)})
    for _ in range(20):
        clock.now += 1
        spent = clock.now - 100
        registry.spent({A: times(busy=100 + spent / 4, blocked=3 * spent / 4)})
    (shares,) = registry.activity(10)["split"].values()
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["busy"] == pytest.approx(0.25)
    assert shares["blocked"] == pytest.approx(0.75)
    registry.idle(on=True)
    clock.now += 60
    assert registry.activity(10)["split"][0]["idle"] == 1
    assert len(registry._times._moments) <= 62


def test_threads_lose_nothing(registry):
    def count():
        for _ in range(1000):
            registry.add("statefx_runs")
            registry.samples()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert value(registry.as_dicts(), "statefx_runs_total") == 4000
