"""Rows between stages: one fixed schema, whatever the topology.

``target`` is the partition of the next stage that must read the row. ``head`` is the row's address: the level and
partition it is meant for in the end, the edge, and the task that sent it. ``payload`` is an Arrow IPC batch of one
edge for one target task (records), a packed Barrier, or a packed Ack.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

RECORDS, BARRIER, ACK = 0, 1, 2

SCHEMA = pa.schema(
    [
        ("target", pa.int32()),
        ("kind", pa.int32()),
        ("rows", pa.int64()),
        ("head", pa.binary()),
        ("payload", pa.binary()),
    ]
)

_HEAD = struct.Struct("<HIiHI")
_FLUSH_BYTES = 8 << 20
_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Address:
    """Where a row is going and who sent it; `edge` is -1 for barriers and acks."""

    level: int
    partition: int
    edge: int
    source: int
    task: int

    def pack(self) -> bytes:
        """Write the address as the row's head."""
        return _HEAD.pack(self.level, self.partition, self.edge, self.source, self.task)

    @classmethod
    def unpack(cls, head: bytes) -> Address:
        """Read a row's head."""
        return cls(*_HEAD.unpack(head))


@dataclass(slots=True)
class Outbox:
    """Rows that one Spark task has to send, gathered into Arrow batches.

    Parameters
    ----------
    level, partition : int
        Where the sending Spark task runs.
    widths : tuple of int
        Partitions of every level.
    """

    level: int
    partition: int
    widths: tuple[int, ...]
    size_bytes: int = 0
    _rows: list[tuple[int, int, int, bytes, bytes]] = field(default_factory=list)

    def send(self, address: Address, kind: int, rows: int, payload: bytes) -> None:
        """Queue one row for the task that `address` names."""
        self.forward(address.level, address.partition, kind, rows, address.pack(), payload)

    def forward(self, level: int, partition: int, kind: int, rows: int, head: bytes, payload: bytes) -> None:
        """Queue one row; beyond the next level it goes through one fixed relay per source and target."""
        following = self.level + 1
        if level == following or following >= len(self.widths):
            target = partition
        else:
            target = (self.partition + partition) % self.widths[following]
        self._rows.append((target, kind, rows, head, payload))
        self.size_bytes += len(payload)

    def full(self) -> bool:
        """Tell whether enough has gathered to be sent on."""
        return self.size_bytes >= _FLUSH_BYTES

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield what has gathered, if anything, and forget it."""
        if not self._rows:
            return
        columns = zip(*self._rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        self._rows = []
        self.size_bytes = 0
        yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def serialize(batch: pa.RecordBatch) -> bytes:
    """Write a batch as an Arrow IPC message; its schema is known from the edge and isn't sent."""
    return bytes(batch.serialize())


def deserialize(payload: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Read what `serialize` wrote."""
    return pa.ipc.read_record_batch(pa.py_buffer(payload), schema)


def tagged(token: str, body: bytes) -> bytes:
    """Put the sender's token before a payload of records."""
    return token.encode("ascii") + body


def untagged(payload: bytes) -> tuple[str, bytes]:
    """Split a payload of records into the sender's token and the rest."""
    return payload[:_TOKEN_BYTES].decode("ascii"), payload[_TOKEN_BYTES:]


def rows_of(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Yield (kind, rows, head, payload) of a wire batch."""
    columns = [batch.column(i).to_pylist() for i in range(1, 5)]
    return zip(*columns, strict=True)
