"""The time an attempt may take."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from statefx.runtime import restoring
from statefx.storage import Storage

logger = logging.getLogger("statefx")

AGAIN_SECS = 1.0
RESTORE_MAX_SECS = 3600.0
"""How long state may be restored before that counts: a restore that hangs shows itself as under way too."""


class Deadline:
    """Calls `cancel` when the block it guards has run for too long.

    While state is being restored the timeout begins again, for `RESTORE_MAX_SECS`.

    Parameters
    ----------
    timeout_secs : float
    storage : Storage
        The checkpoint, in which restoring tasks show themselves.
    cancel : callable
        Called from a thread of its own, and again every `AGAIN_SECS` while the block lasts: a job that had not begun
        the first time can't have been cancelled.
    """

    def __init__(self, timeout_secs: float, storage: Storage, cancel: Callable[[], None]) -> None:
        self._timeout_secs = timeout_secs
        self._storage = storage
        self._cancel = cancel
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._restoring_secs = 0.0
        self._tasks: list[str] = []
        self.passed = False

    def __enter__(self) -> Self:
        self._arm(self._timeout_secs)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None

    def timeout_message(self) -> str:
        """Say what took too long."""
        text = f"it took longer than topology.transaction.timeout.secs ({self._timeout_secs:g} s)"
        if self._tasks:
            text += (
                f"; state of {', '.join(self._tasks)} was still being restored after {self._restoring_secs:g} s: look "
                "at the checkpoint's file system and the state provider's server, or raise the timeout"
            )
        return text

    def _arm(self, secs: float) -> None:
        self._timer = threading.Timer(secs, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _expire(self) -> None:
        with self._lock:
            if self._timer is None:
                return
            # Rule 6.9: asked when the time is over and not before: a transaction in time costs no request.
            self._tasks = self._tasks if self.passed else restoring.under_way(self._storage)
            if self._tasks and not self.passed and self._restoring_secs < RESTORE_MAX_SECS:
                self._restoring_secs += self._timeout_secs
                logger.warning(
                    "state of %s is being restored, for %g s or less: the transaction's timeout of %g s starts again",
                    ", ".join(self._tasks),
                    self._restoring_secs,
                    self._timeout_secs,
                )
                self._arm(self._timeout_secs)
                return
            self.passed = True
            self._arm(AGAIN_SECS)
        self._cancel()  # without the lock: it calls into the JVM, and the block may end meanwhile
