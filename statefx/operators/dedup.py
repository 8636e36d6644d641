"""Drops messages that a spout hands out again: their ids are kept in state, for a while.

It is a stateful bolt between a spout and all that reads from it, made by statefx, with its state in the topology's own
provider. So an id is kept if, and only if, what was made of its message is committed.

Ids lie in windows of time as long as they are to be kept, and are looked for in the present window and in the one
before: an id is kept for once to twice that time, a window is dropped whole, and each id is written once.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import pyarrow as pa

from statefx.operators.bolts import BatchBolt, Stateful
from statefx.operators.collector import Collector

DEDUP = "__dedup-"
"""Before the name of a spout: the bolt that drops what comes again."""

ID = pa.field("__id", pa.binary())
"""Behind the fields of a spout's rows: the id of the message; null if it has none."""

EXPIRED_MAX = 100_000
"""Ids that are dropped in one transaction; the others follow with the next ones."""

_WINDOW = 0
"""Key of the newest window up to which all older ones were dropped."""


class Dedup(Stateful, BatchBolt):
    """Passes on the rows of messages whose ids it has not seen.

    State: by ``(window, id)``, where a window is a number of times the length of one since the epoch.

    Attributes
    ----------
    now_ms : int
        The time of the attempt, set before the first row.
    """

    def __init__(self, secs: float) -> None:
        self._length_ms = max(1, int(secs * 1000))
        self.now_ms = 0

    def initState(self, state: Any) -> None:
        """Begin a transaction."""
        self._state = state

    def executeBatch(self, batch: Any, collector: Collector) -> None:
        """Pass on what is new."""
        window, length = self._window(), batch.num_columns - 1
        ids = batch.column(length).to_pylist()
        known: set[bytes | None] = set()
        for each in (window, window - 1):
            known.update(id for _, id in self._state.getAll([(each, id) for id in ids if id is not None]))
        fresh = []
        for id in ids:
            fresh.append(id is None or id not in known)
            known.add(id)
        rows = batch.select(range(length))
        if not all(fresh):
            rows = rows.filter(pa.array(fresh))
        if rows.num_rows:
            collector.emitBatch(rows, stream=batch.schema.metadata[b"stream"].decode())
        self._state.putAll({(window, id): True for id, new in zip(ids, fresh, strict=True) if new and id is not None})

    def finishBatch(self, collector: Collector) -> None:
        """Drop windows that are over."""
        window = self._window()
        if self._state.get(_WINDOW) == window:
            return
        over = [key for key, _ in islice(self._state.items((0,), (window - 1,)), EXPIRED_MAX)]
        for key in over:
            self._state.delete(key)
        if len(over) < EXPIRED_MAX:
            self._state.put(_WINDOW, window)

    def _window(self) -> int:
        """Return the present window; never an earlier one than before, whatever the clock does."""
        return max(self.now_ms // self._length_ms, self._state.get(_WINDOW) or 0)
