"""Runs whose chains are greenlets of one thread, of which one runs at a time: chance alone decides which.

Every order of arrival is possible that Spark's pipelined shuffle and the control connections allow: rows of one sender
for one reader stay in order, and so does what the driver and one chain say to each other. Nothing else does.

A chain stops deep within calls, in the middle of what it does for a row, so generators can't be it. Threads that hand a
lock on can: that takes 15 microseconds for each step, and a switch of greenlets half of one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from greenlet import getcurrent, greenlet

from statefx.coordinator.attempt import Answer
from statefx.coordinator.retrying import JobFailedError
from statefx.coordinator.runs import PipelinedRun, RunEngine
from statefx.plan.deployment import Deployment
from statefx.protocol import messages
from statefx.protocol.messages import ChainId, FrameKind
from statefx.protocol.order import ResolutionOrder
from statefx.protocol.reports import Ack
from statefx.runtime.chain import TaskChain
from statefx.runtime.user_objects import ProcessGone
from statefx.testing.faults import Fault, HooksFail, JobFails
from statefx.testing.processes import Emitted, Process, TaskRun, WatchingCollector


class _KilledError(ProcessGone):
    """Ends a chain that nobody will let go on."""


class LocalRunEngine(RunEngine):
    """Runs one deployment as a run in this process.

    `chances` is called with the engine before each step: a test breaks things there. `runs` are all that were begun,
    of which the last one may be alive; `seen` is what each attempt of a task has emitted that has acked.
    """

    def __init__(
        self,
        deployment: Deployment,
        make_process: Callable[[], Process],
        seed: int,
        timeout_secs: float,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(deployment.plan, deployment.name, timeout_secs, clock)
        self.random = random.Random(seed)
        self.chances: Callable[[LocalRunEngine], None] = lambda engine: None
        self.runs: list[LocalRun] = []
        self.seen: dict[TaskRun, Emitted] = {}
        self._deployment = deployment
        self._make_process = make_process
        self._calls: list[Callable[[], None]] = []
        self._looked_at: float | None = None
        self.faults: list[Fault] = []
        """Those that have not struck yet."""
        self._going: list[LocalRun] = []
        """Those in which something may still happen: a life has a hundred that are over."""
        self.crash: BaseException | None = None
        """The end of this process, as a chain has met it."""

    def start_run(self) -> LocalRun:
        run = LocalRun(self, self._make_process)
        self.runs.append(run)
        self._going.append(run)
        return run

    def call_aside(self, name: str, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def next(self, timeout_secs: float | None) -> Answer | None:
        """Let chains run until something has ended; None if none of them can go on."""
        while self._answers.empty():
            self.chances(self)
            if (now := self._clock()) != self._looked_at:  # whatever is due is later than when it was begun
                self._looked_at = now
                self._look_at_times(now)
            if not self._answers.empty():
                break
            if self._calls:
                self._calls.pop(0)()
            elif not self.step():
                return super().next(0.0)
        return super().next(0.0)

    def step(self) -> bool:
        """Let one thing happen; tell whether anything could."""
        moves = [move for run in self._going for move in run.moves()]
        self._going = [run for run in self._going if not run.is_done]
        if not moves:
            return False
        self.random.choice(moves)()
        if self.crash is not None:
            raise self.crash
        return True

    def inject(self, faults: Sequence[Fault]) -> None:
        """Have these strike once, each at the next moment that it fits."""
        self.faults += faults

    def on_frame(self, run: PipelinedRun, chain: ChainId, kind: FrameKind, body: bytes) -> None:
        """Take what a chain says, unless the run is to end with it."""
        if run is self._run:
            for fault in self.faults:
                if self._strikes(fault, kind):
                    self.faults.remove(fault)
                    self.on_ended(run, JobFailedError(getattr(fault, "reason", "the executor was lost")))
                    return
        super().on_frame(run, chain, kind, body)

    def _strikes(self, fault: Fault, kind: FrameKind) -> bool:
        if isinstance(fault, JobFails):
            return kind is FrameKind.ACK
        resolutions = [attempt.resolution for attempt in self._pending if isinstance(attempt.order, ResolutionOrder)]
        return kind is FrameKind.REPORT and isinstance(fault, HooksFail) and fault.phase in resolutions

    def wake(self) -> None:
        """Let everything happen that still can, also in runs that are over."""
        while self.step():
            pass

    def vanish(self) -> None:
        """Let the driver's process be gone, and nothing else: its chains go on until each of them notices."""
        self._run = self.crash = None
        for run in self.runs:
            run.is_over = True

    def end_chains(self) -> None:
        """End all chains where they stand; one that is frozen outlives its driver."""
        for run in self.runs:
            run.kill(frozen=False)

    def close(self) -> None:
        """End all runs."""
        super().close()
        for run in self.runs:
            run.kill()


