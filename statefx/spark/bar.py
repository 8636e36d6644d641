"""The last line of a terminal tells how far the queries of this process are.

It is drawn when a transaction has been committed and at no other time. Spark draws its own bar, of stages, while a job
runs, and wipes it when the job has ended: so the two take turns, and no thread has to draw between transactions.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from statefx.coordinator.progress import TransactionProgress

logger = logging.getLogger("statefx")

_COLUMNS_MAX = 79
"""Spark wipes 80 columns, however wide the terminal is; what stood beyond them would stay."""


class Line(logging.Filter):
    """The last line of a terminal; as a filter of loggers and handlers it makes room for what is logged."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lock = threading.Lock()
        self._drawn = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Wipe the line: what is logged now may go to the same terminal. The next transaction draws it again."""
        self.draw("")
        return True

    def draw(self, text: str, end: str = "\r") -> None:
        """Show `text` in the place of what the line shows; with a line feed as `end` it stays."""
        with self._lock, contextlib.suppress(OSError, ValueError):  # the terminal is gone; the query goes on
            if end == "\r":
                text = text[: max(1, min(shutil.get_terminal_size().columns - 1, _COLUMNS_MAX))]
            # No escapes, which not every terminal and no notebook knows.
            wiped = f"\r{' ' * self._drawn}\r" if self._drawn else ""
            self._drawn = len(text) if end == "\r" else 0
            # The cursor goes back: what Spark's JVM writes next begins its line there, and not behind the text.
            self._stream.write(f"{wiped}{text}{end}" if text else wiped)
            self._stream.flush()


class Bar:
    """What the line says of one query: transactions, rows, rows a second."""

    def __init__(self, name: str, line: Line, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._line = line
        self._clock = clock
        self._began = clock()
        self._transactions = self._rows = 0
        self._text = ""

    def committed(self, done: TransactionProgress) -> None:
        """Count a transaction."""
        self._transactions += 1
        self._rows += done.input_rows
        rate = self._rows / max(self._clock() - self._began, 0.001)
        count = f"{self._transactions:,} transactions (last: {done.txid:,})"
        self._text = f"{self._name}: {count}, {self._rows:,} rows, {rate:,.0f} rows/s"
        self._line.draw(self._text)

    def ended(self) -> None:
        """Let the last text stand: the query has ended."""
        if self._text:
            self._line.draw(self._text, end="\n")


_line: Line | None = None
_lock = threading.Lock()


def bar(name: str, wanted: bool | None) -> Bar | None:
    """Return the bar of a query, if there is to be one; with None as `wanted` where stderr is a terminal."""
    global _line  # noqa: PLW0603 - a terminal has one last line
    if wanted is False or (wanted is None and not _is_terminal()):
        return None
    with _lock:
        _line = _line or Line(sys.stderr)
        # Also what others log goes to the terminal, such as py4j's INFO lines.
        for each in (logger, *logger.handlers, *logging.getLogger().handlers):
            each.addFilter(_line)  # at most once
    return Bar(name, _line)


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # none at all, or closed
        return False
