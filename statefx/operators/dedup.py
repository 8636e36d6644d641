"""Drops messages that a spout hands out again: their ids are kept in state, for a while.

It is a stateful bolt between a spout and all that reads from it, made by statefx, with its state in the topology's own
provider. So an id is kept if, and only if, what was made of its message is committed.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from statefx.operators.bolts import BatchBolt, ReadyMade
from statefx.operators.context import Collector
from statefx.protocol.topology_identity import StateLayout
from statefx.state.view.time_index import TTL_MAX_MS

DEDUP = "__dedup-"
"""Before the name of a spout: the bolt that drops what comes again."""

ID = pa.field("__id", pa.binary())
"""Behind the fields of a spout's rows: the id of the message; null if it has none."""

IDS = "ids"
"""The map in which ids are kept."""


class Dedup(ReadyMade, BatchBolt):
    """Passes on the rows of messages whose ids it has not seen in the last `secs`."""

    def __init__(self, secs: float) -> None:
        self._secs = min(secs, TTL_MAX_MS / 1000)

    def _layout(self, fields: int) -> StateLayout:
        return StateLayout("ids", "ids of messages", keys={f"map {IDS}": ((),)})

    def initState(self, state: Any) -> None:
        """Begin a transaction."""
        self._ids = state.map(IDS, ttl=self._secs)

    def executeBatch(self, batch: Any, collector: Collector) -> None:
        """Pass on what is new."""
        length = batch.num_columns - 1
        ids = batch.column(length).to_pylist()
        known: set[bytes | None] = set(self._ids.getAll([id for id in ids if id is not None]))
        fresh = []
        for id in ids:
            fresh.append(id is None or id not in known)
            known.add(id)
        rows = batch.select(range(length))
        if not all(fresh):
            rows = rows.filter(pa.array(fresh))
        if rows.num_rows:
            collector.emitBatch(rows, stream=batch.schema.metadata[b"stream"].decode())
        self._ids.putAll({id: True for id, is_new in zip(ids, fresh, strict=True) if is_new and id is not None})
