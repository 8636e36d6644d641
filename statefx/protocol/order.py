"""What the driver tells the tasks of one attempt: which transaction, and at which versions their state opens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from statefx.protocol.commands import Resolution
from statefx.protocol.identity import EMPTY, SnapshotRef, TaskId, TransactionAttempt, Version
from statefx.protocol.jsonform import from_json, to_json


@dataclass(frozen=True, slots=True)
class Order:
    """One attempt, as every task of it must know it.

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
    """

    attempt: TransactionAttempt
    generation: int
    versions: Mapping[str, Version] = field(default_factory=dict)
    snapshots: Mapping[str, SnapshotRef] = field(default_factory=dict)
    snapshot_due: frozenset[str] = frozenset()

    def version(self, component: str, task: int) -> Version:
        """Return the version at which the state of a task opens."""
        return self.versions.get(str(TaskId(component, task)), EMPTY)

    def to_json(self) -> str:
        """Write the order as text, to travel as a local property of the Spark job."""
        body: dict[str, Any] = {
            "txid": self.attempt.txid,
            "attempt": self.attempt.attempt,
            "generation": self.generation,
            "versions": {key: [v.txid, v.token] for key, v in self.versions.items()},
            "snapshots": to_json(self.snapshots),
            "due": sorted(self.snapshot_due),
        }
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Order:
        """Read what `to_json` wrote."""
        body = json.loads(text)
        return cls(
            attempt=TransactionAttempt(body["txid"], body["attempt"]),
            generation=body["generation"],
            versions={key: Version(*value) for key, value in body["versions"].items()},
            snapshots=from_json(Mapping[str, SnapshotRef], body["snapshots"]),
            snapshot_due=frozenset(body["due"]),
        )


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

    def to_json(self) -> str:
        """Write the order as text."""
        return json.dumps(
            {
                "resolution": self.resolution,
                "order": json.loads(self.order.to_json()),
                "tasks": list(self.tasks),
                "previous": {key: [v.txid, v.token] for key, v in self.previous.items()},
            }
        )

    @classmethod
    def from_json(cls, text: str) -> ResolutionOrder:
        """Read what `to_json` wrote."""
        body = json.loads(text)
        return cls(
            Resolution(body["resolution"]),
            Order.from_json(json.dumps(body["order"])),
            tuple(TaskId(component, task) for component, task in body["tasks"]),
            {key: Version(*value) for key, value in body["previous"].items()},
        )
