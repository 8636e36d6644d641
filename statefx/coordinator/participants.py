"""Participants of the commit decision: state, sinks, and what else has effects that go with it."""

from __future__ import annotations

import logging
import math
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from xxhash import xxh3_64

from statefx.coordinator.attempt import Work
from statefx.coordinator.progress import received_rows
from statefx.errors import CheckpointMismatchError, TopologyError
from statefx.log.log import TransactionLog
from statefx.operators.hooks import overrides
from statefx.operators.schema import to_ddl
from statefx.operators.sinks import CheckpointPosition, CommitterContext, Owner, Sink, SinkCommitter, ToDataFrame
from statefx.plan.levels import Plan
from statefx.protocol.commands import Resolution
from statefx.protocol.identity import SnapshotRef, TaskId, TransactionAttempt, Version
from statefx.protocol.jsonform import Json
from statefx.protocol.log_state import LogState
from statefx.protocol.metadata import BySpout
from statefx.protocol.order import Order, ResolutionOrder
from statefx.protocol.records import Committing
from statefx.protocol.reports import Ack
from statefx.state.contract.store import StateLocation, StateProvider
from statefx.storage import Storage
from statefx.topology.graph import Topology

logger = logging.getLogger("statefx")


class Participant(ABC):
    """A participant of the commit decision. Its `name` is unique, and the same at every start: the log uses it.

    * `commit` may be called again for the same txid and attempt, also by another driver and after it was done: then it
      changes nothing (rule 10.2: the target holds a marker).
    * `commit` is called in the order of txids, and only when COMMITTING is durable. The transaction is COMMITTED, and
      the next one decided, when the commits of all participants are done.
    * `rollback` is best effort: a killed driver never calls it. Prepared data that no record names is garbage (rule
      4.3).
    """

    name: str

    @abstractmethod
    def decision(self, acks: Mapping[TaskId, Ack]) -> Json:
        """Return what a commit has to know, from the acks of all tasks; it stands in COMMITTING."""

    @abstractmethod
    def commit(self, attempt: TransactionAttempt, decision: Json) -> Work | None:
        """Return the job that commits, which is repeated until it is done, or None if COMMITTING has committed it."""

    def rollback(self, attempt: TransactionAttempt) -> Work | None:
        """Return the job that rolls back, which is repeated but not for ever, or None if there is nothing to do."""
        return None

    @abstractmethod
    def fence(self, state: LogState) -> None:
        """Exclude older drivers: the generation in `state` was just taken."""

    def sweep(self, state: LogState) -> int:
        """Delete what no transaction after `state.committed` can name; return how many things went.

        By the txid that each has in its name. What was staged since `state` was read is of a later one (rule 4.3).
        """
        return 0


@dataclass(frozen=True)
class SnapshotPolicy:
    """Which tasks write a snapshot in a transaction.

    A snapshot costs what the state holds, and the transaction waits for it. So one is due when the changelogs come to
    as much, which pays for it; many small files are no reason, for these are merged
    (`statefx.state.changelog.merging`). And since the tasks of a bolt grow alike, all would be due at once: only a
    part of them is told in one transaction.
    """

    min_bytes: int = 32 << 20
    """The least size of a task's changelogs for a snapshot, whatever its last snapshot has."""
    ratio: float = 1.0
    """And what times the size of its last snapshot."""
    share: float = 0.125
    """The part of all tasks that may be told in one transaction; at least one task is."""

    def due(self, growth: Mapping[str, int], newest: Mapping[str, SnapshotRef]) -> frozenset[str]:
        """Return the tasks that are most overdue; `growth` is the bytes of each changelog since its newest snapshot."""
        overdue = {name: size / self._limit(newest.get(name)) for name, size in growth.items()}
        # By name where they are equally due: which tasks are told does not depend on the order of the log's dicts.
        late = sorted((name for name, times in overdue.items() if times > 1), key=lambda name: (-overdue[name], name))
        return frozenset(late[: max(1, math.ceil(len(growth) * self.share))])

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
        stateful = tuple(sorted(task for task in plan.tasks if plan.components[task.component].stateful))

        def having(hook: str) -> tuple[TaskId, ...]:
            return tuple(task for task in stateful if overrides(type(plan.components[task.component].operator), hook))

        # Rule 7.4: where COMMITTING itself commits a store, hooks are all that is left to run; else every task is told.
        committing = having("preCommit") if provider.location is StateLocation.CHECKPOINT else stateful
        return cls(log, provider, storage, stateful, committing, having("preRollback"))

    @property
    def record(self) -> Committing:
        """Return the decision that is in the log, and not committed by every participant."""
        entry = self.log.state.committing
        assert entry is not None
        assert entry.committing is not None
        return entry.committing

    def decision(self, acks: Mapping[TaskId, Ack]) -> dict[str, Any]:
        snapshots = {str(task): acks[task].snapshot for task in self.stateful}
        return {
            "tokens": {str(task): acks[task].token for task in self.stateful},
            "snapshots": {name: snapshot for name, snapshot in snapshots.items() if snapshot is not None},
            "prepared_bytes": {str(task): acks[task].prepared_bytes for task in self.stateful},
            "hooks": tuple(str(task) for task in self.committing),
            "due_ms": min((acks[task].due_ms for task in self.stateful if acks[task].due_ms), default=0),
        }

    def commit(self, attempt: TransactionAttempt, decision: object) -> Work | None:
        """Commit in the tasks that the record names: it may be of a topology that had others."""
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
        """Roll back in the tasks of bolts with ``preRollback``; prepared state is garbage anyway."""
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


