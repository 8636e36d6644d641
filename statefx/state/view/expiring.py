"""Entries that are over at a time: how they are kept, never seen after it, and removed.

Their clock is that of the attempt (rule 14.9).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import islice
from typing import Any

from statefx.config import SPELLINGS, seconds_of
from statefx.errors import CodecError
from statefx.state.contract.spaces import Space
from statefx.state.contract.store import Write
from statefx.state.encoding.codec import Codec
from statefx.state.encoding.envelope import EXPIRY_BYTES, NEVER, expiring, expiry_of
from statefx.state.view.changes import (
    ABSENT,
    KeyKind,
    MemoryKey,
    Overlay,
    Packed,
    StoreReads,
    Upgrade,
    of_key,
    overlay_for,
)

TTL_MAX_MS = 1000 * 366 * 86_400_000
"""A thousand years."""

TOUCHES = ("write", "read")
TOUCHED_PART = 10
"""A read moves an entry's time if it has gone back by more than one of so many parts of the ttl."""


@dataclass(frozen=True)
class Lifetime:
    """How long the entries of a map live.

    Parameters
    ----------
    ttl_ms : int
    on_read : bool
        Whether reading an entry begins its time anew, and not writing alone.
    """

    ttl_ms: int
    on_read: bool


FOREVER = Lifetime(TTL_MAX_MS, on_read=False)


def milliseconds_of(ttl: Any, what: str) -> int:
    """Return a ttl in milliseconds: a text such as "30 minutes", a timedelta, or seconds.

    Raises TypeError for what is none of them, ValueError for one that is not above 0, and for a text that is no time.
    """
    if isinstance(ttl, str):
        found = seconds_of(ttl)
        if found is None:
            raise ValueError(f"{what}: a ttl is a time such as {SPELLINGS}; above 0, and not {ttl!r}")
        ttl = found
    secs = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if isinstance(secs, bool) or not isinstance(secs, int | float):
        raise TypeError(f"{what}: a ttl is a text such as '30 minutes', a timedelta or seconds, not {ttl!r}")
    if not 0 < secs * 1000 <= TTL_MAX_MS:
        raise ValueError(f"{what}: a ttl is above 0 and at most 1,000 years, not {ttl!r}")
    return max(1, round(secs * 1000))


def lifetime_of(name: str, ttl: Any, touch: str | None) -> Lifetime | None:
    """Return the lifetime that ``state.map(name, ttl=..., touch=...)`` asks for; raises as `milliseconds_of`."""
    what = f"state.map({name!r})"
    if ttl is None:
        if touch is not None:
            raise ValueError(f"{what}: touch={touch!r} says what begins an entry's time anew, which needs a ttl=")
        return None
    if touch is not None and touch not in TOUCHES:
        raise ValueError(f"{what}: touch is 'write' or 'read', not {touch!r}")
    return Lifetime(milliseconds_of(ttl, what), touch == "read")


ScanFrom = Callable[[bytes | None], Iterator[tuple[bytes, bytes]]]
"""Reads what is stored from a key on, or from the first one."""

Names = Mapping[KeyKind, Iterable[Any]]
"""Entries, as an overlay's maps have them: kind -> names."""

TRACKED_MAX = 200_000
"""Entries of a map whose time a task knows without looking: some 20 MB. Those beyond are found by searching."""

_GENERATIONS = 6
"""What was put within a sixth of the ttl is removed together, when the last of it is over."""

_LOOKED_AT_MIN, _LOOKED_AT_PER_WRITE, _REMOVED_PER_LOOK = 64, 3, 8
"""In one transaction a search looks at so many entries that live at most, and removes so many for each of them.

Who goes through a map at three entries for each that is added has been everywhere before a third is added: of what is
stored, at most a quarter is over.
"""


@dataclass
class _Generation:
    """What was put within a part of the ttl."""

    first_ms: int
    """When the first of it is over, and the last."""
    last_ms: int
    names: dict[KeyKind, set[Any]] = field(default_factory=dict)
    ending: bool = False
    """Whether some of it may be over; then it has nothing that a newer generation has."""

    def __len__(self) -> int:
        return sum(map(len, self.names.values()))

    def remove(self, names: Names) -> None:
        """Take out what has another time now, or is gone."""
        for kind, own in self.names.items():
            own.difference_update(names.get(kind, ()))


