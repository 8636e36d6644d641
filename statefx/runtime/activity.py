"""Divides the time of a chain among its tasks: busy, idle, blocked, restoring, committing.

A chain is one thread, so at each moment one thing goes on, and from that follows what each of its tasks does: while a
task is busy, those before it in the chain are blocked, since what they sent is worked on, and those after it are idle.
So one switch of the clock serves all tasks, and their five times add up to the time that the chain has lived.

Below stands what a task's time goes to besides its own code: the collector of garbage, and the queue for a processor.
"""

from __future__ import annotations

import gc
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

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


COSTS = ("own", "cpu", "queued", "gc", "reads", "throttled")
"""Milliseconds of a task that its ack tells, where there are any: in its own code; and within that on the processor,
ready to run while others had all processors, in the collector, in reads of state that no cache answered, and held back
by a source or by ``ratePerSecond``.

All are of the same steps, so that they can be compared. The busy time of `ChainClock` is more: the chain's work around
these steps belongs to it. Where nothing tells how long a thread is ready to run, nothing is told of the processor
either: a thread that others keep from it would look like one that waits for a network."""


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


class Stolen:
    """How long this machine's processors were taken from it, by the time that they worked: what a hypervisor does.

    Read at most once a second, since all threads of a process ask for it. `lines` reads ``/proc/stat``.
    """

    def __init__(self, read: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._read, self._clock = read, clock
        self._before: tuple[int, int] | None = None
        self._looked = -math.inf
        self._ratio = 0.0

    def ratio(self) -> float:
        """Return the stolen seconds for each second of work in the last second or longer; 0 where nothing tells."""
        now = self._clock()
        if now - self._looked >= 1.0:
            self._looked = now
            try:
                # user nice system idle iowait irq softirq steal
                ticks = [int(each) for each in self._read().split("\n", 1)[0].split()[1:9]]
                worked, stolen = sum(ticks[:3]) + sum(ticks[5:7]), ticks[7]
            except (OSError, IndexError, ValueError):
                return self._ratio
            if self._before is not None and worked > self._before[0]:
                self._ratio = max(stolen - self._before[1], 0) / (worked - self._before[0])
            self._before = worked, stolen
        return self._ratio


def _stat() -> str:
    with open("/proc/stat", encoding="ascii") as file:
        return file.readline()


STOLEN = Stolen(_stat)


class Schedstat:
    """The scheduler's figures of a thread, in a file that is closed with this object; OSError where there are none."""

    def __init__(self, thread: int) -> None:
        self._file = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):  # it could not be opened
            os.close(self._file)

    def secs(self) -> tuple[float, float]:
        """Return how long the thread was on a processor, and how long it was ready to run without one.

        Of a thread that runs now the first one is some milliseconds old. The figures are in nanoseconds
        (Documentation/scheduler/sched-stats).
        """
        cpu, queued, *_ = os.pread(self._file, 100, 0).split()
        return int(cpu) / 1e9, int(queued) / 1e9


_of_thread = threading.local()


def queued_secs() -> float | None:
    """Return how long this thread has been ready to run without a processor to run on, or None if nothing tells."""
    try:
        if not hasattr(_of_thread, "schedstat"):
            _of_thread.schedstat = Schedstat(threading.get_native_id())
        return float(_of_thread.schedstat.secs()[1])
    except (OSError, ValueError):
        return None


class Meter(NamedTuple):
    """The clocks of a thread at one moment."""

    wall: float
    cpu: float
    queued: float | None
    gc: float

    @classmethod
    def read(cls) -> Meter:
        """Read them: some microseconds, so around a step of a batch and never for a row."""
        return cls(time.perf_counter(), time.thread_time(), queued_secs(), COLLECTIONS.secs)

    def charge(self, costs: dict[str, float]) -> None:
        """Add what this thread has spent since then to `costs`."""
        wall, cpu, queued, collected = Meter.read()
        costs["own"] += wall - self.wall
        costs["gc"] += collected - self.gc
        if self.queued is not None and queued is not None:
            worked = cpu - self.cpu
            waited = queued - self.queued + worked * STOLEN.ratio()
            costs["cpu"] += worked
            costs["queued"] += min(waited, max(wall - self.wall - worked, 0.0))  # what is stolen may be in both
