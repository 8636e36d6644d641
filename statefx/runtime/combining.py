"""Rows that are added up in the task that emits them, before they are split and sent along one edge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statefx.errors import SchemaError
from statefx.operators import Bolt, overrides, to_ddl
from statefx.operators.fitting import MISFITS, fitted_array, fitted_table, shown
from statefx.operators.tuples import tuple_maker
from statefx.plan.levels import Plan, name_shown
from statefx.protocol.identity import TaskId
from statefx.runtime.user_objects import hook
from statefx.topology.graph import Edge

GATHERED_BYTES = 32 << 20
"""Rows of one edge that wait for `combineBatch`, as Arrow: a worker's memory must not depend on the transaction's size.
More rows make fewer sums; of words of 12 bytes, two million become a sum a key."""

_AT_ONCE = 256
"""Tuples that `initCombine` makes before `combine` takes them: of 65,536, Python's garbage collector went through all
that had gathered again and again, which took 300 ns a row."""

SUMS_BYTES = 4 << 20
"""Sums that `combine` has made, as Arrow; as Python objects some ten times as much."""


class Combiner(ABC):
    """Adds up the rows of one edge, in one attempt of one source task."""

    def __init__(
        self,
        bolt: Bolt,
        edge: Edge,
        schema: pa.Schema,
        combined: pa.Schema,
        calling: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._bolt = bolt
        self._schema = combined
        self._source = name_shown(edge.source)
        self._stream = edge.stream
        self._keys = edge.grouping.fields
        self._calling = calling
        self._held_bytes = 0
        self._given = schema

    @abstractmethod
    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows; yield sums if there are too many to hold."""

    @abstractmethod
    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the sums that are left, and begin anew."""


class BatchCombiner(Combiner):
    """Gathers batches, and lets `combineBatch` add up all of them at once."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._batches: list[pa.RecordBatch] = []

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows; yield sums if there are too many to hold."""
        self._batches.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= GATHERED_BYTES:
            yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the sums that are left, and begin anew."""
        batches, self._batches, self._held_bytes = self._batches, [], 0
        marks = {"source": self._source, "stream": self._stream}
        for rows in pa.Table.from_batches(batches, self._given).combine_chunks().to_batches():
            with self._calling("combineBatch"):
                returned = self._bolt.combineBatch(rows.replace_schema_metadata(marks))
                sums = self._fitted(returned)
                self._check(rows, sums)
            yield from sums.to_batches()

    def _fitted(self, returned: Any) -> pa.Table:
        """Return what the hook returned with the declared fields, in their order."""
        if isinstance(returned, pa.RecordBatch):
            returned = pa.Table.from_batches([returned])
        if not isinstance(returned, pa.Table):
            raise TypeError(
                f"it returned {shown(returned)} ({type(returned).__name__}): return a RecordBatch or a Table"
            )
        names = self._schema.names
        if sorted(returned.column_names) != sorted(names):
            raise ValueError(
                f"it returned the fields {', '.join(returned.column_names)}, and the bolt's are {', '.join(names)}: "
                "rename what it returns, or declare combinedFields"
            )
        return fitted_table(returned, self._schema)

    def _check(self, rows: pa.RecordBatch, sums: pa.Table) -> None:
        """Refuse what is no sum of the rows, as far as that costs little: of the keys, the first and the last."""
        # All of them would take a second look at every row's key, which is what adding up takes as well.
        if sums.num_rows > rows.num_rows:
            raise ValueError(f"it made {sums.num_rows} rows of {rows.num_rows}: added up, they are no more than before")
        for name in self._keys if sums.num_rows else ():
            for key in (sums.column(name)[0], sums.column(name)[-1]):
                flat = (
                    key.is_valid and not pa.types.is_nested(key.type) and key.as_py() == key.as_py()
                )  # NaN is nowhere
                if flat and pc.index(rows.column(name), key).as_py() < 0:
                    raise ValueError(
                        f"it returned {shown(key.as_py())} as {name}, which none of the rows has: the fields that rows "
                        "are grouped by stay as they are"
                    )


