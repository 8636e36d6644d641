"""A topology for people to read: as text, and as a Mermaid flowchart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statefx.operators import DEFAULT_STREAM, to_ddl

if TYPE_CHECKING:
    from statefx.topology.graph import Component, Edge, Topology


def describe(topology: Topology) -> str:
    """Return a text that shows components, parallelism, inputs with their groupings, and output schemas."""
    lines = [f"topology {topology.name}"]
    for component in topology.components:
        lines.append(f"  {component.id}: {_what(component)}")
        lines.extend(f"    <- {_source(edge)} by {edge.grouping}" for edge in topology.inputs(component.id))
        lines.extend(f"    -> {stream}: {to_ddl(schema)}" for stream, schema in component.outputs.items())
        if not component.outputs:
            lines.append("    -> emits nothing")
    return "\n".join(lines) + "\n"


def mermaid(topology: Topology) -> str:
    """Return a Mermaid flowchart: rounded DataFrames, plain bolts, cylinders for bolts that keep state."""
    lines = ["flowchart LR"]
    nodes = {component.id: f"c{number}" for number, component in enumerate(topology.components)}
    lines.extend(f"    {nodes[component.id]}{_shape(component)}" for component in topology.components)
    for edge in topology.edges:
        stream = "" if edge.stream == DEFAULT_STREAM else f"{edge.stream}: "
        lines.append(f'    {nodes[edge.source]} -->|"{_quoted(f"{stream}{edge.grouping}")}"| {nodes[edge.target]}')
    return "\n".join(lines) + "\n"


def _what(component: Component) -> str:
    if component.is_stream:
        return "streaming DataFrame" if component.dataframe.isStreaming else "batch DataFrame"
    kind = ", stateful" if component.stateful else ", committer" if component.committer else ""
    return f"{type(component.bolt).__name__} x {component.parallelism}{kind}"


def _source(edge: Edge) -> str:
    return edge.source if edge.stream == DEFAULT_STREAM else f"{edge.source}.{edge.stream}"


def _shape(component: Component) -> str:
    if component.is_stream:
        return f'(["{component.id}"])'
    text = f"{component.id} x {component.parallelism}"
    if component.stateful:
        return f'[("{text}")]'
    return f'[["{text}"]]' if component.committer else f'["{text}"]'


def _quoted(text: str) -> str:
    return text.replace('"', "#quot;")
