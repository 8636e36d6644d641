"""A folder on the driver's machine that belongs to one run of one process, and does not outlive it for long."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress

_LOCK = "lock"
_CONTENT = "content"


class RunFolder:
    """A folder that nobody else uses.

    Its process holds a lock on it, which the kernel takes away when the process has died, and not when it is merely
    stopped: so the folder of a driver that was replaced while it slept is left alone until it has ended. A process id
    would not do: it may be another process's by now, and means nothing in another container.

    Parameters
    ----------
    above : str
        Where to make it; folders there whose process has died are deleted first.
    name : str
        How its name begins.

    Raises
    ------
    OSError
        It can't be made.
    """

    def __init__(self, above: str, name: str) -> None:
        os.makedirs(above, exist_ok=True)
        # one process at a time: else a folder could be taken for a dead one's before its own process has locked it
        beginning = os.open(os.path.join(above, _LOCK), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(beginning, fcntl.LOCK_EX)
            sweep(above)
            self._root = tempfile.mkdtemp(prefix=f"{name}-", dir=above)
            self._lock = os.open(os.path.join(self._root, _LOCK), os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        finally:
            os.close(beginning)
        self.path = os.path.join(self._root, _CONTENT)
        os.mkdir(self.path)

    def remove(self) -> None:
        """Delete it; whatever the JVM still writes there is deleted by the next one that begins."""
        shutil.rmtree(self._root, ignore_errors=True)
        os.close(self._lock)


def sweep(above: str) -> None:
    """Delete folders of processes that have died."""
    for name in os.listdir(above):
        root = os.path.join(above, name)
        if not os.path.isdir(root):
            continue
        with suppress(OSError):  # of another user, or deleted meanwhile
            lock = os.open(os.path.join(root, _LOCK), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(root, ignore_errors=True)
            finally:
                os.close(lock)
