"""Bolts that wait for others: a service, a database, a model. Many of their calls are in flight in one task."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, ClassVar

from statefx.operators.bolts import BasicBolt, Stateful
from statefx.operators.hooks import ASYNC_BOLTS, HookNames

if TYPE_CHECKING:
    from statefx.config import Span
    from statefx.operators.context import Collector, Context


class AsyncBolt(BasicBolt):
    """A BasicBolt whose ``execute`` is ``async def``: while one call waits, others go on in the same task.

    Attributes
    ----------
    capacity : int
        How many calls of a task are in flight at most, 1 to 10,000.
    timeout : Duration, str, timedelta or None
        How long one call may take, such as ``"30 seconds"``; None: as long as it likes. A call that takes longer is
        cancelled, and counts as one that has raised TimeoutError.
    ordered : bool
        Whether rows leave in the order of the tuples that they come from, as with other bolts; False: as calls are
        done. A slow call holds back the rows of up to 10,000 later ones, and none of their calls.
    threads : int or None
        In how many threads of each task a plain ``def execute`` runs, for clients that block; at most `capacity` of
        them at a time. None: ``execute`` is ``async def``.
    maxBatch : int
        How many tuples a call of ``executeBatch`` is given at most, up to `capacity`.
    maxWaitMs : int or float
        How many milliseconds a batch that is not full waits for more tuples, from its first one on, 0 to 60,000. The
        end of a transaction waits for none.
    ratePerSecond : int, float or None
        How many calls a second each task begins, of ``execute`` or ``executeBatch``; above 0. Calls that could not
        begin in time may catch up: within any span of time there are at most 50 ms' worth more, and at least one.
    retries : int
        How often a call that raises is made again, 0 to 1,000, before its error counts. With retries, or a breaker, the
        bolt has state of statefx's own, and is a `Committer`.
    retryDelay : Duration, str or timedelta
        How long the first retry waits. The wait doubles with each further one, up to 64 times as long; half of it is
        random.
    retryOn : tuple of exception types
        What is tried again: by default each error that may be a row's. `FailedException` never is.
    breakerFailures : int or None
        After so many calls of a task that have failed one after the other, no call is made for `breakerDelay`; then one
        alone, which shows whether the service is back. Tuples wait meanwhile. None: there is no breaker.
    breakerDelay : Duration, str or timedelta
        How long the breaker stays open.

    Contract
    --------
    - Each task has an event loop of its own, on a thread of its own, for as long as the bolt's object lives: ``open``,
      ``execute`` and ``close`` run there, each of them ``async def`` or not. No other code of the process uses it.
    - All calls of a transaction have ended before its barrier leaves the task, before ``onTimer``, ``finishBatch`` and
      ``prePrepare``. An attempt that is rolled back cancels its calls at once, and waits for none.
    - A call may be made again, after a rollback or a crash: give a service ``context.idempotencyKey(tup)``.
    - What a call emits leaves the task when the call has ended, and not at all if it has raised. Anchors, ``onError``,
      dead letters and metrics are those of a BasicBolt, a call at a time.
    - A coroutine, task or thread that a call has begun may emit until the call ends; later it gets a BoltError, and the
      transaction fails if the call had succeeded.
    - Attributes of the object are shared by all calls in flight.
    - A retry within a second is made in the same attempt. For a later one the tuple waits in the task's state, and is
      tried in a transaction that comes when it is due, also by another driver. At most 10,000 tuples of a task wait.
    - A tuple that waits has been acked. Its event time holds the watermark of what reads from the bolt. Tuples of its
      key wait for it if `ordered`, or with state.

    Examples
    --------
    ::

        class Geocode(AsyncBolt):
            outputFields = "id string, city string"
            capacity, timeout = 200, "5 seconds"

            async def open(self, context):
                self.client = httpx.AsyncClient()

            async def execute(self, tup, collector):
                answer = await self.client.get("https://geo.example/", params={"ip": tup.ip})
                collector.emit((tup.id, answer.json()["city"]))

            async def close(self):
                await self.client.aclose()
    """

    capacity: int = 100
    timeout: Span | None = "30 seconds"
    ordered: bool = True
    threads: int | None = None
    maxBatch: int = 64
    maxWaitMs: float = 5
    ratePerSecond: float | None = None
    retries: int = 0
    retryDelay: Span = "1 second"
    retryOn: tuple[type[Exception], ...] = (Exception,)
    breakerFailures: int | None = None
    breakerDelay: Span = "30 seconds"

    _hooks: ClassVar[HookNames] = ASYNC_BOLTS
    _gathers: ClassVar[bool] = True

    @property
    def _keeps_calls(self) -> bool:
        return self.retries > 0 or self.breakerFailures is not None

    def open(self, context: Context) -> Coroutine[Any, Any, None] | None:  # type: ignore[override]  # may be async
        """Set up clients, on the task's event loop; ``async def`` or not. Otherwise as of any bolt."""

    def execute(self, tup: Any, collector: Collector) -> Coroutine[Any, Any, None] | None:  # type: ignore[override]
        """Deal with one tuple: ``async def execute(self, tup, collector)``.

        When it is called
            For every input tuple of the transaction, while fewer than `capacity` calls are in flight.
        Guaranteed
            Calls begin in the order in which the tuples came. With state, a call of a key begins when the one before of
            that key has ended.
        Not guaranteed
            An order in which calls end, or that the attempt is the first or the only one: what is done outside may be
            done again.
        Raising
            As of any bolt. TimeoutError is raised for a call that takes too long, and CancelledError that the bolt
            has not caused itself is an error like others.

        Parameters
        ----------
        tup : namedtuple
            As of any bolt.
        collector : Collector
            That of this call: it takes what the call emits, until the call ends.
        """
        raise NotImplementedError(f"{type(self).__name__} has no execute")

    def executeBatch(  # type: ignore[override]
        self, batch: list[Any], collector: Collector
    ) -> Coroutine[Any, Any, None] | None:
        """Deal with tuples together, in the place of ``execute``: ``async def executeBatch(self, batch, collector)``.

        When it is called
            When `maxBatch` tuples have come, `maxWaitMs` after the first of them, or when nothing more comes in the
            transaction; while no more than `capacity` tuples are in flight.
        Guaranteed
            Tuples come in their order, of one input or of several (``tup._source``); a tick comes alone.
        Not guaranteed
            That another attempt gathers the same tuples; otherwise as `execute`.
        Raising
            With ``onError`` the halves of the batch are called again, until the rows to blame are alone; so they are
            behind a ``Spout`` for FailedException. Otherwise as `execute`.

        Parameters
        ----------
        batch : list of namedtuple
            At least one. The list is the bolt's.
        collector : Collector
            As of `execute`. ``emit(values, anchors=tup)`` says which tuple of the batch, or which, a row comes from:
            then it leaves in the place of that tuple. Without, it comes from all, and leaves with the last one.
        """
        raise NotImplementedError(f"{type(self).__name__} has no executeBatch")

    def close(self) -> Coroutine[Any, Any, None] | None:  # type: ignore[override]  # may be async
        """Release what ``open`` set up, on the task's event loop; ``async def`` or not, within 5 seconds."""


class StatefulAsyncBolt(Stateful, AsyncBolt):
    """An AsyncBolt that keeps state: tuples of one key keep their order, those of others overlap.

    Contract
    --------
    - Every input is by ``fieldsGrouping`` or ``partialKeyGrouping``; the key of a tuple are the fields it is grouped
      by. A tuple's call begins when the calls of all earlier tuples of its key have ended.
    - A call reads state before it awaits, and changes it after its last ``await``: what it changes takes effect as a
      whole, or not at all if it raises. One that has changed state and awaits gets a BoltError, and so does code that
      changes state outside of ``execute``: a task that a call has begun, or a thread.
    - Between two awaits of a call, other keys' calls may change what is kept under other keys, maps and values alike.
    - ``initState``, ``executeBroadcast``, ``onTimer`` and the hooks of commits are plain ``def``, and run while no call
      is in flight.

    Examples
    --------
    ::

        class Refresh(StatefulAsyncBolt):
            def initState(self, state):
                self.tokens = state

            async def execute(self, tup, collector):
                token = self.tokens.get(tup.user)
                fresh = await self.client.refresh(token)
                self.tokens.put(tup.user, fresh)
    """
