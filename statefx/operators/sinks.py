"""Sinks take results out of a topology exactly once: a writer in the tasks, a committer on the driver (rule 10.1).

::

    task      write(batch) ...   prepare(txid) -> committable      the rows are durable, and nobody sees them
    driver    COMMITTING is durable, with all committables         from here on they will be published
              commit(attempt, committables)                        rows and marker in one act, repeated until done

The **marker** of a target says whose it is and which transaction was published last. It moves in the same atomic act as
the rows: that makes `commit` idempotent (section 10 of the protocol).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from statefx.errors import FencedError, SinkError, SinkMismatchError, SinkOwnedError
from statefx.operators.hooks import SINKS, check_hooks

if TYPE_CHECKING:
    import pyarrow as pa

    from statefx.protocol.identity import TransactionAttempt
    from statefx.storage import Storage

Committable = Mapping[str, Any]
"""A writer's message to the committer: JSON, 64 kB at most. It stands in the log."""

COMMITTABLE_BYTES_MAX = 64 << 10
"""The log holds the committables of all tasks. A writer with more to say puts it into a file and names that file."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a target.

    Attributes
    ----------
    application : str
        ``topology.transactional.id``; by default the topology's name.
    origin : str
        Of the checkpoint. A fork has another one; a checkpoint that is moved keeps it (rule 1.6).
    generation : int
        Of this start. An older generation of the same origin must not write any more.
    """

    application: str
    origin: str
    generation: int


UNFENCED = -1
"""Transaction of an owner that died, or still is, in the middle of `SinkCommitter.fence`."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The marker of a target.

    Attributes
    ----------
    application, origin, generation
        As of `Owner`: who wrote last.
    txid : int
        The last transaction that was published; `UNFENCED` where the owner has not come to that yet.
    """

    application: str
    origin: str
    generation: int
    txid: int

    @classmethod
    def of(cls, owner: Owner, txid: int) -> Marker:
        """Return the marker that `owner` leaves with transaction `txid`."""
        return cls(owner.application, owner.origin, owner.generation, txid)

    def is_of(self, owner: Owner | Marker) -> bool:
        """Return whether a driver of the same application and checkpoint wrote last, of whatever generation."""
        return (self.application, self.origin) == (owner.application, owner.origin)


@dataclass(frozen=True, slots=True)
class CheckpointPosition:
    """How far the checkpoint is, by its log.

    Attributes
    ----------
    committed : int
        The last transaction that is committed for everybody.
    decided : int
        The last one that is decided: `committed`, or the one after it, which some targets may have already.
    known : bool
        Whether a transaction has been decided for this sink with this target: its marker must be there.
    originals : tuple of str
        Origins of the checkpoints that this one is a fork of, while all have decided the same transactions; else none.
    """

    committed: int
    decided: int
    known: bool = False
    originals: tuple[str, ...] = ()

    def is_shared(self, origin: str) -> bool:
        """Return whether a marker of `origin` is of the checkpoint that this one is a fork of."""
        return origin in self.originals


