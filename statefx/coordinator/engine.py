"""What the coordinator asks of the engine that runs a transaction's tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from statefx.errors import TransactionError
from statefx.protocol.barrier import Ack
from statefx.protocol.order import Order, ResolutionOrder
from statefx.protocol.report import Report


class JobFailedError(TransactionError):
    """The attempt's job ended without a bolt's error: an executor or worker was lost, it was cancelled or re-run."""


class RenewInputError(TransactionError):
    """The transaction is rolled back and may be tried again, but over a newly planned input only."""


class StoppedError(TransactionError):
    """The query is being stopped; the attempt is rolled back and not tried again."""


class Engine(Protocol):
    """Runs attempts and hooks; Spark, or a loop in this process."""

    def attempt(self, order: Order, work: Any) -> Iterable[Ack]:
        """Run one attempt over `work` and return its acks.

        Raises
        ------
        BoltError
            A bolt's code raised, and went on raising when its task was tried again.
        JobFailedError
            Infrastructure; the attempt may be tried again.
        TransactionError
            Trying again would not help.
        StoppedError
            The query is being stopped.
        """

    def reuses(self, work: Any) -> bool:
        """Tell whether another attempt over `work` would read results that an earlier one has left behind."""

    def hooks(self, order: ResolutionOrder) -> Iterable[Report]:
        """Run the commit or the rollback of ``order.tasks`` and return their reports.

        Raises
        ------
        JobFailedError
            Infrastructure; the hooks may be run again.
        TransactionError
            Trying again would not help.
        StoppedError
            The query is being stopped.
        """
