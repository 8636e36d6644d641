"""One transaction, as the block that it is open in sees it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from statefx.client.session import Session
from statefx.errors import TransactionError
from statefx.state import KeyValueState

logger = logging.getLogger("statefx")

_Result = TypeVar("_Result")

_ABORTED = "aborted"


class OpenTransaction:
    """Rows and changes of state that take effect together, or not at all; ``with client.transaction() as t`` opens one.

    Leaving the block commits it; an exception, of any kind, rolls it back and goes on. Nothing is written before the
    first call of one of its methods: a block that does nothing costs nothing.

    Attributes
    ----------
    txid : int
        Its number. One that was rolled back leaves its number to the next one, perhaps another client's.

    Contract
    --------
    * After the block was left without an exception, everything is durable and published.
    * After it was left by an exception of the block's own, nothing of it takes effect, ever.
    * If leaving the block raises TransactionError, it was rolled back. If it raises anything else (FencedError,
      LogOutcomeUnknownError, KeyboardInterrupt), or if the process dies, it may have been decided before, and takes
      effect then when the next client is made. What came of it, ``statefx.transactions`` says of the entry with this
      txid and the client's generation; and so does whatever the transaction itself has put.
    * Several threads may use one transaction: their calls come one after the other.
    """

    def __init__(self, session: Session) -> None:
        self.txid = 0
        self._session = session
        self._number = 0
        self._end = "not open"

    def __repr__(self) -> str:
        return f"<Transaction {self.txid}, {'open' if self._session.is_open(self._number) else self._end}>"

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
            There is no such sink, or the transaction has ended.
        BoltError, OSError
            The sink could not write: the transaction can only be rolled back.
        """
        # A row that does not fit is found before the first is written: the caller may catch the error and go on.
        batches = self._call(lambda: self._session.batches(sink, rows))
        # Whether it is open is asked again: a generator of rows that calls `abort` would begin another attempt, which
        # nobody leaves, and its rows would be committed with the next transaction.
        self._call(lambda: self._session.send(sink, batches))

    def state(self, component: str) -> KeyValueState[Any, Any]:
        """Return the state of a component: as last committed, with what this transaction has put.

        It has ``get``, ``put``, ``delete``, ``getAll``, ``putAll``, ``in`` and ``items(start, stop)``, and is closed
        with the transaction. For one thread; `get`, `put` and `delete` of the transaction are for several.

        Raises
        ------
        TransactionError
            There is no such component, or the transaction has ended.
        """
        return self._call(lambda: self._session.state(component))

    def get(self, component: str, key: Any, default: Any = None) -> Any:
        """Return the value of a key, with what this transaction has put; `default` if there is none."""
        return self._call(lambda: self._session.state(component).get(key, default))

    def put(self, component: str, key: Any, value: Any) -> None:
        """Set the value of a key; CodecError names a type that state can't hold."""
        self._call(lambda: self._session.state(component).put(key, value))

    def delete(self, component: str, key: Any) -> Any:
        """Delete a key; return the value it had, or None."""
        return self._call(lambda: self._session.state(component).delete(key))

    def abort(self, reason: str = "aborted") -> None:
        """Roll it back, and go on in the block; nothing more can be done with it. Again is a no-op.

        Parameters
        ----------
        reason : str
            For ``statefx.transactions``.
        """
        if self._end == _ABORTED:
            return
        self._call(lambda: self._session.abort(TransactionError(reason)))
        self._end = _ABORTED

    def __enter__(self) -> Self:
        session = self._session
        with session.lock:
            session.check_usable()
            if self._number:
                raise self._gone()
            self.txid = session.open()
            self._number, self._end = session.opened, "rolled back, or not known"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._leave(error)
        except BaseException as interrupt:  # before the session took it up: no other block can be opened behind it
            self._session.give_up(self._number, interrupt)
            raise

    def _leave(self, error: BaseException | None) -> None:
        if self._end == _ABORTED:
            return
        if error is None:
            self._call(self._session.commit)
            self._end = "committed"
            return
        try:
            self._call(lambda: self._session.abort(error))
        except Exception as failure:  # noqa: BLE001 - what ended the block is what its caller has to see
            logger.warning("transaction %d was not rolled back here: %s", self.txid, failure)

    def _call(self, do: Callable[[], _Result]) -> _Result:
        with self._session.lock:
            self._session.check_usable()
            if not self._session.is_open(self._number):
                raise self._gone()
            return do()

    def _gone(self) -> TransactionError:
        remedy = "begin another one" if self._number else "write: with client.transaction() as t"
        return TransactionError(f"the transaction is {self._end}: {remedy}", txid=self.txid)
