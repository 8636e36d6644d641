"""Trees of tuples: how their roots are numbered, and what tasks and driver say of them.

A root is a number of 63 bits: the transaction that emitted the tuple, the task of a spout that did, and the tuple's
place in what the task emitted. So a task that meets a root can tell how old it is without asking anybody.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

_PLACE_BITS, _TASK_BITS = 18, 10
ROOTS_MAX = 1 << _PLACE_BITS
"""Tuples of one task in one transaction. With 1,024 tasks, 35 bits are left for the transaction: 50 years of 20 a
second."""

SPOUT_TASKS_MAX = 1 << _TASK_BITS

REASONS_MAX, OTHERS = 100, "other reasons"
"""Of why trees have failed, in what one task says: a transaction may fail a hundred thousand, each with a text of its
own."""

TIMED_OUT = "it was not acked within"
"""How the reason begins of a tree that no bolt has failed."""

REASONS_TOLD_MAX = 10 * REASONS_MAX
"""In what a chain of spouts is told, which comes from many tasks."""


def root_of(txid: int, task: int, place: int) -> int:
    """Return the root of a tuple.

    >>> txid_of(root_of(7, 3, 200_000))
    7
    """
    return (txid << _TASK_BITS | task) << _PLACE_BITS | place


def txid_of(root: int) -> int:
    """Return the transaction that has emitted a root."""
    return root >> (_TASK_BITS + _PLACE_BITS)


def task_of(root: int) -> int:
    """Return the number of the task that has emitted a root.

    >>> task_of(root_of(7, 3, 200_000))
    3
    """
    return root >> _PLACE_BITS & SPOUT_TASKS_MAX - 1


class Handled(NamedTuple):
    """What a task of a bolt did with tuples of one tree in one transaction."""

    received: int
    held: int  # from this transaction on
    released: int  # that it held before, and has acked or failed
    failed: int


@dataclass(frozen=True, slots=True)
class TreeReport:
    """What became of trees in one transaction; the default: every tree that began in it has ended well."""

    # Roots of trees that have failed, by why.
    failed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # Roots of trees of earlier transactions that have ended well.
    acked: tuple[int, ...] = ()
    # Roots of trees of this transaction that go on: bolts hold tuples of them.
    held: tuple[int, ...] = ()
    # By task of a spout ("component/task") that has asked: the trees that go on, as (root, id as bytes).
    pending: Mapping[str, tuple[tuple[int, bytes], ...]] = field(default_factory=dict)
    # When the next tree times out, in milliseconds since the epoch; 0: none does.
    due_ms: int = 0
    # By how many tuples more a task of a bolt ("component/task") holds than before the transaction.
    holding: Mapping[str, int] = field(default_factory=dict)
    # With topology.trace: what a task of a bolt did with tuples of trees, by root.
    steps: Mapping[str, Mapping[int, Handled]] = field(default_factory=dict)

    def part_of(self, tasks: Mapping[int, str], restored: Container[int] = ()) -> TreeReport:
        """Return what some tasks of spouts are told, given by number and name.

        They have `restored` too: roots from before the start, when tasks may have had other numbers.
        """

        def own(roots: Iterable[int]) -> tuple[int, ...]:
            # As `task_of`, whose call would take most of the time: the driver does this for each message that is held.
            return tuple(
                [root for root in roots if root >> _PLACE_BITS & SPOUT_TASKS_MAX - 1 in tasks or root in restored]
            )

        failed: dict[str, tuple[int, ...]] = {}
        for reason, roots in self.failed.items():
            if told := own(roots):
                said = reason if len(failed) < REASONS_TOLD_MAX else OTHERS
                failed[said] = failed.get(said, ()) + told
        return TreeReport(
            failed=failed,
            acked=own(self.acked),
            held=own(self.held),
            pending={name: self.pending[name] for name in tasks.values() if name in self.pending},
        )

    def __bool__(self) -> bool:
        """Whether it says anything."""
        said = self.failed or self.acked or self.held or self.pending or self.due_ms
        return bool(said or self.holding or self.steps)


def merged(reports: Iterable[TreeReport]) -> TreeReport:
    """Return what several tasks say together."""
    said = [report for report in reports if report]
    if not said:
        return NOTHING
    failed: dict[str, set[int]] = {}
    pending: dict[str, tuple[tuple[int, bytes], ...]] = {}
    holding: dict[str, int] = {}
    steps: dict[str, Mapping[int, Handled]] = {}
    for report in said:
        holding.update(report.holding)  # each task says it of itself
        steps.update(report.steps)
        for reason, roots in report.failed.items():
            failed.setdefault(reason, set()).update(roots)
        for task, trees in report.pending.items():
            pending[task] = (*pending.get(task, ()), *trees)
    return TreeReport(
        failed={reason: tuple(sorted(roots)) for reason, roots in failed.items()},
        acked=tuple(chain.from_iterable(report.acked for report in said)),
        held=tuple(chain.from_iterable(report.held for report in said)),
        pending=pending,
        due_ms=min((report.due_ms for report in said if report.due_ms), default=0),
        holding=holding,
        steps=steps,
    )


NOTHING = TreeReport()
