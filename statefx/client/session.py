"""A client's session: its generation, its engine, and its open transactions."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import pyarrow as pa

from statefx.client.buffer import TransactionBuffer
from statefx.client.engine import Changes, ClientEngine, reason_of
from statefx.client.messages import ACKS, Received, Receiver, to_batches
from statefx.client.outside import Outside
from statefx.coordinator.attempt import Batch
from statefx.coordinator.launch import Launch
from statefx.coordinator.retrying import RenewInputError, StoppedError
from statefx.errors import (
    BoltError,
    FencedError,
    SinkError,
    StatefxError,
    TransactionConflictError,
    TransactionError,
    TransactionTimeoutError,
)
from statefx.log.log import TransactionLog
from statefx.plan.deployment import Deployment
from statefx.protocol.identity import EMPTY, TaskId
from statefx.protocol.records import BatchInput
from statefx.runtime.worker import Worker
from statefx.state import StateStore, Write
from statefx.state.view.task_state import KeyValueState

logger = logging.getLogger("statefx")

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
    """One generation of a checkpoint, for transactions whose rows come from the caller.

    Every component of its topology is one task, and reads one stream of its own.

    * An open transaction is in memory alone (`TransactionBuffer`), so several can be, and be committed in any order:
      the log has them in the order of their commits, which give them their txids.
    * What the coordinator raises ends the session: the next generation reads from the log how far it got.
    """

    def __init__(self, launch: Launch) -> None:
        self._lock = threading.RLock()
        self._open: WeakSet[TransactionBuffer] = WeakSet()  # one that its caller has dropped is rolled back by that
        self._closed = self._at_work = self._made = False
        self._look_after = 0.0
        self._ended: BaseException | None = None
        self._stopping = threading.Event()
        self._process = os.getpid()
        self._schemas = {name: schema for name, (_, schema) in launch.topology.sinks.items()}
        self.queues: Mapping[str, Receiver] = {}
        """Set by the client, when what a former one has left is ended."""
        self.dead_letters: Mapping[str, str] = {}
        """The sink of each queue whose messages are handed out a few times only; set by the client."""
        self.outside: Outside | None = None
        """Set by the client, when it can be used."""
        self._begun = 0
        self._states = frozenset(one.id for one in launch.topology.components if one.stateful)
        self._timeout_secs = launch.settings.transaction_timeout_secs
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
            self.coordinator.end()
            stuck = self.coordinator.progress.status()["stuck"]
            raise SinkError(
                f"a former client has left transaction {stuck['txid']}, and its {stuck['phase']} fails: "
                f"{stuck['reason']}. Fix the cause and make the client again, which goes on with it",
                txid=stuck["txid"],
            ) from error
        except BaseException:
            self.coordinator.end()
            raise

    def _take_generation(self, launch: Launch) -> TransactionLog:
        return launch.start()

    def _engine_of(self, deployment: Deployment) -> ClientEngine:
        return ClientEngine(deployment, Worker())

    @property
    def lock(self) -> contextlib.AbstractContextManager[bool]:
        """Held by callers of any method but `close`; TransactionError in a child process.

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
        """Raise TransactionError or FencedError if the session has ended."""
        if isinstance(self._ended, FencedError):
            raise FencedError(self._ended.message, **self._ended.data)
        if self._ended is not None:
            why = reason_of(self._ended)
            raise TransactionError(f"the client has ended ({why}): make another one") from self._ended

    def is_open(self, buffer: TransactionBuffer) -> bool:
        return buffer in self._open

    def open(self) -> TransactionBuffer:
        """Open a transaction, which sees what is committed now; TransactionError, FencedError as `check_usable`."""
        with self.lock:
            self.check_usable()
            self._check_newest()
            buffer = TransactionBuffer(self._engine.deployment, self._log.state.heads_to_come(), time.monotonic())
            self._begun += 1
            buffer.number = self._begun
            self._open.add(buffer)
            return buffer

    @property
    def next_txid(self) -> int:
        return self._log.state.committed + 1

    def batches(self, sink: str, rows: Any) -> list[pa.RecordBatch]:
        """Return rows as a sink takes them; SchemaError if one does not fit.

        The caller's code runs here, if the rows come from a generator: it may end the transaction, or the client.
        """
        sinks = self._schemas.keys() - {queue + ACKS for queue in self.queues}
        if sink not in sinks:
            raise TransactionError(f"there is no sink {sink!r}; {_there(sinks)}", component=sink)
        return to_batches(sink, self._schemas[sink], rows)

    def receive(self, buffer: TransactionBuffer, queue: str, limit: int) -> list[Received]:
        """Return messages of a queue that no open transaction has; UnreachableError if it can't be reached.

        This transaction sends those that were handed out too often to the sink of dead letters.
        """
        if queue not in self.queues:
            raise TransactionError(f"there is no queue {queue!r}; {_there(self.queues)}", component=queue)
        receiver, found = self.queues[queue], list[Received]()
        while len(found) < limit:
            taken = self._had(queue) | buffer.nacked[queue]
            messages = receiver.receive(limit - len(found), taken, buffer.since + self._timeout_secs)
            self._have(buffer, queue, {message.id for message in messages})
            sink = self.dead_letters.get(queue)
            dead = [message for message in messages if sink is not None and message.tries >= receiver.max_tries]
            found += [message for message in messages if message not in dead]
            if sink is None or not dead:
                break
            self._send_dead_letters(buffer, sink, dead)
        return found

    def _had(self, queue: str, but: TransactionBuffer | None = None) -> set[Any]:
        """Return the ids of messages of open transactions except `but`; one that is over its time has none."""
        others = (other for other in self._open if other is not but and self._overdue(other) is None)
        return {id for other in others for id in other.received[queue]}

    def _have(self, buffer: TransactionBuffer, queue: str, ids: set[Any]) -> None:
        """Give messages to a transaction, and to no other one."""
        for other in self._open:
            if other is not buffer and other.received[queue] & ids:
                late = self._overdue(other)
                self.queues[queue].release(other.received[queue], "" if late is None else late.message)
                other.received[queue].clear()
        buffer.received[queue] |= ids
        for id in ids:
            self.queues[queue].hold(id, buffer.since + self._timeout_secs)

    def _send_dead_letters(self, buffer: TransactionBuffer, sink: str, dead: Sequence[Received]) -> None:
        """Send messages to the sink of dead letters, and acknowledge them with that."""
        for message in dead:
            reason = self.queues[message.queue].reason(message.id)
            logger.warning("message %s is a dead letter after %d tries: %s", message.id, message.tries, reason)
            row = (*message.values.values(), str(message.id), message.tries, reason)
            buffer.send(sink, self.batches(sink, [row]))
            buffer.acked[message.queue].add(message.id)

    def ack(self, buffer: TransactionBuffer, messages: Sequence[Received], *, cumulative: bool) -> None:
        """Acknowledge messages with a transaction that received them; `cumulative`: all before too."""
        self._check_there(buffer, messages)
        if not cumulative:
            self._check_unacked(buffer, messages)
        found = [(each.queue, self._until(buffer, each) if cumulative else {each.id}) for each in messages]
        for queue, ids in found:
            buffer.touched = True
            self._have(buffer, queue, ids)  # what was given back, or came to one that has ended, is its own now
            buffer.nacked[queue] -= ids
            buffer.acked[queue] |= ids

    def _until(self, buffer: TransactionBuffer, message: Received) -> set[Any]:
        """Return the ids received up to a message; TransactionConflictError as of `OpenTransaction.ack`."""
        queue, ids = message.queue, self.queues[message.queue].until(message.id)
        if ids <= buffer.acked[queue]:
            raise TransactionConflictError(
                f"message {message.id!r} of {queue!r} and all before it are acknowledged already",
                component=queue,
            )
        others = ids & self._had(queue, but=buffer)
        if others:
            raise TransactionConflictError(
                f"{len(others)} of the messages of {queue!r} up to {message.id!r} were received by another open "
                "transaction of this client: acknowledge one by one, or when that one has ended",
                component=queue,
            )
        return ids

    def nack(self, buffer: TransactionBuffer, messages: Sequence[Received], reason: str) -> None:
        """Give messages back, which another transaction of the client may receive."""
        self._check_received(buffer, messages)
        self._check_unacked(buffer, messages)
        for message in messages:
            buffer.received[message.queue].discard(message.id)
            buffer.nacked[message.queue].add(message.id)  # else a loop of receive and nack would not end
            self.queues[message.queue].release([message.id], reason)

    def _check_there(self, buffer: TransactionBuffer, messages: Sequence[Received]) -> None:
        """Refuse messages that another open transaction has, or that the client no longer has."""
        for message in messages:
            _check_message(message)
            if message.id in buffer.received[message.queue]:
                continue
            if message.id in self._had(message.queue, but=buffer):
                raise TransactionError(
                    f"another open transaction of the client has received message {message.id!r} of {message.queue!r}: "
                    "acknowledge it there, or end that one first"
                )
            if not self.queues[message.queue].has(message.id):
                raise TransactionError(
                    f"the client does not have message {message.id!r} of {message.queue!r} any more: it was "
                    "acknowledged, or went back to the queue when no transaction had it. Call receive() again"
                )

    def _check_received(self, buffer: TransactionBuffer, messages: Sequence[Received]) -> None:
        for message in messages:
            _check_message(message)
            if message.id not in buffer.received[message.queue]:
                raise TransactionError(f"the transaction has not received message {message.id!r} of {message.queue!r}")

    def _check_unacked(self, buffer: TransactionBuffer, messages: Sequence[Received]) -> None:
        for message in messages:
            if message.id in buffer.acked[message.queue]:
                raise TransactionError(f"message {message.id!r} of {message.queue!r} is acknowledged already")

    def state(self, buffer: TransactionBuffer, component: str) -> KeyValueState[Any, Any]:
        if component not in self._states:
            there = _there(self._states)
            raise TransactionError(f"no component {component!r} keeps state; {there}", component=component)
        return buffer.state(component, lambda: self._store(component), lambda: self._entered(buffer))

    def _store(self, component: str) -> StateStore:
        store = self._engine.stores.get(component)
        if store is not None:
            return store
        state, name = self._log.state, str(TaskId(component, 0))
        newest = state.snapshots.get(name, (None,))[-1]
        return self._engine.open_store(component, state.generation, state.heads_to_come().get(name, EMPTY), newest)

    @contextlib.contextmanager
    def _entered(self, buffer: TransactionBuffer) -> Iterator[None]:
        """Let a transaction read committed state; after a failed read it can only be rolled back."""
        with self.lock:
            if not self._at_work:  # its commit reads too
                self.check_usable()
                self.check(buffer)
            try:
                yield
            except Exception as error:
                buffer.failure = buffer.failure or error
                self._engine.release()  # else a store that has lost its server would fail the next one too
                raise

    def check(self, buffer: TransactionBuffer) -> None:
        """Refuse to go on with a transaction that can't be committed any more.

        TransactionTimeoutError; FencedError; TransactionError where a read of it has failed.
        """
        self._check_newest()
        if (failure := buffer.failure or self._overdue(buffer)) is None:
            return
        if isinstance(failure, TransactionTimeoutError):
            raise failure
        raise TransactionError(f"the transaction has failed ({reason_of(failure)}): abort it") from failure

    def _check_newest(self) -> None:
        """Raise FencedError, which ends the session, if another client has taken over.

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

    def commit(self, buffer: TransactionBuffer) -> None:
        """Commit a transaction, if it has done anything; TransactionError if it was rolled back.

        1. It is closed for its caller, whatever the outcome.
        2. A key that another one has changed since it began is a conflict.
        3. The former values of its keys are read, for the transactions that stay open: they go on to see them.
        4. It runs by the protocol, as the only one that does, under the next txid.
        5. Those values are given to the transactions that are still open.
        """
        # An interrupt may come at any line, and a signal's handler may make another transaction, which would get the
        # same txid, or change a key behind the look for conflicts: so it ends the client, and the handler is refused.
        with self._working():
            failure = self._commit(buffer)
        if failure is not None:
            raise failure

    def _commit(self, buffer: TransactionBuffer) -> TransactionError | None:
        """Carry it out; return why it was rolled back, if it was."""
        txid = buffer.txid = self.next_txid
        self._open.discard(buffer)  # 1
        reason = "it was not acknowledged"
        try:
            if (failure := buffer.failure or self._overdue(buffer)) is not None:
                reason = reason_of(failure)
                return _rolled_back(txid, failure)
            if not buffer.touched:
                return None
            try:
                writes = buffer.writes()
                self._check_conflict(buffer, writes)  # 2
                before = self._before(writes)  # 3
            except Exception as error:  # noqa: BLE001 - `commit` raises it, when the client can be used again
                reason = reason_of(error)
                return _rolled_back(txid, error)
            changes = Changes({**buffer.rows, **self._acks(buffer)}, writes)
            try:
                # The log can't bring the rows back (rule 3.9): it is the caller who tries again.
                self.coordinator.transact(Batch(BatchInput(), changes, renews=lambda failure: True))  # 4
            except RenewInputError as error:
                changes.failure = changes.failure or error
            except StoppedError as error:  # no TransactionError: it is decided, and must not be done again
                raise SinkError(error.message, txid=txid) from error
            else:
                for other in self._open:
                    other.overtaken(before)  # 5
            if changes.failure is None or isinstance(changes.failure.__cause__, TransactionConflictError):
                for queue, ids in buffer.acked.items():  # they are off the queue; or others have some of them by now
                    self.queues[queue].forget(ids)
            if changes.failure is None:
                return None
            for queue in buffer.acked:
                self.queues[queue].rolled_back()
            reason = reason_of(changes.failure)
            return _rolled_back(txid, changes.failure)
        finally:
            self._give_back(buffer, reason)
            buffer.close()

    def _give_back(self, buffer: TransactionBuffer, reason: str) -> None:
        """Release all messages of a transaction that has ended."""
        for queue, ids in buffer.received.items():
            self.queues[queue].release(ids, reason)

    def _acks(self, buffer: TransactionBuffer) -> dict[str, list[pa.RecordBatch]]:
        found = {}
        for queue, ids in buffer.acked.items():
            rows = [(self.queues[queue].owner, str(id)) for id in ids]
            found[queue + ACKS] = to_batches(queue + ACKS, self._schemas[queue + ACKS], rows)
        return found

    def _check_conflict(self, buffer: TransactionBuffer, writes: Mapping[str, Sequence[Write]]) -> None:
        found = buffer.conflict(writes)
        if found is not None:
            component, key = found
            raise TransactionConflictError(
                f"the transaction was rolled back: another one of this client, which was committed since it began, has "
                f"written key {key!r} of {component!r} too. Begin another one, which reads what is committed now, and "
                "do its work again",
                component=component,
                key=key,
            )

    def _before(self, writes: Mapping[str, Sequence[Write]]) -> dict[str, list[Write]]:
        """Return what is committed under the keys of `writes`, if a transaction is open that may read it."""
        if not self._open:
            return {}
        keys = {component: [key for key, _ in entries] for component, entries in writes.items() if entries}
        return {name: list(zip(own, self._store(name).get(own), strict=True)) for name, own in keys.items()}

    def abort(self, buffer: TransactionBuffer, reason: str = "") -> None:
        """Forget a transaction, of which nothing was visible; again is a no-op."""
        with contextlib.nullcontext() if self._is_foreign else self._lock:  # a child's copy of the lock may be held
            if self.is_open(buffer):
                buffer.txid = self.next_txid
                self._open.discard(buffer)
                self._give_back(buffer, reason or "its transaction was aborted")
                buffer.close()

    def close(self) -> None:
        """Roll back what is open, and release everything; for any thread, again is a no-op."""
        if self._is_foreign:  # the files, the log and the connections are its parent's, which goes on with them
            return
        self._stopping.set()
        with self._lock:
            if self._closed or self._at_work:  # by a signal's handler, in the middle of a commit, which now ends
                return
            self._closed, error = True, self._ended
            for buffer in list(self._open):
                self.abort(buffer)
            self._ended = self._ended or TransactionError("it was closed")
            for receiver in self.queues.values():
                receiver.close()
            self._engine.close()
            self.coordinator.end()
        if self.outside is not None:
            self.outside.close(error)

    def _overdue(self, buffer: TransactionBuffer) -> TransactionTimeoutError | None:
        """Return the error of a transaction that was open for too long.

        It is checked before the decision, never after it: then nothing may be given up, however long a sink takes (rule
        2.5).
        """
        if time.monotonic() - buffer.since <= self._timeout_secs:
            return None
        return TransactionTimeoutError(
            f"the transaction was open for longer than topology.transaction.timeout.secs ({self._timeout_secs:g}): it "
            "can only be rolled back. Begin another one and do its work again, in smaller parts, or raise that setting "
            "in config"
        )

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """Let the coordinator work; after an error its progress is unknown here (rule 2.5).

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


def _rolled_back(txid: int, failure: Exception) -> TransactionError:
    if isinstance(failure, TransactionError):
        return failure
    if isinstance(failure.__cause__, TransactionConflictError):  # of a queue
        return failure.__cause__
    again = "Fix that, and do its work again" if isinstance(failure, BoltError) else "Its work may be done again"
    error = TransactionError(f"transaction {txid} was rolled back: {reason_of(failure)}. {again}", txid=txid)
    error.__cause__ = failure
    return error


def _check_message(message: object) -> None:
    if not isinstance(message, Received):
        raise TransactionError(f"{message!r} is no message: give those that receive() has returned")


def _there(names: Collection[str]) -> str:
    """Return which names there are."""
    return f"there are {', '.join(map(repr, sorted(names)))}" if names else "there are none"
