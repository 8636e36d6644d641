"""What bounds a topology's throughput, and what keeps its results late: an observation document, in sentences.

`DIAGNOSES` is the table: each row looks at the figures of the document for one sickness, and weighs it by the share of
the wall clock that it costs. The weightiest comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from statefx.log.observation import OVER, TRANSACTIONS, secs_of

LEAST = 0.2
"""Of the wall clock: what costs less is not worth a sentence."""

BOUNDS = 0.5
"""Share of the wall clock in which a task works, from which it bounds throughput: below it waits most of the time."""

HELD_UP = 0.75
"""The same of a task and those after it in its chain together, of which none may work so much by itself."""

EVIDENCE_SECS = 1.0
"""How much of a task's own code must have been measured before it is said what that waits for."""

SKEWED = 2.0
"""How many times the rows of the mean task the largest one has that is called skewed."""

WAITING = 0.5
"""Share of a task's own code in which it neither runs nor is ready to, from which it waits for something outside."""

COLLECTING = 0.25
"""Share of the garbage collector in a task's own code that is worth a sentence."""

QUEUED = 0.4
"""The same of the time in which it is ready to run and has no processor."""

WINDOW_SECS = 10.0
"""How long before the document was written transactions count."""

READING = 0.3
"""The same of reads of state that the cache did not have."""

SLOW_RECORD_MS = 15.0
"""How long the records of one transaction take on a disk that is not slow, at most."""

BEHIND_SECS = 10.0
"""How far one input must hold event time back behind the others before that is worth a sentence."""


@dataclass(frozen=True)
class Diagnosis:
    """One thing that costs throughput, or keeps results late.

    Attributes
    ----------
    name : str
        That of its row in `DIAGNOSES`.
    weight : float
        Share of the wall clock that it costs, from 0 to 1.
    component, task : str, int, optional
        Where it is.
    sentence : str
        What it is, with the figures.
    remedy : str
        The setting or the change that would help.
    """

    name: str
    weight: float
    sentence: str
    remedy: str
    component: str | None = None
    task: int | None = None

    def __str__(self) -> str:
        return f"{self.sentence}\n   -> {self.remedy}" if self.remedy else self.sentence


@dataclass(frozen=True)
class Why:
    """What `why` has found, the weightiest first; printed, it is a text.

    Attributes
    ----------
    topology : str
    writtenAt : str or None
        When the figures were taken.
    health : Mapping
        As in the document.
    diagnoses : tuple of Diagnosis
        Empty if nothing bounds the topology but its input.
    nothing : str
        What there is to say if so.
    """

    topology: str
    writtenAt: str | None  # noqa: N815 - as in the document
    health: Mapping[str, Any]
    diagnoses: tuple[Diagnosis, ...]
    nothing: str = ""

    @property
    def bounds(self) -> tuple[Diagnosis, ...]:
        """The diagnoses beyond what `health` says itself."""
        return tuple(each for each in self.diagnoses if each.name not in UNWELL)

    def __str__(self) -> str:
        lines = [f"{self.topology}, as of {self.writtenAt}: {self.health.get('sentence', '')}"]
        if self.health.get("remedy"):
            lines.append(f"   -> {self.health['remedy']}")
        lines += [f"{number}. {each}" for number, each in enumerate(self.bounds, 1)]
        return "\n".join([*lines, self.nothing] if self.nothing else lines)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "topology": self.topology,
            "writtenAt": self.writtenAt,
            "health": dict(self.health),
            "diagnoses": [dict(vars(each)) for each in self.diagnoses],
        }


UNWELL = ("slots", "unwell")
"""Diagnoses that are the sentence of ``health``: shown beside it, they would say the same again."""

NOTHING = "Nothing bounds it: its tasks wait for input most of the time."

_NOTHING = {
    "starting": "Nothing is known yet of what bounds it: it has just started.",
    "unknown": "Nothing is known of what bounds it now.",
    "ended": "Nothing bounds it: it has ended.",
}
"""What there is to say instead, by health."""

PAUSED = "Nothing bounds it: it is paused."


