"""Additions of statefx to a topology: ticks, a bolt that drops redelivered messages, and the acker with its edges."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from statefx.errors import TopologyError
from statefx.operators.acker import ACKER, ACKNOWLEDGES, ACKS, ASKS, BLOCK, ROWS, Acker
from statefx.operators.bolts import may_hold
from statefx.operators.dedup import DEDUP, ID, Dedup
from statefx.operators.schema import parse_schema
from statefx.operators.sinks import Sink
from statefx.operators.spouts import TAKEN, TAKEN_ROWS, Spout
from statefx.topology.graph import Component, ComponentKind, Edge, Grouping, Topology, is_tracked


def with_ticks(topology: Topology, secs: float | None) -> Topology:
    """Return the topology whose bolts get a tick every so many seconds, unless they have a period of their own."""
    if secs is None:
        return topology

    def with_period(component: Component) -> Component:
        is_asked = component.kind is ComponentKind.BOLT and component.tick_secs is None
        return replace(component, tick_secs=secs) if is_asked else component

    return Topology(topology.name, tuple(map(with_period, topology.components)), topology.edges)


EXECUTORS = 1
"""Tasks of the acker if nobody says: one takes what hundreds of thousands of held tuples a second come to. Storm takes
as many as there are workers; here a start with another number moves state, so it should not come from the cluster."""


def with_acknowledging(topology: Topology) -> Topology:
    """Return the topology with a sink for each spout whose messages are acknowledged in the transaction."""
    schema = parse_schema(TAKEN_ROWS)
    components, sinks, edges = [], [], list(topology.edges)
    for component in topology.components:
        sink: object = component.operator.acknowledging() if isinstance(component.operator, Spout) else None
        if sink is not None:
            if not isinstance(sink, Sink):
                raise TopologyError(
                    f"spout {component.id!r}: {type(component.operator).__name__}.acknowledging returned "
                    f"{reprlib.repr(sink)}: return a Sink, by which messages leave with their transaction, or None",
                    component=component.id,
                )
            name = ACKNOWLEDGES + component.id
            component = replace(component, outputs={**component.outputs, TAKEN: schema})
            sinks.append(Component(name, ComponentKind.SINK, component.parallelism, {}, sink, committer=True))
            edges.append(Edge(len(edges), component.id, TAKEN, name, Grouping("shuffle")))
        components.append(component)
    return Topology(topology.name, (*components, *sinks), tuple(edges)) if sinks else topology


def with_dedup(topology: Topology) -> Topology:
    """Return the topology with a bolt after each spout with `dedup`, which drops redelivered messages.

    TopologyError: a consumer reads the spout by directGrouping, so its task is chosen before the row is known to be
    new.
    """
    components, edges, more = [], list(topology.edges), []
    for component in topology.components:
        components.append(component)
        if component.dedup_secs is None:
            continue
        name, streams = DEDUP + component.id, component.outputs
        components[-1] = replace(component, outputs={stream: schema.append(ID) for stream, schema in streams.items()})
        dedup = Dedup(component.dedup_secs)
        components.append(Component(name, ComponentKind.BOLT, component.parallelism, streams, dedup, committer=True))
        read = [at for at, edge in enumerate(edges) if edge.source == component.id]
        for at in read:
            if edges[at].grouping.kind == "direct":
                raise TopologyError(
                    f"bolt {edges[at].target!r} reads spout {component.id!r} by directGrouping, which dedup can't "
                    "follow: let a bolt behind the spout choose the task, or leave out dedup",
                    component=edges[at].target,
                )
            edges[at] = replace(edges[at], source=name)
        more += [(component.id, stream, name) for stream in dict.fromkeys(edges[at].stream for at in read)]
    by_id = Grouping("fields", (ID.name,))
    edges += [Edge(at, *ends, by_id) for at, ends in enumerate(more, len(edges))]
    return Topology(topology.name, tuple(components), tuple(edges))


def without_ids(streams: Mapping[str, pa.Schema]) -> Mapping[str, pa.Schema] | None:
    """Return what a spout may emit, by stream, if its rows travel with the ids of their messages; else None."""
    if not any(ID.name in schema.names for schema in streams.values()):
        return None
    return {
        name: schema.remove(len(schema) - 1) if ID.name in schema.names else schema for name, schema in streams.items()
    }


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
    components, edges = [], list(topology.edges)
    for component in topology.components:
        if component.id in tracked:
            streams = {ACKS: ROWS}
            edges.append(Edge(len(edges), component.id, ACKS, ACKER, Grouping("fields", (BLOCK,))))
            if isinstance(component.operator, Spout):
                streams[ASKS] = ROWS
                edges.append(Edge(len(edges), component.id, ASKS, ACKER, Grouping("all")))
            component = replace(component, outputs={**component.outputs, **streams})
        components.append(component)
    width = EXECUTORS if executors is None else executors
    acker = Component(ACKER, ComponentKind.BOLT, width, {}, Acker(timeout_secs), committer=True)
    return Topology(topology.name, (*components, acker), tuple(edges))
