"""The calls of one attempt of an `AsyncBolt`'s task: up to `capacity` of them in flight, on the task's event loop.

::

    chain's thread     feed          advance .................. goes on
                         |              |                          ^
                         v              v                          |
    loop's thread      workers make calls, and send on what those that have ended have emitted
                                        (in the order of the tuples, or as calls end)

A worker is a task of the loop that makes one call after the other: a call that awaits nothing costs no task. A second
worker begins when the first one waits. What a call emits stays in the `Call` itself, which is the collector that it is
given: so it is known to have succeeded before anything leaves.

While the chain's thread waits in `advance`, it has **lent** the loop's thread all that is its own: the collector, the
outbox, the guard of calls. Otherwise each few calls would cost two switches of threads, of up to 5 ms each on Python's
lock. At all other times calls go on, and what they have emitted waits.

Otherwise the two threads share counters that one of them alone changes, and a deque that one fills and the other
empties.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Protocol

import pyarrow as pa

from statefx.errors import BoltError
from statefx.operators.context import DEFAULT_STREAM, Collector
from statefx.operators.user_errors import place_of_frames
from statefx.operators.waiting import Waiting
from statefx.protocol.identity import TransactionAttempt
from statefx.runtime.collector import NO_ANCHORS, TaskCollector
from statefx.runtime.loops import WATCH_SECS, LoopThread, NoThreadError
from statefx.runtime.rate import Rate
from statefx.runtime.slices import Slices
from statefx.runtime.trees import Roots
from statefx.runtime.user_objects import check_nothing
from statefx.topology.graph import Edge

HELD_MAX = 10_000
"""Calls that are done and wait for an earlier one, or for one of their key, at most: what they have emitted is in
memory."""

SEND_EVERY = 128
"""Calls that end before it is looked what may leave: fewer than what makes Python collect garbage."""

SLICE_CALLS, SLICE_SECS = 16, 0.005
"""After so many calls a worker looks whether it has kept the loop for longer than that without waiting."""

CHECKED = -2
"""In the place of a row's width: each row is looked at as it is emitted, since its call can't be undone later."""

_NO_KEY = object()


@dataclass(slots=True)
class Fed:
    """Tuples of one batch; `keys` if those of one key are to keep their order, `roots` if they are tracked.

    Tuples are made as they are taken: garbage collection looks at all that there are, again and again.
    """

    edge: Edge | None
    batch: pa.RecordBatch | None
    tuples: Iterator[Any]
    number: int
    roots: Sequence[Roots] | None = None
    keys: Sequence[Any] | None = None
    begin: Callable[[], None] | None = None
    """What the loop's thread is to do before the first of them."""
    waiting: Waiting | None = None
    """Of one tuple that has waited in state: what is known of it."""
    anew: Callable[[int, Any], Any] | None = None
    """Makes a tuple once more, by its place, for another call; None if nothing of it can be changed."""


class _Note(str):
    """A note of a call, on its error."""

    __slots__ = ()


