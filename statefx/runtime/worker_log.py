r"""The log of one Python worker: what its tasks log and print, on the way to the driver.

::

    print, logging --> queue, with a budget by task --> a thread, LINES --> driver's logger statefx.worker
                  \--> stderr, while no run is connected, and for what the driver does not want

A task never waits: what is over its budget is dropped and counted (rule 13.12: lines decide nothing). They are no part
of a transaction, and arrive whether it is committed or not.
"""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TextIO

from statefx import logs
from statefx.protocol import messages
from statefx.protocol.identity import TaskId
from statefx.protocol.messages import Line

LINES_PER_SEC, LINES_BURST = 100, 1000
BYTES_PER_SEC, BYTES_BURST = 100_000, 1_000_000
"""Of one task: 64 tasks that print without end give the driver 6,400 lines a second, a quarter of a core."""

LINE_CHARS_MAX = 8_000
TRACE_CHARS_MAX = 20_000
NAME_CHARS_MAX = 200
_LEVEL_MAX = 1 << 31
FRAME_BYTES = 64_000
"""Of one LINES, after which another one begins: an ack that comes behind it waits for so much at most."""

SEND_SECS = 0.2
"""Between two LINES."""

REPORT_SECS = 10.0
"""Between two lines that tell how much was dropped."""

PARTIAL_SECS = 1.0
"""After which a printed line without an end is sent as it is."""

DETACH_SECS = 2.0
"""How long the end of a run waits until what is left is sent."""


class Wanted(NamedTuple):
    """What the driver wants of its workers: `records` of loggers, and what they print.

    `echo`: whether they write it to their stderr as well, which is not the program's own.
    """

    records: bool = False
    stdout: bool = False
    stderr: bool = False
    echo: bool = True


class Budget:
    """How many lines and bytes a task may still send; what it does not use is kept up to a burst."""

    __slots__ = ("_at", "_bytes", "_lines", "dropped", "dropped_bytes")

    def __init__(self, now: float) -> None:
        self._at, self._lines, self._bytes = now, float(LINES_BURST), float(BYTES_BURST)
        self.dropped = self.dropped_bytes = 0

    def takes(self, size: int, now: float) -> bool:
        """Return whether a line may be sent; count it as dropped otherwise."""
        secs, self._at = max(0.0, now - self._at), now
        self._lines = min(LINES_BURST, self._lines + secs * LINES_PER_SEC)
        self._bytes = min(BYTES_BURST, self._bytes + secs * BYTES_PER_SEC)
        if self._lines < 1 or self._bytes < size:
            self.dropped += 1
            self.dropped_bytes += size
            return False
        self._lines -= 1
        self._bytes -= size
        return True


@dataclass(slots=True)
class _Partial:
    """A line that is being printed by one thread."""

    since: float
    data: bytearray = field(default_factory=bytearray)


