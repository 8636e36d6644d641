"""Data that the tasks of one Python process share: deployments, state providers, and what bolts share."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from statefx.errors import BoltError
from statefx.operators.sinks import Sink
from statefx.plan.deployment import Deployment
from statefx.protocol.identity import TaskId
from statefx.runtime.shared import SharedObjects
from statefx.state.contract.store import StateProvider

logger = logging.getLogger("statefx")

RUNS_KEPT = 8
"""A worker process of Spark serves every query of its application. More than a few topologies at once are rare; without
a bound, an application that submits again and again would keep the deployments of all the runs that have ended."""

TASKS_BEFORE_FROZEN = 2
"""Half of the modules that live as long as the process are loaded by its second task only."""


@dataclass(slots=True)
class _Run:
    """A worker's data of one run of a topology."""

    deployment: Deployment
    provider: StateProvider | None = None
    late: dict[TaskId, BoltError] = field(default_factory=dict)
    """The error of rows that a task emitted after its attempt had prepared."""


class Worker:
    """One Python process that runs tasks; Spark's has one, a test has as many as it likes.

    Its data is by run, not by lineage and generation: both come again when a checkpoint is replaced by a backup, and
    the code of the bolts may be another then.
    """

    def __init__(self, build_provider: Callable[[Deployment], StateProvider] = Deployment.build_provider) -> None:
        self._build_provider = build_provider
        self._runs: dict[str, _Run] = {}  # those that were used last come last
        self._freezes = 0
        self.shared = SharedObjects()

    def deployment(self, run: str, load: Callable[[], Deployment]) -> Deployment:
        """Return this process's copy of a run's deployment; it is loaded once, not by every task."""
        known = self._runs.get(run)
        deployment = load() if known is None else known.deployment
        self._run(deployment)
        return deployment

    def provider(self, deployment: Deployment) -> StateProvider:
        """Return this process's state provider for a run."""
        run = self._run(deployment)
        if run.provider is None:
            run.provider = self._build_provider(deployment)
        return run.provider

    def keep_late(self, deployment: Deployment, task: TaskId, error: BoltError) -> None:
        """Keep for a task's next attempt that a thread of its bolt has emitted too late; called by that thread."""
        logger.error("%s; the next transaction of task %d fails because of it", error.message, task.task)
        run = self._runs.get(deployment.run)
        if run is not None:
            run.late.setdefault(task, error)

    def raise_late(self, deployment: Deployment, task: TaskId) -> None:
        """Raise what was kept of a task: rows of a committed transaction are lost."""
        late = self._run(deployment).late
        if task in late:  # and it stays, for whatever is tried next
            raise late[task]

    def freeze_loaded_objects(self) -> None:
        """Hide what the first tasks have loaded from the garbage collector; called after each task.

        Spark's worker runs a full collection after every task; modules and bolts that live as long as the process made
        it cost 26 to 50 ms.
        """
        if self._freezes < TASKS_BEFORE_FROZEN:
            self._freezes += 1
            gc.collect()
            gc.freeze()

    def close(self) -> None:
        for run in list(self._runs):
            self._forget(run)

    def _run(self, deployment: Deployment) -> _Run:
        """Return the data of a run, and forget what it replaces."""
        run = self._runs.pop(deployment.run, None)
        if run is None:
            run = _Run(deployment)
            # Another run of the lineage: the driver was replaced, or a backup took the checkpoint's place. What the
            # former run's provider holds may be of versions that no longer count (rule 1.4).
            for name in [n for n, kept in self._runs.items() if kept.deployment.lineage == deployment.lineage]:
                self._forget(name)
        self._runs[deployment.run] = run
        # Those that were used longest ago go; they may have ended long ago, which no worker is told.
        while len(self._runs) > RUNS_KEPT:
            self._forget(next(iter(self._runs)))
        return run

    def _forget(self, run: str) -> None:
        forgotten = self._runs.pop(run)
        release_sinks(forgotten.deployment)


def release_sinks(deployment: Deployment) -> None:
    """Have the sinks of a run that ends in this process close what their writers have kept."""
    for id, component in deployment.plan.components.items():
        if isinstance(component.operator, Sink):
            try:
                component.operator.release()
            except Exception:
                logger.exception("sink %r: release() raised; ignored", id)
