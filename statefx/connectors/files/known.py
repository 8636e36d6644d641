"""Which file of a folder is which partition, and which of them a look has to look at.

A look costs what is new and what is not read to its end. Files that were, are looked at in turn, some at each look, so
that one that was changed is noticed; of those that are gone nothing is left to do.

A file that was read is not read again if it comes back, so each name is kept: while the file is there, and of the last
ones that went, as the metadata of its partition; then as 12 bytes in a list of some hundred, which is the metadata of a
partition of its own (`GoneFiles`). A million names are kept.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from itertools import islice
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

CHECKED = 100
"""Of the files that were read to their end, how many each look compares with what was read."""


LISTED = 500
"""So many files go before a list is made, of all of them."""

NAMES_MAX = 1_000_000
"""So many names are in lists, and some more: 16 MB in the checkpoint, and 12 MB in the driver."""


class GoneFiles:
    """Names of files that were read and are gone, by their hashes, with what tells whether one is the same file."""

    def __init__(self) -> None:
        self._lists: dict[int, tuple[Any, Any]] = {}
        """By partition, the oldest first: hashes of names, and of sizes and times."""
        self._names: Any = np.empty(0, "<u8")
        self._files: Any = np.empty(0, "<u4")

    def listed(self, files: Mapping[str, int]) -> dict[str, str]:
        """Return the metadata of a list of names, each with `file_hash` of its file."""
        names = np.fromiter(map(_name_hash, files), "<u8", len(files))
        return {"gone": _text(names), "hashes": _text(np.fromiter(files.values(), "<u4", len(files)))}

    def take(self, lists: Mapping[int, Mapping[str, str]]) -> None:
        """Take lists, which are the metadata of these partitions."""
        for number, said in sorted(lists.items()):
            self._lists[number] = _array(said["gone"], "<u8"), _array(said["hashes"], "<u4")
        self._index()

    def drop_oldest(self) -> list[int]:
        """Return the partitions of lists that are too many; their names are forgotten."""
        dropped, left = [], len(self._names)
        for number, (names, _) in list(self._lists.items()):
            left -= len(names)
            if left < NAMES_MAX:
                break
            del self._lists[number]
            dropped.append(number)
        if dropped:
            self._index()
        return dropped

    def _index(self) -> None:
        names = np.concatenate([np.empty(0, "<u8"), *(names for names, _ in self._lists.values())])
        order = np.argsort(names, kind="stable")
        self._names = names[order]
        self._files = np.concatenate([np.empty(0, "<u4"), *(files for _, files in self._lists.values())])[order]

    def among(self, names: Collection[str]) -> dict[str, int]:
        """Return those of `names` that are known, each with `file_hash` of the file that was read."""
        if not len(self._names) or not names:
            return {}
        hashes = np.fromiter(map(_name_hash, names), "<u8", len(names))
        places = np.minimum(np.searchsorted(self._names, hashes), len(self._names) - 1)
        same = self._names[places] == hashes
        return {name: int(self._files[place]) for name, place, is_it in zip(names, places, same, strict=True) if is_it}


def file_hash(size: int, stamp: int) -> int:
    """Return what tells a file from another one of its name."""
    return xxh3_64_intdigest(f"{size} {stamp}".encode()) & 0xFFFFFFFF


def _name_hash(name: str) -> int:
    return xxh3_64_intdigest(os.fsencode(name))


def _text(numbers: Any) -> str:
    return b64encode(numbers.tobytes()).decode()


def _array(text: str, kind: str) -> Any:
    return np.frombuffer(b64decode(text), kind)


class KnownFiles:
    """The files of a folder, each of them a partition."""

    def __init__(self) -> None:
        self._names: list[str | None] = []
        """By partition; None: it can be another file."""
        self._numbers: dict[str, int] = {}
        self._free: list[int] = []
        self._unread: dict[int, None] = {}
        """Partitions that may have something new, in the order in which they came."""
        self._ended: dict[int, int] = {}
        """Of files that were read to their end, what `file_hash` says of them."""
        self._gone = GoneFiles()
        self._list: tuple[int, list[int]] | None = None
        """The partition of a list that is to be made or was planned, and those whose names are in it."""
        self._back: set[str] = set()
        """Files that are there again, and were compared with what was read."""
        self._turn: Iterator[int] = iter(())
        self._there: Set[str] = frozenset()
        self._begun_with: Mapping[int, int] = {}

    def __len__(self) -> int:
        return len(self._names)

    def name(self, partition: int) -> str | None:
        """Return the name of a partition's file, or None if it has none."""
        return self._names[partition]

    def take(self, metadata: Mapping[int, Any]) -> None:
        """Begin with what was read before.

        The first look compares all files that are there: a run may have no second one. Partitions without metadata are
        those of names in a list: they become no other file, since they count as finished.
        """
        files = {number: said for number, said in sorted(metadata.items()) if "gone" not in said}
        self._gone.take({number: said for number, said in metadata.items() if "gone" in said})
        self._begun_with = {n: file_hash(said["size"], said["stamp"]) for n, said in files.items() if said["end"]}
        self._names = [None] * (max(metadata, default=-1) + 1)
        for number, said in files.items():
            self._names[number] = said["file"]
        self._numbers = {said["file"]: number for number, said in files.items()}
        self._unread = dict.fromkeys(files)

    def look(self, there: Set[str]) -> dict[str, int]:
        """Give each new file a partition, in the order of their names.

        Returns the files that were read, were gone and are back, each with `file_hash` of what was read.
        """
        self._there = there
        for number, hashed in self._begun_with.items():
            if self._names[number] not in there:
                self.end(number, hashed)
        self._begun_with = {}
        self._back &= there
        new = there - self._numbers.keys() - self._back
        back = self._gone.among(new)
        for name in sorted(new - back.keys()):
            if self._free:
                number = self._free.pop(0)
                self._names[number] = name
            else:
                number = len(self._names)
                self._names.append(name)
            self._numbers[name] = number
            self._unread[number] = None
        self._list_gone()
        return back

    def compared(self, name: str) -> None:
        """Take note that a file which is back is the one that was read."""
        self._back.add(name)

    def _list_gone(self) -> None:
        """Begin a list when enough files are gone."""
        if self._list is not None or len(self._ended) - len(self._there) < LISTED:
            return
        gone = [number for number in self._ended if self._names[number] not in self._there]
        if len(gone) >= LISTED:
            self._list = len(self._names), gone
            self._names.append(None)

    def listing(self, partition: int, last: Any) -> dict[str, str] | None:
        """Return the metadata of the list that is to be made; None if the partition is none, or was planned."""
        if self._list is None or self._list[0] != partition:
            return None
        if last is None:
            return self._gone.listed({str(self._names[number]): self._ended[number] for number in self._list[1]})
        for number in self._list[1]:  # it is durable: from here on the list knows their names
            name = self._names[number]
            assert name is not None
            del self._numbers[name], self._ended[number]
            self._names[number] = None
        self._list = None
        self._gone.take({partition: last})
        return None

    def to_forget(self, planned: bool) -> list[int]:
        """Return partitions whose metadata is needed no more, if the list was planned now: a list has their names."""
        return [*self._list[1], *self._gone.drop_oldest()] if self._list is not None and planned else []

    def forget(self, partition: int) -> None:
        """Let a partition be another file: nothing was read of its own, which is gone."""
        name = self._names[partition]
        if name is not None:
            del self._numbers[name], self._unread[partition]
            self._names[partition] = None
            self._free.append(partition)

    def end(self, partition: int, hashed: int) -> None:
        """Take note that a file was read to its end; `hashed` is `file_hash` of it."""
        self._unread.pop(partition, None)
        self._ended[partition] = hashed

    def to_plan(self) -> Iterable[int]:
        """Return the partitions that this look has to look at."""
        checked = list(islice(self._turn, CHECKED))
        if len(checked) < CHECKED:  # from the first one again: what is gone can't change
            self._turn = iter([number for number in self._ended if self._names[number] in self._there])
        listed = [] if self._list is None else [self._list[0]]
        return [*listed, *self._unread, *checked]
