"""The values of users' metrics: totals of counters from the log, gauges and histograms as this driver has seen them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from statefx.metrics.catalog import TOPOLOGY, Kind, Metric
from statefx.metrics.registry import SERIES_MAX, Histogram, Sample, Value
from statefx.protocol.counting import Totals, parts_of, placed
from statefx.protocol.reports import Ack

logger = logging.getLogger("statefx")

_WARNINGS_MAX = 20
"""Names that are warned of: a program that makes names of keys has no end of them."""

HELP = "Counted by the topology itself: context.metrics."


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
        metric = self._kinds.setdefault(name, Metric(name, kind, "", (), HELP))
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
