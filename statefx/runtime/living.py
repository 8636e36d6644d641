"""A slot that lives as long as a run: it takes orders one after the other, and gives each attempt its rows.

What belongs to one attempt is a `Slot`; what lives longer is here: the connection to the driver, the rows that came
before their order, the attempts that were abandoned.

::

    driver -- RUN t --> slot -- rows of t, barriers, filler --> slots of the next level
                          |
                          +---- ACK --> driver

1. An order comes. Rows of its attempt that were here before it are taken first.
2. Rows are read until the barrier of every channel has come: also of those that are only passed on (rule 5.5).
3. The barriers go on, then the tasks prepare, then they ack (rule 13.4).
4. A filler goes behind the barriers: Spark hands the last row on when another one comes.

An attempt is abandoned between two batches. The slot tells those that read from it, by a row: they may be waiting for
rows that never come, and a row is all that wakes them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa

from statefx.operators import Bolt
from statefx.plan import wire
from statefx.plan.deployment import Deployment
from statefx.protocol import messages
from statefx.protocol.barrier import Report
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.messages import Kind, SlotId
from statefx.runtime.bolts import ProcessGone, close_bolt
from statefx.runtime.living_spout import LivingSpout
from statefx.runtime.orders import SentOrder, SentResolution
from statefx.runtime.outbox import BatchQueue
from statefx.runtime.resolution import resolve_task
from statefx.runtime.slot import AbandonedError, Slot
from statefx.runtime.worker import Worker, release_sinks
from statefx.state.view import lent
from statefx.state.view.lent import LentState

IDLE_WAITS = 20
"""How much longer than `topology.sleep.spout.wait.strategy.time.ms` a spout is left alone that has had nothing for a
while: at 1 ms it is asked 50 times a second, which costs a tenth of a percent of a core."""


class Control(Protocol):
    """A slot's connection to the driver."""

    abandoned: Callable[[tuple[int, int]], None]
    """Called by the thread that reads, when the driver abandons an attempt."""
    alive: Callable[[], None]
    """Called by that thread with each sign of life of the driver, about once a second."""

    def next(self, timeout_secs: float | None = None) -> tuple[Kind, bytes] | None:
        """Wait for what the driver says next; None after `timeout_secs`."""

    def send(self, kind: Kind, body: bytes = b"") -> None:
        """Tell the driver."""

    def check(self) -> None:
        """Raise if the driver is gone."""


class EarlyRows:
    """Rows that came before their order, by attempt: in memory up to a bound, further ones in a file (rule 13.2)."""

    def __init__(self) -> None:
        self._queues: dict[TransactionAttempt, BatchQueue[None]] = {}

    def put(self, attempt: TransactionAttempt, batch: pa.RecordBatch) -> None:
        """Keep a batch; OSError if the file can't be written."""
        if attempt not in self._queues:
            # Of attempts that were doomed while they waited for their order, nobody else tells.
            self.drop(lambda each: each.txid == attempt.txid and each < attempt)
            self._queues[attempt] = BatchQueue()
        self._queues[attempt].append(None, batch)

    def take(self, attempt: TransactionAttempt) -> Iterator[pa.RecordBatch]:
        """Yield what was kept of an attempt, in order, and forget it."""
        queue = self._queues.pop(attempt, BatchQueue())
        try:
            while queue:
                yield queue.popleft()[1]
        finally:
            queue.close()

    def drop(self, gone: Callable[[TransactionAttempt], bool]) -> None:
        """Forget the attempts for which `gone` is true."""
        for attempt in [each for each in self._queues if gone(each)]:
            self._queues.pop(attempt).close()


