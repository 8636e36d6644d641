"""What a bolt's reads and writes of state take in one task's transaction, without Spark.

``--what plain`` is one get and one put a row, ``scans`` one put and one scan of the about ten keys that begin alike,
``first`` one put and the first entry of all. Counted is all that a worker does: open the state at the committed
version, the rows, prepare, commit, close.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
from measuring import arguments, latency

from statefx import KeyValueState
from statefx.state.contract.store import EMPTY, Namespace, StateContext, Version
from statefx.state.registry import load_provider
from statefx.storage import FolderStorage
from tests.providers.redis_server import RedisServer

ALIKE = 10
LOAD_KEYS = 100_000


def plain(state: KeyValueState, numbers: list[int]) -> None:
    """As a count does."""
    get, put = state.get, state.put
    for number in numbers:
        key = number // ALIKE, number
        put(key, get(key, 0) + 1)


def scans(state: KeyValueState, numbers: list[int]) -> None:
    """As a list or a window does."""
    put, items = state.put, state.items
    for number in numbers:
        group = number // ALIKE
        put((group, number), 1)
        assert list(items((group,), (group + 1,)))


def first(state: KeyValueState, numbers: list[int]) -> None:
    """As timers do."""
    put, items = state.put, state.items
    for number in numbers:
        put((number // ALIKE, number), 1)
        assert next(items())


WHAT: dict[str, Callable[[KeyValueState, list[int]], None]] = {"plain": plain, "scans": scans, "first": first}


def main() -> None:
    """Fill the state, then measure."""
    parser = arguments(__doc__)
    parser.add_argument("--provider", choices=["memory", "rocksdb", "redis"], required=True)
    parser.add_argument("--what", choices=WHAT, required=True)
    args = parser.parse_args()
    with ExitStack() as stack:
        options: dict[str, Any] = {}
        if args.provider == "redis":
            options = {"url": stack.enter_context(RedisServer(appendonly="no")).url}
        provider = load_provider(args.provider, options)
        namespace = Namespace(uuid.uuid4().hex, "count", 0)
        storage = FolderStorage(args.work)
        provider.fence(namespace.lineage, 1, storage)
        version = EMPTY

        def transact(change: Callable[[KeyValueState, list[int]], None], numbers: list[int]) -> tuple[Version, float]:
            started = time.perf_counter()
            store = provider.newState(namespace, StateContext(1, version, storage, str(args.work / "cache")))
            state = KeyValueState(store, version=version)
            change(state, numbers)
            state.prepareCommit(version.txid + 1)
            state.commit(version.txid + 1)
            state.close()
            return state.version, (time.perf_counter() - started) * 1000

        for start in range(0, args.keys, LOAD_KEYS):
            version, _ = transact(plain, list(range(start, min(start + LOAD_KEYS, args.keys))))
        spans = []
        for batch in range(args.warmup + args.batches):
            random = np.random.default_rng([args.keys, batch])
            version, span = transact(WHAT[args.what], random.choice(args.keys, args.rows).tolist())
            spans.append(span)
    latency(args, spans, provider=args.provider, what=args.what)


if __name__ == "__main__":
    main()
