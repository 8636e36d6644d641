"""How the acker keeps trees in state: 16 whose roots follow one another share an entry, a block.

::

    key     root >> 4
    value   when the trees began, in ms    8 bytes
            what is there                  4 bytes: a bit for each number that may follow
            bits, by place                 8 bytes for each tree that goes on
            when its time began anew, ms   8 bytes for each of them that was given its time anew

An entry for each tree would be simpler, but the time that a million of them take to time out is that of their entries.
One entry for all trees of a transaction would be written anew whenever one of them ends.

Once ids of messages are known, the value is a tuple: these bytes, the task of the spout, the places of the ids, and the
ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

_PLACE_BITS = 4
WIDTH = 1 << _PLACE_BITS
"""Of a block. Narrower, and there are more entries; wider, and more bytes are written when one tree of a block ends."""

Value = bytes | tuple[bytes, ...]
Table = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.intp]
R = TypeVar("R", int, npt.NDArray[np.int64])

_HEAD = np.dtype([("began_ms", "<u8"), ("there", "<u4")])
_NONE = bytes(_HEAD.itemsize)
_SHIFTS = np.arange(2 * WIDTH, dtype="<u4")


def key_of(root: R) -> R:
    """Return the key of the block of a root, or of each of some."""
    return root >> _PLACE_BITS


def place_of(root: R) -> R:
    """Return the place in its block of a root, or of each of some."""
    return root & WIDTH - 1


def root_at(key: R, place: R) -> R:
    """Return the root at a place of a block, or of each of some."""
    return key << _PLACE_BITS | place


def began_ms_of(value: Value) -> int:
    """Return when the trees of a block began."""
    return int.from_bytes((value if type(value) is bytes else cast(bytes, value[0]))[:8], "little")


@dataclass(slots=True)
class Blocks:
    """Some blocks, as tables with a row for each.

    Attributes
    ----------
    keys : sequence of int
    began_ms : numpy.ndarray
        When the transaction was that has emitted the trees.
    bits : numpy.ndarray
        By row and place: the XOR of the numbers of tuples that are held; 0: there is no such tree.
    anew_ms : numpy.ndarray
        By row and place: when the time of the tree began anew; 0: never.
    ids : dict
        By row: the task of the spout, and by place the id of the message, as bytes.
    """

    keys: Sequence[int]
    began_ms: Table
    bits: Table
    anew_ms: Table
    ids: dict[int, tuple[bytes, dict[int, bytes]]]

    @classmethod
    def of(cls, keys: Sequence[int], values: Sequence[Value | None], now_ms: int = 0) -> Blocks:
        """Read the entries of some keys; one that is not there is a block without a tree, which begins now."""
        plain: list[Any] = [value[0] if type(value) is tuple else value or _NONE for value in values]
        heads = np.frombuffer(b"".join([data[: _HEAD.itemsize] for data in plain]), _HEAD)
        table = np.zeros((len(plain), 2 * WIDTH), "<u8")
        table[(heads["there"][:, None] >> _SHIFTS & 1).astype(bool)] = np.frombuffer(
            b"".join([data[_HEAD.itemsize :] for data in plain]), "<u8"
        )
        ids = {
            row: (value[1], dict(zip(value[2], value[3:], strict=True)))
            for row, value in enumerate(values)
            if type(value) is tuple
        }
        began_ms = np.where([value is None for value in values], now_ms, heads["began_ms"]).astype("<u8")
        return cls(keys, began_ms, table[:, :WIDTH], table[:, WIDTH:], ids)

    def entries(self, rows: Rows) -> dict[int, Value]:
        """Return the entries of some rows, which have trees."""
        bits = self.bits[rows]
        table = np.hstack((bits, np.where(bits, self.anew_ms[rows], 0)))
        there = table != 0
        heads = np.empty(len(rows), _HEAD)
        heads["began_ms"] = self.began_ms[rows]
        heads["there"] = np.packbits(there, axis=1, bitorder="little").view("<u4")[:, 0]
        head, size, body = heads.tobytes(), _HEAD.itemsize, table[there].tobytes()
        ends = (8 * np.cumsum(there.sum(axis=1))).tolist()
        found: dict[int, Value] = {}
        for at, (row, begin, end) in enumerate(zip(rows.tolist(), [0, *ends], ends, strict=False)):
            data = head[at * size : at * size + size] + body[begin:end]
            found[self.keys[row]] = data if row not in self.ids else self._named(row, data)
        return found

    def _named(self, row: int, data: bytes) -> Value:
        spout, ids = self.ids[row]
        left = {place: id for place, id in ids.items() if self.bits[row, place]}
        return (data, spout, bytes(left), *left.values()) if left else data

    def roots(self, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Return the roots at some places, by row and place."""
        found: npt.NDArray[np.int64] = root_at(np.array(self.keys, np.int64)[:, None], np.arange(WIDTH))
        return found[chosen]
