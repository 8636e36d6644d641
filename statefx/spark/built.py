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

import pyarrow as pa
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession

from statefx.plan import wire
from statefx.plan.levels import Plan
from statefx.protocol.commands import Segment
from statefx.spark.cut import wire_frame
from statefx.spark.frames import Chain, no_rows
from statefx.spark.labels import STAGE_NAME, loaded

_STAGE, _SHUFFLE, _CODEGEN = "MapInArrowExec", "ShuffleExchangeExec", "WholeStageCodegenExec"


class BuiltPlan:
    """The plan of one segment.

    Parameters
    ----------
    frame : DataFrame
        From `Chain.over`.
    scan : RDDScanExec
        What `leaf` makes copies of.

    Attributes
    ----------
    form : str
        ``M`` for each stage of ours and ``S`` for each shuffle, lowest first.
    """

    def __init__(self, frame: DataFrame, scan: Any) -> None:
        self.session: SparkSession = frame.sparkSession
        context: Any = self.session.sparkContext
        self._properties = context._jvm.java.util.Properties()
        for name, value in self.session.conf.getAll.items():
            if name.startswith("spark.sql."):
                self._properties.setProperty(name, value)
        self._serve = context._jvm.org.apache.spark.api.python.PythonRDD.collectAndServe
        self._dataset = frame._jdf
        self._scan = scan
        self._nodes: list[Any] = []
        self.form = ""
        node = self._dataset.queryExecution().executedPlan()
        while (kind := node.getClass().getSimpleName()) in (_STAGE, _SHUFFLE):
            self._nodes.insert(0, node)
            self.form = ("M" if kind == _STAGE else "S") + self.form
            node = node.child()
        self._leaf = node

    def leaf(self, rdd: Any) -> Any:
        """Return a node that gives the rows of an RDD, in the form of `statefx.plan.wire`."""
        scan = self._scan
        return scan.copy(
            scan.output(), rdd, scan.name(), scan.outputPartitioning(), scan.outputOrdering(), scan.stream()
        )

    def copied(self, own: Any, names: Sequence[str], leaf: Any = None) -> tuple[Any, list[Any]]:
        """Return a copy of the plan's uppermost node, and its shuffles, lowest first.

        Parameters
        ----------
        own : java.util.Properties
            The thread's local properties.
        names : sequence of str
            Of stages, lowest first; those of this plan are the last.
        leaf : optional
            From `leaf`; by default the leaf that it was built with, which has no shuffle.
        """
        # Tasks look there for the settings that they go by; Spark puts them there for what runs as an SQL query.
        own.putAll(self._properties)
        names = names[-1 - self.form.count("S") :]
        node = self._leaf if leaf is None else leaf
        shuffles: list[Any] = []
        for kind, each in zip(self.form, self._nodes, strict=True):
            node = each.withNewChildInternal(node)
            if kind == "S":
                own.setProperty(STAGE_NAME, names[len(shuffles)])
                shuffles.append(node.shuffleDependency())
        own.setProperty(STAGE_NAME, names[-1])
        return node, shuffles

    def payloads(self, node: Any) -> list[bytes]:
        """Run a job of the plan up to `node`; return the payloads of its rows."""
        # Not by `collect` of a DataFrame, which would plan, explain and record it as an SQL query: 10 ms for each job.
        batches = loaded(self._serve(self._dataset.toArrowBatchRdd(node)), NoOpSerializer())
        found: list[bytes] = []
        for batch in batches:
            found += pa.ipc.read_record_batch(pa.py_buffer(batch), wire.SCHEMA).column("payload").to_pylist()
        return found


def built_plans(chain: Chain, plan: Plan, session: SparkSession) -> Mapping[Segment, BuiltPlan]:
    """Have Spark plan the segments of a topology whose rows spouts emit."""
    made = no_rows(session, plan)
    at_cut = wire_frame(session, made._jdf.queryExecution().toRdd())  # planned, and never run
    scan = at_cut._jdf.queryExecution().executedPlan()
    if scan.getClass().getSimpleName() == _CODEGEN:
        scan = scan.child()
    return {
        segment: BuiltPlan(chain.over(segment, at_cut if levels.start else made), scan)
        for segment, levels in chain.levels.items()
        if levels.start < len(plan.levels)
    }