def why(document: Mapping[str, Any]) -> Why:
    """Return what an observation document tells of throughput and lateness.

    Parameters
    ----------
    document : Mapping
        Of `Query.observation` or `Checkpoint.observation`. What is missing in it is not looked at.

    Returns
    -------
    Why
        With the diagnoses of `DIAGNOSES` that apply, the weightiest first.
    """
    facts = _Facts(document)
    state = facts.health.get("state")
    # Figures of one that is no more, or waits to go on, are old ones, and change nothing.
    rows = DIAGNOSES[:1] if state in OVER or facts.is_paused else DIAGNOSES
    found = [diagnosis for row in rows for diagnosis in row.find(facts) if diagnosis.weight >= LEAST]
    found.sort(key=lambda each: -each.weight)
    nothing = "" if found else PAUSED if facts.is_paused else _NOTHING.get(str(state), NOTHING)
    return Why(str(document.get("topology") or "?"), document.get("writtenAt"), facts.health, tuple(found), nothing)


# ---- the figures


@dataclass(frozen=True)
class _Task:
    """A task's figures; shares are of the wall clock."""

    component: str
    number: int
    busy: float
    """Its own code, and what its chain does for it."""
    blocked: float
    durable: float
    """Making what it changed durable, and its part of commits."""
    own: float
    """Its own code alone, in committed transactions; what follows is a part of this."""
    is_known: bool
    """Whether that is enough to judge what it does: much of `busy`, and for some time."""
    cpu: float | None
    """On the processor, or None if nothing tells."""
    queued: float
    """Ready to run, while others had all processors."""
    gc: float
    reads: float
    """Reads of state that the cache did not have."""
    throttled: float
    restoring: float
    rows_per_sec: float

    def part(self, share: float) -> float:
        """Return a share of the wall clock as one of its own code; 0 if too little of that is known."""
        return share / self.own if self.is_known else 0.0

    @property
    def outside(self) -> float:
        """The share of its own code in which it waits for something outside, from 0 to 1."""
        return 0.0 if self.cpu is None else max(0.0, self.part(self.own - self.cpu - self.queued))


@dataclass(frozen=True)
class _Facts:
    """The figures of a document, as the rows of the table look at them."""

    document: Mapping[str, Any]

    @cached_property
    def health(self) -> Mapping[str, Any]:
        return self.document.get("health") or {}

    @cached_property
    def status(self) -> Mapping[str, Any]:
        return self.document.get("status") or {}

    @cached_property
    def is_paused(self) -> bool:
        return self.health.get("state") == "idle" and bool(self.status.get("paused"))

    @cached_property
    def components(self) -> Mapping[str, Mapping[str, Any]]:
        graph = self.document.get("graph") or {}
        return {one["name"]: one for one in graph.get("components", ())}

    @cached_property
    def tasks(self) -> Mapping[str, Sequence[_Task]]:
        found = {}
        for name, one in (self.document.get("components") or {}).items():
            found[name] = [_task_of(name, each, self._rates_secs) for each in one.get("tasks", ())]
        return {name: tasks for name, tasks in found.items() if tasks}

    def before(self, name: str) -> list[str]:
        """Return the components whose rows come to one, however far."""
        edges = (self.document.get("graph") or {}).get("edges", ())
        found: list[str] = []
        left = [name]
        while left:
            target = left.pop()
            for edge in edges:
                if edge["to"] == target and edge["from"] not in found:
                    found.append(edge["from"])
                    left.append(edge["from"])
        return found

    def share(self, name: str, activity: str) -> float:
        """Return a component's share of an activity, over its tasks."""
        said = ((self.document.get("components") or {}).get(name) or {}).get("activity") or {}
        return float(said.get(activity, 0.0))

    @cached_property
    def _rates_secs(self) -> float:
        """Over how long rates were taken."""
        return float(self.document.get("ratesOverSecs") or 0.0)

    @cached_property
    def bottleneck(self) -> _Task | None:
        """The task that works most of the wall clock, or None if all wait for most of it."""
        tasks = [task for of in self.tasks.values() for task in of]
        busiest = max(tasks, key=lambda task: task.busy, default=None)
        if busiest is None or busiest.busy < LEAST:
            return None
        held_up = max(task.busy + task.blocked for task in tasks)
        return busiest if busiest.busy >= BOUNDS or held_up >= HELD_UP else None

    @cached_property
    def recent(self) -> Sequence[Mapping[str, Any]]:
        """The committed transactions of this driver that ended in the last seconds, or else the last one."""
        done = [each for each in self.document.get("transactions") or () if each.get("outcome") == "committed"]
        done = [each for each in done if each.get("durationMs")]
        within = [each for each in done if (secs_of(each.get("ended")) or 0.0) >= self._until - WINDOW_SECS]
        return within or done[-1:]

    @cached_property
    def _until(self) -> float:
        return secs_of(self.document.get("writtenAt")) or 0.0

    @cached_property
    def _span_secs(self) -> float:
        """How long the time is in which `recent` ran: all of it, also that between transactions."""
        began = min((at for each in self.recent if (at := secs_of(each.get("began"))) is not None), default=self._until)
        # The document has so many transactions at most, which may be those of less than the whole window.
        known: Sequence[Mapping[str, Any]] = self.document.get("transactions") or ()
        from_ = self._until - WINDOW_SECS
        if len(known) < TRANSACTIONS or (secs_of(known[0].get("ended")) or 0.0) < from_:
            began = min(began, max(from_, secs_of(self.document.get("startedAt")) or 0.0))
        return max(self._until - began, 0.001)

    def phase(self, name: str) -> tuple[float, float]:
        """Return a phase's share of the wall clock, and its milliseconds in a transaction."""
        ms: float = sum(each["durationMs"].get(name, 0.0) for each in self.recent)
        return ms / 1000 / self._span_secs, ms / max(1, len(self.recent))


