"""Disks that fail."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FULL = OSError(errno.ENOSPC, "No space left on device")


class Disk:
    """Lets `passing` calls of `os` on paths below one folder pass, then fails as many as are `left`."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, error: OSError = FULL) -> None:
        self.passing = 0
        self.left = 0
        self.failed = 0
        self._folder = str(folder)
        self._error = error
        self._turn = threading.Lock()
        for call in ("fsync", "write"):
            patch.setattr(os, call, self._failing(getattr(os, call)))

    def _failing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(descriptor: int, *more: Any) -> Any:
            with self._turn:
                if self.left and os.readlink(f"/proc/self/fd/{descriptor}").startswith(self._folder):
                    if not self.passing:
                        self.left -= 1
                        self.failed += 1
                        raise self._error
                    self.passing -= 1
            return original(descriptor, *more)

        return call
