"""QueueSpout: the base of a spout for a queue, which hands out messages and waits to hear of each.

Acknowledged after the commit, a message may come a second time if a crash comes between the two. With ``exactlyOnce``
it is acknowledged in the transaction, as Pulsar's pending acks are::

    spout      takes messages, as their owner
    sink       prepare: SEAL, the messages that this owner has pass over to the transaction, which nobody can take away
    driver     COMMITTING is durable
               commit: they leave the queue, by the name that the decision has; again is a no-op
               rolled back: their owner still has them, or who takes its place, and seals them anew

FINISH comes behind COMMITTING, and COMMITTING behind SEAL; a message has one owner, and none that is sealed is handed
out (section 12 of the protocol). So what reads the messages is exactly once with them, and the sinks are too.
"""

from __future__ import annotations

import heapq
import logging
import math
import reprlib
import secrets
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from statefx.config import is_count, is_number
from statefx.errors import ConfigError, TopologyError, UnreachableError
from statefx.operators.acker import ACKNOWLEDGES
from statefx.operators.context import Context, SpoutCollector
from statefx.operators.schema import parse_schema, to_ddl
from statefx.operators.sealed_names import Epoch, Sealed
from statefx.operators.sinks import (
    CheckpointPosition,
    Committable,
    CommitterContext,
    Sink,
    SinkCommitter,
    SinkWriter,
    WriterContext,
)
from statefx.operators.spouts import DEAD, DEAD_FIELDS, TAKEN, Spout
from statefx.protocol.identity import TransactionAttempt

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("statefx")

AT_ONCE = 100
"""Messages that one call of nextTuple emits at most; orders and acks wait for it to return."""

AWAY_SECS, AWAY_SECS_MAX = 0.5, 10.0
"""How long a queue is left alone that can't be reached; each time twice as long."""


