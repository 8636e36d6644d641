"""What a client keeps from one transaction to the next: its generation, its engine, and what is open now."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Collection, Iterator
from typing import Any
from weakref import WeakSet

import pyarrow as pa

from statefx.client.engine import LiveAttempt, LiveEngine, reason_of
from statefx.client.rows import to_batches
from statefx.coordinator.engine import RenewInputError, StoppedError
from statefx.coordinator.format import write_format
from statefx.coordinator.launch import Launch
from statefx.coordinator.log import TransactionLog
from statefx.coordinator.source import OneBatch
from statefx.errors import BoltError, FencedError, SinkError, StatefxError, TransactionError, TransactionTimeoutError
from statefx.plan.deployment import Deployment
from statefx.protocol.records import BatchInput
from statefx.runtime.worker import Worker
from statefx.state import KeyValueState

_LOOK_SHARE = 20
_LOOK_SECS_MAX = 0.1

_sessions: WeakSet[Session] = WeakSet()


def _leave_to_parent() -> None:
    """Keep everything of this process's parent from being closed here, also when this process ends.

    A child has copies of open files and connections. Python would close them: a file's buffer would be written into the
    parent's file, an unfinished file would be deleted, a database told that the connection ends.
    """
    for session in _sessions:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))


os.register_at_fork(after_in_child=_leave_to_parent)


class Session:
    """One generation of a checkpoint, for transactions whose rows come from the caller, one transaction at a time.

    Parameters
    ----------
    launch : Launch
        Of a topology in which every component is one task, and reads one stream that nobody else reads.

    Attributes
    ----------
    opened : int
        How many transactions have been opened; the number of the one that is open, while one is.

    Contract
    --------
    * PREPARING is durable before anything is written for a transaction, and comes with the first that needs it.
    * What the coordinator raises ends the session: how far it has come, the next generation reads from the log.
    """

    def __init__(self, launch: Launch) -> None:
        self._lock = threading.RLock()
        self.opened = 0
        self._is_open = self._closed = self._at_work = self._made = False
        self._begun: OneBatch | None = None
        self._since = self._look_after = 0.0
        self._ended: BaseException | None = None
        self._stopping = threading.Event()
        self._process = os.getpid()
        self._schemas = {name: schema for name, (_, schema) in launch.topology.sinks.items()}
        self._states = frozenset(one.id for one in launch.topology.components if one.stateful)
        self._timeout_secs = launch.settings.transaction_timeout_secs
        launch.check_checkpoint()
        write_format(launch.folders.storage)
        self._log = self._take_generation(launch)
        self._engine = self._engine_of(launch.deployment(self._log))
        self.coordinator = launch.coordinator(
            self._log,
            self._engine,
            launch.janitor(self._log),
            # Nobody has this client before it is made, so nobody could see what is stuck, nor close it.
            pause=lambda secs: self._made and not self._stopping.wait(secs),
            # The caller decides how often a block is run again; a transaction that was rolled back ends no client.
            attempts_max=sys.maxsize,
        )
        _sessions.add(self)
        self._recover()
        self._made = True

    def _recover(self) -> None:
        """End what former clients left; SinkError if that can't be done now."""
        try:
            self.coordinator.recover()
        except StoppedError as error:
            self.coordinator.ended()
            stuck = self.coordinator.progress.status()["stuck"]
            raise SinkError(
                f"a former client has left transaction {stuck['txid']}, and its {stuck['phase']} fails: "
                f"{stuck['reason']}. Mend what fails and make the client again, which goes on with it",
                txid=stuck["txid"],
            ) from error
        except BaseException:
            self.coordinator.ended()
            raise

    def _take_generation(self, launch: Launch) -> TransactionLog:
        return launch.take_generation()

    def _engine_of(self, deployment: Deployment) -> LiveEngine:
        return LiveEngine(deployment, Worker(keeps_bolts=False))

    @property
    def lock(self) -> contextlib.AbstractContextManager[bool]:
        """Held by whoever calls a method other than `close`; TransactionError in a child process.

        A child never waits for its copy of the lock: a thread of its parent may have held it.
        """
        if self._is_foreign:
            raise TransactionError("the client belongs to the process that made it: after a fork make another one")
        return self._lock

    @property
    def _is_foreign(self) -> bool:
        """Whether this process is a child of the one that made the session."""
        return os.getpid() != self._process

    def check_usable(self) -> None:
        """Refuse to go on after what nobody can go on after: TransactionError, FencedError."""
        if isinstance(self._ended, FencedError):
            raise FencedError(self._ended.message, **self._ended.data)
        if self._ended is not None:
            why = reason_of(self._ended)
            raise TransactionError(f"the client has ended ({why}): make another one") from self._ended

    def is_open(self, number: int) -> bool:
        """Tell whether the transaction that was opened as `number` is open."""
        return self._is_open and self.opened == number

    def open(self) -> int:
        """Open a transaction; return its txid."""
        if self._is_open:
            raise TransactionError(
                "a transaction is open: leave its block first. A client has one transaction at a time; threads share "
                "it, or have clients of their own, each with its own checkpoint and id. If KeyboardInterrupt came "
                "before its block was entered or left, close the client"
            )
        self._is_open = True
        self.opened += 1
        return self._log.state.committed + 1

    def batches(self, sink: str, rows: Any) -> list[pa.RecordBatch]:
        """Return rows as a sink takes them; SchemaError if one does not fit.

        The caller's code runs here, if the rows come from a generator: it may end the transaction, or the client.
        """
        if sink not in self._schemas:
            raise TransactionError(f"there is no sink {sink!r}; {_there(self._schemas)}", component=sink)
        return to_batches(sink, self._schemas[sink], rows)

    def send(self, sink: str, batches: list[pa.RecordBatch]) -> None:
        """Have a sink write rows."""
        live = self._live()
        for batch in batches:
            live.feed(sink, batch)

    def state(self, component: str) -> KeyValueState[Any, Any]:
        """Return the state of a component in this transaction."""
        if component not in self._states:
            there = _there(self._states)
            raise TransactionError(f"no component {component!r} keeps state; {there}", component=component)
        return self._live().state(component)

    def _live(self) -> LiveAttempt:
        """Return what is open for rows; the first call of a transaction begins it."""
        if self._begun is None:
            with self._working():
                self._begun = self.coordinator.begin(BatchInput(), self.opened)
                self._since = time.monotonic()
        live = self._engine.live
        assert live is not None
        if live.failure is None:
            live.failure = self._overdue(self._begun.txid)
            self._check_newest()
        if isinstance(live.failure, TransactionTimeoutError):
            raise live.failure
        if live.failure is not None:
            why = reason_of(live.failure)
            raise TransactionError(
                f"transaction {self._begun.txid} has failed ({why}): leave its block, which rolls it back",
                txid=self._begun.txid,
            ) from live.failure
        return live

    def _check_newest(self) -> None:
        """Make sure that no other client has taken over; FencedError, which ends the session.

        A look at the log takes as long as a few calls that read or put a value, and longer over a network: it gets a
        twentieth of the time.
        """
        began = time.monotonic()
        if began < self._look_after:
            return
        try:
            self._log.check()
        except StatefxError as error:
            self._ended = error
            raise
        ended = time.monotonic()
        self._look_after = ended + min(_LOOK_SECS_MAX, _LOOK_SHARE * (ended - began))

    def commit(self) -> None:
        """Commit what is open, if it has begun anything; TransactionError if it was rolled back."""
        rolled_back = self._leave(None)
        if rolled_back is None:
            return
        txid, failure = rolled_back
        if isinstance(failure, TransactionError):
            raise failure
        reason = "" if failure is None else reason_of(failure)
        again = "Mend that, and run its block again" if isinstance(failure, BoltError) else "Its block may be run again"
        raise TransactionError(f"transaction {txid} was rolled back: {reason}. {again}", txid=txid) from failure

    def abort(self, error: BaseException) -> None:
        """Roll back what is open, if it has begun anything."""
        self._leave(error)

    def give_up(self, number: int, error: BaseException) -> None:
        """End the session if the transaction that was opened as `number` is open: nobody can leave it any more."""
        if self._ended is None and self.is_open(number):
            self._ended = error

    def close(self) -> None:
        """Roll back what is open, and release everything; for any thread, again is a no-op."""
        if self._is_foreign:  # the files, the log and the connections are its parent's, which goes on with them
            return
        self._stopping.set()
        with self._lock:
            if self._closed or self._at_work:  # by a signal's handler, in the middle of a commit, which now ends
                return
            self._closed = True
            if self._ended is None and self._is_open:
                with contextlib.suppress(StatefxError):  # the next generation rolls it back
                    self.abort(TransactionError("the client was closed"))
            self._ended = self._ended or TransactionError("it was closed")
            self._engine.close()
            self.coordinator.ended()

    def _leave(self, error: BaseException | None) -> tuple[int, BaseException | None] | None:
        """Take what is open to its end, a rollback if there is an error; tell its txid and why if it was rolled back.

        All of it is work: an interrupt behind the first line must not leave an attempt to the engine that nobody
        holds any more, which the next transaction would run.
        """
        with self._working():
            begun, live = self._begun, self._engine.live
            self._begun, self._is_open = None, False
            if begun is None or live is None:
                return None
            if live.failure is None:
                live.failure = self._overdue(begun.txid) if error is None else error
            try:
                self.coordinator.finish(begun)
            except RenewInputError:
                return begun.txid, live.failure
        return None

    def _overdue(self, txid: int) -> TransactionTimeoutError | None:
        """Return why a transaction was open for too long.

        It is asked before the decision, never after it: then nothing may be given up, however long a sink takes
        (rule 2.5).
        """
        if time.monotonic() - self._since <= self._timeout_secs:
            return None
        return TransactionTimeoutError(
            f"transaction {txid} was open for longer than topology.transaction.timeout.secs "
            f"({self._timeout_secs:g}): it can only be rolled back",
            txid=txid,
        )

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """Let the coordinator work; after what it raises nobody knows here how far it has come (rule 2.5).

        The session has ended until the work is done: KeyboardInterrupt comes at any line, that of a handler included,
        and then nothing has to be set any more for the session to refuse what comes next.
        """
        self._ended, self._at_work = TransactionError("it was interrupted in the middle of a transaction"), True
        try:
            yield
        except BaseException as error:
            self._ended = error
            raise
        finally:
            self._at_work = False
        self._ended = None


def _there(names: Collection[str]) -> str:
    """Return which names there are."""
    return f"there are {', '.join(map(repr, sorted(names)))}" if names else "there are none"
