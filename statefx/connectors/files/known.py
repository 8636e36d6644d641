"""Which file of a folder is which partition, and which of them a look has to look at.

A look costs what is new and what is not read to its end. Files that were, are looked at in turn, some at each look, so
that one that was changed is noticed; of those that are gone nothing is left to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import islice

CHECKED = 100
"""Of the files that were read to their end, how many each look compares with what was read."""


class KnownFiles:
    """The files of a folder, each of them a partition."""

    def __init__(self) -> None:
        self._names: list[str | None] = []
        """By partition; None: it can be another file."""
        self._numbers: dict[str, int] = {}
        self._free: list[int] = []
        self._unread: dict[int, None] = {}
        """Partitions that may have something new, in the order in which they came."""
        self._ended: set[int] = set()
        self._turn: Iterator[int] = iter(())
        self._there: Set[str] = frozenset()
        self._begun_with: Set[int] = frozenset()

    def __len__(self) -> int:
        return len(self._names)

    def name(self, partition: int) -> str | None:
        """Return the name of a partition's file, or None if it has none."""
        return self._names[partition]

    def take(self, files: Mapping[int, str], ended: Set[int]) -> None:
        """Begin with what was read before, of which some files were read to their `ended`.

        The first look compares all of them that are there: a run may have no second one.
        """
        self._begun_with = frozenset(ended)
        self._names = [files.get(number) for number in range(max(files, default=-1) + 1)]
        self._numbers = {name: number for number, name in sorted(files.items())}
        self._free = [number for number in range(len(self._names)) if number not in files]
        self._unread = dict.fromkeys(sorted(files))

    def look(self, there: Set[str]) -> None:
        """Give each new file a partition, in the order of their names."""
        self._there = there
        for number in self._begun_with:
            if self._names[number] not in there:
                self.end(number)
        self._begun_with = frozenset()
        for name in sorted(there - self._numbers.keys()):
            if self._free:
                number = self._free.pop(0)
                self._names[number] = name
            else:
                number = len(self._names)
                self._names.append(name)
            self._numbers[name] = number
            self._unread[number] = None

    def forget(self, partition: int) -> None:
        """Let a partition be another file: nothing was read of its own, which is gone."""
        name = self._names[partition]
        if name is not None:
            del self._numbers[name], self._unread[partition]
            self._names[partition] = None
            self._free.append(partition)

    def end(self, partition: int) -> None:
        """Take note that a file was read to its end."""
        self._unread.pop(partition, None)
        self._ended.add(partition)

    def to_plan(self) -> Iterable[int]:
        """Return the partitions that this look has to look at."""
        checked = list(islice(self._turn, CHECKED))
        if len(checked) < CHECKED:  # from the first one again: what is gone can't change
            self._turn = iter([number for number in self._ended if self._names[number] in self._there])
        return [*self._unread, *checked]
