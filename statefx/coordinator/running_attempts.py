"""Attempts of this driver: builds their instructions and records, and checks their acks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from statefx.coordinator.attempt import Attempt, Batch
from statefx.coordinator.participants import Participants, SnapshotPolicy
from statefx.coordinator.progress import Progress, received_rows
from statefx.coordinator.retrying import AttemptFailedError, StoppedError
from statefx.coordinator.times import EventTimes, Numbers, ReadingClock, Standstill, Ticks
from statefx.errors import BoltError, FailedException, FencedError, InputError, StateCorruptedError, StatefxError
from statefx.log.log import TransactionLog
from statefx.operators.acker import is_of_acks
from statefx.operators.metrics import SERIES_MAX as TASK_COUNTERS_MAX
from statefx.plan.levels import Plan, segments_of
from statefx.protocol.commands import Append, Segment
from statefx.protocol.completeness import AckLedger, Complete, Incomplete, LedgerEdge
from statefx.protocol.counting import OTHER, Totals
from statefx.protocol.counting import TOTALS_MAX as COUNTERS_MAX
from statefx.protocol.counting import decided as counters_decided
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.log_state import sink_volumes
from statefx.protocol.metadata import BySpout
from statefx.protocol.order import Emission, Order
from statefx.protocol.records import Preparing, Processed, RolledBack
from statefx.protocol.reports import Ack, Failure, FailureKind
from statefx.topology.graph import ComponentKind

logger = logging.getLogger("statefx")


class AckChecker:
    """Checks the acks of one plan's segments (rules 5.1 and 5.2); `segments` is how many an attempt has."""

    def __init__(self, plan: Plan) -> None:
        self._segments = {
            segment: (
                part.checked_tasks,
                tuple(
                    LedgerEdge(edge.id, edge.source, edge.target, plan.multiplicity(edge), local=plan.fused(edge))
                    for edge in part.checked_edges
                ),
            )
            for segment, part in segments_of(plan).items()
        }
        self.plan = plan
        self.segments = len(self._segments)
        edges = [edge for edge in plan.edges if not is_of_acks(edge.target)]
        self._sources = frozenset(edge.source for edge in edges)
        sources = (ComponentKind.SPOUT, ComponentKind.STREAM)
        self._source_edges = [edge for edge in edges if plan.components[edge.source].kind in sources]

    def check(self, segment: Segment, attempt: TransactionAttempt, acks: Iterable[Ack]) -> Complete | StatefxError:
        """Check the acks of `segment`, with those of the segment before it.

        After FencedError this driver rolls nothing back: its successor has done that at its start (rule 6.5).
        """
        ledger = AckLedger(attempt, *self._segments[segment])
        for ack in acks:
            if not ledger.add(ack):  # rule 6.4: of a former attempt
                logger.warning("ignored an ack of %s; the current attempt is %s", ack.attempt, attempt)
        verdict = ledger.check()
        return verdict if isinstance(verdict, Complete) else _error(attempt, verdict)

    def input_rows(self, complete: Complete) -> int:
        """Count the rows of DataFrames and spouts, each once, however many edges leave its stream."""
        found: dict[tuple[str, str], int] = {}
        for edge in self._source_edges:
            acks = [ack for task, ack in complete.acks.items() if task.component == edge.source]
            rows = sum(ack.rows_before_combining.get(edge.id) or ack.emitted.get(edge.id, 0) for ack in acks)
            stream = edge.source, edge.stream
            found[stream] = max(found.get(stream, 0), rows)
        return sum(found.values())

    def output_rows(self, complete: Complete) -> int:
        """Count the rows that reached the ends of the topology: bolts without readers."""
        rows = received_rows(complete.acks)
        return sum(received for component, received in rows.items() if component not in self._sources)


def _error(attempt: TransactionAttempt, verdict: Incomplete) -> StatefxError:
    """Return the error for the failures. A bolt's error comes first: the other failures may follow from it."""
    bolts = (each for each in verdict.failures if each.kind is FailureKind.BOLT)
    failure: Failure = next(bolts, verdict.failure)
    message, data = f"{failure.component}[{failure.task}]: {failure.reason}", {"component": failure.component}
    match failure.kind:
        case FailureKind.FENCED:
            raise FencedError(message, txid=attempt.txid)
        case FailureKind.BOLT:  # rule 6.7: another attempt would raise the same
            return BoltError(failure.reason, **failure.facts)
        case FailureKind.CORRUPTED:
            return StateCorruptedError(failure.reason, **data, task=failure.task)
        case FailureKind.FAILED:
            return FailedException(message, **data, task=failure.task, **failure.facts)
        case kind:  # rule 6.8: of the machines, or the input was not whole (rules 5.1 and 5.2): try again
            return AttemptFailedError(message, **data, task=failure.task, kind=kind)


