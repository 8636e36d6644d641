"""Where keys stand in what operators of statefx's own keep, and what becomes of what they keep for a task.

Of these keys nothing has to be shown: statefx has taken them from the grouping's fields itself. When a bolt gets other
tasks, an entry goes to the task of its key, and what belongs to a task is put together and given to all new ones:

==============================  ====================================================================================
windows ``open``, ``due``       go by their key: as `statefx.runtime.window_kinds` has it
mark ``next``                   the earliest of all tasks: to look for windows too early does no harm
mark ``passed``                 the latest: all tasks have the clock of their transaction, so none has open windows
                                before it. By the earliest, sliding windows that were given would be given again
mark ``shapes``                 the longest: all tasks number in the same order, so the others are its beginning
IntervalJoin, rows              go by their key, which rows that wait apart begin with
its times, in chunks            each chunk is parted by the keys in it, and numbered anew, since two tasks may have the
                                same numbers. It stays under the time of the whole chunk, and so in order
its ``forms``                   as ``shapes``
its ``notes``                   the number behind all numbers; the earliest sweep, for what is over is looked for from
                                there; bounds only if all tasks have the same
its timer                       given to all: it only brings the next transaction
ids of ``dedup``                go by the id
windows of ``dedup``            all that any task has, in order
trees of the acker              go by their block, by which what is said of them is grouped
==============================  ====================================================================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from statefx.errors import StateCorruptedError
from statefx.operators.acker import ACKER
from statefx.operators.dedup import DEDUP
from statefx.operators.dedup import WINDOWS as DEDUP_WINDOWS
from statefx.operators.windows import Layout
from statefx.protocol.topology_identity import StatefulIdentity
from statefx.state.contract.spaces import Kind, Space, head_of
from statefx.state.encoding.codec import Codec
from statefx.state.encoding.envelope import unwrap, wrap

Entry = tuple[bytes, bytes]

Piece = tuple[int, bytes, bytes]
"""A new task, and an entry that it gets."""

Pieces = Sequence[Piece]


class Source(NamedTuple):
    """The task whose entries are read."""

    task: int
    tasks: int
    """How many there are."""
    target: Callable[[Sequence[Any]], int]
    """Returns the new task of the fields of the grouping; refuses those that do not name `task`."""


class OwnEntries(ABC):
    """What an operator of statefx keeps.

    Attributes
    ----------
    gathered : list of (bytes, bytes)
        Entries that belong to a task, of all tasks that were read. They are few, and small.
    """

    def __init__(self, fields: int, codec: Codec, version: int) -> None:
        self._fields, self._codec, self._version = fields, codec, version
        self.gathered: list[Entry] = []

    @abstractmethod
    def pieces(self, stored: bytes, value: bytes, kind: Kind | None, name: str, source: Source) -> Pieces | None:
        """Return what an entry becomes, in the order of keys; nothing if it was gathered; None: it is the user's."""

    @abstractmethod
    def merged(self, stored: bytes, values: list[Any]) -> Any:
        """Return what all tasks get of an entry that was gathered in some."""

    def common(self) -> list[Entry]:
        """Return the entries that all new tasks get, in the order of keys."""
        found: dict[bytes, list[bytes]] = {}
        for stored, value in self.gathered:
            found.setdefault(stored, []).append(value)
        return [(stored, self._together(stored, values)) for stored, values in sorted(found.items())]

    def _together(self, stored: bytes, values: list[bytes]) -> bytes:
        if stored[:1] == Space.TIMERS.value:
            return values[0]
        return self._encoded(self.merged(stored, [self._decoded(value) for value in values]))

    def _gather(self, stored: bytes, value: bytes) -> tuple[()]:
        self.gathered.append((stored, value))
        return ()

    def _key(self, stored: bytes, head: bytes) -> Any:
        return self._codec.decode_key(stored[len(head) :])

    def _decoded(self, value: bytes) -> Any:
        return self._codec.decode_value(unwrap(value)[1])

    def _encoded(self, value: Any) -> bytes:
        return wrap(self._version, self._codec.encode_value(value))


class _Windows(OwnEntries):
    """Windows of a windowed bolt."""

    def __init__(self, layout: str, *more: Any) -> None:
        super().__init__(*more)
        # Behind the start, the pane or the time when it is due; else the key is all.
        self._behind = {"due"} | ({"open"} if layout in (Layout.TUMBLING, Layout.ROWS) else set())

    def pieces(self, stored: bytes, value: bytes, kind: Kind | None, name: str, source: Source) -> Pieces | None:
        if kind is not Kind.WINDOWS:
            return None
        if name == "marks":
            return self._gather(stored, value)
        place = self._key(stored, head_of(kind, name))
        key = place[1] if name in self._behind else place
        return ((source.target(key if self._fields > 1 else (key,)), stored, value),)

    def merged(self, stored: bytes, values: list[Any]) -> Any:
        of: dict[str, Callable[[list[Any]], Any]] = {"next": _earliest, "passed": max, "shapes": _longest}
        return of[self._key(stored, head_of(Kind.WINDOWS, "marks"))](values)


