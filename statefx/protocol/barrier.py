"""What tasks send: the barrier that closes a transaction on a channel, and acks and reports for the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from statefx.errors import StatefxError
from statefx.protocol.failure import Failure, FailureKind
from statefx.protocol.identity import SnapshotRef, TaskId, TransactionAttempt
from statefx.protocol.jsonform import Json, from_json, to_json


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one task's commit or rollback.

    Attributes
    ----------
    component, task : str, int
    error : str or None
        None: done.
    kind : FailureKind or None
        Of the error.
    facts : Mapping[str, Any]
        Of ``bolt``, the attributes of the BoltError.
    """

    component: str
    task: int
    error: str | None = None
    kind: FailureKind | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> TaskId:
        """Whose it is."""
        return TaskId(self.component, self.task)

    def pack(self) -> bytes:
        """Write the report as bytes."""
        body = (self.component, self.task, self.error, self.kind, dict(self.facts))
        packed: bytes = msgpack.packb(body, unicode_errors="backslashreplace")
        return packed

    @classmethod
    def unpack(cls, data: bytes) -> Report:
        """Read what `pack` wrote."""
        component, task, error, kind, facts = msgpack.unpackb(data)
        return cls(component, task, error, None if kind is None else FailureKind(kind), facts)


WIRE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Barrier:
    """Closes one transaction attempt on one channel, from an upstream task to a downstream task.

    Attributes
    ----------
    attempt : TransactionAttempt
        What it closes.
    source, task : str, int
        The upstream component and task.
    token : str
        Names the very task attempt whose rows it closes.
    counts : Mapping[int, int]
        Edge id -> rows sent to this very target task; an edge that is left out sent none.
    failed : str or None
        The reason, if the upstream task could not prepare.
    """

    attempt: TransactionAttempt
    source: str
    task: int
    token: str
    counts: Mapping[int, int] = field(default_factory=dict)
    failed: str | None = None

    def pack(self) -> bytes:
        """Return the barrier as bytes that `unpack` reads."""
        body = (self.attempt.txid, self.attempt.attempt, self.source, self.task, self.token, dict(self.counts))
        return _packed("B", (*body, self.failed))

    @classmethod
    def unpack(cls, data: bytes) -> Barrier:
        """Read what `pack` wrote.

        Raises
        ------
        StatefxError
            The bytes are not a barrier of this version: driver and executors run different statefx releases.
        """
        txid, attempt, source, task, token, counts, failed = _unpacked("B", data, 7)
        return cls(TransactionAttempt(txid, attempt), source, task, token, counts, failed)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a spout has left out of its batches, as its user has told it to; `emitPartitionBatch` returns it.

    Attributes
    ----------
    gone, refused : int
        How many offsets were deleted before they were read, and how many records can't be rows.
    why : str
        The first of the refused records, and the reason.
    """

    gone: int = 0
    refused: int = 0
    why: str = ""

    def __add__(self, other: LeftOut) -> LeftOut:
        """Return both together."""
        return LeftOut(self.gone + other.gone, self.refused + other.refused, self.why or other.why)

    def __bool__(self) -> bool:
        """Whether anything is left out."""
        return bool(self.gone or self.refused)

    def __str__(self) -> str:
        """Return it in words, for a warning."""
        gone = [f"{self.gone:,} offsets that were deleted before they were read"] if self.gone else []
        refused = [f"{self.refused:,} records, the first: {self.why}"] if self.refused else []
        return "; ".join(gone + refused)


@dataclass(frozen=True, slots=True)
class Ack:
    """What one task attempt reports to the driver for one transaction attempt.

    Attributes
    ----------
    attempt : TransactionAttempt
        What is acknowledged.
    component, task, token : str, int, str
        Who, and the name of what was prepared.
    seen : Mapping[TaskId, str]
        Upstream task -> the token in its barrier.
    received, emitted : Mapping[int, int]
        Edge id -> rows; `emitted` is counted before a row is multiplied for an allGrouping.
    taken : Mapping[int, int]
        Edge id -> rows that were added up to those emitted, where they are; shown to people, and decides nothing.
    failed : Failure or None
        Why nothing can be committed.
    prepared_bytes, keys : int
        By how much what has to be read has grown, and how many keys the transaction changed.
    snapshot : SnapshotRef or None
        A full image the task has written beside it.
    found_keys : int or None
        How many keys the state held when the transaction found it, where its provider counts; shown to people.
    committable, metadata : JSON
        What the task adds to the decision (rule 4.5), and what a spout's emitter says of the rows that it emitted.
    left_out : LeftOut
        What a spout has left out; shown to people, and decides nothing.
    metrics : Mapping[str, float]
        Milliseconds of what the task did, by kind; shown to people, and decides nothing: acks are equal without.
    """

    attempt: TransactionAttempt
    component: str
    task: int
    token: str
    seen: Mapping[TaskId, str] = field(default_factory=dict)
    received: Mapping[int, int] = field(default_factory=dict)
    emitted: Mapping[int, int] = field(default_factory=dict)
    failed: Failure | None = None
    prepared_bytes: int = 0
    snapshot: SnapshotRef | None = None
    keys: int = 0
    committable: Json = None
    metadata: Json = None
    found_keys: int | None = field(default=None, compare=False)
    taken: Mapping[int, int] = field(default_factory=dict, compare=False)
    metrics: Mapping[str, float] = field(default_factory=dict, compare=False)
    left_out: LeftOut = field(default=LeftOut(), compare=False)

    @property
    def id(self) -> TaskId:
        """Who acknowledges."""
        return TaskId(self.component, self.task)

    def pack(self) -> bytes:
        """Return the ack as bytes that `unpack` reads."""
        failed = self.failed
        body = (
            (self.attempt.txid, self.attempt.attempt, self.component, self.task, self.token),
            [(*task, token) for task, token in self.seen.items()],
            dict(self.received),
            dict(self.emitted),
            None if failed is None else (failed.kind, failed.component, failed.task, failed.reason, dict(failed.facts)),
            self.prepared_bytes,
            to_json(self.snapshot),
            self.keys,
            self.committable,
            self.metadata,
            self.found_keys,
            dict(self.taken),
            dict(self.metrics),
            (self.left_out.gone, self.left_out.refused, self.left_out.why),
        )
        return _packed("A", body)

    @classmethod
    def unpack(cls, data: bytes) -> Ack:
        """Read what `pack` wrote.

        Raises
        ------
        StatefxError
            The bytes are not an ack of this version: driver and executors run different statefx releases.
        """
        who, seen, received, emitted, failed, size, snapshot, *others = _unpacked("A", data, 14)
        txid, attempt, component, task, token = who
        others[-1] = LeftOut(*others[-1])
        return cls(
            TransactionAttempt(txid, attempt),
            component,
            task,
            token,
            {TaskId(source, number): consumed for source, number, consumed in seen},
            received,
            emitted,
            None if failed is None else Failure(FailureKind(failed[0]), *failed[1:]),
            size,
            from_json(SnapshotRef | None, snapshot),
            *others,
        )


def _packed(kind: str, body: tuple[Any, ...]) -> bytes:
    # texts hold what users raise: half a surrogate pair in one must not become an error of its own
    packed: bytes = msgpack.packb((kind, WIRE_VERSION, body), use_bin_type=True, unicode_errors="backslashreplace")
    return packed


def _unpacked(kind: str, data: bytes, fields: int) -> list[Any]:
    try:
        found, version, body = msgpack.unpackb(data, raw=False, strict_map_key=False)
        if (found, version) == (kind, WIRE_VERSION) and len(body) == fields:
            read: list[Any] = body
            return read
    except (ValueError, TypeError, msgpack.UnpackException):
        found, version = "?", "?"
    name = "barrier" if kind == "B" else "ack"
    raise StatefxError(
        f"a {name} row of version {WIRE_VERSION} was expected, found kind {found!r}, version {version!r}: "
        "install the same statefx release on the driver and on every executor",
        expected=WIRE_VERSION,
    )
