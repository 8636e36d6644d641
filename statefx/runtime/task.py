"""One task of one bolt in one attempt: open, tuples, finish, prepare."""

from __future__ import annotations

import copy
import inspect
import logging
import reprlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from statefx.errors import (
    BoltError,
    CodecError,
    FailedException,
    FencedError,
    SchemaError,
    StateClosedError,
    StateError,
    StatePhaseError,
)
from statefx.operators import BatchBolt, Bolt, Context, Stateful, tuple_class
from statefx.plan.deployment import Deployment
from statefx.plan.wire import Outbox
from statefx.protocol.identity import EMPTY, SnapshotRef, TaskId, TransactionAttempt, Version
from statefx.protocol.order import Order
from statefx.runtime import restoring
from statefx.runtime.bolt_errors import bolt_error
from statefx.runtime.collector import TaskCollector
from statefx.state.contract.store import StateProvider, StateStore
from statefx.state.view import lent
from statefx.state.view.lent import LentState
from statefx.topology.graph import Edge

_USER_STATE_ERRORS = (CodecError, StateClosedError, StatePhaseError)

logger = logging.getLogger("statefx")

_PROVIDERS_KEPT = 8

_idle: dict[tuple[str, str, str, int], Bolt] = {}
"""Opened bolts of this process that no attempt is using, by lineage, run, component and task.

By run: a generation comes again when a checkpoint is replaced by a backup, and the code may be another then.
"""

_providers: dict[str, StateProvider] = {}
"""This process's providers by run, the newest runs' of them."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a task's finish left behind."""

    size_bytes: int = 0
    keys: int = 0
    found_keys: int | None = None
    snapshot: SnapshotRef | None = None


class ProcessGone(BaseException):
    """The worker process has died, as tests play it: nothing may take it for an error of the bolt's."""


@contextmanager
def hook(component: str, task: int, name: str, txid: int) -> Iterator[None]:
    """Turn what a bolt's hook raises into an error that names bolt, task, hook and transaction."""
    try:
        yield
    except (FailedException, FencedError):
        raise
    except BoltError as error:
        if "hook" in error.data:  # migrateState, called from within another
            raise
        raise bolt_error(error, component, task, name, txid) from error
    except StateError as error:
        if not isinstance(error, _USER_STATE_ERRORS):
            raise
        raise bolt_error(error, component, task, name, txid) from error
    except ProcessGone:
        raise
    except BaseException as error:  # asyncio's CancelledError, KeyboardInterrupt: as bare they end more than the task
        raise bolt_error(error, component, task, name, txid) from error


def take_bolt(deployment: Deployment, component: str, task: int, order: Order) -> Bolt:
    """Return an opened bolt for a task: one that this process kept, or a fresh one."""
    kept = _idle.pop((deployment.lineage, deployment.run, component, task), None)
    if kept is not None:
        context: Context = kept.__dict__["_statefx_context"]
        context.enter(order.attempt)
        return kept
    return fresh_bolt(deployment, component, task, order.attempt)


def fresh_bolt(deployment: Deployment, component: str, task: int, attempt: TransactionAttempt) -> Bolt:
    """Return a bolt object of its own for a task, opened."""
    part = deployment.plan.components[component]
    assert part.bolt is not None
    with hook(component, task, "open", attempt.txid):  # tried on the driver, but code of the user's may tell them apart
        bolt = copy.deepcopy(part.bolt)
    context = Context(
        config=MappingProxyType(dict(deployment.config)),  # what one task writes, no other would see
        component=component,
        task=task,
        parallelism=part.parallelism,
        generation=deployment.generation,
    )
    context.enter(attempt)
    with hook(component, task, "open", attempt.txid):
        bolt.open(context)
    bolt.__dict__["_statefx_context"] = context
    return bolt


def lives_for_one_attempt(bolt: Bolt) -> bool:
    """Tell whether a bolt's attributes belong to the batch: those of a BatchBolt without state, as in Storm.

    One with state begins every transaction in ``initState``.
    """
    return isinstance(bolt, BatchBolt) and not isinstance(bolt, Stateful)


def keep_bolt(deployment: Deployment, component: str, task: int, bolt: Bolt) -> None:
    """Keep an opened bolt for the next transaction that this process sees of its task."""
    for key in [k for k in _idle if k[0] == deployment.lineage and k[1] != deployment.run]:
        close_bolt(_idle.pop(key))
    key = (deployment.lineage, deployment.run, component, task)
    if key in _idle:  # two attempts of the task ran in this process
        close_bolt(_idle.pop(key))
    _idle[key] = bolt


