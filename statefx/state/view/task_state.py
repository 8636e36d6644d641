"""The state of one task and its transaction: phases, what is prepared, committed or discarded."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, Literal, NoReturn, Protocol, TypeVar, overload

from statefx.config import Span
from statefx.errors import CommitFailedError, StateClosedError, StateError, StatePhaseError
from statefx.state.contract.spaces import NameKind, Space, end_of, head_of, name_of
from statefx.state.contract.store import EMPTY, SnapshotRef, StateStore, Version, Write, prepare_as
from statefx.state.encoding.codec import Codec, FunctionCodec, StandardCodec
from statefx.state.encoding.values import expiry_of
from statefx.state.view.changes import Journal, Overlay, StoreReads, Upgrade, overlay_for, take_back
from statefx.state.view.state import (
    BroadcastMap,
    Entries,
    ExpiringMap,
    K,
    ListState,
    MapState,
    TaskHandle,
    V,
    ValueState,
    ViewPhase,
    _TouchedMap,
)
from statefx.state.view.time_index import FOREVER, ExpiringOverlay, Lifetime, expiring_overlay, lifetime_of

CACHE_BYTES = 64 << 20
"""Default bound on what is remembered of entries that were read."""

NAMES_MAX = 100
"""Of all kinds together: each transaction looks at all of them, and each holds some kilobytes."""

_RAW = FunctionCodec(*(lambda data: data,) * 4)  # bytes of statefx's own, as they are

# Looked up once, and not by each call.
_OPEN, _READ_ONLY, _CLOSED = ViewPhase.OPEN, ViewPhase.READ_ONLY, ViewPhase.CLOSED


_TWICE = "state.map({!r}) was taken with another ttl or touch in this transaction: take it once, in initState"


class Named(Protocol):
    """A view of the entries under a name: as a map, a list or one value."""

    @property
    def _entries(self) -> MapState[Any, Any]: ...


_Shown = TypeVar("_Shown", bound=Named)


class KeyValueState(Entries[K, V]):
    """Keys and values of one task, as last committed, with this transaction's own changes on top.

    The runtime opens one for each task and hands it to ``initState``; the bolt reads and writes it in ``execute``.
    The runtime calls `prepareCommit`, `commit` and `rollback`, in the order that `ViewPhase` shows. For one thread.
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
    * Reads show this transaction's changes, then what is committed.
    * Keys of different types are different keys (1, 1.0 and True); equal keys of one type are the same.
    * A stored None is there: ``get(key, 0)`` returns None and ``key in state`` is True.
    * ``state[key]``, ``state[key] = value`` and ``del state[key]`` are `get`, `put` and `delete`, but for the KeyError
      where there is no such key. Iteration is over the keys, in their order.
    * Changing an object after `put`, or one that `get` returned, changes no state.
    * Nothing can be changed from ``prepareCommit(t)`` until ``commit(t)`` or `rollback`: StatePhaseError.
    * `rollback` discards what is not committed and nothing else.
    * `map`, `list`, `value` and `broadcast` show what the task keeps under names; keys there are other keys than the
      state's own.

    Examples
    --------
    >>> from statefx_memory import MemoryStateProvider                             # doctest: +SKIP
    >>> state = KeyValueState(MemoryStateProvider({}).newState(namespace, context))  # doctest: +SKIP
    >>> state["spark"] = state.get("spark", 0) + 1                                 # doctest: +SKIP
    """

    _ended = "the state is closed"
    __slots__ = (
        "_broadcasting",
        "_clock_ms",
        "_doubtful",
        "_epoch",
        "_form",
        "_named",
        "_phase",
        "_prepared",
        "_prepared_bytes",
        "_preparing",
        "_reads",
        "_store",
        "_timers_first",
        "_version",
        "_views",
    )

    def __init__(
        self,
        store: StateStore,
        codec: Codec | None = None,
        *,
        version: Version = EMPTY,
        read_only: bool = False,
        cache_bytes: int = CACHE_BYTES,
        state_version: int = 1,
        upgrade: Upgrade | None = None,
        space: Space = Space.USER,
        clock_ms: int | None = None,
    ) -> None:
        self._broadcasting = False
        """Whether the bolt is given what all tasks are given, so that it may change what all of them hold."""
        self._clock_ms = clock_ms
        self._store = store
        self._version = version
        self._reads = StoreReads(store)
        self._form = codec, cache_bytes, state_version, upgrade
        self._open_entries(self._new_overlay(space.value), writable=not read_only)
        self._named: dict[bytes, Overlay] = {}
        """By head, what is kept under names: it stays as long as the store is open. `_views`: what shows it."""
        self._views: dict[bytes, Named] = {}
        self._timers_first: dict[bytes, bytes] = {}
        """By the head of their keys, no timer is before; without an entry, only a scan can tell."""
        self._phase = ViewPhase.READ_ONLY if read_only else ViewPhase.OPEN
        self._preparing = EMPTY
        self._prepared_bytes = 0
        self._prepared: list[tuple[Overlay, list[Write]]] = []
        self._doubtful = False
        self._epoch = 0

    def _new_overlay(self, head: bytes) -> Overlay:
        codec, cache_bytes, state_version, upgrade = self._form
        if len(head) > 1:
            kind, name = name_of(head)
            if kind is NameKind.WINDOWS:
                codec = None  # of windows the shape is statefx's own
            elif kind in (NameKind.LIST, NameKind.VALUE) and codec is not None and type(codec) is not StandardCodec:
                codec = _own_keys(codec)
            if upgrade is not None:
                upgrade = _named_upgrade(upgrade, (kind, name) if kind is NameKind.WINDOWS else name)
        return overlay_for(Overlay, self._reads, codec, cache_bytes, head, state_version, upgrade)

    def _lasting_overlay(self, head: bytes) -> ExpiringOverlay:
        assert self._clock_ms is not None
        codec, cache_bytes, state_version, upgrade = self._form
        upgrade = upgrade and _named_upgrade(upgrade, name_of(head)[1])
        return expiring_overlay(self._reads, codec, cache_bytes, head, state_version, upgrade, self._clock_ms)

    def _set_clock(self, clock_ms: int) -> None:
        """Set the time, in milliseconds since the epoch."""
        lasting = [each for each in self._named.values() if isinstance(each, ExpiringOverlay)]
        if lasting and clock_ms != self._clock_ms:
            self._epoch += 1  # rows that a scan has yet to read are of the time before
        self._clock_ms = clock_ms
        for overlay in lasting:
            overlay.set_clock(clock_ms)

    def _overlays(self) -> Iterator[Overlay]:
        return chain((self._overlay,), self._named.values())

    def _relink(self) -> None:
        """Have get and put look again where they find most entries."""
        writable = self._phase is not _READ_ONLY
        self._open_entries(self._overlay, writable=writable)
        for view in self._views.values():
            view._entries._open_entries(view._entries._overlay, writable=writable)

    def _unlink(self) -> None:
        """Have every next get and put check whether it is allowed."""
        self._cut()
        for view in self._views.values():
            view._entries._cut()

    def __repr__(self) -> str:
        return f"<KeyValueState {self._phase.value}, committed {self._version.txid}>"

    @property
    def phase(self) -> ViewPhase:
        """Where this state is in its transaction."""
        return self._phase

    @property
    def version(self) -> Version:
        """The committed version: the one opened at, or the last one committed here."""
        return self._version

    @property
    def token(self) -> str:
        """The token of what is prepared, else that of the committed version."""
        return self._preparing.token if self._phase is ViewPhase.PREPARED else self._version.token

    @property
    def prepared_keys(self) -> int:
        """How many keys what is prepared changes."""
        return sum(len(writes) for _, writes in self._prepared)

    @property
    def prepared_bytes(self) -> int:
        """Bytes of the last prepare, as the store reported them."""
        return self._prepared_bytes

    # ---- the transaction

    def prepareCommit(self, txid: int, *, token: str | None = None) -> str:
        """Make this transaction's changes durable and invisible, and return their token.

        Called when all tuples of `txid` have been executed; nothing can be changed from then on until `commit` or
        `rollback`. Again with the same `txid`: the same token.

        The runtime gives the `token` that the task attempt's rows carry; otherwise a new one is made.

        Raises
        ------
        StatePhaseError
            Another transaction is prepared, or `txid` is not later than the committed one.
        StateError
            The store kept them under another token.
        Exception
            What a read of this transaction has raised, also if the bolt has gone on after it.
        """
        self._require_own("prepareCommit")
        if self._phase is ViewPhase.PREPARED:
            if txid == self._preparing.txid:
                return self._preparing.token
            raise self._misplaced(f"prepareCommit({txid}) while {self._preparing.txid} is prepared", txid)
        if txid <= self._version.txid:
            raise self._misplaced(f"prepareCommit({txid}) when {self._version.txid} is committed", txid)
        if self._reads.failure is not None:  # a bolt that took it for a missing key has put a value that is wrong
            raise self._reads.failure
        changes = [(overlay, overlay.changes()) for overlay in self._overlays()]
        writes = _in_order(changes)
        # The token is given to the store and never asked of it: barriers that are on their way carry it (rule 1.3).
        prepared = prepare_as(self._store, txid, token or uuid.uuid4().hex, writes)
        self._preparing, self._prepared_bytes = Version(txid, prepared.token), prepared.size_bytes
        self._phase, self._prepared = ViewPhase.PREPARED, changes
        self._unlink()  # so that put asks `_require_writable`, which refuses it
        return self._preparing.token

    def commit(self, txid: int) -> None:
        """Make what was prepared for `txid` the committed version; again is a no-op.

        Raises
        ------
        StatePhaseError
            `txid` is not what is prepared.
        CommitFailedError, CommitOutcomeUnknownError
            From the store; `txid` is still prepared: commit again.
        """
        self._require_own("commit")
        if txid == self._version.txid:  # a driver whose predecessor died after the commit tells it again (rule 6.5)
            return
        if self._phase is not ViewPhase.PREPARED or txid != self._preparing.txid:
            raise self._misplaced(f"commit({txid}) without prepareCommit({txid})", txid)
        self._doubtful = True
        try:
            self._store.commit(txid, self._preparing.token)
        except CommitFailedError:  # the one error that says it has not happened; after any other it may have
            self._doubtful = False
            raise
        self._doubtful = False
        self._is_committed()
        self._relink()

    def _is_committed(self) -> None:
        for overlay, changes in self._prepared:
            overlay.absorb(changes)
        self._prepared = []
        self._version, self._phase = self._preparing, ViewPhase.OPEN
        self._epoch += 1  # rows that a scan has yet to read are of the version before

    def _advance(self, reopened: Callable[[], StateStore]) -> bool:
        """Go on to the next transaction: what is prepared is committed, as the driver says; False if nothing is.

        Known entries stay known, also where the store can't go on: what `reopened` opens then, at the prepared version,
        has the same entries.
        """
        if self._phase is not ViewPhase.PREPARED:
            return False
        if not self._store.advance(self._preparing.txid, self._preparing.token, _in_order(self._prepared)):
            self._store.close()
            self._store = reopened()
            self._reads = StoreReads(self._store)
            for overlay in self._overlays():
                overlay.read_from(self._reads)
        self._is_committed()
        return True

    def rollback(self) -> None:
        """Discard every change that is not committed; again is a no-op.

        Raises
        ------
        StatePhaseError
            A commit was tried and may have happened: commit again instead.
        """
        self._require_own("rollback")
        if self._phase is ViewPhase.PREPARED:
            txid, token = self._preparing.txid, self._preparing.token
            if self._doubtful:  # COMMITTING is decided: it is committed again, never rolled back (rule 2.5)
                raise self._misplaced(f"rollback() when commit({txid}) may have happened: commit again", txid)
            self._store.rollback(txid, token)
            self._phase, self._prepared = ViewPhase.OPEN, []
        for overlay in self._overlays():
            overlay.discard()
        self._reads.failure = None
        self._timers_first = {}
        self._epoch += 1
        self._relink()

    def close(self) -> None:
        """Release the store; changes that are not prepared are gone. Again is a no-op.

        What is prepared stays: another process may be told to commit it (rule 4.3).
        """
        if self._phase is ViewPhase.CLOSED:
            return
        self._phase = ViewPhase.CLOSED
        self._epoch += 1
        self._prepared = []
        self._unlink()
        for overlay in self._overlays():
            overlay.discard()
            overlay.forget()
        self._store.close()

    # ---- names

    @overload
    def map(self, name: str) -> MapState[Any, Any]: ...

    @overload
    def map(
        self, name: str, *, ttl: Span | float, touch: Literal["write", "read"] | None = None
    ) -> ExpiringMap[Any, Any]: ...

    def map(
        self,
        name: str,
        *,
        ttl: Span | float | None = None,
        touch: Literal["write", "read"] | None = None,
    ) -> MapState[Any, Any]:
        """Return the keys and values that the task keeps under a name; empty at first.

        Names of maps, lists, values and broadcast maps are apart: each kind has its own. All are committed with the
        state itself.

        Parameters
        ----------
        name : str
        ttl : Duration, str, timedelta or float, optional
            How long an entry lives after it was put: "30 minutes", a timedelta, a Duration, or seconds. Another ttl
            than before counts for what is put from then on; what was put without one is never over.
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
            if self._phase is not ViewPhase.READ_ONLY or self._clock_ms is None:
                shown = self._view(NameKind.MAP, name, partial(MapState, self))
                if isinstance(shown, ExpiringMap):
                    raise ValueError(_TWICE.format(name))
                return shown
            lifetime = FOREVER  # who only reads need not know whether the map has a ttl
        elif self._clock_ms is None:
            raise StateError(
                f"state.map({name!r}, ttl={ttl!r}): this state has no clock, as that of a TransactionalClient: delete "
                "what is old yourself. In a test of your own, give KeyValueState a clock_ms"
            )
        lasting = self._view(NameKind.MAP, name, partial(self._lasting_map, lifetime), lasting=True)
        if not isinstance(lasting, ExpiringMap) or lasting._overlay.lifetime != lifetime:
            raise ValueError(_TWICE.format(name))
        return lasting

    def _lasting_map(self, lifetime: Lifetime, overlay: ExpiringOverlay) -> ExpiringMap[Any, Any]:
        overlay.keep(lifetime)
        touches = lifetime.on_read and self._phase is not ViewPhase.READ_ONLY
        return (_TouchedMap if touches else ExpiringMap)(self, overlay)

    def broadcast(self, name: str) -> BroadcastMap[Any, Any]:
        """Return the map under a name that all tasks of the bolt hold alike; empty at first. Raises as `map`.

        ``executeBroadcast`` fills it, in a bolt that reads by ``broadcastGrouping``; all other hooks only read it.
        """
        return self._view(NameKind.BROADCAST, name, partial(BroadcastMap, self))

    def list(self, name: str) -> ListState[Any]:
        """Return the list that the task keeps under a name; empty at first. Raises as `map`."""
        return self._view(NameKind.LIST, name, lambda overlay: ListState(MapState(self, overlay)))

    def value(self, name: str) -> ValueState[Any]:
        """Return the single value that the task keeps under a name; none at first. Raises as `map`."""
        return self._view(NameKind.VALUE, name, lambda overlay: ValueState(MapState(self, overlay)))

    def names(self, kind: str = "map") -> Iterator[str]:
        """Yield the names of the maps in which something is kept, in order; or of another kind.

        Parameters
        ----------
        kind : {"map", "list", "value", "broadcast"}
        """
        return self._names(NameKind(kind))

    def _view(self, kind: NameKind, name: str, show: Callable[[Any], _Shown], *, lasting: bool = False) -> _Shown:
        """Return the view of the entries of a kind under a name, the same object for the whole transaction.

        If `lasting`, entries may expire; whether they did in the transaction before does not matter.
        """
        self._require_open()
        if not isinstance(name, str) or not name or "\0" in name:
            raise TypeError(f"state.{kind.value}() takes a name, such as 'recent', not {name!r}")
        head = head_of(kind, name)
        shown = self._views.get(head)
        if shown is None:
            overlay = self._named.get(head)
            if overlay is None or isinstance(overlay, ExpiringOverlay) != lasting:
                if len(self._views) >= NAMES_MAX:
                    raise TypeError(
                        f"state.{kind.value}({name!r}): a task has at most {NAMES_MAX} maps, lists and values. A name "
                        "is for a part of the bolt's state, not for a key: put (key, part) into one map"
                    )
                overlay = self._named[head] = (self._lasting_overlay if lasting else self._new_overlay)(head)
                overlay.journal = self._overlay.journal
            shown = self._views[head] = show(overlay)
        return shown  # type: ignore[return-value]  # one class for each head

    def _value_form(self) -> Overlay:
        """Return an overlay for values of the bolt, which shows older versions as they were written."""
        codec, _, state_version, _ = self._form
        return overlay_for(Overlay, self._reads, codec, 0, self._overlay._first, state_version)

    def _raw_overlay(self, head: bytes, cache_bytes: int = CACHE_BYTES) -> Overlay:
        """Return an overlay for entries of statefx's own: keys are bytes that begin with `head`, and values bytes."""
        overlay = self._named.get(head)
        if overlay is None:
            overlay = self._named[head] = Overlay(self._reads, _RAW, cache_bytes, head)
        return overlay

    def _names(self, kind: NameKind) -> Iterator[str]:
        """Yield the names under which something of a kind is kept, in order; reads one entry of each."""
        self._require_open()
        start = Space.NAMED.value + kind.value.encode() + b"\0"
        found = {
            name_of(head)[1]
            for head, view in self._views.items()
            if head.startswith(start) and next(view._entries.items(), None) is not None
        }
        stop = end_of(start)
        while (row := next(self._reads.scan(start, stop, False), None)) is not None:
            name = name_of(row[0])[1]
            head, first = head_of(kind, name), row[0]
            start = end_of(head)
            if head not in self._views and (
                self._is_alive(row) or any(map(self._is_alive, self._reads.scan(first, start, False)))
            ):
                found.add(name)
        yield from sorted(found)

    def _is_alive(self, row: tuple[bytes, bytes]) -> bool:
        return self._clock_ms is None or expiry_of(row[1]) > self._clock_ms

    # ---- guards

    def _require_open(self) -> None:
        if self._phase is _CLOSED:
            raise StateClosedError(self._ended, txid=self._version.txid)

    def _require_own(self, call: str) -> None:
        """Raise StatePhaseError if this only shows state, StateClosedError if it is closed."""
        self._require_open()
        if self._phase is _READ_ONLY:
            remedy = "change state in execute, finishBatch or prePrepare"
            raise self._misplaced(f"{call} on a read-only view of state: {remedy}", self._version.txid)

    def _require_writable(self, call: str) -> None:
        if self._phase is not _OPEN:
            self._require_own(call)
            txid = self._preparing.txid
            raise self._misplaced(f"{call} while transaction {txid} is prepared: commit it or roll it back first", txid)

    def _misplaced(self, what: str, txid: int) -> StatePhaseError:
        return StatePhaseError(what, txid=txid, committed=self._version.txid, phase=self._phase.value)