@dataclass
class RunningAttempts:
    """The attempts of this driver, from PREPARING to COMMITTING or ROLLED_BACK.

    Those that a former driver left are not among them: the log has all that is needed of these.
    """

    name: str
    """The topology's."""
    log: TransactionLog
    participants: Participants
    checker: AckChecker
    policy: SnapshotPolicy
    progress: Progress
    ticks: Ticks
    _reading: ReadingClock = field(default_factory=ReadingClock, init=False)
    _knows_finished: bool = field(default=False, init=False)
    _counts_others: bool = field(default=False, init=False)
    """Whether too many series of counters were warned of."""

    def __post_init__(self) -> None:
        self._times = EventTimes(self.checker.plan)
        self._standstill = Standstill(self.checker.plan)
        self._partitions: Mapping[str, int] = {}
        """How many partitions the spouts of the last decided attempt had."""
        self.progress.measures.holder = self._holder

    def _holder(self) -> tuple[str, int] | None:
        """Return what holds event time back now; any thread may call it."""
        since_ms = self._reading.since_ms
        if not self.checker.plan.timed or self.log.state.closed or since_ms is None:
            return None
        read_ms = self._reading.at(self._going_ms)
        return self._standstill.holder(self.log.state, read_ms, since_ms, self._partitions, self._times.finished)

    @property
    def _going_ms(self) -> int:
        return round(self.progress.going_secs * 1000)

    def order(self, attempt: Attempt) -> Order:
        """Return the instruction for an attempt's tasks; FailedException if a spout on the driver fails it.

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
        clock_ms, reading = state.clock_ms(attempt.name.txid), self._reading
        assert clock_ms is not None  # PREPARING is in the log
        assert reading.since_ms is not None
        read_ms, before = reading.of(attempt.name.txid), attempt.name.txid - 1
        decided_ms = read_ms if state.decided == before else reading.of(state.decided)
        staged, ahead = batch.emissions.times(read_ms)
        # Who was held back while time was closed gets on with the transaction that ends it, whatever that began for.
        closing = batch.closes or state.closed > 0
        times = self._times.orders(
            state, reading.since_ms, read_ms, decided_ms, attempt.partitions, staged, ahead, closing=closing
        )
        ticks = self.ticks.due(attempt.name.txid, clock_ms)
        heads = state.heads_to_come()
        return Order(attempt.name, state.generation, heads, newest, due, attempt.orders, clock_ms, times, ticks)

    def check(self, attempt: Attempt, segment: Segment) -> StatefxError | None:
        """Check the acks of a segment; return why the attempt is to be rolled back, if it is."""
        # Those of both segments are judged together: ORDERED has received the rows of PROCESSING.
        verdict = self.checker.check(segment, attempt.name, attempt.acks)
        if isinstance(verdict, StatefxError):
            return verdict
        attempt.input_rows = self.checker.input_rows(verdict)
        if self.log.state.closed and attempt.input_rows:
            return self._closed(attempt.name.txid)
        assert attempt.batch is not None
        attempt.complete = verdict
        attempt.batch.emissions.processed(attempt)
        # Rule 6.9: waiting for those before it takes nothing of its time.
        self.progress.turn(attempt, "wait" if segment is Segment.PROCESSING else "log")
        return None

    def _closed(self, txid: int) -> InputError:
        """Return the error for rows after closing: all would be late, or in windows that have ended."""
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
        clock_ms = self.log.state.clock_ms(name.txid)
        assert clock_ms is not None
        self._reading.begin(name.txid, clock_ms, self._going_ms, self.log.state.decided)

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
            output_rows=self.checker.output_rows(complete),
            emitted=_emitted(attempt, Emission.OPAQUE),
            committed=committed,
        )
        decided = self._times.decided(self.log.state, complete.acks.values())
        record = replace(record, **decided, closes=batch.closes, counters=self._counters(complete))
        self.log.append(record)
        self._warn_of_standstill(complete, attempt)
        self.progress.committing(attempt, sink_volumes(record.committables))

    def _counters(self, complete: Complete) -> Totals:
        """Return what the attempt adds to counters of the user's (rule 16.1)."""
        counted = [(id.component, ack.counted.counters) for id, ack in sorted(complete.acks.items())]
        added = counters_decided(self.log.state.counters_to_come(), counted)
        if not self._counts_others and any(
            len(own) > TASK_COUNTERS_MAX or any(series not in added[name] for series in own) for name, own in counted
        ):
            self._counts_others = True
            logger.warning(
                "%s: there are %d series of counters of the topology's own, or %d of one task, as many as there may "
                "be: what is beyond is counted with %r as the value of each label, or as the name. Give labels "
                "that have fewer values, and names that are not made of values",
                self.name, COUNTERS_MAX, TASK_COUNTERS_MAX, OTHER,
            )  # fmt: skip
        return added

    def _warn_of_standstill(self, complete: Complete, attempt: Attempt) -> None:
        if not self.checker.plan.timed or self.log.state.closed:
            return
        self._partitions = attempt.partitions
        read_ms, since_ms = self._reading.of(attempt.name.txid), self._reading.since_ms or 0
        warning = self._standstill.warning(
            self.log.state, complete.acks.values(), read_ms, since_ms, attempt.partitions, self._times.finished
        )
        if warning:
            logger.warning("%s: %s", self.name, warning)

    def end(self, attempt: Attempt, reason: str) -> None:
        """Make ROLLED_BACK durable."""
        name = attempt.name
        self.log.append(RolledBack(name.txid, name.attempt, reason))
        # Not what a former driver has left, a stop, or the failure of a transaction before it: that one counts.
        has_failed = attempt.failure is not None and not isinstance(attempt.failure, StoppedError)
        self.progress.rolled_back(name, reason, has_failed=has_failed and attempt.batch is not None)
        logger.warning("%s: transaction %d, attempt %d was rolled back: %s", self.name, name.txid, name.attempt, reason)


def _emitted(attempt: Attempt, emission: Emission) -> BySpout:
    assert attempt.batch is not None
    return attempt.batch.emissions.emitted(attempt, emission)
