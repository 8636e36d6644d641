"""The acker: keeps every tree of tuples that outlives its transaction because a bolt holds one of its tuples.

It is natural to do as Storm does: each bolt sends each ack to the acker, which tells the spout when the tree is
complete. Here a row that was processed may be rolled back. The acker tells the spout of a complete tree, the source
lets go of the message, the driver dies before COMMITTING, and the message is lost. So outcomes are reported after the
commit (rule 11.3), and the acker is a bolt of the topology whose state commits, rolls back and rescales with
everything else. And since no tuple is in transit at a barrier, all tuples that no bolt holds cancel out within their
transaction, in the tasks: the acker sees held ones only.

One would also count what is held. A count that is one too low, because an ack came twice, ends a tree that a bolt
still holds a tuple of. So a held tuple has a random number, and a tree the XOR of its numbers, as in Storm: eight
bytes, however large the tree, and zero when all are out. Two different sets have the same XOR once in 2**62.

It is tempting to look for zero after each row. Rows of a transaction come in any order: a tree holds a; now a is
released, and b, which was anchored to it, is held. If the release comes first, the tree is zero in between. So all
events of a transaction are applied together, when its input is whole.

State is kept by block: 16 trees whose roots follow one another share an entry::

    key     root >> 4
    value   when the trees began, in ms             8 bytes
            what is there                           4 bytes: a bit for each number that may follow
            bits, by place                          8 bytes for each tree that goes on
            when its timeout was restarted, in ms   8 bytes for each tree that has reset it

Once ids of messages are known, the value is a tuple: these bytes, the task of the spout, the places of the ids, and
the ids. A root begins with its txid, so blocks lie in the order of their timeouts, except for trees that have reset
theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statefx.operators.bolts import BatchBolt, ReadyMade
from statefx.operators.context import Collector
from statefx.operators.schema import parse_schema
from statefx.protocol.reports import TIMED_OUT, TreeReport, root_of
from statefx.protocol.topology_identity import StateLayout
from statefx.state.view.time_index import micros

ACKER = "__acker"
ACKS, ASKS = "__acks", "__asks"
"""Streams of internal rows: of trees, by block; and of spouts that begin, to all tasks of the acker."""

ACKNOWLEDGES = "__acks-"
"""Before the name of a spout: the sink that acknowledges in the transaction what the spout hands out."""

BLOCK = "block"
"""The field that rows are grouped by: the trees of a block lie in one task, and go to another one together."""

ROWS = parse_schema(f"{BLOCK} long, place tinyint, kind int, number long, data binary")

EXPIRED_MAX = 100_000
"""When so many trees have timed out in one transaction, the others follow in the next one."""

_SCANNED = 256
"""Blocks that are looked at together: at most 4,096 trees."""


PENDING_BYTES_MAX = 32 << 20
"""Of ids that spouts are told when they begin, oldest first, by all tasks of the acker in one frame. Messages beyond
that are taken for new if their source delivers them again, as all are that are held in attributes."""


def is_of_acks(component: str) -> bool:
    """Return whether a component is statefx's own, for acks: its rows are no user's input or output."""
    return component == ACKER or component.startswith(ACKNOWLEDGES)


class TreeEvent(IntEnum):
    """Events of a tree, in internal rows."""

    HELD = 0  # `number`: XOR of the tuples that it holds from this transaction on
    RELEASED = 1  # `number`: XOR of the tuples that it held, and has acked or failed
    FAILED = 2
    RESET = 3  # its time begins anew
    ID = 4  # `data`: what the task of the spout is called in trees, a zero byte, and the id as bytes
    ASK = 5  # `data`: "component/task" of a spout that begins, a zero byte, and what it is called in trees


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

    `began_ms` is when the transaction was that emitted the trees. By row and place, `bits` is the XOR of the numbers of
    held tuples (0: there is no such tree), and `anew_ms` when the time of the tree was restarted (0: never). `ids` is
    by row: the task of the spout, and by place the id of the message, as bytes.
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


class Acker(ReadyMade, BatchBolt):
    """Applies the events of trees; all of a transaction together, since its rows come in any order."""

    def __init__(self, timeout_secs: float) -> None:
        self._timeout_ms = int(timeout_secs * 1000)

    def _layout(self, fields: int) -> StateLayout:
        return StateLayout("trees", "trees", keys={"": ((),)})

    def open(self, context: Any) -> None:
        """Keep the context."""
        self._context = context
        self._looked = 0, 0
        """A transaction, and until when no tree times out after it, if trees that began anew were read for that."""

    def initState(self, state: Any) -> None:
        """Begin a transaction."""
        self._state = state
        self._now_ms = micros(self._context.processingTime) // 1000
        self._said: list[pa.RecordBatch] = []

    def executeBatch(self, batch: Any, collector: Collector) -> None:
        """Take note of what a task says."""
        self._said.append(batch.replace_schema_metadata(None))

    def finishBatch(self, collector: Collector) -> None:
        """Apply the events, and expire trees."""
        said = pa.Table.from_batches(self._said, ROWS)
        asked = said.filter(pc.field("kind") == TreeEvent.ASK)["data"].to_pylist()
        # Before trees end: a spout is told the end only of those that it knows, and would take the messages for new.
        pending = self._pending(asked)
        of_trees = said.filter(pc.field("kind") != TreeEvent.ASK)
        acked, held = self._apply(of_trees) if of_trees.num_rows else ([], [])
        expired, due_ms = self._expire()
        failed = {f"{TIMED_OUT} {self._timeout_ms / 1000:g} s": tuple(expired)} if expired else {}
        self.report = TreeReport(failed, tuple(acked), tuple(held), pending, due_ms)

    def _apply(self, said: pa.Table) -> tuple[list[int], list[int]]:
        """Apply the events; return the trees that are acked, and those that are new."""
        blocks_of, places, kinds, numbers = (said.column(at).to_numpy() for at in range(4))
        roots = root_at(blocks_of, places)
        order = np.argsort(roots, kind="stable")
        roots, kinds = roots[order], kinds[order]
        firsts = np.flatnonzero(np.diff(roots, prepend=-1))
        trees = roots[firsts]
        bits = np.bitwise_xor.reduceat(np.where(kinds <= TreeEvent.RELEASED, numbers[order], 0), firsts).view(np.uint64)
        said_of = np.bitwise_or.reduceat(1 << kinds, firsts)

        first_new = root_of(self._context.txid, 0, 0)
        keys, row = np.unique(key_of(trees), return_inverse=True)
        place = place_of(trees)
        # Those of this transaction are not there yet: they need not be looked for.
        found = self._state.getAll(keys[keys < key_of(first_new)].tolist())
        values = list(map(found.get, keys.tolist()))
        blocks = Blocks.of(keys.tolist(), values, self._now_ms)

        was_open = blocks.bits[row, place] != 0
        known = was_open | (trees >= first_new)  # the others have ended: a late ack changes nothing (rule 11.4)
        trees, bits, said_of, row, place, was_open = (
            each[known] for each in (trees, bits, said_of, row, place, was_open)
        )
        has_failed = (said_of & 1 << TreeEvent.FAILED) != 0  # failed wins over complete (rule 11.4)
        bits = np.where(has_failed, 0, blocks.bits[row, place] ^ bits)
        blocks.bits[row, place] = bits
        anew = (said_of & 1 << TreeEvent.RESET) != 0
        blocks.anew_ms[row[anew], place[anew]] = self._now_ms
        if (said_of & 1 << TreeEvent.ID).any():
            self._name(blocks, said)
        self._write(blocks, np.unique(row[was_open | (bits != 0)]))
        return trees[was_open & (bits == 0) & ~has_failed].tolist(), trees[~was_open & (bits != 0)].tolist()

    def _name(self, blocks: Blocks, said: pa.Table) -> None:
        row_of = {key: row for row, key in enumerate(blocks.keys)}
        named = said.filter(pc.field("kind") == TreeEvent.ID).select([BLOCK, "place", "data"])
        for key, place, data in zip(*(column.to_pylist() for column in named.columns), strict=True):
            spout, _, id = data.partition(b"\0")
            blocks.ids.setdefault(row_of[key], (spout, {}))[1][place] = id

    def _write(self, blocks: Blocks, changed: Rows) -> None:
        has_trees = blocks.bits[changed].any(axis=1)
        self._state.putAll(blocks.entries(changed[has_trees]))
        for row in changed[~has_trees].tolist():
            self._state.delete(blocks.keys[row])

    def _expire(self) -> tuple[list[int], int]:
        """Forget the trees whose time is over; return them, and when the next one's may be; 0: none's is."""
        txid, until_ms = self._looked
        # Not if this one is tried again: trees whose time began anew in the attempt before end when they would have.
        if txid == self._context.txid - 1 and self._now_ms < until_ms:
            # If the clock was set back, those that begin now end before.
            self._looked = self._context.txid, min(until_ms, self._now_ms + self._timeout_ms)
            return [], self._looked[1]
        expired: list[int] = []
        ends_ms: list[int] = []  # of what is left, the earliest
        anew_ms: list[int] = []  # the same of those that have reset theirs
        due = self._due(ends_ms)
        while len(expired) < EXPIRED_MAX and (entries := list(islice(due, _SCANNED))):
            keys, values = zip(*entries, strict=True)
            blocks = Blocks.of(keys, values)
            end_ms = np.maximum(blocks.began_ms[:, None], blocks.anew_ms) + self._timeout_ms
            is_over = (blocks.bits != 0) & (end_ms <= self._now_ms)
            expired += blocks.roots(is_over).tolist()
            blocks.bits[is_over] = 0
            anew_ms += np.sort(end_ms[blocks.bits != 0])[:1].tolist()
            self._write(blocks, np.flatnonzero(is_over.any(axis=1)))
        if len(expired) >= EXPIRED_MAX:
            ends_ms.append(self._now_ms)
        due_ms = min(ends_ms + anew_ms, default=0)
        self._looked = self._context.txid, due_ms if anew_ms else 0
        return expired, due_ms

    def _due(self, ends_ms: list[int]) -> Iterator[tuple[int, Value]]:
        """Yield the blocks whose time is over unless it was restarted; append when that of the first other one is."""
        for key, value in self._state.items():
            end_ms = began_ms_of(value) + self._timeout_ms
            if end_ms > self._now_ms:
                ends_ms.append(end_ms)
                return  # those that follow began later
            yield key, value

    def _pending(self, asked: Iterable[bytes]) -> dict[str, tuple[tuple[int, bytes], ...]]:
        """Return, for tasks of spouts that begin, the ids of the trees that have gone on until now."""
        asking = [each.partition(b"\0") for each in asked]
        found: dict[bytes, list[tuple[int, bytes]]] = {name: [] for _, _, name in asking}
        left_bytes = PENDING_BYTES_MAX // self._context.parallelism
        for key, value in self._state.items() if found else ():
            if type(value) is not tuple or value[1] not in found:
                continue
            for place, id in zip(value[2], value[3:], strict=True):
                if left_bytes > 0:
                    found[value[1]].append((root_at(key, place), id))
                    left_bytes -= len(id) + 16
        return {task.decode(): tuple(found[name]) for task, _, name in asking}
