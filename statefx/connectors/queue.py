"""QueueSpout: the base of a spout for a queue, which hands out messages and waits to hear of each."""

from __future__ import annotations

import heapq
import logging
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from statefx.errors import TopologyError, UnreachableError
from statefx.operators import Spout, SpoutCollector, parse_schema, to_ddl
from statefx.operators.context import Context

logger = logging.getLogger("statefx")

DEAD = "dead"
"""The stream of messages that have failed too often."""

AT_ONCE = 100
"""Messages that one call of nextTuple emits at most; orders and acks wait for it to return."""

AWAY_SECS, AWAY_SECS_MAX = 0.5, 10.0
"""How long a queue is left alone that can't be reached; each time twice as long."""


class Message(NamedTuple):
    """What a queue has handed out.

    Attributes
    ----------
    id : whatever state can hold as a key
        By which the queue knows it.
    values : tuple
        In the order of the spout's fields.
    tries : int
        How often it was handed out before, and not processed.
    """

    id: Any
    values: tuple[Any, ...]
    tries: int = 0


class QueueSpout(Spout):
    """Emits the messages of a queue, tells the queue which are processed, and tries again those that fail.

    Parameters
    ----------
    fields : str or StructType
        What a message has, in Spark's DDL.
    maxTries : int
        How often a message is tried. Then it is emitted on the stream ``dead``, with two more fields: ``_id`` (the id
        as text) and ``_tries``. When that is committed the queue is told that the message is processed, also if nobody
        reads the stream.
    retryDelay : float
        Seconds until a message that has failed is tried again; each further time twice as long.

    Attributes
    ----------
    schema : pyarrow.Schema
        The fields.

    Contract
    --------
    - A message leaves the queue after its transaction is committed, and never before.
    - A queue that can't be reached (UnreachableError) is asked again after a pause that grows; nothing is lost.
    """

    renewSecs = 0.0
    """How often `renew` is called, in seconds; 0: never."""

    def __init__(self, fields: Any, *, maxTries: int = 5, retryDelay: float = 1.0) -> None:
        name = type(self).__name__
        if isinstance(maxTries, bool) or not isinstance(maxTries, int) or maxTries < 1:
            raise TopologyError(f"{name}: maxTries is a whole number from 1, not {maxTries!r}")
        if isinstance(retryDelay, bool) or not isinstance(retryDelay, int | float) or not retryDelay >= 0:
            raise TopologyError(f"{name}: retryDelay is a number of seconds from 0, not {retryDelay!r}")
        self.schema = parse_schema(fields)
        ddl = to_ddl(self.schema)
        self.outputFields = {"default": ddl, DEAD: f"{ddl}, _id string, _tries int"}
        self._max_tries, self._retry_secs = maxTries, retryDelay

    # ---- what a queue has to do

    def connect(self, context: Context) -> None:
        """Connect to the queue; called once, in the task."""

    @abstractmethod
    def receive(self, limit: int) -> Iterable[Message]:
        """Return some messages, `limit` at most, that nobody else is given meanwhile; none if there are none now."""

    @abstractmethod
    def finish(self, ids: Sequence[Any]) -> None:
        """Take messages off the queue: they are processed, and that is committed. Again is a no-op."""

    def renew(self, ids: Sequence[Any]) -> None:
        """Tell the queue that these messages are still being processed, so that nobody else is given them."""

    # ---- as a spout

    def open(self, context: Context) -> None:
        """Begin with nothing; what another object had been given, the queue hands out again."""
        self._out: dict[Any, Message] = {}
        """What was emitted, or waits to be tried again."""
        self._due: list[tuple[float, int, Any]] = []
        """What is to be tried again, and when; the number keeps ids from being compared."""
        self._number = 0
        self._done: list[Any] = []
        self._renewed = time.monotonic()
        self._away_secs = self._away_until = 0.0
        self.connect(context)

    def nextTuple(self, collector: SpoutCollector) -> None:
        """Emit what is due to be tried again, then what is new."""
        now = time.monotonic()
        if now < self._away_until:
            return
        left = AT_ONCE
        while self._due and self._due[0][0] <= now and left:
            _, _, id = heapq.heappop(self._due)
            self._emit(collector, self._out[id])
            left -= 1
        try:
            self._tell(now)
            for message in self.receive(left) if left else ():
                if message.id not in self._out:  # else the queue took this task for dead
                    self._out[message.id] = message
                    self._emit(collector, message)
        except UnreachableError as error:
            self._away_secs = min(AWAY_SECS_MAX, 2 * self._away_secs or AWAY_SECS)
            self._away_until = now + self._away_secs
            logger.warning("the queue is asked again in %g s: %s", self._away_secs, error.message)
            return
        self._away_secs = 0.0

    def ack(self, id: Any) -> None:
        """Have the queue told with the next call."""
        self._out.pop(id, None)
        self._done.append(id)

    def fail(self, id: Any) -> None:
        """Try the message again later."""
        message = self._out.get(id)
        if message is None:  # of another object of this task: the queue hands it out again
            return
        failed = message._replace(tries=message.tries + 1)
        self._out[id] = failed
        secs = 0.0 if failed.tries == self._max_tries else self._retry_secs * 2 ** min(message.tries, 20)
        self._number += 1
        heapq.heappush(self._due, (time.monotonic() + secs, self._number, id))

    def close(self) -> None:
        """Tell the queue what is done."""
        try:
            self._tell(time.monotonic())
        except UnreachableError as error:
            logger.warning("%d messages that are processed are handed out again: %s", len(self._done), error.message)

    def _tell(self, now: float) -> None:
        if self._done:
            self.finish(self._done)
            self._done = []
        if self.renewSecs and self._out and now >= self._renewed + self.renewSecs:
            self._renewed = now
            self.renew(list(self._out))

    def _emit(self, collector: SpoutCollector, message: Message) -> None:
        if message.tries < self._max_tries:
            collector.emit(message.values, id=message.id)
        else:
            collector.emit((*message.values, str(message.id), message.tries), stream=DEAD, id=message.id)
