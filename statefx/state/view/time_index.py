"""State by time: timers, which fire in order, and entries of maps that expire.

It is natural to keep timers in a heap in memory. A start has to rebuild it from all keys, and a rollback to undo it.
So timers and entries that expire have an index in the task's store, in which the time stands before the key; what is
due is a range, and a transaction reads no more::

    timers   Space.TIMERS, clock, time, key, name      -> the value      and by key and name the time, to find it again
    ttl      Space.SYSTEM, head of the map, time, id   -> keys           each entry has its own time before its value

One would also fire a timer when the watermark passes it. Rows come in any order, so whether a row of the same
transaction is in the state when the timer fires would be chance. Timers fire when the input is whole, by time and key
(rule 14.7).

It is tempting to fire what the range holds at that moment. The timer of 10:00 sets one for 10:05, the watermark is
10:10, and another is due at 10:07: read as it stood, the range fires 10:07 first. So `TimeIndex.due` merges what is
set meanwhile.

It seems simpler to begin each scan at the head of the index. It then passes all that has fired before, whose
deletions the store may still have. So the first time is remembered, and a scan begins there.

It is natural to compare an entry's time with the clock when it is read. A ``preCommit`` that runs ten minutes late,
after a restart, would not find what its transaction has prepared. So the clock is that of the attempt (rule 14.9).
And an entry of the index for each expiring key would cost as much as the key's own: keys of a transaction are
together in one.
"""

from __future__ import annotations

import heapq
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple, Protocol

import msgspec

