"""What the driver tells the tasks of one job: which attempt, where their state stands, and what their spouts read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from statefx.protocol.commands import Resolution
from statefx.protocol.identity import EMPTY, SnapshotRef, TaskId, TransactionAttempt, Version
from statefx.protocol.jsonform import Json


@dataclass(frozen=True, slots=True)
class StateOrder:
    """What one stateful task is told of its state.

    Attributes
    ----------
    version : Version
        The committed version that it opens; in a commit, the prepared one.
    snapshot : SnapshotRef or None
        The newest snapshot at or before that version, where there is one.
    snapshot_due : bool
        Whether it shall write a snapshot of the version that it opens.
    previous : Version
        In a commit, the version before `version`.
    """

    version: Version = EMPTY
    snapshot: SnapshotRef | None = None
    snapshot_due: bool = False
    previous: Version = EMPTY


class Emission(StrEnum):
    """What a task of a spout does with the metadata that it is told (rule 9.4)."""

    AGAIN = "again"  # it is that of the batch, which the task emits
    NEW = "new"  # it is that of the batch before; what the task says that it emitted is durable before a committer runs
    OPAQUE = "opaque"  # the same, but what it emitted is durable with the decision only


@dataclass(frozen=True, slots=True)
class EmissionOrder:
    """What one task of a spout is told of the batch that it emits.

    Attributes
    ----------
    emission : Emission
    partitions : Mapping[str, JSON]
        Partition -> metadata, of the partitions that are this task's; the empty name stands for all of a spout that has
        none. Null where there was no batch before.
    cleanup_before : int
        Transactions before this one are committed.
    """

    emission: Emission
    partitions: Mapping[str, Json]
    cleanup_before: int = 0


class TaskOrder(Protocol):
    """An order as a task sees it; the task may read from it what it is told itself, and nothing of other tasks."""

    @property
    def attempt(self) -> TransactionAttempt:
        """What is run, committed or rolled back."""

    @property
    def generation(self) -> int:
        """The generation of the driver that asks."""

    def state(self, task: TaskId) -> StateOrder:
        """Return what a task is told of its state; OSError if that can't be read."""


class RunOrder(TaskOrder, Protocol):
    """The order of an attempt, as a task sees it."""

    def emission(self, task: TaskId) -> EmissionOrder:
        """Return what a task of a spout is told of its batch; OSError if that can't be read."""


class TaskResolution(TaskOrder, Protocol):
    """The order of a commit or a rollback, as a task sees it."""

    @property
    def resolution(self) -> Resolution:
        """Which of the two."""


@dataclass(frozen=True, slots=True)
class Order:
    """One attempt.

    Attributes
    ----------
    attempt : TransactionAttempt
    generation : int
    versions : Mapping[str, Version]
        The committed version of each stateful task, by ``component/task``; absent means empty.
    snapshots : Mapping[str, SnapshotRef]
        The newest snapshot at or before that version, where there is one.
    snapshot_due : frozenset of str
        Tasks that shall write a snapshot of the version they open.
    emissions : Mapping[TaskId, EmissionOrder]
        For each task of a spout, what it emits.
    """

    attempt: TransactionAttempt
    generation: int
    versions: Mapping[str, Version] = field(default_factory=dict)
    snapshots: Mapping[str, SnapshotRef] = field(default_factory=dict)
    snapshot_due: frozenset[str] = frozenset()
    emissions: Mapping[TaskId, EmissionOrder] = field(default_factory=dict)

    def state(self, task: TaskId) -> StateOrder:
        """Return what a task is told of its state."""
        name = str(task)
        return StateOrder(self.versions.get(name, EMPTY), self.snapshots.get(name), name in self.snapshot_due)

    def emission(self, task: TaskId) -> EmissionOrder:
        """Return what a task of a spout is told of its batch."""
        return self.emissions[task]


@dataclass(frozen=True, slots=True)
class ResolutionOrder:
    """The commit or the rollback of one transaction, for the tasks whose bolt or store has something to do.

    Attributes
    ----------
    resolution : Resolution
    order : Order
        What is committed or rolled back. For a commit, `versions` are the prepared ones; for a rollback, the
        committed ones.
    tasks : tuple of TaskId
        Who takes part, one Spark task each.
    previous : Mapping[str, Version]
        For a commit, the versions before it.
    """

    resolution: Resolution
    order: Order
    tasks: tuple[TaskId, ...]
    previous: Mapping[str, Version] = field(default_factory=dict)

    @property
    def attempt(self) -> TransactionAttempt:
        """What is committed or rolled back."""
        return self.order.attempt

    @property
    def generation(self) -> int:
        """The generation of the driver that asks."""
        return self.order.generation

    def state(self, task: TaskId) -> StateOrder:
        """Return what a task is told of its state."""
        name, order = str(task), self.order
        return StateOrder(
            order.versions.get(name, EMPTY), order.snapshots.get(name), previous=self.previous.get(name, EMPTY)
        )
