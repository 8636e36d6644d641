"""A plan that is cut before its committers: over topologies of any shape, every row and barrier finds its task."""

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefx import BasicBolt, Committer, Stateful, Topology, TopologyBuilder
from statefx.plan import wire
from statefx.plan.levels import Plan, PlanSegment, compile_plan, segments_of
from statefx.protocol.commands import Segment
from statefx.protocol.identity import TransactionAttempt
from statefx.runtime.outlets import Outbox
from statefx.testing import rows
from statefx.topology.graph import Component, ComponentKind, Edge, Grouping

ROWS = [(f"key-{n % 3}", n) for n in range(4)]
ATTEMPT = TransactionAttempt(1, 0)
METHODS = {"local": "localOrShuffleGrouping"}
KINDS = ("shuffle", "fields", "global", "all", "none", "local", "direct", "partialKey")


class Pass(BasicBolt):
    outputFields = {"default": "key string, n long", "named": "key string, n long"}

    def execute(self, tup, collector):
        collector.emit((tup.key, tup.n))
        collector.emit((tup.key, tup.n), stream="named", task=0)


class PassInOrder(Pass, Committer):
    pass


class Keep(Stateful, Pass):
    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put(tup.key, tup.n)
        super().execute(tup, collector)


@st.composite
def topologies(draw: st.DrawFn, bolts_max: int = 6) -> Topology:
    builder = TopologyBuilder("any")
    streams = [f"stream{n}" for n in range(draw(st.integers(1, 2)))]
    for name in streams:
        builder.setStream(name, rows("key string, n long"))
    sources = list(streams)
    unread = list(streams)
    for n in range(draw(st.integers(len(streams), bolts_max))):
        name, parallelism = f"bolt{n}", draw(st.integers(1, 3))
        bolt = draw(st.sampled_from([Pass, Keep, PassInOrder]))
        declarer = builder.setBolt(name, bolt(), parallelism)
        read = {draw(st.sampled_from(sources)) for _ in range(draw(st.integers(1, 2)))} | set(unread[:1])
        unread = unread[1:]
        for source in sorted(read):
            kind = draw(st.sampled_from([kind for kind in KINDS if kind != "direct" or source not in streams]))
            method = getattr(declarer, METHODS.get(kind, f"{kind}Grouping"))
            fields = ["key"] if kind in ("fields", "partialKey") else []
            method(source, *fields, stream="named" if kind == "direct" else "default")
        sources.append(name)
    return builder.createTopology()


def downstream(topology: Topology, starts: Iterable[str]) -> set[str]:
    found = set(starts)
    while more := {edge.target for edge in topology.edges if edge.source in found} - found:
        found |= more
    return found


@pytest.mark.slow
@given(topologies())
def test_what_is_behind_the_cut_is_the_committers_and_what_reads_from_them(topology):
    plan = compile_plan(topology, segments=2)
    committers = [one.id for one in topology.components if one.committer]
    behind = {component for (component, _), (level, _) in plan.place.items() if level >= plan.cut}
    assert behind == downstream(topology, committers)
    for level, chains in enumerate(plan.levels):
        assert {component in behind for chain in chains for component, _ in chain} == {level >= plan.cut}


@pytest.mark.slow
@given(topologies(), st.sampled_from([1, 2]))
def test_every_task_stands_once_and_reads_from_earlier_levels_or_its_own_chain(topology, cut):
    plan = compile_plan(topology, segments=cut)
    placed = Counter(task for chains in plan.levels for chain in chains for task in chain)
    given = {one.id: one.parallelism for one in topology.components if not one.is_stream}
    assert given == {name: one.parallelism for name, one in plan.components.items() if not one.is_stream}
    expected = {(name, task) for name, one in plan.components.items() for task in range(one.parallelism)}
    assert set(placed) == expected
    assert set(placed.values()) == {1}
    for edge in plan.edges:
        if not plan.fused(edge):
            assert plan.place[edge.source, 0][0] < plan.place[edge.target, 0][0]


@pytest.mark.slow
@given(topologies())
def test_the_segments_together_are_the_whole(topology):
    plan = compile_plan(topology, segments=2)
    first, second = segments_of(plan)[Segment.PROCESSING], segments_of(plan)[Segment.ORDERED]
    assert [*first.levels, *second.levels] == list(range(len(plan.levels)))
    assert sorted([*first.tasks, *second.tasks]) == sorted(plan.tasks)
    assert (first.checked_tasks, second.checked_tasks) == (first.tasks, plan.tasks)
    inside = {task[0] for task in first.tasks}
    assert set(first.checked_edges) == {edge for edge in plan.edges if edge.target in inside}
    assert second.checked_edges == plan.edges


@pytest.mark.slow
@given(topologies())
def test_a_plan_of_one_segment_is_not_cut(topology):
    plan = compile_plan(topology)
    assert (plan.cut, plan.levels) == (0, compile_plan(topology, segments=1).levels)
    assert segments_of(plan) == {
        Segment.WHOLE: PlanSegment(Segment.WHOLE, range(len(plan.levels)), plan.tasks, plan.tasks, plan.edges)
    }


def path(plan: Plan, place: tuple[int, int], target: tuple[int, int]) -> list[tuple[int, int]]:
    found = [place]
    while found[-1][0] < target[0]:
        outbox = Outbox(*found[-1], plan.widths)
        outbox.forward(*target, wire.RECORDS, 1, b"", b"")
        [batch] = outbox.take()
        found.append((found[-1][0] + 1, batch.column("target")[0].as_py()))
    return found


