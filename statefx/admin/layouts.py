"""What statefx keeps for bolts, by the `StateLayout` that they declare: as rows, and given to other tasks.

Shown are open windows, joins, ids and trees as their users understand them:

====================  ===========  ==============================================  =====================================
component             shown as     key                                             value
====================  ===========  ==============================================  =====================================
a windowed bolt       ``windows``  (key, start, end)                               the window's value, or its tuples by
                                                                                   input
an `IntervalJoin`     ``waiting``  the key                                         the rows that wait, by input
``__dedup-`` + spout  ``ids``      the id                                          until when it is dropped
``__acker``           ``trees``    the root                                        spout, id, transaction, times
an `AsyncBolt`        ``calls``    (key, transaction, number)                      the tuple that waits for another
                                                                                   call, tries, reason and time
====================  ===========  ==============================================  =====================================

Windows that slide share panes, and panes are shown instead. For windows of tuples, start and end count the tuples of
the key that are in open windows. How the entries lie in state is written where they are made:
`statefx.operators.window_state`, `statefx.operators.joins`, `statefx.operators.dedup`, `statefx.operators.acker`,
`statefx.operators.waiting`.

When a bolt gets other tasks, nothing has to be proved of these keys: statefx has taken them from the grouping's fields
itself. An entry goes to the task of its key; one whose value is rows of several keys is parted; and what belongs to a
task is put together and given to all new ones. Why it is put together as it is:

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

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from datetime import datetime
from math import gcd
from typing import Any, ClassVar

from statefx.admin.columns import json_text
from statefx.errors import ConfigError, StateCorruptedError
from statefx.operators.acker import Blocks, place_of
from statefx.operators.context import DEFAULT_STREAM
from statefx.operators.dedup import IDS
from statefx.operators.json_values import JsonRows
from statefx.operators.schema import Form, parse_schema
from statefx.operators.waiting import Waiting, entry_of, parts_of
from statefx.operators.windows import WINDOWS, Layout
from statefx.protocol.reports import task_of, txid_of
from statefx.protocol.topology_identity import StatefulIdentity, StateLayout
from statefx.state.contract.spaces import NameKind, Space, end_of, head_of, name_of
from statefx.state.encoding.codec import Codec, StandardCodec
from statefx.state.encoding.keys import key_decoder
from statefx.state.encoding.values import expiry_of, unwrap, wrap
from statefx.state.view.changes import Upgrade, codec_for
from statefx.state.view.time_index import time_of

Read = Callable[[bytes, bytes], Iterable[tuple[bytes, bytes | None]]]
"""Returns the entries of a task from one key up to another; None for a value that a file says was deleted."""

Pair = tuple[Any, Any]

GONE: Any = object()
"""The value of a row that was deleted."""

ANY: Any = object()
"""Any key."""

_FAR = 1 << 62
"""Microseconds after every time."""

_decode_id = key_decoder()


class OwnSpace(ABC):
    """What one task of a bolt keeps that statefx keeps for it, as rows."""

    name: ClassVar[str]  # what ``map=`` calls it
    key_fields: str = "key string"  # columns of the key, as Spark DDL; the first is shown as JSON text by default
    instead: ClassVar[bool] = True  # whether the bolt has no keys of its own that could be shown

    def __init__(self, known: StatefulIdentity, spouts: Mapping[str, str], migrate: Upgrade | None) -> None:
        self._known, self._spouts, self._migrate = known, spouts, migrate

    def learn(self, read: Read, codec: Codec) -> None:
        """Read what the entries are understood by; called before `rows`."""
        self._codec = codec

    @abstractmethod
    def rows(self, read: Read, key: Any = ANY) -> Iterator[Pair]:
        """Yield keys and values; of one key of the grouping only, if it is given."""

    @property
    def columns(self) -> list[str]:
        """The names of the key's columns."""
        return list(parse_schema(self.key_fields).names)

    def record(self, key: Any, value: Any) -> dict[str, Any]:
        """Return a row by the names of its columns."""
        names = self.columns
        return dict(zip(names, key if len(names) > 1 else (key,), strict=True)) | {"value": value}

    def grouping_key(self, key: Any) -> Any:
        """Return the key of the grouping that the key of a row has."""
        if len(self.columns) == 1:
            return key
        return key[0] if isinstance(key, tuple) and len(key) == len(self.columns) else ANY

    def _decoded(self, value: bytes) -> Any:
        return self._codec.decode_value(unwrap(value)[1])

    def _entries(
        self, read: Read, head: bytes, low: bytes | None = None, high: bytes | None = None
    ) -> Iterator[tuple[Any, bytes | None]]:
        decode = codec_for(self._codec, head)[0].decode_key
        for key, value in read(head if low is None else low, end_of(head) if high is None else high):
            yield decode(key), value

    def _one(self, read: Read, head: bytes, key: Any) -> Iterator[tuple[Any, bytes | None]]:
        """Yield the entry of a key, or those of all keys for ANY."""
        if key is ANY:
            return self._entries(read, head)
        at = codec_for(self._codec, head)[0].encode_key(key)
        return self._entries(read, head, at, at + b"\0")


