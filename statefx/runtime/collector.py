"""What a bolt emits: buffered per edge and target task, sent on as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from statefx.errors import BoltError, FailedException, SchemaError
from statefx.operators import Collector
from statefx.operators.schema import to_ddl
from statefx.runtime.routing import Direct, Everyone, Rotating, Router, router
from statefx.topology.graph import Edge

BATCH_ROWS = 4096

_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)

Deliver = Callable[[int, pa.RecordBatch], None]
"""Takes (target task, batch)."""


class EdgeBuffer:
    """Rows on their way along one edge.

    Parameters
    ----------
    edge : Edge
    schema : pa.Schema
        Of the stream.
    route : Router
    width : int
        The consumer's parallelism.
    deliver : callable
        Takes (target task, batch) when a batch is full or the task asks for all.

    Attributes
    ----------
    add : callable
        Takes one row (a tuple) and chooses its target.
    """

    __slots__ = ("_buffers", "_deliver", "add", "edge", "emitted", "route", "schema", "sent", "width")

    def __init__(self, edge: Edge, schema: pa.Schema, route: Router, width: int, deliver: Deliver) -> None:
        self.edge = edge
        self.schema = schema
        self.route = route
        self.width = width
        self.emitted = 0
        self.sent = [0] * width
        self._deliver = deliver
        self._buffers: list[list[Sequence[Any]]] = [[] for _ in range(1 if route.copies else width)]
        self.add = self._adder()

    def _adder(self) -> Callable[[Sequence[Any]], None]:
        """Return `add` as one function: it runs for every row, and each further call would show."""
        buffers, pick, flush = self._buffers, self.route.pick, self._flush
        if self.route.copies:
            return lambda row: self.put(0, row)

        def add(row: Sequence[Any]) -> None:
            target = pick(row)
            buffer = buffers[target]
            buffer.append(row)
            if len(buffer) >= BATCH_ROWS:
                flush(target)

        return add

    def put(self, target: int, row: Sequence[Any]) -> None:
        """Take one row for a given target."""
        buffer = self._buffers[target]
        buffer.append(row)
        if len(buffer) >= BATCH_ROWS:
            self._flush(target)

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Take a whole batch, after what came before it."""
        self.flush()
        self.emitted += batch.num_rows
        for target, part in self.route.split(batch):
            self._send(target, part)

    def flush(self) -> None:
        """Send on whatever is buffered."""
        for target in range(len(self._buffers)):
            if self._buffers[target]:
                self._flush(target)

    def _flush(self, target: int) -> None:
        rows = self._buffers[target]
        self._buffers[target] = []
        batch = _to_batch(rows, self.schema, self.edge)
        self.emitted += len(rows)
        if self.route.copies:
            for everyone, part in self.route.split(batch):
                self._send(everyone, part)
        else:
            self._send(target, batch)

    def _send(self, target: int, batch: pa.RecordBatch) -> None:
        self.sent[target] += batch.num_rows
        self._deliver(target, batch)


