"""Contexts and collectors of bolts and spouts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from statefx.errors import BoltError
from statefx.operators.metrics import Metrics
from statefx.protocol.identity import TransactionAttempt
from statefx.state.view.time_index import EPOCH, time_of

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import DataclassInstance

    Row = Iterable[Any] | DataclassInstance

_Made = TypeVar("_Made")

# ---- collectors

DEFAULT_STREAM = "default"


class Collector(ABC):
    """Takes what a bolt emits; given to ``execute``, ``executeBatch`` and ``finishBatch``.

    Attributes
    ----------
    attempt : TransactionAttempt
        Which try of which transaction it is for: what Storm's ``prepare`` gives a batch bolt. It does not change, as
        ``context.txid`` and ``context.attempt`` do.

    Contract
    --------
    - Rows from one task to one task of a consumer arrive in the order in which they were emitted.
    - What is emitted counts only if the transaction commits.
    - A collector is of no use after the transaction it was given in.
    """

    attempt: TransactionAttempt

    @abstractmethod
    def emit(
        self,
        values: Row = (),
        /,
        stream: str = DEFAULT_STREAM,
        task: int | None = None,
        anchors: Sequence[tuple[Any, ...]] = (),
        **fields: Any,
    ) -> None:
        """Send one tuple to every bolt that reads `stream`.

        By position, ``collector.emit((word, count))``, or by name, ``collector.emit(word=word, count=count)``.

        Parameters
        ----------
        values : tuple, another iterable with an order, or a dataclass
            One value per field of the stream, in the order of its schema.
        stream : str
            A stream that ``outputFields`` declares.
        task : int, optional
            The consumer's task, 0..parallelism-1; required by, and only for, readers by ``directGrouping``.
        anchors : tuple, or Sequence of tuples
            The input tuples this one comes from: if it fails, they fail. Only for a plain ``Bolt``, and before they are
            acked, and for a ``BatchBolt`` in ``finishBatch``; without them a plain bolt's tuple is lost if it fails.
            Other bolts anchor to the tuple that they are given.
        **fields : Any
            In place of `values`: every field of the stream by its name. A field that is named as one of the other
            parameters can be emitted by position only.

        Raises
        ------
        SchemaError
            The stream is not declared, or the values do not fit its schema. At the latest when the
            transaction's rows are sent, so not always in the call that emitted them.
        BoltError
            `anchors` were given by another bolt, or elsewhere, or are no tuples of its input.

        Contract
        --------
        - What arrives is what was emitted, at any depth: a value that the declared type can't hold without a loss is
          refused. Subclasses arrive as their plain type (numpy's integers and floats, an IntEnum), a naive datetime in
          a timestamp as UTC, and a ``float`` field rounds to single precision.
        - A stream that nobody reads may be emitted to; the rows go nowhere.
        - Lists, dicts and other values of nested types are copied: changing one afterwards changes nothing.
        """

    @abstractmethod
    def emitBatch(self, batch: pa.RecordBatch | pa.Table, stream: str = DEFAULT_STREAM) -> None:
        """Send the rows of an Arrow batch or table to every bolt that reads `stream`, as `emit` does one by one.

        Parameters
        ----------
        batch : pyarrow.RecordBatch or Table
            Its columns are those of the stream's schema, by name and type.
        stream : str
            A stream that ``outputFields`` declares.

        Raises
        ------
        SchemaError
            The stream is not declared, the batch is neither of the two, or its schema is not the stream's.
        """

    @abstractmethod
    def ack(self, tup: tuple[Any, ...]) -> None:
        """Say that `tup` has been dealt with, as in Storm.

        A plain ``Bolt`` behind a `Spout` says so of each of its tuples, in this transaction or, of tuples that it has
        kept, in a later one. Again in the same transaction has no effect; from state, delete what is acked. Other bolts
        ack by themselves, and what comes from elsewhere is not tracked tuple by tuple: then it has no effect.
        """

    @abstractmethod
    def fail(self, tup: tuple[Any, ...], reason: str = "") -> None:
        """Say that `tup` could not be dealt with.

        Behind a `Spout` the spout is told ``fail(id)`` for each tuple of its own that `tup` comes from, when the
        transaction is committed; state that was changed stays changed, as in Storm. A tuple without an id,
        or that was emitted without anchors, is lost, and the call that fails it is undone. Any other input comes again:
        the transaction is rolled back and tried again. It may be called in ``finishBatch`` too, for the transaction's
        tuples.

        Parameters
        ----------
        tup : tuple
        reason : str, optional
            Shown in the log, and told to the spout (``context.failure``); its first 200 characters.
        """

    @abstractmethod
    def resetTimeout(self, tup: tuple[Any, ...]) -> None:
        """Give the trees of `tup` the time of ``topology.message.timeout.secs`` anew, as in Storm.

        For tuples that a plain ``Bolt`` holds over transactions; what is not tracked has no timeout of its own.
        """


class SpoutCollector(ABC):
    """Takes what a `Spout` emits; given to ``nextTuple``.

    Contract
    --------
    - What is emitted waits in the task for the next transaction, and is emitted again, the same, in each attempt of it.
    - It is of no use after the call that it was given to.
    """

    @abstractmethod
    def emit(
        self,
        values: Row = (),
        /,
        stream: str = DEFAULT_STREAM,
        task: int | None = None,
        id: Any = None,
        **fields: Any,
    ) -> None:
        """Emit one tuple, by position or by name.

        Parameters
        ----------
        values, stream, task, **fields
            As of `Collector.emit`; a field named ``id`` can be emitted by position only.
        id : Any, optional
            By which ``ack`` and ``fail`` name the tuple: whatever state can hold as a key. It comes back as it was
            given. None: the tuple is not tracked.

        Raises
        ------
        SchemaError
            The stream is not declared, or the values do not fit its schema.
        CodecError
            The id is nothing that state could hold as a key.
        BoltError
            A tuple with that id waits to be acked or failed.
        """

    @abstractmethod
    def emitDirect(
        self, task: int, values: Row = (), /, stream: str = DEFAULT_STREAM, id: Any = None, **fields: Any
    ) -> None:
        """Emit one tuple to one task of those that read the stream by directGrouping: ``emit(..., task=task)``."""


# ---- where and when

DRIVER = -1
"""``context.task`` of the driver's copy of a spout."""


@dataclass(frozen=True, eq=False)
class Context:
    """Where a bolt runs, and which transaction is under way; given to ``open``.

    Attributes
    ----------
    config : Mapping[str, Any]
        All settings by their full names: ``topology.*`` with defaults filled in, and the user's own keys. Read-only.
    component : str
        The id given to ``setBolt``.
    task : int
        Which of the component's instances this is, 0..parallelism-1.
    parallelism : int
        How many instances the component has.
    generation : int
        How many times the topology has been started on this checkpoint.
    origin : str
        Whose the checkpoint is: random, and the same in every start on it. A copy that goes on by itself
        (``adopt="fork"``) has another one. What a bolt keeps outside its state can name its owner by it.
    ordered : bool
        Whether it sees one transaction after the other, in the order of their txids: committers do, and what reads
        from one, and all others unless ``topology.max.spout.pending`` is above 1.
    attempt : int
        How many times the present transaction has been tried before. Live: it changes under the bolt's hands, as
        ``collector.attempt``, which has it together with the txid, does not.
    txid : int
        The present transaction. Live.
    pending : tuple
        For a `Spout` that is opened: the ids of its messages whose trees go on, since bolts keep tuples of them in
        their state. They will be acked or failed, so pass over them if the source delivers them again.
    watermark : datetime or None
        How far event time has come, in UTC: rows of earlier times are late. While rows are executed it is that of the
        end of the transaction before; in ``finishBatch`` and ``prePrepare`` that of the end of this one. It never goes
        back where ``ordered``. None: no input has event time, nothing is known yet, or a commit or a rollback calls a
        hook. Live. See :doc:`/time`.
    processingTime : datetime
        When the present attempt began, in UTC, by the driver's clock: the same in all tasks. It may go back from one
        transaction to the next, if the clock was set back. Live; 1970 in the driver's copy of a spout, and where a
        commit or a rollback calls a hook.
    failure : str
        For a `Spout`, while ``fail`` runs: who failed the message and why, such as ``"bolt 'bill': card refused"`` or
        ``"it was not acked within 30 s"``; of several reasons one. Else empty. Live.
    metrics : Metrics
        Counters, gauges and histograms of the user's own, as in ``context.metrics.counter("refused", reason="card")``.
        See :doc:`/metrics`.
    """

    config: Mapping[str, Any]
    component: str
    task: int
    parallelism: int
    generation: int
    origin: str = ""
    attempt: int = 0
    txid: int = 0
    ordered: bool = True
    pending: tuple[Any, ...] = ()
    failure: str = ""
    watermark: datetime | None = None
    processingTime: datetime = EPOCH
    metrics: Metrics = field(default_factory=Metrics)
    _key_of: Callable[[Any], str] | None = None
    _share: Callable[..., Any] | None = None

    def idempotencyKey(self, tup: Any) -> str:
        """Return a key of a tuple for a service that does a thing once for each key, such as a payment.

        The same tuple has the same key in every attempt of its transaction, with every driver; two tuples have two
        keys, also if they are equal. The input has to be replayable (DataFrames, and spouts whose batches the driver
        plans), and what bolts before this one emit has to follow from it.

        Parameters
        ----------
        tup : namedtuple
            A tuple that ``execute`` was given in this transaction, the object itself.

        Returns
        -------
        str
            32 hexadecimal digits.

        Raises
        ------
        BoltError
            It is no such tuple, or one of a window; or its messages come again in other transactions, as those of a
            `Spout` and of an opaque spout do; or the bolt has several tasks and does not group this input by fields:
            equal tuples may then come to other tasks in another attempt.
        """
        if self._key_of is None:
            raise BoltError(
                "context.idempotencyKey(tup) is for execute and finishBatch of a bolt: here no tuple is in flight",
                component=self.component,
            )
        return self._key_of(tup)

    def idempotencyKeys(self, batch: Iterable[Any]) -> list[str]:
        """Return the keys of tuples, in their order: of each what `idempotencyKey` returns.

        None is of the batch as a whole: another attempt may gather other tuples into one.
        """
        return [self.idempotencyKey(tup) for tup in batch]

    def shared(self, key: Any, make: Callable[[], _Made], close: Callable[[_Made], object] | None = None) -> _Made:
        """Return what the tasks of this topology in this process share under a key: a model, a pool of connections.

        The first task that asks makes it; others that ask meanwhile wait for that. It stays when attempts fail and
        objects are opened anew, until the last task that has asked for it ends.

        Parameters
        ----------
        key : text, number or tuple of such
            What it is shared under, by all bolts of the topology.
        make : callable
            Makes it, without arguments; no coroutine: clients of an event loop belong to one task. What it raises is
            raised to its caller, and whoever asks next tries again.
        close : callable, optional
            Called with it when the last task has ended; not if the process is killed. What it raises is logged.

        Raises
        ------
        BoltError
            The key can't be one, `make` is not as said, or asks for the key itself; or this is the driver's copy of a
            spout, which shares nothing.

        Contract
        --------
        - Any thread may call it. It blocks until the object is made: where that takes long, an `AsyncBolt` calls it by
          ``await asyncio.to_thread(context.shared, key, make)``.
        - Several threads use what it returns at the same time.
        """
        if self._share is None:
            raise BoltError(
                f"context.shared({key!r}, ...) is for tasks, and this is the driver's copy of a spout: make it in the "
                "hook that emits",
                component=self.component,
            )
        made: _Made = self._share(key, make, close)
        return made

    def enter(self, attempt: TransactionAttempt, clock_ms: int = 0, watermark: int | None = None) -> None:
        """Name the transaction that begins, before any hook of it; the runtime's. `watermark` is in microseconds."""
        object.__setattr__(self, "txid", attempt.txid)
        object.__setattr__(self, "attempt", attempt.attempt)
        object.__setattr__(self, "processingTime", time_of(clock_ms * 1000))
        self.reach(watermark)

    def identify(self, key_of: Callable[[Any], str]) -> None:
        """Have `key_of` return the keys of tuples in the attempt that begins; the runtime's."""
        object.__setattr__(self, "_key_of", key_of)

    def reach(self, watermark: int | None) -> None:
        """Have event time come so far, in microseconds since 1970."""
        object.__setattr__(self, "watermark", None if watermark is None else time_of(watermark))
