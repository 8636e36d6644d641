"""Event time on the driver: what tasks are told of it, and what they say of it becomes part of the decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from statefx.operators.spouts import has_partitions
from statefx.plan.levels import Plan
from statefx.protocol.barrier import Ack
from statefx.protocol.identity import TaskId
from statefx.protocol.log_state import LogState
from statefx.protocol.watermark import BEGINNING, FINISHED, Heard, TimeOrder, then, unit_of


@dataclass
class EventTimes:
    """Event time in the transactions of a plan.

    The log has all that is known of it, but for which partitions are finished: what a spout has said of its batches
    (its metadata) tells that.
    """

    plan: Plan
    finished: dict[str, Numbers] = field(default_factory=dict)
    """The partitions that are finished (rule 14.11), of each spout of which some may be."""

    def orders(
        self,
        state: LogState,
        since_ms: int,
        partitions: Mapping[str, int],
        staged: Mapping[str, Heard],
        ahead: Mapping[str, int],
        *,
        closing: bool = False,
    ) -> dict[TaskId, TimeOrder]:
        """Return what each task is told.

        Parameters
        ----------
        state : LogState
        since_ms : int
            When the first attempt of this driver began.
        partitions : Mapping of str to int
            How many partitions each spout has that has some.
        staged, ahead : Mapping
            What the rows of DataFrames say, by stream, and how many of them say nothing: too far ahead.
        closing : bool
            Whether the transaction closes event time.
        """
        found: dict[TaskId, TimeOrder] = {}
        units = _by_source(state.heard) if self.plan.timed else {}
        for name in sorted(self.plan.timed):
            component = self.plan.components[name]
            own: list[dict[str, Heard]] = [{} for _ in range(component.parallelism)]
            if name in self.plan.timings:
                before = {name: state.heard[name]} if name in state.heard else {}
                now = {name: staged[name]} if name in staged else {}
                own = [dict(then(before, now)) for _ in own]
            finished, number_of = self.finished.get(name), partitions.get(name)
            unfinished: list[list[int]] = [[] for _ in own]
            for number in () if finished is None else finished.lacking(number_of or 0):
                unfinished[number % len(own)].append(number)
            for number, unit in units.get(name, ()):
                if number == FINISHED:
                    for each in own:
                        each[unit] = state.heard[unit]
                    continue
                # A spout without partitions may have had more tasks: they have nothing to hold any more.
                task = number % len(own) if has_partitions(component.operator) else number
                if task < len(own) and (finished is None or number not in finished):
                    own[task][unit] = state.heard[unit]
            for task, heard in enumerate(own):
                id = TaskId(name, task)
                watermark = state.watermarks.get(str(id), BEGINNING)
                left = None if finished is None else tuple(unfinished[task])
                out = ahead.get(name, 0) if task == 0 else 0  # once: acks of all tasks are added up
                found[id] = TimeOrder(watermark, heard, number_of, left, since_ms, closing, out)
        return found

    def decided(self, state: LogState, acks: Iterable[Ack]) -> dict[str, Any]:
        """Return the fields of COMMITTING that say how far event time has come, if it has moved (rule 14.1)."""
        watermarks: dict[str, int] = {}
        heard: Mapping[str, Heard] = {}
        for ack in acks:
            if ack.time is None:
                continue
            if ack.time.watermark > state.watermarks.get(str(ack.id), BEGINNING):
                watermarks[str(ack.id)] = ack.time.watermark
            heard = then(heard, ack.time.heard)
            if ack.time.finished:
                self.finished[ack.component].update(ack.time.finished)
                heard = then(self._finished_before(state, ack.component, ack.time.finished), heard)
        new = {name: unit for name, unit in heard.items() if unit != state.heard.get(name)}
        return {"watermarks": watermarks, "heard": new}

    def _finished_before(self, state: LogState, spout: str, finished: Iterable[int]) -> dict[str, Heard]:
        """Return what was known of partitions that are finished now, as what is known of the finished ones.

        Their task may not have known it: it may have begun before the transaction was decided in which it was heard.
        """
        found: dict[str, Heard] = {}
        for stream in self.plan.components[spout].timings:
            units = [state.heard.get(unit_of(spout, number, stream)) for number in finished]
            known = [unit for unit in units if unit is not None]
            if known:
                found[unit_of(spout, FINISHED, stream)] = max(known)
        return found


class Numbers:
    """Whole numbers from 0 on, of which those that are lacking are few, and the greatest."""

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._floor = 0
        """All before it are there; `_above` are those that are there beyond it."""
        self._above: set[int] = set()
        self.update(numbers)

    def update(self, numbers: Iterable[int]) -> None:
        """Add numbers."""
        self._above.update(number for number in numbers if number >= self._floor)
        while self._floor in self._above:
            self._above.discard(self._floor)
            self._floor += 1

    def __contains__(self, number: object) -> bool:
        """Whether a number is there."""
        return isinstance(number, int) and (0 <= number < self._floor or number in self._above)

    def lacking(self, stop: int) -> list[int]:
        """Return the numbers before `stop` that are not there."""
        return [number for number in range(self._floor, stop) if number not in self._above]


def _by_source(heard: Iterable[str]) -> dict[str, list[tuple[int, str]]]:
    """Return the units of tasks and partitions by component, each with its number."""
    found: dict[str, list[tuple[int, str]]] = {}
    for unit in heard:
        source, _, rest = unit.partition("/")
        if rest:
            found.setdefault(source, []).append((int(rest.partition("/")[0]), unit))
    return found
