"""Every order of events of a run with two levels of chains: what rule 13 says, without threads or clocks.

Real are the driver's `Pipeline` and `RunEngine`; `chains_model` has the chains. This plays what is between them:
control connections and channels, which keep their order and nothing else, the log, and the faults. It never waits:
whatever may happen next is tried.
"""

from __future__ import annotations

import copy
import queue
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from statefx import TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.coordinator.attempt import Answer, Attempt, Part
from statefx.coordinator.retrying import JobFailedError
from statefx.coordinator.runs import RunEngine
from statefx.plan.levels import Plan, compile_plan
from statefx.protocol.commands import (
    Acked,
    Append,
    Appended,
    Cancel,
    Command,
    Deliver,
    Failed,
    Happening,
    Resolve,
    Resolved,
    Segment,
    StartSegment,
    Unresolved,
)
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.messages import ChainId, FrameKind
from statefx.protocol.order import Order, ResolutionOrder
from statefx.protocol.pipeline import Pipeline, Shape
from statefx.protocol.transaction import Phase, TransactionState
from tests.bolts import WithState
from tests.runtime.chains_model import Frame, Played, Players, Row

TIMEOUT_SECS = 100.0

Job = tuple[TransactionAttempt, Part]


def changed(one: Any, **fields: Any) -> Any:
    """As `dataclasses.replace`, for frozen classes without slots: an exploration makes a hundred thousand of them."""
    new = object.__new__(type(one))
    vars(new).update({name: vars(one)[name] for name in type(one).__dataclass_fields__} | fields)
    return new


class Count(WithState):
    outputFields = {}

    def execute(self, tup, collector):
        pass


def planned(senders: int, readers: int, segments: int) -> Plan:
    builder = TopologyBuilder("runs")
    builder.setSpout("numbers", MemoryTransactionalSpout([[]], "number long"), parallelism=senders)
    builder.setBolt("count", Count(), parallelism=readers).fieldsGrouping("numbers", "number")
    plan = compile_plan(builder.createTopology(), segments)
    assert plan.widths[-2:] == (senders, readers)
    return plan


class Handle:
    """A run, as the engine sees it; what it sends is what the world carries out next."""

    def __init__(self, id: str, engine: ModelEngine) -> None:
        self.id, self.engine = id, engine

    def send(self, chain: ChainId, kind: FrameKind, body: bytes = b"") -> None:
        self.engine.sends.append((chain, (kind, body)))

    def wait(self) -> None:
        pass

    def end(self) -> None:
        pass


class ModelEngine(RunEngine):
    """The driver's end of runs, which can be copied."""

    def __init__(self, plan: Plan) -> None:
        self.now = 0.0
        super().__init__(plan, "runs", TIMEOUT_SECS)
        self.sends: list[tuple[ChainId, Frame]] = []
        self.begun = 0
        self._clock = lambda: self.now

    def start_run(self) -> Handle:
        self.begun += 1
        return Handle(f"run-{self.begun}", self)

    def call_aside(self, name, call):
        raise AssertionError(name)

    def copied(self) -> ModelEngine:
        new = copy.copy(self)
        new._clock = lambda: new.now
        new.sends = []
        new._answers = queue.SimpleQueue()
        new._pending = [
            replace(each, waiting=set(each.waiting), acks=list(each.acks), reports=list(each.reports))
            for each in self._pending
        ]
        new._unconfirmed = {of: (set(chains), until) for of, (chains, until) in self._unconfirmed.items()}
        if self._run is not None:
            new._run = Handle(self._run.id, new)
        return new

    def answers(self) -> list[Answer]:
        found = []
        while not self._answers.empty():
            each = self._answers.get()
            if each is not None:
                found.append(each)
        return found

    def pending(self, job: Job) -> Attempt | None:
        return next((each for each in self._pending if (each.name, each.part) == job), None)

    @property
    def key(self) -> object:
        pending = tuple(
            (each.name, each.part, frozenset(each.waiting), frozenset(ack.id for ack in each.acks), each.since)
            for each in self._pending
        )
        waits = frozenset((of, frozenset(chains), until) for of, (chains, until) in self._unconfirmed.items())
        return pending, waits, self._emitted, self._run is None, self._ready, self.now


