"""Spouts bring rows into a topology without a DataFrame, in transactions that can be tried again.

A spout is one class, and it runs in two places. The driver has a copy that says what there is to read; each task has a
copy that reads it and emits it. Storm has two objects for that, a coordinator and an emitter.

::

    driver    isReady, numPartitions, partitionsToPlan, planPartitionBatch,
              initializeTransaction                                                 before a transaction begins
    driver    committed                                                             after it is committed
    tasks     emitBatch, emitPartitionBatch, emitPartitionBatchNew, cleanupBefore   in its first stage

The **metadata** of a batch is what a task needs to emit it: two offsets, a list of files. It is JSON, and stands in the
log. What the log has of it when an attempt fails decides what the next attempt may emit (rule 9.4):

===========================================  ==============================  =====================================
spout                                        metadata                        the same transaction, tried again
===========================================  ==============================  =====================================
`TransactionalSpout`                         the driver makes it             emits the same rows
`PartitionedTransactionalSpout`, planning    the driver makes it             emits the same rows
`PartitionedTransactionalSpout`              the task makes it, and it is    emits the same rows, once it was emitted
                                             durable before a committer runs
`OpaquePartitionedTransactionalSpout`        the task makes it               may emit other rows
===========================================  ==============================  =====================================

A `Spout` is resident in its task, and learns what became of each tuple: Storm's own kind.

::

    task    open, activate                       when the task begins
    task    nextTuple                            again and again: what it emits waits for the next transaction
    task    ack(id), fail(id)                    when the transaction of the tuple is committed
    task    deactivate, close                    when the task ends in good order

All of it is called on one object by one thread, `ack` and `fail` between two calls of `nextTuple`. The driver has no
copy.

A message is delivered **at least once**: what a spout handed out and was not told of is for its source to deliver
again when the task is lost, as in Storm. While the task lives, a transaction that is rolled back emits the same tuples
once more, and the spout is not asked. State and sinks are exactly once with respect to what was emitted.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from statefx.operators.hooks import SPOUTS, TRACKED_SPOUTS, check_hooks, overrides

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from statefx.operators.context import Collector, Context, SpoutCollector
    from statefx.operators.sinks import Sink
    from statefx.protocol.identity import TransactionAttempt
    from statefx.protocol.reports import LeftOut

Metadata = Any
"""JSON: None, booleans, numbers, texts, lists, and dicts with texts as keys."""


class Backlog(NamedTuple):
    """What waits in a source for a spout.

    Attributes
    ----------
    records : int
        How many were not handed out to anybody yet.
    oldestSecs : float, optional
        How long the first of them has waited; None if the source does not tell.
    """

    records: int
    oldestSecs: float | None = None  # noqa: N815 - public


class ReplayingSpout(ABC):
    """The base of spouts of transactions; derive from one of the three below.

    Attributes
    ----------
    outputFields : str, StructType, NamedTuple, dataclass, or Mapping
        What it emits: Spark DDL such as ``"word string, count long"``, a class with annotated fields, or a dict of them
        by stream.

    Contract
    --------
    - A subclass that defines a near-miss of a method's name, a name of Storm's that is another one here, a method of
      another kind of spout, or a method with other arguments, or with ours in another order, gets a TypeError when the
      class is created.
    """

    outputFields: Any = None
    _throttled_secs: float = 0.0
    """How long the source has held back requests of this copy so far, as by a quota; shown to people."""
    _traces: Sequence[str] = ()
    """W3C trace contexts of some of the records that were read in this attempt, which its task begins empty."""
    _left_out: LeftOut
    """What was skipped in this attempt, as its user wants it; its task begins with nothing."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_hooks(cls, SPOUTS)

    def open(self, context: Context) -> None:
        """Make connections; called once for each copy, before anything else.

        Parameters
        ----------
        context : Context
            Where the copy runs; ``context.task`` is `DRIVER` for the driver's.
        """

    def close(self) -> None:
        """Release what `open` made, in good order; a copy whose process dies is not closed."""

    def prepareForAvailableNow(self) -> None:
        """Take note, on the driver, that the query ends when it has read what is there now.

        Called once, after `open` and before anything else, where the trigger is ``availableNow``. What comes later is
        for the next run, so plan only what is there at the first look. A spout without this method goes on while it
        finds anything.
        """

    def isReady(self) -> bool:
        """Tell, on the driver, whether a transaction may begin now; False: the driver asks again a little later.

        A transaction is of all spouts of the topology: it begins when each of them is ready.
        """
        return True

    def reads(self, target: str) -> bool:
        """Tell, when the topology is made, whether it would read what a sink writes: the topology is refused then.

        Parameters
        ----------
        target : str
            Of a sink of the topology, as `Sink.target` has it.
        """
        return False

    def cleanupBefore(self, txid: int) -> None:
        """Forget, in a task, what transactions before `txid` needed: they are committed.

        It comes with a later transaction, or not at all: only what it saves may rely on it.
        """


