"""Runs one `AsyncBolt`: feeds its calls, and sends on what those have emitted that have ended."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

import pyarrow as pa

from statefx.config import seconds_of
from statefx.errors import BoltError, CodecError, FailedException
from statefx.operators.async_bolts import AsyncBolt
from statefx.operators.bolts import Stateful
from statefx.operators.quarantine import GroupKeys
from statefx.operators.tuples import Tick
from statefx.operators.user_errors import bolt_error
from statefx.operators.waiting import Waiting, group_of
from statefx.plan.levels import name_shown
from statefx.protocol.watermark import END
from statefx.runtime.batch_calls import BatchCalls
from statefx.runtime.bolt_task import BoltTask, keys_of
from statefx.runtime.calls import Call, Calls, Fed
from statefx.runtime.guard import is_of_row
from statefx.runtime.loops import LoopThread, loop_of
from statefx.runtime.rate import Rate
from statefx.runtime.retries import Breaker, Policy, Retries
from statefx.runtime.slices import Slices
from statefx.runtime.task import Prepared
from statefx.runtime.user_objects import check_nothing, close_object, context_of, values_of
from statefx.state.view.task_state import TaskState
from statefx.topology.graph import Edge, Promise

_CALL: ContextVar[Call | None] = ContextVar("statefx_call", default=None)
"""The call that code belongs to, also in tasks and threads that it has begun: there its metrics are counted."""


class AsyncBoltTask(BoltTask):
    """Runs one bolt whose calls are in flight together.

    `feed` returns when the calls of all its tuples have begun: the chain may bring more rows meanwhile. `end` waits for
    all calls before anything else that a bolt does at its end. Only while no call is in flight does the chain's thread
    touch the state.
    """

    _calls: Calls | None = None
    _slices: Slices | None = None
    _ticks = False
    """Whether the call is that of a tick."""
    _rate: Rate | None = None
    """It goes on from one attempt to the next."""
    _retries: Retries | None = None
    _due: list[tuple[bytes, Waiting]] | None = None
    """Tuples of earlier transactions that are to be tried, until calls are made for them."""
    clock, random = staticmethod(time.monotonic), staticmethod(random.random)

    def begin(self) -> None:
        super().begin()
        bolt: AsyncBolt = self._object
        attempt, guarded = self.attempt, self._guarded
        self._ticks = False
        self._loop, self._who = loop_of(bolt), f"bolt {self.id.component!r}, task {self.id.task},"
        self._hook_name = "executeBatch" if bolt.vectorised else "execute"
        execute = getattr(bolt, self._hook_name)
        if guarded is not None:
            guarded.state, guarded.hook = None, self._hook_name
        # With retries a call that fails need not fail the attempt, as otherwise without onError: it must count nothing.
        is_counted_later = guarded is not None or bolt.threads is not None or bolt._keeps_calls
        context_of(bolt).metrics.calls = _CALL if is_counted_later else None
        self._scheduled_secs = self._loop.scheduled_secs()
        if bolt.vectorised:
            kind: Callable[..., Calls] = partial(
                BatchCalls,
                threads=bolt.threads,
                capacity=bolt.capacity,
                most=bolt.maxBatch,
                wait_secs=bolt.maxWaitMs / 1000,
                trees=attempt.trees,
                splits=self._splits,
            )
        else:
            kind = partial(Calls, capacity=min(bolt.capacity, bolt.threads or bolt.capacity))
        self._calls = kind(
            self._loop,
            self._who,
            execute
            if bolt.threads is None
            else partial(_in_thread, self._loop, bolt.threads, self._hook_name, execute),
            attempt.collector,
            send_ended=self._send_ended,
            timeout_secs=seconds_of(bolt.timeout),
            ordered=bolt.ordered,
            fails_at_once=guarded is None,
            checks_rows=guarded is not None and isinstance(bolt, Stateful),
            current=_CALL if is_counted_later else None,
        )
        if bolt.ratePerSecond is not None:
            self._rate = self._rate or Rate(bolt.ratePerSecond)
            self._rate.take_waited_secs()
            self._calls.rate = self._rate
        self._retries = self._due = None
        if self.component.stateful:
            self._begin_retries()

    def _check_opened(self, state: TaskState) -> None:
        """Accept whatever waits: calls are made for it."""

    def _splits(self, error: BaseException, calls: Sequence[Call]) -> bool:
        """Return whether one of several rows alone may be to blame for an error of their batch."""
        guarded = self._guarded
        if guarded is None or not isinstance(error, Exception):
            return False
        if isinstance(error, FailedException):  # replayable rows fail together
            return any(call.roots is not None for call in calls)
        return guarded.sets_aside and is_of_row(error)

    # ---- retries

    @cached_property
    def _forms(self) -> dict[int, GroupKeys]:
        """How keys are written, by edge."""
        return {}

    @cached_property
    def _breaker(self) -> Breaker:
        bolt: AsyncBolt = self._object
        secs = seconds_of(bolt.breakerDelay) or 0.0
        return Breaker(bolt.breakerFailures, secs * 1000, self._who)

    def _begin_retries(self) -> None:
        attempt, bolt = self.attempt, self._object
        assert self._state is not None
        assert self._calls is not None
        began, clock_ms = self.clock(), attempt.order.clock_ms
        made = Retries(
            Policy.of(bolt, by_key=self._by_key),
            self._breaker,
            self._calls,
            self._state,
            task=self.id.task,
            txid=attempt.txid,
            watermark=None if attempt.time is None else attempt.time.readers_watermark,
            clock=lambda: clock_ms + (self.clock() - began) * 1000,
            random=self.random,
            groups=self._groups,
        )
        if bolt._keeps_calls or made.has_entries:  # else none of its calls needs a look more
            self._retries = self._calls.retries = made
            self._due = list(made.due())

    def _try_again(self) -> None:
        """Have calls made for what has waited: before others, which may be of the same keys."""
        due, self._due = self._due, None
        for place, waiting in due or ():
            edge, batch = self._waited_for(waiting)
            with self._hook("execute"):
                columns = values_of(batch, waiting.source, edge)
            tup = self._class_of(edge, batch)([column[0] for column in columns])
            if waiting.key is not None:
                self._keys.adopt(tup, waiting.key)
            fed = Fed(edge, batch, iter([tup]), 1, waiting=waiting, anew=self._anew(edge, batch))
            if self._by_key:
                fed.keys = [group_of(place)]
            self._sliced()
            assert self._calls is not None
            self._calls.feed(fed)

    def _waited_for(self, waiting: Waiting) -> tuple[Edge, pa.RecordBatch]:
        """Return the input that a tuple came by, and its row."""
        plan, batch = self.deployment.plan, waiting.batch()
        alike = [
            edge
            for edge in plan.inputs[self.id.component]
            if (edge.stream, plan.schema(edge)) == (waiting.stream, batch.schema) and not edge.grouping.broadcast
        ]
        for edge in alike:
            if name_shown(edge.source) == waiting.source or len(alike) == 1:  # it may have been renamed since
                return edge, batch
        raise BoltError(
            f"bolt {self.id.component!r}, task {self.id.task}: a tuple of transaction {waiting.txid} waits for another "
            f"call. It came from stream {waiting.stream!r} of {waiting.source!r} with the fields {batch.schema.names}, "
            "which the bolt no longer reads, or which was renamed. Start with the topology of before until none waits, "
            "or give the bolt a new id: what waits is lost then",
            component=self.id.component,
            task=self.id.task,
        )

    @property
    def _by_key(self) -> bool:
        return self._state is not None and (self._object.ordered or isinstance(self._object, Stateful))

    def _end_retries(self) -> None:
        """Keep what waits in state, and have what reads from the bolt wait for it."""
        retries, time = self._retries, self.attempt.time
        if retries is None:
            return
        retries.write(self._key_or_none)
        if time is not None and time.watermark != END:  # else they would wait for ever: calls do not delay a close
            time.hold(retries.held_watermark)

    def _key_or_none(self, tup: Any) -> str | None:
        try:
            return self._keys.of(tup)
        except BoltError:  # it has none, which it is told if it asks
            return None

    def prepare(self) -> Prepared:
        prepared, retries = super().prepare(), self._retries
        if retries is None:
            return prepared
        due_ms = min(filter(None, (prepared.due_ms, retries.due_ms)), default=0)
        return replace(prepared, due_ms=due_ms, calls=retries.report)

    def interrupt(self) -> None:
        super().interrupt()
        calls = self._calls
        if calls is not None:
            calls.interrupt()

    # ---- rows

    def feed(self, edge: Edge, batch: pa.RecordBatch) -> bool:
        if edge.grouping.broadcast:  # before all others, so no call is in flight
            return super().feed(edge, batch)
        self._broadcast(on=False)
        batch, roots = self._without_roots(edge, batch)
        with self._hook(self._hook_name):
            columns = values_of(batch, name_shown(edge.source), edge)
        tuples = map(self._class_of(edge, batch), zip(*columns, strict=True))
        if self.attempt.trees is not None:
            roots = list(islice(self._received(roots), batch.num_rows))
        self._try_again()
        fed = Fed(edge, batch, tuples, batch.num_rows, roots, anew=self._anew(edge, batch))
        slices = self._sliced()
        if self._by_key:
            keys = keys_of(edge, batch, columns)
            if _are_comparable(edge, batch) and not (self._retries is not None and self._retries.has_waiting):
                fed.keys = keys
            else:
                fed.keys = self._groups(edge, batch)
            if slices is not None and edge.grouping.promise is Promise.KEY:
                fed.begin = partial(_prefetch, slices, keys)
        assert self._calls is not None
        self._calls.feed(fed)
        return self.resume()

    def _anew(self, edge: Edge, batch: pa.RecordBatch) -> Callable[[int, Any], Any] | None:
        """Return what makes a tuple of a row once more: a call may have changed the lists in the one that it had."""
        if not any(pa.types.is_nested(kind) for kind in batch.schema.types):
            return None

        def make(at: int, before: Any) -> Any:
            columns = values_of(batch.slice(at, 1), name_shown(edge.source), edge)
            tup = self._class_of(edge, batch)([column[0] for column in columns])
            self._keys.hand_on(before, tup)
            return tup

        return make

    def _groups(self, edge: Edge, batch: pa.RecordBatch) -> list[bytes]:
        """Return the key of each row, as tuples that wait are kept with it: 0.0 and -0.0 are one, as in state."""
        if not edge.grouping.fields:
            return [b""] * batch.num_rows
        columns = [batch.column(batch.schema.get_field_index(name)) for name in edge.grouping.fields]
        form = self._forms.get(edge.id)
        if form is None:
            form = self._forms[edge.id] = GroupKeys([column.type for column in columns])
        return [key[1:] for key in form.keys(columns)]

    def _sliced(self) -> Slices | None:
        """Give the state to the calls, if the bolt has one: the first is about to be made."""
        calls, state = self._calls, self._state
        assert calls is not None
        if state is not None and self._slices is None and isinstance(self._object, Stateful):
            calls.slices = self._slices = Slices(state, self._who, calls.fail)
        return self._slices

    def resume(self) -> bool:
        if self._broadcasting:
            return super().resume()
        return self._advance(all=False)

    def _advance(self, *, all: bool) -> bool:
        """Have calls begin, or end, and what they emit sent on; return True if the outbox is full."""
        assert self._calls is not None
        with self._hook(self._hook_name):
            return self._calls.advance(all=all, check=self.attempt.refuse_abandoned)

    def _send_ended(self) -> bool:
        """Send on what the calls that have ended have emitted, by the same way as rows of other bolts.

        Called by the loop's thread while this one waits. Return True if the outbox is full.
        """
        attempt, guarded, calls = self.attempt, self._guarded, self._calls
        assert calls is not None
        if guarded is None or self._ticks:
            collector, outbox = attempt.collector, attempt.outbox
            add = collector.plain_add
            for call in calls.ready():
                if call.row is not None and call.error is None and call.counted is None and add is not None:
                    add(call.row)  # as `emit` does it, which has looked at the row before it was kept
                else:
                    self._send(call, collector)
                if outbox.pressing:
                    return True
            return False
        if attempt.trees is not None:
            return guarded.run_tracked(attempt.trees, self._send_current, self._ended(calls, tracked=True), "execute")
        return guarded.run_tuples(self._send_current, self._ended(calls, tracked=False))

    def _ended(self, calls: Calls, *, tracked: bool) -> Iterator[Any]:
        """Yield the tuples of calls that have ended; `_send_current` is called after each."""
        guarded = self._guarded
        assert guarded is not None
        for call in calls.ready():
            self._current = call
            assert call.fed.edge is not None
            assert call.fed.batch is not None
            guarded.dealing_with(call.fed.edge, call.fed.batch, call.at)
            yield (call.tup, call.roots) if tracked else call.tup

    def _send_current(self, tup: Any, collector: Any) -> None:
        self._send(self._current, collector)

    def _send(self, call: Call, collector: Any) -> None:
        if call.waits:
            return
        if call.error is not None:
            raise call.raised()
        try:
            if call.row is not None:
                collector.emit(call.row)
            for row in call.rows or ():
                if type(row) is tuple:
                    collector.emit(row)
                else:
                    row(collector)
        except Exception as error:
            if self._slices is None:
                raise
            # What it has changed in state stands, and others may have read it: the row alone can't be undone.
            raise bolt_error(error, *self.id, "emit", self.attempt.txid) from error
        for count in call.counted or ():
            count()

    # ---- the end

    def end(self) -> None:
        attempt = self.attempt
        self._try_again()
        self._advance(all=True)
        if attempt.trees is not None and isinstance(self._object, Stateful):
            attempt.trees.end_input()
        if self.id.component in attempt.order.ticks:
            self._give_tick()
        if self._slices is not None:
            with self._hook(self._hook_name):
                self._slices.check()
            if not self._slices.leave():
                raise AssertionError("a step goes on after all calls have ended")
        self._end_retries()
        if self._guarded is not None and isinstance(self._object, Stateful):
            self._guarded.state = self._state
        for cost, before, now in zip(("cpu", "queued"), self._scheduled_secs, self._loop.scheduled_secs(), strict=True):
            attempt.costs[cost] += max(now - before, 0.0)
        if self._rate is not None:
            attempt.costs["throttled"] += self._rate.take_waited_secs()
        super().end()

    def _tick(self) -> None:
        """Do nothing: `end` has given the bolt its tick, while calls could be made."""

    def _give_tick(self) -> None:
        self._sliced()
        assert self._calls is not None
        self._calls.feed(Fed(None, None, iter([Tick(self.component.tick_secs)]), 1))
        self._ticks = True  # an error of it is of no row
        self._advance(all=True)

    def keep(self) -> None:
        hangs = self._calls is not None and self._calls.leaves_some
        super().keep()
        self._end_calls()
        if hangs:  # what is left of a call must not meet the state of another transaction
            self._close_object()

    def drop(self, *, acked: bool) -> None:
        self._end_calls()
        super().drop(acked=acked)

    def _end_calls(self) -> None:
        """Cancel what is in flight, and have no call use the state from now on."""
        calls, self._calls, self._retries = self._calls, None, None
        if calls is not None:
            calls.stop()
        slices, self._slices = self._slices, None
        if slices is not None and not slices.leave():
            self._state = None  # a call blocks its loop, and may use it: it is not closed

    def _close_object(self) -> None:
        made, self._object = self._object, None
        if made is not None:
            close_object(made, wait=not self.attempt.is_abandoned)

    def forget_object(self) -> None:
        self._end_calls()
        if self._object is not None:
            loop_of(self._object).close(wait=False)
        super().forget_object()


async def _in_thread(
    loop: LoopThread, threads: int, name: str, execute: Callable[..., object], tup: Any, call: Call
) -> None:
    """Make a call that blocks, in a thread."""

    def run() -> None:
        check_nothing(name, execute(tup, call))

    await loop.threads(threads).run(run)


def _prefetch(slices: Slices, keys: Sequence[Any]) -> None:
    with suppress(CodecError):  # a key that state can't hold matters only if the bolt uses it
        slices.prefetch(keys)


def _are_comparable(edge: Edge, batch: pa.RecordBatch) -> bool:
    """Return whether keys can be looked up as they are: lists can't be, and no NaN is equal to another."""
    kinds = [batch.schema.field(name).type for name in edge.grouping.fields]
    return not any(pa.types.is_nested(kind) or pa.types.is_floating(kind) for kind in kinds)
