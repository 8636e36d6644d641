"""Commits what a client's transaction has changed, in the thread of the caller."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from statefx.coordinator.attempt import Answer, Attempt, Part
from statefx.coordinator.retrying import AttemptFailedError
from statefx.errors import FencedError, StatefxError, TransactionError
from statefx.plan.deployment import Deployment
from statefx.protocol.commands import Segment
from statefx.protocol.identity import SnapshotRef, TaskId, TransactionAttempt, Version
from statefx.protocol.order import Order, ResolutionOrder
from statefx.protocol.reports import Ack, Barrier
from statefx.runtime.outlets import Outbox
from statefx.runtime.sink_task import SinkTask
from statefx.runtime.task import Prepared, Task
from statefx.runtime.worker import Worker, release_sinks
from statefx.state.contract.spaces import Space
from statefx.state.contract.store import StateStore, Write, open_store, prepare_as
from statefx.topology.graph import Edge


@dataclass(slots=True)
class Changes:
    """The work of a client's attempt; `failure` says why it was rolled back."""

    rows: Mapping[str, Sequence[pa.RecordBatch]]
    writes: Mapping[str, Sequence[Write]]
    failure: Exception | None = None


class ClientEngine:
    """Runs transactions that are `Changes`, when `next` is called (see `Engine`).

    Every component has one task, and none but a stream has a reader. `stores` are open at the committed version, from
    the first read until the next commit begins.
    """

    def __init__(self, deployment: Deployment, worker: Worker) -> None:
        self._left: deque[tuple[Attempt, Part, Callable[[], object]]] = deque()
        self.deployment = deployment
        self._worker = worker
        self.stores: dict[str, StateStore] = {}
        self._tasks: dict[TaskId, Task] = {}
        for name, component in deployment.plan.components.items():
            if name not in deployment.plan.streams:
                id = TaskId(name, 0)
                made = WritesTask if component.stateful else SinkTask
                self._tasks[id] = made(worker, deployment, id)

    def open_store(self, component: str, generation: int, version: Version, snapshot: SnapshotRef | None) -> StateStore:
        """Open the state of a component at the committed version, for reads and for the next commit."""
        task = TaskId(component, 0)
        snapshots = {} if snapshot is None else {str(task): snapshot}
        order = Order(TransactionAttempt(version.txid, 0), generation, {str(task): version}, snapshots)
        context = self.deployment.state_context(order, task)
        provider = self._worker.provider(self.deployment)
        store = self.stores[component] = open_store(provider, self.deployment.namespace(*task), context)
        return store

    def start(self, attempt: Attempt, segment: Segment, order: Order) -> None:
        self.call(attempt, segment, partial(self._prepare_all, attempt, order))

    def resolve(self, attempt: Attempt, name: str, order: ResolutionOrder) -> None:
        def resolve_all() -> None:
            attempt.reports = [self._tasks[task].resolve(order) for task in order.tasks]

        self.call(attempt, name, resolve_all)

    def call(self, attempt: Attempt, part: Part, call: Callable[[], object]) -> None:
        self._left.append((attempt, part, call))

    def next(self, timeout_secs: float | None) -> Answer | None:
        if not self._left:
            return None
        attempt, part, call = self._left.popleft()
        try:
            call()
        except Exception as error:  # noqa: BLE001 - whoever reads the answer decides; Ctrl-C is the caller's
            return Answer(attempt, part, error)
        return Answer(attempt, part)

    def cancel(self, attempt: Attempt) -> None:
        self._left = deque(each for each in self._left if each[0] is not attempt)

    def interrupt(self) -> None:
        """Do nothing: `next` never waits."""

    def status(self) -> dict[str, Any]:
        return {}

    def _prepare_all(self, attempt: Attempt, order: Order) -> None:
        """Write and prepare everything; AttemptFailedError if a component can't, and all of it is rolled back."""
        assert attempt.batch is not None
        changes: Changes = attempt.batch.work
        done = False
        streams = {stream: self._stream_ack(changes, order, stream) for stream in self.deployment.plan.streams}
        for task in self._tasks.values():
            token = uuid.uuid4().hex  # no other attempt ever has it, of whatever process (rule 1.3)
            task.enter(order, token, (), Outbox(0, 0, self.deployment.plan.widths))
        try:
            attempt.acks = [*streams.values(), *(self._ack(changes, task, streams) for task in self._tasks.values())]
            done = True
        except FencedError:
            raise
        except Exception as error:
            changes.failure = error
            raise AttemptFailedError(reason_of(error)) from error
        finally:
            for task in self._tasks.values():
                task.leave(done=done)

    def _stream_ack(self, changes: Changes, order: Order, stream: str) -> Ack:
        """Ack the rows that the caller has brought: every task acks (rule 5.1)."""
        emitted = {
            edge.id: sum(batch.num_rows for batch in changes.rows.get(edge.target, ()))
            for edge in self.deployment.plan.outputs[stream]
        }
        return Ack(order.attempt, stream, 0, uuid.uuid4().hex, emitted=emitted)

    def _ack(self, changes: Changes, task: Task, streams: Mapping[str, Ack]) -> Ack:
        """Prepare one component, also one without rows and writes."""
        component, attempt = task.id.component, task.attempt
        if isinstance(task, WritesTask):
            task.given(self.stores.pop(component, None), changes.writes.get(component, ()))
        task.begin()
        for edge in self.deployment.plan.inputs[component]:
            ack = streams[edge.source]
            for batch in changes.rows.get(component, ()):
                attempt.input.records(*ack.id, ack.token, edge.id, batch.num_rows)
                task.feed(edge, batch)
            attempt.input.barrier(Barrier(ack.attempt, *ack.id, ack.token, {edge.id: ack.emitted[edge.id]}))
        attempt.end_input()
        return attempt.ack(task.prepare_checked())

    def release(self) -> None:
        """Close the open stores; they are opened again when they are needed."""
        while self.stores:
            self.stores.popitem()[1].close()

    def close(self) -> None:
        self.release()
        self._worker.close()
        release_sinks(self.deployment)


class WritesTask(Task):
    """Prepares what a transaction writes to one component."""

    _store: StateStore | None = None

    def given(self, store: StateStore | None, writes: Sequence[Write]) -> None:
        """Take the writes of the attempt, and the store at the committed version, if it is open already."""
        self._store, self._writes = store, writes

    def begin(self) -> None:
        super().begin()
        if self._store is None:
            self._store = self.open_store()

    def feed(self, edge: Edge, batch: pa.RecordBatch) -> bool:
        """Never called: nothing is sent to it."""
        raise NotImplementedError

    def prepare(self) -> Prepared:
        store, attempt = self._store, self.attempt
        assert store is not None
        prepared = prepare_as(store, attempt.txid, attempt.token, self._writes)
        found = store.count(Space.USER.value)  # of the version that was opened: what is prepared is not in it
        snapshot = store.snapshot() if attempt.order.state(self.id).snapshot_due else None  # rule 4.4: of that version
        return Prepared(prepared.size_bytes, len(self._writes), found, snapshot)

    def keep(self) -> None:
        """Close the store: the next attempt opens another version."""
        self.drop(acked=True)

    def drop(self, *, acked: bool) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()


def reason_of(error: BaseException) -> str:
    if isinstance(error, TransactionError):
        return error.message
    return f"{type(error).__name__}: {error.message if isinstance(error, StatefxError) else error}"