@dataclass(frozen=True)
class Connection:
    """What is on its way between the driver and a chain, and whether it is lost."""

    to_chain: tuple[Frame, ...] = ()
    to_driver: tuple[Frame, ...] = ()
    lost: bool = False
    hung_up: bool = False
    """The chain knows that it is lost."""
    stuck: bool = False


@dataclass(frozen=True)
class Chains:
    """The chains of one run, and what is between them."""

    id: str
    played: tuple[Played, ...]
    connections: tuple[Connection, ...]
    channels: tuple[tuple[tuple[int, int], tuple[Row, ...]], ...]
    """Rows on their way, by sender and reader."""

    @cached_property
    def key(self) -> object:
        return tuple(each.number for each in self.played), self.connections, self.channels


@dataclass(frozen=True)
class Budget:
    """How many faults of each kind may happen.

    Attributes
    ----------
    refused : int
        Attempts whose acks do not fit, or whose bolts refuse them.
    lost : int
        Connections and chains that are lost.
    stuck : int
        Chains that stand in a task's code until their run is over, and give signs of life.
    late : int
        Attempts that take too long though no chain is stuck.
    crashes : int
        Drivers.
    """

    refused: int = 0
    lost: int = 0
    stuck: int = 0
    late: int = 0
    crashes: int = 0


@dataclass(frozen=True)
class World:
    model: Model
    pipeline: Pipeline
    engine: ModelEngine
    jobs: tuple[tuple[Job, StartSegment | Resolve], ...]
    chains: Chains | None
    budget: Budget
    committed: int = 0
    attempts: tuple[tuple[int, int], ...] = ()
    log: tuple[tuple[TransactionAttempt, bool], ...] = ()
    """What the log has in flight, and whether it is decided."""
    rounds: int = 0

    @cached_property
    def key(self) -> object:
        chains = None if self.chains is None else self.chains.key
        log = self.committed, self.attempts, self.log
        parts = self.pipeline, self.engine.key, self.jobs, chains, self.budget, log
        return tuple(self.model.numbers.setdefault(part, len(self.model.numbers)) for part in parts)


class Model:
    """What stays the same in all states of one exploration."""

    def __init__(self, shape: Shape, transactions: int, senders: int, readers: int, budget: Budget) -> None:
        self.shape, self.transactions, self.budget = shape, transactions, budget
        self.plan = planned(senders, readers, shape.segments)
        self.players = Players(self.plan)
        self.places = tuple(self.players.first)
        self.readers = tuple(TaskId("count", task) for task in range(readers))
        self.aftermaths: set[object] = set()
        self.numbers: dict[object, int] = {}
        """Of parts of states: short keys."""

    def started(self) -> World:
        world = World(self, Pipeline(self.shape), ModelEngine(self.plan), (), None, self.budget)
        return Step(world).begin()

    def run(self, id: str) -> Chains:
        first = tuple(self.players.first[place] for place in self.places)
        return Chains(id, first, tuple(Connection() for _ in self.places), ())


