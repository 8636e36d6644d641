"""Which bolts get a tick in a transaction: those whose period has ended since the transaction before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from statefx.coordinator.log import TransactionLog


@dataclass
class Ticks:
    """The ticks of one driver.

    Rule 9.9: the clock of an attempt is the time of its PREPARING. So it is the same for all tasks and segments, and a
    successor finds it in the log.
    """

    secs: Mapping[str, float]
    """How long the period of a bolt is, by component; periods end at multiples of it, since the epoch."""
    log: TransactionLog
    started_ms: int
    """When this driver started: what counts where the log knows of no transaction before."""

    def due(self, txid: int, clock_ms: int) -> tuple[str, ...]:
        """Return the bolts that get a tick in `txid`, if it begins at `clock_ms`; one each, however late it is."""
        if not self.secs:
            return ()
        before_ms = self._clock_before(txid)
        # Unequal, and not more: a clock that was set back by an hour would give no tick for an hour.
        return tuple(id for id, secs in self.secs.items() if _period(clock_ms, secs) != _period(before_ms, secs))

    def time_has_come(self, txid: int, now_ms: int) -> bool:
        """Tell whether `txid` is to begin for a tick, or for a timer of a bolt, also if there is nothing to read."""
        state = self.log.state
        # What is in flight may fire the timer, and say when the next one is due.
        timer = not state.in_flight and 0 < state.due_ms <= now_ms
        return timer or bool(self.due(txid, now_ms))

    def _clock_before(self, txid: int) -> int:
        # Also of one that is in flight: if that is rolled back, so is `txid`, and both are tried again.
        state = self.log.state
        in_flight_ms = state.clock_ms(txid - 1)
        if in_flight_ms is not None:
            return in_flight_ms
        for past in reversed(state.history.past):
            if past.txid == txid - 1 and past.state == "COMMITTED":
                return past.prepared_ms
        return self.started_ms


def _period(clock_ms: int, secs: float) -> int:
    return int(clock_ms // (secs * 1000))
