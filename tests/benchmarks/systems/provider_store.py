"""What a provider takes for one task's transaction, without Spark: keys read, then the same keys written and committed.

``reads`` is the time of the multi-gets, each of an Arrow batch's keys. ``commits`` is the rest of what a worker does:
open the state at the committed version, prepare, commit, close. A cold worker is a process that has not opened the
state before; its imports are not counted.
"""

from __future__ import annotations

import multiprocessing
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from measuring import arguments, latency

from statefx.state.contract.store import EMPTY, Namespace, StateContext, StateProvider, Version
from statefx.state.registry import load_provider
from statefx.storage import FolderStorage
from tests.providers.redis_server import RedisServer

BATCH_KEYS = 10_000
LOAD_KEYS = 500_000


class Place:
    """Where the state of the one task is."""

    def __init__(self, folder: Path, name: str, options: dict[str, Any]) -> None:
        self.folder = folder
        self.name = name
        self.options = options
        self.namespace = Namespace(uuid.uuid4().hex, "count", 0)

    def provider(self) -> StateProvider:
        """A provider as a worker builds it."""
        return load_provider(self.name, self.options)

    def context(self, version: Version) -> StateContext:
        """Where a worker opens `version`."""
        return StateContext(1, version, FolderStorage(self.folder), str(self.folder / "cache"))


def transact(provider: StateProvider, place: Place, before: Version, keys: list[bytes]) -> tuple[Version, float, float]:
    """Read `keys`, change and commit them; the new version, and the times of both in ms."""
    started = time.perf_counter()
    store = provider.newState(place.namespace, place.context(before))
    reading = time.perf_counter()
    values = []
    for start in range(0, len(keys), BATCH_KEYS):
        values += store.get(keys[start : start + BATCH_KEYS])
    read = time.perf_counter() - reading
    writes = sorted((key, b"%d" % (int(value or b"0") + 1)) for key, value in zip(keys, values, strict=True))
    writing = time.perf_counter()
    txid = before.txid + 1
    token = store.prepare(txid, uuid.uuid4().hex, writes).token
    store.commit(txid, token)
    store.close()
    wrote = time.perf_counter() - writing + (reading - started)
    return Version(txid, token), read * 1000, wrote * 1000


def cold(place: Place, before: Version, keys: list[bytes]) -> tuple[Version, float, float]:
    """As `transact`, in a process that ends afterwards."""
    return transact(place.provider(), place, before, keys)


def names(numbers: Any) -> list[bytes]:
    """The keys with these numbers."""
    return [b"word-%09d" % number for number in numbers]


def main() -> None:
    """Fill the state, then measure."""
    parser = arguments(__doc__)
    parser.add_argument("--provider", choices=["memory", "rocksdb", "redis"], required=True)
    parser.add_argument("--worker", choices=["warm", "cold"], default="warm")
    parser.add_argument("--part", choices=["reads", "commits", "both"], default="both")
    args = parser.parse_args()
    with ExitStack() as stack:
        options = {}
        if args.provider == "redis":
            options = {"url": stack.enter_context(RedisServer(appendonly="no")).url}
        place = Place(args.work, args.provider, options)
        provider = place.provider()
        provider.fence(place.namespace.lineage, 1, FolderStorage(args.work))
        version = EMPTY
        for start in range(0, args.keys, LOAD_KEYS):
            version, *_ = transact(provider, place, version, names(range(start, min(start + LOAD_KEYS, args.keys))))
        spans = []
        for batch in range(args.warmup + args.batches):
            drawn = names(np.random.default_rng([args.keys, batch]).choice(args.keys, args.rows, replace=False))
            if args.worker == "warm":
                version, read, wrote = transact(provider, place, version, drawn)
            else:
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    version, read, wrote = pool.apply(cold, (place, version, drawn))
            spans.append({"reads": read, "commits": wrote, "both": read + wrote}[args.part])
    latency(args, spans, provider=args.provider, worker=args.worker, part=args.part)


if __name__ == "__main__":
    main()
