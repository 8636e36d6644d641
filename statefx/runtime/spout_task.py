"""Tasks that emit what the driver tells them to: parts of DataFrames, and batches of spouts that replay."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import pyarrow as pa

from statefx.operators.spouts import (
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    ReplayingSpout,
    TransactionalSpout,
    check_json,
    plans,
)
from statefx.protocol.jsonform import Json
from statefx.protocol.order import Emission
from statefx.protocol.reports import LeftOut
from statefx.runtime.event_time import TaskTime
from statefx.runtime.staging import read_part
from statefx.runtime.task import Prepared, Task
from statefx.topology.graph import Edge


class SourceTask(Task):
    """A task without inputs: it emits what its instruction says."""

    _left: Iterator[None] = iter(())

    def emit(self) -> bool:
        self._left = self._emission()
        return self.resume()

    def resume(self) -> bool:
        outbox = self.attempt.outbox
        return any(outbox.pressing for _ in self._left)

    @abstractmethod
    def _emission(self) -> Iterator[None]:
        """Emit; yield where what was emitted may have to leave the process first."""

    def leave(self, *, done: bool) -> None:
        self._left = iter(())  # closes the user's generator, if it stands in the middle of one
        super().leave(done=done)

    def feed(self, edge: Edge, batch: pa.RecordBatch) -> bool:
        raise AssertionError(f"{self.id} has no inputs")

    def keep(self) -> None:
        return

    def drop(self, *, acked: bool) -> None:
        return


class StreamTask(SourceTask):
    """Emits a task's parts of what a DataFrame has brought."""

    def _emission(self) -> Iterator[None]:
        collector, storage = self.attempt.collector, self.deployment.staged
        for share in self.attempt.order.emission(self.id).partitions.values():
            for batch in read_part(storage, share):
                collector.emitBatch(batch)
                yield

    def prepare(self) -> Prepared:
        self.attempt.collector.flush()
        return Prepared()


class SpoutTask(SourceTask):
    """Emits a task's part of a batch, partition by partition."""

    def begin(self) -> None:
        super().begin()
        spout: ReplayingSpout = self._opened_object()
        self.attempt.costs["throttled"], spout._traces = -float(spout._throttled_secs), []
        spout._left_out = LeftOut()
        self._metadata: dict[str, Json] = {}
        self._told: Mapping[str, Json] = {}
        self._method = "open"
        """The last call, and how many rows had come when it returned."""
        self._rows = 0

    def prepare(self) -> Prepared:
        """Report what was emitted: its metadata, if the driver does not know that."""
        self._refuse_late_rows()
        self.flush()
        self.attempt.costs["throttled"] += self._object._throttled_secs
        traces = tuple(self._object._traces)
        return Prepared(metadata=self._metadata or None, left_out=self._object._left_out, traces=traces)

    def keep(self) -> None:
        if self._fresh:
            self._close_object()

    def drop(self, *, acked: bool) -> None:
        self._close_object()

    def _emission(self) -> Iterator[None]:
        """Emit the partitions of this task, one after the other; yield where it has to pause."""
        spout: ReplayingSpout = self._object
        attempt, order = self.attempt, self.attempt.order.emission(self.id)
        if order.cleanup_before:
            with self._hook("cleanupBefore"):
                spout.cleanupBefore(order.cleanup_before)
        # A task may have thousands of partitions without new rows: what holds for all of them is found out before.
        collector, outbox, emission, time = attempt.collector, attempt.outbox, order.emission, attempt.time
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
            if time is not None and time.asks_finished:
                self._ask_finished(spout, name, metadata if emission is Emission.AGAIN else returned, time)
            if outbox.pressing:
                yield

    def _ask_finished(self, spout: ReplayingSpout, name: str, metadata: Json, time: TaskTime) -> None:
        """Ask the spout whether the batch of this metadata (None: there was none) was the partition's last."""
        if metadata is None:
            return
        with self._hook("isFinished"):
            finished: object = spout.isFinished(int(name), metadata)  # type: ignore[attr-defined]  # `may_finish`
            if not isinstance(finished, bool):
                raise TypeError(f"isFinished returns True or False, not {finished!r}")
        if finished:
            time.finish_partition(int(name))

    def _before(self, partition: str, given: Json) -> Json:
        """Return a partition's metadata as the spout got it: it may change and return its own."""
        if not isinstance(given, dict | list):
            return given
        if not self._told:  # read a second time, and only for those: copies of 10,000 take longer than their calls
            self._told = self.attempt.order.emission(self.id).partitions
        return self._told[partition]

    def _refuse_late_rows(self) -> None:
        """Refuse rows emitted while no call was running: they belong to no batch."""
        late = self.attempt.collector.count - self._rows
        if late:
            with self._hook(self._method):
                raise TypeError(
                    f"{late} rows were emitted after {self._method} had returned, as from a thread of its own: wait in "
                    f"{self._method} until everything is emitted, or make it a generator"
                )

    def _take(self, method: str, partition: str, metadata: Any, rows: int, last: Json) -> None:
        """Take a call's result as the metadata of what it emitted."""
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
        attempt, collector = self.attempt.order.attempt, self.attempt.collector
        if isinstance(spout, TransactionalSpout):
            return "emitBatch", lambda _, metadata: spout.emitBatch(attempt, metadata, collector)
        if isinstance(spout, PartitionedTransactionalSpout) and emission is Emission.NEW:
            new = spout.emitPartitionBatchNew
            return "emitPartitionBatchNew", lambda name, metadata: new(attempt, collector, int(name), metadata)
        assert isinstance(spout, PartitionedTransactionalSpout | OpaquePartitionedTransactionalSpout)
        again = spout.emitPartitionBatch
        return "emitPartitionBatch", lambda name, metadata: again(attempt, collector, int(name), metadata)

    def _generated(self, method: str, rows: Iterator[object]) -> Generator[None, None, Any]:
        """Run a spout's call that is a generator; yield where it yields."""
        while True:
            with self._hook(method):
                try:
                    yielded = next(rows)
                except StopIteration as end:
                    return end.value
                if yielded is not None:
                    raise _no_emission(f"yielded {yielded!r}")
            yield


def _no_emission(what: str) -> TypeError:
    return TypeError(
        f"it {what}, which emits nothing: rows are emitted by collector.emit(...); a plain yield behind it lets them "
        "leave the process"
    )
