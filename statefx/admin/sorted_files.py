"""Entries of state in key order, in temporary files: more than fit into memory, merged as they are read."""

from __future__ import annotations

import heapq
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import itemgetter
from types import TracebackType
from typing import ClassVar

import msgpack

from statefx.errors import StateError
from statefx.state.changelog.merging import image_of
from statefx.state.contract.ranges import Block

_RUN_BYTES = 256 << 10
"""Of a run, so much is in memory; as many are written at a time as there are new tasks."""

_SORTED_BYTES = 64 << 20
"""So many bytes are sorted at a time. 10 GB of a task are 160 runs then, of which 256 kB each are in memory."""

_ENTRY_BYTES = 150
"""What Python needs for an entry besides its bytes."""

_FRAME = struct.Struct(">I")


class SortedRun:
    """Entries in key order, in a temporary file.

    The file is open only while a block of it is written or read: there are as many runs at a time as tasks, and a
    process may have no more than 1024 files open, or 256.

    Raises StateError: the file system refused, for instance because the disk is full.
    """

    def __init__(self, path: str, stack: ExitStack) -> None:
        self.path = path
        self.keys = 0
        """The number of entries."""
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._bytes = 0
        stack.push(self._end)

    def add(self, key: bytes, value: bytes) -> None:
        """Append an entry; keys come in order."""
        self._keys.append(key)
        self._values.append(value)
        self._bytes += len(key) + len(value)
        if self._bytes > _RUN_BYTES:
            self._flush()

    def extend(self, keys: list[bytes], values: list[bytes]) -> None:
        self._keys.extend(keys)
        self._values.extend(values)
        self._bytes += sum(map(len, keys)) + sum(map(len, values))
        if self._bytes > _RUN_BYTES:
            self._flush()

    def blocks(self) -> Iterator[Block]:
        at, left = 0, self.keys
        while left:
            with open(self.path, "rb") as file:
                file.seek(at)
                keys, values = msgpack.unpackb(file.read(_FRAME.unpack(file.read(_FRAME.size))[0]))
                at = file.tell()
            yield keys, values
            left -= len(keys)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for keys, values in self.blocks():
            yield from zip(keys, values, strict=True)

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:  # else nobody reads it
            self._flush()

    def _flush(self) -> None:
        if self._keys:
            frame = msgpack.packb([self._keys, self._values])
            with self._refusals(), open(self.path, "ab") as file:
                file.write(_FRAME.pack(len(frame)))
                file.write(frame)
            self.keys += len(self._keys)
            self._keys, self._values, self._bytes = [], [], 0

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            folder = os.path.dirname(self.path)
            raise StateError(
                f"{folder}: a temporary file cannot be written: {error.strerror}. Nothing was changed. State needs as "
                "much room there as it has: make room, or name another folder with TMPDIR, and do it again",
                path=self.path,
                errno=error.errno,
            ) from error


@dataclass(frozen=True)
class MergedRuns:
    """The runs of one task, merged as they are read."""

    runs: Sequence[SortedRun]
    sum: ClassVar[None] = None

    @property
    def keys(self) -> int:
        """The number of entries."""
        return sum(run.keys for run in self.runs)

    def blocks(self) -> Iterator[Block]:
        """Yield all entries in key order; no key is in two of them."""
        if len(self.runs) == 1:  # as many tasks as before, times a number: of one task's keys nothing is to be merged
            return self.runs[0].blocks()
        return image_of([((keys, [*values]) for keys, values in run.blocks()) for run in self.runs])

    def twice(self) -> bytes | None:
        """Return a key that two entries have, or None if there is none."""
        before = None
        for key, _ in heapq.merge(*self.runs, key=itemgetter(0)):
            if key == before:
                return key
            before = key
        return None


class SortedEntries:
    """Entries of several tasks, added in any order, read in the order of their keys.

    Parameters
    ----------
    path : str
        What the names of the temporary files begin with.
    """

    def __init__(self, path: str, tasks: int) -> None:
        self.tasks = tasks
        self._path = path
        self._held: list[list[tuple[bytes, bytes]]] = [[] for _ in range(tasks)]
        self._runs: list[list[SortedRun]] = [[] for _ in range(tasks)]
        self._bytes = 0

    def takers(self) -> list[_Taker]:
        """Return what takes the entries of each task."""
        return [_Taker(self, task) for task in range(self.tasks)]

    def add(self, task: int, key: bytes, value: bytes) -> None:
        self._held[task].append((key, value))
        self._bytes += len(key) + len(value) + _ENTRY_BYTES
        if self._bytes > _SORTED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory; called once more when all was added."""
        for task, held in enumerate(self._held):
            if not held:
                continue
            held.sort(key=itemgetter(0))
            with ExitStack() as stack:
                run = SortedRun(f"{self._path}-{task}-{len(self._runs[task])}", stack)
                for key, value in held:
                    run.add(key, value)
            self._runs[task].append(run)
            held.clear()
        self._bytes = 0

    def of(self, task: int) -> MergedRuns:
        """Return the entries of a task."""
        return MergedRuns(self._runs[task])


@dataclass(frozen=True)
class _Taker:
    entries: SortedEntries
    task: int

    def add(self, key: bytes, value: bytes) -> None:
        self.entries.add(self.task, key, value)