class LocalRun:
    """All chains of a topology."""

    def __init__(self, engine: LocalRunEngine, make_process: Callable[[], Process]) -> None:
        self.id = f"run-{len(engine.runs) + 1}"
        self._engine = engine
        self.is_over = False
        self.is_ready = False
        self.chains = {chain: LocalChain(engine, make_process(), chain, self) for chain in engine.chains}
        self._going = list(self.chains.values())

    @property
    def is_done(self) -> bool:
        """Whether nothing can happen in it any more."""
        return self.is_over and not self._going

    def moves(self) -> list[Callable[[], None]]:
        if not self.is_ready and not self.is_over:
            return [self._tell_ready]
        self._going = [chain for chain in self._going if not chain.is_done]
        return [move for chain in self._going for move in chain.moves()]

    def _tell_ready(self) -> None:
        self.is_ready = True
        self._engine.on_ready(self)

    def send(self, chain: ChainId, kind: FrameKind, body: bytes = b"") -> None:
        if not self.is_over and not self.chains[chain].is_cut:
            self.chains[chain].to_chain.append((kind, body))

    def wait(self) -> None:
        """Let them go on: nothing here takes time."""

    def end(self) -> None:
        self.is_over = True

    def lose(self, chain: ChainId) -> None:
        """Kill a chain's process: the job fails, and the others end when they notice."""
        self.chains[chain].kill()
        self.fail(f"chain {chain} was lost")

    def fail(self, why: str) -> None:
        self._engine.on_ended(self, JobFailedError(why))

    def kill(self, *, frozen: bool = True) -> None:
        """End its chains where they stand, those that are frozen only if `frozen` says so."""
        for chain in self.chains.values():
            if frozen or not chain.frozen:
                chain.kill()

    def deliver(self, sender: ChainId, batch: pa.RecordBatch) -> None:
        """Put the rows of a sender into its channels."""
        for row in range(batch.num_rows):
            one = batch.slice(row, 1)
            reader = ChainId(sender.level + 1, one.column(0)[0].as_py())
            self.chains[reader].channels.setdefault(sender, deque()).append(one)


