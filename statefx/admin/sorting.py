"""Sorts more entries than fit into memory: sorted runs in temporary files, which are merged as they are read."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from operator import itemgetter

from statefx.admin.runs import Run, Runs

_SORTED_BYTES = 64 << 20
"""So many bytes are sorted at a time. 10 GB of a task are 160 runs then, of which 256 kB each are in memory."""

_ENTRY_BYTES = 150
"""What Python needs for an entry besides its bytes."""


@dataclass
class SortedEntries:
    """Entries of several tasks, given in any order, and read in the order of their keys.

    Parameters
    ----------
    path : str
        What the names of the temporary files begin with.
    tasks : int
    """

    path: str
    tasks: int

    def __post_init__(self) -> None:
        self._held: list[list[tuple[bytes, bytes]]] = [[] for _ in range(self.tasks)]
        self._runs: list[list[Run]] = [[] for _ in range(self.tasks)]
        self._bytes = 0

    def takers(self) -> list[_Taker]:
        """Return what takes the entries of each task."""
        return [_Taker(self, task) for task in range(self.tasks)]

    def add(self, task: int, key: bytes, value: bytes) -> None:
        """Take an entry of a task."""
        self._held[task].append((key, value))
        self._bytes += len(key) + len(value) + _ENTRY_BYTES
        if self._bytes > _SORTED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory; called once more when all has come."""
        for task, held in enumerate(self._held):
            if not held:
                continue
            held.sort(key=_key)
            with ExitStack() as stack:
                run = Run(f"{self.path}-{task}-{len(self._runs[task])}", stack)
                for key, value in held:
                    run.add(key, value)
            self._runs[task].append(run)
            held.clear()
        self._bytes = 0

    def of(self, task: int) -> Runs:
        """Return the entries of a task."""
        return Runs(self._runs[task])


@dataclass(frozen=True)
class _Taker:
    entries: SortedEntries
    task: int

    def add(self, key: bytes, value: bytes) -> None:
        self.entries.add(self.task, key, value)


_key = itemgetter(0)