class WorkerLog:
    """What one process logs and prints; any thread may call it, and no call waits for the driver.

    `clock` and `now` are in seconds, the second since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        self._clock, self._now = clock, now
        self._lock = threading.RLock()  # a finalizer that prints may interrupt the thread that holds it
        self._queue: deque[Line] = deque()
        self._partials: dict[tuple[str, int], _Partial] = {}
        self._budgets: dict[tuple[Any, Any], Budget] = {}
        self._send: Callable[[bytes], None] | None = None
        self._wanted = Wanted()
        self._only: dict[str, str | int] = {}
        """Component and task of lines of threads that the user's code has begun, where only one can be meant."""
        self._changed = threading.Event()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._reported: float | None = None
        """When it was last told how much was dropped."""
        self.streams: dict[str, TextIO] = {}
        """The process's own streams, below those that are printed to."""

    # ---- a run

    def attach(self, send: Callable[[bytes], None], wanted: Wanted, tasks: Collection[TaskId]) -> None:
        """Send lines with `send` from now on, from a thread: it may wait, and raises OSError if the driver is gone."""
        with self._lock:
            self._send, self._wanted, self._reported = send, wanted, None
            self._ending.clear()
            self._budgets.clear()
            only = next(iter(tasks)) if len(tasks) == 1 else None
            self._only = {} if only is None else {"component": only.component, "task": only.task}
            if wanted.records or wanted.stdout or wanted.stderr:
                self._thread = threading.Thread(target=self._run, args=(send,), name="statefx-lines", daemon=True)
                self._thread.start()

    def detach(self) -> None:
        """Send what is left, for `DETACH_SECS` at most; from now on lines go to stderr."""
        with self._lock:
            self._end_partials(all_of_them=True)
            thread, self._thread = self._thread, None
        self._ending.set()
        self._changed.set()
        if thread is not None:
            thread.join(DETACH_SECS)
        self._lose()

    def _lose(self) -> None:
        """Go on without a driver: what it has not got is written to stderr."""
        with self._lock:
            self._send, self._wanted = None, Wanted()
            left, self._queue = list(self._queue), deque()
        for line in left:
            self.write("stderr", f"{line.text}\n{line.trace}".encode())

    # ---- lines

    def takes_records(self) -> bool:
        return self._wanted.records

    @property
    def echoes(self) -> bool:
        return self._wanted.echo

    def record(self, record: logging.LogRecord) -> None:
        """Take a log record."""
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        extra = {name: value for name, value in logs.extra_of(record).items() if not name.startswith(logs.PREFIX)}
        trace = "\n".join(text for text in (record.exc_text, record.stack_info) if text)
        self._add(
            max(-_LEVEL_MAX, min(int(record.levelno), _LEVEL_MAX)),
            _printable(_cut(record.name, NAME_CHARS_MAX)),
            "",
            record.getMessage(),
            _cut(trace, TRACE_CHARS_MAX),
            packed if extra and len(packed := json.dumps(extra)) <= LINE_CHARS_MAX else "",
            at=float(record.created),
        )

    def printed(self, stream: str, data: bytes) -> None:
        """Take what is printed to `stream`; a line of one thread is one, whatever others print meanwhile."""
        is_wanted = self._wanted.stdout if stream == "stdout" else self._wanted.stderr
        if not is_wanted or self._wanted.echo:
            self.write(stream, data)
        if not is_wanted:
            return
        key = stream, threading.get_ident()
        with self._lock:
            partial = self._partials.get(key)
            if partial is None:
                partial = self._partials[key] = _Partial(self._clock())
                self._changed.set()
            partial.data += data
            if b"\n" in data or len(partial.data) > LINE_CHARS_MAX:
                del self._partials[key]
                *lines, rest = partial.data.split(b"\n")
                if len(rest) > LINE_CHARS_MAX:
                    lines, rest = [*lines, rest], bytearray()
                for line in lines:
                    self._print(stream, line)
                if rest:
                    partial.data = rest
                    self._partials[key] = partial

    def write(self, stream: str, data: bytes) -> None:
        """Write to the process's own stream."""
        own = self.streams.get(stream)
        with suppress(OSError, ValueError):  # it is closed: nobody reads it any more
            buffer = getattr(own, "buffer", None)
            if own is None:
                return
            if buffer is None:
                own.write(data.decode("utf-8", "backslashreplace"))
            else:
                buffer.write(data)
            own.flush()

    def _print(self, stream: str, line: bytearray) -> None:
        if text := line.decode("utf-8", "backslashreplace").rstrip("\r"):
            self._add(logging.INFO if stream == "stdout" else logging.WARNING, "", stream, text)

    def _end_partials(self, *, all_of_them: bool = False) -> None:
        now = self._clock()
        for key, partial in list(self._partials.items()):
            if all_of_them or now - partial.since >= PARTIAL_SECS:
                del self._partials[key]
                self._print(key[0], partial.data)

    def _add(
        self, level: int, logger: str, stream: str, text: str, trace: str = "", extra: str = "", at: float | None = None
    ) -> None:
        known = logs.current()
        fields: Mapping[str, Any] = known if "component" in known else self._only
        size = min(len(text), LINE_CHARS_MAX) + len(trace) + len(extra) + len(logger)
        with self._lock:
            if self._send is None:
                return
            now = self._clock()
            task = fields.get("component", ""), fields.get("task", "")
            budget = self._budgets.get(task)
            if budget is None:
                budget = self._budgets[task] = Budget(now)
            if budget.takes(size, now):
                own = {name: value for name, value in fields.items() if name != "topology" and value is not None}
                text = _printable(_cut(text, LINE_CHARS_MAX))
                self._queue.append(
                    Line(self._now() if at is None else at, level, logger, stream, own, text, _printable(trace), extra)
                )
        if not self._changed.is_set():
            self._changed.set()

    # ---- the thread that sends

    def _run(self, send: Callable[[bytes], None]) -> None:
        try:
            while True:
                self._changed.wait(PARTIAL_SECS if self._is_due_later() else None)
                self._changed.clear()
                is_last = self._ending.is_set()  # before the last look at the queue, which gets nothing more then
                while lines := self._next():
                    send(messages.pack_lines(lines))
                if is_last:
                    return
                self._ending.wait(SEND_SECS)
        except OSError:  # the driver is gone: the chain ends as well
            self._lose()

    def _is_due_later(self) -> bool:
        return bool(self._partials) or any(budget.dropped for budget in self._budgets.copy().values())

    def _next(self) -> list[Line]:
        """Return the lines of the next frame, and what was dropped since the last one."""
        lines: list[Line] = []
        size = 0
        with self._lock:
            self._end_partials()
            while self._queue and size < FRAME_BYTES:
                line = self._queue.popleft()
                lines.append(line)
                size += len(line.text) + len(line.trace) + len(line.extra)
            if not self._queue:
                lines += self._dropped()
        return lines

    def _dropped(self) -> list[Line]:
        """Return lines that tell what was dropped: at first at once, then now and then, and at the end."""
        now = self._clock()
        if self._reported is not None and now - self._reported < REPORT_SECS and not self._ending.is_set():
            return []
        lines: list[Line] = []
        for (component, task), budget in self._budgets.items():
            if budget.dropped:
                text = (
                    f"{budget.dropped:,} lines ({budget.dropped_bytes:,} bytes) were left out here: a task may log and "
                    f"print {LINES_PER_SEC} lines and {BYTES_PER_SEC // 1000} kB a second"
                )
                fields = {"component": component, "task": task} if component else {}
                lines.append(Line(self._now(), logging.WARNING, "", "", fields, text))
                budget.dropped = budget.dropped_bytes = 0
        self._reported = now if lines else self._reported
        return lines


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most:,} characters more)"


