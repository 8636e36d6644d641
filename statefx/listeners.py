"""Listeners of a running topology: what each is called with, in order, on a thread of its own.

::

    onQueryStarted -> onQueryProgress, onQueryRolledBack, onQueryStuck, onQueryIdle ... -> onQueryTerminated

The topology never waits for a listener: events wait in a bounded queue, and whatever a listener raises is logged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from statefx import logs
from statefx.errors import ConfigError

logger = logging.getLogger("statefx")

__all__ = [
    "QueryEvent",
    "QueryIdleEvent",
    "QueryProgressEvent",
    "QueryRolledBackEvent",
    "QueryStartedEvent",
    "QueryStuckEvent",
    "QueryTerminatedEvent",
    "TopologyListener",
]

EVENTS_MAX = 1000
"""Events that wait for one listener: those of a minute and more, at 10 transactions a second."""

SETTLES_SECS = 0.25
"""How long the newest progress waits: spouts say how far they are when the driver next looks for input."""

LOOK_SECS = 1.0
"""How often it is looked whether the query is stuck or idle, which is no event of the driver's."""

IDLE_SECS = 10.0
"""After which a query without a transaction is idle, and how often that is repeated; as in Spark."""

CLOSE_SECS = 5.0
"""How long the end of a query waits for its listeners."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryEvent:
    """An event of a query.

    Attributes
    ----------
    name : str
        The topology's.
    timestamp : str
        When it happened, ISO 8601 in UTC.
    """

    name: str
    timestamp: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStartedEvent(QueryEvent):
    """The driver has the checkpoint; next it finishes what its predecessor has left.

    Attributes
    ----------
    checkpoint : str
        Its location.
    generation : int
        How many drivers the checkpoint has had, this one included.
    committed : int
        The transaction that it goes on after; 0 if there was none.
    """

    checkpoint: str
    generation: int
    committed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryProgressEvent(QueryEvent):
    """A transaction was committed.

    Attributes
    ----------
    progress : Mapping
        As `Query.lastProgress`.
    dropped : int
        How many events before this one were dropped, since the listener is slower than the topology.
    """

    progress: Mapping[str, Any]
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRolledBackEvent(QueryEvent):
    """An attempt of a transaction was rolled back; it is tried again, unless the query ends.

    Attributes
    ----------
    txid : int
        The transaction.
    attempt : int
        Which of its attempts.
    reason : str
        As in the log.
    """

    txid: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStuckEvent(QueryEvent):
    """The query has become stuck: nothing is committed until what fails succeeds.

    Attributes
    ----------
    phase : str
        ``commit``, ``rollback`` or ``PLANNING``, as in `Query.status`.
    txid : int
        The transaction that is stuck.
    since : str
        When it first failed, ISO 8601 in UTC.
    reason : str
        Why it fails.
    """

    phase: str
    txid: int
    since: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryIdleEvent(QueryEvent):
    """The query has had nothing to do for 10 seconds, or is paused; repeated every 10 seconds.

    Attributes
    ----------
    txid : int
        The last committed transaction; 0 if there was none.
    paused : str or None
        Since when the query is paused, ISO 8601 in UTC; None: it waits for input.
    """

    txid: int
    paused: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTerminatedEvent(QueryEvent):
    """The query has ended.

    Attributes
    ----------
    exception : BaseException or None
        What ended it; None: `Query.stop`, or the end of its input.
    """

    exception: BaseException | None


class TopologyListener:
    """Base of what is called with the events of a running topology, as PySpark's ``StreamingQueryListener``.

    Override the methods of interest. Give it to ``submit(..., listeners=[...])``, which misses nothing, or to
    `Query.addListener` later.

    Contract
    --------
    - The methods of one listener are called one after the other, in the order of events, on a thread of its own.
      `onQueryStarted` is the first and `onQueryTerminated` the last.
    - The topology does not wait for them. 1,000 events wait for a listener; of more, the oldest progress is dropped,
      which is logged and counted in the next `QueryProgressEvent`. Only the end of a query waits, for 5 seconds.
    - What a method raises is logged, at first at once and then as a count, and changes nothing.
    - Listening is not transactional: after a crash of the driver, an event may be missing.

    Examples
    --------
    >>> class Alarm(TopologyListener):
    ...     def onQueryStuck(self, event):
    ...         print(f"{event.name} is stuck since {event.since}: {event.reason}")
    """

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Handle the start of the query."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Handle a committed transaction."""

    def onQueryRolledBack(self, event: QueryRolledBackEvent) -> None:
        """Handle an attempt that was rolled back."""

    def onQueryStuck(self, event: QueryStuckEvent) -> None:
        """Handle that the query has become stuck."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Handle that the query has nothing to do."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Handle the end of the query."""


