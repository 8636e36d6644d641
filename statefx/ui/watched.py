"""One topology as its pages see it: its newest observation, in sections, made once for all pages that are open.

What it costs the driver has a limit, not a rate: an observation that took long to make is not made again for longer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from statefx.checkpoint import Checkpoint
from statefx.logs import iso
from statefx.metrics.registry import Measured
from statefx.topology.drawing import BOLD, NAME_SIZE, TEXT_SIZE, below_name, fitted, layout, paths, shown
from statefx.why import why

logger = logging.getLogger("statefx")

LIVE_SECS = 1.0
"""How old an observation of this process's own query may be."""

FAR_SECS = 2.0
"""The same of a checkpoint that is read: the driver writes what it sees every 5 seconds at most."""

SHARE = 0.004
"""How much of a core the observations of a topology may take, however large it is."""

DIAGNOSES = 5
"""How many things that bound a topology are told."""

WHY_SECS = 10.0
"""How long what bounds it stands: it is about the last ten seconds, and looks at every task."""

_UNSENT = ("metrics", "recent")
"""Sections that no panel shows."""

_LONGEST_SECS = 60.0

_LOGGED_SECS = 300.0

_encode = msgspec.json.Encoder(enc_hook=str).encode
"""NaN and infinity, which JSON has not, become null."""


def encoded(value: Any) -> bytes:
    """Return data as JSON, whatever texts and numbers are in it.

    A partition may be named after a file, and an error quote a row, with half a surrogate pair.
    """
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(_escaped(value))


def _escaped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_escaped(str(name)): _escaped(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(each) for each in value]
    if value is None or isinstance(value, int | float):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class Snapshot:
    """An observation, by section: the keys of the document."""

    number: int
    document: Mapping[str, Any]
    """As it was given, with all tasks."""
    sections: Mapping[str, tuple[int, bytes]]
    """Key -> the number of the snapshot in which it changed last, and its JSON."""

    def changed(self, since: int) -> bytes:
        """Return as a JSON object the sections that changed after the snapshot `since`; 0: all of them."""
        found = (b"%b:%b" % (_encode(key), text) for key, (number, text) in self.sections.items() if number > since)
        return b"{" + b",".join(found) + b"}"


