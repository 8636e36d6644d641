"""The durable steps of a driver and its tasks, counted, so that any of them can be made the last one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from statefx.log.entries import FOLDER as LOG
from statefx.log.log import TransactionLog
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Record
from statefx.runtime.user_objects import ProcessGone
from statefx.state.changelog.files import CHANGELOG, SNAPSHOT
from statefx.state.contract.store import (
    Namespace,
    Prepared,
    SnapshotRef,
    StateContext,
    StateLocation,
    StateProvider,
    StateStore,
    Write,
    open_store,
)
from statefx.storage import Storage

_STEPS_MAX = 500


class Crash(ProcessGone):
    """The process is gone: no handler of the code under test may take it for an error."""


def every_crash(stride: int = 1) -> Iterator[int]:
    """Yield 1, 1 + stride, ... for ``crash_at``; the caller stops at the first that was not hit."""
    yield from range(1, _STEPS_MAX, stride)
    raise AssertionError(f"more than {_STEPS_MAX} durable steps")


class DurableSteps:
    """Moments before and after each durable step, in the order in which they came.

    They are in `passed`: ``before PREPARING(1, 0)``, ``after prepare count/0 for 1``. At the moment `crash_at`, counted
    from 1, and at every one from then on `Crash` is raised; the moment is then `crashed`. `each_moment` is called with
    every other one.
    """

    def __init__(self, crash_at: int | None = None) -> None:
        self.passed: list[str] = []
        self.crashed: str | None = None
        self.each_moment: Callable[[str], object] = lambda moment: None
        self._crash_at = crash_at
        self.left: list[contextlib.ExitStack] = []  # what was being written at the crash
        self._waiting: dict[str, list[Callable[[], object]]] = {}

    def when(self, moment: str, do: Callable[[], object]) -> None:
        """Call `do` when `moment` next comes, once."""
        self._waiting.setdefault(moment, []).append(do)

    @contextlib.contextmanager
    def around(self, step: str, counts: bool = True) -> Iterator[None]:
        """Pass the moments before and after `step` if it counts; there is no after for one that raises."""
        if counts:
            self.reach(f"before {step}")
        yield
        if counts:
            self.reach(f"after {step}")

    def reach(self, moment: str) -> None:
        """Pass `moment`, or crash at it."""
        if self.crashed is not None:
            raise Crash(f"crashed {self.crashed}")
        self.passed.append(moment)
        if len(self.passed) == self._crash_at:
            self.crashed = moment
            raise Crash(moment)
        self.each_moment(moment)
        self.call(moment)

    def call(self, moment: str) -> None:
        """Call what waits for `moment`."""
        for do in self._waiting.pop(moment, ()):
            do()


class SteppedLog(TransactionLog):
    """A transaction log whose appends are steps."""

    def __init__(
        self, storage: Storage, steps: DurableSteps, limit: int, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(storage, limit, clock)
        self._steps = steps

    def _append(self, record: Record, after: LogState, text: str) -> int:
        with self._steps.around(_named(record)):
            return super()._append(record, after, text)


def _unchanged(name: str) -> Any:
    """Return a method that changes nothing durable: that of what stands behind."""
    return lambda self, *arguments, **named: getattr(self._inner, name)(*arguments, **named)


class SteppedStorage(Storage):
    """A storage whose changes are steps, named by what they are for, such as ``prepare count/0 for 2`` or ``fence 1``.

    Records are the steps of `SteppedLog`: an append ends with the look at what came after it, and not with the file.
    Markers of tasks that restore, which nothing waits for, are no steps.

    A crash before a file gets its name leaves it without one, as that of a process does. Of several names that are
    deleted together each is a step: a store may delete some and not the others.
    """

    def __init__(self, inner: Storage, steps: DurableSteps) -> None:
        self._inner = inner
        self._steps = steps

    @property
    def url(self) -> str:
        return self._inner.url

    def create(self, name: str, data: bytes) -> None:
        with self._steps.around(_creation(name), not name.startswith(LOG)):
            self._inner.create(name, data)

    @contextlib.contextmanager
    def writer(self, name: str, ending: Callable[[], str] = str) -> Iterator[BinaryIO]:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(self._inner.writer(name, ending))
            yield file
            moments = self._steps.around(_writing(name + ending()))
            try:
                moments.__enter__()
            except Crash:
                file.close()
                self._steps.left.append(stack.pop_all())  # it is not cleaned up by who is dead
                raise
        moments.__exit__(None, None, None)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            with self._steps.around(f"delete {_owner(name)}"):
                self._inner.delete([name])

    reader, read, read_all, list = map(_unchanged, ("reader", "read", "read_all", "list"))
    parts, shares, discard_unfinished = map(_unchanged, ("parts", "shares", "discard_unfinished"))
    discard_empty = _unchanged("discard_empty")


def _creation(name: str) -> str:
    first, _, rest = name.partition("/")
    return f"fence {int(rest.rpartition('/')[2])}" if first == "fences" else f"create {first}"


def _writing(name: str) -> str:
    version, _, kind = name.rpartition("/")[2].partition(".")
    if kind == SNAPSHOT:
        return f"snapshot {_owner(name)}"
    return f"prepare {_owner(name)} for {int(version.partition('-')[0])}" if kind == CHANGELOG else f"write {name}"


def _owner(name: str) -> str:
    """Return the task whose file it is, or what it is a file of."""
    first, *parts = name.split("/")
    return "/".join(parts[:2]) if first == "state" else first


def _named(record: Record) -> str:
    numbers = [str(getattr(record, name)) for name in ("txid", "attempt") if hasattr(record, name)]
    if record.kind == "GENERATION":
        numbers = [str(getattr(record, "generation", ""))]
    return f"{record.kind}({', '.join(numbers)})" if numbers else record.kind


class SteppedProvider(StateProvider):
    """A state provider whose durable calls are steps, but for what it writes into the checkpoint (`SteppedStorage`)."""

    def __init__(self, inner: StateProvider, steps: DurableSteps) -> None:
        super().__init__(inner.options)
        self.location = inner.location  # type: ignore[misc]  # those of the provider it stands before
        self._inner = inner
        self._steps = steps

    def newState(self, namespace: Namespace, context: StateContext) -> StateStore:
        store = open_store(self._inner, namespace, context)
        return _SteppedStore(store, str(namespace.id), self._steps, self.location is StateLocation.SERVER)

    def fence(self, lineage: str, generation: int, storage: Storage) -> None:
        with self._steps.around(f"fence {generation}", self.location is StateLocation.SERVER):
            self._inner.fence(lineage, generation, storage)

    # What a sweep deletes is nobody's.
    artefacts, sweep, forget = map(_unchanged, ("artefacts", "sweep", "forget"))


class _SteppedStore(StateStore):
    def __init__(self, inner: StateStore, name: str, steps: DurableSteps, elsewhere: bool) -> None:
        self._inner = inner
        self._name = name
        self._steps = steps
        self._elsewhere = elsewhere

    get, scan, count, close = map(_unchanged, ("get", "scan", "count", "close"))

    def prepare(self, txid: int, token: str, writes: Sequence[Write]) -> Prepared:
        with self._steps.around(f"prepare {self._name} for {txid}", self._elsewhere):
            return self._inner.prepare(txid, token, writes)

    def advance(self, txid: int, token: str, writes: Sequence[Write]) -> bool:
        return self._inner.advance(txid, token, writes)

    def commit(self, txid: int, token: str) -> None:
        with self._steps.around(f"commit {self._name} for {txid}"):
            self._inner.commit(txid, token)

    def rollback(self, txid: int, token: str) -> None:
        with self._steps.around(f"rollback {self._name} for {txid}"):
            self._inner.rollback(txid, token)

    def snapshot(self) -> SnapshotRef | None:
        with self._steps.around(f"snapshot {self._name}", self._elsewhere):
            return self._inner.snapshot()
