"""Runs one bolt through one attempt: its tuples, its hooks, its state."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any

import pyarrow as pa

from statefx.errors import CodecError, SchemaError
from statefx.operators import BatchBolt, Bolt, Stateful
from statefx.operators.tuples import tuple_maker
from statefx.operators.user_errors import bolt_error
from statefx.plan.levels import INGEST
from statefx.protocol.identity import SnapshotRef
from statefx.runtime.bolts import close_bolt, hook, view_of
from statefx.runtime.operator import PreparedTask, TaskAttempt, TaskOperator
from statefx.state.view import lent
from statefx.state.view.lent import LentState
from statefx.topology.graph import Edge
from statefx.topology.groupings import Promise


class BoltOperator(TaskOperator):
    """Runs one bolt through one attempt.

    Parameters
    ----------
    state_class : type
        What a stateful bolt is given; the tester's also watches what the bolt does with values.
    """

    _task: TaskAttempt

    def __init__(self, state_class: type[LentState] = LentState) -> None:
        self._state_class = state_class
        self._bolt: Bolt | None = None
        self._state: LentState | None = None
        self._classes: dict[int, Any] = {}
        self._tuples: Iterator[Any] = iter(())

    def open(self, task: TaskAttempt) -> None:
        """Take a bolt and give it its state."""
        self._task = task
        bolt = task.worker.take(task.deployment, task.id, task.order.attempt)
        assert isinstance(bolt, Bolt)
        self._bolt = bolt  # from now on `close` closes it
        if isinstance(bolt, Stateful):
            self._state = self._kept_state()
            if self._state is None:
                self._state = view_of(
                    task.deployment,
                    task.id,
                    bolt,
                    task.txid,
                    task.open_store,
                    version=task.state.version,
                    state_class=self._state_class,
                )
            with self._hook("initState"):
                bolt.initState(self._state)

    def _kept_state(self) -> LentState | None:
        """Return the state that the attempt before has left, if what it prepared is what is committed now."""
        task = self._task
        kept = None if task.states is None else task.states.pop(task.id, None)
        if kept is None:
            return None
        heir = None
        try:
            if lent.prepared(kept) == task.state.version:
                heir = lent.succeeded(kept, task.open_store)
        finally:
            if heir is None:
                lent.close(kept)
        return heir

    def feed(self, edge: Edge, batch: pa.RecordBatch) -> bool:
        """Run the tuples of one batch."""
        bolt, source = self._bolt, edge.source.removeprefix(INGEST)
        assert bolt is not None
        if bolt.vectorised:
            with self._hook("executeBatch"):
                returned: object = bolt.executeBatch(_marked(batch, edge, source), self._task.collector)  # type: ignore[func-returns-value]  # users' may
                _check_nothing("executeBatch", returned)
            return False
        with self._hook("execute"):
            columns = [_values(batch, position, source, edge) for position in range(batch.num_columns)]
        if self._state is not None and edge.grouping.promise is Promise.KEY:
            keys = [columns[batch.schema.get_field_index(name)] for name in edge.grouping.fields]
            with suppress(CodecError):  # a key that state can't hold matters only if the bolt uses it
                self._state.prefetch(keys[0] if len(keys) == 1 else list(zip(*keys, strict=True)))
        new = self._classes.get(edge.id)
        if new is None:
            new = self._classes[edge.id] = tuple_maker(batch.schema, source, edge.stream)
        self._tuples = map(new, zip(*columns, strict=True))
        return self.resume()

    def resume(self) -> bool:
        """Run the tuples that are left."""
        assert self._bolt is not None
        execute, collector, outbox = self._bolt.execute, self._task.collector, self._task.outbox
        with self._hook("execute"):
            for tup in self._tuples:
                if (given := execute(tup, collector)) is not None:
                    _check_nothing("execute", given)
                if outbox.pressing:  # asked after each tuple: one tuple may emit more than a worker can hold
                    return True
        return False

    def end(self) -> None:
        """Call finishBatch."""
        bolt = self._bolt
        if isinstance(bolt, BatchBolt):
            with self._hook("finishBatch"):
                returned: object = bolt.finishBatch(self._task.collector)  # type: ignore[func-returns-value]  # users' may
                _check_nothing("finishBatch", returned)

    def finish(self) -> PreparedTask:
        """Prepare: prePrepare, prepareCommit."""
        bolt, state = self._bolt, self._state
        assert bolt is not None  # it was opened
        if not isinstance(bolt, Stateful):
            return PreparedTask()
        assert state is not None
        with self._hook("prePrepare"):  # rule 7.1: the last who may change state
            bolt.prePrepare(self._task.txid)
        try:
            lent.prepare(state, self._task.txid, self._task.token)
        except CodecError as error:
            raise bolt_error(error, *self._task.id, "prepareCommit", self._task.txid) from error
        found = lent.found_keys(state)  # of the version that was opened: what is prepared is not in it
        return PreparedTask(state.prepared_bytes, state.prepared_keys, found, self._snapshot())

    def _snapshot(self) -> SnapshotRef | None:
        """Write a full image of the version that the state was opened at, if the driver wants one (rule 4.4)."""
        # Rule 4.4: of the version before, which is committed. One of what is prepared would be garbage after a
        # rollback.
        if not self._task.state.snapshot_due:
            return None
        assert self._state is not None
        return lent.snapshot(self._state)

    def close(self, *, keep: bool, acked: bool = False) -> None:
        """Release the state; let the worker have the bolt for the next transaction if it came through this one."""
        if self._state is not None:
            if keep and self._task.states is not None:
                self._task.states[self._task.id] = self._state
            else:
                lent.close(self._state)
        bolt, self._bolt = self._bolt, None
        if bolt is None:
            return
        # A bolt is kept to save `open` and what it loads. Nothing relies on what is in its attributes (rule 1.3).
        if keep and not _lives_for_one_attempt(bolt):
            self._task.worker.keep(self._task.deployment, self._task.id, bolt)
        else:
            close_bolt(bolt)

    def _hook(self, name: str) -> AbstractContextManager[None]:
        return hook(self._task.id, name, self._task.txid)


def _lives_for_one_attempt(bolt: Bolt) -> bool:
    """Tell whether a bolt's attributes belong to the batch: those of a BatchBolt without state, as in Storm.

    One with state begins every transaction in ``initState``.
    """
    return isinstance(bolt, BatchBolt) and not isinstance(bolt, Stateful)


def _check_nothing(name: str, returned: object) -> None:
    """Refuse what a hook returns: nobody would see it, and it was likely meant to be emitted."""
    if returned is None:
        return
    if inspect.iscoroutine(returned):
        returned.close()  # else Python warns later that it was never awaited
    raise TypeError(
        f"{name} returned {reprlib.repr(returned)} ({type(returned).__name__}), which nobody would see: emit rows with "
        "collector.emit(...), and return nothing"
    )


def _marked(batch: pa.RecordBatch, edge: Edge, source: str) -> pa.RecordBatch:
    """Say in the schema's metadata where a batch came from."""
    return batch.replace_schema_metadata({"source": source, "stream": edge.stream})


def _values(batch: pa.RecordBatch, position: int, source: str, edge: Edge) -> list[Any]:
    """Return a column as Python values."""
    try:
        values: list[Any] = batch.column(position).to_pylist()
    except (UnicodeDecodeError, ValueError, OverflowError, pa.ArrowException) as error:
        name = batch.schema.names[position]
        raise SchemaError(
            f"field {name!r} of stream {edge.stream!r} of {source!r} holds a value that Python can't: {error}. "
            "Clean it up before the topology, or take whole batches with executeBatch",
            component=edge.target,
            stream=edge.stream,
            field=name,
        ) from error
    return values