def _in_order(changes: list[tuple[Overlay, list[Write]]]) -> list[Write]:
    writes = changes[0][1] if len(changes) == 1 else [write for _, writes in changes for write in writes]
    writes.sort(key=itemgetter(0))  # of what is in order already, it costs nothing
    return writes


def _named_upgrade(upgrade: Upgrade, name: str | tuple[NameKind, str]) -> Upgrade:
    """Call `upgrade` with the name of a kept value: its key is (name, key); of windows ((kind, name), key)."""
    return lambda version, key, value: upgrade(version, (name, key), value)


def _own_keys(inner: Codec) -> Codec:
    """Return a user's codec for the values of a list: their numbers must order as numbers, which its keys need not."""
    own = StandardCodec()
    codec = FunctionCodec(own.encode_key, own.decode_key, inner.encode_value, inner.decode_value)
    codec.name = inner.name  # type: ignore[misc]  # of this one
    return codec


_QUARANTINE_BYTES = 16 << 20
"""Bound on what is remembered of keys that were looked up in quarantine."""

_REMEDIES = {
    "prepareCommit": "it is prepared when prePrepare has returned",
    "commit": "it is committed once every task has prepared",
    "rollback": "raise FailedException to have the whole transaction rolled back and tried again",
    "close": "it is closed when the transaction has ended",
}


