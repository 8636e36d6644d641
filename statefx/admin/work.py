"""The work of tools that read and write the state of tasks: where its pieces are done, and how far it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from statefx.admin.reading import Progress
from statefx.log.pins import stored_bytes
from statefx.protocol.identity import TaskId
from statefx.protocol.records import Pin
from statefx.state.contract.ranges import Block

P = TypeVar("P")
R = TypeVar("R")

Report = Callable[[int], object]
"""Called with the bytes of entries that were read or written since its last call."""

PASSES = 3
"""State is read to be counted, routed or sorted; read to be written; and read back."""


class Workers(Protocol):
    """Where pieces of work are done."""

    @property
    def slots(self) -> int:
        """How many pieces are done at the same time."""

    def run(self, work: Callable[[P, Report], R], pieces: Sequence[P], report: Report) -> Iterable[R]:
        """Yield what `work` returns for each piece, in any order; an error of statefx comes as it was raised.

        A piece may be done more than once, and at the same time: of what is returned one is taken.
        """


class Here:
    """Pieces are done one by one, in this process."""

    slots = 1

    def run(self, work: Callable[[P, Report], R], pieces: Sequence[P], report: Report) -> Iterable[R]:
        return (work(piece, report) for piece in pieces)


def metered(blocks: Iterable[Block], report: Report) -> Iterator[Block]:
    """Pass blocks on, and report the bytes of each once it was used."""
    for keys, values in blocks:
        yield keys, values
        report(sum(map(len, keys)) + sum(map(len, values)))


@dataclass
class ProgressMeter:
    """Adds up bytes of entries, and calls `progress` for each block."""

    progress: Progress | None
    total: int
    """About how many bytes there will be; where there are more, the total grows with them."""
    _done: int = field(default=0, init=False)

    @classmethod
    def of(cls, progress: Progress | None, pin: Pin, bolts: Collection[str]) -> ProgressMeter:
        tasks = [name for name in pin.heads if TaskId.parse(name).component in bolts]
        return cls(progress, PASSES * sum(stored_bytes(pin, name) for name in tasks))

    def add(self, size: int) -> None:
        self._done += size
        if self.progress is not None:
            self.progress(self._done, max(self._done, self.total))

    def end(self) -> None:
        """Report that all is done: the total was an estimate."""
        if self.progress is not None:
            self.progress(self._done, self._done)
