"""The rows of one stream that a task has emitted, until there are enough of them for a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa

from statefx.errors import SchemaError
from statefx.operators.fitting import MISFITS, Fit, fitter, shown, to_array
from statefx.operators.schema import to_ddl
from statefx.plan.groupings import Direct
from statefx.plan.wire import BATCH_BYTES, cut, with_roots
from statefx.runtime.event_time import StreamTimes
from statefx.runtime.outlets import Outlet

FIXED_BYTES = 8
"""Of a number, and of anything else whose size does not depend on the value."""


def weight(value: Any) -> int:
    """Return about how many bytes a fitted value of a nested type needs."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):  # a struct
        return sum(map(weight, value.values()))
    if isinstance(value, list | tuple):
        if type(value[0] if value else None) in (int, float):  # the others are numbers too
            return FIXED_BYTES * len(value)
        return sum(map(weight, value))
    return FIXED_BYTES


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


BATCH_ROWS = 4096
"""Rows of a batch for one target, on average: fewer and each batch's own cost shows, more and nothing is gained."""

GATHERED_ROWS_MAX = 65_536
"""Rows that a stream gathers at most, however many targets share them; as Python objects some 10 MB."""


class Anchor:
    """The anchor of what is emitted now: `root` is the root, or roots, of its trees, or None."""

    __slots__ = ("root",)

    def __init__(self) -> None:
        self.root: int | list[int] | None = None