class TransactionalSpout(ReplayingSpout):
    """A spout whose driver says for each transaction what all of its tasks emit.

    The tasks share the metadata; each of them emits its own part, by ``context.task`` and ``context.parallelism``.
    """

    @abstractmethod
    def initializeTransaction(self, txid: int, previous: Metadata) -> Metadata:
        """Return, on the driver, the metadata of a transaction; None if there is nothing to read now.

        Called once for a transaction, however often it is tried; again only if the driver dies before it has begun the
        transaction.

        Parameters
        ----------
        txid : int
        previous : JSON
            The metadata of the last transaction before `txid` that had some; None if there is none. That transaction
            may be in flight still. If it is rolled back, it is tried again with the same metadata.
        """

    @abstractmethod
    def emitBatch(self, attempt: TransactionAttempt, metadata: Metadata, collector: Collector) -> Any:
        """Emit this task's part of a batch: the same rows whenever the metadata is the same.

        May be a generator: where it yields, what it has emitted so far can leave the process.
        """


class _Partitioned(ReplayingSpout):
    def initPartitions(self, metadata: Mapping[int, Metadata]) -> None:
        """Take over, on the driver, what was read before; called once, after `open`.

        Parameters
        ----------
        metadata : Mapping of int to JSON
            By partition, the newest; those that nothing was read of are not in it.
        """

    def committed(self, metadata: Mapping[int, Metadata]) -> Any:
        """Take note, on the driver, of what is committed, as for those who watch from outside how far it has come.

        Called some time after a transaction is committed, perhaps once for several, and perhaps never after a crash.
        What it returns is ``query.lastProgress["sources"][id]``: JSON, such as how much there is to read still.
        What it raises is logged, and changes nothing.

        Parameters
        ----------
        metadata : Mapping of int to JSON
            By partition, the newest that is committed.
        """

    def backlog(self, metadata: Mapping[int, Metadata]) -> Backlog | None:
        """Return how much is there to be read behind what is committed; None: nobody knows.

        For ``statefx_source_lag_records`` of a spout whose `committed` does not tell it. Called about each 10 seconds
        on a thread of its own, of an object that was never opened: it makes its own connection, and closes it. The
        longer it takes the less often it is called, and what it raises is logged; no transaction waits for it.

        Parameters
        ----------
        metadata : Mapping of int to JSON
            By partition, the newest that is committed.
        """
        return None

    def isFinished(self, partition: int, metadata: Metadata) -> bool:
        """Return whether no row comes of a partition after the batch of this metadata.

        A finished partition holds no watermark while others of the spout do; if all are finished, the latest time of
        them all holds it, unless the spout has an ``idleAfter``. Called where the spout has a ``timestamp``: in a task
        when the batch has been emitted, and on the driver, when it starts, with the newest metadata of each partition.
        To say it later, give the partition a batch without rows whose metadata says it.

        Contract
        --------
        - It goes by its arguments alone; a partition that is finished stays so, and no row of it comes.

        Parameters
        ----------
        partition : int
        metadata : JSON
            What the batch was planned with, or what the call that emitted it has returned.
        """
        return False

    @abstractmethod
    def numPartitions(self) -> int:
        """Return, on the driver, how many partitions there are now; it may grow, and never shrinks."""


