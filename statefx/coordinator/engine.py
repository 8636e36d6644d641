"""What the coordinator asks of the engine: carry out parts of attempts, and say what came of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from statefx.coordinator.attempt import Attempt, Part
from statefx.protocol.commands import Segment
from statefx.protocol.order import Order, ResolutionOrder


class Answer(NamedTuple):
    """What came of something that was carried out.

    Acks and reports are in the attempt. With a `failure` there may be some, or none: a BoltError says that a bolt's
    code raised; JobFailedError that the same may be tried again; StoppedError that the query is being stopped; of
    another TransactionError trying again would not help. Of a call, it is whatever that has raised. Anything else ends
    the driver.
    """

    attempt: Attempt
    part: Part
    failure: BaseException | None = None


class Engine(Protocol):
    """Carries out parts of attempts: as orders to tasks that live (`statefx.coordinator.runs`), or in this process.

    Contract
    --------
    * All methods but `interrupt` are called by one thread.
    * Parts end in any order; what came of each is told once.
    * No part makes a task wait for another transaction (rule 2.6: what must wait is ordered later).
    * What was cancelled may go on for a while, and may still be told of by `next` (rule 6.4).
    """

    def start(self, attempt: Attempt, segment: Segment, order: Order) -> None:
        """Begin a segment; returns at once."""

    def resolve(self, attempt: Attempt, name: str, order: ResolutionOrder) -> None:
        """Begin to tell tasks of a commit or a rollback, for who takes part under `name`; returns at once."""

    def call(self, attempt: Attempt, part: Part, call: Callable[[], object]) -> None:
        """Begin to call something on the driver; returns at once."""

    def next(self, timeout_secs: float | None) -> Answer | None:
        """Wait until something has ended; None after `timeout_secs`, or when it was interrupted. None: for ever.

        With one thing at a time an engine may do it here, in the caller's thread.
        """

    def cancel(self, attempt: Attempt) -> None:
        """Cancel what tasks carry out of an attempt; nobody waits for its end."""

    def interrupt(self) -> None:
        """Let `next` return; called by another thread."""

    def status(self) -> dict[str, Any]:
        """Return what ``query.status`` says of it: JSON; called by any thread."""

    def close(self) -> None:
        """Release what it holds: nothing is begun any more, and nothing is under way."""


def came_of(attempt: Attempt, part: Part, call: Callable[[], object]) -> Answer:
    """Call something, and return what came of it."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whoever reads the answer decides
        return Answer(attempt, part, error)
    return Answer(attempt, part)
