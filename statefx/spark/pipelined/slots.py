"""Refuses a session in which the tasks of a topology can't all live at the same time."""

from __future__ import annotations

import time

from pyspark import SparkContext
from pyspark.sql import SparkSession

from statefx.errors import ConfigError
from statefx.plan.levels import Plan
from statefx.spark import internals
from statefx.spark.builder import SLOTS
from statefx.spark.pipelined.engine import held_slots
from statefx.spark.session import PIPELINED_PYTHON, is_local
from statefx.topology.graph import Topology

EXECUTORS_SECS = 10.0
_LOOK_SECS = 0.2
"""How long it waits for the executors of a cluster, which come some seconds after the session is there."""

_LEVELS_MAX = 2
"""Levels in a session whose Python workers are not pipelined. There the JVM reads what one sends only where it waits
for no input: those of the first level have none, and those of the last one send nothing."""


def slots_needed(topology: Topology, plan: Plan) -> int:
    """Return how many slots of Spark a run takes, with one for jobs: those that stage, or those of a sink's commit."""
    return sum(plan.widths) + bool(topology.sinks or plan.streams)


def check_slots(topology: Topology, plan: Plan, session: SparkSession, checkpoint: str = "") -> None:
    """Refuse a session that can't hold all tasks at once; of a driver of the same `checkpoint` they end.

    Raises
    ------
    ConfigError
        Says what to write, with the number of slots.
    """
    context = session.sparkContext
    needed, held = slots_needed(topology, plan), held_slots(checkpoint)
    if len(plan.widths) > _LEVELS_MAX and context.getConf().get(PIPELINED_PYTHON, "false") != "true":
        raise ConfigError(
            f"{topology.name!r} has {len(plan.widths)} levels of tasks, which need {PIPELINED_PYTHON}=true, which "
            f"the session lacks, and which no session takes once it runs. Call spark.stop(), and build it with "
            f"{_session(context, needed + held)}; or give SparkSession.builder that setting",
            key=PIPELINED_PYTHON,
        )
    there = _slots(context, needed + held)
    if needed <= there - held:
        return
    jobs = "the jobs that read its DataFrames" if plan.streams else "what sinks run at their commit"
    other = f", one of them for {jobs}" if topology.sinks or plan.streams else ""
    raise ConfigError(
        f"the tasks of {topology.name!r} live at the same time: they need {needed} slots of Spark{other}. "
        f"{context.master} has {there}"
        + (f", of which other topologies hold {held}" if held else "")
        + f". {_more(context, needed + held)}, or less parallelism",
        needed=needed,
        slots=there,
    )


def _session(context: SparkContext, slots: int) -> str:
    """Say how a session with so many slots is built."""
    if not is_local(context):
        return f'statefx.session("{context.appName}")'
    return f'statefx.session("{context.appName}"' + (f', master="local[{slots}]")' if slots > SLOTS else ")")


def _more(context: SparkContext, slots: int) -> str:
    """Say where more slots come from."""
    if not is_local(context):
        return "Take more executors, or more spark.executor.cores (which may be more than there are cores)"
    own = f"local[{slots}] or more (slots are threads there, not cores)"
    first = "" if slots > SLOTS else f"{_session(context, slots)}, which has {SLOTS}, or "
    return f"Call spark.stop(), and take {first}{own}"


def _slots(context: SparkContext, wanted: int) -> int:
    """Return how many slots there are; on a cluster, wait for executors while there are less than `wanted`."""
    limit = time.monotonic() + (0 if is_local(context) else EXECUTORS_SECS)
    while (there := internals.task_slots(context)) < wanted and time.monotonic() < limit:
        time.sleep(_LOOK_SECS)
    return there
