"""One task of a slot: its operator, what surrounds it, and what becomes of what it raises."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import ParamSpec, TypeVar

import pyarrow as pa

from statefx.errors import BoltError, FailedException, FencedError, ProviderError, StateCorruptedError, StateError
from statefx.operators.user_errors import place_of
from statefx.protocol.alignment import Alignment, AlignmentResult
from statefx.protocol.barrier import Ack, Barrier
from statefx.protocol.failure import Failure, FailureKind
from statefx.runtime.bolts import hook
from statefx.runtime.operator import PreparedTask, TaskAttempt, TaskOperator
from statefx.runtime.outbox import BatchQueue
from statefx.runtime.staging import PartLostError
from statefx.topology.graph import Edge

METRICS = ("restore", "open", "execute", "finish")
"""What an ack has the milliseconds of."""

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Member:
    """One task of the chain that a slot runs.

    Parameters
    ----------
    task : TaskAttempt
    operator : TaskOperator
    alignment : Alignment
        Of its input.

    Attributes
    ----------
    inbox : BatchQueue
        What came to it from before it in the chain, each with its edge.
    failure : Failure or None
        Why it can't prepare. From then on it does nothing more, but its barriers and its ack still go out: they tell
        the tasks behind it and the driver (rule 6.6), and the slot lives on.
    """

    _aligned: AlignmentResult

    def __init__(self, task: TaskAttempt, operator: TaskOperator, alignment: Alignment) -> None:
        self.task = task
        self.component = task.id.component
        self._kind = task.deployment.plan.components[task.id.component].kind
        self.alignment = alignment
        self.inbox: BatchQueue[Edge] = BatchQueue()
        self.failure: Failure | None = None
        self.acked = False
        """The driver may know that it has prepared: only the log says what becomes of that."""
        self._operator = operator
        self._secs = dict.fromkeys(METRICS, 0.0)

    def open(self) -> None:
        """Open the operator."""
        self._run("open", self._open)

    def _open(self) -> None:
        self.task.worker.raise_late(self.task.deployment, self.task.id)
        if self.task.time is not None:
            self.task.time.open(self.task.order.time(self.task.id))
        self._operator.open(self.task)

    def begin(self) -> bool:
        """Let it do what needs no input; True if it has paused."""
        return bool(self._run("execute", self._operator.begin))

    def feed(self, edge: Edge, batch: pa.RecordBatch) -> bool:
        """Give it rows; True if it has paused among them."""
        return bool(self._run("execute", self._operator.feed, edge, batch))

    def resume(self) -> bool:
        """Let it go on after a pause; True if it has paused again."""
        return bool(self._run("execute", self._operator.resume))

    def flush(self) -> None:
        """Send on what it has emitted."""
        self._run("execute", self._flush)

    def _flush(self) -> None:
        with hook(self.task.id, "emit", self.task.txid, self._kind):
            self.task.collector.flush()

    def _emit_last(self) -> None:
        with hook(self.task.id, "emit", self.task.txid, self._kind):
            self.task.collector.finish()

    def end(self) -> Sequence[Barrier]:
        """End its input: judge it (rule 5.3), and let it emit to the last; return the barriers that are ignored."""
        aligned = self._aligned = self.alignment.finish()
        if self.failure is None:  # its own comes first: an input that was cut off may well follow from it
            self.failure = aligned.failure
        time = self.task.time
        if time is not None:
            time.end_input(aligned.watermark, aligned.parts)
        self._run("finish", self._operator.end)
        # Rows before barriers: what is emitted to the last must be counted in them (rule 5.2).
        self._run("execute", self._emit_last)
        if time is not None:
            time.end_output()
        return aligned.stale

    def prepare(self) -> Ack:
        """Prepare, if its input was whole, and return what the driver is told."""
        prepared = self._run("finish", self._prepare)
        self.task.collector.close()
        return self._ack(PreparedTask() if prepared is None or self.failure is not None else prepared)

    def _prepare(self) -> PreparedTask:
        prepared = self._operator.finish()
        prepared.check_size(self.task.id)
        task = self.task
        task.collector.refuse_late(partial(task.worker.keep_late, task.deployment, task.id))
        return prepared

    def close(self, *, keep: bool) -> None:
        """Release everything."""
        self.task.collector.close()
        self.inbox.close()
        # A bolt that has failed may hold half of a transaction in its attributes.
        self._operator.close(keep=keep and self.failure is None, acked=self.acked)

    def _ack(self, prepared: PreparedTask) -> Ack:
        task, aligned = self.task, self._aligned
        return Ack(
            task.order.attempt,
            *task.id,
            task.token,
            seen=aligned.seen,
            received=aligned.received,
            emitted={outlet.edge.id: outlet.emitted for outlet in task.collector.outlets},
            taken={outlet.edge.id: outlet.taken for outlet in task.collector.outlets if outlet.taken},
            failed=self.failure,
            prepared_bytes=prepared.size_bytes,
            found_keys=prepared.found_keys,
            snapshot=prepared.snapshot,
            keys=prepared.keys,
            metrics=self._metrics(),
            committable=prepared.committable,
            metadata=prepared.metadata,
            left_out=prepared.left_out,
            set_aside=prepared.set_aside,
            trees=prepared.trees,
            counts=prepared.counts,
            time=None if task.time is None else task.time.report(),
            due_ms=prepared.due_ms,
        )

    def _run(
        self,
        metric: str,
        step: Callable[_Arguments, _Result],
        *arguments: _Arguments.args,
        **named: _Arguments.kwargs,
    ) -> _Result | None:
        """Run one step of the operator; what only fails this transaction becomes its failure.

        The clock is read around whole steps, of which a batch of rows has one or two, never for a tuple.
        """
        if self.failure is not None:
            return None
        began = time.perf_counter()
        try:
            return step(*arguments, **named)
        except BoltError as error:
            self._fail(FailureKind.BOLT, error.message, **error.data)
        except ProviderError as error:  # no further try would give anything else
            self._fail(FailureKind.BOLT, error.message, **{"task": self.task.id.task, **error.data})
        except FailedException as error:
            self._fail(FailureKind.FAILED, error.message or f"FailedException, without a reason{place_of(error)}")
        except FencedError as error:  # rule 6.6
            self._fail(FailureKind.FENCED, error.message)
        except StateCorruptedError as error:
            self._fail(FailureKind.CORRUPTED, error.message)
        except PartLostError as error:
            self._fail(FailureKind.INPUT, str(error))
        except (StateError, OSError) as error:  # rule 6.8: a store that is away; the next attempt comes after a pause
            self._fail(FailureKind.STORE, f"{type(error).__name__}: {error}")
        finally:
            self._secs[metric] += time.perf_counter() - began
        return None

    def _fail(self, kind: FailureKind, reason: str, **facts: object) -> None:
        self.failure = Failure(kind, *self.task.id, reason, facts)

    def _metrics(self) -> dict[str, float]:
        """Return the milliseconds of each kind of step; restoring state stands apart from the rest of opening."""
        restoring = self.task.restore_secs
        secs = {**self._secs, "restore": restoring, "open": self._secs["open"] - restoring}
        return {name: round(secs[name] * 1000, 3) for name in METRICS}