def close_bolt(bolt: Bolt) -> None:
    """Close a bolt that is given up."""
    try:
        bolt.close()
    except ProcessGone:
        raise
    except BaseException:
        logger.exception("close of %s failed; it changes nothing", type(bolt).__name__)


def provider_of(deployment: Deployment) -> StateProvider:
    """Return this process's provider for a deployment."""
    if deployment.run not in _providers:
        while len(_providers) >= _PROVIDERS_KEPT:
            del _providers[next(iter(_providers))]
        _providers[deployment.run] = deployment.build_provider()
    return _providers[deployment.run]


def view_of(
    deployment: Deployment,
    component: str,
    task: int,
    bolt: Stateful,
    txid: int,
    opened: Callable[[], StateStore],
    *,
    version: Version = EMPTY,
    read_only: bool = False,
    kind: type[LentState] = LentState,
) -> LentState:
    """Open a task's state as its bolt sees it: by the bolt's codec, and of the bolt's version.

    Parameters
    ----------
    deployment, component, task, txid
        Whose it is.
    bolt : Stateful
        Opened; its ``migrateState`` is called as values of older versions are read.
    opened : callable
        Opens the store.
    version, read_only
        As of `KeyValueState`.
    kind : type
        What the bolt is given; the tester's tells more.
    """

    def migrate(version: int, key: Any, value: Any) -> Any:
        with hook(component, task, "migrateState", txid):
            return bolt.migrateState(version, key, value)

    with hook(component, task, "open", txid):
        codec = deployment.codec(component)
    return kind(opened(), codec, version=version, read_only=read_only, state_version=bolt.stateVersion, migrate=migrate)


