"""The driver's side of the protocol: one transaction after another, and recovery at start.

::

    1 PREPARING is durable      2 the attempt runs        3 its acks are judged
    4 COMMITTING is durable     5 hooks and stores commit 6 COMMITTED is durable

A failure before 4 rolls the attempt back and tries again; after 4 the commit is repeated until it succeeds.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from statefx.coordinator.engine import Engine, JobFailedError, RenewInputError, StoppedError
from statefx.coordinator.log import TransactionLog
from statefx.coordinator.participants import Participants
from statefx.coordinator.progress import Progress, TransactionProgress
from statefx.coordinator.resolving import Resolver, backoff_secs
from statefx.coordinator.snapshots import SnapshotPolicy
from statefx.errors import (
    AttemptsExhaustedError,
    BoltError,
    FailedException,
    FencedError,
    StateCorruptedError,
    StatefxError,
    TransactionError,
    TransactionTimeoutError,
)
from statefx.protocol.commands import (
    Acked,
    Append,
    Command,
    Deliver,
    Durable,
    Failed,
    Happening,
    Idle,
    Offered,
    Resolution,
    Resolve,
    Resolved,
    Run,
    Unresolved,
)
from statefx.protocol.failure import FailureKind
from statefx.protocol.flight import Shape
from statefx.protocol.identity import TaskId, TransactionAttempt, Version
from statefx.protocol.ledger import AckLedger, Complete
from statefx.protocol.order import Order, ResolutionOrder
from statefx.protocol.pipeline import Pipeline
from statefx.protocol.records import Committed, Committing, Input, Preparing, RolledBack
from statefx.protocol.transaction import Phase

logger = logging.getLogger("statefx")


@dataclass
class Coordinator:
    """Carries out what the `Pipeline` commands; one transaction at a time, called from one thread.

    Parameters
    ----------
    name : str
        The topology's.
    log : TransactionLog
        Open, with this driver's GENERATION record as the newest of its kind.
    engine : Engine
    participants : Participants
    attempts_max : int
        How often a transaction may fail before the query ends.
    pause : callable
        Waits the given seconds between tries; returns False if the query is being stopped.
    committed : callable
        Called with what a transaction came to when it is committed for everybody.
    ended : callable
        Called when the query ends; whatever it did beside transactions has ended when it returns.
    policy : SnapshotPolicy
    """

    name: str
    log: TransactionLog
    engine: Engine
    participants: Participants
    attempts_max: int
    pause: Callable[[float], bool]
    committed: Callable[[TransactionProgress], None] = lambda done: None
    ended: Callable[[], None] = lambda: None
    policy: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    progress: Progress = field(default_factory=Progress)
    _pipeline: Pipeline = field(default_factory=Pipeline, init=False)
    _source: tuple[Input, Any] | None = field(default=None, init=False)
    """What the next transaction reads."""
    _complete: Complete | None = field(default=None, init=False)
    """The acks of the attempt under way."""
    _failure: StatefxError | None = field(default=None, init=False)
    """Why the attempt under way is rolled back."""
    _untold: int | None = field(default=None, init=False)
    """A transaction that was committed here, and that nobody was told of yet."""

    def __post_init__(self) -> None:
        self._resolver = Resolver(self.engine, self.progress, self.attempts_max, self.pause)

    def recover(self) -> None:
        """Roll the transactions that a former driver left under way forward or back."""
        state = self.log.state
        under_way = [entry.transaction for entry in state.in_flight]
        for entry in under_way:
            way = "forward" if entry.phase is Phase.COMMITTING else "back"
            logger.info("transaction %d was %s: rolling it %s", entry.txid, entry.phase, way)
            self.progress.recovering(way, entry.name)
        shape = Shape(settles=not self.participants.committing, attempts_max=self.attempts_max)
        self._failure = FailedException("found under way at start")  # no cause of anything that goes wrong from here on
        self._pipeline, commands = Pipeline.found(shape, state.committed, under_way, state.attempts)
        self._carry_out(commands)
        self._happen(Idle())
        if self._untold not in (None, state.committed):  # a former driver has told of that one
            self._tell()

    def transact(self, source: Input, work: Any) -> TransactionProgress:
        """Run the next transaction over `work` until it is committed.

        Raises
        ------
        BoltError
            A bolt's code raised; the transaction is rolled back.
        AttemptsExhaustedError, TransactionTimeoutError
            It failed, or took too long, too often; rolled back.
        FencedError
            A newer generation has taken over.
        RenewInputError
            It failed and may be tried again, but over a newly planned input: call again; rolled back.
        TransactionError
            It can't be tried again as it is; rolled back.
        StoppedError
            The query is being stopped; rolled back.
        """
        txid = self._pipeline.next.txid
        self._source = source, work
        while True:
            self._failure = None
            self._happen(Offered())
            if self._pipeline.committed == txid:
                self._happen(Idle())  # what comes next is not known here: COMMITTED has nothing to ride with
                return self._tell()
            self._check_retry(txid, work)

    def _check_retry(self, txid: int, work: Any) -> None:
        """Raise what ends the query, or wait before the next attempt of a transaction that was rolled back."""
        failure, tries = self._failure, self._pipeline.failures(txid)
        assert failure is not None
        if not _may_be_tried_again(failure):
            raise failure
        if self._pipeline.stopping:
            raise _exhausted(txid, tries, failure) from failure
        if self.engine.reuses(work):
            raise RenewInputError(failure.message, **failure.data) from failure
        if not self.pause(backoff_secs(tries)):
            raise StoppedError("the query was stopped")

    # ---- the pipeline's commands

    def _happen(self, event: Happening) -> None:
        self._pipeline, commands = self._pipeline.on(event)
        self._carry_out(commands)

    def _carry_out(self, commands: Iterable[Command]) -> None:
        left = deque(commands)
        while left:
            event = self._do(left.popleft())
            if event is not None:
                self._pipeline, more = self._pipeline.on(event)
                left += more

    def _do(self, command: Command) -> Happening | None:
        """Carry out one command; return what came of it."""
        match command:
            case Append():
                self._append(command)
                return Durable(command)
            case Run(segment, attempt):
                failure = self._run(attempt)
                if failure is None:
                    return Acked(segment, attempt)
                self._failure = failure
                return Failed(attempt, final=not _may_be_tried_again(failure))
            case Resolve(resolution, attempt):
                done = self._resolve(resolution, attempt)
                return Resolved(resolution, attempt) if done else Unresolved(resolution, attempt)
            case Deliver(txid):
                self._untold = txid
        return None

    def _append(self, append: Append) -> None:
        """Make the record of a command durable. From the moment COMMITTING begins nothing is rolled back."""
        txid, attempt = append.attempt.txid, append.attempt.attempt
        match append.kind:
            case "PREPARING":
                assert self._source is not None
                self.progress.begin(append.attempt)
                self.log.append(Preparing(txid, attempt, self.log.state.generation, self._source[0], append.committed))
                self.progress.running()
            case "COMMITTING":
                self.log.append(self._decision(append))
                self.progress.committing()
            case "COMMITTED":
                self.log.append(Committed(txid))
            case "ROLLED_BACK":
                reason = "stopped" if self._failure is None else self._failure.message
                self.log.append(RolledBack(txid, attempt, reason))
                self.progress.rolled_back()
                logger.warning("transaction %d, attempt %d was rolled back: %s", txid, attempt, reason)

    def _tell(self) -> TransactionProgress:
        """Tell what the transaction that was just committed came to."""
        assert self._untold is not None
        done = self.progress.end(self._untold, self.log.state.stored_bytes())
        self._untold = None
        logger.info("%s: %s", self.name, done)
        self.committed(done)
        return done

    def _run(self, attempt: TransactionAttempt) -> StatefxError | None:
        """Run one attempt and judge its acks; return why it is to be rolled back, if it is.

        Raises
        ------
        FencedError
            Nothing may be rolled back: a successor does that.
        """
        assert self._source is not None
        ledger = AckLedger(attempt, self.participants.tasks, self.participants.edges)
        try:
            for ack in self.engine.attempt(self._order(attempt), self._source[1]):
                if not ledger.add(ack):
                    logger.warning("an ack of %s was ignored: it is not of %s", ack.attempt, attempt)
        except (BoltError, TransactionError) as error:
            return error
        verdict = ledger.judge()
        if isinstance(verdict, Complete):
            self._complete = verdict
            self.progress.acked(verdict, self._input_rows(verdict))
            return None
        failure = next((each for each in verdict.failures if each.kind is FailureKind.BOLT), verdict.failure)
        where = f"{failure.component}[{failure.task}]: {failure.reason}"
        if failure.kind is FailureKind.FENCED:
            raise FencedError(where, txid=attempt.txid)
        if failure.kind is FailureKind.BOLT:
            return BoltError(failure.reason, **failure.facts)
        if failure.kind is FailureKind.CORRUPTED:
            return StateCorruptedError(failure.reason, component=failure.component, task=failure.task)
        return FailedException(where, component=failure.component, task=failure.task)

    def _order(self, attempt: TransactionAttempt) -> Order:
        state = self.log.state
        newest = {name: kept[-1] for name, kept in state.snapshots.items()}
        due = self.policy.due(state.growth, newest)
        return Order(attempt, state.generation, state.heads, newest, due)

    def _decision(self, append: Append) -> Committing:
        """Return the record of the decision to commit."""
        attempt, complete = append.attempt, self._complete
        assert complete is not None
        rows, sources = self.progress.rows(), {edge.source for edge in self.participants.edges}
        stateful = sorted(self.participants.stateful)
        snapshots = {str(task): complete.acks[task].snapshot for task in stateful}
        return Committing(
            attempt.txid,
            attempt.attempt,
            self.log.state.generation,
            tokens={str(task): complete.tokens[task] for task in stateful},
            snapshots={name: snapshot for name, snapshot in snapshots.items() if snapshot is not None},
            prepared_bytes={str(task): complete.acks[task].prepared_bytes for task in stateful},
            hooks=tuple(str(task) for task in sorted(self.participants.committing)),
            rows=rows,
            input_rows=self._input_rows(complete),
            output_rows=sum(received for component, received in rows.items() if component not in sources),
            committed=append.committed,
        )

    def _input_rows(self, complete: Complete) -> int:
        """Count the rows of the raw DataFrames, each once, however many edges leave them."""
        received: dict[int, int] = {}
        for ack in complete.acks.values():
            for edge_id, rows in ack.received.items():
                received[edge_id] = received.get(edge_id, 0) + rows
        raw: dict[str, int] = {}
        for edge in self.participants.raw:
            rows = received.get(edge.id, 0) // edge.multiplicity
            raw[edge.source] = max(raw.get(edge.source, 0), rows)
        return sum(raw.values())

    # ---- commits and rollbacks

    def _resolve(self, resolution: Resolution, attempt: TransactionAttempt) -> bool:
        """Tell the tasks once; return whether all have done what they were told."""
        if resolution is Resolution.COMMIT:
            done = self._resolver.round(self._commit_order())
            self.progress.ending()
        else:
            done = self._roll_back(attempt)
        if not done:  # a successor may have swept the state that they need: they would ask for it for ever
            self.log.check()
        return done

    def _roll_back(self, attempt: TransactionAttempt) -> bool:
        self.progress.rolling_back(attempt)
        try:
            return self._resolver.round(self._rollback_order(attempt))
        except (AttemptsExhaustedError, BoltError) as error:
            if self._failure is None or _may_be_tried_again(self._failure):
                raise
            logger.error("%s; the next start rolls it back", error.message)
            raise self._failure from error  # what ended the query is still what is raised

    def _commit_order(self) -> ResolutionOrder:
        """Return the order for the decision that is in the log."""
        state = self.log.state
        assert state.committing is not None
        record = state.committing.committing
        assert record is not None
        order = Order(
            TransactionAttempt(record.txid, record.attempt),
            state.generation,
            {name: Version(record.txid, token) for name, token in record.tokens.items()},
            {name: kept[-1] for name, kept in state.snapshots.items()},
        )
        return ResolutionOrder(
            Resolution.COMMIT, order, tuple(TaskId.parse(name) for name in record.hooks), state.heads
        )

    def _rollback_order(self, attempt: TransactionAttempt) -> ResolutionOrder:
        order = Order(attempt, self.log.state.generation, self.log.state.heads, self._order(attempt).snapshots)
        return ResolutionOrder(Resolution.ROLLBACK, order, tuple(sorted(self.participants.rolling_back)))


def _may_be_tried_again(failure: StatefxError) -> bool:
    return isinstance(failure, JobFailedError | FailedException)


def _exhausted(txid: int, tries: int, last: StatefxError) -> TransactionError:
    """Build the error that ends the query after the last try."""
    kind = TransactionTimeoutError if last.data.get("timeout") else AttemptsExhaustedError
    return kind(
        f"transaction {txid} failed {tries} times (topology.transaction.attempts.max); last: {last.message}",
        **{**last.data, "txid": txid, "attempts": tries},
    )
