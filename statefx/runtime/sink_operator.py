"""Runs the writer of a sink through one attempt."""

from __future__ import annotations

import json
import logging
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa

from statefx.errors import BoltError, FailedException, FencedError, StateError
from statefx.operators.sinks import Sink, SinkWriter, WriterContext
from statefx.operators.user_errors import bolt_error
from statefx.runtime.operator import PreparedTask, TaskAttempt, TaskOperator
from statefx.topology.graph import Edge

logger = logging.getLogger("statefx")


class SinkOperator(TaskOperator):
    """Writes a task's rows so that nobody sees them, and tells the driver where they are."""

    _task: TaskAttempt

    def __init__(self) -> None:
        self._writer: SinkWriter | None = None

    def open(self, task: TaskAttempt) -> None:
        """Make the writer of this attempt: it shares nothing with those of others."""
        self._task = task
        plan = task.deployment.plan
        component = plan.components[task.id.component]
        edge = plan.inputs[component.id][0]  # all inputs of a sink have the same fields
        assert isinstance(component.operator, Sink)
        context = WriterContext(
            component=component.id,
            task=task.id.task,
            parallelism=component.parallelism,
            attempt=task.order.attempt,
            token=task.token,
            schema=plan.schema(edge),
            storage=task.deployment.storage,
        )
        with self._step("writer"):
            writer: object = component.operator.writer(context)
            if not isinstance(writer, SinkWriter):
                raise TypeError(f"writer returned {reprlib.repr(writer)}, not a statefx.connectors.SinkWriter")
        self._writer = writer

    def feed(self, edge: Edge, batch: pa.RecordBatch) -> bool:
        """Write rows; a sink emits nothing, so it never pauses."""
        assert self._writer is not None
        with self._step("write"):
            self._writer.write(batch)
        return False

    def finish(self) -> PreparedTask:
        """Make what was written durable."""
        assert self._writer is not None
        with self._step("prepare"):
            committable: object = self._writer.prepare(self._task.txid)
            if committable is not None and not isinstance(committable, Mapping):
                raise TypeError(f"prepare returned {reprlib.repr(committable)}: return a dict of JSON, or None")
            json.dumps(found := None if committable is None else dict(committable))
        return PreparedTask(committable=found)

    def close(self, *, keep: bool, acked: bool = False) -> None:
        """Close the writer; what it wrote is taken away where nobody will name it."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            if not keep and not acked:
                writer.abort()
            writer.close()
        except Exception:
            logger.exception("the writer of %s could not be closed; what it leaves is swept later", self._task.id)

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """Turn what the writer raises into an error that names the sink; that of a disk may be over at the next try."""
        try:
            yield
        except (FailedException, FencedError, BoltError, OSError, StateError):
            raise
        except Exception as error:
            raise bolt_error(error, *self._task.id, name, self._task.txid, kind="sink") from error
