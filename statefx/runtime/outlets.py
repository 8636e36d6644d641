"""The ways of rows out of a task: added up, split among the readers of an edge, and gathered in the chain's outbox.

What a bolt emits leaves its process when the bolt returns. `finishBatch`, `executeBatch`, and `execute` with one tuple
may emit any number of rows before that. They can't be paused in the middle: the user's code would have to be a
generator, or run in a thread of its own. So what waits is in memory up to a bound, and beyond it in a file.
"""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from statefx.errors import SchemaError
from statefx.operators.bolts import Bolt
from statefx.operators.fitting import MISFITS, fitted_array, fitted_table, shown
from statefx.operators.hooks import overrides
from statefx.operators.schema import to_ddl
from statefx.operators.tuples import tuple_maker
from statefx.operators.unpacking import values_in
from statefx.plan.groupings import ROUTERS, Fused, Router
from statefx.plan.levels import Plan, name_shown
from statefx.plan.wire import BATCH_BYTES, Address, WireRow, cut, next_partition, to_batch
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

HELD_BYTES_MAX = 4 * BATCH_BYTES
"""Bytes of batches that a queue keeps in memory. Bolts that are asked to pause hold one or two batches."""

FILE_BYTES = 256 << 20
"""After which another file is begun: in a queue that never empties, one file would grow for ever."""

Tag = TypeVar("Tag")

Deliver = Callable[[int, pa.RecordBatch], int]
"""Takes (target task, batch); returns how many bytes that is."""


# ---- one edge


class Outlet:
    """The way out of a task along one edge; a combiner adds up the rows before they are split.

    `rows_before_combining` counts the rows that came to the combiner, 0 without one; `emitted` those that were split,
    before they were copied for an all-grouping: barriers and acks count sums. `sent` counts rows by target task,
    `sent_bytes` those of all of them. `tracked`: rows travel with the roots of their trees.
    """

    __slots__ = (
        "_combiner",
        "_deliver",
        "edge",
        "emitted",
        "route",
        "rows_before_combining",
        "sent",
        "sent_bytes",
        "tracked",
        "width",
    )

    def __init__(
        self,
        edge: Edge,
        route: Router,
        width: int,
        deliver: Deliver,
        combiner: Combiner | None = None,
        *,
        tracked: bool = False,
    ) -> None:
        self.tracked = tracked
        self.edge = edge
        self.route = route
        self.width = width
        self.rows_before_combining = self.emitted = self.sent_bytes = 0
        self.sent = [0] * width
        self._deliver = deliver
        self._combiner = combiner

    def send(self, batch: pa.RecordBatch, columns: Sequence[Sequence[Any]] | None = None) -> None:
        """Send a batch's rows to their targets; `columns` has its values, if they are at hand."""
        if self._combiner is None:
            self._split(batch, columns)
        else:
            self.rows_before_combining += batch.num_rows
            self._split_all(self._combiner.take(batch))

    def finish(self) -> None:
        """Send what the combiner holds: no more rows will come."""
        if self._combiner is not None:
            self._split_all(self._combiner.finish())

    def _split_all(self, sums: Iterable[pa.RecordBatch]) -> None:
        for batch in sums:
            for part in cut(batch):
                self._split(part)

    def _split(self, batch: pa.RecordBatch, columns: Sequence[Sequence[Any]] | None = None) -> None:
        # before the split: the ledger multiplies it by what the grouping copies (rule 5.2)
        self.emitted += batch.num_rows
        for target, part in self.route.split(batch, columns):
            self.sent[target] += part.num_rows
            self.sent_bytes += self._deliver(target, part)


def outlet_of(
    edge: Edge,
    schema: pa.Schema,
    width: int,
    task: int,
    fused: bool,
    deliver: Deliver,
    combiner: Combiner | None = None,
    *,
    tracked: bool = False,
) -> Outlet:
    """Build the way out of `task` along one edge; a fused edge stays with the task's own number."""
    sender = Fused if fused else ROUTERS[edge.grouping.kind]
    return Outlet(edge, sender(edge, schema, width, task), width, deliver, combiner, tracked=tracked)


# ---- rows that are added up before they are split


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
        """Yield the sums that are left, and begin again."""


