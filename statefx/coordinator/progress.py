"""What a query says of itself: the transaction under way, and those behind it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from statefx.coordinator.attempt import Attempt
from statefx.coordinator.transaction import TransactionProgress, came_to, iso
from statefx.protocol.history import Past, SinkVolume
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.trees import NOTHING

logger = logging.getLogger("statefx")

RECENT = 100

SLOW_SECS = 10.0
"""A hook of a spout's copy on the driver that takes longer is shown as stuck: no commit goes on while it runs."""


SUMMARY_SECS = 10.0
"""At level INFO there is a line so often, whatever many transactions: 100 ms each would make 864,000 lines a day."""


class Summary:
    """Logs what committed transactions came to: at DEBUG each of them, at INFO those of some seconds together."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self._name, self._clock = name, clock
        self._logged: float | None = None
        self._first = self._count = self._rows = 0
        self._last: TransactionProgress | None = None

    def add(self, done: TransactionProgress) -> None:
        """Count one more transaction; log them if the last line is long enough ago."""
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s: %s", self._name, done)
            return
        if not self._count:
            self._first = done.txid
        self._count, self._rows, self._last = self._count + 1, self._rows + done.input_rows, done
        if self._logged is None or self._clock() - self._logged >= SUMMARY_SECS:
            self.flush()

    def flush(self) -> None:
        """Log what is not logged yet; called when the driver ends."""
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
class Asked:
    """A hook of a spout's copy on the driver that is running."""

    spout: str
    hook: str
    txid: int
    began: float
    """By the clock of `Progress`; `since`: in seconds since the epoch."""
    since: float

    def reason(self, now: float) -> str:
        """Say what runs, and for how long."""
        return f"spout {self.spout!r} has been in {self.hook} on the driver for {now - self.began:.0f} s"


