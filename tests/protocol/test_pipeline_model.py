"""Every interleaving of three transactions, with a crash before and after every record.

The model plays the driver's surroundings: the log (by its real rules), jobs that succeed, fail, or speak up after they
were cancelled, tasks that do not carry out a resolution at once, and spouts (`spouts_model`). It never waits: whatever
may happen next is tried.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from types import MappingProxyType

import pytest

from statefx.protocol.commands import (
    Acked,
    Append,
    Appended,
    Cancel,
    Command,
    Deliver,
    Failed,
    Happening,
    Idle,
    Offered,
    Resolution,
    Resolve,
    Resolved,
    Segment,
    StartSegment,
    Stop,
    Unresolved,
)
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.log_rules import apply
from statefx.protocol.log_state import LogState
from statefx.protocol.order import Emission
from statefx.protocol.pipeline import Pipeline, Shape
from statefx.protocol.records import Committed, Committing, Generation, Preparing, Processed, RolledBack, SpoutInput
from statefx.protocol.topology_identity import NO_TOPOLOGY
from statefx.protocol.transaction import Phase, Stage
from tests.protocol.spouts_model import Kinds, Spouts

pytestmark = pytest.mark.slow

TRANSACTIONS = 3


@dataclass(frozen=True)
class World:
    """A driver, its log, and what it has asked for that has not come about."""

    pipeline: Pipeline
    log: LogState
    spouts: Spouts = field(default_factory=Spouts)
    jobs: frozenset[StartSegment] = frozenset()
    told: frozenset[Resolve] = frozenset()
    delivered: int = 0
    failures: int = 0
    crashes: int = 0
    stops: int = 0

    @cached_property
    def key(self) -> object:
        entries = tuple((each.phase, each.name, each.processed) for each in self.log.in_flight)
        log = (self.log.generation, self.log.committed, entries, tuple(self.log.attempts.items()))
        budget = (self.delivered, self.failures, self.crashes, self.stops)
        return self.pipeline, log, self.spouts.key, self.jobs, self.told, budget

    @property
    def landed(self) -> World:
        """The world in which the record that is being appended stands; by the log's own rules, which may refuse it."""
        append, log, spouts = self.pipeline.appending, self.log, self.spouts
        assert append is not None
        txid, attempt = append.attempt.txid, append.attempt.attempt
        match append.kind:
            case "PREPARING":
                planned = spouts.planned
                log = apply(log, Preparing(txid, attempt, log.generation, SpoutInput(), append.committed, planned))
            case "PROCESSED":
                log = apply(log, Processed(txid, attempt, spouts.emitted(append.attempt, Emission.NEW)))
            case "COMMITTING":
                hooks = () if self.pipeline.shape.commits_at_decision else ("count/0",)
                emitted = spouts.emitted(append.attempt, Emission.OPAQUE)
                decided = Committing(txid, attempt, log.generation, {}, hooks=hooks, emitted=emitted)
                log = apply(log, replace(decided, committed=append.committed))
            case kind:
                log = apply(log, Committed(txid) if kind == "COMMITTED" else RolledBack(txid, attempt, ""))
        spouts = spouts.landed(log, append)
        spouts.check_committed(log)
        return replace(self, log=log, spouts=spouts)


def started(world: World, *, hooks_change: bool = False) -> World:
    """A driver starts on the log: the next generation, maybe with bolts that have hooks now, or have them no longer."""
    log = apply(world.log, Generation(world.log.generation + 1, "", NO_TOPOLOGY))
    in_flight = log.in_flight
    shape = replace(world.pipeline.shape, commits_at_decision=world.pipeline.shape.commits_at_decision != hooks_change)
    pipeline, commands = Pipeline.recover(shape, log.committed, in_flight, log.attempts)
    spouts = world.spouts.restarted()
    world = replace(world, pipeline=pipeline, log=log, spouts=spouts, jobs=frozenset(), told=frozenset())
    return carry_out(world, commands)


