"""A topology compiled into levels: which tasks share a chain, and where every row goes next.

So that several transactions can be in flight, a plan is cut in two segments.

::

    PROCESSING    levels 0 .. cut-1        no committer, and nothing that reads from one
    - - - the cut - - - - rows wait here, in the chains that will read them
    ORDERED       levels cut .. last       committers, and everything downstream of one

PROCESSING of several transactions may run side by side; ORDERED runs for one transaction at a time, in the order of
txids (rules 2.1 and 2.3). This is why a committer never stands before the cut, and why a chain never crosses it: it
would wait for the transaction before in the middle of a transaction, and those behind could not run ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from statefx.operators.acker import ACKER
from statefx.operators.bolts import anchors_to_several
from statefx.operators.context import DEFAULT_STREAM
from statefx.operators.dedup import DEDUP
from statefx.operators.spouts import Spout
from statefx.plan.wire import next_partition, with_roots
from statefx.protocol.commands import Segment
from statefx.protocol.identity import TaskId
from statefx.protocol.watermark import Timing
from statefx.topology.graph import Component, ComponentKind, Edge, Promise, Topology, is_tracked

ROOT, ROOTS = pa.int64(), pa.list_(pa.int64())


def name_shown(component: str) -> str:
    """Return the name by which a user knows a component: statefx may have put a bolt of its own in between."""
    return component.removeprefix(DEDUP)


@dataclass(frozen=True)
class Plan:
    """Where everything runs."""

    components: Mapping[str, Component]  # by id, in topological order
    edges: tuple[Edge, ...]  # all edges, in the order of their ids
    # ``levels[l][p]`` is the chain of tasks that Spark task `p` of stage `l` runs, first to last.
    levels: tuple[tuple[tuple[TaskId, ...], ...], ...]
    cut: int = 0  # how many levels are before the cut (see `statefx.plan.levels`); 0 for a plan that one job runs

    @cached_property
    def place(self) -> Mapping[TaskId, tuple[int, int]]:
        return {
            task: (level, partition)
            for level, chains in enumerate(self.levels)
            for partition, chain in enumerate(chains)
            for task in chain
        }

    @cached_property
    def tasks(self) -> tuple[TaskId, ...]:
        return tuple(self.place)

    @cached_property
    def streams(self) -> Mapping[str, pa.Schema]:
        """The schema of each DataFrame, by id, in the order in which their columns stand in the united frame."""
        return {one.id: one.outputs[DEFAULT_STREAM] for one in self.components.values() if one.is_stream}

    @cached_property
    def timings(self) -> Mapping[str, Timing]:
        return {name: timings[DEFAULT_STREAM] for name in self.streams if (timings := self.components[name].timings)}

    @cached_property
    def stateful(self) -> tuple[TaskId, ...]:
        """Tasks that keep state, in order."""
        return tuple(sorted(task for task in self.tasks if self.components[task.component].stateful))

    @cached_property
    def spouts(self) -> tuple[TaskId, ...]:
        """Tasks of spouts, in order."""
        return tuple(sorted(task for task in self.tasks if self.components[task.component].kind is ComponentKind.SPOUT))

    def is_resident(self, component: str) -> bool:
        """Return whether a component is a spout that is resident in its tasks."""
        return isinstance(self.components[component].operator, Spout)

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Number of each component, for compact addresses."""
        return {name: i for i, name in enumerate(self.components)}

    @cached_property
    def outputs(self) -> Mapping[str, tuple[Edge, ...]]:
        return {name: tuple(e for e in self.edges if e.source == name) for name in self.components}

    @cached_property
    def inputs(self) -> Mapping[str, tuple[Edge, ...]]:
        return {name: tuple(e for e in self.edges if e.target == name) for name in self.components}

    @cached_property
    def timed(self) -> frozenset[str]:
        """The components that have event time: of their own, or from what they read."""
        found: set[str] = set()
        for name, component in self.components.items():  # in topological order
            ends = component.kind is ComponentKind.SINK or name == ACKER  # nobody there asks for it
            if component.timings or (not ends and any(edge.source in found for edge in self.inputs[name])):
                found.add(name)
        return frozenset(found)

    def fused(self, edge: Edge) -> bool:
        return self.place[TaskId(edge.source, 0)] == self.place[TaskId(edge.target, 0)]

    @cached_property
    def widths(self) -> tuple[int, ...]:
        return tuple(map(len, self.levels))

    def follows(self, component: str) -> bool:
        """Return whether another task of the same chain reads from `component`."""
        return any(self.fused(edge) for edge in self.outputs[component])

    def channels(self, component: str, task: int) -> frozenset[tuple[int, str, int]]:
        """Channels (edge, upstream component, upstream task) whose barriers close a task's input."""
        found: set[tuple[int, str, int]] = set()
        for edge in self.inputs[component]:
            if self.fused(edge):  # the other tasks of the source are in other Spark tasks, and send nothing here
                found.add((edge.id, edge.source, task))
            else:
                found |= {(edge.id, edge.source, i) for i in range(self.components[edge.source].parallelism)}
        return frozenset(found)

    def broadcast_channels(self, component: str, task: int) -> frozenset[tuple[int, str, int]]:
        """Return those of `channels` whose rows come before all others."""
        first = {edge.id for edge in self.inputs[component] if edge.grouping.broadcast}
        return frozenset(channel for channel in self.channels(component, task) if channel[0] in first)

    def barriers_through(self, level: int, partition: int) -> frozenset[tuple[int, int, int, int]]:
        """Return the channels whose barriers come to a chain: those that end there, and those that it passes on (5.5).

        Each is (level, partition, source, task): where it ends, and the number and the task of the component that
        sends.
        """
        found = set()
        for edge in self.edges:
            if self.fused(edge):
                continue
            for source in range(self.components[edge.source].parallelism):
                at, here = self.place[TaskId(edge.source, source)]
                for target in range(self.components[edge.target].parallelism):
                    end = self.place[TaskId(edge.target, target)]
                    if at < level <= end[0] and self._relay(at, here, end, level) == partition:
                        found.add((*end, self.index[edge.source], source))
        return frozenset(found)

    def _relay(self, level: int, partition: int, end: tuple[int, int], at: int) -> int:
        """Return the partition of level `at` through which rows go from a chain to the chain `end`."""
        for following in range(level + 1, at + 1):
            partition = next_partition(partition, end, following, self.widths)
        return partition

    def schema(self, edge: Edge) -> pa.Schema:
        """Return the schema of the rows that travel on `edge`: of its stream, unless they are added up before."""
        return self.components[edge.target].combined or self.stream_schema(edge)

    def stream_schema(self, edge: Edge) -> pa.Schema:
        return self.components[edge.source].outputs[edge.stream]

    @cached_property
    def root_types(self) -> Mapping[str, pa.DataType]:
        """How the rows of a component say which trees they belong to; components that are not tracked are not in it.

        What a plain bolt emits may be anchored to several tuples, and so to several roots; so may what a batch bolt
        emits in ``finishBatch``.
        """
        found: dict[str, pa.DataType] = {}
        for name, component in self.components.items():  # in topological order
            if isinstance(component.operator, Spout):
                found[name] = ROOT
            sources = [found[edge.source] for edge in self.inputs[name] if is_tracked(edge, component, found)]
            if sources:
                several = anchors_to_several(component.operator) or ROOTS in sources
                found[name] = ROOTS if several else ROOT
        return found

    def tracks(self, edge: Edge) -> bool:
        return is_tracked(edge, self.components[edge.target], self.root_types)

    def wire_schema(self, edge: Edge) -> pa.Schema:
        """Return the schema of the rows of `edge` as they travel, with their roots where they are tracked."""
        schema = self.schema(edge)
        return with_roots(schema, self.root_types[edge.source]) if self.tracks(edge) else schema

    def multiplicity(self, edge: Edge) -> int:
        """Rows received for each row emitted on `edge`."""
        every = edge.grouping.promise in (Promise.EVERY, Promise.BROADCAST)
        return self.components[edge.target].parallelism if every else 1


