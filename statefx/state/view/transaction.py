"""The transaction of one task's state: phases, what is prepared, committed or discarded."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import chain
from operator import itemgetter
from typing import Any, Protocol, TypeVar

from statefx.errors import CommitFailedError, StateClosedError, StatePhaseError
from statefx.state.contract.ranges import OrderedEntries
from statefx.state.contract.spaces import Kind, Space, end_of, head_of, name_of
from statefx.state.contract.store import EMPTY, StateStore, Version, Write, prepare_as
from statefx.state.encoding.codec import Codec, FunctionCodec, StandardCodec
from statefx.state.encoding.envelope import expiry_of
from statefx.state.view.entries import Entries, K, V
from statefx.state.view.overlay import Overlay, StoreReads
from statefx.state.view.time_index import ExpiringOverlay, expiring_overlay
from statefx.state.view.undo import Journal, take_back
from statefx.state.view.upgrading import Upgrade, overlay_for


class Phase(Enum):
    """Where a `KeyValueState` is in its transaction.

    ::

        OPEN --prepareCommit(t)--> PREPARED --commit(t)--> OPEN
                                            --rollback()--> OPEN
        any  --close()--> CLOSED
    """

    OPEN = "open"
    PREPARED = "prepared"
    READ_ONLY = "read-only"
    CLOSED = "closed"


CACHE_BYTES = 64 << 20
"""Default bound on what is remembered of entries that were read."""

NAMES_MAX = 100
"""Of all kinds together: each transaction looks at all of them, and each holds some kilobytes."""

_RAW = FunctionCodec(*(lambda data: data,) * 4)  # bytes of statefx's own, as they are

_READ_ONLY, _CLOSED = Phase.READ_ONLY, Phase.CLOSED  # looked up once: every call asks for them


class NamedEntries(Entries[K, V]):
    """The entries under a name, in the transaction of the state that they belong to."""

    __slots__ = ("_state",)

    def __init__(self, state: StateTransaction[Any, Any], overlay: Overlay) -> None:
        self._state = state
        self._open_entries(overlay, writable=state.phase is not _READ_ONLY)

    @property
    def _epoch(self) -> int:  # type: ignore[override]  # the state's
        return self._state._epoch

    def _require_open(self) -> None:
        self._state._require_open()

    def _require_writable(self, call: str) -> None:
        self._state._require_writable(call)


class Named(Protocol):
    """What shows the entries under a name: as a map, a list or one value."""

    @property
    def _entries(self) -> NamedEntries[Any, Any]: ...


_Shown = TypeVar("_Shown", bound=Named)


class StateTransaction(Entries[K, V]):
    """What `KeyValueState` is to the runtime; parameters and contract are told there.

    It holds the store, and all that the task keeps in it is prepared in one sorted write: its own entries, and those
    under each name.
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
        "_prepared_bytes",
        "_preparing",
        "_reads",
        "_store",
        "_timers_first",
        "_unsettled",
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
        self._phase = Phase.READ_ONLY if read_only else Phase.OPEN
        self._preparing = EMPTY
        self._prepared_bytes = 0
        self._unsettled: list[tuple[Overlay, list[Write]]] | None = None
        self._doubtful = False
        self._epoch = 0

    def _new_overlay(self, head: bytes) -> Overlay:
        codec, cache_bytes, state_version, upgrade = self._form
        if len(head) > 1:
            kind, name = name_of(head)
            if kind is Kind.WINDOWS:
                codec = None  # of windows the shape is statefx's own
            elif kind in (Kind.LIST, Kind.VALUE) and codec is not None and type(codec) is not StandardCodec:
                codec = _OwnKeys(codec)
            if upgrade is not None:
                upgrade = _named_upgrade(upgrade, (kind, name) if kind is Kind.WINDOWS else name)
        return overlay_for(self._reads, codec, cache_bytes, head, state_version, upgrade)

    def _lasting_overlay(self, head: bytes) -> ExpiringOverlay:
        """Return what keeps entries that are over at a time."""
        assert self._clock_ms is not None
        codec, cache_bytes, state_version, upgrade = self._form
        upgrade = upgrade and _named_upgrade(upgrade, name_of(head)[1])
        return expiring_overlay(self._reads, codec, cache_bytes, head, state_version, upgrade, self._clock_ms)

    def _set_clock(self, clock_ms: int) -> None:
        """Go on at another time, in milliseconds since the epoch."""
        if self._unsettled is not None:  # what is prepared has the times of its own transaction
            self._settle(self._unsettled)
        lasting = [each for each in self._named.values() if isinstance(each, ExpiringOverlay)]
        if lasting and clock_ms != self._clock_ms:
            self._epoch += 1  # rows that a scan has yet to read are of the time before
        self._clock_ms = clock_ms
        for overlay in lasting:
            overlay.set_clock(clock_ms)

    def _overlays(self) -> Iterator[Overlay]:
        return chain((self._overlay,), self._named.values())

    def _relink(self) -> None:
        """Have get and put look again where they find most of what they are asked for."""
        writable = self._phase is not _READ_ONLY
        self._open_entries(self._overlay, writable=writable)
        for view in self._views.values():
            view._entries._open_entries(view._entries._overlay, writable=writable)

    def _unlink(self) -> None:
        """Have every next get and put ask whether it may."""
        self._cut()
        for view in self._views.values():
            view._entries._cut()

    def _keep_journal(self, journal: Journal | None) -> None:
        """Have each change write into `journal` what it replaces, until this is called with None."""
        for overlay in self._overlays():
            overlay.journal = journal
        self._journal = journal
        for view in self._views.values():
            view._entries._journal = journal

    def _undo(self, journal: Journal) -> None:
        """Take back what a journal has."""
        for overlay in self._overlays():
            overlay.before_undo()
        take_back(journal)

    def __repr__(self) -> str:
        return f"<KeyValueState {self._phase.value}, committed {self._version.txid}>"

    @property
    def phase(self) -> Phase:
        """Where this state is in its transaction."""
        return self._phase

    @property
    def version(self) -> Version:
        """The committed version: the one opened at, or the last one committed here."""
        return self._version

    @property
    def token(self) -> str:
        """The token of what is prepared, else that of the committed version."""
        return self._preparing.token if self._phase is Phase.PREPARED else self._version.token

    @property
    def prepared_keys(self) -> int:
        """How many keys what is prepared changes."""
        if self._unsettled is not None:
            return sum(len(writes) for _, writes in self._unsettled)
        return sum(len(overlay.prepared) for overlay in self._overlays())

    @property
    def prepared_bytes(self) -> int:
        """What the store said that the last prepare takes."""
        return self._prepared_bytes

    # ---- the transaction

    def prepareCommit(self, txid: int, *, token: str | None = None) -> str:
        """Make this transaction's changes durable and invisible, and return their token.

        Called when all tuples of `txid` have been executed. Again with the same `txid`: the same token.

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
        self._require_writable("prepareCommit")
        if self._phase is Phase.PREPARED:
            if txid == self._preparing.txid:
                return self._preparing.token
            raise self._misplaced(f"prepareCommit({txid}) while {self._preparing.txid} is prepared", txid)
        if txid <= self._version.txid:
            raise self._misplaced(f"prepareCommit({txid}) when {self._version.txid} is committed", txid)
        if self._reads.failure is not None:  # a bolt that took it for a missing key has put a value that is wrong
            raise self._reads.failure
        unsettled = [(overlay, overlay.changes()) for overlay in self._overlays()]
        writes = _in_order(unsettled)
        # The token is given to the store and never asked of it: barriers that are on their way carry it (rule 1.3).
        prepared = prepare_as(self._store, txid, token or uuid.uuid4().hex, writes)
        self._preparing, self._prepared_bytes = Version(txid, prepared.token), prepared.size_bytes
        self._phase = Phase.PREPARED
        self._unsettled = unsettled
        # The runtime closes nearly every state now. So what is prepared is laid below later changes only when there
        # are any: empty maps send the next get or put to `_require_open`, which calls `_settle`.
        self._unlink()
        return self._preparing.token

    def _settle(self, unsettled: list[tuple[Overlay, list[Write]]]) -> None:
        """Lay what is prepared below the changes that follow."""
        self._unsettled = None
        for overlay, writes in unsettled:
            overlay.settle(writes)
        self._relink()

    def commit(self, txid: int) -> None:
        """Make what was prepared for `txid` the committed version; again is a no-op.

        Raises
        ------
        StatePhaseError
            `txid` is not what is prepared.
        CommitFailedError, CommitOutcomeUnknownError
            From the store; `txid` is still prepared: commit again.
        """
        self._require_writable("commit")
        if txid == self._version.txid:  # a driver whose predecessor died after the commit tells it again (rule 6.5)
            return
        if self._phase is not Phase.PREPARED or txid != self._preparing.txid:
            raise self._misplaced(f"commit({txid}) without prepareCommit({txid})", txid)
        self._doubtful = True
        try:
            self._store.commit(txid, self._preparing.token)
        except CommitFailedError:  # the one error that says it has not happened; after any other it may have
            self._doubtful = False
            raise
        self._doubtful = False
        self._version = self._preparing
        for overlay in self._overlays():
            overlay.prepared = OrderedEntries()
        self._phase = Phase.OPEN
        self._epoch += 1  # rows that a scan has yet to read are of the version before

    def _advance(self, reopened: Callable[[], StateStore]) -> bool:
        """Go on to the next transaction: what is prepared is committed, as the driver says; False if nothing is.

        What is known of the entries stays known, also where the store can't go on: what `reopened` opens then, at the
        version that was prepared, has the same entries.
        """
        unsettled = self._unsettled
        if self._phase is not Phase.PREPARED or unsettled is None:
            return False
        if not self._store.advance(self._preparing.txid, self._preparing.token, _in_order(unsettled)):
            self._store.close()
            self._store = reopened()
            self._reads = StoreReads(self._store)
            for overlay in self._overlays():
                overlay.read_from(self._reads)
        self._unsettled = None
        for overlay, changes in unsettled:
            overlay.absorb(changes)
        self._version, self._phase = self._preparing, Phase.OPEN
        self._epoch += 1
        return True

    def rollback(self) -> None:
        """Discard every change that is not committed; again is a no-op.

        Raises
        ------
        StatePhaseError
            A commit was tried and may have happened: commit again instead.
        """
        self._require_writable("rollback")
        if self._phase is Phase.PREPARED:
            txid, token = self._preparing.txid, self._preparing.token
            if self._doubtful:  # COMMITTING is decided: it is committed again, never rolled back (rule 2.5)
                raise self._misplaced(f"rollback() when commit({txid}) may have happened: commit again", txid)
            self._store.rollback(txid, token)
            for overlay in self._overlays():
                overlay.unsettle()
            self._phase = Phase.OPEN
        for overlay in self._overlays():
            overlay.discard()
        self._reads.failure = None
        self._timers_first = {}
        self._epoch += 1

    def close(self) -> None:
        """Release the store; changes that are not prepared are gone. Again is a no-op.

        What is prepared stays: another process may be told to commit it (rule 4.3).
        """
        if self._phase is Phase.CLOSED:
            return
        self._phase = Phase.CLOSED
        self._epoch += 1
        self._unsettled = None
        self._unlink()
        for overlay in self._overlays():
            overlay.discard()
            overlay.unsettle()
        self._store.close()

    # ---- names

    def _view(self, kind: Kind, name: str, show: Callable[[Any], _Shown], *, lasting: bool = False) -> _Shown:
        """Return what shows the entries of a kind under a name, the same object for the whole transaction.

        If `lasting`, each entry may be over at a time; whether it was so in the transaction before does not matter.
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
        """Return what encodes values as the bolt's are, and shows those of older versions as they were written."""
        codec, _, state_version, _ = self._form
        return overlay_for(self._reads, codec, 0, self._overlay._first, state_version)

    def _raw_overlay(self, head: bytes, cache_bytes: int = CACHE_BYTES) -> Overlay:
        """Return what keeps entries of statefx's own, whose keys are bytes that begin with `head`, and values bytes."""
        overlay = self._named.get(head)
        if overlay is None:
            overlay = self._named[head] = Overlay(self._reads, _RAW, cache_bytes, head)
        return overlay

    def _names(self, kind: Kind) -> Iterator[str]:
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
        if self._unsettled is not None:
            self._settle(self._unsettled)

    def _require_writable(self, call: str) -> None:
        self._require_open()
        if self._phase is _READ_ONLY:
            remedy = "change state in execute, finishBatch or prePrepare"
            raise self._misplaced(f"{call} on a read-only view of state: {remedy}", self._version.txid)

    def _misplaced(self, what: str, txid: int) -> StatePhaseError:
        return StatePhaseError(what, txid=txid, committed=self._version.txid, phase=self._phase.value)