def carry_out(world: World, commands: tuple[Command, ...]) -> World:
    """Take commands on, checking what the protocol promises at each."""
    for command in commands:
        match command:
            case Append(kind, attempt):
                if kind == "COMMITTING":
                    assert world.pipeline.committed == attempt.txid - 1
                if kind == "ROLLED_BACK":
                    assert world.pipeline.entries[-1].name == attempt, "only from the top"
            case StartSegment(segment, attempt):
                if segment is not Segment.PROCESSING:
                    below = [each for each in world.log.in_flight if each.txid < attempt.txid]
                    assert all(each.phase is Phase.COMMITTING for each in below), "O before COMMITTING of t-1"
                elif world.pipeline.shape.emitted:
                    before = [each for each in world.jobs if each.segment is Segment.PROCESSING]
                    assert not before, "emissions overlap"
                spouts = world.spouts.run(world.log, segment, attempt)
                world = replace(world, spouts=spouts, jobs=world.jobs | {command})
            case Cancel(attempt):
                gone = frozenset(job for job in world.jobs if job.attempt == attempt)
                assert gone
                world = replace(world, jobs=world.jobs - gone)
            case Resolve(resolution, attempt):
                if resolution is Resolution.COMMIT:
                    decided = [each.name for each in world.log.in_flight if each.phase is Phase.COMMITTING]
                    assert decided == [attempt]
                else:
                    assert world.pipeline.committed == attempt.txid - 1, "a rollback is told the committed state"
                world = replace(world, told=world.told | {command})
            case Deliver(txid):
                assert txid <= world.log.committed, "told before COMMITTED is durable"
                assert txid == world.delivered + 1 or (txid == world.delivered and world.log.generation > 1)
                world = replace(world, delivered=txid)
    phases = [each.phase for each in world.log.in_flight]
    assert phases.count(Phase.COMMITTING) <= 1
    assert [each.txid for each in world.pipeline.entries] == list(
        range(world.pipeline.committed + 1, world.pipeline.committed + 1 + len(world.pipeline.entries))
    )
    return world


def on(world: World, event: Happening) -> World:
    pipeline, commands = world.pipeline.on(event)
    return carry_out(replace(world, pipeline=pipeline), commands)


def answers(world: World) -> Iterator[tuple[World, World]]:
    """What comes when something that is under way has ended: when all went well, and when not."""
    for job in world.jobs:
        after = replace(world, jobs=world.jobs - {job})
        acked = replace(after, spouts=world.spouts.acked(world.log, job.attempt))
        yield on(acked, Acked(job.segment, job.attempt)), on(after, Failed(job.attempt))
    for told in world.told:
        after = replace(world, told=world.told - {told})
        yield on(after, Resolved(told.resolution, told.attempt)), on(after, Unresolved(told.resolution, told.attempt))


def happenings(world: World, failures: int, crashes: int, stops: int, transactions: int) -> Iterator[World]:
    """Everything that may happen next."""
    pipeline = world.pipeline
    if pipeline.admits and pipeline.next.txid <= transactions:
        yield on(replace(world, spouts=world.spouts.offered(world.log, pipeline.next)), Offered())
    append = pipeline.appending
    landed = None if append is None else world.landed
    if append is not None and landed is not None:
        yield on(landed, Appended(append))
    if world.crashes < crashes:
        before_and_after = (world,) if landed is None else (world, landed)
        # How a decision is carried out that another topology made has nothing to do with how spouts read.
        changes = (False, True) if world.spouts.kinds in ({}, PLANNED) else (False,)
        for found, hooks_change in product(before_and_after, changes):
            yield started(replace(found, crashes=found.crashes + 1), hooks_change=hooks_change)
    for good, bad in answers(world):
        yield good
        if world.failures < failures:
            yield replace(bad, failures=world.failures + 1)
    if pipeline.on(Idle())[1]:
        yield on(world, Idle())
    if world.stops < stops and not pipeline.stopping:
        for now in (False, True):
            yield on(replace(world, stops=world.stops + 1), Stop(now))
    if pipeline.ended:
        yield started(world)


def late_news(world: World) -> Iterator[Happening]:
    """What nobody waits for: of attempts not in flight, of jobs that do not run, of records not being appended."""
    pipeline = world.pipeline
    live = {entry.name: entry for entry in pipeline.entries}
    segments = (Segment.WHOLE,) if pipeline.shape.segments == 1 else (Segment.PROCESSING, Segment.ORDERED)
    for txid, attempts in world.log.attempts.items():
        for name in (TransactionAttempt(txid, number) for number in range(attempts)):
            yield from (Acked(segment, name) for segment in segments if StartSegment(segment, name) not in world.jobs)
            yield from (Resolved(each, name) for each in Resolution if Resolve(each, name) not in world.told)
            if name not in live or live[name].stage >= Stage.DECIDING:
                yield Failed(name)
            appends = [Append(kind, name) for kind in ("PREPARING", "COMMITTING", "ROLLED_BACK")]
            yield from (Appended(append) for append in appends if append != pipeline.appending)