_Event = TypeVar("_Event", bound=QueryEvent)


@dataclass(slots=True, eq=False)
class _Waiting:
    """An event that waits for a listener."""

    method: str
    event: QueryEvent | Callable[[int], QueryEvent]
    """It, or what makes it of the number of events that were dropped."""
    ripe: float
    """When it may be delivered while no other event waits, as of `time.monotonic`."""


class _Delivery:
    """The thread of one listener, and the events that wait for it."""

    def __init__(self, listener: TopologyListener) -> None:
        self.listener = listener
        self._changed = threading.Condition()
        self._events: deque[_Waiting] = deque()
        self._closing = False
        self._dropped = 0
        self.thread = threading.Thread(target=logs.carrying(self._run), name="statefx-listener", daemon=True)
        self.thread.start()

    def post(self, event: _Waiting) -> None:
        with self._changed:
            if len(self._events) >= EVENTS_MAX:
                self._drop()
            self._events.append(event)
            self._changed.notify()

    def close(self, *, discard: bool = False) -> None:
        """End the thread when what waits is delivered, or at once with `discard`."""
        with self._changed:
            self._closing = True
            if discard:
                self._events.clear()
            self._changed.notify()

    def _drop(self) -> None:
        """Drop the oldest progress; without one, the oldest event."""
        oldest = next((each for each in self._events if each.method == "onQueryProgress"), self._events[0])
        self._events.remove(oldest)
        self._dropped += 1

    def _next(self) -> tuple[_Waiting, int] | None:
        with self._changed:
            while True:
                if self._events:
                    left = self._events[0].ripe - time.monotonic()
                    if left <= 0 or len(self._events) > 1 or self._closing:
                        dropped, self._dropped = self._dropped, 0
                        return self._events.popleft(), dropped
                    self._changed.wait(left)
                elif self._closing:
                    return None
                else:
                    self._changed.wait()

    def _run(self) -> None:
        name = type(self.listener).__name__
        missing = 0
        while (following := self._next()) is not None:
            waiting, dropped = following
            missing += dropped
            if dropped:
                logger.warning("%d events were dropped: listener %s is slower than the topology", dropped, name)
            try:
                if callable(waiting.event):
                    event, missing = waiting.event(missing), 0
                else:
                    event = waiting.event
                getattr(self.listener, waiting.method)(event)
            except (
                BaseException
            ):  # asyncio's CancelledError or SystemExit: of them this thread would end without a word
                logger.exception("listener %s: %s raised; ignored", name, waiting.method)


