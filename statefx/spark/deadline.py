"""The time an attempt may take."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from statefx.runtime import restoring

logger = logging.getLogger("statefx")

AGAIN_SECS = 1.0
RESTORES_MAX = 20
"""How many times the timeout begins anew for state that is being restored: a restore that hangs shows itself too."""


class Deadline:
    """Calls `cancel` when the block it guards has run for too long.

    While state is being restored the timeout begins anew, at most `RESTORES_MAX` times.

    Parameters
    ----------
    timeout_secs : float
    folder : str
        Where restoring tasks show themselves (`restoring.folder`).
    cancel : callable
        Called from a thread of its own, and again every `AGAIN_SECS` while the block lasts: a job that had not begun
        the first time can't have been cancelled.
    """

    def __init__(self, timeout_secs: float, folder: str, cancel: Callable[[], None]) -> None:
        self._timeout_secs = timeout_secs
        self._folder = folder
        self._cancel = cancel
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._restores = 0
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

    def _arm(self, secs: float) -> None:
        self._timer = threading.Timer(secs, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _expire(self) -> None:
        with self._lock:
            if self._timer is None:
                return
            tasks = [] if self.passed else restoring.under_way(self._folder)
            if tasks and self._restores < RESTORES_MAX:
                self._restores += 1
                logger.warning(
                    "state of %s is being restored: the transaction's timeout of %g s begins anew (%d of %d times); "
                    "if it hangs, look at the checkpoint's file system and the state provider's server",
                    ", ".join(tasks),
                    self._timeout_secs,
                    self._restores,
                    RESTORES_MAX,
                )
                self._arm(self._timeout_secs)
                return
            self.passed = True
            self._arm(AGAIN_SECS)
        self._cancel()
