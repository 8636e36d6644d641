"""Where a plan is cut in two, so that several transactions can be under way: what each of the two jobs runs.

::

    job P (PROCESSING)    levels 0 .. cut-1        no committer, and nothing that reads from one
    - - - the cut - - - - shuffle, kept by the driver between the jobs
    job O (ORDERED)       levels cut .. last       committers, and everything downstream of one

P of several transactions may run side by side; O runs for one transaction at a time, in the order of txids (rules 2.1
and 2.3). This is why a committer never stands before the cut, and why a chain never crosses it: its tasks would wait
for the transaction before in the middle of job P, each holding one of Spark's slots, until no slot is left to finish
what they wait for.

The rows at the cut are those between any two levels (`statefx.plan.wire`). Rows and barriers go to the partition of the
level behind the cut that runs their target, or that passes them on to a later level. The acks of job P go to one more
partition, `Plan.driver_of`: job P reads this partition alone, and job O reads all the others.
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
    """What one job runs of a plan, and what the ledger judges when the job has ended."""

    segment: Segment
    levels: range  # the plan's levels that it runs
    tasks: tuple[TaskId, ...]  # those that ack in this job
    # Those whose acks are judged: of job O also the tasks of job P, because a lost executor has job O run part of P
    # again, under new tokens that only the consumers behind the cut have seen (rule 5.1).
    judged_tasks: tuple[TaskId, ...]
    # Edges whose rows are counted: of job P those inside P alone, because nobody has received the rows at the cut.
    judged_edges: tuple[Edge, ...]


def segments_of(plan: Plan) -> Mapping[Segment, PlanSegment]:
    """Return what each job of a transaction runs: ``WHOLE`` alone, or ``PROCESSING`` and ``ORDERED`` of a cut plan."""
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
