"""Spouts that live in their tasks, and learn what became of each tuple: Storm's own kind.

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

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from statefx.operators.hook_names import TRACKED_SPOUTS
from statefx.operators.hooks import check_hooks

if TYPE_CHECKING:
    from statefx.operators.collector import SpoutCollector
    from statefx.operators.context import Context
    from statefx.operators.sinks import Sink

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

    def reads(self, target: str) -> bool:
        """Tell, when the topology is made, whether it would read what a sink writes (see `ReplayingSpout.reads`)."""
        return False
