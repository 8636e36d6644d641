"""Makes a call that changes a local disk for good the last one: for caches, which are files and not in a storage."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from statefx.testing import Crash

STEPS = ("fsync", "rename", "replace", "link", "unlink", "mkdir")
"""The functions of `os` at which what is on disk changes for good."""


class CrashPoint:
    """Crashes at the moment number `at`; there is one before and one after each durable step.

    Attributes
    ----------
    hit : str | None
        The moment it crashed at; None if there were fewer.
    """

    def __init__(self, at: int) -> None:
        self._left = at
        self.hit: str | None = None

    def pass_by(self, moment: str) -> None:
        """Crash if this is the moment. Once crashed, the process does nothing more."""
        self._left -= 1
        if self._left <= 0:
            self.hit = self.hit or moment
            raise Crash(moment)


@contextlib.contextmanager
def crashing(at: int) -> Iterator[CrashPoint]:
    """Crash in the block at moment `at`, counted from 1."""
    point = CrashPoint(at)
    originals = {name: getattr(os, name) for name in STEPS}

    def wrapped(name: str) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            point.pass_by(f"before {name}")
            result = originals[name](*arguments, **named)
            point.pass_by(f"after {name}")
            return result

        return step

    try:
        for name in STEPS:
            setattr(os, name, wrapped(name))
        with contextlib.suppress(Crash):
            yield point
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
