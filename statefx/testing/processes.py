"""Worker processes that are not there: what one keeps between tasks, and what a test sees of its tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from statefx.operators.async_bolts import AsyncBolt
from statefx.operators.context import DEFAULT_STREAM
from statefx.plan.deployment import Deployment
from statefx.protocol.identity import TaskId
from statefx.protocol.order import TaskResolution
from statefx.protocol.reports import Report
from statefx.runtime.async_task import AsyncBoltTask
from statefx.runtime.bolt_task import BoltTask
from statefx.runtime.chain import task_of
from statefx.runtime.collector import TaskCollector
from statefx.runtime.task import Prepared, Task
from statefx.runtime.worker import Worker
from statefx.state.view.task_state import TaskState
from statefx.testing.steps import DurableSteps, SteppedProvider
from statefx.topology.graph import ComponentKind

logger = logging.getLogger("statefx")

_CHANGED = (
    "bolt %r changed the value of key %r in place, as %r, after it was read or put; state keeps what was put. To keep "
    "the change: state.put(key, value) after it"
)
_WATCHED_MAX = 1000
"""Values of one task and attempt that are watched: a copy of each is kept."""


class WatchedState(TaskState):
    """A state that remembers what changeable values it handed out, and how they were."""

    __slots__ = ("_handed",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._handed: list[tuple[Any, Any, Any]] = []

    def _begin(self) -> None:
        self._handed = []

    def get(self, key: Any, default: Any = None) -> Any:
        return self._watch(key, super().get(key, default))

    def put(self, key: Any, value: Any) -> None:
        super().put(key, value)
        self._watch(key, value)

    __setitem__ = put

    def tell_changes(self, component: str) -> None:
        """Log the first key whose value was changed and is not what state holds.

        A warning and no error: a bolt may well sort a list that it only emits.
        """
        with suppress(Exception):  # values whose comparison is none, such as numpy's arrays
            for key, value, before in self._handed:
                if value != before and value != super().get(key):
                    logger.warning(_CHANGED, component, key, value)
                    return

    def _watch(self, key: Any, value: Any) -> Any:
        if isinstance(value, list | dict | set) and len(self._handed) < _WATCHED_MAX:
            with suppress(Exception):  # a default of any kind, which need not be one that can be copied
                self._handed.append((key, value, deepcopy(value)))
        return value


Emitted = dict[tuple[str, str], list[tuple[Any, ...]]]
"""(component, stream) -> rows."""

TaskRun = tuple[str, int, str]
"""(component, task, token): one run of one task."""


class Process(Worker):
    """One worker process, as far as statefx can tell; in a fresh one no task keeps the user's object."""

    def __init__(self, deployment: Deployment, steps: DurableSteps, cache: str, *, fresh: bool) -> None:
        super().__init__(lambda own: SteppedProvider(own.build_provider(), steps))
        self.steps, self._fresh = steps, fresh
        self.own = replace(deployment, cache=cache)

    def make_task(self, worker: Worker, deployment: Deployment, id: TaskId) -> Task:
        """Make a task that is watched."""
        component = deployment.plan.components[id.component]
        is_async = isinstance(component.operator, AsyncBolt)
        watched = WatchedAsyncBolt if is_async else WatchedBolt
        make: Callable[..., Any] = watched if component.kind is ComponentKind.BOLT else task_of
        task: Task = make(self, deployment, id, fresh=self._fresh)
        task.collector_class = WatchingCollector
        return task

    def freeze_loaded_objects(self) -> None:
        """Leave the garbage collector alone: this process is the test's, and keeps what is frozen for ever."""


class WatchedBolt(BoltTask):
    """Runs a bolt, tells of values which it has changed and not put, and is committed and rolled back as a step."""

    worker: Process
    state_class = WatchedState

    def prepare(self) -> Prepared:
        prepared = super().prepare()
        if isinstance(self._state, WatchedState):
            self._state.tell_changes(self.id.component)
        return prepared

    def resolve(self, order: TaskResolution) -> Report:
        with self.worker.steps.around(f"{order.resolution} hooks {self.id} for {order.attempt.txid}"):
            return super().resolve(order)


class WatchedAsyncBolt(AsyncBoltTask, WatchedBolt):
    """Runs an AsyncBolt, as `WatchedBolt` does others."""


class WatchingCollector(TaskCollector):
    """Notes every row, read or not."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.watched: Emitted = {}
        self._plain_width = -1  # so that every row comes by

    def _emit(self, values: Any, stream: str, task: int | None, fields: Mapping[str, Any]) -> None:
        row: Any = values
        if isinstance(stream, str) and stream in self._streams:  # once: an iterator has its values only once
            row, fields = self.row(values, stream, fields), {}
        super()._emit(row, stream, task, fields)
        self._note(stream, [self._streams[stream].fitted(row)])

    def emitBatch(self, batch: pa.RecordBatch | pa.Table, stream: str = DEFAULT_STREAM) -> None:
        super().emitBatch(batch, stream)
        self._note(stream, zip(*(column.to_pylist() for column in batch.columns), strict=True))

    def _note(self, stream: str, found: Iterable[tuple[Any, ...]]) -> None:
        noted = self.watched.setdefault((self._component, stream), [])
        if self.guard is not None and self.guard.active:
            self.guard.journal.append(partial(noted.__delitem__, slice(len(noted), None)))
        noted.extend(found)


def merged(seen: Mapping[TaskRun, Emitted], runs: Iterable[TaskRun]) -> Emitted:
    """Return what `runs` emitted, in the order of their components and tasks."""
    found: Emitted = {}
    for run in sorted(runs):
        for stream, emitted in seen.get(run, {}).items():
            found.setdefault(stream, []).extend(emitted)
    return found
