"""What a query says of itself: the transaction under way, and those behind it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.ledger import Complete
from statefx.topology.plan import INGEST

RECENT = 100


@dataclass(frozen=True)
class TransactionProgress:
    """One committed transaction.

    Attributes
    ----------
    txid, attempt : int
    input_rows : int
        Rows of all raw DataFrames.
    rows : Mapping[str, int]
        Rows that each bolt received.
    keys : Mapping[str, int]
        State keys that each stateful bolt changed.
    prepare_ms, commit_ms : float
        From PREPARING to COMMITTING durable, and from there to COMMITTED.
    committed_at : float
        When COMMITTED was durable, in seconds since the epoch.
    """

    txid: int
    attempt: int
    input_rows: int
    rows: Mapping[str, int]
    keys: Mapping[str, int]
    prepare_ms: float
    commit_ms: float
    committed_at: float

    def as_dict(self) -> dict[str, Any]:
        """Return the progress in the shape of pyspark's ``lastProgress``: plain data."""
        return {
            "txid": self.txid,
            "attempt": self.attempt,
            "timestamp": datetime.fromtimestamp(self.committed_at, UTC).isoformat(timespec="milliseconds"),
            "numInputRows": self.input_rows,
            "rows": dict(self.rows),
            "stateKeysChanged": dict(self.keys),
            "durationMs": {"prepare": round(self.prepare_ms, 3), "commit": round(self.commit_ms, 3)},
        }


@dataclass
class Progress:
    """Kept by the coordinator, read from other threads.

    Parameters
    ----------
    clock : callable
        Monotonic seconds.
    now : callable
        Seconds since the epoch, for what is shown to people.
    """

    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    recoveries: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: deque[TransactionProgress] = deque(maxlen=RECENT)
        self._attempt: TransactionAttempt | None = None
        self._complete: Complete | None = None
        self._input_rows = 0
        self._phase = "idle"
        self._began = self._decided = 0.0
        self._stuck: dict[str, Any] | None = None

    def begin(self, attempt: TransactionAttempt) -> None:
        """An attempt begins."""
        with self._lock:
            self._attempt, self._phase, self._complete = attempt, "PREPARING", None
            self._began = self.clock()

    def acked(self, complete: Complete, input_rows: int) -> None:
        """All tasks have acked; `input_rows` came from the raw DataFrames."""
        with self._lock:
            self._complete, self._input_rows = complete, input_rows

    def committing(self) -> None:
        """The decision is durable."""
        with self._lock:
            self._phase = "COMMITTING"
            self._decided = self.clock()

    def rows(self) -> Mapping[str, int]:
        """Rows received by each bolt in the transaction under way."""
        rows: dict[str, int] = {}
        for (component, _), ack in (self._complete.acks if self._complete else {}).items():
            if not component.startswith(INGEST):
                rows[component] = rows.get(component, 0) + sum(ack.received.values())
        return rows

    def end(self, txid: int) -> TransactionProgress:
        """COMMITTED is durable."""
        rows, keys = self.rows(), dict[str, int]()
        for (component, _), ack in (self._complete.acks if self._complete else {}).items():
            if ack.keys:
                keys[component] = keys.get(component, 0) + ack.keys
        with self._lock:
            ended = self.clock()
            attempt = self._attempt.attempt if self._attempt and self._attempt.txid == txid else 0
            done = TransactionProgress(
                txid,
                attempt,
                self._input_rows if self._complete else 0,
                rows,
                keys,
                (self._decided - self._began) * 1000 if self._complete else 0.0,
                (ended - self._decided) * 1000 if self._complete else 0.0,
                self.now(),
            )
            self._recent.append(done)
            self._phase = "idle"
            return done

    def rolling_back(self, attempt: TransactionAttempt) -> None:
        """An attempt is being rolled back."""
        with self._lock:
            self._attempt, self._phase, self._complete = attempt, "ROLLING_BACK", None

    def rolled_back(self) -> None:
        """ROLLED_BACK is durable."""
        with self._lock:
            self._phase = "idle"

    def recovering(self, direction: str, attempt: TransactionAttempt) -> None:
        """A transaction of a former driver is being rolled ``forward`` or ``back``."""
        self.recoveries.append({"txid": attempt.txid, "rolled": direction})
        with self._lock:
            self._attempt, self._complete = attempt, None
            self._phase = "COMMITTING" if direction == "forward" else "ROLLING_BACK"

    def stuck(self, phase: str | None, txid: int, reason: str) -> None:
        """A commit or rollback fails and is tried again; None: it went through."""
        with self._lock:
            if phase is None:
                self._stuck = None
            else:
                since = self._stuck["since"] if self._stuck else self.now()
                self._stuck = {"phase": phase, "txid": txid, "since": since, "reason": reason}

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
        """Return what is going on now."""
        with self._lock:
            status: dict[str, Any] = {"phase": self._phase, "isTransactionActive": self._phase != "idle"}
            if self._attempt is not None:
                status |= {"txid": self._attempt.txid, "attempt": self._attempt.attempt}
            if self._stuck is not None:
                status["stuck"] = dict(self._stuck)
            return status
