"""The pairs that `provider_store` reads and writes, by pipelined HMGET and HSET of a plain client: no transactions."""

from __future__ import annotations

import time

import numpy as np
from measuring import arguments, latency

from tests.providers.redis_server import RedisServer

CHUNK_KEYS = 1000


def main() -> None:
    """Fill the hash, then measure."""
    parser = arguments(__doc__)
    parser.add_argument("--part", choices=["reads", "commits"], required=True)
    args = parser.parse_args()
    with RedisServer(appendonly="no") as server:
        client = server.client()
        spans = []
        everything = np.arange(args.keys)
        for batch in range(-1, args.warmup + args.batches):
            drawn = everything
            if batch >= 0:
                drawn = np.random.default_rng([args.keys, batch]).choice(args.keys, args.rows, replace=False)
            keys = [b"word-%09d" % number for number in drawn]
            started = time.perf_counter()
            pipeline = client.pipeline(transaction=False)
            for start in range(0, len(keys), CHUNK_KEYS):
                pipeline.hmget("counts", keys[start : start + CHUNK_KEYS])
            values = [value for part in pipeline.execute() for value in part]
            read = time.perf_counter() - started
            pairs = {key: b"%d" % (int(value or b"0") + 1) for key, value in zip(keys, values, strict=True)}
            started = time.perf_counter()
            items = list(pairs.items())
            for start in range(0, len(items), CHUNK_KEYS):
                pipeline.hset("counts", items=[part for pair in items[start : start + CHUNK_KEYS] for part in pair])
            pipeline.execute()
            wrote = time.perf_counter() - started
            if batch >= 0:
                spans.append((read if args.part == "reads" else wrote) * 1000)
    latency(args, spans, part=args.part)


if __name__ == "__main__":
    main()
