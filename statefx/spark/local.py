"""A folder on the driver's machine that belongs to one run of one process, and does not outlive it for long."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import ExitStack, suppress

_LOCK = "lock"
_CONTENT = "content"


class RunFolder:
    """A folder that nobody else uses.

    Its process holds a lock on it, which the kernel takes away when the process has died, and not when it is merely
    stopped: so the folder of a driver that was replaced while it slept is left alone until it has ended. A process id
    would not do: it may be another process's by now, and means nothing in another container. Folders in `above` whose
    process has died are deleted first.
    """

    def __init__(self, above: str, name: str) -> None:
        os.makedirs(above, exist_ok=True)
        sweep(above)
        lock = None
        while lock is None:  # another process that begins may take it for a dead one's before it is locked
            self._root = tempfile.mkdtemp(prefix=f"{name}-", dir=above)
            lock = _lock(self._root)
        self._lock = lock
        # systemd-tmpfiles deletes below /tmp what was not used for days, a source's beginning first, and leaves alone
        # what lies in a locked folder. A shared lock, as NFS gives no other one on what is open for reading.
        self._folder = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):
            fcntl.flock(self._folder, fcntl.LOCK_SH)
        self.path = os.path.join(self._root, _CONTENT)
        os.mkdir(self.path)

    def remove(self) -> None:
        """Delete it; whatever the JVM still writes there is deleted by the next one that begins."""
        shutil.rmtree(self._root, ignore_errors=True)
        os.close(self._lock)
        os.close(self._folder)


def sweep(above: str) -> None:
    """Delete folders of processes that have died."""
    for name in os.listdir(above):
        root = os.path.join(above, name)
        with suppress(OSError):  # of another user
            lock = _lock(root) if os.path.isdir(root) else None
            if lock is not None:
                shutil.rmtree(root, ignore_errors=True)
                os.close(lock)


def _lock(root: str) -> int | None:
    """Lock a folder; None if somebody else has it, or has deleted it.

    Nobody waits here: a driver that was stopped while it begins would keep its successors from beginning.
    """
    path = os.path.join(root, _LOCK)
    with suppress(BlockingIOError, FileNotFoundError), ExitStack() as opened:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        opened.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # who had it may have deleted it, and another one may be there under its name: that one counts
        if os.path.samestat(os.fstat(lock), os.stat(path)):
            opened.pop_all()
            return lock
    return None
