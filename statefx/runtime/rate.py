"""How fast a task may begin calls: a bucket of tokens, one for each call.

The bucket holds what comes in within `BURST_SECS`: timers of an event loop come late, and what one has missed may be
caught up on. It begins with one token, so that a task that is made again and again is no faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable

BURST_SECS = 0.05

_ALMOST = 1.0 - 1e-9
"""What counts as a token: a sum of fractions may come to a little less than 1."""


class Rate:
    """A bucket of tokens, for one thread at a time."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._clock = per_second, clock
        self._most = max(per_second * BURST_SECS, 1.0)
        self._tokens, self._at = 1.0, clock()
        self._waited_secs, self._since = 0.0, clock()
        self._is_awaited = False

    def _fill(self) -> None:
        now = self._clock()
        self._tokens = min(self._tokens + (now - self._at) * self._per_second, self._most)
        self._at = now

    @property
    def available(self) -> int:
        """How many calls may begin now."""
        self._fill()
        return int(self._tokens + 1.0 - _ALMOST)

    def wait_secs(self) -> float:
        """Return how long it takes until a call may begin; 0: one may."""
        self._fill()
        self._note(is_awaited=self._tokens < _ALMOST)
        return (1.0 - self._tokens) / self._per_second if self._is_awaited else 0.0

    def _note(self, *, is_awaited: bool) -> None:
        if self._is_awaited:
            self._waited_secs += self._at - self._since
        self._since, self._is_awaited = self._at, is_awaited

    def take_waited_secs(self) -> float:
        """Return how long calls have waited for the rate since this was asked last."""
        waited, self._waited_secs, self._is_awaited = self._waited_secs, 0.0, False
        return waited

    def take(self) -> None:
        """Begin a call, of which `wait_secs` has said that it may."""
        self._tokens -= 1.0
