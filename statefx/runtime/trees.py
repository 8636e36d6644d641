"""The trees of tuples, as one task of a bolt knows them in one attempt: what it anchors to, holds and fails.

A tuple that a plain bolt has neither acked nor failed when the transaction ends is **held**: it gets a random number,
of which the acker is told. When the bolt acks or fails it in a later transaction, the acker is told the number again.
All other tuples of a tree cancel out within their transaction, since none is in transit at its end (rule 11.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from statefx.errors import BoltError
from statefx.operators.acker import ROWS, Kind
from statefx.operators.fitting import shown
from statefx.operators.tree_blocks import key_of, place_of
from statefx.operators.tuples import held_number
from statefx.protocol.trees import OTHERS, REASONS_MAX, Handled, TreeReport
from statefx.runtime.gathering import Anchor

Roots = int | list[int] | None

REASON_CHARS = 200
"""Of why a tree has failed."""

TRACED_MAX = 10_000
"""Trees that a task traces in one transaction; it takes 2 MB, and 200 kB of what it sends the driver."""

_NO_ROWS = pa.RecordBatch.from_pylist([], ROWS)

_RECEIVED, _HELD, _RELEASED, _FAILED = range(4)
"""Places in `Handled`."""


class Trees:
    """What becomes of the trees of a task's tuples.

    A BasicBolt's tuple is acked when ``execute`` returns, so nothing is noted of it unless it fails. A plain bolt says
    so itself, of each tuple.

    Parameters
    ----------
    component : str
    by_hand : bool
        Whether it is a plain bolt's.
    acker : bool
        Whether there is an acker: without one nothing may be held.
    tracing : bool
        Whether to tell what the task did with each tree.

    Attributes
    ----------
    anchor : Anchor
        Of what is emitted now.
    by_hand, tracing : bool
    """

    def __init__(self, component: str, *, by_hand: bool, acker: bool, tracing: bool = False) -> None:
        self.anchor = Anchor()
        self.tracing = tracing
        self._handled: dict[int, list[int]] = {}
        """By root, if it is traced: the counts of `Handled`."""
        self._holding = 0
        """How many tuples more are held than before."""
        self._component = component
        self.by_hand = by_hand
        self._acker = acker
        self._failed: dict[str, dict[int, None]] = {}
        """By reason, roots in the order in which they failed."""
        self._open: dict[int, Any] = {}
        """Tuples of this transaction that a plain bolt has neither acked nor failed, by their objects."""
        self._acked: dict[int, Roots] = {}
        """Tuples that came from an earlier transaction, or out of state, and were acked or failed: by number, as each
        look into state gives another object. `_ended`: numbers of tuples of this transaction that were."""
        self._ended: set[int] = set()
        self._told = False
        self._reset: set[int] = set()

    def received(self, roots: Iterable[Roots]) -> Iterator[Roots]:
        """Yield the roots of tuples, as the bolt takes one after the other; take note of each."""
        for each in roots:
            self._note(each, _RECEIVED)
            yield each

    def _note(self, roots: Roots, what: int) -> None:
        for root in _each(roots) if self.tracing else ():
            if root in self._handled or len(self._handled) < TRACED_MAX:
                self._handled.setdefault(root, [0] * len(Handled._fields))[what] += 1

    # ---- what a bolt says

    def begin(self, tup: Any, roots: Roots) -> None:
        """Give a plain bolt a tuple."""
        tup._roots = roots
        if roots is not None:
            self._open[id(tup)] = tup

    def ack(self, tup: Any) -> None:
        """Take note that a plain bolt has dealt with a tuple; a second time changes nothing."""
        number = getattr(tup, "_held", None)
        if self._told and (number is not None or getattr(tup, "_roots", None) is not None):
            raise BoltError(
                f"bolt {self._component!r} acked or failed {shown(tup)} after its input of the transaction had ended: "
                "do it in execute or finishBatch",
                component=self._component,
            )
        if self._open.pop(id(tup), None) is not None:
            if number is not None:
                self._ended.add(number)
        elif number is not None:
            self._acked[number] = tup._roots
            tup._held = None

    def fail(self, tup: Any, reason: object) -> bool:
        """Fail the trees of a tuple; False if it belongs to none."""
        return self.fail_tuple(tup, getattr(tup, "_roots", None) if self.by_hand else self.anchor.root, reason)

    def fail_tuple(self, tup: Any, roots: Roots, reason: object) -> bool:
        """Fail the trees of a tuple with these roots; False if there are none."""
        self.ack(tup)
        if roots is None:
            return False
        said = f"{reason}"[:REASON_CHARS] or "it failed the tuple, without a reason"  # users give errors, too
        if said not in self._failed and len(self._failed) >= REASONS_MAX:
            said = OTHERS
        self._failed.setdefault(said, {}).update(dict.fromkeys(_each(roots)))
        self._note(roots, _FAILED)
        return True

    def failures_back(self) -> Callable[[], None]:
        """Return what takes back all failures that are noted from now on."""
        before = {reason: len(roots) for reason, roots in self._failed.items()}

        def back() -> None:
            for reason in [reason for reason in self._failed if reason not in before]:
                del self._failed[reason]
            for reason, count in before.items():
                roots = self._failed[reason]
                for root in [*roots][count:]:
                    del roots[root]

        return back

    def reset_timeout(self, tup: Any) -> None:
        """Let the time of a tuple's trees begin anew."""
        self._reset.update(_each(getattr(tup, "_roots", None) if self.by_hand else self.anchor.root))

    def open_roots(self, tup: Any) -> Roots:
        """Return the roots of a tuple that this transaction has brought, if it may be anchored to without a look."""
        return tup._roots if id(tup) in self._open else None

    def roots_of(self, anchors: Iterable[Any]) -> Roots:
        """Return the roots of all trees that the anchors belong to, each once."""
        found: set[int] = set()
        for tup in anchors:
            roots: Roots = getattr(tup, "_roots", None)
            if roots is None:
                continue
            if id(tup) not in self._open and getattr(tup, "_held", None) is None:
                # Its tree may have ended: nobody would wait for what is emitted now.
                raise BoltError(
                    f"bolt {self._component!r} anchored to {shown(tup)}, which it has acked or failed: emit first, "
                    "then ack",
                    component=self._component,
                )
            found.update(_each(roots))
        return sorted(found) or None

    # ---- at the end of the transaction

    def rows(self) -> pa.RecordBatch:
        """Hold what is open; return what the acker is told, if there is one."""
        if not self._acker:
            return _NO_ROWS
        self._told = True
        held: dict[int, int] = {}
        released: dict[int, int] = {}
        tracing, acked = self.tracing, self._acked
        for tup in self._open.values():
            number = held_number(tup)
            self._ended.add(number)  # of this transaction: none of them was held before
            if number in acked:
                continue
            for root in _each(tup._roots):
                held[root] = held.get(root, 0) ^ number
            self._holding += 1
            if tracing:
                self._note(tup._roots, _HELD)
        for number, roots in acked.items():
            if number in self._ended:
                continue
            for root in _each(roots):
                released[root] = released.get(root, 0) ^ number
            self._holding -= 1
            if tracing:
                self._note(roots, _RELEASED)
        self._open.clear()
        failed = set().union(*self._failed.values())
        told = np.array([*held, *released, *failed, *self._reset], np.int64)
        if not len(told):
            return _NO_ROWS
        counts = (len(held), len(released), len(failed), len(self._reset))
        kinds = np.repeat([Kind.HELD, Kind.RELEASED, Kind.FAILED, Kind.RESET], counts)
        numbers = np.zeros(len(told), np.int64)
        numbers[: len(held) + len(released)] = [*held.values(), *released.values()]
        columns = (key_of(told), place_of(told), kinds, numbers, pa.nulls(len(told), pa.binary()))
        arrays = [pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=ROWS)

    def report(self, task: str) -> TreeReport:
        """Return what the driver is told of the trees, by the "component/task" that says it.

        Raises
        ------
        BoltError
            A plain bolt has neither acked nor failed a tuple, and there is no acker.
        """
        if self._open:
            tup = next(iter(self._open.values()))
            raise BoltError(
                f"bolt {self._component!r} has neither acked nor failed {len(self._open):,} tuples of the "
                f"transaction, the first: {shown(tup)}. topology.acker.executors is 0, so none may be kept: call "
                "collector.ack(tup) or collector.fail(tup) for each, or let there be an acker",
                component=self._component,
            )
        who = f"bolt {self._component!r}"
        return TreeReport(
            {f"{who}: {reason}": tuple(sorted(roots)) for reason, roots in self._failed.items()},
            holding={task: self._holding} if self._holding else {},
            steps={task: {root: Handled(*counts) for root, counts in self._handled.items()}} if self._handled else {},
        )


def _each(roots: Roots) -> Iterable[int]:
    if roots is None:
        return ()
    return (roots,) if isinstance(roots, int) else roots
