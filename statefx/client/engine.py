"""Runs the transactions of a client, in the thread of the caller."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa

from statefx.coordinator.engine import AttemptFailedError, InProcessEngine, Job, SegmentRun
from statefx.errors import FencedError, StatefxError, TransactionError
from statefx.plan.deployment import Deployment
from statefx.protocol.barrier import Ack, Report
from statefx.protocol.identity import TaskId
from statefx.protocol.order import Order, ResolutionOrder
from statefx.runtime.bolt_operator import BoltOperator
from statefx.runtime.collector import TaskCollector
from statefx.runtime.operator import TaskAttempt, TaskOperator
from statefx.runtime.outbox import Outbox
from statefx.runtime.resolution import resolve_task
from statefx.runtime.sink_operator import SinkOperator
from statefx.runtime.worker import Worker
from statefx.state import KeyValueState


class LiveEngine(InProcessEngine):
    """Runs transactions whose rows the caller brings while they are open (`live`).

    Every component of `deployment` has one task and no reader.
    """

    def __init__(self, deployment: Deployment, worker: Worker) -> None:
        super().__init__()
        self.live: LiveAttempt | None = None
        self._deployment = deployment
        self._worker = worker

    def start(self, job: Job) -> None:
        """Begin a job; one that runs an attempt takes rows from now on, until `next` is called."""
        super().start(job)
        if isinstance(job.work, SegmentRun):
            self.live = LiveAttempt(self._worker, self._deployment, job.work.order)

    def reuses(self, work: object) -> bool:
        """Tell that no attempt can be made again over what was sent: the caller has to send it again."""
        return True  # only the caller has the rows: the log can't bring them back (rule 3.9)

    def run_segment(self, run: SegmentRun) -> tuple[Ack, ...]:
        """Prepare everything that was sent and put."""
        assert self.live is not None
        live, self.live = self.live, None
        return live.finish()

    def resolve(self, order: ResolutionOrder) -> tuple[Report, ...]:
        """Commit or roll back stores that have to be told."""
        return tuple(resolve_task(self._worker, self._deployment, order, task) for task in order.tasks)

    def close(self) -> None:
        """Release what is open."""
        if self.live is not None:
            self.live.close(keep=False)
        self._worker.close()


class StateOperator(BoltOperator):
    """Opens and prepares a state that somebody else changes."""

    @property
    def state(self) -> KeyValueState[Any, Any]:
        """As last committed, and what was changed since it was opened."""
        assert self._state is not None
        return self._state


class LiveAttempt:
    """One attempt of a transaction, open for rows and changes of state; `failure` says why it can't be committed."""

    def __init__(self, worker: Worker, deployment: Deployment, order: Order) -> None:
        self.failure: BaseException | None = None
        self._worker = worker
        self._deployment = deployment
        self._order = order
        self._tasks: dict[str, tuple[TaskAttempt, TaskOperator]] = {}
        self._rows: dict[str, int] = {}

    def feed(self, sink: str, batch: pa.RecordBatch) -> None:
        """Have a sink write rows."""
        edge = self._deployment.plan.inputs[sink][0]
        try:
            self._operator(sink).feed(edge, batch)
        except BaseException as error:  # part of the batch may be written: KeyboardInterrupt comes anywhere
            self.failure = error
            raise
        self._rows[sink] = self._rows.get(sink, 0) + batch.num_rows

    def state(self, component: str) -> KeyValueState[Any, Any]:
        """Return the state of a component, which reads what was put."""
        operator = self._operator(component)
        assert isinstance(operator, StateOperator)
        return operator.state

    def finish(self) -> tuple[Ack, ...]:
        """Prepare everything; what was open is closed.

        AttemptFailedError: it has failed, or a component can't prepare, and all of it is rolled back.
        """
        keep = False
        try:
            if self.failure is not None:  # of any kind: KeyboardInterrupt here would end the driver
                raise AttemptFailedError(reason_of(self.failure)) from self.failure
            acks = tuple(self._ack(component) for component in self._deployment.plan.components)
            keep = True
        except (AttemptFailedError, FencedError):
            raise
        except Exception as error:
            self.failure = error
            raise AttemptFailedError(reason_of(error)) from error
        finally:
            self.close(keep=keep)
        return acks

    def close(self, *, keep: bool) -> None:
        """Release files and connections; what was written is dropped unless it was prepared."""
        for _, operator in self._tasks.values():
            operator.close(keep=keep)
        self._tasks.clear()

    def _operator(self, component: str) -> TaskOperator:
        """Return the operator of a component; it is opened when it is first needed."""
        if component not in self._tasks:
            plan = self._deployment.plan
            operator = StateOperator() if plan.components[component].stateful else SinkOperator()
            task = TaskAttempt(
                self._worker,
                self._deployment,
                self._order,
                TaskId(component, 0),
                uuid.uuid4().hex,  # the token: no other attempt ever has it, of whatever process (rule 1.3)
                TaskCollector(component, {}, (), self._order.attempt),
                Outbox(0, 0, plan.widths),
            )
            self._tasks[component] = task, operator
            try:
                operator.open(task)
            except BaseException as error:
                self.failure = error
                raise
        return self._tasks[component][1]

    def _ack(self, component: str) -> Ack:
        """Prepare one component."""
        operator = self._operator(component)  # also of one that nothing came to: every task acks (rule 5.1)
        prepared = operator.finish()
        task = self._tasks[component][0]
        prepared.check_size(task.id)
        return Ack(
            self._order.attempt,
            *task.id,
            task.token,
            received={edge.id: self._rows.get(component, 0) for edge in self._deployment.plan.inputs[component]},
            prepared_bytes=prepared.size_bytes,
            snapshot=prepared.snapshot,
            keys=prepared.keys,
            committable=prepared.committable,
            found_keys=prepared.found_keys,
        )


def reason_of(error: BaseException) -> str:
    """Return what the log says of a transaction that was rolled back."""
    if isinstance(error, TransactionError):
        return error.message
    return f"{type(error).__name__}: {error.message if isinstance(error, StatefxError) else error}"
