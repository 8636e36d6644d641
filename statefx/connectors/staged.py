"""The base of sinks whose rows wait in the checkpoint until they are published, all in one call.

::

    staged/<sink>/<txid>-<token>.arrow      rows of one task in one attempt: an Arrow stream, checksummed
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Self

import pyarrow as pa
from xxhash import xxh3_128

from statefx.errors import SinkError, SinkMismatchError, StagedRowsLostError
from statefx.operators.sinks import (
    CheckpointPosition,
    Committable,
    CommitterContext,
    Marker,
    Sink,
    SinkCommitter,
    SinkWriter,
    WriterContext,
    is_published,
    refuse_twin,
    starting_point,
)
from statefx.operators.unpacking import values_in
from statefx.protocol.identity import TransactionAttempt
from statefx.storage import Storage

FOLDER = "staged"

_ROW_SHOWN = 1000
_FENCE_TRIES = 10


Numbered = tuple[str, int]
"""The name of a column, and the transaction that stands in it."""


class StagedRows:
    """The rows of one transaction, in the order of the tasks; may be read several times, also in part.

    Every file is verified before the first of its rows is handed out: what is published is what was prepared.
    """

    def __init__(
        self, storage: Storage, schema: pa.Schema, files: Mapping[int, Committable], numbered: Numbered | None = None
    ) -> None:
        self.schema = schema if numbered is None else schema.append(pa.field(numbered[0], pa.int64()))
        self._storage = storage
        self._files = files
        self._rows_schema, self._numbered = schema, numbered

    def numbered(self, name: str, txid: int) -> StagedRows:
        """Return the rows with one more column, which has the number of their transaction."""
        return StagedRows(self._storage, self._rows_schema, self._files, (name, txid))

    def __len__(self) -> int:
        return sum(int(committable["rows"]) for committable in self._files.values())

    @property
    def names(self) -> list[str]:
        """Names of the files, below the checkpoint location."""
        return [str(self._files[task]["file"]) for task in sorted(self._files)]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; StagedRowsLostError if a file is missing or damaged."""
        for task in sorted(self._files):
            yield from self._batches(self._files[task])

    def parts(self) -> list[StagedRows]:
        """Return the rows of each task by themselves; they travel to executors by pickle."""
        return [
            StagedRows(self._storage, self._rows_schema, {task: self._files[task]}, self._numbered)
            for task in sorted(self._files)
        ]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield every row as a dict of Python values."""
        for batch in self:
            for row in zip(*map(values_in, batch.columns), strict=True):
                yield dict(zip(batch.schema.names, row, strict=True))

    def _batches(self, staged: Committable) -> Iterator[pa.RecordBatch]:
        name = str(staged["file"])
        try:
            data = self._storage.read(name)
        except FileNotFoundError as error:
            raise self._lost(name, "is missing") from error
        if xxh3_128(data).hexdigest() != staged["checksum"]:
            raise self._lost(name, "is damaged")
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            if self._numbered is None:
                yield from reader
                return
            for batch in reader:
                number = pa.repeat(pa.scalar(self._numbered[1], pa.int64()), len(batch))
                yield pa.RecordBatch.from_arrays([*batch.columns, number], schema=self.schema)

    def _lost(self, name: str, found: str) -> StagedRowsLostError:
        return StagedRowsLostError(
            f"{name} below {self._storage.url} {found}: it holds rows of a transaction that is decided, and that is "
            "not published yet. Restore the file from a backup of the checkpoint; the sink goes on by itself then",
            file=name,
        )


class StagedSink(Sink):
    """A sink that is handed all rows of a transaction at once, on the driver, when the transaction is decided.

    A subclass says where it writes (`target`) and gives a `Target` (`connect`). Rows wait in the checkpoint until then.
    """

    def writer(self, context: WriterContext) -> SinkWriter:
        return Stager(context)

    def committer(self, context: CommitterContext) -> SinkCommitter:
        return StagedCommitter(self.target, context, lambda: self.connect(context.schema))

    @abstractmethod
    def connect(self, schema: pa.Schema) -> Target:
        """Open the target; called on the driver, again after an error."""


class Target(ABC):
    """A place that rows are published to, and that keeps the marker with them.

    A user's own is `marker` and `publish`. Every method may raise anything; the error is shown in ``query.status`` and
    the call is repeated.
    """

    is_settled = True
    """Whether nothing that has begun can change what `marker` has returned last."""

    @abstractmethod
    def marker(self) -> Marker | None:
        """Return the marker; None if nobody has ever written here."""

    def settled(self) -> Marker | None:
        """Return the marker, once all has ended that other drivers, or this one, have begun; called before `publish`.

        A target that answers a commit before anybody sees the marker ends here what is under way.
        """
        return self.marker()

    @abstractmethod
    def publish(self, marker: Marker, previous: Marker | None, rows: StagedRows) -> None:
        """Write all `rows` and `marker` in one atomic act.

        Must do nothing and raise if the marker in the target is not `previous` any more: another driver was here (rule
        10.8). At the start of a driver there are no rows, and only the owner in the marker changes.
        """

    def rewind(self, marker: Marker, after: int) -> None:
        """Delete the rows of the marker's origin that came with transactions after `after`, in one atomic act.

        Of a sink that says `Sink.rewinds`. Must do nothing and raise if the marker in the target is not `marker`; it
        stays as it is. Rows of other origins, whose transactions have numbers of their own, stay too.
        """
        raise SinkError("this sink says that it can take rows back (rewinds), and its target has no rewind")

    def check(self) -> None:
        """Look whether the target can take rows of the schema; changes nothing. Called before anything is started."""

    def close(self) -> None:
        """Close connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class UnfinishedFile:
    """A file of a storage that a writer holds open over several calls, until it gets its name or is dropped."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.name = name
        self._writer = storage.writer(name)
        self.file = self._writer.__enter__()

    def keep(self) -> None:
        """Make it durable and give it its name."""
        self._writer.__exit__(None, None, None)

    def drop(self) -> None:
        with suppress(_Dropped):
            self._writer.__exit__(_Dropped, _Dropped(), None)


class _Dropped(Exception):  # noqa: N818 - nobody sees it: it makes storage drop an unfinished file
    """The attempt was given up."""


class Stager(SinkWriter):
    """Writes an Arrow stream into the checkpoint; its name is there only when it is whole and durable."""

    def __init__(self, context: WriterContext) -> None:
        self._context = context
        self._name = f"{FOLDER}/{context.component}/{context.attempt.txid:020d}-{context.token}.arrow"
        self._held: UnfinishedFile | None = None
        self._file: _Summed | None = None
        self._stream: pa.ipc.RecordBatchStreamWriter | None = None
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._stream is None:
            self._held = UnfinishedFile(self._context.storage, self._name)
            self._file = _Summed(self._held.file)
            self._stream = pa.ipc.new_stream(self._file, self._context.schema)
        self._stream.write_batch(batch)
        self._rows += batch.num_rows

    def prepare(self, txid: int) -> Committable | None:
        if self._stream is None or self._held is None or self._file is None:
            return None
        self._stream.close()
        held, self._held = self._held, None
        held.keep()
        return {
            "file": self._name,
            "rows": self._rows,
            "bytes": self._file.size_bytes,
            "checksum": self._file.checksum.hexdigest(),
        }

    def abort(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            held.drop()
        else:
            self._context.storage.delete([self._name])


class _Summed(io.RawIOBase):
    """A file that is written in order, and summed up on the way."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self.checksum = xxh3_128()
        self.size_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.checksum.update(view)
        self.size_bytes += view.nbytes
        self._file.write(view)
        return view.nbytes


