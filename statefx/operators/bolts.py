"""The classes that users subclass.

Hooks come in this order in a task: ``open(context)`` once per object; ``initState(state)`` at the start of every
transaction and after every rollback; ``executeBroadcast``; ``execute`` or ``executeBatch``; ``onTimer``;
``finishBatch``; ``prePrepare(txid)``; later ``preCommit(txid)`` or ``preRollback()``; ``close()``.
``migrateState(version, key, value)`` comes whenever a value of an older ``stateVersion`` is read;
``migrateKey(version, key)`` on the driver, before all this, at the first start with a higher one.

``preCommit`` is Storm's word for a hook *before the commit phase*. What Flink calls preCommit, the prepare phase, is
``prePrepare`` here.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from statefx.operators.hooks import BOLTS, HookNames, check_hooks, overrides

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa

    from statefx.operators.context import Collector, Context
    from statefx.protocol.reports import TreeReport
    from statefx.protocol.topology_identity import StateLayout
    from statefx.state.view.time_index import Timers

# ---- how a bolt's input is added up before it is sent to the bolt

# Storm's CombinerAggregator has init, combine and zero, which make one value of a row. Here a row is made of rows, with
# the key in it, so that the bolt's `execute` and its groupings need to know nothing of a combiner. There is no zero:
# what there is no row of is not sent.


class Combining:
    """The hooks by which a bolt says how rows for it may be added up, in the task that emits them.

    What is added up are the rows of one edge (one grouping of the bolt) in one task and one transaction; the bolt gets
    the sums, several of a key if several tasks emit it. Other readers of the stream get its rows as they are. A bolt
    defines `combine`, or `combineBatch`, or neither.

    Attributes
    ----------
    combinedFields : str, StructType or None
        The schema of the sums, which are what ``execute`` gets, as Spark DDL or StructType; None: that of the input.
        The fields that rows are grouped by are in it, as they are in the input.

    Contract
    --------
    - Which rows are added up with which depends on how many tasks emit, and on memory. A combiner is right if every
      way of parting the rows gives the same result in the end.
    - The hooks are called on an object on which ``open`` has not been called. They must depend on their arguments, and
      what ``__init__`` has set, alone, and change neither.
    """

    combinedFields: str | Any = None

    @property
    def combines(self) -> bool:
        """Whether the bolt's input is added up before it is sent."""
        return overrides(type(self), "combine") or overrides(type(self), "combineBatch")

    def initCombine(self, tup: Any) -> Any:
        """Return the sum of one tuple alone; needed only if ``combinedFields`` are not the fields of the input.

        When it is called
            With `combine`: for every tuple, in the task that emits it.
        Guaranteed
            As for ``execute``, but for the state.
        Not guaranteed
            As for `combine`.
        Raising
            As for `combine`.

        Parameters
        ----------
        tup : namedtuple
            A tuple of the input.

        Returns
        -------
        tuple
            The values of ``combinedFields``, in their order.
        """
        return tup

    def combine(self, a: Any, b: Any) -> Any:
        """Add up two tuples that are equal in the fields that rows are grouped by.

        When it is called
            In the task that emits the rows: for a key that has come before, with the sum so far and the next tuple.
            Every input of the bolt is by ``fieldsGrouping`` or ``partialKeyGrouping`` then.
        Guaranteed
            Both have ``combinedFields``. `a` came before `b`.
        Not guaranteed
            That all tuples of a key come together, in this task or in this transaction.
        Raising
            As ``execute``, in the component that emits; the error names this hook and the bolt. FailedException: the
            transaction is rolled back and tried again.

        Parameters
        ----------
        a, b : namedtuple
            As ``execute`` gets them.

        Returns
        -------
        tuple
            The sum; the fields that rows are grouped by as they were.
        """
        raise NotImplementedError(f"{type(self).__name__} has no combine")

    def combineBatch(self, batch: pa.RecordBatch) -> Any:
        """Add up the rows of a batch; in the place of `combine`, and many times as quick.

        When it is called
            In the task that emits the rows: at its end, and before, whenever so many bytes have gathered that the task
            should not hold them any longer. By every grouping but ``directGrouping``.
        Guaranteed
            At least one row; all come from one stream, in the order in which they were emitted, and have its schema.
            ``batch.schema.metadata`` is as for ``executeBatch``.
        Not guaranteed
            That all rows of a key are in one batch, or the size of a batch.
        Raising
            As `combine`.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            Rows as they were emitted, never sums.

        Returns
        -------
        pyarrow.RecordBatch or pyarrow.Table
            The sums, with the names of ``combinedFields`` in any order; no more rows than there were, and no keys
            that were not among them.
        """
        raise NotImplementedError(f"{type(self).__name__} has no combineBatch")


