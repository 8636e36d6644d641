"""Which calls a store takes at which time: the same for the stores of every provider."""

from __future__ import annotations

from statefx.errors import StateClosedError, StatePhaseError
from statefx.protocol.identity import Namespace, Version
from statefx.state.contract.store import StateContext


class StoreCalls:
    """What a store has been asked so far, as far as it decides what it may be asked next.

    Attributes
    ----------
    version : Version
        The committed one that reads see.
    prepared : Version or None
        What stands prepared by this store.
    closed : bool
    """

    __slots__ = ("_namespace", "_read_only", "closed", "prepared", "version")

    def __init__(self, namespace: Namespace, context: StateContext) -> None:
        self._namespace = namespace
        self._read_only = context.read_only
        self.version = context.version
        self.prepared: Version | None = None
        self.closed = False

    def check_open(self, call: str) -> None:
        """Refuse `call` after `close`: StateClosedError."""
        if self.closed:
            raise StateClosedError(f"{call} after close of the state of {self._namespace}")

    def check_writable(self, call: str) -> None:
        """Refuse `call` after `close`, and on what was opened read-only: StatePhaseError."""
        self.check_open(call)
        if self._read_only:
            raise self.refusal(f"{call} on state that was opened read-only")

    def check_prepare(self, version: Version) -> None:
        """Refuse to prepare `version` where another one is prepared, or a later one committed: StatePhaseError.

        What is prepared already, under the same token, may be prepared again.
        """
        self.check_writable("prepare")
        if self.prepared is not None and self.prepared != version:
            raise self.refusal(f"prepare of {version} while {self.prepared} is prepared: commit or roll it back first")
        if version.txid <= self.version.txid:
            raise self.refusal(f"prepare({version.txid}) at or below the committed txid {self.version.txid}")

    def commit(self, version: Version) -> None:
        """Note that `version` is committed."""
        self.version, self.prepared = version, None

    def rollback(self, version: Version) -> None:
        """Forget that `version` is prepared."""
        if self.prepared == version:
            self.prepared = None

    def refusal(self, message: str) -> StatePhaseError:
        """Return the error for a call that comes at the wrong time."""
        return StatePhaseError(f"{message} ({self._namespace})", namespace=self._namespace, version=self.version)
