"""The observation document of a running topology: what its driver knows of it, as plain data for people.

::

    Progress  --Outcome-->  History  ---+
    the plan, the log, the engine  -----+-->  Observer.document()  -->  query.observation(), the page
                                        |
                                        +-->  Observer's thread  -->  observed.json beside the log

The driver's thread only adds to `History`. Documents are made and written on other threads, which may take any time.
"""

from __future__ import annotations

import logging
import platform
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import nlargest
from importlib.metadata import version
from statistics import median
from typing import Any

from statefx.config import SETTINGS
from statefx.coordinator.attempt import Attempt
from statefx.coordinator.backlogs import Backlogs
from statefx.coordinator.launch import Launch
from statefx.coordinator.measuring import WINDOW_SECS, Flow
from statefx.coordinator.progress import Outcome, Progress
from statefx.errors import FencedError
from statefx.log.beside import committed_metadata
from statefx.log.log import TransactionLog, Writing
from statefx.log.observation import (
    FORMAT,
    SIGN_OF_LIFE_SECS,
    TRANSACTIONS,
    Document,
    decided_sentence,
    health,
    last_committed,
    process,
    secs_of,
    transaction_entry,
    write_observation,
)
from statefx.logs import iso
from statefx.plan.levels import name_shown
from statefx.protocol.identity import TaskId
from statefx.protocol.log_state import LogState
from statefx.protocol.watermark import FINISHED
from statefx.state.view.time_index import time_of
from statefx.storage import FolderStorage, is_remote
from statefx.topology.graph import INTERNAL, Edge, Topology, graph_of

logger = logging.getLogger("statefx")

WRITE_SECS = 5.0
"""How often the document is replaced, at most."""

CORE_SHARE = 0.01
"""How much of a core documents may cost: those of thousands of tasks are written less often."""

END_SECS = 5.0
"""How long the end of a query waits for its last document."""

TASKS_SHOWN, TASKS_KEPT = 64, 1000
"""How many tasks of a transaction are told, those that took longest; and how many acks are kept for that in all."""

EXCEPTIONS, RECENT = 20, 20

HANGS_SECS = 10.0
"""A write of the log that takes longer hangs: a slow disk takes a tenth of a second."""

SLOW_SECS, SLOW_TIMES = 60.0, 20
"""A transaction counts as stuck after so long, and so many times what the last ones took."""


class History:
    """The last transactions of a driver; `note` is called by its thread, all else by others."""

    def __init__(self, log: LogState) -> None:
        self.lock = threading.Lock()
        past = [transaction_entry(each, log.state_of(each)) for each in log.history.past[-TRANSACTIONS:]]
        self.transactions: deque[dict[str, Any]] = deque(past, TRANSACTIONS)
        self.call_ms: dict[str, float] = {}
        """By sink, how long its last commit ran on the driver."""
        self.has_committed = False
        """Whether this driver has committed one."""
        self.tasks: deque[_Tasks] = deque()
        """Those of the last transactions, which have `TASKS_KEPT` acks at most, or are one."""
        self._acks = 0

    def note(self, outcome: Outcome) -> None:
        attempt = outcome.attempt
        entry = _entry(attempt) | {
            "outcome": "rolled back" if outcome.done is None else "committed",
            "began": iso(attempt.began),
            "ended": iso(outcome.ended),
            "reason": outcome.reason,
        }
        with self.lock:
            self.transactions.append(entry)
            if outcome.done is not None:
                self.has_committed = True
                self._keep(attempt)
                self.call_ms |= {name: round(secs * 1000, 3) for name, secs in outcome.call_secs.items()}

    def _keep(self, attempt: Attempt) -> None:
        self.tasks.append(_Tasks(attempt))
        self._acks += len(attempt.acked)
        while len(self.tasks) > TRANSACTIONS or (self._acks > TASKS_KEPT and len(self.tasks) > 1):
            self._acks -= len(self.tasks.popleft().attempt.acked)


