"""What becomes of what statefx keeps for a bolt when the bolt gets other tasks, as the bolt's `StateLayout` says.

Of these keys nothing has to be shown: statefx has taken them from the grouping's fields itself. An entry goes to the
task of its key; one whose value is rows of several keys is parted; and what belongs to a task is put together and given
to all new ones. Why it is put together as it is:

==============================  ====================================================================================
windows, mark ``next``          the least of all tasks: to look for windows too early does no harm
mark ``passed``                 the greatest: all tasks have the clock of their transaction, so none has open windows
                                before it. By the least, sliding windows that were given would be given again
mark ``shapes``                 the longest: all tasks number in the same order, so the others are its beginning
IntervalJoin, ``forms``         as ``shapes``
its ``swept``                   the least: what is over is looked for from there
its ``between``                 only if all tasks have the same
==============================  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from statefx.errors import StateCorruptedError
from statefx.protocol.topology_identity import StatefulIdentity, StateLayout
from statefx.state.contract.spaces import Kind, Space, head_of, name_of
from statefx.state.encoding.codec import Codec, StandardCodec
from statefx.state.encoding.envelope import unwrap, wrap

Entry = tuple[bytes, bytes]

Piece = tuple[int, bytes, bytes]
"""A new task, and an entry that it gets."""

Pieces = Sequence[Piece]

Target = Callable[[Sequence[Any]], int]
"""Returns the new task of the fields of the grouping; refuses those that do not name the task that is read."""


class OwnEntries:
    """What statefx keeps for a bolt.

    Attributes
    ----------
    gathered : list of (bytes, bytes)
        Entries that belong to a task, of all tasks that were read. They are few, and small.
    """

    def __init__(self, layout: StateLayout, codec: Codec, version: int) -> None:
        self._layout, self._codec, self._version = layout, codec, version
        self.gathered: list[Entry] = []

    def pieces(self, stored: bytes, value: bytes, target: Target, entry: bytes) -> Pieces | None:
        """Return what is stored becomes, in the order of keys; nothing if it was gathered; None: it is the user's.

        `entry` is the key that it goes with: its own, but for a place in an index.
        """
        space, key, head = self._placed(entry)
        ways = self._layout.keys.get(space)
        if ways is None:
            if self._rule(space, key) is None:
                return None
            self.gathered.append((stored, value))
            return ()
        width = self._layout.rows.get(space)
        if width is None:
            return ((target([_at(key, way) for way in ways]), stored, value),)
        return self._parted(head, key, self._decoded(value), width, ways, target)

    def _placed(self, entry: bytes) -> tuple[str, Any, bytes]:
        """Return space and key of an entry, and what the bytes of keys of that space begin with."""
        head, space, codec = entry[:1], "", self._codec
        if head == Space.NAMED.value:
            kind, name = name_of(entry)
            head, space = head_of(kind, name), f"{kind.value} {name}"
            if kind is not Kind.MAP:
                codec = StandardCodec()
        elif head != Space.USER.value:
            return "timers", None, head
        return space, codec.decode_key(entry[len(head) :]), head

    def _rule(self, space: str, key: Any) -> str | None:
        return self._layout.together.get(space if key is None else f"{space} {key}")

    def _parted(
        self, head: bytes, key: Any, rows: Sequence[Any], width: int, ways: Sequence[Sequence[int]], target: Target
    ) -> list[Piece]:
        """Part rows by their new tasks; each part has its task behind the key, for parts may come together again."""
        parts: dict[int, list[Any]] = {}
        for at in range(0, len(rows), width):
            row = rows[at : at + width]
            parts.setdefault(target([_at(row, way) for way in ways]), []).extend(row)
        return [
            (new, head + self._codec.encode_key((*key, new)), self._encoded(tuple(part))) for new, part in parts.items()
        ]

    def common(self) -> list[Entry]:
        """Return the entries that all new tasks get, in the order of keys."""
        found: dict[bytes, list[Any]] = {}
        for stored, value in self.gathered:
            found.setdefault(stored, []).append(self._decoded(value))
        return [(stored, self._encoded(self._merged(stored, values))) for stored, values in sorted(found.items())]

    def _merged(self, stored: bytes, values: list[Any]) -> Any:
        rule = self._rule(*self._placed(stored)[:2])
        assert rule is not None  # otherwise it would not be gathered
        return _TOGETHER[rule](values)

    def _decoded(self, value: bytes) -> Any:
        return self._codec.decode_value(unwrap(value)[1])

    def _encoded(self, value: Any) -> bytes:
        return wrap(self._version, self._codec.encode_value(value))


def _at(key: Any, way: Sequence[int]) -> Any:
    for place in way:
        key = key[place]
    return key


def _least(values: list[Any]) -> Any:
    return min((value for value in values if value is not None), default=None)


def _longest(values: list[Any]) -> Any:
    longest = max(values, key=len)
    if any(longest[: len(value)] != value for value in values):
        raise StateCorruptedError(
            f"its tasks do not number the forms of their rows alike: {values!r:.300}. Nothing was changed; what one of "
            "them keeps is not what was written",
            found=values,
        )
    return longest


def _same(values: list[Any]) -> Any:
    return values[0] if all(value == values[0] for value in values) else None


_TOGETHER: dict[str, Callable[[list[Any]], Any]] = {
    "least": _least,
    "greatest": max,
    "longest": _longest,
    "same": _same,
}


def own_entries(known: StatefulIdentity, codec: Codec) -> OwnEntries | None:
    """Return what statefx keeps for a bolt; None: all that it keeps is its own."""
    return None if known.layout is None else OwnEntries(known.layout, codec, known.state_version)
