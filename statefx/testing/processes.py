"""Worker processes that are not there: what one keeps between tasks, and tasks that run bit by bit."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from statefx.errors import StatefxError
from statefx.operators import DEFAULT_STREAM
from statefx.plan import wire
from statefx.plan.deployment import Deployment
from statefx.protocol.barrier import Report
from statefx.protocol.identity import TaskId
from statefx.protocol.order import RunOrder
from statefx.runtime.bolt_operator import BoltOperator
from statefx.runtime.bolts import ProcessGone
from statefx.runtime.collector import TaskCollector
from statefx.runtime.operator import PreparedTask, TaskOperator
from statefx.runtime.orders import SentResolution
from statefx.runtime.resolution import resolve_task
from statefx.runtime.slot import Slot, operator_of
from statefx.runtime.worker import Worker, release_sinks
from statefx.state.view.lent import LentState
from statefx.testing.steps import DurableSteps, SteppedProvider
from statefx.topology.graph import Component, ComponentKind

logger = logging.getLogger("statefx")

_CHANGED = (
    "bolt %r changed the value of key %r in place, as %r, after it was read or put; state keeps what was put. To keep "
    "the change: state.put(key, value) after it"
)
_WATCHED_MAX = 1000
"""Values of one task and attempt that are watched: a copy of each is kept."""


class WatchedState(LentState):
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

INPUT_BYTES_MAX = 64 << 20
"""Bytes of a batch at most, or of one row that is larger, as Spark gives them to Python."""

Run = tuple[str, int, str]
"""(component, task, token): one run of one task."""


class Process(Worker):
    """One worker process, as far as statefx can tell; a fresh one keeps no bolt, as if started for one task alone."""

    def __init__(self, deployment: Deployment, steps: DurableSteps, cache: str, *, fresh: bool) -> None:
        super().__init__(lambda own: SteppedProvider(own.build_provider(), steps), keeps_bolts=not fresh)
        self.own = replace(deployment, cache=cache)

    def settle(self) -> None:
        """Leave the garbage collector alone: this process is the test's, and keeps what is frozen for ever."""

    def resolve(self, order: str, place: int) -> Report:
        """Commit or roll back one task of those that take part."""
        told = SentResolution(order, self.own)
        return Report.unpack(resolve_task(self, self.own, told, told.task(place)).pack())


def _watched(component: Component) -> TaskOperator:
    """Return the operator of a task; a bolt's is watched."""
    return WatchedOperator() if component.kind is ComponentKind.BOLT else operator_of(component)


class WatchedOperator(BoltOperator):
    """Runs a bolt, and tells of values which it has changed and not put."""

    def __init__(self) -> None:
        super().__init__(WatchedState)

    def finish(self) -> PreparedTask:
        prepared = super().finish()
        if isinstance(self._state, WatchedState):
            self._state.tell_changes(self._task.id.component)
        return prepared


class WatchedSlot(Slot):
    """A slot that also writes down in `seen` what its bolts emit, read or not."""

    def __init__(self, *arguments: Any, seen: dict[Run, Emitted], **options: Any) -> None:
        self._watched: dict[str, Emitted] = {}
        super().__init__(*arguments, operators=_watched, **options)
        for member in self._members.values():
            seen[*member.task.id, member.task.token] = self._watched[member.component]

    def _make_collector(self, component: str, *arguments: Any, **options: Any) -> TaskCollector:
        made = WatchingCollector(component, *arguments, **options)
        self._watched[component] = made.watched
        return made


