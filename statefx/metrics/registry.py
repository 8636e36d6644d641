"""The values of all metrics of one driver, its own and those of a user: counted by its thread, read by any."""

from __future__ import annotations

import bisect
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Protocol

from statefx.metrics.catalog import BY_NAME, SECONDS, TOPOLOGY, Kind, Metric
from statefx.protocol.counting import Totals, parts_of, placed
from statefx.protocol.identity import TaskId
from statefx.protocol.reports import ACTIVITIES, Ack

logger = logging.getLogger("statefx")

SERIES_MAX = 5000
"""Series of one metric: those of 1,000 tasks by activity. What is beyond is counted together, and that is told."""

OTHER = "other"
"""The value of each label of what is counted together."""

_WARNINGS_MAX = 20
"""Names of a user's metrics that are warned of: a program that makes names of keys has no end of them."""

KEPT_SECS, APART_SECS = 60.0, 1.0
"""How far back `Registry.activity` can look, and how exactly."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations by size; `counts` has one more item than `bounds`: those above the last bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self.counts)

    def with_one(self, value: float) -> Histogram:
        """Return it with one observation more."""
        place = bisect.bisect_left(self.bounds, value)
        counts = (*self.counts[:place], self.counts[place] + 1, *self.counts[place + 1 :])
        return Histogram(self.bounds, counts, self.sum + value)

    def __add__(self, other: Histogram) -> Histogram:
        counts = tuple(one + more for one, more in zip(self.counts, other.counts, strict=True))
        return Histogram(self.bounds, counts, self.sum + other.sum)

    def cumulative(self) -> list[tuple[float, int]]:
        """Return (upper bound, how many are not above it), the last bound being infinite.

        >>> empty_histogram((1.0, 2.0)).with_one(1.5).cumulative()
        [(1.0, 0), (2.0, 1), (inf, 1)]
        """
        total, found = 0, []
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            total += count
            found.append((bound, total))
        return found


def empty_histogram(bounds: tuple[float, ...] = SECONDS) -> Histogram:
    """Return a histogram without observations."""
    return Histogram(bounds, (0,) * (len(bounds) + 1), 0.0)


Value = float | Histogram

Figures = Mapping[str, Mapping[tuple[str, ...], float]]
"""By metrics and their labels: amounts of counters, observations of histograms, values of gauges."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The value of one series now."""

    metric: Metric
    labels: Mapping[str, str]
    value: Value

    @property
    def name(self) -> str:
        """The name that Prometheus shows."""
        return self.metric.exposed

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        value: Any = self.value
        if isinstance(value, Histogram):
            buckets = [["+Inf" if bound == math.inf else bound, count] for bound, count in value.cumulative()]
            value = {"count": value.count, "sum": value.sum, "buckets": buckets}
        return {"name": self.name, "kind": str(self.metric.kind), "labels": dict(self.labels), "value": value}


Times = tuple[float, ...]
"""Seconds by activity, in the order of `ACTIVITIES`."""

_IDLE = ACTIVITIES.index("idle")
_NONE: Times = (0.0,) * len(ACTIVITIES)


class _Moment(NamedTuple):
    at: float
    times: Mapping[TaskId, Times]


