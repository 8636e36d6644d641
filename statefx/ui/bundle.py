"""The support bundle: all that a page shows in one file to hand on, without values and without secrets.

Free text is the danger: the message of a user's error may quote a row, an option a password. So a text stays only where
it is known to be none: under a key whose texts statefx itself makes, or a name of the topology. Of any other stand the
types of errors and the names in it, and how long it was.
"""

from __future__ import annotations

import io
import json
import logging
import os
import platform
import re
import sys
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from statefx.config import SETTINGS
from statefx.errors import StatefxError
from statefx.ui import archive
from statefx.ui.watched import Watched

LINES = 1_000
"""How many lines of the log are kept for a bundle."""

_PACKAGES = (
    "statefx", "pyspark", "pyarrow", "pandas", "numpy", "msgpack", "msgspec", "starlette", "uvicorn", "rocksdict",
    "redis", "sqlalchemy", "confluent-kafka", "obstore",
)  # fmt: skip

_OURS = frozenset({
    "activity", "checkpoint", "codec", "component", "from", "grouping", "hook", "host", "kind", "lineage", "name",
    "operator", "outcome", "phase", "provider", "pyspark", "python", "record", "run", "spout", "state", "statefx",
    "stream", "to", "topology", "type", "unit",
})  # fmt: skip
"""Keys whose texts statefx makes: names of things of the topology, kinds, versions."""

_SETTINGS = frozenset(setting.key for setting in SETTINGS)
"""Those that statefx reads. A user may have some of their own that begin with ``topology.`` too."""

_THEIRS = ("sources", "labels")
"""Keys of what spouts say of themselves, and of a user's own labels: no key in it tells what its text is."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,60}")

_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?")
_ERROR = re.compile(r"\b[A-Za-z_][A-Za-z0-9_]*(?:Error|Exception)\b")
_WORD = re.compile(r"[^\s'\"(),;]+")
_FRAME = re.compile(r'\s*File "[^"\n]+", line \d+, in [^\s]+')

_HERE = os.path.dirname(os.path.dirname(__file__))

_README = """What a topology of statefx did, for whoever helps with it. Made {at}.

observation.json    what the driver saw last: health, graph, transactions, sources, sinks, exceptions, metrics
transactions.json   the last attempts of the log
history.json        savepoints, generations, and what has changed the checkpoint
state.json          the stateful bolts
environment.json    versions
log.txt             the driver's last lines, where it was the driver that made this file

No row, key or value of the topology is in it, and no option or secret. Texts that might have quoted one were left out;
of them stand the types of errors and the names of components in them.
"""


class Masked:
    """Takes out of plain data each text that may be a user's."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    def data(self, value: Any, key: str = "") -> Any:
        """Return plain data in which each text was judged by its key."""
        if isinstance(value, Mapping):
            if key == "config":
                return {name: self._setting(name, each) for name, each in value.items()}
            if key in _THEIRS:
                return {name: self._strict(each) for name, each in value.items()}
            return {str(name): self.data(each, str(name)) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(each, key) for each in value]
        if not isinstance(value, str) or key in _OURS or value in self._names or _TIME.fullmatch(value):
            return value
        return frames(value) if key == "traceback" else self.text(value)

    def _strict(self, value: Any) -> Any:
        """Return what a user's own code has said: numbers, and names of the topology."""
        if isinstance(value, Mapping):
            return {self._key(str(name)): self._strict(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._strict(each) for each in value]
        return value if not isinstance(value, str) or value in self._names else self.text(value)

    def _key(self, name: str) -> str:
        return name if _IDENTIFIER.fullmatch(name) else self.text(name)

    def _setting(self, name: str, value: Any) -> Any:
        """Return a setting of statefx's; of options the names and numbers, and of a user's own that it is there."""
        if isinstance(value, Mapping):
            return {option: each if isinstance(each, int | float) else "(left out)" for option, each in value.items()}
        ours = name in _SETTINGS and isinstance(value, str | int | float | None)
        return value if ours else "(left out)"

    def text(self, text: str) -> str:
        """Return what may be said of a text.

        >>> Masked(["count"]).text("bolt 'count': KeyError: 'ann@example.org'")
        '(KeyError count; 41 characters)'
        """
        found = [*_ERROR.findall(text), *(each for each in _WORD.findall(text) if each in self._names)]
        named = f"{' '.join(dict.fromkeys(found))}; " if found else ""
        return f"({named}{len(text)} characters)" if text else ""

    def line(self, record: logging.LogRecord) -> str:
        """Return a line of the log: its pattern, with the numbers and names that were put into it."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return f"{at} {record.levelname} {self._said(record)}"

    def _said(self, record: logging.LogRecord) -> str:
        if not isinstance(record.msg, str) or not record.pathname.startswith(_HERE):
            return self.text(str(record.msg))
        given = record.args if isinstance(record.args, tuple) else ()
        kept = tuple(
            each if isinstance(each, int | float) or str(each) in self._names else self.text(str(each))
            for each in given
        )
        try:
            return record.msg % kept if kept else record.msg
        except (TypeError, ValueError):
            return self.text(record.msg)


def frames(traceback: str) -> str:
    """Return the lines of a traceback that say where, without those of the program's text and the message."""
    return "\n".join(each.strip() for each in traceback.splitlines() if _FRAME.match(each))


class Tail(logging.Handler):
    """Keeps the last lines of a logger, for a bundle."""

    def __init__(self) -> None:
        super().__init__()
        self.records: deque[logging.LogRecord] = deque(maxlen=LINES)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.records.append(record)


def names_of(document: Mapping[str, Any]) -> set[str]:
    """Return the names of a topology: its own, its components', and their streams'."""
    graph = document.get("graph") or {}
    found = {str(document.get("topology"))}
    for each in graph.get("components") or ():
        found |= {str(each.get("name")), str(each.get("operator"))}
    found |= {str(each.get("stream")) for each in graph.get("edges") or ()}
    return found | {str(name) for name in document.get("components") or ()}


def bundle(one: Watched, lines: Iterable[logging.LogRecord] = ()) -> bytes:
    """Return a ZIP file of all that is known of a topology."""
    document = one.snapshot().document
    masked, checkpoint = Masked(names_of(document)), one.checkpoint
    parts: dict[str, Callable[[], Any]] = {
        "observation.json": lambda: document,
        "transactions.json": lambda: archive.attempts(checkpoint),
        "history.json": lambda: archive.history(checkpoint),
        "state.json": lambda: archive.bolts(checkpoint),
    }
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("README.txt", _README.format(at=datetime.now(UTC).isoformat(timespec="seconds")))
        for name, look in parts.items():
            try:
                found = masked.data(look())
            except (StatefxError, OSError) as error:  # what can't be read is what help is needed for
                found = {"unread": masked.text(f"{type(error).__name__}: {error}")}
            file.writestr(name, json.dumps(found, indent=1, default=str))
        file.writestr("environment.json", json.dumps(_environment(), indent=1))
        file.writestr("log.txt", "".join(f"{masked.line(each)}\n" for each in list(lines)))
    return data.getvalue()


def _environment() -> dict[str, Any]:
    found = {"python": sys.version, "system": platform.platform(), "machine": platform.machine()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
