"""Keys of a bolt's grouping whose rows are held back, for a row of theirs could not be dealt with.

::

    a row of the key raises an error -> letter n                     first letter that waits: n, next: n + 1
    a later row                      -> letter n + 1, not executed                         n,       n + 2
    letter n is replayed             -> executed                                       n + 1,       n + 2
    letter n + 1 is replayed         -> executed, and nothing waits: the key is free again

The letters of a key are numbered in the order of its rows. Only the first that waits is executed, whenever it comes,
so that no row passes another one. Numbers are never given twice in a history: they begin with the transaction in which
the key was put in quarantine.

All of it lies in the bolt's own store, and is prepared with its state. Nothing of it is in memory but what was looked
up: a topology may have millions of such keys.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from statefx.operators.json_values import JsonRows
from statefx.state.contract.spaces import Space, end_of
from statefx.state.view import task_state
from statefx.state.view.changes import ABSENT
from statefx.state.view.task_state import TaskState

_HEAD = Space.QUARANTINE.value

_TXID_SHIFT = 32
"""A task has fewer rows in a transaction, and a checkpoint has fewer than 2**31 transactions."""


_WHY_MAX = 300
"""Of an error, so many characters are kept with each key."""


class Held(msgspec.Struct, frozen=True, array_like=True):
    """The waiting letters of a key.

    `first` is the number of the first one, `next` that of the key's next row. `txid` is the transaction in which a row
    of the key raised an error, `why` that error in one line.
    """

    first: int
    next: int
    txid: int
    why: str


_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(Held).decode


class GroupKeys:
    """Writes the fields of a grouping as the keys under which `Quarantine` has them, and reads them.

    Inputs may call the fields by other names: those of a key are called by their place.
    """

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._has_floats = any(map(_has_floats, types))
        self._rows = JsonRows(pa.schema([(f"_{place}", kind) for place, kind in enumerate(types)]))

    def keys(self, columns: Sequence[pa.Array]) -> list[bytes]:
        """Return the key of each row; ValueError: JSON does not have a value."""
        found = self._rows.encode(pa.RecordBatch.from_arrays(list(columns), schema=self._rows.schema))
        if self._has_floats:  # 0.0 and -0.0 are one to the grouping's hash
            found = [_TEXT_OR_ZERO.sub(_one_zero, key) for key in found]
        return [_HEAD + key for key in found]

    def fields(self, stored: bytes) -> tuple[Any, ...]:
        """Return the grouping's fields of a key as it is stored."""
        (row,) = self._rows.decode([stored[len(_HEAD) :]]).to_pylist()
        return tuple(row.values())


def _has_floats(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or any(_has_floats(kind.field(at).type) for at in range(kind.num_fields))


_TEXT_OR_ZERO = re.compile(rb'"(?:[^"\\]|\\.)*"|-0\.0(?![\d.eE])')


def _one_zero(found: re.Match[bytes]) -> bytes:
    return b"0.0" if found[0] == b"-0.0" else found[0]


def shown_key(fields: tuple[Any, ...]) -> str:
    """Return a grouping's key as messages name it."""
    return repr(fields[0] if len(fields) == 1 else fields)


def held(value: bytes) -> Held:
    """Return the stored letters of a key."""
    return _decode(value)


class Quarantine:
    """The keys of one task that are in quarantine, in one attempt.

    `empty`: no key was there when the attempt began, and none was put there since, so that no row has to be looked up.
    """

    def __init__(self, state: TaskState) -> None:
        self._entries = task_state.quarantine_of(state)
        self.empty = next(self._entries.scan_below(_HEAD, end_of(_HEAD)), None) is None

    def prefetch(self, keys: Sequence[bytes]) -> None:
        """Read ahead the letters of keys."""
        self._entries.prefetch(keys)

    def get(self, key: bytes) -> Held | None:
        """Return the letters of a key, or None if it is not in quarantine."""
        found = self._entries.find((bytes, key, key))
        return None if found is ABSENT else _decode(found)

    def begin(self, key: bytes, txid: int, position: int, why: str) -> int:
        """Put a key in quarantine, for a row that is the letter of this position; return the letter's number."""
        number = (txid << _TXID_SHIFT) + position
        self._entries.put(key, _encode(Held(number, number + 1, txid, why[:_WHY_MAX])))
        self.empty = False
        return number

    def hold(self, key: bytes, found: Held) -> int:
        """Count a row of the key that waits after the others; return its number."""
        self._entries.put(key, _encode(msgspec.structs.replace(found, next=found.next + 1)))
        return found.next

    def dealt_with(self, key: bytes, found: Held) -> None:
        """Note that the first letter of the key was executed, or is to be forgotten."""
        if found.first + 1 == found.next:
            self._entries.delete((bytes, key, key))
        else:
            self._entries.put(key, _encode(msgspec.structs.replace(found, first=found.first + 1)))