class Call(Collector):
    """One call, and the collector that it is given: what it emits waits here until it has ended.

    `row` is what it has emitted if that is one row of the default stream alone. Otherwise `rows` has such rows as they
    are, and for all else what emits it when it is called with the task's collector. `error` is what it has raised.
    `counted` are what is called to count, once the call is kept. `successor` is the call that is made after it for the
    tuple, which has its place; `tries` are the calls before it, and `waited_secs` the waits between those of this
    attempt. `waits`: the next one is of a later transaction. `note` is what is to be said with its error. `is_late`: it
    has taken longer than a call may. `has_lost`: it has failed its own tuple, which belongs to no tree.
    """

    # Of the class as long as a call has none of its own: most calls never do, and to set one costs as much as an emit.
    row: tuple[Any, ...] | None = None
    rows: list[Any] | None = None
    counted: list[Callable[[], None]] | None = None
    error: BaseException | None = None
    coroutine: Any = None
    roots: Roots = None
    key: Any = _NO_KEY
    done = waits = is_late = has_lost = False
    successor: Call | None = None
    tries = epoch = 0
    waited_secs = due_ms = 0.0
    why = note = ""

    def __init__(self, out: TaskCollector, width: int, tup: Any, fed: Fed, at: int) -> None:
        self._out = out
        self._width = width
        self.tup = tup
        self.fed = fed
        self.at = at

    @property
    def attempt(self) -> TransactionAttempt:  # type: ignore[override]  # it does not change
        return self._out.attempt

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
        if (
            type(values) is tuple
            and len(values) == self._width
            and task is None
            and stream is DEFAULT_STREAM
            and not fields
            and anchors is NO_ANCHORS
        ):
            if self.row is None and self.rows is None:
                self.row = values
            else:
                self.keep(values)
            return
        out = self._out
        if anchors is not NO_ANCHORS:
            out.check_anchors(anchors)
        row = out.checked(values, stream, fields, task)
        if self._width == CHECKED:
            out.check_fit(row, stream)
        self.keep(lambda collector: collector.emit(row, stream=stream, task=task))

    def emitBatch(self, batch: pa.RecordBatch | pa.Table, stream: str = DEFAULT_STREAM) -> None:
        if self.done:
            raise self._too_late()
        fitted = self._out.checked_batch(batch, stream)
        self.keep(lambda collector: collector.emitBatch(fitted, stream))

    def ack(self, tup: Any) -> None:
        self._out.check_tuple("ack", tup)  # otherwise it says nothing: a BasicBolt's tuples are acked for it

    def fail(self, tup: Any, reason: str = "") -> None:
        if self.done:
            raise self._too_late()
        self._out.check_tuple("fail", tup)
        if self.roots is None:
            raise self._out.failed(tup, reason)
        if not self.roots and tup is self.tup:
            self.has_lost = True
        self.keep(lambda collector: collector.fail(tup, reason))

    def resetTimeout(self, tup: Any) -> None:
        self._out.check_tuple("resetTimeout", tup)
        self.keep(lambda collector: collector.resetTimeout(tup))

    def keep(self, row: Any) -> None:
        """Have a row leave, or something be called with the task's collector, when the call has ended."""
        if self.rows is None:
            self.rows = [] if self.row is None else [self.row]
            self.row = None
        self.rows.append(row)

    def _too_late(self) -> BoltError:
        return self._out.too_late(is_lost=self.error is None)

    def next_try(self) -> Call:
        """Return a call that takes the place of this one, which was made in vain.

        It is another object: code of this one may still run, and emit.
        """
        tup = self.tup if self.fed.anew is None else self.fed.anew(self.at, self.tup)
        call = self.successor = Call(self._out, self._width, tup, self.fed, self.at)
        call.roots, call.key, call.tries = self.roots, self.key, self.tries + 1
        call.why, call.waited_secs = self.why, self.waited_secs
        return call

    def raised(self) -> BaseException:
        """Return what it has raised, with its own note alone: calls that await one thing may raise one error."""
        error = self.error
        assert error is not None
        if self.note:
            others = [note for note in getattr(error, "__notes__", ()) if not isinstance(note, _Note)]
            error.__notes__ = [*others, _Note(self.note)]
        return error

    def count_later(self, count: Callable[[], None]) -> None:
        """Have something counted when the call is kept."""
        if self.counted is None:
            self.counted = []
        self.counted.append(count)


class _Worker:
    """A task of the loop that makes calls; `since` is when the present one began, as of `time.monotonic`."""

    __slots__ = ("call", "is_cancelled", "since", "task")

    def __init__(self) -> None:
        self.call: Call | None = None
        self.is_cancelled = False
        self.since = 0.0
        self.task: asyncio.Task[None] | None = None


class Admits(Protocol):
    """What says which calls are made, and made again."""

    def admits(self, call: Call) -> bool:
        """Return whether a call is to be made now; otherwise it is dealt with."""

    def after(self, call: Call) -> Call | None:
        """Return what counts of a call that has ended; None: another one is made for the tuple."""


