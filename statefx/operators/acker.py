"""The acker: knows of every tree that outlives its transaction, because a bolt holds a tuple of it.

As in Storm, what it keeps of a tree does not grow with the tree: each held tuple has a random number, and the bits
are the XOR of those that are held. A tuple that is held comes in, one that is acked or failed later goes out, and when
all are out the bits are zero. Two different sets have the same XOR once in 2**62: so rarely a tree is acked too early.

It is a stateful bolt behind all others, made by statefx, with its state in the topology's own provider: what it says
is true of committed transactions alone, and a crash loses nothing of it.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

from statefx.operators.bolts import BatchBolt, Stateful
from statefx.operators.collector import Collector
from statefx.protocol.trees import TIMED_OUT, TreeReport, txid_of

ACKER = "__acker"
ACKS, ASKS = "__acks", "__asks"
"""Streams of internal rows: of trees, by root; and of spouts that begin, to all tasks of the acker."""

ACKNOWLEDGES = "__acks-"
"""Before the name of a spout: the sink that acknowledges in the transaction what the spout hands out."""

ROWS = "root long, kind int, number long, data binary"

_ENTRY = struct.Struct("<QQ")

EXPIRED_MAX = 100_000
"""Trees that time out in one transaction; the others follow in the next one."""


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
    ID = 4  # `data`: "component/task" of the spout, a zero byte, and the id as bytes
    ASK = 5  # `data`: "component/task" of a spout that begins


class Acker(Stateful, BatchBolt):
    """Applies what tasks say of trees; all of a transaction together, since its rows come in any order.

    State: by root the bits, when its time began anew, and the id of its message; and by ``(txid,)`` when the
    transaction was. A root begins with its txid, so trees lie in the order in which their times are over, unless one
    began anew.

    Attributes
    ----------
    now_ms : int
        The time of the attempt, set before ``finishBatch``.
    report : TreeReport
        What the transaction came to, when ``finishBatch`` has returned.
    """

    def __init__(self, timeout_secs: float) -> None:
        self._timeout_ms = int(timeout_secs * 1000)
        self.now_ms = 0
        self.report = TreeReport()

    def open(self, context: Any) -> None:
        """Keep the context."""
        self._context = context

    def initState(self, state: Any) -> None:
        """Begin a transaction."""
        self._state = state
        self._bits: dict[int, int] = {}
        """What was said of trees, by root: the XOR. `_others`: further kinds of rows, `_ids`: the ids that came."""
        self._others: dict[int, int] = {}
        self._ids: dict[int, bytes] = {}
        self._asked: set[bytes] = set()

    def executeBatch(self, batch: Any, collector: Collector) -> None:
        """Take note of what a task says."""
        bits, others = self._bits, self._others
        for root, kind, number, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if kind <= Kind.RELEASED:
                bits[root] = bits.get(root, 0) ^ number
            elif kind == Kind.ASK:
                self._asked.add(data)
            else:
                others[root] = others.get(root, 0) | 1 << kind
                if kind == Kind.ID:
                    self._ids[root] = data

    def finishBatch(self, collector: Collector) -> None:
        """Apply what was said, and see whose time is over."""
        acked, held = [], []
        put: dict[Any, Any] = {}
        txid, others = self._context.txid, self._others
        known = self._bits | dict.fromkeys(others.keys() - self._bits.keys(), 0)
        # Those of this transaction are not there yet: they need not be looked for.
        before = self._state.getAll([root for root in known if txid_of(root) != txid])
        for root, bits in known.items():
            began = txid_of(root) == txid
            entry = None if began else before.get(root)
            if entry is None and not began:
                continue  # it has ended: a late ack changes nothing
            kinds = others.get(root, 0)
            if kinds & 1 << Kind.FAILED:  # failed wins, whatever the bits are
                if entry is not None:
                    self._state.delete(root)
                continue
            data = b""
            anew_ms = 0
            if entry is not None:
                found, anew_ms = _ENTRY.unpack_from(entry)
                bits ^= found
                data = entry[_ENTRY.size :]
            if bits == 0:
                if entry is not None:
                    self._state.delete(root)
                    acked.append(root)
                continue
            if began:
                held.append(root)
            if kinds & 1 << Kind.RESET:
                anew_ms = self.now_ms
            put[root] = _ENTRY.pack(bits, anew_ms) + self._ids.get(root, data)
        expired, due_ms = self._expire(put)  # before anything is put: a scan sorts what was changed
        if held:
            put[txid,] = self.now_ms
            due_ms = due_ms or self.now_ms + self._timeout_ms
        self._state.putAll(put)
        failed = {f"{TIMED_OUT} {self._timeout_ms / 1000:g} s": tuple(expired)} if expired else {}
        self.report = TreeReport(failed, tuple(acked), tuple(held), self._pending(), due_ms)

    def _expire(self, put: dict[Any, Any]) -> tuple[list[int], int]:
        """Forget the trees whose time is over, also in `put`; return them, and when the next one's is; 0: none's is."""
        expired: list[int] = []
        began_ms: dict[int, int] = {}
        due_ms = lowest = 0
        for root, entry in self._state.items(None, (0,)):  # shows what there was before these deletions
            txid = txid_of(root)
            if txid not in began_ms:
                began_ms[txid] = self._state[txid,]
            ends_ms = max(began_ms[txid], _ENTRY.unpack_from(put.get(root, entry))[1]) + self._timeout_ms
            if ends_ms <= self.now_ms and len(expired) < EXPIRED_MAX:
                expired.append(root)
                self._state.delete(root)
                put.pop(root, None)
                continue
            lowest = lowest or txid
            due_ms = min(due_ms or ends_ms, ends_ms)
            if began_ms[txid] + self._timeout_ms > self.now_ms:
                break  # those that follow began later
        for (txid,), _ in self._state.items((0,), (lowest,) if lowest else None):
            self._state.delete((txid,))
        return expired, due_ms

    def _pending(self) -> dict[str, tuple[tuple[int, bytes], ...]]:
        """Return, for spouts that begin, the ids of the trees that go on."""
        if not self._asked:
            return {}
        found: dict[bytes, list[tuple[int, bytes]]] = {asked: [] for asked in self._asked}
        left_bytes = PENDING_BYTES_MAX
        for root, entry in self._state.items(None, (0,)):
            spout, _, id = entry[_ENTRY.size :].partition(b"\0")
            if spout in found and left_bytes > 0:
                found[spout].append((root, id))
                left_bytes -= len(id) + 16
        return {spout.decode(): tuple(trees) for spout, trees in found.items()}