def _in_order(unsettled: list[tuple[Overlay, list[Write]]]) -> list[Write]:
    """Return all changes, sorted."""
    writes = unsettled[0][1] if len(unsettled) == 1 else [each for _, changes in unsettled for each in changes]
    writes.sort(key=itemgetter(0))  # of what is in order already, it costs nothing
    return writes


def _named_upgrade(upgrade: Upgrade, name: str | tuple[Kind, str]) -> Upgrade:
    """Have `upgrade` told under which name a value is kept: its key is (name, key); of windows ((kind, name), key)."""
    return lambda version, key, value: upgrade(version, (name, key), value)


class _OwnKeys(Codec):
    """A user's codec for the values of a list: their numbers have to order as numbers, which its keys need not."""

    def __init__(self, inner: Codec) -> None:
        self._inner = inner
        self.name = inner.name  # type: ignore[misc]  # of this one
        own = StandardCodec()
        self._encode_key, self._decode_key = own.encode_key, own.decode_key

    def encode_key(self, key: Any, /) -> bytes:
        return self._encode_key(key)

    def decode_key(self, data: bytes, /) -> Any:
        return self._decode_key(data)

    def encode_value(self, value: Any, /) -> bytes:
        return self._inner.encode_value(value)

    def decode_value(self, data: bytes, /) -> Any:
        return self._inner.decode_value(data)
