"""The way of rows out of a task along one edge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from statefx.plan.groupings import ROUTERS, Fused, Router
from statefx.plan.wire import cut
from statefx.runtime.combining import Combiner
from statefx.topology.graph import Edge

Deliver = Callable[[int, pa.RecordBatch], None]
"""Takes (target task, batch)."""


class Outlet:
    """The way out of a task along one edge; a combiner adds up the rows before they are split.

    Attributes
    ----------
    taken : int
        Rows that came to the combiner; 0 if there is none.
    emitted : int
        Rows that were split, before they were copied for an all-grouping. Sums are what barriers and acks speak of.
    sent : list of int
        Rows that went, by target task.
    tracked : bool
        Whether rows travel with the roots of their trees.
    """

    __slots__ = ("_combiner", "_deliver", "edge", "emitted", "route", "sent", "taken", "tracked", "width")

    def __init__(
        self,
        edge: Edge,
        route: Router,
        width: int,
        deliver: Deliver,
        combiner: Combiner | None = None,
        *,
        tracked: bool = False,
    ) -> None:
        self.tracked = tracked
        self.edge = edge
        self.route = route
        self.width = width
        self.taken = self.emitted = 0
        self.sent = [0] * width
        self._deliver = deliver
        self._combiner = combiner

    def send(self, batch: pa.RecordBatch, columns: Sequence[Sequence[Any]] | None = None) -> None:
        """Send a batch's rows to their targets; `columns` has its values, if they are at hand."""
        if self._combiner is None:
            self._split(batch, columns)
        else:
            self.taken += batch.num_rows
            self._split_all(self._combiner.take(batch))

    def finish(self) -> None:
        """Send what the combiner holds: no more rows will come."""
        if self._combiner is not None:
            self._split_all(self._combiner.finish())

    def _split_all(self, sums: Iterable[pa.RecordBatch]) -> None:
        for batch in sums:
            for part in cut(batch):
                self._split(part)

    def _split(self, batch: pa.RecordBatch, columns: Sequence[Sequence[Any]] | None = None) -> None:
        # before the split: the ledger multiplies it by what the grouping copies (rule 5.2)
        self.emitted += batch.num_rows
        for target, part in self.route.split(batch, columns):
            self.sent[target] += part.num_rows
            self._deliver(target, part)


def outlet_of(
    edge: Edge,
    schema: pa.Schema,
    width: int,
    task: int,
    fused: bool,
    deliver: Deliver,
    combiner: Combiner | None = None,
    *,
    tracked: bool = False,
) -> Outlet:
    """Build the way out of `task` along one edge; a fused edge stays with the task's own number."""
    sender = Fused if fused else ROUTERS[edge.grouping.kind]
    return Outlet(edge, sender(edge, schema, width, task), width, deliver, combiner, tracked=tracked)
