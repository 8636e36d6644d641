"""Which tasks of a consumer get a row: one router per edge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statefx.errors import BoltError
from statefx.plan.hashing import batch_hashes, partial_key_chooser, task_chooser
from statefx.topology.graph import Edge

Columns = Sequence[Sequence[Any]]
"""The values of a batch as Python has them, column by column."""


class Router(ABC):
    """Chooses target tasks for the rows of one edge, in one attempt of one source task.

    A router has no memory beyond the attempt.

    Attributes
    ----------
    shares : int
        How many targets share the rows of a batch.
    """

    shares = 1

    @abstractmethod
    def split(self, batch: pa.RecordBatch, columns: Columns | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (target task, its rows of `batch`), in their order; `columns` has its values, if they are at hand."""


class Rotating(Router):
    """Shuffle, localOrShuffle, none: even shares, starting at another consumer for every source task."""

    def __init__(self, width: int, task: int) -> None:
        self.shares = width
        self._next = task % width

    def split(self, batch: pa.RecordBatch, columns: Columns | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
        share, rest = divmod(batch.num_rows, self.shares)
        start = 0
        for i in range(self.shares):
            size = share + (1 if i < rest else 0)
            if size:
                yield self._next, batch.slice(start, size)
                self._next = (self._next + 1) % self.shares
            start += size


class Staying(Router):
    """A fused edge: rows stay in the Spark task that made them."""

    def __init__(self, task: int) -> None:
        self._task = task

    def split(self, batch: pa.RecordBatch, columns: Columns | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
        yield self._task, batch


class Everyone(Router):
    """All: every task gets every row."""

    def __init__(self, width: int) -> None:
        self._width = width

    def split(self, batch: pa.RecordBatch, columns: Columns | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
        for target in range(self._width):
            yield target, batch


class Keyed(Router):
    """Fields and partialKey: the target follows from the row's key.

    Parameters
    ----------
    choose : callable
        Takes the values of a batch; returns the target of every row.
    choose_all : callable
        Takes a batch whose values are not at hand; likewise.
    width : int
    """

    def __init__(
        self, choose: Callable[[Columns], list[int]], choose_all: Callable[[pa.RecordBatch], list[int]], width: int
    ) -> None:
        self.shares = width
        self._choose = choose
        self._choose_all = choose_all

    def split(self, batch: pa.RecordBatch, columns: Columns | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield each target's rows, in their order."""
        if self.shares == 1:
            yield 0, batch
            return
        chosen = self._choose_all(batch) if columns is None else self._choose(columns)
        yield from _shared_out(batch, chosen)


class Direct(Router):
    """Direct: the emitter names the task."""

    def __init__(self, edge: Edge, width: int) -> None:
        self.shares = width
        self._edge = edge
        self._chosen: list[int] = []

    def choose(self, task: int | None) -> None:
        """Name the task of the row that comes next."""
        edge = self._edge
        if task is None:
            raise self._unnamed()
        if not 0 <= task < self.shares:
            raise BoltError(
                f"bolt {edge.source!r} emitted to task {task} of {edge.target!r}, which has tasks 0..{self.shares - 1}",
                component=edge.source,
            )
        self._chosen.append(task)

    def split(self, batch: pa.RecordBatch, columns: Columns | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of each task that was named; BoltError for a batch that was emitted whole."""
        if not self._chosen:
            raise self._unnamed()
        chosen, self._chosen = self._chosen, []
        yield from _shared_out(batch, chosen)

    def _unnamed(self) -> BoltError:
        edge = self._edge
        return BoltError(
            f"stream {edge.stream!r} of bolt {edge.source!r} is read by {edge.target!r} with directGrouping: "
            "name the task, as in collector.emit(values, stream=..., task=0)",
            component=edge.source,
            stream=edge.stream,
        )


def _shared_out(batch: pa.RecordBatch, chosen: Sequence[int]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield each target's rows, in their order."""
    targets = pa.Array.from_buffers(pa.int32(), len(chosen), [None, pa.py_buffer(array("i", chosen))])
    grouped = batch.take(pc.array_sort_indices(targets))  # a stable sort: rows of one target keep their order
    rows_of = pc.value_counts(targets)
    start = 0
    for target, rows in sorted(zip(*(rows_of.field(i).to_pylist() for i in (0, 1)), strict=True)):
        yield target, grouped.slice(start, rows)
        start += rows


def router(edge: Edge, schema: pa.Schema, width: int, task: int) -> Router:
    """Build the router of `edge` for source task `task`; `width` is the consumer's parallelism."""
    kind = edge.grouping.kind
    if kind in ("shuffle", "local", "none"):
        return Rotating(width, task)
    if kind == "global":
        return Staying(0)
    if kind == "all":
        return Everyone(width)
    if kind == "direct":
        return Direct(edge, width)
    fields = edge.grouping.fields
    places = [schema.get_field_index(name) for name in fields]
    if kind == "partialKey":
        choose = partial_key_chooser(schema, fields, width)
        return Keyed(
            lambda columns: list(map(choose, zip(*columns, strict=True))),
            lambda batch: list(map(choose, zip(*(column.to_pylist() for column in batch.columns), strict=True))),
            width,
        )
    tasks_of = task_chooser(pa.schema([schema.field(place) for place in places]), width)
    return Keyed(
        lambda columns: tasks_of([columns[place] for place in places]),
        lambda batch: [found % width for found in batch_hashes(batch, fields)],
        width,
    )
