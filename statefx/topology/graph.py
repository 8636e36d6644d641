"""Topologies as frozen data: groupings and their promises, components, edges, and how people are shown them.

`statefx.plan.groupings` keeps the promises.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from statefx.errors import TopologyError
from statefx.operators.bolts import Bolt, keeps_state
from statefx.operators.context import DEFAULT_STREAM
from statefx.operators.dedup import DEDUP
from statefx.operators.schema import to_ddl
from statefx.operators.sinks import Sink
from statefx.operators.spouts import ReplayingSpout, Spout
from statefx.operators.windows import windowing_of
from statefx.protocol.watermark import Timing
from statefx.topology import drawing

if TYPE_CHECKING:
    import pyarrow as pa


class Promise(StrEnum):
    """Which tasks of the consumer may get a row."""

    ANY = "any"
    KEY = "key"
    KEY_OF_TWO = "one of two by the key"
    FIRST = "task 0"
    EVERY = "every"
    BROADCAST = "every, before all other rows"
    NAMED = "the one that the sender names"


PROMISES: Mapping[str, Promise] = {
    "shuffle": Promise.ANY,
    "fields": Promise.KEY,
    "global": Promise.FIRST,
    "all": Promise.EVERY,
    "broadcast": Promise.BROADCAST,
    "none": Promise.ANY,
    "local": Promise.ANY,
    "direct": Promise.NAMED,
    "partialKey": Promise.KEY_OF_TWO,
}
"""Kind of a grouping -> what it promises. Checks ask for the promise; only who sends rows asks for the kind."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Which task of the consumer a row goes to.

    Attributes
    ----------
    kind : str
        ``shuffle`` any, evenly; ``fields`` by the hash of `fields`; ``global`` task 0; ``all`` every task;
        ``broadcast`` every task, before its other rows; ``none`` any, as is cheapest; ``local`` the
        sender's own process if it can be; ``direct`` the one that the sender names; ``partialKey`` one of two by the
        hashes of `fields`, the one less loaded.
    fields : tuple of str
        For ``fields`` and ``partialKey``.
    """

    kind: str
    fields: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in PROMISES:
            raise ValueError(f"no grouping {self.kind!r}; there are {', '.join(PROMISES)}")

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(self.fields)})" if self.fields else self.kind

    @property
    def promise(self) -> Promise:
        """Its promise about the task."""
        return PROMISES[self.kind]

    @property
    def broadcast(self) -> bool:
        """Whether every task gets the row before its other rows."""
        return self.promise is Promise.BROADCAST

    @property
    def by_key(self) -> bool:
        """Whether the values of fields decide."""
        return self.promise in (Promise.KEY, Promise.KEY_OF_TWO)


@dataclass(frozen=True, slots=True)
class DeclaredInput:
    """An input of a component as it was declared, before anything is known of its source."""

    source: str
    stream: str
    grouping: Grouping


INTERNAL = "__"
"""So begin the names of components that are statefx's own."""


@dataclass(frozen=True, eq=False)
class RowStream:
    """A stand-in for a DataFrame in ``setStream``: its schema, and rows that come from elsewhere."""

    schema: Any
    isStreaming: bool  # noqa: N815 - pyspark's name


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


class ComponentKind(StrEnum):
    """Kinds of components.

    A kind has a method of the builder, its own checks, a shape in pictures, and, a `Task`
    (`statefx.runtime.chain.task_of`).
    """

    STREAM = "stream"
    SPOUT = "spout"
    BOLT = "bolt"
    SINK = "sink"


class OnError(StrEnum):
    """Treatment of a row of which a bolt's ``execute`` raises an error."""

    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "deadLetter"
    QUARANTINE_KEY = "quarantineKey"

    @property
    def writes_letters(self) -> bool:
        """Whether the row becomes a dead letter."""
        return self in (OnError.DEAD_LETTER, OnError.QUARANTINE_KEY)


