"""A chain: the tasks of one level and partition, resident for a whole run.

::

    driver -- RUN t --> chain -- rows of t, barriers, filler --> chains of the next level
                          |
                          +---- ACK --> driver

It is natural to read rows until every channel's barrier is there, prepare, send barriers and ack, one transaction
after the other. Each part of that sentence has an order of events that breaks it:

* *Read rows*: instructions and rows travel on separate paths, so rows of t+1 come before their instruction. Waiting
  with them in the shuffle blocks the chains upstream; dropping them loses them. `EarlyRows` and `ReadAhead` keep them
  (rules 13.2, 13.9).
* *Every barrier*: attempt 0 of t is abandoned, and its last row is still in the shuffle when attempt 1 begins. So
  each row names its attempt, and rows of an older one are dropped (rule 13.3).
* *Prepare, then send barriers*: each level would wait until the one before it has written its state. So barriers go
  first, and all levels prepare at once: a barrier says that all rows are sent, and only the ack that the task has
  prepared (rule 13.4).
* *Send*: Spark hands the last row on when another one comes. So a filler follows the barriers, as large as a buffer.
* *One after the other*: a chain whose upstream has abandoned t sits in ``next(rows)``, where no message of the driver
  reaches it. Only a row does. So a chain that drops an attempt sends its readers a row that says so (rule 13.5).

A channel has a barrier also if its rows are only passed on here: rows and barrier of one source task for one target
task take the same path (rule 5.5). An attempt is abandoned between two batches, never within one.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from statefx import logs
from statefx.operators.async_bolts import AsyncBolt
from statefx.operators.spouts import Spout
from statefx.plan import wire
from statefx.plan.deployment import Deployment
from statefx.protocol import messages
from statefx.protocol.completeness import Alignment, Channel
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.messages import ChainId, FrameKind
from statefx.protocol.order import RunOrder, SentOrder
from statefx.protocol.reports import Ack, Barrier
from statefx.runtime.activity import BLOCKED, IDLE, ChainClock, Meter
from statefx.runtime.async_task import AsyncBoltTask
from statefx.runtime.bolt_task import BoltTask
from statefx.runtime.outlets import HELD_BYTES_MAX, BatchQueue, Deliver, Outbox, Outlet, combiner_of, outlet_of
from statefx.runtime.sink_task import SinkTask
from statefx.runtime.spout_task import SpoutTask, StreamTask
from statefx.runtime.task import Task, logged_of
from statefx.runtime.tracked_spout_task import SpoutHost, TrackedSpoutTask
from statefx.runtime.user_objects import AbandonedError, ProcessGone
from statefx.runtime.worker import Worker, release_sinks
from statefx.topology.graph import ComponentKind, Edge

logger = logging.getLogger("statefx")

IDLE_WAITS = 20
"""How much longer than `topology.sleep.spout.wait.strategy.time.ms` a spout is left alone that has had nothing for a
while: at 1 ms it is asked 50 times a second, which costs a tenth of a percent of a core."""


END_SECS = 5.0
"""How long the rows of the level before may take to end, when the chain has ended. All chains of a run end together."""


RESTORES_SECS = 1.0
"""How long a task has restored state before that is reported."""


TRANSACTIONS_MAX = 1000
"""Transactions of which the newest attempt is known: more than are ever in flight. Of others more rows are kept."""


_Result = TypeVar("_Result")


class Control(Protocol):
    """A chain's connection to the driver."""

    abandoned: Callable[[tuple[int, int]], None]
    """Called by the thread that reads, when the driver abandons an attempt."""
    alive: Callable[[], None]
    """Called by that thread with each sign of life of the driver, about once a second."""

    def next(self, timeout_secs: float | None = None) -> tuple[FrameKind, bytes] | None:
        """Wait for the driver's next frame; return None after `timeout_secs`."""

    def send(self, kind: FrameKind, body: bytes = b"") -> None: ...
    def check(self) -> None:
        """Raise if the driver is gone."""