class Message(NamedTuple):
    """A message that the queue has handed out.

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
        How often a message is tried. Then it is emitted on the stream ``dead``, with three more fields: ``_id`` (the id
        as text), ``_tries``, and ``_reason``: who failed it last and why, null if that was before its task was lost.
        When that is committed the queue is told that the message is processed, also if nobody reads the stream.
    retryDelay : float
        Seconds until a message that has failed is tried again; each further time twice as long.
    exactlyOnce : bool
        Whether messages are acknowledged in the transaction, where the queue can (`pendingAcks`). There are no tries
        and no stream ``dead`` then, but a client's ``deadLetters``.

    Attributes
    ----------
    schema : pyarrow.Schema
        The fields.

    Contract
    --------
    - A message leaves the queue after its transaction is committed, and never before.
    - A queue that can't be reached (UnreachableError) is asked again after a pause that grows; nothing is lost.
    - With ``exactlyOnce`` a message leaves the queue with its transaction: state, sinks and queue agree, whatever
      crashes. If a bolt fails it, the transaction is rolled back and tried again.
    """

    redelivered: int = 0

    renewSecs = 0.0
    """How often `renew` is called, in seconds; 0: never."""

    pollSecs = 0.0
    """How long the queue is left alone when it had nothing."""

    def __init__(self, fields: Any, *, maxTries: int = 5, retryDelay: float = 1.0, exactlyOnce: bool = False) -> None:
        name = type(self).__name__
        if not is_count(maxTries):
            raise TopologyError(f"{name}: maxTries is a whole number from 1, not {maxTries!r}")
        if not is_number(retryDelay):
            raise TopologyError(f"{name}: retryDelay is a number of seconds from 0, not {retryDelay!r}")
        self.schema = parse_schema(fields)
        ddl = to_ddl(self.schema)
        self.outputFields = {"default": ddl}
        if not exactlyOnce:
            self.outputFields[DEAD] = f"{ddl}, {DEAD_FIELDS}"
        elif type(self).pendingAcks is QueueSpout.pendingAcks:
            raise TopologyError(
                f"{name} has no pendingAcks, so its messages can't be acknowledged in the transaction: leave out "
                "exactlyOnce, or define pendingAcks"
            )
        self.maxTries, self._retry_secs, self._exactly_once = maxTries, retryDelay, exactlyOnce

    # ---- what a queue has to do

    def connect(self, context: Context) -> None:
        """Connect to the queue; called once, in the task."""

    @abstractmethod
    def receive(self, limit: int) -> Iterable[Message]:
        """Return some messages, `limit` at most, none if there are none now; nobody else is given them (rule 12.1)."""

    @abstractmethod
    def finish(self, ids: Sequence[Any]) -> None:
        """Take messages off the queue: they are processed, and that is committed. Again is a no-op."""

    def renew(self, ids: Sequence[Any]) -> None:
        """Tell the queue that these messages are still being processed: without that they expire (rule 12.2).

        Called by a thread of its own, since a transaction may take long. What somebody else has by now, a transaction
        included, it must leave alone.
        """

    def pendingAcks(self) -> PendingAcks:
        """Return what acknowledges messages in the transaction, as picklable as the spout; for ``exactlyOnce``."""
        raise NotImplementedError

    def succeeds(self, owner: str) -> bool:
        """Return whether what an owner has, or a name, is this object's now: that of an earlier object of its task.

        Not that of a later one (rule 12.6): this task may have been stopped before it opened, and been taken for lost.
        """
        epoch, sealed = Epoch.read(owner, self.place), Sealed.read(owner)
        if epoch is None or epoch >= self._epoch:
            return False
        # A transaction that is tried again from here on was rolled back; that of an earlier one is decided.
        return sealed is None or sealed.txid >= self._epoch.txid

    def take(self, limit: int) -> list[Message]:
        """Return some messages, `limit` at most, which are renewed from now on until they are acked."""
        found = []
        for message in self.receive(limit):
            if message.id not in self._out:  # else the queue took this task for dead
                self._out[message.id] = message
                found.append(message)
        return found

    def hold(self, id: Any, until: float) -> None:
        """Renew a message until a time of the monotonic clock, and no longer; called by a client."""
        self._until[id] = until

    # ---- as a spout

    def acknowledging(self) -> Sink | None:
        if not self._exactly_once:
            return None
        acks: object = self.pendingAcks()
        if not isinstance(acks, PendingAcks):
            raise TopologyError(
                f"{type(self).__name__}.pendingAcks returned {reprlib.repr(acks)}, not a statefx.connectors.PendingAcks"
            )
        return _Acknowledging(acks)

    def open(self, context: Context) -> None:
        """Begin with nothing; what another object had been given, the queue hands out again."""
        self.place = f"{context.origin}/{context.component}/{context.task}/"
        self._epoch = Epoch(context.generation, context.txid, context.attempt)
        # Of this object alone: what a task does that was taken for lost, and is not, must not count as this one's.
        self.owner = f"{self.place}{self._epoch}/{secrets.token_hex(4)}"
        self._context = context
        self._out: dict[Any, Message] = {}
        """Messages that were emitted, or wait for a retry."""
        self._until: dict[Any, float] = {}
        """Until when those of a client are renewed, by the monotonic clock."""
        self._reasons: dict[Any, str] = {}
        """Why those have failed last that were tried as often as they may be."""
        self._due: list[tuple[float, int, Any]] = []
        """Retries by their time; the number keeps ids from being compared."""
        self._number = self.redelivered = 0
        self._done: list[Any] = []
        self._away_secs = self._away_until = self._poll_at = 0.0
        self.connect(context)
        self._ended = threading.Event()
        if self.renewSecs:
            # It must not keep alive an object that its run has dropped, nor renew for it.
            arguments = (weakref.ref(self), self._ended, self.renewSecs)
            threading.Thread(target=_renewing, args=arguments, name="statefx-renew", daemon=True).start()

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
            self._tell()
            if left and now >= self._poll_at:
                found = self.take(left)
                if not found:
                    self._poll_at = now + self.pollSecs
                for message in found:
                    self._emit(collector, message)
        except UnreachableError as error:
            self._away_secs = min(AWAY_SECS_MAX, 2 * self._away_secs or AWAY_SECS)
            self._away_until = now + self._away_secs
            logger.warning("the queue is asked again in %g s: %s", self._away_secs, error.message)
            return
        self._away_secs = 0.0

    def ack(self, id: Any) -> None:
        """Have the queue told with the next call, unless the transaction has done that."""
        self._out.pop(id, None)
        self._until.pop(id, None)
        self._reasons.pop(id, None)
        if not self._exactly_once:
            self._done.append(id)

    def fail(self, id: Any) -> None:
        message = self._out.get(id)
        if message is None:  # of another object of this task: the queue hands it out again
            return
        failed = message._replace(tries=message.tries + 1)
        self._out[id] = failed
        if failed.tries == self.maxTries:  # not of the dead letter itself, should a reader of it fail it
            self._reasons[id] = self._context.failure
        secs = 0.0 if failed.tries == self.maxTries else self._retry_secs * 2 ** min(message.tries, 20)
        self._number += 1
        heapq.heappush(self._due, (time.monotonic() + secs, self._number, id))

    def close(self) -> None:
        self._ended.set()
        try:
            self._tell()
        except UnreachableError as error:
            logger.warning("%d messages that are processed are handed out again: %s", len(self._done), error.message)

    def _tell(self) -> None:
        if self._done:
            self.finish(self._done)
            self._done = []

    def _renew(self) -> None:
        now, until = time.monotonic(), dict(self._until)
        ids = [id for id in list(self._out) if until.get(id, math.inf) > now]
        try:
            if ids:
                self.renew(ids)
        except UnreachableError as error:
            logger.warning("%d messages could not be renewed: %s", len(ids), error.message)
        except Exception:
            logger.exception("%d messages could not be renewed", len(ids))

    def _emit(self, collector: SpoutCollector, message: Message) -> None:
        self.redelivered += message.tries > 0
        if self._exactly_once:
            # Both in one transaction: what a call of nextTuple emits is not parted. The values have no id: a bolt that
            # fails them fails the transaction, which alone can take back what the others have done with them.
            collector.emit((self.owner, str(message.id)), stream=TAKEN, id=message.id)
            collector.emit(message.values)
        elif message.tries < self.maxTries:
            collector.emit(message.values, id=message.id)
        else:
            logger.warning(
                "message %s is a dead letter after %d tries: %s",
                message.id,
                message.tries,
                self._reasons.get(message.id),
            )
            last = (str(message.id), message.tries, self._reasons.get(message.id))
            collector.emit((*message.values, *last), stream=DEAD, id=message.id)


