"""A sink as a participant: the decision names what its tasks have written, and its committer publishes that."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from xxhash import xxh3_64

from statefx.coordinator.attempt import Work
from statefx.coordinator.participant import Participant
from statefx.errors import CheckpointMismatchError, TopologyError
from statefx.operators import to_ddl
from statefx.operators.sinks import CheckpointPosition, CommitterContext, Owner, Sink, SinkCommitter, ToDataFrame
from statefx.protocol.barrier import Ack
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.jsonform import Json
from statefx.protocol.log_state import LogState
from statefx.storage import Storage
from statefx.topology.graph import Topology

logger = logging.getLogger("statefx")


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
        """Refuse a target that is not this checkpoint's; before a generation is taken, and changes nothing."""
        self._check_decided(state)
        committer = self._make(state)
        try:
            committer.check(self._reached(state), takeover=self.takeover)
        finally:
            committer.close()

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
        """Release connections."""
        if self._committer is not None:
            self._committer.close()

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
        """Return what a former driver has decided for this sink, and not committed for everybody."""
        record = None if state.committing is None else state.committing.committing
        decided = None if record is None else record.committables.get(self.name)
        if decided is not None and state.shared_origins and decided["target"] != self.sink.identity:
            return None  # rule 10.12: the target that the fork has begins behind it
        return decided


def check_taking_back(state: LogState, topology: Topology, *, takeover: bool) -> None:
    """Refuse a start that can't take back what the checkpoint was restored to take back (rule 3.14).

    Its rows would come once more behind those that are still there; and messages that were acknowledged with what is
    taken back would come no more.
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
            f"{wanted}, which nobody can do who takes targets over: if another one has had them since, these rows "
            f"count as its own. Start once without adopt='takeover'; {remedy}",
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
    """Return the participants for the sinks of a topology."""
    return tuple(
        SinkParticipant(id, sink, schema, storage, application, takeover, dataframe)
        for id, (sink, schema) in topology.sinks.items()
    )
