"""Keys and values as a bolt reads and writes them: those of its state, and what it keeps under names."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any, Generic, NoReturn, Protocol, TypeVar, overload

from statefx.config import Span
from statefx.errors import StatePhaseError
from statefx.protocol.identity import Version
from statefx.state.encoding.values import AS_IT_IS
from statefx.state.view.changes import ABSENT, UNKNOWN, KeyKind, Overlay, Packed
from statefx.state.view.time_index import ExpiringOverlay, milliseconds_of

K = TypeVar("K")
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
D = TypeVar("D")

_short = reprlib.Repr()
_short.maxdict = 3


class FoundEntries(Mapping[K, V_co]):
    """The entries that `KeyValueState.getAll` found; a mapping whose keys are told apart as state does."""

    __slots__ = ("_entries", "_kind", "_overlay")

    def __init__(self, overlay: Overlay, kind: type, entries: Mapping[Any, V_co]) -> None:
        self._overlay = overlay
        self._kind = kind
        self._entries = entries

    @overload
    def get(self, key: K, /) -> V_co | None: ...

    @overload
    def get(self, key: K, /, default: V_co | D) -> V_co | D: ...

    def get(self, key: Any, /, default: Any = None) -> Any:
        """Return the value of `key`, or `default` if it was not found; CodecError for what can't be a key."""
        # Mapping's own raises and catches a KeyError for each key that is not there.
        if type(key) is self._kind:
            value = self._entries.get(key, ABSENT)
            if value is not ABSENT:
                return value
        key_bytes = self._overlay.encode_key(key)
        return self._entries.get(key_bytes, default) if self._kind is Packed else default

    def __getitem__(self, key: K) -> V_co:
        value = self.get(key, ABSENT)
        if value is ABSENT:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[K]:
        return map(self._overlay.key_of, self._entries) if self._kind is Packed else iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"FoundEntries({_short.repr(dict(self.items()))})"


