"""Puts the acker into a topology in which trees of tuples may outlive their transaction."""

from __future__ import annotations

from dataclasses import replace

from statefx.operators import Spout, parse_schema
from statefx.operators.acker import ACKER, ACKS, ASKS, ROWS, Acker
from statefx.operators.bolts import may_hold
from statefx.topology.graph import Component, ComponentKind, Edge, Topology, is_tracked
from statefx.topology.groupings import Grouping

EXECUTORS = 1
"""Tasks of the acker if nobody says: one takes what hundreds of thousands of held tuples a second come to. Storm takes
as many as there are workers; here their number is part of the checkpoint, and must not change with the cluster."""


def with_acker(topology: Topology, timeout_secs: float, executors: int | None) -> Topology:
    """Return the topology with its acker, if a bolt can hold tuples of trees; else as it is.

    Only a plain bolt can: others ack when ``execute`` returns.
    """
    tracked: set[str] = set()
    for component in topology.components:  # in topological order
        inputs = topology.inputs(component.id)
        if isinstance(component.operator, Spout) or any(is_tracked(edge, component, tracked) for edge in inputs):
            tracked.add(component.id)
    by_hand = any(may_hold(topology.component(id).operator) for id in tracked)
    if not by_hand or executors == 0:
        return topology
    schema = parse_schema(ROWS)
    components, edges = [], list(topology.edges)
    for component in topology.components:
        if component.id in tracked:
            streams = {ACKS: schema}
            edges.append(Edge(len(edges), component.id, ACKS, ACKER, Grouping("fields", ("root",))))
            if isinstance(component.operator, Spout):
                streams[ASKS] = schema
                edges.append(Edge(len(edges), component.id, ASKS, ACKER, Grouping("all")))
            component = replace(component, outputs={**component.outputs, **streams})
        components.append(component)
    width = EXECUTORS if executors is None else executors
    acker = Component(ACKER, ComponentKind.BOLT, width, {}, Acker(timeout_secs), committer=True)
    return Topology(topology.name, (*components, acker), tuple(edges))