class Step:
    """One step of the world: a copy of it that changes, until `done`."""

    def __init__(self, world: World) -> None:
        self.world, self.model = world, world.model
        self.engine = world.engine.copied()
        self.pipeline = world.pipeline
        self.jobs = dict(world.jobs)
        self.chains = world.chains
        self.budget = world.budget
        self.committed, self.attempts, self.log = world.committed, dict(world.attempts), dict(world.log)
        self.rounds = world.rounds
        self._former: list[Chains] = []
        """Runs that this step has ended."""

    def done(self) -> World:
        """Carry out what the engine has said and what has come of jobs, until nothing more follows."""
        while True:
            self._change_runs()
            self._carry_sends()
            answers = self.engine.answers()
            if not answers:
                break
            for each in answers:
                self._take(each)
        for chains in self._former:
            self._hear_late(chains)
        return World(
            self.model, self.pipeline, self.engine, tuple(self.jobs.items()), self.chains, self.budget,
            self.committed, tuple(sorted(self.attempts.items())), tuple(sorted(self.log.items())), self.rounds,
        )  # fmt: skip

    def begin(self) -> World:
        """A driver starts, on what the log has."""
        phases = {True: Phase.COMMITTING, False: Phase.PREPARING}
        states = [
            TransactionState(phases[decided], attempt.txid, attempt.attempt)
            for attempt, decided in sorted(self.log.items())
        ]
        self.pipeline, commands = Pipeline.recover(self.model.shape, self.committed, states, self.attempts)
        self.carry_out(commands)
        return self.done()

    def on(self, event: Happening) -> None:
        self.pipeline, commands = self.pipeline.on(event)
        self.carry_out(commands)

    def carry_out(self, commands: tuple[Command, ...]) -> None:
        left = deque(commands)
        while left:
            event = self._carry_out_one(left.popleft())
            if event is not None:
                self.pipeline, more = self.pipeline.on(event)
                left += more

    def _carry_out_one(self, command: Command) -> Happening | None:
        match command:
            case Append():
                self._append(command)
                return Appended(command)
            case StartSegment(segment, attempt):
                before = [decided for of, decided in self.log.items() if of.txid < attempt.txid]
                assert segment is Segment.PROCESSING or all(before), "13.9: O before COMMITTING of the one before"
                self.jobs[attempt, segment] = command
                self.engine.start(Attempt(attempt), segment, Order(attempt, 1))
            case Cancel(attempt):
                for job in [job for job in self.jobs if job[0] == attempt]:
                    del self.jobs[job]
                    if (pending := self.engine.pending(job)) is not None:
                        self.engine.cancel(pending)
            case Resolve(resolution, attempt):
                if self.model.shape.commits_at_decision:
                    return Resolved(resolution, attempt)
                self.rounds += 1
                name = f"{resolution} {self.rounds}"
                self.jobs[attempt, name] = command
                order = ResolutionOrder(resolution, Order(attempt, 1), self.model.readers)
                self.engine.resolve(Attempt(attempt), name, order)
            case Deliver():
                pass
        return None

    def _append(self, append: Append) -> None:
        attempt = append.attempt
        if append.committed is not None:
            self._commit(next(of for of in self.log if of.txid == append.committed))
        match append.kind:
            case "PREPARING":
                self.attempts[attempt.txid] = attempt.attempt + 1
                self.log[attempt] = False
            case "COMMITTING":
                assert attempt.txid == self.committed + 1
                self.log[attempt] = True
                if self.model.shape.commits_at_decision:
                    self._commit(attempt)
            case "ROLLED_BACK":
                assert not self.log.pop(attempt), "rolled back what is decided"
            case "COMMITTED":
                self._commit(next(of for of, decided in self.log.items() if decided))

    def _commit(self, attempt: TransactionAttempt) -> None:
        assert self.log.pop(attempt)
        assert attempt.txid == self.committed + 1
        self.committed = attempt.txid

    def _take(self, answer: Answer) -> None:
        attempt, part, failure = answer
        job = self.jobs.pop((attempt.name, part), None)
        if job is None:
            return
        if isinstance(job, StartSegment):
            if failure is None:
                tasks = set(self.engine._segments[job.segment].tasks)
                assert {ack.id for ack in attempt.acks} == tasks
                assert all(ack.attempt == job.attempt for ack in attempt.acks), "an ack of another attempt"
                assert len(attempt.acks) == len(tasks)
            self.on(Acked(job.segment, job.attempt) if failure is None else Failed(job.attempt))
        elif failure is None:
            assert {report.id for report in attempt.reports} == set(self.model.readers)
            self.on(Resolved(job.resolution, job.attempt))
        else:
            self.on(Unresolved(job.resolution, job.attempt))

    def _carry_sends(self) -> None:
        if self.chains is None:
            if self.engine._run is None:
                self.engine.sends.clear()
            return
        sends, self.engine.sends = self.engine.sends, []
        for place, frame in sends:
            at = self.model.places.index(place)
            connection = self.chains.connections[at]
            if not connection.lost:
                self._connect(at, changed(connection, to_chain=(*connection.to_chain, frame)))

    # ---- what happens to a run

    def _connect(self, at: int, connection: Connection) -> None:
        connections = list(self.chains.connections)
        connections[at] = connection
        self.chains = changed(self.chains, connections=tuple(connections))

    def give(self, at: int, given: tuple[Any, ...]) -> None:
        """Give a chain something, and take what it says and sends."""
        place = self.model.places[at]
        after = self.model.players.after(place, self.chains.played[at], given)
        played = list(self.chains.played)
        played[at] = changed(after, said=(), sent=())
        channels = dict(self.chains.channels)
        for row in after.sent:
            way = at, self.model.places.index(ChainId(place.level + 1, row[0]))
            channels[way] = (*channels.get(way, ()), row)
        self.chains = changed(self.chains, played=tuple(played), channels=tuple(sorted(channels.items())))
        connection = self.chains.connections[at]
        if after.said and not connection.lost:
            self._connect(at, changed(connection, to_driver=(*connection.to_driver, *after.said)))

    def take_row(self, at: int, sender: int) -> None:
        channels = dict(self.chains.channels)
        row, *more = channels[sender, at]
        channels[sender, at] = tuple(more)
        if not more:
            del channels[sender, at]
        self.chains = changed(self.chains, channels=tuple(sorted(channels.items())))
        self.give(at, ("row", row))

    def take_frame(self, at: int) -> None:
        connection = self.chains.connections[at]
        self._connect(at, changed(connection, to_chain=connection.to_chain[1:]))
        self.give(at, ("frame", connection.to_chain[0]))

    def hear(self, at: int) -> None:
        connection = self.chains.connections[at]
        self._connect(at, changed(connection, to_driver=connection.to_driver[1:]))
        self.engine.on_frame(self.engine._run, self.model.places[at], *connection.to_driver[0])

    def lose(self, at: int) -> None:
        self._connect(at, changed(self.chains.connections[at], to_chain=(), to_driver=(), lost=True))

    def hang_up(self, at: int) -> None:
        self._connect(at, changed(self.chains.connections[at], hung_up=True))
        self.give(at, ("gone",))

    def _change_runs(self) -> None:
        run, before = self.engine._run, self.chains
        if before is not None and (run is None or run.id != before.id):
            self.end_run()
        if run is not None and self.chains is None:
            self.chains = self.model.run(run.id)
        if before is not None and before is not self.chains:
            self._former.append(before)

    def _hear_late(self, chains: Chains) -> None:
        """What a former run says changes nothing (rule 6.4)."""
        key, former = self.engine.key, Handle(chains.id, self.engine)
        for place, connection in zip(self.model.places, chains.connections, strict=True):
            for frame in connection.to_driver:
                self.engine.on_frame(former, place, *frame)
        self.engine.on_ready(former)
        self.engine.on_ended(former, JobFailedError("late"))
        assert self.engine.key == key, "6.4: a run that is over was heard"

    def end_run(self) -> None:
        """The run is over for the driver: what becomes of its chains concerns nobody else."""
        chains, self.chains = self.chains, None
        lost = tuple(changed(each, to_driver=(), lost=True, stuck=False) for each in chains.connections)
        explore_aftermath(self.model, self.world, changed(chains, connections=lost))


