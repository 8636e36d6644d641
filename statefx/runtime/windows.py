"""The windows of one task in one attempt: tuples are put into them, and those that have ended are given to the bolt.

::

    feed   by batch: times and keys of the rows; late ones go to the late stream, the others into windows
    end    what has changed goes to state, and what has ended to the bolt

Where it lies in state tells `statefx.operators.window_state`. Times are microseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statefx.errors import FailedException
from statefx.operators.fitting import shown
from statefx.operators.tuples import tuple_maker
from statefx.operators.unpacking import values_in
from statefx.operators.window_state import (
    BEFORE_ALL,
    Form,
    Item,
    Kept,
    RowsForm,
    Sliding,
    Tumbling,
    ValuesForm,
    kept_in,
)
from statefx.operators.windows import WINDOW, WINDOWS, Window, WindowedBolt, keeps_values, layout_of
from statefx.plan.levels import name_shown
from statefx.runtime.guarded_calls import GuardedCalls
from statefx.runtime.task import TaskAttempt
from statefx.runtime.trees import Roots
from statefx.runtime.user_objects import check_nothing, hook, values_of
from statefx.state.contract.spaces import NameKind
from statefx.state.view.changes import Journal
from statefx.state.view.task_state import TaskState, has_taken, windows_of
from statefx.topology.graph import Edge, Promise

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_INT64_MIN = -(1 << 63)


class Windows:
    """The windows of one task, in one attempt; `late` counts the tuples that came too late for every window."""

    def __init__(self, bolt: WindowedBolt, state: TaskState, task: TaskAttempt) -> None:
        self._bolt, self._task = bolt, task
        _check_names(task, state)
        self._windowing = bolt._windowing
        assert self._windowing is not None  # setBolt has seen to it
        self.late = 0
        self._journal: Journal | None = None
        self._marks = windows_of(state, "marks")
        plan = task.deployment.plan
        self._inputs = {edge.id: _Input(edge, task) for edge in plan.inputs[task.id.component]}
        self._by_clock = all(one.timestamp is None for one in self._inputs.values())
        if self._by_clock:
            # The clock may be set back: a window that the bolt was given must not begin anew.
            self._passed: int = self._marks.get("passed", BEFORE_ALL)
        else:
            self._passed = BEFORE_ALL if task.watermark is None else task.watermark
        self._filling = "executeBatch" if bolt.vectorised else "addToWindow" if keeps_values(bolt) else "execute"
        form: Form = ValuesForm(bolt, self._give, self._hook) if keeps_values(bolt) else RowsForm(self._give_rows)
        layout = layout_of(bolt, self._windowing)
        self._kept: Kept = kept_in(layout, self._windowing, form, state, self._marks, task.txid, self._passed)
        if not keeps_values(bolt):
            self._number_shapes()

    @property
    def _now(self) -> int:
        """How far windows have ended."""
        if self._by_clock:
            return max(self._passed, self._task.order.clock_ms * 1000)
        return BEFORE_ALL if self._task.watermark is None else self._task.watermark

    def feed(
        self,
        edge: Edge,
        batch: pa.RecordBatch,
        guarded: GuardedCalls | None = None,
        roots: Sequence[Roots] | None = None,
    ) -> None:
        """Put the rows of a batch into windows; `guarded` sets aside those that raise an error."""
        one = self._inputs[edge.id]
        take = partial(self._feed_batch if self._bolt.vectorised else self._feed_rows, one)
        if guarded is None or not guarded.sets_aside:
            take(batch)
            return
        with self._hook(self._filling):
            self._kept.journal = self._journal = guarded.journal
            try:
                guarded.run_batch(take, batch, roots, self._filling)
            finally:
                self._kept.journal = self._journal = None

    def _feed_rows(self, one: _Input, batch: pa.RecordBatch) -> None:
        with self._hook(self._filling):
            one.check_keys(batch)
            columns = values_of(batch, one.source, one.edge)
        times = self._times(one, batch)
        tuples = list(map(one.tuple, zip(*columns, strict=True)))
        with self._hook(self._filling):
            late = self._kept.take(one.keys(columns), times, tuples, one.shape)
        self._tell_late(one, [tuples[at] for at in late], [times[at] for at in late])

    def _feed_batch(self, one: _Input, batch: pa.RecordBatch) -> None:
        """Have the bolt make values of a batch, and put them into windows."""
        assert isinstance(self._kept, Tumbling | Sliding)  # the builder refuses others
        with self._hook(self._filling):
            one.check_keys(batch)
        times = self._time_column(one, batch)
        known = times.is_valid()
        panes = np.asarray(times.fill_null(0))
        panes = panes - panes % self._kept.pane
        in_time = pc.and_(known, pa.array(panes > max(_INT64_MIN, self._kept.last_late(self._passed))))
        if not pc.all(in_time).as_py():
            late = batch.filter(pc.invert(in_time))
            if self._bolt._late_stream is None:
                self._count_late(late.num_rows)
            else:
                with self._hook(self._filling):
                    tuples = list(map(one.tuple, zip(*values_of(late, one.source, one.edge), strict=True)))
                self._tell_late(one, tuples, times.filter(pc.invert(in_time)).to_pylist())
            batch, panes = batch.filter(in_time), panes[np.asarray(in_time)]
        if batch.num_rows:
            windows = pa.array(panes, _TIMESTAMP)
            given = batch.append_column(WINDOW, windows)
            with self._hook("executeBatch"):
                made = self._bolt.executeBatch(
                    given.replace_schema_metadata({"source": one.source, "stream": one.stream})
                )
                values = one.values(made, windows)
            with self._hook("mergeWindows"):
                self._kept.merge(*values)

    def _count_late(self, rows: int) -> None:
        if self._journal is not None:
            self._journal.append(partial(setattr, self, "late", self.late))
        self.late += rows

    def _tell_late(self, one: _Input, tuples: Sequence[Any], times: Sequence[Any]) -> None:
        self._count_late(len(tuples))
        stream = self._bolt._late_stream
        if stream is None or not tuples:
            return
        fields = self._task.deployment.plan.components[self._task.id.component].outputs[stream].names[:-1]
        places = [one.names.index(name) if name in one.names else None for name in fields]
        for tup, time in zip(tuples, times, strict=True):
            by = None if time is None else (self._passed - time) / 1e6
            row = [None if place is None else tuple.__getitem__(tup, place) for place in places]
            self._task.collector.emit((*row, by), stream=stream)

    def _times(self, one: _Input, batch: pa.RecordBatch) -> list[Any]:
        found: list[Any] = self._time_column(one, batch).to_pylist()
        return found

    def _time_column(self, one: _Input, batch: pa.RecordBatch) -> pa.Array:
        if one.timestamp is None:
            return pa.repeat(pa.scalar(self._now, pa.int64()), batch.num_rows)
        return batch.column(batch.schema.get_field_index(one.timestamp)).cast(pa.int64())

    def end(self) -> None:
        with self._hook(self._filling):
            ended = self._kept.end(self._now)
        if ended is not None and self._by_clock:
            self._marks.put("passed", max(self._passed, ended))

    @property
    def due_ms(self) -> int:
        """When a transaction is due for a window that ends by the clock; 0: never."""
        first = self._kept.first_end() if self._by_clock else None
        return 0 if first is None else max(1, -(-first // 1000))

    def _hook(self, name: str) -> Any:
        if self._journal is not None:  # what is raised is looked at first: whether it is a row's alone
            return nullcontext()
        return hook(self._task.id, name, self._task.txid)

    def _give(self, window: Window, value: Any) -> None:
        self._call("emitWindow", self._bolt.emitWindow, window, value)

    def _give_rows(self, span: Window, rows: Sequence[list[Item]]) -> None:
        makers = {shape: self._maker(shape) for shape in {shape for items in rows for _, shape, _ in items}}
        tuples = [[makers[shape](row) for _, shape, row in items] for items in rows]
        self._call("execute", self._bolt.execute, Window(span.key, span.start, span.end, *tuples))

    def _call(self, name: str, call: Callable[..., object], *given: Any) -> None:
        """Give a window to the bolt by its hook `name`, also in the middle of a batch of rows.

        Tuples of earlier transactions are in it, so what is raised is of no row, and FailedException of no message: a
        full window stays full, and each later row of its key would fail in its turn.
        """
        trees, task = self._task.trees, self._task
        with hook(task.id, name, task.txid), nullcontext() if trees is None else trees.of_state():
            try:
                check_nothing(name, call(*given, task.collector))
            except FailedException as error:
                error.data["hook"] = name
                raise

    def _number_shapes(self) -> None:
        """Take the number by which each input's rows are kept: its fields may be others in a later run.

        All tasks number all inputs, whether they get rows of them or not: so the numbers mean the same in each of them,
        and rows that go to another task need no new ones.
        """
        shapes: list[Any] = self._marks.get("shapes", [])
        known = len(shapes)
        for one in self._inputs.values():
            shape = [one.source, one.stream, one.names]
            if shape not in shapes:
                shapes.append(shape)
            one.shape = shapes.index(shape)
        if len(shapes) > known:
            self._marks.put("shapes", shapes)

    def _maker(self, number: int) -> Callable[[Sequence[Any]], Any]:
        """Return what makes tuples of rows that were kept under a number: with the fields of now, missing ones None."""
        for one in self._inputs.values():
            if one.shape == number:
                return one.tuple
        source, stream, names = self._marks["shapes"][number]
        for one in self._inputs.values():
            if (one.source, one.stream) == (source, stream):
                make, places = one.tuple, [names.index(name) if name in names else None for name in one.names]
                return lambda row: make([None if place is None else row[place] for place in places])
        made: Callable[[Sequence[Any]], Any] = tuple_maker(
            pa.schema([(name, pa.null()) for name in names]), source, stream
        )
        return made  # of an input that is gone


def _check_names(task: TaskAttempt, state: TaskState) -> None:
    """Refuse a user's map that tools could not tell from the open windows."""
    if any(has_taken(state, kind, WINDOWS) for kind in (NameKind.MAP, NameKind.BROADCAST)):
        with hook(task.id, "initState", task.txid):
            raise TypeError(
                f"state.map({WINDOWS!r}): tools call the open windows of a windowed bolt so: give the map another name"
            )


