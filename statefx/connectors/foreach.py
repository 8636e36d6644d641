"""ForeachTransactionSink: the rows of a transaction, handed to a function of the user's, at least once (rule 8.3).

::

    markers/<sink>/<number>.json      the last transaction for which the function returned; the highest number counts
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from statefx.connectors.staged import StagedCommitter, StagedRows, Stager, Target
from statefx.errors import AlreadyExistsError, ConfigError, SinkError
from statefx.operators.sinks import CommitterContext, Marker, Sink, SinkCommitter, SinkWriter, WriterContext

MARKERS = "markers"

_MARKERS_KEPT = 2
"""The one that counts, and the one before it, which another driver may be about to read."""


class ForeachTransactionSink(Sink):
    """Calls ``fn(dataframe, txid)`` on the driver for each committed transaction: **at least once**.

    For whatever Spark can write to: Delta, Iceberg, Kafka, JDBC. All rows of a transaction are in `dataframe`, which
    executors read from the checkpoint; `txid` grows by one from transaction to transaction.

    Parameters
    ----------
    fn : callable
        Stays on the driver: it may use whatever the program has, also the SparkSession. What it returns is ignored.
        The DataFrame can be read until it returns, and each use reads the rows again.

    Contract
    --------
    * `fn` is called when the transaction is decided, in the order of txids, and called again with the same rows and the
      same txid until it returns. If it raises, ``query.status`` says why, and no later transaction is committed.
    * Once it has returned and that was noted in the checkpoint, it is not called again for this transaction. A crash
      between the two has it called again, by the next driver.
    * A driver that is suspended during its call, and is replaced meanwhile, goes on with the call when it wakes up: at
      the same time as its successor, or after later transactions.
    * It may take as long as it needs: ``topology.transaction.timeout.secs`` is for what comes before the decision.
    * It is not called for transactions without rows, so that txids are missing.
    * The sink does not know where `fn` writes, so that it can't refuse a place that another topology writes to.

    Rows are there exactly once if `fn` leaves out what is there already, by the txid: as Delta does with ``txnAppId``
    and ``txnVersion``, or by a column or table that holds the txid and is written in the same transaction.

    Raises
    ------
    ConfigError
        `fn` can't be called with two arguments.

    Examples
    --------
    ::

        def write(dataframe, txid):
            writer = dataframe.write.format("delta").mode("append")
            writer.option("txnAppId", "payments").option("txnVersion", txid).save("/data/payments")

        builder.setSink("delta", ForeachTransactionSink(write)).shuffleGrouping("payments")
    """

    exclusive = False
    target = "a function of the user's"
    """Not the function's name: a function that was corrected and renamed still gets the transaction that is decided."""

    def __init__(self, fn: Callable[[Any, int], object]) -> None:
        try:
            inspect.signature(fn).bind(None, 1)
        except TypeError as error:
            raise ConfigError(
                f"ForeachTransactionSink needs a function of two arguments, fn(dataframe, txid), got {fn!r}: {error}"
            ) from None
        except ValueError:  # written in C: it does not tell
            pass
        self.fn: Callable[[Any, int], object] | None = fn

    def __getstate__(self) -> dict[str, Any]:
        """Leave the function on the driver: it may hold what can't travel, such as a SparkSession."""
        return {"fn": None}

    def writer(self, context: WriterContext) -> SinkWriter:
        return Stager(context)

    def committer(self, context: CommitterContext) -> SinkCommitter:
        assert self.fn is not None, "only the driver's own object has the function"
        fn = self.fn
        return StagedCommitter(self.target, context, lambda: _Calls(fn, context))


class _Calls(Target):
    """Calls the function, and then notes the marker in the checkpoint.

    The log decides who owns the checkpoint, so a marker here names no application and no origin. A fork has the markers
    of its original, and goes on from them.
    """

    def __init__(self, fn: Callable[[Any, int], object], context: CommitterContext) -> None:
        self._fn = fn
        self._context = context
        self._prefix = f"{MARKERS}/{context.component}/"

    def check(self) -> None:
        """Refuse to start without Spark (see `Target.check`)."""
        self._context.dataframe(self._context.schema, ())

    def marker(self) -> Marker | None:
        return self._newest()[1]

    def publish(self, marker: Marker, previous: Marker | None, rows: StagedRows) -> None:
        numbers, found = self._newest()
        if found != previous:
            raise self._replaced()
        if len(rows):
            self._call(marker.txid, rows)
        number = numbers[-1] + 1 if numbers else 0
        note = {"generation": marker.generation, "txid": marker.txid, "nonce": uuid4().hex}
        try:
            self._context.storage.create(self._name(number), json.dumps(note).encode())
        except AlreadyExistsError:
            raise self._replaced() from None
        # A driver that wakes up late may take a number that is deleted here. Nobody reads it: a higher one is there.
        self._context.storage.delete(map(self._name, numbers[: 1 - _MARKERS_KEPT]))

    def _call(self, txid: int, rows: StagedRows) -> None:
        try:
            self._fn(self._context.dataframe(self._context.schema, rows.parts()), txid)
        except Exception:
            for _ in rows:  # if rows are lost, the function has failed for that: this error names the file
                pass
            raise

    def _newest(self) -> tuple[list[int], Marker | None]:
        """Return the numbers that there are, and the marker of the highest."""
        storage, owner = self._context.storage, self._context.owner
        names = (stored.name.removeprefix(self._prefix).removesuffix(".json") for stored in storage.list(self._prefix))
        numbers = [int(name) for name in names if name.isdecimal()]
        if not numbers:
            return [], None
        note = json.loads(storage.read(self._name(numbers[-1])))
        return numbers, Marker(owner.application, owner.origin, note["generation"], note["txid"])

    def _name(self, number: int) -> str:
        return f"{self._prefix}{number:020d}.json"

    def _replaced(self) -> SinkError:
        return SinkError(f"{self._context.component}: another driver has taken over", target=self._context.component)
