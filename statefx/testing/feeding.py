"""Rows that a test sends: of streams, and of spouts, for which stand-ins of the same kinds read them.

The topology stays as it is wired: groupings, event time, `dedup`, acks. Only what a spout reads is another: rows that
the test has sent, which stay in a `Feed` and can be read again, as a log or a queue lets them.

=========================================  ==========================================================================
spout                                      its stand-in
=========================================  ==========================================================================
`TransactionalSpout`, and the two kinds    reads what was sent since the last transaction; as many partitions as it
with partitions                            had tasks, which are given the rows in turn
`Spout`                                    hands out each row with its number as id; is told acks and fails
`Spout` that acknowledges in the           is a queue, whose messages leave it with their transaction
transaction (``exactlyOnce``)
=========================================  ==========================================================================
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set, Sized
from dataclasses import dataclass, field, replace
from typing import Any, Self
from uuid import uuid4

import pyarrow as pa

from statefx.connectors.queue import Message, PendingAcks, QueueSpout
from statefx.errors import CheckpointError, ConfigError, TopologyError, TransactionConflictError
from statefx.operators.context import DEFAULT_STREAM, Collector, Context, SpoutCollector
from statefx.operators.fitting import MISFITS, fitted_array
from statefx.operators.schema import to_ddl
from statefx.operators.sealed_names import Sealed, sealed_by
from statefx.operators.spouts import (
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    ReplayingSpout,
    Spout,
    TransactionalSpout,
    plans,
)
from statefx.plan.levels import Plan
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.records import StreamInput
from statefx.protocol.staged import StagedPart
from statefx.runtime.staging import FOLDER, PartWriter, inline_bytes
from statefx.storage import Storage
from statefx.topology.graph import Component, RowStream, Topology

# ---- rows of streams

Row = Sequence[Any]
Work = Mapping[Any, Sequence[Row]]
"""The rows of one transaction, by stream; of spouts that are fed, by (spout, stream)."""

QUERY = "TopologyTester"
"""Takes the place of the id of Spark's query."""

INPUT_ROWS_MAX = 10_000
"""Rows of a batch at most, as many as Spark gives to Python."""


def rows(schema: Any, *, streaming: bool = True) -> RowStream:
    """Return a stand-in for a DataFrame, whose rows are given to ``TopologyTester.send``.

    Parameters
    ----------
    schema : str or StructType
        Its columns, such as ``"value string"``.
    streaming : bool
        Whether it stands for a streaming DataFrame or for a batch one.

    Examples
    --------
    ::

        builder.setStream("lines", rows("value string"))
    """
    return RowStream(schema, streaming)


def given(topology: Topology, work: Any, fed: Collection[str] = ()) -> Work:
    """Return the rows of a transaction as lists: a generator can be read only once. ConfigError: they don't fit."""
    if not isinstance(work, Mapping):
        raise ConfigError(f"a transaction is given as {{stream: rows}}, such as {{'lines': [('a',)]}}, not as {work!r}")
    schemas: dict[Any, pa.Schema] = {
        one.id: one.outputs[DEFAULT_STREAM] for one in topology.components if one.is_stream
    }
    if fed:
        work = {key if isinstance(key, tuple) else (key, DEFAULT_STREAM): rows for key, rows in work.items()}
        schemas = {(id, stream): of for id in fed for stream, of in topology.component(id).outputs.items()}
    elif topology.reads_spouts:
        raise ConfigError(
            "the topology's spouts emit its rows: run a transaction with emit(), or all with drain(); or name the "
            "spouts that the test's rows are to come from, as in TopologyTester(..., fed='jobs')"
        )
    found = {}
    for stream, sequence in work.items():
        if stream not in schemas:
            there = ", ".join(map(str, schemas))
            raise ConfigError(f"the topology has no stream {stream!r}; its streams are {there}")
        if isinstance(sequence, str | bytes | Mapping) or not isinstance(sequence, Iterable):
            raise ConfigError(f"the rows of stream {stream!r} are a sequence of tuples, not {sequence!r}")
        names = schemas[stream].names
        found[stream] = list(sequence)
        for row in found[stream]:
            # a mapping would come as its keys, a set in any order
            if isinstance(row, str | bytes | Mapping | Set) or not isinstance(row, Sized) or len(row) != len(names):
                raise ConfigError(f"a row of stream {stream!r} is a tuple ({', '.join(names)}), not {row!r}")
    return found


def staged_rows(plan: Plan, storage: Storage, work: Work, clock_ms: int) -> list[StagedPart]:
    """Return the rows of a transaction as Spark would have staged them."""
    parts: list[StagedPart] = []
    pieces = [
        (stream, partition, piece)
        for stream, schema in plan.streams.items()
        for partition, piece in enumerate(_cut(_batch(stream, schema, work.get(stream, ()))))
    ]
    for stream, partition, piece in pieces:
        stem, inline = f"{FOLDER}{uuid4().hex}", inline_bytes(len(pieces))
        timing = plan.timings.get(stream)
        writer = PartWriter(storage, stem, stream, partition, plan.streams[stream], timing, clock_ms, inline)
        writer.write(piece)
        parts += writer.close()
    return parts


