"""Transactions of DataFrames: what Spark has staged, handed from the thread that stages to the loop that runs them.

::

    Spark's thread      stage batch n --> hand over, wait until it has begun --> stage batch n+1 ...
                                            |
    the loop                                +--> transaction n+1: PREPARING, instructions that name the parts, ...

It is natural to run a transaction inside ``foreachBatch``, over the DataFrame that it is given, and to return when it
is committed. Spark computes that DataFrame again for each attempt: with ``rand()``, or a shuffle that routes by
chance, attempt 1 has other rows than attempt 0, and what attempt 0 sent outside has no counterpart (rule 15.2). And
each transaction waits for a Spark job. So the callback only stages, once for all attempts.

One would also return from the callback as soon as the batch is staged. Spark takes that for done: it calls
``Source.commit``, and a source that lets go of its input does so, before anything is decided. The driver dies, and
nobody can read these rows again (rule 6.10; 2,000 rows were lost with ``cleanSource``). So the callback of such a
source waits for the commit (`ahead` is False), and any other until a transaction has begun: then PREPARING has the
offsets.

It is tempting to let staging tasks wait while the topology is behind. Each of them holds a slot; if the run has ended
and needs all slots to begin again, both wait for each other (rule 15.5). So the wait is here, on the driver.

It seems simpler to make staged rows durable, so that a start need not stage again. That is a second log: restore,
fork and savepoint would have to know of it, and a bad row would outlive the filter that was to drop it. Parts are a
buffer of one driver; a start reads again what is not committed (rule 15.3).
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from statefx.coordinator.attempt import Attempt, Batch, Emissions
from statefx.coordinator.progress import Progress
from statefx.coordinator.spouts import LOOK_SECS
from statefx.coordinator.times import Ticks
from statefx.errors import StatefxError
from statefx.log.log import TransactionLog
from statefx.plan.levels import Plan
from statefx.protocol.identity import TaskId
from statefx.protocol.order import EmissionOrder
from statefx.protocol.records import Input, SourceNotes, StreamInput
from statefx.protocol.reports import FailureKind
from statefx.protocol.staged import Sharing, StagedPart, orders_of, times_of
from statefx.protocol.watermark import UnitTime
from statefx.topology.graph import Promise

_NOTE_SECS = 1.0


@dataclass(frozen=True, slots=True)
class StagedEmissions(Emissions):
    """Which parts the tasks of DataFrames emit in one transaction."""

    plan: Plan
    parts: Sequence[StagedPart]

    def orders(self, attempt: Attempt) -> Mapping[TaskId, EmissionOrder]:
        plan = self.plan
        return orders_of(self.parts, {s: (plan.components[s].parallelism, _sharing(plan, s)) for s in plan.streams})

    def times(self, read_ms: int) -> tuple[Mapping[str, UnitTime], Mapping[str, int]]:
        ahead: dict[str, int] = {}
        for part in self.parts:
            ahead[part.stream] = ahead.get(part.stream, 0) + part.ahead
        return times_of(self.parts, self.plan.timings, read_ms), ahead


def _sharing(plan: Plan, stream: str) -> Sharing:
    groupings = [edge.grouping for edge in plan.outputs[stream]]
    if all(each.kind == "shuffle" for each in groupings):
        return Sharing.EVENLY
    return Sharing.STAYING if all(each.promise is Promise.ANY for each in groupings) else Sharing.IN_ORDER


def staged(plan: Plan, input: Input, parts: Sequence[StagedPart]) -> Batch:
    """Return the input of a transaction whose rows are in `parts`; it is not tried again over damaged ones."""
    return Batch(input, emissions=StagedEmissions(plan, parts), renews=_is_lost)


def without_rows(last: StreamInput) -> StreamInput:
    """Return the input of a transaction that reads nothing after a batch: Spark goes on from there."""
    return replace(last, notes=SourceNotes())


def _is_lost(failure: StatefxError) -> bool:
    return failure.data.get("kind") is FailureKind.INPUT


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A micro-batch of Spark whose rows are staged."""

    input: StreamInput
    parts: Sequence[StagedPart]


