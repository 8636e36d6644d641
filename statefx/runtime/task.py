"""A task: what its chain calls in each attempt, what belongs to one attempt, and what becomes of what it raises."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa

from statefx import logs
from statefx.errors import (
    BoltError,
    FailedException,
    FencedError,
    ProviderError,
    StateCorruptedError,
    StateError,
    StatePhaseError,
)
from statefx.operators.acker import ACKER
from statefx.operators.bolts import anchors_by_hand, keeps_until_end, may_hold
from statefx.operators.hooks import overrides
from statefx.operators.user_errors import place_of, shortened, user_traceback
from statefx.plan.deployment import Deployment
from statefx.plan.levels import ROOTS
from statefx.protocol.commands import Resolution
from statefx.protocol.completeness import Alignment, AlignmentResult
from statefx.protocol.counting import NOTHING_COUNTED, Counted
from statefx.protocol.identity import SnapshotRef, TaskId, TransactionAttempt, Version
from statefx.protocol.jsonform import Json
from statefx.protocol.order import RunOrder, TaskResolution
from statefx.protocol.reports import (
    NOTHING,
    Ack,
    Barrier,
    CallReport,
    Failure,
    FailureKind,
    LeftOut,
    Report,
    SetAside,
    TreeReport,
)
from statefx.protocol.watermark import BEGINNING
from statefx.runtime.activity import COSTS
from statefx.runtime.collector import TaskCollector
from statefx.runtime.event_time import TaskTime
from statefx.runtime.guard import CallGuard
from statefx.runtime.outlets import BatchQueue, Outbox, Outlet
from statefx.runtime.staging import PartLostError
from statefx.runtime.trees import LOOSE_ROOT, Trees
from statefx.runtime.user_objects import (
    AbandonedError,
    close_object,
    context_of,
    hook,
    init_state,
    open_object,
    view_of,
)
from statefx.runtime.worker import Worker
from statefx.state.contract.store import StateLocation, StateStore, open_store
from statefx.state.view import task_state
from statefx.topology.graph import ComponentKind, Edge, OnError

ACKED_BYTES_MAX = 64 << 10
"""Of a committable, and of metadata, as JSON: the driver holds those of all tasks at once, and writes them into one
record of the log. At 1,000 tasks that are 64 MB, ten times what a record should have."""

METRICS = ("restore", "open", "execute", "finish")
"""Metrics in milliseconds of an ack."""

NO_TIMES: Mapping[str, float] = MappingProxyType({})

HOOKS = {Resolution.COMMIT: "preCommit", Resolution.ROLLBACK: "preRollback"}

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A task's prepared result; it stands under the task attempt's token, and is invisible.

    `committable` stands in COMMITTING for a sink's commit: more than `ACKED_BYTES_MAX` is staged as a file that it
    names with its checksum. `metadata` is what an emitter needs to emit the same rows again, or the rows after them.
    All else is as in `Ack`.
    """

    size_bytes: int = 0
    keys: int = 0
    found_keys: int | None = None
    snapshot: SnapshotRef | None = None
    committable: Json = None
    metadata: Json = None
    left_out: LeftOut = field(default=LeftOut())
    set_aside: SetAside = field(default=SetAside())
    trees: TreeReport = field(default=NOTHING)
    counts: Mapping[str, int | float] = field(default_factory=dict)
    due_ms: int = 0
    counted: Counted = NOTHING_COUNTED
    traces: tuple[str, ...] = ()
    calls: CallReport | None = None

    def check_size(self, id: TaskId) -> None:
        """Raise BoltError for what no ack may carry."""
        for name in ("committable", "metadata"):
            value = getattr(self, name)
            if value is not None and (size := len(json.dumps(value))) > ACKED_BYTES_MAX:
                remedy = "write it to a file beside what is staged, and name it with its checksum"
                if name == "metadata":
                    remedy = "give the spout more tasks, or less metadata; planPartitionBatch has no such limit"
                raise BoltError(
                    f"{id.component!r}, task {id.task}: its {name} has {size} bytes, and an ack takes at most "
                    f"{ACKED_BYTES_MAX}: {remedy}",
                    component=id.component,
                    task=id.task,
                    size_bytes=size,
                )