def check_late_news(world: World) -> None:
    """Tasks of a cancelled job may run on, and report: nothing comes of it."""
    for event in late_news(world):
        assert world.pipeline.on(event) == (world.pipeline, ()), event


def explore(
    shape: Shape,
    failures: int,
    crashes: int,
    stops: int,
    kinds: Kinds = MappingProxyType({}),
    transactions: int = TRANSACTIONS,
) -> int:
    """Visit every state; from each the end of all transactions can be reached. Return how many there are."""
    log = LogState(lineage="l")
    first = started(World(Pipeline(shape), log, Spouts(kinds)))
    known: dict[object, list[object]] = {first.key: []}  # state -> those it is reached from
    ends: set[object] = set()
    todo = deque([first])
    settled: set[object] = set()  # where late news has been looked at: it concerns the pipeline alone
    while todo:
        world = todo.popleft()
        moved = False
        place = world.pipeline, world.jobs, world.told, tuple(world.log.attempts.items())
        if place not in settled:
            settled.add(place)
            check_late_news(world)
        for after in happenings(world, failures, crashes, stops, transactions):
            moved = True
            if after.key not in known:
                known[after.key] = []
                todo.append(after)
            known[after.key].append(world.key)
        if world.delivered == transactions:
            ends.add(world.key)
        assert moved or world.key in ends, f"nothing can happen any more: {world}"
    reaching, back = set(ends), list(ends)
    while back:
        for before in known[back.pop()]:
            if before not in reaching:
                reaching.add(before)
                back.append(before)
    assert len(reaching) == len(known), "from some state the end can't be reached"
    return len(known)


PLANNED = {"numbers": Emission.AGAIN}
EMITTED = {"numbers": Emission.NEW}
OPAQUE = {"numbers": Emission.OPAQUE}

SHAPES: dict[str, tuple[Shape, Kinds]] = {
    "one pending, a stream, decision commits": (Shape(commits_at_decision=True), {}),
    "one pending, planned": (Shape(), PLANNED),
    "one pending, emitted": (Shape(segments=2, emitted=True, writes_processed=True), EMITTED),
    "one pending, opaque": (Shape(emitted=True), OPAQUE),
    "two pending, planned and opaque": (
        Shape(pending=2, segments=2, emitted=True),
        {**PLANNED, "more": Emission.OPAQUE},
    ),
    "two pending, emitted and opaque": (
        Shape(pending=2, segments=2, emitted=True, writes_processed=True),
        {**EMITTED, "more": Emission.OPAQUE},
    ),
    "two pending, planned, decision commits": (Shape(pending=2, segments=2, commits_at_decision=True), PLANNED),
    "three pending, planned": (Shape(pending=3, segments=2), PLANNED),
    "three pending, emitted": (Shape(pending=3, segments=2, emitted=True, writes_processed=True), EMITTED),
    "three pending, opaque": (Shape(pending=3, segments=2, emitted=True), OPAQUE),
}


def sampled(*some: str) -> list[object]:
    """Return all shapes, of which `make test` explores these and those with one transaction in flight."""
    one = [name for name in SHAPES if name.startswith("one")]
    return [pytest.param(name, marks=[] if name in (*one, *some) else [pytest.mark.soak]) for name in SHAPES]


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", sampled("two pending, planned and opaque", "three pending, opaque"))
def test_every_interleaving_with_a_crash(name):
    shape, kinds = SHAPES[name]
    assert explore(shape, failures=1, crashes=1, stops=0, kinds=kinds) > 100


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", sampled("two pending, planned, decision commits"))
def test_every_interleaving_with_a_stop(name):
    shape, kinds = SHAPES[name]
    assert explore(shape, failures=1, crashes=0, stops=1, kinds=kinds) > 100


def test_a_recovery_that_crashes():
    assert explore(Shape(pending=2, segments=2), failures=1, crashes=2, stops=0, transactions=2) > 1000


def test_only_the_transaction_that_failed_uses_up_a_try():
    world = started(World(Pipeline(Shape(pending=3, segments=2, attempts_max=2)), LogState(lineage="l")))
    for _ in range(3):
        world = on(world, Offered())
        while world.pipeline.appending is not None:
            world = on(world.landed, Appended(world.pipeline.appending))
    world = on(world, Failed(TransactionAttempt(2, 0)))
    assert [world.pipeline.failures(txid) for txid in (1, 2, 3)] == [0, 1, 0]
    assert not world.pipeline.stopping
