"""Counts what happens, for metrics and for the observation: transactions, rows, state, event time, sources, sinks.

Counters are fed by what the driver does anyway, each once. Gauges are read where their values are, when somebody asks.
Nothing here ever raises: a topology does not end because of its metrics.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Concatenate, NamedTuple, ParamSpec

from statefx.coordinator.attempt import Attempt
from statefx.coordinator.figures import at_rest, emitted, ends_of, least_watermarks, zeros_of
from statefx.log.log import TransactionLog
from statefx.metrics.lag import Lag
from statefx.metrics.registry import Figures, Registry, Sample, UserMetrics
from statefx.operators.acker import is_of_acks
from statefx.plan.levels import Plan
from statefx.protocol.identity import TaskId
from statefx.protocol.log_state import LogState, SinkVolume
from statefx.protocol.reports import BREAKER_STATES, TIMED_OUT, Ack, CallReport
from statefx.protocol.watermark import BEGINNING, END
from statefx.topology.graph import INTERNAL, ComponentKind

logger = logging.getLogger("statefx")

WINDOW_SECS = 10.0
"""Over how long rates are taken."""

_ROWS = "rows"

_Given = ParamSpec("_Given")


class Rates:
    """Sums by name over the last transactions, those of `WINDOW_SECS` and the last one at least.

    Times are those of a clock that nobody sets: after one that is set back, all sums were of one moment.
    """

    def __init__(self) -> None:
        self._slots: deque[tuple[float, float, dict[Any, dict[str, float]]]] = deque()
        """When the first and the last transaction of a slot have ended, and the sums."""

    def until(self, now: float, began: float) -> dict[Any, dict[str, float]]:
        """Return the sums that a transaction is to be added to which began at `began` and has ended now."""
        if not self._slots:  # the time that Spark takes to start is not that of any rows
            self._slots.append((began, began, {}))
        first, _, sums = self._slots[-1]
        if len(self._slots) == 1 or now - first >= WINDOW_SECS / 4:  # the first slot is only the beginning of time
            first, sums = now, {}
        else:
            self._slots.pop()
        self._slots.append((first, now, sums))
        while len(self._slots) > 2 and self._slots[1][1] < now - WINDOW_SECS:
            self._slots.popleft()
        return sums

    def secs(self, now: float) -> float:
        """Return over how long the sums are; 0 if no transaction has ended for long."""
        if not self._slots:
            return 0.0
        since, ended = self._slots[0][1], self._slots[-1][1]
        return 0.0 if now - ended > max(WINDOW_SECS, 2 * (ended - since)) else max(now - since, 0.001)

    def per_sec(self, now: float) -> dict[Any, dict[str, float]]:
        """Return the sums per second."""
        found: dict[Any, dict[str, float]] = {}
        secs = self.secs(now)
        for _, _, sums in islice(self._slots, 1, None) if secs else ():
            for name, amounts in sums.items():
                _add(found.setdefault(name, {}), {what: amount / secs for what, amount in amounts.items()})
        return found


def _add(totals: dict[Any, Any], more: Mapping[Any, float]) -> None:
    for name, amount in more.items():
        totals[name] = totals.get(name, 0) + amount


class Flow(NamedTuple):
    """What has gone over edges, by their ids, and through tasks: totals of this driver, and what it is a second."""

    sent: dict[int, int]
    """Rows, before they are combined or copied to all tasks."""
    tasks: dict[TaskId, tuple[int, int]]
    """Rows in and out; those of a stream once, however many edges leave it."""
    edges_per_sec: dict[int, float]
    tasks_per_sec: dict[TaskId, dict[str, float]]
    """``rows`` in, and milliseconds by step and by cost, as acks tell them."""
    secs: float
    """Over how long that was."""


def _never_raising(
    method: Callable[Concatenate[Measures, _Given], None],
) -> Callable[Concatenate[Measures, _Given], None]:
    """Have an error of a method be logged once, and go no further."""

    @functools.wraps(method)
    def called(self: Measures, /, *args: _Given.args, **named: _Given.kwargs) -> None:
        try:
            method(self, *args, **named)
        except Exception:
            if method.__name__ not in self.failed:
                self.failed.add(method.__name__)
                logger.exception("metrics: %s failed; some are missing from now on. Logged once", method.__name__)

    return called


class Measures:
    """Counts for one driver; `clock` is in seconds of no particular beginning, `now` in seconds since the epoch."""

    def __init__(
        self,
        topology: str = "",
        plan: Plan | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.registry = Registry(topology, clock)
        self._users = UserMetrics(topology)
        self.failed: set[str] = set()
        """Methods that have failed, which was logged."""
        self._clock, self._now = clock, now
        edges = () if plan is None else plan.edges
        self.edges = {edge.id: edge for edge in edges if not is_of_acks(edge.target)}
        components = {} if plan is None else plan.components
        self._sources = {
            name for name, each in components.items() if each.kind in (ComponentKind.SPOUT, ComponentKind.STREAM)
        }
        self._read: dict[str, set[str]] = {}
        """What each component reads from."""
        for edge in self.edges.values():
            self._read.setdefault(edge.target, set()).add(edge.source)
        if plan is not None:
            self.registry.count(zeros_of(plan))
        self._lock = threading.Lock()
        """Of what `flow` returns."""
        self._tasks: dict[TaskId, tuple[int, int]] = {}
        self._rates = Rates()
        self.registry.gather(self._flowing)
        self._last_commit: float | None = None
        self._counts: dict[TaskId, Mapping[str, int | float]] = {}
        """What tasks of spouts that live have counted, as last told."""
        self._calls_of: dict[TaskId, CallReport] = {}
        self._calls: dict[str, float] = {}
        self._lags: dict[str, Lag] = {}
        self.holder: Callable[[], tuple[str, int] | None] = lambda: None
        """Returns the unit that holds event time back, and how far it lets it come, in microseconds."""

    # ---- transactions

    @_never_raising
    def begun(self, in_flight: int) -> None:
        """Count an attempt that has begun."""
        self.registry.add("statefx_attempts")
        self.registry.idle(on=in_flight == 0)

    @_never_raising
    def acked(self, acks: Iterable[Ack]) -> None:
        """Take the time of tasks, whatever becomes of their attempt."""
        self.registry.spent({ack.id: ack.activity for ack in acks})

    @_never_raising
    def committed(self, attempt: Attempt, figures: Figures, in_flight: int) -> None:
        """Count a transaction of which COMMITTED is durable; `figures` are of `figures_of` and `at_rest`."""
        registry = self.registry
        registry.add("statefx_transactions", 1, "committed")
        registry.idle(on=in_flight == 0)
        self._last_commit = self._now()
        registry.count(figures)
        if attempt.complete is not None:  # else a former driver's, which was rolled forward
            acks = attempt.complete.acks
            self._count_rows(acks.values(), sum(attempt.secs.values()))
            self._count_trees(acks)
            for ack in acks.values():
                self._count_calls(ack)
            self._users.committed(acks.values())

    def _count_rows(self, acks: Iterable[Ack], secs: float) -> None:
        """Add up what acks say of rows and time in `secs`; the driver waits for it: microseconds for each task."""
        tasks = self._tasks
        with self._lock:
            now = self._clock()
            sums = self._rates.until(now, now - secs)
            for ack in acks:
                rows = sum(ack.received.values())
                rows_in, rows_out = tasks.get(ack.id, (0, 0))
                tasks[ack.id] = rows_in + rows, rows_out + sum(emitted(ack, self.edges).values())
                of_task = sums.setdefault(ack.id, {_ROWS: 0})
                of_task[_ROWS] += rows
                _add(of_task, ack.metrics)
                _add(of_task, ack.costs)
                for id, sent in {**ack.emitted, **ack.rows_before_combining}.items():
                    _add(sums.setdefault(id, {}), {_ROWS: sent})

    def flow(self) -> Flow:
        """Return what has gone over edges and through tasks so far; any thread may call it."""
        with self._lock:
            now = self._clock()
            per_sec = self._rates.per_sec(now)
            sent = self.registry.counted("statefx_rows")
            return Flow(
                {id: int(sent.get((*ends_of(edge), "out"), 0)) for id, edge in self.edges.items()},
                dict(self._tasks),
                {id: amounts[_ROWS] for id, amounts in per_sec.items() if isinstance(id, int)},
                {task: amounts for task, amounts in per_sec.items() if isinstance(task, TaskId)},
                self._rates.secs(now),
            )  # fmt: skip

    def _count_calls(self, ack: Ack) -> None:
        task, report = ack.id, ack.calls
        if report is None:
            return
        before = self._calls_of.get(task, _NO_CALLS)
        self._calls_of[task] = report
        # Another object of the bolt has begun to count again.
        changes = report.changes - (before.changes if report.changes >= before.changes else 0)
        if changes:
            self.registry.add("statefx_breaker_changes", changes, task.component, str(task.task))

    def calls(self) -> dict[str, dict[str, Any]]:
        """Return by bolt how many tuples wait for another call, and its breakers that are not closed, by task."""
        found: dict[str, dict[str, Any]] = {}
        for (component, task), report in list(self._calls_of.items()):
            if report:
                one = found.setdefault(component, {"waiting": 0, "breakers": {}})
                one["waiting"] += report.waiting
                if report.breaker not in ("", BREAKER_STATES[0]):
                    one["breakers"][str(task)] = report.breaker
        return found

    def _calling(self) -> Iterator[Sample]:
        for (component, task), report in list(self._calls_of.items()):
            if report.breaker:
                state = BREAKER_STATES.index(report.breaker)
                yield self.registry.sample("statefx_breaker_state", state, component, str(task))

    def _count_trees(self, acks: Mapping[TaskId, Ack]) -> None:
        for task, ack in acks.items():
            if not ack.counts:
                continue
            before = self._counts.get(task, {})
            if any(ack.counts.get(name, 0) < before.get(name, 0) for name in _OUTCOMES):
                before = {}  # another object of the spout, which has begun to count again
            for name in _OUTCOMES:
                if more := ack.counts.get(name, 0) - before.get(name, 0):
                    self.registry.add("statefx_messages", more, task.component, name)
            self._counts[task] = ack.counts
        timed_out = {
            root
            for ack in acks.values()
            for reason, roots in ack.trees.failed.items()
            if reason.startswith(TIMED_OUT)
            for root in roots
        }
        if timed_out:
            self.registry.add("statefx_messages_timed_out", len(timed_out))

    @_never_raising
    def rolled_back(self, in_flight: int) -> None:
        """Count an attempt of which ROLLED_BACK is durable."""
        self.registry.add("statefx_transactions", 1, "rolled_back")
        self.registry.idle(on=in_flight == 0)

    @_never_raising
    def recovering(self, direction: str) -> None:
        """Count a transaction of a former driver, which is rolled ``forward`` or ``back``."""
        self.registry.add("statefx_recoveries", 1, direction)

    @_never_raising
    def run_began(self) -> None:
        """Note that all tasks are there, and begin to count their time again."""
        self.registry.begin_run()
        self.registry.add("statefx_runs")

    @_never_raising
    def spent(self, times: Mapping[TaskId, Mapping[str, float]]) -> None:
        """Take the time of tasks of an attempt that takes long."""
        self.registry.spent(times)

    @_never_raising
    def appended(self, kind: str, size_bytes: int, secs: float, synced_secs: float) -> None:
        """Count a record of the log."""
        self.registry.observe("statefx_log_append_seconds", secs, kind)
        if synced_secs:
            self.registry.observe("statefx_log_fsync_seconds", synced_secs, kind)
        self.registry.add("statefx_log_bytes", size_bytes)

    # ---- sinks

    @_never_raising
    def calling(self, name: str) -> None:
        """Note that a participant's part of a commit begins on the driver."""
        self._calls[name] = self._clock()

    @_never_raising
    def called(self, name: str) -> None:
        """Count it when it has ended, well or not."""
        began = self._calls.pop(name, None)
        if began is not None:
            self.registry.observe("statefx_sink_publish_seconds", self._clock() - began, name)

    @_never_raising
    def published(self, name: str, volume: SinkVolume | None) -> None:
        """Count what a sink has published."""
        if volume is not None:
            self.registry.add("statefx_sink_rows", volume.rows, name)
            self.registry.add("statefx_sink_bytes", volume.bytes, name)

    # ---- what is read when somebody asks

    @_never_raising
    def reached(self, source: str, said: Any) -> None:
        """Take what a spout says of how far it is."""
        lag = self._lags.get(source, Lag())
        if lag.take(said, self._clock()):
            self._lags[source] = lag

    def lost(self, source: str) -> None:
        """Forget how far a spout is: it can't tell any more."""
        self._lags.pop(source, None)

    def watch(self, log: TransactionLog, status: Callable[[], dict[str, Any]]) -> None:
        """Have the registry read gauges from the log and from `status`."""
        log.appended = self.appended
        self.registry.count(at_rest(log.state))
        self.registry.gather(lambda: self._gauges(log.state, status()))
        self.registry.gather(lambda: self._holding(log.state))

    def _gauges(self, state: LogState, status: Mapping[str, Any]) -> Iterator[Sample]:
        sample = self.registry.sample
        yield sample("statefx_generation", state.generation)
        yield sample("statefx_transactions_in_flight", len(state.in_flight))
        if self._last_commit is not None:
            yield sample("statefx_last_commit_timestamp_seconds", self._last_commit)
        yield sample("statefx_stuck_since_seconds", _since(status))
        for sink, told in status.get("sinks", {}).items():
            if told["txid"] is not None:
                yield sample("statefx_sink_last_txid", told["txid"], sink)
            yield sample("statefx_sink_stuck_since_seconds", _since(told), sink)
        yield from self._times(state)
        yield from self._waiting()
        yield from self._calling()
        for source, lag in list(self._lags.items()):
            yield from self._behind(source, lag.as_dict())
        yield from self._users.samples(state.counters)

    def _flowing(self) -> Iterator[Sample]:
        with self._lock:
            tasks = dict(self._tasks)
        for (component, task), (rows_in, rows_out) in tasks.items():
            if not component.startswith(INTERNAL):
                rows = rows_out if component in self._sources else rows_in
                yield self.registry.sample("statefx_task_rows", rows, component, str(task))

    def _times(self, state: LogState) -> Iterator[Sample]:
        sample, now = self.registry.sample, self._now()
        least = least_watermarks(state)
        for component, watermark in least.items():
            if watermark < END:  # at the end of time nothing is behind
                yield sample("statefx_freshness_seconds", max(now - watermark / 1e6, 0.0), component)
                read = [least[name] for name in self._read.get(component, ()) if name in least]
                if read:
                    added = max(min(read) - watermark, 0) / 1e6
                    yield sample("statefx_freshness_added_seconds", added, component)
        for name, unit in state.unit_times.items():
            component, _, rest = name.partition("/")
            yield sample("statefx_input_time_seconds", unit.time_us / 1e6, component, rest)

    def _holding(self, state: LogState) -> Iterator[Sample]:
        """Yield what holds the watermark, if anything does."""
        held = self.holder()
        if held is not None:
            unit, reached_us = held
            component, _, rest = unit.partition("/")
            furthest = max((known.time_us for known in state.unit_times.values()), default=reached_us)
            behind = (furthest - reached_us) / 1e6 if reached_us > BEGINNING else self._now()
            yield self.registry.sample("statefx_watermark_held_seconds", max(behind, 0.0), component, rest)

    def _waiting(self) -> Iterator[Sample]:
        pending: dict[str, float] = {}
        oldest: dict[str, float] = {}
        for (component, _), counts in list(self._counts.items()):
            pending[component] = pending.get(component, 0) + counts.get("pending", 0)
            oldest[component] = max(oldest.get(component, 0.0), counts.get("oldestPendingMs", 0) / 1000)
        for component, number in pending.items():
            yield self.registry.sample("statefx_messages_pending", number, component)
            yield self.registry.sample("statefx_message_oldest_seconds", oldest[component], component)

    def _behind(self, source: str, lag: Mapping[str, Any]) -> Iterator[Sample]:
        sample = self.registry.sample
        for key, (whole, part, *direction) in _LAG.items():
            if lag[key] is not None:
                yield sample(whole, lag[key], source, *direction)
            for each in lag["partitions"]:
                if each[key] is not None:
                    yield sample(part, each[key], source, each["partition"], *direction)

    def lags(self) -> dict[str, dict[str, Any]]:
        """Return how far each spout is behind that tells it, as `Lag.as_dict`."""
        return {source: lag.as_dict() for source, lag in list(self._lags.items())}


_RATES = "statefx_source_records_per_second", "statefx_source_partition_records_per_second"
_LAG = {
    "lagRecords": ("statefx_source_lag_records", "statefx_source_partition_lag_records"),
    "lagSecs": ("statefx_source_lag_seconds", "statefx_source_partition_lag_seconds"),
    "etaSecs": ("statefx_source_eta_seconds", "statefx_source_partition_eta_seconds"),
    "rateIn": (*_RATES, "in"),
    "rateOut": (*_RATES, "out"),
}
"""By what `Lag` tells: the metric of the source, that of a partition, and the direction."""

_NO_CALLS = CallReport()

_OUTCOMES = ("emitted", "acked", "failed", "redelivered")


def _since(status: Mapping[str, Any]) -> float:
    """Return since when something is stuck, as Unix time; 0: it is not."""
    stuck = status.get("stuck")
    return datetime.fromisoformat(stuck["since"]).timestamp() if stuck else 0.0