class TupleCombiner(Combiner):
    """Keeps a sum for each key, to which `combine` adds one tuple after the other."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._tuple = tuple_maker(self._given, self._source, self._stream)
        self._sum = tuple_maker(self._schema, self._source, self._stream)
        self._places = [self._given.get_field_index(name) for name in self._keys]
        self._width = len(self._schema)
        self._begins = overrides(type(self._bolt), "initCombine")
        self._sums: dict[Any, tuple[Any, ...]] = {}

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take rows; yield sums if there are too many to hold."""
        before = len(self._sums)
        with self._calling("combine"):
            columns = [column.to_pylist() for column in batch.columns]
        rows = zip(*columns, strict=True)
        keyed = [columns[place] for place in self._places]
        keys: Iterator[Any] = iter(keyed[0]) if len(keyed) == 1 else zip(*keyed, strict=True)
        for _ in range(0, batch.num_rows, _AT_ONCE):
            some: Iterable[tuple[Any, ...]] = islice(rows, _AT_ONCE)
            if self._begins:
                with self._calling("initCombine"):
                    some = self._begun(some)
            with self._calling("combine"):
                self._add(islice(keys, _AT_ONCE), some)
        if batch.num_rows:
            self._held_bytes += batch.nbytes * (len(self._sums) - before) // batch.num_rows
        if self._held_bytes >= SUMS_BYTES:
            yield from self.finish()

    # The two loops below run for every row. What a hook returns as a rule is looked at in place: a call is saved. Sums
    # are kept as plain tuples, which Python's garbage collector forgets, and get their names when `combine` takes them.

    def _begun(self, rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        begin, width = self._bolt.initCombine, self._width
        return [
            found if type(found := begin(tup)) is tuple and len(found) == width else self._checked("initCombine", found)
            for tup in map(self._tuple, rows)
        ]

    def _add(self, keys: Iterable[Any], rows: Iterable[tuple[Any, ...]]) -> None:
        sums, combine, made, width = self._sums, self._bolt.combine, self._sum, self._width
        for key, row in zip(keys, rows, strict=True):
            if (before := sums.get(key)) is None:
                sums[key] = row
            else:
                found = combine(made(before), made(row))
                plain = type(found) is tuple and len(found) == width
                sums[key] = found if plain else self._checked("combine", found)

    def _checked(self, name: str, returned: Any) -> tuple[Any, ...]:
        if not isinstance(returned, tuple | list) or len(returned) != self._width:
            raise TypeError(
                f"{name} returned {shown(returned)} ({type(returned).__name__}): return a tuple of "
                f"{', '.join(self._schema.names)}"
            )
        return tuple(returned)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the sums that are left, and begin anew."""
        sums, self._sums, self._held_bytes = self._sums, {}, 0
        if not sums:
            return
        with self._calling("combine"):
            columns = [list(column) for column in zip(*sums.values(), strict=True)]
            self._check_keys(list(sums), columns)
            arrays = [self._array(column, field) for column, field in zip(columns, self._schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _check_keys(self, keys: list[Any], columns: Sequence[list[Any]]) -> None:
        """Refuse sums that have another key than their rows: they would count for it, and maybe in another task."""
        now = [columns[self._schema.get_field_index(name)] for name in self._keys]
        found = now[0] if len(now) == 1 else list(zip(*now, strict=True))
        if found != keys:
            key, other = next((key, other) for key, other in zip(keys, found, strict=True) if key != other)
            raise ValueError(
                f"it made a sum of {shown(other)} of rows of {shown(key)}: the fields that rows are grouped by "
                f"({', '.join(self._keys)}) stay as they are"
            )

    def _array(self, values: list[Any], field: pa.Field) -> pa.Array:
        try:
            return fitted_array(values, field.type)
        except MISFITS as error:
            raise SchemaError(
                f"a sum does not fit `{to_ddl(pa.schema([field]))}`: {error}", field=field.name
            ) from error


def combiner_of(plan: Plan, edge: Edge, sender: TaskId, txid: int) -> Combiner | None:
    """Return what adds up the rows that `sender` emits along `edge`; None if they are sent as they are."""
    reader = plan.components[edge.target]
    if not reader.combines:
        return None
    assert isinstance(reader.operator, Bolt)
    kind = plan.components[edge.source].kind
    task = sender._replace(component=name_shown(sender.component))

    def calling(name: str) -> AbstractContextManager[None]:
        return hook(task, f"{name} of bolt {edge.target!r}", txid, kind)

    made = BatchCombiner if overrides(type(reader.operator), "combineBatch") else TupleCombiner
    return made(reader.operator, edge, plan.stream_schema(edge), plan.schema(edge), calling)
