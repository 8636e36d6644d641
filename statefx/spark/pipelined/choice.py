"""Chooses how the transactions of a topology run: in one Spark job that lives, or as Spark jobs of their own."""

from __future__ import annotations

import logging
import time

from pyspark import SparkContext
from pyspark.sql import SparkSession

from statefx.config import Config
from statefx.errors import ConfigError
from statefx.plan.levels import Plan
from statefx.spark import internals
from statefx.spark.builder import SLOTS
from statefx.spark.pipelined.engine import held_slots
from statefx.spark.session import PIPELINED_PYTHON, is_local
from statefx.topology.graph import Topology

logger = logging.getLogger("statefx")

EXECUTORS_SECS = 10.0
_LOOK_SECS = 0.2
"""How long it waits for the executors of a cluster, which come some seconds after the session is there."""

_LEVELS_MAX = 1
"""Levels in a session whose Python workers are not pipelined. What a level sends the next one, such a worker keeps in a
buffer of 64 KB until more comes: the barrier of the last transaction would stay there."""


def is_pipelined(topology: Topology, settings: Config, plan: Plan, session: SparkSession) -> bool:
    """Choose by ``topology.engine``, and say which it is and why.

    Raises
    ------
    ConfigError
        ``pipelined`` was asked for, and can't be; names the remedy.
    """
    if not topology.reads_spouts:
        return False  # `check_config` has refused what can't be
    asked = settings.engine
    lives = next(iter(topology.tracked_spouts), None)
    if lives is not None and asked == "jobs":
        raise ConfigError(
            f"topology.engine is 'jobs', but spout {lives!r} is a Spout, which lives in its task, and the tasks of a "
            "job end with each transaction: leave it at 'auto', or read with a TransactionalSpout or one of its like",
            key="topology.engine",
            value=asked,
        )
    if asked == "jobs":
        logger.info("%s runs as Spark jobs, one for each transaction: topology.engine says so", topology.name)
        return False
    why = _why_not(topology, plan, session)
    if why is None:
        logger.info("%s runs pipelined, as one Spark job that holds all its tasks", topology.name)
        return True
    if asked == "pipelined":
        raise ConfigError(f"topology.engine is 'pipelined', but {why}", key="topology.engine", value=asked)
    if lives is not None:
        raise ConfigError(
            f"spout {lives!r} is a Spout, which lives in its task, and so the topology has to run pipelined; but {why}",
            spout=lives,
        )
    # A warning: who does not know of it has transactions that are ten times slower, and no error.
    logger.warning(
        "%s runs as Spark jobs, one for each transaction, and not pipelined: %s. If jobs are meant, set "
        "topology.engine to 'jobs'",
        topology.name,
        why,
    )
    return False


def slots_needed(topology: Topology, plan: Plan) -> int:
    """Return how many slots of Spark a run takes, with one for the jobs of a sink's commit where there are sinks."""
    return sum(plan.widths) + bool(topology.sinks)


def _slots(context: SparkContext, wanted: int) -> int:
    """Return how many slots there are; on a cluster, wait for executors while there are less than `wanted`."""
    limit = time.monotonic() + (0 if is_local(context) else EXECUTORS_SECS)
    while (there := internals.task_slots(context)) < wanted and time.monotonic() < limit:
        time.sleep(_LOOK_SECS)
    return there


def _why_not(topology: Topology, plan: Plan, session: SparkSession) -> str | None:
    context = session.sparkContext
    if len(plan.widths) > _LEVELS_MAX and context.getConf().get(PIPELINED_PYTHON, "false") != "true":
        return (
            f"its {len(plan.widths)} levels need {PIPELINED_PYTHON}=true, which the session lacks, and which no "
            "session takes once it runs: call spark.stop(), and build it with statefx.session(), or give "
            "SparkSession.builder that setting"
        )
    needed, held = slots_needed(topology, plan), held_slots()
    there = _slots(context, needed + held)
    if needed > there - held:
        more = f"local[{needed + held}] or more (slots are threads there, not cores; statefx.session() takes {SLOTS})"
        if not is_local(context):
            more = "more executors, or more spark.executor.cores (which may be more than there are cores)"
        sinks = ", one of them for what sinks run at their commit" if topology.sinks else ""
        return (
            f"its tasks live at the same time and need {needed} slots of Spark{sinks}; {context.master} has {there}"
            + (f", of which other topologies hold {held}" if held else "")
            + f": take {more}, or less parallelism"
        )
    return None
