"""Frames between a chain and the driver over a control connection, as bytes.

::

    driver                                  chain
      | -- challenge (magic, nonce) -------> |
      | <------- HELLO (chain, proof) ------ |
      | -- WELCOME (proof) ----------------> |
      | -- RUN, RESOLVE, ABANDON, END -----> |
      | -- OUTCOME ---------------------------> |
      | <-- ACK, REPORT, CONFIRMED, WAKE -- |
      | <-- HANGS, RESTORES, ACTIVITY ----- |
      | <-- LINES ------------------------- |
      | -- LEVELS ------------------------> |
      | <-- ALIVE, each second, both ways -> |

A frame is its length, its kind and its body. Bodies are MessagePack or the packed forms of `statefx.protocol`: whoever
listens at the driver's port never unpickles what a stranger has sent (rule 13.1).
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import msgspec

from statefx.protocol.identity import TaskId
from statefx.protocol.reports import TreeReport

MAGIC = b"statefx-control-1\n"
NONCE_BYTES = 32
CHALLENGE_BYTES = len(MAGIC) + NONCE_BYTES

HELLO_BYTES_MAX = 128
"""Of a frame before its sender has proved who it is: nothing more is read from a stranger."""

FRAME_BYTES_MAX = 64 << 20
"""Orders carry the metadata of a chain's partitions, acks at most 128 kB and what became of trees, a megabyte for each
100,000; what is longer is no frame of ours."""

_HEAD = struct.Struct(">IB")
_HELLO = struct.Struct(">32sHI32s")
_ATTEMPT = struct.Struct(">QI")


class Line(NamedTuple):
    """A line that a task has logged or printed.

    Attributes
    ----------
    at : float
        When, in seconds since the epoch.
    level : int
        As Python's logging has it.
    logger : str
        Name of the logger, "" for what was printed.
    stream : str
        ``stdout`` or ``stderr`` of what was printed, "" for what was logged.
    fields : dict
        As far as they are known: component, task, txid, attempt.
    text : str
    trace : str
        Traceback of a logged exception, or "".
    extra : str
        What the record was given as ``extra``, as a JSON object, or "".
    """

    at: float
    level: int
    logger: str
    stream: str
    fields: dict[str, str | int]
    text: str
    trace: str = ""
    extra: str = ""


_OUTCOME = msgspec.msgpack.Decoder(tuple[int, TreeReport])
_ACTIVITY = msgspec.msgpack.Decoder(list[tuple[str, int, dict[str, float]]])
_LINES = msgspec.msgpack.Decoder(list[Line])
_LEVELS = msgspec.msgpack.Decoder(dict[str, int])


class FrameKind(IntEnum):
    """Kinds of frames."""

    HELLO = 1  # chain: I am level, partition of this run
    WELCOME = 2  # driver: so you are
    RUN = 3  # driver: an attempt
    RESOLVE = 4  # driver: commit or roll back tasks
    ABANDON = 5  # driver: drop an attempt
    END = 6  # driver: the run is over
    ALIVE = 7  # both
    ACK = 8  # chain: of one task
    REPORT = 9  # chain: of one task's commit or rollback
    CONFIRMED = 10  # chain: nothing of the attempt is under way any more
    WAKE = 11  # chain: a spout has something for a transaction
    OUTCOME = 12  # driver: a transaction is committed, and what became of trees
    HANGS = 13  # chain: a spout's method does not return; the text of a warning
    RESTORES = 14  # chain: names of tasks that restore state, a line each; with each sign of life while they do
    ACTIVITY = 15  # chain: how the time of its tasks divides; with each sign of life while an attempt runs
    LINES = 16  # chain: what its tasks have logged and printed; shown to people, and decides nothing
    LEVELS = 17  # driver: the levels of loggers, by name


class FrameError(ValueError):
    """Bytes that are no frame, or too many of them."""


def frame(kind: FrameKind, body: bytes = b"") -> bytes:
    if len(body) > FRAME_BYTES_MAX:
        raise FrameError(f"a {kind.name} of {len(body)} bytes: at most {FRAME_BYTES_MAX}")
    return _HEAD.pack(len(body), kind) + body


class Frames:
    """Cuts a stream of bytes into frames; a body of more than `max_bytes` is a FrameError."""

    def __init__(self, max_bytes: int = FRAME_BYTES_MAX) -> None:
        self.max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[FrameKind, bytes]]:
        """Take bytes; yield (kind, body) of each frame that is whole now."""
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            length, kind = _HEAD.unpack_from(self._buffer)
            if length > self.max_bytes:
                raise FrameError(f"a frame of {length} bytes: at most {self.max_bytes}")
            if len(self._buffer) < _HEAD.size + length:
                return
            body = bytes(self._buffer[_HEAD.size : _HEAD.size + length])
            del self._buffer[: _HEAD.size + length]
            try:
                known = FrameKind(kind)
            except ValueError:
                raise FrameError(f"a frame of the unknown kind {kind}") from None
            yield known, body


@dataclass(frozen=True, slots=True, order=True)
class ChainId:
    """A chain: the tasks at one level and partition of the plan."""

    level: int
    partition: int


def proof(secret: bytes, who: bytes, nonce: bytes, run: bytes, chain: ChainId) -> bytes:
    """Return the answer to `nonce` that only a holder of the run's secret can compute."""
    said = who + nonce + run + struct.pack(">HI", chain.level, chain.partition)
    return hmac.digest(secret, said, "sha256")


