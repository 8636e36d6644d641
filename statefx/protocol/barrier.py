"""What tasks send: the barrier that closes a transaction on a channel, and acks and reports for the driver."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, TypeVar, get_type_hints

import msgpack
import msgspec

from statefx.errors import StatefxError
from statefx.protocol.failure import Failure, FailureKind
from statefx.protocol.identity import SnapshotRef, TaskId, TransactionAttempt
from statefx.protocol.jsonform import Json
from statefx.protocol.trees import NOTHING, TreeReport
from statefx.protocol.watermark import Part, TimeReport


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one task's commit or rollback."""

    component: str
    task: int
    error: str | None = None  # None: done
    kind: FailureKind | None = None  # of the error
    facts: Mapping[str, Any] = field(default_factory=dict)  # of ``bolt``, the attributes of the BoltError

    @property
    def id(self) -> TaskId:
        """Whose it is."""
        return TaskId(self.component, self.task)

    def pack(self) -> bytes:
        """Return the report as bytes that `unpack` reads."""
        return _packed(self)

    @classmethod
    def unpack(cls, data: bytes) -> Report:
        """Read what `pack` wrote; raises as `Ack.unpack`."""
        return _unpacked(cls, data)


WIRE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Barrier:
    """Closes one transaction attempt on one channel, from an upstream task to a downstream task."""

    attempt: TransactionAttempt  # what it closes
    # source, task: The upstream component and task.
    source: str
    task: int
    token: str  # names the very task attempt whose rows it closes
    # Edge id -> rows sent to this very target task; an edge that is left out sent none.
    counts: Mapping[int, int] = field(default_factory=dict)
    failed: str | None = None  # the reason, if the upstream task could not prepare
    watermark: int | None = None  # how far event time has come; None: it does not hold that of the reader
    parts: Mapping[str, Part] = field(default_factory=dict)  # the same of spouts whose partitions can finish, by stream

    def pack(self) -> bytes:
        """Return the barrier as bytes that `unpack` reads."""
        return _packed(self)

    @classmethod
    def unpack(cls, data: bytes) -> Barrier:
        """Read what `pack` wrote; raises as `Ack.unpack`."""
        return _unpacked(cls, data)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a spout has left out of its batches, as its user has told it to; `emitPartitionBatch` returns it."""

    # gone, refused: How many offsets were deleted before they were read, and how many records can't be rows.
    gone: int = 0
    refused: int = 0
    why: str = ""  # the first of the refused records, and the reason

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
class SetAside:
    """Rows of which a bolt has raised an error, and which were skipped or became dead letters, as its user wants it."""

    rows: int = 0
    why: str = ""  # the task, the hook and the error of the first one

    def __add__(self, other: SetAside) -> SetAside:
        """Return both together."""
        return SetAside(self.rows + other.rows, self.why or other.why)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return self.rows > 0


@dataclass(frozen=True, slots=True)
class Ack:
    """What one task attempt reports to the driver for one transaction attempt."""

    attempt: TransactionAttempt  # what is acknowledged
    # component, task, token: Who, and the name of what was prepared.
    component: str
    task: int
    token: str
    seen: Mapping[TaskId, str] = field(default_factory=dict)  # upstream task -> the token in its barrier
    # received, emitted: Edge id -> rows; `emitted` is counted before a row is multiplied for an allGrouping.
    received: Mapping[int, int] = field(default_factory=dict)
    emitted: Mapping[int, int] = field(default_factory=dict)
    failed: Failure | None = None  # why nothing can be committed
    # prepared_bytes, keys: By how much what has to be read has grown, and how many keys the transaction changed.
    prepared_bytes: int = 0
    snapshot: SnapshotRef | None = None  # a full image the task has written beside it
    keys: int = 0
    # committable, metadata: What the task adds to the decision (rule 4.5), and what a spout's emitter says of the rows
    # that it emitted.
    committable: Json = None
    metadata: Json = None
    # How many keys the state held when the transaction found it, where its provider counts; shown to people.
    found_keys: int | None = field(default=None, compare=False)
    # Edge id -> rows that were added up to those emitted, where they are; shown to people, and decides nothing.
    taken: Mapping[int, int] = field(default_factory=dict, compare=False)
    # Milliseconds of what the task did, by kind; shown to people, and decides nothing: acks are equal without.
    metrics: Mapping[str, float] = field(default_factory=dict, compare=False)
    # What a spout has left out; shown to people, and decides nothing.
    left_out: LeftOut = field(default=LeftOut(), compare=False)
    # Rows that a bolt has set aside; shown to people, and decides nothing.
    set_aside: SetAside = field(default=SetAside(), compare=False)
    # What the task says of trees of tracked tuples.
    trees: TreeReport = field(default=NOTHING)
    # What a task of a spout that lives counts, since its object was made; shown to people, and decides nothing.
    counts: Mapping[str, int | float] = field(default_factory=dict, compare=False)
    time: TimeReport | None = None  # of a task that has event time
    # When the task's first timer of the clock is due, in milliseconds since 1970; 0: there is none.
    due_ms: int = 0

    @property
    def id(self) -> TaskId:
        """Who acknowledges."""
        return TaskId(self.component, self.task)

    def pack(self) -> bytes:
        """Return the ack as bytes that `unpack` reads."""
        return _packed(self)

    @classmethod
    def unpack(cls, data: bytes) -> Ack:
        """Read what `pack` wrote.

        Raises
        ------
        StatefxError
            The bytes are not an ack of this version: driver and executors run different statefx releases.
        """
        return _unpacked(cls, data)


_Message = TypeVar("_Message", Report, Barrier, Ack)


def _packed(message: Report | Barrier | Ack) -> bytes:
    """Write a message as its kind, the version, and the values of its fields in their order."""
    kind: Any = type(message)
    names, texts, _ = _wire_form(kind)
    values = [getattr(message, name) for name in names]
    for place in texts:
        values[place] = None if values[place] is None else json.dumps(values[place])
    if kind is not Report:  # a pair: the names in a mapping would be a fifth of a barrier, of which there are many
        values[0] = (message.attempt.txid, message.attempt.attempt)  # type: ignore[union-attr]
    body = (kind.__name__, WIRE_VERSION, values)
    try:
        return _ENCODER.encode(body)
    # Half a surrogate pair in what users raise must not become an error of its own. Values have none: they are JSON.
    except UnicodeEncodeError:
        packed: bytes = msgpack.packb(msgspec.to_builtins(body), unicode_errors="backslashreplace")
        return packed


def _unpacked(shape: Callable[..., _Message], data: bytes) -> _Message:
    kind: Any = shape
    found: Any = "?"
    version: Any = "?"
    try:
        found, version, body = _OUTER.decode(data)
        if (found, version) == (kind.__name__, WIRE_VERSION):
            _, texts, decoder = _wire_form(kind)
            first, *others = decoder.decode(body)
            for place in texts:
                others[place - 1] = None if others[place - 1] is None else json.loads(others[place - 1])
            return shape(first if kind is Report else TransactionAttempt(*first), *others)
    except (msgspec.DecodeError, json.JSONDecodeError):
        pass
    raise StatefxError(
        f"{kind.__name__} of version {WIRE_VERSION} was expected, found kind {found!r}, version {version!r}: "
        "install the same statefx release on the driver and on every executor",
        expected=WIRE_VERSION,
    )


_ENCODER = msgspec.msgpack.Encoder()
_OUTER = msgspec.msgpack.Decoder(tuple[str, int, msgspec.Raw])


@cache
def _wire_form(kind: Any) -> tuple[list[str], list[int], msgspec.msgpack.Decoder[Any]]:
    """Return the fields of a message, the places of those that travel as JSON text, and what reads their values.

    MessagePack has no half surrogate pairs and no integers of more than 64 bits. The log and the tasks' orders have
    both, so that a spout or a sink finds in the next transaction what it has said in this one.
    """
    hints = get_type_hints(kind)
    names = [each.name for each in fields(kind)]
    wire_types: dict[Any, Any] = {TransactionAttempt: tuple[int, int], Json: str | None}
    types = [wire_types.get(hints[name], hints[name]) for name in names]
    texts = [place for place, name in enumerate(names) if hints[name] is Json]
    return names, texts, msgspec.msgpack.Decoder(tuple[tuple(types)])  # type: ignore[misc]
