"""What waits to leave a task: in memory up to a bound, and beyond it in a file.

What a bolt emits leaves its process when the bolt returns. `finishBatch`, `executeBatch`, and `execute` with one tuple
may emit any number of rows before that. They can't be paused in the middle: the user's code would have to be a
generator, or run in a thread of its own.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Generic, TypeVar

import pyarrow as pa

from statefx.plan.wire import BATCH_BYTES, Address, WireRow, next_partition, to_batch

HELD_BYTES_MAX = 4 * BATCH_BYTES
"""Bytes of batches that a queue keeps in memory. Bolts that are asked to pause hold one or two batches."""

FILE_BYTES = 256 << 20
"""After which another file is begun: in a queue that never empties, one file would grow for ever."""

Tag = TypeVar("Tag")


@dataclass(slots=True, eq=False)
class _File:
    """Batches in a temporary file."""

    file: IO[bytes]
    size: int = 0
    left: int = 0
    """Batches that nobody has taken."""


class BatchQueue(Generic[Tag]):
    """Arrow batches, each with a tag, first in, first out; what is more than a bound waits in temporary files.

    The files have no names, and are gone with the process. Their folder is Spark's for such files, where it is known.

    Parameters
    ----------
    bytes_max : int
        Bytes of batches in memory, or of one batch that is larger.

    Attributes
    ----------
    held_bytes : int
        Of those in memory.
    """

    def __init__(self, bytes_max: int = 0) -> None:
        self._bytes_max = bytes_max or HELD_BYTES_MAX
        self._waiting: deque[tuple[Tag, pa.RecordBatch | None, tuple[pa.Schema, _File, int, int] | None]] = deque()
        self._file: _File | None = None
        """The one that is written."""
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def append(self, tag: Tag, batch: pa.RecordBatch) -> None:
        """Take a batch.

        Raises
        ------
        OSError
            The file can't be written.
        """
        if not self.held_bytes or self.held_bytes + batch.nbytes <= self._bytes_max:
            self.held_bytes += batch.nbytes
            self._waiting.append((tag, batch, None))
            return
        if self._file is None or self._file.size >= FILE_BYTES:
            folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
            self._file = _File(tempfile.TemporaryFile(dir=folder if os.path.isdir(folder) else None))  # noqa: SIM115 - see close
        file = self._file
        start = file.file.seek(0, os.SEEK_END)
        size = file.file.write(batch.serialize())
        file.size, file.left = start + size, file.left + 1
        self._waiting.append((tag, None, (batch.schema, file, start, size)))

    def popleft(self) -> tuple[Tag, pa.RecordBatch]:
        """Return the batch that has waited longest."""
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
        """Count a batch of a file as taken."""
        file.left -= 1
        if not file.left:
            file.file.close()
            if file is self._file:
                self._file = None

    def close(self) -> None:
        """Forget what nobody has taken, and delete the files."""
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
        """Queue one row for the task that `address` names."""
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
        """Queue rows that say themselves to which partition of the next level they go."""
        self._rows.extend(rows)

    def _pack(self) -> None:
        """Make a batch of the rows at once: a column of more than 2 GiB would be none, and payloads are held twice."""
        if self._rows:
            self._batches.append(None, to_batch(self._rows))
        self._rows.clear()
        self._size_bytes = 0

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield what has gathered, if anything, and forget it."""
        self._pack()
        while self._batches:
            yield self._batches.popleft()[1]
        self.pressing = False

    def close(self) -> None:
        """Forget what nobody will take."""
        self._batches.close()