class PartitionedTransactionalSpout(_Partitioned):
    """A spout that reads partitions, and reads the same rows again when a transaction is tried again.

    Partition p is read by task p modulo the parallelism. Define either `planPartitionBatch` or `emitPartitionBatchNew`:
    with the first, a transaction takes one job, and transactions overlap; with the second, the task finds out how far
    it can read.
    """

    def partitionsToPlan(self) -> Iterable[int] | None:
        """Return, on the driver, the partitions that may have something new; None: all, from 0 on.

        Called after `numPartitions`; `planPartitionBatch` is then called for these alone, in this order. So a look
        costs nothing for the partitions that were read to their end.
        """
        return None

    def partitionsToForget(self) -> Iterable[int]:
        """Return, on the driver, finished partitions whose metadata is to be kept no longer than this transaction.

        Called when batches were planned. After a restart such a partition is not in what `initPartitions` is given, and
        `isFinished` is called for it with None, if one of a greater number is. `planPartitionBatch` must not be called
        for it any more.
        """
        return ()

    def planPartitionBatch(self, partition: int, lastMetadata: Metadata) -> Metadata:
        """Return, on the driver, the metadata of the next batch of a partition; None if there is nothing new in it.

        Called for the partitions of `partitionsToPlan`, after each spout's `isReady` has returned True.

        Parameters
        ----------
        partition : int
        lastMetadata : JSON
            The metadata of the last batch of the partition; None if there is none. The transaction of that batch may be
            in flight still. If it is rolled back, it is tried again with the same metadata.
        """
        raise NotImplementedError

    def emitPartitionBatchNew(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, lastMetadata: Metadata
    ) -> Metadata:
        """Emit, in a task, the next batch of a partition, and return its metadata; None if there was nothing new.

        May be a generator, whose return value is the metadata. What the partitions of a task return may have 64 KiB
        together, as JSON.
        """
        raise NotImplementedError

    @abstractmethod
    def emitPartitionBatch(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, metadata: Metadata
    ) -> Any:
        """Emit, in a task, a batch: the same rows whenever the metadata is the same.

        May be a generator. What it returns counts for nothing, since the metadata is known, and if the driver has made
        that, a list or tuple is refused: it looks like rows that were to be emitted.
        """


class OpaquePartitionedTransactionalSpout(_Partitioned):
    """A spout that reads partitions, and may read other rows when a transaction is tried again.

    State and sinks are exact all the same: what an attempt that failed has read counts nowhere.
    """

    @abstractmethod
    def emitPartitionBatch(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, lastMetadata: Metadata
    ) -> Metadata:
        """Emit, in a task, the next batch of a partition, and return its metadata; None if there was nothing new.

        May be a generator, whose return value is the metadata. What the partitions of a task return may have 64 KiB
        together, as JSON.

        Parameters
        ----------
        attempt : TransactionAttempt
        collector : Collector
        partition : int
        lastMetadata : JSON
            What the last transaction before that read this partition returned; None if there is none. That transaction
            may be in flight still. If it is rolled back, this attempt is rolled back as well, and what it has read
            counts nowhere.
        """


def plans(spout: ReplayingSpout) -> bool:
    """Return whether the driver makes the metadata of a spout."""
    if isinstance(spout, PartitionedTransactionalSpout):
        return overrides(type(spout), "planPartitionBatch")
    return isinstance(spout, TransactionalSpout)


def has_partitions(spout: object) -> bool:
    """Return whether a spout reads partitions."""
    return isinstance(spout, _Partitioned)


def may_finish(spout: object) -> bool:
    """Return whether a spout says which of its partitions are finished."""
    return isinstance(spout, _Partitioned) and overrides(type(spout), "isFinished")


def check_json(metadata: Metadata) -> Metadata:
    """Return metadata as JSON gives it back; TypeError for what JSON can't hold without a change.

    Else a spout would be given something else after a restart than before it: a list for a tuple, texts as keys.
    """
    try:
        read = json.loads(json.dumps(metadata))
    except (TypeError, ValueError) as error:
        raise TypeError(f"metadata is JSON, and this can't be written as JSON ({error}): {metadata!r}") from None
    if read != metadata:
        raise TypeError(f"metadata is JSON, which would give {metadata!r} back as {read!r}: return that")
    return read


DEAD = "dead"
"""The stream of a queue's messages that have failed too often."""

DEAD_FIELDS = "_id string, _tries int, _reason string"
"""Behind the fields of a queue's message, in its dead letter."""

TAKEN, TAKEN_ROWS = "__taken", "owner string, id string"
"""Internal stream of a spout whose messages are acknowledged in the transaction: those that it has taken."""