class Gathering:
    """The rows of one stream of a task, until there are enough for a batch.

    Values of nested types are copied as they come, so that what a bolt changes afterwards changes neither the row nor
    its target; those of other types can't change. Without outlets, rows go nowhere. `direct` are the routers of readers
    by directGrouping; `plain_width` is how many values a tuple must have that `add` takes as it is, -1 if none may.
    """

    __slots__ = (
        "_component",
        "_gone",
        "_held_bytes",
        "_nested",
        "_row_bytes",
        "_rows",
        "_schema",
        "_send_error",
        "_texts",
        "_times",
        "_who",
        "direct",
        "outlets",
        "plain_width",
        "stream",
    )

    def __init__(
        self,
        component: str,
        stream: str,
        schema: pa.Schema,
        outlets: Sequence[Outlet],
        kind: str = "bolt",
        times: StreamTimes | None = None,
    ) -> None:
        self.stream = stream
        self._times = times
        self.outlets = tuple(outlets)
        self._component = component
        self._who = f"{kind} {component!r}"
        self._send_error: BaseException | None = None
        self._schema = schema
        self._nested: list[tuple[int, Fit]] = [
            (place, fitter(field.type)) for place, field in enumerate(schema) if pa.types.is_nested(field.type)
        ]
        self._texts = [place for place, field in enumerate(schema) if is_text(field.type)]
        self.direct = [outlet.route for outlet in outlets if isinstance(outlet.route, Direct)]
        self.plain_width = -1 if self._nested or self.direct else len(schema)
        shares = max((outlet.route.shares for outlet in outlets), default=1)
        # Every row weighs its share of a batch, so that one sum tells of too many rows and of too many bytes.
        self._row_bytes = max(BATCH_BYTES // min(GATHERED_ROWS_MAX, BATCH_ROWS * shares), FIXED_BYTES * len(schema))
        self._rows: list[tuple[Any, ...]] = []
        self._gone = 0
        self._held_bytes = 0

    def add(self, row: tuple[Any, ...]) -> None:
        """Take one row, if there are readers; nested values in it are fitted."""
        # It runs for every row that is emitted: a call or an attribute less is saved a million times a transaction.
        self._rows.append(row)
        held_bytes = self._held_bytes + self._row_bytes
        try:
            for place in self._texts:
                held_bytes += len(row[place] or "")
        except (TypeError, ValueError):
            pass  # no text (an array's truth is a ValueError): the flush says so
        self._held_bytes = held_bytes
        if held_bytes >= BATCH_BYTES:
            self.flush()

    def take(self, row: tuple[Any, ...]) -> None:
        if len(row) != len(self._schema):
            raise self._wrong_width(row)
        if not self.outlets:
            return
        if self._nested:
            row = self.fitted(row)
            self._held_bytes += sum([weight(row[place]) for place, _ in self._nested])
        self.add(row)

    def take_for(self, task: int | None, row: tuple[Any, ...]) -> None:
        """Take one row for a task; a bolt that goes on after the error of a row has named none for that."""
        chosen = [route.chosen for route in self.direct]
        try:
            self.choose(task)
            self.take(row)
        except BaseException:
            for route, before in zip(self.direct, chosen, strict=True):
                route.forget(before)
            raise

    def flush(self) -> None:
        if self._send_error is not None:
            raise self._send_error
        if self._rows:
            rows, self._rows, self._held_bytes = self._rows, [], 0
            columns = [list(map(itemgetter(place), rows)) for place in range(len(self._schema))]
            del rows  # the columns are enough, and Arrow's follow
            with self._all_or_nothing():
                self._send(self._batch(columns), columns)

    @property
    def count(self) -> int:
        """Rows that came, if there are readers."""
        return len(self._rows) + self._gone

    def check_task(self, task: int | None) -> None:
        """Raise SchemaError or BoltError if no row can be taken for that task."""
        self._refuse_unread(task)
        for route in self.direct:
            route.check(task)

    def choose(self, task: int | None) -> None:
        self._refuse_unread(task)
        for route in self.direct:
            route.choose(task)

    def _refuse_unread(self, task: int | None) -> None:
        if task is not None and self.outlets and not self.direct:
            readers = ", ".join(f"{outlet.edge.target!r} by {outlet.edge.grouping}" for outlet in self.outlets)
            raise SchemaError(
                f"task={task!r} would change nothing: nobody reads the stream by directGrouping (it is read by "
                f"{readers}). Leave it out, or use directGrouping"
            )

    def checked(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a row to be taken later: its width is right, and its nested values are copies."""
        if len(row) != len(self._schema):
            raise self._wrong_width(row)
        return self._copied(row)

    def fitted(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a row whose nested values are copies that fit; without readers, as it is."""
        return self._copied(row) if self.outlets else row

    def _copied(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        if not self._nested:
            return row
        values = list(row)
        for place, fit in self._nested:
            try:
                values[place] = fit(values[place])
            except TypeError as error:
                raise self._misfit(place, values[place], error) from None
        return tuple(values)

    def take_batch(self, batch: pa.RecordBatch) -> None:
        """Take a whole batch, after what came before it."""
        self.flush()
        with self._all_or_nothing():
            for part in cut(batch):
                self._send(part)

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Send a batch in this block, or none ever again: what it raises is raised by every flush from now on.

        It comes out of whichever `emit` fills the batch. A bolt that goes on after an error of its `emit` gives up one
        row, as it thinks; thousands of others would be gone with it, and the last flush would find nothing to send.
        """
        try:
            yield
        except BaseException as error:
            self._send_error = error
            raise

    def _send(self, batch: pa.RecordBatch, columns: Sequence[Sequence[Any]] | None = None) -> None:
        for outlet in self.outlets:
            outlet.send(batch, columns)
        self._count(batch)

    def _count(self, batch: pa.RecordBatch) -> None:
        """Count a batch that has gone to its readers, if there are any."""
        if self.outlets:
            if self._times is not None:
                self._times.take(batch, self._gone)
            self._gone += batch.num_rows

    def _batch(self, columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        try:
            arrays = [to_array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        except MISFITS as error:
            raise self._first_misfit(columns) from error
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _first_misfit(self, columns: Sequence[Sequence[Any]]) -> SchemaError:
        for place, (column, field) in enumerate(zip(columns, self._schema, strict=True)):
            for value in column:
                try:
                    to_array([value], field.type)
                except MISFITS as error:
                    return self._misfit(place, value, error)
        return SchemaError(
            f"{self._who} emitted rows that do not fit stream {self.stream!r}",
            component=self._component,
            stream=self.stream,
        )

    def _misfit(self, place: int, value: Any, error: BaseException) -> SchemaError:
        field = self._schema.field(place)
        return SchemaError(
            f"{self._who} emitted {shown(value)} ({type(value).__name__}) on stream {self.stream!r}, "
            f"whose outputFields declare `{to_ddl(pa.schema([field]))}`: {error}",
            component=self._component,
            stream=self.stream,
            field=field.name,
        )

    def _wrong_width(self, row: Sequence[Any]) -> SchemaError:
        names = self._schema.names
        return SchemaError(
            f"{self._who} emitted {len(row)} values on stream {self.stream!r}, which has "
            f"{len(names)} field{'s' * (len(names) != 1)}: {', '.join(names)}",
            component=self._component,
            stream=self.stream,
        )


class AnchoredGathering(Gathering):
    """The rows of one stream of a task where tuples are tracked, each with the roots that it is anchored to.

    Outlets of tracked edges are given the roots as one more column; the others the rows alone.
    """

    __slots__ = ("_anchor", "_root_type", "_roots")

    def __init__(self, *given: Any, anchor: Anchor, root_type: pa.DataType) -> None:
        super().__init__(*given)
        self._anchor = anchor
        self._root_type = root_type
        self._roots: list[Any] = []

    def add(self, row: tuple[Any, ...]) -> None:
        root = self._anchor.root
        self._roots.append(root)
        # What follows is `Gathering.add`, whose call would take as long as all of it.
        self._rows.append(row)
        held_bytes = self._held_bytes + self._row_bytes
        if type(root) is list:
            held_bytes += FIXED_BYTES * len(root)
        try:
            for place in self._texts:
                held_bytes += len(row[place] or "")
        except (TypeError, ValueError):
            pass
        self._held_bytes = held_bytes
        if held_bytes >= BATCH_BYTES:
            self.flush()

    def _send(self, batch: pa.RecordBatch, columns: Sequence[Sequence[Any]] | None = None) -> None:
        # The rows of a batch that was taken whole were not added one by one: they have one anchor.
        roots, self._roots = self._roots or [self._anchor.root] * batch.num_rows, []
        anchored = batch
        if any(outlet.tracked for outlet in self.outlets):
            column = pa.array(roots, self._root_type)
            anchored = pa.RecordBatch.from_arrays(
                [*batch.columns, column], schema=with_roots(self._schema, column.type)
            )
        for outlet in self.outlets:
            if not outlet.tracked:
                outlet.send(batch, columns)
            elif anchored.nbytes <= BATCH_BYTES:
                outlet.send(anchored, columns)
            else:
                for part in cut(anchored):
                    outlet.send(part)
        self._count(batch)
