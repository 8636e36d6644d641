"""Who takes part in the transactions of a topology."""

from __future__ import annotations

from dataclasses import dataclass

from statefx.operators.hooks import overrides
from statefx.plan.levels import Plan
from statefx.protocol.identity import TaskId
from statefx.protocol.ledger import LedgerEdge


@dataclass(frozen=True)
class Participants:
    """Who takes part in a transaction.

    Attributes
    ----------
    tasks : tuple of TaskId
        Every task that must ack.
    edges : tuple of LedgerEdge
    stateful : frozenset of TaskId
        Tasks that prepare state.
    committing, rolling_back : frozenset of TaskId
        Tasks that have something to run in the commit, in the rollback.
    """

    tasks: tuple[TaskId, ...]
    edges: tuple[LedgerEdge, ...]
    stateful: frozenset[TaskId]
    committing: frozenset[TaskId]
    rolling_back: frozenset[TaskId]

    @property
    def raw(self) -> tuple[LedgerEdge, ...]:
        """Edges from raw DataFrames."""
        components = {component for component, _ in self.tasks}
        return tuple(edge for edge in self.edges if edge.source not in components)


def participants_of(plan: Plan, *, lazy_commit: bool) -> Participants:
    """Read the participants from a plan.

    Parameters
    ----------
    plan : Plan
    lazy_commit : bool
        The state provider's capability: a store without it has to be told of every commit.
    """
    stateful = frozenset(plan.stateful)
    edges = tuple(
        LedgerEdge(edge.id, edge.source, edge.target, plan.multiplicity(edge), local=plan.fused(edge))
        for edge in plan.edges
    )

    def having(hook: str) -> frozenset[TaskId]:
        return frozenset(task for task in stateful if overrides(type(plan.components[task.component].operator), hook))

    return Participants(
        tasks=plan.tasks,
        edges=edges,
        stateful=stateful,
        committing=having("preCommit") if lazy_commit else stateful,
        rolling_back=having("preRollback"),
    )