@dataclass
class Progress:
    """Kept by the coordinator, read from other threads.

    Attributes
    ----------
    under_way : dict of int to Attempt
        By txid, from PREPARING, or from the start for what a former driver has begun, to the end.
    """

    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    """Seconds since the epoch, for what is shown to people."""
    recoveries: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._recent: deque[TransactionProgress] = deque(maxlen=RECENT)
        self.under_way: dict[int, Attempt] = {}
        self._last: TransactionAttempt | None = None
        self._stuck: dict[str, Any] | None = None
        self._away: dict[str, Any] | None = None
        self._failed: dict[str, Any] | None = None
        """The last attempt that failed of the transaction that is tried again."""
        self._asked: Asked | None = None
        self._calls: dict[str, float] = {}
        """What takes part in a commit and is called on the driver now, by name, and since when."""
        self._sinks: dict[str, dict[str, Any]] = {}
        self._publishing: tuple[int, Mapping[str, SinkVolume]] = (0, {})

    def begin(self, attempt: Attempt) -> None:
        """An attempt begins."""
        self._enter(attempt, "PREPARING", "log")

    def turn(self, attempt: Attempt, doing: str) -> None:
        """Something else is done for an attempt: ``run``, ``wait`` (for the transactions before it), or ``log``."""
        with self._lock:
            self._charge(attempt, doing)

    def committing(self, attempt: Attempt, volumes: Iterable[SinkVolume]) -> None:
        """The decision is durable; `volumes` is what sinks are given, as far as they tell."""
        with self._lock:
            attempt.phase = "COMMITTING"
            self._charge(attempt, "hooks")
            self._publishing = attempt.name.txid, {each.sink: each for each in volumes}

    def end(self, txid: int, stored_bytes: Mapping[str, int]) -> TransactionProgress:
        """COMMITTED is durable; `stored_bytes` is what the log says of each bolt."""
        with self._lock:
            entry = self.under_way.pop(txid)  # those behind it stay: several may be under way (rule 2.2)
            self._charge(entry, "log")
            acks = {} if entry.complete is None else entry.complete.acks
            done = came_to(entry.name, acks, entry.input_rows, stored_bytes, entry.secs, self.now())
            self._recent.append(replace(done, trees=NOTHING))  # they may be many, and nobody asks for them later
            if self._failed and self._failed["txid"] <= txid:
                self._failed = None
            return done

    def rolling_back(self, attempt: Attempt) -> None:
        """An attempt is being rolled back."""
        # With times of its own, from 0: the transaction's are those of the attempt that is committed.
        self._enter(attempt, "ROLLING_BACK", "hooks")

    def rolled_back(self, attempt: TransactionAttempt, reason: str) -> None:
        """ROLLED_BACK is durable."""
        with self._lock:
            self.under_way.pop(attempt.txid, None)
            # Of several in flight, those behind it fail with the first: it says why.
            if self._failed is None or attempt.txid <= self._failed["txid"]:
                same = self._failed is not None and self._failed["txid"] == attempt.txid
                since = self._failed["since"] if same and self._failed else iso(self.now())
                self._failed = {"txid": attempt.txid, "attempt": attempt.attempt, "since": since, "reason": reason}

    def recovering(self, direction: str, attempt: Attempt) -> None:
        """A transaction of a former driver is being rolled ``forward`` or ``back``."""
        self.recoveries.append({"txid": attempt.name.txid, "rolled": direction})
        self._enter(attempt, "COMMITTING" if direction == "forward" else "ROLLING_BACK", "hooks")

    def stuck(self, phase: str | None, txid: int, reason: str) -> None:
        """A commit or rollback fails and is tried again; None: it went through."""
        with self._lock:
            # Since the first try that failed: how long it lasts is what people ask (rule 6.11).
            since = self._stuck["since"] if self._stuck else iso(self.now())
            stuck = {"phase": str(phase), "txid": txid, "since": since, "reason": reason}
            self._stuck = None if phase is None else stuck

    def reached(self, spout: str, said: Any) -> None:
        """A spout says of what is committed how far it is; it is asked when the newest transaction has ended."""
        with self._lock:
            if self._recent:
                self._recent[-1] = replace(self._recent[-1], sources={**self._recent[-1].sources, spout: said})

    def away(self, txid: int, reason: str) -> None:
        """A spout can't say what there is to read for `txid`, and is asked again; no reason: all have answered."""
        with self._lock:
            since = self._away["since"] if self._away else iso(self.now())
            away = {"phase": "PLANNING", "txid": txid, "since": since, "reason": reason}
            self._away = away if reason else None

    @property
    def away_reason(self) -> str:
        """Why nobody knows what there is to read; empty if nothing is wrong."""
        with self._lock:
            return self._away["reason"] if self._away else ""

    @contextmanager
    def asking(self, spout: str, hook: str, txid: int) -> Iterator[None]:
        """While the block runs, a hook of a spout's copy on the driver is called: nothing is committed meanwhile."""
        asked = Asked(spout, hook, txid, self.clock(), self.now())
        with self._lock:
            self._asked = asked
        try:
            yield
        finally:
            with self._lock:
                self._asked = None

    def asked(self, secs: float) -> Asked | None:
        """Return the hook that has been running for so many seconds, or longer."""
        with self._lock:
            asked = self._asked
            return asked if asked is not None and self.clock() - asked.began >= secs else None

    def calling(self, name: str) -> None:
        """What one that takes part in a commit has to do on the driver is called."""
        with self._lock:
            self._calls[name] = self.clock()

    def called(self, name: str) -> None:
        """The call has ended, if there was one."""
        with self._lock:
            self._calls.pop(name, None)

    @property
    def call_reason(self) -> str:
        """Say which call of a commit runs on the driver, and for how long; empty if none does."""
        with self._lock:
            name = min(self._calls, key=self._calls.__getitem__, default="")
            if not name:
                return ""
            secs = self.clock() - self._calls[name]
            return f"the commit of {name!r} has been running on the driver for {secs:.0f} s"

    def found_sinks(self, names: Iterable[str], past: Iterable[Past]) -> None:
        """A topology with these sinks starts; `past` is what the log says of transactions, oldest first."""
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
        """One that takes part in the commit under way has done it."""
        with self._lock:
            if name in self._sinks:
                txid, volumes = self._publishing
                self._sinks[name] = _published(txid, volumes.get(name))

    def failing(self, name: str, reason: str) -> None:
        """One that takes part has failed, and is tried again."""
        with self._lock:
            if name in self._sinks:
                since = self._sinks[name].get("stuck", {}).get("since", iso(self.now()))
                self._sinks[name] = {**self._sinks[name], "stuck": {"since": since, "reason": reason}}

    @property
    def is_stuck(self) -> bool:
        """Whether a commit or rollback is failing and being repeated."""
        with self._lock:
            return self._stuck is not None

    def recent(self) -> list[dict[str, Any]]:
        """Return the last transactions, oldest first."""
        with self._lock:
            return [done.as_dict() for done in self._recent]

    def status(self) -> dict[str, Any]:
        """Return what is going on now; of several transactions under way, with the lowest."""
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
            if self._sinks:
                status["sinks"] = {name: dict(each) for name, each in self._sinks.items()}
            return status

    def _enter(self, attempt: Attempt, phase: str, doing: str) -> None:
        with self._lock:
            self._last = attempt.name  # an idle query still says how far it has come
            attempt.phase, attempt.doing, attempt.turned = phase, doing, self.clock()
            attempt.secs = dict.fromkeys(("run", "hooks", "log"), 0.0)
            self.under_way[attempt.name.txid] = attempt

    def _charge(self, attempt: Attempt, doing: str) -> None:
        """Charge the time since the last turn to what was being done, and go on with `doing`."""
        now = self.clock()
        attempt.secs[attempt.doing] = attempt.secs.get(attempt.doing, 0.0) + now - attempt.turned
        attempt.doing, attempt.turned = doing, now


def _published(txid: int | None, volume: SinkVolume | None) -> dict[str, Any]:
    """Return what a sink has published last; None: nothing yet, or it does not tell."""
    return {
        "txid": txid,
        "rows": None if volume is None else volume.rows,
        "bytes": None if volume is None else volume.bytes,
    }