@dataclass
class SinkParticipant(Participant):
    """Publishes what the tasks of one sink have prepared."""

    name: str
    """The component's id."""
    sink: Sink
    schema: pa.Schema
    storage: Storage
    application: str
    """``topology.transactional.id``."""
    takeover: bool
    """Whether this start takes over targets of others."""
    dataframe: ToDataFrame
    _committer: SinkCommitter | None = field(default=None, init=False)

    def check(self, state: LogState) -> None:
        """Refuse a target that is not this checkpoint's; called before a generation is taken; changes nothing."""
        self._check_decided(state)
        committer = self._make(state)
        try:
            committer.check(self._reached(state), takeover=self.takeover)
        finally:
            self._release(committer)

    def _check_decided(self, state: LogState) -> None:
        decided = self._decided(state)
        if decided is None:
            return
        for what, was, becomes in (
            ("to {}", decided["target"], self.sink.identity),
            ("as a {}", decided["class"], type(self.sink).__name__),
            ("rows with {}", decided["fields"], self._fields),
        ):
            if was != becomes:
                shown = ("other fields", "these") if becomes == self._fields else (was, becomes)
                publish, not_this = map(what.format, shown)
                raise CheckpointMismatchError(
                    f"transaction {state.committed + 1} of the checkpoint is decided, and sink {self.name!r} was to "
                    f"publish {publish}, not {not_this}: start once with the former topology, and change it then",
                    sink=self.name,
                )

    @property
    def _fields(self) -> str:
        return xxh3_64(to_ddl(self.schema).encode()).hexdigest()

    def decision(self, acks: Mapping[TaskId, Ack]) -> Json:
        """Return the committables of its tasks, by task, and what a sink must be to understand them."""
        prepared = {
            str(id.task): ack.committable
            for id, ack in sorted(acks.items())
            if id.component == self.name and ack.committable is not None
        }
        sink = {"target": self.sink.identity, "class": type(self.sink).__name__, "fields": self._fields}
        return {**sink, "tasks": prepared, **({"rewinds": True} if self.sink.rewinds else {})}

    def commit(self, attempt: TransactionAttempt, decision: Json) -> Work | None:
        """Return the call that publishes; None for a target of the original's, in a fork that has another."""
        if decision["target"] != self.sink.identity:
            return None
        return partial(self._commit, attempt, decision)

    def _commit(self, attempt: TransactionAttempt, decision: Any) -> None:
        assert self._committer is not None
        self._committer.commit(attempt, {int(task): each for task, each in decision["tasks"].items()})

    def fence(self, state: LogState) -> None:
        """Own the target, and take back what was restored away (rule 3.14); raises as `check`."""
        self._check_decided(state)  # again: a former driver may have decided a transaction after `check` read the log
        self._committer = self._make(state)
        self._committer.fence(self._reached(state), takeover=self.takeover)
        due = state.taking_back
        # By the target: the sink may have another id since (rule 3.14).
        if due is not None and self.sink.identity in due.targets.values():
            self._committer.rewind(due.after)
            logger.info(
                "sink %r (%s) has taken back what transactions %d to %d had published",
                self.name,
                self.sink.target,
                due.after + 1,
                due.until,
            )

    def sweep(self, state: LogState) -> int:
        """Have the committer delete what no later transaction can need (rule 10.5)."""
        if self._committer is not None:
            self._committer.sweep(state.committed)
        return 0

    def close(self) -> None:
        if self._committer is not None:
            self._release(self._committer)

    def _release(self, committer: SinkCommitter) -> None:
        try:
            committer.close()
        except Exception:
            logger.exception("sink %r: close() raised; ignored", self.name)

    def _make(self, state: LogState) -> SinkCommitter:
        owner = Owner(self.application, state.origin, state.generation)
        context = CommitterContext(self.name, owner, self.schema, self.storage, self.dataframe)
        committer: object = self.sink.committer(context)
        if not isinstance(committer, SinkCommitter):
            raise TopologyError(
                f"sink {self.name!r}: {type(self.sink).__name__}.committer returned {reprlib.repr(committer)}, not a "
                "statefx.connectors.SinkCommitter",
                component=self.name,
            )
        return committer

    def _reached(self, state: LogState) -> CheckpointPosition:
        known, originals = state.targets.get(self.name) == self.sink.identity, state.shared_origins
        if state.committing is None:
            return CheckpointPosition(state.committed, state.committed, known, originals)
        if self._decided(state) is None:  # the sink is new: nobody will publish that transaction here
            return CheckpointPosition(state.committed + 1, state.committed + 1, known, originals)
        # `_check_decided`: for this very target
        return CheckpointPosition(state.committed, state.committed + 1, known=True, originals=originals)

    def _decided(self, state: LogState) -> Any:
        """Return what a former driver has decided for this sink, and not every participant committed."""
        record = None if state.committing is None else state.committing.committing
        decided = None if record is None else record.committables.get(self.name)
        if decided is not None and state.shared_origins and decided["target"] != self.sink.identity:
            return None  # rule 10.12: the target that the fork has begins behind it
        return decided


