"""What the driver tells its tasks, as text: each slot is sent what concerns its own tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from statefx.plan.levels import Plan
from statefx.protocol.identity import TaskId
from statefx.protocol.order import Head, Order, ResolutionOrder, lines_of, runs_of


def text_for(plan: Plan, order: Order | ResolutionOrder, tasks: Sequence[TaskId]) -> str:
    """Return an order as far as it concerns some tasks."""
    if isinstance(order, ResolutionOrder):
        runs = runs_of([plan.stateful_number[task] for task in tasks])
        head = Head(order.attempt, order.generation, order.resolution, runs, order.clock_ms)
        return msgspec.json.encode(head).decode() + lines_of(order, tasks)
    own = replace(
        order,
        emissions={task: order.emissions[task] for task in tasks if task in order.emissions},
        times={task: order.times[task] for task in tasks if task in order.times},
    )
    head = Head(order.attempt, order.generation, clock_ms=order.clock_ms, ticks=order.ticks)
    stateful = [task for task in tasks if task in plan.stateful_number]
    return msgspec.json.encode(head).decode() + lines_of(own, stateful)