class TaskState(TaskHandle, KeyValueState[Any, Any]):
    """A `KeyValueState` for ``initState``: the bolt can't end its transaction."""

    __slots__ = ()
    _ended = "the state is closed: it ended with its transaction. Use the one that initState was given last"

    def _begin(self) -> None:
        """Prepare for another transaction of a resident task."""

    def prepareCommit(self, *arguments: Any, **options: Any) -> NoReturn:
        self._refuse("prepareCommit")

    def commit(self, *arguments: Any, **options: Any) -> NoReturn:
        self._refuse("commit")

    def rollback(self, *arguments: Any, **options: Any) -> NoReturn:
        self._refuse("rollback")

    def close(self) -> NoReturn:
        self._refuse("close")

    def _refuse(self, call: str) -> NoReturn:
        raise StatePhaseError(
            f"{call}() is not the bolt's to call: {_REMEDIES[call]}",
            txid=self.version.txid,
            committed=self.version.txid,
            phase=self.phase.value,
        )


def given_back(entries: MapState[Any, Any], value: Any) -> Any:
    """Return what a map returns of `value` when its transaction has ended."""
    codec = entries._overlay.codec
    return codec.decode_value(codec.encode_value(value))


def broadcasting(state: TaskState, *, on: bool) -> None:
    """Set whether the bolt runs broadcast tuples, and may change broadcast maps."""
    state._broadcasting = on


