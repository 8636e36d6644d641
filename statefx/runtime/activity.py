"""Divides the time of a chain among its tasks: busy, idle, blocked, restoring, committing.

A chain is one thread, so at each moment one thing goes on, and from that follows what each of its tasks does: while a
task is busy, those before it in the chain are blocked, since what they sent is worked on, and those after it are idle.
So one switch of the clock serves all tasks, and their five times add up to the time that the chain has lived.

Below stands what a task's time goes to besides its own code: the collector of garbage, and the queue for a processor.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from statefx.protocol.identity import TaskId
from statefx.protocol.reports import ACTIVITIES

IDLE, BLOCKED = 0, 1
"""States of a chain as a whole: it waits for an instruction or for rows, or for its rows to leave."""

_BUSY, _RESTORING, _COMMITTING = range(3)


class ChainClock:
    """The clock of one chain; it is read when a batch of rows comes or goes, never for a row.

    `tasks` are in the order of the chain. The chain's thread calls `enter`; any thread may call `of`, which then may be
    wrong by what the chain does at this very moment.
    """

    def __init__(self, tasks: Iterable[TaskId], clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._first = {task: 2 + 3 * place for place, task in enumerate(tasks)}
        self._secs = [0.0] * (2 + 3 * len(self._first))
        self._state = IDLE
        self._since = clock()

    def busy(self, task: TaskId) -> int:
        """Return the state in which a task's own code runs."""
        return self._first[task] + _BUSY

    def committing(self, task: TaskId) -> int:
        """Return the state in which a task prepares, commits or rolls back."""
        return self._first[task] + _COMMITTING

    def enter(self, state: int) -> int:
        """Charge the time since the last call to the state that ends, and begin `state`; return the one that ended."""
        now, before = self._clock(), self._state
        self._secs[before] += now - self._since
        self._since, self._state = now, state
        return before

    def restored(self, task: TaskId, secs: float) -> None:
        """Charge time that was counted as busy to restoring."""
        first = self._first[task]
        self._secs[first + _BUSY] -= secs
        self._secs[first + _RESTORING] += secs

    def of(self, task: TaskId, restores_secs: float = 0.0) -> dict[str, float]:
        """Return the milliseconds of a task by activity, since the chain began; `ACTIVITIES` has their order.

        `restores_secs` is how long its state has been opening, which counts as busy until it is open.
        """
        secs = list(self._secs)
        secs[self._state] += self._clock() - self._since
        own, idle, blocked = self._first[task], secs[IDLE], secs[BLOCKED]
        for first in range(2, len(secs), 3):
            if first != own:
                idle += secs[first + _RESTORING] + secs[first + _COMMITTING]
            if first < own:
                idle += secs[first + _BUSY]
            elif first > own:
                blocked += secs[first + _BUSY]
        busy, restoring = secs[own + _BUSY] - restores_secs, secs[own + _RESTORING] + restores_secs
        times = (busy, idle, blocked, restoring, secs[own + _COMMITTING])
        return {activity: round(spent * 1000, 3) for activity, spent in zip(ACTIVITIES, times, strict=True)}


# ---- what the time goes to besides a task's own code


COSTS = ("cpu", "queued", "gc", "reads", "throttled")
"""Milliseconds within the time of a task that its ack tells, where there are any: on the processor, ready to run while
others had all processors, in the collector, in reads of state that no cache answered, and held back by a source or by
``ratePerSecond``."""


class Collections:
    """Adds up the seconds that Python's collector of garbage takes in this process, whichever thread it runs in."""

    def __init__(self) -> None:
        self.secs = 0.0
        self._began: float | None = None

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        elif self._began is not None:
            self.secs += time.perf_counter() - self._began
            self._began = None


COLLECTIONS = Collections()
gc.callbacks.append(COLLECTIONS)


class _Schedstat:
    """The scheduler's figures of the thread that makes it, in a file that is closed with the thread."""

    def __init__(self) -> None:
        self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):  # it could not be opened
            os.close(self._file)

    def queued_secs(self) -> float:
        return int(os.pread(self._file, 100, 0).split()[1]) / 1e9


_of_thread = threading.local()


def queued_secs() -> float:
    """Return how long this thread has been ready to run without a processor to run on; 0 where nothing tells.

    Linux counts it by thread, in nanoseconds: the second figure of schedstat (Documentation/scheduler/sched-stats).
    Without it a thread on a machine that is full looks like one that waits for a network.
    """
    try:
        if not hasattr(_of_thread, "schedstat"):
            _of_thread.schedstat = _Schedstat()
        return float(_of_thread.schedstat.queued_secs())
    except (OSError, IndexError, ValueError):
        return 0.0
