"""How far spouts are behind their sources: records, rates, and when they will have caught up.

A spout tells it by what its `committed` returns, in one of two forms: ``lagRecords``, a number or a mapping of numbers
by partition, with ``lagSecs`` beside it if it knows the age of the next record; or ``endOffset`` and ``latestOffset``,
by topic and partition, as Kafka's spouts do. Or by its `backlog`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

WINDOW_SECS = 60.0
"""Over which rates are: a batch that comes each second must not look like a burst."""

APART_SECS = 1.0
"""How far apart looks are kept."""

PARTITIONS_MAX = 100
"""Partitions that are told one by one: those that are furthest behind."""


RATED_APART_SECS, RATED_MAX = 15.0, 2_000
"""How far apart looks at single partitions are kept, and of how many at most: those of 10,000 would take 20 MB."""


class _Look(NamedTuple):
    at: float
    lag: float
    read: float | None
    """Offset that is read next, of all partitions together, if the spout tells it."""


class _Parts(NamedTuple):
    at: float
    lags: Mapping[str, float]
    reads: Mapping[str, float]


@dataclass
class Lag:
    """The lag of one spout."""

    partitions: Mapping[str, float] = field(default_factory=dict)
    lag: float = 0.0
    secs: float | None = None
    """The age of the next record, if the spout tells it."""
    _looks: deque[_Look] = field(default_factory=deque)
    _parts: deque[_Parts] = field(default_factory=deque)
    _last: _Parts = field(default_factory=lambda: _Parts(0.0, {}, {}))

    def take(self, said: Any, now: float) -> bool:
        """Take what a spout says of itself; return False if it says nothing of its lag."""
        found = lag_told(said)
        if found is None:
            return False
        self.lag, self.partitions, reads = found
        self.secs = _number(said.get("lagSecs"))
        read = sum(reads.values()) if reads else None
        self._last = _Parts(now, self.partitions, reads)
        if len(self.partitions) <= RATED_MAX and (not self._parts or now - self._parts[-1].at >= RATED_APART_SECS):
            self._parts.append(self._last)
        while len(self._parts) > 2 and self._parts[1].at < now - WINDOW_SECS:
            self._parts.popleft()
        if not self._looks or now - self._looks[-1].at >= APART_SECS or now < self._looks[-1].at:
            self._looks.append(_Look(now, self.lag, read))
        while len(self._looks) > 2 and self._looks[1].at < now - WINDOW_SECS:
            self._looks.popleft()
        return True

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data; None for what is not known.

        ``lagSecs`` is how long ago the record came that is read next, at the rate of the last minute unless the spout
        tells it; ``etaSecs`` is
        when it will have caught up, None if it does not gain. Rates are records a second.
        """
        first = self._looks[0] if len(self._looks) > 1 else _Look(0.0, 0.0, None)
        last = self._looks[-1] if self._looks else first
        furthest = sorted(self.partitions.items(), key=lambda each: (-each[1], each[0]))[:PARTITIONS_MAX]
        own = _rated(self.lag, first, last)
        if self.secs is not None:
            own["lagSecs"] = self.secs
        return own | {
            "partitions": [{"partition": name} | _rated(lag, *self._looks_at(name)) for name, lag in furthest]
        }

    def _looks_at(self, partition: str) -> tuple[_Look, _Look]:
        """Return the first look of the last minute at a partition, and the last one."""
        known = (each for each in (*self._parts, self._last) if partition in each.lags)
        return _look(next(known), partition), _look(self._last, partition)


def _look(parts: _Parts, partition: str) -> _Look:
    return _Look(parts.at, parts.lags[partition], parts.reads.get(partition))


def _rated(lag: float, first: _Look, last: _Look) -> dict[str, float | None]:
    """Return a lag with its rates, from two looks at it."""
    rate_in = rate_out = lag_secs = eta_secs = None
    secs = last.at - first.at
    if secs > 0:
        gains = (first.lag - last.lag) / secs
        if first.read is not None and last.read is not None:
            rate_out = (last.read - first.read) / secs
            rate_in = rate_out - gains
        if lag and gains > 0:
            eta_secs = lag / gains
        if lag and rate_in is not None and rate_in > 0:
            lag_secs = lag / rate_in
    if not lag:
        lag_secs = eta_secs = 0.0
    return {"lagRecords": lag, "lagSecs": lag_secs, "rateIn": rate_in, "rateOut": rate_out, "etaSecs": eta_secs}


def lag_told(said: Any) -> tuple[float, dict[str, float], dict[str, float]] | None:
    """Return the lag, that of each partition, and the offset of each that is read next, as far as a spout tells."""
    if not isinstance(said, Mapping):
        return None
    own = said.get("lagRecords")
    if (lag := _number(own)) is not None:
        return lag, {}, {}
    if isinstance(own, Mapping) and all(_number(each) is not None for each in own.values()):
        return sum(own.values()), {str(name): lag for name, lag in own.items()}, {}
    read, latest = _offsets(said.get("endOffset")), _offsets(said.get("latestOffset"))
    if latest:
        lags = {name: max(end - read[name], 0) for name, end in latest.items() if name in read}
        return sum(lags.values()), lags, read
    average, number = _number(said.get("avgOffsetsBehindLatest")), _number(said.get("partitions"))
    return None if average is None or number is None else (average * number, {}, {})


def _offsets(said: Any) -> dict[str, float]:
    if not isinstance(said, Mapping):
        return {}
    return {
        f"{topic}-{partition}": offset
        for topic, own in said.items()
        if isinstance(own, Mapping)
        for partition, offset in own.items()
        if _number(offset) is not None
    }


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
