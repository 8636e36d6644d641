"""Rows of DataFrames on their way into the topology: Spark's staging job writes them, tasks of streams emit them.

They are a buffer of one driver: no record of the log names them, and a start reads what is not committed from its
source again (rule 15). So nothing here waits for a disk.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from xxhash import xxh3_128

from statefx.plan.wire import cut
from statefx.protocol.jsonform import Json
from statefx.protocol.messages import FRAME_BYTES_MAX
from statefx.protocol.staged import StagedPart
from statefx.protocol.watermark import Timing
from statefx.runtime.event_time import StreamTimes
from statefx.runtime.outlets import RowsNotWrittenError
from statefx.storage import Storage
from statefx.storage.contract import DAMAGED

FOLDER = "input/"
"""Of the names of parts in the checkpoint, where no folder of the driver's is seen by all tasks."""

INLINE_BYTES_MAX = 32 << 10
"""A part up to so many bytes travels with the result of the staging job and the order: a file would take longer."""

INLINE_BYTES_IN_ALL = FRAME_BYTES_MAX // 4
"""Of all parts of a transaction that travel so: the order of one task may have all of them, in base64."""

PART_BYTES = 64 << 20
"""After which another part is begun: a task that writes, or reads, holds one of them in memory."""


class PartLostError(Exception):
    """A file of staged rows is missing or damaged."""


def inline_bytes(writers: int) -> int:
    """Return up to how many bytes a part travels with the order, if so many writers have one each (rule 15.6)."""
    return min(INLINE_BYTES_MAX, INLINE_BYTES_IN_ALL // writers)


class PartWriter:
    """Writes rows of one stream in parts.

    `stem` begins the names of files, and is unique; `partition` is Spark's. `timing` says how event time is read;
    `clock_ms` is what a time is ahead of. The last part, if it has no more than `inline` bytes, has no file.
    """

    def __init__(
        self,
        storage: Storage,
        stem: str,
        stream: str,
        partition: int,
        schema: pa.Schema,
        timing: Timing | None,
        clock_ms: int,
        inline: int,
    ) -> None:
        self._inline = inline
        self._storage, self._stem, self._stream, self._schema = storage, stem, stream, schema
        self._partition, self._timing, self._clock_ms = partition, timing, clock_ms
        # Over a network, which is slower than lz4.
        self._options = pa.ipc.IpcWriteOptions(compression="lz4" if "://" in storage.url else None)
        self._parts: list[StagedPart] = []
        self._begin()

    def _begin(self) -> None:
        self._rows = 0
        self._buffer: pa.BufferOutputStream | None = None
        self._writer: Any = None
        self._times: StreamTimes | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows; RowsNotWrittenError if a file can't be written."""
        for piece in cut(batch):
            if piece.num_rows:
                self._write(piece)

    def _write(self, batch: pa.RecordBatch) -> None:
        if self._buffer is None:
            self._buffer = pa.BufferOutputStream()
            self._writer = pa.ipc.new_stream(self._buffer, self._schema, options=self._options)
            if self._timing is not None:
                limit_us = self._clock_ms * 1000 + self._timing.ahead_us
                place = self._schema.get_field_index(self._timing.field)
                self._times = StreamTimes(place, limit_us, self._stream)
        self._writer.write_batch(batch)
        self._rows += batch.num_rows
        if self._times is not None:
            self._times.take(batch)
        if self._buffer.tell() >= PART_BYTES:
            self._end()

    def _end(self) -> None:
        if self._buffer is None:
            return
        self._writer.close()
        data = self._buffer.getvalue().to_pybytes()
        times = self._times
        timed = (None, 0) if times is None else (times.greatest.get(self._stream), times.ahead)
        if len(data) <= self._inline:
            content = base64.b64encode(data).decode("ascii")
            part = StagedPart(*self._what(data), content, "", "", *timed)
        else:
            name = f"{self._stem}-{len(self._parts)}.arrow"
            try:
                self._storage.put(name, data)
            except OSError as error:
                raise RowsNotWrittenError(
                    f"rows that wait for their transaction can't be written to {self._storage.url} ({error}): make "
                    "room there, and let this user write there"
                ) from error
            part = StagedPart(*self._what(data), "", name, xxh3_128(data).hexdigest(), *timed)
        self._parts.append(part)
        self._begin()

    def _what(self, data: bytes) -> tuple[str, int, int, int]:
        return self._stream, self._partition, self._rows, len(data)

    def close(self) -> list[StagedPart]:
        """End the last part, and return all of them; RowsNotWrittenError if it can't be written."""
        self._end()
        return self._parts


def read_part(storage: Storage, share: Json) -> Iterator[pa.RecordBatch]:
    """Yield a share of the rows of a part.

    PartLostError: its file is missing or damaged. OSError: it can't be read now; the next attempt reads the same part
    (rule 15.2).
    """
    content, name, checksum, start, stop = msgspec.convert(share, tuple[str, str, str, int, int])
    if content:
        data = base64.b64decode(content)
    else:
        try:
            data = storage.read(name)
        except FileNotFoundError as error:
            raise PartLostError(f"{storage.url}/{name} is missing") from error
        except OSError as error:
            if error.errno in DAMAGED:
                raise PartLostError(f"{storage.url}/{name} is damaged: {error}") from error
            raise
        if xxh3_128(data).hexdigest() != checksum:
            raise PartLostError(f"{storage.url}/{name} is damaged")
    first = 0
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        for batch in reader:
            begin, end = max(0, start - first), min(batch.num_rows, stop - first)
            if begin < end:
                yield batch.slice(begin, end - begin)
            first += batch.num_rows
