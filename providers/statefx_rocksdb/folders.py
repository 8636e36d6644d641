"""Locks and private folders on a machine that several processes share, each of which may die or stop."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

_PAUSE_SECS = 0.01
_NEVER = threading.Event()
_PREFIX = "private-"
_OWNER = "owner"
_stuck: set[str] = set()
"""Locks that others did not free in time: not waited for again until they are free."""


@contextlib.contextmanager
def locked(
    path: str,
    timeout_secs: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = _NEVER.wait,
) -> Iterator[bool]:
    """Hold the lock file `path`; yields False if it was not to be had in `timeout_secs`.

    The kernel frees it when its holder dies, but not when the holder is stopped: a wait has to end.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = clock() + (0 if path in _stuck else timeout_secs)
        held = _try_lock(descriptor)
        while not held and clock() < deadline:
            pause(_PAUSE_SECS)
            held = _try_lock(descriptor)
        (_stuck.discard if held else _stuck.add)(path)
        yield held
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class PrivateFolder:
    """A folder of one process, deleted at `close`, or by `sweep` when its process has died.

    Without a `parent` it is among the system's temporary folders.
    """

    def __init__(self, parent: str | None) -> None:
        if parent is not None:
            os.makedirs(parent, exist_ok=True)
        self.path = tempfile.mkdtemp(prefix=_PREFIX if parent else "statefx-", dir=parent)
        owner = os.path.join(self.path, _OWNER)
        self._descriptor = os.open(f"{owner}.new", os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        os.rename(f"{owner}.new", owner)

    def join(self, name: str) -> str:
        """Return the path of `name` in the folder."""
        return os.path.join(self.path, name)

    def close(self) -> None:
        """Delete the folder and all in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def sweep(parent: str) -> None:
    """Delete the private folders in `parent` whose processes have died."""
    for name in os.listdir(parent):
        if name.startswith(_PREFIX):
            _sweep(os.path.join(parent, name))


def _sweep(folder: str) -> None:
    try:
        descriptor = os.open(os.path.join(folder, _OWNER), os.O_RDWR)
    except OSError:
        return
    try:
        if _try_lock(descriptor):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
