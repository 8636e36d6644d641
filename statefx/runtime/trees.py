"""The trees of tuples, as one task of a bolt knows them in one attempt: what it anchors to, holds and fails.

=============  ===================================================  ====================================
roots          the tuple is                                         if it fails
=============  ===================================================  ====================================
7, or [7, 8]   of the trees of these messages of spouts             these messages fail
0, or []       **loose**: its message has no id, or it was emitted  it is lost: nobody waits for it, and
               without anchors                                      nobody would emit it again
None           of replayable input, or made of many tuples          the transaction fails, and is retried
=============  ===================================================  ====================================

A tuple that a plain bolt has neither acked nor failed when the transaction ends is **held**: it gets a random number,
of which the acker is told. When the bolt acks or fails it in a later transaction, the acker is told the number again.
All other tuples of a tree cancel out within their transaction, since none is in transit at its end (rule 11.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from statefx.errors import BoltError
from statefx.operators.acker import ROWS, TreeEvent, key_of, place_of
from statefx.operators.fitting import shown
from statefx.operators.tuples import held_number, isTick
from statefx.protocol.reports import OTHERS, REASONS_MAX, Handled, TreeReport
from statefx.runtime.gathering import Anchor
from statefx.state.view.changes import Journal

Roots = int | list[int] | None

LOOSE_ROOT = 0
"""Of a loose tuple, where a tuple has one root; where it has a list of them, that is empty."""

REASON_CHARS = 200
"""Of why a tree has failed."""

WITHOUT_REASON = "it failed the tuple, without a reason"

TRACED_MAX = 10_000
"""Trees that a task traces in one transaction; it takes 2 MB, and 200 kB of what it sends the driver."""

_NO_ROWS = pa.RecordBatch.from_arrays([pa.nulls(0, each.type) for each in ROWS], schema=ROWS)

_RECEIVED, _HELD, _RELEASED, _FAILED = range(4)
"""Places in `Handled`."""


class Trees:
    """Outcomes of the trees of a task's tuples.

    A BasicBolt's tuple is acked when ``execute`` returns, so nothing is noted of it unless it fails. A plain bolt acks
    each tuple itself (`by_hand`). Without an `acker` nothing may be held. With `tracing` the task reports its handling
    of each tree. `kept` is a batch bolt's, which may keep tuples until ``finishBatch``. `loose` are the roots of loose
    tuples, in the form of those that the task emits.

    `anchor` is of what is emitted now. `of_many` are the roots of rows that come of no single tuple: loose, if the task
    got only loose tuples, and they don't come of state. `journal`, while calls are guarded, undoes what the present one
    has done with tuples; `lost` is why ``collector.fail`` was called for loose tuples, until they are counted.
    """

    def __init__(
        self,
        component: str,
        *,
        by_hand: bool,
        acker: bool,
        tracing: bool = False,
        kept: bool = False,
        loose: Roots = LOOSE_ROOT,
    ) -> None:
        self.anchor = Anchor()
        self.tracing = tracing
        self.kept = kept
        self.loose = loose
        self.of_many: Roots = None
        self.journal: Journal | None = None
        self.lost: list[str] = []
        self._has_others = False
        """Whether the task was given tuples that are not loose."""
        self._current: Any = None
        """The tuple that ``execute`` has been given."""
        self._failed_current = self._dealt_with_others = False
        """Whether the present call has failed its own tuple, which is loose; whether it has acked, failed or anchored
        to others."""
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
        """Yield the roots of tuples, as the bolt takes one after the other; note each."""
        for each in roots:
            self._note(each, _RECEIVED)
            yield each

    def _note(self, roots: Roots, what: int) -> None:
        for root in _each(roots) if self.tracing else ():
            if root in self._handled or len(self._handled) < TRACED_MAX:
                self._handled.setdefault(root, [0] * len(Handled._fields))[what] += 1

    def bring(self, roots: Sequence[Roots] | None) -> None:
        """Note the roots of a batch, or None if its rows have none."""
        self._has_others = self._has_others or roots is None or any(roots) or None in roots
        self.anchor.root = self.of_many = None if self._has_others else self.loose

    def end_input(self) -> None:
        """Note that what a bolt emits from here on comes of its state.

        So it may come of tuples of earlier transactions, whose messages were acked: if it fails, it must not be lost.
        """
        self.anchor.root = self.of_many = None

    @contextmanager
    def of_state(self) -> Iterator[None]:
        """As `end_input`, for what is emitted in the block."""
        before, self.anchor.root = self.anchor.root, None
        try:
            yield
        finally:
            self.anchor.root = before

    # ---- what a bolt says

    def begin(self, tup: Any, roots: Roots) -> None:
        """Give the bolt a tuple; a plain one anchors by hand."""
        self._current = tup
        self._failed_current = self._dealt_with_others = False
        if not self.by_hand:
            if self.kept:
                tup._brought = roots
            self.anchor.root = roots
            return
        tup._roots = roots
        if roots:
            self._open[id(tup)] = tup
        self.anchor.root = None if roots is None else self.loose

    def end(self) -> None:
        self._current = None
        self.anchor.root = self.of_many

    def is_taken_back(self) -> bool:
        """Return whether the call that has returned is to be undone: it has failed its own tuple, which is loose.

        Not if it has dealt with other tuples too, as a bolt does that gathers some and acks or fails each: what it has
        done with those counts.
        """
        failed, self._failed_current = self._failed_current, False
        return failed and not self._dealt_with_others

    def _undoable(self, undo: Callable[[], object]) -> None:
        if self.journal is not None:
            self.journal.append(undo)

    def ack(self, tup: Any) -> None:
        """Note that a plain bolt has dealt with a tuple; a second time changes nothing."""
        number = getattr(tup, "_held", None)
        if self._told and (number is not None or getattr(tup, "_roots", None) is not None):
            raise BoltError(
                f"bolt {self._component!r} acked or failed {shown(tup)} after its input of the transaction had ended: "
                "do it in execute or finishBatch",
                component=self._component,
            )
        if tup is not self._current:
            self._dealt_with_others = True
        if self._open.pop(id(tup), None) is not None:
            self._undoable(partial(self._open.__setitem__, id(tup), tup))
            if number is not None:
                self._ended.add(number)
                self._undoable(partial(self._ended.discard, number))
        elif number is not None:
            known = number in self._acked  # an earlier call may have looked into state too, and got another object
            self._acked[number] = tup._roots
            tup._held = None
            self._undoable(partial(self._hold_again, tup, number, known))

    def _hold_again(self, tup: Any, number: int, known: bool) -> None:
        tup._held = number
        if not known:
            del self._acked[number]

    def fail(self, tup: Any, reason: object) -> bool:
        """Fail the trees of a tuple, or lose it if it is loose; return False if the transaction has to fail."""
        roots = self._roots_of(tup, "fail")
        if roots or roots is None:
            return self.fail_tuple(tup, roots, reason)
        self.ack(tup)
        self.lost.append(f"{reason}"[:REASON_CHARS] or WITHOUT_REASON)
        self._undoable(self.lost.pop)
        if tup is self._current:
            self._failed_current = True
        return True

    def _roots_of(self, tup: Any, call: str) -> Roots:
        """Return the roots of a tuple; BoltError if the bolt no longer has it."""
        if self.by_hand:
            roots: Roots = getattr(tup, "_roots", None)
            return roots
        if tup is self._current:
            return self.anchor.root
        try:
            roots = tup._brought
        except AttributeError:
            if isTick(tup):
                return None
            raise BoltError(
                f"bolt {self._component!r} called {call}({shown(tup)}), which is not the tuple that execute was given: "
                "its tuples are acked when execute returns. A BatchBolt may fail those of its transaction in "
                "finishBatch, and a plain Bolt, which acks by hand, any that it holds",
                component=self._component,
            ) from None
        return roots

    def fail_tuple(self, tup: Any, roots: Roots, reason: object) -> bool:
        """Fail the trees of a tuple with these roots; return False if there are none."""
        self.ack(tup)
        return self.fail_roots(roots, reason)

    def fail_roots(self, roots: Roots, reason: object) -> bool:
        """Fail trees; return False if there are none."""
        if not roots:
            return False
        said = f"{reason}"[:REASON_CHARS] or WITHOUT_REASON  # users give errors, too
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
        """Restart the timeout of a tuple's trees."""
        added = set(_each(self._roots_of(tup, "resetTimeout"))) - self._reset
        self._reset |= added
        self._undoable(partial(self._reset.difference_update, added))

    def open_roots(self, tup: Any) -> Roots:
        """Return the roots of a tuple that this transaction has brought, if it may be anchored to without a look."""
        if id(tup) not in self._open:
            return None
        if tup is not self._current:
            self._dealt_with_others = True
        return tup._roots  # type: ignore[no-any-return]  # as `begin` has set them

    def roots_of(self, anchors: Iterable[Any]) -> Roots:
        """Return the roots of all trees of the anchors, each once; without any: loose, unless an anchor is not."""
        found: set[int] = set()
        is_loose = True
        for tup in anchors:
            if tup is not self._current:
                self._dealt_with_others = True
            roots = self._roots_of(tup, "emit(..., anchors=)")
            is_loose = is_loose and roots is not None
            if not roots:
                continue
            if self.by_hand and id(tup) not in self._open and getattr(tup, "_held", None) is None:
                # Its tree may have ended: nobody would wait for what is emitted now.
                raise BoltError(
                    f"bolt {self._component!r} anchored to {shown(tup)}, which it has acked or failed: emit first, "
                    "then ack",
                    component=self._component,
                )
            found.update(_each(roots))
        if not found:
            return self.loose if is_loose else None
        return sorted(found)

    def joined(self, every: Iterable[Roots]) -> Roots:
        """Return the roots of a row that comes of several tuples of a `BasicBolt`, by theirs."""
        found: set[int] = set()
        is_loose = True
        for roots in every:
            is_loose = is_loose and roots is not None
            found.update(_each(roots))
        if not found:
            return self.loose if is_loose else None
        return sorted(found)

    # ---- at the end of the transaction

    def rows(self) -> pa.RecordBatch:
        """Hold what is open; return the acker's rows, if there is one."""
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
        reported = np.array([*held, *released, *failed, *self._reset], np.int64)
        if not len(reported):
            return _NO_ROWS
        counts = (len(held), len(released), len(failed), len(self._reset))
        kinds = np.repeat([TreeEvent.HELD, TreeEvent.RELEASED, TreeEvent.FAILED, TreeEvent.RESET], counts)
        numbers = np.zeros(len(reported), np.int64)
        numbers[: len(held) + len(released)] = [*held.values(), *released.values()]
        columns = (key_of(reported), place_of(reported), kinds, numbers, pa.nulls(len(reported), pa.binary()))
        arrays = [pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=ROWS)

    def report(self, task: str) -> TreeReport:
        """Return the report of the trees, by the "component/task" that sends it."""
        who = f"bolt {self._component!r}"
        return TreeReport(
            {f"{who}: {reason}": tuple(sorted(roots)) for reason, roots in self._failed.items()},
            holding={task: self._holding} if self._holding else {},
            steps={task: {root: Handled(*counts) for root, counts in self._handled.items()}} if self._handled else {},
        )


def _each(roots: Roots) -> Iterable[int]:
    if not roots:
        return ()
    return (roots,) if isinstance(roots, int) else roots
