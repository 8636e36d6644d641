"""Runs one bolt: its tuples, its hooks, its state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice, repeat
from typing import Any

import pyarrow as pa

from statefx.errors import BoltError, CodecError
from statefx.operators.acker import ACKS
from statefx.operators.bolts import BatchBolt, Bolt, ReadyMade, Stateful, timers_of
from statefx.operators.idempotency import IdempotencyKeys
from statefx.operators.spouts import OpaquePartitionedTransactionalSpout, Spout
from statefx.operators.tuples import TICK_ROWS, Tick, tuple_maker
from statefx.operators.user_errors import bolt_error
from statefx.operators.waiting import has_waiting
from statefx.operators.windows import WindowedBolt
from statefx.plan.levels import ROOT, ROOTS, Plan, name_shown
from statefx.protocol.identity import SnapshotRef
from statefx.protocol.log_state import TIMERS_LEFT_MS
from statefx.protocol.reports import NOTHING, SetAside
from statefx.protocol.watermark import END
from statefx.runtime.guarded_calls import GuardedCalls
from statefx.runtime.task import Prepared, Task
from statefx.runtime.trees import Roots
from statefx.runtime.user_objects import check_nothing, context_of, init_state, values_of, view_of
from statefx.runtime.windows import Windows
from statefx.state.view import task_state
from statefx.state.view.task_state import TaskState
from statefx.state.view.time_index import Clock, Timer, Timers, due_micros, fire
from statefx.topology.graph import Edge, Promise

FIRED_MAX = 100_000
"""Timers that a task fires in one transaction: after a long pause millions may be due, and what they change is in
memory until it is prepared. The next transaction fires those that follow."""


SAME_TIMER_MAX = 1000
"""How often a timer of one key and name fires in the transaction that closes event time."""


class BoltTask(Task):
    """Runs one bolt.

    Its object saves `open` and what that loads: an attempt that came through leaves it to the next one. Nothing relies
    on what is in its attributes (rule 1.3), but for tuples that a plain bolt holds. The state goes on if what it has
    prepared is what was committed.
    """

    state_class: type[TaskState] = TaskState
    """The state of a stateful bolt; the tester's also watches what the bolt does with values."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._state: TaskState | None = None
        self._seen = 0
        """The transaction that the object has seen last."""
        self._classes: dict[int, Any] = {}
        self._clear()

    def _clear(self) -> None:
        self._timers: Timers | None = None
        self._windows: Windows | None = None
        self._guarded: GuardedCalls | None = None
        self._tuples: Iterator[Any] = iter(())
        self._broadcasting = False
        """Whether the tuples are such as all tasks are given."""

    def begin(self) -> None:
        super().begin()
        self._clear()
        attempt = self.attempt
        if self._holds and self._seen >= attempt.txid:
            # It came through an attempt that was rolled back. What it got then comes again: it would hold it twice,
            # and the trees would never end. So what it held is lost, as with its worker, and times out.
            self._close_object()
        bolt: Bolt = self._opened_object()
        origin, id = self.deployment.origin, self.id.component
        self._keys = IdempotencyKeys(origin, id, attempt.txid, self._key_refusals)
        context_of(bolt).identify(self._keys.of)
        if self.component.stateful:
            self._state = self._successor()
            if self._state is None:
                self._state = view_of(
                    self.deployment,
                    self.id,
                    bolt,
                    attempt.txid,
                    self.open_store,
                    version=attempt.order.state(self.id).version,
                    clock_ms=attempt.order.clock_ms,
                    state_class=self.state_class,
                )
                self._check_opened(self._state)
            attempt.costs["reads"] = -task_state.read_secs(self._state)
            if isinstance(bolt, Stateful):
                init_state(self.id, bolt, self._state, attempt.txid, self._timers_refusal())
                self._timers = timers_of(bolt)
            if isinstance(bolt, WindowedBolt):
                self._windows = Windows(bolt, self._state, attempt)
        if attempt.collector.guard is not None:
            attempt.collector.guard.metrics = context_of(bolt).metrics
            self._guarded = GuardedCalls(attempt, attempt.collector.guard, self._state)

    def _check_opened(self, state: TaskState) -> None:
        """Refuse state with tuples that wait for calls, of an AsyncBolt that this bolt has replaced: none is made."""
        if has_waiting(state):
            raise BoltError(
                f"bolt {self.id.component!r}, task {self.id.task}: tuples wait in its state for another call, which a "
                f"{type(self._object).__name__} does not make. Start with its StatefulAsyncBolt of before until none "
                "waits, or give the bolt a new id: what waits is lost then",
                component=self.id.component,
                task=self.id.task,
            )

    @cached_property
    def _key_refusals(self) -> dict[tuple[str, str], str]:
        """Return by source and stream why its tuples have no idempotency keys, of those that have none."""
        plan, id = self.deployment.plan, self.id.component
        found = {}
        for edge in plan.inputs[id]:
            source, grouping = name_shown(edge.source), edge.grouping
            fields = ", ".join(f'"{name}"' for name in plan.schema(edge).names)
            if isinstance(self.component.operator, WindowedBolt):
                why = (
                    "its windows show one tuple several times, also in transactions after its own: call the service in "
                    "a bolt before it, or give the service what a window is known by, such as its key and its end"
                )
            elif (spout := _unplanned(plan, edge.source)) is not None:
                why = (
                    f"the tuples of {spout!r} may come again in another transaction, where nobody knows them: emit "
                    "what the source itself knows a message by, such as its id, and give the service that"
                )
            elif self.component.combines:
                why = "its input is added up before it comes, and not each time alike: leave out the combiner"
            elif self.component.parallelism > 1 and grouping.promise in _PLACES_VARY:
                why = (
                    f"it has several tasks and reads {source!r} by {grouping}, so equal tuples may come to other tasks "
                    f"in another attempt: group them by fields, as .fieldsGrouping({source!r}, {fields})"
                )
            else:
                continue
            found[source, edge.stream] = why
        return found

    def _timers_refusal(self) -> str:
        """Return why a timer of event time can't be set: it would be kept for ever, silently."""
        if self.attempt.time is not None:
            return ""
        plan, id = self.deployment.plan, self.id.component
        inputs = sorted({name_shown(edge.source) for edge in plan.inputs[id]})
        return (
            f"bolt {id!r} sets a timer of event time, and it would never fire: none of its inputs "
            f'({", ".join(inputs)}) has event time. Say timestamp="..." where one of them is set, or '
            "timers.set(..., processing=True) for a timer of the clock"
        )

    @property
    def _own(self) -> Windows | ReadyMade | None:
        """The part of statefx's own that counts late rows, and knows when a transaction is due."""
        return self._object if isinstance(self._object, ReadyMade) else self._windows

    @property
    def _holds(self) -> bool:
        """Whether it is a plain bolt, which may hold tuples of trees in its attributes."""
        return self.attempt.trees is not None and self.attempt.trees.by_hand

    def _successor(self) -> TaskState | None:
        """Return the state that the attempt before has left, if what it prepared is what is committed now."""
        before, self._state = self._state, None
        if before is None:
            return None
        successor = None
        try:
            if task_state.prepared(before) == self.attempt.order.state(self.id).version:
                successor = task_state.succeeded(before, self.open_store, self.attempt.order.clock_ms)
        finally:
            if successor is None:
                task_state.close(before)
        return successor

    def feed(self, edge: Edge, batch: pa.RecordBatch) -> bool:
        bolt, source = self._object, name_shown(edge.source)
        self._broadcast(on=edge.grouping.broadcast)
        batch, roots = self._without_roots(edge, batch)
        if self._guarded is not None and not self._broadcasting:
            batch = self._guarded.received(edge, batch)
        if self._windows is not None:
            self._windows.feed(edge, batch, self._guarded, roots)
            return False
        if bolt.vectorised and not self._broadcasting:
            self._execute_batch(_marked(batch, edge, source), roots)
            return False
        with self._hook(self._name):
            columns = values_of(batch, source, edge)
        if self._state is not None and edge.grouping.promise is Promise.KEY:
            with suppress(CodecError):  # a key that state can't hold matters only if the bolt uses it
                self._state.prefetch(keys_of(edge, batch, columns))
        if self._guarded is not None and not self._broadcasting:
            columns = self._guarded.take(batch, columns)
        self._tuples = map(self._class_of(edge, batch), zip(*columns, strict=True))
        if self.attempt.trees is not None:
            self._tuples = zip(self._tuples, self._received(roots), strict=False)
        return self.resume()

    def _without_roots(self, edge: Edge, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Sequence[Roots] | None]:
        """Return the rows of a batch as they were emitted, and the roots of each, if they are tracked."""
        roots, trees = None, self.attempt.trees
        if trees is not None:
            if self.deployment.plan.tracks(edge):
                roots = self._roots(batch.column(batch.num_columns - 1))
                batch = batch.select(range(batch.num_columns - 1))
            trees.bring(roots)
        return batch, roots

    def _received(self, roots: Sequence[Roots] | None) -> Iterable[Roots]:
        """Return the roots of tuples that the bolt is given, each as it is taken."""
        trees = self.attempt.trees
        assert trees is not None
        own: Iterable[Roots] = repeat(None) if roots is None else roots
        return trees.received(own) if trees.tracing else own

    def _class_of(self, edge: Edge, batch: pa.RecordBatch) -> Any:
        """Return what makes the tuples of an edge."""
        new = self._classes.get(edge.id)
        if new is None:
            trees = self.attempt.trees
            rooted = trees is not None and (trees.by_hand or trees.kept)
            source = name_shown(edge.source)
            new = self._classes[edge.id] = tuple_maker(batch.schema, source, edge.stream, rooted=rooted)
        return new

    def _execute_batch(self, batch: pa.RecordBatch, roots: Sequence[Roots] | None) -> None:
        bolt, collector = self._object, self.attempt.collector
        with self._hook("executeBatch"):
            if self._guarded is not None and (roots is not None or self._guarded.sets_aside):
                self._guarded.run_batch(lambda part: bolt.executeBatch(part, collector), batch, roots)
                return
            check_nothing("executeBatch", bolt.executeBatch(batch, collector))

    def _broadcast(self, *, on: bool) -> None:
        """Note whether the coming rows come to all tasks."""
        if on is not self._broadcasting:
            assert self._state is not None  # the builder refuses others
            self._broadcasting = on
            task_state.broadcasting(self._state, on=on)

    @property
    def _name(self) -> str:
        return "executeBroadcast" if self._broadcasting else "execute"

    def _roots(self, column: pa.Array) -> list[Roots]:
        """Return the roots of a batch's tuples, in the form of those that the bolt's own rows have."""
        found: list[Any] = column.to_pylist()
        if column.type == ROOT and self.deployment.plan.root_types[self.id.component] == ROOTS:
            return [None if root is None else [root] if root else [] for root in found]
        return found

    def resume(self) -> bool:
        name = self._name
        execute, collector, outbox = getattr(self._object, name), self.attempt.collector, self.attempt.outbox
        if self.attempt.trees is not None:
            assert self._guarded is not None
            with self._hook(name):
                return self._guarded.run_tracked(self.attempt.trees, execute, self._tuples, name)
        if self._guarded is not None and not self._broadcasting:
            with self._hook(name):
                return self._guarded.run_tuples(execute, self._tuples)
        with self._hook(name):
            for tup in self._tuples:
                if (given := execute(tup, collector)) is not None:
                    check_nothing(name, given)
                if outbox.pressing:  # asked after each tuple: one tuple may emit more than a worker can hold
                    return True
        return False

    def end(self) -> None:
        """Give the bolt its tick if it gets one, and its timers, call finishBatch; send the acker the held tuples."""
        bolt, attempt = self._object, self.attempt
        self._broadcast(on=False)
        if attempt.trees is not None and isinstance(bolt, Stateful):
            attempt.trees.end_input()
        attempt.collector.anchoring = attempt.collector.anchoring or isinstance(bolt, BatchBolt)
        if self.id.component in attempt.order.ticks and self._windows is None:
            self._tick()
        if attempt.time is not None:
            context_of(bolt).reach(attempt.watermark)
        if self._windows is not None:
            self._windows.end()
        if attempt.time is not None:
            attempt.time.late = 0 if self._own is None else self._own.late
        if self._timers is not None:  # behind the tick: what it sets for a time that has passed fires as well
            self._fire(self._timers)
        if isinstance(bolt, BatchBolt):
            with self._hook("finishBatch"):
                check_nothing("finishBatch", self._object.finishBatch(attempt.collector))
        if attempt.time is not None and (left := self._left()) is not None:
            attempt.time.hold_input(left)
        if attempt.trees is not None:
            assert self._guarded is not None
            self._guarded.count_lost("finishBatch" if isinstance(bolt, BatchBolt) else "onTimer")
            rows = attempt.trees.rows()
            if rows.num_rows:
                attempt.collector.emitBatch(rows, stream=ACKS)

    def _tick(self) -> None:
        """Give the bolt its tick. It belongs to no tree: what is emitted for it is anchored to nothing."""
        bolt, attempt = self._object, self.attempt
        secs = self.component.tick_secs
        if bolt.vectorised:
            batch = pa.RecordBatch.from_arrays([pa.array([secs], pa.float64())], schema=TICK_ROWS)
            with self._hook("executeBatch"):
                check_nothing("executeBatch", bolt.executeBatch(batch, attempt.collector))
        else:
            with self._hook("execute"):
                check_nothing("execute", bolt.execute(Tick(secs), attempt.collector))

    def _fire(self, timers: Timers) -> None:
        bolt, collector = self._object, self.attempt.collector
        assert isinstance(bolt, Stateful)
        limits = {
            Clock.EVENT: self.attempt.watermark,
            Clock.PROCESSING: self.attempt.order.clock_ms * 1000,
        }
        on_timer: Callable[..., object] = bolt.onTimer
        fired, left = True, FIRED_MAX
        if self._guarded is not None and self._guarded.sets_timers_aside:
            on_timer = self._guarded.guarding_timers(on_timer)
        again: Counter[tuple[Any, str]] | None = Counter() if self.attempt.watermark == END else None
        with self._hook("onTimer"):
            while fired and left:  # one of the clock's may set one of event time for a time that has passed
                fired = False
                for clock, limit in limits.items():
                    for timer in islice(fire(timers, clock, limit), left):
                        fired = True
                        left -= 1
                        timers.fired = timer
                        if again is not None and not timer.processing:
                            _refuse_endless(again, timer)
                        given: object = on_timer(timer.key, timer.at, timer.value, collector)
                        if given is not None:
                            check_nothing("onTimer", given)
            timers.fired = None

    def _left(self) -> int | None:
        """Return from which event time on a later transaction emits what is due by now, or None if nothing is left."""
        if isinstance(self._object, ReadyMade):
            return self._object.left
        watermark = self.attempt.watermark
        if self._timers is None or watermark is None:
            return None
        first = due_micros(self._timers, Clock.EVENT)
        # More were due than one transaction fires, or it was set when the others had fired.
        return first if first is not None and first <= watermark else None

    def _due_ms(self, timers: Timers) -> int:
        """Return when a transaction is due for a timer; 0: never."""
        if self._left() is not None:
            return TIMERS_LEFT_MS
        due = due_micros(timers, Clock.PROCESSING)
        return 0 if due is None else max(1, -(-due // 1000))

    def prepare(self) -> Prepared:
        bolt, state = self._object, self._state
        assert bolt is not None  # it was opened
        trees = self.attempt.trees
        report = NOTHING if trees is None else trees.report(str(self.id))
        aside = SetAside() if self._guarded is None else self._guarded.set_aside
        if not self.component.stateful:
            return Prepared(trees=report, set_aside=aside)
        if isinstance(bolt, ReadyMade):
            report = bolt.report or report
        assert state is not None
        if isinstance(bolt, Stateful):
            with self._hook("prePrepare"):  # rule 7.1: the last who may change state
                bolt.prePrepare(self.attempt.txid)
        due_ms = 0 if self._timers is None else self._due_ms(self._timers)
        if self._own is not None:
            due_ms = self._own.due_ms
        try:
            task_state.prepare(state, self.attempt.txid, self.attempt.token)
        except CodecError as error:
            raise bolt_error(error, *self.id, "prepareCommit", self.attempt.txid) from error
        self.attempt.costs["reads"] += task_state.read_secs(state)
        found = task_state.found_keys(state)  # of the version that was opened: what is prepared is not in it
        snapshot = self._snapshot()
        return Prepared(
            state.prepared_bytes,
            state.prepared_keys,
            found,
            snapshot,
            trees=report,
            due_ms=due_ms,
            set_aside=aside,
        )

    def _snapshot(self) -> SnapshotRef | None:
        """Write a full image of the version that the state was opened at, if the driver wants one (rule 4.4)."""
        # Rule 4.4: of the version before, which is committed. One of what is prepared would be garbage after a
        # rollback.
        if not self.attempt.order.state(self.id).snapshot_due:
            return None
        assert self._state is not None
        return task_state.snapshot(self._state)

    def keep(self) -> None:
        self._clear()
        self._seen = self.attempt.txid
        if not self._holds and (self._fresh or _lives_for_one_attempt(self._object)):
            self._close_object()

    def drop(self, *, acked: bool) -> None:
        self._clear()
        self.close()

    def close(self) -> None:
        self._close_state()
        super().close()

    def forget_object(self) -> None:
        self._close_state()
        super().forget_object()

    def _close_state(self) -> None:
        if self._state is not None:
            task_state.close(self._state)
            self._state = None


_PLACES_VARY = (Promise.ANY, Promise.KEY_OF_TWO, Promise.NAMED)
"""Groupings that may send equal tuples to several tasks, and to others in another attempt."""


def _unplanned(plan: Plan, component: str) -> str | None:
    """Return a spout above a component, or itself, whose tuples may come again in another transaction."""
    if isinstance(plan.components[component].operator, Spout | OpaquePartitionedTransactionalSpout):
        return name_shown(component)
    return next((found for edge in plan.inputs[component] if (found := _unplanned(plan, edge.source))), None)


def keys_of(edge: Edge, batch: pa.RecordBatch, columns: Sequence[list[Any]]) -> list[Any]:
    """Return the key of each row, by the fields that they are grouped by."""
    keys = [columns[batch.schema.get_field_index(name)] for name in edge.grouping.fields]
    return keys[0] if len(keys) == 1 else list(zip(*keys, strict=True))


def _refuse_endless(fired: Counter[tuple[Any, str]], timer: Timer) -> None:
    """Refuse a timer that is set again whenever it fires, where event time has ended: it would fire for ever."""
    name = (repr(timer.key), timer.name)
    fired[name] += 1
    if fired[name] > SAME_TIMER_MAX:
        raise ValueError(
            f"onTimer has set the timer of key {timer.key!r} again {SAME_TIMER_MAX} times as it fired, and event time "
            "is closed: whatever is set fires at once. Set none where context.watermark is "
            "datetime.max.replace(tzinfo=UTC)"
        )


def _lives_for_one_attempt(bolt: Bolt) -> bool:
    """Return whether a bolt's attributes belong to the batch: those of a BatchBolt without state, as in Storm.

    One with state begins every transaction in ``initState``.
    """
    return isinstance(bolt, BatchBolt) and not isinstance(bolt, Stateful)


def _marked(batch: pa.RecordBatch, edge: Edge, source: str) -> pa.RecordBatch:
    """Note in the schema's metadata where a batch came from."""
    return batch.replace_schema_metadata({"source": source, "stream": edge.stream})
