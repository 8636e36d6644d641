"""Figures of one committed transaction, by the table of metrics: counters add them up, ``lastProgress`` shows them.

::

    acks, the log  -->  figures_of, at_rest  --+-->  Registry.count   -->  a scrape
                                               +-->  fields_of        -->  lastProgress, listeners
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from statefx.coordinator.attempt import Attempt
from statefx.metrics.catalog import BY_NAME, METRICS, Metric
from statefx.metrics.registry import Figures
from statefx.operators.acker import is_of_acks
from statefx.operators.bolts import ReadyMade
from statefx.operators.dead_letters import DEAD_LETTER
from statefx.operators.spouts import DEAD, Spout
from statefx.operators.windows import WindowedBolt
from statefx.plan.levels import Plan, name_shown
from statefx.protocol.identity import TaskId
from statefx.protocol.log_state import LogState
from statefx.protocol.reports import Ack
from statefx.protocol.watermark import BEGINNING, END
from statefx.state.view.time_index import time_of
from statefx.topology.graph import INTERNAL, Edge, OnError

Series = dict[tuple[str, ...], float]

_OF_LAST = (
    "statefx_slowest_task_seconds", "statefx_state_changed_bytes", "statefx_state_keys", "statefx_calls_waiting",
)  # fmt: skip
"""Gauges that tell of the last transaction alone: those of one before must not stand on."""


class _Figures(dict[str, Series]):
    """Figures that grow."""

    def add(self, name: str, amount: float, *labels: str) -> None:
        series = self.setdefault(name, {})
        series[labels] = series.get(labels, 0) + amount


def zeros_of(plan: Plan) -> Figures:
    """Return counters at 0 of all that they can tell of the components of a plan.

    Who asks by how much a counter has grown, as alerts do, takes its first value for where it began.
    """
    found = _Figures()
    for outcome in ("committed", "rolled_back"):
        found.add("statefx_transactions", 0, outcome)
    for edge in plan.edges:
        if not is_of_acks(edge.target):
            for direction in ("in", "out"):
                found.add("statefx_rows", 0, *ends_of(edge), direction)
                found.add("statefx_bytes", 0, *ends_of(edge), direction)
        if edge.stream in (DEAD_LETTER, DEAD) and not edge.source.startswith(INTERNAL):
            found.add("statefx_dead_letters", 0, edge.source)
    for name, component in plan.components.items():
        if name.startswith(INTERNAL):
            continue
        if component.timings:
            found.add("statefx_rows_ahead", 0, name)
        if name in plan.timed and isinstance(component.operator, ReadyMade | WindowedBolt):
            found.add("statefx_rows_late", 0, name)
        if component.on_error is not OnError.FAIL:
            found.add("statefx_rows_set_aside", 0, name)
        if isinstance(component.operator, Spout):
            found.add("statefx_messages_timed_out", 0)
    return found


def figures_of(attempt: Attempt, edges: Mapping[int, Edge]) -> Figures:
    """Return what an attempt adds to counters and histograms when it is committed, and the gauges that tell of it.

    `edges` are those whose rows count, by id. Of a transaction that a former driver began, only its times are known.
    """
    found = _Figures({name: {} for name in _OF_LAST})
    for phase, secs in attempt.secs.items():
        found.add("statefx_transaction_duration_seconds", secs, phase)
    found.add("statefx_transaction_duration_seconds", sum(attempt.secs.values()), "all")
    found.add("statefx_input_rows", attempt.input_rows)
    acks = () if attempt.complete is None else attempt.complete.acks.values()
    _over_edges(found, acks, edges)
    for component, own in by_bolt(acks).items():
        _of_component(found, component, own, edges)
    return found


def _over_edges(found: _Figures, acks: Iterable[Ack], edges: Mapping[int, Edge]) -> None:
    """Add what went over edges; by their ids first, since there may be thousands of tasks."""
    received: dict[int, int] = {}
    sent: dict[int, int] = {}
    sent_bytes: dict[int, int] = {}
    received_bytes: dict[int, int] = {}
    for ack in acks:
        sums = (
            (received, ack.received), (sent, {**ack.emitted, **ack.rows_before_combining}),
            (sent_bytes, ack.sent_bytes), (received_bytes, ack.received_bytes),
        )  # fmt: skip
        for total, own in sums:
            for id, amount in own.items():
                total[id] = total.get(id, 0) + amount
    for id, edge in edges.items():
        ends = ends_of(edge)
        if id in received:
            found.add("statefx_rows", received[id], *ends, "in")
        if id in sent:
            found.add("statefx_rows", sent[id], *ends, "out")
        if id in sent_bytes:
            found.add("statefx_bytes", sent_bytes[id], *ends, "out")
        if id in received_bytes:
            found.add("statefx_bytes", received_bytes[id], *ends, "in")


def ends_of(edge: Edge) -> tuple[str, str, str]:
    """Return the labels of an edge."""
    return name_shown(edge.source), edge.target, edge.stream


def _of_component(found: _Figures, component: str, acks: list[Ack], edges: Mapping[int, Edge]) -> None:
    def count(name: str, amount: Callable[[Ack], float], *labels: str) -> None:
        if total := sum(map(amount, acks)):
            found.add(name, total, component, *labels)

    for ack in acks:
        for step, ms in ack.metrics.items():
            found.add("statefx_step_seconds", ms / 1000, component, step)
    slowest = max(sum(ack.metrics.values()) for ack in acks)
    found.add("statefx_slowest_task_seconds", slowest / 1000, component)
    count("statefx_rows_late", lambda ack: 0 if ack.time is None else ack.time.late)
    count("statefx_rows_ahead", lambda ack: 0 if ack.time is None else ack.time.ahead)
    count("statefx_rows_set_aside", lambda ack: ack.set_aside.rows)
    count("statefx_dead_letters", lambda ack: _dead_letters(ack, edges))
    count("statefx_state_keys_changed", lambda ack: ack.keys)
    count("statefx_prepared_bytes", lambda ack: max(ack.prepared_bytes, 0))
    count("statefx_snapshots", lambda ack: ack.snapshot is not None)
    count("statefx_snapshot_bytes", lambda ack: 0 if ack.snapshot is None else ack.snapshot.size_bytes)
    if any(ack.keys for ack in acks):
        found.add("statefx_state_changed_bytes", sum(ack.prepared_bytes for ack in acks), component)
    if all(ack.found_keys is not None for ack in acks):
        found.add("statefx_state_keys", sum(ack.found_keys or 0 for ack in acks), component)
    calls = [ack.calls for ack in acks if ack.calls is not None]
    if calls:
        found.add("statefx_calls_waiting", sum(each.waiting for each in calls), component)
        found.add("statefx_calls_retried", sum(each.retried for each in calls), component)
    if any(ack.left_out for ack in acks):
        found.add("statefx_rows_left_out", sum(ack.left_out.gone for ack in acks), component, "gone")
        found.add("statefx_rows_left_out", sum(ack.left_out.refused for ack in acks), component, "refused")


def _dead_letters(ack: Ack, edges: Mapping[int, Edge]) -> int:
    streams = emitted(ack, edges)
    return streams.get(DEAD_LETTER, 0) + streams.get(DEAD, 0)


def emitted(ack: Ack, edges: Mapping[int, Edge]) -> dict[str, int]:
    """Return how many rows a task has emitted by stream, however many edges leave it."""
    found: dict[str, int] = {}
    for id, rows in ack.emitted.items():
        edge = edges.get(id)
        if edge is not None:
            found[edge.stream] = max(found.get(edge.stream, 0), ack.rows_before_combining.get(id) or rows)
    return found


def by_bolt(acks: Iterable[Ack]) -> dict[str, list[Ack]]:
    """Return the acks of the user's components, by component."""
    found: dict[str, list[Ack]] = {}
    for ack in acks:
        if not ack.component.startswith(INTERNAL):
            found.setdefault(ack.component, []).append(ack)
    return found