def _earliest(values: list[Any]) -> Any:
    return min((each for each in values if each is not None), default=None)


def _longest(values: list[Any]) -> Any:
    found = max(values, key=len)
    if any(found[: len(each)] != each for each in values):
        raise StateCorruptedError(
            f"its tasks do not number the forms of their rows alike: {values!r:.300}. Nothing was changed; what one of "
            "them keeps is not what was written",
            found=values,
        )
    return found


class _Join(OwnEntries):
    """Rows of an `IntervalJoin` that wait."""

    def __init__(self, joined: Sequence[int], *more: Any) -> None:
        super().__init__(*more)
        self._width = len(joined)
        self._order = [joined.index(field) for field in range(self._fields)]
        self._chunks: dict[int, int] = {}
        """By task, how many chunks of times were numbered."""

    def pieces(self, stored: bytes, value: bytes, kind: Kind | None, name: str, source: Source) -> Pieces | None:
        if kind is None:
            if stored[:1] == Space.TIMERS.value:
                return self._gather(stored, value)
            key = self._key(stored, stored[:1])
            return ((source.target(self._row(key if self._width > 1 else (key,))), stored, value),)
        head = head_of(kind, name)
        if kind is Kind.VALUE:
            return self._gather(stored, value if name == "forms" else self._renumbered(value, source))
        place = self._key(stored, head)
        if name.endswith("Times"):
            return self._parted(head, place, self._decoded(value), source)
        return ((source.target(self._row(place)), stored, value),)

    def _row(self, key: Sequence[Any]) -> Sequence[Any]:
        return [key[at] for at in self._order]

    def _parted(self, head: bytes, place: Any, chunk: Sequence[Any], source: Source) -> list[Piece]:
        """Part a chunk of times, each with its key, by their new tasks."""
        step, parts = self._width + 1, dict[int, list[Any]]()
        for at in range(0, len(chunk), step):
            new = source.target(self._row(chunk[at + 1 : at + step]))
            parts.setdefault(new, []).extend(chunk[at : at + step])
        found = []
        for new, part in parts.items():
            chunks = self._chunks.get(source.task, 0)
            self._chunks[source.task] = chunks + 1
            stored = head + self._codec.encode_key((place[0], chunks * source.tasks + source.task))
            found.append((new, stored, self._encoded(tuple(part))))
        return found

    def _renumbered(self, value: bytes, source: Source) -> bytes:
        """Return the notes of a task with the number behind those that were given here; they come behind the times."""
        number, *rest = self._decoded(value)
        return self._encoded((max(number, self._chunks.get(source.task, 0) * source.tasks), *rest))

    def merged(self, stored: bytes, values: list[Any]) -> Any:
        if stored.startswith(head_of(Kind.VALUE, "forms")):
            return _longest(values)
        numbers, swept, *bounds = zip(*values, strict=True)
        same = all(len(set(each)) == 1 for each in bounds)
        return (
            max(numbers),
            None if None in swept else min(swept),
            *(each[0] if same else None for each in bounds),
        )


class _Ids(OwnEntries):
    """Ids of messages that a spout may hand out again."""

    def pieces(self, stored: bytes, value: bytes, kind: Kind | None, name: str, source: Source) -> Pieces | None:
        place = self._key(stored, stored[:1])
        if place == DEDUP_WINDOWS:
            return self._gather(stored, value)
        return ((source.target(place[1:]), stored, value),)

    def merged(self, stored: bytes, values: list[Any]) -> Any:
        return tuple(sorted({tuple(window) for windows in values for window in windows}))


class _Trees(OwnEntries):
    """Blocks of trees."""

    def pieces(self, stored: bytes, value: bytes, kind: Kind | None, name: str, source: Source) -> Pieces | None:
        return ((source.target((self._key(stored, stored[:1]),)), stored, value),)

    def merged(self, stored: bytes, values: list[Any]) -> Any:
        raise AssertionError("unreachable")


def own_entries(bolt: str, known: StatefulIdentity, fields: int, codec: Codec) -> OwnEntries | None:
    """Return what statefx keeps for a bolt; None: all that it keeps is its own."""
    more = fields, codec, known.state_version
    if bolt == ACKER:
        return _Trees(*more)
    if bolt.startswith(DEDUP):
        return _Ids(*more)
    if known.joined:
        return _Join(known.joined, *more)
    return _Windows(known.layout.kind, *more) if known.layout else None
