"""Metrics of a user's bolts and spouts: ``context.metrics``."""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

from statefx.errors import ConfigError
from statefx.protocol.counting import Counted, Number, placed, series_of
from statefx.state.view.changes import UNKNOWN, Journal

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)

RESERVED = "statefx_"
"""How no metric of a user may begin."""

OWN_LABELS = ("topology", "component", "task", "le", "quantile")
"""Labels that statefx or Prometheus gives."""

NAME_CHARS, VALUE_CHARS, LABELS_MAX = 200, 100, 5
"""Of a name, of the value of a label, and labels of a metric: a series is kept in the log, and is in each ack."""

SERIES_MAX = 500
"""Series that one task may have in a transaction; what is beyond is counted as ``other``."""

AMOUNT_MAX = 1 << 53
"""Up to here Prometheus counts exactly."""

_ACKED_MAX = 1 << 63
"""An ack has no larger integer: what one attempt adds beyond it is a float."""

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Prometheus's own, for seconds."""


class Metrics:
    """Metrics of one task, from ``context.metrics``; counted when the transaction is committed.

    Contract
    --------
    - What an attempt counts that is rolled back is never seen, nor is that of a row that ``onError`` has set aside.
    - A counter counts each transaction exactly once, over any number of crashes, restarts and drivers; a restore takes
      it back with the state. Gauges and histograms begin anew with each driver.
    - What `preCommit` and `preRollback` count is not counted, for they may run more than once; nor is what a spout's
      copy on the driver does.
    - A ``Spout`` counts what ``nextTuple``, ``ack`` and ``fail`` do in the next transaction.
    - There may be 1,000 series of counters in a topology, and a task may count 500 in a transaction. What is beyond is
      counted with ``other`` as the value of each label, without labels as the name, and one warning tells of it.
    """

    def __init__(self) -> None:
        self._counters: dict[str, Number] = {}
        self._gauges: dict[str, Number] = {}
        self._histograms: dict[str, _Observed] = {}
        self._made: dict[tuple[str, tuple[tuple[str, str], ...]], _Handle] = {}
        self._forms: dict[str, tuple[type, tuple[str, ...], tuple[float, ...]]] = {}
        self.journal: Journal | None = None
        """While calls are guarded: undoes what the call has counted."""
        self.calls: ContextVar[Any] | None = None
        """Where several calls are in flight: the present one, which counts when it is kept."""

    def counter(self, name: str, /, **labels: Any) -> Counter:
        """Return a counter: something that only grows.

        Parameters
        ----------
        name : str
            By Prometheus's rules, and not beginning with ``statefx_``. Prometheus shows it with ``_total``.
        **labels : str, int, float or bool
            What tells it apart from others of the name: few values each, never a key, an id or a text of users.

        Raises
        ------
        ConfigError
            A name that can't be one, or another kind of metric, or other labels than before under this name.
        """
        return self._metric(Counter, name.removesuffix("_total") if isinstance(name, str) else name, labels)

    def gauge(self, name: str, /, **labels: Any) -> Gauge:
        """Return a gauge: a value that goes up and down, of each task its own; as `counter`."""
        return self._metric(Gauge, name, labels)

    def histogram(self, name: str, /, buckets: Iterable[float] = BUCKETS, **labels: Any) -> Histogram:
        """Return a histogram: values, counted by size.

        Parameters
        ----------
        name, **labels
            As of `counter`.
        buckets : iterable of float
            Upper bounds, growing; at most 50.

        Raises
        ------
        ConfigError
            As of `counter`; or `buckets` don't grow, or are others than before under this name.
        """
        return self._metric(Histogram, name, labels, _bounds(name, buckets))

    def _metric(self, kind: type[_Kind], name: str, labels: Mapping[str, Any], bounds: tuple[float, ...] = ()) -> _Kind:
        key = name, tuple(labels.items())
        is_text = all(type(value) is str for value in labels.values())  # 1 and True would be one key
        known = self._made.get(key) if is_text else None
        if isinstance(known, kind) and known.bounds == bounds:
            return known
        texts = _checked(kind, name, labels)
        form = kind, tuple(sorted(texts)), bounds
        before = self._forms.get(name, form)
        if len(self._forms) < 2 * SERIES_MAX:  # names of keys have no end: of those beyond, the form is not known again
            self._forms[name] = before
        if before != form:
            raise ConfigError(
                f"context.metrics: {name!r} was a {_shown(*before)} before, and is a {_shown(*form)} now: one name is "
                "one kind of metric, with the same labels each time. Take another name",
                metric=name,
            )
        made = kind(self, series_of(name, texts), bounds)
        if is_text and len(self._made) < 2 * SERIES_MAX:
            self._made[key] = made
        return made

    # ---- the runtime's

    def defers(self, count: Callable[[], None]) -> bool:
        """Leave it to the present call, if there is one, to count something when it is kept."""
        call = None if self.calls is None else self.calls.get(None)
        if call is None:
            return False
        if not call.done:
            call.count_later(count)
        return True

    def take(self) -> Counted:
        """Return what was counted, and forget it."""
        # Exchanged first: a thread that the user's code has begun may count meanwhile.
        counters, self._counters = self._counters, {}
        gauges, self._gauges = self._gauges, {}
        observed, self._histograms = self._histograms, {}
        histograms = {series: (each.bounds, tuple(each.counts), each.sum) for series, each in list(observed.items())}
        return Counted(dict(counters), dict(gauges), histograms)

    def place(self, of: dict[str, Any], series: str) -> str:
        """Return under which series something new is counted."""
        series = placed(series, len(of), SERIES_MAX, of.__contains__)
        if self.journal is not None:
            before = of.get(series, UNKNOWN)
            self.journal.append((of, series, before.copy() if isinstance(before, _Observed) else before))
        return series