class StagedCommitter(SinkCommitter):
    """Hands the rows of a transaction to the target, unless the marker there says that it has them."""

    def __init__(self, name: str, context: CommitterContext, connect: Callable[[], Target]) -> None:
        self._name = name
        self._context = context
        self._connect = connect
        self._target: Target | None = None

    def check(self, reached: CheckpointPosition, *, takeover: bool) -> None:
        with self._opened() as target:
            target.check()
            found = target.marker()
            try:
                starting_point(found, self._context.owner, reached, self._name, takeover=takeover)
            except SinkMismatchError:
                if target.is_settled:
                    raise  # else what was published last may only not be seen yet; `fence` waits for that

    def fence(self, reached: CheckpointPosition, *, takeover: bool) -> None:
        owner, name = self._context.owner, self._name
        with self._connected() as target:
            found = target.settled()
            refuse_twin(found, owner, name)
            for tries_left in reversed(range(_FENCE_TRIES)):
                txid = starting_point(found, owner, reached, name, takeover=takeover)
                try:
                    target.publish(Marker.of(owner, txid), found, self._rows({}))
                except Exception:
                    # A zombie may have published what is decided since we looked: look again (rule 10.8).
                    before, found = found, target.settled()
                    if found == before or not tries_left:
                        raise
                    # The user has seen another owner than the one that came meanwhile (rule 10.10).
                    takeover = takeover and found is not None and before is not None and found.is_of(before)
                else:
                    return

    def commit(self, attempt: TransactionAttempt, committables: Mapping[int, Committable]) -> None:
        with self._connected() as target:
            found = target.settled()
            while not is_published(found, self._context.owner, attempt.txid, self._name):
                try:
                    target.publish(Marker.of(self._context.owner, attempt.txid), found, self._rows(committables))
                except Exception:
                    # Who has moved the marker meanwhile has published it, or is to be given way to (rule 10.8).
                    before, found = found, target.settled()
                    if found == before:
                        raise
                else:
                    return

    def rewind(self, after: int) -> None:
        with self._connected() as target:
            found = target.marker()
            if found is None or Marker.of(self._context.owner, found.txid) != found:
                raise SinkError(f"{self._name}: another driver has taken the target over")
            target.rewind(found, after)

    def sweep(self, committed: int) -> None:
        """Delete the rows of transactions that are committed: no marker will be behind them again (rule 4.3)."""
        storage, prefix = self._context.storage, f"{FOLDER}/{self._context.component}/"
        due = [stored.name for stored in storage.list(prefix) if txid_of_staged(stored.name) <= committed]
        storage.delete(due)
        storage.discard_unfinished(prefix)

    def close(self) -> None:
        if self._target is not None:
            self._target.close()
            self._target = None

    def _opened(self) -> Target:
        target: Target | None = self._connect()
        if target is None:
            raise SinkError(f"connect() of the sink to {self._name} returned None: return what rows are published to")
        return target

    @contextmanager
    def _connected(self) -> Iterator[Target]:
        """Yield the target; after an error the next call opens it again."""
        target = self._target = self._target or self._opened()
        try:
            yield target
        except BaseException:
            self.close()
            raise

    def _rows(self, committables: Mapping[int, Committable]) -> StagedRows:
        return StagedRows(self._context.storage, self._context.schema, committables)


def refuse_nulls(target: str, key: Sequence[str], batch: pa.RecordBatch) -> None:
    """Refuse rows of which a field of the key is null, in a task: the transaction can still be rolled back there."""
    for name in key:
        column = batch.column(name)
        if column.null_count:
            row = batch.slice(column.is_null().index(True).as_py(), 1).to_pylist()[0]
            told = repr(row)
            raise SinkError(
                f"{target}: {name!r} names the rows, and is null in "
                f"{told if len(told) <= _ROW_SHOWN else f'{told[:_ROW_SHOWN]}...'}: leave out such rows before the "
                "sink, or give them a value there",
                target=target,
                row=row,
            )


def txid_of_staged(name: str) -> int:
    """Return the transaction of a staged file."""
    return int(name.rpartition("/")[2].partition("-")[0])