def starting_point(
    marker: Marker | None, owner: Owner, reached: CheckpointPosition, target: str, *, takeover: bool
) -> int:
    """Return the transaction after which `owner` publishes; refuse a target that is not this checkpoint's.

    Rules 10.3, 10.9 and 10.10. A target that is this checkpoint's, and where the checkpoint is, is gone on with from
    its own marker, also with `takeover`: who leaves ``adopt="takeover"`` in a program, and crashes between the rows and
    COMMITTED, would have the rows twice otherwise.

    Raises
    ------
    FencedError
        A newer generation owns it. `takeover` does not help: a driver that was stopped in the middle of its start would
        take the target away from the one that has replaced it.
    SinkOwnedError
        Another application or another origin wrote last.
    SinkMismatchError
        Target and checkpoint are not at the same transaction: one of them was restored from a backup. Published again,
        rows would come twice; passed over, they would be lost.
    """
    if marker is None:
        if reached.known and not takeover:
            raise marker_gone(target)
        return reached.committed
    ours = marker.is_of(owner)
    if ours and owner.generation and marker.generation > owner.generation:
        raise FencedError(
            f"{target}: generation {marker.generation} has taken over from generation {owner.generation}. If no other "
            "driver runs, the checkpoint was restored from a backup: give it another topology.transactional.id, and "
            "start with adopt='takeover' (if it was moved as well, with adopt=['move', 'takeover'])",
            generation=marker.generation,
        )
    # Also under another name, after a crash between the rows and COMMITTED: they would be there twice (rule 10.2).
    # So may those of the checkpoint that this one is a fork of (rule 10.12).
    of_checkpoint = ours or (takeover and (marker.origin == owner.origin or reached.is_shared(marker.origin)))
    if of_checkpoint and reached.committed <= marker.txid <= reached.decided:
        return marker.txid
    if takeover and of_checkpoint and marker.txid > reached.decided:
        return reached.decided  # what this checkpoint has decided is there, and what comes next is written again
    if takeover or (ours and marker.txid == UNFENCED):
        return reached.committed
    if not ours:
        raise not_ours(
            target,
            marker.application,
            same=marker.application == owner.application,
            new=not reached.committed,
            fork=reached.is_shared(marker.origin),
        )
    raise not_together(target, marker.txid, reached.committed)


def marker_gone(target: str) -> SinkMismatchError:
    """Return the error for a target that this checkpoint has written to, and that has no marker any more."""
    return SinkMismatchError(
        f"{target}: the marker, which records what was published, is missing. Restore the target; or stop, and "
        "start with adopt='takeover' to begin anew: rows that were lost with it stay missing, and those of a "
        "transaction that was not ended may come twice",
        target=target,
    )


def not_together(target: str, marker: int, committed: int) -> SinkMismatchError:
    """Return the error for a target that is at another transaction than the checkpoint."""
    return SinkMismatchError(
        f"{target} is at transaction {marker}, the checkpoint at {committed}: one of them was restored from a backup, "
        "or ran without this sink. Restore the other one of the same time; or start with adopt='takeover', and rows of "
        "the transactions between are missing from the target or stand there twice",
        target=target,
        marker=marker,
        committed=committed,
    )


def not_ours(target: str, application: str, *, same: bool, new: bool, fork: bool = False) -> SinkOwnedError:
    """Return the error for a target that another application owns, or another checkpoint of the `same` one.

    Who has lost a checkpoint, or has renamed a topology, comes here with a `new` one: the remedy must not double all
    that is in the target.
    """
    if fork:
        return SinkOwnedError(
            f"{target} belongs to the checkpoint that this one is a copy of: give the copy's sink a target of its own. "
            "Or start with adopt=['fork', 'takeover']: the copy writes there in place of the original, which is "
            "refused from then on, and rows of transactions that came after the copy was made come again. If it is no "
            "copy, start without 'fork'",
            target=target,
            owner=application,
        )
    takeover = "start with adopt='takeover', which refuses the other one from then on"
    remedy = f"Give this one a target of its own, or {takeover}"
    if new:
        remedy = (
            "This checkpoint is new: it reads its input from the beginning, and all that is in the target already "
            "would come again. Restore the checkpoint that wrote there, or give this one a target of its own. Or empty "
            f"the target, or have the input begin behind what it has (as by start= of KafkaSpout), and {takeover}"
        )
    whose = f"application {application!r}{' with another checkpoint' if same else ''}"
    return SinkOwnedError(f"{target} belongs to {whose}. {remedy}", target=target, owner=application)


def refuse_twin(marker: Marker | None, owner: Owner, target: str) -> None:
    """Refuse a target that another sink has fenced in this very start, before this one does.

    Two sinks of a topology may reach one place by two names, such as a database by two URLs. They would share a marker:
    the second one's rows would be passed over as published.

    Raises
    ------
    SinkOwnedError
        The marker is of this generation already, which fences once.
    """
    if marker is not None and marker.is_of(owner) and marker.generation == owner.generation:
        raise SinkOwnedError(f"another sink of this topology writes to {target}, by another name", target=target)


