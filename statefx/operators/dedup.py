"""Drops messages that a spout hands out again: their ids are kept in state, for a while.

It is a stateful bolt between a spout and all that reads from it, made by statefx, with its state in the topology's own
provider. So an id is kept if, and only if, what was made of its message is committed.

Ids lie in windows of time, each as long as they are to be kept, and a window is dropped whole when its end is so long
ago. So an id is kept for at least that time and for twice that time at most, and is written once.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import pyarrow as pa

from statefx.operators.bolts import BatchBolt, Stateful
from statefx.operators.context import Collector

DEDUP = "__dedup-"
"""Before the name of a spout: the bolt that drops what comes again."""

ID = pa.field("__id", pa.binary())
"""Behind the fields of a spout's rows: the id of the message; null if it has none."""

EXPIRED_MAX = 100_000
"""Ids that are dropped in one transaction; the others follow with the next ones."""

WINDOWS = 0
"""Key of the windows that there are: begin and end of each, in milliseconds, in their order."""


class Dedup(Stateful, BatchBolt):
    """Passes on the rows of messages whose ids it has not seen.

    State: by ``(window, id)``, where a window is called by when it began.

    Attributes
    ----------
    now_ms : int
        The time of the attempt, set before the first row. Where it goes back, no id is forgotten for that.
    """

    def __init__(self, secs: float) -> None:
        self._length_ms = max(1, int(secs * 1000))
        self.now_ms = 0

    def initState(self, state: Any) -> None:
        """Begin a transaction."""
        self._state = state

    def executeBatch(self, batch: Any, collector: Collector) -> None:
        """Pass on what is new."""
        windows, length = self._windows(), batch.num_columns - 1
        ids = batch.column(length).to_pylist()
        asked = [id for id in ids if id is not None]
        known: set[bytes | None] = set()
        for begin, end in windows:
            if not self._is_over(end):
                known.update(id for _, id in self._state.getAll([(begin, id) for id in asked]))
        fresh = []
        for id in ids:
            fresh.append(id is None or id not in known)
            known.add(id)
        rows = batch.select(range(length))
        if not all(fresh):
            rows = rows.filter(pa.array(fresh))
        if rows.num_rows:
            collector.emitBatch(rows, stream=batch.schema.metadata[b"stream"].decode())
        new = {(windows[-1][0], id): True for id, is_new in zip(ids, fresh, strict=True) if is_new and id is not None}
        self._state.putAll(new)

    def finishBatch(self, collector: Collector) -> None:
        """Drop windows that are over."""
        windows = self._windows()
        while self._is_over(windows[0][1]):
            begin = windows[0][0]
            over = [key for key, _ in islice(self._state.items((begin,), (begin + 1,)), EXPIRED_MAX)]
            for key in over:
                self._state.delete(key)
            if len(over) == EXPIRED_MAX:
                return
            windows = windows[1:]
            self._state.put(WINDOWS, windows)

    def _is_over(self, end: int) -> bool:
        return end + self._length_ms <= self.now_ms

    def _windows(self) -> tuple[tuple[int, int], ...]:
        """Return the windows; the last one is the present."""
        windows: tuple[tuple[int, int], ...] = self._state.get(WINDOWS) or ()
        if not windows or windows[-1][1] <= self.now_ms:
            begin = max(self.now_ms, windows[-1][0] + 1 if windows else 0)
            windows = (*windows, (begin, begin + self._length_ms))
            self._state.put(WINDOWS, windows)
        return windows
