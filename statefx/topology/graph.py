"""A topology as frozen data: components, and the edges between them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from statefx.errors import TopologyError
from statefx.operators import Bolt, Stateful
from statefx.topology.groupings import Grouping
from statefx.topology.pictures import describe, mermaid

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Edge:
    """One grouping of one consumer: the way from `source`'s `stream` into `target`.

    `id` numbers the topology's edges from 0: by consumer in topological order, then in order of declaration.
    """

    id: int
    source: str
    stream: str
    target: str
    grouping: Grouping


@dataclass(frozen=True, eq=False)
class Component:
    """A node of the topology: a bolt, or a raw DataFrame.

    Attributes
    ----------
    id : str
        Its name in the topology, and of its folder in the checkpoint.
    parallelism : int
        The number of its tasks; 0 for a DataFrame.
    outputs : Mapping[str, pyarrow.Schema]
        The schema of each stream it emits.
    bolt : Bolt or None
        None for a DataFrame.
    dataframe : Any
        The DataFrame, or None.
    committer : bool
        Its effects are ordered by txid; every stateful bolt is one.
    """

    id: str
    parallelism: int
    outputs: Mapping[str, pa.Schema]
    bolt: Bolt | None
    dataframe: Any = None
    committer: bool = False

    @property
    def stateful(self) -> bool:
        """Whether the bolt keeps state."""
        return isinstance(self.bolt, Stateful)

    @property
    def is_stream(self) -> bool:
        """Whether it is a raw DataFrame."""
        return self.bolt is None


@dataclass(frozen=True, eq=False, repr=False)
class Topology:
    """A checked topology, as ``TopologyBuilder.createTopology`` makes it.

    Attributes
    ----------
    name : str
        The topology's name.
    components : tuple of Component
        In topological order; ties in order of declaration.
    edges : tuple of Edge
        In the order of their ids.
    """

    name: str
    components: tuple[Component, ...]
    edges: tuple[Edge, ...]

    def __repr__(self) -> str:
        return f"<Topology {self.name!r} of {len(self.components)} components>"

    @cached_property
    def _by_id(self) -> dict[str, Component]:
        return {component.id: component for component in self.components}

    @cached_property
    def _inputs(self) -> dict[str, tuple[Edge, ...]]:
        return {one.id: tuple(edge for edge in self.edges if edge.target == one.id) for one in self.components}

    @cached_property
    def _outputs(self) -> dict[str, tuple[Edge, ...]]:
        return {one.id: tuple(edge for edge in self.edges if edge.source == one.id) for one in self.components}

    def component(self, id: str) -> Component:
        """Return the component `id`; TopologyError, naming the nearest, if there is none."""
        if id not in self._by_id:
            near = difflib.get_close_matches(id, self._by_id, n=1, cutoff=0.0)
            raise TopologyError(f"no component {id!r}; the nearest is {near[0]!r}", component=id)
        return self._by_id[id]

    def inputs(self, id: str) -> tuple[Edge, ...]:
        """Return the edges into the component `id`."""
        return self._inputs[self.component(id).id]

    def outputs(self, id: str) -> tuple[Edge, ...]:
        """Return the edges out of the component `id`."""
        return self._outputs[self.component(id).id]

    def schema(self, edge: Edge) -> pa.Schema:
        """Return the schema of the rows that travel on `edge`."""
        return self.component(edge.source).outputs[edge.stream]

    def describe(self) -> str:
        """Return a text that shows components, inputs and output schemas."""
        return describe(self)

    def mermaid(self) -> str:
        """Return a Mermaid flowchart of the topology."""
        return mermaid(self)
