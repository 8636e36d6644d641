"""How attempts fail; what is tried again, how often, and after which time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from statefx.errors import (
    AttemptsExhaustedError,
    FailedException,
    StatefxError,
    TransactionError,
    TransactionTimeoutError,
)
from statefx.protocol.commands import Unresolved


class AttemptFailedError(TransactionError):
    """The attempt is rolled back and may be tried again; ``data["kind"]`` is the FailureKind, where tasks told one."""


class JobFailedError(AttemptFailedError):
    """The attempt ended without a bolt's error: a run was lost, or it was cancelled."""


class RenewInputError(TransactionError):
    """The transaction is rolled back and may be tried again, but over a newly planned input only."""


class StoppedError(TransactionError):
    """The query is being stopped; the attempt is rolled back and not tried again."""


BACKOFF_FIRST_SECS = 0.1
BACKOFF_MAX_SECS = 10.0
"""What fails is a server or a file system that comes back; looking for it six times a minute loads neither."""


def backoff_secs(tries: int, first_secs: float = BACKOFF_FIRST_SECS, max_secs: float = BACKOFF_MAX_SECS) -> float:
    """Return how long to wait after so many tries that failed: `first_secs`, and twice as long each time."""
    doublings = min(max(tries - 1, 0), 64)  # a commit may be tried for ever
    return min(max(max_secs, first_secs), first_secs * 2.0**doublings)


def may_be_tried_again(failure: StatefxError) -> bool:
    """Tell whether another attempt may succeed: nothing is known to be wrong with a bolt or with state."""
    # Rule 6.7: a bolt that raises would raise again. Rule 6.8: machines come back.
    return isinstance(failure, AttemptFailedError | FailedException)


def exhausted(txid: int, tries: int, last: StatefxError) -> TransactionError:
    """Return the error that ends the query after the last try."""
    kind = TransactionTimeoutError if last.data.get("timeout") else AttemptsExhaustedError
    error = kind(
        f"transaction {txid} failed {tries} times (topology.transaction.attempts.max); last: "
        f"{last.message.rstrip('.')}. It is rolled back. Mend what failed, or raise that setting, and start again: "
        "it is the first that is tried",
        **{**last.data, "txid": txid, "attempts": tries},
    )
    error.__cause__ = last
    return error


class Wait(NamedTuple):
    """Time before the next round of a commit or a rollback (`then`), or before a transaction's next attempt (None)."""

    secs: float
    since: float
    then: Unresolved | None


@dataclass
class Waits:
    """All that is waited for. There may be two: a commit fails, and behind it the next transaction has failed."""

    clock: Callable[[], float]
    _waits: list[Wait] = field(default_factory=list, init=False)

    def __bool__(self) -> bool:
        return bool(self._waits)

    def add(self, secs: float, then: Unresolved | None = None) -> None:
        """Wait from now on."""
        self._waits.append(Wait(secs, self.clock(), then))

    def first(self) -> Wait | None:
        """Return the one that is over first."""
        return min(self._waits, key=self.left_secs, default=None)

    def left_secs(self, wait: Wait) -> float:
        """Return the seconds left."""
        return max(0.0, wait.secs - (self.clock() - wait.since))

    def remove(self, wait: Wait) -> None:
        """It is over."""
        self._waits.remove(wait)

    @property
    def attempt(self) -> bool:
        """Whether the next attempt of a transaction is waited for."""
        return any(wait.then is None for wait in self._waits)

    @property
    def resolution(self) -> bool:
        """Whether the next round of a commit or a rollback is waited for."""
        return any(wait.then is not None for wait in self._waits)
