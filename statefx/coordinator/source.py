"""Where transactions come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from statefx.coordinator.attempt import Batch

LOOK_SECS = 0.1
"""How long it takes at most until a source is asked again; nothing wakes the loop when there is something to read."""


class Source(Protocol):
    """Gives transactions their input; called by the coordinator's thread alone.

    A transaction that was rolled back is asked for again, also after later ones were given: a source whose input must
    be the same again remembers it until the transaction is committed (rule 9.4).
    """

    def ready(self, txid: int) -> bool:
        """Tell whether there is input for `txid` now."""

    def next(self, txid: int) -> Batch:
        """Return the input of `txid`, for which it is ready."""

    def look_secs(self) -> float:
        """Return when to ask again, if it was not ready."""

    def ended(self, txid: int) -> bool:
        """Tell whether there will never be any for `txid`."""


@dataclass
class OneBatch:
    """The source of one transaction, whose input is there; `committed` returns the last committed txid."""

    batch: Batch
    txid: int
    committed: Callable[[], int]

    def ready(self, txid: int) -> bool:
        """Tell whether it is not committed yet."""
        return txid == self.txid and not self.ended(txid)

    def next(self, txid: int) -> Batch:
        """Return the batch; the same one to every attempt."""
        return self.batch

    def look_secs(self) -> float:
        """Return any time: it is ready for its transaction until that is committed."""
        return LOOK_SECS

    def ended(self, txid: int) -> bool:
        """Tell whether it is committed."""
        return self.committed() >= self.txid
