"""The groupings, each written once: how rows find their tasks, batch by batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statefx.errors import BoltError
from statefx.plan.hashing import partial_key_chooser, task_chooser
from statefx.topology.graph import Edge

Columns = Sequence[Sequence[Any]]
"""The values of a batch as Python has them, column by column."""

Split = Iterator[tuple[int, pa.RecordBatch]]
"""(target task, its rows)."""


class Router(ABC):
    """Chooses target tasks for the rows of one edge, in one attempt of one source task.

    A router has no memory beyond the attempt: the next one may run in a process that knows nothing of this one.
    `shares` is how many targets share the rows of a batch.
    """

    shares = 1

    def __init__(self, edge: Edge, schema: pa.Schema, width: int, task: int) -> None:
        self.shares = width

    @abstractmethod
    def split(self, batch: pa.RecordBatch, columns: Columns | None = None) -> Split:
        """Yield (target task, its rows of `batch`), in their order; `columns` has its values, if they are at hand."""


class Shuffle(Router):
    """Even shares. Each source task starts at another consumer: else all would send one of them its larger shares."""

    def __init__(self, edge: Edge, schema: pa.Schema, width: int, task: int) -> None:
        super().__init__(edge, schema, width, task)
        self._next = task % width

    def split(self, batch: pa.RecordBatch, columns: Columns | None = None) -> Split:
        share, rest = divmod(batch.num_rows, self.shares)
        start = 0
        for i in range(self.shares):
            size = share + (1 if i < rest else 0)
            if size:
                yield self._next, batch.slice(start, size)
                self._next = (self._next + 1) % self.shares
            start += size


class Local(Shuffle):
    """As shuffle, and where the sender's own process has a task of the consumer, the edge is fused."""


class Fields(Router):
    """The target follows from the hash of the key."""

    def __init__(self, edge: Edge, schema: pa.Schema, width: int, task: int) -> None:
        super().__init__(edge, schema, width, task)
        self._places = [schema.get_field_index(name) for name in edge.grouping.fields]
        key = pa.schema([schema.field(place) for place in self._places])
        self._tasks_of = task_chooser(key, width)

    def split(self, batch: pa.RecordBatch, columns: Columns | None = None) -> Split:
        if self.shares == 1:
            yield 0, batch
            return
        yield from _shared_out(batch, self._tasks(batch, columns))

    def _tasks(self, batch: pa.RecordBatch, columns: Columns | None) -> Sequence[int] | pa.Array:
        return self._tasks_of([batch.column(place) for place in self._places])


class PartialKey(Fields):
    """Two hashes of the key name two tasks; of these the one to which this task has sent fewer rows."""

    def __init__(self, edge: Edge, schema: pa.Schema, width: int, task: int) -> None:
        super().__init__(edge, schema, width, task)
        self._choose = partial_key_chooser(schema, edge.grouping.fields, width)

    def _tasks(self, batch: pa.RecordBatch, columns: Columns | None) -> list[int]:
        values = [column.to_pylist() for column in batch.columns] if columns is None else columns
        return list(map(self._choose, zip(*values, strict=True)))


class All(Router):
    """Every task gets every row."""

    def __init__(self, edge: Edge, schema: pa.Schema, width: int, task: int) -> None:
        self._width = width  # each batch goes whole, so `shares` stays 1

    def split(self, batch: pa.RecordBatch, columns: Columns | None = None) -> Split:
        for target in range(self._width):
            yield target, batch


class Global(Router):
    """Task 0 gets all rows."""

    def __init__(self, edge: Edge, schema: pa.Schema, width: int, task: int) -> None:
        pass

    def split(self, batch: pa.RecordBatch, columns: Columns | None = None) -> Split:
        yield 0, batch


class Direct(Router):
    """The emitter names the task."""

    def __init__(self, edge: Edge, schema: pa.Schema, width: int, task: int) -> None:
        super().__init__(edge, schema, width, task)
        self._edge = edge
        self._chosen: list[int] = []

    def check(self, task: int | None) -> int:
        """Return the task; BoltError if it is not one of the reader's."""
        edge = self._edge
        if task is None:
            raise self._unnamed()
        if not 0 <= task < self.shares:
            raise BoltError(
                f"bolt {edge.source!r} emitted to task {task} of {edge.target!r}, which has tasks 0..{self.shares - 1}",
                component=edge.source,
            )
        return task

    def choose(self, task: int | None) -> None:
        """Name the task of the next row."""
        self._chosen.append(self.check(task))

    @property
    def chosen(self) -> int:
        """For how many rows a task is named."""
        return len(self._chosen)

    def forget(self, chosen: int) -> None:
        """Forget all but the first `chosen` names."""
        del self._chosen[chosen:]

    def split(self, batch: pa.RecordBatch, columns: Columns | None = None) -> Split:
        """Yield the rows of each task that was named; BoltError for a batch that was emitted whole."""
        number = batch.num_rows  # of more that were named, the rows come in a later batch
        if len(self._chosen) < max(number, 1):
            raise self._unnamed()
        chosen, self._chosen = self._chosen[:number], self._chosen[number:]
        yield from _shared_out(batch, chosen)

    def _unnamed(self) -> BoltError:
        edge = self._edge
        return BoltError(
            f"stream {edge.stream!r} of {edge.source!r} is read by {edge.target!r} with directGrouping: "
            "name the task, as in collector.emit(values, stream=..., task=0)",
            component=edge.source,
            stream=edge.stream,
        )


class Fused(Router):
    """No grouping: the rows of a fused edge stay in the Spark task that made them."""

    def __init__(self, edge: Edge, schema: pa.Schema, width: int, task: int) -> None:
        self._task = task

    def split(self, batch: pa.RecordBatch, columns: Columns | None = None) -> Split:
        yield self._task, batch


ROUTERS: Mapping[str, type[Router]] = {
    "shuffle": Shuffle,
    "fields": Fields,
    "global": Global,
    "all": All,
    "broadcast": All,
    "none": Local,
    "local": Local,
    "direct": Direct,
    "partialKey": PartialKey,
}
"""Kind of a grouping -> who sends its rows."""


def _shared_out(batch: pa.RecordBatch, chosen: Sequence[int] | pa.Array) -> Split:
    if isinstance(chosen, pa.Array):
        targets = chosen
    else:
        targets = pa.Array.from_buffers(pa.int32(), len(chosen), [None, pa.py_buffer(array("i", chosen))])
    grouped = batch.take(pc.array_sort_indices(targets))  # a stable sort: rows of one target keep their order
    rows_of = pc.value_counts(targets)
    start = 0
    for target, rows in sorted(zip(*(rows_of.field(i).to_pylist() for i in (0, 1)), strict=True)):
        yield target, grouped.slice(start, rows)
        start += rows