def _batch(stream: str, schema: pa.Schema, given: Sequence[Row]) -> pa.RecordBatch:
    columns: Sequence[Sequence[Any]] = list(zip(*given, strict=True)) or [()] * len(schema)
    try:
        arrays = [fitted_array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    except MISFITS as error:
        raise ConfigError(f"rows of stream {stream!r} do not fit its schema: {error}", stream=stream) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, INPUT_ROWS_MAX):
        yield batch.slice(start, INPUT_ROWS_MAX)


def identity(committed: int, work: Work) -> StreamInput:
    """Return the identity of the transaction after `committed`, as Spark's offsets would tell it."""
    given: dict[str, Sequence[Row]] = {name: found for name, found in sorted(work.items()) if found}
    text = json.dumps(given, default=repr)
    return StreamInput(QUERY, committed, hashlib.sha256(text.encode()).hexdigest())


# ---- spouts that are fed

FedRow = tuple[int, str, tuple[Any, ...]]
"""Its number among those of the spout, its stream, its values."""


@dataclass
class Feed:
    """The rows that a test has sent to one spout, shared by the driver's copy and the tasks."""

    spout: str
    parts: list[list[FedRow]]  # by partition
    first: list[int | None]  # the place in the checkpoint of each partition's first row, once it is known
    sent: int = 0
    acked: list[int] = field(default_factory=list)  # numbers of rows of a `Spout`, in the order of their acks
    failed: dict[int, str] = field(default_factory=dict)  # why a row has failed last
    owners: dict[int, str] = field(default_factory=dict)  # of messages of a queue

    def __deepcopy__(self, memo: object) -> Self:
        return self  # tasks have copies of the spout, and all of them read the same rows

    def add(self, stream: str, rows: Iterable[Sequence[Any]]) -> None:
        """Take rows, which go to the partitions in turn."""
        for row in rows:
            self.parts[self.sent % len(self.parts)].append((self.sent, stream, tuple(row)))
            self.sent += 1

    def end(self, partition: int, start: int) -> int:
        """Return the place after the last row; the first row of a new feed comes after what is committed."""
        if (first := self.first[partition]) is None:
            first = self.first[partition] = start
        return max(start, first + len(self.parts[partition]))

    def emit(self, collector: Collector, partition: int, start: int, stop: int) -> None:
        first = self.first[partition]
        if start < stop and (first is None or start < first or stop > first + len(self.parts[partition])):
            raise CheckpointError(
                f"spout {self.spout!r} was sent the rows {start} to {stop} of partition {partition} by another tester: "
                "go on with its restart(), which hands them on"
            )
        for _, stream, values in self.parts[partition][start - (first or 0) : stop - (first or 0)]:
            collector.emit(values, stream)


class _Fed:
    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def numPartitions(self) -> int:
        return len(self._feed.parts)

    def _next(self, partition: int, last: Any) -> Any:
        start = last[1] if last else 0
        stop = self._feed.end(partition, start)
        return [start, stop] if start < stop else None

    def _emit_next(self, collector: Collector, partition: int, last: Any) -> Any:
        batch = self._next(partition, last)
        if batch is not None:
            self._feed.emit(collector, partition, *batch)
        return batch


class _FedTransactional(TransactionalSpout):
    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def open(self, context: Context) -> None:
        self._context = context

    def initializeTransaction(self, txid: int, previous: Any) -> Any:
        starts = [stop for _, stop in previous] if previous else [0] * len(self._feed.parts)
        found = [[start, self._feed.end(part, start)] for part, start in enumerate(starts)]
        return found if any(start < stop for start, stop in found) else None

    def emitBatch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        for part in range(self._context.task, len(metadata), self._context.parallelism):
            self._feed.emit(collector, part, *metadata[part])


class _FedAgain(_Fed, PartitionedTransactionalSpout):
    def emitPartitionBatch(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, metadata: Any
    ) -> None:
        self._feed.emit(collector, partition, *metadata)


class _FedPlanned(_FedAgain):
    def planPartitionBatch(self, partition: int, lastMetadata: Any) -> Any:
        return self._next(partition, lastMetadata)


class _FedPartitioned(_FedAgain):
    def emitPartitionBatchNew(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, lastMetadata: Any
    ) -> Any:
        return self._emit_next(collector, partition, lastMetadata)


class _FedOpaque(_Fed, OpaquePartitionedTransactionalSpout):
    def emitPartitionBatch(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, lastMetadata: Any
    ) -> Any:
        return self._emit_next(collector, partition, lastMetadata)