class _Tasks:
    """When the tasks of a transaction worked, worked out when a document is made, and once."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt

    @cached_property
    def entry(self) -> dict[str, Any] | None:
        return _tasks_of(self.attempt)


def _entry(attempt: Attempt) -> dict[str, Any]:
    """Return what an entry of ``transactions`` has of any attempt."""
    return {
        "txid": attempt.name.txid,
        "attempt": attempt.name.attempt,
        "durationMs": {name: round(secs * 1000, 3) for name, secs in list(attempt.secs.items())},
        "rows": attempt.input_rows,
    }


@dataclass
class Observer:
    """Makes the document of one driver, and writes it beside the log.

    `status` returns ``query.status``.
    """

    launch: Launch
    log: TransactionLog
    progress: Progress
    status: Callable[[], dict[str, Any]] = dict
    versions: Mapping[str, str] = field(default_factory=dict)
    """Those of other packages, for ``driver``."""
    write_secs: float = WRITE_SECS
    first_secs: float = 0.0
    """How long after `start` the first one is written."""
    now: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._began = self.now()
        state = self.log.state
        self._generation, self._lineage = state.generation, state.lineage
        self.history = History(state)
        self.progress.watchers.append(self.history.note)
        self._driver = process() | {"python": platform.python_version(), "statefx": version("statefx"), **self.versions}
        self._graph = graph_of(self.launch.topology, self.launch.settings.state_provider)
        self._config = _config(self.launch)
        self._moved: dict[str, dict[str, tuple[int, float]]] = {}
        """By source and unit of event time, of those that the log has: how far it is, and since when."""
        self._since: tuple[str, str] = ("starting", iso(self._began))
        self._error: BaseException | None = None
        self._how = ""
        self._ended: float | None = None
        self._ending = threading.Event()
        self._is_behind = False
        topology, storage = self.launch.topology, self.launch.folders.storage
        self._backlogs = Backlogs(
            {name: topology.component(name).operator for name in shown(topology) if not topology.inputs(name)},
            self.progress.measures,
            lambda name: {int(each): read for each, read in committed_metadata(storage, self.log.state, name).items()},
        )
        self._thread = threading.Thread(target=self._keep_written, name="statefx-observer", daemon=True)

    # ---- the document

    def document(self) -> Document:
        """Return the document as of now; any thread may call it."""
        now, state, status = self.now(), self.log.state, self.status()
        if self._ended is not None:
            status["isActive"] = False
        with self.history.lock:
            transactions = [dict(each) for each in self.history.transactions]
            call_ms, worked = dict(self.history.call_ms), list(self.history.tasks)
        running = self.progress.running()
        transactions += [self._running_entry(attempt, now) for attempt in running]
        measures = self.progress.measures
        flow = measures.flow()
        return {
            "format": FORMAT,
            "generation": self._generation,
            "topology": self.launch.topology.name,
            "lineage": self._lineage,
            "driver": self._driver,
            "checkpoint": self.launch.folders.location,
            "startedAt": iso(self._began),
            "writtenAt": iso(now),
            "endedAt": None if self._ended is None else iso(self._ended),
            "error": None if self._error is None else f"{type(self._error).__name__}: {self._error}",
            "status": status,
            "health": self._health(status, state, running, transactions, now),
            "graph": self._graph,
            "ratesOverSecs": round(flow.secs, 3),
            "components": self._components(state, flow, now),
            "edges": [
                {
                    **_ends(edge),
                    "rowsPerSec": round(flow.edges_per_sec.get(edge.id, 0.0), 1),
                    "rows": flow.sent.get(edge.id, 0),
                }
                for edge in shown_edges(self.launch.topology)
            ],
            "sources": self._sources(state, flow, now),
            "sinks": _sinks(status, call_ms),
            "transactions": transactions[-TRANSACTIONS:],
            "tasksOf": [one.entry for one in worked if one.entry is not None],
            "exceptions": self.progress.exceptions,
            "recent": self.progress.recent()[-RECENT:],
            "metrics": measures.registry.as_dicts(),
            "config": self._config,
        }

    def _running_entry(self, attempt: Attempt, now: float) -> dict[str, Any]:
        return _entry(attempt) | {
            "outcome": "running",
            "began": iso(attempt.began or now),
            "ended": None,
            "phase": attempt.phase,
            "reason": "",
            "waitsFor": [str(task) for task in sorted(attempt.waiting)[:3]],
        }

    def _components(self, state: LogState, flow: Flow, now: float) -> dict[str, Any]:
        last, stored = self.progress.last, state.stored_bytes()
        registry, rates = self.progress.measures.registry, flow.edges_per_sec
        calls = self.progress.measures.calls()
        activity = registry.activity(WINDOW_SECS)
        topology, found = self.launch.topology, {}
        for name in shown(topology):
            into = [edge.id for edge in topology.inputs(name)]
            watermark = None if last is None else last.watermarks.get(name)
            own = activity.get(name, {})
            one: dict[str, Any] = {
                "activity": _mean(list(own.values())),
                "rowsIn": sum(flow.sent.get(edge, 0) for edge in into),
                "rowsInPerSec": round(sum(rates.get(edge, 0.0) for edge in into), 1),
                "rowsOut": int(_out(topology, name, flow.sent)),
                "rowsOutPerSec": round(_out(topology, name, rates), 1),
                "late": registry.value("statefx_rows_late", name),
                "setAside": registry.value("statefx_rows_set_aside", name),
                "calls": calls.get(name),
                "stateKeys": None if last is None else last.found_keys.get(name),
                "stateBytes": stored.get(name),
                "watermark": None if watermark is None else time_of(watermark).isoformat(),
                "freshnessSecs": None if watermark is None else round(now - watermark / 1e6, 3),
                "tasks": [],
            }
            for number in range(topology.component(name).parallelism or len(own)):
                task = TaskId(name, number)
                rows_in, rows_out = flow.tasks.get(task, (0, 0))
                amounts = {what: round(each, 1) for what, each in flow.tasks_per_sec.get(task, {}).items()}
                of_task = {"task": number, "activity": own.get(number), "rowsIn": rows_in, "rowsOut": rows_out}
                one["tasks"].append({**of_task, "rowsInPerSec": amounts.pop("rows", 0.0), "msPerSec": amounts})
            found[name] = one
        return found

    def _sources(self, state: LogState, flow: Flow, now: float) -> dict[str, Any]:
        last, topology, found = self.progress.last, self.launch.topology, {}
        lags, held = self.progress.measures.lags(), self.progress.measures.holder()
        for name in shown(topology):
            component = topology.component(name)
            if topology.inputs(name):
                continue
            said = None if last is None else last.sources.get(name)
            # What a spout says is its own affair, except for the figures that readers count with.
            one: dict[str, Any] = dict(said) if isinstance(said, Mapping) else {"said": said}
            one = {what: each for what, each in one.items() if what not in _FIGURES}
            one |= {"rateOut": round(_out(topology, name, flow.edges_per_sec), 1)}
            if name in lags:
                one |= {what: each for what, each in lags[name].items() if what != "rateOut"}
            if component.timings:
                idle_ms = min((each.idle_ms for each in component.timings.values() if each.idle_ms), default=None)
                one["eventTime"] = {"idleAfterSecs": None if idle_ms is None else idle_ms / 1000}
                one["eventTime"] |= self._event_time(state, name, held, now)
            found[name] = one
        return found

    def _event_time(self, state: LogState, name: str, held: tuple[str, int] | None, now: float) -> dict[str, Any]:
        """Return how far a source's event time is, and if one unit holds it back, which, how far, and since when."""
        units = {unit: known for unit, known in state.unit_times.items() if unit.partition("/")[0] == name}
        before = self._moved.get(name, {})
        moved = self._moved[name] = {
            unit: before[unit]
            if unit in before and before[unit][0] == known.time_us
            else (known.time_us, known.at_ms / 1000 if known.at_ms else now)
            for unit, known in units.items()
        }
        if not units:
            return {}
        newest = max(known.time_us for known in units.values())
        found: dict[str, Any] = {"newest": time_of(newest).isoformat()}
        if held is None or held[0].partition("/")[0] != name:
            return found
        slowest, since = units.get(held[0]), moved.get(held[0], (0, self._began))[1]
        return found | {
            "heldBackBy": re.sub(f"^{FINISHED}(?=/|$)", "finished partitions", held[0].partition("/")[2]),
            "time": None if slowest is None else time_of(slowest.time_us).isoformat(),
            "behindSecs": None if slowest is None else round((newest - slowest.time_us) / 1e6, 3),
            "silentSecs": round(max(0.0, now - since), 1),
        }

    # ---- in one sentence

    def health(self) -> dict[str, Any]:
        """Return how the query is now, as in the document."""
        return dict(self.document()["health"])

    def _health(
        self,
        status: Mapping[str, Any],
        state: LogState,
        running: Sequence[Attempt],
        transactions: Sequence[Mapping[str, Any]],
        now: float,
    ) -> dict[str, Any]:
        said = health_of(
            status,
            began=self._began,
            ended=self._ended,
            error=self._error,
            how=self._how,
            decided=[entry.txid for entry in state.in_flight if entry.committing is not None],
            attempts_max=self.launch.settings.transaction_attempts_max,
            last=state.committed,
            committed=self.history.has_committed,
            running=running,
            transactions=transactions,
            now=now,
            writing=self.log.writing,
            where=self.log.where,
        )
        if said["since"] is None:
            if self._since[0] != said["state"]:
                self._since = said["state"], iso(now)
            said["since"] = self._since[1]
        else:
            self._since = said["state"], said["since"]
        return said

    # ---- writing

    def start(self) -> None:
        self._thread.start()
        self._backlogs.start()

    def end(self, error: BaseException | None, how: str, *, waits: bool = True) -> None:
        """Write the last document, and wait for that, but not for long.

        `error` has ended the query; without one, `how` says in words what did, such as "It was stopped by SIGTERM".
        With `waits=False` it takes no lock, and the document is written when the next one is due.
        """
        self._error, self._how, self._ended = error, how, self.now()
        self._backlogs.end()
        if waits:
            self._ending.set()
            if self._thread.is_alive():
                self._thread.join(END_SECS)

    def _keep_written(self) -> None:
        location = self.launch.folders.location
        remote = is_remote(location)
        # Nobody needs it after a power cut: a sync would wait for the disk, and make transactions wait for it.
        storage = self.launch.folders.storage if remote else FolderStorage(location, durable=False)
        written, pause, last = -SIGN_OF_LIFE_SECS, self.write_secs, None
        if self.first_secs:
            self._ending.wait(self.first_secs)
        while True:
            is_last, processor = self._ended is not None, time.thread_time()
            try:
                if is_last and isinstance(self._error, FencedError):
                    return
                hanging = hangs(self.log.writing, self.now())
                seen = (self.progress.last, self.status(), len(self.progress.exceptions), hanging)
                if is_last or seen != last or time.monotonic() - written >= SIGN_OF_LIFE_SECS:
                    if not write_observation(storage, self.document()):
                        return
                    written, last = time.monotonic(), seen
                # Readers take a driver that is silent for longer than `STALE_SECS` for dead.
                pause = max(self.write_secs, min((time.thread_time() - processor) / CORE_SHARE, SIGN_OF_LIFE_SECS))
                self._is_behind = False
            except Exception as error:  # noqa: BLE001 - a store's client raises what it likes
                if not self._is_behind:
                    name = self.launch.topology.name
                    logger.warning(
                        "%s: what the driver does could not be written beside the log, and is tried again; "
                        "transactions don't wait for it: %s: %s", name, type(error).__name__, error,
                    )  # fmt: skip
                self._is_behind, pause = True, min(2 * pause, SIGN_OF_LIFE_SECS)
            if is_last:
                return
            self._ending.wait(pause)


