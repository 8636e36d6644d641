"""Tells the driver that a task is restoring state, through a file that is touched while it does.

A transaction's timeout does not count that time. Only a restore of more than a second shows.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator

EVERY_SECS = 1.0
FRESH_SECS = 10.0


def folder(location: str) -> str:
    """Return where the files of a checkpoint's restoring tasks are."""
    return os.path.join(location, "restoring")


@contextlib.contextmanager
def restoring(folder: str, name: str) -> Iterator[None]:
    """Show that the task `name` is restoring for as long as the block lasts.

    Parameters
    ----------
    folder : str
        From `folder`.
    name : str
        The task's, a dash, and what makes it unique to this attempt.
    """
    path = os.path.join(folder, name)
    _watch()
    _active[path] = time.monotonic()
    try:
        yield
    finally:
        del _active[path]
        if path in _shown:
            _shown.discard(path)
            with contextlib.suppress(OSError):
                os.unlink(path)


_active: dict[str, float] = {}
"""Files of this process's restoring tasks, and since when each restores."""

_shown: set[str] = set()
_watching = False


def _watch() -> None:
    """Start the thread that shows what takes long; one a process: a thread a task would cost too much."""
    global _watching  # noqa: PLW0603 - one thread per process
    if not _watching:
        _watching = True
        threading.Thread(target=_show, name="statefx-restoring", daemon=True).start()


def _show() -> None:
    while True:
        time.sleep(EVERY_SECS)
        for path, since in list(_active.items()):
            if time.monotonic() - since >= EVERY_SECS:
                _shown.add(path)
                with contextlib.suppress(OSError):
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    with open(path, "w", encoding="ascii"):
                        os.utime(path)


def under_way(folder: str, clock: Callable[[], float] = time.time) -> list[str]:
    """Return the tasks that have shown within the last `FRESH_SECS` that they are restoring; forget dead ones."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                if clock() - entry.stat().st_mtime <= FRESH_SECS:
                    found.append(entry.name.rpartition("-")[0])
                else:
                    os.unlink(entry.path)
    return sorted(found)
