"""What a task of a spout has emitted in one attempt, as far as another attempt can be compared with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from zlib import crc32

import numpy as np
import pyarrow as pa
from xxhash import xxh64_intdigest

from statefx.operators.schema import to_ddl
from statefx.protocol.barrier import Content
from statefx.runtime.row_hashes import row_hashes

_VERSION = 3
"""Of `row_hashes`: what other releases have hashed otherwise is not compared."""


class Contents:
    """Adds up the hashes of rows, by partition: in another order, or parted into other batches, rows come to the same.

    Rows are taken as they leave the task, many at a time. So those of several partitions may come in one batch: a mark
    says how many rows were waiting when a partition began.

    Parameters
    ----------
    streams : Mapping[str, pa.Schema]
        Those that somebody reads.
    """

    def __init__(self, streams: Mapping[str, pa.Schema]) -> None:
        fields = sorted((name, to_ddl(schema)) for name, schema in streams.items())
        self._fields = crc32(repr((_VERSION, fields)).encode())
        # The same rows on another stream are other rows. It is odd: with another factor some sums would meet.
        self._factors = {name: xxh64_intdigest(name.encode()) | 1 for name in streams}
        self._marks: dict[str, list[tuple[int, str]]] = {name: [] for name in streams}
        self._found: dict[str, tuple[int, int]] = {}

    def begin(self, partition: str, waiting: Callable[[str], int]) -> None:
        """What is emitted from now on is of this partition; so many rows of each stream are still to be taken."""
        self._found.setdefault(partition, (0, 0))
        for stream, marks in self._marks.items():
            mark = waiting(stream), partition
            if marks and marks[-1][0] == mark[0]:  # nothing came from the one before, as from most of 10,000 partitions
                marks[-1] = mark
            else:
                marks.append(mark)

    def take(self, stream: str, batch: pa.RecordBatch) -> None:
        """Take rows, in the order in which they were emitted."""
        marks = self._marks[stream]
        hashes = row_hashes(batch)
        if len(marks) == 1:
            self._add(stream, marks[0][1], batch.num_rows, int(hashes.sum()))
        else:
            until = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)]).tolist()
            for (start, partition), (stop, _) in pairwise([*marks, (batch.num_rows, "")]):
                self._add(stream, partition, stop - start, until[stop] - until[start])
        self._marks[stream] = [(0, marks[-1][1])]

    def _add(self, stream: str, partition: str, new: int, hashes: int) -> None:
        rows, total = self._found[partition]
        self._found[partition] = rows + new, (total + hashes * self._factors[stream]) % (1 << 64)

    def of(self, partition: str) -> Content:
        """Return what a partition has come to."""
        return [*self._found[partition], self._fields]
