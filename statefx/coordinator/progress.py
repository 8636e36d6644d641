"""Progress of a driver's transactions: for ``status``, ``lastProgress`` and listeners."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from statefx.coordinator.attempt import Attempt
from statefx.coordinator.figures import by_bolt, field_of, fields_of, figures_of
from statefx.coordinator.measuring import Measures
from statefx.errors import BoltError, FailedException, StatefxError
from statefx.logs import iso
from statefx.metrics.registry import Figures
from statefx.operators.context import DRIVER
from statefx.operators.user_errors import frames_of, user_traceback
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.log_state import Past, SinkVolume
from statefx.protocol.reports import NOTHING, Ack, LeftOut, SetAside, TreeReport, merged

logger = logging.getLogger("statefx")


@dataclass(frozen=True)
class TransactionProgress:
    """One committed transaction.

    Attributes
    ----------
    txid : int
    attempt : int
    figures : Mapping[str, Mapping[tuple[str, ...], float]]
        By metrics and their labels, in the metrics' units: what the transaction has added to counters and histograms,
        and the gauges after it. All numbers below are some of these.
    committed_at : float
        When COMMITTED was durable, in seconds since the epoch.
    sources : Mapping[str, JSON]
        How far spouts are, as they say; without those that say nothing.
    left_out : Mapping[str, LeftOut]
        What spouts have left out, as their users have told them to; without those that have left out nothing.
    set_aside : Mapping[str, SetAside]
        Rows of which a bolt raised an error, and which it does not fail for, by bolt; without those that had none.
    trees : TreeReport
        What spouts that live in their tasks are told.
    """

    txid: int
    attempt: int
    figures: Figures
    committed_at: float
    sources: Mapping[str, Any] = field(default_factory=dict)
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)
    set_aside: Mapping[str, SetAside] = field(default_factory=dict)
    trees: TreeReport = field(default=NOTHING)

    def __str__(self) -> str:
        phases = ", ".join(f"{phase} {ms:.0f}" for phase, ms in self.duration_ms.items())
        return (
            f"transaction {self.txid}, attempt {self.attempt}: {self.input_rows:,} rows, "
            f"{sum(self.keys.values()):,} keys, {sum(self.duration_ms.values()):.0f} ms ({phases})"
        )

    @property
    def input_rows(self) -> int:
        """Rows that DataFrames or spouts brought."""
        return int(self.figures.get("statefx_input_rows", {}).get((), 0))

    @property
    def rows(self) -> Mapping[str, int]:
        """Rows that each bolt received."""
        return field_of(self.figures, "statefx_rows")

    @property
    def keys(self) -> Mapping[str, int]:
        """State keys that each stateful bolt changed."""
        return field_of(self.figures, "statefx_state_keys_changed")

    @property
    def found_keys(self) -> Mapping[str, int]:
        """How many keys the state of each bolt held when the transaction found it, where its provider counts."""
        return field_of(self.figures, "statefx_state_keys")

    @property
    def stored_bytes(self) -> Mapping[str, int]:
        """What a worker without caches would read to restore the state of each bolt, after the transaction."""
        return field_of(self.figures, "statefx_state_bytes")

    @property
    def late(self) -> Mapping[str, int]:
        """Rows that came too late for a windowed bolt, by bolt; without those that had none."""
        return field_of(self.figures, "statefx_rows_late")

    @property
    def ahead(self) -> Mapping[str, int]:
        """Rows of each component whose event times are too far ahead to move the watermark; without those of none."""
        return field_of(self.figures, "statefx_rows_ahead")

    @property
    def watermarks(self) -> Mapping[str, int]:
        """How far event time has come in each component, in microseconds since 1970: the least of its tasks.

        Without those that have no event time, or of which nothing is known yet, and when event time is closed.
        """
        series = self.figures.get("statefx_watermark_timestamp_seconds", {})
        return {component: round(secs * 1e6) for (component,), secs in series.items()}

    @property
    def duration_ms(self) -> Mapping[str, float]:
        """Time of the driver by phase, which don't overlap; attempts that were rolled back are not in it.

        ``run`` (the attempt, until its acks are judged), ``hooks`` (what the commit has to run), ``log`` (the records),
        and with several transactions in flight ``wait`` (for those before it).
        """
        return field_of(self.figures, "statefx_transaction_duration_seconds")

    @property
    def rows_per_second(self) -> float:
        """Rows of the input by the driver's time; 0 if that was none."""
        secs = self.figures.get("statefx_transaction_duration_seconds", {}).get(("all",), 0.0)
        return self.input_rows / secs if secs > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the progress in the shape of pyspark's ``lastProgress``: plain data, by the table of metrics."""
        fields = fields_of(self.figures)
        for spout, said in self.left_out.items():
            fields["leftOut"][spout]["why"] = said.why
        return {
            "txid": self.txid,
            "attempt": self.attempt,
            "timestamp": iso(self.committed_at),
            "processedRowsPerSecond": round(self.rows_per_second, 1),
            "sources": dict(self.sources),
            **fields,
        }


