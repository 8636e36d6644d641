"""One call of a bolt's at a time, of which everything can be undone: what it has emitted, and what it has changed.

::

    begin -> call -> kept       what it emitted is sent on, if there is enough of it
                  -> undone     as if it had not been called; the rows of other calls stay
          -> call -> ...  -> end

Both are written down in one journal (`statefx.state.view.undo`), which is cleared after each call. So nothing leaves
the task in the middle of a call, and what does not fit its stream is refused where it is emitted: a batch would tell
of it thousands of rows later, when nobody could undo the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from functools import partial
from typing import Any

import pyarrow as pa

from statefx.errors import BoltError, StatefxError
from statefx.operators.fitting import MISFITS, to_array
from statefx.runtime.bolts import USER_STATE_ERRORS
from statefx.runtime.event_time import StreamTimes
from statefx.runtime.gathering import Anchor, AnchoredGathering, Gathering
from statefx.runtime.outlets import Outlet
from statefx.state.view import lent
from statefx.state.view.lent import LentState
from statefx.state.view.undo import Journal, take_back


def is_of_row(error: Exception) -> bool:
    """Tell whether an error of a bolt's code may be put down to the row that it was given.

    Not FailedException, what statefx has met outside of the bolt's code, and what may hit any row: short memory.
    """
    if isinstance(error, BoltError):
        return "hook" not in error.data  # of another hook, called from within: migrateState
    if isinstance(error, StatefxError):
        return isinstance(error, USER_STATE_ERRORS)
    return not isinstance(error, MemoryError)


class CallGuard:
    """Keeps what a call does, or undoes it.

    Attributes
    ----------
    journal : list
        How to undo what the present call has done so far.
    active : bool
        Whether calls are guarded now; the hooks that concern no row are not.
    waiting : bool
        Whether something was emitted that has to be sent on after the call.
    """

    __slots__ = ("_later", "_state", "active", "full", "journal", "waiting")

    def __init__(self) -> None:
        self.journal: Journal = []
        self.active = False
        self.waiting = False
        self.full: dict[Gathering, None] = {}
        self._later: list[tuple[Gathering, pa.RecordBatch | tuple[Any, ...]]] = []
        """What came behind a whole batch, in its order: such a batch is not gathered."""
        self._state: LentState | None = None

    def begin(self, state: LentState | None) -> None:
        """Guard the calls that follow."""
        self.active, self._state = True, state
        if state is not None:
            lent.keep_journal(state, self.journal)

    def end(self) -> None:
        """Guard no more."""
        self.active = False
        if self._state is not None:
            lent.keep_journal(self._state, None)
        self.journal.clear()

    def undo(self) -> None:
        """Undo what the call has done.

        Raises
        ------
        Exception
            A read of state has failed: the transaction can't be kept, whatever the bolt has made of it.
        """
        if self._state is None:
            take_back(self.journal)
        else:
            lent.undo(self._state, self.journal)

    def keep(self) -> None:
        """Keep what the call has done, and send on what waits."""
        self.journal.clear()
        if not self.waiting:
            return
        self.active = False
        later, self._later = self._later, []
        full, self.full = self.full, {}
        try:
            for gathering in full:
                gathering.flush()
            for gathering, emitted in later:
                if isinstance(emitted, tuple):
                    gathering.add(emitted)
                else:
                    gathering.take_batch(emitted)
        finally:
            self.active, self.waiting = True, False

    @property
    def postpones(self) -> bool:
        """Whether rows wait until the call is over, each by itself."""
        return bool(self._later)

    def postpone(self, gathering: Gathering, emitted: pa.RecordBatch | tuple[Any, ...]) -> None:
        """Have a row or a whole batch wait until the call is over."""
        self._later.append((gathering, emitted))
        self.journal.append(self._later.pop)
        self.waiting = True


_NONE = type(None)

_ALWAYS: dict[pa.DataType, frozenset[type]] = {
    pa.bool_(): frozenset({bool, _NONE}),
    pa.float64(): frozenset({float, _NONE}),
    pa.binary(): frozenset({bytes, _NONE}),
    pa.date32(): frozenset({date, _NONE}),
    pa.timestamp("us", tz="UTC"): frozenset({datetime, _NONE}),
}
"""Types of which every value fits; of integers and texts nearly all do, and of others Arrow has to be asked."""

_LIMITS = {kind: 1 << (kind.bit_width - 1) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())}


class _Guarded(Gathering):
    """Gathers rows that may be taken back until the call is over that has emitted them."""

    _always: list[frozenset[type]]
    _guard: CallGuard
    _integers: list[tuple[int, int]]
    _shapes: set[tuple[type, ...]]
    """Types of rows in which only numbers may be too large, and texts no texts."""
    _strings: list[int]

    def _guard_by(self, guard: CallGuard) -> None:
        kinds = [field.type for field in self._schema]
        self._guard = guard
        self._undo = self._take_last_back
        self._always = [_ALWAYS.get(kind, frozenset({_NONE})) for kind in kinds]
        self._integers = [(place, _LIMITS[kind]) for place, kind in enumerate(kinds) if kind in _LIMITS]
        self._strings = [place for place, kind in enumerate(kinds) if kind == pa.string()]
        self._shapes = set()

    def add(self, row: tuple[Any, ...]) -> None:
        """Take one row, once it is known to fit."""
        guard = self._guard
        if not guard.active:
            super().add(row)
            return
        types = tuple(map(type, row))
        if types not in self._shapes or not self._is_plain(row):
            self._require_fit(row, types)
        if guard.postpones:
            guard.postpone(self, row)
            return
        guard.journal.append(self._undo)
        super().add(row)

    def _is_plain(self, row: tuple[Any, ...]) -> bool:
        for place, limit in self._integers:
            value = row[place]
            if value is not None and not -limit <= value < limit:
                return False
        for place in self._strings:
            value = row[place]
            if value is not None and not value.isascii():
                return False
        return True

    def _require_fit(self, row: tuple[Any, ...], types: tuple[type, ...]) -> None:
        """Raise the SchemaError for a value that does not fit; remember types that are easily told to fit."""
        integers, strings = {place for place, _ in self._integers}, set(self._strings)
        easy = True
        for place, (value, field) in enumerate(zip(row, self._schema, strict=True)):
            if types[place] in self._always[place]:
                continue
            usual = int if place in integers else str if place in strings else None
            easy = easy and types[place] is usual
            try:
                to_array([value], field.type)
            except MISFITS as error:
                raise self._misfit(place, value, error) from error
        if easy:
            self._shapes.add(types)

    def _take_last_back(self) -> None:
        self._rows.pop()

    def take_batch(self, batch: pa.RecordBatch) -> None:
        """Take a whole batch, when the call is over."""
        if self._guard.active:
            self._guard.postpone(self, batch)
        else:
            super().take_batch(batch)

    def choose(self, task: int | None) -> None:
        """Name the task of the next row, for readers by directGrouping."""
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
            super().flush()


class GuardedGathering(_Guarded):
    """The rows of one stream of a task whose calls may be undone."""

    def __init__(
        self,
        component: str,
        stream: str,
        schema: pa.Schema,
        outlets: Sequence[Outlet],
        kind: str,
        times: StreamTimes | None,
        guard: CallGuard,
    ) -> None:
        super().__init__(component, stream, schema, outlets, kind, times)
        self._guard_by(guard)


class GuardedAnchoredGathering(_Guarded, AnchoredGathering):
    """The same, where tuples are tracked."""

    def __init__(
        self,
        component: str,
        stream: str,
        schema: pa.Schema,
        outlets: Sequence[Outlet],
        kind: str,
        times: StreamTimes | None,
        anchor: Anchor,
        root_type: pa.DataType,
        guard: CallGuard,
    ) -> None:
        AnchoredGathering.__init__(self, component, stream, schema, outlets, kind, times, anchor, root_type)
        self._guard_by(guard)

    def _take_last_back(self) -> None:
        super()._take_last_back()
        self._roots.pop()