@dataclass(frozen=True, eq=False)  # each is itself alone: what users give may have an == of any meaning, or no hash
class Component:
    """A node of the topology; `id` is its name, also of its folder in the checkpoint.

    `parallelism` is 0 for a stream, whose rows Spark makes. `outputs` are the schemas of its streams. `operator` is the
    user's object, of which tasks have copies, None for a stream, which has a `dataframe`. `committer`: its effects are
    ordered by txid, as of every stateful bolt and every sink. `combined` is the schema of a bolt's rows if they are
    added up before they are sent, otherwise None. `dedup_secs` is how long ids of a spout's messages are kept, to drop
    redelivered ones. `timings` say how event time is read, by stream. `tick_secs` is the period of a bolt's ticks, None
    if the settings decide. `time_fields` are a windowed bolt's fields of event time, by source and stream of its
    inputs. `on_error` says what becomes of a row of which the bolt raises an error.
    """

    id: str
    kind: ComponentKind
    parallelism: int
    outputs: Mapping[str, pa.Schema]
    operator: Bolt | ReplayingSpout | Spout | Sink | None = None
    dataframe: Any = None
    committer: bool = False
    combined: pa.Schema | None = None
    dedup_secs: float | None = None
    timings: Mapping[str, Timing] = field(default_factory=dict)
    tick_secs: float | None = None
    time_fields: Mapping[tuple[str, str], str] = field(default_factory=dict)
    on_error: OnError = OnError.FAIL

    @property
    def combines(self) -> bool:
        """Whether rows for it are added up before they are sent."""
        return isinstance(self.operator, Bolt) and self.operator.combines

    @property
    def stateful(self) -> bool:
        """Whether it keeps state."""
        return keeps_state(self.operator)

    @property
    def is_stream(self) -> bool:
        """Whether it is a raw DataFrame."""
        return self.kind is ComponentKind.STREAM


def is_tracked(edge: Edge, target: Component, tracked: Collection[str]) -> bool:
    """Return whether the rows of an edge belong to the trees of tuples, if those of the components `tracked` do.

    Not what is added up: a sum would belong to the trees of all that is in it. A sink fails no single row. And behind
    what is statefx's own there are no trees: a bolt that fails a row fails the transaction.
    """
    is_bolt = target.kind is ComponentKind.BOLT and not target.id.startswith(INTERNAL)
    return edge.source in tracked and is_bolt and not target.combines


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

    @property
    def streaming(self) -> bool:
        """Whether its streams go on for ever; one topology has one kind of them."""
        return any(component.is_stream and component.dataframe.isStreaming for component in self.components)

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
        """Return the schema of the stream that `edge` reads."""
        return self.component(edge.source).outputs[edge.stream]

    @cached_property
    def sinks(self) -> Mapping[str, tuple[Sink, pa.Schema]]:
        """The sinks by id, each with the schema of its rows."""
        return {
            one.id: (one.operator, self.schema(self.inputs(one.id)[0]))
            for one in self.components
            if isinstance(one.operator, Sink)
        }

    @property
    def reads_spouts(self) -> bool:
        """Whether its rows come from spouts, of any kind."""
        return any(one.kind is ComponentKind.SPOUT for one in self.components)

    @cached_property
    def tracked_spouts(self) -> Mapping[str, Spout]:
        """The spouts that live in their tasks, by id."""
        return {one.id: one.operator for one in self.components if isinstance(one.operator, Spout)}

    @cached_property
    def replaying_spouts(self) -> Mapping[str, ReplayingSpout]:
        """The spouts of transactions, by id."""
        return {one.id: one.operator for one in self.components if isinstance(one.operator, ReplayingSpout)}

    def describe(self) -> str:
        """Return a text that shows components, parallelism, inputs with their groupings, and output schemas."""
        lines = [f"topology {self.name}"]
        for component in self.components:
            lines.append(f"  {component.id}: {_text(component)}")
            lines.extend(f"    <- {_source(edge)} by {edge.grouping}" for edge in self.inputs(component.id))
            lines.extend(f"    -> {stream}: {to_ddl(schema)}" for stream, schema in component.outputs.items())
            if not component.outputs and component.kind is ComponentKind.BOLT:
                lines.append("    -> emits nothing")
        return "\n".join(lines) + "\n"

    def mermaid(self) -> str:
        """Return a Mermaid flowchart: rounded streams and spouts, plain bolts, cylinders with state, slanted sinks."""
        lines = ["flowchart LR"]
        nodes = {component.id: f"c{number}" for number, component in enumerate(self.components)}
        lines.extend(f"    {nodes[component.id]}{_shape(component)}" for component in self.components)
        for edge in self.edges:
            stream = "" if edge.stream == DEFAULT_STREAM else f"{edge.stream}: "
            label = f"{stream}{edge.grouping}".replace('"', "#quot;")
            lines.append(f'    {nodes[edge.source]} -->|"{label}"| {nodes[edge.target]}')
        return "\n".join(lines) + "\n"

    def svg(self) -> str:
        """Return a drawing as SVG, from left to right, in the shapes of `mermaid`; needs nothing else to be shown."""
        return drawing.svg(graph_of(self), name=self.name)

    def _repr_html_(self) -> str | None:
        """Return the drawing, for notebooks; it scrolls where it is wider than the page."""
        try:
            return f'<div style="overflow-x:auto">{self.svg()}</div>'
        except Exception:  # noqa: BLE001 - then a notebook shows the `repr`
            return None