class _Windows(OwnSpace):
    name = WINDOWS
    instead = False

    def __init__(self, known: StatefulIdentity, spouts: Mapping[str, str], migrate: Upgrade | None) -> None:
        super().__init__(known, spouts, migrate)
        assert known.layout is not None
        self._form, numbers = known.layout.form, known.layout.numbers
        self._length, self._slide, self._gap = (numbers[name] for name in ("length", "slide", "gap"))
        self._of_values = bool(numbers["values"])
        counted = self._form == Layout.COUNTED
        self.key_fields = (
            "key string, start long, end long" if counted else "key string, start timestamp, end timestamp"
        )

    def learn(self, read: Read, codec: Codec) -> None:
        super().learn(read, codec)
        marks = {
            key: self._decoded(value)
            for key, value in self._entries(read, head_of(NameKind.WINDOWS, "marks"))
            if value is not None
        }
        self._next, self._shapes = marks.get("next"), marks.get("shapes", [])

    def rows(self, read: Read, key: Any = ANY) -> Iterator[Pair]:
        head = head_of(NameKind.WINDOWS, "open")
        match self._form:
            case Layout.TUMBLING:
                for (start, own), value in self._entries(read, head):
                    if key is ANY or own == key:
                        yield (
                            (own, time_of(start), time_of(start + self._length)),
                            GONE if value is None else self._value(own, value),
                        )
            case Layout.ROWS:
                yield from self._chunks(self._entries(read, head), key)
            case _:
                for own, value in self._one(read, head, key):
                    if value is None:
                        yield (own, None, None), GONE
                    else:
                        yield from self._of_key(own, value)

    def _of_key(self, key: Any, data: bytes) -> Iterator[Pair]:
        """Yield the windows, or the panes, that one entry has."""
        version, found = unwrap(data)[0], self._decoded(data)
        if self._form == Layout.SESSIONS:
            for first, last, value in found[1]:
                yield (key, time_of(first), time_of(last + self._gap)), self._shown(key, value, version)
        elif self._form == Layout.SLIDING:
            for pane in sorted(filter(self._is_open, found)):
                own = (key, time_of(pane), time_of(pane + self._pane))
                yield own, self._shown(key, found[pane], version)
        else:
            number, blocks = found
            begin = number // self._slide * self._slide + self._slide - self._length
            spans = {block: (block * self._pane, min(number, (block + 1) * self._pane)) for block in sorted(blocks)}
            open_now = {block: span for block, span in spans.items() if span[1] > begin}
            first = min((start for start, _ in open_now.values()), default=0)
            for block, (start, end) in open_now.items():
                yield (key, start - first, end - first), self._shown(key, blocks[block], version)

    def _chunks(self, entries: Iterable[tuple[Any, bytes | None]], key: Any) -> Iterator[Pair]:
        """Yield the tuples of each pane and key: several entries, which follow each other."""
        last: Any = None
        items: list[Any] | None = None
        for (pane, own, _, shape, _), value in entries:
            if not self._is_open(pane) or not (key is ANY or own == key):
                continue
            if last is not None and last != (pane, own):
                yield self._pane_of(last[0], last[1], items)
                items = None
            last = pane, own
            if value is not None:
                _, times, rows = self._decoded(value)
                items = [*(items or ()), *((at, shape, row) for at, row in zip(times, rows, strict=True))]
        if last is not None:
            yield self._pane_of(last[0], last[1], items)

    def _pane_of(self, pane: int, key: Any, items: list[Any] | None) -> Pair:
        value = GONE if items is None else self._tuples(items)
        return (key, time_of(pane), time_of(pane + self._pane)), value

    @property
    def _pane(self) -> int:
        return gcd(self._length, self._slide)

    def _is_open(self, pane: int) -> bool:
        """Return whether a window has still to end that the pane is in; others may lie there a while."""
        return self._next is not None and pane - pane % self._slide + self._length >= self._next

    def _value(self, key: Any, data: bytes) -> Any:
        return self._shown(key, self._decoded(data), unwrap(data)[0])

    def _shown(self, key: Any, value: Any, version: int) -> Any:
        if not self._of_values:
            return self._tuples(value)
        if self._migrate is not None and version < self._known.state_version:
            return self._migrate(version, (WINDOWS, key), value)
        return value

    def _tuples(self, items: Iterable[Any]) -> dict[str, list[Any]]:
        """Return tuples by their inputs, each as a dict of its fields."""
        found: dict[str, list[Any]] = {}
        for _, shape, row in items:
            source, stream, names = self._shapes[shape] if shape < len(self._shapes) else ("", DEFAULT_STREAM, None)
            name = source if stream == DEFAULT_STREAM else f"{source}:{stream}"
            found.setdefault(name, []).append(list(row) if names is None else dict(zip(names, row, strict=True)))
        return found