class LocalChain:
    """One chain, which runs when it is told to, in the thread of whoever made it.

    `to_chain` and `to_driver` are on their way over the control connection, and `carried` counts what has arrived, by
    which of the two it was in; `channels` has rows on their way to it, by sender. While it is `frozen`, as by SIGSTOP,
    nothing of it goes on, and what it is sent waits.
    """

    def __init__(self, engine: LocalRunEngine, process: Process, chain: ChainId, run: LocalRun) -> None:
        self._engine, self._run, self.chain = engine, run, chain
        self.to_chain: deque[tuple[FrameKind, bytes]] = deque()
        self.to_driver: deque[tuple[FrameKind, bytes]] = deque()
        self.carried = {"to_chain": 0, "to_driver": 0}
        self.is_cut = False
        self._has_hung_up = False
        """It knows that its connection is gone."""
        self.channels: dict[ChainId, deque[pa.RecordBatch]] = {}
        self.frozen = False
        self.ended = False
        self.error: BaseException | None = None
        self._inbox: deque[tuple[FrameKind, bytes]] = deque()
        self._waits_for = ""
        self._has_rested = False
        self._killed = False
        self._last = chain.level + 1 == len(process.own.plan.widths)
        self.abandoned: Callable[[tuple[int, int]], None] = lambda attempt: None
        self.alive: Callable[[], None] = lambda: None
        self._resident = TaskChain(process, process.own, chain, self, (1, 0), process.make_task)
        self._own = greenlet(self._live)
        self._told_by = self._own
        """Who let it go on, and goes on itself when it pauses: the driver, or another chain that wakes a frozen one."""

    # ---- what may happen

    def moves(self) -> list[Callable[[], None]]:
        """Return what may happen to it next."""
        found: list[Callable[[], None]] = []
        if not self._run.is_over:
            if self.to_driver:
                found.append(self._to_driver)
            if self.is_cut:
                found.append(lambda: self._run.fail(f"the connection of chain {self.chain} was lost"))
        if self.frozen or self.ended:
            return found
        if self.to_chain:
            found.append(self._to_chain)
        if (self._run.is_over or self.is_cut) and not self._has_hung_up:
            found.append(self._hang_up)
        if self._can_go_on():
            found.append(self.step)
        return found

    @property
    def is_done(self) -> bool:
        """Whether nothing can happen to it any more."""
        return self.ended and self._run.is_over

    def _can_go_on(self) -> bool:
        if self._waits_for == "control":
            return bool(self._inbox) or self._has_hung_up
        if self._waits_for == "rows":
            return any(self.channels.values()) or self._has_hung_up
        return True

    def cut(self) -> None:
        """Lose its connection, with all that is on its way; either end may notice first."""
        self.is_cut = True
        self.to_chain.clear()
        self.to_driver.clear()

    def _hang_up(self) -> None:
        self._has_hung_up = True

    def _to_driver(self) -> None:
        self.carried["to_driver"] += 1
        self._engine.on_frame(self._run, self.chain, *self.to_driver.popleft())

    def _to_chain(self) -> None:
        self.carried["to_chain"] += 1
        kind, body = self.to_chain.popleft()
        self._inbox.append((kind, body))
        if kind is FrameKind.ABANDON:
            self.abandoned(messages.unpack_attempt(body))

    def step(self) -> None:
        """Let it run until it next waits."""
        self._told_by = getcurrent()
        self._own.switch()

    def kill(self) -> None:
        """End it where it stands."""
        self.frozen = False
        self._killed = True
        # By a step of its own, it ends at its next pause: nobody else could let it run on.
        if not self.ended and getcurrent() is not self._own:
            self.step()

    # ---- as it sees it: the control connection, and rows

    def next(self, timeout_secs: float | None = None) -> tuple[FrameKind, bytes] | None:
        # A spout that has had nothing is asked once more, and then when something has come: no time passes here.
        if timeout_secs is not None and not self._inbox and (timeout_secs == 0 or not self._has_rested):
            self._refuse_hung_up()
            self._has_rested = timeout_secs > 0
            self._pause()
            return None
        while not self._inbox:
            self._refuse_hung_up()
            self._pause("control")
        self._has_rested = False
        return self._inbox.popleft()

    def send(self, kind: FrameKind, body: bytes = b"") -> None:
        self._refuse_hung_up()
        if kind is FrameKind.ACK:
            ack = Ack.unpack(body)
            collector = self._resident.tasks[ack.id].attempt.collector
            assert isinstance(collector, WatchingCollector)
            self._engine.seen[*ack.id, ack.token] = collector.watched
        if not self.is_cut:
            self.to_driver.append((kind, body))
        if getcurrent() is self._own:  # a sign of life is sent by threads, which have no turn to give up
            self._pause()

    def check(self) -> None:
        self._refuse_hung_up()
        self._pause()  # who freezes right after this look prepares later (rule 13.7)

    def _refuse_hung_up(self) -> None:
        if self._has_hung_up:
            raise ConnectionError("the run is over")

    def _rows(self) -> Iterator[pa.RecordBatch]:
        while True:
            self._pause("rows")
            if self._has_hung_up:
                return
            sender = self._engine.random.choice([each for each, rows in self.channels.items() if rows])
            yield self.channels[sender].popleft()

    def _pause(self, waits_for: str = "") -> None:
        if self._killed:
            raise _KilledError
        self._waits_for = waits_for
        self._told_by.switch()
        self._waits_for = ""
        if self._killed:
            raise _KilledError

    def _live(self) -> None:
        try:
            if not self._killed:
                for batch in self._resident.run(self._rows()):
                    if not self._last:
                        self._run.deliver(self.chain, batch)
                    self._pause()
        except BaseException as error:  # noqa: BLE001 - told below
            self.error = error
        self.ended = True
        if self.error is not None and not self._killed:
            if not isinstance(self.error, Exception):  # the process is gone, or a signal's handler has raised
                self._engine.crash = self.error
            elif not self._run.is_over:
                self._engine.on_ended(self._run, JobFailedError(f"{type(self.error).__name__}: {self.error}"))
        self._own.parent = self._told_by  # where the end of a greenlet goes on