def _task_of(component: str, said: Mapping[str, Any], rates_secs: float) -> _Task:
    ms, activity = said.get("msPerSec") or {}, said.get("activity") or {}
    share = {what: float(spent) / 1000 for what, spent in ms.items()}
    busy, own = float(activity.get("busy", 0.0)), share.get("own", 0.0)
    # Costs are those of committed transactions, and `busy` is of this moment too: of a driver that has just begun, or
    # whose transactions are long, the two may be of different times.
    return _Task(
        component,
        int(said.get("task", 0)),
        busy=busy,
        blocked=float(activity.get("blocked", 0.0)),
        durable=float(activity.get("committing", 0.0)),
        own=own,
        is_known=own > 0 and own >= busy / 2 and own * rates_secs >= EVIDENCE_SECS,
        cpu=share.get("cpu"),
        queued=share.get("queued", 0.0),
        gc=share.get("gc", 0.0),
        reads=share.get("reads", 0.0),
        throttled=share.get("throttled", 0.0),
        restoring=float(activity.get("restoring", 0.0)),
        rows_per_sec=float(said.get("rowsInPerSec") or 0.0),
    )


def _percent(share: float) -> str:
    return f"{100 * min(share, 1.0):.0f} %"


# ---- the diagnoses


def _unwell(facts: _Facts) -> Iterator[Diagnosis]:
    health = facts.health
    if health.get("state") in ("stuck", "failing", "failed", "dead"):
        waits = health.get("sentence", "").startswith("The topology waits for slots")
        weight = 2.0 if waits else 1.5  # before all else: nothing goes on
        name = "slots" if weight == 2.0 else "unwell"
        yield Diagnosis(name, weight, health.get("sentence", ""), health.get("remedy", ""))


def _bottleneck(facts: _Facts) -> Iterator[Diagnosis]:
    """The task that bounds throughput, and why it takes its time."""
    task = facts.bottleneck
    if task is None:
        return
    name = task.component
    kind = facts.components.get(name, {}).get("kind", "bolt")
    blocked = [each for each in facts.before(name) if facts.share(each, "blocked") >= LEAST]
    waits = f" {_listed(blocked)} for it, with rows that can't leave." if blocked else ""
    bounds = f"{kind} {name!r} bounds throughput: task {task.number} works {_percent(task.busy)} of the time."
    cause = next((found for cause in _CAUSES if (found := cause(facts, task)) is not None), None)
    assert cause is not None  # the last cause always applies
    yield Diagnosis(cause.name, task.busy, f"{bounds}{waits} {cause.sentence}", cause.remedy, name, task.number)


def _listed(names: Sequence[str]) -> str:
    """Return names as the beginning of a sentence of what waits.

    >>> _listed(["lines"]), _listed(["split", "lines"])
    ("'lines' waits", "'split' and 'lines' wait")
    """
    first, last = names[:-1], names[-1]
    return f"{', '.join(map(repr, first))} and {last!r} wait" if first else f"{last!r} waits"


class _Cause(NamedTuple):
    """The name of a diagnosis, what the figures say, and what would help."""

    name: str
    sentence: str
    remedy: str


def _quota(facts: _Facts, task: _Task) -> _Cause | None:
    if task.throttled < LEAST / 2:
        return None
    if facts.components.get(task.component, {}).get("kind") != "spout":
        return _Cause(
            "rate",
            f"Its ratePerSecond holds its calls back for {_percent(task.throttled)} of the time.",
            "Raise it if the service allows for more, or have one call take many rows (executeBatch).",
        )
    return _Cause(
        "quota",
        f"The broker holds its requests back for {_percent(task.throttled)} of the time: a quota of Kafka is full.",
        "Raise consumer_byte_rate of this client in Kafka (kafka-configs --alter), or read less of it.",
    )


