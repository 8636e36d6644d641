"""The state that a bolt sees: keys and values of one task, what is kept under names, and their transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Generic, Literal, TypeVar, overload

from statefx.errors import StateError, StatePhaseError
from statefx.state.contract.spaces import Kind
from statefx.state.encoding.values import AS_IT_IS
from statefx.state.view.entries import FoundEntries, K, Lent, V
from statefx.state.view.overlay import Overlay
from statefx.state.view.pending import ABSENT, UNKNOWN
from statefx.state.view.pending import Kind as PendingKind
from statefx.state.view.time_index import FOREVER, ExpiringOverlay, Lifetime, lifetime_of, milliseconds_of
from statefx.state.view.transaction import CACHE_BYTES, NamedEntries, Phase, StateTransaction

D = TypeVar("D")


class MapState(Lent, NamedEntries[K, V]):
    """Keys and values under a name, beside the state's own: ``state.map("recent")``.

    Reads and writes as `KeyValueState` does, in the same transaction; for ``len``, which would read all of it, keep a
    count. Take it from the state in ``initState``: like the state, it is valid until the next one.
    """

    __slots__ = ()

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

    def put(self, key: K, value: V, *, ttl: str | float | timedelta | None = None) -> None:
        """Set the value of `key`, which is over after the map's ttl, or after one of its own.

        Parameters
        ----------
        ttl : str, timedelta or float, optional
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
            kind: PendingKind = type(key)
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
    """One whose reads begin an entry's time anew."""

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
        """Return the number of the first value, and the one behind the last."""
        entries = self._entries
        entries._require_open()
        epoch = entries._epoch + entries._overlay.undone
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
        self._bounds = first, end + 1

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
        self._bounds = (0, 0) if kept == end else (kept, end)
        return removed

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


