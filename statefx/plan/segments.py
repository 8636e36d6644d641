"""Where a plan is cut in two, so that several transactions can be under way: what each of the two segments runs.

::

    PROCESSING    levels 0 .. cut-1        no committer, and nothing that reads from one
    - - - the cut - - - - rows wait here, in the chains that will read them
    ORDERED       levels cut .. last       committers, and everything downstream of one

PROCESSING of several transactions may run side by side; ORDERED runs for one transaction at a time, in the order of
txids (rules 2.1 and 2.3). This is why a committer never stands before the cut, and why a chain never crosses it: its
chain would wait for the transaction before in the middle of a transaction, and those behind could not run ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from statefx.plan.levels import Plan
from statefx.protocol.commands import Segment
from statefx.protocol.identity import TaskId
from statefx.topology.graph import Edge


@dataclass(frozen=True, slots=True)
class PlanSegment:
    """What one segment runs of a plan, and what the ledger judges when it has ended."""

    segment: Segment
    levels: range  # the plan's levels that it runs
    tasks: tuple[TaskId, ...]  # those that ack in this segment
    # Those whose acks are judged: of ORDERED all of them, because it has received the rows of PROCESSING (rule 5.1).
    judged_tasks: tuple[TaskId, ...]
    # Edges whose rows are counted: of PROCESSING those inside it, because nobody has received the rows at the cut.
    judged_edges: tuple[Edge, ...]


def segments_of(plan: Plan) -> Mapping[Segment, PlanSegment]:
    """Return the segments of a transaction: ``WHOLE`` alone, or ``PROCESSING`` and ``ORDERED`` of a cut plan."""
    height = len(plan.levels)
    if not plan.cut:
        whole = PlanSegment(Segment.WHOLE, range(height), plan.tasks, plan.tasks, plan.edges)
        return {Segment.WHOLE: whole}
    before = tuple(task for task in plan.tasks if plan.place[task][0] < plan.cut)
    behind = tuple(task for task in plan.tasks if plan.place[task][0] >= plan.cut)
    inside = tuple(edge for edge in plan.edges if plan.place[TaskId(edge.target, 0)][0] < plan.cut)
    return {
        Segment.PROCESSING: PlanSegment(Segment.PROCESSING, range(plan.cut), before, before, inside),
        Segment.ORDERED: PlanSegment(Segment.ORDERED, range(plan.cut, height), behind, plan.tasks, plan.edges),
    }