# ---- bolts


class Committer:
    """Marker: the bolt's effects are ordered by txid. Every stateful bolt is one without saying so.

    For example ``class UpdateTotal(BatchBolt, Committer)``.

    Contract
    --------
    - A committer sees transaction t, its first tuple included, only when t-1 can no longer be rolled back. So does all
      that reads from a committer.
    - Its ``finishBatch`` comes as soon as the task has the whole batch: behind another committer, when that has ended.
    - It may raise FailedException, and may be rolled back after its ``finishBatch``. Then it sees t again, as the next
      attempt (``collector.attempt``), and a task of the former attempt may still be running.
    """


_TIMERS = "_statefx_timers"


class OwnTimers:
    """The attribute ``timers`` of a bolt with state; a bolt may have one of its own under that name."""

    def __get__(self, bolt: object, owner: type) -> Any:
        """Return the task's; AttributeError, which says what is missing, if there are none."""
        if bolt is None:
            return self
        found: Timers | None = bolt.__dict__.get(_TIMERS)
        if found is None:
            if overrides(owner, "onTimer"):
                raise AttributeError(f"{owner.__name__}.timers is there from initState on")
            raise AttributeError(
                f"{owner.__name__} has no timers, for nobody would hear them: define onTimer(self, key, at, value, "
                "collector)"
            )
        return found


def has_timer_hook(operator: object) -> bool:
    """Return whether an operator is a bolt that defines ``onTimer``."""
    return isinstance(operator, Stateful) and overrides(type(operator), "onTimer")


def attach_timers(bolt: Stateful, timers: Callable[[], Timers]) -> None:
    """Give a bolt the timers of its task, if it has a use for them; called by the runtime before ``initState``."""
    if has_timer_hook(bolt):
        bolt.__dict__[_TIMERS] = timers()


def timers_of(bolt: Stateful) -> Timers | None:
    """Return the timers that a bolt was given."""
    return bolt.__dict__.get(_TIMERS)


