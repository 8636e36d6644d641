"""For a first look and for tests: rows on the console, in a list, from a list. What sinks have shown is not durable."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from statefx.config import is_count
from statefx.connectors.staged import StagedCommitter, StagedRows, StagedSink, Target
from statefx.errors import TopologyError
from statefx.operators.context import Collector
from statefx.operators.sinks import CheckpointPosition, CommitterContext, Marker, SinkCommitter
from statefx.operators.spouts import PartitionedTransactionalSpout
from statefx.protocol.identity import TransactionAttempt

# ---- sinks

_CELL_MAX = 40


class _Remembered(Target):
    """Keeps the marker in the sink's object: a new process has none, and may show the last transaction again."""

    def __init__(self, sink: _Shown) -> None:
        self._sink = sink

    def marker(self) -> Marker | None:
        return self._sink.last

    def publish(self, marker: Marker, previous: Marker | None, rows: StagedRows) -> None:
        if previous is not None and marker.txid > previous.txid:
            self._sink.show(marker.txid, rows)
        self._sink.last = marker

    def rewind(self, marker: Marker, after: int) -> None:
        self._sink.forget(after)


class _Forgetful(StagedCommitter):
    """Expects no marker at a start: it ended with the process, and so did the rows."""

    def check(self, reached: CheckpointPosition, *, takeover: bool) -> None:
        super().check(replace(reached, known=False), takeover=takeover)

    def fence(self, reached: CheckpointPosition, *, takeover: bool) -> None:
        super().fence(replace(reached, known=False), takeover=takeover)


class _Shown(StagedSink):
    """A sink that shows rows on the driver."""

    exclusive = False
    rewinds = True
    last: Marker | None = None

    def committer(self, context: CommitterContext) -> SinkCommitter:
        if self.last is not None and self.last.generation != context.owner.generation:
            self.last = None  # of a former start; a marker of this start is that of another sink with the same object
        return _Forgetful(self.target, context, lambda: self.connect(context.schema))

    def connect(self, schema: pa.Schema) -> Target:
        return _Remembered(self)

    def show(self, txid: int, rows: StagedRows) -> None:
        """Show the rows of a transaction."""
        raise NotImplementedError

    def forget(self, after: int) -> None:
        """Show the rows of later transactions no more. What was printed stays, and does no harm."""


class ConsoleSink(_Shown):
    """Prints the rows of each committed transaction as a table, on the driver.

    Parameters
    ----------
    rows : int
        How many rows of a transaction are printed at most.
    """

    def __init__(self, rows: int = 20) -> None:
        self.rows_max = rows

    @property
    def target(self) -> str:
        return "console"

    def show(self, txid: int, rows: StagedRows) -> None:
        table = [rows.schema.names]
        for number, row in enumerate(rows.rows()):
            if number == self.rows_max:
                break
            table.append([_cell(value) for value in row.values()])
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
        lines.insert(1, "  ".join("-" * width for width in widths))
        left = len(rows) - len(table) + 1
        more = [f"... and {left} more"] if left > 0 else []
        shown = [f"transaction {txid}: {len(rows)} rows", *lines, *more, "", ""]
        sys.stdout.write("\n".join(shown))


class CollectSink(_Shown):
    """Collects the rows of committed transactions in a list of the driver's, for tests and notebooks.

    Attributes
    ----------
    rows : list of dict
        All rows so far, in order of their transactions; ``Sent.emitted`` of a tester has tuples.
    transactions : dict
        txid -> rows, of every transaction that was committed while this object lived, also of those without rows.
    """

    def __init__(self) -> None:
        self.transactions: dict[int, list[dict[str, Any]]] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the rows behind: tasks have no use for them."""
        return {"transactions": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]  # a lock can't travel

    @property
    def target(self) -> str:
        return "memory"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows so far."""
        with self._lock:
            return [row for txid in sorted(self.transactions) for row in self.transactions[txid]]

    def show(self, txid: int, rows: StagedRows) -> None:
        found = list(rows.rows())
        with self._lock:
            self.transactions[txid] = found

    def forget(self, after: int) -> None:
        with self._lock:
            self.transactions = {txid: rows for txid, rows in self.transactions.items() if txid <= after}


def _cell(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= _CELL_MAX else text[: _CELL_MAX - 3] + "..."


# ---- a spout


class MemoryTransactionalSpout(PartitionedTransactionalSpout):
    """Emits rows that it was given, a few in each transaction.

    Parameters
    ----------
    data : sequence or mapping of sequences of rows
        For each partition its rows; a row is a tuple in the order of the fields. Keys of a mapping are 0, 1 and so on.
    fields : str, StructType or Mapping
        What it emits, as `outputFields`.
    takePerBatch : int
        Rows of each partition in a transaction, at most.

    Examples
    --------
    ::

        MemoryTransactionalSpout([[("to",), ("be",)], [("or",)]], "word string", takePerBatch=1)
    """

    def __init__(
        self,
        data: Sequence[Sequence[tuple[Any, ...]]] | Mapping[int, Sequence[tuple[Any, ...]]],
        fields: Any,
        takePerBatch: int = 100,
    ) -> None:
        if not is_count(takePerBatch):
            raise TopologyError(f"takePerBatch is a whole number from 1, not {takePerBatch!r}")
        if isinstance(data, Mapping):
            if set(data) != set(range(len(data))):
                raise TopologyError(
                    f"the keys of data are the partitions 0, 1 and so on, not {', '.join(map(repr, data))}"
                )
            data = [data[number] for number in range(len(data))]
        if not (
            isinstance(data, Sequence)
            and all(isinstance(partition, Sequence) for partition in data)
            and all(isinstance(row, tuple) for partition in data for row in partition)
        ):
            raise TopologyError(
                "data is a list of partitions, each of which is a list of tuples: [[('to',), ('be',)]]; or a mapping: "
                "{0: [('to',), ('be',)]}"
            )
        self.data = [list(partition) for partition in data]
        self.outputFields = fields
        self.take = takePerBatch

    def numPartitions(self) -> int:
        return len(self.data)

    def planPartitionBatch(self, partition: int, lastMetadata: Any) -> Any:
        start = 0 if lastMetadata is None else lastMetadata["stop"]
        stop = min(len(self.data[partition]), start + self.take)
        # A batch without rows says of an empty list that it is finished.
        return {"start": start, "stop": stop} if start < stop or lastMetadata is None else None

    def isFinished(self, partition: int, metadata: Any) -> bool:
        return bool(metadata["stop"] >= len(self.data[partition]))

    def emitPartitionBatch(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, metadata: Any
    ) -> None:
        for row in self.data[partition][metadata["start"] : metadata["stop"]]:
            collector.emit(row)
