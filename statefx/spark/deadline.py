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


class Deadline:
    """Calls `cancel` when the block it guards has run for too long; time in which state is restored is added.

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
            if not self.passed and restoring.under_way(self._folder):
                logger.info("the transaction's timeout begins anew: state is being restored")
                self._arm(self._timeout_secs)
                return
            self.passed = True
            self._arm(AGAIN_SECS)
        self._cancel()
