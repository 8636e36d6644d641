"""How many jobs P run side by side: no more than the cluster has slots for."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError

from statefx.coordinator.engine import Job
from statefx.plan.levels import Plan


@dataclass
class ProcessingJobs:
    """The jobs P that run, and those that wait for their turn, in order.

    Spark gives slots to jobs in the order in which they began. If all jobs P that may be in flight began at once, each
    job O, and so each commit, would queue behind all of them. A job that waits here is no try, and no time of its
    timeout passes.

    Parameters
    ----------
    plan : Plan
    context : callable
        Returns the SparkContext, which knows how many slots there are; a cluster may grow and shrink.
    """

    plan: Plan
    context: Callable[[], Any]
    waiting: deque[Job] = field(default_factory=deque)
    _running: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        # The most tasks of one job that can run at once: those of its widest level.
        self._width = max(map(len, self.plan.levels[: self.plan.cut]), default=1)

    def ended(self, job_id: str) -> None:
        """Make room for another job: one has ended, or was cancelled."""
        self._running.discard(job_id)
        self.waiting = deque(job for job in self.waiting if job.id != job_id)

    def turn(self) -> list[Job]:
        """Return the jobs whose turn it is to begin now.

        There is one job more than fills the slots: they would idle while the last task of a stage ends.
        """
        begun = []
        while self.waiting and (not self._running or (len(self._running) - 1) * self._width < self._slots()):
            begun.append(self.waiting.popleft())
            self._running.add(begun[-1].id)
        return begun

    def _slots(self) -> int:
        try:
            return int(self.context().defaultParallelism)
        except (AttributeError, Py4JError):  # the context was stopped: the job begins, and says so
            return sys.maxsize
