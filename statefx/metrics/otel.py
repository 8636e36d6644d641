"""Hands metrics to OpenTelemetry, and a span for each transaction: to the providers of its SDK that a program has."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import chain, islice
from typing import Any, Protocol

from statefx.metrics.catalog import METRICS, SECONDS, Kind, Metric
from statefx.metrics.registry import Registry
from statefx.protocol.reports import Ack

try:
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import Link, Span, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError("OpenTelemetry needs its SDK: pip install 'statefx[otel]'") from error

logger = logging.getLogger("statefx")

SCOPE = "statefx"

FRESH_SECS = 1.0
"""How long values count as those of now: a collection asks for each metric, and all are read at once."""


LINKS_MAX = 32
"""How many traces a transaction's span is linked to."""

_PROPAGATOR = TraceContextTextMapPropagator()

_UCUM = {"seconds": "s", "bytes": "By"}


def _ucum(unit: str) -> str:
    """Return a unit as OpenTelemetry's conventions write it; a user's own, which may be any, as it is."""
    return _UCUM.get(unit, unit)


class Measured(Protocol):
    """Something with metrics and attempts: a query, or a `TopologyTester`."""

    @property
    def _registry(self) -> Registry: ...

    @property
    def _watchers(self) -> list[Callable[[Any], None]]: ...


def instrument(
    query: Measured,
    *,
    meterProvider: MeterProvider | None = None,
    tracerProvider: TracerProvider | None = None,
) -> Instrumented:
    """Report the metrics of a query to OpenTelemetry, and each of its transactions as a span.

    Metrics have dots after ``statefx``, and no ``_total``; a histogram of the user's own is two counters, ``.count``
    and ``.sum``. A transaction's span ends when it is committed or rolled back; its children are its phases, and below
    ``run`` its components, each as long as its slowest task: phases follow each other, components run side by side. It
    is linked to the spans that some of the records of a `KafkaSpout` name in their header ``traceparent``.

    Parameters
    ----------
    query : Query or TopologyTester
    meterProvider : MeterProvider, optional
        By default the global one.
    tracerProvider : TracerProvider, optional
        By default the global one.

    Returns
    -------
    Instrumented
        Its ``close`` ends it.
    """
    return Instrumented(query, meterProvider, tracerProvider)


