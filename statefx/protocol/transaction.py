"""One transaction's life as a small value and a total table; what a restart has to do follows from the same table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from statefx.errors import TransactionError
from statefx.protocol.identity import TransactionAttempt


class Phase(StrEnum):
    """Where a transaction is."""

    NOTHING = "NOTHING"
    PREPARING = "PREPARING"
    ROLLING_BACK = "ROLLING_BACK"
    ROLLED_BACK = "ROLLED_BACK"
    COMMITTING = "COMMITTING"
    COMMITTED = "COMMITTED"


class Event(StrEnum):
    """What happens to it."""

    START = "start"
    PREPARE = "prepare"
    ALL_ACKED = "all acked"
    FAILED = "failed"
    ROLLED_BACK = "rolled back"
    COMMITTED = "committed"


class ActionKind(StrEnum):
    """What the driver has every task do."""

    INITSTATE = "INITSTATE"
    PREPARE = "PREPARE"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


class Which(StrEnum):
    """Which attempt the next state is about."""

    SAME = "same"
    NEXT_ATTEMPT = "next attempt"
    NEXT_TRANSACTION = "next transaction"


@dataclass(frozen=True, slots=True)
class Step:
    """One entry of the table.

    Attributes
    ----------
    phase : Phase
        The phase after the event.
    action : ActionKind or None
        What is done next; the record is durable before it is sent.
    record : str or None
        The kind of record that makes the event durable.
    which : Which
        Whether the transaction or its attempt moves on.
    """

    phase: Phase
    action: ActionKind | None = None
    record: str | None = None
    which: Which = Which.SAME


_PREPARE_NEXT = Step(Phase.PREPARING, ActionKind.PREPARE, "PREPARING", Which.NEXT_TRANSACTION)
_PREPARE_AGAIN = Step(Phase.PREPARING, ActionKind.PREPARE, "PREPARING", Which.NEXT_ATTEMPT)
_ROLLBACK = Step(Phase.ROLLING_BACK, ActionKind.ROLLBACK)
_COMMIT_AGAIN = Step(Phase.COMMITTING, ActionKind.COMMIT)

TABLE: Mapping[Phase, Mapping[Event, Step | None]] = {
    Phase.NOTHING: {
        Event.START: Step(Phase.NOTHING, ActionKind.INITSTATE),
        Event.PREPARE: _PREPARE_NEXT,
        Event.ALL_ACKED: None,
        Event.FAILED: None,
        Event.ROLLED_BACK: None,
        Event.COMMITTED: None,
    },
    Phase.PREPARING: {
        Event.START: _ROLLBACK,
        Event.PREPARE: None,
        Event.ALL_ACKED: Step(Phase.COMMITTING, ActionKind.COMMIT, "COMMITTING"),
        Event.FAILED: _ROLLBACK,
        Event.ROLLED_BACK: None,
        Event.COMMITTED: None,
    },
    Phase.ROLLING_BACK: {
        Event.START: _ROLLBACK,
        Event.PREPARE: None,
        Event.ALL_ACKED: None,
        Event.FAILED: _ROLLBACK,
        Event.ROLLED_BACK: Step(Phase.ROLLED_BACK, ActionKind.INITSTATE, "ROLLED_BACK"),
        Event.COMMITTED: None,
    },
    Phase.ROLLED_BACK: {
        Event.START: Step(Phase.ROLLED_BACK, ActionKind.INITSTATE),
        Event.PREPARE: _PREPARE_AGAIN,
        Event.ALL_ACKED: None,
        Event.FAILED: None,
        Event.ROLLED_BACK: Step(Phase.ROLLED_BACK),
        Event.COMMITTED: None,
    },
    Phase.COMMITTING: {
        Event.START: _COMMIT_AGAIN,
        Event.PREPARE: None,
        Event.ALL_ACKED: None,
        Event.FAILED: _COMMIT_AGAIN,
        Event.ROLLED_BACK: None,
        Event.COMMITTED: Step(Phase.COMMITTED, None, "COMMITTED"),
    },
    Phase.COMMITTED: {
        Event.START: Step(Phase.COMMITTED, ActionKind.INITSTATE),
        Event.PREPARE: _PREPARE_NEXT,
        Event.ALL_ACKED: None,
        Event.FAILED: None,
        Event.ROLLED_BACK: None,
        Event.COMMITTED: Step(Phase.COMMITTED),
    },
}
"""Every phase with every event; None is illegal. Ending again the same way is a no-op, the other way is illegal."""


@dataclass(frozen=True, slots=True)
class Action:
    """What the driver does next; `attempt` is None for INITSTATE, which is about a committed transaction."""

    kind: ActionKind
    txid: int
    attempt: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}({self.txid})" if self.attempt is None else f"{self.kind}({self.txid}, {self.attempt})"


@dataclass(frozen=True, slots=True)
class TransactionState:
    """The phase of one attempt of one transaction.

    >>> state = NOTHING.step(Event.PREPARE)
    >>> print(state, "->", state.step(Event.FAILED))
    PREPARING(1, 0) -> ROLLING_BACK(1, 0)
    >>> print(*state.actions(Event.FAILED))
    ROLLBACK(1, 0)
    """

    phase: Phase
    txid: int
    attempt: int = 0

    @property
    def name(self) -> TransactionAttempt:
        """The attempt this state is about."""
        return TransactionAttempt(self.txid, self.attempt)

    @property
    def committed(self) -> int:
        """The last committed txid, as far as this transaction knows."""
        return self.txid if self.phase in (Phase.NOTHING, Phase.COMMITTED) else self.txid - 1

    def step(self, event: Event) -> TransactionState:
        """Return the state after `event`.

        Raises
        ------
        TransactionError
            The event is illegal in this phase.
        """
        entry = self._entry(event)
        if entry.which is Which.NEXT_TRANSACTION:
            return TransactionState(entry.phase, self.txid + 1)
        return TransactionState(entry.phase, self.txid, self.attempt + (entry.which is Which.NEXT_ATTEMPT))

    def actions(self, event: Event) -> tuple[Action, ...]:
        """Return what is to be done on `event`, once it is durable."""
        kind, after = self._entry(event).action, self.step(event)
        if kind is None:
            return ()
        if kind is ActionKind.INITSTATE:
            return (Action(kind, after.committed),)
        return (Action(kind, after.txid, after.attempt),)

    def record(self, event: Event) -> str | None:
        """Return the kind of record that must be durable before the actions of `event`."""
        return self._entry(event).record

    def _entry(self, event: Event) -> Step:
        entry = TABLE[self.phase][event]
        if entry is None:
            raise TransactionError(
                f"'{event}' is illegal for {self}", txid=self.txid, attempt=self.attempt, phase=str(self.phase)
            )
        return entry

    def __str__(self) -> str:
        if self.phase is Phase.NOTHING:
            return str(self.phase)
        return f"{self.phase}({self.txid}, {self.attempt})"


NOTHING = TransactionState(Phase.NOTHING, 0)


def recovery(
    committed: int, in_flight: Sequence[TransactionState], attempts: Mapping[int, int] | None = None
) -> tuple[Action, ...]:
    """Decide what a driver that has just started does, in order.

    Parameters
    ----------
    committed : int
        The last txid with a COMMITTED record.
    in_flight : Sequence of TransactionState
        Transactions with a PREPARING or COMMITTING record and no end.
    attempts : Mapping[int, int], optional
        txid -> the next attempt number, where there have been attempts.

    Returns
    -------
    tuple of Action
        COMMIT of the one that is COMMITTING; ROLLBACK of those PREPARING, newest first; INITSTATE at what is then
        committed; and, if any transaction was under way, PREPARE of the next one.
    """
    attempts = attempts or {}
    actions: list[Action] = []
    order = sorted(in_flight, key=lambda state: (state.phase is not Phase.COMMITTING, -state.txid))
    for state in order:
        actions += state.actions(Event.START)
        if state.phase is Phase.COMMITTING:
            committed = state.txid
    actions.append(Action(ActionKind.INITSTATE, committed))
    tried = max((state.attempt + 1 for state in in_flight if state.txid == committed + 1), default=0)
    attempt = max(tried, attempts.get(committed + 1, 0))
    if in_flight or attempt:
        actions.append(Action(ActionKind.PREPARE, committed + 1, attempt))
    return tuple(actions)


def mermaid() -> str:
    """Render the table as a Mermaid state diagram: event, then the action in capitals."""
    lines = ["stateDiagram-v2", "    [*] --> NOTHING"]
    for phase, row in TABLE.items():
        for event, entry in row.items():
            if entry is not None:
                action = f" / {entry.action}" if entry.action else ""
                lines.append(f"    {phase} --> {entry.phase}: {event}{action}")
    return "\n".join(lines) + "\n"