class WatchingCollector(TaskCollector):
    """Notes every row, read or not."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.watched: Emitted = {}
        self._plain_width = -1  # so that every row comes by

    def _emit(self, values: Iterable[Any], stream: str, task: int | None, fields: Mapping[str, Any]) -> None:
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


class TaskJob:
    """One Spark task of one attempt, which may be run any number of times, each time from the beginning.

    Its `chain` is the bolt tasks that it runs, `process` where it runs.
    """

    def __init__(
        self,
        process: Process,
        order: RunOrder,
        place: tuple[int, int],
        batches: Sequence[pa.RecordBatch],
        seen: dict[Run, Emitted],
    ) -> None:
        self.process = process
        self.order = order
        self.level, self.partition = place
        self.chain: tuple[TaskId, ...] = process.own.plan.levels[self.level][self.partition]
        self._batches = batches
        self._seen = seen

    def run(self) -> list[wire.WireRow]:
        """Run it to its end and return the rows that it sent."""
        return _rows(self._slot(self.process).run(self._batches))

    def start(self, process: Process | None = None) -> SteppedTask:
        """Begin it, in `process` if one is given; it then goes on step by step."""
        return SteppedTask(self._slot(process or self.process), self._batches)

    def _slot(self, process: Process) -> WatchedSlot:
        return WatchedSlot(process, process.own, self.order, self.level, self.partition, seen=self._seen)


def _rows(batches: Iterable[pa.RecordBatch]) -> list[wire.WireRow]:
    return [row for batch in batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)]


def as_batches(found: Sequence[wire.WireRow]) -> Iterator[pa.RecordBatch]:
    """Yield rows as the input of the task that reads them, as many at once as Spark would give it."""
    start, held = 0, 0
    for place, row in enumerate(found):
        held += len(row[4])
        if held >= INPUT_BYTES_MAX:
            yield wire.to_batch(found[start : place + 1])
            start, held = place + 1, 0
    if start < len(found):
        yield wire.to_batch(found[start:])


class _KilledError(ProcessGone):
    """Ends a task that nobody will wake."""


class SteppedTask:
    """A task that runs when it is told to, each time up to its next batch of input, or to the end of the input.

    It runs in a thread of its own, and never while the one that told it to does: nothing is left to chance.
    """

    def __init__(self, slot: Slot, batches: Sequence[pa.RecordBatch]) -> None:
        self.sent: list[wire.WireRow] = []
        self.ended = False
        self._batches = batches
        self._error: BaseException | None = None
        self._killed = False
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(slot,), daemon=True)
        self._thread.start()

    def step(self) -> bool:
        """Go on to the next batch, to the end of the input, or to the end; tell whether there is more to come."""
        if not self.ended:
            self._go.release()
            self._stopped.acquire()
            if self._error is not None and not self._killed:
                raise self._error
        return not self.ended

    def to_end_of_input(self) -> None:
        """Run, from the beginning, until every tuple has been executed and nothing is prepared."""
        for _ in range(len(self._batches) + 1):
            self.step()

    def finish(self) -> list[wire.WireRow]:
        """Run it to its end and return the rows that it sent."""
        while self.step():
            pass
        return self.sent

    def kill(self) -> None:
        """End it where it stands."""
        self._killed = True
        self.step()
        self._thread.join()

    def _run(self, slot: Slot) -> None:
        self._go.acquire()
        try:
            if not self._killed:
                self.sent = _rows(slot.run(self._input()))
        except BaseException as error:  # noqa: BLE001 - handed to the one who steps
            self._error = error
        self.ended = True
        self._stopped.release()

    def _input(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self._pause()
            yield batch
        self._pause()

    def _pause(self) -> None:
        self._stopped.release()
        self._go.acquire()
        if self._killed:
            raise _KilledError


class Workers:
    """The worker processes of a deployment, and `zombies`: tasks that were given up and are not dead."""

    def __init__(self, deployment: Deployment, steps: DurableSteps, number: int, *, fresh: bool) -> None:
        self.zombies: list[SteppedTask] = []
        self._new = partial(Process, deployment, steps, fresh=fresh)
        self._cache = deployment.cache
        self._deployment = deployment
        self.processes = [self._new(os.path.join(deployment.cache, str(n))) for n in range(number)]

    def fresh(self) -> Process:
        """Return a worker process that has seen nothing yet, on a machine without caches."""
        return self._new(tempfile.mkdtemp(dir=self._cache))

    def wake(self) -> None:
        """Let every zombie run to its end; what it raises is as lost as what it sends."""
        while self.zombies:
            with suppress(StatefxError):
                self.zombies.pop(0).finish()

    def close(self) -> None:
        """End them all."""
        while self.zombies:
            self.zombies.pop().kill()
        for process in self.processes:
            process.close()
        release_sinks(self._deployment)


def merged(seen: Mapping[Run, Emitted], runs: Iterable[Run]) -> Emitted:
    """Return what `runs` emitted, in the order of their components and tasks."""
    found: Emitted = {}
    for run in sorted(runs):
        for stream, emitted in seen.get(run, {}).items():
            found.setdefault(stream, []).extend(emitted)
    return found