@pytest.mark.slow
@given(topologies(), st.sampled_from([1, 2]))
def test_every_address_is_reached_through_tasks_that_there_are(topology, cut):
    plan = compile_plan(topology, segments=cut)
    for edge in plan.edges:
        if plan.fused(edge):
            continue
        for source in range(plan.components[edge.source].parallelism):
            for task in range(plan.components[edge.target].parallelism):
                target = plan.place[edge.target, task]
                way = path(plan, plan.place[edge.source, source], target)
                assert way[-1] == target
                assert all(partition < plan.widths[level] for level, partition in way)


@pytest.fixture
def counted() -> Plan:
    builder = TopologyBuilder("counted")
    builder.setStream("numbers", rows("key string, n long"))
    builder.setBolt("first", Pass(), 2).shuffleGrouping("numbers")
    builder.setBolt("second", Pass(), 2).shuffleGrouping("first")
    builder.setBolt("keep", Keep(), 2).shuffleGrouping("second")
    builder.setBolt("after", Pass(), 2).shuffleGrouping("keep")
    builder.setBolt("beside", Pass(), 2).shuffleGrouping("second")
    return compile_plan(builder.createTopology(), segments=2)


def test_chains_end_at_the_cut(counted):
    chains = [{tuple(component for component, _ in chain) for chain in level} for level in counted.levels]
    assert chains == [{("numbers", "first", "second", "beside")}, {("keep", "after")}]
    assert counted.cut == 1


def test_a_component_without_inputs_stands_at_the_first_level():
    """As one that makes its input itself does."""
    source = Component("source", ComponentKind.BOLT, 3, {"default": pa.schema([("n", pa.int64())])}, Pass())
    keep = Component("keep", ComponentKind.BOLT, 3, {}, Keep(), committer=True)
    edge = Edge(0, "source", "default", "keep", Grouping("shuffle"))
    plan = compile_plan(Topology("made", (source, keep), (edge,)), segments=2)
    assert [{task.component for chain in level for task in chain} for level in plan.levels] == [{"source"}, {"keep"}]
    assert plan.channels("source", 0) == frozenset()


def test_where_nothing_is_ordered_the_first_segment_runs_all_of_it():
    builder = TopologyBuilder("plain")
    builder.setStream("numbers", rows("key string, n long"))
    builder.setBolt("first", Pass(), 2).fieldsGrouping("numbers", "key")
    plan = compile_plan(builder.createTopology(), segments=2)
    assert (plan.cut, segments_of(plan)[Segment.ORDERED].tasks) == (2, ())


class Adds(Pass):
    combinedFields = "key string, n long"

    def combineBatch(self, batch):
        return batch


class Rules(Keep):
    def executeBroadcast(self, tup, collector):
        pass


WIDTHS = {
    "fields": (lambda b: b.setBolt("a", Pass(), 9).fieldsGrouping("s", "key"), 3),
    "all": (lambda b: b.setBolt("a", Pass(), 8).allGrouping("s"), 2),
    "global": (lambda b: b.setBolt("a", Pass(), 8).globalGrouping("s"), 2),
    "few readers": (lambda b: b.setBolt("a", Pass(), 4).fieldsGrouping("s", "key"), 1),
    "shuffle": (lambda b: b.setBolt("a", Pass(), 5).shuffleGrouping("s"), 5),
    "local": (lambda b: b.setBolt("a", Pass(), 5).localOrShuffleGrouping("s"), 5),
    "none": (lambda b: b.setBolt("a", Pass(), 5).noneGrouping("s"), 5),
    "a combiner": (lambda b: b.setBolt("a", Adds(), 5).fieldsGrouping("s", "key"), 5),
    "two sources": (lambda b: b.setBolt("a", Pass(), 5).shuffleGrouping("s").shuffleGrouping("t"), 2),
    "the widest reader": (
        lambda b: (
            b.setBolt("a", Pass(), 5).fieldsGrouping("s", "key"),
            b.setBolt("b", Pass(), 17).globalGrouping("s"),
        ),
        5,
    ),
    "one in its slot": (
        lambda b: (
            b.setBolt("a", Pass(), 3).shuffleGrouping("s"),
            b.setBolt("b", Pass(), 17).fieldsGrouping("s", "key"),
        ),
        3,
    ),
    "the widest in its slot": (
        lambda b: (b.setBolt("a", Pass(), 3).shuffleGrouping("s"), b.setBolt("b", Pass(), 4).shuffleGrouping("s")),
        4,
    ),
    "one that has its rules from it": (
        lambda b: (
            b.setBolt("a", Rules(), 9).broadcastGrouping("s").fieldsGrouping("t", "key"),
            b.setBolt("b", Pass(), 5).shuffleGrouping("s"),
        ),
        1,
    ),
}


@pytest.mark.parametrize("readers", WIDTHS)
def test_a_stream_has_as_many_tasks_as_its_readers_have_work_for(readers):
    declare, width = WIDTHS[readers]
    builder = TopologyBuilder("streams")
    builder.setStream("s", rows("key string, n long"))
    builder.setStream("t", rows("key string, n long"))
    declare(builder)
    builder.setBolt("rest", Pass()).fieldsGrouping("t", "key")
    plan = compile_plan(builder.createTopology())
    assert plan.components["s"].parallelism == width
    assert {task for task in plan.place if task.component == "s"} == {("s", n) for n in range(width)}
    assert plan.components["s"].dataframe is None, "a plan is sent to tasks, which have no Spark"
    for edge in plan.outputs["s"]:
        reader = plan.components[edge.target]
        alone = {each.source for each in plan.inputs[edge.target]} == {"s"}
        stays = edge.grouping.kind in ("shuffle", "local", "none") and alone and reader.parallelism == width
        assert plan.fused(edge) == stays
