"""The acker alone, on RocksDB, without Spark: what it takes to know of messages that bolts hold.

In turns, each in its own state, in transactions of 100,000 messages: they are held; they are acked in the transaction
after; they time out; 1,000 of those that are held are acked, here and there. And two transactions in which
100 trees are held and acked, of 10 tuples or of 10,000, by one task. Counted are the acker's
task, its state and its files, in processor time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace

import pyarrow as pa
from measuring import arguments, take_turns

from statefx.operators.acker import TreeEvent
from statefx.protocol.reports import root_of
from statefx.runtime.trees import Trees
from tests.operators.acker_life import BEGIN_MS, TIMEOUT_MS, Life, batch_of

EACH, SOME, TREES = 100_000, 1_000, 100

parser = arguments(__doc__)
parser.add_argument("--turns", type=int, default=3)
args = parser.parse_args()
messages = max(2 * args.rows // EACH, 1) * EACH
chance = random.Random(1)
sizes: dict[str, float] = {}


def begun(name: str) -> Life:
    """Return an acker that knows of nothing."""
    return Life(args.work / f"{name}-{chance.getrandbits(64):x}", "rocksdb")


def batches(kind: TreeEvent, roots: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield what tasks say of messages, by transaction; of each that one tuple is held, or no longer."""
    for first in range(0, len(roots), EACH):
        yield batch_of([(root, kind, root ^ 1 << 62, None) for root in roots[first : first + EACH]])


def taken(life: Life, said: Sequence[pa.RecordBatch], now_ms: int = BEGIN_MS) -> list[float]:
    """Run a transaction for each batch; return how many milliseconds of the processor they took."""
    found = []
    for batch in said:
        began = time.process_time()
        life.attempt([batch], now_ms)
        life.commit()
        found.append((time.process_time() - began) * 1000)
    return found


def filled(name: str) -> tuple[Life, list[int], list[float]]:
    """Have all messages held; return the acker, their roots, and the milliseconds."""
    life = begun(name)
    roots = [root_of(1 + place // EACH, 0, place % EACH) for place in range(messages)]
    ms = taken(life, list(batches(TreeEvent.HELD, roots)))
    sizes["state_bytes_a_message"] = life.size_bytes() / messages
    return life, roots, ms


def held(turn: int) -> list[float]:
    """Have them held."""
    return filled("held")[2]


def acked(turn: int) -> list[float]:
    """Have them acked, in the order in which they came."""
    life, roots, _ = filled("acked")
    return taken(life, list(batches(TreeEvent.RELEASED, roots)))


def scattered(turn: int) -> list[float]:
    """Have some of them acked in each transaction, in no order."""
    life, roots, _ = filled("scattered")
    chosen = chance.sample(roots, min(10 * SOME, messages))
    said = [next(batches(TreeEvent.RELEASED, chosen[first : first + SOME])) for first in range(0, len(chosen), SOME)]
    return taken(life, said)


def timed_out(turn: int) -> list[float]:
    """Have them time out."""
    life, _, _ = filled("timed-out")
    found: list[float] = []
    while life.size_bytes():
        found += taken(life, [batch_of([])], BEGIN_MS + TIMEOUT_MS)
    return found


def trees(tuples: int, turn: int) -> list[float]:
    """Have trees of so many tuples held, and acked in the transaction after."""
    life = begun("trees")
    roots = [root_of(1, 0, place) for place in range(TREES)]
    said: list[list[pa.RecordBatch]] = [[], []]
    for root in roots:
        each = [SimpleNamespace() for _ in range(tuples)]
        before, after = (Trees("bolt", by_hand=True, acker=True) for _ in range(2))
        for tup in each:
            before.begin(tup, root)
        said[0].append(before.rows())
        for tup in each:
            after.ack(tup)
        said[1].append(after.rows())
    tables = [pa.Table.from_batches(batches).combine_chunks() for batches in said]
    found = taken(life, [table.to_batches()[0] for table in tables])
    if life.size_bytes() or [table.num_rows for table in tables] != [TREES, TREES]:
        raise RuntimeError(f"{life.size_bytes()} bytes are left")
    return [sum(found)]


SYSTEMS: dict[str, Callable[[int], list[float]]] = {
    "100,000 are held": held,
    "100,000 are acked": acked,
    "100,000 time out": timed_out,
    f"{SOME:,} are acked, here and there": scattered,
    f"{TREES} trees of 10 tuples": partial(trees, 10),
    f"{TREES} trees of 10,000 tuples": partial(trees, 10_000),
}
take_turns(args, SYSTEMS, args.turns, references=("100,000 are held",), **sizes)