class _FedSpout(Spout):
    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def open(self, context: Context) -> None:
        self._context, self._under_way = context, 0
        self._left = dict.fromkeys(range(context.task, len(self._feed.parts), context.parallelism), 0)
        self._ended = {*self._feed.acked, *self._feed.failed}  # the others come again: their task was lost

    def nextTuple(self, collector: SpoutCollector) -> None:
        most = self._context.config["topology.max.spout.pending"]
        for part in self._left:
            for number, stream, values in self._feed.parts[part][self._left[part] :]:
                if most is not None and self._under_way >= most:
                    return
                self._left[part] += 1
                if number not in self._ended:
                    self._under_way += 1
                    collector.emit(values, stream=stream, id=number)

    def ack(self, id: Any) -> None:
        self._under_way -= 1
        self._feed.acked.append(id)

    def fail(self, id: Any) -> None:
        self._under_way -= 1
        self._feed.failed[id] = self._context.failure


class _FedQueue(QueueSpout):
    def __init__(self, feed: Feed, fields: str) -> None:
        super().__init__(fields, exactlyOnce=True)
        self._feed = feed

    def connect(self, context: Context) -> None:
        self._own = self._feed.parts[context.task :: context.parallelism]

    def receive(self, limit: int) -> Iterable[Message]:
        found: list[Message] = []
        for number, _, values in (row for part in self._own for row in part):
            owner = self._feed.owners.get(number)
            if number not in self._feed.acked and (owner is None or self.succeeds(owner)) and len(found) < limit:
                self._feed.owners[number] = self.owner
                found.append(Message(number, values))
        return found

    def nextTuple(self, collector: SpoutCollector) -> None:
        before = -1
        while before < len(self._out):  # all that there is, in one transaction
            before = len(self._out)
            super().nextTuple(collector)

    def finish(self, ids: Sequence[Any]) -> None:
        raise AssertionError("messages leave it with their transactions")

    def pendingAcks(self) -> PendingAcks:
        return _FedAcks(self._feed)


class _FedAcks(PendingAcks):
    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    @property
    def target(self) -> str:
        return f"TopologyTester#{self._feed.spout}"

    def seal(self, owner: str, ids: Sequence[str], name: str) -> None:
        owners, sealed = self._feed.owners, Sealed.read(name)
        assert sealed is not None
        for number in map(int, ids):
            had = owners.get(number, "")
            before = Sealed.read(had) if had.startswith(sealed_by(owner)) else None
            if had not in (owner, name) and (before is None or not before.precedes(sealed)):
                raise TransactionConflictError(f"{self.target}: message {number} was taken over by {had!r}")
            owners[number] = name

    def acknowledge(self, name: str) -> None:
        for number in [number for number, owner in self._feed.owners.items() if owner == name]:
            del self._feed.owners[number]
            self._feed.acked.append(number)

    def sealed(self, prefix: str) -> Mapping[str, int]:
        owners = self._feed.owners.values()
        return Counter(owner for owner in owners if owner.startswith(prefix) and Sealed.read(owner) is not None)

    def release(self, name: str) -> None:
        sealed = Sealed.read(name)
        assert sealed is not None
        for number, owner in self._feed.owners.items():
            if owner == name:
                self._feed.owners[number] = sealed.owner


def feeds_of(topology: Topology, fed: str | Iterable[str]) -> dict[str, Feed]:
    """Return the feeds of spouts by id; TopologyError if one of `fed` is none."""
    if not isinstance(topology, Topology):  # refused where all who submit refuse it
        return {}
    spouts = {**topology.replaying_spouts, **topology.tracked_spouts}
    found = {}
    if not isinstance(fed, Iterable):
        raise TopologyError(
            f"fed names spouts, as in fed={next(iter(spouts), 'jobs')!r}, or a list of them; not {fed!r}"
        )
    for id in [fed] if isinstance(fed, str) else fed:
        if id not in spouts:
            raise TopologyError(f"fed names {id!r}, which is no spout; the spouts are {', '.join(spouts) or 'none'}")
        parts = topology.component(id).parallelism
        found[id] = Feed(id, [[] for _ in range(parts)], [None] * parts)
    return found


def with_feeds(topology: Topology, feeds: Mapping[str, Feed]) -> Topology:
    """Return the topology with spouts that read the feeds in the place of its own."""
    if not feeds:
        return topology
    components = [_fed(one, feeds[one.id]) if one.id in feeds else one for one in topology.components]
    return Topology(topology.name, tuple(components), topology.edges)


def _fed(component: Component, feed: Feed) -> Component:
    spout = component.operator
    assert isinstance(spout, ReplayingSpout | Spout)
    stand_in: ReplayingSpout | Spout
    if isinstance(spout, Spout):
        queue = spout.acknowledging() is not None
        stand_in = _FedQueue(feed, to_ddl(component.outputs["default"])) if queue else _FedSpout(feed)
    elif isinstance(spout, TransactionalSpout):
        stand_in = _FedTransactional(feed)
    elif isinstance(spout, OpaquePartitionedTransactionalSpout):
        stand_in = _FedOpaque(feed)
    else:
        stand_in = _FedPlanned(feed) if plans(spout) else _FedPartitioned(feed)
    return replace(component, operator=stand_in)