from statefx.config import NOT_WRITTEN, SPELLINGS, Span, micros_of
from statefx.errors import CodecError
from statefx.state.contract.spaces import Space, end_of, head_of, name_of
from statefx.state.contract.store import Write
from statefx.state.encoding.codec import Codec
from statefx.state.encoding.values import EXPIRY_BYTES, NEVER, expiring, expiry_of
from statefx.state.view.changes import (
    ABSENT,
    KeyKind,
    MemoryKey,
    Overlay,
    StepJournal,
    StoreReads,
    Upgrade,
    of_key,
    overlay_for,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST = datetime.min.replace(tzinfo=UTC)
LAST = datetime.max.replace(tzinfo=UTC)
"""The first and the last time that Python has; the last is the watermark where event time is closed."""


def time_of(micros: int) -> datetime:
    """Return microseconds since 1970 as a time in UTC; of years that Python has not, the nearest time it has.

    >>> time_of(-1).isoformat()
    '1969-12-31T23:59:59.999999+00:00'
    """
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return FIRST if micros < 0 else LAST


_MICROSECOND = timedelta(microseconds=1)


_KNOWN_BYTES = 4 << 20
"""Of what is remembered of timers by key: most of them are set once, and fire."""


class Clock(Enum):
    """The clock of a timer."""

    EVENT = b"e"
    PROCESSING = b"p"


class Timer(NamedTuple):
    """One timer that fires."""

    key: Any
    at: datetime
    """When it was to fire, in UTC."""
    value: Any
    name: str
    processing: bool
    """Whether it goes by the clock, and not by the watermark."""


_BIAS = 1 << 63
"""Added to times in keys, so that those before 1970 come first."""


def micros(at: datetime) -> int:
    return (at - EPOCH) // _MICROSECOND


_FIRST_US, _LAST_US = micros(FIRST), micros(LAST)


class IndexedState(Protocol):
    """The part of a task's state that timers use."""

    _overlay: Overlay
    _timers_first: dict[bytes, bytes]

    def _raw_overlay(self, head: bytes, cache_bytes: int = ...) -> Overlay: ...

    def _value_form(self) -> Overlay: ...

    def _require_open(self) -> None: ...

    def _require_writable(self, call: str) -> None: ...

    def __reduce_ex__(self, protocol: Any) -> Any: ...


_TIME_BYTES = 8


def time_bytes(time: int) -> bytes:
    return (time + _BIAS).to_bytes(_TIME_BYTES)


def _number(timed: bytes) -> int:
    return int.from_bytes(timed[:_TIME_BYTES]) - _BIAS


class TimeIndex:
    """Keys by their times, with data, in the order in which they are due; and the time of a key.

    Keys are bytes, and order what is due at one time. What is changed is looked up in the overlays' own dicts: a scan
    of theirs would keep an order of all that is changed while timers fire, and half of the time went into that.
    """

    __slots__ = ("_by_key", "_by_time", "_end", "_firing", "_gone", "_head", "_key_head", "_new", "_state", "_times")

    def __init__(self, state: IndexedState, head: bytes, key_head: bytes) -> None:
        self._state = state
        self._head = head
        self._end = end_of(head)
        self._by_time = state._raw_overlay(head, cache_bytes=0)
        self._new: dict[bytes, bytes] = self._by_time.changed[bytes]
        self._gone: dict[bytes, bytes | None] = self._by_time.changed_bytes[bytes]
        self._key_head = key_head
        self._by_key = state._raw_overlay(key_head, _KNOWN_BYTES)
        self._times: dict[bytes, bytes] = self._by_key.changed[bytes]
        self._firing: _Firing | None = None

    def at(self, key: bytes) -> int | None:
        """Return the time of a key, or None if it has none."""
        time = self._time_of(key)
        return None if time is None else _number(time)

    def _time_of(self, key: bytes) -> bytes | None:
        place = self._key_head + key
        time = self._by_key.find((bytes, place, place))
        return None if time is ABSENT else time

    def put(self, key: bytes, at: int, data: bytes = b"") -> None:
        """Give a key a time; one that it has is moved."""
        time, before = time_bytes(at), self._time_of(key)
        if before != time:
            if before is not None:
                self._drop(before + key)
            name = self._key_head + key
            self._by_key.note(bytes, name)
            self._times[name] = time
            self._by_key.changed_bytes[bytes].pop(name, None)
        place = self._head + time + key
        self._by_time.note(bytes, place)
        self._new[place] = data
        self._gone.pop(place, None)
        if self._firing is not None and place < self._firing.stop:
            heapq.heappush(self._firing.new, place)
        first = self._state._timers_first.get(self._head)
        if first is not None and place < first:
            self._state._timers_first[self._head] = place

    def delete(self, key: bytes) -> bool:
        """Remove a key; return whether it had a time."""
        time = self._time_of(key)
        if time is None:
            return False
        name = self._key_head + key
        self._by_key.note(bytes, name)
        self._times.pop(name, None)
        self._by_key.known[bytes].pop(name, None)
        self._by_key.changed_bytes[bytes][name] = None
        self._drop(time + key)
        return True

    def _drop(self, timed: bytes) -> None:
        place = self._head + timed
        self._by_time.note(bytes, place)
        self._new.pop(place, None)
        self._gone[place] = None

    def first(self) -> int | None:
        """Return a time before which nothing is due, or None if there is nothing.

        It is the first time, or earlier if what was due then was deleted.
        """
        first = self._first()
        return None if first == self._end else _number(first[len(self._head) :])

    def _first(self) -> bytes:
        first = self._state._timers_first.get(self._head)
        if first is None:
            below = (key for key, _ in self._by_time.scan_below(self._head, self._end) if key not in self._gone)
            first = min(next(below, self._end), min(self._new, default=self._end))
            self._state._timers_first[self._head] = first
        return first

    def due(self, limit: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield (time, key, data) of what is due at `limit`, in order; it is deleted as it is yielded.

        What is put meanwhile, for a time up to `limit`, comes in its order among what is left.
        """
        head, gone, new = self._head, self._gone, self._new
        head_bytes, key_head, times = len(head), self._key_head, self._times
        known, not_there = self._by_key.known[bytes], self._by_key.changed_bytes[bytes]
        first, stop = self._first(), head + time_bytes(min(limit, _BIAS - 2) + 1)
        if first >= stop:
            return
        firing = self._firing = _Firing(stop, [place for place in new if place < stop])
        heapq.heapify(firing.new)
        # Not before it is known: what is set while timers fire may be the first.
        self._state._timers_first[head] = self._end
        rows = self._by_time.scan_below(first, self._end)  # from the head it would pass all that has fired before
        row = next(rows, None)
        try:
            while True:
                # Of a timer that was set again at its time, the scan has the value of before: it is among the new.
                while row is not None and (row[0] in gone or row[0] in new):
                    row = next(rows, None)
                if firing.new and (row is None or firing.new[0] < row[0]):
                    place = heapq.heappop(firing.new)
                    data = new.get(place)
                    if data is None:  # it was deleted or moved since, or stands there twice
                        continue
                elif row is not None and row[0] < stop:
                    place, data = row
                    row = next(rows, None)
                else:
                    break
                timed = place[head_bytes:]
                name = key_head + timed[_TIME_BYTES:]
                times.pop(name, None)
                known.pop(name, None)
                not_there[name] = None
                new.pop(place, None)
                gone[place] = None
                yield _number(timed), timed[_TIME_BYTES:], data
            first = self._end if row is None else row[0]
            self._state._timers_first[head] = min(first, min(new, default=first))
        except BaseException:
            self._state._timers_first.pop(head, None)
            raise
        finally:
            self._firing = None


@dataclass(slots=True)
class _Firing:
    """One index's part of a firing."""

    stop: bytes
    new: list[bytes]
    """Times that this transaction has put before `stop`: a heap. Some of it may be gone by now."""


class Timers:
    """The timers of one task, which are state: set, deleted and fired in the transaction (rule 14.7).

    Parameters
    ----------
    state : KeyValueState
        The task's; timers lie in its store and are prepared with it.
    refusal : str
        Why no timer of event time can be set; empty: one can.

    Contract
    --------
    * A timer fires once, in the transaction in which its time has passed, at the end of the task's input; those of one
      transaction in the order of their times, then of their keys, then of their names.
    * Of a key and a name there is one timer for each clock: to set it again moves it.
    * A timer that is set while timers fire, for a time that has passed, fires in the same transaction, in its order
      among those that are left.
    """

    __slots__ = ("_encode_key", "_encode_value", "_head", "_indexes", "_refusal", "_state", "_values", "fired")

    def __init__(self, state: IndexedState, refusal: str = "") -> None:
        self._state = state
        self._refusal = refusal
        overlay = state._overlay
        self._encode_key: Callable[[Any], bytes] = overlay.encode_key
        self._values = state._value_form()
        self._encode_value: Callable[[Any], bytes] = self._values._encode
        self._head = overlay._first
        space = Space.TIMERS.value
        self._indexes = {clock: TimeIndex(state, space + clock.value, space + b"k" + clock.value) for clock in Clock}
        self.fired: Timer | None = None
        """The timer that fires, while ``onTimer`` runs: its `name` tells it from others of the key."""

    def set(self, key: Any, at: datetime, value: Any = None, *, name: str = "", processing: bool = False) -> None:
        """Have ``onTimer(key, at, value, collector)`` called when `at` has passed.

        Parameters
        ----------
        key : Any
            As of state; need not be one that the state holds.
        at : datetime
            With a time zone. What is set in ``execute`` or ``onTimer`` for a time that has passed fires in this
            transaction; what is set later in it, in the next one.
        value : Any, optional
            What ``onTimer`` is given, as a value of state; as it was set, also by an older ``stateVersion``.
        name : str, optional
            Of several timers of a key.
        processing : bool
            Go by the clock (``context.processingTime``), and not by the watermark of event time.

        Raises
        ------
        CodecError
            State can't hold `key` or `value`.
        TypeError, ValueError
            `at` is no datetime, has no time zone, or is a time that Python does not have in UTC; or it is one of event
            time, and no input of the bolt has a ``timestamp``.
        """
        if not isinstance(at, datetime):
            raise TypeError(
                f"a timer's time is a datetime, such as context.processingTime + timedelta(...), not {at!r}"
            )
        if at.tzinfo is None:
            raise ValueError(f"a timer's time needs a time zone: {at!r}.replace(tzinfo=UTC), if it is meant so")
        time = micros(at)
        if not _FIRST_US <= time <= _LAST_US:  # else nobody could be told of it when it fires
            raise ValueError(
                f"a timer's time is one that Python has in UTC, and {at!r} is not: take "
                "datetime.max.replace(tzinfo=UTC), or set no timer for what never comes"
            )
        self._state._require_writable("timers.set")
        if self._refusal and not processing:
            raise ValueError(self._refusal)
        data = b"" if value is None else with_timer_value(self._value_bytes(value, key))
        self._index(processing).put(self._of(key, name), time, data)

    def get(self, key: Any, *, name: str = "", processing: bool = False) -> datetime | None:
        """Return when a timer fires, in UTC; None if it is not set."""
        self._state._require_open()
        time = self._index(processing).at(self._of(key, name))
        return None if time is None else time_of(time)

    def delete(self, key: Any, *, name: str = "", processing: bool = False) -> bool:
        """Delete a timer; return whether it was set."""
        self._state._require_writable("timers.delete")
        return self._index(processing).delete(self._of(key, name))

    def _index(self, processing: bool) -> TimeIndex:
        return self._indexes[Clock.PROCESSING if processing else Clock.EVENT]

    def _of(self, key: Any, name: str) -> bytes:
        key_bytes = self._encode_key(key)[len(self._head) :]
        if b"\0" in key_bytes:
            key_bytes = _escaped(key_bytes)
        if not name:
            return key_bytes + b"\0"
        if "\0" in name:
            raise ValueError(f"the name of a timer has no NUL: {name!r}")
        return key_bytes + b"\0" + name.encode()

    def _value_bytes(self, value: Any, key: Any) -> bytes:
        try:
            return self._encode_value(value)
        except CodecError as error:
            raise CodecError(f"the timer of key {key!r}: {error.message}", **error.data) from None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be pickled or copied, as the state does."""
        return self._state.__reduce_ex__(protocol)


def fire(timers: Timers, clock: Clock, limit: int | None) -> Iterator[Timer]:
    """Yield the timers of a clock that are due at `limit`, in their order; each is deleted as it is yielded.

    `limit` is in microseconds since 1970; None: nothing is due.
    """
    if limit is None:
        return
    overlay, head, processing = timers._state._overlay, timers._head, clock is Clock.PROCESSING
    decoded = timers._values.decoded
    for time, of, data in timers._indexes[clock].due(limit):
        end = of.rindex(b"\0")
        key_bytes = head + of[:end].replace(b"\0\xff", b"\0")
        value = decoded(key_bytes, data[1:]) if data else None
        yield Timer(overlay.key_of(key_bytes), time_of(time), value, of[end + 1 :].decode(), processing)


def due_micros(timers: Timers, clock: Clock) -> int | None:
    """Return when the first timer of a clock may be due, in microseconds since 1970; None: there is none.

    It is never later than the first timer; earlier, if that was deleted.
    """
    return timers._indexes[clock].first()


def timer_key(stored: bytes) -> bytes:
    """Return the bytes of a timer's key, without those of a space, of an entry of `Space.TIMERS`."""
    of = stored[_before_key(stored) :]
    return of[: of.rindex(b"\0")].replace(b"\0\xff", b"\0")


def with_timer_key(stored: bytes, key_bytes: bytes) -> bytes:
    """Return under what an entry of `Space.TIMERS` is kept whose timer has another key."""
    return stored[: _before_key(stored)] + _escaped(key_bytes) + stored[stored.rindex(b"\0") :]


def timer_value(stored: bytes, data: bytes) -> bytes | None:
    """Return the value of a timer, as it is stored, of an entry of `Space.TIMERS`; None if that has none."""
    return data[1:] if data and not _is_by_key(stored) else None


def with_timer_value(value: bytes) -> bytes:
    """Return what is kept of a timer, by its time, that has this value."""
    return b"\x01" + value


def _is_by_key(stored: bytes) -> bool:
    return stored[len(Space.TIMERS.value) :][:1] == b"k"


def _before_key(stored: bytes) -> int:
    """Return where the key begins: behind the space, the clock, and what is by key or the time."""
    return len(Space.TIMERS.value) + (2 if _is_by_key(stored) else 1 + _TIME_BYTES)


def _escaped(key_bytes: bytes) -> bytes:
    return key_bytes.replace(b"\0", b"\0\xff")


TTL_MAX_MS = 1000 * 366 * 86_400_000
"""A thousand years."""

TOUCHES = ("write", "read")
TOUCHED_PART = 10
"""A read moves an entry's time if it has gone back by more than one of so many parts of the ttl."""


@dataclass(frozen=True)
class Lifetime:
    """How long the entries of a map live."""

    ttl_ms: int
    on_read: bool  # whether reading an entry begins its time anew, and not writing alone


FOREVER = Lifetime(TTL_MAX_MS, on_read=False)


def milliseconds_of(ttl: Any, what: str) -> int:
    """Return a ttl in milliseconds: a text such as "30 minutes", a timedelta, a Duration, or seconds.

    Raises TypeError for what is none of them, ValueError for one that is not above 0, and for a text that is no time.
    """
    if isinstance(ttl, Span):
        micros = micros_of(ttl)
        if micros is None:
            raise ValueError(
                f"{what}: a ttl is a time such as {SPELLINGS}; {NOT_WRITTEN}, or seconds; above 0, and not {ttl!r}"
            )
        secs: Any = micros / 1e6
    else:
        secs = ttl
    if isinstance(secs, bool) or not isinstance(secs, int | float):
        raise TypeError(
            f"{what}: a ttl is a text such as '30 minutes', a timedelta, a Duration or seconds, not {ttl!r}"
        )
    if not 0 < secs * 1000 <= TTL_MAX_MS:
        raise ValueError(f"{what}: a ttl is above 0 and at most 1,000 years, not {ttl!r}")
    return max(1, round(secs * 1000))


def lifetime_of(name: str, ttl: Any, touch: str | None) -> Lifetime | None:
    """Return the lifetime that ``state.map(name, ttl=..., touch=...)`` asks for; raises as `milliseconds_of`."""
    what = f"state.map({name!r})"
    if ttl is None:
        if touch is not None:
            raise ValueError(f"{what}: touch={touch!r} says what restarts an entry's time, which needs a ttl=")
        return None
    if touch is not None and touch not in TOUCHES:
        raise ValueError(f"{what}: touch is 'write' or 'read', not {touch!r}")
    return Lifetime(milliseconds_of(ttl, what), touch == "read")


INDEXED_MAX = 200_000
"""Entries of a map of which a task remembers that they stand in the index: some 20 MB. Others are put there again."""

_PARTS = 6
"""Times in the index are rounded up to one of so many parts of the ttl: to put a key again within it costs nothing."""

_REMOVED_MIN, _REMOVED_PER_WRITE = 512, 4
"""How many entries of the index one transaction looks at: after a pause, millions may be due."""


_TOGETHER = 500
"""Keys in one entry of the index."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[bytes]).decode


def index_entry(key: bytes, at_ms: int) -> tuple[bytes, bytes]:
    """Return an entry of the index for a key as it is stored, of a map, which is over at a time."""
    head = head_of(*name_of(key))
    return Space.SYSTEM.value + head + time_bytes(at_ms * 1000) + os.urandom(8), _pack([key[len(head) :]])


def indexed_keys(stored: bytes, data: bytes) -> list[bytes]:
    """Return the keys that an entry of the index, of `Space.SYSTEM`, has, as they are stored."""
    head = head_of(*name_of(stored[1:]))
    return [head + key for key in _unpack(data)]


def index_part(stored: bytes, keys: Sequence[bytes], task: int) -> tuple[bytes, bytes]:
    """Return the part of an entry of the index that a new task gets; parts never meet under one key again."""
    behind = len(head_of(*name_of(stored[1:])))
    return stored + task.to_bytes(4), _pack([key[behind:] for key in keys])


class ExpiringOverlay(Overlay):
    """An overlay whose entries expire; the time stands before a value's bytes.

    The clock stands still in a transaction. So what the transaction puts into ``changed`` is over at one time, is alive
    as long as it is there, and gets its time when it is encoded. In ``known`` is only what this process has put, until
    the first of it is over. What was read is in ``known_bytes`` with its time, and so is what has a ttl of its own; and
    all that is known, if reads are to move the time.

    Entries without a time, which were written before the map had a ttl, are never over. Of all others the index has
    when they are over, or a little later; and may have earlier times of theirs, at which they are looked at in vain.
    """

    lifetime: Lifetime
    """Of what is written from now on."""
    _expiry: int
    _index: bytes
    """Prefix of its index's keys."""
    _indexed: set[bytes]
    """Keys that stand in the index at the time of what is put now; not all of them."""
    _indexed_ms: int
    """That time."""
    _inner: Callable[[Any], bytes]
    _known_until: int
    """When the first of what is in ``known`` is over."""
    _next_due: int
    """Nothing in the index is due before."""
    _now_ms: int
    _planned: tuple[list[bytes], int]
    """Next values of `_indexed` and `_next_due`, when the changes are prepared."""
    _prefix: bytes

    def _begin(self, clock_ms: int) -> None:
        self._inner, self._encode = self._encode, self._lasting
        self._index = Space.SYSTEM.value + self._first
        self._indexed, self._indexed_ms, self._planned = set(), 0, ([], 0)
        self._known_until, self._next_due, self._now_ms = NEVER, 0, clock_ms
        self.keep(FOREVER)

    def keep(self, lifetime: Lifetime) -> None:
        """Set the lifetime of what is written from now on."""
        self.lifetime = lifetime
        self.set_clock(self._now_ms)

    def set_clock(self, clock_ms: int) -> None:
        # Removed by a time that has not come: what is remembered of it would live again here, and nowhere else.
        if clock_ms < self._now_ms or clock_ms >= self._known_until:
            self.forget()
            self._known_until = NEVER
        self._now_ms = clock_ms
        self._expiry = clock_ms + self.lifetime.ttl_ms
        self._prefix = expiring(self._expiry)
        part_ms = max(1, self.lifetime.ttl_ms // _PARTS)
        rounded = -(-self._expiry // part_ms) * part_ms
        if rounded != self._indexed_ms:
            self._indexed, self._indexed_ms = set(), rounded

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
        self._set_bytes(place, data)

    def touch(self, key: Any, place: MemoryKey, value: Any) -> None:
        """Note that `key` was read: its time restarts, if enough of it has gone by.

        No `StepJournal` has that: a call may read and then await, and others may change the entry before it fails. If
        the call has changed the entry before, the undo of that covers it.
        """
        kind, name, _ = place
        if name in self.changed[kind]:
            return
        data = self.changed_bytes[kind].get(name) or self.known_bytes[kind].get(name)
        if data is None:  # only the store knows its time, which may be later than the map's ttl would have it
            data = self._read([place[2]])[0]
        if data is None or expiry_of(data) < self._expiry - self.lifetime.ttl_ms // TOUCHED_PART:
            journal = self.journal
            if isinstance(journal, StepJournal):
                self.journal = None
            try:
                self.put(key, value)
            finally:
                self.journal = journal

    def delete_range(self, start: bytes | None, stop: bytes | None) -> int:
        """Remove the entries of a range, those that are over as well; return how many lived."""
        rows = [*super().scan(start, stop)]
        for place in [self.place(self.key_of(key)) for key, _ in rows]:
            self._set_bytes(place, None)
        return sum(self._lives(row) for row in rows)

    def _lives(self, row: tuple[bytes, Any]) -> bool:
        return type(row[1]) is tuple or expiry_of(row[1]) > self._now_ms

    def changes(self) -> list[Write]:
        writes = super().changes()
        next_due, removals = self._next_due, list[Write]()
        if next_due <= self._now_ms:
            next_due, removals = self._removals({key for key, _ in writes})
        # Nearly all are what was put into `changed`, which comes first and is over at one time.
        lasting, indexed, behind = sum(map(len, self.changed.values())), self._indexed, len(self._first)
        added = [key for key, _ in writes[:lasting] if key not in indexed]
        by_time: defaultdict[int, list[bytes]] = defaultdict(list)
        for key, data in writes[lasting:]:
            if data is None or data.startswith(self._prefix):
                added += [key] if data is not None and key not in indexed else ()
            elif (expiry := expiry_of(data)) != NEVER:
                by_time[expiry].append(key[behind:])
        if added:
            by_time[self._indexed_ms] += [key[behind:] for key in added]
        self._planned = added, min([next_due, *by_time])
        places: list[Write] = []
        for at_ms, keys in by_time.items():
            place = self._index + time_bytes(at_ms * 1000)
            parts = (keys[first : first + _TOGETHER] for first in range(0, len(keys), _TOGETHER))
            places += [(place + os.urandom(8), _pack(part)) for part in parts]
        return writes + removals + places

    def _removals(self, written: set[bytes]) -> tuple[int, list[Write]]:
        """Return when the next is due, and removals of what is over and not `written`, and of what is due."""
        begin, stop = (self._index + time_bytes(at_ms * 1000) for at_ms in (self._next_due, self._now_ms + 1))
        rows = self._store.scan(begin, end_of(self._index), False)
        places: list[bytes] = []
        due: dict[bytes, None] = {}
        next_due = NEVER
        for place, data in rows:
            if place >= stop or len(due) >= _REMOVED_MIN + _REMOVED_PER_WRITE * len(written):
                next_due = _number(place[len(self._index) :]) // 1000
                break
            places.append(place)
            due.update(dict.fromkeys(self._first + key for key in _unpack(data)))
        keys = due.keys() - written
        found = zip(keys, self._store.get([*keys]) if keys else (), strict=True)
        # One that was put again lives on, and stands in the index at a later time too.
        over = [key for key, data in found if data is not None and expiry_of(data) <= self._now_ms]
        return next_due, [(key, None) for key in (*places, *over)]

    def absorb(self, writes: list[Write]) -> None:
        """Count `writes`, all changes there are, among the known entries below."""
        added, self._next_due = self._planned
        if len(self._indexed) + len(added) <= INDEXED_MAX:
            self._indexed.update(added)
        if not self.lifetime.on_read:
            self._known_until = min(self._known_until, self._expiry)
            super().absorb(writes)
            return
        put = {kind: dict(entries) for kind, entries in self.changed.items() if entries}
        super().absorb(writes)
        for kind, entries in put.items():
            for name in self.known[kind].keys() & entries.keys():
                del self.known[kind][name]
            if self._remembered_bytes:  # otherwise it has just been too much
                self.known_bytes[kind].update(zip(entries, self._encoded(entries.values()), strict=True))


def expiring_overlay(
    store: StoreReads,
    codec: Codec | None,
    cache_bytes: int,
    head: bytes,
    state_version: int,
    upgrade: Upgrade | None,
    clock_ms: int,
) -> ExpiringOverlay:
    """Return the overlay of the keys that begin with `head`; `clock_ms` is in milliseconds since the epoch."""
    overlay = overlay_for(ExpiringOverlay, store, codec, cache_bytes, head, state_version, upgrade)
    overlay._begin(clock_ms)
    return overlay