def progress_of(
    attempt: TransactionAttempt, acks: Mapping[TaskId, Ack], figures: Figures, committed_at: float
) -> TransactionProgress:
    """Return the progress of a committed attempt: its figures, and what its acks report in words."""
    bolts = by_bolt(acks.values())
    return TransactionProgress(
        txid=attempt.txid,
        attempt=attempt.attempt,
        figures=figures,
        committed_at=committed_at,
        sources={name: _counted(of) for name, of in bolts.items() if any(ack.counts for ack in of)},
        left_out={name: said for name, of in bolts.items() if (said := sum((a.left_out for a in of), LeftOut()))},
        set_aside={name: rows for name, of in bolts.items() if (rows := sum((a.set_aside for a in of), SetAside()))},
        trees=merged(ack.trees for ack in acks.values()),
    )


def _counted(acks: Iterable[Ack]) -> dict[str, int | float]:
    """Return the counts of a spout's tasks: of latencies the slowest, of all else the sum."""
    found: dict[str, int | float] = {}
    for ack in acks:
        for name, count in ack.counts.items():
            found[name] = max(found.get(name, 0), count) if name.endswith("Ms") else found.get(name, 0) + count
    return found


def received_rows(acks: Mapping[TaskId, Ack]) -> dict[str, int]:
    """Return how many rows each bolt received; spouts, whose acks name no edge, receive none."""
    found = by_bolt(acks.values()).items()
    return {bolt: sum(sum(ack.received.values()) for ack in of) for bolt, of in found if any(a.received for a in of)}


RECENT = 100

EXCEPTIONS_KEPT = 20
"""The newest, each with how often it was raised."""

MESSAGE_SHOWN = 1000
"""Characters of an exception's message."""

SLOW_SECS = 10.0
"""A hook of a spout's copy on the driver that takes longer is shown as stuck: no commit goes on while it runs."""


SUMMARY_SECS = 10.0
"""At level INFO there is a line so often, whatever many transactions: 100 ms each would make 864,000 lines a day."""


class Summary:
    """Logs committed transactions: at DEBUG each of them, at INFO those of some seconds together."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self._name, self._clock = name, clock
        self._logged: float | None = None
        self._first = self._count = self._rows = 0
        self._last: TransactionProgress | None = None

    def add(self, done: TransactionProgress) -> None:
        """Count one more transaction; log them if the last line is old enough."""
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s: %s", self._name, done)
            return
        if not self._count:
            self._first = done.txid
        self._count, self._rows, self._last = self._count + 1, self._rows + done.input_rows, done
        if self._logged is None or self._clock() - self._logged >= SUMMARY_SECS:
            self.flush()

    def flush(self) -> None:
        now, done = self._clock(), self._last
        if done is not None and self._count == 1:
            logger.info("%s: %s", self._name, done)
        elif done is not None and self._logged is not None:
            secs = max(now - self._logged, 1e-9)
            logger.info(
                "%s: transactions %d to %d in %.1f s: %s rows, %.0f rows/s; the last: %s",
                self._name, self._first, done.txid, secs, f"{self._rows:,}", self._rows / secs, done,
            )  # fmt: skip
        self._logged, self._count, self._rows, self._last = now, 0, 0, None


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A running hook of a spout's copy on the driver."""

    spout: str
    hook: str
    txid: int
    began: float
    """By the clock of `Progress`; `since`: in seconds since the epoch."""
    since: float

    def reason(self, now: float) -> str:
        return f"spout {self.spout!r} has been in {self.hook} on the driver for {now - self.began:.0f} s"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an attempt."""

    attempt: Attempt
    ended: float
    """When, in seconds since the epoch."""
    done: TransactionProgress | None = None
    """None: it was rolled back, for this `reason`."""
    reason: str = ""
    call_secs: Mapping[str, float] = field(default_factory=dict)
    """How long each participant's part of the commit ran on the driver."""


