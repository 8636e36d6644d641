"""One line at the bottom of a terminal that tells how far the queries of this process are.

It is drawn when a transaction has been committed and at no other time. Spark draws its own bar, of stages, while a job
runs, and wipes it away when the job has ended: so the two take turns, and no thread has to draw between transactions.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

from statefx.coordinator.transaction import TransactionProgress

logger = logging.getLogger("statefx")

_COLUMNS_MAX = 79
"""Spark wipes 80 columns, however wide the terminal is; what stood beyond them would stay."""

_RECENT = 10
"""Transactions over which rows a second are taken: so few that a change of the load shows soon."""


class Line(logging.Filter):
    """The line, shared by all bars; as a filter of loggers and handlers it makes room for what is logged.

    Parameters
    ----------
    stream : text file
        A terminal.
    columns : callable
        Its width.
    """

    def __init__(self, stream: TextIO, columns: Callable[[], int]) -> None:
        super().__init__()
        self._stream = stream
        self._columns = columns
        self._lock = threading.Lock()
        self._texts: dict[Bar, str] = {}
        self._drawn = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Wipe the line: what is logged now may go to the same terminal. The next transaction draws it again."""
        with self._lock:
            self._write(self._wiped())
        return True

    def draw(self, bar: Bar, text: str) -> None:
        """Show `text` for `bar`, next to the texts of other bars."""
        with self._lock:
            self._texts[bar] = text
            self._draw()

    def leave(self, bar: Bar) -> None:
        """Let the last text of `bar` stand, and go on without it."""
        with self._lock:
            text = self._texts.pop(bar, None)
            if text is not None:
                self._write(f"{self._wiped()}{text}\n")
            self._draw()

    def _draw(self) -> None:
        text = " | ".join(self._texts.values())[: max(1, min(self._columns() - 1, _COLUMNS_MAX))]
        wiped = self._wiped()
        self._drawn = len(text)
        # The cursor goes back: what Spark's JVM writes next begins its line there, and not behind the text.
        self._write(f"{wiped}{text}\r" if text else wiped)

    def _wiped(self) -> str:
        """Return what wipes the line; no escapes, which not every terminal and no notebook knows."""
        drawn, self._drawn = self._drawn, 0
        return f"\r{' ' * drawn}\r" if drawn else ""

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone; the query goes on
            if text:
                self._stream.write(text)
                self._stream.flush()


class Bar:
    """What the line says of one query: transactions, rows, rows a second.

    Parameters
    ----------
    name : str
        The topology's.
    line : Line
    clock : callable
        Monotonic seconds.
    """

    def __init__(self, name: str, line: Line, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._line = line
        self._clock = clock
        self._transactions = self._rows = 0
        self._recent = deque([(clock(), 0)], maxlen=_RECENT + 1)

    def committed(self, done: TransactionProgress) -> None:
        """Count a transaction."""
        self._transactions += 1
        self._rows += done.input_rows
        self._recent.append((self._clock(), self._rows))
        (began, before), (now, rows) = self._recent[0], self._recent[-1]
        rate = (rows - before) / (now - began) if now > began else 0.0
        count = f"{self._transactions:,} transactions (last: {done.txid:,})"
        self._line.draw(self, f"{self._name}: {count}, {rows:,} rows, {rate:,.0f} rows/s")

    def ended(self) -> None:
        """Leave the line: the query has ended."""
        self._line.leave(self)


_line: Line | None = None
_lock = threading.Lock()


def bar(name: str, wanted: bool | None) -> Bar | None:
    """Return the bar of a query, if there is to be one.

    Parameters
    ----------
    name : str
    wanted : bool or None
        None: where stderr is a terminal.
    """
    global _line  # noqa: PLW0603 - a terminal has one last line
    if wanted is False or (wanted is None and not _is_terminal()):
        return None
    with _lock:
        if _line is None:
            _line = Line(sys.stderr, lambda: shutil.get_terminal_size().columns)
        # Also what others log goes to the terminal, such as py4j's INFO lines.
        for each in (logger, *logger.handlers, *logging.getLogger().handlers):
            each.addFilter(_line)  # at most once
    return Bar(name, _line)


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # none at all, or closed
        return False
