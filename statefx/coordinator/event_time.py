"""Event time on the driver: what tasks are told of it, and what they say of it becomes part of the decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from statefx.operators.spouts import has_partitions
from statefx.plan.levels import Plan
from statefx.protocol.barrier import Ack
from statefx.protocol.identity import TaskId
from statefx.protocol.log_state import LogState
from statefx.protocol.watermark import BEGINNING, Heard, TimeOrder, then


@dataclass(frozen=True)
class EventTimes:
    """Event time in the transactions of a plan; the log has all that is known of it."""

    plan: Plan

    def orders(self, state: LogState, since_ms: int, partitions: Mapping[str, int]) -> dict[TaskId, TimeOrder]:
        """Return what each task is told.

        Parameters
        ----------
        state : LogState
        since_ms : int
            When the first attempt of this driver began.
        partitions : Mapping of str to int
            How many partitions each spout has that has some.
        """
        found: dict[TaskId, TimeOrder] = {}
        units = _by_source(state.heard) if self.plan.timed else {}
        for name in sorted(self.plan.timed):
            component = self.plan.components[name]
            raw = {edge.source for edge in self.plan.inputs[name] if edge in self.plan.raw}
            read = {source: state.heard[source] for source in raw if source in state.heard}
            own: list[dict[str, Heard]] = [dict(read) for _ in range(component.parallelism)]
            for number, unit in units.get(name, ()):
                # A spout without partitions may have had more tasks: they have nothing to hold any more.
                task = number % len(own) if has_partitions(component.operator) else number
                if task < len(own):
                    own[task][unit] = state.heard[unit]
            for task, heard in enumerate(own):
                id = TaskId(name, task)
                watermark = state.watermarks.get(str(id), BEGINNING)
                found[id] = TimeOrder(watermark, heard, partitions.get(name), since_ms)
        return found

    def decided(self, state: LogState, acks: Iterable[Ack]) -> dict[str, Any]:
        """Return the fields of COMMITTING that say how far event time has come; empty where it has not moved."""
        watermarks: dict[str, int] = {}
        heard: Mapping[str, Heard] = {}
        for ack in acks:
            if ack.time is None:
                continue
            if ack.time.watermark > state.watermarks.get(str(ack.id), BEGINNING):
                watermarks[str(ack.id)] = ack.time.watermark
            heard = then(heard, ack.time.heard)
        new = {name: unit for name, unit in heard.items() if unit != state.heard.get(name)}
        return {"watermarks": watermarks, "heard": new}


def _by_source(heard: Iterable[str]) -> dict[str, list[tuple[int, str]]]:
    """Return the units of tasks and partitions by component, each with its number."""
    found: dict[str, list[tuple[int, str]]] = {}
    for unit in heard:
        source, _, rest = unit.partition("/")
        if rest:
            found.setdefault(source, []).append((int(rest.partition("/")[0]), unit))
    return found
