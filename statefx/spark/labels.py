"""What Spark's UI shows of our jobs and stages: topology, transaction and bolts instead of a line of py4j.

The description of a job and its stages is a local property of the thread.
"""

from __future__ import annotations

from typing import Any

from statefx.plan.levels import Plan
from statefx.spark.internals import STAGE_DETAILS, STAGE_NAME

DESCRIPTION = "spark.job.description"

_SHOWN = 120
"""Characters of bolts in one name: a topology may have hundreds of bolts, and the UI's tables don't fold."""

_THEN = " → "
"""Between bolts: the UI shows ``>`` as ``&gt;``."""


class Labels:
    """What the jobs of one topology are called; the UI shows `details` where a stage is unfolded."""

    def __init__(self, name: str, plan: Plan, details: str) -> None:
        self._name = name
        self._details = details
        self._levels = [_bolts(plan, level) for level in range(len(plan.levels))]
        self._read = f"read {_short(', '.join(plan.streams))}"

    def name_staging(self, own: Any, txid: int) -> None:
        """Name the job that stages the rows of a transaction, and its stages."""
        own.setProperty(DESCRIPTION, f"{self._name} tx {txid}: {self._read}")
        own.setProperty(STAGE_DETAILS, self._details)
        own.setProperty(STAGE_NAME, f"{self._read} tx {txid}")

    def name_run(self, own: Any, run: str) -> list[str]:
        """Name the job of a run, which holds all tasks; return the names of its stages, lowest first."""
        own.setProperty(DESCRIPTION, f"{self._name} run {run}: {_short(_THEN.join(self._levels))}")
        own.setProperty(STAGE_DETAILS, self._details)
        return list(self._levels)


def _bolts(plan: Plan, level: int) -> str:
    """Name the bolts whose tasks run at a level, with how many there are of each."""
    chains = {tuple(component for component, _ in chain): None for chain in plan.levels[level]}
    return _short(", ".join(_THEN.join(_bolt(plan, component) for component in chain) for chain in chains))


def _bolt(plan: Plan, component: str) -> str:
    return f"{component}[{plan.components[component].parallelism}]"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