def graph_of(topology: Topology, provider: str | None = None) -> dict[str, Any]:
    """Return the components and edges that a user knows as plain data, in the form of an observation's ``graph``.

    A component's level is the longest way to it. `provider` keeps the state, if that is known.
    """
    known = {one.id: one for one in topology.components if not one.id.startswith(INTERNAL)}
    ways = [(edge.source.removeprefix(DEDUP), edge) for edge in topology.edges if edge.target in known]
    ways = [(source, edge) for source, edge in ways if source in known]
    level: dict[str, int] = {}
    components = []
    for name, one in known.items():  # in topological order
        level[name] = 1 + max((level[source] for source, edge in ways if edge.target == name), default=-1)
        components.append(
            {
                "name": name,
                "kind": str(one.kind),
                "level": level[name],
                "tasks": one.parallelism,
                "operator": None if one.operator is None else type(one.operator).__name__,
                "provider": provider if one.stateful else None,
                "stateful": one.stateful,
                "committer": one.committer,
            }
        )
    edges = [
        {"from": source, "to": edge.target, "stream": edge.stream, "grouping": str(edge.grouping)}
        for source, edge in ways
    ]
    return {"levels": 1 + max(level.values(), default=-1), "components": components, "edges": edges}


def _text(component: Component) -> str:
    if component.is_stream:
        return "streaming DataFrame" if component.dataframe.isStreaming else "batch DataFrame"
    if isinstance(component.operator, Sink):
        return f"{type(component.operator).__name__} x {component.parallelism} to {component.operator.target}"
    kind = ", stateful" if component.stateful else ", committer" if component.committer else ""
    ticks = "" if component.tick_secs is None else f", a tick each {component.tick_secs:g} s"
    windowing = windowing_of(component.operator)
    windows = "" if windowing is None else f", {windowing}"
    bad = "" if component.on_error is OnError.FAIL else f", onError={component.on_error}"
    return f"{type(component.operator).__name__} x {component.parallelism}{kind}{windows}{ticks}{bad}"


def _source(edge: Edge) -> str:
    return edge.source if edge.stream == DEFAULT_STREAM else f"{edge.source}.{edge.stream}"


def _shape(component: Component) -> str:
    if component.is_stream:
        return f'(["{component.id}"])'
    text = f"{component.id} x {component.parallelism}"
    if component.kind is ComponentKind.SPOUT:
        return f'(["{text}"])'
    if component.kind is ComponentKind.SINK:
        return f'[/"{text}"/]'
    if component.stateful:
        return f'[("{text}")]'
    return f'[["{text}"]]' if component.committer else f'["{text}"]'
