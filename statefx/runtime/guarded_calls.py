"""Gives a bolt its rows so that a bad one alone is undone: one of which it raises an error, or fails a loose tuple.

A row that fails by FailedException fails the trees that it belongs to. A loose one (see `statefx.runtime.trees`) is
lost, or a dead letter: no other attempt would be given anything else, and nobody hands it out again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import compress
from typing import Any

import pyarrow as pa

from statefx.errors import FailedException, SchemaError
from statefx.operators.dead_letters import DEAD_LETTER, NUMBER
from statefx.operators.json_values import JsonRows
from statefx.operators.quarantine import GroupKeys, Quarantine, shown_key
from statefx.operators.user_errors import cause_of
from statefx.plan.levels import name_shown
from statefx.protocol.reports import SetAside
from statefx.runtime.guard import CallGuard, is_of_row
from statefx.runtime.task import TaskAttempt
from statefx.runtime.trees import Roots, Trees
from statefx.runtime.user_objects import check_nothing
from statefx.state.view.changes import Journal
from statefx.state.view.task_state import TaskState
from statefx.topology.graph import Edge, OnError

LOST = "the tuple is lost, for its message has no id, or it was emitted without anchors"


class GuardedCalls:
    """Calls ``execute`` or ``executeBatch`` of a bolt that has an ``onError``, or gets a spout's tuples.

    `sets_aside` says whether the bolt has an ``onError``.
    """

    _edge: Edge
    _batch: pa.RecordBatch
    _left: Iterator[Any]
    """Of the rows of the batch that have not been given to the bolt, one value each: it tells how many they are."""
    _keys: list[bytes] | None = None
    """The keys of the rows of the batch, if some may be in quarantine."""
    _numbers: list[int | None] | None = None
    """Of rows that are replayed, the numbers of their letters."""
    hook = "execute"
    """What the bolt is given single rows by."""
    _place: int | None = None
    """The index of the row in its batch, if rows do not come in the order of batches."""

    def __init__(self, task: TaskAttempt, guard: CallGuard, state: TaskState | None) -> None:
        self._task = task
        self._guard = guard
        self.state = state
        """State that a call may change while it is guarded."""
        mode = task.deployment.plan.components[task.id.component].on_error
        self.sets_aside = mode is not OnError.FAIL
        self._writes_letters = mode.writes_letters
        self._quarantine: Quarantine | None = None
        if mode is OnError.QUARANTINE_KEY:
            assert state is not None  # the builder refuses others
            self._quarantine = Quarantine(state)
        self._group_keys: dict[int, GroupKeys] = {}
        self._forms: dict[int, JsonRows] = {}
        self._rows = 0
        self._why = ""
        self._batch_hook = "executeBatch"

    @property
    def journal(self) -> Journal:
        return self._guard.journal

    @property
    def set_aside(self) -> SetAside:
        return SetAside(self._rows, self._why)

    def received(self, edge: Edge, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Note a batch; return it as the bolt gets it."""
        self._edge, self._keys, self._numbers = edge, None, None
        if self._quarantine is not None and batch.schema.names[-1] == NUMBER:
            last = batch.num_columns - 1
            self._numbers = batch.column(last).to_pylist()
            batch = batch.select(range(last))
        return batch

    def dealing_with(self, edge: Edge, batch: pa.RecordBatch, at: int) -> None:
        """Note which row the next call is for, where each comes with its place."""
        self._edge, self._batch, self._place = edge, batch, at

    @property
    def _may_hold_back(self) -> bool:
        """Whether keys of rows have to be looked up: rows cost no more as long as nothing is in quarantine."""
        return self._quarantine is not None and (self._numbers is not None or not self._quarantine.empty)

    def _keys_of(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return the grouping's key of each row, and read at once what waits of them."""
        assert self._quarantine is not None
        columns = [batch.column(batch.schema.get_field_index(name)) for name in self._edge.grouping.fields]
        form = self._group_keys.get(self._edge.id)
        if form is None:
            form = self._group_keys[self._edge.id] = GroupKeys([column.type for column in columns])
        keys = form.keys(columns)
        self._quarantine.prefetch(keys)
        return keys

    def take(self, batch: pa.RecordBatch, columns: list[list[Any]]) -> list[Any]:
        """Note the tuples that come next; return their `columns`, which are to be read in order."""
        # No row is counted on its way: that would cost as much as to write down what it changes.
        self._batch, self._left = batch, iter(columns[0])
        if self._may_hold_back:
            self._keys = self._keys_of(batch)
        return [self._left, *columns[1:]]

    def run_tuples(self, execute: Callable[..., object], tuples: Iterator[Any]) -> bool:
        """Give the bolt the tuples that are left, which are not tracked; return True if it has to pause."""
        task, guard, journal = self._task, self._guard, self._guard.journal
        collector, outbox = task.collector, task.outbox
        clear = journal.clear
        execute = self._holding(execute)
        guard.begin(self.state)
        try:
            for tup in tuples:
                given: object = None
                try:
                    given = execute(tup, collector)
                except Exception as error:
                    if not is_of_row(error):
                        raise
                    guard.undo()
                    execute = self._set_tuple_aside(error, execute)
                if given is not None:
                    check_nothing(self.hook, given)
                if journal:
                    if guard.waiting:
                        guard.keep()
                    clear()
                if outbox.pressing:
                    return True
        finally:
            guard.end()
        return False

    def run_tracked(
        self, trees: Trees, execute: Callable[..., object], tuples: Iterator[tuple[Any, Roots]], name: str
    ) -> bool:
        """Give the bolt the tuples that are left, each with its roots; return True if it has to pause.

        A broadcast tuple that fails fails the transaction: otherwise one task might have it, and another not.
        """
        collector, outbox = self._task.collector, self._task.outbox
        journal, one_by_one = self._guard.journal, name == "execute"
        guarded = one_by_one and self.sets_aside
        if one_by_one:
            execute = self._holding(execute)
        if guarded:
            self._begin(trees)
        begin = trees.begin
        try:
            for tup, roots in tuples:
                if not guarded and one_by_one and not roots and roots is not None:  # from here on: each takes longer
                    self._begin(trees)
                    guarded = True
                begin(tup, roots)
                try:
                    if (given := execute(tup, collector)) is not None:
                        check_nothing(name, given)
                except Exception as error:  # noqa: BLE001 - raised on, unless it concerns the tuple alone
                    execute = self._deal_with(error, tup, roots, execute, is_broadcast=not one_by_one)
                if trees.lost:
                    execute = self._take_lost(trees, execute)
                if guarded and journal:
                    if self._guard.waiting:
                        self._guard.keep()
                    journal.clear()
                if outbox.pressing:
                    return True
        finally:
            trees.end()
            self._end(trees)
        return False

    def _deal_with(
        self, error: Exception, tup: Any, roots: Roots, execute: Callable[..., object], *, is_broadcast: bool
    ) -> Callable[..., object]:
        """Deal with an error of a call for a tuple, or raise it; return what executes the next tuples."""
        trees = self._task.trees
        assert trees is not None
        if is_broadcast:
            raise error
        if not isinstance(error, FailedException):
            if not self.sets_aside or not is_of_row(error):
                raise error
            self._guard.undo()
            return self._set_tuple_aside(error, execute)
        if not roots and roots is not None:
            return self._lose_tuple(error, execute)
        if not trees.fail_tuple(tup, roots, error.message):
            raise error
        return execute

    def _begin(self, trees: Trees | None) -> None:
        self._guard.begin(self.state)
        if trees is not None:
            trees.journal = self._guard.journal

    def _end(self, trees: Trees | None) -> None:
        self._guard.end()
        if trees is not None:
            trees.journal = None

    def run_batch(
        self,
        execute: Callable[[pa.RecordBatch], object],
        batch: pa.RecordBatch,
        roots: Sequence[Roots] | None = None,
        hook: str = "executeBatch",
    ) -> None:
        """Give the bolt a batch; if it raises an error the halves of it, until the rows that are to blame are alone.

        Rows keep their order. A batch that can be dealt with in halves alone has no bad row. Rows that are replayed
        come one by one: whether one may be executed depends on what has become of the one before. `roots` are those of
        the rows; None: FailedException fails the transaction. `hook` is what rows are given to.
        """
        self._batch_hook = hook
        parts: list[tuple[pa.RecordBatch, int | None, Sequence[Roots] | None]] = [(batch, None, roots)]
        if self._numbers is not None:
            parts = [
                (batch.slice(at, 1), number, None if roots is None else roots[at : at + 1])
                for at, number in enumerate(self._numbers)
            ][::-1]
        self._begin(self._task.trees)
        try:
            while parts:
                part, number, of = parts.pop()
                if self._may_hold_back:
                    part, of = self._let_through(part, number, of)
                    self._guard.keep()
                    if not part.num_rows:
                        continue
                try:
                    given = execute(part)
                except Exception as error:
                    if not (self.sets_aside and is_of_row(error)) and not self._is_of_trees(error, of):
                        raise
                    self._guard.undo()
                    if part.num_rows > 1:
                        half = part.num_rows // 2
                        parts.append((part.slice(half), None, None if of is None else of[half:]))
                        parts.append((part.slice(0, half), None, None if of is None else of[:half]))
                        continue
                    if isinstance(error, FailedException) and of is not None and of[0]:
                        assert self._task.trees is not None
                        self._task.trees.fail_roots(of[0], error.message)
                    else:
                        self._set_row_aside(error, part, number)
                else:
                    check_nothing("executeBatch", given)
                    if number is not None:
                        self._dealt_with(self._keys_of(part)[0])
                self._guard.keep()
        finally:
            self._end(self._task.trees)

    @property
    def sets_timers_aside(self) -> bool:
        """Whether a timer of which the bolt raises an error is set aside: one has no key that a quarantine knows."""
        return self.sets_aside and self._quarantine is None

    def guarding_timers(self, on_timer: Callable[..., object]) -> Callable[..., object]:
        """Return a caller of ``onTimer`` that undoes a call that raises; the timer has fired all the same."""

        def guarded(key: Any, at: datetime, value: Any, collector: Any) -> object:
            guard = self._guard
            # Begun for each call: what comes between two, such as the deletion of the timer, is not to be undone.
            guard.begin(self.state)
            try:
                given = on_timer(key, at, value, collector)
                guard.keep()
                return given
            except Exception as error:
                if not is_of_row(error):
                    raise
                guard.undo()
                self._set_timer_aside(error, key, at)
                guard.keep()
                return None
            finally:
                guard.end()

        return guarded

    def _set_timer_aside(self, error: Exception, key: Any, at: datetime) -> None:
        """Count a timer, and emit a letter without a row, if the bolt has letters."""
        cause = f"the timer of key {key!r} at {at.isoformat()}: {cause_of(error)}"
        position = self._count(f"onTimer: {cause}")
        if self._writes_letters:
            task = self._task
            where = (task.id.component, task.id.task, "onTimer", task.txid, position, None)
            letter = (None, None, None, type(error).__name__, cause, *where)
            task.collector.emit(letter, stream=DEAD_LETTER)

    # ---- rows that fail

    @staticmethod
    def _is_of_trees(error: Exception, roots: Sequence[Roots] | None) -> bool:
        """Return whether an error of a batch is to fail single rows, and not the transaction.

        One with a hook is of another hook, called from within, which has no row: a full window was given to the bolt.
        """
        # A row alone that is of replayable input fails the transaction; among others, the blame has to be found.
        is_replayable = roots is None or all(root is None for root in roots)
        return isinstance(error, FailedException) and "hook" not in error.data and not is_replayable

    def _lose_tuple(self, failure: FailedException, execute: Callable[..., object]) -> Callable[..., object]:
        """Undo the call for the tuple that the bolt got last, and lose that; return what executes the others."""
        trees = self._task.trees
        assert trees is not None
        self._guard.undo()
        trees.is_taken_back()  # it may have called collector.fail first
        if self.sets_aside:
            return self._set_tuple_aside(failure, execute)
        self._lose(_reason_of(failure), self.hook)
        return execute

    def _set_row_aside(self, error: Exception, row: pa.RecordBatch, number: int | None) -> None:
        if self.sets_aside:
            key = None if self._quarantine is None else self._keys_of(row)[0]
            self._set_aside(error, self._batch_hook, row, key, number)
        else:
            self._lose(_reason_of(error), self._batch_hook)

    def _lose(self, reason: str, hook: str) -> None:
        self._count(f"{hook}: {reason} ({LOST})")

    def _take_lost(self, trees: Trees, execute: Callable[..., object]) -> Callable[..., object]:
        """Lose the tuples that the call has failed by ``collector.fail``; return what executes those that come next."""
        if trees.is_taken_back() and trees.journal is not None:  # None: all tasks were given it, and all keep it
            return self._lose_tuple(FailedException(trees.lost[-1]), execute)
        self.count_lost(self.hook)
        return execute

    def count_lost(self, hook: str) -> None:
        """Count the loose tuples that the bolt has failed by ``collector.fail``, but for those of a call undone."""
        assert self._task.trees is not None
        lost = self._task.trees.lost
        for reason in lost:
            self._lose(reason, hook)
        lost.clear()

    # ---- keys in quarantine

    @property
    def _at(self) -> int:
        """The index in its batch of the tuple that the bolt got last."""
        if self._place is not None:
            return self._place
        at: int = self._batch.num_rows - operator.length_hint(self._left) - 1
        return at

    def _holding(self, execute: Callable[..., object]) -> Callable[..., object]:
        """Return what executes tuples of the batch, but for those that are held back."""
        if self._keys is None:
            return execute

        def execute_or_hold(tup: Any, collector: Any) -> object:
            assert self._keys is not None
            at = self._at
            key, number = self._keys[at], None if self._numbers is None else self._numbers[at]
            if not self._may_pass(self._batch.slice(at, 1), key, number):
                return None
            given = execute(tup, collector)
            if number is not None:
                self._dealt_with(key)
            return given

        return execute_or_hold

    def _let_through(
        self, part: pa.RecordBatch, number: int | None, roots: Sequence[Roots] | None
    ) -> tuple[pa.RecordBatch, Sequence[Roots] | None]:
        """Return the rows of a part that may be executed, with their roots; the others are held back."""
        passing = [
            self._may_pass(part.slice(at, 1), key, number) for at, key in enumerate(self._keys_of(part))
        ]  # fmt: skip
        if all(passing):
            return part, roots
        return part.filter(pa.array(passing)), None if roots is None else list(compress(roots, passing))

    def _may_pass(self, row: pa.RecordBatch, key: bytes, number: int | None) -> bool:
        """Return whether a row may be executed: no row of its key waits, or it is the first that does.

        Otherwise it becomes a letter, again if it was one; what was dealt with already, or is to be forgotten, is
        dropped.
        """
        assert self._quarantine is not None
        found = self._quarantine.get(key)
        is_to_forget = number is not None and number < 0
        letter = ~number if number is not None and is_to_forget else number
        if found is None and letter is None:
            return True
        if letter is not None and (found is None or not found.first <= letter < found.next):
            # It was replayed before: twice would count twice.
            self._count(f"letter {letter} of key {self._shown(key)} does not wait: it was dealt with already")
            return False
        assert found is not None
        if letter == found.first:
            if is_to_forget:
                self._quarantine.dealt_with(key, found)
            return not is_to_forget
        if letter is None:
            letter = self._quarantine.hold(key, found)
        since = f"in transaction {found.txid} a row of key {self._shown(key)} raised {found.why}"
        position = self._count(f"held back, since {since}")
        self._write(row, None, None, f"held back: {since}", position, ~letter if is_to_forget else letter)
        return False

    def _dealt_with(self, key: bytes) -> None:
        assert self._quarantine is not None
        found = self._quarantine.get(key)
        if found is not None:
            self._quarantine.dealt_with(key, found)

    def _shown(self, key: bytes) -> str:
        return shown_key(self._group_keys[self._edge.id].fields(key))

    # ---- rows that are set aside

    def _set_tuple_aside(self, error: Exception, execute: Callable[..., object]) -> Callable[..., object]:
        """Set aside the tuple that the bolt got last; return what executes the next ones."""
        at, key, number = self._at, None, None
        if self._quarantine is not None:
            if self._keys is None:  # of the batch, nothing was in quarantine so far
                self._keys = self._keys_of(self._batch)
                execute = self._holding(execute)
            key, number = self._keys[at], None if self._numbers is None else self._numbers[at]
        self._set_aside(error, self.hook, self._batch.slice(at, 1), key, number)
        return execute

    def _set_aside(
        self, error: Exception, hook: str, row: pa.RecordBatch, key: bytes | None, number: int | None
    ) -> None:
        if self._why and not self._writes_letters:
            self._rows += 1
            return
        cause = cause_of(error)
        of = "" if key is None else f" of a row of key {self._shown(key)}, which is held back from now on"
        position = self._count(f"{hook}: {cause}{of}")
        if self._quarantine is not None and key is not None and number is None:
            number = self._quarantine.begin(key, self._task.txid, position, cause)
        self._write(row, error, hook, cause, position, number)

    def _count(self, why: str) -> int:
        """Count a row; return how many there were before."""
        self._rows += 1
        self._why = self._why or f"task {self._task.id.task}, {why}"
        return self._rows - 1

    def _write(
        self,
        row: pa.RecordBatch,
        error: Exception | None,
        hook: str | None,
        message: str,
        position: int,
        number: int | None,
    ) -> None:
        if self._writes_letters:
            task = self._task
            source = name_shown(self._edge.source), self._edge.stream
            raised = None if error is None else type(error).__name__
            where = (task.id.component, task.id.task, hook, task.txid, position, number)
            task.collector.emit((self._json(row, error), *source, raised, message, *where), stream=DEAD_LETTER)

    def _json(self, row: pa.RecordBatch, error: Exception | None) -> str:
        form = self._forms.get(self._edge.id)
        if form is None:
            form = self._forms[self._edge.id] = JsonRows(row.schema)
        try:
            return form.encode(row)[0].decode()
        except ValueError as unwritable:  # no JSON, no letter: the row must not be lost
            why = SchemaError(
                f"a row can't be written as a dead letter: {unwritable}", component=self._task.id.component
            )
            raise error or why from unwritable


def _reason_of(error: Exception) -> str:
    return (error.message if isinstance(error, FailedException) else "") or cause_of(error)