def task_of(worker: Worker, deployment: Deployment, id: TaskId, **options: Any) -> Task:
    component = deployment.plan.components[id.component]
    match component.kind:
        case ComponentKind.STREAM:
            kind: type[Task] = StreamTask
        case ComponentKind.SINK:
            kind = SinkTask
        case ComponentKind.SPOUT:
            kind = TrackedSpoutTask if isinstance(component.operator, Spout) else SpoutTask
        case _:
            kind = AsyncBoltTask if isinstance(component.operator, AsyncBolt) else BoltTask
    return kind(worker, deployment, id, **options)


class EarlyRows:
    """Rows that came before their instruction, by attempt: in memory up to a bound, then in a file (rule 13.2)."""

    def __init__(self) -> None:
        self._queues: dict[TransactionAttempt, BatchQueue[None]] = {}

    def put(self, attempt: TransactionAttempt, batch: pa.RecordBatch) -> None:
        if attempt not in self._queues:
            # Of attempts that were doomed while they waited for their order, nobody else tells.
            self.drop(lambda each: each.txid == attempt.txid and each < attempt)
            self._queues[attempt] = BatchQueue()
        self._queues[attempt].append(None, batch)

    def take(self, attempt: TransactionAttempt) -> Iterator[pa.RecordBatch]:
        """Yield the rows of an attempt, in order, and forget them."""
        queue = self._queues.pop(attempt, BatchQueue())
        try:
            while queue:
                yield queue.popleft()[1]
        finally:
            queue.close()

    def drop(self, gone: Callable[[TransactionAttempt], bool]) -> None:
        for attempt in [each for each in self._queues if gone(each)]:
            self._queues.pop(attempt).close()


class ReadAhead:
    """The rows of an iterator, one by one, read by a thread as they come: in memory up to a bound, others in files.

    For chains downstream of the cut (rule 13.9): rows of t+1 come before their instruction, while that of t, or its
    decision, is awaited. Meanwhile Spark's connections would hold all of them in memory: of 300 MB that waited, 262
    were seen there. Chains before the cut don't need it: they take an attempt's rows as soon as they have done with the
    one before.

    Rows of an attempt go when one of the transaction's next attempt comes: otherwise a waiting chain would keep those
    of all attempts that failed before the cut. Fillers go at once. What `rows` raises is raised where its rows end.
    """

    def __init__(self, rows: Iterator[pa.RecordBatch]) -> None:
        self._rows = rows
        self._queue: BatchQueue[TransactionAttempt | None] = BatchQueue()
        """Each with its attempt; what says that one is abandoned has none, for who reads may wait for it."""
        self._newest: dict[int, TransactionAttempt] = {}
        """The newest attempt of each of the last transactions."""
        self._changed = threading.Condition()
        self._ended = False
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="statefx-ahead", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._ended)
            if self._queue:
                return self._queue.popleft()[1]
        if self._error is not None:
            raise self._error
        raise StopIteration

    def _read(self) -> None:
        try:
            for batch in self._rows:
                for at in range(batch.num_rows):
                    self._keep(batch if batch.num_rows == 1 else batch.slice(at, 1))
        except BaseException as error:  # noqa: BLE001 - raised where the rows are read
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify()

    def _keep(self, row: pa.RecordBatch) -> None:
        kind = row.column(1)[0].as_py()
        if kind == wire.FILLER:
            return
        attempt = TransactionAttempt(*wire.attempt_of(row.column(3)[0].as_py())) if kind != wire.ABANDONED else None
        with self._changed:
            if self._closed:
                return
            if attempt is not None and not self._is_newest(attempt):
                return
            self._queue.append(attempt, row)
            self._changed.notify()

    def _is_newest(self, attempt: TransactionAttempt) -> bool:
        """Return whether an attempt is the newest of its transaction, and forget the rows of those before it."""
        newest = self._newest.get(attempt.txid)
        if newest is None or newest < attempt:
            self._newest[attempt.txid] = attempt
            if newest is not None:
                self._queue.drop(lambda each: each is not None and each.txid == attempt.txid and each < attempt)
            elif len(self._newest) > TRANSACTIONS_MAX:
                del self._newest[next(iter(self._newest))]
        return newest is None or newest <= attempt

    def close(self) -> None:
        """Read the rows to their end, and forget them; TimeoutError if they don't end.

        Spark would use this process for another task, of which the thread might take rows.
        """
        with self._changed:
            self._closed = True
            self._queue.close()
        self._thread.join(END_SECS)
        if self._thread.is_alive():
            raise TimeoutError(f"the rows of the level before have not ended after {END_SECS:g} s")