def _collector(facts: _Facts, task: _Task) -> _Cause | None:
    if task.part(task.gc) < COLLECTING:
        return None
    return _Cause(
        "garbage collection",
        f"Python's garbage collector takes {_percent(task.part(task.gc))} of that.",
        "Make fewer objects that refer to each other in a circle, keep large structures out of attributes, or call "
        "gc.freeze() and gc.set_threshold() in `open` of the bolt.",
    )


def _cache(facts: _Facts, task: _Task) -> _Cause | None:
    if task.part(task.reads) < READING:
        return None
    provider = facts.components.get(task.component, {}).get("provider") or "the state provider"
    setting = {
        "rocksdb": "Raise hot_cache_mb in topology.state.provider.config, above 64 by default",
        "redis": "Keep what is read often in the bolt, or move the server closer",
    }.get(provider, "Give the state's cache more memory")
    return _Cause(
        "cache",
        f"Reads of state that its cache does not have take {_percent(task.part(task.reads))} of that.",
        f"{setting}; or group by fields that have the same keys come together.",
    )


def _skew(facts: _Facts, task: _Task) -> _Cause | None:
    tasks = facts.tasks[task.component]
    rows = [each.rows_per_sec for each in tasks]
    mean = sum(rows) / len(rows)
    largest = max(tasks, key=lambda each: each.rows_per_sec)
    if len(tasks) < 2 or mean <= 0 or largest.rows_per_sec < min(SKEWED, 0.75 * len(tasks)) * mean:
        return None
    if largest.number != task.number:
        return None
    return _Cause(
        "skew",
        f"It gets {largest.rows_per_sec:,.0f} rows a second, {largest.rows_per_sec / mean:.1f} times those of the mean "
        f"task: few keys have most of the rows.",
        "Add rows up before they are sent (combineBatch), use partialKeyGrouping and add up the two sums, or group by "
        "fields that spread better. More tasks don't help.",
    )


def _outside(facts: _Facts, task: _Task) -> _Cause | None:
    if task.outside < WAITING:
        return None
    if facts.components.get(task.component, {}).get("kind") == "spout":
        lag = ((facts.document.get("sources") or {}).get(task.component) or {}).get("lagRecords")
        behind = f", and is {lag:,.0f} records behind" if lag else ""
        return _Cause(
            "source",
            f"In {_percent(task.outside)} of that it waits for its source{behind}.",
            "Look at the source's own load and limits; more partitions and tasks read more at a time.",
        )
    return _Cause(
        "waits outside",
        f"In {_percent(task.outside)} of that it does not use the processor: its code waits for a network, a disk or a "
        "lock.",
        "Ask for many rows at once (BatchBolt), keep answers in state, set shorter timeouts, or give the bolt more "
        "tasks.",
    )


def _slow(facts: _Facts, task: _Task) -> _Cause | None:
    if task.cpu is None or not task.is_known:
        processor = ", or what that waits for"
    else:
        processor = f", {_percent(task.part(task.cpu))} of it on the processor"
    tasks = len(facts.tasks[task.component])
    name = "slow bolt" if facts.components.get(task.component, {}).get("kind") != "spout" else "slow spout"
    if task.part(task.queued) >= QUEUED:
        return _Cause(
            name,
            f"It is its own code{processor}, {_percent(task.part(task.queued))} ready to run while others have all "
            "processors: the machine is full.",
            "Give the topology more cores (on a cluster, executors), or take other work off this machine; more tasks "
            "on it don't help. Or work on batches (BatchBolt), or profile its execute.",
        )
    return _Cause(
        name,
        f"It is its own code{processor}.",
        f"Give {task.component!r} more than its {tasks} task{'s' * (tasks > 1)} (parallelism, with a slot for each), "
        "work on batches (BatchBolt), or profile its execute.",
    )


_CAUSES: Sequence[Callable[[_Facts, _Task], _Cause | None]] = (_quota, _collector, _skew, _cache, _outside, _slow)
"""Why the busiest task is busy: the first that applies, the most particular ones before those that always do."""


