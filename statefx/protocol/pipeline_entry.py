"""A transaction in flight, and the shape of the pipeline that it is in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.transaction import Phase, TransactionState


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
    SETTLED = 12  # COMMITTING is durable, and has committed it: nobody is to be told


@dataclass(frozen=True, slots=True)
class Shape:
    """What does not change while a topology runs."""

    pending: int = 1  # how many transactions may be in flight
    segments: int = 1  # 1: one job per attempt. 2: P, then O; needed where more than one is pending
    # Spouts emit their metadata: what t+1 reads follows from what t emitted, so their P run one after the other.
    emitted: bool = False
    # What they emitted must be durable before a committer runs: a record PROCESSED is written.
    writes_processed: bool = False
    settles: bool = False  # no task has anything to do at a commit: COMMITTING commits
    attempts_max: int = 10  # how often one transaction may fail

    def __post_init__(self) -> None:
        if (
            self.segments not in (1, 2)
            or self.pending < 1
            or (self.segments == 1 and (self.pending > 1 or self.writes_processed))
        ):
            raise ValueError(f"more than one transaction, or PROCESSED, needs two segments: {self}")


@dataclass(frozen=True, slots=True)
class PipelineEntry:
    """One transaction in flight."""

    state: TransactionState
    stage: Stage
    ordered: bool = False  # a committer may have run: its tasks are told of a rollback

    @property
    def txid(self) -> int:
        """Its transaction."""
        return self.state.txid

    @property
    def attempt(self) -> TransactionAttempt:
        """Its attempt."""
        return self.state.name

    @property
    def decided(self) -> bool:
        """Whether COMMITTING is durable."""
        return self.state.phase is Phase.COMMITTING

    @property
    def doomed(self) -> bool:
        """Whether it is being rolled back."""
        return self.state.phase in (Phase.ROLLING_BACK, Phase.ROLLED_BACK)
