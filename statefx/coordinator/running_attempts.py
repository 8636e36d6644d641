"""What this driver knows of the attempts that are running: their input and acks; orders and records follow."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Never

from statefx.coordinator.engine import DriverCall, SegmentRun, Work
from statefx.coordinator.event_time import EventTimes, Numbers
from statefx.coordinator.judging import Judge
from statefx.coordinator.log import TransactionLog
from statefx.coordinator.participants import Participants
from statefx.coordinator.progress import Progress
from statefx.coordinator.source import Batch
from statefx.coordinator.standstill import Standstill
from statefx.coordinator.state import SnapshotPolicy
from statefx.coordinator.ticks import Ticks
from statefx.errors import FailedException, InputError, StatefxError
from statefx.protocol.barrier import Ack
from statefx.protocol.commands import Append, Run, Segment
from statefx.protocol.history import sink_volumes
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.ledger import Complete
from statefx.protocol.metadata import BySpout
from statefx.protocol.order import Emission, EmissionOrder, Order
from statefx.protocol.records import Committed, Preparing, Processed, RolledBack

logger = logging.getLogger("statefx")


@dataclass
class _RunningAttempt:
    batch: Batch
    acks: list[Ack] = field(default_factory=list)
    complete: Complete | None = None
    orders: Mapping[TaskId, EmissionOrder] | None = None
    partitions: Mapping[str, int] = field(default_factory=dict)


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
    _running: dict[TransactionAttempt, _RunningAttempt] = field(default_factory=dict, init=False)
    _since_ms: int | None = field(default=None, init=False)
    """When the first attempt began."""
    _knows_finished: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._times = EventTimes(self.judge.plan)
        self._standstill = Standstill(self.judge.plan)

    def job(self, run: Run) -> Work:
        """Return what the job of a segment runs."""
        self.progress.running(run.attempt)
        running = self._running[run.attempt]
        emissions = running.batch.emissions
        if running.orders is None:
            try:
                running.orders = {} if emissions is None else emissions.orders()
                running.partitions = {} if emissions is None else emissions.partitions()
                if not self._knows_finished:
                    known = {} if emissions is None else emissions.finished()
                    self._times.finished = {spout: Numbers(numbers) for spout, numbers in known.items()}
                    self._knows_finished = True
            except FailedException as failure:  # a spout's on the driver fails the attempt as one in a task does
                return DriverCall(partial(_raise, failure))
        return SegmentRun(run.segment, self._order(run.attempt, running), running.batch.work)

    def _order(self, attempt: TransactionAttempt, running: _RunningAttempt) -> Order:
        """Return what the tasks of an attempt are told.

        Their state opens as the transaction before has decided it, also while that is still being committed: the
        ordered segment begins when COMMITTING of the one before it is durable (rule 2.3).
        """
        state = self.log.state
        newest = {name: kept[-1] for name, kept in state.snapshots.items()}
        due = self.policy.due(state.growth, newest)
        clock_ms = state.clock_ms(attempt.txid)
        assert clock_ms is not None  # PREPARING is in the log
        batch = running.batch
        staged, ahead = ({}, {}) if batch.emissions is None else batch.emissions.times(clock_ms)
        since_ms = self._since_ms or 0
        times = self._times.orders(state, since_ms, running.partitions, staged, ahead, closing=batch.closes)
        ticks = self.ticks.due(attempt.txid, clock_ms)
        heads = state.heads_to_come()
        return Order(attempt, state.generation, heads, newest, due, running.orders or {}, clock_ms, times, ticks)

    def judged(self, run: Run, acks: Iterable[Ack]) -> StatefxError | None:
        """Judge the acks of a segment; return why the attempt is to be rolled back, if it is."""
        running = self._running[run.attempt]
        running.acks += acks  # those of both segments are judged together: ORDERED has received the rows of PROCESSING
        verdict = self.judge.judge(run.segment, run.attempt, running.acks)
        emissions = running.batch.emissions
        if isinstance(verdict, StatefxError):
            return verdict
        if self.log.state.closed and self.judge.input_rows(verdict):
            return self._closed(run.attempt.txid)
        running.complete = verdict
        if emissions is not None:
            emissions.processed(verdict.acks.values())
        if run.segment is Segment.PROCESSING:
            self.progress.waiting(run.attempt)  # rule 6.9: waiting for those before it takes nothing of its time
        else:
            self.progress.acked(run.attempt, verdict, self.judge.input_rows(verdict))
        return None

    def _closed(self, txid: int) -> InputError:
        """Return why rows are refused: all would be late, or be counted in windows that have ended before."""
        state = self.log.state
        return InputError(
            f"event time was closed by transaction {state.closed} (closeTime): all windows, joins and timers have "
            f"ended. Now there are rows to read, which would be late, so transaction {txid} is rolled back: none of "
            f"them is lost or counted. To read them, go back with statefx.restore({state.location!r}, "
            f"txid={state.closed - 1}), or to a savepoint from before, and leave closeTime out as long as rows may "
            "come; or start with a new checkpointLocation",
            closed=state.closed,
        )

    def begin(self, append: Append, batch: Batch) -> None:
        """Make PREPARING durable."""
        name = append.attempt
        self.progress.begin(name)
        generation = self.log.state.generation
        # Durable before any task begins: another driver has to find what this attempt reads (rules 3.7 and 3.9).
        record = Preparing(name.txid, name.attempt, generation, batch.input, append.committed, batch.planned)
        self.log.append(record)
        if self._since_ms is None:
            self._since_ms = self.log.state.clock_ms(name.txid)
        self._running[name] = _RunningAttempt(batch)

    def go_on(self, append: Append) -> None:
        """Make any other record of a transaction that goes on durable.

        From the moment that the append of COMMITTING begins, nothing of it is rolled back (rule 2.5).
        """
        name = append.attempt
        if append.kind == "PROCESSED":
            running = self._running[name]
            self.log.append(Processed(name.txid, name.attempt, _emitted(running, Emission.NEW)))
        elif append.kind == "COMMITTING":
            # Forgotten before the append: whatever comes of that, this driver never rolls the attempt back.
            running = self._running.pop(name)
            complete = running.complete
            assert complete is not None
            record = self.participants.decide(
                name,
                complete.acks,
                input_rows=self.judge.input_rows(complete),
                output_rows=self.judge.output_rows(complete),
                emitted=_emitted(running, Emission.OPAQUE),
                committed=append.committed,
            )
            decided = self._times.decided(self.log.state, complete.acks.values())
            record = replace(record, **decided, closes=running.batch.closes)
            clock_ms = self.log.state.clock_ms(name.txid) or 0
            self.log.append(record)
            self._warn_of_standstill(complete, clock_ms, running.partitions)
            self.progress.committing(name, sink_volumes(record.committables))
        else:
            self.log.append(Committed(name.txid))

    def _warn_of_standstill(self, complete: Complete, clock_ms: int, partitions: Mapping[str, int]) -> None:
        if not self.judge.plan.timed or self.log.state.closed:
            return
        acks, finished = complete.acks.values(), self._times.finished
        warning = self._standstill.warning(self.log.state, acks, clock_ms, self._since_ms or 0, partitions, finished)
        if warning:
            logger.warning("%s: %s", self.name, warning)

    def end(self, name: TransactionAttempt, reason: str) -> Batch | None:
        """Make ROLLED_BACK durable; return what the attempt has read, if it was this driver's."""
        self.log.append(RolledBack(name.txid, name.attempt, reason))
        self.progress.rolled_back(name, reason)
        logger.warning("%s: transaction %d, attempt %d was rolled back: %s", self.name, name.txid, name.attempt, reason)
        running = self._running.pop(name, None)  # a former driver's attempt has none: the log has its input (rule 3.9)
        return None if running is None else running.batch


def _raise(failure: FailedException) -> Never:
    raise failure


def _emitted(running: _RunningAttempt, emission: Emission) -> BySpout:
    return {} if running.batch.emissions is None else running.batch.emissions.emitted(emission)
