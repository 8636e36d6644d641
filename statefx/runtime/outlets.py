"""The way of rows out of a task along one edge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from statefx.plan.groupings import ROUTERS, Fused, Router
from statefx.topology.graph import Edge

Deliver = Callable[[int, pa.RecordBatch], None]
"""Takes (target task, batch)."""


class Outlet:
    """The way out of a task along one edge.

    Parameters
    ----------
    edge : Edge
    route : Router
    width : int
        The consumer's parallelism.
    deliver : callable
        Takes (target task, batch).

    Attributes
    ----------
    emitted : int
        Rows that came, before they were copied for an all-grouping.
    sent : list of int
        Rows that went, by target task.
    """

    __slots__ = ("_deliver", "edge", "emitted", "route", "sent", "width")

    def __init__(self, edge: Edge, route: Router, width: int, deliver: Deliver) -> None:
        self.edge = edge
        self.route = route
        self.width = width
        self.emitted = 0
        self.sent = [0] * width
        self._deliver = deliver

    def send(self, batch: pa.RecordBatch, columns: Sequence[Sequence[Any]] | None = None) -> None:
        """Send a batch's rows to their targets; `columns` has its values, if they are at hand."""
        self.emitted += (
            batch.num_rows
        )  # before the split: the ledger multiplies it by what the grouping copies (rule 5.2)
        for target, part in self.route.split(batch, columns):
            self.sent[target] += part.num_rows
            self._deliver(target, part)


def outlet_of(edge: Edge, schema: pa.Schema, width: int, task: int, fused: bool, deliver: Deliver) -> Outlet:
    """Build the way out of `task` along one edge; a fused edge stays with the task's own number."""
    sender = Fused if fused else ROUTERS[edge.grouping.kind]
    return Outlet(edge, sender(edge, schema, width, task), width, deliver)
