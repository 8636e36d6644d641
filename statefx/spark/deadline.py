"""The time an attempt may take."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from statefx.coordinator.runs import Extension
from statefx.runtime import restoring
from statefx.storage import Storage

POLL_SECS = 1.0
"""How often it is asked whether the job waits for slots. A job that is quicker costs no request."""
AGAIN_SECS = 1.0


class Deadline:
    """Calls `cancel` when the block it guards has run for too long.

    Time in which the job waits for slots that other jobs hold does not count: of several transactions under way, the
    last one may wait for all others. While state is being restored the timeout begins again, for an hour at most
    (`Extension`). Restoring tasks show themselves in `storage`.

    `cancel` is called from a thread of its own, and again every `AGAIN_SECS` while the block lasts: a job that had not
    begun the first time can't have been cancelled. The same thread asks `waits` whether the job waits for slots.
    """

    def __init__(
        self, timeout_secs: float, storage: Storage, cancel: Callable[[], None], waits: Callable[[], bool]
    ) -> None:
        self._timeout_secs = timeout_secs
        self._cancel = cancel
        self._waits = waits
        self._left_secs = timeout_secs
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._extension = Extension(timeout_secs, lambda: restoring.under_way(storage))
        self.timeout_message = self._extension.timeout_message
        self.passed = False

    def __enter__(self) -> Self:
        self._arm(min(self._left_secs, POLL_SECS))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None

    def _arm(self, secs: float) -> None:
        self._timer = threading.Timer(secs, self._tick, (secs,))
        self._timer.daemon = True
        self._timer.start()

    def _tick(self, secs: float) -> None:
        """Count the last `secs`, and cancel if there is no time left."""
        waited = not self.passed and self._waits()  # without the lock: it calls into the JVM
        with self._lock:
            if self._timer is None:
                return
            self._left_secs -= 0.0 if waited else secs
            if self._left_secs > 0 or self._puts_off():
                self._arm(min(self._left_secs, POLL_SECS))
                return
            self.passed = True
            self._arm(AGAIN_SECS)
        self._cancel()  # without the lock: it calls into the JVM, and the block may end meanwhile

    def _puts_off(self) -> bool:
        """Tell whether the timeout begins again, because state is being restored."""
        if self.passed or not self._extension.grant():
            return False
        self._left_secs = self._timeout_secs
        return True
