"""Who takes part in the decision to commit a transaction: state, and what else has effects that go with it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from statefx.coordinator.attempt import Work
from statefx.coordinator.participant import Participant
from statefx.coordinator.state import StateParticipant
from statefx.coordinator.transaction import received_rows
from statefx.errors import CheckpointMismatchError
from statefx.protocol.barrier import Ack
from statefx.protocol.commands import Resolution
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.log_state import LogState
from statefx.protocol.metadata import BySpout
from statefx.protocol.records import Committing


@dataclass(frozen=True)
class Participants:
    """All that take part in the transactions of a topology."""

    state: StateParticipant
    """Always there, also where no bolt has state: then it has nothing to do."""
    others: tuple[Participant, ...] = ()

    def __iter__(self) -> Iterator[Participant]:
        yield self.state
        yield from self.others

    @property
    def settles(self) -> bool:
        """Whether COMMITTING commits, since nobody has anything to do at a commit."""
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
        """Return what everybody has to do at the end of an attempt, by name.

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
        """Keep older drivers out, before anything is recovered."""
        for each in self:
            each.fence(self.state.log.state)


def check_participants(found: LogState, others: Collection[str] = ()) -> None:
    """Refuse a checkpoint whose decided transaction names a participant that the topology lacks (rule 10.6).

    Nobody could commit what was decided for it.
    """
    record = None if found.committing is None else found.committing.committing
    lacking = sorted(set(record.committables if record else ()) - set(others))
    if record is not None and lacking and not found.shared_origins:  # a fork leaves it to the original
        targets = [record.committables[name] for name in lacking]
        shown = [
            f"{name!r} ({decided['target']})" if isinstance(decided, Mapping) and "target" in decided else repr(name)
            for name, decided in zip(lacking, targets, strict=True)
        ]
        raise CheckpointMismatchError(
            f"transaction {record.txid} of the checkpoint in {found.location} is decided, and not committed to "
            f"{', '.join(shown)}, which this topology does not have, or calls otherwise: start once with the former "
            "topology, and change it then",
            txid=record.txid,
            lacking=lacking,
        )
