"""Lines of the workers' logs, which the driver logs as its own: with component and task, below ``statefx.worker``.

A thread of their own logs them: the one that brings them also takes acks, and a handler may be slow.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque

from statefx import logs
from statefx.protocol import messages
from statefx.protocol.messages import FrameError, Line

logger = logging.getLogger("statefx")

WORKERS = "statefx.worker"
"""The logger of what bolts print; what they log is of loggers below it, called as they have called theirs."""

QUEUED_BYTES_MAX = 16 << 20
"""Of lines that wait for the handlers of this process; more are dropped."""

CLOSE_SECS = 2.0
"""How long the end of a query waits for what is left to be logged."""


class WorkerLines:
    """Logs what the workers of one query send; `take` returns at once, and may be called by any thread."""

    def __init__(self, topology: str) -> None:
        self._topology = topology
        self._changed = threading.Condition()
        self._bodies: deque[bytes] = deque()
        self._bytes = self._dropped = 0
        self._closing = False
        self._thread: threading.Thread | None = None

    def take(self, body: bytes) -> None:
        """Take the body of a LINES."""
        with self._changed:
            if self._closing or self._bytes + len(body) > QUEUED_BYTES_MAX:
                self._dropped += 1
                return
            self._bodies.append(body)
            self._bytes += len(body)
            if self._thread is None:
                self._thread = threading.Thread(target=logs.carrying(self._run), name="statefx-lines", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Return when all that was taken is logged, or after `CLOSE_SECS`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_SECS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._bodies or self._closing)
                if not self._bodies:
                    return
                body = self._bodies.popleft()
                self._bytes -= len(body)
                dropped, self._dropped = self._dropped, 0
            if dropped:
                logger.warning(
                    "%d batches of the workers' lines were dropped: a handler of this process is slow", dropped
                )
            try:
                for line in messages.unpack_lines(body):
                    self._log(line)
            except FrameError as error:
                logger.warning("lines of a worker were dropped: %s", error)
            except Exception:
                logger.exception("lines of a worker could not be logged; a handler or a filter of this process raised")

    def _log(self, line: Line) -> None:
        """Log a line, unless ``statefx.worker`` has a level above it; the worker has gone by the levels of its own."""
        workers = logging.getLogger(WORKERS)
        least = workers.level if line.logger else workers.getEffectiveLevel()
        if line.level >= least:
            workers.handle(record_of(line, self._topology))


def record_of(line: Line, topology: str) -> logging.LogRecord:
    """Return a line as a record of this process, whose text begins with the task's name.

    >>> line = Line(0.0, logging.INFO, "shop", "", {"component": "count", "task": 3}, "sold out")
    >>> record = record_of(line, "orders")
    >>> record.name, record.getMessage(), record.statefx_task
    ('statefx.worker.shop', 'count[3]: sold out', 3)
    """
    name = f"{WORKERS}.{line.logger}" if line.logger not in ("", "statefx") else WORKERS
    component, task = line.fields.get("component"), line.fields.get("task")
    where = "a worker" if component is None else f"{component}[{task}]"
    record = logging.LogRecord(name, line.level, "", 0, "%s: %s", (where, line.text), None)
    record.created, record.msecs = line.at, line.at % 1 * 1000
    record.exc_text = line.trace or None
    own = {**line.fields, "topology": topology}
    record.__dict__ |= {f"{logs.PREFIX}{field}": own.get(field) for field in logs.FIELDS}
    record.__dict__ |= {f"{logs.PREFIX}stream": line.stream} if line.stream else {}
    if line.extra:
        extra = json.loads(line.extra)
        record.__dict__ |= {key: value for key, value in extra.items() if key not in record.__dict__}
    return record