class Tracked:
    """What this process has put, and when it is over: known without a look at the store, and without a timer for each.

    An entry is in the generation of its last put, and may be in those before, until they end. So what is put all the
    time costs one look-up for each put.
    """

    def __init__(self) -> None:
        self._generations: list[_Generation] = []
        self._planned: list[tuple[_Generation, Names]] = []

    def __len__(self) -> int:
        return sum(map(len, self._generations))

    def add(self, names: Names, expiry_ms: int, ttl_ms: int) -> None:
        """Take note of what is over at `expiry_ms`."""
        newest = self._generations[-1] if self._generations else None
        if newest is None or newest.ending or not 0 <= expiry_ms - newest.first_ms <= ttl_ms // _GENERATIONS:
            newest = _Generation(expiry_ms, expiry_ms)
            self._generations.append(newest)
        newest.last_ms = max(newest.last_ms, expiry_ms)
        for kind, added in names.items():
            if added:
                newest.names.setdefault(kind, set()).update(added)
        for generation in self._generations:
            if generation.ending:
                generation.remove(names)

    def remove(self, names: Names) -> None:
        """Take note of what has a time of its own now, or is gone."""
        for generation in self._generations:
            generation.remove(names)

    def endangered(self, now_ms: int) -> Iterator[Names]:
        """Yield, once, what may be over from now on."""
        for at, generation in enumerate(self._generations):
            if generation.first_ms <= now_ms and not generation.ending:
                for newer in self._generations[at + 1 :]:
                    generation.remove(newer.names)
                generation.ending = True
                yield generation.names

    def over(self, now_ms: int, most: int, changed: Collection[Names]) -> list[tuple[KeyKind, Any]]:
        """Return kind and name of so many entries at most that are over and not `changed` in this transaction."""
        self._planned = []
        found: list[tuple[KeyKind, Any]] = []
        for generation in self._generations:
            if generation.last_ms > now_ms:
                continue
            chosen: dict[KeyKind, list[Any]] = {}
            for kind, names in generation.names.items():
                left = names.difference(*(each.get(kind, ()) for each in changed))
                chosen[kind] = [*islice(left, max(0, most - len(found)))]
                found += [(kind, name) for name in chosen[kind]]
            self._planned.append((generation, chosen))
        return found

    def removed(self) -> None:
        """Take note that what `over` has told last was removed."""
        for generation, names in self._planned:
            generation.remove(names)
        if self._planned:
            self._planned = []
            self._generations = [each for each in self._generations if len(each)]


@dataclass(frozen=True)
class _Pass:
    """Going through a map from its first entry to its last, a few in each transaction."""

    began_ms: int
    next_key: bytes | None = None  # None: the first
    is_whole: bool = True  # not of what another object has begun
    seen_until: int = 0  # when the last of the entries is over that it has passed


@dataclass
class Search:
    """Finds what is over and was not tracked: what was there before, and what has a ttl of its own.

    It goes through the map, a bounded number of entries in each transaction, as long as there may be such entries. How
    far it has come is kept in the store: where each transaction opens its state, it would not get beyond the first
    entries.
    """

    untracked_until: int
    """When the last entry is over that was there before; `NEVER`: who knows."""
    swept_ms: int = 0
    """When the last complete pass began."""
    added_until: int = 0
    """When the last entry is over that was put since and is not tracked."""
    current: _Pass | None = None
    planned: tuple[_Pass, bool] | None = None
    """How far the pass has come when this transaction is committed, and whether that is its end."""
    kept: bytes | None = None
    """How far it has come, as the store has it."""
    is_new: bool = False
    """Whether that has to be read."""

    def go_on_from(self, now_ms: int, kept: bytes | None) -> None:
        """Go on from where another object has come."""
        self.kept, self.is_new = kept, False
        if kept is not None:
            self.current = _Pass(now_ms, kept, is_whole=False)

    @property
    def reached(self) -> bytes | None:
        """From where the search goes on when this transaction is committed."""
        return self.kept if self.planned is None else self.planned[0].next_key

    def find(self, now_ms: int, budget: int, scan: ScanFrom) -> list[bytes]:
        """Return keys of entries that are over."""
        over: list[bytes] = []
        self.planned = None
        if self.swept_ms > max(self.untracked_until, self.added_until):
            return over
        current = self.current or _Pass(now_ms)
        seen_until, alive = current.seen_until, 0
        for key, data in scan(current.next_key):
            expiry = expiry_of(data)
            if expiry <= now_ms:
                over.append(key)
            else:
                alive += 1
                if seen_until < expiry < NEVER:
                    seen_until = expiry
            if alive >= budget or len(over) >= _REMOVED_PER_LOOK * budget:
                self.planned = replace(current, next_key=key + b"\x00", seen_until=seen_until), False
                return over
        self.planned = replace(current, next_key=None, seen_until=seen_until), True
        return over

    def removed(self) -> None:
        """Take note that what `find` has told last was removed."""
        if self.planned is None:
            return
        self.kept = self.reached
        reached, ended = self.planned
        self.planned, self.current = None, None if ended else reached
        if ended and reached.is_whole:
            self.swept_ms = reached.began_ms
            if self.untracked_until == NEVER:  # what was there before has been seen by now, or removed
                self.untracked_until = reached.seen_until


