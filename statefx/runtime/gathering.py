"""The rows of one stream that a task has emitted, until there are enough of them for a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa

from statefx.errors import SchemaError
from statefx.operators import DEFAULT_STREAM
from statefx.operators.schema import to_ddl
from statefx.plan.groupings import Direct
from statefx.plan.wire import BATCH_BYTES, cut
from statefx.runtime.fitting import MISFITS, Fit, fitter, shown, to_array
from statefx.runtime.outlets import Outlet
from statefx.runtime.weighing import FIXED_BYTES, Weigh, fixed, is_text, weigher

BATCH_ROWS = 4096
"""Rows of a batch for one target, on average: fewer and each batch's own cost shows, more and nothing is gained."""

GATHERED_ROWS_MAX = 65_536
"""Rows that a stream gathers at most, however many targets share them; as Python objects some 10 MB."""


class Gathering:
    """The rows of one stream of a task, until there are enough for a batch.

    Values of nested types are copied as they come, so that what a bolt changes afterwards changes neither the row nor
    the way it takes; those of other types can't change.

    Parameters
    ----------
    component, stream : str
    schema : pa.Schema
    outlets : sequence of Outlet
        Those of the stream; without any, rows go nowhere.
    emit_other : callable
        What `emit` hands its arguments on to, if it is given anything but a plain row of this stream.

    Attributes
    ----------
    add : callable
        Takes one row, a tuple.
    emit : callable
        ``Collector.emit``, which takes a plain row of this stream by itself: `add` and what is around it in one
        function, since it runs for every row, and a further call costs a tenth of it.
    flush : callable
        Sends on whatever is gathered.
    direct : list of Direct
        The routers of readers by directGrouping.
    close : callable
        From now on `emit` hands everything on.
    """

    __slots__ = (
        "_component",
        "_nested",
        "_schema",
        "_send_error",
        "add",
        "close",
        "direct",
        "emit",
        "flush",
        "outlets",
        "stream",
    )

    def __init__(
        self, component: str, stream: str, schema: pa.Schema, outlets: Sequence[Outlet], emit_other: Callable[..., None]
    ) -> None:
        self.stream = stream
        self.outlets = tuple(outlets)
        self._component = component
        self._send_error: BaseException | None = None
        self._schema = schema
        self._nested: list[tuple[int, Fit, Weigh]] = [
            (place, fitter(field.type), weigher(field.type) or fixed)
            for place, field in enumerate(schema)
            if pa.types.is_nested(field.type)
        ]
        self.direct = [outlet.route for outlet in outlets if isinstance(outlet.route, Direct)]
        self._gather(emit_other)

    def _gather(self, emit_other: Callable[..., None]) -> None:  # noqa: C901 - four short functions over one sum
        """Make the functions that share the rows and what they weigh.

        They run for every row, so what they share are variables of this function and not attributes, and `add` repeats
        what `emit` does: each look-up or call that is saved is saved a million times a transaction.
        """
        width, has_readers, nested = len(self._schema), bool(self.outlets), self._nested
        shares = max((outlet.route.shares for outlet in self.outlets), default=1)
        # every row weighs its share of a batch, so that one sum tells of too many rows and of too many bytes
        row_bytes = max(BATCH_BYTES // min(GATHERED_ROWS_MAX, BATCH_ROWS * shares), FIXED_BYTES * width)
        texts = [place for place, field in enumerate(self._schema) if is_text(field.type)]
        rows: list[tuple[Any, ...]] = []
        append, held_bytes, own = rows.append, 0, self.stream
        plain_width = width if not nested and not self.direct else -1

        def emit(
            values: Any = (), /, stream: str = DEFAULT_STREAM, task: Any = None, anchors: Any = (), **fields: Any
        ) -> None:
            nonlocal held_bytes
            if type(values) is not tuple or len(values) != plain_width or task is not None or stream != own or fields:
                emit_other(values, stream, task, fields)
                return
            if not has_readers:
                return
            append(values)
            held_bytes += row_bytes
            try:
                for place in texts:
                    held_bytes += len(values[place] or "")
            except (TypeError, ValueError):
                pass  # no text (an array's truth is a ValueError): the flush says so
            if held_bytes >= BATCH_BYTES:
                flush()

        def add(row: tuple[Any, ...]) -> None:
            nonlocal held_bytes
            if len(row) != width:
                raise self._wrong_width(row)
            if not has_readers:
                return
            if nested:
                row = self.fitted(row)
                for place, _, weigh in nested:
                    held_bytes += weigh(row[place])
            append(row)
            held_bytes += row_bytes
            try:
                for place in texts:
                    held_bytes += len(row[place] or "")
            except (TypeError, ValueError):
                pass  # as above
            if held_bytes >= BATCH_BYTES:
                flush()

        def flush() -> None:
            nonlocal held_bytes
            if self._send_error is not None:
                raise self._send_error
            if rows:
                columns = [list(map(itemgetter(place), rows)) for place in range(width)]
                rows.clear()
                held_bytes = 0
                with self._all_or_nothing():
                    self._send(self._batch(columns), columns)

        def close() -> None:
            nonlocal plain_width
            plain_width = -1

        self.add, self.emit, self.flush, self.close = add, emit, flush, close

    def choose(self, task: int | None) -> None:
        """Name the task of the next row, for readers by directGrouping."""
        if task is not None and self.outlets and not self.direct:
            readers = ", ".join(f"{outlet.edge.target!r} by {outlet.edge.grouping}" for outlet in self.outlets)
            raise SchemaError(
                f"task={task!r} would change nothing: nobody reads the stream by directGrouping (it is read by "
                f"{readers}). Leave it out, or use directGrouping"
            )
        for route in self.direct:
            route.choose(task)

    def fitted(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a row whose nested values are copies that fit; without readers, as it is."""
        if not (self._nested and self.outlets):
            return row
        values = list(row)
        for place, fit, _ in self._nested:
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

    def _batch(self, columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        """Turn emitted rows into Arrow, naming the first value that does not fit."""
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
            f"bolt {self._component!r} emitted rows that do not fit stream {self.stream!r}",
            component=self._component,
            stream=self.stream,
        )

    def _misfit(self, place: int, value: Any, error: BaseException) -> SchemaError:
        field = self._schema.field(place)
        return SchemaError(
            f"bolt {self._component!r} emitted {shown(value)} ({type(value).__name__}) on stream {self.stream!r}, "
            f"whose outputFields declare `{to_ddl(pa.schema([field]))}`: {error}",
            component=self._component,
            stream=self.stream,
            field=field.name,
        )

    def _wrong_width(self, row: Sequence[Any]) -> SchemaError:
        names = self._schema.names
        return SchemaError(
            f"bolt {self._component!r} emitted {len(row)} values on stream {self.stream!r}, which has "
            f"{len(names)} field{'s' * (len(names) != 1)}: {', '.join(names)}",
            component=self._component,
            stream=self.stream,
        )
