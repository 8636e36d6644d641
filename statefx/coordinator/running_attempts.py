"""The attempts of this driver: from what each of them reads and has acked follow its orders and records."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from statefx.coordinator.attempt import Attempt, Batch
from statefx.coordinator.judging import Judge
from statefx.coordinator.participants import Participants, SnapshotPolicy
from statefx.coordinator.progress import Progress
from statefx.coordinator.times import EventTimes, Numbers, Standstill, Ticks
from statefx.errors import InputError, StatefxError
from statefx.log.log import TransactionLog
from statefx.protocol.commands import Append, Segment
from statefx.protocol.history import sink_volumes
from statefx.protocol.ledger import Complete
from statefx.protocol.metadata import BySpout
from statefx.protocol.order import Emission, Order
from statefx.protocol.records import Preparing, Processed, RolledBack

logger = logging.getLogger("statefx")


@dataclass
class RunningAttempts:
    """The attempts of this driver, from PREPARING to COMMITTING or ROLLED_BACK.

    Those that a former driver left are not among them: the log has all that is needed of these.
    """

    name: str
    """The topology's."""
    log: TransactionLog
    participants: Participants
    judge: Judge
    policy: SnapshotPolicy
    progress: Progress
    ticks: Ticks
    _since_ms: int | None = field(default=None, init=False)
    """When the first attempt began."""
    _knows_finished: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._times = EventTimes(self.judge.plan)
        self._standstill = Standstill(self.judge.plan)

    def order(self, attempt: Attempt) -> Order:
        """Return what the tasks of an attempt are told; FailedException if a spout on the driver fails it.

        Their state opens as the transaction before has decided it, also while that is still being committed: the
        ordered segment begins when COMMITTING of the one before it is durable (rule 2.3).
        """
        batch, state = attempt.batch, self.log.state
        assert batch is not None
        if attempt.orders is None:
            attempt.orders = batch.emissions.orders(attempt)
            attempt.partitions = batch.emissions.partitions(attempt)
            if not self._knows_finished:
                known = batch.emissions.finished()
                self._times.finished = {spout: Numbers(numbers) for spout, numbers in known.items()}
                self._knows_finished = True
        newest = {name: kept[-1] for name, kept in state.snapshots.items()}
        due = self.policy.due(state.growth, newest)
        clock_ms = state.clock_ms(attempt.name.txid)
        assert clock_ms is not None  # PREPARING is in the log
        staged, ahead = batch.emissions.times(clock_ms)
        times = self._times.orders(state, self._since_ms or 0, attempt.partitions, staged, ahead, closing=batch.closes)
        ticks = self.ticks.due(attempt.name.txid, clock_ms)
        heads = state.heads_to_come()
        return Order(attempt.name, state.generation, heads, newest, due, attempt.orders, clock_ms, times, ticks)

    def judged(self, attempt: Attempt, segment: Segment) -> StatefxError | None:
        """Judge the acks of a segment; return why the attempt is to be rolled back, if it is."""
        # Those of both segments are judged together: ORDERED has received the rows of PROCESSING.
        verdict = self.judge.judge(segment, attempt.name, attempt.acks)
        if isinstance(verdict, StatefxError):
            return verdict
        attempt.input_rows = self.judge.input_rows(verdict)
        if self.log.state.closed and attempt.input_rows:
            return self._closed(attempt.name.txid)
        assert attempt.batch is not None
        attempt.complete = verdict
        attempt.batch.emissions.processed(attempt)
        # Rule 6.9: waiting for those before it takes nothing of its time.
        self.progress.turn(attempt, "wait" if segment is Segment.PROCESSING else "log")
        return None

    def _closed(self, txid: int) -> InputError:
        """Return why rows are refused: all would be late, or be counted in windows that have ended before."""
        state = self.log.state
        return InputError(
            f"event time was closed by transaction {state.closed} (closeTime): all windows, joins and timers have "
            f"ended. Now there are rows to read, which would be late, so transaction {txid} is rolled back: none of "
            f"them is lost or counted. To read them, go back with Checkpoint({state.location!r}).restore("
            f"txid={state.closed - 1}), or to a savepoint from before, and leave closeTime out as long as rows may "
            "come; or start with a new checkpointLocation",
            closed=state.closed,
        )

    def begin(self, append: Append, batch: Batch) -> None:
        """Make PREPARING durable."""
        name = append.attempt
        self.progress.begin(Attempt(name, batch))
        generation = self.log.state.generation
        # Durable before any task begins: another driver has to find what this attempt reads (rules 3.7 and 3.9).
        record = Preparing(name.txid, name.attempt, generation, batch.input, append.committed, batch.planned)
        self.log.append(record)
        if self._since_ms is None:
            self._since_ms = self.log.state.clock_ms(name.txid)

    def processed(self, attempt: Attempt) -> None:
        """Make PROCESSED durable."""
        name = attempt.name
        self.log.append(Processed(name.txid, name.attempt, _emitted(attempt, Emission.NEW)))

    def decide(self, attempt: Attempt, committed: int | None) -> None:
        """Make COMMITTING durable: from the moment that this begins, nothing of the attempt is rolled back (2.5)."""
        complete, batch = attempt.complete, attempt.batch
        assert complete is not None
        assert batch is not None
        record = self.participants.decide(
            attempt.name,
            complete.acks,
            input_rows=attempt.input_rows,
            output_rows=self.judge.output_rows(complete),
            emitted=_emitted(attempt, Emission.OPAQUE),
            committed=committed,
        )
        decided = self._times.decided(self.log.state, complete.acks.values())
        record = replace(record, **decided, closes=batch.closes)
        clock_ms = self.log.state.clock_ms(attempt.name.txid) or 0
        self.log.append(record)
        self._warn_of_standstill(complete, clock_ms, attempt.partitions)
        self.progress.committing(attempt, sink_volumes(record.committables))

    def _warn_of_standstill(self, complete: Complete, clock_ms: int, partitions: Mapping[str, int]) -> None:
        if not self.judge.plan.timed or self.log.state.closed:
            return
        acks, finished = complete.acks.values(), self._times.finished
        warning = self._standstill.warning(self.log.state, acks, clock_ms, self._since_ms or 0, partitions, finished)
        if warning:
            logger.warning("%s: %s", self.name, warning)

    def end(self, attempt: Attempt, reason: str) -> None:
        """Make ROLLED_BACK durable."""
        name = attempt.name
        self.log.append(RolledBack(name.txid, name.attempt, reason))
        self.progress.rolled_back(name, reason)
        logger.warning("%s: transaction %d, attempt %d was rolled back: %s", self.name, name.txid, name.attempt, reason)


def _emitted(attempt: Attempt, emission: Emission) -> BySpout:
    assert attempt.batch is not None
    return attempt.batch.emissions.emitted(attempt, emission)