class ExpiringOverlay(Overlay):
    """An overlay of entries each of which is over at a time, which stands before its value's bytes.

    The clock stands still in a transaction. So what the transaction puts into ``changed`` is over at one time, is
    alive as long as it is there, and gets its time when it is encoded. In ``known`` is only what this process has put,
    and nothing that may be over: it is taken out as time goes on (`Tracked`). What was read is in ``known_bytes``
    with its time, and so is what has a ttl of its own; and all that is known, if reads are to move the time.

    Entries without a time, which were written before the map had a ttl, are never over.

    Attributes
    ----------
    lifetime : Lifetime
        What it is that is written from now on.
    """

    lifetime: Lifetime
    _cursor: bytes
    """The key under which the store has how far the search has come."""
    _expiry: int
    _inner: Callable[[Any], bytes]
    _now_ms: int
    _prefix: bytes
    _search: Search
    _tracked: Tracked

    def _begin(self, clock_ms: int, *, fresh: bool) -> None:
        self._inner, self._encode = self._encode, self._lasting
        self._tracked = Tracked()
        self._search = Search(untracked_until=0 if fresh else NEVER, swept_ms=int(fresh), is_new=not fresh)
        self._cursor = Space.SYSTEM.value + b"sweep\x00" + self._first
        self._now_ms = clock_ms
        self.keep(FOREVER)

    def keep(self, lifetime: Lifetime) -> None:
        """Have what is written from now on live as long as `lifetime` says."""
        self.lifetime = lifetime
        self.set_clock(self._now_ms)

    def set_clock(self, clock_ms: int) -> None:
        """Go on at another time."""
        if clock_ms < self._now_ms:
            # Removed by a time that has not come: what is remembered of it would live again here, and nowhere else. And
            # what the search has found out holds for later times only.
            self.forget()
            self._search = Search(NEVER, is_new=True)
        self._now_ms = clock_ms
        self._expiry = clock_ms + self.lifetime.ttl_ms
        self._prefix = expiring(self._expiry)
        for names in self._tracked.endangered(clock_ms):
            for kind, endangered in names.items():
                known = self.known[kind]
                for name in endangered:
                    known.pop(name, None)

    def _lasting(self, value: Any) -> bytes:
        return self._prefix + self._inner(value)

    def _encoded(self, values: Iterable[Any]) -> Iterable[bytes]:
        prefix = self._prefix
        return [prefix + data for data in map(self._inner, values)]

    # ---- reading

    def decoded(self, key_bytes: bytes, data: bytes) -> Any:
        """Return the value stored as `data`, or `ABSENT` if it is over."""
        expiry = expiry_of(data)
        if expiry <= self._now_ms:
            return ABSENT
        return super().decoded(key_bytes, data if expiry == NEVER else data[EXPIRY_BYTES:])

    @staticmethod
    def _stays(value: Any) -> bool:
        return False

    def _learn(self, kind: KeyKind, entries: Iterable[tuple[Any, tuple[bytes, bytes | None]]]) -> None:
        for name, (_, data) in entries:
            if data is None:
                self.known[kind][name] = ABSENT
            else:
                self.known_bytes[kind][name] = data

    def scan(
        self, start: bytes | None, stop: bytes | None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes | tuple[Any, Any]]]:
        """Yield what lives in a range (see `Overlay.scan`)."""
        return filter(self._lives, super().scan(start, stop, reverse))

    # ---- changes

    def put_until(self, key: Any, value: Any, ttl_ms: int) -> None:
        """Set the value of `key`, with a ttl of its own."""
        place, expiry = self.place(key), self._now_ms + ttl_ms
        try:
            data = expiring(expiry) + self._inner(value)
        except CodecError as error:
            raise of_key(error, key) from None
        self._search.added_until = max(self._search.added_until, expiry)
        self._set_bytes(place, data)

    def touch(self, key: Any, place: MemoryKey, value: Any) -> None:
        """Take note that `key` was read: its time begins anew, if enough of it has gone by."""
        kind, name, _ = place
        if name in self.changed[kind]:
            return
        data = self.changed_bytes[kind].get(name) or self.known_bytes[kind].get(name)
        if data is None:  # only the store knows its time, which may be later than the map's ttl would have it
            data = self._read([place[2]])[0]
        if data is None or expiry_of(data) < self._expiry - self.lifetime.ttl_ms // TOUCHED_PART:
            self.put(key, value)

    def delete_range(self, start: bytes | None, stop: bytes | None) -> int:
        """Remove the entries of a range, those that are over as well; return how many lived."""
        rows = [*super().scan(start, stop)]
        for key, _ in rows:
            self._set_bytes(self.place(self.codec.decode_key(key)), None)
        return sum(self._lives(row) for row in rows)

    def _lives(self, row: tuple[bytes, Any]) -> bool:
        return type(row[1]) is tuple or expiry_of(row[1]) > self._now_ms

    def changes(self) -> list[Write]:
        """Return what was changed since the last commit, and removals of what is over."""
        writes = super().changes()
        budget = _LOOKED_AT_MIN + _LOOKED_AT_PER_WRITE * len(writes)
        search = self._search
        if search.is_new:
            search.go_on_from(self._now_ms, self._store.get([self._cursor])[0])
        over = search.find(self._now_ms, budget, self._scan_from)
        if search.reached != search.kept:
            writes.append((self._cursor, search.reached))
        found = self._tracked.over(self._now_ms, _REMOVED_PER_LOOK * budget, (self.changed, self.changed_bytes))
        over += [name if kind is Packed else self._encode_key(name) for kind, name in found]
        if over:
            written = {key for key, _ in writes}
            writes += [(key, None) for key in dict.fromkeys(over) if key not in written]
        return writes

    def _scan_from(self, start: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return self._store.scan(start or self._first, self._end, False)

    def absorb(self, writes: list[Write]) -> None:
        """Count `writes`, all changes there are, among what is known of what is committed: now they are."""
        self._search.removed()
        self._tracked.removed()
        if self._track() and not self.lifetime.on_read:
            super().absorb(writes)
            return
        put = {kind: dict(entries) for kind, entries in self.changed.items() if entries}
        super().absorb(writes)
        for kind, entries in put.items():
            for name in self.known[kind].keys() & entries.keys():
                del self.known[kind][name]
            if self._remembered_bytes:  # else it has just been too much
                self.known_bytes[kind].update(zip(entries, self._encoded(entries.values()), strict=True))

    def _track(self) -> bool:
        """Take note of when the changes are over; False: there are too many."""
        if any(self.changed_bytes.values()):
            self._tracked.remove(self.changed_bytes)
        names: list[tuple[KeyKind, Collection[Any]]] = [
            (kind, entries) for kind, entries in self.changed.items() if entries
        ]
        for kind, changed_bytes in self.changed_bytes.items():
            own = [name for name, data in changed_bytes.items() if data is not None and data.startswith(self._prefix)]
            names += [(kind, own)] if own else []
        if len(self._tracked) + sum(len(added) for _, added in names) > TRACKED_MAX:
            self._search.added_until = max(self._search.added_until, self._expiry)
            self._tracked.remove(self.changed)
            return False
        for kind, added in names:
            self._tracked.add({kind: added}, self._expiry, self.lifetime.ttl_ms)
        return True


def expiring_overlay(
    store: StoreReads,
    codec: Codec | None,
    cache_bytes: int,
    head: bytes,
    state_version: int,
    upgrade: Upgrade | None,
    clock_ms: int,
    *,
    fresh: bool,
) -> ExpiringOverlay:
    """Return what keeps the changes of the keys that begin with `head`.

    `clock_ms` is the time, in milliseconds since the epoch. If `fresh`, the store is known to be empty.
    """
    overlay = overlay_for(ExpiringOverlay, store, codec, cache_bytes, head, state_version, upgrade)
    overlay._begin(clock_ms, fresh=fresh)
    return overlay
