"""The end of the driver's process: SIGTERM stops its queries; a script that just ends is told what it leaves."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
import weakref
from typing import Protocol

logger = logging.getLogger("statefx")

_PROGRAM_SECS = 10.0
"""How long the program may go on when its queries have been stopped; one that serves something else would never end."""


class Stoppable(Protocol):
    """A query, as far as the end of its process goes."""

    name: str

    @property
    def isActive(self) -> bool:
        """Whether it runs."""

    def stop(self) -> None:
        """Stop and return when stopped."""


_running: weakref.WeakSet[Stoppable] = weakref.WeakSet()


def watch(query: Stoppable) -> None:
    """Stop `query` when the process is asked to terminate, and say so if the process ends while it runs.

    A handler of the user's own is left alone. Handlers can be set in the main thread only: a query that is submitted
    elsewhere is not stopped.
    """
    _running.add(query)
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


@atexit.register
def _tell() -> None:
    """Say which queries end with the process: threads of a query don't keep it alive."""
    for query in list(_running):
        if query.isActive:
            logger.warning(
                "query %r was running when the script ended, and ended with it; the next submit goes on after the last "
                "committed transaction. Let it run with query.awaitTermination(), or end it with query.stop()",
                query.name,
            )


def _terminate(number: int, frame: object) -> None:
    """Begin the end; a second signal ends the process at once."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # No daemon: the process must live until the queries have ended.
    threading.Thread(target=_stop_all, name="statefx-terminate").start()


def _stop_all() -> None:
    """Stop every query, then end the process as the signal would have; not in the handler, which must not wait.

    By the signal and not with exit code 0: a supervisor takes both for a clean end, but a Job of Kubernetes, or a
    pipeline, that was evicted half way would count as complete with 0.
    """
    for query in list(_running):
        query.stop()
    threading.main_thread().join(_PROGRAM_SECS)  # it goes on behind `awaitTermination`
    os.kill(os.getpid(), signal.SIGTERM)
