"""What a bolt hands its results to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from statefx.protocol.identity import TransactionAttempt

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
        values: Iterable[Any] = (),
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
        values : tuple, or another iterable with an order
            One value per field of the stream, in the order of its schema.
        stream : str
            A stream that ``outputFields`` declares.
        task : int, optional
            The consumer's task, 0..parallelism-1; required by, and only for, readers by ``directGrouping``.
        anchors : tuple, or Sequence of tuples
            The input tuples this one comes from. Only for a plain ``Bolt``. They have no effect, as `ack`.
        **fields : Any
            In place of `values`: every field of the stream by its name. A field that is named as one of the other
            parameters can be emitted by position only.

        Raises
        ------
        SchemaError
            The stream is not declared, or the values do not fit its schema. At the latest when the
            transaction's rows are sent, so not always in the call that emitted them.
        BoltError
            `anchors` were given by another than a plain ``Bolt``, or are no tuples of its input.

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
        """Say that `tup` has been dealt with, as in Storm. It has no effect: tuples are not tracked one by one."""

    @abstractmethod
    def fail(self, tup: tuple[Any, ...]) -> None:
        """Say that `tup` could not be dealt with: the transaction is rolled back and tried again."""

    @abstractmethod
    def resetTimeout(self, tup: tuple[Any, ...]) -> None:
        """Give the tree of `tup` more time, as in Storm. It has no effect: tuples are not tracked one by one."""
