"""Sends orders to tasks: a small one travels with the job, a large one is a file that each task reads."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from uuid import uuid4

import msgspec

from statefx.coordinator.engine import JobFailedError
from statefx.plan.levels import Plan
from statefx.protocol.identity import TaskId
from statefx.protocol.order import Head, Order, ResolutionOrder, lines_of, runs_of
from statefx.storage import Storage

FOLDER = "orders/"

CARRIED_BYTES_MAX = 32 << 10
"""Bytes of lines that travel with the job, of some 200 stateful tasks: Spark copies them into the description of every
task. Beyond it the driver would send more for each job than it takes to write one file and to read it in each task
(at 200 tasks 6 MB; it grows with the square)."""


class OrderSender:
    """Sends the orders of one driver.

    A file is there for as long as its job runs, and nothing relies on it: a task that can't read it fails as one whose
    storage can't be reached, and the attempt is made again. So a late task of a job that is over (rule 6.1) does not
    even begin.
    """

    def __init__(self, plan: Plan, storage: Storage, carried_bytes_max: int = CARRIED_BYTES_MAX) -> None:
        self._plan = plan
        self._storage = storage
        self._carried_bytes_max = carried_bytes_max

    @contextlib.contextmanager
    def sent(self, order: Order | ResolutionOrder) -> Iterator[str]:
        """Yield the text that the tasks of a job are given, for as long as the job runs; JobFailedError without it."""
        lines = lines_of(order, order.tasks if isinstance(order, ResolutionOrder) else self._plan.stateful)
        if len(lines) <= self._carried_bytes_max:
            yield self._head(order) + lines
            return
        # The generation is first in the name: a successor sweeps by it, without opening a file.
        name = f"{FOLDER}{order.generation}-{order.attempt.txid}-{order.attempt.attempt}-{uuid4().hex}"
        data = lines.encode()
        try:
            self._storage.put(name, data)
        except OSError as error:
            raise JobFailedError(f"the order of {order.attempt} could not be written: {error}") from error
        try:
            yield self._head(order, name, zlib.crc32(data))
        finally:  # rule 6.1: a late task of this job finds no line, and does not begin
            with contextlib.suppress(OSError):  # a successor sweeps it
                self._storage.delete([name])

    def _head(self, order: Order | ResolutionOrder, file: str = "", checksum: int = 0) -> str:
        return _head(self._plan, order, order.tasks if isinstance(order, ResolutionOrder) else (), file, checksum)


def text_for(plan: Plan, order: Order | ResolutionOrder, tasks: Sequence[TaskId]) -> str:
    """Return an order as far as it concerns some tasks."""
    if isinstance(order, ResolutionOrder):
        return _head(plan, order, tasks) + lines_of(order, tasks)
    own = replace(
        order,
        emissions={task: order.emissions[task] for task in tasks if task in order.emissions},
        times={task: order.times[task] for task in tasks if task in order.times},
    )
    return _head(plan, order) + lines_of(own, [task for task in tasks if task in plan.stateful_number])


def _head(
    plan: Plan, order: Order | ResolutionOrder, tasks: Sequence[TaskId] = (), file: str = "", checksum: int = 0
) -> str:
    resolution = order.resolution if isinstance(order, ResolutionOrder) else None
    runs = runs_of([plan.stateful_number[task] for task in tasks])
    ticks = order.ticks if isinstance(order, Order) else ()
    head = Head(order.attempt, order.generation, resolution, runs, file, checksum, order.clock_ms, ticks)
    return msgspec.json.encode(head).decode()


def sweep(storage: Storage, generation: int) -> None:
    """Delete the orders of drivers before `generation`, which died while a job ran."""
    names = [each.name for each in storage.list(FOLDER)]
    storage.delete([name for name in names if _generation(name, generation) < generation])


def _generation(name: str, other: int) -> int:
    """Return the generation in an order's name; `other` for what is no order, such as a file of the user's."""
    number = name.removeprefix(FOLDER).partition("-")[0]
    return int(number) if number.isdecimal() else other
