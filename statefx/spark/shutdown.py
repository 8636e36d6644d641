"""SIGTERM ends a process as `Query.stop` ends a query: nothing is left half done."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from typing import Protocol


class Stoppable(Protocol):
    """What has a ``stop``."""

    def stop(self) -> None:
        """Stop and return when stopped."""


_running: weakref.WeakSet[Stoppable] = weakref.WeakSet()


def stop_on_sigterm(query: Stoppable) -> None:
    """Stop `query` when the process is asked to terminate; leaves a handler of the user's own alone.

    Handlers can be set in the main thread only; a query submitted elsewhere is not covered.
    """
    _running.add(query)
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: object) -> None:
    """Begin the end; a second signal ends the process at once."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_stop_all, name="statefx-terminate").start()


def _stop_all() -> None:
    """Stop every query, then end the process as the signal would have; not in the handler, which must not wait."""
    for query in list(_running):
        query.stop()
    os.kill(os.getpid(), signal.SIGTERM)
