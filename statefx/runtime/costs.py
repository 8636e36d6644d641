"""What a task's time goes to besides its own code: the collector of garbage, and the queue for a processor."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Mapping

COSTS = ("cpu", "queued", "gc", "reads", "throttled")
"""Milliseconds within the time of a task that its ack tells, where there are any: on the processor, ready to run while
others had all processors, in the collector, in reads of state that no cache answered, and held back by a source."""


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


class _Figures:
    """The scheduler's figures of the thread that has made it, open as long as that lives."""

    def __init__(self) -> None:
        self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        return os.pread(self._file, 100, 0)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)


_of_thread = threading.local()


def queued_secs() -> float:
    """Return how long this thread has been ready to run without a processor to run on; 0 where nothing tells.

    Linux counts it by thread, in nanoseconds: the second figure of schedstat (Documentation/scheduler/sched-stats).
    Without it a thread on a machine that is full looks like one that waits for a network.
    """
    figures = getattr(_of_thread, "figures", None)
    try:
        if figures is None:
            figures = _of_thread.figures = _Figures()
        return int(figures.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
