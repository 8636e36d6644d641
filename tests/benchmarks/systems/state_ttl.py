"""What a put costs in a map with a ttl and in one without, in a task that lives, without Spark.

``same``: the same keys are put in each transaction. ``new``: each key is new, and none is over yet. ``over``: each key
is new, and ten transactions later it is over and removed; without a ttl, the bolt deletes it then. Counted is the
processor time of one process for put, prepare and going on to the next transaction, in milliseconds for each 1,000
puts; each batch is a turn with a store of its own.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

from measuring import arguments, latency

from statefx.state import EMPTY, Version
from statefx.state.registry import load_provider
from statefx.state.view import task_state
from statefx.state.view.task_state import TaskState
from statefx.testing.site import Site

TRANSACTIONS, ALIVE = 40, 10


def turn(provider: str, what: str, ttl: float | None, puts: int) -> float:
    """Return milliseconds of processor time for each 1,000 puts."""
    with tempfile.TemporaryDirectory() as folder:
        site = Site(load_provider(provider, {}), Path(folder))
        keys = [f"user-{number:07}" for number in range(TRANSACTIONS * puts)]
        random.Random(3).shuffle(keys)
        state = TaskState(site.open(EMPTY), clock_ms=0)
        started = time.process_time()
        for txid in range(1, TRANSACTIONS + 1):
            recent = state.map("recent") if ttl is None else state.map("recent", ttl=ttl)
            end = puts if what == "same" else txid * puts
            for key in keys[end - puts : end]:
                recent.put(key, f"page-{txid:015}")
            if what == "over" and ttl is None and txid > ALIVE:
                for key in keys[(txid - ALIVE - 1) * puts : (txid - ALIVE) * puts]:
                    recent.delete(key)
            version = Version(txid, f"t{txid}")
            task_state.prepare(state, txid, version.token)
            heir = task_state.succeeded(state, lambda version=version: site.open(version), txid * 100)
            assert heir is not None
            state = heir
        spent = time.process_time() - started
        site.close()
    return spent / (TRANSACTIONS * puts) * 1e6


def main() -> None:
    """Measure some turns."""
    parser = arguments(__doc__)
    parser.add_argument("--provider", choices=["memory", "rocksdb"], required=True)
    parser.add_argument("--what", choices=["same", "new", "over"], required=True)
    parser.add_argument("--ttl", action="store_true")
    args = parser.parse_args()
    ttl = None if not args.ttl else 0.1 * ALIVE if args.what == "over" else 3600.0
    spans = [turn(args.provider, args.what, ttl, args.rows) for _ in range(args.warmup + args.batches)]
    latency(args, spans, provider=args.provider, what=args.what, ttl=args.ttl)


if __name__ == "__main__":
    main()
