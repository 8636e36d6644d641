"""Guards a bolt's call until it is known to have succeeded: changes are journalled, and nothing leaves the task.

::

    begin -> call -> kept       what it emitted is sent on, if there is enough of it
                  -> undone     as if it had not been called; the rows of other calls stay
          -> call -> ...  -> end

What a call has emitted and what it has changed is written down in one journal (`statefx.state.view.changes`), which is
cleared after each call. So nothing leaves the task in the middle of a call, and what does not fit its stream is refused
where it is emitted: a batch would tell of it thousands of rows later, when nobody could undo the call.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from functools import cache, partial
from typing import Any

import pyarrow as pa

from statefx.errors import BoltError, StatefxError
from statefx.operators.fitting import MISFITS, to_array
from statefx.operators.metrics import Metrics
from statefx.plan.wire import BATCH_BYTES
from statefx.runtime.gathering import AnchoredGathering, Gathering
from statefx.runtime.user_objects import USER_STATE_ERRORS
from statefx.state.view import task_state
from statefx.state.view.changes import Journal, take_back
from statefx.state.view.task_state import TaskState


def is_of_row(error: Exception) -> bool:
    """Return whether an error of a bolt's code may be put down to its row.

    Not FailedException, what statefx has met outside of the bolt's code, and what may hit any row: short memory.
    """
    if isinstance(error, BoltError):
        return "hook" not in error.data  # of another hook, called from within: migrateState
    if isinstance(error, StatefxError):
        return isinstance(error, USER_STATE_ERRORS)
    return not isinstance(error, MemoryError)


class CallGuard:
    """Keeps what a call does, or undoes it.

    `journal` undoes what the call has done so far; `active` says whether calls are guarded now (the hooks that concern
    no row are not), `waiting` whether something was emitted that has to be sent after the call. `full` are the streams
    with enough rows for a batch; `later` sends whole batches, which are not gathered, and what was emitted after them.
    `metrics` are those of the bolt.
    """

    __slots__ = ("_state", "active", "full", "journal", "later", "metrics", "waiting")

    def __init__(self) -> None:
        self.journal: Journal = []
        self.active = False
        self.waiting = False
        self.full: dict[Gathering, None] = {}
        self.later: list[Callable[[], None]] = []
        self._state: TaskState | None = None
        self.metrics = Metrics()

    def begin(self, state: TaskState | None) -> None:
        self.journal.clear()  # what other hooks have emitted stays
        self.active, self._state = True, state
        self.metrics.journal = self.journal
        if state is not None:
            task_state.keep_journal(state, self.journal)

    def end(self) -> None:
        self.active = False
        self.metrics.journal = None
        if self._state is not None:
            task_state.keep_journal(self._state, None)
        self.journal.clear()

    def undo(self) -> None:
        """Undo the call; raises if a read of state has failed: the transaction can't be kept then."""
        if self._state is None:
            take_back(self.journal)
        else:
            task_state.undo(self._state, self.journal)

    def keep(self) -> None:
        """Keep what the call has done, and send what waits."""
        self.journal.clear()
        if not self.waiting:
            return
        self.active = False
        later, self.later = self.later, []
        full, self.full = self.full, {}
        try:
            for gathering in full:
                gathering.flush()
            for send in later:
                send()
        finally:
            self.journal.clear()
            self.active, self.waiting = True, False

    def postpone(self, send: Callable[[], None]) -> None:
        """Have a row or a whole batch wait until the call is over."""
        self.later.append(send)
        self.journal.append(self.later.pop)
        self.waiting = True


_LIMITS = {kind: 1 << (kind.bit_width - 1) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())}

_ALWAYS: dict[pa.DataType, type] = {
    pa.bool_(): bool,
    pa.float64(): float,
    pa.binary(): bytes,
    pa.date32(): date,
    pa.timestamp("us", tz="UTC"): datetime,
}
"""Of which types every value fits; of integers and texts nearly all do, and of others Arrow has to be asked."""


