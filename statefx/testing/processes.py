"""Worker processes that are not there: what one keeps between tasks, and tasks that run bit by bit."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from statefx.operators import Bolt, Collector
from statefx.protocol.order import Order, Task
from statefx.runtime import task as runtime_task
from statefx.runtime import wire
from statefx.runtime.slot import Slot
from statefx.state.registry import load_provider
from statefx.state.store import StateProvider
from statefx.testing.steps import SteppedProvider, Steps
from statefx.topology.deployment import Deployment

WireRow = tuple[int, int, int, bytes, bytes]
"""(target, kind, rows, head, payload), as they travel between stages."""

Emitted = dict[tuple[str, str], list[tuple[Any, ...]]]
"""(component, stream) -> rows."""

Run = tuple[str, int, str]
"""(component, task, token): one run of one task."""


class Process:
    """One worker process, as far as statefx can tell: the bolts and the provider that it keeps between tasks.

    Parameters
    ----------
    deployment : Deployment
    steps : Steps
    cache : str
        Its machine's folder for caches of state.
    fresh : bool
        Whether it keeps no bolt, as one that was started for the task alone.
    """

    def __init__(self, deployment: Deployment, steps: Steps, cache: str, *, fresh: bool) -> None:
        self.deployment = replace(deployment, cache=cache)
        self._fresh = fresh
        provider = SteppedProvider(load_provider(deployment.provider, deployment.options), steps)
        self._providers: dict[str, StateProvider] = {deployment.run: provider}
        self._idle: dict[tuple[str, str, str, int], Bolt] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[Deployment]:
        """Let what runs in the block run in this process."""
        outside = runtime_task._idle, runtime_task._providers
        runtime_task._idle, runtime_task._providers = self._idle, self._providers
        try:
            yield self.deployment
        finally:
            if self._fresh:
                self.end()
            runtime_task._idle, runtime_task._providers = outside

    def end(self) -> None:
        """End in good order: close the bolts that it keeps."""
        while self._idle:
            runtime_task.close_bolt(self._idle.popitem()[1])


class WatchedSlot(Slot):
    """A slot that also writes down what its bolts emit, read or not."""

    def __init__(
        self, deployment: Deployment, order: Order, level: int, partition: int, seen: dict[Run, Emitted]
    ) -> None:
        super().__init__(deployment, order, level, partition)
        for member in self._members.values():
            emitted = seen.setdefault((member.component, member.task, member.token), {})
            member.run._collector = _Watching(member.run._collector, member.component, emitted)  # type: ignore[assignment]


class _Watching(Collector):
    def __init__(self, inner: Any, component: str, emitted: Emitted) -> None:
        self._inner = inner
        self._component = component
        self._emitted = emitted

    def emit(self, values: Sequence[Any], stream: str = "default", task: int | None = None, anchors: Any = ()) -> None:
        self._inner.emit(values, stream, task, anchors)
        self._emitted.setdefault((self._component, stream), []).append(tuple(values))

    def emitBatch(self, batch: pa.RecordBatch, stream: str = "default") -> None:
        self._inner.emitBatch(batch, stream)
        found = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        self._emitted.setdefault((self._component, stream), []).extend(found)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def ack(self, tup: Any) -> None:
        self._inner.ack(tup)

    def fail(self, tup: Any) -> None:
        self._inner.fail(tup)

    def resetTimeout(self, tup: Any) -> None:
        self._inner.resetTimeout(tup)


class TaskJob:
    """One Spark task of one attempt, which may be run any number of times, each time anew.

    Attributes
    ----------
    order : Order
    level, partition : int
    chain : tuple of (component, task)
        The bolt tasks that it runs.
    process : Process
        Where it runs.
    """

    def __init__(
        self,
        process: Process,
        order: Order,
        place: tuple[int, int],
        batches: Sequence[pa.RecordBatch],
        seen: dict[Run, Emitted],
    ) -> None:
        self.process = process
        self.order = order
        self.level, self.partition = place
        self.chain: tuple[Task, ...] = process.deployment.plan.levels[self.level][self.partition]
        self._batches = batches
        self._seen = seen

    def run(self) -> list[WireRow]:
        """Run it to its end and return the rows that it sent."""
        with self.process.running() as deployment:
            slot = WatchedSlot(deployment, self.order, self.level, self.partition, self._seen)
            return _rows(slot.run(self._batches))

    def start(self, process: Process | None = None) -> Strand:
        """Begin it, in `process` if one is given; it then goes on step by step."""
        where = process or self.process
        with where.running() as deployment:
            slot = WatchedSlot(deployment, self.order, self.level, self.partition, self._seen)
        return Strand(where, slot, self._batches)


def _rows(batches: Iterable[pa.RecordBatch]) -> list[WireRow]:
    return [row for batch in batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)]


def as_batch(found: Sequence[WireRow]) -> list[pa.RecordBatch]:
    """Return rows as the input of the task that reads them."""
    if not found:
        return []
    columns = zip(*found, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, wire.SCHEMA, strict=True)]
    return [pa.RecordBatch.from_arrays(arrays, schema=wire.SCHEMA)]


class _KilledError(runtime_task.ProcessGone):
    """Ends a strand that nobody will wake."""


class Strand:
    """A task that runs when it is told to, each time up to its next batch of input, or to the end of the input.

    It runs in a thread of its own, and never while the one that told it to does: nothing is left to chance.
    """

    def __init__(self, process: Process, slot: Slot, batches: Sequence[pa.RecordBatch]) -> None:
        self.sent: list[WireRow] = []
        self.ended = False
        self._process = process
        self._batches = batches
        self._error: BaseException | None = None
        self._killed = False
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(slot,), daemon=True)
        self._thread.start()

    def step(self) -> bool:
        """Go on to the next batch, to the end of the input, or to the end; tell whether there is more to come."""
        if not self.ended:
            with self._process.running():
                self._go.release()
                self._stopped.acquire()
            if self._error is not None and not self._killed:
                raise self._error
        return not self.ended

    def to_end_of_input(self) -> None:
        """Run, from the beginning, until every tuple has been executed and nothing is prepared."""
        for _ in range(len(self._batches) + 1):
            self.step()

    def finish(self) -> list[WireRow]:
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


def merged(seen: Mapping[Run, Emitted], runs: Iterable[Run]) -> Emitted:
    """Return what `runs` emitted, in the order of their components and tasks."""
    found: Emitted = {}
    for run in sorted(runs):
        for stream, emitted in seen.get(run, {}).items():
            found.setdefault(stream, []).extend(emitted)
    return found
