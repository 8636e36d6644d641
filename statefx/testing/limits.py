"""What a test wants smaller than a topology does."""

from __future__ import annotations

from dataclasses import dataclass, field

from statefx.coordinator.janitor import EVERY_TRANSACTIONS, MIN_AGE_SECS, VERSIONS_KEPT
from statefx.coordinator.log import RECORDS_BEFORE_CHECKPOINT
from statefx.coordinator.orders import CARRIED_BYTES_MAX
from statefx.coordinator.snapshots import SnapshotPolicy
from statefx.state.contract.store import FILES_MAX


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
    files_max : int
        How many state files of like size a task leaves before it merges them.
    versions_kept : int
        How many transactions back a version stays readable.
    pauses : int
        How many waits between tries a driver may ask for before it is stopped.
    carried_bytes_max : int
        Bytes of an order that travel with its job; of a larger one each task reads its own line from a file.
    """

    snapshots: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    fold_after: int = RECORDS_BEFORE_CHECKPOINT
    sweep_every: int = EVERY_TRANSACTIONS
    min_age_secs: float = MIN_AGE_SECS
    files_max: int = FILES_MAX
    versions_kept: int = VERSIONS_KEPT
    pauses: int = 50
    carried_bytes_max: int = CARRIED_BYTES_MAX