@dataclass
class TaskTimes:
    """The divided time of all tasks: what they report, and the idle time since then.

    A task reports totals since its run began, and nothing while no transaction is under way: then it is idle, and this
    goes on counting by the driver's clock.
    """

    clock: Callable[[], float]
    _former: dict[TaskId, Times] = field(default_factory=dict)
    """Totals of the runs that are over."""
    _reported: dict[TaskId, tuple[Times, float]] = field(default_factory=dict)
    """Totals of this run, and when they came."""
    _idle_since: float | None = None
    _shown: dict[TaskId, Times] = field(default_factory=dict)
    """What was read last: a counter never goes back, and what was taken for idle may turn out to be a commit."""
    _moments: deque[_Moment] = field(default_factory=deque)

    def begin_run(self) -> None:
        """Note that all tasks begin again, with totals of 0."""
        self._former |= {task: self._now(task) for task in self._reported}
        self._reported.clear()

    def report(self, task: TaskId, times: Times) -> None:
        """Take a task's totals of this run; older ones than it has reported already change nothing."""
        known = self._reported.get(task)
        if known is None or sum(times) >= sum(known[0]):
            self._reported[task] = times, self.clock()

    def idle(self, *, on: bool) -> None:
        """Note whether a transaction is under way."""
        if not on:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = self.clock()

    def _now(self, task: TaskId) -> Times:
        former, (times, at) = self._former.get(task, _NONE), self._reported[task]
        found = [before + now for before, now in zip(former, times, strict=True)]
        if self._idle_since is not None:
            found[_IDLE] += max(self.clock() - max(self._idle_since, at), 0.0)
        return tuple(found)

    def totals(self) -> dict[TaskId, Times]:
        """Return the seconds of each task by activity, since the driver began."""
        found = {**self._former, **{task: self._now(task) for task in self._reported}}
        for task, times in found.items():
            found[task] = tuple(map(max, times, self._shown.get(task, _NONE)))
        self._shown = found
        return found

    def remember(self) -> None:
        """Keep what the totals are now, at most once in `APART_SECS`."""
        now = self.clock()
        if self._moments and now - self._moments[-1].at < APART_SECS:
            return
        self._moments.append(_Moment(now, self.totals()))
        while len(self._moments) > 1 and self._moments[1].at < now - KEPT_SECS:
            self._moments.popleft()

    def shares(self, window_secs: float) -> dict[TaskId, Times]:
        """Return how each task spent the last seconds, as parts of 1; without tasks of which nothing is known."""
        now, totals = self.clock(), self.totals()
        if self._idle_since is not None and self._idle_since <= now - window_secs:
            return {task: tuple(float(place == _IDLE) for place in range(len(ACTIVITIES))) for task in totals}
        before: Mapping[TaskId, Times] = {}
        for moment in self._moments:
            if moment.at > now - window_secs and before:
                break
            before = moment.times
        found = {}
        for task, times in totals.items():
            spent = [max(end - begin, 0.0) for end, begin in zip(times, before.get(task, _NONE), strict=True)]
            if (total := sum(spent)) <= 0:  # nothing has come since: as before
                spent, total = list(times), sum(times)
            if total > 0:
                found[task] = tuple(each / total for each in spent)
        return found


