"""A plan that is cut before its committers: over topologies of any shape, every row and barrier finds its task."""

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefx import BasicBolt, Stateful, Topology, TopologyBuilder
from statefx.plan import wire
from statefx.plan.deployment import Deployment
from statefx.plan.levels import INGEST, Plan, compile_plan
from statefx.plan.segments import PlanSegment, segments_of
from statefx.protocol.barrier import Ack
from statefx.protocol.commands import Segment
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.ledger import AckLedger, Complete, Incomplete, LedgerEdge
from statefx.protocol.order import Order
from statefx.runtime.outbox import Outbox
from statefx.runtime.slot import Slot
from statefx.runtime.worker import Worker
from statefx.storage import FolderStorage
from statefx.testing import rows
from statefx.testing.streams import scatter
from statefx.topology.graph import Component, ComponentKind, Edge
from statefx.topology.groupings import Grouping

ROWS = [(f"key-{n % 3}", n) for n in range(4)]
ATTEMPT = TransactionAttempt(1, 0)
METHODS = {"local": "localOrShuffleGrouping"}
KINDS = ("shuffle", "fields", "global", "all", "none", "local", "direct", "partialKey")


class Pass(BasicBolt):
    outputFields = {"default": "key string, n long", "named": "key string, n long"}

    def execute(self, tup, collector):
        collector.emit((tup.key, tup.n))
        collector.emit((tup.key, tup.n), stream="named", task=0)


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
        add, bolt = draw(
            st.sampled_from([(builder.setBolt, Pass), (builder.setBolt, Keep), (builder.setCommitterBolt, Pass)])
        )
        declarer = add(name, bolt(), parallelism)
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
def test_what_is_behind_the_cut_is_the_committers_and_what_reads_from_them(topology: Topology) -> None:
    plan = compile_plan(topology, segments=2)
    committers = [one.id for one in topology.components if one.committer]
    behind = {component for (component, _), (level, _) in plan.place.items() if level >= plan.cut}
    assert behind == downstream(topology, committers)
    for level, chains in enumerate(plan.levels):
        assert {component in behind for chain in chains for component, _ in chain} == {level >= plan.cut}


@pytest.mark.slow
@given(topologies(), st.sampled_from([1, 2]))
def test_every_task_stands_once_and_reads_from_earlier_levels_or_its_own_chain(topology: Topology, cut: int) -> None:
    plan = compile_plan(topology, segments=cut)
    placed = Counter(task for chains in plan.levels for chain in chains for task in chain)
    expected = {(one.id, task) for one in topology.components for task in range(one.parallelism)}
    assert {task for task in placed if not task[0].startswith(INGEST)} == expected
    assert set(placed.values()) == {1}
    for edge in plan.edges:
        if edge.source not in plan.components:
            assert plan.place[edge.target, 0][0] == 0, "raw rows are given to the first level alone"
        elif not plan.fused(edge):
            assert plan.place[edge.source, 0][0] < plan.place[edge.target, 0][0]


@pytest.mark.slow
@given(topologies())
def test_the_segments_together_are_the_whole(topology: Topology) -> None:
    plan = compile_plan(topology, segments=2)
    first, second = segments_of(plan)[Segment.PROCESSING], segments_of(plan)[Segment.ORDERED]
    assert [*first.levels, *second.levels] == list(range(len(plan.levels)))
    assert sorted([*first.tasks, *second.tasks]) == sorted(plan.tasks)
    assert (first.judged_tasks, second.judged_tasks) == (first.tasks, plan.tasks)
    inside = {task[0] for task in first.tasks}
    assert set(first.judged_edges) == {edge for edge in plan.edges if edge.target in inside}
    assert second.judged_edges == plan.edges


@pytest.mark.slow
@given(topologies())
def test_a_plan_of_one_segment_is_not_cut(topology: Topology) -> None:
    plan = compile_plan(topology)
    assert (plan.cut, plan.levels) == (0, compile_plan(topology, segments=1).levels)
    assert segments_of(plan) == {
        Segment.WHOLE: PlanSegment(Segment.WHOLE, range(len(plan.levels)), plan.tasks, plan.tasks, plan.edges)
    }