def _printable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


# ---- the process's streams


class _Bytes(io.BufferedIOBase):
    """What is printed as bytes, as by ``sys.stdout.buffer``."""

    def __init__(self, log: WorkerLog, stream: str) -> None:
        self._log, self._stream = log, stream
        self.name = f"<{stream}>"

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        taken = bytes(data)
        self._log.printed(self._stream, taken)
        return len(taken)

    def fileno(self) -> int:
        """Return that of the process's own stream: programs that a bolt starts write there."""
        return self._log.streams[self._stream].fileno()

    def close(self) -> None:
        """Stay open: the process's own stream is not ours to close."""


class Printed(io.TextIOWrapper):
    """``sys.stdout`` or ``sys.stderr`` of a worker."""

    def __init__(self, log: WorkerLog, stream: str) -> None:
        super().__init__(_Bytes(log, stream), "utf-8", "backslashreplace", write_through=True)
        self._log, self._stream = log, stream

    def write(self, text: str, /) -> int:
        """Take text; what one thread writes is not mixed with what others do."""
        if not isinstance(text, str):
            return super().write(text)  # whose error says what it is
        self._log.printed(self._stream, text.encode("utf-8", "backslashreplace"))
        return len(text)


def capture(log: WorkerLog) -> None:
    """Have what this process prints go through `log`, for as long as it lives.

    A handler that the user's code sets up keeps the stream that it has found, also for later runs.
    """
    for name in ("stdout", "stderr"):
        own = getattr(sys, name)
        if own is not None and not isinstance(own, Printed):
            log.streams[name] = own
            setattr(sys, name, Printed(log, name))


class Records(logging.Handler):
    """The handler of a worker's root logger: to the driver, or to stderr in a line."""

    def __init__(self, log: WorkerLog) -> None:
        super().__init__()
        self._log = log
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record."""
        try:
            is_taken = self._log.takes_records()
            if is_taken:
                self._log.record(record)
            if not is_taken or self._log.echoes:
                self._log.write("stderr", f"{self.format(record)}\n".encode("utf-8", "backslashreplace"))
        except Exception:  # noqa: BLE001 - as every handler of Python's
            self.handleError(record)