@cache
def _quick_test(kinds: tuple[pa.DataType, ...]) -> Callable[[tuple[Any, ...]], bool]:
    """Return a test that is true for nearly every row that fits; if it is false, Arrow has to decide.

    It is one expression, as a `namedtuple` has one, for it runs for every row: a loop over the fields takes as long as
    all else that is done with a row that is emitted.
    """
    tests = []
    for place, kind in enumerate(kinds):
        if kind in _LIMITS:
            test = f"type(value) is int and {-_LIMITS[kind]} <= value < {_LIMITS[kind]}"
        elif kind == pa.string():
            test = "type(value) is str and value.isascii()"
        elif kind in _ALWAYS:
            test = f"type(value) is {_ALWAYS[kind].__name__}"
        else:
            test = "False"
        tests.append(f"((value := row[{place}]) is None or {test})")
    made: Callable[[tuple[Any, ...]], bool] = eval(
        f"lambda row: {' and '.join(tests) or True}", {"date": date, "datetime": datetime}
    )
    return made


class Guarded(Gathering):
    """Gathers rows that may be taken back until the call that emitted them is over."""

    def __init__(self, *given: Any, guard: CallGuard, **anchored: Any) -> None:
        super().__init__(*given, **anchored)
        self._guard = guard
        self._record, self._undo = guard.journal.append, self._take_last_back
        self._fits = _quick_test(tuple(self._schema.types))

    def _emission(self, emitted: pa.RecordBatch | tuple[Any, ...]) -> Callable[[], None]:
        """Return what emits a row or a whole batch when the call is over."""
        return partial(self.add, emitted) if isinstance(emitted, tuple) else partial(self.take_batch, emitted)

    def check_fit(self, row: tuple[Any, ...]) -> None:
        """Raise the SchemaError for a row with a value that does not fit."""
        if not self._fits(row):
            self._require_fit(row)

    def _require_fit(self, row: tuple[Any, ...]) -> None:
        """Raise the SchemaError for a value that does not fit."""
        for place, (value, field) in enumerate(zip(row, self._schema, strict=True)):
            try:
                to_array([value], field.type)
            except MISFITS as error:
                raise self._misfit(place, value, error) from error

    def _take_last_back(self) -> None:
        self._rows.pop()

    def take_batch(self, batch: pa.RecordBatch) -> None:
        if self._guard.active:
            self._guard.postpone(self._emission(batch))
        else:
            super().take_batch(batch)

    def choose(self, task: int | None) -> None:
        if self._guard.active:
            for route in self.direct:
                self._guard.journal.append(partial(route.forget, route.chosen))
        super().choose(task)

    def flush(self) -> None:
        """Send on whatever is gathered; in the middle of a call, after it."""
        guard = self._guard
        if guard.active:
            guard.full[self] = None
            guard.waiting = True
        else:
            guard.journal.clear()  # what is emitted by other hooks is not taken back
            super().flush()


class GuardedGathering(Guarded):
    """The rows of one stream of a task whose calls may be undone."""

    def add(self, row: tuple[Any, ...]) -> None:
        # It does what `Gathering.add` does: a call of that would take as long as all of it.
        if not self._fits(row):
            self._require_fit(row)
        if self._guard.later:
            self._guard.postpone(self._emission(row))
            return
        self._record(self._undo)
        self._rows.append(row)
        held_bytes = self._held_bytes + self._row_bytes
        for place in self._texts:
            held_bytes += len(row[place] or "")
        self._held_bytes = held_bytes
        if held_bytes >= BATCH_BYTES:
            self.flush()


class GuardedAnchoredGathering(Guarded, AnchoredGathering):
    """The rows of one stream of a task whose calls may be undone and whose tuples are tracked."""

    def add(self, row: tuple[Any, ...]) -> None:
        """Take one row, once it is known to fit; outside of guarded calls the batch tells."""
        guard = self._guard
        if guard.active:
            if not self._fits(row):
                self._require_fit(row)
            if guard.later:
                guard.postpone(self._emission(row))
                return
            self._record(self._undo)
        super().add(row)

    def _emission(self, emitted: pa.RecordBatch | tuple[Any, ...]) -> Callable[[], None]:
        emit, anchor, root = super()._emission(emitted), self._anchor, self._anchor.root

        def emit_anchored() -> None:
            now, anchor.root = anchor.root, root
            try:
                emit()
            finally:
                anchor.root = now

        return emit_anchored

    def _take_last_back(self) -> None:
        super()._take_last_back()
        self._roots.pop()