def check_taking_back(state: LogState, topology: Topology, *, takeover: bool) -> None:
    """Refuse a start that can't take back what the checkpoint was restored to take back (rule 3.14).

    Its rows would be written a second time; and messages that were acknowledged with what is taken back would not be
    redelivered.
    """
    due = state.taking_back
    if due is None:
        return
    wanted = f"transactions {due.after + 1} to {due.until} of the checkpoint in {state.location} are to be taken back"
    remedy = "or restore it once more, with sinks='append': then these rows stay"
    sinks = {sink.identity: sink for sink, _ in topology.sinks.values()}
    if state.shared_origins:  # a fork: it owns no target of the original's, and has nothing to take back from its own
        for name, target in due.targets.items():
            if target in sinks:
                raise CheckpointMismatchError(
                    f"{wanted} from {target}, by sink {name!r} of the original, and this is a copy of it: start the "
                    "original once, and copy it then; or give the copy's sinks targets of their own",
                    sink=name,
                )
        return
    if topology.tracked_spouts:
        raise CheckpointMismatchError(
            f"{wanted}, and {min(topology.tracked_spouts)!r} has acknowledged the messages from which they came: "
            "these are not delivered again, and their rows would be lost. Start a topology that reads its input again; "
            f"{remedy}",
            lacking=sorted(topology.tracked_spouts),
        )
    if takeover:
        raise CheckpointMismatchError(
            f"{wanted}, which adopt='takeover' rules out: these rows would count as another owner's if one wrote "
            f"there since. Start once without adopt='takeover'; {remedy}",
        )
    for name, target in due.targets.items():
        if target not in sinks or not sinks[target].rewinds:
            raise CheckpointMismatchError(
                f"{wanted} from {target}, by sink {name!r}, and this topology has no such sink that can: start "
                f"once with the sink and the target as they were; {remedy}",
                sink=name,
            )


def sinks_of(
    topology: Topology, storage: Storage, application: str, *, takeover: bool, dataframe: ToDataFrame
) -> tuple[SinkParticipant, ...]:
    return tuple(
        SinkParticipant(id, sink, schema, storage, application, takeover, dataframe)
        for id, (sink, schema) in topology.sinks.items()
    )


@dataclass(frozen=True)
class Participants:
    """All participants of a topology's transactions."""

    state: StateParticipant
    """Always there, also where no bolt has state: then it has nothing to do."""
    others: tuple[Participant, ...] = ()

    def __iter__(self) -> Iterator[Participant]:
        yield self.state
        yield from self.others

    @property
    def commits_at_decision(self) -> bool:
        """Whether COMMITTING commits, since no participant has anything to do at a commit."""
        # Rule 3.5. Decided once for a start and not for each transaction: the `Shape` of a pipeline does not change.
        return not self.others and not self.state.committing

    def decide(
        self,
        attempt: TransactionAttempt,
        acks: Mapping[TaskId, Ack],
        *,
        input_rows: int,
        output_rows: int,
        emitted: BySpout,
        committed: int | None,
    ) -> Committing:
        """Return the record of the decision to commit; the numbers of rows are for its readers."""
        return Committing(
            attempt.txid,
            attempt.attempt,
            self.state.log.state.generation,
            **self.state.decision(acks),
            rows=received_rows(acks),
            input_rows=input_rows,
            output_rows=output_rows,
            emitted=emitted,
            committables={each.name: each.decision(acks) for each in self.others},
            committed=committed,
        )

    def works(self, resolution: Resolution, attempt: TransactionAttempt) -> dict[str, Work]:
        """Return each participant's work at the end of an attempt, by name.

        A commit is that of the record in the log, which a former driver may have written: of its committables, not of
        what this driver would decide.
        """
        if resolution is Resolution.ROLLBACK:
            found = {each.name: each.rollback(attempt) for each in self}
        else:
            record = self.state.record
            named = [each for each in self.others if each.name in record.committables]  # others are new in the topology
            found = {each.name: each.commit(attempt, record.committables[each.name]) for each in named}
            # State is told also by a topology that has no hooks any more: its record says who is (rule 1.7).
            found[self.state.name] = self.state.commit(attempt, None)
        return {name: work for name, work in found.items() if work is not None}

    def fence(self) -> None:
        for each in self:
            each.fence(self.state.log.state)
