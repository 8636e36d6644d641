"""Sorted runs: entries of state in key order, in temporary files, which are merged as they are read."""

from __future__ import annotations

import heapq
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import itemgetter
from types import TracebackType

import msgpack

from statefx.errors import StateError
from statefx.state.changelog.merging import image_of
from statefx.state.contract.ranges import Block

_RUN_BYTES = 256 << 10
"""Of a run, so much is in memory; as many are written at a time as there are new tasks."""

_FRAME = struct.Struct(">I")


class Run:
    """Entries in key order, in a temporary file.

    The file is open only while a block of it is written or read: there are as many runs at a time as tasks, and a
    process may have no more than 1024 files open, or 256.

    Raises StateError: the file system refused, for instance because the disk is full.
    """

    def __init__(self, path: str, stack: ExitStack) -> None:
        self.path = path
        self.keys = 0
        """How many it has."""
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._bytes = 0
        stack.push(self._end)

    def add(self, key: bytes, value: bytes) -> None:
        """Take an entry; keys come in order."""
        self._keys.append(key)
        self._values.append(value)
        self._bytes += len(key) + len(value)
        if self._bytes > _RUN_BYTES:
            self._flush()

    def extend(self, keys: list[bytes], values: list[bytes]) -> None:
        """Take many entries."""
        self._keys.extend(keys)
        self._values.extend(values)
        self._bytes += sum(map(len, keys)) + sum(map(len, values))
        if self._bytes > _RUN_BYTES:
            self._flush()

    def blocks(self) -> Iterator[Block]:
        """Yield all entries."""
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
class Runs:
    """The runs of one task, which are merged as they are read."""

    runs: Sequence[Run]

    @property
    def keys(self) -> int:
        """How many entries they have."""
        return sum(run.keys for run in self.runs)

    def blocks(self) -> Iterator[Block]:
        """Yield all entries in key order; no key is in two of them."""
        if len(self.runs) == 1:  # as many tasks as before, times a number: of one task's keys nothing is to be merged
            return self.runs[0].blocks()
        return image_of([((keys, [*values]) for keys, values in run.blocks()) for run in self.runs])

    def scan(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield all entries in key order."""
        for keys, values in self.blocks():
            yield from zip(keys, values, strict=True)

    def twice(self) -> bytes | None:
        """Return a key that two entries have; None: there is none."""
        before = None
        for key, _ in heapq.merge(*self.runs, key=itemgetter(0)):
            if key == before:
                return key
            before = key
        return None