class KeyValueState(StateTransaction[K, V]):
    """Keys and values of one task, as last committed, with this transaction's own changes on top.

    The runtime opens one for each task and hands it to ``initState``; the bolt reads and writes it in ``execute``.
    The runtime calls `prepareCommit`, `commit` and `rollback`, in the order that `Phase` shows. For one thread.
    Type checkers are told what it holds by ``KeyValueState[str, int]``.

    Parameters
    ----------
    store : StateStore
        What keeps the bytes, opened at `version`; closed with this state.
    codec : Codec, optional
        Default: a `StandardCodec`.
    version : Version
        The committed version that `store` was opened at.
    read_only : bool
        Refuse every change.
    cache_bytes : int
        Bound on what is remembered of entries that were read. This transaction's changes are not bounded.
    state_version : int
        The bolt's ``stateVersion``: of what is written, and what is read in this form.
    upgrade : callable (version, key, value) -> value, optional
        Brings what an older version wrote into the current form, whenever it is read; without it, it is shown as it
        was written.
    clock_ms : int, optional
        The time of this transaction, in milliseconds since the epoch, by which entries of maps with a ttl are over.
        Without it, there are no such maps.
    space : Space
        Of the keys in `store`, whose these are; those of other spaces are neither seen nor changed. Default: the
        bolt's own.

    Contract
    --------
    * Reads show this transaction's changes, then what is prepared, then what is committed.
    * Keys of different types are different keys (1, 1.0 and True); equal keys of one type are the same.
    * A stored None is there: ``get(key, 0)`` returns None and ``key in state`` is True.
    * ``state[key]``, ``state[key] = value`` and ``del state[key]`` are `get`, `put` and `delete`, but for the KeyError
      where there is no such key. Iteration is over the keys, in their order.
    * Changing an object after `put`, or one that `get` returned, changes no state.
    * Changes after ``prepareCommit(t)`` are not in ``commit(t)`` and are pending after it.
    * `rollback` discards what is not committed and nothing else.
    * `map`, `list`, `value` and `broadcast` show what the task keeps under names; keys there are other keys than the
      state's own.

    Examples
    --------
    >>> from statefx_memory import MemoryStateProvider                             # doctest: +SKIP
    >>> state = KeyValueState(MemoryStateProvider({}).newState(namespace, context))  # doctest: +SKIP
    >>> state["spark"] = state.get("spark", 0) + 1                                 # doctest: +SKIP
    """

    __slots__ = ()

    # ---- names

    @overload
    def map(self, name: str) -> MapState[Any, Any]: ...

    @overload
    def map(
        self, name: str, *, ttl: str | float | timedelta, touch: Literal["write", "read"] | None = None
    ) -> ExpiringMap[Any, Any]: ...

    def map(
        self,
        name: str,
        *,
        ttl: str | float | timedelta | None = None,
        touch: Literal["write", "read"] | None = None,
    ) -> MapState[Any, Any]:
        """Return the keys and values that the task keeps under a name; empty at first.

        Names of maps, lists, values and broadcast maps are apart: each kind has its own. All are committed with the
        state itself.

        Parameters
        ----------
        name : str
        ttl : str, timedelta or float, optional
            How long an entry lives after it was put: "30 minutes", a timedelta, or seconds. Another ttl than before
            counts for what is put from then on; what was put without one is never over.
        touch : {"write", "read"}, optional
            What begins an entry's time anew: a put alone, as by default, or also a get. A get does so only if a tenth
            of the ttl has gone by, for it costs as much as a put.

        Raises
        ------
        TypeError
            `name` is no text, or is empty; or the bolt takes more than a hundred names, as it does if they are keys; or
            `ttl` is no time.
        ValueError
            `ttl` is not above 0, or is a text that is no time; `touch` is another word; or the map was taken with
            another ttl in this transaction.
        StateError
            The state has no clock.
        StateClosedError
            The state is closed.
        """
        lifetime = lifetime_of(name, ttl, touch)
        if lifetime is None:
            if self._phase is not Phase.READ_ONLY or self._clock_ms is None:
                shown = self._view(Kind.MAP, name, partial(MapState, self))
                if isinstance(shown, ExpiringMap):
                    raise ValueError(_TWICE.format(name))
                return shown
            lifetime = FOREVER  # who only reads need not know whether the map has a ttl
        elif self._clock_ms is None:
            raise StateError(
                f"state.map({name!r}, ttl={ttl!r}): this state has no clock, as that of a TransactionalClient: delete "
                "what is old yourself. In a test of your own, give KeyValueState a clock_ms"
            )
        lasting = self._view(Kind.MAP, name, partial(self._lasting_map, lifetime), lasting=True)
        if not isinstance(lasting, ExpiringMap) or lasting._overlay.lifetime != lifetime:
            raise ValueError(_TWICE.format(name))
        return lasting

    def _lasting_map(self, lifetime: Lifetime, overlay: ExpiringOverlay) -> ExpiringMap[Any, Any]:
        overlay.keep(lifetime)
        touches = lifetime.on_read and self._phase is not Phase.READ_ONLY
        return (_TouchedMap if touches else ExpiringMap)(self, overlay)

    def broadcast(self, name: str) -> BroadcastMap[Any, Any]:
        """Return the map under a name that all tasks of the bolt hold alike; empty at first. Raises as `map`.

        ``executeBroadcast`` fills it, in a bolt that reads by ``broadcastGrouping``; all other hooks only read it.
        """
        return self._view(Kind.BROADCAST, name, partial(BroadcastMap, self))

    def list(self, name: str) -> ListState[Any]:
        """Return the list that the task keeps under a name; empty at first. Raises as `map`."""
        return self._view(Kind.LIST, name, lambda overlay: ListState(MapState(self, overlay)))

    def value(self, name: str) -> ValueState[Any]:
        """Return the single value that the task keeps under a name; none at first. Raises as `map`."""
        return self._view(Kind.VALUE, name, lambda overlay: ValueState(MapState(self, overlay)))

    def names(self, kind: str = "map") -> Iterator[str]:
        """Yield the names of the maps in which something is kept, in order; or of another kind.

        Parameters
        ----------
        kind : {"map", "list", "value", "broadcast"}
        """
        return self._names(Kind(kind))


_TWICE = "state.map({!r}) was taken with another ttl or touch in this transaction: take it once, in initState"

__all__ = [
    "CACHE_BYTES",
    "BroadcastMap",
    "ExpiringMap",
    "FoundEntries",
    "KeyValueState",
    "ListState",
    "MapState",
    "Phase",
    "ValueState",
]
