"""Log records that programs read: which transaction and task a record is of, repeats counted, one JSON object a line.

Records of the logger ``statefx`` have five attributes more than others, None where one does not apply:

::

    statefx_topology   statefx_txid   statefx_attempt   statefx_component   statefx_task

Whoever runs something for a transaction or a task says so once, with `fields`; the lines that are logged meanwhile, in
this thread and in those that it starts by `carrying`, have them.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token, copy_context
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from typing import Any, Literal, ParamSpec, TypeVar

from statefx.errors import ConfigError

__all__ = ["JsonFormatter"]

FIELDS = ("topology", "txid", "attempt", "component", "task")
PREFIX = "statefx_"

REPEATS_SECS = 10.0
"""How long a warning that is repeated is only counted. At 10 attempts a second one cause made 36,000 lines an hour."""

_PLACES_MAX = 1000
"""Places of the code whose warnings are counted: a template that is made up for each record would be one each time."""

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


# ---- the fields


@dataclass(frozen=True, slots=True)
class _Here:
    """Fields of the records that a thread logs now, and what counts repeats of its query."""

    fields: Mapping[str, object]
    repeats: Repeats | None = None


_here: ContextVar[_Here] = ContextVar("statefx_logs", default=_Here({}))  # noqa: B039 - nothing changes it


def enter(named: Mapping[str, object]) -> Token[Any]:
    """Add fields to what this thread logs from now on, until `leave`; `fields` is the same as a block."""
    here = _here.get()
    return _here.set(_Here({**here.fields, **named}, here.repeats))


def ready(**named: object) -> _Here:
    """Return fields for `swap`, made once for what is done often."""
    return _Here(named)


def swap(prepared: _Here) -> Token[Any]:
    """Give what this thread logs these fields and no other, until `leave`; takes a tenth of the time of `enter`."""
    return _here.set(prepared)


def leave(entered: Token[Any]) -> None:
    _here.reset(entered)


class fields:  # noqa: N801 - called as a function; as a generator it would take twice as long
    """Add fields to the records that the block logs: `topology`, `txid`, `attempt`, `component`, `task`."""

    __slots__ = ("_entered", "_named")

    def __init__(self, **named: object) -> None:
        self._named = named

    def __enter__(self) -> None:
        self._entered = enter(self._named)

    def __exit__(self, *error: object) -> None:
        leave(self._entered)


@contextmanager
def of_query(topology: str, repeats: Repeats | None) -> Iterator[None]:
    """Give the block's records the topology, and no other field; count repeats with `repeats`.

    By query: what an earlier query of the process has logged keeps nothing of this one back.
    """
    entered = _here.set(_Here({"topology": topology}, repeats))
    try:
        yield
    finally:
        leave(entered)


@contextmanager
def of_no_transaction() -> Iterator[None]:
    """Leave what is known of a transaction or a task out of the block's records: what it begins outlives both."""
    here = _here.get()
    entered = _here.set(_Here({"topology": here.fields.get("topology")}, here.repeats))
    try:
        yield
    finally:
        leave(entered)