@dataclass(slots=True)
class _Observed:
    bounds: tuple[float, ...]
    counts: list[int]
    sum: float = 0.0

    def copy(self) -> _Observed:
        return _Observed(self.bounds, list(self.counts), self.sum)


class _Handle:
    """One series of a metric."""

    __slots__ = ("_metrics", "_series", "bounds")

    def __init__(self, metrics: Metrics, series: str, bounds: tuple[float, ...]) -> None:
        self._metrics, self._series, self.bounds = metrics, series, bounds


_Kind = TypeVar("_Kind", bound=_Handle)


class Counter(_Handle):
    """A counter of one task, as `Metrics.counter` returns it."""

    __slots__ = ()

    def inc(self, amount: Number = 1, /) -> None:
        """Add to it.

        Parameters
        ----------
        amount : int or float
            0 or more.

        Raises
        ------
        ConfigError
            It is none, or below 0, or more than 2**53.
        """
        if not (type(amount) is int and 0 <= amount <= AMOUNT_MAX):
            _check_number(self._series, amount, least=0)
        if self._metrics.calls is None or not self._metrics.defers(partial(self._add, amount)):
            self._add(amount)

    def _add(self, amount: Number) -> None:
        counters = self._metrics._counters
        series = self._metrics.place(counters, self._series)
        total = counters.get(series, 0) + amount
        counters[series] = total if total < _ACKED_MAX else float(total)


class Gauge(_Handle):
    """A gauge of one task, as `Metrics.gauge` returns it."""

    __slots__ = ()

    def set(self, value: Number, /) -> None:
        """Set it to a number; ConfigError if it is none."""
        _check_number(self._series, value)
        if self._metrics.calls is None or not self._metrics.defers(partial(self._set, value)):
            self._set(value)

    def _set(self, value: Number) -> None:
        gauges = self._metrics._gauges
        gauges[self._metrics.place(gauges, self._series)] = value