def keep_journal(state: TaskState, journal: Journal | None) -> None:
    """Have every change journal what it replaces, in whatever part of the state; None ends that."""
    for overlay in state._overlays():
        overlay.journal = journal
    state._journal = journal
    for view in state._views.values():
        view._entries._journal = journal


def undo(state: TaskState, journal: Journal) -> None:
    """Take back a journal's changes; raises what a read has raised since the state was opened.

    Nothing that was computed from it can be kept.
    """
    if state._reads.failure is not None:
        raise state._reads.failure
    if journal:  # most bad rows are refused before anything was changed, and scans go on then
        for overlay in state._overlays():
            overlay.before_undo()
        take_back(journal)


def prepare(state: TaskState, txid: int, token: str) -> None:
    super(TaskState, state).prepareCommit(txid, token=token)


def succeeded(state: TaskState, reopened: Callable[[], StateStore], clock_ms: int) -> TaskState | None:
    """Return the state of the next transaction, in which the prepared changes of `state` are committed.

    `state` is closed. `reopened` opens the store if it can't go on; `clock_ms` is the time of the next transaction.
    None if nothing is prepared: close `state`, and open another one.
    """
    if not state._advance(reopened):
        return None
    successor = object.__new__(type(state))
    for name in (*Entries.__slots__, *KeyValueState.__slots__):
        setattr(successor, name, getattr(state, name))
    # What shows names ends with its transaction. Names that it has not taken are forgotten: a bolt may well have
    # another one each day.
    raw = Space.TIMERS.value, Space.QUARANTINE.value
    successor._named = {head: each for head, each in state._named.items() if head in state._views or head[:1] in raw}
    successor._views = {}
    successor._relink()
    successor._set_clock(clock_ms)
    successor._begin()
    state._phase = ViewPhase.CLOSED
    state._unlink()
    return successor