# ---- parts of the document

_FIGURES = ("lagRecords", "lagSecs", "rateIn", "rateOut", "etaSecs", "eventTime")
"""Of a source, what the driver says itself."""


def shown(topology: Topology) -> list[str]:
    """Return the components that a user knows."""
    return [one.id for one in topology.components if not one.id.startswith(INTERNAL)]


def shown_edges(topology: Topology) -> list[Edge]:
    """Return the edges between them; statefx may have put a bolt of its own in between."""
    known = set(shown(topology))
    return [edge for edge in topology.edges if edge.target in known and name_shown(edge.source) in known]


def _ends(edge: Edge) -> dict[str, str]:
    return {"from": name_shown(edge.source), "to": edge.target, "stream": edge.stream}


def _out(topology: Topology, name: str, edges: Mapping[Any, float]) -> float:
    """Add up what leaves a component, each stream once, however many read it."""
    streams: dict[str, float] = {}
    for edge in topology.outputs(name):
        streams[edge.stream] = max(streams.get(edge.stream, 0), edges.get(edge.id, 0))
    return sum(streams.values())


def _tasks_of(attempt: Attempt) -> dict[str, Any] | None:
    """Return when the tasks that took longest in a transaction ended, and how long each worked before, in its steps.

    A task also waits between its steps: they stand in one piece before its end.
    """
    if attempt.complete is None or not attempt.acked:
        return None
    spent = {task: sum(ack.metrics.values()) for task, ack in attempt.complete.acks.items() if task in attempt.acked}
    known = [task for task in spent if not task.component.startswith(INTERNAL)]
    if not known:
        return None
    zero = min(attempt.acked[task] * 1000 - spent[task] for task in known)
    tasks = []
    for task in nlargest(TASKS_SHOWN, known, key=spent.__getitem__):
        ended = attempt.acked[task] * 1000 - zero
        at, steps = ended - spent[task], []
        for name, ms in attempt.complete.acks[task].metrics.items():
            if ms > 0:
                steps.append([name, round(at, 3), round(at + ms, 3)])
            at += ms
        times = {"beganMs": round(ended - spent[task], 3), "endedMs": round(ended, 3), "phases": steps}
        tasks.append({"component": task.component, "task": task.task, **times})
    return {"txid": attempt.name.txid, "attempt": attempt.name.attempt, "count": len(known), "tasks": tasks}