@dataclass
class Progress:
    """State of the driver for status and progress; the coordinator writes it, any thread reads it.

    `under_way` has the attempts by txid, from PREPARING, or from the start for those of a former driver, to the end.
    """

    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    """Seconds since the epoch, for what is shown to people."""
    recoveries: list[dict[str, Any]] = field(default_factory=list)
    watchers: list[Callable[[Outcome], None]] = field(default_factory=list)
    """Called at the end of each attempt, on the driver's thread: they must be quick. One that raises is dropped."""
    measures: Measures = field(default_factory=Measures)
    """Counts for metrics what happens."""

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._recent: deque[TransactionProgress] = deque(maxlen=RECENT)
        self._exceptions: list[dict[str, Any]] = []
        self._raised: BaseException | None = None
        self.under_way: dict[int, Attempt] = {}
        self._last: TransactionAttempt | None = None
        self._stuck: dict[str, Any] | None = None
        self._away: dict[str, Any] | None = None
        self._failed: dict[str, Any] | None = None
        """The last attempt that failed of the transaction that is tried again."""
        self._held: str | None = None
        """Since when nothing begins, where the query is paused."""
        self._waits = False
        self._going_since: float | None = self.clock()
        self._went_secs = 0.0
        self._asked: PendingCall | None = None
        self._calls: dict[str, float] = {}
        """Participants whose part of a commit runs on the driver now, by name, and since when."""
        self._call_secs: dict[str, float] = {}
        """How long those of the present commit have run."""
        self._sinks: dict[str, dict[str, Any]] = {}
        self._publishing: tuple[int, Mapping[str, SinkVolume]] = (0, {})

    def begin(self, attempt: Attempt) -> None:
        self._enter(attempt, "PREPARING", "log")
        self.measures.begun(len(self.under_way))

    def turn(self, attempt: Attempt, doing: str) -> None:
        """Charge the time from now on to ``run``, ``wait`` (for the transactions before it), or ``log``."""
        with self._lock:
            self._charge(attempt, doing)

    def committing(self, attempt: Attempt, volumes: Iterable[SinkVolume]) -> None:
        """Note that the decision is durable; `volumes` is what sinks are given, as far as they tell."""
        with self._lock:
            attempt.phase = "COMMITTING"
            self._charge(attempt, "hooks")
            self._publishing = attempt.name.txid, {each.sink: each for each in volumes}

    def end(self, txid: int, at_rest: Figures) -> TransactionProgress:
        """Note that COMMITTED is durable; `at_rest` is what the log says after it."""
        with self._lock:
            entry = self.under_way.pop(txid)  # those behind it stay: several may be under way (rule 2.2)
            self._charge(entry, "log")
            acks = {} if entry.complete is None else entry.complete.acks
            figures = {**figures_of(entry, self.measures.edges), **at_rest}
            done = progress_of(entry.name, acks, figures, self.now())
            self._recent.append(replace(done, trees=NOTHING))  # they may be many, and nobody asks for them later
            self.measures.committed(entry, figures, len(self.under_way))
            if self._failed and self._failed["txid"] <= txid:
                self._failed = None
            for bolt, aside in done.set_aside.items():
                told = {"type": "set aside", "message": aside.why, "traceback": ""}
                self._note({"component": bolt, "task": None, **told})
            call_secs, self._call_secs = self._call_secs, {}
        self._report(Outcome(entry, done.committed_at, done, call_secs=call_secs))
        return done

    def _report(self, outcome: Outcome) -> None:
        """Report the end of an attempt to the watchers, which must not harm a transaction."""
        for watcher in tuple(self.watchers):
            try:
                watcher(outcome)
            except Exception:
                with suppress(ValueError):  # another thread has removed it meanwhile
                    self.watchers.remove(watcher)
                logger.exception("transactions are no longer observed by %r, and go on", watcher)

    def rolling_back(self, attempt: Attempt) -> None:
        # With times of its own, from 0: the transaction's are those of the attempt that is committed.
        self._enter(attempt, "ROLLING_BACK", "hooks")

    def rolled_back(self, attempt: TransactionAttempt, reason: str, *, has_failed: bool = True) -> None:
        """Record the end of an attempt; one that `has_failed` is shown until its transaction is committed."""
        with self._lock:
            entry = self.under_way.pop(attempt.txid, None)
            self.measures.rolled_back(len(self.under_way))
            # Of several in flight, those behind it fail with the first: it says why.
            if has_failed and (self._failed is None or attempt.txid <= self._failed["txid"]):
                before = self._failed if self._failed and self._failed["txid"] == attempt.txid else {}
                self._failed = {
                    "txid": attempt.txid,
                    "attempt": attempt.attempt,
                    "since": before.get("since") or iso(self.now()),
                    "reason": reason,
                    "tries": before.get("tries", 0) + 1,
                    **_raised_at(None if entry is None else entry.failure),
                }
        if entry is not None:
            self._report(Outcome(entry, self.now(), reason=reason))

    def raised(self, error: BaseException, component: str | None = None) -> None:
        """Record an exception of the user's code; the newest one again is a no-op.

        `component` is whose it is, if the error does not have it.
        """
        if error is self._raised:
            return
        self._raised = error
        found = described(error, component)
        with self._lock:
            self._note(found)

    def _note(self, found: Mapping[str, Any]) -> None:
        key = tuple(found.values())
        same = [each for each in self._exceptions if tuple(each[name] for name in found) == key]
        count = 1 + sum(each["count"] for each in same)
        others = [each for each in self._exceptions if each not in same]
        self._exceptions = [*others, {"at": iso(self.now()), **found, "count": count}][-EXCEPTIONS_KEPT:]

    @property
    def exceptions(self) -> list[dict[str, Any]]:
        """Exceptions of the user's code, those raised last at the end: plain data.

        Each has ``at``, ``component``, ``task`` (None: on the driver), ``type``, ``message``, ``traceback``, and
        ``count``, how often the same was raised. Tracebacks have the user's frames alone and no values; a message is
        what the user's code, or a library, has put in it.
        """
        with self._lock:
            return [dict(each) for each in self._exceptions]

    def recovering(self, direction: str, attempt: Attempt) -> None:
        """Note that a transaction of a former driver is being rolled ``forward`` or ``back``."""
        self.recoveries.append({"txid": attempt.name.txid, "rolled": direction})
        self.measures.recovering(direction)
        self._enter(attempt, "COMMITTING" if direction == "forward" else "ROLLING_BACK", "hooks")

    def stuck(self, phase: str | None, txid: int, reason: str) -> None:
        """Record that a commit or rollback is failing and being retried; None clears the record."""
        with self._lock:
            # Since the first try that failed: how long it lasts is what people ask (rule 6.11).
            since = self._stuck["since"] if self._stuck else iso(self.now())
            stuck = {"phase": str(phase), "txid": txid, "since": since, "reason": reason}
            self._stuck = None if phase is None else stuck
            self._note_going()

    def reached(self, spout: str, said: Any) -> None:
        """Record how far a spout is in what is committed; it is asked when the newest transaction has ended."""
        with self._lock:
            self.measures.reached(spout, said)
            if self._recent:
                self._recent[-1] = replace(self._recent[-1], sources={**self._recent[-1].sources, spout: said})

    def away(self, txid: int, reason: str, *, waits: bool = False) -> None:
        """Record that planning `txid` failed and is being retried; an empty `reason` clears the record.

        `waits`: nothing is read since a spout is not ready, which is no trouble.
        """
        with self._lock:
            self._waits = waits
            since = self._away["since"] if self._away else iso(self.now())
            away = {"phase": "PLANNING", "txid": txid, "since": since, "reason": reason}
            self._away = away if reason else None
            self._note_going()

    def held(self, held: bool) -> None:
        """Record that nothing begins, or that it does again."""
        with self._lock:
            self._held = (self._held or iso(self.now())) if held else None
            self._note_going()

    def _note_going(self) -> None:
        goes = not (self._held or self._stuck or self._away or self._waits)
        if goes != (self._going_since is not None):
            self._went_secs = self.going_secs
            self._going_since = self.clock() if goes else None

    @property
    def going_secs(self) -> float:
        """For how long in all something could begin: nothing held it, was tried again or had a spout be away."""
        with self._lock:
            since = self._going_since
            return self._went_secs + (0.0 if since is None else self.clock() - since)

    @property
    def away_reason(self) -> str:
        """Return why planning fails, or "" if it does not."""
        with self._lock:
            return self._away["reason"] if self._away else ""

    @contextmanager
    def asking(self, spout: str, hook: str, txid: int) -> Iterator[None]:
        """Record the hook of a spout's copy on the driver that the block calls: nothing is committed meanwhile."""
        asked = PendingCall(spout, hook, txid, self.clock(), self.now())
        with self._lock:
            self._asked = asked
        try:
            yield
        finally:
            with self._lock:
                self._asked = None

    def asked(self, secs: float) -> PendingCall | None:
        """Return the hook that has been running for `secs` or longer."""
        with self._lock:
            asked = self._asked
            return asked if asked is not None and self.clock() - asked.began >= secs else None

    def calling(self, name: str) -> None:
        """Record that a participant's part of a commit runs on the driver."""
        with self._lock:
            self._calls[name] = self.clock()
            self.measures.calling(name)

    def called(self, name: str) -> None:
        with self._lock:
            began = self._calls.pop(name, None)
            if began is not None:
                self._call_secs[name] = self._call_secs.get(name, 0.0) + self.clock() - began
            self.measures.called(name)

    @property
    def call_reason(self) -> str:
        """Return which call of a commit runs on the driver, and for how long, or "" if none does."""
        with self._lock:
            name = min(self._calls, key=self._calls.__getitem__, default="")
            if not name:
                return ""
            secs = self.clock() - self._calls[name]
            return f"the commit of {name!r} has been running on the driver for {secs:.0f} s"

    def found_sinks(self, names: Iterable[str], past: Iterable[Past]) -> None:
        """Record the sinks of a topology at its start; `past` is the log's transactions, oldest first."""
        with self._lock:
            self._sinks = {name: _published(None, None) for name in names}
            for each in past:
                volumes = {volume.sink: volume for volume in each.sinks}
                if each.state == "COMMITTED":
                    known = self._sinks.keys() & volumes
                    self._sinks |= {name: _published(each.txid, volumes[name]) for name in known}
                elif each.state == "COMMITTING":
                    self._publishing = each.txid, volumes

    def published(self, name: str) -> None:
        """Record that a participant of the running commit is done."""
        with self._lock:
            if name in self._sinks:
                txid, volumes = self._publishing
                self._sinks[name] = _published(txid, volumes.get(name))
                self.measures.published(name, volumes.get(name))

    def failing(self, name: str, reason: str) -> None:
        """Record that a participant has failed and is retried."""
        with self._lock:
            if name in self._sinks:
                since = self._sinks[name].get("stuck", {}).get("since", iso(self.now()))
                self._sinks[name] = {**self._sinks[name], "stuck": {"since": since, "reason": reason}}

    @property
    def is_stuck(self) -> bool:
        """Whether a commit or rollback is failing and being repeated."""
        with self._lock:
            return self._stuck is not None

    @property
    def last(self) -> TransactionProgress | None:
        """The last committed transaction, or None."""
        with self._lock:
            return self._recent[-1] if self._recent else None

    def running(self) -> list[Attempt]:
        """Return the attempts that have not ended, the lowest first."""
        with self._lock:
            return [self.under_way[txid] for txid in sorted(self.under_way)]

    def recent(self) -> list[dict[str, Any]]:
        with self._lock:
            return [done.as_dict() for done in self._recent]

    def of(self, txid: int) -> dict[str, Any] | None:
        """Return the progress of one of the last transactions."""
        with self._lock:
            done = next((done for done in reversed(self._recent) if done.txid == txid), None)
        return None if done is None else done.as_dict()

    def status(self) -> dict[str, Any]:
        """Return what is going on now; of several transactions in flight, the lowest."""
        with self._lock:
            lowest = self.under_way[min(self.under_way)] if self.under_way else None
            phase = "idle" if lowest is None else lowest.phase
            status: dict[str, Any] = {"phase": phase, "isTransactionActive": lowest is not None}
            name = self._last if lowest is None else lowest.name
            if name is not None:
                status |= {"txid": name.txid, "attempt": name.attempt}
            slow = self.asked(SLOW_SECS)
            if slow is not None and self._stuck is None:
                reason = slow.reason(self.clock())
                status["stuck"] = {"phase": "PLANNING", "txid": slow.txid, "since": iso(slow.since), "reason": reason}
            elif stuck := self._stuck or self._away:
                status["stuck"] = dict(stuck)
            if self._failed is not None:
                status["failed"] = dict(self._failed)
            if self._held is not None:
                status["paused"] = {"since": self._held}
            if calls := self.measures.calls():
                status["calls"] = calls
            if self._sinks:
                status["sinks"] = {name: dict(each) for name, each in self._sinks.items()}
            return status

    def _enter(self, attempt: Attempt, phase: str, doing: str) -> None:
        with self._lock:
            self._last = attempt.name  # an idle query still says how far it has come
            attempt.phase, attempt.doing, attempt.turned = phase, doing, self.clock()
            attempt.began = attempt.began or self.now()
            attempt.secs = dict.fromkeys(("run", "hooks", "log"), 0.0)
            self.under_way[attempt.name.txid] = attempt

    def _charge(self, attempt: Attempt, doing: str) -> None:
        """Charge the time since the last turn to what was being done, and go on with `doing`."""
        now = self.clock()
        attempt.secs[attempt.doing] = attempt.secs.get(attempt.doing, 0.0) + now - attempt.turned
        attempt.doing, attempt.turned = doing, now