class BatchCombiner(Combiner):
    """Gathers batches, and lets `combineBatch` add up all of them at once."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._batches: list[pa.RecordBatch] = []

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._batches.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= GATHERED_BYTES:
            yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
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
        before = len(self._sums)
        with self._calling("combine"):
            columns = list(map(values_in, batch.columns))
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
    """Return the combiner of the rows of `sender` on `edge`, or None if they are sent as they are."""
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


# ---- rows that wait to leave


class RowsNotWrittenError(OSError):
    """Rows on their way can't be written to a file: no mistake in the user's code (rule 6.8)."""


@dataclass(slots=True, eq=False)
class _File:
    """Batches in a temporary file."""

    file: IO[bytes]
    size: int = 0
    left: int = 0
    """Batches that nobody has taken."""


class BatchQueue(Generic[Tag]):
    """Arrow batches, each with a tag, first in, first out.

    Beyond `bytes_max` bytes in memory they wait in temporary files. These have no names, and are gone with the process.
    Their folder is Spark's for such files, where it is known. RowsNotWrittenError if a file can't be written.
    """

    def __init__(self, bytes_max: int = 0) -> None:
        self._bytes_max = bytes_max or HELD_BYTES_MAX
        self._waiting: deque[tuple[Tag, pa.RecordBatch | None, tuple[pa.Schema, _File, int, int] | None]] = deque()
        self._file: _File | None = None
        """The one that is written."""
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def append(self, tag: Tag, batch: pa.RecordBatch) -> int:
        """Append a batch; return how many bytes it has."""
        size_bytes: int = batch.nbytes
        if not self.held_bytes or self.held_bytes + size_bytes <= self._bytes_max:
            self.held_bytes += size_bytes
            self._waiting.append((tag, batch, None))
            return size_bytes
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
        try:
            if self._file is None or self._file.size >= FILE_BYTES:
                self._file = _File(tempfile.TemporaryFile(dir=folder if os.path.isdir(folder) else None))  # noqa: SIM115 - see close
            file = self._file
            start = file.file.seek(0, os.SEEK_END)
            size = file.file.write(batch.serialize())
        except OSError as error:
            raise RowsNotWrittenError(
                f"rows that wait for a task can't be written to a temporary file ({error}): make room in "
                f"spark.local.dir ({folder or 'which is not set'}), and let this user write there"
            ) from error
        file.size, file.left = start + size, file.left + 1
        self._waiting.append((tag, None, (batch.schema, file, start, size)))
        return size_bytes

    def popleft(self) -> tuple[Tag, pa.RecordBatch]:
        tag, batch, place = self._waiting.popleft()
        if batch is not None:
            self.held_bytes -= batch.nbytes
            return tag, batch
        assert place is not None
        schema, file, start, size = place
        file.file.seek(start)
        batch = pa.ipc.read_record_batch(pa.py_buffer(file.file.read(size)), schema)
        self._leave(file)
        return tag, batch

    def drop(self, gone: Callable[[Tag], bool]) -> None:
        """Forget the batches for whose tags `gone` is true; a file goes with the last of its batches."""
        kept: deque[tuple[Tag, pa.RecordBatch | None, tuple[pa.Schema, _File, int, int] | None]] = deque()
        for each in self._waiting:
            tag, batch, place = each
            if not gone(tag):
                kept.append(each)
            elif batch is not None:
                self.held_bytes -= batch.nbytes
            elif place is not None:
                self._leave(place[1])
        self._waiting = kept

    def _leave(self, file: _File) -> None:
        file.left -= 1
        if not file.left:
            file.file.close()
            if file is self._file:
                self._file = None

    def close(self) -> None:
        """Forget what is left, and delete the files."""
        for _, _, place in self._waiting:
            if place is not None:
                place[1].file.close()
        self._waiting.clear()
        self._file = None
        self.held_bytes = 0


@dataclass(slots=True)
class Outbox:
    """Rows that one Spark task has to send, gathered into Arrow batches of some `BATCH_BYTES`; see `BatchQueue`."""

    level: int
    partition: int
    widths: tuple[int, ...]
    # So much is waiting, here or on its way to it, that it should be taken before more is made. A mere attribute: it is
    # looked at for every tuple.
    pressing: bool = False
    _size_bytes: int = 0
    _rows: list[WireRow] = field(default_factory=list)
    _batches: BatchQueue[None] = field(default_factory=BatchQueue)

    def send(self, address: Address, kind: int, rows: int, payload: bytes) -> None:
        self.forward(address.level, address.partition, kind, rows, address.pack(), payload)

    def forward(self, level: int, partition: int, kind: int, rows: int, head: bytes, payload: bytes) -> None:
        """Queue one row; beyond the next level it goes through one fixed relay per source and target."""
        target = next_partition(self.partition, (level, partition), self.level + 1, self.widths)
        self._rows.append((target, kind, rows, head, payload))
        self._size_bytes += len(payload)
        if self._size_bytes >= BATCH_BYTES:
            self._pack()
            self.pressing = True

    def add(self, rows: Iterable[WireRow]) -> None:
        """Queue rows that name their partition of the next level."""
        self._rows.extend(rows)

    def _pack(self) -> None:
        """Make a batch of the rows at once: a column of more than 2 GiB would be none, and payloads are held twice."""
        if self._rows:
            self._batches.append(None, to_batch(self._rows))
        self._rows.clear()
        self._size_bytes = 0

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield the gathered rows, and forget them."""
        self._pack()
        while self._batches:
            yield self._batches.popleft()[1]
        self.pressing = False

    def close(self) -> None:
        self._batches.close()