class Spout(ABC):
    """Hands out tuples one by one, with ids of its own; is told of each id whether all that came of it was processed.

    Attributes
    ----------
    outputFields : str, StructType, NamedTuple, dataclass, or Mapping
        What it emits: Spark DDL such as ``"word string, count long"``, a class with annotated fields, or a dict of them
        by stream.
    redelivered : int, optional
        How many messages this object has handed out that were handed out before, for those who watch from outside; None
        if it does not count them.

    Contract
    --------
    - ``ack(id)`` comes when the state of all bolts is committed and every tuple of the tree was acked, and never
      before; also if nobody processes the tuple. ``fail(id)`` comes when a bolt has failed a tuple of the tree, or when
      ``topology.message.timeout.secs`` are over. Of one delivery comes one of the two.
    - Both come to the very object that emitted the tuple. If its task is lost before, neither comes, and the source has
      to deliver the message again; except for trees of which bolts keep tuples in their state: those go on, and their
      end is told to the object that has taken the place (``context.pending``).
    - A tuple without an id is not tracked: nobody hears what becomes of it, and if a bolt fails it, it is lost.
    - A subclass that defines a near-miss of a method's name, or a method with other arguments, gets a TypeError when
      the class is created.

    Examples
    --------
    ::

        class Messages(Spout):
            outputFields = "text string"

            def open(self, context):
                self._queue = connect(context.config["queue.url"])

            def nextTuple(self, collector):
                message = self._queue.receive(wait=False)
                if message is not None:
                    collector.emit((message.text,), id=message.number)

            def ack(self, id):
                self._queue.delete(id)

            def fail(self, id):
                self._queue.put_back(id)
    """

    outputFields: Any = None
    redelivered: int | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_hooks(cls, TRACKED_SPOUTS)

    def open(self, context: Context) -> None:
        """Make connections; called once, in the task, before anything else."""

    def activate(self) -> None:
        """Get ready to be asked; called once, right after `open`."""

    @abstractmethod
    def nextTuple(self, collector: SpoutCollector) -> None:
        """Emit the next tuple, or a few; nothing if there is none now.

        When it is called
            Again and again, also while a transaction is under way elsewhere. After a call that emitted nothing it is
            left alone for ``topology.sleep.spout.wait.strategy.time.ms``, and ever longer while nothing comes.
        Guaranteed
            It is not called while ``topology.max.spout.pending`` tuples of this task have neither been acked nor
            failed, nor while a transaction's worth of tuples waits to be processed.
        Not guaranteed
            That what it emits is processed at once: it waits for the next transaction.
        Raising
            Ends the query with BoltError; nothing that was not acked counts as read.

        Parameters
        ----------
        collector : SpoutCollector
            Takes what is emitted. It must not wait: orders, acks and fails wait for it to return.
        """

    def ack(self, id: Any) -> None:
        """Take note that all that came of the message was processed, and is committed."""

    def fail(self, id: Any) -> None:
        """Take note that the message could not be processed: emit it again, or give it up.

        Why is in ``context.failure`` of the context that `open` was given: the bolt and its reason, of the first 100
        reasons of a task of a bolt in a transaction; then ``other reasons``.
        """

    def deactivate(self) -> None:
        """Take note that no `nextTuple` follows; comes before `close`."""

    def close(self) -> None:
        """Release what `open` made, in good order; not called if the process dies."""

    def acknowledging(self) -> Sink | None:
        """Return the sink that acknowledges, in the transaction itself, what the spout hands out; None: it has none.

        The sink gets what the spout emits on the stream `TAKEN`, as many tasks as the spout has, and its own place in
        each transaction (see `statefx.connectors.queue`).
        """
        return None

    def backlog(self) -> Backlog | None:
        """Return how much the source has for it that was not handed out yet; None: nobody knows.

        Called on the driver about each 10 seconds, on a thread of its own, of an object that was never opened: it makes
        its own connection, and closes it. The longer it takes the less often it is called, and what it raises is
        logged; no transaction waits for it.
        """
        return None

    def reads(self, target: str) -> bool:
        """Tell, when the topology is made, whether it would read what a sink writes (see `ReplayingSpout.reads`)."""
        return False