class Watched:
    """A topology that pages show.

    Parameters
    ----------
    name : str
        In addresses; no other topology of the server has it.
    checkpoint : Checkpoint
    observe : callable
        Returns the observation document. May raise: the page says so, and goes on with the last one.
    least_secs : float
        How long an observation is shown at least.
    measured : Measured, optional
        Has its metrics.
    clock, now, spent : callable
        Seconds, seconds since the epoch, and seconds of the processor that this thread has used.
    """

    def __init__(
        self,
        name: str,
        checkpoint: Checkpoint,
        observe: Callable[[], Mapping[str, Any]],
        least_secs: float = LIVE_SECS,
        measured: Measured | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self.name, self.checkpoint, self.measured = name, checkpoint, measured
        self._observe, self._least, self._clock, self._now, self._spent = (
            observe, least_secs, clock, now, spent,
        )  # fmt: skip
        self._lock = threading.Lock()
        self._due = self._logged = float("-inf")
        self._newest = Snapshot(0, {}, {})
        self._laid_out: tuple[Any, Any] = None, None
        self._kept: dict[tuple[str, ...], tuple[float, Any]] = {}

    @property
    def newest(self) -> Snapshot | None:
        """The last one while it is new enough; None: call `snapshot`, which takes time."""
        return self._newest if self._clock() < self._due else None

    def snapshot(self, *, anew: bool = False) -> Snapshot:
        """Return the newest observation; with `anew` one that is made now. Any thread may call it."""
        with self._lock:
            if self._clock() >= self._due or anew:
                before = self._spent()
                self._newest = self._made()
                cost = self._spent() - before
                self._due = self._clock() + max(self._least, min(cost / SHARE, _LONGEST_SECS))
            return self._newest

    def _made(self) -> Snapshot:
        try:
            document = dict(self._observe())
            document |= {"unread": None, "servedAt": iso(self._now())}
        except Exception as error:  # noqa: BLE001 - whatever it is, what the page showed stands, and it says so
            if self._clock() - self._logged > _LOGGED_SECS:
                self._logged = self._clock()
                logger.warning("the page of %s: it can't be observed: %s: %s", self.name, type(error).__name__, error)
            document = {**self._newest.document, "unread": f"{type(error).__name__}: {error}"}
        document |= {
            "layout": self._layout(document.get("graph")),
            "why": self.lately(("why",), WHY_SECS, lambda: self._why(document)),
        }
        number, sections = self._newest.number + 1, {}
        for key, value in summary(document).items():
            text, before = encoded(value), self._newest.sections.get(key)
            sections[key] = before if before is not None and before[1] == text else (number, text)
        return Snapshot(number, document, sections)

    def _why(self, document: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return what bounds the topology, in sentences."""
        try:
            return why(document).as_dict()["diagnoses"][:DIAGNOSES]  # type: ignore[no-any-return]
        except Exception:
            logger.debug("the page of %s: nothing can be said of its figures", self.name, exc_info=True)
            return []

    def _layout(self, graph: Any) -> Any:
        """Return where the components stand; only another graph is laid out again."""
        if graph != self._laid_out[0]:
            try:
                self._laid_out = graph, placed(graph)
            except Exception as error:  # noqa: BLE001 - all else is shown without a picture
                self._laid_out = graph, None
                logger.warning("the page of %s: the graph can't be drawn: %r", self.name, error)
        return self._laid_out[1]

    def lately(self, key: tuple[str, ...], secs: float, look: Callable[[], Any]) -> Any:
        """Return what `look` returns, or what it returned at most `secs` ago for the same key."""
        kept = self._kept.get(key)
        if kept is None or self._clock() - kept[0] > secs:
            kept = self._clock(), look()
            self._kept[key] = kept
        return kept[1]

    @property
    def health(self) -> str:
        """The state of its health, as in the document."""
        health = self.snapshot().document.get("health")
        state = health.get("state") if isinstance(health, Mapping) else None
        return str(state or "unknown")


SKEW_ROWS = 10
"""Rows for each task, from which on it is no chance which of them has more."""


def summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what pages are sent of an observation: not the tasks of its components and transactions.

    They ask for those of a few, and are sent those of the last transaction.

    In their place stands ``skew``: the largest of the rows that tasks have had over their mean, if there were enough
    of them to tell anything.
    """
    found = {key: value for key, value in document.items() if key not in _UNSENT}
    components = document.get("components")
    if isinstance(components, Mapping):
        found["components"] = {name: _without_tasks(each) for name, each in components.items()}
    if worked := document.get("tasksOf"):
        found["tasksOf"] = worked[-1:]
    return found


def _without_tasks(component: Any) -> Any:
    if not isinstance(component, Mapping):
        return component
    found = {key: value for key, value in component.items() if key != "tasks"}
    tasks = [each for each in component.get("tasks") or () if isinstance(each, Mapping)]
    rows = [each.get("rowsIn") or 0 for each in tasks]
    if len(rows) > 1 and sum(rows) >= SKEW_ROWS * len(rows):
        largest = max(rows)
        task = tasks[rows.index(largest)].get("task")
        found["skew"] = {"ratio": round(largest * len(rows) / sum(rows), 2), "task": task}
    return found


def placed(graph: Any) -> dict[str, Any] | None:
    """Return where the components of a graph stand, in pixels, and how they are drawn; the page adds its figures.

    It is no finished `svg`: each second only figures are sent, and a component keeps the reader's focus meanwhile.
    """
    if not isinstance(graph, Mapping):
        return None
    edges = [{name: one.get(name) for name in ("from", "to", "stream")} for one in graph.get("edges") or ()]
    laid = layout({**graph, "edges": edges}, lines=3)  # without room for groupings: what is chosen tells them
    boxes, courses = paths(graph, laid)
    components = {str(one.get("name")): one for one in graph.get("components") or () if isinstance(one, Mapping)}
    return {
        "width": laid.width,
        "height": laid.height,
        "nodes": [
            {
                **node._asdict(),
                **boxes[node.name]._asdict(),
                "title": fitted(shown(node.name), NAME_SIZE * BOLD, node.w - _ASIDE),
                "below": fitted(below_name(components[node.name]), TEXT_SIZE, node.w - _ASIDE),
            }
            for node in laid.nodes
        ],
        "edges": [
            {"from": route.source, "to": route.target, "stream": route.stream, "end": route.points[-1]}
            | course._asdict()
            for route, course in zip(laid.edges, courses, strict=True)
        ],
    }


_ASIDE = 28.0
"""Of a box's width, what its text leaves free."""