def at_rest(state: LogState) -> Figures:
    """Return the gauges that the log tells: sizes of states, and watermarks of which all tasks know something.

    Event time that is closed has no watermark: nothing is behind it.
    """
    found = _Figures({"statefx_state_bytes": {}, "statefx_watermark_timestamp_seconds": {}})
    for component, size_bytes in state.stored_bytes().items():
        if not component.startswith(INTERNAL):
            found.add("statefx_state_bytes", size_bytes, component)
    for component, watermark in least_watermarks(state).items():
        if watermark < END:
            found.add("statefx_watermark_timestamp_seconds", watermark / 1e6, component)
    return found


def least_watermarks(state: LogState) -> dict[str, int]:
    """Return the watermark of each component in microseconds: the least of its tasks, where each has one."""
    least: dict[str, int] = {}
    tasks: dict[str, int] = {}
    for name, watermark in state.watermarks.items():
        component = TaskId.parse(name).component
        if watermark != BEGINNING and not component.startswith(INTERNAL):
            least[component] = min(watermark, least.get(component, watermark))
            tasks[component] = tasks.get(component, 0) + 1
    known = state.topology.in_time
    return {name: watermark for name, watermark in least.items() if tasks[name] >= known.get(name, 0)}


# ---- as lastProgress shows them


def fields_of(figures: Figures) -> dict[str, Any]:
    """Return the fields of ``lastProgress`` that rows of the table name, in the table's order."""
    found: dict[str, Any] = {}
    for metric in METRICS:
        if metric.progress is None:
            continue
        if metric.labels:
            _merge(found.setdefault(metric.progress.key, {}), field_of(figures, metric.name))
        else:
            found[metric.progress.key] = figures.get(metric.name, {}).get((), 0)
    return found


def _merge(fields: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict):
            _merge(fields.setdefault(key, {}), value)
        else:
            fields[key] = value


def field_of(figures: Figures, name: str) -> dict[str, Any]:
    """Return what one metric with labels, of this name, adds to its field of ``lastProgress``."""
    metric = BY_NAME[name]
    field = metric.progress
    assert field is not None
    by = [metric.labels.index(label) for label in field.by or metric.labels]
    only = [(metric.labels.index(label), value) for label, value in field.only.items()]
    sums: dict[tuple[str, ...], float] = {}
    for labels, value in figures.get(name, {}).items():
        path = (*(labels[place] for place in by), *field.tail)
        is_shown = path[0] not in field.without and not path[0].startswith(INTERNAL)
        if is_shown and all(labels[place] == wanted for place, wanted in only):
            sums[path] = sums.get(path, 0) + value
    found: dict[str, Any] = {}
    for path, value in sums.items():
        own = found
        for part in path[:-1]:
            own = own.setdefault(part, {})
        own[path[-1]] = _shown(metric, value)
    return found


def _shown(metric: Metric, value: float) -> float | str:
    assert metric.progress is not None
    if metric.progress.key.endswith("Ms"):
        return round(value * 1000, 3)
    return time_of(round(value * 1e6)).isoformat() if metric.name.endswith("_timestamp_seconds") else value