@dataclass
class StagedSource:
    """Gives transactions the batches of one Spark query that are handed over (see `Source`)."""

    plan: Plan
    log: TransactionLog
    noted: Callable[[StreamInput], StreamInput]
    """Returns the input with what its sources have written down since the record before; called by the loop."""
    idle: Callable[[], None]
    """Called by the loop now and then while there is nothing to read."""
    wake: Callable[[], None]
    """Has the loop look again."""
    delete: Callable[[Iterable[StagedPart]], None]
    progress: Progress
    ticks: Ticks
    interval_secs: float | None = None
    """How long it waits at least before a transaction begins for a tick or a timer alone; None: none does."""
    busy: Callable[[], bool] = lambda: False
    """Tells whether a batch is being staged: its rows come before any tick."""
    ahead: bool = True
    """Whether the next batch may be staged while this one is read. Else its source lets go of it too early."""
    error: BaseException | None = field(default=None, init=False)
    """Why no more batches come."""
    _waiting: deque[StagedBatch] = field(default_factory=deque, init=False)
    _begun: dict[int, StagedBatch] = field(default_factory=dict, init=False)
    """By transaction: it may be tried again until it is committed. Changed by the loop alone, but read by Spark's
    thread as well, so never without the lock."""
    _given: dict[int, Batch] = field(default_factory=dict, init=False)
    _is_over: bool = field(default=False, init=False)
    _idled: float = field(default=0.0, init=False)
    _began: float = field(default=-math.inf, init=False)

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        state = self.log.state
        self._planned = state.planned
        """Input of the first batch, if that was begun before. Not what the log has later: Spark has given that."""
        self._upcoming = state.committed if state.planned is None else state.planned.batch_id

    # ---- what stages

    @property
    def upcoming(self) -> int:
        return self._upcoming

    def expects(self, input: StreamInput) -> bool:
        """Return whether a batch is the next one; one that was begun before has to read the same (rule 3.7).

        By its number alone, the batch of another query, or of a folder that somebody has put back, would be taken for
        the one that an attempt has begun to read.
        """
        planned = self._planned
        is_planned = planned is None or planned.batch_id != input.batch_id or input.is_batch_of(planned)
        return input.batch_id == self._upcoming and is_planned

    @property
    def txid(self) -> int:
        """The transaction that a batch which is staged now is for, unless one without a batch comes before it."""
        with self._changed:
            return max(self.log.state.committed, *self._begun, 0) + len(self._waiting) + 1

    def hand_over(self, batch: StagedBatch) -> bool:
        """Give a batch; wait until an attempt reads it (rule 15.5), or it is committed. False: none will."""
        with self._changed:
            is_late = self._is_over
            if not is_late:
                self._waiting.append(batch)
                self._upcoming += 1
        if is_late:
            self.delete(batch.parts)
            return False
        self.wake()
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or not self._holds(batch))
            return not self._is_over

    def _holds(self, batch: StagedBatch) -> bool:
        return batch in self._waiting or (not self.ahead and batch in self._begun.values())

    def end(self, error: BaseException | None = None) -> None:
        """End after what was handed over; `error` is the reason, and the first one counts."""
        with self._changed:
            self.error = self.error or error
            self._is_over = True
            self._changed.notify_all()
        self.wake()

    def stop(self) -> None:
        """Give nothing more that has not begun: the next start reads it again from its source (rule 15.3)."""
        with self._changed:
            self._is_over = True
            left = [part for batch in self._waiting for part in batch.parts]
            self._waiting.clear()
            self._changed.notify_all()
        self.delete(left)
        self.wake()

    def close(self) -> None:
        """Forget everything; called when the loop has ended."""
        self.stop()
        with self._changed:
            left = [part for batch in self._begun.values() for part in batch.parts]
            self._begun.clear()
        self.delete(left)

    @property
    def is_over(self) -> bool:
        """Whether nothing is handed over any more."""
        return self._is_over

    @property
    def is_read(self) -> bool:
        """Whether this source committed all that was handed over; what it leaves, another one reads."""
        with self._changed:
            is_committed = max(self._begun, default=0) <= self.log.state.committed
            return is_committed and not self._waiting and not self._is_over

    # ---- the loop

    def ready(self, txid: int) -> bool:
        self._forget()
        with self._changed:
            if txid not in self._begun and self._waiting:
                self._begun[txid] = self._waiting.popleft()  # what is taken here is not taken away by `stop`
                self._changed.notify_all()
            if txid in self._begun:
                return True
        state, now = self.log.state, self.progress.clock()
        if state.in_flight:
            return False
        if now >= self._idled + _NOTE_SECS:
            self._idled = now
            self.idle()
        # Not before the first batch, which alone says what Spark's query is: its next start has to know it.
        is_due = self.interval_secs is not None and now >= self._began + self.interval_secs
        if not is_due or self._is_over or not isinstance(state.last_input, StreamInput):
            return False
        # Rule 3.9: what is planned comes again under its own number. And while rows are being staged nobody is idle.
        if state.planned is not None or self.busy():
            return False
        if self.ticks.time_has_come(txid, round(self.progress.now() * 1000)):
            with self._changed:
                self._begun[txid] = StagedBatch(without_rows(state.last_input), ())
            return True
        return False

    def _forget(self) -> None:
        with self._changed:
            done = [txid for txid in self._begun if txid <= self.log.state.committed]
            parts = [part for txid in done for part in self._begun.pop(txid).parts]
            if done:
                self._changed.notify_all()
        for txid in done:
            self._given.pop(txid, None)
        if parts:
            self.delete(parts)

    def next(self, txid: int) -> Batch:
        """Return the batch of a transaction: the same one to each of its attempts (rule 15.2)."""
        self._began = self.progress.clock()
        if txid not in self._given:
            with self._changed:
                batch = self._begun[txid]
            # By the number of the transaction, not Spark's: there may have been some without a batch, and the next
            # start builds Spark's folder by these numbers.
            self._given[txid] = staged(self.plan, self.noted(replace(batch.input, batch_id=txid - 1)), batch.parts)
        return self._given[txid]

    def look_secs(self) -> float:
        """Return when to look again: `wake` announces a batch, but nothing announces Spark's notes."""
        return LOOK_SECS

    def ended(self, txid: int) -> bool:
        """Return whether there is nothing for `txid`, and never will be."""
        self._forget()
        with self._changed:
            return self._is_over and not self._waiting and txid not in self._begun