def carrying(target: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Return `target` for another thread, where its records have the fields that this thread's have now."""
    context = copy_context()

    def carried(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        return context.copy().run(target, *arguments, **named)  # one context can't be entered by two threads

    return carried


def current() -> Mapping[str, object]:
    """Return the fields of what this thread logs now."""
    return _here.get().fields


class _Fields(logging.Filter):
    """Gives records their fields, and holds back repeats."""

    def filter(self, record: logging.LogRecord) -> bool:
        here = _here.get()
        for name in FIELDS:
            record.__dict__.setdefault(PREFIX + name, here.fields.get(name))
        return here.repeats is None or here.repeats.passes(record)


_filter = _Fields()


def with_fields(logger: logging.Logger) -> logging.Logger:
    """Have a logger's records get their fields; a logger's filter does not see what those below it log."""
    logger.addFilter(_filter)
    return logger


with_fields(logging.getLogger("statefx"))


# ---- repeats


def _later(secs: float, call: Callable[[], None]) -> None:
    timer = threading.Timer(secs, call)
    timer.daemon = True
    timer.start()


@dataclass(slots=True)
class _Place:
    """The warnings of one place of the code that have one template."""

    since: float
    count: int = 0
    last: logging.LogRecord | None = None


class Repeats:
    """Lets a warning pass, and those like it only as a count every `REPEATS_SECS`.

    Alike are warnings and errors of one line of the code with one template, whatever they are about: the newest of them
    is logged with the count. Lines of lower levels always pass: whoever wants these wants each.

    `clock` is in seconds; `later` calls something after some seconds, on another thread.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], None] = _later,
    ) -> None:
        self._clock, self._later = clock, later
        self._lock = threading.RLock()  # a finalizer that logs may interrupt the thread that holds it
        self._places: dict[tuple[str, int, str], _Place] = {}

    def passes(self, record: logging.LogRecord) -> bool:
        """Return whether a record is to be logged now."""
        if record.levelno < logging.WARNING:
            return True
        key, now = (record.pathname, record.lineno, str(record.msg)), self._clock()
        with self._lock:
            place = self._places.get(key)
            if place is None or (not place.count and now - place.since >= REPEATS_SECS):
                if len(self._places) >= _PLACES_MAX:
                    self._forget(now)
                if len(self._places) < _PLACES_MAX:
                    self._places[key] = _Place(now)
                return True
            place.count, place.last = place.count + 1, record
            is_first = place.count == 1
        if is_first:
            self._later(max(0.0, place.since + REPEATS_SECS - now), partial(self._report, key))
        return False

    def close(self) -> None:
        """Log what is counted and not logged yet: the query ends."""
        for key in list(self._places):
            self._report(key)

    def _forget(self, now: float) -> None:
        over = [key for key, place in self._places.items() if not place.count and now - place.since >= REPEATS_SECS]
        for key in over:
            del self._places[key]

    def _report(self, key: tuple[str, int, str]) -> None:
        with self._lock:
            place = self._places.get(key)
            if place is None or place.last is None:
                return
            last, count, secs = place.last, place.count, self._clock() - place.since
            place.since, place.count, place.last = self._clock(), 0, None
        counted = logging.makeLogRecord(last.__dict__)
        if count == 1:
            counted.msg, counted.args = "%s (repeated within %.0f s)", (_message(last), secs)
        else:
            counted.msg = "%s (the last of %d such lines in %.0f s)"
            counted.args = (_message(last), count, secs)
        with of_query("", None):  # the record has the fields of the last one, and is not counted itself
            logging.getLogger(last.name).handle(counted)


# ---- JSON


def iso(secs: float) -> str:
    """Return a time in seconds since the epoch as logs, status and progress show it.

    >>> iso(0.5)
    '1970-01-01T00:00:00.500+00:00'
    """
    return datetime.fromtimestamp(secs, UTC).isoformat(timespec="milliseconds")


_DEPTH_MAX = 8
_ITEMS_MAX = 1000
_BITS_MAX = 1024
"""Of a number that is written as one: Python refuses to write integers of more than 4,300 digits."""

_STANDARD = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"}
"""Attributes of each record of Python's; all others come from ``extra``."""


def set_level(level: str, name: str) -> dict[str, str]:
    """Set the level of a logger of this process; return how it is and was, as the answer to a request."""
    found = logging.getLogger(name)
    was = logging.getLevelName(found.level)
    found.setLevel(level)
    return {"logger": name, "level": logging.getLevelName(found.level), "was": was}


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - arguments that do not fit the template, or can't be shown
        return f"{_shown(record.msg)} (its arguments can't be filled in: {type(error).__name__})"


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON can have it, whatever it is; what it can't is shown as text.

    >>> plain({("a", 1): float("nan"), "at": b"x"})
    {"('a', 1)": 'nan', 'at': 'x'}
    """
    match value:
        case None | bool() | str():
            return value
        case int() if value.bit_length() <= _BITS_MAX:
            return int(value)
        case int():
            return hex(value)
        case float():
            return float(value) if math.isfinite(value) else repr(float(value))
        case bytes() | bytearray():
            return bytes(value).decode("utf-8", "backslashreplace")
        case datetime() | date():
            return value.isoformat()
        case _ if depth >= _DEPTH_MAX:
            return _shown(value)
        case Mapping():
            return {_key(key): plain(part, depth + 1) for key, part in _first(value.items())}
        case list() | tuple() | set() | frozenset():
            return [plain(part, depth + 1) for part in _first(value)]
    return _shown(value)


def _first(parts: Any) -> list[Any]:
    return [part for part, _ in zip(parts, range(_ITEMS_MAX), strict=False)]


def _key(key: Any) -> str:
    return key if isinstance(key, str) else _shown(key)


def _shown(value: Any) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - a log line is no reason to fail
        return f"<{type(value).__name__} that can't be shown: {type(error).__name__}>"


def extra_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return what the caller has given a record as ``extra``, as plain data; what is None is left out."""
    given = [(name, value) for name, value in record.__dict__.items() if name not in _STANDARD]
    return {name: plain(value) for name, value in given if value is not None}


class JsonFormatter(logging.Formatter):
    r"""Formats each log record as one line with a JSON object.

    Its keys are ``time`` (ISO 8601, UTC), ``level``, ``logger``, ``message``, and whatever the record was given as
    ``extra``, under its own name: for records of statefx ``statefx_topology``, ``statefx_txid``, ``statefx_attempt``,
    ``statefx_component`` and ``statefx_task``, as far as they apply. A traceback is ``exception``; what was called with
    ``stack_info`` also has ``stack``. An extra that is called as one of these keys has ``_`` after its name.

    Contract
    --------
    - A record is one line of ASCII, whatever is in it; line breaks are escaped.
    - It is valid JSON: values that JSON does not have (NaN, bytes, sets, objects, keys that are no text) are texts.
    - It never raises: what can't be shown is named as such.

    Raises
    ------
    ConfigError
        `fmt` or `datefmt` is given, as ``logging.config`` does for ``format``: neither would change anything.

    Examples
    --------
    >>> record = logging.LogRecord("statefx", logging.INFO, "", 0, "two\nlines", None, None)
    >>> record.created = 0.0
    >>> record.statefx_txid = 7
    >>> JsonFormatter().format(record)
    '{"time": "1970-01-01T00:00:00.000+00:00", "level": "INFO", "logger": "statefx", "message": "two\\nlines", "statefx_txid": 7}'
    """  # noqa: E501 - a line that is shown as it is

    def __init__(self, fmt: str | None = None, datefmt: str | None = None, style: Literal["%", "{", "$"] = "%") -> None:
        if fmt or datefmt:  # as `logging.config` gives them
            raise ConfigError(
                f"JsonFormatter writes all that a record has, in one form: {fmt or datefmt!r} would change nothing. "
                "Leave format and datefmt out"
            )
        super().__init__(style=style)

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line of JSON, without a line break at its end."""
        found: dict[str, Any] = {
            "time": iso(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
        }
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        own = {"exception": record.exc_text, "stack": record.stack_info}
        for name, value in extra_of(record).items():
            found[f"{name}_" if name in found or name in own else name] = value
        found |= {name: text for name, text in own.items() if text}
        return json.dumps(found, allow_nan=False)
