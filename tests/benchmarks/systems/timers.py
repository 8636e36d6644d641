"""Timers of one task, without Spark: to set them, and to fire some of many, beside as many puts of new keys.

In turns, by provider, on one state that holds `--rows` timers: 10,000 new keys are put, 10,000 timers are set, and the
first 10,000 fire. Each is a transaction of its own, with its prepare. Counted is the processor time, in ms.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from itertools import count

from measuring import arguments, take_turns

from statefx import KeyValueState
from statefx.state import EMPTY
from statefx.state.registry import load_provider
from statefx.state.view.time_index import EPOCH, Clock, Timers, fire, micros
from statefx.testing.site import Site

EACH = 10_000

parser = arguments(__doc__)
parser.add_argument("--turns", type=int, default=5)
args = parser.parse_args()


def at(number: int) -> datetime:
    """Return when a timer is due."""
    return EPOCH + timedelta(seconds=number)


class Task:
    """The state of a task, and its timers."""

    def __init__(self, provider: str) -> None:
        self.site = Site(load_provider(provider, {}), args.work / provider)
        self.version = EMPTY
        self.numbers = count()
        self.fired = 0
        self.set(0, args.rows)

    def transaction(self, run: Callable[[KeyValueState], object]) -> list[float]:
        """Run a transaction; return the milliseconds that it took, without opening the state and the first look."""
        state = KeyValueState(self.site.open(self.version), version=self.version)
        next(fire(Timers(state), Clock.EVENT, -1), None)
        began = time.process_time()
        run(state)
        state.prepareCommit(self.version.txid + 1)
        ms = (time.process_time() - began) * 1000
        state.commit(self.version.txid + 1)
        self.version = state.version
        state.close()
        return [ms]

    def put(self, turn: int) -> list[float]:
        """Put new keys."""

        def run(state: KeyValueState) -> None:
            for number in range(EACH):
                state.put(f"new-{turn}-{number}", number)

        return self.transaction(run)

    def set(self, turn: int, rows: int = EACH) -> list[float]:
        """Set timers of new keys, later than all others."""

        def run(state: KeyValueState) -> None:
            timers = Timers(state)
            for _ in range(rows):
                number = next(self.numbers)
                timers.set(f"key-{number}", at(number), number)

        return self.transaction(run)

    def fire(self, turn: int) -> list[float]:
        """Fire the first ones."""
        self.fired += EACH

        def run(state: KeyValueState) -> None:
            fired = sum(1 for _ in fire(Timers(state), Clock.EVENT, micros(at(self.fired - 1))))
            if fired != EACH:
                raise RuntimeError(f"{fired} timers fired")

        return self.transaction(run)


systems: dict[str, Callable[[int], list[float]]] = {}
for provider in ("memory", "rocksdb"):
    task = Task(provider)
    systems |= {
        f"{provider}: {EACH:,} keys are put": task.put,
        f"{provider}: {EACH:,} timers are set": partial(task.set, rows=EACH),
        f"{provider}: {EACH:,} timers fire": task.fire,
    }
references = [name for name in systems if name.endswith("put")]
take_turns(args, systems, args.turns, references=references)