class _Waiting(OwnSpace):
    name = "waiting"

    def learn(self, read: Read, codec: Codec) -> None:
        super().learn(read, codec)
        forms = [value for _, value in self._entries(read, head_of(NameKind.VALUE, "forms")) if value is not None]
        self._forms: Sequence[Any] = self._decoded(forms[0]) if forms else ()
        self._names = [[parse_schema(side[0]).names for side in form[:2]] for form in self._forms]

    def rows(self, read: Read, key: Any = ANY) -> Iterator[Pair]:
        for own, value in self._one(read, Space.USER.value, key):
            if value is None:
                yield own, GONE
                continue
            version, left_more, right_more, left_rows, *flat = self._decoded(value)
            widths = [len(names) + 1 for names in self._names[version]]
            parts = flat[: left_rows * widths[0]], flat[left_rows * widths[0] :]
            found = {}
            for side, (part, width, more) in enumerate(zip(parts, widths, (left_more, right_more), strict=True)):
                rows = [self._row(version, side, part[at : at + width]) for at in range(0, len(part), width)]
                rows += self._apart(read, side, own) if more else ()
                found[self._forms[version][2][side]] = rows
            yield own, found

    def _apart(self, read: Read, side: int, key: Any) -> Iterator[dict[str, Any]]:
        """Yield the rows of a key that have entries of their own."""
        head = head_of(NameKind.MAP, ("left", "right")[side])
        encode, begin = codec_for(self._codec, head)[0].encode_key, key if isinstance(key, tuple) else (key,)
        for _, value in self._entries(read, head, encode((*begin, -_FAR)), encode((*begin, _FAR))):
            if value is not None:
                version, *kept = self._decoded(value)
                yield self._row(version, side, kept)

    def _row(self, version: int, side: int, kept: Sequence[Any]) -> dict[str, Any]:
        timestamp = self._forms[version][side][1]
        row = dict(zip(self._names[version][side], kept[1:], strict=True))
        return {"matched": kept[0], "row": row | {timestamp: time_of(row[timestamp])}}


class _Ids(OwnSpace):
    name = "ids"
    key_fields = "id string"

    def rows(self, read: Read, key: Any = ANY) -> Iterator[Pair]:
        for data, value in self._entries(read, head_of(NameKind.MAP, IDS)):
            id = _decode_id(data)
            if key is ANY or id == key:
                yield id, GONE if value is None else time_of(expiry_of(value) * 1000)


class _Trees(OwnSpace):
    name = "trees"
    key_fields = "root long"

    def rows(self, read: Read, key: Any = ANY) -> Iterator[Pair]:
        for block, value in self._entries(read, Space.USER.value):
            if value is not None:
                for root, shown in self._of_block(block, self._decoded(value)):
                    if key is ANY or key == root:
                        yield root, shown

    def _of_block(self, block: int, value: Any) -> Iterator[Pair]:
        blocks = Blocks.of([block], [value])
        name, ids = blocks.ids.get(0, (b"", {}))
        spouts = {in_trees: id for id, in_trees in self._spouts.items()}
        for root in blocks.roots(blocks.bits != 0).tolist():
            data, anew = ids.get(place_of(root)), int(blocks.anew_ms[0, place_of(root)])
            yield (
                root,
                {
                    "txid": txid_of(root),
                    "spout": spouts.get(name.decode().rpartition("/")[0]),
                    "task": task_of(root),
                    "id": None if data is None else _decode_id(data),
                    "began": time_of(int(blocks.began_ms[0]) * 1000),
                    "reset": time_of(anew * 1000) if anew else None,
                },
            )


class _Calls(OwnSpace):
    name = "calls"
    key_fields = "key string, txid long, number long"

    def rows(self, read: Read, key: Any = ANY) -> Iterator[Pair]:
        head = Space.WAITING.value
        for place, value in read(head, end_of(head)):
            group, txid, number = parts_of(place)
            fields = [*json.loads(group or b"{}").values()]
            own = fields[0] if len(fields) == 1 else fields or None
            if key is ANY or key == own:
                yield (own, txid, number), GONE if value is None else self._shown(entry_of(value))

    @staticmethod
    def _shown(waiting: Waiting) -> dict[str, Any]:
        row = waiting.batch()
        return {
            "row": json.loads(JsonRows(row.schema).encode(row)[0]),
            "source": waiting.source,
            "stream": waiting.stream,
            "tries": waiting.tries,
            "why": waiting.why,
            "due": time_of(waiting.due_ms * 1000) if waiting.due_ms else None,
        }


