"""Warns when event time stands still while rows come, and names what holds it.

A unit without rows, such as one partition of ten, holds the watermark of the whole topology: windows and timers then
wait for it without a word, and their state grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from statefx.coordinator.event_time import Numbers
from statefx.operators.spouts import has_partitions
from statefx.plan.levels import Plan
from statefx.protocol.barrier import Ack
from statefx.protocol.log_state import LogState
from statefx.protocol.watermark import BEGINNING, Timing, reached, unit_of
from statefx.state.view.time_index import time_of
from statefx.topology.graph import ComponentKind

STILL_MS = 60_000
"""How long event time stands still, while rows come whose times go on, until that is warned of."""

AGAIN_MS = 600_000
"""How long after a warning the next one may come."""


@dataclass
class Standstill:
    """What a driver knows of how event time gets on; times are those of the attempts (rule 9.9)."""

    plan: Plan
    _lowest: int = field(default=BEGINNING, init=False)
    """The least watermark of all tasks, which nothing has moved since `_since_ms`."""
    _since_ms: int | None = field(default=None, init=False)
    _warned_ms: int | None = field(default=None, init=False)

    def warning(
        self,
        state: LogState,
        acks: Iterable[Ack],
        clock_ms: int,
        since_ms: int,
        partitions: Mapping[str, int],
        finished: Mapping[str, Numbers],
    ) -> str:
        """Return what to warn of when a transaction has been decided, which `state` has; empty: nothing.

        `since_ms` is when the driver's first attempt began; `partitions` and `finished` are as of `EventTimes`.
        """
        times = [ack.time for ack in acks if ack.time is not None]
        lowest = min((time.watermark for time in times), default=BEGINNING)
        if self._since_ms is None or lowest > self._lowest or not times:
            self._lowest, self._since_ms = lowest, clock_ms
            return ""
        rows_wait = any(unit.time_us > lowest for time in times for unit in time.heard.values())
        still_ms = clock_ms - self._since_ms
        recent = self._warned_ms is not None and clock_ms - self._warned_ms < AGAIN_MS
        if not rows_wait or still_ms < STILL_MS or recent:
            return ""
        held = self._holder(state, clock_ms, since_ms, partitions, finished)
        if held:
            self._warned_ms = clock_ms
            still = "not begun" if lowest == BEGINNING else f"stood still at {time_of(lowest).isoformat()}"
            return f"event time has {still} for {still_ms // 1000} s, while rows come: {held}"
        return ""

    def _holder(
        self,
        state: LogState,
        clock_ms: int,
        since_ms: int,
        partitions: Mapping[str, int],
        finished: Mapping[str, Numbers],
    ) -> str:
        """Return what is furthest behind, and the remedy; empty: nothing holds event time."""
        held = [
            (at, unit)
            for unit in self._units(partitions, finished)
            if (at := reached(state.heard.get(unit.unit), unit.timing, clock_ms, since_ms)) is not None
        ]
        if not held:
            return ""
        _, unit = min(held, key=itemgetter(0))
        heard = state.heard.get(unit.unit)
        came = "has had no row yet" if heard is None else f"has had rows up to {time_of(heard.time_us).isoformat()}"
        if unit.timing.idle_ms is None:
            remedy = f'give it an idleAfter, as {unit.call}("{unit.component}", ..., idleAfter="5 minutes")'
        else:
            remedy = f"wait until its idleAfter of {unit.timing.idle_ms / 1000:g} s has passed, or make that shorter"
        ended = (
            ". If none comes any more, have isFinished of the spout say so"
            if unit.what.startswith("partition ")
            else ""
        )
        return (
            f"{unit.what} holds it, which {came}. Windows and timers wait for that. If no rows may come for long, "
            f"{remedy}: what has no row for so long is not waited for{ended}"
        )

    def _units(self, partitions: Mapping[str, int], finished: Mapping[str, Numbers]) -> Iterator[_Unit]:
        """Yield all that can hold event time."""
        for name, timing in self.plan.timings.items():
            yield _Unit(name, name, f"the DataFrame {name!r}", "setStream", timing)
        for name in sorted(self.plan.timed - self.plan.timings.keys()):
            component = self.plan.components[name]
            read = {edge.stream for edge in self.plan.outputs[name]}
            parted = has_partitions(component.operator)
            call = "setSpout" if component.kind is ComponentKind.SPOUT else "setBolt"
            numbers: Iterable[int] = range(partitions.get(name, 0) if parted else component.parallelism)
            if name in finished:
                numbers = finished[name].lacking(partitions.get(name, 0))
            for stream, timing in component.timings.items():
                for number in numbers if stream in read else ():
                    what = f"{'partition' if parted else 'task'} {number} of {component.kind} {name!r}"
                    yield _Unit(name, unit_of(name, number, stream), what, call, timing)


class _Unit(NamedTuple):
    """What can hold event time: a unit, by what call its component was declared, and how people call it."""

    component: str
    unit: str
    what: str
    call: str
    timing: Timing
