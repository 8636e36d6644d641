"""The acker: knows of every tree that outlives its transaction, because a bolt holds a tuple of it.

As in Storm, what it keeps of a tree does not grow with the tree: each held tuple has a random number, and the bits
are the XOR of those that are held. A tuple that is held comes in, one that is acked or failed later goes out, and when
all are out the bits are zero. Two different sets have the same XOR once in 2**62: so rarely a tree is acked too early.

It is a stateful bolt behind all others, made by statefx, with its state in the topology's own provider: what it says
is true of committed transactions alone, and a crash loses nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statefx.operators.bolts import BatchBolt, ReadyMade
from statefx.operators.collector import Collector
from statefx.operators.schema import parse_schema
from statefx.operators.tree_blocks import Blocks, Rows, Value, began_ms_of, key_of, place_of, root_at
from statefx.protocol.topology_identity import StateLayout
from statefx.protocol.trees import TIMED_OUT, TreeReport, root_of
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
"""Of ids that spouts are told when they begin, oldest first. Messages beyond that are taken for new if their source
delivers them again, as all are that are held in attributes."""


def is_of_acks(component: str) -> bool:
    """Tell whether a component is statefx's own, for acks: its rows are nobody's input or output."""
    return component == ACKER or component.startswith(ACKNOWLEDGES)


class Kind(IntEnum):
    """Of an internal row: what a task says of a tree."""

    HELD = 0  # `number`: XOR of the tuples that it holds from this transaction on
    RELEASED = 1  # `number`: XOR of the tuples that it held, and has acked or failed
    FAILED = 2
    RESET = 3  # its time begins anew
    ID = 4  # `data`: what the task of the spout is called in trees, a zero byte, and the id as bytes
    ASK = 5  # `data`: "component/task" of a spout that begins, a zero byte, and what it is called in trees


class Acker(ReadyMade, BatchBolt):
    """Applies what tasks say of trees; all of a transaction together, since its rows come in any order.

    State: blocks of trees whose roots follow one another (see `Blocks`). A root begins with its txid, so trees lie in
    the order in which their times are over, unless one began anew.
    """

    def __init__(self, timeout_secs: float) -> None:
        self._timeout_ms = int(timeout_secs * 1000)

    def _layout(self, fields: int) -> StateLayout:
        return StateLayout("trees", "trees", keys={"": ((),)})

    def open(self, context: Any) -> None:
        """Keep the context."""
        self._context = context

    def initState(self, state: Any) -> None:
        """Begin a transaction."""
        self._state = state
        self._now_ms = micros(self._context.processingTime) // 1000
        self._said: list[pa.RecordBatch] = []

    def executeBatch(self, batch: Any, collector: Collector) -> None:
        """Take note of what a task says."""
        self._said.append(batch.replace_schema_metadata(None))

    def finishBatch(self, collector: Collector) -> None:
        """Apply what was said, and see whose time is over."""
        said = pa.Table.from_batches(self._said, ROWS)
        of_trees = said.filter(pc.field("kind") != Kind.ASK)
        acked, held = self._apply(of_trees) if of_trees.num_rows else ([], [])
        expired, due_ms = self._expire()
        failed = {f"{TIMED_OUT} {self._timeout_ms / 1000:g} s": tuple(expired)} if expired else {}
        asked = said.filter(pc.field("kind") == Kind.ASK)["data"].to_pylist()
        self.report = TreeReport(failed, tuple(acked), tuple(held), self._pending(asked), due_ms)

    def _apply(self, said: pa.Table) -> tuple[list[int], list[int]]:
        """Change the trees of which something was said; return those that are acked, and those that are new."""
        blocks_of, places, kinds, numbers = (said.column(at).to_numpy() for at in range(4))
        roots = root_at(blocks_of, places)
        order = np.argsort(roots, kind="stable")
        roots, kinds = roots[order], kinds[order]
        firsts = np.flatnonzero(np.diff(roots, prepend=-1))
        trees = roots[firsts]
        bits = np.bitwise_xor.reduceat(np.where(kinds <= Kind.RELEASED, numbers[order], 0), firsts).view(np.uint64)
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
        has_failed = (said_of & 1 << Kind.FAILED) != 0  # failed wins over complete (rule 11.4)
        bits = np.where(has_failed, 0, blocks.bits[row, place] ^ bits)
        blocks.bits[row, place] = bits
        anew = (said_of & 1 << Kind.RESET) != 0
        blocks.anew_ms[row[anew], place[anew]] = self._now_ms
        if (said_of & 1 << Kind.ID).any():
            self._name(blocks, said)
        self._write(blocks, np.unique(row[was_open | (bits != 0)]))
        return trees[was_open & (bits == 0) & ~has_failed].tolist(), trees[~was_open & (bits != 0)].tolist()

    def _name(self, blocks: Blocks, said: pa.Table) -> None:
        """Take note of the ids of messages."""
        row_of = {key: row for row, key in enumerate(blocks.keys)}
        named = said.filter(pc.field("kind") == Kind.ID).select([BLOCK, "place", "data"])
        for key, place, data in zip(*(column.to_pylist() for column in named.columns), strict=True):
            spout, _, id = data.partition(b"\0")
            blocks.ids.setdefault(row_of[key], (spout, {}))[1][place] = id

    def _write(self, blocks: Blocks, changed: Rows) -> None:
        """Put the blocks in these rows, and delete those that have no tree any more."""
        has_trees = blocks.bits[changed].any(axis=1)
        self._state.putAll(blocks.entries(changed[has_trees]))
        for row in changed[~has_trees].tolist():
            self._state.delete(blocks.keys[row])

    def _expire(self) -> tuple[list[int], int]:
        """Forget the trees whose time is over; return them, and when the next one's is; 0: none's is."""
        expired: list[int] = []
        ends_ms: list[int] = []  # of what is left, the earliest
        due = self._due(ends_ms)
        while len(expired) < EXPIRED_MAX and (entries := list(islice(due, _SCANNED))):
            keys, values = zip(*entries, strict=True)
            blocks = Blocks.of(keys, values)
            end_ms = np.maximum(blocks.began_ms[:, None], blocks.anew_ms) + self._timeout_ms
            is_over = (blocks.bits != 0) & (end_ms <= self._now_ms)
            expired += blocks.roots(is_over).tolist()
            blocks.bits[is_over] = 0
            ends_ms += np.sort(end_ms[blocks.bits != 0])[:1].tolist()
            self._write(blocks, np.flatnonzero(is_over.any(axis=1)))
        if len(expired) >= EXPIRED_MAX:
            ends_ms.append(self._now_ms)
        return expired, min(ends_ms, default=0)

    def _due(self, ends_ms: list[int]) -> Iterator[tuple[int, Value]]:
        """Yield the blocks whose time is over unless it began anew; append when that of the first other one is."""
        for key, value in self._state.items():
            end_ms = began_ms_of(value) + self._timeout_ms
            if end_ms > self._now_ms:
                ends_ms.append(end_ms)
                return  # those that follow began later
            yield key, value

    def _pending(self, asked: Iterable[bytes]) -> dict[str, tuple[tuple[int, bytes], ...]]:
        """Return, for tasks of spouts that begin, the ids of the trees that go on."""
        asking = [each.partition(b"\0") for each in asked]
        found: dict[bytes, list[tuple[int, bytes]]] = {name: [] for _, _, name in asking}
        left_bytes = PENDING_BYTES_MAX
        for key, value in self._state.items() if found else ():
            if type(value) is not tuple or value[1] not in found:
                continue
            for place, id in zip(value[2], value[3:], strict=True):
                if left_bytes > 0:
                    found[value[1]].append((root_at(key, place), id))
                    left_bytes -= len(id) + 16
        return {task.decode(): tuple(found[name]) for task, _, name in asking}