def own_space(
    known: StatefulIdentity,
    spouts: Mapping[str, str],
    map: str | None,
    migrate: Upgrade | None = None,
) -> OwnSpace | None:
    """Return what is shown of what statefx keeps for a bolt for ``map=``; None: the bolt's own entries are shown.

    `spouts` are the names that spouts have in trees, by their ids.
    """
    made = _kind_of(known)
    if made is None or not (map == made.name or (map is None and made.instead)):
        return None
    return made(known, spouts, migrate)


def own_name(known: StatefulIdentity) -> tuple[str, bool] | None:
    """Return what ``map=`` calls what statefx keeps for a bolt, and whether the bolt keeps nothing else; or None."""
    made = _kind_of(known)
    return None if made is None else (made.name, made.instead)


def _kind_of(known: StatefulIdentity) -> type[OwnSpace] | None:
    return None if known.layout is None else _FORMS[known.layout.form]


_FORMS: Mapping[str, type[OwnSpace]] = {
    "waiting": _Waiting,
    "ids": _Ids,
    "trees": _Trees,
    "calls": _Calls,
    **dict.fromkeys(Layout, _Windows),
}


def kept_names(read: Read) -> dict[NameKind, set[str]]:
    """Return the names under which a task keeps something, by kind; one entry of each is read."""
    found: dict[NameKind, set[str]] = {}
    low, high = Space.NAMED.value, end_of(Space.NAMED.value)
    while (entry := next(iter(read(low, high)), None)) is not None:
        kind, name = name_of(entry[0])
        found.setdefault(kind, set()).add(name)
        low = end_of(head_of(kind, name))
    return found


def form_of(own: OwnSpace, schema: Mapping[str, Any] | None) -> tuple[Form, Callable[[Pair], Pair]]:
    """Return the columns of an own space, and what makes a row fit them.

    By default the key of the grouping is JSON text, and so is the value.
    """
    form = Form.parse({"key": own.key_fields, **(schema or {})})
    as_text = "key" not in (schema or {}) and own.key_fields.split()[1].startswith("string")

    def shaped(row: Pair) -> Pair:
        key, value = row
        if as_text:
            key = (json_text(plain(key[0])), *key[1:]) if len(own.columns) > 1 else json_text(plain(key))
        return key, plain(value) if form.value is None else value

    return form, shaped


def plain(value: Any) -> Any:
    """Return a value of an own space with its times as ISO texts, for JSON.

    >>> plain({"began": time_of(0), "rows": [(1, time_of(0))]})
    {'began': '1970-01-01T00:00:00+00:00', 'rows': [[1, '1970-01-01T00:00:00+00:00']]}
    """
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


class OwnRows:
    """An own space of one task as a view asks for it."""

    def __init__(self, space: OwnSpace, read: Read, codec: Codec) -> None:
        self._space, self._read = copy(space), read
        self._space.learn(read, codec)

    def items(self, start: Any = None, stop: Any = None, reverse: bool = False) -> Iterator[Pair]:
        """Yield the rows, in the order in which they lie."""
        if start is not None or stop is not None or reverse:
            raise ConfigError(f"{self._space.name} have no order to ask for: leave out start, stop and reverse")
        return self._space.rows(self._read)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a row."""
        found = self._space.rows(self._read, self._space.grouping_key(key))
        return next((value for own, value in found if own == key), default)

    def __contains__(self, key: Any) -> bool:
        return self.get(key, GONE) is not GONE

    def __len__(self) -> int:
        return sum(1 for _ in self.items())

    def _set_clock(self, clock_ms: int) -> None:
        """Do nothing: no row is over by the reader's clock."""


Entry = tuple[bytes, bytes]

Piece = tuple[int, bytes, bytes]
"""A new task, and an entry that it gets."""

Pieces = Sequence[Piece]

Target = Callable[[Sequence[Any]], int]
"""Returns the new task of the fields of the grouping; refuses those that do not name the task that is read."""


class OwnEntries:
    """What statefx keeps for a bolt, given to other tasks."""

    def __init__(self, layout: StateLayout, codec: Codec, version: int) -> None:
        self._layout, self._codec, self._version = layout, codec, version
        self._gathered: list[Entry] = []
        """Entries that belong to a task, of all tasks that were read. They are few, and small."""

    def pieces(self, stored: bytes, value: bytes, target: Target) -> Pieces | None:
        """Return what an entry becomes, in the order of keys; nothing if it was gathered; None: it is the user's."""
        space, key, head = self._placed(stored)
        ways = self._layout.keys.get(space)
        if ways is None:
            if self._rule(space, key) is None:
                return None
            self._gathered.append((stored, value))
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
            if kind is not NameKind.MAP:
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
        for stored, value in self._gathered:
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
