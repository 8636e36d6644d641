"""State as a participant: the decision names what its tasks prepared, and tasks with something to do are told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from statefx.coordinator.attempt import Work
from statefx.coordinator.log import TransactionLog
from statefx.coordinator.participant import Participant
from statefx.operators.hooks import overrides
from statefx.plan.levels import Plan
from statefx.protocol.barrier import Ack
from statefx.protocol.commands import Resolution
from statefx.protocol.identity import SnapshotRef, TaskId, TransactionAttempt, Version
from statefx.protocol.log_state import LogState
from statefx.protocol.order import Order, ResolutionOrder
from statefx.protocol.records import Committing
from statefx.state.contract.store import StateLocation, StateProvider
from statefx.storage import Storage


@dataclass(frozen=True)
class SnapshotPolicy:
    """Which tasks write a snapshot in a transaction.

    A snapshot costs what the state holds, and the transaction waits for it. So one is due when the changelogs come to
    as much, which pays for it; many small files are no reason, for these are merged
    (`statefx.state.changelog.merging`). And since the tasks of a bolt grow alike, all would be due at once: only a
    part of them is told in one transaction.
    """

    min_bytes: int = 32 << 20
    """What the changelogs of a task have to come to, whatever its last snapshot has."""
    ratio: float = 1.0
    """And what times the size of its last snapshot."""
    share: float = 0.125
    """The part of all tasks that may be told in one transaction; at least one task is."""

    def due(self, growth: Mapping[str, int], newest: Mapping[str, SnapshotRef]) -> frozenset[str]:
        """Return the tasks that are most overdue; `growth` is the bytes of each changelog since its newest snapshot."""
        overdue = {name: size / self._limit(newest.get(name)) for name, size in growth.items()}
        # By name where they are equally due: which tasks are told does not depend on the order of the log's dicts.
        told = sorted((name for name, times in overdue.items() if times > 1), key=lambda name: (-overdue[name], name))
        return frozenset(told[: max(1, math.ceil(len(growth) * self.share))])

    def _limit(self, snapshot: SnapshotRef | None) -> float:
        return max(self.min_bytes, self.ratio * (0 if snapshot is None else snapshot.size_bytes))


@dataclass(frozen=True)
class StateParticipant(Participant):
    """The state of all stateful tasks.

    Its decision has fields of its own in COMMITTING, and no committable: the log folds them into the heads of all
    tasks.
    """

    log: TransactionLog
    provider: StateProvider
    storage: Storage
    stateful: tuple[TaskId, ...]
    """Tasks that prepare state. `committing`, `rolling_back`: those that have something to run then, a hook or a store
    that has to be told."""
    committing: tuple[TaskId, ...]
    rolling_back: tuple[TaskId, ...]

    name = "state"

    @classmethod
    def of(cls, plan: Plan, log: TransactionLog, provider: StateProvider, storage: Storage) -> StateParticipant:
        """Read from a plan who has what to do."""
        stateful = tuple(sorted(task for task in plan.tasks if plan.components[task.component].stateful))

        def having(hook: str) -> tuple[TaskId, ...]:
            return tuple(task for task in stateful if overrides(type(plan.components[task.component].operator), hook))

        # Rule 7.4: where COMMITTING itself commits a store, hooks are all that is left to run; else every task is told.
        committing = having("preCommit") if provider.location is StateLocation.CHECKPOINT else stateful
        return cls(log, provider, storage, stateful, committing, having("preRollback"))

    @property
    def record(self) -> Committing:
        """The decision that is in the log, and not committed for everybody."""
        entry = self.log.state.committing
        assert entry is not None
        assert entry.committing is not None
        return entry.committing

    def decision(self, acks: Mapping[TaskId, Ack]) -> dict[str, Any]:
        """Return its fields of COMMITTING."""
        snapshots = {str(task): acks[task].snapshot for task in self.stateful}
        return {
            "tokens": {str(task): acks[task].token for task in self.stateful},
            "snapshots": {name: snapshot for name, snapshot in snapshots.items() if snapshot is not None},
            "prepared_bytes": {str(task): acks[task].prepared_bytes for task in self.stateful},
            "hooks": tuple(str(task) for task in self.committing),
            "due_ms": min((acks[task].due_ms for task in self.stateful if acks[task].due_ms), default=0),
        }

    def commit(self, attempt: TransactionAttempt, decision: object) -> Work | None:
        """Tell the tasks that the record names: it may be of a topology that had others."""
        record, state = self.record, self.log.state
        if not record.hooks:  # rule 1.7: as the record says, not as this topology would have it
            return None
        versions = {name: Version(record.txid, token) for name, token in record.tokens.items()}
        # By the clock of the attempt: a hook that runs later sees all that was prepared, also what is over by then.
        order = Order(attempt, state.generation, versions, _newest(state), clock_ms=state.clock_ms(attempt.txid) or 0)
        # Rule 4.8: a server that keeps the state has the version before, and beside it what was prepared.
        return ResolutionOrder(
            Resolution.COMMIT, order, tuple(TaskId.parse(name) for name in record.hooks), previous=state.heads
        )

    def rollback(self, attempt: TransactionAttempt) -> Work | None:
        """Tell the tasks of bolts with ``preRollback``; what was prepared is garbage without being told."""
        if not self.rolling_back:
            return None
        state = self.log.state
        # what is before it is committed for everybody by now, but its COMMITTED may still wait for the next record
        clock_ms = state.clock_ms(attempt.txid) or 0
        order = Order(attempt, state.generation, state.heads_to_come(), _newest(state), clock_ms=clock_ms)
        return ResolutionOrder(Resolution.ROLLBACK, order, self.rolling_back)

    def fence(self, state: LogState) -> None:
        """Have the provider refuse what older generations prepare and commit from now on."""
        self.provider.fence(state.lineage, state.generation, self.storage)


def _newest(state: LogState) -> Mapping[str, SnapshotRef]:
    return {name: kept[-1] for name, kept in state.snapshots.items()}
