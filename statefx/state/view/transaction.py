"""The transaction of one task's state: phases, what is prepared, committed or discarded."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from enum import Enum
from operator import itemgetter
from typing import Any

from statefx.errors import CommitFailedError, StateClosedError, StatePhaseError
from statefx.state.contract.ranges import OrderedEntries
from statefx.state.contract.spaces import Space
from statefx.state.contract.store import EMPTY, StateStore, Version, Write, prepare_as
from statefx.state.encoding.codec import Codec
from statefx.state.view.overlay import StoreReads
from statefx.state.view.pending import Kind
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

_READ_ONLY, _CLOSED = Phase.READ_ONLY, Phase.CLOSED  # looked up once: every call asks for them


class StateTransaction:
    """What `KeyValueState` is to the runtime; parameters and contract are told there."""

    _ended = "the state is closed"
    __slots__ = (
        "_changed",
        "_codec",
        "_doubtful",
        "_epoch",
        "_known",
        "_overlay",
        "_phase",
        "_prepared_bytes",
        "_preparing",
        "_reads",
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
        upgrade: Upgrade | None = None,
        space: Space = Space.USER,
    ) -> None:
        self._store = store
        self._version = version
        self._reads = StoreReads(store)
        self._overlay = overlay_for(self._reads, codec, cache_bytes, space, state_version, upgrade)
        self._codec = self._overlay.codec
        # get and put look here first, without a further call; where a change is refused, `_writable` has no entry
        self._changed: dict[Kind, dict[Any, Any]] = self._overlay.changed
        self._known: dict[Kind, dict[Any, Any]] = self._overlay.known
        self._writable: dict[Kind, dict[Any, Any]] = {} if read_only else self._overlay.changed
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
        writes = self._overlay.changes()
        writes.sort(key=itemgetter(0))
        # The token is given to the store and never asked of it: barriers that are on their way carry it (rule 1.3).
        prepared = prepare_as(self._store, txid, token or uuid.uuid4().hex, writes)
        self._preparing, self._prepared_bytes = Version(txid, prepared.token), prepared.size_bytes
        self._phase = Phase.PREPARED
        self._unsettled = writes
        # The runtime closes nearly every state now. So what is prepared is laid below later changes only when there
        # are any: empty maps send the next get or put to `_require_open`, which calls `_settle`.
        self._changed, self._known, self._writable = {}, {}, {}
        return self._preparing.token

    def _settle(self, writes: list[Write]) -> None:
        """Lay what is prepared below the changes that follow."""
        self._unsettled = None
        self._overlay.settle(writes)
        self._changed, self._known, self._writable = self._overlay.changed, self._overlay.known, self._overlay.changed

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
        self._overlay.prepared = OrderedEntries()
        self._phase = Phase.OPEN
        self._epoch += 1  # rows that a scan has yet to read are of the version before

    def _advance(self, reopened: Callable[[], StateStore]) -> bool:
        """Go on to the next transaction: what is prepared is committed, as the driver says; False if nothing is.

        What is known of the entries stays known, also where the store can't go on: what `reopened` opens then, at the
        version that was prepared, has the same entries.
        """
        writes = self._unsettled
        if self._phase is not Phase.PREPARED or writes is None:
            return False
        if not self._store.advance(self._preparing.txid, self._preparing.token, writes):
            self._store.close()
            self._store = reopened()
            self._reads = self._overlay.read_from(self._store)
        self._unsettled = None
        self._overlay.absorb(writes)
        self._changed, self._known, self._writable = self._overlay.changed, self._overlay.known, self._overlay.changed
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
            self._overlay.unsettle()
            self._phase = Phase.OPEN
        self._overlay.discard()
        self._reads.failure = None
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
        self._changed, self._known, self._writable = {}, {}, {}
        self._overlay.discard()
        self._overlay.unsettle()
        self._store.close()

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
