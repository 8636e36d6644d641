"""Rows on their way out of a task: gathered by stream, turned into Arrow, and sent along every edge."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa

from statefx.errors import SchemaError
from statefx.operators import DEFAULT_STREAM
from statefx.operators.schema import to_ddl
from statefx.plan.groupings import ROUTERS, Direct, Fused, Router
from statefx.plan.wire import BATCH_BYTES, cut
from statefx.runtime.fitting import FIXED_BYTES, MISFITS, Fit, Weigh, fitter, fixed, is_text, shown, to_array, weigher
from statefx.topology.graph import Edge

BATCH_ROWS = 4096
"""Rows of a batch for one target, on average: fewer and each batch's own cost shows, more and nothing is gained."""

GATHERED_ROWS_MAX = 65_536
"""Rows that a stream gathers at most, however many targets share them; as Python objects some 10 MB."""

Deliver = Callable[[int, pa.RecordBatch], None]
"""Takes (target task, batch)."""


class Outlet:
    """The way out of a task along one edge.

    Parameters
    ----------
    edge : Edge
    route : Router
    width : int
        The consumer's parallelism.
    deliver : callable
        Takes (target task, batch).

    Attributes
    ----------
    emitted : int
        Rows that came, before they were copied for an all-grouping.
    sent : list of int
        Rows that went, by target task.
    """

    __slots__ = ("_deliver", "edge", "emitted", "route", "sent", "width")

    def __init__(self, edge: Edge, route: Router, width: int, deliver: Deliver) -> None:
        self.edge = edge
        self.route = route
        self.width = width
        self.emitted = 0
        self.sent = [0] * width
        self._deliver = deliver

    def send(self, batch: pa.RecordBatch, columns: Sequence[Sequence[Any]] | None = None) -> None:
        """Send a batch's rows to their targets; `columns` has its values, if they are at hand."""
        self.emitted += batch.num_rows
        for target, part in self.route.split(batch, columns):
            self.sent[target] += part.num_rows
            self._deliver(target, part)


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
    otherwise : callable
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
        "_lost",
        "_nested",
        "_schema",
        "add",
        "close",
        "direct",
        "emit",
        "flush",
        "outlets",
        "stream",
    )

    def __init__(
        self, component: str, stream: str, schema: pa.Schema, outlets: Sequence[Outlet], otherwise: Callable[..., None]
    ) -> None:
        self.stream = stream
        self.outlets = tuple(outlets)
        self._component = component
        self._lost: BaseException | None = None
        self._schema = schema
        self._nested: list[tuple[int, Fit, Weigh]] = [
            (place, fitter(field.type), weigher(field.type) or fixed)
            for place, field in enumerate(schema)
            if pa.types.is_nested(field.type)
        ]
        self.direct = [outlet.route for outlet in outlets if isinstance(outlet.route, Direct)]
        self._gather(otherwise)

    def _gather(self, otherwise: Callable[..., None]) -> None:  # noqa: C901 - four short functions over one sum
        """Make the functions that share the rows and what they weigh."""
        width, read, nested = len(self._schema), bool(self.outlets), self._nested
        shares = max((outlet.route.shares for outlet in self.outlets), default=1)
        # every row weighs its share of a batch, so that one sum tells of too many rows and of too many bytes
        row_bytes = max(BATCH_BYTES // min(GATHERED_ROWS_MAX, BATCH_ROWS * shares), FIXED_BYTES * width)
        texts = [place for place, field in enumerate(self._schema) if is_text(field.type)]
        rows: list[tuple[Any, ...]] = []
        append, held, own = rows.append, 0, self.stream
        plain_width = width if not nested and not self.direct else -1

        def emit(
            values: Any = (), /, stream: str = DEFAULT_STREAM, task: Any = None, anchors: Any = (), **fields: Any
        ) -> None:
            nonlocal held
            if type(values) is not tuple or len(values) != plain_width or task is not None or stream != own or fields:
                otherwise(values, stream, task, fields)
                return
            if not read:
                return
            append(values)
            held += row_bytes
            try:
                for place in texts:
                    held += len(values[place] or "")
            except (TypeError, ValueError):
                pass  # no text (an array's truth is a ValueError): the flush says so
            if held >= BATCH_BYTES:
                flush()

        def add(row: tuple[Any, ...]) -> None:
            nonlocal held
            if len(row) != width:
                raise self._wrong_width(row)
            if not read:
                return
            if nested:
                row = self.fitted(row)
                for place, _, weigh in nested:
                    held += weigh(row[place])
            append(row)
            held += row_bytes
            try:
                for place in texts:
                    held += len(row[place] or "")
            except (TypeError, ValueError):
                pass  # as above
            if held >= BATCH_BYTES:
                flush()

        def flush() -> None:
            nonlocal held
            if self._lost is not None:
                raise self._lost
            if rows:
                columns = [list(map(itemgetter(place), rows)) for place in range(width)]
                rows.clear()
                held = 0
                with self._whole():
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
        with self._whole():
            for part in cut(batch):
                self._send(part)

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Send a batch in this block, or none ever again: what it raises is raised by every flush from now on.

        It comes out of whichever `emit` fills the batch. A bolt that goes on after an error of its `emit` gives up one
        row, as it thinks; thousands of others would be gone with it, and the last flush would find nothing to send.
        """
        try:
            yield
        except BaseException as error:
            self._lost = error
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


def outlet_of(edge: Edge, schema: pa.Schema, width: int, task: int, fused: bool, deliver: Deliver) -> Outlet:
    """Build the way out of `task` along one edge; a fused edge stays with the task's own number."""
    sender = Fused if fused else ROUTERS[edge.grouping.kind]
    return Outlet(edge, sender(edge, schema, width, task), width, deliver)
