"""Sinks for a first look and for tests: rows on the console, rows in a list. What they have shown is not durable."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from typing import Any, TextIO

import pyarrow as pa

from statefx.connectors.staged import StagedCommitter, StagedRows, StagedSink, Target
from statefx.operators.sinks import CheckpointPosition, CommitterContext, Marker, SinkCommitter

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
        """Make what shows rows; every start begins without a marker."""
        if self.last is not None and self.last.generation != context.owner.generation:
            self.last = None  # of a former start; a marker of this start is that of another sink with the same object
        return _Forgetful(self.target, context, lambda: self.connect(context.schema))

    def connect(self, schema: pa.Schema) -> Target:
        """Return what remembers the marker."""
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
        """The console."""
        return "console"

    def show(self, txid: int, rows: StagedRows, *, out: TextIO | None = None) -> None:
        """Print."""
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
        print(f"transaction {txid}: {len(rows)} rows", *lines, *more, "", sep="\n", file=out or sys.stdout)


class CollectSink(_Shown):
    """Collects the rows of committed transactions in a list of the driver's, for tests and notebooks.

    Attributes
    ----------
    rows : list of dict
        All rows so far, in order of their transactions.
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
        """Memory."""
        return "memory"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows so far."""
        with self._lock:
            return [row for txid in sorted(self.transactions) for row in self.transactions[txid]]

    def show(self, txid: int, rows: StagedRows) -> None:
        """Collect."""
        found = list(rows.rows())
        with self._lock:
            self.transactions[txid] = found

    def forget(self, after: int) -> None:
        """Drop the rows of later transactions."""
        with self._lock:
            self.transactions = {txid: rows for txid, rows in self.transactions.items() if txid <= after}


def _cell(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= _CELL_MAX else text[: _CELL_MAX - 3] + "..."
