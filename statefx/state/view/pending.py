"""A transaction's own changes in key order, and what a scan sees of them while they go on changing.

The order is made at the first scan of a transaction. `put` of a key that is known writes into a dict and nothing
else; so the order learns of new keys only when somebody scans again, from the end of each dict, where they are.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from enum import Enum
from itertools import islice
from typing import Any, Final, Literal

from statefx.state.contract.ranges import OrderedEntries


class Missing(Enum):
    """What memory says of a key whose value it does not have."""

    ABSENT = "known not to be there"
    UNKNOWN = "only the store can tell"


ABSENT: Final[Literal[Missing.ABSENT]] = Missing.ABSENT
UNKNOWN: Final[Literal[Missing.UNKNOWN]] = Missing.UNKNOWN


class Packed:
    """The kind of keys that are looked up by their bytes: those of no other kind."""


# Looked up as they are, each type in a dict of its own, so that 1 and True do not meet. Not among them are datetimes,
# whose == between zones isn't by instant in the hour of a clock change, Decimals, of which some have no hash, and
# floats: -0.0 would be shown as it was put before a commit, and as 0.0 after it.
PLAIN: frozenset[type] = frozenset({type(None), bool, int, str, bytes, date})

Kind = type | tuple[type, ...]
"""A type in `PLAIN`; for a tuple of such elements their types; else `Packed`."""

MAX_KINDS = 64
"""Kinds of tuple beyond this are `Packed`: each kind has four dicts, and every prepare goes through all of them."""

MemoryKey = tuple[Kind, Any, bytes]
"""Kind, name and key bytes. The entry is under ``[kind][name]``; the name is the key, or its bytes if `Packed`."""


Change = tuple[Any, Any] | bytes | None
"""Of an immutable value (key, value) as they are; of a mutable one its bytes; None: deleted."""

_FIRST_KEYS, _MOST_KEYS = 16, 1024  # read ahead: one key is often enough, many cost less by the thousand


class PendingKeys:
    """The keys that a transaction has changed, in order.

    `changed` and `changed_bytes` are the overlay's own. An entry of `changed` may be added at any time; who takes one
    away, or changes `changed_bytes`, calls `before_value` or `before_bytes` first.
    """

    __slots__ = (
        "_asked",
        "_changed",
        "_changed_bytes",
        "_counted",
        "_decode_key",
        "_deletions",
        "_encode_key",
        "_hidden",
        "_places",
        "_scans",
    )

    def __init__(
        self,
        changed: Mapping[Kind, dict[Any, Any]],
        changed_bytes: Mapping[Kind, dict[Any, bytes | None]],
        encode_key: Callable[[Any], bytes],
        decode_key: Callable[[bytes], Any],
    ) -> None:
        self._changed = changed
        self._changed_bytes = changed_bytes
        self._encode_key = encode_key
        self._decode_key = decode_key
        self._places: OrderedEntries[tuple[Kind, Any]] = OrderedEntries()
        self._counted: dict[Kind, int] = {}  # of each dict of `changed`, how many of its first keys have their place
        self._scans: list[weakref.ref[PendingScan]] = []
        self._deletions = 0  # of all changes, how many are deletions
        self._hidden = 0  # of the first `_asked` places, how many have an entry below
        self._asked = 0
        for kind, entries in changed_bytes.items():
            self._place(kind, entries)
            self._deletions += sum(data is None for data in entries.values())

    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool) -> PendingScan:
        """Return what is changed in a range now, whatever is changed while it is read."""
        self._catch_up()
        scan = PendingScan(self, start, stop, reverse)
        self._scans.append(weakref.ref(scan))
        return scan

    def has_scans(self) -> bool:
        """Say whether a scan goes on, which has to be told of every change before it is made."""
        if self._scans:
            self._scans = [ref for ref in self._scans if ref() is not None]
        return bool(self._scans)

    def balance(self, below: Callable[[list[bytes]], list[bytes | None]]) -> int:
        """Return by how many entries the changes outnumber those they hide; `below` reads what is under them."""
        self._catch_up()
        keys = self._places.by_key
        if len(keys) != self._asked:  # no place is ever given up, so the new ones are the last ones
            self._hidden += sum(
                data is not None for data in below(list(islice(reversed(keys), len(keys) - self._asked)))
            )
            self._asked = len(keys)
        return len(keys) - self._deletions - self._hidden

    def before_value(self, place: MemoryKey) -> None:
        """Take note that the entry at `place` is about to become one of `changed`."""
        kind, name, key = place
        if self._changed_bytes[kind].get(name, UNKNOWN) is None:
            self._deletions -= 1
        if self._scans:
            before = self.change(kind, name)
            for ref in self._scans:
                scan = ref()
                if scan is not None:
                    scan.keep(key, before)

    def before_bytes(self, place: MemoryKey, data: bytes | None) -> None:
        """Take note that the entry at `place` is about to become one of `changed_bytes`."""
        self.before_value(place)
        self._deletions += data is None
        self._catch_up()  # else a key that has no place yet would be taken for one that has, when it is taken away
        kind, name, key = place
        if name in self._changed[kind]:
            self._counted[kind] -= 1
        self._places.apply((key,), ((kind, name),))

    def end(self) -> None:
        """Take note that all changes are about to be taken away."""
        for ref in self._scans:
            scan = ref()
            if scan is not None:
                scan.freeze()

    def change(self, kind: Kind, name: Any) -> Change | Any:
        """Return the change under a name, or UNKNOWN."""
        value = self._changed[kind].get(name, UNKNOWN)
        if value is UNKNOWN:
            return self._changed_bytes[kind].get(name, UNKNOWN)
        return (self._decode_key(name) if kind is Packed else name), value

    def places(
        self, start: bytes | None, stop: bytes | None, reverse: bool, most: int | None
    ) -> list[tuple[bytes, tuple[Kind, Any]]]:
        """Return the first places of a range; None: all."""
        return list(islice(self._places.between(start, stop, reverse), most))

    def _catch_up(self) -> None:
        for kind, entries in self._changed.items():
            counted = self._counted.get(kind, 0)
            if len(entries) != counted:
                self._place(kind, islice(reversed(entries), len(entries) - counted))
                self._counted[kind] = len(entries)

    def _place(self, kind: Kind, names: Iterable[Any]) -> None:
        names = list(names)
        keys = names if kind is Packed else list(map(self._encode_key, names))
        self._places.apply(keys, [(kind, name) for name in names])


class PendingScan:
    """What was changed in a range when the scan began, read only as far as somebody goes.

    `pending` tells it of each change that is about to be made, as long as somebody holds this object.
    """

    __slots__ = ("__weakref__", "_before", "_frozen", "_pending", "_reverse", "_start", "_stop")

    def __init__(self, pending: PendingKeys, start: bytes | None, stop: bytes | None, reverse: bool) -> None:
        self._pending = pending
        self._start = start  # what is left: from here
        self._stop = stop  # to here
        self._reverse = reverse
        self._before: dict[bytes, Any] = {}
        self._frozen: list[tuple[bytes, Any]] | None = None

    def keep(self, key: bytes, before: Any) -> None:
        """Remember what was changed of `key`, or UNKNOWN for nothing, if this is its first change since."""
        self._before.setdefault(key, before)

    def freeze(self) -> None:
        """Read all that is left."""
        if self._frozen is None:
            places = self._pending.places(self._start, self._stop, self._reverse, None)
            changes = ((key, self._change(key, *place)) for key, place in places)
            self._frozen = [(key, change) for key, change in changes if change is not UNKNOWN]

    def rows(self) -> Iterator[tuple[bytes, Change]]:
        """Yield (key, change) in the order of the scan; to be called once."""
        most = _FIRST_KEYS
        while self._frozen is None:
            places = self._pending.places(self._start, self._stop, self._reverse, most)
            for key, place in places:
                if self._frozen is not None:
                    break
                change = self._change(key, *place)
                if self._reverse:
                    self._stop = key
                else:
                    self._start = key + b"\x00"
                if change is not UNKNOWN:
                    yield key, change
            else:
                if len(places) < most:
                    return
            most = min(2 * most, _MOST_KEYS)
        yield from self._frozen

    def _change(self, key: bytes, kind: Kind, name: Any) -> Change | Any:
        """Return what was changed of a key when the scan began; UNKNOWN: nothing."""
        if key in self._before:
            return self._before[key]
        return self._pending.change(kind, name)