class TaskChain:
    """The tasks of one level and partition, resident for a run.

    `fillers` are the number of filler batches after the barriers, and the bytes of each for each reader: as many as
    make the worker and Spark send at once what they have gathered.
    """

    def __init__(
        self,
        worker: Worker,
        deployment: Deployment,
        chain: ChainId,
        control: Control,
        fillers: tuple[int, int],
        make_task: Callable[[Worker, Deployment, TaskId], Task] = task_of,
    ) -> None:
        self._worker, self._deployment, self._control = worker, deployment, control
        self._chain = chain
        plan = deployment.plan
        self._closing = plan.barriers_through(chain.level, chain.partition)
        following = chain.level + 1
        self._readers = range(plan.widths[following]) if following < len(plan.widths) else range(0)
        self._filler_batches, size = fillers
        self._filler = bytes(size)
        self._early = EarlyRows()
        self.tasks = {id: make_task(worker, deployment, id) for id in plan.levels[chain.level][chain.partition]}
        self._clock = ChainClock(self.tasks)
        self._has_woken = False
        """Whether the driver knows that a spout needs a transaction."""
        self._abandoned: set[TransactionAttempt] = set()
        self._running: ChainAttempt | None = None
        self._lock = threading.Lock()
        """Of `_abandoned`, which the thread that reads from the driver adds to."""
        control.abandoned = self._note_abandoned
        control.alive = self._show_life

    def run(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Execute instructions until the driver ends the run; yield the rows for the next level."""
        try:
            with closing(self._orders(rows)) as batches:
                for batch in batches:
                    before = self._clock.enter(BLOCKED)
                    yield batch
                    self._clock.enter(before)
                    del batch  # megabytes, which nobody needs until the next one comes
        except ProcessGone:
            for task in self.tasks.values():
                task.forget_object()
            raise
        finally:
            for task in self.tasks.values():
                with logs.fields(component=task.id.component, task=task.id.task):
                    task.close()
                    self._worker.shared.release(task)
            release_sinks(self._deployment)

    @property
    def _hosts(self) -> dict[TaskId, SpoutHost]:
        tracked = {id: task.host for id, task in self.tasks.items() if isinstance(task, TrackedSpoutTask)}
        return {id: host for id, host in tracked.items() if host is not None}

    def _orders(self, rows: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        while True:
            kind, body = self._next()
            match kind:
                case FrameKind.RUN:
                    self._has_woken = False  # before the spout is asked: what it emits from here on may be too late
                    yield from self._attempt(SentOrder(body.decode()), rows)
                case FrameKind.OUTCOME:
                    txid, report = messages.unpack_outcome(body)
                    for task, host in self._hosts.items():
                        self._clock.enter(self._clock.busy(task))
                        host.on_committed(txid, report)
                    self._clock.enter(IDLE)
                case FrameKind.RESOLVE:
                    self._resolve(body)
                case FrameKind.ABANDON:
                    yield from self._drop(TransactionAttempt(*messages.unpack_attempt(body)))
                case FrameKind.END:
                    # To the end, which comes when the level before has ended. Spark puts a worker back when it has
                    # ended; if its input has not, Spark closes it afterwards, and the next task that it is given fails.
                    for _ in rows:
                        pass
                    return
                case _:
                    raise messages.FrameError(f"the driver sent {kind.name}")

    def _next(self) -> tuple[FrameKind, bytes]:
        """Wait for the driver's next frame; call spouts meanwhile."""
        waits, busy = 0, False
        while True:
            hosts = self._hosts
            if not self._has_woken and any(host.is_waiting for host in hosts.values()):
                self._has_woken = True
                self._control.send(FrameKind.WAKE)
            asked = {id: host for id, host in hosts.items() if host.may_be_asked}
            frame = self._control.next(self._wait_secs(waits) if asked else None)
            if frame is not None:
                self._clock.enter(IDLE)
                return frame
            emitted = [id for id, host in asked.items() if host.ask()]
            if busy is not bool(emitted):  # when spouts begin and cease to have something, and not for each call
                busy = bool(emitted)
                self._clock.enter(self._clock.busy(emitted[0]) if emitted else IDLE)
            waits = 0 if emitted else min(waits + 1, IDLE_WAITS)

    def _show_life(self) -> None:
        """Report what takes long, with each sign of life; called by the thread that reads from the driver.

        An attempt that takes long shows what its tasks do; after it their acks do, and between two nothing is sent.
        """
        now = time.monotonic()
        if self._running is not None:
            times = {id: self._clock.of(id, now - (task.restores_since or now)) for id, task in self.tasks.items()}
            self._control.send(FrameKind.ACTIVITY, messages.pack_activity(times))
        limit = now - RESTORES_SECS
        restoring = [id for id, task in self.tasks.items() if (since := task.restores_since) and since <= limit]
        if restoring:
            self._control.send(FrameKind.RESTORES, "\n".join(map(str, restoring)).encode())
        for host in self._hosts.values():
            if said := host.hangs():
                self._control.send(FrameKind.HANGS, said.encode())

    def _wait_secs(self, waits: int) -> float:
        """Return how long to leave a spout alone that had nothing `waits` times in a row."""
        if not waits:
            return 0.0
        first_ms: int = self._deployment.config["topology.sleep.spout.wait.strategy.time.ms"]
        return first_ms * min(1 << (waits - 1), IDLE_WAITS) / 1000

    # ---- an attempt

    def _attempt(self, order: SentOrder, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = order.attempt
        if attempt in self._abandoned:  # its ABANDON stands behind it in the queue
            return
        self._early.drop(lambda each: each < attempt)  # rule 13.3; `attempt` itself may be newer than what is kept
        with self._lock:
            self._abandoned -= {each for each in self._abandoned if each < attempt}
        running = self._running = self._enter(order)
        if attempt in self._abandoned:  # told between the look above and here
            running.abandon()
        try:
            yield from running.run(self._input(attempt, rows))
            yield from self._more_fillers()
        except AbandonedError:
            self._abandoned.add(attempt)
            yield from self._wake_readers(attempt)
        finally:
            self._running = None
            self._clock.enter(IDLE)
        self._worker.freeze_loaded_objects()

    def _enter(self, order: RunOrder) -> ChainAttempt:
        return ChainAttempt(
            self._deployment,
            self._chain,
            list(self.tasks.values()),
            order,
            clock=self._clock,
            ack=lambda ack: self._control.send(FrameKind.ACK, ack.pack()),
            check=self._control.check,
            behind_barriers=self._fillers(),
        )

    def _input(self, attempt: TransactionAttempt, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of an attempt until the barrier of every channel has come (rules 13.3 and 13.4)."""
        missing = set(self._closing)
        for batch in self._early.take(attempt):
            missing.discard(_closed_by(batch))
            yield batch
        while missing:
            if attempt in self._abandoned:
                raise AbandonedError
            before = self._clock.enter(IDLE)
            batch = next(rows, None)
            self._clock.enter(before)
            if batch is None:
                raise AbandonedError  # the run ends
            for row in _rows_of(batch):
                kind = row.column(1)[0].as_py()
                if kind == wire.FILLER:
                    continue
                of = TransactionAttempt(*wire.attempt_of(row.column(3)[0].as_py()))
                if kind == wire.ABANDONED:
                    self._abandoned.add(of)
                    self._early.drop(of.__eq__)
                elif of == attempt:
                    missing.discard(_closed_by(row))
                    yield row
                elif of > attempt and of not in self._abandoned:
                    self._early.put(of, row)

    def _note_abandoned(self, attempt: tuple[int, int]) -> None:
        """Have the attempt that runs end early; called by the thread that reads from the driver."""
        with self._lock:
            self._abandoned.add(TransactionAttempt(*attempt))
        running = self._running
        if running is not None and running.attempt in self._abandoned:
            running.abandon()

    def _drop(self, attempt: TransactionAttempt) -> Iterator[pa.RecordBatch]:
        """Forget an attempt, wake the readers of this chain, and confirm (rule 13.5)."""
        self._abandoned.add(attempt)
        self._early.drop(lambda each: each == attempt)
        yield from self._wake_readers(attempt)
        self._control.send(FrameKind.CONFIRMED, messages.pack_attempt(attempt.txid, attempt.attempt))

    def _wake_readers(self, attempt: TransactionAttempt) -> Iterator[pa.RecordBatch]:
        if self._readers:
            head = wire.Address(0, 0, -1, 0, 0, attempt.txid, attempt.attempt).pack()
            notices: list[wire.WireRow] = [(reader, wire.ABANDONED, 0, head, b"") for reader in self._readers]
            yield wire.to_batch([*notices, *self._fillers()])
            yield from self._more_fillers()

    def _fillers(self) -> list[wire.WireRow]:
        return [(reader, wire.FILLER, 0, b"", self._filler) for reader in self._readers]

    def _more_fillers(self) -> Iterator[pa.RecordBatch]:
        for _ in range(self._filler_batches - 1 if self._readers else 0):
            yield wire.to_batch(self._fillers())

    # ---- commit and rollback

    def _resolve(self, body: bytes) -> None:
        order = SentOrder(body.decode())
        for task in order.tasks:
            self._control.check()  # rule 13.8: if the connection is gone, another run repeats it
            self._clock.enter(self._clock.committing(task))
            with logs.fields(**logged_of(task, order.attempt)):
                report = self.tasks[task].resolve(order)
            self._control.send(FrameKind.REPORT, report.pack())
        self._clock.enter(IDLE)


def _rows_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows == 1:  # as Spark hands them over (see `statefx.spark.job`)
        yield batch
        return
    for at in range(batch.num_rows):
        yield batch.slice(at, 1)


def _closed_by(row: pa.RecordBatch) -> wire.ChannelEnd | None:
    """Return the channel that a row closes, or None if it is no barrier."""
    if row.column(1)[0].as_py() != wire.BARRIER:
        return None
    return wire.Address.unpack(row.column(3)[0].as_py()).channel_end


class HeldRows:
    """Rows for one task in one attempt, from its first row until its broadcast inputs are whole.

    An input is whole when it has its barrier and all rows that the barrier counts. One that never is, because a task
    before it has failed or rows are missing, is noticed at the end of the input (rule 5.3): then none of the held rows
    is ever executed (rule 5.7). `alignment` has counted all rows that are put here; `channels` are the broadcast
    inputs, one or more.
    """

    def __init__(self, alignment: Alignment, channels: Collection[Channel]) -> None:
        self._alignment = alignment
        self._open = sorted(channels)
        share = HELD_BYTES_MAX // len(channels)
        # By edge, source and number of the source's task: rows of one task come in its order, and all others in none.
        self._first: dict[Channel, BatchQueue[Edge]] = {channel: BatchQueue(share) for channel in self._open}
        self._others: BatchQueue[Edge] = BatchQueue()

    def put(self, edge: Edge, task: int, batch: pa.RecordBatch) -> None:
        self._first.get((edge.id, edge.source, task), self._others).append(edge, batch)

    def is_whole(self) -> bool:
        while self._open and self._alignment.is_whole(self._open[-1]):
            self._open.pop()
        return not self._open

    def take(self) -> Iterator[tuple[Edge, pa.RecordBatch]]:
        """Yield the rows of the broadcast inputs, in the same order in all tasks, and the others as they came."""
        for queue in (*self._first.values(), self._others):
            while queue:
                yield queue.popleft()

    def close(self) -> None:
        """Forget the rows that are left."""
        for queue in (*self._first.values(), self._others):
            queue.close()


class ChainAttempt:
    """One attempt of a chain's tasks: rows in, through the chain, rows out; then barriers, then acks.

    `tasks` are in the order of the chain, whose time `clock` divides. `ack` takes the acks, `check` raises if the chain
    must prepare nothing more (rule 13.7), and `behind_barriers` are sent after the barriers.
    """

    def __init__(
        self,
        deployment: Deployment,
        chain: ChainId,
        tasks: Sequence[Task],
        order: RunOrder,
        *,
        clock: ChainClock,
        ack: Callable[[Ack], None],
        check: Callable[[], None] = lambda: None,
        behind_barriers: Sequence[wire.WireRow] = (),
    ) -> None:
        plan = self._plan = deployment.plan
        self.attempt = order.attempt
        self._level = chain.level
        self._clock, self._ack, self._check, self._behind_barriers = clock, ack, check, behind_barriers
        self._is_abandoned = False
        self._outbox = Outbox(chain.level, chain.partition, plan.widths)
        self._tasks = {task.id.component: task for task in tasks}
        for task in tasks:
            token = uuid.uuid4().hex  # rule 1.3: also this very attempt in another run gets another one
            task.enter(
                order,
                token,
                [self._outlet(edge, task.id, token) for edge in plan.outputs[task.id.component]],
                self._outbox,
            )
        self._head = tasks[0]
        # Broadcast inputs come from outside, so they are the head's.
        broadcast = plan.broadcast_channels(*self._head.id)
        self._held = HeldRows(self._head.attempt.input, broadcast) if broadcast else None

    def _outlet(self, edge: Edge, sender: TaskId, token: str) -> Outlet:
        plan = self._plan
        return outlet_of(
            edge,
            plan.schema(edge),
            plan.components[edge.target].parallelism,
            sender.task,
            plan.fused(edge),
            self._deliver(edge, sender, token),
            combiner_of(plan, edge, sender, self.attempt.txid),
            tracked=plan.tracks(edge),
        )

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        done = False
        # What is done for no task in particular, such as reading what has come, is work for the first one.
        self._clock.enter(self._clock.busy(self._head.id))
        try:
            for task in self._tasks.values():
                self._step(task, "open", task.begin)
                self._clock.restored(task.id, task.attempt.secs["restore"])
            # Rule 5.6: also where no row will come.
            yield from self._go_on(self._head, self._step(self._head, "execute", self._head.emit))
            for batch in batches:
                self._refuse_abandoned()
                yield from self._take_wire(batch)
                yield from self._let_go()
            # In the order of the chain: the input of a follower is whole when the barriers of those before it are
            # there.
            for task in self._tasks.values():
                yield from self._end_input(task)
            self._outbox.add(self._behind_barriers)
            yield from self._outbox.take()
            # Behind the barriers, so that tasks of all levels prepare side by side (rule 13.4).
            for task in self._tasks.values():
                self._refuse_abandoned()
                self._check()
                self._prepare(task)
            yield from self._outbox.take()
            done = True
        finally:
            # `done` is false also when Spark closes the generator before its end: a bolt that stands in the middle of a
            # transaction is not kept for the next one.
            for task in self._tasks.values():
                with logs.fields(**logged_of(task.id, self.attempt)):
                    task.leave(done=done)
            if self._held is not None:
                self._held.close()
            self._outbox.close()

    def abandon(self) -> None:
        """Have `run` raise AbandonedError soon; called by any thread.

        At the latest when the bolt returns from the tuple or the batch that it has.
        """
        self._is_abandoned = True
        self._outbox.pressing = True
        for task in self._tasks.values():
            task.interrupt()

    def _refuse_abandoned(self) -> None:
        if self._is_abandoned:
            raise AbandonedError

    def _step(self, task: Task, metric: str, call: Callable[..., _Result], *args: Any) -> _Result | None:
        """Run a step of a task, and have the time that it takes count as the task's own."""
        before = self._clock.enter(self._clock.busy(task.id))
        # Not of opening: a state that is restored waits for a disk, and that is no fault of the user's code.
        meter = None if metric == "open" else Meter.read()
        try:
            return task.attempt.step(metric, call, *args)
        finally:
            if meter is not None:
                meter.charge(task.attempt.costs)
            self._clock.enter(before)

    def _deliver(self, edge: Edge, sender: TaskId, token: str) -> Deliver:
        """Return what takes the batches of `edge`: the next task's inbox, or the outbox."""
        if self._plan.fused(edge):

            def follow(target: int, batch: pa.RecordBatch) -> int:
                follower = self._tasks[edge.target].attempt
                follower.input.records(*sender, token, edge.id, batch.num_rows)
                size_bytes = follower.inbox.append(edge, batch)
                follower.receives(edge.id, size_bytes)
                if follower.inbox.held_bytes >= wire.BATCH_BYTES:
                    self._outbox.pressing = True
                return size_bytes

            return follow

        def send(target: int, batch: pa.RecordBatch) -> int:
            level, partition = self._plan.place[TaskId(edge.target, target)]
            address = self._address(level, partition, edge.id, sender)
            payload = wire.serialize(token, batch)
            self._outbox.send(address, wire.RECORDS, batch.num_rows, payload)
            return len(payload)

        return send

    # ---- rows

    def _take_wire(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Give rows of the level before to the head of the chain, and pass on those for later levels."""
        for kind, rows, head, payload in wire.rows_of(batch):
            address = wire.Address.unpack(head)
            if address.level != self._level:  # rule 5.5: rows and barriers of one sender go through the same relay
                self._outbox.forward(address.level, address.partition, kind, rows, head, payload)
            elif kind == wire.BARRIER:  # noted only: rows of the same sender may come behind it (rule 5.3)
                self._head.attempt.input.barrier(Barrier.unpack(payload))
                yield from self._run_held()
            else:
                edge = self._plan.edges[address.edge]
                token, records = wire.deserialize(payload, self._plan.wire_schema(edge))
                self._head.attempt.receives(edge.id, len(payload))
                yield from self._take(edge, records, token, address.task)

    def _take(self, edge: Edge, batch: pa.RecordBatch, token: str, task: int) -> Iterator[pa.RecordBatch]:
        self._head.attempt.input.records(edge.source, task, token, edge.id, batch.num_rows)
        if self._held is None:
            yield from self._feed(self._head, edge, batch)
        else:
            self._held.put(edge, task, batch)
            yield from self._run_held()

    def _run_held(self) -> Iterator[pa.RecordBatch]:
        """Give the head what is held for it, once all rows of its broadcast inputs are there."""
        if self._held is None or not self._held.is_whole():
            return
        held, self._held = self._held, None
        try:
            for edge, batch in held.take():
                self._refuse_abandoned()
                yield from self._feed(self._head, edge, batch)
                yield from self._let_go()
        finally:
            held.close()

    def _feed(self, task: Task, edge: Edge, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield from self._go_on(task, self._step(task, "execute", task.feed, edge, batch))

    def _go_on(self, task: Task, paused: bool | None) -> Iterator[pa.RecordBatch]:
        """Resume the task until its batch is done; before each resume, drain downstream tasks and flush the outbox."""
        while paused:
            # Only the tasks downstream of it work through their inboxes: its own next batch must not overtake this one.
            chain = list(self._tasks.values())
            for follower in chain[chain.index(task) + 1 :]:
                yield from self._work_through(follower)
            yield from self._outbox.take()
            self._refuse_abandoned()  # behind it: what has left is no longer pressing, nor is an `abandon` meanwhile
            paused = self._step(task, "execute", task.resume)

    def _work_through(self, task: Task) -> Iterator[pa.RecordBatch]:
        inbox = task.attempt.inbox
        while inbox:
            yield from self._feed(task, *inbox.popleft())

    def _let_go(self) -> Iterator[pa.RecordBatch]:
        """Drain the downstream tasks; flush the outbox if it is full."""
        for task in self._tasks.values():
            yield from self._work_through(task)
            if self._plan.follows(task.id.component):
                self._step(task, "execute", task.flush)
        yield from self._send_much()

    def _send_much(self) -> Iterator[pa.RecordBatch]:
        if self._outbox.pressing:
            yield from self._outbox.take()

    # ---- the end of the input

    def _end_input(self, task: Task) -> Iterator[pa.RecordBatch]:
        """Close a task's input, let it emit to the last, and send its barriers."""
        yield from self._work_through(task)
        attempt = task.attempt
        for barrier in attempt.end_input():  # rule 6.4
            logger.warning("a barrier of %s is ignored: this is %s", barrier.attempt, self.attempt)
        self._step(task, "finish", task.end)
        # Rows before barriers: what is emitted to the last must be counted in them (rule 5.2).
        self._step(task, "execute", task.emit_last)
        if attempt.time is not None:
            attempt.time.end_output()
        self._send_barriers(task)
        yield from self._send_much()

    def _prepare(self, task: Task) -> None:
        attempt = task.attempt
        self._clock.enter(self._clock.committing(task.id))
        prepared = attempt.step("finish", task.prepare_checked)
        attempt.collector.close()
        ack = attempt.ack(prepared, self._clock.of(task.id))
        attempt.acked = ack.failed is None  # before it is sent: who fails while it sends may have been received
        self._ack(ack)

    def _address(self, level: int, partition: int, edge: int, sender: TaskId) -> wire.Address:
        attempt = self.attempt
        return wire.Address(
            level, partition, edge, self._plan.index[sender.component], sender.task, attempt.txid, attempt.attempt
        )

    def _send_barriers(self, task: Task) -> None:
        """Send one barrier to each task that reads from this one, with the rows of all edges to it."""
        own = task.attempt
        # Rule 6.6: a task that has failed sends its barriers all the same; those that read from it fail with its
        # reason, and do not look for rows that never come.
        failed = None if own.failure is None else own.failure.reason
        counts: dict[TaskId, dict[int, int]] = {}
        # To every task that could have got a row, also where none was sent: it waits for a barrier of each (rule 5.1).
        for outlet in own.collector.outlets:
            edge = outlet.edge
            for reader in [own.id.task] if self._plan.fused(edge) else range(outlet.width):
                counts.setdefault(TaskId(edge.target, reader), {})[edge.id] = outlet.sent[reader]
        for target, sent in counts.items():
            watermark, parts = (None, {}) if own.time is None else (own.time.sent, own.time.parts)
            barrier = Barrier(self.attempt, *own.id, own.token, sent, failed, watermark, parts)
            level, partition = self._plan.place[target]
            if level == self._level:
                self._tasks[target.component].attempt.input.barrier(barrier)
                continue
            address = self._address(level, partition, -1, own.id)
            self._outbox.send(address, wire.BARRIER, sum(sent.values()), barrier.pack())