class LivingSlot:
    """The tasks of one level and partition, for as long as a run lasts.

    Parameters
    ----------
    worker : Worker
    deployment : Deployment
    slot : SlotId
    control : Control
    fillers : (int, int)
        How many batches of fillers there are behind the barriers, and the bytes of each for each reader: as many as
        make the worker and Spark send at once what they have gathered.
    make_slot, resolve : callable
        Makes what runs one attempt, and commits or rolls back a task.
    """

    def __init__(
        self,
        worker: Worker,
        deployment: Deployment,
        slot: SlotId,
        control: Control,
        fillers: tuple[int, int],
        make_slot: Callable[..., Slot] = Slot,
        resolve: Callable[[Worker, Deployment, SentResolution, TaskId], Report] = resolve_task,
    ) -> None:
        self._make_slot, self._resolve_task = make_slot, resolve
        self._worker, self._deployment, self._control = worker, deployment, control
        self._slot = slot
        plan = deployment.plan
        self._closing = plan.barriers_through(slot.level, slot.partition)
        following = slot.level + 1
        self._readers = range(plan.widths[following]) if following < len(plan.widths) else range(0)
        self._filler_batches, size = fillers
        self._filler = bytes(size)
        self._early = EarlyRows()
        self._states: dict[TaskId, LentState] = {}
        self._spouts: dict[TaskId, LivingSpout] = {}
        self._bolts: dict[TaskId, tuple[Bolt, int]] = {}
        self._has_woken = False
        """Whether the driver knows that a spout needs a transaction."""
        self._abandoned: set[TransactionAttempt] = set()
        self._running: Slot | None = None
        self._lock = threading.Lock()
        """Of `_abandoned`, which the thread that reads from the driver adds to."""
        control.abandoned = self._note_abandoned
        control.alive = self._look_at_spouts

    def run(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take orders until the driver ends the run; yield the rows for the next level."""
        try:
            yield from self._orders(rows)
        except ProcessGone:
            self._spouts.clear()
            self._bolts.clear()
            raise
        finally:
            for state in self._states.values():
                lent.close(state)
            for spout in self._spouts.values():
                spout.close()
            for bolt, _ in self._bolts.values():
                close_bolt(bolt)
            release_sinks(self._deployment)

    def _orders(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while True:
            kind, body = self._next()
            match kind:
                case Kind.RUN:
                    self._has_woken = False  # before the spout is asked: what it emits from here on may be too late
                    yield from self._attempt(SentOrder(body.decode(), self._deployment), rows)
                case Kind.TOLD:
                    txid, report = messages.unpack_told(body)
                    for spout in self._spouts.values():
                        spout.tell(txid, report)
                case Kind.RESOLVE:
                    self._resolve(body)
                case Kind.ABANDON:
                    yield from self._drop(TransactionAttempt(*messages.unpack_attempt(body)))
                case Kind.END:
                    # To the end, which comes when the level before has ended. Spark puts a worker back when it has
                    # ended; if its input has not, Spark closes it afterwards, and the next task that it is given fails.
                    for _ in rows:
                        pass
                    return
                case _:
                    raise messages.FrameError(f"the driver sent {kind.name}")

    def _next(self) -> tuple[Kind, bytes]:
        """Wait for what the driver says next; ask spouts meanwhile."""
        waits = 0
        while True:
            if not self._has_woken and any(spout.is_waiting for spout in self._spouts.values()):
                self._has_woken = True
                self._control.send(Kind.WAKE)
            asked = [spout for spout in self._spouts.values() if spout.may_be_asked]
            frame = self._control.next(self._wait_secs(waits) if asked else None)
            if frame is not None:
                return frame
            emitted = [spout.ask() for spout in asked]
            waits = 0 if any(emitted) else min(waits + 1, IDLE_WAITS)

    def _look_at_spouts(self) -> None:
        """Tell the driver of a spout whose method does not return; called by the thread that reads from it."""
        for spout in list(self._spouts.values()):
            if said := spout.hangs():
                self._control.send(Kind.HANGS, said.encode())

    def _wait_secs(self, waits: int) -> float:
        """Return how long a spout is left alone that has had nothing so many times in a row."""
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
        slot = self._make_slot(
            self._worker,
            self._deployment,
            order,
            self._slot.level,
            self._slot.partition,
            ack=lambda ack: self._control.send(Kind.ACK, ack.pack()),
            check=self._control.check,
            behind_barriers=self._fillers(),
            states=self._states,
            spouts=self._spouts,
            bolts=self._bolts,
        )
        self._running = slot
        if attempt in self._abandoned:  # told between the look above and here
            slot.abandon()
        try:
            yield from slot.run(self._input(attempt, rows))
            yield from self._more_fillers()
        except AbandonedError:
            self._abandoned.add(attempt)
            yield from self._wake_readers(attempt)
        finally:
            self._running = None
        self._worker.settle()

    def _input(self, attempt: TransactionAttempt, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of an attempt until the barrier of every channel has come (rules 13.3 and 13.4)."""
        missing = set(self._closing)
        for batch in self._early.take(attempt):
            missing.discard(_closed_by(batch))
            yield batch
        while missing:
            if attempt in self._abandoned:
                raise AbandonedError
            batch = next(rows, None)
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
        """Forget an attempt, tell those that read from here, and confirm (rule 13.5)."""
        self._abandoned.add(attempt)
        self._early.drop(lambda each: each == attempt)
        yield from self._wake_readers(attempt)
        self._control.send(Kind.CONFIRMED, messages.pack_attempt(attempt.txid, attempt.attempt))

    def _wake_readers(self, attempt: TransactionAttempt) -> Iterator[pa.RecordBatch]:
        if self._readers:
            head = wire.Address(0, 0, -1, 0, 0, attempt.txid, attempt.attempt).pack()
            told: list[wire.WireRow] = [(reader, wire.ABANDONED, 0, head, b"") for reader in self._readers]
            yield wire.to_batch([*told, *self._fillers()])
            yield from self._more_fillers()

    def _fillers(self) -> list[wire.WireRow]:
        return [(reader, wire.FILLER, 0, b"", self._filler) for reader in self._readers]

    def _more_fillers(self) -> Iterator[pa.RecordBatch]:
        for _ in range(self._filler_batches - 1 if self._readers else 0):
            yield wire.to_batch(self._fillers())

    # ---- commit and rollback

    def _resolve(self, body: bytes) -> None:
        order = SentResolution(body.decode(), self._deployment)
        for task in order.tasks:
            self._control.check()  # rule 13.8: if the connection is gone, another run repeats it
            report = self._resolve_task(self._worker, self._deployment, order, task)
            self._control.send(Kind.REPORT, report.pack())


def _rows_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows == 1:  # as Spark hands them over (see `statefx.spark.pipelined`)
        yield batch
        return
    for at in range(batch.num_rows):
        yield batch.slice(at, 1)


def _closed_by(row: pa.RecordBatch) -> wire.ChannelEnd | None:
    """Return the channel that a row closes; None if it is no barrier."""
    if row.column(1)[0].as_py() != wire.BARRIER:
        return None
    return wire.Address.unpack(row.column(3)[0].as_py()).channel_end
