"""An open transaction's changes so far, in memory, and state as it was committed when it began."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa

from statefx.operators.bolts import Stateful
from statefx.plan.deployment import Deployment
from statefx.protocol.identity import EMPTY, TaskId, Version
from statefx.runtime.user_objects import view_of
from statefx.state.contract.ranges import OrderedEntries, merge
from statefx.state.contract.store import Prepared, StateStore, Write
from statefx.state.view import task_state
from statefx.state.view.task_state import TaskState

Past = OrderedEntries[bytes | None]
"""Entries that other transactions have changed since a transaction began, as they were before; None: not there."""


class SnapshotStore(StateStore):
    """One component's state as committed when a transaction began; prepared writes stay here, as `writes`.

    The newest version is read through `current`, which returns another store after each commit, and `past` is laid over
    it. So a provider need not keep old versions, and all transactions share one open store. `entered` is held while the
    store is read; it refuses a transaction that has ended.
    """

    def __init__(
        self,
        current: Callable[[], StateStore],
        past: Past,
        entered: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self.writes: Sequence[Write] = ()
        self._current = current
        self._past = past
        self._entered = entered

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._entered():
            past = self._past.by_key
            if not past:
                return self._current().get(keys)
            left = [key for key in keys if key not in past]
            found = dict(zip(left, self._current().get(left), strict=True)) if left else {}
            return [past[key] if key in past else found[key] for key in keys]

    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        while True:
            with self._entered():
                store = self._current()
                rows = merge(self._past.between(start, stop, reverse), store.scan(start, stop, reverse), reverse)
            while True:
                with self._entered():
                    if self._current() is not store:  # another transaction was committed between two rows
                        break
                    row = next(rows, None)
                if row is None:
                    return
                if reverse:
                    stop = row[0]
                else:
                    start = row[0] + b"\x00"
                yield row

    def count(self, space: bytes) -> int | None:
        """Return how many keys of a space there were when the transaction began, if the provider counts them."""
        with self._entered():
            count = self._current().count(space)
            past = {key: value for key, value in self._past.by_key.items() if key[:1] == space}
            if count is None or not past:
                return count
            count -= sum(value is not None for value in self._current().get(list(past)))
            return count + sum(value is not None for value in past.values())

    def prepare(self, txid: int, token: str, writes: Sequence[Write]) -> Prepared:
        self.writes = writes
        return Prepared(token)

    def commit(self, txid: int, token: str) -> NoReturn:
        """Never called: the engine commits the writes."""
        raise NotImplementedError

    def rollback(self, txid: int, token: str) -> None:
        """Do nothing: no reader has seen the writes."""

    def close(self) -> None:
        """Do nothing: the store is the session's."""


class TransactionBuffer:
    """The rows and the changes of state of one open transaction. Nothing of it is in the log, at a sink or in a store.

    `since` is when it began, by the session's clock. `txid` is the number under which it was committed, or was tried to
    be, 0 before that; `number` its place in the order in which the session's transactions began. `failure` is a failed
    read, which leaves only a rollback. `touched`: there is something to commit, be it only what was read. `rows` are by
    sink; `received`, `acked` and `nacked` are ids of messages by queue, the last given back and not received again.

    * First committer wins: of two transactions that were open at one time and have written one key, the second one to
      commit has a conflict (`conflict`).
    * Reads show the state as committed when it began, and its own changes.
    """

    def __init__(self, deployment: Deployment, versions: Mapping[str, Version], since: float) -> None:
        self.since = since
        self.txid = self.number = 0
        self.failure: Exception | None = None
        self.touched = False
        self.rows: dict[str, list[pa.RecordBatch]] = {}
        self.received: defaultdict[str, set[Any]] = defaultdict(set)
        self.acked: defaultdict[str, set[Any]] = defaultdict(set)
        self.nacked: defaultdict[str, set[Any]] = defaultdict(set)
        self._deployment = deployment
        self._versions = versions
        self._past: dict[str, Past] = {}
        self._stores: dict[str, SnapshotStore] = {}
        self._states: dict[str, TaskState] = {}

    def send(self, sink: str, batches: list[pa.RecordBatch]) -> None:
        self.touched = True
        self.rows.setdefault(sink, []).extend(batches)

    def state(
        self,
        component: str,
        current: Callable[[], StateStore],
        entered: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> TaskState:
        """Return the state of a component; the parameters are those of `SnapshotStore`."""
        if component not in self._states:
            self.touched = True
            task = TaskId(component, 0)
            version = self._versions.get(str(task), EMPTY)
            store = SnapshotStore(current, self._past.setdefault(component, OrderedEntries()), entered)
            bolt = self._deployment.plan.components[component].operator
            assert isinstance(bolt, Stateful)
            self._states[component] = view_of(
                self._deployment, task, bolt, version.txid, lambda: store, version=version
            )
            self._stores[component] = store
        return self._states[component]

    def writes(self) -> dict[str, Sequence[Write]]:
        """Return its writes to each component; raises what a read has raised. Nothing can be changed after."""
        for state in self._states.values():
            task_state.prepare(state, state.version.txid + 1, "buffered")
        return {component: store.writes for component, store in self._stores.items()}

    def conflict(self, writes: Mapping[str, Sequence[Write]]) -> tuple[str, object] | None:
        """Return a component and a key of `writes` that another transaction has changed since this one began."""
        for component, entries in writes.items():
            for key, _ in entries:
                if key in self._past[component].by_key:
                    return component, task_state.key_of(self._states[component], key)
        return None

    def overtaken(self, before: Mapping[str, Sequence[Write]]) -> None:
        """Note entries that another transaction has changed, as they were `before`, by component."""
        for component, entries in before.items():
            past = self._past.setdefault(component, OrderedEntries())
            new = [(key, value) for key, value in entries if key not in past.by_key]
            past.apply([key for key, _ in new], [value for _, value in new])

    def close(self) -> None:
        """Forget all of it."""
        for state in self._states.values():
            task_state.close(state)
        self.rows.clear()
        self._past.clear()