class Instrumented:
    """What reports one query to OpenTelemetry."""

    def __init__(self, query: Measured, meters: MeterProvider | None, tracers: TracerProvider | None) -> None:
        self._registry, self._watchers = query._registry, query._watchers
        self._meter = (meters or metrics.get_meter_provider()).get_meter(SCOPE)
        self._tracer = (tracers or trace.get_tracer_provider()).get_tracer(SCOPE)
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._values: dict[str, list[Observation]] = {}
        self._known: set[str] = set()
        self._histograms = {
            metric.name: self._meter.create_histogram(
                metric.dotted, _ucum(metric.unit), metric.help, explicit_bucket_boundaries_advisory=SECONDS
            )
            for metric in METRICS
            if metric.kind is Kind.HISTOGRAM
        }
        for metric in METRICS:
            if metric.kind is not Kind.HISTOGRAM:
                self._observe(metric.kind, metric.dotted, metric)
        self._registry.on_observation.append(self._record)
        self._watchers.append(self._trace)

    def close(self) -> None:
        """Report nothing more; again is a no-op."""
        with suppress(ValueError):  # they are gone: one has raised, or this was called before
            self._registry.on_observation.remove(self._record)
        with suppress(ValueError):
            self._watchers.remove(self._trace)
        with self._lock:
            self._values, self._read_at = {}, float("inf")

    # ---- metrics

    def _observe(self, kind: Kind, name: str, metric: Metric) -> None:
        self._known.add(name)
        make = self._meter.create_observable_gauge if kind is Kind.GAUGE else self._meter.create_observable_counter
        make(name, [self._callback(name)], _ucum(metric.unit), metric.help)

    def _callback(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observations(options: CallbackOptions) -> Iterable[Observation]:
            try:
                return self._now().get(name, ())
            except Exception:
                logger.exception("metrics for OpenTelemetry can't be read")
                return ()

        return observations

    def _now(self) -> Mapping[str, list[Observation]]:
        """Return all values by name, read at most once in `FRESH_SECS`."""
        with self._lock:
            if time.monotonic() - self._read_at < FRESH_SECS or self._read_at == float("inf"):
                return self._values
            found: dict[str, list[Observation]] = {}
            new: dict[str, tuple[Kind, Metric]] = {}
            for sample in self._registry.samples():
                metric, labels = sample.metric, dict(sample.labels)
                if metric.name in self._histograms:
                    continue
                values: dict[str, float] = {}
                if isinstance(sample.value, int | float):
                    values[metric.dotted if metric.name.startswith("statefx_") else metric.name] = sample.value
                else:
                    values = {f"{metric.name}.count": sample.value.count, f"{metric.name}.sum": sample.value.sum}
                for name, value in values.items():
                    found.setdefault(name, []).append(Observation(value, labels))
                    if name not in self._known:
                        new[name] = (Kind.COUNTER if metric.kind is Kind.HISTOGRAM else metric.kind), metric
            self._values, self._read_at = found, time.monotonic()
            self._known |= new.keys()
        if (
            new
        ):  # metrics of the user's own, seen the first time. The SDK, which asks now, can't be told of more meanwhile
            threading.Thread(target=self._add, args=(new,), name="statefx-otel", daemon=True).start()
        return found

    def _add(self, new: Mapping[str, tuple[Kind, Metric]]) -> None:
        for name, (kind, metric) in new.items():
            self._observe(kind, name, metric)

    def _record(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        self._histograms[metric.name].record(value, dict(labels))

    # ---- spans

    def _trace(self, outcome: Any) -> None:
        """Make the spans of an attempt that has ended (``statefx.coordinator.progress.Outcome``)."""
        attempt = outcome.attempt
        if attempt.batch is None:  # a former driver began it, which alone knows when
            return
        attributes: dict[str, Any] = {
            "statefx.topology": self._registry.topology,
            "statefx.txid": attempt.name.txid,
            "statefx.attempt": attempt.name.attempt,
            "statefx.rows": attempt.input_rows,
            "statefx.outcome": "rolled_back" if outcome.done is None else "committed",
        }
        span = self._tracer.start_span(
            "transaction", start_time=_nanos(attempt.began), attributes=attributes, links=_links(attempt.acks)
        )
        within, at, components = trace.set_span_in_context(span), attempt.began, _slowest(attempt.acks)
        if outcome.done is None:
            span.set_status(Status(StatusCode.ERROR, outcome.reason[:200]))
            self._components(span, at, components)
        else:
            for phase, secs in attempt.secs.items():
                child = self._tracer.start_span(phase, within, start_time=_nanos(at))
                if phase == "run":
                    self._components(child, at, components)
                at += secs
                child.end(_nanos(at))
        span.end(_nanos(outcome.ended))

    def _components(self, span: Span, at: float, components: Mapping[str, float]) -> None:
        within = trace.set_span_in_context(span)
        for component, secs in components.items():
            attributes = {"statefx.component": component}
            child = self._tracer.start_span(component, within, start_time=_nanos(at), attributes=attributes)
            child.end(_nanos(at + secs))


def _slowest(acks: Iterable[Ack]) -> dict[str, float]:
    """Return the seconds of the slowest task of each component."""
    found: dict[str, float] = {}
    for ack in acks:
        found[ack.component] = max(found.get(ack.component, 0.0), sum(ack.metrics.values()) / 1000)
    return found


def _links(acks: Iterable[Ack]) -> list[Link]:
    """Return links to the spans in which some of the records were produced that the transaction has read."""
    parents = islice(dict.fromkeys(chain.from_iterable(ack.traces for ack in acks)), LINKS_MAX)
    contexts = (_PROPAGATOR.extract({"traceparent": parent}, context=Context()) for parent in parents)
    return [Link(trace.get_current_span(context).get_span_context()) for context in contexts]


def _nanos(secs: float) -> int:
    return round(secs * 1e9)
