"""Gives a bolt its rows so that one of which it raises an error is set aside, and the others are kept."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from statefx.errors import FailedException
from statefx.operators.dead_letters import DEAD_LETTER
from statefx.operators.json_values import JsonRows
from statefx.operators.user_errors import cause_of
from statefx.plan.levels import name_shown
from statefx.protocol.barrier import SetAside
from statefx.runtime.bolts import check_nothing
from statefx.runtime.guarding import CallGuard, is_of_row
from statefx.runtime.operator import TaskAttempt
from statefx.state.view.lent import LentState
from statefx.topology.graph import Edge, OnError


class GuardedCalls:
    """Calls ``execute`` or ``executeBatch`` of a bolt that has an ``onError``, in one attempt.

    Parameters
    ----------
    task : TaskAttempt
    guard : CallGuard
        The collector's.
    state : LentState or None
        The bolt's.
    """

    _edge: Edge
    _batch: pa.RecordBatch
    _left: Iterator[Any]
    """Of the rows of the batch that have not been given to the bolt, one value each: it tells how many they are."""

    def __init__(self, task: TaskAttempt, guard: CallGuard, state: LentState | None) -> None:
        self._task = task
        self._guard = guard
        self._state = state
        self._writes_letters = task.deployment.plan.components[task.id.component].on_error is OnError.DEAD_LETTER
        self._forms: dict[int, JsonRows] = {}
        self._rows = 0
        self._why = ""

    @property
    def set_aside(self) -> SetAside:
        """What was set aside in this attempt."""
        return SetAside(self._rows, self._why)

    def take(self, edge: Edge, batch: pa.RecordBatch, columns: list[list[Any]]) -> list[Any]:
        """Take note of the batch that the bolt is given next; return its `columns`, which are to be read in order."""
        # No row is counted on its way: that would cost as much as to write down what it changes.
        self._edge, self._batch, self._left = edge, batch, iter(columns[0])
        return [self._left, *columns[1:]]

    def run_tuples(self, execute: Callable[..., object], tuples: Iterator[Any]) -> bool:
        """Give the bolt the tuples that are left, with their roots if they are tracked; True if it has to pause."""
        task, guard, journal = self._task, self._guard, self._guard.journal
        collector, outbox, trees = task.collector, task.outbox, task.trees
        clear = journal.clear
        guard.begin(self._state)
        try:
            for tup in tuples:
                given: object = None
                try:
                    if trees is None:
                        given = execute(tup, collector)
                    else:
                        tup, trees.anchor.root = tup
                        given = execute(tup, collector)
                except FailedException as failure:
                    if trees is None or not trees.fail_tuple(tup, trees.anchor.root, failure.message):
                        raise
                except Exception as error:
                    if not is_of_row(error):
                        raise
                    guard.undo()
                    at = self._batch.num_rows - operator.length_hint(self._left) - 1
                    self._set_aside(error, "execute", self._batch.slice(at, 1))
                if given is not None:
                    check_nothing("execute", given)
                if journal:
                    if guard.waiting:
                        guard.keep()
                    clear()
                if outbox.pressing:
                    return True
        finally:
            guard.end()
            if trees is not None:
                trees.anchor.root = None
        return False

    def run_batch(self, execute: Callable[[pa.RecordBatch], object], edge: Edge, batch: pa.RecordBatch) -> None:
        """Give the bolt a batch; if it raises an error the halves of it, until the rows that are to blame are alone.

        Rows keep their order. A batch that can be dealt with in halves alone has no bad row.
        """
        self._edge = edge
        self._guard.begin(self._state)
        try:
            parts = [batch]
            while parts:
                part = parts.pop()
                try:
                    given = execute(part)
                except Exception as error:
                    if not is_of_row(error):
                        raise
                    self._guard.undo()
                    if part.num_rows > 1:
                        half = part.num_rows // 2
                        parts += [part.slice(half), part.slice(0, half)]
                        continue
                    self._set_aside(error, "executeBatch", part)
                else:
                    check_nothing("executeBatch", given)
                self._guard.keep()
        finally:
            self._guard.end()

    def _set_aside(self, error: Exception, hook: str, row: pa.RecordBatch) -> None:
        """Count a row, and emit it as a dead letter if the bolt has them."""
        task, number = self._task, self._rows
        self._rows += 1
        if self._why and not self._writes_letters:
            return
        cause = cause_of(error)
        self._why = self._why or f"task {task.id.task}, {hook}: {cause}"
        if self._writes_letters:
            where: Sequence[Any] = (task.id.component, task.id.task, hook, task.txid, number)
            source = name_shown(self._edge.source), self._edge.stream
            letter = (self._json(row, error), *source, type(error).__name__, cause, *where)
            task.collector.emit(letter, stream=DEAD_LETTER)

    def _json(self, row: pa.RecordBatch, error: Exception) -> str:
        form = self._forms.get(self._edge.id)
        if form is None:
            form = self._forms[self._edge.id] = JsonRows(row.schema)
        try:
            return form.encode(row)[0].decode()
        except ValueError as unwritable:  # no JSON, no letter: the row must not be lost
            raise error from unwritable