def chain_moves(world: World) -> Iterator[Step]:
    """Everything that may happen next to chains, and to what is on its way between them."""
    chains = world.chains
    assert chains is not None
    for at, (played, connection) in enumerate(zip(chains.played, chains.connections, strict=True)):
        if played.at != "ended" and not connection.stuck:
            if connection.to_chain:
                (step := Step(world)).take_frame(at)
                yield step
            if played.at == "step":
                (step := Step(world)).give(at, ("go",))
                yield step
            if played.at == "rows":
                for sender, reader in [way for way, _ in chains.channels]:
                    if reader == at:
                        (step := Step(world)).take_row(at, sender)
                        yield step
            if connection.lost and not connection.hung_up:
                (step := Step(world)).hang_up(at)
                yield step


def explore_aftermath(model: Model, world: World, chains: Chains) -> None:
    """Let the chains of a run that is over go on in every order until all have noticed: they prepare nothing wrong."""
    todo = [chains]
    while todo:
        found = todo.pop()
        if found.key in model.aftermaths:
            continue
        model.aftermaths.add(found.key)
        moves = [step.chains for step in chain_moves(changed(world, chains=found))]
        ended = all(each.at == "ended" for each in found.played)
        assert moves or ended, f"a chain of a run that is over never ends: {[each.at for each in found.played]}"
        todo += [each for each in moves if each is not None]
