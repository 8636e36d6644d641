"""Tells the driver that a task is restoring state, through a file of the checkpoint that is written while it does.

A transaction's timeout does not count that time (rule 6.9). If it did, a restore that takes longer than the limit would
be cancelled and begun again by every attempt, until no try is left: a topology with much state could not come back
after a lost executor. Spark tells the driver nothing of a task before it ends, so a file does. Only a restore of more
than a second writes one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from statefx.storage import Storage

EVERY_SECS = 1.0
FRESH_SECS = 10.0
"""How old a marker may be: a file server may need seconds to show what was written elsewhere, and clocks differ."""

FOLDER = "restoring/"


@contextlib.contextmanager
def restoring(storage: Storage, task: str) -> Iterator[None]:
    """Show that a task is restoring for as long as the block lasts; `task`: its name, a dash, its token."""
    marker = storage, FOLDER + task
    _watch()
    _active[marker] = time.monotonic()
    try:
        yield
    finally:
        del _active[marker]
        if marker in _shown:
            _shown.discard(marker)
            with contextlib.suppress(OSError):  # one that stays is too old in `FRESH_SECS`
                storage.delete([marker[1]])


_Marker = tuple[Storage, str]

_active: dict[_Marker, float] = {}
"""This process's restoring tasks, and since when each restores."""

_shown: set[_Marker] = set()
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
        for marker, since in list(_active.items()):
            if time.monotonic() - since >= EVERY_SECS:
                _shown.add(marker)
                storage, name = marker
                with contextlib.suppress(OSError):  # the worst that follows is a timeout: nothing relies on a marker
                    storage.put(name, b"")


def under_way(storage: Storage, clock: Callable[[], float] = time.time) -> list[str]:
    """Return the tasks that have shown within the last `FRESH_SECS` that they are restoring; forget dead ones."""
    found, dead = [], []
    with contextlib.suppress(OSError):
        for each in storage.list(FOLDER):
            if clock() - each.modified <= FRESH_SECS:
                found.append(each.name.removeprefix(FOLDER).rpartition("-")[0])
            else:
                dead.append(each.name)
        storage.delete(dead)
    return sorted(found)
