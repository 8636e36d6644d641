"""Runs: all chains of a topology, resident at once; the instructions they get, their answers, and what ends a run.

It is natural to make each transaction a job: Spark then places its tasks, retries them and says when all are done. It
was so, and scheduling, planning and opening state took 70 ms and more of a transaction that had nothing to do. With
resident tasks that work falls to this module.

It is natural, then, to let Spark retry a task that has died, as in any other job. But its readers have taken rows of
the lost one and wait for a barrier, and its writers don't send their rows twice. So a lost chain ends the run as a
whole. Whatever was in flight fails with it and is resolved by the log, and the next run begins with empty chains
(rule 13.6).

One would also hand the next run what was under way. This order of events breaks it: the first segment of t has ended,
its rows wait downstream of the cut, and while PROCESSED of t, or COMMITTING of t-1, is appended, nothing of t is
being carried out. Now a worker dies. The loop sends the second segment of t to the new run, whose chains wait for
rows that nobody sends again, until the time of the attempt is over. So `_emitted` names the attempts whose rows this
very run holds; another one fails at once.

Last, it is natural to wait until all chains have confirmed that they dropped an attempt. The next attempt need not
wait, since rows name theirs (rule 13.3). But a chain that never confirms hangs in a user's code and would take no
other instruction either: the confirmation has a limit, and the run ends with it.

How a run is started, and how bytes reach its chains, is the business of a `PipelinedRun`: on Spark one job over its
pipelined shuffle, in `TopologyTester` threads of the process.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from statefx import logs
from statefx.coordinator.attempt import Answer, Attempt, Part
from statefx.coordinator.retrying import JobFailedError, StoppedError
from statefx.errors import StatefxError, TransactionError
from statefx.plan.levels import Plan, segments_of
from statefx.protocol import messages
from statefx.protocol.commands import Resolution, Segment
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.messages import ChainId, FrameKind
from statefx.protocol.order import Head, Order, ResolutionOrder, lines_of
from statefx.protocol.reports import Ack, Report, TreeReport

logger = logging.getLogger("statefx")

STUCK_SECS = 10.0
"""How long a chain may take to drop an attempt that has timed out. It had all the time of the attempt before."""

STOPPING_SECS = 2.0
"""The same while the query is being stopped: somebody waits for it, and the next start rolls back what is left."""

READY_SECS = 300.0
"""How long the chains of a run may take to connect. Spark starts all of them at once, or fails at once; a worker starts
within seconds, where it unpacks an environment of gigabytes within minutes. One that hangs before it connects (it
imports from a file server that is away) is seen by nothing else."""

SLOTS_SECS = 60.0
SLOTS_AGAIN_SECS = 1.0
"""How long a run is begun again and again for which there are no slots, before that counts as a try, and how often."""


def text_for(plan: Plan, order: Order | ResolutionOrder, tasks: Sequence[TaskId]) -> str:
    """Return the part of an instruction that concerns some tasks."""
    if isinstance(order, ResolutionOrder):
        head = Head(order.attempt, order.generation, order.resolution, order.clock_ms)
        return msgspec.json.encode(head).decode() + lines_of(order, tasks)
    own = replace(
        order,
        emissions={task: order.emissions[task] for task in tasks if task in order.emissions},
        times={task: order.times[task] for task in tasks if task in order.times},
    )
    head = Head(order.attempt, order.generation, clock_ms=order.clock_ms, ticks=order.ticks)
    stateful = [task for task in tasks if plan.components[task.component].stateful]
    return msgspec.json.encode(head).decode() + lines_of(own, stateful)


class NotBegunError(JobFailedError):
    """A run could not begin, for a reason that passes: no task of it has done anything."""


class NoSlotsError(NotBegunError):
    """There are too few slots for all of its tasks now."""


class ControlUnreachableError(JobFailedError):
    """A chain can't reach the driver."""


RESTORES_FRESH_SECS = 10.0
"""How long after a chain's last report that tasks restore state they still count as restoring. Reports come each
second, but a worker that reads a large image may stand still for some."""

EXTENSION_SECS_MAX = 3600.0
"""After which the time of an attempt is over, also while state is restored: a restore that hangs shows itself as under
way too."""