class Registry:
    """All metrics of one topology in this driver.

    `clock` is in seconds, of no particular beginning. What counts never raises for its caller: a label with too many
    values is counted under `OTHER`.
    """

    def __init__(self, topology: str = "", clock: Callable[[], float] = lambda: 0.0) -> None:
        self.topology = topology
        self._lock = threading.RLock()
        self._values: dict[str, dict[tuple[str, ...], Value]] = {}
        self._times = TaskTimes(clock)
        self._gathered: list[Callable[[], Iterable[Sample]]] = []
        self._warned = False
        self.on_observation: list[Callable[[Metric, float, Mapping[str, str]], None]] = []
        """Called with each observation of a histogram: the metric, the value, all labels."""

    # ---- counting

    def add(self, name: str, amount: float = 1, *labels: str) -> None:
        """Add to a counter; `labels` are the values of its labels, in the order of the table."""
        with self._lock:
            key, series = self._series(name, labels)
            before = series.get(key, 0)
            assert not isinstance(before, Histogram)
            series[key] = before + amount

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Add an observation to a histogram."""
        with self._lock:
            key, series = self._series(name, labels)
            before = series.get(key)
            series[key] = (before if isinstance(before, Histogram) else empty_histogram()).with_one(value)
        if self.on_observation:
            metric = BY_NAME[name]
            named = {TOPOLOGY: self.topology, **dict(zip(metric.labels, key, strict=True))}
            self._call(metric, value, named)

    def count(self, figures: Figures) -> None:
        """Add to counters and histograms; the series of a gauge replace those that it had."""
        for name, series in figures.items():
            kind = BY_NAME[name].kind
            if kind is Kind.GAUGE:
                kept: dict[tuple[str, ...], Value] = dict(islice(series.items(), SERIES_MAX))
                with self._lock:
                    self._values[name] = kept
                    if len(series) > SERIES_MAX:
                        self._leave_out(name)
                continue
            count = self.add if kind is Kind.COUNTER else self.observe
            for labels, value in series.items():
                count(name, value, *labels)

    def _call(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        """Call who watches observations; one that raises is called no more."""
        for hook in list(self.on_observation):
            try:
                hook(metric, value, labels)
            except Exception:
                with suppress(ValueError):  # another thread has removed it meanwhile
                    self.on_observation.remove(hook)
                logger.exception("%s: what watches its metrics failed, and is called no more", self.topology)

    def _series(self, name: str, labels: Sequence[str]) -> tuple[tuple[str, ...], dict[tuple[str, ...], Value]]:
        metric = BY_NAME[name]
        assert len(labels) == len(metric.labels), f"{name} has the labels {metric.labels}"
        series, key = self._values.setdefault(name, {}), tuple(labels)
        if key not in series and len(series) >= SERIES_MAX:
            self._leave_out(name)
            key = (OTHER,) * len(key)
        return key, series

    def _leave_out(self, name: str) -> None:
        self.add("statefx_series_left_out", 1, name)
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s: metric %s has more than %d series: what is beyond is counted as %r. See %s",
                self.topology, name, SERIES_MAX, OTHER, BY_NAME["statefx_series_left_out"].exposed,
            )  # fmt: skip

    # ---- the time of tasks

    def begin_run(self) -> None:
        """Note that all tasks of the topology begin again."""
        with self._lock:
            self._times.begin_run()

    def spent(self, activity: Mapping[TaskId, Mapping[str, float]]) -> None:
        """Take what tasks report of their time: milliseconds by activity since their run began."""
        with self._lock:
            for task, ms in activity.items():
                if ms:
                    self._times.report(task, tuple(ms[name] / 1000 for name in ACTIVITIES))
            self._times.remember()

    def idle(self, *, on: bool) -> None:
        """Note whether a transaction is under way: while none is, all tasks are idle."""
        with self._lock:
            self._times.idle(on=on)

    def activity(self, window_secs: float = 10.0) -> dict[str, dict[int, dict[str, float]]]:
        """Return how each task spent the last seconds, by component and task: activities that add up to 1."""
        with self._lock:
            found: dict[str, dict[int, dict[str, float]]] = {}
            for (component, task), shares in sorted(self._times.shares(window_secs).items()):
                found.setdefault(component, {})[task] = dict(zip(ACTIVITIES, shares, strict=True))
            return found

    # ---- reading

    def gather(self, samples: Callable[[], Iterable[Sample]]) -> None:
        """Have `samples` called by each `samples`, for what nobody has to count: it is known where it is."""
        self._gathered.append(samples)

    def sample(self, name: str, value: Value, *labels: str) -> Sample:
        """Return a sample of a metric of the table."""
        metric = BY_NAME[name]
        named = {TOPOLOGY: self.topology, **dict(zip(metric.labels, labels, strict=True))}
        return Sample(metric, named, value)

    def value(self, name: str, *labels: str) -> Value:
        """Return what was counted of one series so far."""
        with self._lock:
            return self._values.get(name, {}).get(labels, 0)

    def counted(self, name: str) -> dict[tuple[str, ...], float]:
        """Return what was counted of all series of a counter, by their labels."""
        with self._lock:
            series = self._values.get(name, {})
            return {labels: value for labels, value in series.items() if not isinstance(value, Histogram)}

    def samples(self) -> list[Sample]:
        """Return all that is known now, by metric; any thread may call it."""
        gathered: list[Sample] = []
        for source in list(self._gathered):
            try:
                gathered += source()
            except Exception:
                logger.exception("%s: some metrics can't be read", self.topology)
        with self._lock:
            found = [
                self.sample(name, value, *labels)
                for name, series in self._values.items()
                for labels, value in series.items()
            ]
            found += self._task_times()
        return _ordered(self._bounded(found + gathered))

    def _task_times(self) -> Iterable[Sample]:
        for (component, task), times in sorted(self._times.totals().items()):
            for activity, secs in zip(ACTIVITIES, times, strict=True):
                yield self.sample("statefx_task_time_seconds", secs, component, str(task), activity)

    def _bounded(self, samples: Iterable[Sample]) -> list[Sample]:
        """Return samples, of each metric `SERIES_MAX`; those beyond are added up, or left out if a sum is nonsense."""
        counts: dict[str, int] = {}
        others: dict[str, Sample] = {}
        left_out = set[str]()
        found = []
        for sample in samples:
            name = sample.metric.name
            counts[name] = counts.get(name, 0) + 1
            if counts[name] <= SERIES_MAX:
                found.append(sample)
                continue
            labels = {label: value if label == TOPOLOGY else OTHER for label, value in sample.labels.items()}
            if sample.labels != labels:  # else it was told when it was counted
                left_out.add(name)
            if sample.metric.kind is Kind.COUNTER:
                before = others[name].value if name in others else 0
                assert not isinstance(before, Histogram)
                assert not isinstance(sample.value, Histogram)
                others[name] = Sample(sample.metric, labels, before + sample.value)
        for name in left_out:
            self._leave_out(name)
        return [*found, *others.values()]

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return `samples` as plain data."""
        return [sample.as_dict() for sample in self.samples()]