def hello(secret: bytes, nonce: bytes, run: bytes, chain: ChainId) -> bytes:
    return _HELLO.pack(run, chain.level, chain.partition, proof(secret, b"chain", nonce, run, chain))


def check_hello(secret: bytes, nonce: bytes, run: bytes, body: bytes) -> ChainId:
    """Return the chain that sent HELLO; FrameError if it is none of this run's (rule 13.1)."""
    if len(body) != _HELLO.size:
        raise FrameError("no HELLO")
    named, level, partition, proved = _HELLO.unpack(body)
    chain = ChainId(level, partition)
    if named != run or not hmac.compare_digest(proved, proof(secret, b"chain", nonce, run, chain)):
        raise FrameError("a HELLO of another run, or without its secret")
    return chain


def welcome(secret: bytes, nonce: bytes, run: bytes, chain: ChainId) -> bytes:
    """Return the body of a WELCOME: the driver knows the run's secret too."""
    return proof(secret, b"driver", nonce, run, chain)


def is_welcome(secret: bytes, nonce: bytes, run: bytes, chain: ChainId, body: bytes) -> bool:
    """Return whether a WELCOME comes from the driver of the run."""
    return hmac.compare_digest(body, welcome(secret, nonce, run, chain))


def pack_outcome(txid: int, report: TreeReport) -> bytes:
    return msgspec.msgpack.encode((txid, report))


def unpack_outcome(body: bytes) -> tuple[int, TreeReport]:
    """Read what `pack_outcome` wrote; FrameError if it is something else."""
    try:
        return _OUTCOME.decode(body)
    except msgspec.DecodeError as error:
        raise FrameError(f"a OUTCOME that can't be read: {error}") from None


def pack_activity(times: Mapping[TaskId, Mapping[str, float]]) -> bytes:
    """Write the milliseconds of tasks by activity, as in their acks."""
    return msgspec.msgpack.encode([(*task, spent) for task, spent in times.items()])


def unpack_activity(body: bytes) -> dict[TaskId, dict[str, float]]:
    """Read what `pack_activity` wrote; FrameError if it is something else."""
    try:
        return {TaskId(component, task): spent for component, task, spent in _ACTIVITY.decode(body)}
    except msgspec.DecodeError as error:
        raise FrameError(f"an ACTIVITY that can't be read: {error}") from None


def pack_lines(lines: Sequence[Line]) -> bytes:
    """Pack lines, whose texts have no half surrogate pairs."""
    return msgspec.msgpack.encode(lines)


def unpack_lines(body: bytes) -> list[Line]:
    """Read what `pack_lines` wrote; FrameError if it is something else."""
    try:
        return _LINES.decode(body)
    except msgspec.DecodeError as error:
        raise FrameError(f"LINES that can't be read: {error}") from None


def pack_levels(levels: Mapping[str, int]) -> bytes:
    return msgspec.msgpack.encode(levels)


def unpack_levels(body: bytes) -> dict[str, int]:
    """Read what `pack_levels` wrote; FrameError if it is something else."""
    try:
        return _LEVELS.decode(body)
    except msgspec.DecodeError as error:
        raise FrameError(f"LEVELS that can't be read: {error}") from None


def pack_attempt(txid: int, attempt: int) -> bytes:
    return _ATTEMPT.pack(txid, attempt)


def unpack_attempt(body: bytes) -> tuple[int, int]:
    txid, attempt = _ATTEMPT.unpack(body)
    return txid, attempt