class _Input:
    """One input of a windowed bolt: how its rows become tuples, and which of their fields are time and key."""

    def __init__(self, edge: Edge, task: TaskAttempt) -> None:
        plan = task.deployment.plan
        schema = plan.stream_schema(edge)
        self.edge, self.source, self.stream = edge, name_shown(edge.source), edge.stream
        self.timestamp = plan.components[task.id.component].time_fields.get((self.source, self.stream))
        self.names = list(schema.names)
        self.tuple: Callable[[Sequence[Any]], Any] = tuple_maker(schema, self.source, self.stream)
        self.shape: int | None = None
        self._key_fields = edge.grouping.fields if edge.grouping.promise is Promise.KEY else ()
        self._key_types = {name: schema.field(name).type for name in self._key_fields}
        self._places = [schema.get_field_index(name) for name in self._key_fields]

    def check_keys(self, batch: pa.RecordBatch) -> None:
        """Refuse a key that no state can hold, by the name of its field: ValueError."""
        for name, kind in self._key_types.items():
            if (
                pa.types.is_floating(kind)
                and pc.any(pc.is_nan(batch.column(batch.schema.get_field_index(name)))).as_py()
            ):
                raise ValueError(
                    f"field {name!r} of a row of {self.source!r} is NaN, and it is a key: NaN is equal to nothing, so "
                    "no window can be found by it. Clean it up before, or have such rows set aside: "
                    'onError="deadLetter"'
                )

    def keys(self, columns: list[list[Any]]) -> Sequence[Any]:
        if not self._places:
            return [None] * len(columns[0])
        found = [columns[place] for place in self._places]
        return found[0] if len(found) == 1 else list(zip(*found, strict=True))

    def values(self, made: Any, windows: pa.Array) -> tuple[Sequence[Any], list[int], list[Any]]:
        """Return what ``executeBatch`` has made of a batch with these `windows`: keys, panes and values."""
        wanted = [*self._key_fields, WINDOW]
        names = made.schema.names if isinstance(made, pa.RecordBatch | pa.Table) else []
        if not set(wanted) < set(names) or len(set(names)) < len(names):
            raise TypeError(
                f"executeBatch of a windowed bolt returns a pyarrow.Table with the columns {', '.join(wanted)}, and "
                f"those of the value; not {', '.join(names) or shown(made)}"
            )
        try:
            panes = made.column(WINDOW).cast(_TIMESTAMP)
            keys = [values_in(made.column(name).cast(kind)) for name, kind in self._key_types.items()]
        except pa.ArrowException as error:
            raise TypeError(
                f"executeBatch returned a key or a window of another type than it was given: {error}"
            ) from None
        if not pc.all(pc.is_in(panes, windows)).as_py() and len(panes):
            raise ValueError(
                "executeBatch returned a window that is not in the batch: take it from the column 'window'"
            )
        rest = [values_in(made.column(name)) for name in names if name not in wanted]
        key_of = [None] * len(panes) if not keys else keys[0] if len(keys) == 1 else list(zip(*keys, strict=True))
        values = rest[0] if len(rest) == 1 else list(zip(*rest, strict=True))
        return key_of, panes.cast(pa.int64()).to_pylist(), values
