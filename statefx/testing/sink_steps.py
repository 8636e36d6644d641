"""The moments at which the contract of sinks has drivers die, stop, or meet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import patch

from statefx.storage import FolderStorage
from statefx.testing.crashes import Crash


class At:
    """Calls something at the n-th step; or crashes there, and at each one from there on, as who is dead."""

    def __init__(self, at: int, do: Callable[[], None] | None = None) -> None:
        self._left, self._do = at, do
        self.passed = False

    def __call__(self) -> None:
        """Count this step."""
        self._left -= 1
        self.passed = self._left <= 0
        if self.passed and self._do is None:
            raise Crash
        if self._left == 0 and self._do is not None:
            self._do()


@contextmanager
def folder_steps(step: Callable[[], None]) -> Iterator[None]:
    """Call `step` before every change in a folder."""
    create, delete, writer = FolderStorage.create, FolderStorage.delete, FolderStorage.writer

    def created(self: FolderStorage, name: str, data: bytes) -> None:
        step()
        create(self, name, data)

    def deleted(self: FolderStorage, names: Any) -> None:
        for name in names:
            step()
            delete(self, [name])

    def written(self: FolderStorage, *arguments: Any) -> AbstractContextManager[Any]:
        step()
        return writer(self, *arguments)

    with ExitStack() as stack:
        for name, stepped in [("create", created), ("delete", deleted), ("writer", written)]:
            stack.enter_context(patch.object(FolderStorage, name, stepped))
        yield


TOGETHER_SECS = 2
"""So long one waits for the other, which may be waiting for a lock that this one holds."""


class Together:
    """Two threads go on at a step when both have come to it, so that both have looked before one writes."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2)

    def __call__(self) -> None:
        """Wait for the other thread."""
        with suppress(threading.BrokenBarrierError):
            self._barrier.wait(TOGETHER_SECS)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        """Leave the other one alone: it waits for nobody any more."""
        self._barrier.abort()
