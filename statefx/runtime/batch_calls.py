"""The calls of an `AsyncBolt` that takes batches: its tuples are gathered, and one call is made for many.

::

    tuples --> gathered -----------------> a batch in flight ------> each tuple's call has ended
                 |  full, or the first      |                          ^
                 |  has waited enough, or   | raised by several rows:  | as any other: in order, guarded,
                 |  nothing more comes      v halves of it             | with its own anchors

Each tuple is a `Call`, as those of ``execute`` are, and has what was emitted for it. So all that becomes of a call when
it has ended is what becomes of others. A `Batch` is what is in flight: many calls in the place of one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import pyarrow as pa

from statefx.operators.context import DEFAULT_STREAM
from statefx.operators.tuples import is_tuple
from statefx.runtime.calls import Call, Calls
from statefx.runtime.collector import NO_ANCHORS, TaskCollector
from statefx.runtime.trees import Trees

Splits = Callable[[BaseException, Sequence[Call]], bool]
"""Says of an error and the calls of a batch whether one of them alone may be to blame."""


class Batch(Call):
    """The calls of the tuples that ``executeBatch`` is given together, and the collector that it is given."""

    def __init__(self, out: TaskCollector, trees: Trees | None, calls: Sequence[Call], *, checks_rows: bool) -> None:
        self._out, self._trees, self._checks_rows = out, trees, checks_rows
        self.calls = calls
        self.tup = [call.tup for call in calls]
        self._of = {id(call.tup): call for call in calls}

    def emit(
        self,
        values: Any = (),
        /,
        stream: str = DEFAULT_STREAM,
        task: int | None = None,
        anchors: Any = NO_ANCHORS,
        **fields: Any,
    ) -> None:
        if self.done:
            raise self._too_late()
        call = self._of.get(id(anchors))
        if call is not None:
            if (  # as `Call.emit` does it, which takes as long as all the rest
                type(values) is tuple
                and len(values) == call._width
                and call.row is None
                and call.rows is None
                and task is None
                and stream is DEFAULT_STREAM
                and not fields
            ):
                call.row = values
            else:
                call.emit(values, stream, task, **fields)
            return
        of = self.calls if anchors is NO_ANCHORS else self._anchored(anchors)
        if len(of) == 1:
            of[0].emit(values, stream, task, **fields)
            return
        row = self._out.checked(values, stream, fields, task)
        if self._checks_rows:  # later it would be put down to one of them
            self._out.check_fit(row, stream)
        self._keep_for(of, lambda collector: collector.emit(row, stream=stream, task=task))

    def _anchored(self, anchors: Any) -> Sequence[Call]:
        """Return the calls of the anchors, in the order of their tuples."""
        if is_tuple(anchors) or isinstance(anchors, str):
            raise self._no_anchor()
        try:
            wanted = {id(each) for each in anchors}
        except TypeError:
            raise self._no_anchor() from None
        found = [call for call in self.calls if id(call.tup) in wanted]
        if not found or len(found) != len(wanted):
            raise self._no_anchor()
        return found

    def _no_anchor(self) -> Exception:
        return self._out.misused(
            "emit(..., anchors=)", "anchors are tuples of the batch that executeBatch was given: anchors=tup"
        )

    def emitBatch(self, batch: pa.RecordBatch | pa.Table, stream: str = DEFAULT_STREAM) -> None:
        if self.done:
            raise self._too_late()
        fitted = self._out.checked_batch(batch, stream)
        self._keep_for(self.calls, lambda collector: collector.emitBatch(fitted, stream))

    def _keep_for(self, calls: Sequence[Call], send: Callable[[Any], None]) -> None:
        """Keep what comes of several tuples with the last of them, anchored to all."""
        trees = self._trees
        if trees is None:
            calls[-1].keep(send)
            return
        anchor, roots = trees.anchor, trees.joined(call.roots for call in calls)

        def send_anchored(collector: Any) -> None:
            before, anchor.root = anchor.root, roots
            try:
                send(collector)
            finally:
                anchor.root = before

        calls[-1].keep(send_anchored)

    def ack(self, tup: Any) -> None:
        self._call_of("ack", tup)

    def fail(self, tup: Any, reason: str = "") -> None:
        if self.done:
            raise self._too_late()
        self._call_of("fail", tup).fail(tup, reason)

    def resetTimeout(self, tup: Any) -> None:
        self._call_of("resetTimeout", tup).resetTimeout(tup)

    def _call_of(self, method: str, tup: Any) -> Call:
        self._out.check_tuple(method, tup)
        call = self._of.get(id(tup))
        if call is None:
            raise self._out.misused(f"{method}(tup)", "it takes a tuple of the batch that executeBatch was given")
        return call

    def forget(self) -> None:
        """Forget what was emitted and counted."""
        self.counted = None
        for call in self.calls:
            call.row = call.rows = None


class BatchCalls(Calls):
    """The calls of one attempt; a call of ``executeBatch`` takes up to `most` of up to `capacity` tuples in flight.

    A batch goes when it is full, `wait_secs` after its first tuple, or at once if nothing more comes. If it raises what
    `splits` is true for, its halves are called, until the rows to blame are alone.
    """

    name = "executeBatch"
    is_quick = False

    def __init__(
        self,
        *arguments: Any,
        capacity: int,
        threads: int | None,
        most: int,
        wait_secs: float,
        trees: Trees | None,
        splits: Splits,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, capacity=min(capacity, threads or capacity), **options)
        self._tuples_max, self._most, self._wait_secs = capacity, most, wait_secs
        self._trees, self._splits = trees, splits
        self._gathered: list[Call] = []
        self._since = 0.0
        """When the first tuple was gathered, as of `time.monotonic`."""
        self._in_flight = 0
        """Tuples of batches that have begun, or that are to be called again in halves."""
        self._halves: deque[Batch] = deque()

    # ---- the loop's thread

    def _has_more(self) -> bool:
        return super()._has_more() or bool(self._halves or self._gathered)

    def _waiting(self) -> int:
        left = self._fed_count - self._taken + len(self._gathered)
        return -(-left // self._most) + len(self._halves)

    def _next(self) -> Call | None:
        """Return the batch to call now, or None if there is none for now."""
        if self._stopped:
            return None
        if self._halves:
            return self._halves.popleft()
        gathered = self._gather()
        if not gathered or not self._may_go(len(gathered)):
            return None
        self._gathered = []
        self._in_flight += len(gathered)
        return self._batch(gathered)

    def _gather(self) -> list[Call]:
        gathered = self._gathered
        while len(gathered) < self._most and (call := super()._next()) is not None:
            if not gathered:
                self._since = monotonic()
            gathered.append(call)
        return gathered

    def _may_go(self, number: int) -> bool:
        if self._in_flight and self._in_flight + number > self._tuples_max:
            return False  # the worker of a batch that ends looks again
        if number == self._most or (self._wants_all and self._taken == self._fed_count):
            return True
        left = self._since + self._wait_secs - monotonic()
        if left <= 0:
            return True
        self.kick_in(left)
        return False

    def _batch(self, calls: Sequence[Call]) -> Batch:
        return Batch(self._out, self._trees, calls, checks_rows=not self._fails_at_once)

    def _end(self, call: Call) -> None:
        assert isinstance(call, Batch)
        call.done = True
        calls, error = call.calls, call.error
        if error is not None:
            call.forget()
            if len(calls) > 1 and self._splits(error, calls):
                half, anew = len(calls) // 2, [call.next_try() for call in calls]  # a thread of these may still emit
                self._halves += [self._batch(anew[:half]), self._batch(anew[half:])]
                self._kick()
                return
            if self._fails_at_once or not isinstance(error, Exception):
                self.fail(error)
        for counted in call.counted or ():
            calls[-1].count_later(counted)
        for each in calls:
            each.done = True
            if error is not None:
                each.error, each.is_late = error, call.is_late
        if not self._ordered:
            self._queue += calls
        self._in_flight -= len(calls)
        self._ended += len(calls)
        # When the next batch has begun: a model, or a service, need not wait until rows have left.
        self._loop.loop.call_soon(self._settle)

    def _settle(self) -> None:
        """Send on what may leave, and gather what comes next."""
        self._serve()
        if self._stalled and self._has_room():
            self._kick()
        if not self._stopped:
            self._gather()