def prepared(state: TaskState) -> Version:
    return state._preparing


def found_keys(state: TaskState) -> int | None:
    """Return how many keys of the user's the version has that was opened; None if only reading them could tell."""
    return state._store.count(Space.USER.value)


def read_secs(state: TaskState) -> float:
    """Return how long its store has waited so far for what no cache had."""
    return state._store.read_secs


def snapshot(state: TaskState) -> SnapshotRef | None:
    return state._store.snapshot()


def windows_of(state: TaskState, name: str) -> MapState[Any, Any]:
    """Return the map under a name of the windows of a windowed bolt."""
    return state._view(NameKind.WINDOWS, name, partial(MapState, state))


def has_taken(state: TaskState, kind: NameKind, name: str) -> bool:
    """Return whether the bolt has taken a map, list or value of this name in this transaction."""
    return head_of(kind, name) in state._views


def quarantine_of(state: TaskState) -> Overlay:
    """Return the overlay of the keys whose rows are held back."""
    return state._raw_overlay(Space.QUARANTINE.value, _QUARANTINE_BYTES)


def waiting_of(state: TaskState) -> Overlay:
    """Return the overlay of the tuples whose calls are to be made again."""
    return state._raw_overlay(Space.WAITING.value, cache_bytes=0)


def close(state: TaskState) -> None:
    super(TaskState, state).close()


def key_of(state: TaskState, key_bytes: bytes) -> Any:
    """Return the key of `key_bytes` in the store; of what is kept under a name, (name, key)."""
    if key_bytes[:1] != Space.NAMED.value:
        return state._overlay.key_of(key_bytes)
    kind, name = name_of(key_bytes)
    return name, state._named[head_of(kind, name)].key_of(key_bytes)
