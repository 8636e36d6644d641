"""How a bolt's input is added up before it is sent to the bolt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statefx.operators.hooks import overrides

if TYPE_CHECKING:
    import pyarrow as pa

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
