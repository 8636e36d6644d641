"""Rows between stages: one fixed schema, whatever the topology.

``target`` is the partition of the next stage that must read the row. ``head`` is the row's address: the level and
partition it is meant for in the end, the edge, and the task that sent it. ``payload`` is an Arrow IPC batch of one
edge for one target task (records), or a packed Barrier.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

RECORDS, BARRIER, FILLER, ABANDONED = range(4)

# The same five columns between all levels of all topologies. A schema of its own for each edge was the other way: Spark
# would plan and compile each, a union of edges would carry the columns of all, and types of Arrow that Spark has not (a
# timestamp's zone, a list's nullability) would change on the way. Counts come with the rows, without reading payloads.

SCHEMA = pa.schema(
    [
        ("target", pa.int32()),
        ("kind", pa.int32()),
        ("rows", pa.int64()),
        ("head", pa.binary()),
        ("payload", pa.binary()),
    ]
)

_HEAD = struct.Struct("<HIiHIQI")
_ATTEMPT_AT = struct.calcsize("<HIiHI")
_TOKEN_BYTES = 32  # of uuid4().hex

BATCH_BYTES = 8 << 20
"""Bytes of a batch, if it has more than one row. Each is copied some times on its way (Arrow, its message, the outbox),
and the JVM holds a few at once; a batch's own cost is some 0.1 ms, a thousandth of what so many bytes take."""

ChannelEnd = tuple[int, int, int, int]
"""A channel by (level, partition, source, task): where it ends, and number and task of the component that sends."""

WireRow = tuple[int, int, int, bytes, bytes]
"""(target, kind, rows, head, payload)."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a row is going, who sent it, and in which attempt; `edge` is -1 for barriers."""

    level: int
    partition: int
    edge: int
    source: int
    task: int
    txid: int
    attempt: int

    def pack(self) -> bytes:
        return _HEAD.pack(self.level, self.partition, self.edge, self.source, self.task, self.txid, self.attempt)

    @property
    def channel_end(self) -> ChannelEnd:
        """Which channel a barrier with this address closes."""
        return self.level, self.partition, self.source, self.task

    @classmethod
    def unpack(cls, head: bytes) -> Address:
        return cls(*_HEAD.unpack(head))


def next_partition(partition: int, end: tuple[int, int], following: int, widths: Sequence[int]) -> int:
    """Return the partition of the level `following` to which a chain at `partition` sends what is for the chain `end`.

    `end` is (level, partition). Beyond the next level it is one fixed relay per source and target: one for rows and
    barrier of a channel, which stay in order (rule 5.5). The sum spreads channels over all.
    """
    if end[0] == following or following >= len(widths):
        return end[1]
    return (partition + end[1]) % widths[following]


def attempt_of(head: bytes) -> tuple[int, int]:
    txid, attempt = struct.unpack_from("<QI", head, _ATTEMPT_AT)
    return txid, attempt


def with_roots(schema: pa.Schema, root_type: pa.DataType) -> pa.Schema:
    """Return the schema of rows that travel with the roots of their trees: with one more column at the end."""
    return schema.append(pa.field("roots", root_type))


def to_batch(rows: Sequence[WireRow]) -> pa.RecordBatch:
    """Return rows as an Arrow batch; their payloads come to less than 2 GiB."""
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in parts of at most `BATCH_BYTES`, or of one row that is larger; they share its memory."""
    if batch.num_rows <= 1 or batch.nbytes <= BATCH_BYTES:
        yield batch
        return
    half = batch.num_rows // 2
    yield from cut(batch.slice(0, half))
    yield from cut(batch.slice(half))


def serialize(token: str, batch: pa.RecordBatch) -> bytes:
    """Return a payload of records: the sender's token, and the batch as an Arrow IPC message.

    Its schema is known from the edge and isn't sent.
    """
    return b"".join((token.encode("ascii"), batch.serialize()))


def deserialize(payload: bytes, schema: pa.Schema) -> tuple[str, pa.RecordBatch]:
    body = pa.py_buffer(payload).slice(_TOKEN_BYTES)
    return payload[:_TOKEN_BYTES].decode("ascii"), pa.ipc.read_record_batch(body, schema)


def rows_of(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Yield (kind, rows, head, payload) of a wire batch, a row at a time: a batch may hold 64 MB of payloads."""
    columns = batch.columns[1:]
    for place in range(batch.num_rows):
        yield tuple(column[place].as_py() for column in columns)
