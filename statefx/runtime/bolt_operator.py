"""Runs one bolt through one attempt: its tuples, its hooks, its state."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from itertools import repeat
from typing import Any

import pyarrow as pa

from statefx.errors import CodecError, FailedException, SchemaError
from statefx.operators import BatchBolt, Bolt, Stateful
from statefx.operators.acker import ACKS, ROWS, Acker
from statefx.operators.dedup import Dedup
from statefx.operators.schema import parse_schema
from statefx.operators.tuples import tuple_maker
from statefx.operators.user_errors import bolt_error
from statefx.plan.levels import ROOT, ROOTS, name_shown
from statefx.protocol.identity import SnapshotRef
from statefx.protocol.trees import NOTHING
from statefx.runtime.bolts import close_bolt, context_of, hook, open_operator, view_of
from statefx.runtime.operator import PreparedTask, TaskAttempt, TaskOperator
from statefx.runtime.trees import Roots, Trees
from statefx.state.view import lent
from statefx.state.view.lent import LentState
from statefx.topology.graph import Edge
from statefx.topology.groupings import Promise

ACK_ROWS = parse_schema(ROWS)


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
        bolt = self._holder()
        if bolt is None:
            taken = task.worker.take(task.deployment, task.id, task.order.attempt)
            assert isinstance(taken, Bolt)
            bolt = taken
        self._bolt = bolt  # from now on `close` closes it
        if isinstance(bolt, Acker | Dedup):
            bolt.now_ms = task.order.clock_ms
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

    @property
    def _may_hold(self) -> bool:
        """Whether it is a plain bolt, which may hold tuples of trees in its attributes."""
        trees = self._task.trees
        return trees is not None and trees.by_hand and self._task.bolts is not None

    def _holder(self) -> Bolt | None:
        """Return the object of a plain bolt, if what it holds is of transactions that are committed."""
        task = self._task
        if not self._may_hold:
            return None
        assert task.bolts is not None
        bolt, seen = task.bolts.pop(task.id, (None, 0))
        if bolt is not None and seen >= task.txid:
            # It came through an attempt that was rolled back. What it got then comes again: it would hold it twice,
            # and the trees would never end. So what it held is lost, as with its worker, and times out.
            close_bolt(bolt)
            bolt = None
        if bolt is None:
            opened = open_operator(task.deployment, task.id, task.order.attempt)
            assert isinstance(opened, Bolt)
            return opened
        context_of(bolt).enter(task.order.attempt)
        return bolt

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
        bolt, source = self._bolt, name_shown(edge.source)
        assert bolt is not None
        roots = None
        if self._task.trees is not None and self._task.deployment.plan.tracks(edge):
            roots = self._roots(batch.column(batch.num_columns - 1))
            batch = batch.select(range(batch.num_columns - 1))
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
        trees = self._task.trees
        new = self._classes.get(edge.id)
        if new is None:
            by_hand = trees is not None and trees.by_hand
            new = self._classes[edge.id] = tuple_maker(batch.schema, source, edge.stream, rooted=by_hand)
        self._tuples = map(new, zip(*columns, strict=True))
        if trees is not None:
            own: Iterable[Roots] = repeat(None) if roots is None else roots
            self._tuples = zip(self._tuples, trees.received(own) if trees.tracing else own, strict=False)
        return self.resume()

    def _roots(self, column: pa.Array) -> list[Roots]:
        """Return the roots of a batch's tuples, in the form of those that the bolt's own rows have."""
        found: list[Any] = column.to_pylist()
        if column.type == ROOT and self._task.deployment.plan.root_types[self._task.id.component] == ROOTS:
            return [None if root is None else [root] for root in found]
        return found

    def resume(self) -> bool:
        """Run the tuples that are left."""
        if self._task.trees is not None:
            return self._run_tracked(self._task.trees)
        assert self._bolt is not None
        execute, collector, outbox = self._bolt.execute, self._task.collector, self._task.outbox
        with self._hook("execute"):
            for tup in self._tuples:
                if (given := execute(tup, collector)) is not None:
                    _check_nothing("execute", given)
                if outbox.pressing:  # asked after each tuple: one tuple may emit more than a worker can hold
                    return True
        return False

    def _run_tracked(self, trees: Trees) -> bool:
        """Run the tuples that are left, each with the roots of its trees; a tuple that fails fails these alone."""
        assert self._bolt is not None
        execute, collector, outbox = self._bolt.execute, self._task.collector, self._task.outbox
        anchor, by_hand = trees.anchor, trees.by_hand
        with self._hook("execute"):
            try:
                for tup, roots in self._tuples:
                    if by_hand:
                        trees.begin(tup, roots)
                    else:
                        anchor.root = roots
                    try:
                        if (given := execute(tup, collector)) is not None:
                            _check_nothing("execute", given)
                    except FailedException as failure:
                        if not trees.fail_tuple(tup, roots, failure.message):
                            raise  # it is not tracked: the transaction fails
                    if outbox.pressing:
                        return True
            finally:
                anchor.root = None  # what finishBatch emits belongs to no single tuple
        return False

    def end(self) -> None:
        """Call finishBatch, and tell the acker of what is held."""
        bolt, task = self._bolt, self._task
        if isinstance(bolt, BatchBolt):
            with self._hook("finishBatch"):
                returned: object = bolt.finishBatch(task.collector)  # type: ignore[func-returns-value]  # users' may
                _check_nothing("finishBatch", returned)
        if task.trees is not None:
            rows = task.trees.rows()
            if rows:
                columns = zip(*rows, strict=True)
                arrays = [pa.array(column, field.type) for column, field in zip(columns, ACK_ROWS, strict=True)]
                task.collector.emitBatch(pa.RecordBatch.from_arrays(arrays, schema=ACK_ROWS), stream=ACKS)

    def finish(self) -> PreparedTask:
        """Prepare: prePrepare, prepareCommit."""
        bolt, state = self._bolt, self._state
        assert bolt is not None  # it was opened
        trees = self._task.trees
        report = NOTHING if trees is None else trees.report(str(self._task.id))
        if not isinstance(bolt, Stateful):
            return PreparedTask(trees=report)
        if isinstance(bolt, Acker):
            report = bolt.report
        assert state is not None
        with self._hook("prePrepare"):  # rule 7.1: the last who may change state
            bolt.prePrepare(self._task.txid)
        try:
            lent.prepare(state, self._task.txid, self._task.token)
        except CodecError as error:
            raise bolt_error(error, *self._task.id, "prepareCommit", self._task.txid) from error
        found = lent.found_keys(state)  # of the version that was opened: what is prepared is not in it
        snapshot = self._snapshot()
        return PreparedTask(state.prepared_bytes, state.prepared_keys, found, snapshot, trees=report)

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
        if keep and self._may_hold:
            assert self._task.bolts is not None
            self._task.bolts[self._task.id] = bolt, self._task.txid
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