def path(plan: Plan, place: tuple[int, int], target: tuple[int, int]) -> list[tuple[int, int]]:
    """Levels and partitions through which a row comes from `place` to `target`."""
    found = [place]
    while found[-1][0] < target[0]:
        outbox = Outbox(*found[-1], plan.widths)
        outbox.forward(*target, wire.RECORDS, 1, b"", b"")
        [batch] = outbox.take()
        found.append((found[-1][0] + 1, batch.column("target")[0].as_py()))
    return found


@pytest.mark.slow
@given(topologies(), st.sampled_from([1, 2]))
def test_every_address_is_reached_through_tasks_that_there_are(topology: Topology, cut: int) -> None:
    plan = compile_plan(topology, segments=cut)
    for edge in plan.edges:
        if edge.source not in plan.components or plan.fused(edge):
            continue
        for source in range(plan.components[edge.source].parallelism):
            for task in range(plan.components[edge.target].parallelism):
                target = plan.place[edge.target, task]
                way = path(plan, plan.place[edge.source, source], target)
                assert way[-1] == target
                assert all(partition < plan.widths[level] for level, partition in way)


@pytest.mark.slow
@given(topologies(), st.sampled_from([1, 2]))
def test_acks_reach_the_driver_at_the_end_of_their_job_and_no_task_behind_it(topology: Topology, cut: int) -> None:
    plan = compile_plan(topology, segments=cut)
    for segment in segments_of(plan).values():
        for task in segment.tasks:
            place = plan.place[task]
            way = path(plan, place, plan.driver_of(place[0]))
            assert [level for level, _ in way] == list(range(place[0], segment.levels.stop + 1))
            assert all(partition < plan.widths[level] for level, partition in way[:-1])
            end = segment.levels.stop
            assert way[-1] == (end, plan.widths[end] if end < len(plan.levels) else 0)


# ---- with real tasks


def run(plan: Plan, place: Path) -> tuple[dict[Segment, list[Ack]], dict[Segment, Complete | Incomplete]]:
    """Run a transaction job by job; return the acks of each job, and how the ledger judges when it has ended."""
    worker = Worker()
    deployment = Deployment(
        "any", plan, {}, "statefx_memory:MemoryStateProvider", {}, "l" * 32, 1, FolderStorage(place), str(place)
    )
    inputs: list[list[pa.RecordBatch]] = [*scatter(plan, dict.fromkeys(plan.streams, ROWS))]
    acks: dict[Segment, list[Ack]] = {}
    verdicts = {}
    for name, segment in segments_of(plan).items():
        arrived: dict[int, list[wire.WireRow]] = {}
        for level in segment.levels:
            arrived = {}
            for partition in range(plan.widths[level]):
                slot = Slot(worker, deployment, Order(ATTEMPT, 1), level, partition, last_try=True)
                for row in rows_from(slot.run(inputs[partition])):
                    arrived.setdefault(row[0], []).append(row)
            width = (*plan.widths, 0)[level + 1]
            inputs = [[wire.to_batch(arrived[n])] if n in arrived else [] for n in range(width)]
        driver = plan.driver_of(segment.levels[-1])[1] if segment.levels else 0
        acks[name] = [Ack.unpack(row[4]) for row in arrived.pop(driver, [])]
        assert all(row[1] != wire.ACK for rows in arrived.values() for row in rows)
        verdicts[name] = judge(plan, segment, [ack for found in acks.values() for ack in found])
    worker.close()
    return acks, verdicts


def rows_from(batches: Iterable[pa.RecordBatch]) -> Iterator[wire.WireRow]:
    for batch in batches:
        yield from (tuple(row.values()) for row in batch.to_pylist())  # type: ignore[misc]


def judge(plan: Plan, segment: PlanSegment, acks: Iterable[Ack]) -> Complete | Incomplete:
    def counted(edge: Edge) -> LedgerEdge:
        return LedgerEdge(edge.id, edge.source, edge.target, plan.multiplicity(edge), local=plan.fused(edge))

    ledger = AckLedger(ATTEMPT, segment.judged_tasks, map(counted, segment.judged_edges))
    for ack in acks:
        ledger.add(ack)
    return ledger.judge()