class Entries(Generic[K, V]):
    """Reads and writes keys with a common prefix; a subclass says when that is allowed."""

    __slots__ = ("_changed", "_journal", "_known", "_overlay", "_writable")

    _overlay: Overlay
    _epoch: int
    """Grows when what a scan has yet to read is of another version."""

    def _require_open(self) -> None:
        raise NotImplementedError

    def _require_writable(self, call: str) -> None:
        raise NotImplementedError

    def _open_entries(self, overlay: Overlay, *, writable: bool) -> None:
        """Begin with the known and changed entries of an overlay."""
        self._overlay = overlay
        # get and put look here first, without a further call; where a change is refused, `_writable` has no entry
        self._changed: dict[KeyKind, dict[Any, Any]] = overlay.changed
        self._known: dict[KeyKind, dict[Any, Any]] = overlay.known
        self._writable: dict[KeyKind, dict[Any, Any]] = overlay.changed if writable else {}
        self._journal = overlay.journal

    def _cut(self) -> None:
        """Have the next get or put check whether it is allowed."""
        self._changed, self._known, self._writable = {}, {}, {}

    # ---- reading

    @overload
    def get(self, key: K) -> V | None: ...

    @overload
    def get(self, key: K, default: V | D) -> V | D: ...

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of `key`, or `default` if there is none.

        Raises
        ------
        CodecError
            `key` can't be a key.
        StateClosedError
            The state is closed.
        """
        # The way of nearly every tuple: two look-ups and no call. Encoding the key, or asking the overlay, would each
        # cost more than both. Kinds keep 1, 1.0 and True apart, which are one key to a dict.
        kind: KeyKind = type(key)
        if kind is tuple:
            kind = tuple(map(type, key))
        try:
            value = self._changed[kind].get(key, UNKNOWN)
            if value is not UNKNOWN:
                return value
            value = self._known[kind].get(key, UNKNOWN)
            if value is not UNKNOWN:
                return default if value is ABSENT else value
        except (KeyError, TypeError):  # closed, a key of another kind, or one that can't be hashed
            pass
        self._require_open()
        value = self._overlay.find(self._overlay.place(key))
        return default if value is ABSENT else value

    def __getitem__(self, key: K) -> V:
        value = self.get(key, ABSENT)
        if value is ABSENT:
            raise KeyError(key)
        return value

    def __contains__(self, key: Any) -> bool:
        return self.get(key, ABSENT) is not ABSENT

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self.items())

    def keys(self) -> Iterator[K]:
        """Yield the keys in their order."""
        return iter(self)

    def __bool__(self) -> bool:
        return next(self.items(), None) is not None

    def __len__(self) -> int:
        """Return how many keys there are.

        Raises
        ------
        TypeError
            The provider could tell only by reading everything.
        """
        self._require_open()
        count = self._overlay.count()
        if count is None:
            raise TypeError(
                "len() of this state would read all of it, for its provider does not count keys: keep a count under a "
                "key of your own, or write sum(1 for _ in state.items()) where that is wanted"
            )
        return count

    def getAll(self, keys: Iterable[K]) -> FoundEntries[K, V]:
        """Return the entries of those `keys` that are there, with at most one read of the store."""
        self._require_open()
        if isinstance(keys, str | bytes):
            raise TypeError(f"getAll takes several keys, as a list; of {keys!r} it would take the letters: [{keys!r}]")
        return FoundEntries(self._overlay, *self._overlay.find_all(list(keys)))

    def prefetch(self, keys: Iterable[Any]) -> None:
        """Read what is not known of `keys` with one read of the store, so that `get` need not ask it.

        Called by the runtime with the keys of a batch. Reads nothing twice and changes nothing.
        """
        self._require_open()
        self._overlay.prefetch(keys)

    def items(self, start: Any = None, stop: Any = None, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Yield (key, value) with start <= key < stop in key order, or the last first; None is unbounded.

        With ``reverse=True`` the bounds stay as they are: `start` is the lower one.

        Shows the state as it was at the call: later changes do not appear. Costs what is read of it, and a logarithm;
        the first call of a transaction that finds changes also sorts them.

        Raises
        ------
        StatePhaseError
            When going on after a commit or rollback.
        StateClosedError
            When going on after `close`.
        """
        self._require_open()
        low, high = self._range(start, stop)
        if low is not None and high is not None and low >= high:
            return self._items(iter(()), self._epoch)
        rows = self._overlay.scan(low, high, reverse)
        if self._overlay.has_scans():
            self._writable = {}  # put comes by the overlay, which tells the scan what it is about to change
        return self._items(rows, self._epoch)

    def _range(self, start: Any, stop: Any) -> tuple[bytes | None, bytes | None]:
        encode_key = self._overlay.encode_key
        return None if start is None else encode_key(start), None if stop is None else encode_key(stop)

    def _items(self, rows: Iterator[tuple[bytes, Any]], epoch: int) -> Iterator[tuple[K, V]]:
        key_of, decoded = self._overlay.key_of, self._overlay.decoded
        while True:
            if self._epoch != epoch:
                self._require_open()
                raise StatePhaseError("items() can't go on after a commit, a rollback or a refresh; call it again")
            row = next(rows, None)
            if row is None:
                return
            key_bytes, value = row
            yield value if type(value) is tuple else (key_of(key_bytes), decoded(key_bytes, value))

    # ---- writing

    def put(self, key: K, value: V) -> None:
        """Set the value of `key`; committed when the transaction is.

        Raises
        ------
        CodecError
            `key` can't be a key, or `value` is (or holds, at ``path``) what state can't hold.
        StatePhaseError
            The state is read-only.
        StateClosedError
            The state is closed.
        """
        # As in get. An immutable value is kept as it is and encoded once, at prepare, however often it is put. A key
        # must be known already: one that is new goes by the overlay, which refuses it here and not at prepare.
        shape = type(value)
        if (
            shape in AS_IT_IS
            or (shape is tuple and AS_IT_IS.issuperset(map(type, value)))  # type: ignore[call-overload]
            or (shape is datetime and (value.tzinfo is None or value.tzinfo is UTC))  # type: ignore[attr-defined]
        ):
            kind: KeyKind = type(key)
            if kind is tuple:
                kind = tuple(map(type, key))  # type: ignore[call-overload]  # tuples are iterable, whatever K is
            try:
                entries = self._writable[kind]
                if key in entries:
                    if (journal := self._journal) is not None:
                        journal.append((entries, key, entries[key]))
                    entries[key] = value
                    return
                if key in self._known[kind]:
                    if (journal := self._journal) is not None:
                        journal.append((entries, key, UNKNOWN))
                    entries[key] = value
                    return
            except (KeyError, TypeError):  # as in get, or read-only
                pass
        self._require_writable("put")
        self._overlay.put(key, value)
        if not self._writable and not self._overlay.has_scans():
            self._writable = self._overlay.changed

    __setitem__ = put

    def putAll(self, mapping: Mapping[K, V]) -> None:
        """`put` every entry of `mapping`."""
        self._require_writable("putAll")
        if not isinstance(mapping, Mapping):
            raise TypeError(f"putAll takes a dict, not a {type(mapping).__name__}: of pairs make dict(pairs)")
        if self._writable and self._overlay.put_all(mapping):  # else a scan may go on, which is told of each change
            return
        for key, value in mapping.items():
            self.put(key, value)

    def delete(self, key: K) -> V | None:
        """Remove `key` and return the value it had; None if it was not there."""
        self._require_writable("delete")
        place = self._overlay.place(key)
        value = self._overlay.find(place)
        if value is ABSENT:
            return None
        self._overlay.delete(place)
        return value  # type: ignore[no-any-return]

    def __delitem__(self, key: K) -> None:
        self._require_writable("del")
        place = self._overlay.place(key)
        if self._overlay.find(place) is ABSENT:
            raise KeyError(key)
        self._overlay.delete(place)

    def deleteRange(self, start: Any, stop: Any) -> int:
        """Remove every key with start <= key < stop, and return how many there were; None is unbounded.

        Costs as much as `items` of the same range, and a deletion for each of its keys.
        """
        self._require_writable("deleteRange")
        low, high = self._range(start, stop)
        if low is not None and high is not None and low >= high:
            return 0
        return self._overlay.delete_range(low, high)


