"""Time on the driver: ticks, event time, and a watermark that stands still."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from statefx.log.log import TransactionLog
from statefx.operators.spouts import has_partitions
from statefx.plan.levels import Plan
from statefx.protocol.identity import TaskId
from statefx.protocol.log_state import LogState
from statefx.protocol.reports import Ack
from statefx.protocol.watermark import BEGINNING, FINISHED, TimeOrder, Timing, UnitTime, reached, then, unit_of
from statefx.state.view.time_index import time_of
from statefx.topology.graph import ComponentKind


@dataclass
class Ticks:
    """The ticks of one driver.

    Rule 9.9: the clock of an attempt is the time of its PREPARING. So it is the same for all tasks and segments, and a
    successor finds it in the log.
    """

    secs: Mapping[str, float]
    """How long the period of a bolt is, by component; periods end at multiples of it, since the epoch."""
    log: TransactionLog
    started_ms: int
    """When this driver started: what counts where the log knows of no transaction before."""

    def due(self, txid: int, clock_ms: int) -> tuple[str, ...]:
        """Return the bolts that get a tick in `txid`, if it begins at `clock_ms`; one each, however late it is."""
        if not self.secs:
            return ()
        before_ms = self._clock_before(txid)
        # Unequal, and not more: a clock that was set back by an hour would give no tick for an hour.
        return tuple(id for id, secs in self.secs.items() if _period(clock_ms, secs) != _period(before_ms, secs))

    def time_has_come(self, txid: int, now_ms: int) -> bool:
        """Return whether `txid` is to begin for a tick or a timer, also if there is nothing to read."""
        state = self.log.state
        # What is in flight may fire the timer, and say when the next one is due.
        timer = not state.in_flight and 0 < state.due_ms <= now_ms
        return timer or bool(self.due(txid, now_ms))

    def _clock_before(self, txid: int) -> int:
        # Also of one that is in flight: if that is rolled back, so is `txid`, and both are tried again.
        state = self.log.state
        in_flight_ms = state.clock_ms(txid - 1)
        if in_flight_ms is not None:
            return in_flight_ms
        for past in reversed(state.history.past):
            if past.txid == txid - 1 and past.state == "COMMITTED":
                return past.prepared_ms
        return self.started_ms


def _period(clock_ms: int, secs: float) -> int:
    return int(clock_ms // (secs * 1000))


@dataclass
class ReadingClock:
    """A clock of the driver that nobody sets, and that stands while nothing is read: how long a unit has had no row.

    Rule 14.5: what comes while a transaction is tried again, a commit is retried or the driver is paused waits in all
    units. Another attempt has the time of the first one, so that it finds the same units idle.
    """

    since_ms: int | None = None
    """When the first attempt of the driver began."""
    _read_ms: dict[int, int] = field(default_factory=dict, init=False)
    """When the transactions in flight, and the last one that is decided, have begun."""
    _behind_ms: int = field(default=0, init=False)
    """How far it is behind `going_ms` since the newest attempt began."""

    def begin(self, txid: int, clock_ms: int, going_ms: int, decided: int) -> None:
        """Begin an attempt at `clock_ms`; `decided` is the last transaction that is.

        `going_ms` is for how long in all something could begin. By a clock that is set back, times of this driver would
        seem those of a former one, which tell nothing; by one that is set forward, units would be idle that have rows.
        """
        self._read_ms = {number: at for number, at in self._read_ms.items() if decided <= number <= txid}
        if self.since_ms is None:  # what was before it does not count: it begins here
            self.since_ms, self._behind_ms = clock_ms, going_ms - clock_ms
        self._read_ms.setdefault(txid, self.at(going_ms))
        self._behind_ms = going_ms - self._read_ms[txid]

    def at(self, going_ms: int) -> int:
        """Return what it shows while nothing begins."""
        return going_ms - self._behind_ms

    def of(self, txid: int) -> int:
        """Return when a transaction of this driver has begun; `since_ms` for others, which tell nothing."""
        return self._read_ms.get(txid, self.since_ms or 0)


@dataclass
class EventTimes:
    """Event time in the transactions of a plan.

    The log has all of it, except which partitions are finished: a spout's metadata of its batches says that.
    """

    plan: Plan
    finished: dict[str, Numbers] = field(default_factory=dict)
    """The partitions that are finished (rule 14.11), of each spout of which some may be."""

    def orders(
        self,
        state: LogState,
        since_ms: int,
        read_ms: int,
        decided_ms: int,
        partitions: Mapping[str, int],
        staged: Mapping[str, UnitTime],
        ahead: Mapping[str, int],
        *,
        closing: bool = False,
    ) -> dict[TaskId, TimeOrder]:
        """Return each task's event time.

        `since_ms`, `read_ms` and `decided_ms` are as of `TimeOrder`, `partitions` is how many each spout has, `staged`
        and `ahead` the times of DataFrames' rows by stream and the number of rows too far ahead to count.
        """
        found: dict[TaskId, TimeOrder] = {}
        units = _by_source(state.unit_times) if self.plan.timed else {}
        for name in sorted(self.plan.timed):
            component = self.plan.components[name]
            own: list[dict[str, UnitTime]] = [{} for _ in range(component.parallelism)]
            if name in self.plan.timings:
                before = {name: state.unit_times[name]} if name in state.unit_times else {}
                now = {name: staged[name]} if name in staged else {}
                own = [dict(then(before, now)) for _ in own]
            finished, number_of = self.finished.get(name), partitions.get(name)
            unfinished: list[list[int]] = [[] for _ in own]
            for number in () if finished is None else finished.lacking(number_of or 0):
                unfinished[number % len(own)].append(number)
            for number, unit in units.get(name, ()):
                if number == FINISHED:
                    for each in own:
                        each[unit] = state.unit_times[unit]
                    continue
                # A spout without partitions may have had more tasks: they have nothing to hold any more.
                task = number % len(own) if has_partitions(component.operator) else number
                if task < len(own) and (finished is None or number not in finished):
                    own[task][unit] = state.unit_times[unit]
            for task, unit_times in enumerate(own):
                id = TaskId(name, task)
                watermark = state.watermarks.get(str(id), BEGINNING)
                left = None if finished is None else tuple(unfinished[task])
                out = ahead.get(name, 0) if task == 0 else 0  # once: acks of all tasks are added up
                found[id] = TimeOrder(
                    watermark, unit_times, number_of, left, since_ms, read_ms, decided_ms, closing, out
                )
        return found

    def decided(self, state: LogState, acks: Iterable[Ack]) -> dict[str, Any]:
        """Return the fields of COMMITTING for event time, if it has moved (rule 14.1)."""
        watermarks: dict[str, int] = {}
        unit_times: Mapping[str, UnitTime] = {}
        for ack in acks:
            if ack.time is None:
                continue
            if ack.time.watermark > state.watermarks.get(str(ack.id), BEGINNING):
                watermarks[str(ack.id)] = ack.time.watermark
            unit_times = then(unit_times, ack.time.unit_times)
            if ack.time.finished:
                self.finished[ack.component].update(ack.time.finished)
        ended, together = self._ended(state)
        unit_times = then(together, unit_times)
        new = {name: unit for name, unit in unit_times.items() if unit != state.unit_times.get(name)}
        return {"watermarks": watermarks, "unit_times": new, "ended_units": ended}

    def _ended(self, state: LogState) -> tuple[tuple[str, ...], dict[str, UnitTime]]:
        """Return the units of finished partitions that the log has still, and their times, as one unit's.

        Their task may not have known them: it may have begun before the transaction was decided in which their first
        row came.
        """
        ended: list[str] = []
        found: dict[str, UnitTime] = {}
        units = _by_source(state.unit_times) if self.finished else {}
        for spout, finished in self.finished.items():
            for number, unit in units.get(spout, ()):
                if number in finished:
                    ended.append(unit)
                    together, known = unit.replace(f"/{number}", f"/{FINISHED}", 1), state.unit_times[unit]
                    found[together] = max(known, found.get(together, known))
        return tuple(ended), found


class Numbers:
    """Whole numbers from 0 on, of which those that are lacking are few, but for all from some number on."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._stop = 0
        """All from it on are lacking, and before it those of `_lacking`: one that never comes costs nobody else."""
        self._lacking: set[int] = set()
        self.update(numbers)

    def update(self, numbers: Iterable[int]) -> None:
        for number in sorted(numbers):
            self._lacking.update(range(self._stop, number))
            self._stop = max(self._stop, number + 1)
            self._lacking.discard(number)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and 0 <= number < self._stop and number not in self._lacking

    def lacking(self, stop: int) -> list[int]:
        return [*sorted(number for number in self._lacking if number < stop), *range(self._stop, stop)]