def is_published(marker: Marker | None, owner: Owner, txid: int, target: str) -> bool:
    """Return whether transaction `txid` is in the target already (rule 10.2).

    Raises
    ------
    FencedError
        A newer generation owns the target, and has not published `txid`: nobody but that one may.
    SinkOwnedError
        The target was taken over.
    SinkMismatchError
        The marker is gone, or an earlier transaction is missing. Nothing is ever written on a guess.
    """
    if marker is None:
        raise marker_gone(target)
    if not marker.is_of(owner):
        raise SinkOwnedError(
            f"{target} was taken over by application {marker.application!r}: stop this topology",
            target=target,
            owner=marker.application,
        )
    if marker.txid >= txid:
        return True
    if marker.generation > owner.generation:
        raise FencedError(
            f"{target}: generation {marker.generation} has taken over from generation {owner.generation}",
            generation=marker.generation,
        )
    if marker.txid < txid - 1:
        raise SinkMismatchError(
            f"{target} is at transaction {marker.txid}, and {txid} is to be published: the target was restored from a "
            "backup. Restore it as it was; or stop, and start with adopt='takeover'",
            target=target,
            marker=marker.txid,
        )
    return False


@dataclass(frozen=True, slots=True)
class WriterContext:
    """Where and for which attempt a writer writes.

    Attributes
    ----------
    component, task, parallelism : str, int, int
    attempt : TransactionAttempt
    token : str
        Random, of this attempt of the task: one that was taken for lost may write beside its successor. Put it into
        every name.
    schema : pyarrow.Schema
        Of the rows.
    storage : Storage
        The checkpoint, for rows that wait there.
    """

    component: str
    task: int
    parallelism: int
    attempt: TransactionAttempt
    token: str
    schema: pa.Schema
    storage: Storage


ToDataFrame = Callable[["pa.Schema", "Sequence[Iterable[pa.RecordBatch]]"], Any]
"""Makes a DataFrame of Spark's of rows in parts, which executors read: they are picklable, and may be read again."""


def no_spark(schema: pa.Schema, parts: Sequence[Iterable[pa.RecordBatch]]) -> Any:
    """Raise SinkError: nobody has said how a DataFrame is made here."""
    raise SinkError(
        "this sink hands its rows over as a DataFrame, which only submit can make: give it to a topology, or write "
        "the rows to another sink here"
    )


@dataclass(frozen=True, slots=True)
class CommitterContext:
    """For whom a committer publishes.

    Attributes
    ----------
    component : str
    owner : Owner
    schema : pyarrow.Schema
    storage : Storage
        The checkpoint.
    dataframe : callable
        Given a schema and rows in parts, returns a DataFrame of the session that was given to ``submit``. Raises
        SinkError where there is no Spark.
    """

    component: str
    owner: Owner
    schema: pa.Schema
    storage: Storage
    dataframe: ToDataFrame = no_spark


class SinkWriter(ABC):
    """Writes the rows of one task in one attempt. Called by one thread; an object serves one attempt."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows, in the sink's schema."""

    @abstractmethod
    def prepare(self, txid: int) -> Committable | None:
        """Make all rows durable, so that nobody sees them, and say where they are; None if there are none."""

    def abort(self) -> None:
        """Drop what was written. The process may also die before: `SinkCommitter.sweep` finds what is left then."""

    def close(self) -> None:
        """Release files and connections; after `prepare` or `abort`."""