@dataclass(slots=True)
class TaskAttempt:
    """State of one attempt of a task.

    `token` names this very execution and what it prepares (rule 1.3: nothing else ever has that name). When the
    `outbox` is ``pressing``, the task pauses between two rows. `inbox` has batches of the tasks before it in its chain,
    each with its edge; `received_bytes` counts them by edge. `failure` is why the task can't prepare: from then on
    nothing of it is called, but its barriers and its ack still go out, for its readers and the driver (rule 6.6), and
    the chain stays. `acked`: the driver may know that the task has prepared; only the log says what becomes of that.
    `secs` are by metric, `costs` by cost. `is_abandoned` is set by any thread.
    """

    deployment: Deployment
    id: TaskId
    order: RunOrder
    token: str
    collector: TaskCollector
    outbox: Outbox
    input: Alignment
    trees: Trees | None = None
    time: TaskTime | None = None
    inbox: BatchQueue[Edge] = field(default_factory=BatchQueue)
    received_bytes: dict[int, int] = field(default_factory=dict)
    failure: Failure | None = None
    acked: bool = False
    secs: dict[str, float] = field(default_factory=lambda: dict.fromkeys(METRICS, 0.0))
    costs: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COSTS, 0.0))
    is_abandoned: bool = False
    _aligned: AlignmentResult = field(init=False)

    @property
    def watermark(self) -> int | None:
        """The watermark in microseconds since 1970, or None if nothing is known."""
        return None if self.time is None or self.time.watermark == BEGINNING else self.time.watermark

    @property
    def moment(self) -> tuple[TransactionAttempt, int, int | None]:
        return self.order.attempt, self.order.clock_ms, self.watermark

    @property
    def txid(self) -> int:
        return self.order.attempt.txid

    def receives(self, edge: int, size_bytes: int) -> None:
        """Count the bytes of a batch that has come, as its sender does."""
        self.received_bytes[edge] = self.received_bytes.get(edge, 0) + size_bytes

    def refuse_abandoned(self) -> None:
        if self.is_abandoned:
            raise AbandonedError

    def step(
        self, metric: str, call: Callable[_Arguments, _Result], *args: _Arguments.args, **named: _Arguments.kwargs
    ) -> _Result | None:
        """Call a step of the task; an error that fails this attempt alone becomes its failure.

        The clock is read around whole steps, of which a batch of rows has one or two, never for a tuple.
        """
        if self.failure is not None:
            return None
        logged = logs.enter(logged_of(self.id, self.order.attempt))
        began = time.perf_counter()
        try:
            return call(*args, **named)
        except BoltError as error:
            self._fail(FailureKind.BOLT, error.message, **error.data)
        except ProviderError as error:  # no further try would give anything else
            self._fail(FailureKind.BOLT, error.message, **{"task": self.id.task, **error.data})
        except FailedException as error:
            reason = error.message or f"FailedException, without a reason{place_of(error)}"
            self._fail(FailureKind.FAILED, shortened(reason), traceback=user_traceback(error))
        except FencedError as error:  # rule 6.6
            self._fail(FailureKind.FENCED, error.message)
        except StateCorruptedError as error:
            self._fail(FailureKind.CORRUPTED, error.message)
        except PartLostError as error:
            self._fail(FailureKind.INPUT, str(error))
        except (StateError, OSError) as error:  # rule 6.8: a store that is away; the next attempt comes after a pause
            self._fail(FailureKind.STORE, shortened(f"{type(error).__name__}: {error}"))
        finally:
            self.secs[metric] += time.perf_counter() - began
            logs.leave(logged)
        return None

    def _fail(self, kind: FailureKind, reason: str, **facts: object) -> None:
        self.failure = Failure(kind, *self.id, reason, facts)

    def end_input(self) -> Sequence[Barrier]:
        """Check the input (rule 5.3); return the stale barriers."""
        aligned = self._aligned = self.input.finish()
        if self.failure is None:  # its own comes first: an input that was cut off may well follow from it
            self.failure = aligned.failure
        if self.time is not None:
            self.time.end_input(aligned.watermark, aligned.parts)
        return aligned.stale

    def ack(self, prepared: Prepared | None, activity: Mapping[str, float] = NO_TIMES) -> Ack:
        if prepared is None or self.failure is not None:
            prepared = Prepared()
        outlets = self.collector.outlets
        return Ack(
            self.order.attempt,
            *self.id,
            self.token,
            seen=self._aligned.seen,
            received=self._aligned.received,
            emitted={outlet.edge.id: outlet.emitted for outlet in outlets},
            rows_before_combining={
                outlet.edge.id: outlet.rows_before_combining for outlet in outlets if outlet.rows_before_combining
            },
            failed=self.failure,
            prepared_bytes=prepared.size_bytes,
            found_keys=prepared.found_keys,
            snapshot=prepared.snapshot,
            keys=prepared.keys,
            metrics=self._metrics(),
            activity=activity,
            sent_bytes={outlet.edge.id: outlet.sent_bytes for outlet in outlets if outlet.sent_bytes},
            received_bytes=self.received_bytes,
            committable=prepared.committable,
            metadata=prepared.metadata,
            left_out=prepared.left_out,
            set_aside=prepared.set_aside,
            trees=prepared.trees,
            counts=prepared.counts,
            time=None if self.time is None else self.time.report(),
            due_ms=prepared.due_ms,
            costs={name: round(secs * 1000, 3) for name, secs in self.costs.items() if secs > 0},
            counted=prepared.counted,
            traces=prepared.traces,
            calls=prepared.calls,
        )

    def _metrics(self) -> dict[str, float]:
        """Return the milliseconds of each metric; restoring state stands apart from the rest of opening."""
        secs = {**self.secs, "open": self.secs["open"] - self.secs["restore"]}
        return {name: round(secs[name] * 1000, 3) for name in METRICS}


