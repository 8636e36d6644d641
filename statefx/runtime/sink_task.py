"""Runs a sink: each attempt has a writer of its own."""

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
from statefx.runtime.task import Prepared, Task
from statefx.topology.graph import Edge

logger = logging.getLogger("statefx")


class SinkTask(Task):
    """Writes rows so that no reader sees them, and reports where they are."""

    _writer: SinkWriter | None = None

    def begin(self) -> None:
        """Make the writer of this attempt: it shares nothing with those of others."""
        super().begin()
        plan = self.deployment.plan
        edge = plan.inputs[self.id.component][0]  # all inputs of a sink have the same fields
        assert isinstance(self.component.operator, Sink)
        context = WriterContext(
            component=self.id.component,
            task=self.id.task,
            parallelism=self.component.parallelism,
            attempt=self.attempt.order.attempt,
            token=self.attempt.token,
            schema=plan.schema(edge),
            storage=self.deployment.storage,
        )
        with self._step("writer"):
            writer: object = self.component.operator.writer(context)
            if not isinstance(writer, SinkWriter):
                raise TypeError(f"writer returned {reprlib.repr(writer)}, not a statefx.connectors.SinkWriter")
        self._writer = writer

    def feed(self, edge: Edge, batch: pa.RecordBatch) -> bool:
        """Write rows; a sink emits nothing, so it never pauses."""
        assert self._writer is not None
        with self._step("write"):
            self._writer.write(batch)
        return False

    def prepare(self) -> Prepared:
        assert self._writer is not None
        with self._step("prepare"):
            committable: object = self._writer.prepare(self.attempt.txid)
            if committable is not None and not isinstance(committable, Mapping):
                raise TypeError(f"prepare returned {reprlib.repr(committable)}: return a dict of JSON, or None")
            json.dumps(found := None if committable is None else dict(committable))
        return Prepared(committable=found)

    def keep(self) -> None:
        self._close_writer(abort=False)

    def drop(self, *, acked: bool) -> None:
        self._close_writer(abort=not acked)

    def _close_writer(self, *, abort: bool) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            if abort:
                writer.abort()
            writer.close()
        except Exception:
            logger.exception("the writer of %s could not be closed; what it leaves is swept later", self.id)

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """Name the sink in what the writer raises; an error of a disk may be over at the next attempt."""
        try:
            yield
        except (FailedException, FencedError, BoltError, OSError, StateError):
            raise
        except Exception as error:
            raise bolt_error(error, *self.id, name, self.attempt.txid, kind="sink") from error
