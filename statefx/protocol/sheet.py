"""An order on its way to its tasks: a head that each of them reads, and one line for each that is told something.

::

    {"txid":7,"attempt":0,"generation":2,"width":96}        the head
    5d1e0a91["count/0",6,"3f...",0,"",0]                    line 0, padded to the width of the longest
    77ab31c4["count/1",6,"9c...",0,"",0]                    line 1

Lines of one width need no index: a task computes where its own line is, and reads nothing else. Where there are many,
the lines are in a file and the head names it. A task of 10,000 had to parse 1.4 MB before, in 43 ms.

Each line has its own checksum, as no task ever reads the whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from json.encoder import encode_basestring_ascii as quoted
from typing import Any
from zlib import crc32

from statefx.protocol.commands import Resolution
from statefx.protocol.identity import EMPTY, SnapshotRef, TaskId, TransactionAttempt, Version
from statefx.protocol.jsonform import Json
from statefx.protocol.order import Emission, EmissionOrder, Order, ResolutionOrder, StateOrder

_CRC_DIGITS = 8
_EMPTY = '0,""'

Runs = tuple[tuple[int, int], ...]
"""Numbers in order, as (first, how many in a row)."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """One order as text.

    Attributes
    ----------
    attempt : TransactionAttempt
    generation : int
    width : int
        Bytes of each line.
    lines : str
        All of them, or none if they are in a file.
    file : str
        The file's name in the storage; empty if there is none.
    resolution : Resolution or None
        Of a ResolutionOrder.
    tasks : tuple of (int, int)
        Of a ResolutionOrder, who takes part: runs of numbers of stateful tasks. Line i is for the i-th of them.
    """

    attempt: TransactionAttempt
    generation: int
    width: int = 0
    lines: str = ""
    file: str = ""
    resolution: Resolution | None = None
    tasks: Runs = ()

    def filed(self, name: str) -> Sheet:
        """Return the sheet as it travels when its lines are in the file `name`."""
        return replace(self, lines="", file=name)

    def text(self) -> str:
        """Write it; `parse` reads it."""
        head: dict[str, Json] = {
            "txid": self.attempt.txid,
            "attempt": self.attempt.attempt,
            "generation": self.generation,
            "width": self.width,
        }
        more = {"file": self.file, "resolution": self.resolution, "tasks": self.tasks}
        head |= {name: value for name, value in more.items() if value}
        return f"{json.dumps(head, separators=(',', ':'))}\n{self.lines}"

    @classmethod
    def parse(cls, text: str) -> Sheet:
        """Read what `text` wrote; the lines stay as they are."""
        end = text.index("\n")
        head = json.loads(text[:end])
        resolution = head.get("resolution")
        return cls(
            TransactionAttempt(head["txid"], head["attempt"]),
            head["generation"],
            head["width"],
            text[end + 1 :],
            head.get("file", ""),
            None if resolution is None else Resolution(resolution),
            tuple((first, count) for first, count in head.get("tasks", ())),
        )

    def task_number(self, place: int) -> int:
        """Return the number of the stateful task that is at `place` among those that take part."""
        for first, count in self.tasks:
            if place < count:
                return first + place
            place -= count
        raise IndexError(place)

    def span(self, line: int) -> tuple[int, int]:
        """Where a line begins and ends."""
        return line * self.width, (line + 1) * self.width


def sheet_of(order: Order | ResolutionOrder, tasks: Sequence[TaskId], runs: Runs = ()) -> Sheet:
    """Write an order for `tasks`, a line each; behind them stand the tasks of spouts."""
    lines = [_line(task, order.state(task)) for task in tasks]
    if isinstance(order, Order):
        lines += [_emission_line(task, order.emissions[task]) for task in sorted(order.emissions)]
    width = max(map(len, lines), default=0)
    resolution = order.resolution if isinstance(order, ResolutionOrder) else None
    padded = "".join([line.ljust(width) for line in lines])
    return Sheet(order.attempt, order.generation, width, padded, resolution=resolution, tasks=runs)


def runs_of(numbers: Sequence[int]) -> Runs:
    """Return numbers, in their order, as runs.

    >>> runs_of([0, 1, 2, 7, 3])
    ((0, 3), (7, 1), (3, 1))
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return tuple((first, count) for first, count in runs)


def _line(task: TaskId, state: StateOrder) -> str:
    """Write one line; by hand, as the driver writes one for every task: `json.dumps` takes four times as long."""
    body = f"[{quoted(str(task))},{_version(state.version)},{_version(state.previous)},{state.snapshot_due:d}"
    if (snapshot := state.snapshot) is not None:
        body += f",{_version(snapshot.version)},{quoted(snapshot.checksum)},{snapshot.size_bytes}"
    return _checked(body + "]")


def _emission_line(task: TaskId, order: EmissionOrder) -> str:
    # As it is: `check_json` has seen all metadata. `to_json` would take 31 ms for 10,000 partitions, and this takes 7.
    told = [str(task), order.emission, order.cleanup_before, order.partitions]
    return _checked(json.dumps(told, separators=(",", ":")))


def _checked(body: str) -> str:
    return f"{crc32(body.encode('ascii')):0{_CRC_DIGITS}x}{body}"


def _version(version: Version) -> str:
    return _EMPTY if version is EMPTY else f"{version.txid},{quoted(version.token)}"


def read_line(line: str, task: TaskId) -> StateOrder:
    """Read the line of `task`.

    Raises
    ------
    ValueError
        It is damaged, or another task's.
    """
    txid, token, previous_txid, previous_token, due, *snapshot = _read(line, task)
    return StateOrder(
        Version(txid, token),
        SnapshotRef(Version(*snapshot[:2]), *snapshot[2:]) if snapshot else None,
        bool(due),
        Version(previous_txid, previous_token),
    )


def read_emission(line: str, task: TaskId) -> EmissionOrder:
    """Read the line of a spout's `task`; raises as `read_line`."""
    emission, cleanup_before, partitions = _read(line, task)
    return EmissionOrder(Emission(emission), partitions, cleanup_before)


def _read(line: str, task: TaskId) -> list[Any]:
    crc, body = line[:_CRC_DIGITS], line[_CRC_DIGITS:].rstrip()
    if crc != f"{crc32(body.encode()):0{_CRC_DIGITS}x}":
        raise ValueError(f"what the order says of {task} is damaged")
    told: list[Any] = json.loads(body)
    if told[0] != str(task):
        raise ValueError(f"the order has {told[0]} where {task} was expected")
    return told[1:]