def _raised_at(error: BaseException | None) -> dict[str, str]:
    """Return the ``type`` of an exception of the user's code, and the ``place`` of theirs that raised it."""
    if not isinstance(error, BoltError | FailedException):
        return {}
    found = described(error)
    places = [f"{file}:{line}, in {name}" for file, line, name in _FRAME.findall(found["traceback"])]
    return {"type": found["type"], "place": places[-1] if places else ""}


_FRAME = re.compile(r'^ *File "(.*)", line (\d+), in (.+)$', re.MULTILINE)
_TYPE = re.compile(r"([A-Za-z_]\w*): ")


def described(error: BaseException, component: str | None = None) -> dict[str, Any]:
    """Return an exception of the user's code as plain data."""
    data = error.data if isinstance(error, StatefxError) else {}
    if isinstance(error, BoltError):
        text = str(data.get("cause") or error.message)
        kind = found[1] if (found := _TYPE.match(text)) else type(error).__name__
        text = text.removeprefix(f"{kind}: ")
    else:
        kind, text = type(error).__name__, error.message if isinstance(error, StatefxError) else str(error)
    task = data.get("task")
    return {
        "component": data.get("component", component),
        "task": None if task == DRIVER else task,
        "type": kind,
        "message": text[:MESSAGE_SHOWN],
        "traceback": frames_of(data.get("traceback") or user_traceback(error)),
    }


def _published(txid: int | None, volume: SinkVolume | None) -> dict[str, Any]:
    """Return what a sink has published last, or None if nothing yet, or it does not tell."""
    return {
        "txid": txid,
        "rows": None if volume is None else volume.rows,
        "bytes": None if volume is None else volume.bytes,
    }
