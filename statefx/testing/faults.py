"""Faults for a run of tasks: each strikes once, in the next attempt that it fits.

Give them to ``TopologyTester.send`` or ``TopologyTester.inject``.
"""

from __future__ import annotations

from dataclasses import dataclass


class Fault:
    """One thing that goes wrong, once."""


@dataclass(frozen=True)
class JobFails(Fault):
    """The job that holds all tasks fails as infrastructure does, when the first task of an attempt has prepared.

    Attributes
    ----------
    reason : str
        What Spark says.
    """

    reason: str = "the executor was lost"


@dataclass(frozen=True)
class HooksFail(Fault):
    """The same when the first task has run the hooks of a commit or a rollback; its report is lost.

    Attributes
    ----------
    phase : str
        ``commit`` or ``rollback``.
    """

    phase: str = "commit"
