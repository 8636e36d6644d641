"""How many random lives a test plays: as many as a budget of processor time has room for."""

import os
import time
from collections.abc import Iterator
from itertools import count


def seeds(secs: float, at_least: int = 2) -> Iterator[int]:
    """Yield seeds until this process has worked for `secs`; the last one that a failed test has printed is its own.

    The first one is the time, so that each run plays others, or the environment's ``STATEFX_SEED``.
    """
    first = int(os.environ.get("STATEFX_SEED") or time.time_ns() // 1_000_000 % 1_000_000_000)
    end = time.process_time() + secs
    for seed in count(first):
        if seed >= first + at_least and time.process_time() > end:
            return
        print(f"STATEFX_SEED={seed}")  # noqa: T201 - pytest shows it where a test fails
        yield seed
