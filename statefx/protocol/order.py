"""What the driver tells its tasks: which attempt, where their state stands, and what their sources read.

On its way it is JSON, a line for each task that is told something, behind a head that each of them reads::

    {"attempt":{"txid":7,"attempt":0},"generation":2,...}
    ["count/0",{"version":{"txid":6,"token":"3f..."},...}]
    ["count/1",{"version":{"txid":6,"token":"9c..."},...}]

A task looks for its own line and parses no other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeVar

import msgspec

from statefx.protocol.commands import Resolution
from statefx.protocol.identity import EMPTY, SnapshotRef, TaskId, TransactionAttempt, Version
from statefx.protocol.jsonform import Json
from statefx.protocol.watermark import TimeOrder


@dataclass(frozen=True, slots=True)
class StateOrder:
    """State version and snapshot that the driver assigns to one stateful task."""

    version: Version = EMPTY  # the committed version that it opens; in a commit, the prepared one
    snapshot: SnapshotRef | None = None  # the newest snapshot at or before that version, where there is one
    snapshot_due: bool = False  # whether it writes a snapshot of the version that it opens
    previous: Version = EMPTY  # in a commit, the version before `version`


class Emission(StrEnum):
    """How a task of a spout uses its metadata (rule 9.4)."""

    AGAIN = "again"  # it is that of the batch, which the task emits
    NEW = "new"  # it is that of the batch before; what the task says that it emitted is durable before a committer runs
    OPAQUE = "opaque"  # the same, but what it emitted is durable with the decision only


@dataclass(frozen=True, slots=True)
class EmissionOrder:
    """The batch that one task of a spout or a DataFrame emits."""

    emission: Emission
    # Partition -> metadata, of the partitions that are this task's; the empty name stands for all of a spout that has
    # none. Null where there was no batch before. Of a DataFrame, its parts by their numbers (`StagedPart.told`).
    partitions: Mapping[str, Json]
    cleanup_before: int = 0  # transactions before this one are committed


class TaskOrder(Protocol):
    """A task's view of an instruction; a task reads only its own entries."""

    @property
    def attempt(self) -> TransactionAttempt: ...
    @property
    def generation(self) -> int: ...
    @property
    def clock_ms(self) -> int:
        """When the attempt or its resolution began, in milliseconds since the epoch, by the driver's clock."""

    def state(self, task: TaskId) -> StateOrder: ...


class RunOrder(TaskOrder, Protocol):
    """The order of an attempt, as a task sees it."""

    @property
    def ticks(self) -> tuple[str, ...]: ...
    def emission(self, task: TaskId) -> EmissionOrder: ...
    def time(self, task: TaskId) -> TimeOrder: ...


class TaskResolution(TaskOrder, Protocol):
    """The order of a commit or a rollback, as a task sees it."""

    @property
    def resolution(self) -> Resolution: ...


@dataclass(frozen=True, slots=True)
class Order:
    """One attempt."""

    attempt: TransactionAttempt
    generation: int
    # The committed version of each stateful task, by ``component/task``; absent means empty.
    versions: Mapping[str, Version] = field(default_factory=dict)
    # The newest snapshot at or before that version, where there is one.
    snapshots: Mapping[str, SnapshotRef] = field(default_factory=dict)
    snapshot_due: frozenset[str] = frozenset()  # tasks that write a snapshot of the version they open
    emissions: Mapping[TaskId, EmissionOrder] = field(default_factory=dict)  # for each task of a spout, what it emits
    # The driver's time when the attempt began, or its resolution, since the epoch: one time for all tasks.
    clock_ms: int = 0
    times: Mapping[TaskId, TimeOrder] = field(default_factory=dict)  # for each task that has event time
    ticks: tuple[str, ...] = ()  # the bolts whose tasks get a tick

    def state(self, task: TaskId) -> StateOrder:
        name = str(task)
        return StateOrder(self.versions.get(name, EMPTY), self.snapshots.get(name), name in self.snapshot_due)

    def emission(self, task: TaskId) -> EmissionOrder:
        return self.emissions[task]

    def time(self, task: TaskId) -> TimeOrder:
        return self.times[task]


@dataclass(frozen=True, slots=True)
class ResolutionOrder:
    """The commit or the rollback of one transaction, for the tasks whose bolt or store has something to do."""

    resolution: Resolution
    # What is committed or rolled back. For a commit, `versions` are the prepared ones; for a rollback, the committed
    # ones.
    order: Order
    tasks: tuple[TaskId, ...]  # who takes part
    previous: Mapping[str, Version] = field(default_factory=dict)  # for a commit, the versions before it

    @property
    def attempt(self) -> TransactionAttempt:
        return self.order.attempt

    @property
    def generation(self) -> int:
        return self.order.generation

    @property
    def clock_ms(self) -> int:
        """When the resolution began, in milliseconds since the epoch, by the driver's clock."""
        return self.order.clock_ms

    def state(self, task: TaskId) -> StateOrder:
        name, order = str(task), self.order
        return StateOrder(
            order.versions.get(name, EMPTY), order.snapshots.get(name), previous=self.previous.get(name, EMPTY)
        )


Runs = tuple[tuple[int, int], ...]
"""Numbers in order, as (first, how many in a row)."""

_Told = TypeVar("_Told", StateOrder, EmissionOrder, TimeOrder)

_MARKS: Mapping[type, str] = {StateOrder: "", EmissionOrder: "", TimeOrder: "@"}
"""What stands before the name of a task in its line: one that keeps state or emits may also be told of time."""


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of an instruction that every task reads."""

    attempt: TransactionAttempt
    generation: int
    resolution: Resolution | None = None  # of a ResolutionOrder
    tasks: Runs = ()  # of a ResolutionOrder, who takes part: runs of numbers of stateful tasks
    clock_ms: int = 0
    ticks: tuple[str, ...] = ()  # of an Order


def runs_of(numbers: Sequence[int]) -> Runs:
    """Return numbers, in their order, as runs.

    >>> runs_of([0, 1, 2, 7, 3])
    ((0, 3), (7, 1), (3, 1))
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return tuple((first, count) for first, count in runs)


def lines_of(order: Order | ResolutionOrder, tasks: Sequence[TaskId]) -> str:
    """Return the lines of stateful `tasks`, and those of the tasks of spouts and of what has event time."""
    lines = [msgspec.json.encode((str(task), order.state(task))).decode() for task in tasks]
    if isinstance(order, Order):
        for task, told in order.emissions.items():
            # By `json`: metadata may hold what msgspec does not write, such as infinity.
            lines.append(json.dumps([str(task), msgspec.to_builtins(told)], separators=(",", ":")))
        for task, time in order.times.items():
            lines.append(msgspec.json.encode((_named(task, TimeOrder), time)).decode())
    return "".join(f"\n{line}" for line in lines)


def read_line(lines: str, task: TaskId, shape: type[_Told]) -> _Told:
    """Find and read what `lines_of` wrote for `task`.

    Raises
    ------
    ValueError
        There is no line for it, or it is damaged.
    """
    start = lines.find(f"\n[{msgspec.json.encode(_named(task, shape)).decode()},")
    if start < 0:
        raise ValueError(f"the order says nothing of {task}")
    told: list[Any] = json.loads(lines[start + 1 :].partition("\n")[0])
    return msgspec.convert(told[1], shape)


def _named(task: TaskId, shape: type) -> str:
    return f"{_MARKS[shape]}{task}"