def _to_batch(rows: list[Sequence[Any]], schema: pa.Schema, edge: Edge) -> pa.RecordBatch:
    """Turn emitted rows into Arrow, naming the first value that does not fit."""
    columns = list(zip(*rows, strict=True))
    try:
        arrays = [_array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    except _MISFITS as error:
        raise _misfit(columns, schema, edge) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build an array; unlike Arrow, refuse a float where an integer is declared: it would lose its fraction."""
    if pa.types.is_integer(kind) and float in set(map(type, column)):
        raise TypeError("a float is no integer; round it, or declare the field as double")
    return pa.array(column, kind)


def _misfit(columns: list[tuple[Any, ...]], schema: pa.Schema, edge: Edge) -> SchemaError:
    for column, field in zip(columns, schema, strict=True):
        for value in column:
            try:
                _array([value], field.type)
            except _MISFITS as error:
                declared = to_ddl(pa.schema([field]))
                return SchemaError(
                    f"bolt {edge.source!r} emitted {value!r} ({type(value).__name__}) on stream {edge.stream!r}, "
                    f"whose outputFields declare `{declared}`: {error}",
                    component=edge.source,
                    stream=edge.stream,
                    field=field.name,
                )
    return SchemaError(
        f"bolt {edge.source!r} emitted rows that do not fit stream {edge.stream!r}",
        component=edge.source,
        stream=edge.stream,
    )


class TaskCollector(Collector):
    """The collector of one task in one attempt.

    Parameters
    ----------
    component : str
    outputs : Mapping[str, pa.Schema]
        Declared streams.
    buffers : sequence of EdgeBuffer
        Where each stream goes; streams nobody reads cost next to nothing.
    txid : int
        The transaction whose tuples it takes.
    """

    def __init__(
        self, component: str, outputs: Mapping[str, pa.Schema], buffers: Sequence[EdgeBuffer], txid: int
    ) -> None:
        self._component = component
        self._outputs = outputs
        self._txid = txid
        self._closed = False
        self._by_stream: dict[str, list[EdgeBuffer]] = {stream: [] for stream in outputs}
        self.buffers = tuple(buffers)
        for buffer in buffers:
            self._by_stream[buffer.edge.stream].append(buffer)
        self._ways = {
            stream: (len(schema), tuple(buffer.add for buffer in self._by_stream[stream]))
            for stream, schema in outputs.items()
        }

    def emit(self, values: Sequence[Any], stream: str = "default", task: int | None = None, anchors: Any = ()) -> None:
        """Emit one tuple (see `Collector.emit`)."""
        try:
            width, adders = self._ways[stream]
        except KeyError:
            raise self._unknown(stream) from None
        if type(values) is not tuple:
            values = self._row(values, stream)
        if len(values) != width:
            raise self._wrong_width(values, stream)
        if task is not None:
            self._emit_direct(values, stream, task)
            return
        for add in adders:
            add(values)

    def _row(self, values: Sequence[Any], stream: str) -> tuple[Any, ...]:
        if isinstance(values, str | bytes):
            raise SchemaError(
                f"bolt {self._component!r} emitted {values!r} on stream {stream!r}; emit takes a tuple of values: "
                f"write emit(({values!r},))",
                component=self._component,
                stream=stream,
            )
        return tuple(values)

    def _emit_direct(self, row: Sequence[Any], stream: str, task: int) -> None:
        for buffer in self._by_stream[stream]:
            if not isinstance(buffer.route, Direct):
                buffer.add(row)
            elif 0 <= task < buffer.width:
                buffer.put(task, row)
            else:
                raise BoltError(
                    f"bolt {self._component!r} emitted to task {task} of {buffer.edge.target!r}, "
                    f"which has tasks 0..{buffer.width - 1}",
                    component=self._component,
                )

    def emitBatch(self, batch: pa.RecordBatch, stream: str = "default") -> None:
        """Emit a batch of tuples (see `Collector.emitBatch`)."""
        schema = self._outputs.get(stream)
        if schema is None:
            raise self._unknown(stream)
        if not batch.schema.equals(schema):
            batch = self._fitted(batch, schema, stream)
        for buffer in self._by_stream[stream]:
            buffer.add_batch(batch)

    def _fitted(self, batch: pa.RecordBatch, schema: pa.Schema, stream: str) -> pa.RecordBatch:
        try:
            if batch.schema.names != schema.names:
                raise ValueError(f"its fields are {batch.schema.names}")
            return batch.cast(schema)
        except (pa.ArrowException, ValueError) as error:
            raise SchemaError(
                f"bolt {self._component!r} emitted a batch on stream {stream!r}, whose outputFields declare "
                f"`{to_ddl(schema)}`: {error}",
                component=self._component,
                stream=stream,
            ) from error

    def ack(self, tup: Any) -> None:
        """Do nothing: the barrier closes a transaction's tuples all at once."""

    def fail(self, tup: Any) -> None:
        """Fail the transaction that `tup` is in."""
        raise FailedException(f"it called collector.fail({tup!r})", component=self._component)

    def resetTimeout(self, tup: Any) -> None:
        """Do nothing: no tuple of a stream has a timeout of its own."""

    def flush(self) -> None:
        """Send on whatever is buffered."""
        for buffer in self.buffers:
            buffer.flush()

    def close(self) -> None:
        """Take no more: what a bolt emits after its barriers have left would be lost without a trace."""
        self._closed = True
        self._ways = {}  # looked up for every row anyway: an open collector pays nothing
        self._outputs = {}

    def _unknown(self, stream: str) -> BoltError:
        if self._closed:
            return BoltError(
                f"bolt {self._component!r} emitted through a collector of transaction {self._txid} that has ended: "
                "don't keep a collector, emit through the one that execute, executeBatch or finishBatch was given",
                component=self._component,
                txid=self._txid,
            )
        return SchemaError(
            f"bolt {self._component!r} emitted on stream {stream!r}, which its outputFields do not declare: "
            f"declared are {sorted(self._outputs) or 'none'}",
            component=self._component,
            stream=stream,
        )

    def _wrong_width(self, values: Sequence[Any], stream: str) -> BoltError:
        names = self._outputs[stream].names
        return SchemaError(
            f"bolt {self._component!r} emitted {len(values)} values on stream {stream!r}, which has "
            f"{len(names)} field{'s' * (len(names) != 1)}: {', '.join(names)}",
            component=self._component,
            stream=stream,
        )


def edge_buffer(edge: Edge, schema: pa.Schema, width: int, task: int, fused: bool, deliver: Deliver) -> EdgeBuffer:
    """Build the buffer of one edge out of `task`; a fused edge stays with the task's own number."""
    route = router(edge, schema, width, task)
    if fused:
        route = _Stay(task)
    return EdgeBuffer(edge, schema, route, width, deliver)


class _Stay(Rotating):
    """A fused edge: rows stay in the Spark task that made them."""

    def __init__(self, task: int) -> None:
        super().__init__(1, 0)
        self._task = task

    def pick(self, row: Sequence[Any]) -> int:
        return self._task

    def split(self, batch: pa.RecordBatch) -> Any:
        yield self._task, batch


__all__ = ["BATCH_ROWS", "EdgeBuffer", "Everyone", "TaskCollector", "edge_buffer"]