def compile_plan(topology: Topology, segments: int = 1) -> Plan:
    """Lay a topology out in levels.

    A bolt's level is one more than the highest level it reads from. Neighbours joined by shuffle, localOrShuffle or
    none with equal parallelism share a chain, when that source is the only one the consumer has. With 2 `segments` the
    plan is cut before the committers: what is downstream of the cut has levels after all others, and no chain has tasks
    on both sides.
    """
    edges = list(topology.edges)
    parts = {one.id: _emitting(one, topology) if one.is_stream else one for one in topology.components}
    ordered = ordered_components(parts, edges) if segments > 1 else frozenset()
    chains = _chains(parts, edges, ordered)
    depth = _depths(parts, edges, chains, ordered)
    levels: list[list[tuple[TaskId, ...]]] = [[] for _ in range(max(depth.values()) + 1)]
    for head, members in chains.items():
        for task in range(parts[head].parallelism):
            levels[depth[head]].append(tuple(TaskId(name, task) for name in members))
    cut = min((depth[name] for name in ordered), default=len(levels)) if segments > 1 else 0
    return Plan(parts, tuple(edges), tuple(tuple(level) for level in levels), cut)


def _emitting(stream: Component, topology: Topology) -> Component:
    """Return a DataFrame as what emits its rows, with a number of tasks, and without Spark's object.

    To read rows and to choose their tasks costs about a tenth of what a bolt does with them, tuple by tuple.
    """
    edges = topology.outputs(stream.id)
    readers = {edge.target: topology.component(edge.target) for edge in edges}
    sharing = [each.parallelism for each in readers.values() if _shares(each, topology)]
    if any(edge.grouping.broadcast for edge in edges):
        width = 1  # rows of one task stay in their order, of which a later one may take back an earlier one
    elif sharing:
        width = max(sharing)
    else:
        width = -(-max((each.parallelism for each in readers.values()), default=1) // _READERS_EACH)
    return replace(stream, parallelism=width, dataframe=None)


_READERS_EACH = 4
"""How many tasks of its widest reader there are for each task of a DataFrame."""


def _shares(reader: Component, topology: Topology) -> bool:
    """Return whether each task of a reader is best served by its own: in its chain, or adding up before it."""
    inputs = topology.inputs(reader.id)
    in_its_chain = all(edge.grouping.promise is Promise.ANY for edge in inputs)
    return reader.combines or (in_its_chain and len({edge.source for edge in inputs}) == 1)


def ordered_components(bolts: Mapping[str, Component], edges: Iterable[Edge]) -> frozenset[str]:
    """Return the committers, and everything that reads from one: what runs one transaction at a time (rule 2.1).

    `bolts` are in topological order.
    """
    sources: dict[str, set[str]] = {name: set() for name in bolts}
    for edge in edges:
        sources[edge.target].add(edge.source)
    found: set[str] = set()
    for name, bolt in bolts.items():
        if bolt.committer or not found.isdisjoint(sources[name]):
            found.add(name)
    return frozenset(found)


def _chains(bolts: Mapping[str, Component], edges: list[Edge], ordered: frozenset[str]) -> dict[str, list[str]]:
    """Group bolts that share their Spark tasks; keyed by the first of each group.

    What comes from outside a Spark task is for the head of its chain. So a bolt behind the head reads from one source,
    which is in the chain.
    """
    chains: dict[str, list[str]] = {}
    head_of: dict[str, str] = {}
    for name, bolt in bolts.items():
        inputs = [e for e in edges if e.target == name]
        sources = {e.source for e in inputs}
        source = next(iter(sources), "")  # a component without inputs begins a chain
        fusable = (
            len(sources) == 1
            and source in bolts
            and bolts[source].parallelism == bolt.parallelism
            and all(e.grouping.promise is Promise.ANY for e in inputs)
            and (source in ordered) == (name in ordered)  # the two run in different segments
        )
        head_of[name] = head_of[source] if fusable else name
        chains.setdefault(head_of[name], []).append(name)
    return chains


def _depths(
    bolts: Mapping[str, Component], edges: list[Edge], chains: dict[str, list[str]], ordered: frozenset[str]
) -> dict[str, int]:
    """Level of each bolt; those of `ordered` are behind all others."""
    head_of = {name: head for head, members in chains.items() for name in members}
    depth: dict[str, int] = {}
    lowest = 0
    # Nothing before the cut reads from behind it, so the two halves can be placed one after the other, each in
    # topological order.
    for half in ([name for name in bolts if name not in ordered], [name for name in bolts if name in ordered]):
        for name in half:
            sources = [e.source for e in edges if e.target == name and e.source in bolts]
            own = max(lowest, 1 + max((depth[s] for s in sources), default=-1))
            depth[name] = own if head_of[name] == name else depth[head_of[name]]
        lowest = 1 + max(depth.values(), default=0)
    return depth


@dataclass(frozen=True, slots=True)
class PlanSegment:
    """One segment's part of a plan, and of the checks when it has ended."""

    segment: Segment
    levels: range  # the plan's levels that it runs
    tasks: tuple[TaskId, ...]  # those that ack in this segment
    # Those whose acks are judged: of ORDERED all of them, because it has received the rows of PROCESSING (rule 5.1).
    checked_tasks: tuple[TaskId, ...]
    # Edges whose rows are counted: of PROCESSING those inside it, because nobody has received the rows at the cut.
    checked_edges: tuple[Edge, ...]


def segments_of(plan: Plan) -> Mapping[Segment, PlanSegment]:
    """Return the segments of a transaction: ``WHOLE`` alone, or ``PROCESSING`` and ``ORDERED`` of a cut plan."""
    height = len(plan.levels)
    if not plan.cut:
        whole = PlanSegment(Segment.WHOLE, range(height), plan.tasks, plan.tasks, plan.edges)
        return {Segment.WHOLE: whole}
    before = tuple(task for task in plan.tasks if plan.place[task][0] < plan.cut)
    behind = tuple(task for task in plan.tasks if plan.place[task][0] >= plan.cut)
    inside = tuple(edge for edge in plan.edges if plan.place[TaskId(edge.target, 0)][0] < plan.cut)
    return {
        Segment.PROCESSING: PlanSegment(Segment.PROCESSING, range(plan.cut), before, before, inside),
        Segment.ORDERED: PlanSegment(Segment.ORDERED, range(plan.cut, height), behind, plan.tasks, plan.edges),
    }
