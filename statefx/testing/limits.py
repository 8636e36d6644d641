"""What a test wants smaller than a topology does."""

from __future__ import annotations

from dataclasses import dataclass, field

from statefx.coordinator.coordinator import SnapshotPolicy
from statefx.coordinator.janitor import EVERY_TRANSACTIONS, MIN_AGE_SECS
from statefx.coordinator.log import RECORDS_BEFORE_CHECKPOINT


@dataclass(frozen=True)
class Limits:
    """Settings that a test wants smaller than a topology does.

    Attributes
    ----------
    snapshots : SnapshotPolicy
        When a task writes a snapshot.
    fold_after : int
        Records of the log before it is folded.
    sweep_every : int
        Transactions between two sweeps.
    min_age_secs : float
        Files younger than this are not swept; see ``TopologyTester.advance``.
    pauses : int
        How many waits between tries a driver may ask for before it is stopped.
    """

    snapshots: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    fold_after: int = RECORDS_BEFORE_CHECKPOINT
    sweep_every: int = EVERY_TRANSACTIONS
    min_age_secs: float = MIN_AGE_SECS
    pauses: int = 50
