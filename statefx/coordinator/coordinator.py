"""The driver's loop: takes input, carries out what the pipeline commands, and tells it what came of that.

Of one transaction (the numbers are those of rule 9; several may be in flight, each at another step)::

    1 its input is there         2 PREPARING is durable     3 the first segment runs; its acks are judged
    4 PROCESSED is durable, where spouts emit metadata      5 the ordered one runs; all acks are judged
    6 COMMITTING is durable      7 all participants commit, again and again until all have
    8 COMMITTED is durable       9 what it came to is told

A failure before 6 rolls the attempt back, and everything behind it; from 6 on nothing can. What comes next is decided
by `statefx.protocol.pipeline` alone: a rule that stood here would be one that the model check does not run.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Never

from statefx import logs
from statefx.coordinator.attempt import Answer, Attempt, Batch, Engine
from statefx.coordinator.figures import at_rest
from statefx.coordinator.participants import Participants, SnapshotPolicy
from statefx.coordinator.progress import Progress, Summary, TransactionProgress
from statefx.coordinator.retrying import (
    BACKOFF_FIRST_SECS,
    RenewInputError,
    Resolver,
    StoppedError,
    Waits,
    backoff_secs,
    exhausted,
    is_retryable,
)
from statefx.coordinator.running_attempts import AckChecker, RunningAttempts
from statefx.coordinator.spouts import OneBatch, Source
from statefx.coordinator.times import Ticks
from statefx.coordinator.tracing import Traces
from statefx.errors import AttemptsExhaustedError, BoltError, FailedException, StatefxError, TransactionError
from statefx.log.log import TransactionLog
from statefx.protocol.commands import (
    Acked,
    Append,
    Appended,
    Cancel,
    Command,
    Deliver,
    Failed,
    Happening,
    Idle,
    Offered,
    Resolution,
    Resolve,
    Resolved,
    Segment,
    StartSegment,
    Stop,
    Unresolved,
)
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.pipeline import Pipeline, Shape
from statefx.protocol.records import Committed
from statefx.protocol.transaction import Phase

logger = logging.getLogger("statefx")

HELD_SECS = 1.0
"""How long it waits at a time while nothing may begin; `hold` wakes it."""


@dataclass
class Coordinator:
    """The loop of one driver; everything but `stop` and `hold` is called by one thread."""

    name: str
    log: TransactionLog
    """Open, with this driver's GENERATION record as the newest of its kind."""
    engine: Engine
    participants: Participants
    checker: AckChecker
    shape: Shape
    ticks: Ticks
    pause: Callable[[float], bool]
    """Waits the given seconds while nothing runs; returns False if the query is being stopped."""
    rest: Callable[[float], bool] | None = None
    """As `pause`, while there is nothing to read: it may return sooner, when there is."""
    committed: Callable[[TransactionProgress], None] = lambda done: None
    """Called when a transaction is committed for everybody."""
    ended: Callable[[], None] = lambda: None
    """Called when the query ends; whatever else it did has ended when it returns."""
    policy: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    retry_delay_secs: float = BACKOFF_FIRST_SECS
    """How long the first pause of a transaction that failed is; see `backoff_secs`."""
    progress: Progress = field(default_factory=Progress)
    traces: Traces = field(default_factory=Traces)
    _pipeline: Pipeline = field(default_factory=Pipeline, init=False)
    _offered: Batch | None = field(default=None, init=False)
    """The input of the transaction that begins now."""
    _retry: Attempt | None = field(default=None, init=False)
    """One that was rolled back, and whose transaction is to be tried again."""
    _ending: StatefxError | None = field(default=None, init=False)
    """The error to raise when everything in flight has ended."""
    last: TransactionProgress | None = field(default=None, init=False)
    """The newest transaction that this driver has committed."""
    _stops: deque[Stop] = field(default_factory=deque, init=False)
    """Requests of `stop`; filled by other threads."""
    _held: bool = field(default=False, init=False)
    """Whether nothing begins; set by other threads, one at a time."""
    _holding: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self._resolver = Resolver(self.engine, self.progress, self.shape.attempts_max)
        self._running = RunningAttempts(
            self.name, self.log, self.participants, self.checker, self.policy, self.progress, self.ticks
        )
        self._waits = Waits(self.progress.clock)
        self.summary = Summary(self.name, self.progress.clock)
        self._told_ahead: set[str] = set()
        self._set_aside: dict[str, int] = {}
        """By bolt, how many rows it has set aside so far."""

    # ---- what is called from outside

    def end(self) -> None:
        """Log what is left to log, and the end of the query."""
        self.summary.flush()
        self.ended()

    def recover(self) -> None:
        """Roll the unfinished transactions of the previous driver forward or back."""
        state = self.log.state
        for entry in state.in_flight:
            way = "forward" if entry.phase is Phase.COMMITTING else "back"
            with logs.fields(topology=self.name, txid=entry.txid, attempt=entry.name.attempt):
                logger.info("transaction %d was %s: rolling it %s", entry.txid, entry.phase, way)
            left = FailedException("left unfinished by the previous driver")
            self.progress.recovering(way, Attempt(entry.name, failure=left))
        with self._cancelling():
            self._pipeline, commands = Pipeline.recover(self.shape, state.committed, state.in_flight, state.attempts)
            self._carry_out(commands)
            while self._pipeline.entries:
                self._handle_stops()
                self._wait()
            self._advance(Idle())

    def close_time(self, empty: Callable[[], Batch]) -> None:
        """Close event time, if it is not: run transactions without rows until nothing waits for it.

        `empty` returns their input. It raises as `transact`.
        """
        while self.log.state.closes:
            self.transact(empty()._replace(closes=True))

    def transact(self, batch: Batch) -> TransactionProgress:
        """Run the next transaction over `batch` until it is committed.

        Any error but FencedError means that it was rolled back. BoltError: a bolt's code raised.
        AttemptsExhaustedError, TransactionTimeoutError: it failed, or took too long, too often. RenewInputError: it may
        be tried again, but not over this batch. StoppedError: the query is being stopped. FencedError: a newer
        generation has taken over. Another TransactionError: it can't be tried again as it is.
        """
        one = OneBatch(batch, self._pipeline.next.txid, lambda: self._pipeline.committed)
        self.run(one)
        if self._pipeline.committed < one.txid:  # `stop` came first
            raise StoppedError("the query was stopped")
        assert self.last is not None
        return self.last

    def run(self, source: Source) -> None:
        """Run transactions of `source` until it has ended, or `stop` was called and nothing is in flight.

        It raises as `transact`; transactions in flight after the failed one are rolled back as well.
        """
        with self._cancelling():
            while self._loop_once(source):
                pass

    @contextmanager
    def _cancelling(self) -> Iterator[None]:
        """Cancel what runs when the block raises: nothing reads its outcome."""
        try:
            yield
        except BaseException:
            for attempt in self.progress.under_way.values():
                self._cancel(attempt)
            raise

    def _cancel(self, attempt: Attempt) -> None:
        if attempt.running:
            attempt.running.clear()
            self.engine.cancel(attempt)

    def stop(self, *, now: bool = False) -> None:
        """Have `run` begin nothing more and return; any thread may call it.

        The lowest transaction in flight is finished, unless `now`; the others are rolled back.
        """
        self._stops.append(Stop(now))
        self.engine.interrupt()

    def hold(self, held: bool) -> bool:
        """Begin nothing more from now on, not even another attempt, until it is called with False; return if it is new.

        Any thread may call it. What is in flight goes on to its end, and a stop as well (rule 17.8).
        """
        with self._holding:  # else a pause and a resume at once could leave status saying the one, and do the other
            is_news, self._held = held != self._held, held
            self.progress.held(held)
        self.engine.interrupt()
        return is_news

    # ---- the loop

    def _loop_once(self, source: Source) -> bool:
        """Do one thing; return whether the loop goes on."""
        self._handle_stops()
        if self._pipeline.ended:
            if self._ending is not None:
                raise self._ending
            return False
        if self._retry is not None:
            if not self._pipeline.admits:  # what is below it is rolled back as well
                self._wait()
                return True
            self._delay_retry(self._retry)
        upcoming = self._pipeline.next.txid
        if (
            not self._held and self._may_begin and source.ready(upcoming) and not self._stops
        ):  # `ready` may have taken long
            self._offered = source.next(upcoming)  # step 1
            self._advance(Offered())
            return True
        if not self._pipeline.entries and not self._waits:
            self._advance(Idle())  # what comes next is not known here: COMMITTED has nothing to ride with
            if source.ended(self._pipeline.next.txid):
                return False
            self._wait(self._look_secs(source) if self._may_begin else None)
            return True
        self._wait(self._look_secs(source) if self._may_begin and not source.ended(upcoming) else None)
        return True

    def _look_secs(self, source: Source) -> float:
        return HELD_SECS if self._held else source.look_secs()

    @property
    def _may_begin(self) -> bool:
        return self._pipeline.admits and not self._waits.attempt

    def _delay_retry(self, last: Attempt) -> None:
        self._retry = None
        failure, batch = last.failure, last.batch
        if failure is not None and batch is not None and batch.renews(failure):
            raise RenewInputError(failure.message, **failure.data) from failure
        self._waits.add(backoff_secs(self._pipeline.failures(last.name.txid), self.retry_delay_secs))

    def _wait(self, look_secs: float | None = None) -> None:
        """Wait until a job has ended or a wait is over, at most `look_secs`: then the source is asked again."""
        first = self._waits.first()
        secs = None if first is None else self._waits.left_secs(first)
        if look_secs is not None and (secs is None or secs > look_secs):
            first, secs = None, look_secs
        if any(attempt.running for attempt in self.progress.under_way.values()):
            answer = self.engine.next(secs)
            if answer is not None:
                self._take(answer)
                return
            if first is not None and self._waits.left_secs(first) > 0:  # it was interrupted
                return
        else:
            assert secs is not None, "nothing runs, and nothing is waited for"
            wait = self.rest if first is None and self.rest is not None else self.pause
            if not wait(secs):
                raise self._resolver.stopped() if self._waits.resolution else self._stopped()
        if first is not None:
            self._waits.remove(first)
            if first.then is not None:
                self.log.check()  # a successor may have swept the state that the tasks need: they would ask for ever
                self._advance(first.then)

    def _stopped(self) -> StoppedError:
        away = self.progress.away_reason
        return StoppedError("the query was stopped" + (f" while nothing could be read: {away}" if away else ""))

    def _handle_stops(self) -> None:
        while self._stops:
            stop = self._stops.popleft()
            if stop.now and self._waits.resolution:  # it may fail for ever; the next driver goes on with it
                raise self._resolver.stopped()
            self._advance(stop)

    def _take(self, answer: Answer) -> None:
        name = answer.attempt.name
        with logs.fields(topology=self.name, txid=name.txid, attempt=name.attempt):
            self._take_logged(answer)

    def _take_logged(self, answer: Answer) -> None:
        attempt, part, failure = answer
        if part not in attempt.running:  # it was cancelled: its tasks may run on for seconds (rule 6.4)
            return
        attempt.running.remove(part)
        if not isinstance(part, Segment):
            self._take_resolution(attempt, part, failure)
            return
        self.progress.measures.acked(attempt.acks)
        if failure is None:
            failure = self._running.check(attempt, part)
        elif not isinstance(failure, BoltError | TransactionError):
            raise failure
        if isinstance(failure, StatefxError):
            self._fail(attempt, failure)
        else:
            self._advance(Acked(part, attempt.name))

    def _fail(self, attempt: Attempt, failure: StatefxError) -> None:
        """Roll an attempt back; the pipeline decides whether there is another one."""
        txid, final, stopping = attempt.name.txid, not is_retryable(failure), self._pipeline.stopping
        attempt.failure = failure
        if isinstance(failure, BoltError | FailedException):
            self.progress.raised(failure)
        self._pipeline, commands = self._pipeline.on(Failed(attempt.name, final))
        if final:
            self._ending = self._ending or failure
        elif self._pipeline.stopping and not stopping:
            self._ending = exhausted(txid, self._pipeline.failures(txid), failure)
        self._carry_out(commands)

    # ---- the pipeline's commands

    def _advance(self, event: Happening) -> None:
        """Give the pipeline an event, and carry out its commands."""
        self._pipeline, commands = self._pipeline.on(event)
        self._carry_out(commands)

    def _carry_out(self, commands: Iterable[Command]) -> None:
        left = deque(commands)
        while left:
            event = self._carry_out_one(left.popleft())
            if event is not None:
                self._pipeline, more = self._pipeline.on(event)
                left += more

    def _carry_out_one(self, command: Command) -> Happening | None:
        """Carry out one command; return its outcome, if that is known by now."""
        if not isinstance(command, Deliver):
            txid, attempt = command.attempt.txid, command.attempt.attempt
        elif command.txid in self.progress.under_way:
            txid, attempt = command.txid, self.progress.under_way[command.txid].name.attempt
        else:  # its own driver committed it, and the attempt is not known here
            return None
        with logs.fields(topology=self.name, txid=txid, attempt=attempt):
            return self._carry_out_logged(command)

    def _carry_out_logged(self, command: Command) -> Happening | None:
        match command:
            case Append():
                self._append(command)
                return Appended(command)
            case StartSegment(segment, name):  # steps 3 and 5
                self._run(self._attempt(name), segment)
            case Cancel(name):
                self._cancel(self._attempt(name))
            case Resolve(resolution, name):  # step 7, and every rollback
                if self._resolve(resolution, self._attempt(name)):
                    return self._resolved(resolution, self._attempt(name))
            case Deliver(txid):  # step 9
                self._deliver(txid)
        return None

    def _attempt(self, name: TransactionAttempt) -> Attempt:
        found = self.progress.under_way[name.txid]
        assert found.name == name
        return found

    def _run(self, attempt: Attempt, segment: Segment) -> None:
        self.progress.turn(attempt, "run")
        attempt.running.add(segment)
        try:
            order = self._running.order(attempt)
        except FailedException as failure:  # a spout's on the driver fails the attempt as one in a task does
            self.engine.call(attempt, segment, partial(_raise, failure))
        else:
            self.engine.start(attempt, segment, order)

    def _append(self, append: Append) -> None:
        name = append.attempt
        match append.kind:
            case "PREPARING":  # step 2
                assert self._offered is not None
                self._running.begin(append, self._offered)
            case "PROCESSED":  # step 4
                self._running.processed(self._attempt(name))
            case "COMMITTING":  # step 6
                self._running.decide(self._attempt(name), append.committed)
            case "COMMITTED":  # step 8
                self.log.append(Committed(name.txid))
            case "ROLLED_BACK":
                attempt = self._attempt(name)
                lowest = min((txid for txid, each in self.progress.under_way.items() if each.failure), default=0)
                reason = f"transaction {lowest} failed before it" if lowest else "stopped"
                self._running.end(attempt, attempt.failure.message if attempt.failure else reason)
                if attempt.failure is not None and attempt.batch is not None and not self._pipeline.stopping:
                    self._retry = attempt

    def _deliver(self, txid: int) -> None:
        self.last = self.progress.end(txid, at_rest(self.log.state))
        self.summary.add(self.last)
        for spout, said in self.last.left_out.items():
            logger.warning("transaction %d skips of spout %r: %s", txid, spout, said)
        for name, rows in self.last.ahead.items():
            if name not in self._told_ahead:
                self._told_ahead.add(name)
                logger.warning(
                    "%s: the event times of %d rows of %r in transaction %d are further ahead of this machine's clock "
                    "than maxAhead, and do not move the watermark. Logged once; see lastProgress['rowsAhead']",
                    self.name, rows, name, txid,
                )  # fmt: skip
        for bolt, aside in self.last.set_aside.items():
            before = self._set_aside.get(bolt, 0)
            self._set_aside[bolt] = so_far = before + aside.rows
            if so_far.bit_length() > before.bit_length():
                logger.warning(
                    "%s: bolt %r has set aside %d rows since the start, %d of them in transaction %d. The first of "
                    "these: %s. This is logged at 1, 2, 4, 8, ... rows; lastProgress counts on",
                    self.name, bolt, so_far, aside.rows, txid, aside.why,
                )  # fmt: skip
        self.last = replace(self.last, trees=self.traces.explained(txid, self.last.trees))
        if warning := self.traces.warning(txid, self.last.trees):
            logger.warning("%s: %s", self.name, warning)
        self.committed(self.last)

    def _resolve(self, resolution: Resolution, attempt: Attempt) -> bool:
        """Start a round of a commit or a rollback; return whether there was nothing to do."""
        if resolution is Resolution.ROLLBACK:
            self.progress.rolling_back(attempt)
        if attempt is self._resolver.attempt:
            return self._resolver.round(attempt)
        return self._resolver.begin(resolution, attempt, self.participants.works(resolution, attempt.name))

    def _resolved(self, resolution: Resolution, attempt: Attempt) -> Resolved:
        if resolution is Resolution.COMMIT:
            self.progress.turn(attempt, "log")
        return Resolved(resolution, attempt.name)

    def _take_resolution(self, attempt: Attempt, name: str, failure: BaseException | None) -> None:
        resolution, why = attempt.resolution, attempt.failure
        assert resolution is not None
        try:
            done = self._resolver.answered(attempt, name, failure)
            if done:
                self._advance(self._resolved(resolution, attempt))
            elif done is False:
                self._waits.add(self._resolver.wait_secs(attempt), Unresolved(resolution, attempt.name))
        except (AttemptsExhaustedError, BoltError) as error:
            if resolution is Resolution.COMMIT or why is None or is_retryable(why):
                raise
            logger.error("%s; the next start rolls it back", error.message)
            raise why from error  # what ended the query is still what is raised


def _raise(failure: FailedException) -> Never:
    raise failure
