"""Gives ticks to the bolts of a topology, as the settings say."""

from __future__ import annotations

from dataclasses import replace

from statefx.topology.graph import Component, ComponentKind, Topology


def with_ticks(topology: Topology, secs: float | None) -> Topology:
    """Return the topology whose bolts get a tick every so many seconds, unless they have a period of their own."""
    if secs is None:
        return topology

    def with_period(component: Component) -> Component:
        is_asked = component.kind is ComponentKind.BOLT and component.tick_secs is None
        return replace(component, tick_secs=secs) if is_asked else component

    return Topology(topology.name, tuple(map(with_period, topology.components)), topology.edges)