def _slow_sink(facts: _Facts) -> Iterator[Diagnosis]:
    share, ms = facts.phase("hooks")
    if not ms or share < LEAST:
        return
    sinks = {name: each.get("commitMs") or 0.0 for name, each in (facts.document.get("sinks") or {}).items()}
    slowest = max(sinks, key=sinks.__getitem__, default=None)
    if slowest is not None and sinks[slowest] >= ms / 2:
        what, remedy = (
            f"sink {slowest!r} publishes: {sinks[slowest]:,.0f} ms the last time",
            (
                "Look at its target's load; fewer and larger transactions (a longer trigger or "
                "topology.state.checkpoint.interval.ms) publish less often, and topology.max.spout.pending lets the "
                "next transactions work meanwhile."
            ),
        )
    else:
        what, remedy = (
            "hooks of bolts (preCommit) run, or a server that keeps state commits",
            ("Do less in preCommit, or use longer transactions."),
        )
        slowest = None
    yield Diagnosis(
        "slow sink" if slowest else "hooks",
        share,
        f"Commits take {ms:,.0f} ms of each transaction, {_percent(share)} of the time, while {what}.",
        remedy,
        slowest,
    )


def _slow_disk(facts: _Facts) -> Iterator[Diagnosis]:
    share, ms = facts.phase("log")
    if ms < SLOW_RECORD_MS:
        return
    durable = max((task for tasks in facts.tasks.values() for task in tasks), key=lambda t: t.durable, default=None)
    more = (
        ""
        if durable is None or durable.durable < LEAST / 2
        else (
            f" Task {durable.number} of {durable.component!r} waits {_percent(durable.durable)} of the time for what "
            "it makes durable."
        )
    )
    weight = share + (0.0 if durable is None else durable.durable)
    yield Diagnosis(
        "slow disk",
        min(weight, 1.0),
        f"Writing the log takes {ms:,.0f} ms of each transaction, {_percent(share)} of the time: the disk or "
        f"the store of the checkpoint is slow to make it durable.{more}",
        "Put the checkpoint on a faster disk (fsync in under 5 ms), or use fewer, larger transactions: a longer "
        "trigger, or topology.state.checkpoint.interval.ms.",
    )


def _held_back(facts: _Facts) -> Iterator[Diagnosis]:
    for name, source in (facts.document.get("sources") or {}).items():
        time = source.get("eventTime") or {}
        unit, behind, silent = time.get("heldBackBy"), time.get("behindSecs"), time.get("silentSecs") or 0.0
        if unit is None or silent < BEHIND_SECS or (behind is not None and behind < BEHIND_SECS):
            continue
        idle = time.get("idleAfterSecs")
        if idle is not None and silent >= idle:
            continue
        who = "What has finished" if unit.startswith("finished") else f"Partition or task {unit}"
        far = "has had no row yet" if behind is None else f"is {behind:,.0f} s behind the others"
        yield Diagnosis(
            "idle partition",
            min(0.95, 0.6 + silent / 600),
            f"{who} of {name!r} holds the watermark back: it {far}, and has had no row for "
            f"{silent:,.0f} s. Windows and timers wait for it.",
            f"Give {name!r} an idleAfter (setSpout or setStream), so that it is not waited for; or find out why "
            "nothing comes there.",
            name,
        )


def _restores(facts: _Facts) -> Iterator[Diagnosis]:
    if (facts.status.get("runs") or 0) < 2:  # at its start each task opens its state, and that is no fault
        return
    task = max((task for tasks in facts.tasks.values() for task in tasks), key=lambda t: t.restoring, default=None)
    if task is not None:
        yield Diagnosis(
            "restoring",
            task.restoring,
            f"Task {task.number} of {task.component!r} opens its state {_percent(task.restoring)} of the time: this "
            f"is run {facts.status['runs']} of its driver, and each begins with that.",
            "Workers don't have the state that they need: find out why they end or move (lost executors, memory).",
            task.component,
            task.number,
        )


@dataclass(frozen=True)
class Row:
    """A row of the table: what it looks for, by which figures, and the function that does."""

    name: str
    figures: str
    find: Callable[[_Facts], Iterator[Diagnosis]]


DIAGNOSES: tuple[Row, ...] = (
    Row("stuck, failing, failed or dead", "health", _unwell),
    Row("the busiest task", "busy of tasks; then processor, collector, cache, rows, quota", _bottleneck),
    Row("slow sink", "hooks in durationMs, commitMs of sinks", _slow_sink),
    Row("slow disk", "log in durationMs, committing of tasks", _slow_disk),
    Row("idle partition", "eventTime of sources", _held_back),
    Row("restoring", "restoring of tasks, runs", _restores),
)
