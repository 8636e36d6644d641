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
        Unique to this task attempt.
    """
    done = threading.Event()
    path = os.path.join(folder, name)

    def show() -> None:
        while not done.wait(EVERY_SECS):
            with contextlib.suppress(OSError):
                os.makedirs(folder, exist_ok=True)
                with open(path, "w", encoding="ascii"):
                    os.utime(path)

    thread = threading.Thread(target=show, name=f"statefx-restoring-{name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        with contextlib.suppress(OSError):
            os.unlink(path)


def under_way(folder: str, clock: Callable[[], float] = time.time) -> bool:
    """Tell whether any task has shown within the last `FRESH_SECS` that it is restoring; forget dead ones."""
    found = False
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                if clock() - entry.stat().st_mtime <= FRESH_SECS:
                    found = True
                else:
                    os.unlink(entry.path)
    return found
