"""The durable steps of a driver and its tasks, counted, so that any of them can be made the last one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from statefx.coordinator.log import TransactionLog
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Record
from statefx.state.contract.store import (
    Namespace,
    Prepared,
    Retention,
    SnapshotRef,
    StateContext,
    StateProvider,
    StateStore,
    Write,
)
from statefx.storage import Storage
from statefx.testing.crashes import Crash


class Steps:
    """Moments before and after each durable step, in the order in which they came.

    Parameters
    ----------
    crash_at : int, optional
        The moment, counted from 1, at which `Crash` is raised; from then on at every moment.

    Attributes
    ----------
    passed : list of str
        Such as ``before PREPARING(1, 0)`` or ``after prepare count/0 for 1``.
    crashed : str or None
        The moment of the crash.
    """

    def __init__(self, crash_at: int | None = None) -> None:
        self.passed: list[str] = []
        self.crashed: str | None = None
        self._crash_at = crash_at
        self._waiting: dict[str, list[Callable[[], object]]] = {}

    def when(self, moment: str, do: Callable[[], object]) -> None:
        """Call `do` when `moment` next comes, once."""
        self._waiting.setdefault(moment, []).append(do)

    @contextlib.contextmanager
    def around(self, step: str) -> Iterator[None]:
        """Pass the moments before and after `step`; there is no after for one that raises."""
        self._pass(f"before {step}")
        yield
        self._pass(f"after {step}")

    def _pass(self, moment: str) -> None:
        if self.crashed is not None:
            raise Crash(f"crashed {self.crashed}")
        self.passed.append(moment)
        if len(self.passed) == self._crash_at:
            self.crashed = moment
            raise Crash(moment)
        self.call(moment)

    def call(self, moment: str) -> None:
        """Call what waits for `moment`."""
        for do in self._waiting.pop(moment, ()):
            do()


class SteppedLog(TransactionLog):
    """A transaction log whose appends are steps."""

    def __init__(self, storage: Storage, steps: Steps, limit: int) -> None:
        super().__init__(storage, limit)
        self._steps = steps

    def _append(self, record: Record, after: LogState, text: str) -> int:
        with self._steps.around(_named(record)):
            return super()._append(record, after, text)


def _named(record: Record) -> str:
    numbers = [str(getattr(record, name)) for name in ("txid", "attempt") if hasattr(record, name)]
    if record.kind == "GENERATION":
        numbers = [str(getattr(record, "generation", ""))]
    return f"{record.kind}({', '.join(numbers)})" if numbers else record.kind


class SteppedProvider(StateProvider):
    """A state provider whose durable calls are steps."""

    def __init__(self, inner: StateProvider, steps: Steps) -> None:
        super().__init__(inner.options)
        self.capabilities = inner.capabilities  # type: ignore[misc]  # those of the provider it stands before
        self._inner = inner
        self._steps = steps

    def newState(self, namespace: Namespace, context: StateContext) -> StateStore:
        """Open a store whose durable calls are steps."""
        return _SteppedStore(self._inner.newState(namespace, context), str(namespace.id), self._steps)

    def fence(self, lineage: str, generation: int, storage: Storage) -> None:
        """Fence, as one step."""
        with self._steps.around(f"fence {generation}"):
            self._inner.fence(lineage, generation, storage)

    def artefacts(self, namespace: Namespace, storage: Storage) -> Sequence[Any]:
        """List, which changes nothing."""
        return self._inner.artefacts(namespace, storage)

    def sweep(self, namespace: Namespace, storage: Storage, found: Sequence[Any], retained: Retention) -> int:
        """Sweep; every deletion is a step."""
        with self._deletions(str(namespace.id)):
            return self._inner.sweep(namespace, storage, found, retained)

    @contextlib.contextmanager
    def _deletions(self, name: str) -> Iterator[None]:
        unlink = os.unlink

        def step(path: Any, **named: Any) -> None:
            with self._steps.around(f"delete {name}"):
                unlink(path, **named)

        os.unlink = step
        try:
            yield
        finally:
            os.unlink = unlink


class _SteppedStore(StateStore):
    def __init__(self, inner: StateStore, name: str, steps: Steps) -> None:
        self._inner = inner
        self._name = name
        self._steps = steps

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._inner.get(keys)

    def scan(self, start: bytes | None, stop: bytes | None, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self._inner.scan(start, stop, reverse)

    def count(self, space: bytes) -> int | None:
        return self._inner.count(space)

    def prepare(self, txid: int, token: str, writes: Sequence[Write]) -> Prepared:
        with self._steps.around(f"prepare {self._name} for {txid}"):
            return self._inner.prepare(txid, token, writes)

    def commit(self, txid: int, token: str) -> None:
        with self._steps.around(f"commit {self._name} for {txid}"):
            self._inner.commit(txid, token)

    def rollback(self, txid: int, token: str) -> None:
        with self._steps.around(f"rollback {self._name} for {txid}"):
            self._inner.rollback(txid, token)

    def snapshot(self) -> SnapshotRef | None:
        with self._steps.around(f"snapshot {self._name}"):
            return self._inner.snapshot()

    def close(self) -> None:
        self._inner.close()
