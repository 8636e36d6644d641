"""Runs one task of a spout through one attempt: what the driver tells it to read, it emits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from statefx.operators import (
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    ReplayingSpout,
    Spout,
    TransactionalSpout,
)
from statefx.operators.spouts import check_json, plans
from statefx.operators.tracked_spouts import TAKEN
from statefx.protocol.barrier import LeftOut
from statefx.protocol.jsonform import Json
from statefx.protocol.order import Emission, EmissionOrder
from statefx.runtime.bolts import close_bolt, hook, made_operator
from statefx.runtime.event_time import TaskTime
from statefx.runtime.living_spout import Limits, LivingSpout
from statefx.runtime.operator import PreparedTask, TaskAttempt, TaskOperator
from statefx.runtime.trees import LOOSE_ROOT
from statefx.topology.acking import without_ids
from statefx.topology.graph import Edge


class SpoutOperator(TaskOperator):
    """Emits a task's part of a batch, partition by partition."""

    _task: TaskAttempt

    def __init__(self) -> None:
        self._spout: ReplayingSpout | None = None
        self._metadata: dict[str, Json] = {}
        self._told: Mapping[str, Json] = {}
        self._left_out = LeftOut()
        self._emitting: Iterator[None] = iter(())
        self._method = "open"
        """What was called last, and how many rows had come when it returned."""
        self._rows = 0

    def open(self, task: TaskAttempt) -> None:
        """Take a spout that is open."""
        self._task = task
        spout = task.worker.take(task.deployment, task.id, *task.moment)
        assert isinstance(spout, ReplayingSpout)
        self._spout = spout  # from now on `close` closes it

    def begin(self) -> bool:
        """Emit; True if it has paused."""
        order = self._task.order.emission(self._task.id)
        assert self._spout is not None
        if order.cleanup_before:
            with self._hook("cleanupBefore"):
                self._spout.cleanupBefore(order.cleanup_before)
        self._emitting = self._emission(self._spout, order)
        return self.resume()

    def resume(self) -> bool:
        """Go on emitting, until what was emitted has to leave the process first."""
        outbox = self._task.outbox
        return any(outbox.pressing for _ in self._emitting)

    def feed(self, edge: Edge, batch: pa.RecordBatch) -> bool:
        """Take nothing: a spout has no inputs."""
        raise AssertionError("a spout has no inputs")

    def finish(self) -> PreparedTask:
        """Tell the driver what was emitted: its metadata, if the driver does not know that."""
        collector = self._task.collector
        self._refuse_late_rows()
        with self._hook("emit"):
            collector.flush()
        return PreparedTask(metadata=self._metadata or None, left_out=self._left_out)

    def close(self, *, keep: bool, acked: bool = False) -> None:
        """Let the worker have the spout for the next transaction if it came through this one."""
        spout, self._spout = self._spout, None
        if spout is None:
            return
        if keep:
            self._task.worker.keep(self._task.deployment, self._task.id, spout)
        else:
            close_bolt(spout)

    def _emission(self, spout: ReplayingSpout, order: EmissionOrder) -> Iterator[None]:
        """Emit the partitions of this task, one after the other; yield where it has to pause."""
        # A task may have thousands of partitions without new rows: what holds for all of them is found out before.
        collector, outbox, emission, time = self._task.collector, self._task.outbox, order.emission, self._task.time
        method, emit = self._call(spout, emission)
        self._method = method
        for name, metadata in order.partitions.items():
            self._refuse_late_rows()
            before = self._rows
            if time is not None:
                time.begin_partition(name, collector.rows_of)
            try:
                returned = emit(name, metadata)
            except BaseException:  # as `with`, which takes longer than all the rest
                with self._hook(method):
                    raise
            if inspect.isgenerator(returned):
                returned = yield from self._generated(method, returned)
            if isinstance(returned, list | tuple) and returned and plans(spout):
                with self._hook(method):
                    raise _no_emission(f"returned {returned!r}")
            self._rows = collector.count
            if emission is not Emission.AGAIN:
                last = self._before(name, metadata) if emission is Emission.NEW and returned is not None else None
                self._take(method, name, returned, self._rows - before, last)
            if isinstance(returned, LeftOut):
                self._left_out += returned
            if time is not None and time.asks_finished:
                self._ask_finished(spout, name, metadata if emission is Emission.AGAIN else returned, time)
            if outbox.pressing:
                yield

    def _ask_finished(self, spout: ReplayingSpout, name: str, metadata: Json, time: TaskTime) -> None:
        """Have the spout say whether the batch of this metadata was the partition's last; None: there was none."""
        if metadata is None:
            return
        with self._hook("isFinished"):
            finished: object = spout.isFinished(int(name), metadata)  # type: ignore[attr-defined]  # `may_finish`
            if not isinstance(finished, bool):
                raise TypeError(f"isFinished returns True or False, not {finished!r}")
        if finished:
            time.finish_partition(int(name))

    def _before(self, partition: str, given: Json) -> Json:
        """Return what a partition's metadata was when the spout was given it, whose own it is to change and return."""
        if not isinstance(given, dict | list):
            return given
        if not self._told:  # read a second time, and only for those: copies of 10,000 take longer than their calls
            self._told = self._task.order.emission(self._task.id).partitions
        return self._told[partition]

    def _refuse_late_rows(self) -> None:
        """Refuse rows that came while no call was running: nobody could say of which batch they are."""
        late = self._task.collector.count - self._rows
        if late:
            with self._hook(self._method):
                raise TypeError(
                    f"{late} rows were emitted after {self._method} had returned, as from a thread of its own: wait in "
                    f"{self._method} until everything is emitted, or make it a generator"
                )

    def _take(self, method: str, partition: str, metadata: Any, rows: int, last: Json) -> None:
        """Take what a call returned as the metadata of what it emitted."""
        with self._hook(method):
            if metadata is not None and (metadata != last or not rows):
                self._metadata[partition] = check_json(metadata)
            elif metadata is not None:
                raise TypeError(
                    f"it emitted {rows} rows of partition {partition} and returned the metadata of the batch before: "
                    "return what says which rows these are, so that they can be emitted again"
                )
            elif rows:
                raise TypeError(
                    f"it emitted {rows} rows of partition {partition} and returned no metadata: return what the next "
                    "batch begins behind; with None the same rows would come again and again"
                )

    def _call(self, spout: ReplayingSpout, emission: Emission) -> tuple[str, Callable[[str, Json], Any]]:
        """Return which method emits a partition, and the call of it with the partition's name and its metadata."""
        attempt, collector = self._task.order.attempt, self._task.collector
        if isinstance(spout, TransactionalSpout):
            return "emitBatch", lambda _, metadata: spout.emitBatch(attempt, metadata, collector)
        if isinstance(spout, PartitionedTransactionalSpout) and emission is Emission.NEW:
            new = spout.emitPartitionBatchNew
            return "emitPartitionBatchNew", lambda name, metadata: new(attempt, collector, int(name), metadata)
        assert isinstance(spout, PartitionedTransactionalSpout | OpaquePartitionedTransactionalSpout)
        again = spout.emitPartitionBatch
        return "emitPartitionBatch", lambda name, metadata: again(attempt, collector, int(name), metadata)

    def _generated(self, method: str, rows: Iterator[object]) -> Generator[None, None, Any]:
        """Run a call of the spout's that is a generator; yield where that yields."""
        while True:
            with self._hook(method):
                try:
                    yielded = next(rows)
                except StopIteration as end:
                    return end.value
                if yielded is not None:
                    raise _no_emission(f"yielded {yielded!r}")
            yield

    def _hook(self, name: str) -> AbstractContextManager[None]:
        return hook(self._task.id, name, self._task.txid, kind="spout")


