"""Which tasks of a consumer get a row: one router per edge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statefx.errors import BoltError
from statefx.topology.graph import Edge
from statefx.topology.hashing import batch_hashes, partial_key_chooser, row_hasher

Row = Sequence[Any]
Pick = Callable[[Row], int]


class Router(ABC):
    """Chooses target tasks for the rows of one edge, in one attempt of one source task.

    A router has no memory beyond the attempt, and the same rows in the same order give the same targets.
    """

    copies = False

    @abstractmethod
    def pick(self, row: Row) -> int:
        """Return the target task of `row`."""

    @abstractmethod
    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (target task, its rows of `batch`)."""


class Rotating(Router):
    """Shuffle, localOrShuffle, none: even shares, starting at another consumer for every source task."""

    def __init__(self, width: int, task: int) -> None:
        self._width = width
        self._next = task % width

    def pick(self, row: Row) -> int:
        target = self._next
        self._next = target + 1 if target + 1 < self._width else 0
        return target

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        share, rest = divmod(batch.num_rows, self._width)
        start = 0
        for i in range(self._width):
            size = share + (1 if i < rest else 0)
            if size:
                yield self.pick(()), batch.slice(start, size)
            start += size


class Single(Router):
    """Global: task 0 gets every row."""

    def pick(self, row: Row) -> int:
        return 0

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        yield 0, batch


class Everyone(Router):
    """All: every task gets every row."""

    copies = True

    def __init__(self, width: int) -> None:
        self._width = width

    def pick(self, row: Row) -> int:
        raise NotImplementedError("an all-grouping picks every task")

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        for target in range(self._width):
            yield target, batch


class Keyed(Router):
    """Fields and partialKey: the target follows from the row's key."""

    def __init__(self, choose: Pick, choose_all: Callable[[pa.RecordBatch], list[int]], width: int) -> None:
        self.pick = choose  # type: ignore[method-assign,assignment]  # the function itself: a call less for each row
        self._choose_all = choose_all
        self._width = width

    def pick(self, row: Row) -> int:
        """Replaced for each router."""
        raise NotImplementedError

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield each target's rows, in their order."""
        targets = pa.array(self._choose_all(batch), pa.int32())
        for target in range(self._width):
            chosen = batch.filter(pc.equal(targets, target))
            if chosen.num_rows:
                yield target, chosen


class Direct(Router):
    """Direct: the emitter names the task."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def pick(self, row: Row) -> int:
        edge = self._edge
        raise BoltError(
            f"stream {edge.stream!r} of bolt {edge.source!r} is read by {edge.target!r} with directGrouping: "
            "name the task, as in collector.emit(values, stream=..., task=0)",
            component=edge.source,
            stream=edge.stream,
        )

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        self.pick(())
        yield from ()


def router(edge: Edge, schema: pa.Schema, width: int, task: int) -> Router:
    """Build the router of `edge` for source task `task`; `width` is the consumer's parallelism."""
    kind = edge.grouping.kind
    if kind in ("shuffle", "local", "none"):
        return Rotating(width, task)
    if kind == "global":
        return Single()
    if kind == "all":
        return Everyone(width)
    if kind == "direct":
        return Direct(edge)
    fields = edge.grouping.fields
    if kind == "partialKey":
        choose = partial_key_chooser(schema, fields, width)
        return Keyed(choose, lambda batch: list(map(choose, rows_of(batch))), width)
    hash_row = row_hasher(schema, fields)
    return Keyed(
        lambda row: hash_row(row) % width, lambda batch: [found % width for found in batch_hashes(batch, fields)], width
    )


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """Yield the rows of a batch as tuples."""
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)
