"""The plan of a run: the levels of a topology as stages that run at the same time.

Spark's planner makes an ordinary plan of `mapInArrow` and `repartitionById`. Its nodes are copied, the exchanges as
pipelined ones (`internals.pipelined_onto`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's custom
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructType

from statefx.plan import wire
from statefx.plan.levels import Plan
from statefx.spark import internals

WIRE = (
    StructType()
    .add("target", IntegerType())
    .add("kind", IntegerType())
    .add("rows", LongType())
    .add("head", BinaryType())
    .add("payload", BinaryType())
)

SETTINGS = {
    # Rows are handed to Python one by one, as they come: by default Spark waits for 10,000 of them, or 64 KB.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    "spark.sql.execution.pandas.udf.buffer.size": "256",
    "spark.sql.adaptive.enabled": "false",
    # Spark's compiler takes half a second to load and to run. It would make projections of rows faster, which are few.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Of the session that a run is planned in."""


def planning_session(session: SparkSession) -> SparkSession:
    """Return a session like that of the user, with the settings of runs.

    Its Python workers are those of runs: Spark starts another program to fork workers from for each size of buffers.
    """
    own = internals.clone(session)
    for name, value in SETTINGS.items():
        own.conf.set(name, value)
    return own


class RunPlan:
    """The levels of a topology as a chain of stages; `level` makes the function of a level, for ``mapInArrow``."""

    def __init__(self, session: SparkSession, plan: Plan, level: Callable[[int], Any], workers: int) -> None:
        frame: DataFrame = session.range(0, plan.widths[0], 1, plan.widths[0])  # a partition for each slot
        for number, width in enumerate(plan.widths):
            if number:
                frame = frame.repartitionById(width, F.col("target"))
            columns = wire.SCHEMA.names if number else frame.columns
            frame = internals.mapping(level(number), WIRE, columns, workers)(frame)
        self._frame = frame

    def prepare(self) -> None:
        """Have Spark make the physical plan, which `run` does too."""
        internals.chain_of(self._frame)

    def run(self, own: Any, names: Sequence[str]) -> None:
        """Run the job; returns when all its tasks have ended.

        Parameters
        ----------
        own : java.util.Properties
            The thread's local properties.
        names : sequence of str
            Of the stages, lowest first.
        """
        session = self._frame.sparkSession
        internals.activate(session)  # the nodes that are copied go by the settings of the thread
        own.putAll(internals.sql_settings(session))  # from the session alone, tasks do not see them
        nodes, node = internals.chain_of(self._frame)
        shuffles = 0
        for kind, each in nodes:
            if kind == "S":
                node = internals.pipelined_onto(each, node)
                own.setProperty(internals.STAGE_NAME, names[shuffles])
                internals.shuffle_of(node)
                shuffles += 1
            else:
                node = internals.copied_onto(each, node)
        own.setProperty(internals.STAGE_NAME, names[shuffles])
        internals.collected_node(self._frame, node, wire.SCHEMA, "payload")