class SinkCommitter(ABC):
    """Publishes what writers have prepared. One object per start, on the driver; called by one thread.

    Contract
    --------
    * `commit` of a transaction at or below the marker changes nothing: it was published before.
    * After `fence` returns, no older generation can publish a transaction that this one does not publish as well.
    * A target that another application or another origin owns is refused by `check`, before anything is changed.
    """

    @abstractmethod
    def check(self, reached: CheckpointPosition, *, takeover: bool) -> None:
        """Look at the target before a generation is taken; changes nothing.

        The generation and, for a new checkpoint, the origin are not known yet.

        Parameters
        ----------
        reached : CheckpointPosition
        takeover : bool
            The caller says that this application takes over what another one has written.

        Raises
        ------
        SinkOwnedError, SinkMismatchError
            As `starting_point`.
        SinkError
            The target can't be reached, or does not fit the schema.
        """

    @abstractmethod
    def fence(self, reached: CheckpointPosition, *, takeover: bool) -> None:
        """Own the target from now on (rule 10.7): older generations are refused. Makes the target if there is none.

        Raises
        ------
        FencedError
            A newer generation owns it.
        SinkOwnedError
            Another one has taken it over since `check`, or another sink of this topology has fenced it.
        SinkError
            As `check`.
        """

    @abstractmethod
    def commit(self, attempt: TransactionAttempt, committables: Mapping[int, Committable]) -> None:
        """Publish a transaction: its rows and the marker in one atomic act.

        Called after COMMITTING is durable, again after every failure and after a restart, until it returns.

        Parameters
        ----------
        attempt : TransactionAttempt
        committables : Mapping[int, Committable]
            By task, of the tasks that had rows. Empty: the marker moves nevertheless.

        Raises
        ------
        FencedError
            A newer generation owns the target.
        SinkError
            It could not be published, or it is not known whether it was; `commit` is called again.
        """

    def rewind(self, after: int) -> None:
        """Take back the rows of this checkpoint's transactions after `after`; of a sink that says `Sink.rewinds`.

        Called after `fence` at a start, before any transaction, and again at each start until one is decided. The
        marker stays: numbers of transactions are never used again.

        Contract
        --------
        * Readers see all these rows, or none of them.
        * Rows of other owners, which had the target before, stay.
        * Called again it changes nothing.

        Raises
        ------
        SinkError
            It could not be done, or it is not known whether it was; the next start calls it again.
        """
        raise SinkError("this sink says that it can take rows back (rewinds), and its committer has no rewind")

    def sweep(self, committed: int) -> None:
        """Delete what writers left behind that no transaction after `committed` can name. Called now and then."""

    def close(self) -> None:
        """Release connections."""


class Sink(ABC):
    """Takes the rows of its inputs out of the topology, each transaction once (``builder.setSink``).

    A sink is plain data and travels to the executors by pickle: connections are made in the writer and the committer.

    Attributes
    ----------
    exclusive : bool
        Whether the target is one sink's alone. Two sinks of a topology can't have the same target then.
    key : tuple of str
        Fields that name a row, where a later row replaces an earlier one; ``submit`` warns if rows of one key go to
        several tasks. Empty: rows are added.
    rewinds : bool
        Whether its committer can take back rows that were published (`SinkCommitter.rewind`). It is written down with
        each transaction, so ``Checkpoint.restore(..., sinks="rewind")`` knows it without the sink.
    """

    exclusive: bool = True
    key: tuple[str, ...] = ()
    rewinds: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_hooks(cls, SINKS)

    @property
    @abstractmethod
    def target(self) -> str:
        """Where the rows go, without secrets."""

    @property
    def identity(self) -> str:
        """Return the identity of the target: by default `target`, which may name a way to it beside.

        What is decided is published to a target of the same identity alone.
        """
        return self.target

    def conflict(self, other: Sink) -> str | None:
        """Return why a topology can't have this sink and the other one, and the remedy; None if it can."""
        if not (self.exclusive and other.exclusive and other.target == self.target):
            return None
        return f"both write to {self.target}: give each a target of its own, or let one sink read both streams"

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse rows that the target can't hold; called by ``createTopology``.

        Raises
        ------
        TopologyError
            Names the field and the remedy.
        """

    @abstractmethod
    def writer(self, context: WriterContext) -> SinkWriter:
        """Make what writes the rows of one task in one attempt."""

    @abstractmethod
    def committer(self, context: CommitterContext) -> SinkCommitter:
        """Make what publishes them."""

    def release(self) -> None:
        """Close what writers have kept in this object from one attempt to the next, such as a connection.

        Called in each process of tasks when they end, and perhaps again; a writer may come afterwards.
        """
