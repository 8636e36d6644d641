"""What a transaction came to: its progress, and what its bolts emitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from statefx.coordinator.progress import Progress, TransactionProgress
from statefx.protocol.ledger import Complete
from statefx.testing.processes import Emitted


@dataclass(frozen=True)
class Sent:
    """One committed transaction.

    Attributes
    ----------
    progress : TransactionProgress
        As a query would tell it.
    """

    progress: TransactionProgress
    _emitted: Emitted

    @property
    def txid(self) -> int:
        """The transaction."""
        return self.progress.txid

    def emitted(self, component: str, stream: str = "default") -> list[tuple[Any, ...]]:
        """Return what a bolt emitted in it, task by task, whether or not another bolt reads it."""
        return list(self._emitted.get((component, stream), ()))


class WatchedProgress(Progress):
    """A progress that tells which runs of the tasks have counted."""

    complete: Complete | None = None

    def acked(self, complete: Complete, input_rows: int) -> None:
        """All tasks have acked."""
        super().acked(complete, input_rows)
        self.complete = complete