def check_idle_secs(spout: str, value: Any) -> None:
    """Refuse what is no time after which messages of a task that is gone are taken over; ConfigError names `spout`."""
    if not is_number(value, 1):
        raise ConfigError(f"{spout}: idleSecs is a number of seconds from 1, got {value!r}")


def _renewing(found: weakref.ref[QueueSpout], ended: threading.Event, secs: float) -> None:
    """Renew what a spout has, until it is closed or nobody has it any more."""
    while not ended.wait(secs):
        spout = found()
        if spout is None:
            return
        spout._renew()
        del spout


class PendingAcks(ABC):
    """The part of a queue that acknowledges messages in the transaction. Called in tasks and on the driver.

    An **owner** is a text that names one object of a spout; a **name** begins with that of its owner, and names one
    attempt of one transaction.

    Each method raises UnreachableError if the queue can't be reached.
    """

    @property
    @abstractmethod
    def target(self) -> str:
        """The queue's name, without secrets."""

    def check(self) -> None:
        """Refuse a queue that can't keep what it has acknowledged; before anything is taken. Raises SinkError."""

    @abstractmethod
    def seal(self, owner: str, ids: Sequence[str], name: str) -> None:
        """Let messages pass from their owner to a transaction: nobody else is given them, none expires (rule 12.3).

        Also those that the owner has sealed for an earlier attempt, which was rolled back; not those of a later one: a
        call may arrive late.

        Raises
        ------
        TransactionConflictError
            The owner does not have one of them any more.
        """

    @abstractmethod
    def acknowledge(self, name: str) -> None:
        """Take what is sealed under a name off the queue; a no-op if nothing is (rule 12.4)."""

    @abstractmethod
    def sealed(self, prefix: str) -> Mapping[str, int]:
        """Return the names that begin so, and how many messages each has; others that had some may be among them."""

    @abstractmethod
    def release(self, name: str) -> None:
        """Give what is sealed under a name back to its owner; a no-op if nothing is."""

    def close(self) -> None:
        """Release connections; whatever is called afterwards connects anew."""