def _mean(tasks: Sequence[Mapping[str, float]]) -> dict[str, float] | None:
    if not tasks:
        return None
    return {name: round(sum(task.get(name, 0.0) for task in tasks) / len(tasks), 4) for name in tasks[0]}


def _sinks(status: Mapping[str, Any], call_ms: Mapping[str, float]) -> dict[str, Any]:
    found = {}
    for name, said in status.get("sinks", {}).items():
        stuck = said.get("stuck") or {}
        found[name] = {
            "txid": said.get("txid"),
            "rows": said.get("rows"),
            "bytes": said.get("bytes"),
            "commitMs": call_ms.get(name),
            "stuckSince": stuck.get("since"),
            "why": stuck.get("reason"),
        }
    return found


_SECRET = re.compile(
    r"pass|pwd|secret|token|credential|private|auth|jaas|signature|salt|cookie|dsn|connection.?string|certificate|\.pem"
    r"|(?:api|access|account|shared|encryption|signing|master|storage|service)[^a-z]*key",
    re.IGNORECASE,
)
_SAYS_SECRET = re.compile(
    r"(?:pass(?:word|phrase)?|pwd|secret|token|credential|key|sig(?:nature)?)[\"']?\s*[=:]|-----BEGIN|^(?:bearer|basic)\s",
    re.IGNORECASE,
)
"""A text that has a secret in it, whatever it is called: options in one text, the query of a URL, a header."""
_USERINFO = re.compile(r"(?<=://)\S+(?=@)")  # up to the last one: passwords may have them
MASKED = "***"


