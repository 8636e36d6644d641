"""Commits what a client's transaction has changed, in the thread of the caller."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from statefx.coordinator.attempt import Attempt, Part
from statefx.coordinator.engine import Answer, came_of
from statefx.coordinator.retrying import AttemptFailedError
from statefx.errors import FencedError, StatefxError, TransactionError
from statefx.plan.deployment import Deployment
from statefx.protocol.barrier import Ack
from statefx.protocol.commands import Segment
from statefx.protocol.identity import SnapshotRef, TaskId, TransactionAttempt, Version
from statefx.protocol.order import Order, ResolutionOrder
from statefx.runtime.collector import TaskCollector
from statefx.runtime.operator import PreparedTask, TaskAttempt, TaskOperator
from statefx.runtime.outbox import Outbox
from statefx.runtime.resolution import resolve_task
from statefx.runtime.sink_operator import SinkOperator
from statefx.runtime.worker import Worker, release_sinks
from statefx.state.contract.spaces import Space
from statefx.state.contract.store import StateStore, Write, open_store, prepare_as
from statefx.topology.graph import Edge


@dataclass(slots=True)
class Changes:
    """All that one transaction does: the work of its attempt; `failure` says why the attempt was rolled back."""

    rows: Mapping[str, Sequence[pa.RecordBatch]]
    writes: Mapping[str, Sequence[Write]]
    failure: Exception | None = None


class ClientEngine:
    """Runs transactions that are `Changes`, when `next` is called (see `Engine`).

    Every component has one task, and none but a stream has a reader.

    Attributes
    ----------
    stores : dict of str to StateStore
        The state of components at the committed version, from the first read until the next commit begins.
    """

    def __init__(self, deployment: Deployment, worker: Worker) -> None:
        self._left: deque[tuple[Attempt, Part, Callable[[], object]]] = deque()
        self.deployment = deployment
        self._worker = worker
        self.stores: dict[str, StateStore] = {}

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
        """Begin to write and to prepare everything."""
        self.call(attempt, segment, partial(self._prepare_all, attempt, order))

    def resolve(self, attempt: Attempt, name: str, order: ResolutionOrder) -> None:
        """Begin to commit or to roll back stores that have to be told."""

        def told() -> None:
            attempt.reports = [resolve_task(self._worker, self.deployment, order, task) for task in order.tasks]

        self.call(attempt, name, told)

    def call(self, attempt: Attempt, part: Part, call: Callable[[], object]) -> None:
        """Have something run when `next` is called."""
        self._left.append((attempt, part, call))

    def next(self, timeout_secs: float | None) -> Answer | None:
        """Run one of those that have begun."""
        return came_of(*self._left.popleft()) if self._left else None

    def cancel(self, attempt: Attempt) -> None:
        """Drop what has not run."""
        self._left = deque(each for each in self._left if each[0] is not attempt)

    def interrupt(self) -> None:
        """Do nothing: `next` never waits."""

    def status(self) -> dict[str, Any]:
        """Return nothing: there is no run."""
        return {}

    def _prepare_all(self, attempt: Attempt, order: Order) -> None:
        """Write and prepare everything; AttemptFailedError if a component can't, and all of it is rolled back."""
        assert attempt.batch is not None
        changes: Changes = attempt.batch.work
        operators: list[TaskOperator] = []
        keep = False
        streams = {stream: self._stream_ack(changes, order, stream) for stream in self.deployment.plan.streams}
        seen = {ack.id: ack.token for ack in streams.values()}
        try:
            bolts = [each for each in self.deployment.plan.components if each not in streams]
            attempt.acks = [*streams.values(), *(self._ack(changes, order, each, seen, operators) for each in bolts)]
            keep = True
        except FencedError:
            raise
        except Exception as error:
            changes.failure = error
            raise AttemptFailedError(reason_of(error)) from error
        finally:
            for operator in operators:
                operator.close(keep=keep)

    def _stream_ack(self, changes: Changes, order: Order, stream: str) -> Ack:
        """Say how many rows the caller has brought: every task acks (rule 5.1)."""
        emitted = {
            edge.id: sum(batch.num_rows for batch in changes.rows.get(edge.target, ()))
            for edge in self.deployment.plan.outputs[stream]
        }
        return Ack(order.attempt, stream, 0, uuid.uuid4().hex, emitted=emitted)

    def _ack(
        self,
        changes: Changes,
        order: Order,
        component: str,
        sources: Mapping[TaskId, str],
        operators: list[TaskOperator],
    ) -> Ack:
        """Prepare one component, also one that nothing came to."""
        plan = self.deployment.plan
        operator: TaskOperator = SinkOperator()
        if plan.components[component].stateful:
            operator = StateOperator(self.stores.pop(component, None), changes.writes.get(component, ()))
        operators.append(operator)
        task = TaskAttempt(
            self._worker,
            self.deployment,
            order,
            TaskId(component, 0),
            uuid.uuid4().hex,  # the token: no other attempt ever has it, of whatever process (rule 1.3)
            TaskCollector(component, {}, (), order.attempt),
            Outbox(0, 0, plan.widths),
        )
        operator.open(task)
        batches = changes.rows.get(component, ())
        for batch in batches:
            operator.feed(plan.inputs[component][0], batch)
        prepared = operator.finish()
        prepared.check_size(task.id)
        rows = sum(batch.num_rows for batch in batches)
        return Ack(
            order.attempt,
            *task.id,
            task.token,
            seen={TaskId(edge.source, 0): sources[TaskId(edge.source, 0)] for edge in plan.inputs[component]},
            received={edge.id: rows for edge in plan.inputs[component]},
            prepared_bytes=prepared.size_bytes,
            snapshot=prepared.snapshot,
            keys=prepared.keys,
            committable=prepared.committable,
            found_keys=prepared.found_keys,
        )

    def release(self) -> None:
        """Close the stores that are open; they are opened again when they are needed."""
        while self.stores:
            self.stores.popitem()[1].close()

    def close(self) -> None:
        """Release what is open."""
        self.release()
        self._worker.close()
        release_sinks(self.deployment)


class StateOperator(TaskOperator):
    """Prepares what a transaction writes to one component, in `store` if it is open already."""

    _task: TaskAttempt

    def __init__(self, store: StateStore | None, writes: Sequence[Write]) -> None:
        self._store = store
        self._writes = writes

    def open(self, task: TaskAttempt) -> None:
        """Open the store at the committed version."""
        self._task = task
        if self._store is None:
            self._store = task.open_store()

    def feed(self, edge: Edge, batch: pa.RecordBatch) -> bool:
        """Never called: nothing is sent to it."""
        raise NotImplementedError

    def finish(self) -> PreparedTask:
        """Make the writes durable; nobody can see them yet."""
        store, task = self._store, self._task
        assert store is not None
        prepared = prepare_as(store, task.txid, task.token, self._writes)
        found = store.count(Space.USER.value)  # of the version that was opened: what is prepared is not in it
        snapshot = store.snapshot() if task.state.snapshot_due else None  # rule 4.4: of the version before, too
        return PreparedTask(prepared.size_bytes, len(self._writes), found, snapshot)

    def close(self, *, keep: bool, acked: bool = False) -> None:
        """Release the store."""
        if self._store is not None:
            self._store.close()


def reason_of(error: BaseException) -> str:
    """Return what the log says of a transaction that was rolled back."""
    if isinstance(error, TransactionError):
        return error.message
    return f"{type(error).__name__}: {error.message if isinstance(error, StatefxError) else error}"