class TaskRun:
    """Runs one bolt through one attempt.

    Parameters
    ----------
    deployment : Deployment
    order : Order
    component, task : str, int
    token : str
        Names this task attempt and what it prepares.
    collector : TaskCollector
    outbox : Outbox
        When it presses, the bolt pauses between two tuples.

    Attributes
    ----------
    restore_secs : float
        How long its state took to be there, as last committed.
    """

    lends: type[LentState] = LentState

    def __init__(
        self,
        deployment: Deployment,
        order: Order,
        component: str,
        task: int,
        token: str,
        collector: TaskCollector,
        outbox: Outbox,
    ) -> None:
        self.component = component
        self.task = task
        self.txid = order.attempt.txid
        self._deployment = deployment
        self._order = order
        self._token = token
        self._collector = collector
        self._outbox = outbox
        self._bolt: Bolt | None = None
        self._store: StateStore | None = None
        self._state: LentState | None = None
        self._classes: dict[int, Any] = {}
        self._tuples: Iterator[Any] = iter(())
        self.restore_secs = 0.0

    def open(self) -> None:
        """Take a bolt and give it its state."""
        self._bolt = take_bolt(self._deployment, self.component, self.task, self._order)
        if isinstance(self._bolt, Stateful):
            context = self._deployment.state_context(self._order, self.component, self.task)
            namespace = self._deployment.namespace(self.component, self.task)
            name = f"{self.component}-{self.task}-{self._token}"

            def opened() -> StateStore:
                began = time.perf_counter()
                with restoring.restoring(self._deployment.storage, name):
                    self._store = provider_of(self._deployment).newState(namespace, context)
                self.restore_secs = time.perf_counter() - began
                return self._store

            self._state = view_of(
                self._deployment,
                self.component,
                self.task,
                self._bolt,
                self.txid,
                opened,
                version=context.version,
                kind=self.lends,
            )
            with self._hook("initState"):
                self._bolt.initState(self._state)

    def feed(self, edge: Edge, source: str, batch: pa.RecordBatch) -> bool:
        """Run the tuples of one batch; True if the bolt has paused among them, until `go_on`."""
        bolt = self._bolt
        assert bolt is not None
        if bolt.vectorised:
            with self._hook("executeBatch"):
                returned: object = bolt.executeBatch(_marked(batch, edge, source), self._collector)  # type: ignore[func-returns-value]  # users' may
                _check_nothing("executeBatch", returned)
            return False
        with self._hook("execute"):
            columns = [_values(batch, position, source, edge) for position in range(batch.num_columns)]
        if self._state is not None and edge.grouping.kind == "fields":
            keys = [columns[batch.schema.get_field_index(name)] for name in edge.grouping.fields]
            with suppress(CodecError):  # a key that state can't hold matters only if the bolt uses it
                self._state.prefetch(keys[0] if len(keys) == 1 else list(zip(*keys, strict=True)))
        new = self._classes.get(edge.id)
        if new is None:
            new = self._classes[edge.id] = _tuple_maker(edge, source, batch.schema)
        self._tuples = map(new, zip(*columns, strict=True))
        return self.go_on()

    def go_on(self) -> bool:
        """Run the tuples that are left; True if the bolt has paused again."""
        assert self._bolt is not None
        execute, collector, outbox = self._bolt.execute, self._collector, self._outbox
        with self._hook("execute"):
            for tup in self._tuples:
                if (given := execute(tup, collector)) is not None:
                    _check_nothing("execute", given)
                if outbox.pressing:
                    return True
        return False

    def finish(self) -> Finished:
        """End the input: finishBatch, prePrepare, prepareCommit."""
        bolt, state = self._bolt, self._state
        assert bolt is not None
        if isinstance(bolt, BatchBolt):
            with self._hook("finishBatch"):
                returned: object = bolt.finishBatch(self._collector)  # type: ignore[func-returns-value]  # users' may
                _check_nothing("finishBatch", returned)
        if not isinstance(bolt, Stateful):
            return Finished()
        assert state is not None
        assert self._store is not None
        with self._hook("prePrepare"):
            bolt.prePrepare(self.txid)
        try:
            lent.prepare(state, self.txid, self._token)
        except CodecError as error:
            raise bolt_error(error, self.component, self.task, "prepareCommit", self.txid) from error
        return Finished(state.prepared_bytes, state.prepared_keys, self._store.count(), self._snapshot())

    def _snapshot(self) -> SnapshotRef | None:
        if str(TaskId(self.component, self.task)) not in self._order.snapshot_due:
            return None
        assert self._store is not None
        return self._store.snapshot()

    def flush(self) -> None:
        """Send on what the bolt has emitted."""
        with self._hook("emit"):
            self._collector.flush()

    def close(self, *, keep: bool) -> None:
        """Release the state; keep the bolt for the next transaction if it came through this one."""
        self._collector.close()
        if self._state is not None:
            lent.close(self._state)
        if self._bolt is None:
            return
        if keep and not lives_for_one_attempt(self._bolt):
            keep_bolt(self._deployment, self.component, self.task, self._bolt)
        else:
            close_bolt(self._bolt)
        self._bolt = None

    def _hook(self, name: str) -> Any:
        return hook(self.component, self.task, name, self.txid)


def _check_nothing(name: str, returned: object) -> None:
    """Refuse what a hook returns: nobody would see it, and it was likely meant to be emitted."""
    if returned is None:
        return
    if inspect.iscoroutine(returned):
        returned.close()  # else Python warns later that it was never awaited
    raise TypeError(
        f"{name} returned {reprlib.repr(returned)} ({type(returned).__name__}), which nobody would see: emit rows with "
        "collector.emit(...), and return nothing"
    )


def _marked(batch: pa.RecordBatch, edge: Edge, source: str) -> pa.RecordBatch:
    """Say in the schema's metadata where a batch came from."""
    return batch.replace_schema_metadata({"source": source, "stream": edge.stream})


def _values(batch: pa.RecordBatch, position: int, source: str, edge: Edge) -> list[Any]:
    """Return a column as Python values."""
    try:
        values: list[Any] = batch.column(position).to_pylist()
    except (UnicodeDecodeError, ValueError, OverflowError, pa.ArrowException) as error:
        name = batch.schema.names[position]
        raise SchemaError(
            f"field {name!r} of stream {edge.stream!r} of {source!r} holds a value that Python can't: {error}. "
            "Clean it up before the topology, or take whole batches with executeBatch",
            component=edge.target,
            stream=edge.stream,
            field=name,
        ) from error
    return values


def _tuple_maker(edge: Edge, source: str, schema: pa.Schema) -> Any:
    """Return a quick maker of tuples that know where they came from."""
    named = tuple_class(schema)
    marked = type(named.__name__, (named,), {"__slots__": (), "_source": source, "_stream": edge.stream})
    return partial(tuple.__new__, marked)