class Stateful(ABC):
    """Mixin for bolts that keep state: ``class Join(Stateful, Bolt)``.

    Attributes
    ----------
    stateVersion : int
        The version of what the bolt keeps in its state, from 1; part of the topology's identity in the checkpoint. A
        bolt that raises it says in `migrateState` how values of older versions become its own.
    stateSchema : Mapping or None
        The types of its keys and values as Spark DDL, such as ``{"key": "word string", "value": "count long"}``, and
        of its maps: ``{"maps": {"recent": {"key": ..., "value": ...}}}``. For those who read state as a table and write
        it so: it is kept in the checkpoint, and is their default. It changes nothing of what is kept, and may change.
    """

    stateVersion: int = 1
    stateSchema: Mapping[str, Any] | None = None

    timers = OwnTimers()
    """`statefx.state.Timers` of the task, from ``initState`` on, in a bolt that defines ``onTimer``."""

    @abstractmethod
    def initState(self, state: Any) -> None:
        """Take the task's state, as last committed.

        When it is called
            At the start of every transaction and after every rollback, before any tuple; also before
            ``preCommit`` and ``preRollback``, each of which has an object of its own. Always after ``open``.
        Guaranteed
            `state` holds what the last committed transaction left, and nothing of a transaction that was rolled back.
            Before ``preCommit`` it is a read-only view of what was prepared.
        Not guaranteed
            That the object is the one of the last transaction, or a new one: anything that was derived from state
            must be derived again here.
        Raising
            The transaction is rolled back and the query ends with BoltError.

        Parameters
        ----------
        state : KeyValueState
            Keep it; it is valid until the next ``initState``. It reads and writes; its ``prepareCommit``, ``commit``,
            ``rollback`` and ``close`` are the runtime's, and raise StatePhaseError here.
        """

    def executeBroadcast(self, tup: Any, collector: Collector) -> None:
        """Deal with one tuple that all tasks of the bolt are given: a rule, a price, a setting.

        When it is called
            In a bolt that reads by ``broadcastGrouping``: for every tuple of these inputs, before any ``execute`` or
            ``executeBatch`` of the transaction; also in a bolt that has ``executeBatch``.
        Guaranteed
            All tasks are given the same tuples of a transaction in the same order: input by input, as the bolt declares
            them, of each its tasks by number, and of each task as it emitted them. What ``state.broadcast(name)`` gives
            can be changed here, and nowhere else.
        Not guaranteed
            As ``execute``.
        Raising
            As ``execute``. FailedException fails the transaction, behind a ``Spout`` too: else a task might have the
            tuple, and another not.

        Each task runs it. If it puts what depends on its arguments and ``state.broadcast`` alone, all tasks hold the
        same. What it emits is emitted by each task: to emit once, look at ``context.task``.

        Parameters
        ----------
        tup : namedtuple
            As of ``execute``.
        collector : Collector
            Takes what is emitted.
        """
        raise NotImplementedError(f"{type(self).__name__} has no executeBroadcast: it reads nothing by broadcast")

    def onTimer(self, key: Any, at: datetime, value: Any, collector: Collector) -> None:
        """Deal with a timer whose time has passed; ``self.timers.set(key, at, value)`` has set it.

        When it is called
            In the transaction in which the time passed, when all tuples of the transaction have been executed, before
            ``finishBatch``; a transaction comes by itself when a timer of the clock is due. Those of event time come
            first, then those of the clock; of each kind in the order of their times, then of their keys.
        Guaranteed
            Once: a transaction that is rolled back takes it back. The timer is deleted already, and may be set again.
        Not guaranteed
            That `at` has just passed: after a pause of the topology everything comes that is due by then.
        Raising
            As ``execute``.

        Parameters
        ----------
        key : Any
            What it was set for. ``self.timers.fired.name`` tells which of several.
        at : datetime
            When it was due, in UTC.
        value : Any
            What it was given.
        collector : Collector
            Takes what is emitted; anchored to nothing.
        """

    def prePrepare(self, txid: int) -> None:
        """Finish what belongs to the transaction; the last chance to change state.

        When it is called
            In the task, after the last tuple and ``finishBatch``, just before the state is prepared.
        Guaranteed
            All input of the transaction has been executed. State may still be changed and is prepared afterwards.
        Not guaranteed
            That the transaction will be committed; that this is the only attempt or the only task object doing it.
        Raising
            Fails the attempt, as in ``execute``. FailedException: the transaction is rolled back and tried again.

        Parameters
        ----------
        txid : int
            The transaction that is about to be prepared.
        """

    def preCommit(self, txid: int) -> None:
        """Do what may only happen once the transaction is certain to be committed. Must be idempotent.

        When it is called
            After the decision to commit is durable, before the state's ``commit``. A bolt that does not define it
            spares each transaction a round of tasks.
        Guaranteed
            The transaction can no longer be rolled back. The object is a new one, on which ``open`` and ``initState``
            were called: it has no attribute that ``execute`` set. State is a read-only view of what was prepared.
        Not guaranteed
            That it runs once, soon or in the same process: it may run after a restart, several times, and late from a
            task that was thought dead. ``put`` raises StatePhaseError.
        Raising
            The commit is tried again until it succeeds; it is never rolled back. A StatePhaseError, which no further
            try would mend, ends the query with BoltError; the next run commits first.

        Parameters
        ----------
        txid : int
            The transaction being committed; ``context.attempt`` and ``context.generation`` tell which try of it.
        """

    def preRollback(self) -> None:
        """Undo what the bolt did outside its state for the attempt that is rolled back. Must be idempotent.

        When it is called
            Once per task of the bolt when an attempt is rolled back, before the state's ``rollback``.
        Guaranteed
            ``context.txid`` and ``context.attempt`` name what is rolled back; the state is as last committed.
        Not guaranteed
            That it comes once, that the task had prepared or even seen a tuple, that the object is the one that
            executed, or an order between this and hooks of other attempts.
        Raising
            The rollback is tried again.
        """

    def migrateState(self, version: int, key: Any, value: Any) -> Any:
        """Return what an older version of the bolt has stored, in the form of this one.

        When it is called
            Whenever a value that was written by an older ``stateVersion`` is read: by ``get``, ``getAll``, ``delete``,
            ``items``, and ahead of them for the keys of a batch. After ``open``; before ``preCommit`` and
            ``preRollback`` too.
        Guaranteed
            `version` is the one that wrote the value, at least 1 and lower than ``stateVersion``: versions may have
            been skipped. `value` is a fresh object, which may be changed and returned.
        Not guaranteed
            That it is called once for a value, in an order, or at all: reading stores nothing, so what the bolt never
            puts again stays as it is. Keep it as long as such values may exist. It must depend on its arguments alone,
            and must not use the state.
        Raising
            Fails the attempt, as in ``execute``; BoltError names this hook.

        Parameters
        ----------
        version : int
            The ``stateVersion`` that wrote the value.
        key : Any
            Its key: as it was put, or as `migrateKey` has made it since.
        value : Any
            What was put.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no migrateState, but its state still holds a value that version {version} "
            f"wrote, under {key!r}; define def migrateState(self, version, key, value)"
        )

    def migrateKey(self, version: int, key: Any) -> Any:
        """Return the form that a key has from this version on.

        When it is called
            On the driver, at the first start with a higher ``stateVersion`` than the checkpoint has, for every key that
            is there: of the state, of its maps, and of timers. The whole state is rewritten before the first
            transaction: values lie under their new keys, in the order of these, in the tasks where they belong.
        Guaranteed
            One record of the log makes it so: after a crash all keys are old, or all are new, and none is given here
            twice. Two keys that would become one are refused, and nothing is changed.
        Not guaranteed
            That ``open`` was called before, or that it is called once for a key: one that has a timer too comes again.
            It must depend on its arguments alone.
        Raising
            Ends the start with BoltError; nothing is changed.

        Parameters
        ----------
        version : int
            The ``stateVersion`` of the last start: all keys are of its form, whichever version wrote their values.
        key : Any
            A key as it is; of what is kept under a name, (name, key).

        Returns
        -------
        Any
            The new key, or the same; of what is kept under a name, the same name and the new key.
        """
        raise NotImplementedError(f"{type(self).__name__} has no migrateKey")

    def downgradeState(self, version: int, key: Any, value: Any) -> Any:
        """Return a value of this version in the form of an older one: what ``Checkpoint.downgrade`` asks for.

        When it is called
            On the driver, for every value that a version above `version` wrote; `migrateState` is called first for
            those that are older than this one.
        Guaranteed
            One record of the log makes it so: after a crash all values are as before, or none is above `version`.
        Not guaranteed
            That ``open`` was called before: it must depend on its arguments alone.
        Raising
            Ends the call with BoltError; nothing is changed.

        Parameters
        ----------
        version : int
            The ``stateVersion`` of the code that is to run next, at least 1 and below this one.
        key : Any
            Its key, as `migrateState` has it: of this version.
        value : Any
            The value, in this version's form; a fresh object.
        """
        raise NotImplementedError(f"{type(self).__name__} has no downgradeState")

    def downgradeKey(self, version: int, key: Any) -> Any:
        """Return a key of this version in the form of an older one; needed where there is a `migrateKey`.

        When it is called
            By ``Checkpoint.downgrade``, as `migrateKey` by a start: of what is kept under a name with (name, key).
        Guaranteed
            As of `migrateKey`.
        Not guaranteed
            As of `migrateKey`.
        Raising
            Ends the call with BoltError; nothing is changed.

        Parameters
        ----------
        version : int
            The ``stateVersion`` of the code that is to run next.
        key : Any
            A key of this version.
        """
        raise NotImplementedError(f"{type(self).__name__} has no downgradeKey")

    def groupingKey(self, key: Any) -> Any:
        """Return what a key of the state is grouped by; needed where that is neither the key nor what it begins with.

        When it is called
            For every key, when ``submit(..., rescale=True)`` gives the bolt another number of tasks, and for what
            `migrateKey` has made of it.
        Guaranteed
            Unless the bolt has had one task, what is returned is compared with the task that the key lies in, if its
            form is not a new one: if it would belong to another task, nothing is changed.
        Not guaranteed
            That ``open`` was called before: it must depend on its argument alone.
        Raising
            Ends the start; nothing is changed.

        Parameters
        ----------
        key : Any
            A key as it was put; of what is kept under a name, such as a map's, (name, key).

        Returns
        -------
        Any
            The field of the bolt's ``fieldsGrouping``, or the tuple of its fields.
        """
        raise NotImplementedError(f"{type(self).__name__} has no groupingKey")


class Declared(ABC):
    """A bolt for which statefx keeps state in its own form, which it declares."""

    @abstractmethod
    def _layout(self, fields: int) -> StateLayout:
        """Return how that state is kept, of a bolt that is grouped by so many fields; 0: by none."""


class ReadyMade(Declared, Stateful):
    """A stateful bolt of statefx's own.

    Attributes
    ----------
    late : int
        How many rows of the transaction came too late.
    due_ms : int
        When a transaction has to come, in milliseconds since the epoch; 0: never.
    left : int or None
        From which event time on it has emitted only a part of what is due, in microseconds since 1970.
    report : TreeReport or None
        What the transaction came to for trees, if it is the bolt that knows.
    """

    late: int = 0
    due_ms: int = 0
    left: int | None = None
    report: TreeReport | None = None


class Bolt(Combining, ABC):
    """An operator: takes tuples, emits tuples. Anchors and acks by hand; most bolts are a ``BasicBolt``.

    A bolt is built on the driver, pickled, and run by one object per task.

    Attributes
    ----------
    outputFields : str, StructType, NamedTuple, dataclass, mapping or None
        The schema of what it emits, as Spark DDL, StructType or a class with annotated fields, or ``{stream: schema}``;
        None: it emits nothing.

    Contract
    --------
    - A subclass that defines a near-miss of a hook's name, a hook of another kind of bolt, or a hook with other
      arguments gets a TypeError when the class is created.
    - A class without ``execute`` and ``executeBatch`` can't be instantiated.
    - Only state and what ``open`` rebuilds may be relied on from one transaction to the next.
    """

    outputFields: str | Mapping[str, Any] | Any = None

    _hooks: ClassVar[HookNames] = BOLTS
    _gathers: ClassVar[bool] = False
    """Whether its batches are lists of tuples."""

    @property
    def _keeps_calls(self) -> bool:
        """Whether statefx keeps tuples of it in state."""
        return False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_hooks(cls, cls._hooks)

    def __new__(cls, *args: Any, **kwargs: Any) -> Bolt:
        """Refuse a bolt that takes no input."""
        # No abstractmethod: it can't say that one of two is enough. An abstract class of the user's may have neither.
        if not (inspect.isabstract(cls) or overrides(cls, "execute") or overrides(cls, "executeBatch")):
            raise TypeError(
                f"{cls.__name__} has neither hook that takes input. Define def execute(self, tup, collector), "
                f"or def executeBatch(self, batch, collector) for Arrow batches."
            )
        return super().__new__(cls)

    @property
    def vectorised(self) -> bool:
        """Whether input comes by ``executeBatch``; it goes before ``execute`` if a bolt has both."""
        return overrides(type(self), "executeBatch")

    def open(self, context: Context) -> None:
        """Set up what can't be pickled: connections, models, caches.

        When it is called
            Once per object, in the task, before any other hook.
        Guaranteed
            ``context`` stays valid; its ``txid`` and ``attempt`` follow the transaction under way.
        Not guaranteed
            That the object lives longer than one transaction, or that ``close`` will be called.
        Raising
            The transaction is rolled back and the query ends with BoltError.

        Parameters
        ----------
        context : Context
            Config, component, task, parallelism, generation, and the live txid and attempt.
        """

    def execute(self, tup: Any, collector: Collector) -> None:
        """Deal with one tuple.

        When it is called
            For every input tuple of the transaction, unless the bolt has ``executeBatch``.
        Guaranteed
            Tuples of one upstream task come in the order in which it emitted them. With state: after ``initState``.
        Not guaranteed
            An order between upstream tasks; that the attempt is the first, or the only one running. What is done
            outside state and collector may happen more than once.
        Raising
            The transaction is rolled back and the query ends with BoltError. FailedException: the transaction is rolled
            back and tried again, the query goes on; behind a ``Spout`` the messages fail that the tuple comes from, and
            one without a tree is lost.

        Parameters
        ----------
        tup : namedtuple
            The stream's fields by attribute, position or name (``tup["word"]``). ``tup._source`` and ``tup._stream``
            tell which component and which of its streams it came from (underscored, as all names of a namedtuple that
            aren't fields). A bolt with ``setTicks`` is given ticks too, behind its input: see `isTick`.
        collector : Collector
            Takes what is emitted.
        """
        raise NotImplementedError(f"{type(self).__name__} has no execute: it takes batches")

    def executeBatch(self, batch: pa.RecordBatch, collector: Collector) -> None:
        """Deal with a batch of tuples of one stream; optional, takes the place of ``execute``.

        When it is called
            For every Arrow batch of the transaction's input, if the bolt defines it.
        Guaranteed
            All rows come from one stream and have its schema; otherwise as ``execute``.
        Not guaranteed
            The size of a batch, or that batches of two attempts are cut alike.
        Raising
            As ``execute``. FailedException behind a ``Spout`` undoes the batch, and halves of it come again until the
            rows to blame are alone.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            Immutable; at least one row. ``batch.schema.metadata`` has the component it came from and its stream, under
            ``b"source"`` and ``b"stream"``. A tick is a batch of one row, from ``__system`` and ``__tick``.
        collector : Collector
            Takes what is emitted.
        """
        raise NotImplementedError(f"{type(self).__name__} has no executeBatch: it takes tuples")

    def close(self) -> None:
        """Release what ``open`` set up.

        When it is called
            When the object is given up in good order.
        Guaranteed
            No hook follows.
        Not guaranteed
            That it is called at all: a lost run kills its tasks.
        Raising
            Is logged and changes nothing.
        """


def keeps_state(operator: object) -> bool:
    """Return whether tasks of an operator have state: the user's, or what statefx keeps for it."""
    return isinstance(operator, Stateful) or (isinstance(operator, Bolt) and operator._keeps_calls)


def anchors_by_hand(operator: object) -> bool:
    """Return whether an operator is a plain bolt, which anchors and acks by itself."""
    return isinstance(operator, Bolt) and not isinstance(operator, BasicBolt)


def may_hold(operator: object) -> bool:
    """Return whether an operator may hold tuples: a plain bolt that is given them one by one."""
    return anchors_by_hand(operator) and not operator.vectorised  # type: ignore[attr-defined]


def keeps_until_end(operator: object) -> bool:
    """Return whether an operator may keep the tuples of a transaction until ``finishBatch``."""
    return isinstance(operator, BatchBolt) and not operator.vectorised


def anchors_to_several(operator: object) -> bool:
    """Return whether an operator may anchor a row to several tuples."""
    gathers = isinstance(operator, Bolt) and operator._gathers and operator.vectorised
    return may_hold(operator) or keeps_until_end(operator) or gathers


class BasicBolt(Bolt):
    """A bolt whose tuples are anchored and acked for it: what it emits comes from the tuple it was given."""


class BatchBolt(BasicBolt):
    """A BasicBolt that is told when the task has the whole transaction.

    Without state, an object lives for one attempt of one transaction, as a batch bolt of Storm's does: ``open`` and
    ``close`` are called in each, and what is gathered in attributes begins as ``__init__`` and ``open`` leave it. With
    state (``class Totals(Stateful, BatchBolt)``) the object may see many, and ``initState`` is where each begins.

    Examples
    --------
    ::

        class BatchCount(BatchBolt):
            outputFields = "count long"

            def open(self, context):
                self._count = 0

            def execute(self, tup, collector):
                self._count += 1

            def finishBatch(self, collector):
                collector.emit((self._count,))
    """

    def finishBatch(self, collector: Collector) -> None:
        """Emit what only the whole transaction tells.

        When it is called
            Once per attempt, after the task's last tuple of the transaction, before ``prePrepare``; also in a task
            without input. For a committer in the ordered phase, in the order of txids.
        Guaranteed
            A barrier has come from every upstream task: nothing of the transaction is missing, nothing of the next
            is in.
        Not guaranteed
            That the transaction will be committed.
        Raising
            Fails the attempt. FailedException: the transaction is rolled back and tried again.

        Parameters
        ----------
        collector : Collector
            Takes what is emitted. Behind a ``Spout`` it fails tuples that ``execute`` was given in this transaction,
            and anchors to them: ``fail(tup, "why")``, ``emit(values, anchors=tup)``.
        """


class StatefulBolt(Stateful, BasicBolt):
    """A BasicBolt that keeps state."""
