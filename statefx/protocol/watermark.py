"""Event time: how far it has come in each source, and in each task by that.

Times are microseconds since 1970, in UTC, as Arrow's ``timestamp[us]`` has them. A watermark says that rows of earlier
times are not expected any more::

    source    the greatest time of its rows so far - lateness
    channel   the barriers of all tasks that send: the least of them
    task      the least of its channels, and never less than before

A source is divided into **units** that get on by themselves: the tasks of a spout, or its partitions if it has some,
and each of their streams. The slowest unit of a task holds the task's watermark. One that is idle does not.

Partitions that are finished are one unit together, which has come as far as the furthest of them. It counts only while
no other partition of the spout holds: which of them are left, only who reads from all tasks of the spout knows, so
barriers carry both (`Part`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

BEGINNING = -(1 << 63)
"""Before all times: the watermark where nothing is known yet."""


DEFAULT_STREAM = "default"


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the event time of a stream's rows stands, and how it is read."""

    field: str
    lateness_us: int = 0  # how much earlier than the greatest time a row may be without being late
    # How far ahead of the order's clock a time may be: what is further does not count.
    ahead_us: int = 86_400_000_000
    idle_ms: int | None = None  # after so long without a row a unit does not hold the watermark; None: it always does


END = (1 << 63) - 1
"""After all times: the watermark of event time that is closed."""

FINISHED = -1
"""The number of the unit that finished partitions are together."""


class Part(NamedTuple):
    """How far some partitions of a spout that can finish have come, all in one stream of it."""

    holding: int | None = None  # the least of those that are not finished; None: none of these holds
    finished: int | None = None  # the greatest of those that are

    @property
    def reached(self) -> int | None:
        """How far they have come together, or None if they hold nothing."""
        return self.finished if self.holding is None else self.holding


def together(parts: Iterable[Mapping[str, Part]]) -> Mapping[str, Part]:
    """Return what several tasks say of the streams of spouts.

    >>> together([{"a": Part(None, 7)}, {"a": Part(5, 9)}, {"b": Part()}])
    {'a': Part(holding=5, finished=9), 'b': Part(holding=None, finished=None)}
    """
    found: dict[str, Part] = {}
    for each in parts:
        for name, part in each.items():
            known = found.get(name, part)
            finished = max((one for one in (known.finished, part.finished) if one is not None), default=None)
            found[name] = Part(least((known.holding, part.holding)), finished)
    return found


class UnitTime(NamedTuple):
    """The time of a unit."""

    time_us: int  # the greatest time of its rows
    at_ms: int = 0  # the order's `read_ms` when the last row came; 0 where nobody asks whether it is idle


@dataclass(frozen=True, slots=True)
class TimeOrder:
    """A task's event time, as decided before its transaction."""

    watermark: int = BEGINNING  # the task's own
    # Of the units that it emits; of a DataFrame with what the rows of the transaction say, all of which are known.
    unit_times: Mapping[str, UnitTime] = field(default_factory=dict)
    partitions: int | None = None  # how many its spout has; None: it has none
    unfinished: tuple[int, ...] | None = None  # those of the task that are not finished; None: none ever is
    since_ms: int = 0  # when the driver's first attempt began: nobody was idle before
    # Rule 14.5: when the attempt began, and the last one that is decided, by a clock that stands while nothing is read.
    read_ms: int = 0
    decided_ms: int = 0
    closing: bool = False  # whether the transaction closes event time: it reads nothing, and its watermark is `END`
    ahead: int = 0  # rows of a DataFrame whose times did not count


@dataclass(frozen=True, slots=True)
class TimeReport:
    """A task's event time at the end of a transaction."""

    watermark: int  # the task's own
    unit_times: Mapping[str, UnitTime] = field(default_factory=dict)  # units that had rows
    ahead: int = 0  # rows whose times did not count, since they are too far ahead
    late: int = 0  # rows that came too late for the bolt
    finished: tuple[int, ...] = ()  # partitions that are finished with this transaction


def unit_of(source: str, number: int, stream: str = DEFAULT_STREAM) -> str:
    """Name a unit; `number` is that of the partition, or of the task of a spout without any.

    >>> unit_of("orders", 3), unit_of("orders", 3, "returns")
    ('orders/3', 'orders/3/returns')
    """
    return f"{source}/{number}" if stream == DEFAULT_STREAM else f"{source}/{number}/{stream}"


def least(watermarks: Iterable[int | None]) -> int | None:
    """Return the least watermark; None stands for what does not hold it, such as an idle input.

    >>> least([None, 7, 5]), least([None]), least([BEGINNING, 5]) == BEGINNING
    (5, None, True)
    """
    return min((each for each in watermarks if each is not None), default=None)


def reached(unit: UnitTime | None, timing: Timing, read_ms: int, since_ms: int) -> int | None:
    """Return how far a unit has come, or None if it is idle; `read_ms` is as of `TimeOrder`."""
    if timing.idle_ms is not None:
        # Rule 14.5: what has come meanwhile waits in all units, and is read one after the other.
        # A clock that ran ahead for a while has left times that are still to come: they say nothing.
        last_ms = since_ms if unit is None or unit.at_ms > read_ms else max(since_ms, unit.at_ms)
        if read_ms - last_ms >= timing.idle_ms:
            return None
    return BEGINNING if unit is None else max(BEGINNING, unit.time_us - timing.lateness_us)


def then(known: Mapping[str, UnitTime], later: Mapping[str, UnitTime]) -> Mapping[str, UnitTime]:
    """Return what both amount to.

    With several transactions in flight, the later one may not have known of the earlier one (rule 14.3).

    >>> then({"a/0": UnitTime(5, 2)}, {"a/0": UnitTime(3, 4)})["a/0"]
    UnitTime(time_us=5, at_ms=4)
    """
    if not later:
        return known
    found = dict(known)
    for name, unit in later.items():
        before = found.get(name, unit)
        found[name] = UnitTime(max(before.time_us, unit.time_us), unit.at_ms)  # the clock may have been set back
    return found