class _Acknowledging(Sink):
    """The sink that a queue's messages leave it by."""

    exclusive = False

    def __init__(self, acks: PendingAcks) -> None:
        self._acks = acks

    @property
    def target(self) -> str:
        return self._acks.target

    def writer(self, context: WriterContext) -> SinkWriter:
        return _Sealing(self._acks, context)

    def committer(self, context: CommitterContext) -> SinkCommitter:
        return _Finishing(self._acks, context)

    def release(self) -> None:
        self._acks.close()


class _Sealing(SinkWriter):
    """Seals what its tasks are told of, when the transaction is prepared."""

    def __init__(self, acks: PendingAcks, context: WriterContext) -> None:
        self._acks, self._context = acks, context
        self._ids: dict[str, list[str]] = {}
        self._sealed: dict[str, int] = {}
        """The number of messages, by name."""

    def write(self, batch: pa.RecordBatch) -> None:
        for owner, id in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            self._ids.setdefault(owner, []).append(id)

    def prepare(self, txid: int) -> Committable | None:
        for owner, ids in self._ids.items():
            name = Sealed.of(owner, self._context.attempt, self._context.token)
            self._sealed[name] = len(ids)
            self._acks.seal(owner, ids, name)
        return {"sealed": self._sealed} if self._sealed else None

    def abort(self) -> None:
        for name in self._sealed:
            self._acks.release(name)


class _Finishing(SinkCommitter):
    """Takes messages off the queue whose transaction is decided."""

    def __init__(self, acks: PendingAcks, context: CommitterContext) -> None:
        self._acks, self._context = acks, context

    def _names(self) -> Iterable[tuple[str, int]]:
        """Yield the names of this spout, of this start and those before, with their transactions.

        Not those of a later start: this driver may have been replaced, and does not know what that one has decided.
        """
        owner = self._context.owner
        spout = f"{owner.origin}/{self._context.component.removeprefix(ACKNOWLEDGES)}/"
        for name in self._acks.sealed(spout):
            task = name.removeprefix(spout).partition("/")[0]
            epoch, found = Epoch.read(name, f"{spout}{task}/"), Sealed.read(name)
            if found is not None and epoch is not None and epoch.generation <= owner.generation:
                yield name, found.txid

    def check(self, reached: CheckpointPosition, *, takeover: bool) -> None:
        self._acks.check()
        list(self._names())

    def fence(self, reached: CheckpointPosition, *, takeover: bool) -> None:
        """Release what no decision names: what is decided is acknowledged by `commit`, which names it."""
        for name, txid in self._names():
            if not reached.committed < txid <= reached.decided:
                self._acks.release(name)

    def commit(self, attempt: TransactionAttempt, committables: Mapping[int, Committable]) -> None:
        for committable in committables.values():
            for name in committable["sealed"]:
                self._acks.acknowledge(name)

    def sweep(self, committed: int) -> None:
        """Release what a task has sealed so late that its attempt was rolled back by then."""
        for name, txid in self._names():
            if txid <= committed:
                self._acks.release(name)

    def close(self) -> None:
        self._acks.close()