def _config(launch: Launch) -> dict[str, Any]:
    """Return the settings that are not the default ones, without secrets."""
    defaults = {setting.key: setting.default for setting in SETTINGS}
    defaults["topology.transactional.id"] = launch.topology.name
    found = {
        key: masked(key, value)
        for key, value in launch.settings.mapping().items()
        if key not in defaults or value != defaults[key]
    }
    if "topology.state.provider.config" in found and launch.provider.public_options() is None:
        found["topology.state.provider.config"] = MASKED
    return found


def masked(key: str, value: Any) -> Any:
    """Return a setting's value for people: without what its name tells to be a secret, and without users in URLs.

    >>> masked("feed.password", "x"), masked("feed", {"url": "redis://me:x@db/0"})
    ('***', {'url': 'redis://***@db/0'})
    """
    if _SECRET.search(key):
        return MASKED
    if isinstance(value, Mapping):
        return {_USERINFO.sub(MASKED, str(name)): masked(str(name), each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [masked("", each) for each in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    text = str(value)
    return MASKED if _SAYS_SECRET.search(text) else _USERINFO.sub(MASKED, text)


_AGAIN = "It goes on by itself when that is repaired; the commit is decided, and nothing of it is lost."
_REMEDIES = {
    "COMMITTING": _AGAIN,
    "ROLLING_BACK": "It is tried again. When it has failed too often the query ends; the next start goes on with it.",
    "PLANNING": "Look at the source that the reason names: nothing is read until it answers.",
}


def health_of(
    status: Mapping[str, Any],
    *,
    began: float,
    ended: float | None,
    error: BaseException | None,
    committed: bool,
    running: Sequence[Attempt],
    transactions: Sequence[Mapping[str, Any]],
    now: float,
    last: int = 0,
    how: str = "",
    decided: Sequence[int] = (),
    attempts_max: int = 0,
    writing: Writing | None = None,
    where: str = "",
) -> dict[str, Any]:
    """Return in one sentence how a query is; a ``since`` of None is that of the first time it is so.

    `committed` tells whether this driver has committed anything, `last` is the last transaction that any driver has;
    `how` says what has ended it, and `decided` are those in flight that can't be rolled back. `writing` is what has not
    returned of writing the log, which is at `where`.
    """
    done = [each for each in transactions if each["outcome"] == "committed"]
    last_one = last_committed(last)
    if ended is not None:
        return _ended(status, ended, error, how, decided, attempts_max, last_one)
    if writing is not None and hangs(writing, now):
        return _hanging(writing, where, last_one, now)
    if stuck := status.get("stuck"):
        txid, phase = stuck.get("txid"), str(stuck.get("phase"))
        sentence = f"Stuck in {phase} of transaction {txid} since {stuck.get('since')}: {stuck.get('reason')}"
        return health("stuck", stuck.get("since"), sentence, _REMEDIES.get(phase, _AGAIN))
    if secs := status.get("waitsForSlotsSecs"):
        sentence = f"The topology waits for slots since {secs:.0f} s: all its tasks run at the same time."
        remedy = "End other jobs of this session, or give it more slots (master='local[n]', or more executors)."
        return health("stuck", iso(now - secs), sentence, remedy)
    if failed := status.get("failed"):
        return health("failing", failed["since"], *_failing(failed, attempts_max))
    if tasks := status.get("restoring"):
        return health("starting", None, f"State of {tasks} is being restored.", "Wait; transactions go on after it.")
    if running:
        secs = now - running[0].began
        usual = _usual_secs(done)
        if secs > max(SLOW_SECS, SLOW_TIMES * usual) and running[0].began:
            waits = ", ".join(str(task) for task in sorted(running[0].waiting)[:3])
            sentence = (
                f"Transaction {running[0].name.txid} has run for {secs:.0f} s, the last ones took {usual:.1f} s"
                + (f"; it waits for {waits}." if waits else ".")
            )
            remedy = "Look at what these tasks do; topology.transaction.timeout.secs rolls it back."
            return health("stuck", iso(running[0].began), sentence, remedy)
    if not running and (paused := status.get("paused")):
        sentence = f"The query is paused since {paused.get('since')}, and begins nothing: {last_one}."
        return health("idle", paused.get("since"), sentence, "Go on with query.resume(), or statefx resume.")
    if not committed and "run" in status and status["run"] is None:  # a client has no run
        return health("starting", iso(began), "The query is starting: Spark has not started all of its tasks yet.")
    return _well(done, last_one, now, is_running=bool(running))


def hangs(writing: Writing | None, now: float) -> bool:
    """Return whether a write of the log takes too long."""
    return writing is not None and now - writing.since > HANGS_SECS


def _hanging(writing: Writing, where: str, last: str, now: float) -> dict[str, Any]:
    """Return the health of a query whose log can't be written, for which all else waits."""
    since = iso(writing.since)
    sentence = (
        f"Writing {writing.kind} to the log at {where} hangs since {since} ({now - writing.since:.0f} s), and nothing "
        f"is committed before it returns: {last}."
    )
    what = "Look at that store and at the network to it" if is_remote(where) else "Look at the disk or mount of it"
    remedy = (
        f"{what}: is it there, full, or stalled? The query goes on by itself when the write returns. If it never does, "
        "end the process and submit the topology again: the start reads from the log whether the record is there."
    )
    return health("stuck", since, sentence, remedy)


def _ended(
    status: Mapping[str, Any],
    ended: float,
    error: BaseException | None,
    how: str,
    decided: Sequence[int],
    attempts_max: int,
    last: str,
) -> dict[str, Any]:
    """Return the health of a query that has ended, by what, and what it has left undone."""
    undone = f" {decided_sentence(decided[0])}" if decided else ""
    if error is not None:
        remedy = "Fix the cause and submit again: it goes on after the last committed transaction."
        sentence = f"The query was ended by {type(error).__name__}: {_line(error)}"
        return health("failed", iso(ended), f"{sentence.rstrip('.')}.{undone}" if undone else sentence, remedy)
    how = f"{how or 'It ended'} at {iso(ended)[:19].replace('T', ' ')} UTC"
    if decided:  # nobody may take it for a clean end: its rows are missing in a sink
        stuck = status.get("stuck") or {}
        why = f": {stuck['reason'].rstrip('.')}" if stuck.get("reason") else ""
        sentence = f"{how} while transaction {decided[0]} was decided and not published{why}; {last}."
        remedy = (
            "Submit the topology again: the start publishes it first. Until then its rows are missing in its sinks."
        )
        return health("failed", iso(ended), sentence, remedy)
    if failed := status.get("failed"):
        sentence, _ = _failing(failed, attempts_max)
        sentence = f"{how} while a transaction failed. {sentence.rstrip('.')}; {last}."
        return health("ended", iso(ended), sentence, "Fix the cause: the next start tries that transaction first.")
    return health("ended", iso(ended), f"{how}: {last}.")


def _failing(failed: Mapping[str, Any], attempts_max: int) -> tuple[str, str]:
    """Return the sentence of a transaction that is tried again, and what to do."""
    txid, tries, reason = failed["txid"], failed.get("tries") or 1, " ".join(str(failed["reason"]).split())
    kind, place = failed.get("type"), failed.get("place")
    of = f" of {attempts_max}" if attempts_max else ""
    again = "fails again and again" if tries > 1 else "failed"
    raised = f"{kind} in " if kind and kind not in reason else ""
    at = f" ({place})" if place and place not in reason else ""
    sentence = f"Transaction {txid} {again} since {failed['since']}: attempt {tries}{of} failed: {raised}{reason}{at}"
    first = (
        "Fix what raises it. Where a row is to blame, raise another exception, which setBolt(..., onError=) sets aside."
        if kind
        else "Look at the reason, and at the machine of the task that it names."
    )
    last = f"After attempt {attempts_max} the query ends (topology.transaction.attempts.max)." if of else ""
    return sentence, f"{first} Nothing after this transaction is committed before it is. {last}".rstrip()


def _well(done: Sequence[Mapping[str, Any]], last: str, now: float, *, is_running: bool) -> dict[str, Any]:
    at = secs_of(done[-1]["ended"]) if done else None
    if not is_running and (at is None or now - at > WINDOW_SECS):
        return health("idle", None if at is None else iso(at), f"There is nothing to do: {last}.")
    if at is None:
        return health("healthy", None, f"It runs, and its first transaction has not ended: {last}.")
    rate = f"{_rows_per_sec(done, now):,.0f} rows a second"
    return health("healthy", None, f"Transactions are committed, {rate}: {last}.")


def _rows_per_sec(done: Sequence[Mapping[str, Any]], now: float) -> float:
    """Return the rows of the transactions that have ended in the last seconds, by the time since they began."""
    recent = [each for each in done if (secs_of(each["ended"]) or 0.0) >= now - WINDOW_SECS]
    began = [at for each in recent if (at := secs_of(each["began"])) is not None]
    return sum(each.get("rows") or 0 for each in recent) / max(now - min(began), 0.001) if began else 0.0


def _usual_secs(done: Sequence[Mapping[str, Any]]) -> float:
    spans = [(secs_of(each["began"]), secs_of(each["ended"])) for each in done]
    return median([b - a for a, b in spans if a is not None and b is not None] or [0.0])


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