class Listeners:
    """The listeners of one query; any thread may call it.

    `status` returns `Query.status`, and `progress` what is known of a committed transaction, by its txid. A thread that
    begins with the first listener looks each second whether the query is stuck or idle.
    """

    def __init__(
        self,
        name: str,
        status: Callable[[], Mapping[str, Any]],
        progress: Callable[[int], Mapping[str, Any] | None],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._name, self._status, self._progress = name, status, progress
        self._clock, self._now = clock, now
        self._lock = threading.RLock()
        self._deliveries: list[_Delivery] = []
        self._ended = threading.Event()
        self._looking: threading.Thread | None = None
        self._stuck: tuple[object, ...] = ()
        """Since when the query is stuck, as was last reported."""
        self._active = clock()
        """When there was a transaction last, or idleness was last reported."""
        self._committed = 0
        """The last committed transaction."""

    def add(self, listener: TopologyListener) -> None:
        """Call `listener` from now on; again: a no-op."""
        check_listener(listener)
        with self._lock:
            if self._ended.is_set() or any(each.listener is listener for each in self._deliveries):
                return
            self._deliveries.append(_Delivery(listener))
            if self._looking is None:
                looking = logs.carrying(self._look_on)
                self._looking = threading.Thread(target=looking, name="statefx-listeners", daemon=True)
                self._looking.start()

    def remove(self, listener: TopologyListener) -> None:
        """Call `listener` no more; events that wait for it are dropped."""
        with self._lock:
            for delivery in [each for each in self._deliveries if each.listener is listener]:
                self._deliveries.remove(delivery)
                delivery.close(discard=True)

    # ---- events

    def started(self, checkpoint: str, generation: int, committed: int) -> None:
        self._committed = committed
        about = {"checkpoint": checkpoint, "generation": generation, "committed": committed}
        self._post("onQueryStarted", lambda: self._event(QueryStartedEvent, **about))

    def committed(self, txid: int) -> None:
        """Deliver the progress of a transaction, as it is known when it is delivered."""
        self._active, self._committed = self._clock(), txid
        at = self._now()

        def made(dropped: int) -> QueryEvent:
            progress = self._progress(txid)
            return QueryProgressEvent(
                name=self._name, timestamp=logs.iso(at), progress=progress or {"txid": txid}, dropped=dropped
            )

        self._post("onQueryProgress", lambda: made, SETTLES_SECS)

    def rolled_back(self, txid: int, attempt: int, reason: str) -> None:
        self._active = self._clock()
        about = {"txid": txid, "attempt": attempt, "reason": reason}
        self._post("onQueryRolledBack", lambda: self._event(QueryRolledBackEvent, **about))

    def close(self, error: BaseException | None, waiting: Collection[int] = ()) -> None:
        """Deliver the query's end; return when all listeners have had it, or after `CLOSE_SECS`.

        `waiting` are the threads that wait for the query to end: a listener may be one, and has its end later.
        """
        self._post("onQueryTerminated", lambda: self._event(QueryTerminatedEvent, exception=error))
        with self._lock:
            self._ended.set()
            deliveries, self._deliveries = self._deliveries, []
        for delivery in deliveries:
            delivery.close()
        end = time.monotonic() + CLOSE_SECS
        for delivery in deliveries:
            if delivery.thread.ident not in waiting and delivery.thread is not threading.current_thread():
                delivery.thread.join(max(0.0, end - time.monotonic()))

    def look(self) -> None:
        """Report whether the query has become stuck, or is idle."""
        status = self._status()
        stuck = status.get("stuck")
        key = () if stuck is None else (stuck["phase"], stuck["txid"], stuck["since"])
        if stuck is not None and key != self._stuck:
            self._post("onQueryStuck", lambda: self._event(QueryStuckEvent, **stuck))
        self._stuck = key
        # Between two attempts of a transaction that fails, nothing runs, and it is not idle.
        if stuck is not None or status.get("failed") is not None or status.get("isTransactionActive"):
            self._active = self._clock()
        elif self._clock() - self._active >= IDLE_SECS:
            self._active = self._clock()
            about = {"txid": self._committed, "paused": (status.get("paused") or {}).get("since")}
            self._post("onQueryIdle", lambda: self._event(QueryIdleEvent, **about))

    def _look_on(self) -> None:
        while not self._ended.wait(LOOK_SECS):
            try:
                self.look()
            except Exception:
                logger.exception("whether the query is stuck or idle could not be determined; listeners are not called")

    def _event(self, kind: Callable[..., _Event], **about: Any) -> _Event:
        return kind(name=self._name, timestamp=logs.iso(self._now()), **about)

    def _post(self, method: str, make: Callable[[], Any], settles_secs: float = 0.0) -> None:
        with self._lock:
            if not self._deliveries:
                return
            event = make()
            for delivery in self._deliveries:
                delivery.post(_Waiting(method, event, time.monotonic() + settles_secs))


def check_listener(listener: object) -> None:
    """Refuse what is no listener: it would never be called."""
    if isinstance(listener, TopologyListener):
        known = [name for name in vars(TopologyListener) if name.startswith("on")]
        unknown = [name for name in dir(listener) if name.startswith("onQuery") and name not in known]
        if unknown:
            raise ConfigError(
                f"listener {type(listener).__name__} has {unknown[0]}, which is never called: the methods that are "
                f"called are {', '.join(known)}; rename it"
            )
    else:
        hint = " (the class, and not an object of it)" if isinstance(listener, type) else ""
        raise ConfigError(
            f"a listener is an object of a subclass of statefx.listeners.TopologyListener, not {listener!r}{hint}: "
            "nothing else has the methods that are called"
        )
