"""The shuffle at the cut of a plan, kept by the driver between the two jobs of an attempt (rule 9, steps 3 and 5)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from statefx.spark.frames import WIRE

_EXECUTION = "org.apache.spark.sql.execution"


class CutPartitions:
    """Which partitions of the shuffle at the cut each of the two jobs reads.

    Made once for all attempts: each partition costs calls into the JVM.

    Parameters
    ----------
    session : SparkSession
    width : int
        Tasks of the level behind the cut; one partition more has the acks (see `Plan.driver_of`).

    Attributes
    ----------
    rows, acks
        Arrays of ``ShufflePartitionSpec``.
    """

    def __init__(self, session: SparkSession, width: int) -> None:
        context: Any = session.sparkContext
        self._gateway = context._gateway
        self._execution = getattr(context._jvm, _EXECUTION)
        self._none = context._jvm.scala.Option.empty()
        self.rows = self._array(range(width))
        self.acks = self._array(range(width, width + 1))

    def _array(self, partitions: range) -> Any:
        array = self._gateway.new_array(self._execution.ShufflePartitionSpec, len(partitions))
        for at, partition in enumerate(partitions):
            array[at] = self._execution.CoalescedPartitionSpec(partition, partition + 1, self._none)
        return array


class CutShuffle:
    """What job P of one attempt has written: rows for job O, and acks for the driver.

    Neither job is that of the plan itself: each reads some of the partitions through an RDD of its own. For the job of
    a plan ends with Spark deleting the plan's shuffles, and reads all partitions, rows as well as acks.

    Parameters
    ----------
    exchange : ShuffleExchangeExec
        The uppermost node of job P's plan.
    shuffles : sequence of ShuffleDependency
        Those of the plan.
    partitions : CutPartitions
    """

    def __init__(self, exchange: Any, shuffles: Sequence[Any], partitions: CutPartitions) -> None:
        self._exchange = exchange
        self._partitions = partitions
        self.shuffles = shuffles

    def rows(self) -> Any:
        """Return an RDD of the rows behind the cut; Spark runs what it takes only where files are missing."""
        return self._exchange.getShuffleRDD(self._partitions.rows)

    def acks(self) -> Any:
        """Return an RDD of the acks."""
        return self._exchange.getShuffleRDD(self._partitions.acks)


def wire_frame(session: SparkSession, rdd: Any) -> DataFrame:
    """Return an RDD of Spark's internal rows in the form of `statefx.plan.wire` as a DataFrame."""
    schema = session._jsparkSession.parseDataType(WIRE.json())
    return DataFrame(session._jsparkSession.internalCreateDataFrame(rdd, schema, False), session)


def free(context: Any, shuffles: Sequence[Any]) -> None:
    """Delete the files of shuffles, without waiting for it.

    Spark does it by itself only when the JVM has collected the plan as garbage, which may be in half an hour.
    """
    with contextlib.suppress(Py4JError, AttributeError):  # the context was stopped, and its files are gone
        cleaner = context._jsc.sc().cleaner()
        if cleaner.isDefined():  # `spark.cleaner.referenceTracking` may be off
            for each in shuffles:
                cleaner.get().doCleanupShuffle(each.shuffleId(), False)


def is_empty(plan: Any) -> bool:
    """Tell whether Spark has left out what a plan runs, because it knows that there are no rows to run it over."""
    return str(plan.getClass().getSimpleName()) == "LocalTableScanExec"