def _ordered(samples: list[Sample]) -> list[Sample]:
    """Return the samples of each metric together, as exporters want them."""
    together: dict[str, list[Sample]] = {}
    for sample in samples:
        together.setdefault(sample.metric.name, []).append(sample)
    return [sample for of_one in together.values() for sample in of_one]


USERS_HELP = "Counted by the topology itself: context.metrics."


class UserMetrics:
    """Metrics that bolts and spouts of one topology count; one thread calls `committed`, any other `samples`."""

    def __init__(self, topology: str) -> None:
        self._topology = topology
        self._gauges: dict[tuple[str, int, str], float] = {}
        self._histograms: dict[tuple[str, str], Histogram] = {}
        self._kinds: dict[str, Metric] = {}
        self._warned: set[str] = set()

    def committed(self, acks: Iterable[Ack]) -> None:
        """Take what the tasks of a committed transaction have set and observed."""
        for ack in acks:
            for series, value in ack.counted.gauges.items():
                key = ack.component, ack.task, series
                if key in self._gauges or len(self._gauges) < SERIES_MAX:
                    self._gauges[key] = value
                else:
                    self._warn(series, f"there are more than {SERIES_MAX} gauges: it is left out")
            for series, (bounds, counts, total) in ack.counted.histograms.items():
                self._observe(ack.component, series, Histogram(bounds, counts, total))

    def _observe(self, component: str, series: str, seen: Histogram) -> None:
        key = component, series
        known = self._histograms
        key = component, placed(series, len(known), SERIES_MAX, lambda each: (component, each) in known)
        before = self._histograms.get(key)
        if before is not None and before.bounds != seen.bounds:
            self._warn(series, "tasks give it different buckets: some of its values are left out")
            return
        self._histograms[key] = seen if before is None else before + seen

    def samples(self, counters: Totals) -> Iterator[Sample]:
        """Yield all values; `counters` are the log's totals."""
        for component, own in counters.items():
            for series, total in own.items():
                yield from self._sample(Kind.COUNTER, component, series, total)
        for (component, task, series), value in list(self._gauges.items()):
            yield from self._sample(Kind.GAUGE, component, series, value, task=str(task))
        for (component, series), histogram in list(self._histograms.items()):
            yield from self._sample(Kind.HISTOGRAM, component, series, histogram)

    def _sample(self, kind: Kind, component: str, series: str, value: Value, **more: str) -> Iterator[Sample]:
        name, labels = parts_of(series)
        metric = self._kinds.setdefault(name, Metric(name, kind, "", (), USERS_HELP))
        if metric.kind is not kind:
            self._warn(
                series, f"it is a {metric.kind} in one component and a {kind} in another: the latter is left out"
            )
            return
        yield Sample(metric, {TOPOLOGY: self._topology, "component": component, **more, **labels}, value)

    def _warn(self, series: str, why: str) -> None:
        name, _ = parts_of(series)
        if name not in self._warned and len(self._warned) < _WARNINGS_MAX:
            self._warned.add(name)
            logger.warning("%s: metric %r of the topology's own: %s. Logged once", self._topology, name, why)


class Measured(Protocol):
    """Something with metrics: a query, a client, or a `TopologyTester`."""

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """All metrics as they are now, as plain data."""
