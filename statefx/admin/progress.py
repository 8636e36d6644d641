"""Tells how far a tool has come that reads and writes the state of tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from statefx.admin.reading import Progress
from statefx.coordinator.savepoints import stored_bytes
from statefx.protocol.identity import TaskId
from statefx.protocol.records import Pin
from statefx.state.contract.ranges import Block, in_blocks
from statefx.state.contract.store import StateStore


def telling(blocks: Iterable[Block], told: Callable[[int], object]) -> Iterator[Block]:
    """Pass blocks on, and tell the bytes of each."""
    for keys, values in blocks:
        yield keys, values
        told(sum(map(len, keys)) + sum(map(len, values)))


@dataclass
class ProgressMeter:
    """Counts the bytes of entries that go through it, and tells `progress` of each block.

    Parameters
    ----------
    progress : callable (done, total), or None
    total : int
        About how many bytes there will be; where there are more, the total grows with them.
    """

    progress: Progress | None
    total: int
    _done: int = field(default=0, init=False)

    @classmethod
    def of(
        cls, progress: Progress | None, pin: Pin, passes: int, bolts: Collection[str] | None = None
    ) -> ProgressMeter:
        """Return a meter for the state of `bolts` (None: all), each byte of which is read or written `passes` times."""
        tasks = [name for name in pin.heads if bolts is None or TaskId.parse(name).component in bolts]
        return cls(progress, passes * sum(stored_bytes(pin, name) for name in tasks))

    def blocks(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Pass blocks on, and tell of each."""
        return telling(blocks, self.add)

    def add(self, size: int) -> None:
        """Tell that so many bytes more are done."""
        self._done += size
        if self.progress is not None:
            self.progress(self._done, max(self._done, self.total))

    def end(self) -> None:
        """Tell that all is done: the total was an estimate."""
        if self.progress is not None:
            self.progress(self._done, self._done)


@dataclass(frozen=True)
class Metered:
    """Entries that are told to a meter when they are read."""

    store: StateStore
    meter: ProgressMeter

    def scan(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) with start <= key < stop."""
        for keys, values in self.meter.blocks(in_blocks(self.store.scan(start, stop))):
            yield from zip(keys, values, strict=True)