class Histogram(_Handle):
    """A histogram of one task, as `Metrics.histogram` returns it."""

    __slots__ = ()

    def observe(self, value: Number, /) -> None:
        """Count a number; ConfigError if it is none."""
        _check_number(self._series, value)
        if self._metrics.calls is None or not self._metrics.defers(partial(self._take, value)):
            self._take(value)

    def _take(self, value: Number) -> None:
        histograms = self._metrics._histograms
        series = self._metrics.place(histograms, self._series)
        observed = histograms.get(series)
        if observed is None:
            observed = histograms[series] = _Observed(self.bounds, [0] * (len(self.bounds) + 1))
        observed.counts[bisect.bisect_left(observed.bounds, value)] += 1
        observed.sum += value


def _check_number(series: str, value: object, least: float = -AMOUNT_MAX) -> None:
    if type(value) in (int, float) and least <= value <= AMOUNT_MAX:  # type: ignore[operator]
        return
    wanted = "a number from 0 to 2**53" if least == 0 else "a number, at most 2**53"
    raise ConfigError(f"context.metrics: {series} was given {value!r}, which is not {wanted}", metric=series)


def _bounds(name: str, buckets: Iterable[float]) -> tuple[float, ...]:
    try:
        bounds = tuple(float(bound) for bound in buckets)
    except (TypeError, ValueError):
        bounds = ()
    grows = all(one < following for one, following in pairwise(bounds))
    if not (1 <= len(bounds) <= 50 and grows and all(map(math.isfinite, bounds))):
        raise ConfigError(
            f"context.metrics: the buckets of {name!r} are upper bounds that grow, 1 to 50 numbers, as "
            f"buckets=(0.1, 1, 10); not {buckets!r}",
            metric=name,
        )
    return bounds


def _checked(kind: type, name: object, labels: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels as texts; ConfigError names what can't be one."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > NAME_CHARS:
        shown = name if not isinstance(name, str) or len(name) <= NAME_CHARS else f"{name[:NAME_CHARS]}..."
        raise ConfigError(
            f"context.metrics: {shown!r} can't be the name of a metric: letters, digits and underscores, no digit "
            f"first, {NAME_CHARS} at most",
            metric=shown,
        )
    if kind is not Counter and name.endswith("_total"):
        raise ConfigError(
            f"context.metrics: {name!r} ends with _total, as a counter's name does: take context.metrics.counter, or "
            "another name",
            metric=name,
        )
    if name.startswith(RESERVED):
        raise ConfigError(
            f"context.metrics: {name!r} begins with {RESERVED!r}, as the names of statefx's own metrics do: take "
            "another name",
            metric=name,
        )
    if len(labels) > LABELS_MAX:
        raise ConfigError(f"context.metrics: {name!r} has {len(labels)} labels, and may have {LABELS_MAX}", metric=name)
    return {label: _label_value(name, label, value) for label, value in labels.items()}


def _label_value(name: str, label: str, value: Any) -> str:
    if label in OWN_LABELS or label.startswith("__") or not LABEL.fullmatch(label) or len(label) > NAME_CHARS:
        raise ConfigError(
            f"context.metrics: {label!r} can't be a label of {name!r}: {', '.join(OWN_LABELS)} and what begins with __ "
            "are not the user's; others are letters, digits and underscores",
            metric=name,
            label=label,
        )
    if not isinstance(value, str | int | float):
        raise ConfigError(
            f"context.metrics: label {label!r} of {name!r} is {value!r}: a label is a short text, of few values",
            metric=name,
            label=label,
        )
    # Half a surrogate pair, as of bytes that were no text, can't be exposed: one would cost the scrape of all metrics.
    return str(value)[:VALUE_CHARS].encode("utf-8", "backslashreplace").decode()


def _shown(kind: type, labels: tuple[str, ...], bounds: tuple[float, ...]) -> str:
    """Return a metric's form in words."""
    words = kind.__name__.lower()
    if bounds:
        words += f" with {len(bounds)} buckets"
    return f"{words} labelled {', '.join(labels)}" if labels else f"{words} without labels"
