"""One task of an acker on real state, transaction after transaction, without a topology around it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from statefx.operators.acker import ROWS, Acker, key_of, place_of
from statefx.protocol.reports import TreeReport
from statefx.state.contract.store import EMPTY, Namespace, StateContext, StateStore
from statefx.state.registry import load_provider
from statefx.state.view import task_state
from statefx.state.view.task_state import TaskState
from statefx.state.view.time_index import time_of
from statefx.storage import FolderStorage

TIMEOUT_MS = 30_000
BEGIN_MS = 1_700_000_000_000

Row = tuple[int, int, int, bytes | None]


class Life:
    """A task of the acker."""

    def __init__(self, place: Path, provider: str = "memory", tasks: int = 1) -> None:
        self.provider, self.place = load_provider(provider, {}), place
        self.namespace, self.storage = Namespace(uuid.uuid4().hex, "__acker", 0), FolderStorage(place)
        self.provider.fence(self.namespace.lineage, 1, self.storage)
        self.version, self.context = EMPTY, SimpleNamespace(txid=0, parallelism=tasks)
        self.acker = Acker(TIMEOUT_MS / 1000)
        self.acker.open(self.context)
        self.state = self.opened()

    def store(self) -> StateStore:
        context = StateContext(1, self.version, self.storage, str(self.place / "cache"))
        return self.provider.newState(self.namespace, context)

    def opened(self) -> TaskState:
        return TaskState(self.store(), version=self.version)

    def restart(self) -> None:
        """Begin anew at what is committed, as after a rollback or a crash."""
        task_state.close(self.state)
        self.state = self.opened()

    def attempt(self, batches: Iterable[pa.RecordBatch], now_ms: int) -> TreeReport:
        """Run an attempt of the next transaction, up to its report."""
        self.context.txid = self.version.txid + 1
        self.context.processingTime = time_of(now_ms * 1000)
        self.acker.initState(self.state)
        for batch in batches:
            self.acker.executeBatch(batch, None)
        self.acker.finishBatch(None)
        return self.acker.report

    def commit(self) -> None:
        task_state.prepare(self.state, self.context.txid, uuid.uuid4().hex)
        self.version = task_state.prepared(self.state)
        self.state = task_state.succeeded(self.state, self.store, 0) or self.opened()

    def transact(self, rows: Iterable[Row] = (), now_ms: int = BEGIN_MS) -> TreeReport:
        report = self.attempt([batch_of(rows)], now_ms)
        self.commit()
        return report

    def size_bytes(self) -> int:
        """Return how many bytes of keys and values its state has."""
        return sum(len(key) + len(value) for key, value in self.state._store.scan(None, None))


def batch_of(rows: Iterable[Row]) -> pa.RecordBatch:
    """Return (root, kind, number, data) as a task sends it."""
    placed = [(key_of(root), place_of(root), *said) for root, *said in rows]
    columns: list[Any] = list(zip(*placed, strict=True)) or [()] * len(ROWS)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS)
