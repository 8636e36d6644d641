"""A plan of Spark's that is built once and run again for each attempt: that of a segment whose rows spouts emit.

In the plan of a DataFrame, rows and files are others in each transaction. Where spouts emit the rows, all that differs
from one attempt to the next is the order, which travels in the job's local properties.

Spark would read the shuffle files of a plan that has run before, and pass over the stages that wrote them: the second
transaction would be given the rows of the first. So each attempt runs copies of the plan's nodes. The copy of an
exchange makes a shuffle of its own, and nobody else reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from statefx.plan import wire
from statefx.plan.levels import Plan
from statefx.protocol.commands import Segment
from statefx.spark import internals
from statefx.spark.frames import WIRE, Chain, no_rows


class CutPartitions:
    """Which partitions of the shuffle at the cut each of the two jobs of an attempt reads; made once for all attempts.

    There is one for each of the `width` tasks of the level behind the cut, and one more for the acks (see
    `Plan.driver_of`).
    """

    def __init__(self, session: SparkSession, width: int) -> None:
        self.rows = internals.shuffle_partitions(session.sparkContext, range(width))
        self.acks = internals.shuffle_partitions(session.sparkContext, range(width, width + 1))


class CutShuffle:
    """What job P of one attempt has written: rows for job O, and acks for the driver (rule 9, steps 3 and 5).

    Neither job is that of the plan itself: each reads some of the partitions through an RDD of its own. For the job of
    a plan ends with Spark deleting the plan's shuffles, and reads all partitions, rows as well as acks. `exchange` is
    the uppermost node of job P's plan.
    """

    def __init__(self, exchange: Any, shuffles: Sequence[Any], partitions: CutPartitions) -> None:
        self._exchange = exchange
        self._partitions = partitions
        self.shuffles = shuffles

    def rows(self) -> Any:
        """Return an RDD of the rows behind the cut."""
        return internals.shuffle_rows(self._exchange, self._partitions.rows)

    def acks(self) -> Any:
        """Return an RDD of the acks."""
        return internals.shuffle_rows(self._exchange, self._partitions.acks)


class BuiltPlan:
    """The plan of one segment: that of `frame`, from `Chain.over`. Of `scan`, `leaf` makes copies."""

    def __init__(self, frame: DataFrame, scan: Any) -> None:
        self.session: SparkSession = frame.sparkSession
        self._settings = internals.sql_settings(self.session)
        self._frame = frame
        self._scan = scan
        self._nodes, self._leaf = internals.chain_of(frame)

    def leaf(self, rdd: Any) -> Any:
        """Return a node that gives the rows of an RDD, in the form of `statefx.plan.wire`."""
        return internals.scan_over(self._scan, rdd)

    def copied(self, own: Any, names: Sequence[str], leaf: Any = None) -> tuple[Any, list[Any]]:
        """Return a copy of the plan's uppermost node, and its shuffles, lowest first.

        `own` are the thread's local properties (java.util.Properties). Of the `names` of stages, lowest first, those
        of this plan are the last. `leaf` is by default the leaf that it was built with, which has no shuffle.
        """
        own.putAll(self._settings)  # by which tasks go
        names = names[-1 - sum(kind == "S" for kind, _ in self._nodes) :]
        node = self._leaf if leaf is None else leaf
        shuffles: list[Any] = []
        for kind, each in self._nodes:
            node = internals.copied_onto(each, node)
            if kind == "S":
                own.setProperty(internals.STAGE_NAME, names[len(shuffles)])
                shuffles.append(internals.shuffle_of(node))
        own.setProperty(internals.STAGE_NAME, names[-1])
        return node, shuffles

    def payloads(self, node: Any) -> list[bytes]:
        """Run a job of the plan up to `node`; return the payloads of its rows."""
        return internals.collected_node(self._frame, node, wire.SCHEMA, "payload")


def built_plans(chain: Chain, plan: Plan, session: SparkSession) -> Mapping[Segment, BuiltPlan]:
    """Have Spark plan the segments of a topology whose rows spouts emit."""
    made = no_rows(session, plan)
    at_cut = internals.scan_frame(made, WIRE)  # planned, and never run
    scan = internals.scan_of(at_cut)
    return {
        segment: BuiltPlan(chain.over(segment, at_cut if levels.start else made), scan)
        for segment, levels in chain.levels.items()
        if levels.start < len(plan.levels)
    }
