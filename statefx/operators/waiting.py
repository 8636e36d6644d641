"""Tuples that wait in a task's state for another call, as they are kept.

One entry for each, under a key of its own::

    the grouping's fields as JSON | NUL | transaction, number of the tuple in it | task

So tuples of one key lie together, in their order. The task stays in the name: after a rescale, tuples of two may meet.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from statefx.protocol.topology_identity import StateLayout
from statefx.state.contract.spaces import Space, end_of
from statefx.state.view import task_state
from statefx.state.view.task_state import TaskState

LAYOUT = StateLayout("calls", "tuples that wait for another call")
"""Of a bolt that has no state but this."""

_HEAD = Space.WAITING.value
_NUMBER_BYTES = 4


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """A tuple that waits.

    `due_ms` is when it is tried, in milliseconds since 1970, 0 if it waits for an earlier one of its key. `tries` are
    the calls that were made, the last of which failed for the reason `why`. It came in transaction `txid`, by an input
    from `source` and `stream`, when the watermark was `watermark`. `key` is its idempotency key, None if it has none.
    `row` is an Arrow stream of one row.
    """

    due_ms: int
    tries: int
    why: str
    txid: int
    source: str
    stream: str
    key: str | None
    watermark: int | None
    row: bytes

    def batch(self) -> pa.RecordBatch:
        """Return its row."""
        return pa.ipc.open_stream(self.row).read_next_batch()


_encode, _decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Waiting).decode


def written(row: pa.RecordBatch) -> bytes:
    """Return a row as it is kept."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as stream:
        stream.write_batch(row)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def place_of(group: bytes, txid: int, number: int, task: int) -> bytes:
    """Return the key of an entry; `group` is the key of the grouping as JSON, empty if there is none."""
    return _HEAD + group + b"\0" + b"".join(number.to_bytes(_NUMBER_BYTES) for number in (txid, number, task))


def parts_of(place: bytes) -> tuple[bytes, int, int]:
    """Return the group, the transaction and the number in the key of an entry.

    >>> parts_of(place_of(b'{"_0":"ann"}', 7, 3, 1))
    (b'{"_0":"ann"}', 7, 3)
    """
    group, txid, number = group_of(place), place[-3 * _NUMBER_BYTES :], place[-2 * _NUMBER_BYTES :]
    return group, int.from_bytes(txid[:_NUMBER_BYTES]), int.from_bytes(number[:_NUMBER_BYTES])


def group_of(place: bytes) -> bytes:
    """Return the group in the key of an entry."""
    return place[len(_HEAD) : -1 - 3 * _NUMBER_BYTES]


def entry_of(value: bytes) -> Waiting:
    """Return a tuple from the value of an entry."""
    return _decode(value)


def has_waiting(state: TaskState) -> bool:
    """Return whether tuples wait in a task's state."""
    return next(task_state.waiting_of(state).scan_below(_HEAD, end_of(_HEAD)), None) is not None


class WaitingTuples:
    """The tuples of one task that wait."""

    def __init__(self, state: TaskState) -> None:
        self._entries = task_state.waiting_of(state)

    def read(self) -> dict[bytes, Waiting]:
        """Return those of the version that was opened, in the order of their keys."""
        return {place: _decode(value) for place, value in self._entries.scan_below(_HEAD, end_of(_HEAD))}

    def put(self, place: bytes, waiting: Waiting | None) -> None:
        """Keep a tuple; None: keep it no longer."""
        if waiting is None:
            self._entries.delete((bytes, place, place))
        else:
            self._entries.put(place, _encode(waiting))
