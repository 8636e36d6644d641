"""Waiting for a condition, with a limit."""

import threading
import time

LIMIT_SECS = 20.0


def wait_until(condition):
    """Return whether a condition becomes true within `LIMIT_SECS`."""
    end, pause = time.monotonic() + LIMIT_SECS, threading.Event()
    while not condition():
        if time.monotonic() > end:
            return False
        pause.wait(0.01)
    return True