class Calls:
    """The calls of one attempt; methods say which thread calls them.

    `execute` is the bolt's; `timeout_secs` bounds each call. `send_ended` sends on what ended calls have emitted,
    and returns True if the outbox is full. With `fails_at_once`, the first error ends the attempt: none is of a row
    alone. With `checks_rows`, calls are told of rows that do not fit. `current` tells code which call it belongs to.
    `slices` run the steps of calls that have state. `rate` says when one may begin, `retries` which calls are made, and
    made again.
    """

    name = "execute"
    is_quick = True
    """Whether little has to be done for a call that has ended as it should."""

    def __init__(
        self,
        loop: LoopThread,
        who: str,
        execute: Callable[[Any, Any], Any],
        out: TaskCollector,
        *,
        capacity: int,
        timeout_secs: float | None,
        ordered: bool,
        send_ended: Callable[[], bool],
        fails_at_once: bool,
        checks_rows: bool,
        current: ContextVar[Any] | None,
    ) -> None:
        self._loop, self._who, self._execute, self._out = loop, who, execute, out
        self._capacity, self._timeout_secs, self._ordered = capacity, timeout_secs, ordered
        self._send_ended, self._fails_at_once, self._current = send_ended, fails_at_once, current
        self.slices: Slices | None = None
        self.rate: Rate | None = None
        self.retries: Admits | None = None
        self._width = CHECKED if checks_rows else out.plain_width
        self._fed: deque[Fed] = deque()
        self._now: Iterator[Call] = iter(())
        self._queue: deque[Call] = deque()
        """Calls whose rows have not been taken: by the order of their tuples, or of those that are done."""
        self._released: deque[Call] = deque()
        """Calls whose key has become free."""
        self._keys: dict[Any, deque[Call] | None] = {}
        """Keys that a call is made for, with the calls that wait for it."""
        self._workers: set[_Worker] = set()
        self._fed_count = 0  # changed by the chain's thread alone
        self._taken = self._ended = self._sent = 0  # changed by the loop's thread alone
        self._stalled = self._stopped = False
        self._lent = self._wants_all = self._has_paused = False
        self._lock = threading.Lock()
        self._fatal: BaseException | None = None
        self._changed = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._kick_timer: asyncio.TimerHandle | None = None
        self._left: list[asyncio.Task[None]] = []
        """Tasks of calls that have taken too long."""

    # ---- the chain's thread

    def feed(self, fed: Fed) -> None:
        """Give the loop tuples, to begin when `advance` is called."""
        if fed.number:
            self._fed_count += fed.number
            self._fed.append(fed)

    def advance(self, *, all: bool, check: Callable[[], None]) -> bool:
        """Wait until all tuples have begun, so that more may be fed; or until `all` has ended and was sent on.

        Return True if it has to pause, for more would be emitted than may wait; never if `all`. Whatever fails the
        attempt is raised, also by `check`, which is asked now and then.
        """
        self._changed.clear()
        check()
        self._wants_all, self._has_paused, self._lent = all, False, True
        self._loop.post(self._serve_and_kick)
        try:
            while not self._changed.wait(WATCH_SECS):
                check()
                self._loop.watch(self._who)
            check()
        finally:
            with self._lock:  # what is sent on is no code of the user's: it takes no longer than that
                self._lent = False
        if self._fatal is not None:
            raise self._fatal
        return self._has_paused

    @property
    def leaves_some(self) -> bool:
        """Whether calls that have taken too long still run."""
        return not all(task.done() for task in self._left)

    def interrupt(self) -> None:
        """Wake the thread that waits, for its attempt is abandoned; any thread."""
        self.stop()
        self._changed.set()

    def stop(self) -> None:
        """Cancel all calls, and wait for none."""
        self._stopped = True
        self._loop.post(self._cancel_all)

    # ---- the loop's thread: what leaves

    def ready(self) -> Iterator[Call]:
        """Yield the calls that have ended and may leave."""
        queue, ordered = self._queue, self._ordered
        while queue:
            while (successor := queue[0].successor) is not None:
                queue[0] = successor
            if ordered and not queue[0].done:
                return
            self._sent += 1
            yield queue.popleft()

    def _serve(self) -> None:
        """Send on what may leave, if that is lent, and wake the chain's thread if it has got what it waits for."""
        with self._lock:
            if not self._lent:
                return
            try:
                while self._send_ended():
                    if not self._wants_all:
                        self._has_paused = True
                        break
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                self.fail(error)
            if self._fatal is not None or self._has_paused or self._is_done():
                self._lent = False
                self._changed.set()

    def _is_done(self) -> bool:
        if self._wants_all:
            return self._sent == self._fed_count
        return self._taken == self._fed_count and self._taken - self._sent < HELD_MAX

    def _serve_and_kick(self) -> None:
        self._serve()
        self._kick()

    # ---- the loop's thread: calls

    def _kick(self) -> None:
        """Begin a worker; others follow if it waits for something."""
        if self._has_more() and len(self._workers) < self._capacity:
            self._begin()
            self._loop.loop.call_soon(self._begin_others)

    def kick_in(self, secs: float) -> None:
        """Look again after a while whether a call may begin."""
        loop, timer = self._loop.loop, self._kick_timer
        if timer is None or timer.when() > loop.time() + secs:
            if timer is not None:
                timer.cancel()
            self._kick_timer = loop.call_later(secs, self._kick_late)

    def _kick_late(self) -> None:
        self._kick_timer = None
        self._kick()

    def _waiting(self) -> int:
        """Return how many calls could begin now if nothing held them back."""
        return self._fed_count - self._taken + len(self._released)

    def _begin_others(self) -> None:
        number = min(self._capacity - len(self._workers), self._waiting())
        if self.rate is not None:
            number = min(number, self.rate.available)
        for _ in range(number):
            self._begin()

    def _has_more(self) -> bool:
        return bool(self._released) or (self._taken < self._fed_count and not self._stopped)

    def _begin(self) -> None:
        worker = _Worker()
        self._workers.add(worker)
        worker.task = self._loop.loop.create_task(self._work(worker))

    async def _work(self, worker: _Worker) -> None:
        try:
            await self._make_calls(worker)
        except asyncio.CancelledError:  # only of one that was released: those of calls are theirs
            pass
        except BaseException as error:  # noqa: BLE001 - reported by the chain's thread
            self.fail(error)
        self._workers.discard(worker)

    async def _make_calls(self, worker: _Worker) -> None:
        """Make one call after the other, while there are some."""
        loop, execute, following = self._loop.loop, self._execute, self._following()
        is_plain = self._current is None and self.slices is None
        is_quick = self.is_quick and self._ordered and self.slices is None and self.retries is None
        calls, began = 0, monotonic()
        if self._timer is None and self._timeout_secs is not None and not self._stopped:
            self._timer = loop.call_later(self._timeout_secs, self._look)
        while (call := following()) is not None:
            worker.call, worker.since = call, monotonic()
            try:
                if is_plain:  # as `_try` does it: a coroutine around another costs as much as an emit
                    coroutine = call.coroutine = execute(call.tup, call)
                    given = await coroutine
                else:
                    given = await self._try(call)
                if given is not None:
                    check_nothing(self.name, given)
            except BaseException as error:  # noqa: BLE001 - it belongs to the call, whatever it is
                self._note(error, worker, call)
            if worker.call is not call:  # it has taken too long: another worker is in the place of this one
                return
            if is_quick and call.error is None:  # as `_end` does it
                call.done = True
                ended = self._ended = self._ended + 1
                if not ended % SEND_EVERY or ended == self._fed_count or self._stalled:
                    self._look_what_leaves()
            else:
                self._end(call)
            if worker.is_cancelled:  # asyncio counts what has cancelled a task: another one goes on
                loop.call_soon(self._kick)
                return
            calls += 1
            if not calls % SLICE_CALLS:
                if monotonic() - began > SLICE_SECS:
                    worker.call = None  # it has ended, however long it took
                    await asyncio.sleep(0)
                began = monotonic()

    def _note(self, error: BaseException, worker: _Worker, call: Call) -> None:
        """Note what a call has raised."""
        if isinstance(error, NoThreadError):  # as an error of the call it would fail the row's message, or lose it
            self.fail(error)
            call.epoch = -1  # nor does it show a breaker that the service is there
        if isinstance(error, asyncio.CancelledError):
            worker.is_cancelled = True
            cause = error
            error = RuntimeError("the call was cancelled, by code of the bolt's or of a library that it calls")
            error.__cause__ = cause
        if not call.done:
            call.error = error

    def _following(self) -> Callable[[], Call | None]:
        """Return what returns the call to begin now."""
        following = self._next if self.retries is None else self._admitted
        return following if self.rate is None else partial(self._by_rate, following)

    def _by_rate(self, following: Callable[[], Call | None]) -> Call | None:
        """Return the following call, once the rate allows for one."""
        rate = self.rate
        assert rate is not None
        if self._stopped or not self._has_more():
            return None
        if wait_secs := rate.wait_secs():
            self.kick_in(wait_secs)
            return None
        call = following()
        if call is not None:
            rate.take()
        return call

    def _next(self) -> Call | None:
        """Return the call to begin now, or None if there is none for now."""
        if self._stopped:
            return None
        if self._released:
            return self._released.popleft()
        while self._taken - self._sent < HELD_MAX or self._has_room():
            call = next(self._now, None)
            if call is None:
                if not self._fed:
                    return None
                fed = self._fed.popleft()
                self._now = self._calls_of(fed)
                if fed.begin is not None:
                    fed.begin()
                continue
            self._taken += 1
            if self._taken == self._fed_count and not self._wants_all:
                self._serve()
            if call.key is _NO_KEY or self._is_first(call):
                return call
        return None

    def _admitted(self) -> Call | None:
        """Return the call to begin now as `_next` does, of those that may be made."""
        assert self.retries is not None
        while (call := self._next()) is not None and not self.retries.admits(call):
            pass
        return call

    def _calls_of(self, fed: Fed) -> Iterator[Call]:
        """Yield a call for each tuple, each as it is taken."""
        out, width, roots, keys, queue = self._out, self._width, fed.roots, fed.keys, self._queue
        is_ordered, is_plain = self._ordered, fed.roots is None and fed.keys is None
        for at, tup in enumerate(fed.tuples):
            call = Call(out, width, tup, fed, at)
            if not is_plain:
                if roots is not None:
                    call.roots = roots[at]
                if keys is not None:
                    call.key = keys[at]
            if is_ordered:
                queue.append(call)
            yield call

    def _is_first(self, call: Call) -> bool:
        """Return whether no earlier call of its key is under way; otherwise have the call wait for those."""
        key = call.key
        if key not in self._keys:
            self._keys[key] = None
            return True
        waiting = self._keys[key]
        if waiting is None:
            waiting = self._keys[key] = deque()
        waiting.append(call)
        return False

    async def _try(self, call: Call) -> Any:
        """Make a call once, and return what ``execute`` does."""
        if self._current is not None:
            self._current.set(call)
        coroutine = call.coroutine = self._execute(call.tup, call)
        return await (coroutine if self.slices is None else self.slices.run(coroutine, call))

    def _end(self, call: Call) -> None:
        """Note that a call has ended."""
        call.done = True
        if self.retries is not None:
            following = self.retries.after(call)
            if following is None:
                return
            call = following
        self.ended(call)

    def ended(self, call: Call) -> None:
        """Note that a call is done, and that none is made after it for its tuple in this attempt."""
        call.done = True
        if not self._ordered:
            self._queue.append(call)
        if call.key is not _NO_KEY:
            waiting = self._keys[call.key]
            if waiting:
                self._released.append(waiting.popleft())
            else:
                del self._keys[call.key]
        if call.error is not None and (self._fails_at_once or not isinstance(call.error, Exception)):
            self.fail(call.raised())
        self._ended += 1
        self._look_what_leaves()

    def again(self, call: Call, secs: float = 0.0) -> None:
        """Have a call made, now or later."""
        if secs:
            self._loop.loop.call_later(secs, self.again, call)
            return
        self._released.append(call)
        self._kick()

    def _look_what_leaves(self) -> None:
        if not self._ended % SEND_EVERY or self._ended == self._fed_count:
            self._serve()
        if self._stalled and self._has_room():
            self._kick()

    def _has_room(self) -> bool:
        """Return whether another call may begin, once what may leave has left."""
        self._serve()
        self._stalled = self._taken - self._sent >= HELD_MAX
        return not self._stalled

    def fail(self, error: BaseException) -> None:
        """Fail the attempt as a whole."""
        self._fatal = self._fatal or error
        self._stopped = True
        self._changed.set()

    def _look(self) -> None:
        """End the calls that have taken too long, and look again when the next one may have."""
        self._timer = None
        now, secs = monotonic(), self._timeout_secs
        assert secs is not None
        if not self._workers:
            return
        late = [each for each in self._workers if each.call is not None and now - each.since >= secs]
        for worker in late:
            call = worker.call
            assert call is not None
            call.is_late = True
            call.error = TimeoutError(f"the call took longer than {secs:g} s{_place(call.coroutine)}")
            self._release(worker)
            self._end(call)
        since = min((each.since for each in self._workers), default=now)
        self._timer = self._loop.loop.call_later(max(since + secs - now, 0.0), self._look)
        if late:
            self._kick()

    def _release(self, worker: _Worker) -> None:
        """Take a worker out: it is cancelled, and whatever its call still does concerns nobody."""
        worker.call = None
        self._workers.discard(worker)
        assert worker.task is not None
        worker.task.cancel()
        self._left.append(worker.task)

    def _cancel_all(self) -> None:
        for timer in (self._timer, self._kick_timer):
            if timer is not None:
                timer.cancel()
        for worker in list(self._workers):
            if worker.call is not None:
                worker.call.error = worker.call.error or asyncio.CancelledError()
                worker.call.done = True
            self._release(worker)


def _place(coroutine: Any) -> str:
    """Return where a call waits, in brackets: the last line of the user's on its way to what it awaits."""
    frames = []
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        frames.append(frame)
        coroutine = coroutine.cr_await
    return place_of_frames(frames)