class PipelinedRun(Protocol):
    """All chains of a topology, resident at once."""

    id: str
    """It tells this run from all others."""

    def send(self, chain: ChainId, kind: FrameKind, body: bytes = b"") -> None:
        """Queue a frame in order, without blocking; drop it if the chain is disconnected."""

    def wait(self) -> None:
        """Wait, with a limit, until the chains that got END have ended."""

    def end(self) -> None:
        """End the run: its chains end, now or as soon as they notice. Calling it again is a no-op."""


class RunEngine(ABC):
    """Runs one deployment of resident tasks (see `statefx.coordinator.attempt.Engine`).

    A subclass starts runs, and calls `on_ready`, `on_frame` and `on_ended` for them, from any thread. `timeout_secs` is
    for one attempt, from when its instructions were sent and no earlier transaction was before it in the chains.
    """

    def __init__(
        self,
        plan: Plan,
        name: str,
        timeout_secs: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._name = name
        self._timeout_secs = timeout_secs
        self._clock = clock
        self._segments = segments_of(plan)
        self._chain_of = {task: ChainId(*chain) for task, chain in plan.place.items()}
        self.chains = tuple(dict.fromkeys(self._chain_of.values()))
        self._lock = threading.RLock()
        self._run: PipelinedRun | None = None
        self._ready = False
        self._since: datetime | None = None
        self._begun = 0.0
        """When the run was begun."""
        self._runs = 0
        self._pending: list[Attempt] = []
        """Those of which tasks carry out something."""
        self._freed = 0.0
        """When the chains last had done with a segment."""
        self._emitted: frozenset[TransactionAttempt] = frozenset()
        """Attempts whose rows wait behind the cut, in chains of this run and of no other."""
        self._unconfirmed: dict[TransactionAttempt, tuple[set[ChainId], float]] = {}
        """Abandoned attempts: the chains that have not confirmed, and until when they may take."""
        self._answers: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        self.woken = threading.Event()
        """Whether a spout that lives in its task may need a transaction; whoever begins one clears it."""
        self.woken.set()  # nobody asks it before there is a run, and a run begins with a transaction
        self._spout_chains: dict[ChainId, dict[int, str]] = {}
        """The chains of spouts that live: by chain, number and name of their tasks."""
        for number, task in enumerate(plan.spouts):
            if plan.is_resident(task.component):
                self._spout_chains.setdefault(self._chain_of[task], {})[number] = str(task)
        self._restoring: dict[ChainId, tuple[float, str]] = {}
        """By chain of this run: when it last reported that tasks restore state, and which."""
        self._restored: dict[int, int] = {}
        """By root of a tree that a task of a spout was told to go on with: the number of that task in this run."""
        self._resting = threading.Event()
        """Set by what ends a `rest`."""
        self.busy: Callable[[], bool] = lambda: False
        """Tells whether the topology's own job holds chains."""
        self.on_begun: Callable[[], None] = lambda: None
        """Called when a run is ready: the times of its tasks begin with it."""
        self.on_activity: Callable[[Mapping[TaskId, Mapping[str, float]]], None] = lambda times: None
        """Called with the milliseconds of tasks by activity, as in acks, while an attempt takes long."""
        self._stopping, self._stopped = False, 0.0
        self._ending = 0
        """Runs that are over and have not ended."""
        self._again: float | None = None
        """When a run is begun again that found no slots, and since when there are none: `_slotless`."""
        self._slotless: float | None = None

    # ---- what a subclass does

    @abstractmethod
    def start_run(self) -> PipelinedRun:
        """Begin a run; `on_ready` is called when all its chains are there."""

    @abstractmethod
    def call_aside(self, name: str, call: Callable[[], None]) -> None:
        """Run `call`, which never raises, in a thread of its own."""

    # ---- what the coordinator asks (see `Engine`)

    def open(self) -> None:
        """Begin a run, if there is none, so that it is ready early; if it fails, what is started begins another."""
        with self._lock:
            if not self._stopping:
                self._begin()

    def start(self, attempt: Attempt, segment: Segment, order: Order) -> None:
        self._carry_out(attempt, segment, order, self._segments[segment].tasks)

    def resolve(self, attempt: Attempt, name: str, order: ResolutionOrder) -> None:
        self._carry_out(attempt, name, order, order.tasks)

    def _carry_out(
        self, attempt: Attempt, part: Part, order: Order | ResolutionOrder, tasks: Collection[TaskId]
    ) -> None:
        if not tasks:
            self._answers.put(Answer(attempt, part))
            return
        with self._lock:
            if self._stopping and not self._ready and isinstance(order, ResolutionOrder):
                # Nobody waits for another run: the next start goes on with what this would do (rule 6.5).
                self._answers.put(Answer(attempt, part, StoppedError("the query was stopped")))
                return
            if part is Segment.ORDERED:
                # Else: the run is lost while PROCESSED, or COMMITTING of the one before, is appended, when nothing of
                # this attempt is under way; the chains of the next run wait for its rows until the time is over.
                emitted = self._emitted
                self._emitted = frozenset(each for each in emitted if each.txid > attempt.name.txid)
                if attempt.name not in emitted:
                    lost = JobFailedError("the run that emitted these rows has ended; the retry re-emits them")
                    self._answers.put(Answer(attempt, part, lost))
                    return
            attempt.part, attempt.order, attempt.waiting = part, order, set(tasks)
            attempt.reports, attempt.since, attempt.extended_secs = [], None, 0.0
            self._pending.append(attempt)
            if self._ready:
                self._send(attempt)
            else:
                self._begin()

    def call(self, attempt: Attempt, part: Part, call: Callable[[], object]) -> None:
        def called() -> None:
            failure: BaseException | None = None
            with logs.fields(component=part):
                try:
                    call()
                except BaseException as error:  # noqa: BLE001 - it would end the thread, and `next` wait for ever
                    failure = error
            if failure is not None and self._stopping:  # it would fail for ever
                failure = StoppedError("the query was stopped")
            self._answers.put(Answer(attempt, part, failure))

        self.call_aside(f"{part}-{attempt.name.txid}", logs.carrying(called))

    def next(self, timeout_secs: float | None) -> Answer | None:
        ends = None if timeout_secs is None else self._clock() + timeout_secs
        while True:
            now = self._clock()
            due = min((each for each in (ends, self._look_at_times(now)) if each is not None), default=None)
            with suppress(queue.Empty):
                return self._answers.get(timeout=None if due is None else max(due - now, 0.0))
            if ends is not None and self._clock() >= ends:
                return None

    def cancel(self, attempt: Attempt) -> None:
        """Drop an attempt: its chains abandon it in place (rule 13.5)."""
        with self._lock:
            if attempt in self._pending:
                self._pending.remove(attempt)
                if isinstance(attempt.part, Segment):
                    self._abandon(attempt, self._timeout_secs)

    def interrupt(self) -> None:
        self._answers.put(None)
        self._resting.set()

    def rest(self, secs: float) -> bool:
        """Wait while nothing runs, or until it was interrupted; return False if the query is being stopped."""
        self._resting.wait(secs)
        self._resting.clear()
        return not self._stopping

    def status(self) -> dict[str, Any]:
        with self._lock:
            found: dict[str, Any] = {"run": None, "since": None, "runs": self._runs}
            if self._run is not None and self._ready and self._since is not None:
                found |= {"run": self._run.id, "since": self._since.isoformat(timespec="milliseconds")}
            if self._slotless is not None:
                found["waitsForSlotsSecs"] = round(self._clock() - self._slotless, 1)
            if restoring := self._tasks_restoring():
                found["restoring"] = restoring
            return found

    def stop(self) -> None:
        """Have what waits for its tasks end as stopped; the next start goes on with it (rule 6.5).

        A rollback goes on for a while where there are tasks to carry it out: it belongs to the stop.
        """
        with self._lock:
            self._stopping, self._stopped = True, self._clock()
            soon = self._stopped + STOPPING_SECS
            self._unconfirmed = {of: (chains, min(until, soon)) for of, (chains, until) in self._unconfirmed.items()}
            for attempt in list(self._pending):
                order = attempt.order
                if isinstance(order, ResolutionOrder) and (order.resolution is Resolution.COMMIT or not self._ready):
                    self._end_as_stopped(attempt)
        self.interrupt()

    def _end_as_stopped(self, attempt: Attempt) -> None:
        self._pending.remove(attempt)
        self._answers.put(Answer(attempt, attempt.part, StoppedError("the query was stopped")))

    def send_outcomes(self, txid: int, report: TreeReport) -> None:
        """Report a commit to the resident spouts, with the outcomes of trees.

        Those of a lost run are gone, and their sources redeliver what was not reported.
        """
        with self._lock:
            if self._run is not None and self._ready:
                chains, restored = self._spout_chains, self._restored
                for tasks in chains.values():  # before parts are taken: some of these have ended in this transaction
                    for number, name in tasks.items():
                        restored.update((root, number) for root, _ in report.pending.get(name, ()))
                for chain, outcome in zip(chains, report.parts(chains.values(), restored), strict=True):
                    self._run.send(chain, FrameKind.OUTCOME, messages.pack_outcome(txid, outcome))
                for roots in (report.acked, *report.failed.values()) if restored else ():
                    for root in roots:
                        restored.pop(root, None)

    def send_to_all(self, kind: FrameKind, body: bytes) -> None:
        """Send a frame to all chains of the run; without one nothing is sent."""
        with self._lock:
            if self._run is not None and self._ready:
                for chain in self.chains:
                    self._run.send(chain, kind, body)

    def close(self) -> None:
        with self._lock:
            run, ready, self._run, self._ready = self._run, self._ready, None, False
        if run is None:
            return
        if ready:  # of a run that begins, chains that are not there yet hear nothing, and would be waited for in vain
            for chain in self.chains:
                run.send(chain, FrameKind.END)
            run.wait()
        run.end()

    # ---- what becomes of runs

    def on_ready(self, run: PipelinedRun) -> None:
        with self._lock:
            if run is not self._run:
                return
            self._ready = True
            self._since = datetime.now(UTC)
            logger.info("%s: run %s has begun: all %d tasks of Spark are there", self._name, run.id, len(self.chains))
            self.on_begun()
            self._slotless = None
            for attempt in list(self._pending):
                self._send(attempt)
        self.interrupt()  # `next` waits since before the time of these began

    def on_ended(self, run: PipelinedRun, failure: StatefxError) -> None:
        """Fail everything in flight: a chain was lost, or the run's job has ended (rule 13.6)."""
        with self._lock:
            if run is not self._run:
                return
            self._run, self._ready = None, False
            self._unconfirmed.clear()
            self._restored.clear()
            self._restoring.clear()
            self._emitted = frozenset()
            self.woken.set()
            if self._stopping:
                failure = StoppedError("the query was stopped")
            if not self._pending and not self._stopping:
                logger.warning("%s: run %s has ended: %s", self._name, run.id, failure.message)
            failed = self._pop_failing_jobs(failure)
            self._ending += 1
        try:
            run.end()  # before another one begins: both would listen at the same port
        except Exception:  # as of a session that is stopped meanwhile: nobody else would tell what has failed
            logger.exception("%s: run %s could not be ended in good order", self._name, run.id)
        with self._lock:
            self._ending -= 1
            for attempt in failed:
                self._answers.put(Answer(attempt, attempt.part, failure))
            if self._pending:
                self._begin()
        self.interrupt()

    def _pop_failing_jobs(self, failure: Exception) -> list[Attempt]:
        """Remove and return the jobs that fail with the run, lowest transaction first.

        Only that one counts towards attempts.max (rule 6.2). While there are no slots for a run, none fails: the loss
        of an executor alone ends no query (rule 6.8).
        """
        if isinstance(failure, NotBegunError):
            now = self._clock()
            if self.busy():  # with a job of this very topology, which ends
                self._slotless = None
            self._slotless = now if self._slotless is None else self._slotless
            if now < self._slotless + SLOTS_SECS:
                self._again = now + SLOTS_AGAIN_SECS
                self._runs -= 1  # the next one stands in its place: nothing was lost
                for attempt in self._pending:
                    attempt.since = None
                logger.warning("%s: %s. It is tried again", self._name, failure.message)
                return []
            self._slotless = None
        failed = sorted(self._pending, key=lambda attempt: (isinstance(attempt.part, Segment), attempt.name))
        self._pending = []
        return failed

    def on_frame(self, run: PipelinedRun, chain: ChainId, kind: FrameKind, body: bytes) -> None:
        with self._lock:
            if run is not self._run:
                return
            match kind:
                case FrameKind.ACK:
                    self._take_ack(Ack.unpack(body))
                case FrameKind.REPORT:
                    self._take_report(Report.unpack(body))
                case FrameKind.WAKE:
                    self.woken.set()
                    self.interrupt()
                case FrameKind.CONFIRMED:
                    self._take_confirmation(chain, TransactionAttempt(*messages.unpack_attempt(body)))
                case FrameKind.RESTORES:
                    self._restoring[chain] = self._clock(), body.decode()
                case FrameKind.ACTIVITY:
                    self.on_activity(messages.unpack_activity(body))
                case FrameKind.HANGS:
                    logger.warning("%s: %s", self._name, body.decode())
                case _:
                    logger.warning("chain %s sent an unexpected %s", chain, kind.name)

    # ---- orders

    def _begin(self) -> None:
        """Begin a run, unless there is one, or one is still ending or waits for slots."""
        if self._run is not None or self._ending or self._again is not None:
            return
        self._runs += 1
        self._begun = self._clock()
        try:
            with logs.of_no_transaction():
                self._run = self.start_run()
        except Exception as error:  # noqa: BLE001 - `over` is called by threads in which nobody would hear of it
            for attempt in self._pop_failing_jobs(error):
                self._answers.put(Answer(attempt, attempt.part, error))

    def _send(self, attempt: Attempt) -> None:
        attempt.since = self._clock()
        order = attempt.order
        assert self._run is not None
        assert order is not None
        bodies = self._bodies(order, attempt.waiting)
        chain, size = max(((chain, len(body)) for chain, body in bodies.items()), key=lambda each: each[1])
        if size > messages.FRAME_BYTES_MAX:  # before any chain begins: no other one would do without this one
            names = ", ".join(str(task) for task in sorted(attempt.waiting) if self._chain_of[task] == chain)
            self._pending.remove(attempt)
            error = TransactionError(
                f"what transaction {attempt.name.txid} tells {names} is {size} bytes long, and may be "
                f"{messages.FRAME_BYTES_MAX}: it can't be carried out. The metadata of the partitions that a spout "
                "reads makes it so long: give each partition less, or the spout more tasks "
                "(setSpout(id, spout, parallelism=...))",
                txid=attempt.name.txid,
            )
            self._answers.put(Answer(attempt, attempt.part, error))
            return
        for chain, body in bodies.items():
            self._run.send(chain, FrameKind.RUN if isinstance(order, Order) else FrameKind.RESOLVE, body)

    def _bodies(self, order: Order | ResolutionOrder, tasks: Collection[TaskId]) -> Mapping[ChainId, bytes]:
        """Return each chain's part of an instruction."""
        own: dict[ChainId, list[TaskId]] = {}
        for task in tasks:
            own.setdefault(self._chain_of[task], []).append(task)
        return {chain: text_for(self._plan, order, sorted(own_tasks)).encode() for chain, own_tasks in own.items()}

    def _abandon(self, attempt: Attempt, patience_secs: float) -> None:
        name, segment = attempt.name, attempt.part
        assert isinstance(segment, Segment)
        patience_secs = min(patience_secs, STOPPING_SECS) if self._stopping else patience_secs
        if self._run is None or not self._ready:  # its orders were not sent
            return
        # Those of the other segment may be busy with another transaction, for as long as that may take.
        own = {self._chain_of[task] for task in self._segments[segment].tasks}
        self._unconfirmed[name] = own, self._clock() + patience_secs
        for chain in self.chains:
            self._run.send(chain, FrameKind.ABANDON, messages.pack_attempt(name.txid, name.attempt))

    # ---- answers

    def _take_ack(self, ack: Ack) -> None:
        for attempt in self._pending:
            if attempt.name == ack.attempt and isinstance(attempt.order, Order) and ack.id in attempt.waiting:
                attempt.acks.append(ack)
                attempt.acked[ack.id] = self._clock()
                self._answered(attempt, ack.id)
                return
        # else of an attempt that was abandoned (rule 6.4)

    def _take_report(self, report: Report) -> None:
        for attempt in self._pending:
            if isinstance(attempt.order, ResolutionOrder) and report.id in attempt.waiting:
                attempt.reports.append(report)
                self._answered(attempt, report.id)
                return

    def _answered(self, attempt: Attempt, task: TaskId) -> None:
        attempt.waiting.discard(task)
        if attempt.waiting:
            return
        self._pending.remove(attempt)
        self._freed = self._clock()
        if attempt.part is Segment.PROCESSING:
            self._emitted |= {attempt.name}
        self._answers.put(Answer(attempt, attempt.part))

    def _take_confirmation(self, chain: ChainId, attempt: TransactionAttempt) -> None:
        chains, _ = self._unconfirmed.get(attempt, (set(), 0.0))
        chains.discard(chain)
        if not chains:
            self._unconfirmed.pop(attempt, None)

    # ---- time

    def _look_at_times(self, now: float) -> float | None:
        """Fail what has taken too long; return when to look again."""
        with self._lock:
            dues = list(self._deadlines())
            for attempt, due in dues:
                if due <= now:
                    self._extend_or_abandon(attempt)
            for attempt, due in list(self._hooks()):
                if due <= now:
                    self._end_as_stopped(attempt)
            if self._again is not None and self._again <= now:
                self._again = None
                self._begin()
            stuck = [(chains, until) for chains, until in self._unconfirmed.values() if until <= now]
            run, late = self._run, self._late <= now
        if late and run is not None:
            missing = f"not all of its {len(self.chains)} tasks of Spark were there after {READY_SECS:g} s"
            self.on_ended(run, JobFailedError(f"{missing}: look at the logs of the executors, where workers start"))
        elif stuck and self._tasks_restoring():  # rule 6.9
            with self._lock:
                self._unconfirmed = {of: (chains, now + STUCK_SECS) for of, (chains, _) in self._unconfirmed.items()}
        elif stuck and run is not None:
            names = ", ".join(f"{chain.level}/{chain.partition}" for chain in sorted(stuck[0][0]))
            self.on_ended(run, JobFailedError(f"chain {names} does not answer: its worker is stuck"))
        with self._lock:
            times = [due for _, due in (*self._deadlines(), *self._hooks())] + [
                until for _, until in self._unconfirmed.values()
            ]
            if self._again is not None:
                times.append(self._again)
            if self._late < math.inf:
                times.append(self._late)
        return min(times, default=None)

    @property
    def _late(self) -> float:
        """Return when a run that is not ready counts as lost."""
        return math.inf if self._run is None or self._ready else self._begun + READY_SECS

    def _deadlines(self) -> Iterable[tuple[Attempt, float]]:
        """Return the attempts whose time runs, and when it is over: in each segment the first one (rule 6.9)."""
        first: dict[Segment, Attempt] = {}
        resolving = any(isinstance(attempt.order, ResolutionOrder) for attempt in self._pending)
        for attempt in self._pending:
            segment = attempt.part
            if isinstance(segment, Segment) and attempt.since is not None:
                if resolving and segment is not Segment.PROCESSING:
                    continue  # its chains may be at the commit of the one before, which may take any time
                known = first.get(segment)
                if known is None or attempt.name < known.name:
                    first[segment] = attempt
        for attempt in first.values():
            assert attempt.since is not None
            yield attempt, max(attempt.since, self._freed) + self._timeout_secs + attempt.extended_secs

    def _hooks(self) -> Iterator[tuple[Attempt, float]]:
        """Yield what hooks of tasks carry out while the query is stopped, and until when: one may never return."""
        for attempt in self._pending if self._stopping else ():
            if isinstance(attempt.order, ResolutionOrder) and attempt.since is not None:
                yield attempt, max(attempt.since, self._stopped) + STOPPING_SECS

    def _tasks_restoring(self) -> str:
        """Return the tasks that restore state now, or "".

        A transaction's timeout does not count that time (rule 6.9). If it did, a restore that takes longer than the
        limit would be restarted by every attempt, until none is left: a topology with much state could not come back
        after a lost executor.
        """
        oldest = self._clock() - RESTORES_FRESH_SECS
        tasks = [task for at, names in self._restoring.values() if at >= oldest for task in names.splitlines()]
        return ", ".join(sorted(tasks))

    def _extend_or_abandon(self, attempt: Attempt) -> None:
        """Restart an attempt's time limit while state is being restored; otherwise abandon the attempt."""
        tasks = self._tasks_restoring()
        if tasks and attempt.extended_secs < EXTENSION_SECS_MAX:
            attempt.extended_secs += self._timeout_secs
            logger.warning(
                "state of %s is being restored, for %g s or less: the transaction's timeout of %g s starts again",
                tasks,
                attempt.extended_secs,
                self._timeout_secs,
            )
            return
        self._pending.remove(attempt)
        waiting = ", ".join(f"{component}[{task}]" for component, task in sorted(attempt.waiting)[:3])
        why = f"it took longer than topology.transaction.timeout.secs ({self._timeout_secs:g} s), waiting for {waiting}"
        if tasks:
            why += (
                f"; state of {tasks} was still being restored after {attempt.extended_secs:g} s: look at the "
                "checkpoint's file system and the state provider's server, or raise the timeout"
            )
        self._abandon(attempt, STUCK_SECS)
        self._answers.put(Answer(attempt, attempt.part, JobFailedError(why, timeout=True)))
