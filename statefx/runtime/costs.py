"""What a task's time goes to besides its own code: the collector of garbage of this process."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping

COSTS = ("cpu", "gc", "reads", "throttled")
"""Milliseconds within the time of a task that its ack tells, where there are any: on the processor, in the collector,
in reads of state that no cache answered, and held back by a source."""


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
