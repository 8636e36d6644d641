"""Reads orders, as the driver has sent them: each task what concerns itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from statefx.plan.deployment import Deployment
from statefx.protocol.commands import Resolution
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.order import EmissionOrder, Head, StateOrder, read_line
from statefx.protocol.watermark import TimeOrder

_Told = TypeVar("_Told", StateOrder, EmissionOrder, TimeOrder)


class SentOrder:
    """An order as text, from which a task reads its own line, and only when it asks for it (see `TaskOrder`)."""

    def __init__(self, text: str, deployment: Deployment) -> None:
        head, newline, lines = text.partition("\n")
        self._head = msgspec.json.decode(head, type=Head)
        self._lines = newline + lines
        self._deployment = deployment
        self._known: dict[TaskId, StateOrder] = {}

    @property
    def attempt(self) -> TransactionAttempt:
        """What is run, committed or rolled back."""
        return self._head.attempt

    @property
    def generation(self) -> int:
        """The generation of the driver that asks."""
        return self._head.generation

    @property
    def clock_ms(self) -> int:
        """When the attempt began, or its resolution, in milliseconds since the epoch."""
        return self._head.clock_ms

    @property
    def ticks(self) -> tuple[str, ...]:
        """The bolts whose tasks get a tick."""
        return self._head.ticks

    def state(self, task: TaskId) -> StateOrder:
        """Return what a task is told of its state."""
        if task not in self._known:  # asked for when state is opened, and again when it is prepared
            self._known[task] = self._read(task, StateOrder)
        return self._known[task]

    def emission(self, task: TaskId) -> EmissionOrder:
        """Return what a task of a spout is told of its batch."""
        return self._read(task, EmissionOrder)

    def time(self, task: TaskId) -> TimeOrder:
        """Return what a task that has event time is told of it."""
        return self._read(task, TimeOrder)

    def _read(self, task: TaskId, shape: type[_Told]) -> _Told:
        return read_line(self._lines, task, shape)


class SentResolution(SentOrder):
    """The order of a commit or a rollback."""

    @property
    def resolution(self) -> Resolution:
        """Which of the two."""
        assert self._head.resolution is not None
        return self._head.resolution

    @property
    def tasks(self) -> Sequence[TaskId]:
        """Those that take part, in order."""
        stateful = self._deployment.plan.stateful
        return [stateful[first + place] for first, count in self._head.tasks for place in range(count)]
