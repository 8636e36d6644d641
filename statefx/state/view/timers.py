"""Timers of one task: by time, to be fired in order, and by key, to be found again."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple

from statefx.errors import CodecError
from statefx.state.contract.spaces import Space, end_of
from statefx.state.view.changes import ABSENT
from statefx.state.view.task_state import KeyValueState

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
    """Which time a timer goes by."""

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
    """Return an instant as microseconds since 1970."""
    return (at - EPOCH) // _MICROSECOND


_FIRST_US, _LAST_US = micros(FIRST), micros(LAST)


class _Index:
    """The timers of one clock: by time, in the order in which they fire, and by key, to be found again.

    By time the value is there as well; by key there is the time. Key and name of a timer are one run of bytes, which
    order as keys do, then as names. What is changed is looked up in the overlays' own dicts: a scan of theirs would
    keep an order of all that is changed while timers fire, and half of the time went into that.
    """

    __slots__ = ("_by_key", "_by_time", "_end", "_gone", "_head", "_key_head", "_new", "_state", "_times", "firing")

    def __init__(self, state: KeyValueState[Any, Any], clock: Clock) -> None:
        self._state = state
        self._head = Space.TIMERS.value + clock.value
        self._end = end_of(self._head)
        self._by_time = state._raw_overlay(self._head, cache_bytes=0)
        self._new: dict[bytes, bytes] = self._by_time.changed[bytes]
        self._gone: dict[bytes, bytes | None] = self._by_time.changed_bytes[bytes]
        self._key_head = Space.TIMERS.value + b"k" + clock.value
        self._by_key = state._raw_overlay(self._key_head, _KNOWN_BYTES)
        self._times: dict[bytes, bytes] = self._by_key.changed[bytes]
        self.firing: _Firing | None = None

    def time_of(self, of: bytes) -> bytes | None:
        """Return when a timer fires, as it stands in keys."""
        key = self._key_head + of
        found = self._by_key.find((bytes, key, key))
        return None if found is ABSENT else found

    def put(self, of: bytes, time: bytes, data: bytes) -> None:
        before = self.time_of(of)
        if before != time:
            if before is not None:
                self._drop(before + of)
            key = self._key_head + of
            self._by_key.note(bytes, key)
            self._times[key] = time
            self._by_key.changed_bytes[bytes].pop(key, None)
        place = self._head + time + of
        self._by_time.note(bytes, place)
        self._new[place] = data
        self._gone.pop(place, None)
        if self.firing is not None and place < self.firing.stop:
            heapq.heappush(self.firing.new, place)
        first = self._state._timers_first.get(self._head)
        if first is not None and place < first:
            self._state._timers_first[self._head] = place

    def delete(self, of: bytes, time: bytes) -> None:
        key = self._key_head + of
        self._by_key.note(bytes, key)
        self._times.pop(key, None)
        self._by_key.known[bytes].pop(key, None)
        self._by_key.changed_bytes[bytes][key] = None
        self._drop(time + of)

    def _drop(self, timed: bytes) -> None:
        place = self._head + timed
        self._by_time.note(bytes, place)
        self._new.pop(place, None)
        self._gone[place] = None

    def first(self) -> bytes:
        """Return a key that no timer is before; the end, if there is no timer."""
        first = self._state._timers_first.get(self._head)
        if first is None:
            below = (key for key, _ in self._by_time.scan_below(self._head, self._end) if key not in self._gone)
            first = min(next(below, self._end), min(self._new, default=self._end))
            self._state._timers_first[self._head] = first
        return first

    def due(self, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield (time, key and name; value) of what is before `stop`, in order; it is deleted as it is yielded.

        What is set meanwhile, for a time before `stop`, comes in its order among those that are left.
        """
        head, gone, new = self._head, self._gone, self._new
        head_bytes, key_head, times = len(head), self._key_head, self._times
        known, not_there = self._by_key.known[bytes], self._by_key.changed_bytes[bytes]
        first = self.first()
        if first >= stop:
            return
        firing = self.firing = _Firing(stop, [place for place in new if place < stop])
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
                key = key_head + timed[_TIME_BYTES:]
                times.pop(key, None)
                known.pop(key, None)
                not_there[key] = None
                new.pop(place, None)
                gone[place] = None
                yield timed, data
            first = self._end if row is None else row[0]
            self._state._timers_first[head] = min(first, min(new, default=first))
        except BaseException:
            self._state._timers_first.pop(head, None)
            raise
        finally:
            self.firing = None


@dataclass(slots=True)
class _Firing:
    """What is fired of one clock."""

    stop: bytes
    new: list[bytes]
    """What this transaction has set before `stop`: a heap. Some of it may be gone by now."""


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

    def __init__(self, state: KeyValueState[Any, Any], refusal: str = "") -> None:
        self._state = state
        self._refusal = refusal
        overlay = state._overlay
        self._encode_key: Callable[[Any], bytes] = overlay.codec.encode_key
        self._values = state._value_form()
        self._encode_value: Callable[[Any], bytes] = self._values._encode
        self._head = overlay._first
        self._indexes = {clock: _Index(state, clock) for clock in Clock}
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
        self._index(processing).put(self._of(key, name), _time_bytes(time), data)

    def get(self, key: Any, *, name: str = "", processing: bool = False) -> datetime | None:
        """Return when a timer fires, in UTC; None if it is not set."""
        self._state._require_open()
        time = self._index(processing).time_of(self._of(key, name))
        return None if time is None else _time_at(time)

    def delete(self, key: Any, *, name: str = "", processing: bool = False) -> bool:
        """Have a timer not fire; tell whether it was set."""
        self._state._require_writable("timers.delete")
        index, of = self._index(processing), self._of(key, name)
        time = index.time_of(of)
        if time is not None:
            index.delete(of, time)
        return time is not None

    def _index(self, processing: bool) -> _Index:
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
    index, processing = timers._indexes[clock], clock is Clock.PROCESSING
    overlay, head = timers._state._overlay, timers._head
    decode_key, decoded, from_bytes = overlay.codec.decode_key, timers._values.decoded, int.from_bytes
    for timed, data in index.due(index._head + _time_bytes(min(limit, _BIAS - 2) + 1)):
        end = timed.rindex(b"\0")
        key_bytes = head + timed[_TIME_BYTES:end].replace(b"\0\xff", b"\0")
        at = time_of(from_bytes(timed[:_TIME_BYTES]) - _BIAS)
        value = decoded(key_bytes, data[1:]) if data else None
        yield Timer(decode_key(key_bytes), at, value, timed[end + 1 :].decode(), processing)


def due_micros(timers: Timers, clock: Clock) -> int | None:
    """Return when the first timer of a clock may be due, in microseconds since 1970; None: there is none.

    It is never later than the first timer; earlier, if that was deleted.
    """
    index = timers._indexes[clock]
    first = index.first()
    return None if first == index._end else _number(first[len(index._head) :])


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


_TIME_BYTES = 8


def _time_bytes(time: int) -> bytes:
    return (time + _BIAS).to_bytes(_TIME_BYTES)


def _number(timed: bytes) -> int:
    return int.from_bytes(timed[:_TIME_BYTES]) - _BIAS


def _time_at(time: bytes) -> datetime:
    return time_of(_number(time))