class TaskHandle:
    """A handle for one transaction, which can be neither compared with a dict nor kept."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Refuse to be compared with a dict: it would be False, whatever state holds."""
        if isinstance(other, Mapping):
            raise TypeError("state is never equal to a dict: compare dict(state.items())")
        return self is other

    __hash__ = object.__hash__

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be pickled or copied: a copy would go on showing a transaction that has ended."""
        raise TypeError(
            "state belongs to its task and its transaction and can't be pickled or copied: take dict(state.items())"
        )


class ViewPhase(Enum):
    """Where a `KeyValueState` is in its transaction.

    ::

        OPEN --prepareCommit(t)--> PREPARED --commit(t)--> OPEN
                                            --rollback()--> OPEN
        any  --close()--> CLOSED

    In PREPARED it can be read, and nothing can be changed.
    """

    OPEN = "open"
    PREPARED = "prepared"
    READ_ONLY = "read-only"
    CLOSED = "closed"


class Holder(Protocol):
    """The state in whose transaction a handle reads and writes."""

    _broadcasting: bool
    _epoch: int

    @property
    def phase(self) -> ViewPhase: ...
    @property
    def version(self) -> Version: ...
    def _require_open(self) -> None: ...

    def _require_writable(self, call: str) -> None: ...


class MapState(TaskHandle, Entries[K, V]):
    """Keys and values under a name, beside the state's own: ``state.map("recent")``.

    Reads and writes as `KeyValueState` does, in the same transaction; for ``len``, which would read all of it, keep a
    count. Take it from the state in ``initState``: like the state, it is valid until the next one.
    """

    __slots__ = ("_state",)

    def __init__(self, state: Holder, overlay: Overlay) -> None:
        self._state = state
        self._open_entries(overlay, writable=state.phase is not ViewPhase.READ_ONLY)

    @property
    def _epoch(self) -> int:  # type: ignore[override]  # the state's
        return self._state._epoch

    def _require_open(self) -> None:
        self._state._require_open()

    def _require_writable(self, call: str) -> None:
        self._state._require_writable(call)

    @property
    def _entries(self) -> MapState[K, V]:
        return self


class BroadcastMap(MapState[K, V]):
    """Keys and values that all tasks of a bolt hold alike: ``state.broadcast("rules")``.

    Reads as a `MapState`. ``executeBroadcast`` alone can change it, which all tasks run with the same tuples in the
    same order, before all other rows of the transaction. So every row is judged by the same rules, in whichever task.
    """

    __slots__ = ()

    def _open_entries(self, overlay: Overlay, *, writable: bool) -> None:
        super()._open_entries(overlay, writable=False)  # so that each change asks `_require_writable`

    def _require_writable(self, call: str) -> None:
        super()._require_writable(call)
        if not self._state._broadcasting:
            raise StatePhaseError(
                f"{call} on state.broadcast(...) outside of executeBroadcast: all tasks hold the same there, and only "
                "executeBroadcast is called in all of them. For what a task has by itself take state.map(...)",
                txid=self._state.version.txid,
                committed=self._state.version.txid,
                phase=self._state.phase.value,
            )

    def put(self, key: K, value: V) -> None:
        """Set the value of `key`, in ``executeBroadcast``.

        Raises
        ------
        StatePhaseError
            It is called elsewhere.
        CodecError, StateClosedError
            As ``put`` of a state.
        """
        self._require_writable("put")
        self._overlay.put(key, value)

    __setitem__ = put


class ExpiringMap(MapState[K, V]):
    """A map each of whose entries is over at a time: ``state.map("recent", ttl="30 minutes")``.

    Reads and writes as a `MapState`, and never shows what is over. Time is that of the transaction: the driver's clock
    when the attempt began, the same for all of its tasks.
    """

    __slots__ = ()

    _overlay: ExpiringOverlay

    def put(self, key: K, value: V, *, ttl: Span | float | None = None) -> None:
        """Set the value of `key`, which is over after the map's ttl, or after one of its own.

        Parameters
        ----------
        ttl : Duration, str, timedelta or float, optional
            As of ``state.map``; this value's own, until the key is put again.

        Raises
        ------
        TypeError, ValueError
            `ttl` is no time, or none above 0.
        CodecError, StatePhaseError, StateClosedError
            As ``put`` of a state.
        """
        if ttl is not None:
            own_ms = milliseconds_of(ttl, f"put({key!r})")
            self._require_writable("put")
            self._overlay.put_until(key, value, own_ms)
            return
        shape = type(value)  # as in Entries: one more call would cost more than all that is done here
        if (
            shape in AS_IT_IS
            or (shape is tuple and AS_IT_IS.issuperset(map(type, value)))  # type: ignore[call-overload]
            or (shape is datetime and (value.tzinfo is None or value.tzinfo is UTC))  # type: ignore[attr-defined]
        ):
            kind: KeyKind = type(key)
            if kind is tuple:
                kind = tuple(map(type, key))  # type: ignore[call-overload]
            try:
                entries = self._writable[kind]
                if key in entries:
                    if (journal := self._journal) is not None:
                        journal.append((entries, key, entries[key]))
                    entries[key] = value
                    return
                if key in self._known[kind]:
                    if (journal := self._journal) is not None:
                        journal.append((entries, key, UNKNOWN))
                    entries[key] = value
                    return
            except (KeyError, TypeError):
                pass
        self._require_writable("put")
        self._overlay.put(key, value)
        if not self._writable and not self._overlay.has_scans():
            self._writable = self._overlay.changed

    __setitem__ = put


class _TouchedMap(ExpiringMap[K, V]):
    """An expiring map whose reads restart an entry's time."""

    __slots__ = ()

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of `key`, or `default` if there is none or it is over; raises as ``get`` of a state."""
        self._require_open()
        place = self._overlay.place(key)
        value = self._overlay.find(place)
        if value is ABSENT:
            return default
        self._overlay.touch(key, place, value)
        return value

    def getAll(self, keys: Iterable[K]) -> FoundEntries[K, V]:
        """Return the entries of those `keys` that are there and not over, with at most one read of the store."""
        if isinstance(keys, Iterator):
            keys = list(keys)
        found = super().getAll(keys)
        for key in keys:
            value = found.get(key, ABSENT)
            if value is not ABSENT:
                self._overlay.touch(key, self._overlay.place(key), value)
        return found


class ValueState(Generic[V]):
    """One value under a name: ``state.value("total")``."""

    __slots__ = ("_entries",)

    def __init__(self, entries: MapState[None, V]) -> None:
        self._entries = entries

    @overload
    def get(self) -> V | None: ...

    @overload
    def get(self, default: V | D) -> V | D: ...

    def get(self, default: Any = None) -> Any:
        """Return the value, or `default` if there is none."""
        return self._entries.get(None, default)

    def put(self, value: V) -> None:
        """Set the value; raises as ``put`` of a state."""
        self._entries.put(None, value)

    def delete(self) -> V | None:
        """Remove the value and return it; None if there was none."""
        return self._entries.delete(None)


class ListState(Generic[V]):
    """Values in the order in which they were appended, under a name: ``state.list("buffer")``.

    Each value is an entry of its own: to append costs one write, however long the list is. To read from either end
    costs what is read, and to truncate what is removed.
    """

    __slots__ = ("_bounds", "_entries", "_epoch")

    def __init__(self, entries: MapState[int, V]) -> None:
        self._entries = entries
        self._epoch = -1
        self._bounds = (0, 0)

    def _range(self) -> tuple[int, int]:
        """Return the number of the first value, and the number after the last."""
        entries = self._entries
        entries._require_open()
        epoch = entries._epoch
        if self._epoch != epoch:  # after a rollback it is not what was appended last that counts
            first = next(entries.items(), None)
            last = next(entries.items(reverse=True), None)
            self._bounds = (0, 0) if first is None or last is None else (first[0], last[0] + 1)
            self._epoch = epoch
        return self._bounds

    def append(self, value: V) -> None:
        """Add a value at the end; raises as ``put`` of a state."""
        first, end = self._range()
        self._entries.put(end, value)
        self._become(first, end + 1)

    def extend(self, values: Iterable[V]) -> None:
        """Add values at the end, in their order."""
        for value in values:
            self.append(value)

    def truncate(self, keep: int) -> int:
        """Remove all but the newest `keep` values, and return how many were removed; ``truncate(0)`` removes all."""
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 0:
            raise ValueError(f"truncate takes how many of the newest values are kept, 0 or more, not {keep!r}")
        first, end = self._range()
        kept = max(first, end - keep)
        removed = self._entries.deleteRange(first, kept)
        if kept == end:
            kept = end = 0
        self._become(kept, end)
        return removed

    def _become(self, first: int, end: int) -> None:
        """Note where it begins and ends, also for an undo: to find that out would sort all that was changed."""
        if (journal := self._entries._overlay.journal) is not None:
            journal.append(partial(setattr, self, "_bounds", self._bounds))
        self._bounds = first, end

    def __len__(self) -> int:
        first, end = self._range()
        return end - first

    def __bool__(self) -> bool:
        return len(self) > 0

    def __iter__(self) -> Iterator[V]:
        first, end = self._range()
        return (value for _, value in self._entries.items(first, end))

    def __reversed__(self) -> Iterator[V]:
        first, end = self._range()
        return (value for _, value in self._entries.items(first, end, reverse=True))

    def __getitem__(self, place: int) -> V:
        first, end = self._range()
        number = place + (first if place >= 0 else end)
        if not first <= number < end:
            raise IndexError(f"the list has {end - first} values, and none at {place}")
        return self._entries[number]
