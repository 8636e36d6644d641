"""The driver's side of the protocol: one transaction after another, and recovery at start.

::

    1 PREPARING is durable      2 the attempt runs        3 its acks are judged
    4 COMMITTING is durable     5 hooks and stores commit 6 COMMITTED is durable

A failure before 4 rolls the attempt back and tries again; after 4 the commit is repeated until it succeeds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from statefx.coordinator.cast import Cast
from statefx.coordinator.engine import Engine, JobFailedError, RenewInputError, StoppedError
from statefx.coordinator.log import TransactionLog
from statefx.coordinator.progress import Progress, TransactionProgress
from statefx.coordinator.records import Committed, Committing, Input, Preparing, RolledBack
from statefx.coordinator.snapshots import SnapshotPolicy
from statefx.errors import (
    AttemptsExhaustedError,
    BoltError,
    FailedException,
    FencedError,
    StateCorruptedError,
    TransactionError,
    TransactionTimeoutError,
)
from statefx.protocol.barrier import BOLT, FENCED
from statefx.protocol.identity import TransactionAttempt, Version
from statefx.protocol.ledger import AckLedger, Complete
from statefx.protocol.order import HookOrder, Order, SnapshotName, Task, task_key
from statefx.protocol.report import MISUSE, Report
from statefx.protocol.transaction import Action, ActionKind

logger = logging.getLogger("statefx")

BACKOFF_FIRST_SECS = 0.1
BACKOFF_MAX_SECS = 10.0
CORRUPTED = "corrupted"

_MEND = {
    "commit": "It is decided: mend what fails and start again, and it is committed first",
    "rollback": "The next start goes on with it",
}
_AGAIN = {
    "commit": "commit of transaction %d is tried again: %s. It is decided and can't be rolled back: mend what fails; "
    "if that is the bolt's code, call query.stop(), mend it and submit again",
    "rollback": "rollback of transaction %d is tried again: %s",
}


def backoff_secs(tries: int) -> float:
    """Return how long to wait after so many tries in vain."""
    doublings = min(tries - 1, 64)  # a commit may be tried for ever
    return min(BACKOFF_MAX_SECS, BACKOFF_FIRST_SECS * 2.0**doublings)


@dataclass
class Coordinator:
    """Takes transactions through the protocol; one at a time, called from one thread.

    Parameters
    ----------
    name : str
        The topology's.
    log : TransactionLog
        Open, with this driver's GENERATION record as the newest of its kind.
    engine : Engine
    players : Cast
    attempts_max : int
        How often a transaction may fail before the query ends.
    pause : callable
        Waits the given seconds between tries; returns False if the query is being stopped.
    committed : callable
        Called after each COMMITTED record with what the transaction came to.
    ended : callable
        Called when the query ends; whatever it did beside transactions has ended when it returns.
    policy : SnapshotPolicy
    """

    name: str
    log: TransactionLog
    engine: Engine
    players: Cast
    attempts_max: int
    pause: Callable[[float], bool]
    committed: Callable[[TransactionProgress], None] = lambda done: None
    ended: Callable[[], None] = lambda: None
    policy: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    progress: Progress = field(default_factory=Progress)
    _tries: int = field(default=0, init=False)
    """How often the transaction has failed over inputs that had to be renewed."""

    def recover(self) -> None:
        """Roll the transactions that a former driver left under way forward or back."""
        for action in self.log.state.recovery():
            if action.kind is ActionKind.COMMIT:
                logger.info("transaction %d was COMMITTING: rolling it forward", action.txid)
                self.progress.recovering("forward", _attempt_of(action))
                self._commit()
            elif action.kind is ActionKind.ROLLBACK:
                logger.info("transaction %d was PREPARING: rolling it back", action.txid)
                self.progress.recovering("back", _attempt_of(action))
                self._roll_back(_attempt_of(action), "found under way at start")

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
        txid = self.log.state.committed + 1
        tries, self._tries = self._tries, 0
        while True:
            attempt = TransactionAttempt(txid, self.log.state.next_attempt(txid))
            self.progress.begin(attempt)
            self.log.append(Preparing(txid, attempt.attempt, self.log.state.generation, source))
            self.progress.running()
            result = self._attempt(attempt, work)
            if isinstance(result, Complete):
                break
            tries += 1
            self._roll_back(attempt, result.message)
            logger.warning("transaction %d, attempt %d was rolled back: %s", txid, attempt.attempt, result.message)
            if tries >= self.attempts_max:
                raise _exhausted(txid, tries, result) from result
            if self.engine.reuses(work):
                self._tries = tries
                raise RenewInputError(result.message, **result.data) from result
            if not self.pause(backoff_secs(tries)):
                raise StoppedError("the query was stopped")
        self._decide(attempt, result)
        return self._commit()

    def _attempt(self, attempt: TransactionAttempt, work: Any) -> Complete | TransactionError:
        """Run one attempt; return its tokens, or why it is to be rolled back and tried again."""
        ledger = AckLedger(attempt, self.players.tasks, self.players.edges)
        try:
            for ack in self.engine.attempt(self._order(attempt), work):
                if not ledger.add(ack):
                    logger.warning("an ack of %s was ignored: it is not of %s", ack.attempt, attempt)
        except JobFailedError as error:
            return error
        except (BoltError, TransactionError) as error:
            self._give_up(attempt, error.message)
            raise
        verdict = ledger.judge()
        if isinstance(verdict, Complete):
            return verdict
        failure = next((each for each in verdict.failures if each.kind == BOLT), verdict.failure)
        where = f"{failure.component}[{failure.task}]: {failure.reason}"
        if failure.kind == FENCED:
            raise FencedError(where, txid=attempt.txid)
        if failure.kind == BOLT:
            self._give_up(attempt, failure.reason)
            raise BoltError(failure.reason, **failure.facts)
        if failure.kind == CORRUPTED:
            self._give_up(attempt, where)
            raise StateCorruptedError(failure.reason, component=failure.component, task=failure.task)
        return FailedException(where, component=failure.component, task=failure.task)

    def _order(self, attempt: TransactionAttempt) -> Order:
        state = self.log.state
        newest = {name: kept[-1] for name, kept in state.snapshots.items()}
        due = self.policy.due(state.growth, newest)
        return Order(attempt, state.generation, state.heads, newest, due)

    def _decide(self, attempt: TransactionAttempt, complete: Complete) -> None:
        """Make the decision to commit durable. From the moment the append begins nothing is rolled back."""
        stateful = sorted(self.players.stateful)
        snapshots = {}
        for task in stateful:
            made = complete.acks[task].snapshot
            if made is not None:
                snapshots[task_key(*task)] = SnapshotName(Version(made[0], made[1]), made[2], made[3])
        self.progress.acked(complete, self._input_rows(complete))
        self.log.append(
            Committing(
                attempt.txid,
                attempt.attempt,
                self.log.state.generation,
                tokens={task_key(*task): complete.tokens[task] for task in stateful},
                snapshots=snapshots,
                prepared_bytes={task_key(*task): complete.acks[task].prepared_bytes for task in stateful},
                hooks=tuple(task_key(*task) for task in sorted(self.players.committing)),
            )
        )
        self.progress.committing()

    def _input_rows(self, complete: Complete) -> int:
        """Count the rows of the raw DataFrames, each once, however many edges leave them."""
        received: dict[int, int] = {}
        for ack in complete.acks.values():
            for edge_id, rows in ack.received.items():
                received[edge_id] = received.get(edge_id, 0) + rows
        raw: dict[str, int] = {}
        for edge in self.players.raw:
            rows = received.get(edge.id, 0) // edge.multiplicity
            raw[edge.source] = max(raw.get(edge.source, 0), rows)
        return sum(raw.values())

    def _commit(self) -> TransactionProgress:
        """Carry out the decision that is in the log; repeated until it is done."""
        entry = self.log.state.committing
        assert entry is not None
        assert entry.committing is not None
        record = entry.committing
        state = self.log.state
        order = Order(
            TransactionAttempt(record.txid, record.attempt),
            state.generation,
            {name: Version(record.txid, token) for name, token in record.tokens.items()},
            {name: kept[-1] for name, kept in state.snapshots.items()},
        )
        self._hooks(HookOrder("commit", order, tuple(_task(name) for name in record.hooks), state.heads))
        self.progress.ending()
        self.log.append(Committed(record.txid, self.progress.rows()))
        done = self.progress.end(record.txid)
        logger.info("%s: %s", self.name, done)
        self.committed(done)
        return done

    def _roll_back(self, attempt: TransactionAttempt, reason: str) -> None:
        self.progress.rolling_back(attempt)
        tasks = tuple(sorted(self.players.rolling_back))
        order = Order(attempt, self.log.state.generation, self.log.state.heads, self._order(attempt).snapshots)
        self._hooks(HookOrder("rollback", order, tasks))
        self.log.append(RolledBack(attempt.txid, attempt.attempt, reason))
        self.progress.rolled_back()

    def _give_up(self, attempt: TransactionAttempt, reason: str) -> None:
        """Roll back before the query ends; if even that fails, what ended it is still what is raised."""
        try:
            self._roll_back(attempt, reason)
        except (AttemptsExhaustedError, BoltError) as error:
            logger.error("%s; the next start rolls it back", error.message)

    def _hooks(self, order: HookOrder) -> None:
        """Run the hooks of a commit or a rollback until every task has reported success."""
        left = order.tasks
        tries = 0
        while left:
            tries += 1
            failed = self._run_hooks(HookOrder(order.phase, order.order, left, order.previous))
            left = tuple(task for task in left if task in failed)
            if not left:
                break
            reason = "; ".join(f"{name}[{task}]: {failed[name, task]}" for name, task in left[:3])
            if tries.bit_count() == 1:  # at the first try, and then as rarely as it has lasted
                logger.warning(_AGAIN[order.phase], order.attempt.txid, reason)
            self.progress.stuck(order.phase, order.attempt.txid, reason)
            if order.phase == "rollback" and tries >= self.attempts_max:
                raise AttemptsExhaustedError(
                    f"the rollback of transaction {order.attempt.txid} failed {tries} times: {reason}",
                    txid=order.attempt.txid,
                )
            if not self.pause(backoff_secs(tries)):
                raise StoppedError(
                    f"stopped while the {order.phase} of transaction {order.attempt.txid} went on: {reason}. "
                    f"{_MEND[order.phase]}"
                )
        self.progress.stuck(None, 0, "")

    def _run_hooks(self, order: HookOrder) -> dict[Task, str]:
        """Run hooks once; return the tasks that have not succeeded, with the reason."""
        failed: dict[Task, str] = dict.fromkeys(order.tasks, "no report")
        try:
            for report in self.engine.hooks(order):
                self._take_report(order.phase, report, failed)
        except JobFailedError as error:
            return dict.fromkeys(order.tasks, error.message)
        return failed

    def _take_report(self, phase: str, report: Report, failed: dict[Task, str]) -> None:
        if report.kind == FENCED:
            raise FencedError(report.error or "", component=report.component, task=report.task)
        if report.kind == MISUSE:
            raise BoltError(f"{report.error}. {_MEND[phase]}", **report.facts)
        if report.error is None:
            failed.pop((report.component, report.task), None)
        else:
            failed[report.component, report.task] = report.error


def _exhausted(txid: int, tries: int, last: TransactionError) -> TransactionError:
    """Build the error that ends the query after the last try."""
    kind = TransactionTimeoutError if last.data.get("timeout") else AttemptsExhaustedError
    return kind(
        f"transaction {txid} failed {tries} times (topology.transaction.attempts.max); last: {last.message}",
        **{**last.data, "txid": txid, "attempts": tries},
    )


def _attempt_of(action: Action) -> TransactionAttempt:
    assert action.attempt is not None, "a transaction that has begun has an attempt"
    return TransactionAttempt(action.txid, action.attempt)


def _task(name: str) -> Task:
    component, _, task = name.rpartition("/")
    return component, int(task)
