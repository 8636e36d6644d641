"""Where a tool does the pieces of its work: here and one by one, or at the same time on executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

P = TypeVar("P")
R = TypeVar("R")

Told = Callable[[int], object]
"""Is given how many bytes of entries were read or written since it was last called."""


class Workers(Protocol):
    """Who does pieces of work."""

    @property
    def slots(self) -> int:
        """How many are done at the same time."""

    def run(self, work: Callable[[P, Told], R], pieces: Sequence[P], told: Told) -> Iterable[R]:
        """Yield what `work` returns for each piece, in any order; an error of statefx comes as it was raised.

        A piece may be done more than once, and at the same time: of what is returned one is taken.
        """


class Here:
    """Does them in this process, one by one."""

    slots = 1

    def run(self, work: Callable[[P, Told], R], pieces: Sequence[P], told: Told) -> Iterable[R]:
        """Yield what `work` returns for each piece."""
        return (work(piece, told) for piece in pieces)