def received(acks: Iterable[Ack]) -> Counter[int]:
    return sum((Counter(dict(ack.received)) for ack in acks), Counter())


@pytest.mark.slow
@given(topologies(bolts_max=4))
def test_both_jobs_together_receive_what_one_job_receives(topology: Topology) -> None:
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as parts:
        plan, cut = compile_plan(topology), compile_plan(topology, segments=2)
        alone, verdict = run(plan, Path(whole))
        assert isinstance(verdict[Segment.WHOLE], Complete)
        acks, verdicts = run(cut, Path(parts))
        assert all(isinstance(each, Complete) for each in verdicts.values()), verdicts
        expected = received(alone[Segment.WHOLE])
        found = received([*acks[Segment.PROCESSING], *acks[Segment.ORDERED]])
        users = {edge.id for edge in topology.edges}
        assert {edge: expected[edge] for edge in users} == {edge: found[edge] for edge in users}


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


def test_chains_end_at_the_cut(counted: Plan) -> None:
    chains = [{tuple(component for component, _ in chain) for chain in level} for level in counted.levels]
    assert chains == [{("first", "second", "beside")}, {("keep", "after")}]
    assert counted.cut == 1


def test_a_part_of_p_that_ran_again_is_refused_with_o(counted: Plan, tmp_path: Path) -> None:
    """Job O reads the rows of the second run, and the acks of job P are those of the first (rule 5.1)."""
    first, _ = run(counted, tmp_path)
    second, _ = run(counted, tmp_path)
    verdict = judge(
        counted, segments_of(counted)[Segment.ORDERED], [*first[Segment.PROCESSING], *second[Segment.ORDERED]]
    )
    assert isinstance(verdict, Incomplete)
    tokens = {ack.task: ack.token for ack in second[Segment.PROCESSING] if ack.component == "second"}
    expected = {f"saw token {tokens[task]} of second[{task}]" for task in tokens}
    assert {failure.reason.split(",")[0] for failure in verdict.failures} == expected


def test_a_component_without_inputs_stands_at_the_first_level() -> None:
    """As one that makes its input itself does."""
    source = Component("source", ComponentKind.BOLT, 3, {"default": pa.schema([("n", pa.int64())])}, Pass())
    keep = Component("keep", ComponentKind.BOLT, 3, {}, Keep(), committer=True)
    edge = Edge(0, "source", "default", "keep", Grouping("shuffle"))
    plan = compile_plan(Topology("made", (source, keep), (edge,)), segments=2)
    assert [{task.component for chain in level for task in chain} for level in plan.levels] == [{"source"}, {"keep"}]
    assert plan.channels("source", 0) == frozenset()


def test_where_nothing_is_ordered_the_first_job_runs_all_of_it(tmp_path: Path) -> None:
    builder = TopologyBuilder("plain")
    builder.setStream("numbers", rows("key string, n long"))
    builder.setBolt("first", Pass(), 2).fieldsGrouping("numbers", "key")
    plan = compile_plan(builder.createTopology(), segments=2)
    acks, verdicts = run(plan, tmp_path)
    assert (plan.cut, segments_of(plan)[Segment.ORDERED].tasks) == (1, ())
    assert (len(acks[Segment.PROCESSING]), acks[Segment.ORDERED]) == (2, [])
    assert all(isinstance(each, Complete) for each in verdicts.values())


def test_rows_that_only_committers_read_are_taken_in_before_the_cut(tmp_path: Path) -> None:
    builder = TopologyBuilder("direct")
    builder.setStream("numbers", rows("key string, n long"))
    keep: Any = builder.setBolt("keep", Keep(), 2)
    keep.shuffleGrouping("numbers")
    plan = compile_plan(builder.createTopology(), segments=2)
    assert [task[0] for task in segments_of(plan)[Segment.PROCESSING].tasks] == [f"{INGEST}numbers"] * 2
    acks, verdicts = run(plan, tmp_path)
    assert received(acks[Segment.ORDERED])[0] == len(ROWS)
    assert isinstance(verdicts[Segment.ORDERED], Complete)
