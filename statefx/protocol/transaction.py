"""One transaction's life as a small value and a total table; what a restart has to do is in the same table.

`statefx.protocol.pipeline` moves several of them through it. State is opened at the committed version in the next
transaction: Storm's INITSTATE is no step of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Self

from statefx.errors import TransactionError
from statefx.protocol.identity import TransactionAttempt


class Phase(StrEnum):
    """Phases of a transaction."""

    NOTHING = "NOTHING"
    PREPARING = "PREPARING"
    ROLLING_BACK = "ROLLING_BACK"
    ROLLED_BACK = "ROLLED_BACK"
    COMMITTING = "COMMITTING"
    COMMITTED = "COMMITTED"


class Stage(IntEnum):
    """How far a transaction is within its phase."""

    ADMITTED = 1  # PREPARING is being appended
    BEGUN = 2  # ... is durable
    PROCESSING = 3  # the first segment runs, or the only one
    EMITTED = 4  # P has succeeded; what its spouts emitted is not durable yet
    PROCESSED = 5  # waits for the transactions before it
    ORDERED = 6  # the ordered segment runs
    PREPARED = 7  # all tasks have prepared; waits for COMMITTED of the one before
    DECIDING = 8  # COMMITTING is being appended
    UNRESOLVED = 9  # COMMITTING is durable, or it is to be rolled back: the tasks are not told yet
    RESOLVING = 10  # the tasks are being told
    RESOLVED = 11  # all have been told
    COMMITTED = 12  # COMMITTING is durable, and has committed it: no participant has anything to do


class Event(StrEnum):
    """Events of a transaction."""

    START = "start"
    PREPARE = "prepare"
    ALL_ACKED = "all acked"
    FAILED = "failed"
    ROLLED_BACK = "rolled back"
    COMMITTED = "committed"


class ActionKind(StrEnum):
    """Actions of every task."""

    PREPARE = "PREPARE"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


class Which(StrEnum):
    """The attempt that the next state is about."""

    SAME = "same"
    NEXT_ATTEMPT = "next attempt"
    NEXT_TRANSACTION = "next transaction"


@dataclass(frozen=True, slots=True)
class Step:
    """One entry of the table."""

    phase: Phase  # the phase after the event
    action: ActionKind | None = None  # what is done next; the record is durable before it is sent
    record: str | None = None  # the kind of record that makes the event durable
    which: Which = Which.SAME  # whether the transaction or its attempt moves on


_PREPARE_NEXT = Step(Phase.PREPARING, ActionKind.PREPARE, "PREPARING", Which.NEXT_TRANSACTION)
_PREPARE_AGAIN = Step(Phase.PREPARING, ActionKind.PREPARE, "PREPARING", Which.NEXT_ATTEMPT)
_ROLLBACK = Step(Phase.ROLLING_BACK, ActionKind.ROLLBACK)
_COMMIT_AGAIN = Step(Phase.COMMITTING, ActionKind.COMMIT)

# START is what a new driver does with what it finds in the log (rule 6.5): PREPARING and ROLLING_BACK are rolled back,
# because nobody knows any more which tasks have prepared; COMMITTING is committed. FAILED in COMMITTING leads to COMMIT
# again, without an end (rule 6.11): once the record stands, other tasks may have committed already.
TABLE: Mapping[Phase, Mapping[Event, Step | None]] = {
    Phase.NOTHING: {
        Event.START: Step(Phase.NOTHING),
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
        Event.ROLLED_BACK: Step(Phase.ROLLED_BACK, None, "ROLLED_BACK"),
        Event.COMMITTED: None,
    },
    Phase.ROLLED_BACK: {
        Event.START: Step(Phase.ROLLED_BACK),
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
        Event.START: Step(Phase.COMMITTED),
        Event.PREPARE: _PREPARE_NEXT,
        Event.ALL_ACKED: None,
        Event.FAILED: None,
        Event.ROLLED_BACK: None,
        Event.COMMITTED: Step(Phase.COMMITTED),
    },
}
"""Every phase with every event; None is illegal. Ending again the same way is a no-op, the other way is illegal."""


@dataclass(frozen=True, slots=True)
class TransactionState:
    """The phase of one attempt of one transaction, and how far it is within that.

    >>> state = INITIAL.step(Event.PREPARE)
    >>> print(state, "->", state.step(Event.FAILED))
    PREPARING(1, 0) -> ROLLING_BACK(1, 0)
    >>> print(state.action(Event.FAILED))
    ROLLBACK
    """

    phase: Phase
    txid: int
    attempt: int = 0
    # What the pipeline alone knows; the log has the first.
    stage: Stage = Stage.ADMITTED
    ordered: bool = False  # a committer may have run: its tasks are told of a rollback

    @property
    def name(self) -> TransactionAttempt:
        return TransactionAttempt(self.txid, self.attempt)

    @property
    def committed(self) -> int:
        """The last committed txid, as far as this transaction knows."""
        return self.txid if self.phase in (Phase.NOTHING, Phase.COMMITTED) else self.txid - 1

    @property
    def decided(self) -> bool:
        return self.phase is Phase.COMMITTING

    @property
    def is_rolling_back(self) -> bool:
        return self.phase in (Phase.ROLLING_BACK, Phase.ROLLED_BACK)

    def step(self, event: Event, stage: Stage = Stage.ADMITTED) -> Self:
        """Return the state after `event`, at `stage` of its phase; TransactionError if the event is illegal in it."""
        entry = self._entry(event)
        if entry.which is Which.NEXT_TRANSACTION:
            return replace(self, phase=entry.phase, txid=self.txid + 1, attempt=0, stage=stage, ordered=False)
        if entry.which is Which.NEXT_ATTEMPT:
            return replace(self, phase=entry.phase, attempt=self.attempt + 1, stage=stage, ordered=False)
        return replace(self, phase=entry.phase, stage=stage)

    def action(self, event: Event) -> ActionKind | None:
        """Return what is to be done on `event`, once it is durable."""
        return self._entry(event).action

    def record(self, event: Event) -> str | None:
        """Return the kind of record that must be durable before the action of `event`."""
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


INITIAL = TransactionState(Phase.NOTHING, 0)
"""Before the first transaction."""


def mermaid() -> str:
    """Render the table as a Mermaid state diagram: event, then the action in capitals."""
    lines = ["stateDiagram-v2", "    [*] --> NOTHING"]
    for phase, row in TABLE.items():
        for event, entry in row.items():
            if entry is not None:
                action = f" / {entry.action}" if entry.action else ""
                lines.append(f"    {phase} --> {entry.phase}: {event}{action}")
    return "\n".join(lines) + "\n"
