"""One transaction, as its caller has it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from statefx.client.buffer import TransactionBuffer
from statefx.client.messages import Received
from statefx.client.session import Session
from statefx.errors import TransactionError
from statefx.state.view.task_state import KeyValueState

_Result = TypeVar("_Result")

_ABORTED = "aborted"
_OPEN = "open"


class OpenTransaction:
    """Rows and changes of state that take effect together, or not at all.

    ``with client.transaction() as t`` opens one and leaving the block commits it; an exception, of any kind, rolls it
    back and goes on. ``t = client.begin()`` opens one as well, and `commit` or `abort` ends it. What it does is kept in
    memory until then: one that is rolled back leaves no trace, and one that does nothing costs nothing.

    Attributes
    ----------
    txid : int
        The number under which it was committed, or was tried to be. While it is open: the number that it would get if
        it was committed now; another transaction that is committed first takes it. So several that are open may have
        the same.
    number : int
        Which of the client's transactions it is, in the order in which they began: no other one has it.

    Contract
    --------
    * After the block was left without an exception, or after `commit`, everything is durable and published.
    * After it was left by an exception of the block's own, or after `abort`, nothing of it takes effect, ever.
    * If committing it raises TransactionError, it was rolled back. If that raises anything else (FencedError,
      LogOutcomeUnknownError, KeyboardInterrupt), or if the process dies, it may have been decided before, and takes
      effect then when the next client is made. What came of it, ``statefx.transactions`` says of the entry with this
      txid and the client's generation; and so does whatever the transaction itself has put.
    * It sees state as committed when it was opened, with its own changes, whatever others commit meanwhile.
    * First committer wins: if a transaction that was committed since it was opened has put or deleted a key that this
      one has put or deleted too, committing this one raises TransactionConflictError. A key that was only read is no
      conflict: put what was read again where no other transaction may have changed it.
    * When it has been open for longer than ``topology.transaction.timeout.secs``, every call raises
      TransactionTimeoutError, and it can only be rolled back.
    * Every call that is made later than a tenth of a second after another client has taken over raises FencedError.
    * Several threads may use one transaction, or have transactions of one client: all calls come one after the other,
      and wait for a commit that is under way.
    * One that is forgotten, neither committed nor aborted, is rolled back.
    """

    def __init__(self, session: Session, buffer: TransactionBuffer | None = None) -> None:
        self._session = session
        self._buffer = buffer
        self._end = "not open" if buffer is None else _OPEN
        self._reason = ""

    def __repr__(self) -> str:
        txid = f" as {self.txid}" if self._phase == "committed" else ""
        return f"<Transaction #{self.number}, {self._phase}{txid}>"

    @property
    def number(self) -> int:
        """Which of the client's transactions it is, in the order in which they began; 0 before it is opened."""
        return 0 if self._buffer is None else self._buffer.number

    @property
    def txid(self) -> int:
        """Its number, which is final when it has ended; 0 before it is opened."""
        if self._buffer is None:
            return 0
        return self._buffer.txid or self._session.next_txid

    @property
    def _is_open(self) -> bool:
        return self._buffer is not None and self._session.is_open(self._buffer)

    @property
    def _phase(self) -> str:
        return "rolled back" if self._end == _OPEN and not self._is_open else self._end

    def send(self, sink: str, rows: Any) -> None:
        """Send rows to a sink.

        Parameters
        ----------
        sink : str
            Its name in ``sinks``.
        rows : iterable of rows, pyarrow.Table or pyarrow.RecordBatch
            A row is a dict by field, or a tuple in the order of the schema; a namedtuple or a Row of Spark by its
            names.

        Raises
        ------
        SchemaError
            A row does not fit; names it and the field. No row of this call is sent, and the transaction may go on.
        TransactionError
            There is no such sink, or the transaction has ended. What the sink can't write, the commit says.
        TransactionTimeoutError, FencedError
            See the contract.
        """
        # A row that does not fit is found before the first is kept: the caller may catch the error and go on.
        batches = self._call(lambda buffer: self._session.batches(sink, rows))
        # Whether it is open is asked again: a generator of rows may have ended it.
        self._call(lambda buffer: buffer.send(sink, batches))

    def receive(self, queue: str, limit: int = 1) -> list[Received]:
        """Return messages of a queue, none if there are none now; it does not wait.

        A message is this transaction's until that has ended or its time is over, and nobody else's. If it does not
        `ack` it, or is rolled back, the next `receive` of the client returns it again; ``tries`` says how often it was
        handed out before. If that does not come within a quarter of the queue's ``idleSecs``, any reader gets it when
        these are over. With ``deadLetters``, a message that was handed out ``maxTries`` times is sent there.

        Parameters
        ----------
        queue : str
            Its name in ``queues``.
        limit : int
            How many at most.

        Raises
        ------
        UnreachableError
            The queue can't be reached; the transaction may go on.
        TransactionError
            There is no such queue, or the transaction has ended.
        TransactionTimeoutError, FencedError
            See the contract.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise TransactionError(f"limit is a whole number from 1, not {limit!r}")
        return self._call(lambda buffer: self._session.receive(buffer, queue, limit))

    def ack(self, *messages: Received, cumulative: bool = False) -> None:
        """Take messages off their queue with this transaction: in the same moment as all else that it does.

        If another reader has taken one of them over meanwhile, because more than ``idleSecs`` of the queue have passed
        between two calls, committing raises TransactionConflictError.

        Parameters
        ----------
        *messages : Received
            That this transaction has received; or another one that has ended, if the client still has it.
        cumulative : bool
            For each of them, also all that the client has received from its queue before it and still has: by this
            transaction, or by one that has ended and did not acknowledge it. Of what other readers of the queue have,
            nothing is said.

        Raises
        ------
        TransactionError
            Another open transaction has received one of them, or the client does not have it any more; or this one
            has acknowledged it already.
        TransactionConflictError
            With `cumulative`: another open transaction of the client has received one of those before; or this one has
            acknowledged all of them already, up to this message or a later one. Nothing of the call is kept, and the
            transaction may go on.
        """
        self._call(lambda buffer: self._session.ack(buffer, messages, cumulative=cumulative))

    def nack(self, *messages: Received, reason: str = "") -> None:
        """Give messages back now: another transaction of the client may receive them, and this one does not again.

        Should they be dead letters later, these say the last `reason`.
        """
        self._call(lambda buffer: self._session.nack(buffer, messages, reason or "it was given back"))

    def state(self, component: str) -> KeyValueState[Any, Any]:
        """Return the state of a component: as last committed, with what this transaction has put.

        It has ``get``, ``put``, ``delete``, ``getAll``, ``putAll``, ``in`` and ``items(start, stop)``, and is closed
        with the transaction. For one thread; `get`, `put` and `delete` of the transaction are for several.

        Of its calls, those that read what the transaction has not read yet raise TransactionTimeoutError and
        FencedError; the others leave that to the next call of the transaction.

        Raises
        ------
        TransactionError
            There is no such component, or the transaction has ended.
        TransactionTimeoutError, FencedError
            See the contract.
        """
        return self._call(lambda buffer: self._session.state(buffer, component))

    def get(self, component: str, key: Any, default: Any = None) -> Any:
        """Return the value of a key, with what this transaction has put; `default` if there is none."""
        return self._call(lambda buffer: self._session.state(buffer, component).get(key, default))

    def put(self, component: str, key: Any, value: Any) -> None:
        """Set the value of a key; CodecError names a type that state can't hold."""
        self._call(lambda buffer: self._session.state(buffer, component).put(key, value))

    def delete(self, component: str, key: Any) -> Any:
        """Delete a key; return the value it had, or None."""
        return self._call(lambda buffer: self._session.state(buffer, component).delete(key))

    def commit(self) -> None:
        """Make all of it take effect; called by who has it from ``client.begin()``, or before the block is left.

        When it returns, everything is durable and published. Whatever it raises, nothing more can be done with it.

        Raises
        ------
        TransactionConflictError
            Another transaction of the client has written the same key, or another reader has taken over a message that
            it acknowledges: rolled back. Begin another one.
        TransactionTimeoutError
            It was open for too long: rolled back.
        TransactionError
            A sink or a store could not prepare: rolled back, and may be done again. Or it has ended already.
        FencedError
            Another client has taken over; what came of it, see the contract.
        """
        self._call(self._commit, checked=False)

    def _commit(self, buffer: TransactionBuffer) -> None:
        self._end = "rolled back, or not known"
        try:
            self._session.commit(buffer)
        except TransactionError:
            self._end = "rolled back"
            raise
        self._end = "committed"

    def abort(self, reason: str = "aborted") -> None:
        """Roll it back; nothing more can be done with it. Again is a no-op.

        Parameters
        ----------
        reason : str
            For the error of later calls, and for dead letters.
        """
        if self._end == _ABORTED:
            return
        self._call(lambda buffer: self._session.abort(buffer, reason), checked=False)
        self._end, self._reason = _ABORTED, "" if reason == _ABORTED else f" ({reason})"

    def __enter__(self) -> Self:
        if self._buffer is None:
            self._buffer, self._end = self._session.open(), _OPEN
        elif not self._is_open:
            raise self._gone()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._buffer is not None
        try:
            if error is not None:
                self._session.abort(self._buffer, f"{type(error).__name__}: {error}")
                self._end = _ABORTED if self._end == _OPEN else self._end
            elif self._end == _OPEN:
                self.commit()
        finally:  # also for an interrupt that came before the first line of the commit
            self._session.abort(self._buffer)

    def _call(self, do: Callable[[TransactionBuffer], _Result], *, checked: bool = True) -> _Result:
        session = self._session
        with session.lock:
            session.check_usable()
            buffer = self._buffer
            if buffer is None or not session.is_open(buffer):
                raise self._gone()
            if checked:
                session.check(buffer)
            return do(buffer)

    def _gone(self) -> TransactionError:
        remedy = "begin another one" if self._buffer is not None else "write: with client.transaction() as t"
        return TransactionError(f"the transaction is {self._phase}{self._reason}: {remedy}", txid=self.txid)