def _by_source(unit_times: Iterable[str]) -> dict[str, list[tuple[int, str]]]:
    """Return the units of tasks and partitions by component, each with its number."""
    found: dict[str, list[tuple[int, str]]] = {}
    for unit in unit_times:
        source, _, rest = unit.partition("/")
        if rest:
            found.setdefault(source, []).append((int(rest.partition("/")[0]), unit))
    return found


STILL_MS = 60_000
"""How long event time stands still, while rows come whose times go on, until that is warned of."""

AGAIN_MS = 600_000
"""How long after a warning the next one may come."""


@dataclass
class Standstill:
    """Watches how event time gets on; times are `ReadingClock`'s."""

    plan: Plan
    _lowest: int = field(default=BEGINNING, init=False)
    """The least watermark of all tasks, which nothing has moved since `_since_ms`."""
    _since_ms: int | None = field(default=None, init=False)
    _warned_ms: int | None = field(default=None, init=False)

    def warning(
        self,
        state: LogState,
        acks: Iterable[Ack],
        read_ms: int,
        since_ms: int,
        partitions: Mapping[str, int],
        finished: Mapping[str, Numbers],
    ) -> str:
        """Return a warning for a transaction that `state` has as decided, or "".

        `read_ms` and `since_ms` are as of `TimeOrder`, `partitions` and `finished` are as of `EventTimes`.
        """
        times = [ack.time for ack in acks if ack.time is not None]
        lowest = min((time.watermark for time in times), default=BEGINNING)
        if self._since_ms is None or lowest > self._lowest or not times:
            self._lowest, self._since_ms = lowest, read_ms
            return ""
        rows_wait = any(unit.time_us > lowest for time in times for unit in time.unit_times.values())
        still_ms = read_ms - self._since_ms
        recent = self._warned_ms is not None and read_ms - self._warned_ms < AGAIN_MS
        if not rows_wait or still_ms < STILL_MS or recent:
            return ""
        held = self._holder(state, read_ms, since_ms, partitions, finished)
        if held:
            self._warned_ms = read_ms
            still = "not begun" if lowest == BEGINNING else f"stood still at {time_of(lowest).isoformat()}"
            return f"event time has {still} for {still_ms // 1000} s, while rows come: {held}"
        return ""

    def _holder(
        self,
        state: LogState,
        read_ms: int,
        since_ms: int,
        partitions: Mapping[str, int],
        finished: Mapping[str, Numbers],
    ) -> str:
        """Return what is furthest behind, and the remedy, or "" if nothing holds event time."""
        held = self._furthest_behind(state, read_ms, since_ms, partitions, finished)
        if held is None:
            return ""
        _, unit = held
        known = state.unit_times.get(unit.unit)
        came = "has had no row yet" if known is None else f"has had rows up to {time_of(known.time_us).isoformat()}"
        if unit.timing.idle_ms is None:
            remedy = f'give it an idleAfter, as {unit.call}("{unit.component}", ..., idleAfter="5 minutes")'
        else:
            remedy = f"wait until its idleAfter of {unit.timing.idle_ms / 1000:g} s has passed, or make that shorter"
        ended = ". If none comes any more, have isFinished of the spout say so" if unit.may_finish else ""
        return (
            f"{unit.what} holds it, which {came}. Windows and timers wait for that. If no rows may come for long, "
            f"{remedy}: what has no row for so long is not waited for{ended}"
        )

    def holder(
        self,
        state: LogState,
        read_ms: int,
        since_ms: int,
        partitions: Mapping[str, int],
        finished: Mapping[str, Numbers],
    ) -> tuple[str, int] | None:
        """Return the unit that holds event time, and how far it lets it come, or None; as `warning`."""
        held = self._furthest_behind(state, read_ms, since_ms, partitions, finished)
        return None if held is None else (held[1].unit, held[0])

    def _furthest_behind(
        self,
        state: LogState,
        read_ms: int,
        since_ms: int,
        partitions: Mapping[str, int],
        finished: Mapping[str, Numbers],
    ) -> tuple[int, _Unit] | None:
        def holding(units: Iterable[_Unit]) -> list[tuple[int, _Unit]]:
            times = [(reached(state.unit_times.get(one.unit), one.timing, read_ms, since_ms), one) for one in units]
            return [(at, one) for at, one in times if at is not None]

        held: list[tuple[int, _Unit]] = []
        for units, together in self._units(partitions, finished):
            held += holding(units) or holding([together] if together and together.unit in state.unit_times else [])
        return min(held, key=itemgetter(0), default=None)

    def _units(
        self, partitions: Mapping[str, int], finished: Mapping[str, Numbers]
    ) -> Iterator[tuple[list[_Unit], _Unit | None]]:
        """Yield all that can hold event time by stream, and what does if none of it holds (rule 14.11)."""
        for name, timing in self.plan.timings.items():
            yield [_Unit(name, name, f"the DataFrame {name!r}", "setStream", timing)], None
        for name in sorted(self.plan.timed - self.plan.timings.keys()):
            component = self.plan.components[name]
            read = {edge.stream for edge in self.plan.outputs[name]}
            parted = has_partitions(component.operator)
            call = "setSpout" if component.kind is ComponentKind.SPOUT else "setBolt"
            numbers: Sequence[int] = range(partitions.get(name, 0) if parted else component.parallelism)
            if name in finished:
                numbers = finished[name].lacking(partitions.get(name, 0))
            what = f"{component.kind} {name!r}"
            for stream, timing in component.timings.items():
                if stream not in read:
                    continue
                together = _Unit(
                    name,
                    unit_of(name, FINISHED, stream),
                    f"{what}, whose partitions are all finished or idle,",
                    call,
                    timing,
                )
                yield (
                    [
                        _Unit(
                            name,
                            unit_of(name, number, stream),
                            f"{'partition' if parted else 'task'} {number} of {what}",
                            call,
                            timing,
                            parted and len(numbers) > 1,  # else it holds as all of them, when it is finished
                        )
                        for number in numbers
                    ],
                    together if name in finished else None,
                )


class _Unit(NamedTuple):
    """Something that can hold event time: a unit, the call that declared its component, and its name for people."""

    component: str
    unit: str
    what: str
    call: str
    timing: Timing
    may_finish: bool = False
