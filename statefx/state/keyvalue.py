"""The state that a bolt sees: keys and values of one task, and their transaction."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any

from statefx.errors import CommitFailedError, StateClosedError, StatePhaseError
from statefx.state.codec import Codec, StandardCodec
from statefx.state.found import Found
from statefx.state.phase import Phase
from statefx.state.places import ABSENT, UNKNOWN, Kind, Packed
from statefx.state.ranges import OrderedEntries
from statefx.state.store import EMPTY, StateStore, Version, Write, prepare_as
from statefx.state.values import SCALARS
from statefx.state.versions import Migrate, overlay_for

CACHE_BYTES = 64 << 20
"""Default bound on what is remembered of entries that were read."""


_READ_ONLY, _CLOSED = Phase.READ_ONLY, Phase.CLOSED  # looked up once: every call asks for them


class KeyValueState:
    """Keys and values of one task, as last committed, with this transaction's own changes on top.

    The runtime opens one for each task and hands it to ``initState``; the bolt reads and writes it in ``execute``.
    The runtime calls `prepareCommit`, `commit` and `rollback`, in the order that `Phase` shows. For one thread.

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
    migrate : callable (version, key, value) -> value, optional
        Brings what an older version wrote into the current form, whenever it is read; without it, it is shown as it
        was written.

    Contract
    --------
    * Reads show this transaction's changes, then what is prepared, then what is committed.
    * Keys of different types are different keys (1, 1.0 and True); equal keys of one type are the same.
    * A stored None is there: ``get(key, 0)`` returns None and ``key in state`` is True.
    * Changing an object after `put`, or one that `get` returned, changes no state.
    * Changes after ``prepareCommit(t)`` are not in ``commit(t)`` and are pending after it.
    * `rollback` discards what is not committed and nothing else.

    Examples
    --------
    >>> from statefx_memory import MemoryStateProvider                             # doctest: +SKIP
    >>> state = KeyValueState(MemoryStateProvider({}).newState(namespace, context))  # doctest: +SKIP
    >>> state.put("spark", state.get("spark", 0) + 1)                              # doctest: +SKIP
    """

    __slots__ = (
        "_codec",
        "_doubtful",
        "_epoch",
        "_open",
        "_overlay",
        "_phase",
        "_prepared_bytes",
        "_preparing",
        "_seen",
        "_store",
        "_unsettled",
        "_version",
        "_writable",
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
        migrate: Migrate | None = None,
    ) -> None:
        self._store = store
        self._version = version
        self._overlay = overlay_for(store, codec or StandardCodec(), cache_bytes, state_version, migrate)
        self._codec = self._overlay.codec
        # get and put look here first, without a further call; where a change is refused, `_writable` has no entry
        self._open: dict[Kind, dict[Any, Any]] = self._overlay.opened
        self._seen: dict[Kind, dict[Any, Any]] = self._overlay.seen
        self._writable: dict[Kind, dict[Any, Any]] = {} if read_only else self._overlay.opened
        self._phase = Phase.READ_ONLY if read_only else Phase.OPEN
        self._preparing = EMPTY
        self._prepared_bytes = 0
        self._unsettled: list[Write] | None = None
        self._doubtful = False
        self._epoch = 0

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
        return len(self._overlay.prepared if self._unsettled is None else self._unsettled)

    @property
    def prepared_bytes(self) -> int:
        """What the store said that the last prepare takes."""
        return self._prepared_bytes

    # ---- reading

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of `key`, or `default` if there is none.

        Raises
        ------
        CodecError
            `key` can't be a key.
        StateClosedError
            The state is closed.
        """
        kind: Kind = type(key)
        if kind is tuple:
            kind = tuple(map(type, key))
        try:
            value = self._open[kind].get(key, UNKNOWN)
            if value is not UNKNOWN:
                return value
            value = self._seen[kind].get(key, UNKNOWN)
            if value is not UNKNOWN:
                return default if value is ABSENT else value
        except (KeyError, TypeError):  # closed, a key of another kind, or one that can't be hashed
            pass
        self._require_open()
        value = self._overlay.find(self._overlay.place(key))
        return default if value is ABSENT else value

    def __contains__(self, key: Any) -> bool:
        return self.get(key, ABSENT) is not ABSENT

    def getAll(self, keys: Iterable[Any]) -> Found:
        """Return the entries of those `keys` that are there, with at most one read of the store."""
        self._require_open()
        places = [self._overlay.place(key) for key in keys]
        found = {}
        for (kind, name, key_bytes), value in zip(places, self._overlay.find_all(places), strict=True):
            if value is not ABSENT:
                key = self._codec.decode_key(key_bytes) if kind is Packed else name
                found[key_bytes] = key, value
        return Found(self._codec.encode_key, found)

    def prefetch(self, keys: Iterable[Any]) -> None:
        """Read what is not known of `keys` with one read of the store, so that `get` need not ask it.

        Called by the runtime with the keys of a batch. Reads nothing twice and changes nothing.
        """
        self._require_open()
        self._overlay.prefetch(keys)

    def items(self, start: Any = None, stop: Any = None, reverse: bool = False) -> Iterator[tuple[Any, Any]]:
        """Yield (key, value) with start <= key < stop in key order, or the last first; None is unbounded.

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
        if self._overlay.watched():
            self._writable = {}  # put comes by the overlay, which tells the scan what it is about to change
        return self._items(rows, self._epoch)

    def _range(self, start: Any, stop: Any) -> tuple[bytes | None, bytes | None]:
        encode_key = self._codec.encode_key
        return None if start is None else encode_key(start), None if stop is None else encode_key(stop)

    def _items(self, rows: Iterator[tuple[bytes, Any]], epoch: int) -> Iterator[tuple[Any, Any]]:
        decode_key, decoded = self._codec.decode_key, self._overlay.decoded
        while True:
            if self._epoch != epoch:
                self._require_open()
                raise StatePhaseError("items() can't go on after a commit or rollback; call it again")
            row = next(rows, None)
            if row is None:
                return
            key_bytes, value = row
            yield value if type(value) is tuple else (decode_key(key_bytes), decoded(key_bytes, value))

    # ---- writing

    def put(self, key: Any, value: Any) -> None:
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
        shape = type(value)
        if shape in SCALARS or (shape is tuple and SCALARS.issuperset(map(type, value))):
            kind: Kind = type(key)
            if kind is tuple:
                kind = tuple(map(type, key))
            try:
                entries = self._writable[kind]
                if key in entries or key in self._seen[kind]:
                    entries[key] = value
                    return
            except (KeyError, TypeError):  # as in get, or read-only
                pass
        self._require_writable("put")
        self._overlay.put(key, value)
        if not self._writable and not self._overlay.watched():
            self._writable = self._overlay.opened

    def putAll(self, mapping: Mapping[Any, Any]) -> None:
        """`put` every entry of `mapping`."""
        self._require_writable("putAll")
        for key, value in mapping.items():
            self.put(key, value)

    def delete(self, key: Any) -> Any:
        """Remove `key` and return the value it had; None if it was not there."""
        self._require_writable("delete")
        place = self._overlay.place(key)
        value = self._overlay.find(place)
        if value is ABSENT:
            return None
        self._overlay.delete(place)
        return value

    def deleteRange(self, start: Any, stop: Any) -> int:
        """Remove every key with start <= key < stop, and return how many there were; None is unbounded.

        Costs as much as `items` of the same range, and a deletion for each of its keys.
        """
        self._require_writable("deleteRange")
        low, high = self._range(start, stop)
        if low is not None and high is not None and low >= high:
            return 0
        return self._overlay.delete_range(low, high)

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
        """
        self._require_writable("prepareCommit")
        if self._phase is Phase.PREPARED:
            if txid == self._preparing.txid:
                return self._preparing.token
            raise self._misplaced(f"prepareCommit({txid}) while {self._preparing.txid} is prepared", txid)
        if txid <= self._version.txid:
            raise self._misplaced(f"prepareCommit({txid}) when {self._version.txid} is committed", txid)
        writes = self._overlay.changes()
        writes.sort(key=itemgetter(0))
        prepared = prepare_as(self._store, txid, token or uuid.uuid4().hex, writes)
        self._preparing, self._prepared_bytes = Version(txid, prepared.token), prepared.size_bytes
        self._phase = Phase.PREPARED
        self._unsettled = writes
        self._open, self._seen, self._writable = {}, {}, {}  # whoever goes on comes by _require_open first
        return self._preparing.token

    def _settle(self, writes: list[Write]) -> None:
        """Do what a state that is used on after prepareCommit needs; most are closed instead."""
        self._unsettled = None
        self._overlay.settle(writes)
        self._open, self._seen, self._writable = self._overlay.opened, self._overlay.seen, self._overlay.opened

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
        if txid == self._version.txid:
            return
        if self._phase is not Phase.PREPARED or txid != self._preparing.txid:
            raise self._misplaced(f"commit({txid}) without prepareCommit({txid})", txid)
        self._doubtful = True
        try:
            self._store.commit(txid, self._preparing.token)
        except CommitFailedError:
            self._doubtful = False
            raise
        self._doubtful = False
        self._version = self._preparing
        self._overlay.prepared = OrderedEntries()
        self._phase = Phase.OPEN
        self._epoch += 1

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
            if self._doubtful:
                raise self._misplaced(f"rollback() when commit({txid}) may have happened: commit again", txid)
            self._store.rollback(txid, token)
            self._overlay.unsettle()
            self._phase = Phase.OPEN
        self._overlay.discard()
        self._epoch += 1

    def close(self) -> None:
        """Release the store; changes that are not prepared are gone. Again is a no-op."""
        if self._phase is Phase.CLOSED:
            return
        self._phase = Phase.CLOSED
        self._epoch += 1
        self._unsettled = None
        self._open, self._seen, self._writable = {}, {}, {}
        self._overlay.discard()
        self._overlay.unsettle()
        self._store.close()

    # ---- guards

    def _require_open(self) -> None:
        if self._phase is _CLOSED:
            raise StateClosedError("the state is closed", txid=self._version.txid)
        if self._unsettled is not None:
            self._settle(self._unsettled)

    def _require_writable(self, call: str) -> None:
        self._require_open()
        if self._phase is _READ_ONLY:
            remedy = "change state in execute, finishBatch or prePrepare"
            raise self._misplaced(f"{call} on a read-only view of state: {remedy}", self._version.txid)

    def _misplaced(self, what: str, txid: int) -> StatePhaseError:
        return StatePhaseError(what, txid=txid, committed=self._version.txid, phase=self._phase.value)


__all__ = ["CACHE_BYTES", "Found", "KeyValueState", "Phase"]
