"""Event time at one task: read from its rows batch by batch, and carried on by barriers (`statefx.protocol.watermark`).

::

    order     the watermark after the transaction before, which `execute` sees (rule 14.2)
    rows      the greatest time of each unit that the task reads or emits
    barriers  have all come: the watermark is the least of them, which `finishBatch` and `prePrepare` see
    barriers and ack leave with it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from statefx.operators.spouts import has_partitions
from statefx.plan.levels import Plan
from statefx.protocol.identity import TaskId
from statefx.protocol.watermark import (
    BEGINNING,
    END,
    FINISHED,
    Part,
    TimeOrder,
    TimeReport,
    Timing,
    UnitTime,
    least,
    reached,
    unit_of,
)
from statefx.topology.graph import ComponentKind


class StreamTimes:
    """The `greatest` event times of the rows of one stream in one attempt, by unit.

    `ahead` counts the rows whose times were too far ahead to count.
    """

    def __init__(self, place: int, limit_us: int, unit: str) -> None:
        self._place = place
        self._limit_us = limit_us
        self._marks = [(0, unit)]
        """From which row on they are of which unit."""
        self.greatest: dict[str, int] = {}
        self.ahead = 0

    def begin(self, unit: str, first: int) -> None:
        self._marks.append((first, unit))

    def take(self, batch: pa.RecordBatch, first: int = 0) -> None:
        """Take the times of a batch; `first` is the number of its first row."""
        column, marks, at, end = batch.column(self._place), self._marks, first, first + batch.num_rows
        while at < end:
            while len(marks) > 1 and marks[1][0] <= at:
                del marks[0]
            stop = min(end, marks[1][0]) if len(marks) > 1 else end
            self._look(marks[0][1], column.slice(at - first, stop - at))
            at = stop

    def _look(self, unit: str, times: pa.Array) -> None:
        greatest = _greatest(times)
        if greatest is not None and greatest > self._limit_us:
            counting = times.filter(pc.less_equal(times, pa.scalar(self._limit_us, times.type)))
            self.ahead += len(times) - times.null_count - len(counting)
            greatest = _greatest(counting)
        if greatest is not None:
            self.greatest[unit] = max(greatest, self.greatest.get(unit, greatest))


def _greatest(times: pa.Array) -> int | None:
    found: int | None = pc.max(times).value
    return found


class TaskTime:
    """Event time at one task in one attempt; `clock_ms` is the instruction's.

    `watermark` is what was decided before, and from `end_input` on what it is after this transaction. `sent` is what
    its barriers say, None if it holds no reader's watermark; `parts` what else they say: of spouts whose partitions can
    finish, by stream. `late` counts the rows that came too late for the bolt; `emitted` has the times of the streams
    that it emits.
    """

    def __init__(self, plan: Plan, task: TaskId, clock_ms: int) -> None:
        component = plan.components[task.component]
        self._task = task
        self._clock_us = clock_ms * 1000
        self._width = component.parallelism
        self._is_source = component.kind in (ComponentKind.SPOUT, ComponentKind.STREAM)
        self._is_stream = component.kind is ComponentKind.STREAM
        self._partitioned = has_partitions(component.operator)
        sent = {edge.stream for edge in plan.outputs[task.component]}
        self._timings = {stream: timing for stream, timing in component.timings.items() if stream in sent}
        self.emitted = {
            stream: self._times(component.outputs[stream], timing, unit_of(*task, stream))
            for stream, timing in self._timings.items()
            if not self._is_stream  # its rows were looked at when they were staged
        }
        self._told = TimeOrder()
        self.watermark = BEGINNING
        self.sent: int | None = None
        self.parts: Mapping[str, Part] = {}
        self._finished: list[int] = []
        self._held: int | None = None
        self.late = 0

    def _times(self, schema: pa.Schema, timing: Timing, unit: str) -> StreamTimes:
        return StreamTimes(schema.get_field_index(timing.field), self._clock_us + timing.ahead_us, unit)

    def open(self, told: TimeOrder) -> None:
        self._told = told
        self.watermark = told.watermark

    def begin_partition(self, name: str, rows_of: Callable[[str], int]) -> None:
        """Begin the rows of a partition; `rows_of` returns how many rows of a stream came before."""
        if self._partitioned:
            for stream, times in self.emitted.items():
                times.begin(unit_of(self._task.component, int(name), stream), rows_of(stream))

    @property
    def asks_finished(self) -> bool:
        return self._told.unfinished is not None and bool(self._timings)

    def finish_partition(self, number: int) -> None:
        self._finished.append(number)

    def end_input(self, barriers: int | None, parts: Mapping[str, Part]) -> None:
        """Advance to what the barriers of the input allow."""
        # Rule 14.12: who reads from a task that has rows left to emit closes when that has emitted them.
        self._get_on(END if self._told.closing and barriers is None else barriers, parts)

    @property
    def readers_watermark(self) -> int:
        """The watermark to which a bolt's task has let its readers come so far, idle or not."""
        known = self._told.unit_times
        found = least(
            reached(known.get(unit), replace(timing, idle_ms=None), read_ms=0, since_ms=0)
            for unit, timing, _ in self._units()
        )
        return self.watermark if found is None else found  # by its own times, if some count

    def hold(self, watermark: int | None) -> None:
        """Have readers wait at a watermark, for rows that are still to be emitted; None: for none."""
        self._held = least([self._held, watermark])

    def hold_input(self, first: int) -> None:
        """Have readers wait for what is still to be emitted of times of the input from `first` on."""
        self.hold(min(first, self.readers_watermark))

    def end_output(self) -> None:
        """Advance by the rows that were emitted, if their times count."""
        self._advance_by_output()
        if self._held is not None:
            self.sent = least([self.sent, self._held])

    def _advance_by_output(self) -> None:
        if not self._timings:
            return
        if self._told.closing:
            if not self._is_source and self.sent != END:  # those before it have rows left, and it will emit of them
                self.sent, self.parts = self.readers_watermark, {}
            return
        if self.asks_finished:
            self._get_on(None, {unit_of(self._task.component, FINISHED, s): self._part(s) for s in self._timings})
            return
        found = least(self._reached(unit, timing, greatest) for unit, timing, greatest in self._units())
        if self._is_source:
            self._get_on(found, {})
        else:  # its own watermark is that of its input, and what reads from it goes by the new times
            self.sent, self.parts = found, {}

    def _get_on(self, found: int | None, parts: Mapping[str, Part]) -> None:
        # Not the task's own watermark: whoever reads from it never goes back either, and a partition that is slower
        # than this task has been holds it wherever it is read.
        self.sent, self.parts = found, parts
        reached = least([found, *(part.reached for part in parts.values())])
        if reached is not None:
            self.watermark = max(self.watermark, reached)

    def _units(self) -> Iterator[tuple[str, Timing, int | None]]:
        """Yield the units that the task emits, each with its greatest time of this attempt, or None."""
        name, task = self._task
        if self._is_stream:  # the whole of it, whatever the task has of it
            yield from ((name, timing, None) for timing in self._timings.values())
            return
        numbers = range(task, self._told.partitions or 0, self._width) if self._partitioned else (task,)
        for stream, timing in self._timings.items():
            for number in numbers:
                unit = unit_of(name, number, stream)
                yield unit, timing, self.emitted[stream].greatest.get(unit)

    def _part(self, stream: str) -> Part:
        """Return how far the task's partitions that can finish have come."""
        timing, name, greatest = self._timings[stream], self._task.component, self.emitted[stream].greatest
        open_now = set(self._told.unfinished or ()).difference(self._finished)
        units = [unit_of(name, number, stream) for number in open_now]
        holding = least(self._reached(unit, timing, greatest.get(unit)) for unit in units)
        finished = self._together(stream)
        if finished is None:
            return Part(holding)
        return Part(holding, self._come(finished, timing))

    def _together(self, stream: str) -> UnitTime | None:
        """Return the time of the finished partitions of a stream, as one unit."""
        timing, name, told = self._timings[stream], self._task.component, self._told.unit_times
        greatest = self.emitted[stream].greatest
        open_now = {unit_of(name, number, stream) for number in self._told.unfinished or ()}
        own = {unit_of(name, number, stream) for number in self._finished}
        times = [time for unit, time in greatest.items() if unit in own or unit not in open_now]
        times += [told[unit].time_us for unit in own if unit in told]
        unit = unit_of(name, FINISHED, stream)
        return self._now(unit, max(times), timing) if times else told.get(unit)

    def _reached(self, unit: str, timing: Timing, greatest: int | None = None) -> int | None:
        known = self._told.unit_times.get(unit) if greatest is None else self._now(unit, greatest, timing)
        return self._come(known, timing)

    def _come(self, unit: UnitTime | None, timing: Timing) -> int | None:
        # What is in flight may have brought rows of it, which nobody here knows of.
        told = self._told
        read_ms = told.read_ms if unit is not None and unit.at_ms == told.read_ms else told.decided_ms
        return reached(unit, timing, read_ms, told.since_ms)

    def _now(self, unit: str, greatest: int, timing: Timing) -> UnitTime:
        before = self._told.unit_times.get(unit)
        at_ms = 0 if timing.idle_ms is None else self._told.read_ms
        return UnitTime(greatest if before is None else max(before.time_us, greatest), at_ms)

    def report(self) -> TimeReport:
        streams = [(self._timings[name], times) for name, times in self.emitted.items()]
        unit_times = {
            unit: self._now(unit, greatest, timing)
            for timing, times in streams
            for unit, greatest in times.greatest.items()
        }
        if self.asks_finished:
            unit_times = self._without_finished(unit_times)
        if self._is_stream:
            unit_times = dict(self._told.unit_times)
        ahead = self._told.ahead + sum(times.ahead for _, times in streams)
        return TimeReport(self.watermark, unit_times, ahead, self.late, tuple(self._finished))

    def _without_finished(self, unit_times: dict[str, UnitTime]) -> dict[str, UnitTime]:
        name = self._task.component
        open_now = set(self._told.unfinished or ()).difference(self._finished)
        for stream in self._timings:
            units = {unit_of(name, number, stream) for number in open_now}
            own = set(self.emitted[stream].greatest)
            unit_times = {unit: known for unit, known in unit_times.items() if unit not in own or unit in units}
            known = self._together(stream)
            if known is not None and known != self._told.unit_times.get(unit_of(name, FINISHED, stream)):
                unit_times[unit_of(name, FINISHED, stream)] = known
        return unit_times