class LivingSpoutOperator(TaskOperator):
    """Emits what a spout that lives in its task has handed out for this transaction."""

    _task: TaskAttempt
    _living: LivingSpout

    def open(self, task: TaskAttempt) -> None:
        """Take the spout of the task; the first attempt of a run makes it."""
        self._task = task
        assert task.spouts is not None
        assert task.trees is not None
        living = task.spouts.get(task.id)
        if living is None:
            plan, config = task.deployment.plan, task.deployment.config
            spout = made_operator(task.deployment, task.id, *task.moment)
            assert isinstance(spout, Spout)
            outputs = plan.components[task.id.component].outputs
            plain = without_ids(outputs)
            living = task.spouts[task.id] = LivingSpout(
                task.id,
                spout,
                plain or outputs,
                Limits(config["topology.spout.batch.ms"] / 1000, config["topology.max.spout.pending"]),
                plan.spouts.index(task.id),
                name=task.deployment.tracked.get(task.id.component),
                dedup=plain is not None,
            )
        else:
            living.enter(*task.moment)
        self._living = living

    def begin(self) -> bool:
        """Emit; True if it has paused."""
        self._left = iter(self._living.batch(self._task.txid))
        return self.resume()

    def resume(self) -> bool:
        """Go on emitting, until what was emitted has to leave the process first."""
        collector, outbox, trees = self._task.collector, self._task.outbox, self._task.trees
        assert trees is not None
        anchor = trees.anchor
        # A message that leaves its queue with the transaction has no id here, and is given again if that fails.
        without = (
            None if TAKEN in self._task.deployment.plan.components[self._task.id.component].outputs else LOOSE_ROOT
        )
        tracks = self._task.deployment.config["topology.acker.executors"] != 0
        with hook(self._task.id, "emit", self._task.txid, kind="spout"):
            for stream, values, task, root in self._left:
                anchor.root = root if tracks and root is not None else without
                collector.emit(values, stream, task)
                if outbox.pressing:
                    return True
        return False

    def feed(self, edge: Edge, batch: pa.RecordBatch) -> bool:
        """Take nothing: a spout has no inputs."""
        raise AssertionError("a spout has no inputs")

    def finish(self) -> PreparedTask:
        """Tell how it is with the spout."""
        return PreparedTask(counts=self._living.counts())

    def close(self, *, keep: bool, acked: bool = False) -> None:
        """Leave the spout where it lives: what it has emitted is emitted again if the attempt is rolled back."""


def _no_emission(what: str) -> TypeError:
    return TypeError(
        f"it {what}, which emits nothing: rows are emitted by collector.emit(...); a plain yield behind it lets them "
        "leave the process"
    )