def logged_of(id: TaskId, attempt: TransactionAttempt) -> dict[str, object]:
    """Return the fields of what a task logs in an attempt."""
    return {"component": id.component, "task": id.task, "txid": attempt.txid, "attempt": attempt.attempt}


class Task(ABC):
    """One task of one component, for as long as its chain is resident. It owns the user's object and its state.

    A chain makes it and calls it from one thread::

        each attempt: enter -> begin -> emit, feed, resume -> end -> prepare -> keep or drop
        between two:  resolve
        at the end:   close

    `end` and `prepare` are called only if a barrier has come from every task that this one reads from (rule 5.3). What
    is emitted is sent between the two: readers need not wait until it has prepared. After anything of an attempt has
    raised, only `drop` is called; also after `begin` has raised.

    A sink has no outputs: it stages in `feed`, and what it has staged goes when the attempt is dropped. Spouts and
    streams have no inputs: they emit in `emit`. With `fresh`, each attempt gets a user's object of its own, as if the
    process had been lost before it.

    Any method of an attempt may raise BoltError (the user's code raised: the transaction is rolled back and the query
    ends), FailedException (the attempt fails, and is tried again), FencedError (a newer driver has taken over), and
    StateError or OSError (where the task keeps things is unreachable or damaged).
    """

    attempt: TaskAttempt
    collector_class: type[TaskCollector] = TaskCollector

    def __init__(self, worker: Worker, deployment: Deployment, id: TaskId, *, fresh: bool = False) -> None:
        self.worker, self.deployment, self.id = worker, deployment, id
        self.component = deployment.plan.components[id.component]
        self._fresh = fresh
        self._share = partial(worker.shared.get, self, deployment.run)
        self._object: Any = None
        """The user's bolt or spout, opened."""
        self.restores_since: float | None = None
        """While its state is opened: since when, as of `time.monotonic`; another thread reads it."""

    def enter(self, order: RunOrder, token: str, outlets: Sequence[Outlet], outbox: Outbox) -> None:
        """Enter an attempt: from now on tasks before it in its chain may bring it rows."""
        plan, id, part = self.deployment.plan, self.id, self.component
        operator, root_type = part.operator, plan.root_types.get(id.component)
        trees = None
        if root_type is not None:
            trees = Trees(
                id.component,
                by_hand=may_hold(operator),
                acker=ACKER in plan.components,
                tracing=self.deployment.config["topology.trace"],
                kept=keeps_until_end(operator),
                loose=[] if root_type == ROOTS else LOOSE_ROOT,
            )
        time = TaskTime(plan, id, order.clock_ms) if id.component in plan.timed else None
        is_tracked = trees is not None and part.kind is ComponentKind.BOLT
        collector = self.collector_class(
            id.component,
            part.outputs,
            outlets,
            order.attempt,
            part.kind,
            anchoring=anchors_by_hand(operator),
            trees=trees,
            root_type=root_type,
            times={} if time is None else time.emitted,
            guard=CallGuard() if part.on_error is not OnError.FAIL or is_tracked else None,
        )
        input = Alignment(*id, order.attempt, plan.channels(*id))
        self.attempt = TaskAttempt(self.deployment, id, order, token, collector, outbox, input, trees, time)

    # ---- the steps of an attempt

    def interrupt(self) -> None:
        """Have whatever waits in this attempt return soon: it is abandoned. Called by any thread, at any time."""
        self.attempt.is_abandoned = True

    def begin(self) -> None:
        self.worker.raise_late(self.deployment, self.id)
        if self.attempt.time is not None:
            self.attempt.time.open(self.attempt.order.time(self.id))

    def emit(self) -> bool:
        """Run the work that needs no input; return True if it paused."""
        return False

    @abstractmethod
    def feed(self, edge: Edge, batch: pa.RecordBatch) -> bool:
        """Take rows of `edge`; return True if it has paused among them, until `resume`.

        It must pause, and soon, when the outbox is ``pressing``: what is emitted can't leave the process before.
        """

    def resume(self) -> bool:
        """Go on after a pause; return True if it has paused again."""
        return False

    def flush(self) -> None:
        with self._hook("emit"):
            self.attempt.collector.flush()

    def end(self) -> None:
        """Emit what comes at the end of the input."""
        return

    def emit_last(self) -> None:
        """Send on everything that it has emitted: nothing more may come."""
        with self._hook("emit"):
            self.attempt.collector.finish()

    @abstractmethod
    def prepare(self) -> Prepared:
        """Prepare: the input is whole. What is prepared is durable when this returns, and invisible.

        It may never replace what another run of this task has prepared (rule 4.1).
        """

    def prepare_checked(self) -> Prepared:
        """Prepare; refuse what no ack may carry, and rows that were never sent."""
        prepared = self.prepare()
        if counted := self.counted():
            prepared = replace(prepared, counted=counted)
        prepared.check_size(self.id)
        self.attempt.collector.refuse_late(partial(self.worker.keep_late, self.deployment, self.id))
        return prepared

    def counted(self) -> Counted:
        """Return what the user's object has counted in this attempt, and forget it (rule 16.2).

        An object that has not come so far is of no other attempt: it is closed.
        """
        return NOTHING_COUNTED if self._object is None else context_of(self._object).metrics.take()

    # ---- the end of an attempt, and what comes between two

    def leave(self, *, done: bool) -> None:
        """Leave the attempt, and raise nothing; `done`: its chain has come to the end of it."""
        attempt = self.attempt
        attempt.collector.close()
        attempt.inbox.close()
        if done and attempt.failure is None:
            self.keep()
        else:  # a bolt that has failed may hold half of a transaction in its attributes
            self.drop(acked=attempt.acked)

    @abstractmethod
    def keep(self) -> None:
        """Keep for the next attempt what came through this one."""

    @abstractmethod
    def drop(self, *, acked: bool) -> None:
        """Release what the attempt holds: it has failed, or its chain has gone no further.

        No record will name what it has staged, unless it is `acked`: the driver may have decided.
        """

    def close(self) -> None:
        """Release everything: the chain ends."""
        self._close_object()

    def forget_object(self) -> None:
        """Do as a process that dies, which closes nothing of the user's."""
        self._object = None

    def resolve(self, order: TaskResolution) -> Report:
        """Commit what was prepared, or roll it back; any error is reported, never raised.

        First the bolt's hook, then the store: a committed store can't take back what the hook may still refuse. Both
        may have been done before, by this driver or another one, so both must be repeatable.
        """
        try:
            # Rule 1.7: a record of before may name a task whose bolt has lost its hook; its store is told all the same.
            if overrides(type(self.component.operator), HOOKS[order.resolution]):
                self._call_hook(order)
            location = self.worker.provider(self.deployment).location
            if order.resolution is Resolution.COMMIT and location is StateLocation.SERVER:
                # Rule 4.8: opened at the version before. The server may have this one already, from a try before this.
                state = order.state(self.id)
                store = self._store_of(order, state.previous)
                try:
                    store.commit(order.attempt.txid, state.version.token)
                finally:
                    store.close()
        except FencedError as error:  # this driver ends, and its successor carries the decision out (rule 6.5)
            return Report(*self.id, error.message, FailureKind.FENCED)
        except BoltError as error:
            # No further try would mend a hook that changes state where it can't (rule 7.2); all else is tried for ever
            # (6.11).
            kind = FailureKind.MISUSE if isinstance(error.__cause__, StatePhaseError) else FailureKind.BOLT
            return Report(*self.id, error.message, kind, error.data)
        except FailedException as error:
            return Report(*self.id, error.message, FailureKind.BOLT)
        except Exception as error:  # noqa: BLE001 - a provider's client raises what it likes
            return Report(*self.id, f"{type(error).__name__}: {error}", FailureKind.STORE)
        return Report(*self.id)

    def _call_hook(self, order: TaskResolution) -> None:
        txid = order.attempt.txid
        # Rule 7.2: never the one that executes.
        bolt = open_object(self.deployment, self.id, order.attempt, share=self._share)
        state, opened = None, partial(self._store_of, order)
        try:
            state = view_of(
                self.deployment, self.id, bolt, txid, opened, read_only=True, clock_ms=order.clock_ms
            )  # fmt: skip
            init_state(self.id, bolt, state, txid)
            with hook(self.id, HOOKS[order.resolution], txid):
                if order.resolution is Resolution.COMMIT:
                    bolt.preCommit(txid)
                else:
                    bolt.preRollback()
        finally:
            if state is not None:
                task_state.close(state)
            close_object(bolt)

    # ---- the user's object, and the store

    def _opened_object(self) -> Any:
        """Return the user's object: the one of the attempt before, if that has kept it, or a new one."""
        if self._object is None:
            check = self.attempt.refuse_abandoned
            self._object = open_object(self.deployment, self.id, *self.attempt.moment, check=check, share=self._share)
        else:
            context_of(self._object).enter(*self.attempt.moment)
        return self._object

    def _close_object(self) -> None:
        made, self._object = self._object, None
        if made is not None:
            close_object(made)

    def open_store(self) -> StateStore:
        """Open the task's state at the version that the order names; the chain reports that it takes its time."""
        began = self.restores_since = time.monotonic()
        try:
            return self._store_of(self.attempt.order)
        finally:
            self.restores_since = None
            self.attempt.secs["restore"] = time.monotonic() - began

    def _store_of(self, order: RunOrder | TaskResolution, version: Version | None = None) -> StateStore:
        context = self.deployment.state_context(order, self.id, version=version)
        return open_store(self.worker.provider(self.deployment), self.deployment.namespace(*self.id), context)

    def _hook(self, name: str) -> AbstractContextManager[None]:
        return hook(self.id, name, self.attempt.txid, self.component.kind)
