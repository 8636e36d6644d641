"""Instructions of the driver to its tasks: which attempt, where their state stands, and what their sources read.

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
from typing import Any, TypeVar

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


_Told = TypeVar("_Told", StateOrder, EmissionOrder, TimeOrder)

_MARKS: Mapping[type, str] = {StateOrder: "", EmissionOrder: "", TimeOrder: "@"}
"""Prefix of a task's name in its line: a task that keeps state or emits may have another line for time."""


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of an instruction that every task reads."""

    attempt: TransactionAttempt
    generation: int
    resolution: Resolution | None = None  # of a ResolutionOrder
    clock_ms: int = 0
    ticks: tuple[str, ...] = ()  # of an Order


def lines_of(order: Order | ResolutionOrder, tasks: Sequence[TaskId]) -> str:
    """Return the lines of stateful `tasks`, and those of the tasks of spouts and of what has event time."""
    lines = [msgspec.json.encode((str(task), order.state(task))).decode() for task in tasks]
    if isinstance(order, Order):
        for task, emission in order.emissions.items():
            # By `json`: metadata may hold what msgspec does not write, such as infinity.
            lines.append(json.dumps([str(task), msgspec.to_builtins(emission)], separators=(",", ":")))
        for task, time in order.times.items():
            lines.append(msgspec.json.encode((_named(task, TimeOrder), time)).decode())
    return "".join(f"\n{line}" for line in lines)


class SentOrder:
    """An instruction as text: a task's own line is parsed when the task asks for it."""

    def __init__(self, text: str) -> None:
        first, newline, lines = text.partition("\n")
        head = msgspec.json.decode(first, type=Head)
        self.attempt, self.generation, self.clock_ms, self.ticks = (
            head.attempt,
            head.generation,
            head.clock_ms,
            head.ticks,
        )
        self._resolution = head.resolution
        self._lines = newline + lines
        self._known: dict[TaskId, StateOrder] = {}

    @property
    def resolution(self) -> Resolution:
        assert self._resolution is not None
        return self._resolution

    @property
    def tasks(self) -> list[TaskId]:
        """The participants of a commit or rollback: each has a line."""
        return [TaskId.parse(json.loads(line)[0]) for line in self._lines.split("\n")[1:]]

    def state(self, task: TaskId) -> StateOrder:
        if task not in self._known:  # asked for when state is opened, and again when it is prepared
            self._known[task] = self._read(task, StateOrder)
        return self._known[task]

    def emission(self, task: TaskId) -> EmissionOrder:
        return self._read(task, EmissionOrder)

    def time(self, task: TaskId) -> TimeOrder:
        return self._read(task, TimeOrder)

    def _read(self, task: TaskId, shape: type[_Told]) -> _Told:
        start = self._lines.find(f"\n[{msgspec.json.encode(_named(task, shape)).decode()},")
        if start < 0:
            raise ValueError(f"the instruction has no entry for {task}")
        entry: list[Any] = json.loads(self._lines[start + 1 :].partition("\n")[0])
        return msgspec.convert(entry[1], shape)


RunOrder = Order | SentOrder
"""An attempt's instruction: whole, or as sent to a chain, whose tasks read only their own entries."""

TaskResolution = ResolutionOrder | SentOrder
"""The same, of a commit or a rollback."""


def _named(task: TaskId, shape: type) -> str:
    return f"{_MARKS[shape]}{task}"
