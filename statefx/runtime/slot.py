"""What a slot does in one attempt: a chain of tasks, relayed rows, barriers and acks.

::

    rows in -> head of the chain -> followers -> rows out
               each: open, begin, rows, [all barriers here?] finish -> barriers on -> ack
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from statefx.operators import Bolt, Spout
from statefx.operators.acker import ACKER
from statefx.operators.bolts import anchors_by_hand, keeps_until_end, may_hold
from statefx.plan import wire
from statefx.plan.deployment import Deployment
from statefx.plan.levels import ROOTS
from statefx.protocol.alignment import Alignment
from statefx.protocol.barrier import Ack, Barrier
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.order import RunOrder
from statefx.runtime.bolt_operator import BoltOperator
from statefx.runtime.broadcasting import HeldRows
from statefx.runtime.collector import TaskCollector
from statefx.runtime.combining import combiner_of
from statefx.runtime.event_time import TaskTime
from statefx.runtime.guarding import CallGuard
from statefx.runtime.living_spout import LivingSpout
from statefx.runtime.member import Member
from statefx.runtime.operator import TaskAttempt, TaskOperator
from statefx.runtime.outbox import Outbox
from statefx.runtime.outlets import Deliver, Outlet, outlet_of
from statefx.runtime.sink_operator import SinkOperator
from statefx.runtime.spout_operator import LivingSpoutOperator, SpoutOperator
from statefx.runtime.staging import StreamOperator
from statefx.runtime.trees import LOOSE_ROOT, Trees
from statefx.runtime.worker import Worker
from statefx.state.view.lent import LentState
from statefx.topology.graph import Component, ComponentKind, Edge, OnError

logger = logging.getLogger("statefx")


def operator_of(component: Component) -> TaskOperator:
    """Return a new operator for one attempt of a task of `component`."""
    match component.kind:
        case ComponentKind.STREAM:
            return StreamOperator()
        case ComponentKind.SINK:
            return SinkOperator()
        case ComponentKind.SPOUT:
            return LivingSpoutOperator() if isinstance(component.operator, Spout) else SpoutOperator()
        case _:
            return BoltOperator()


class AbandonedError(Exception):
    """The attempt was abandoned: its slot goes no further."""


class Slot:
    """The chain of tasks at one level and partition, for one attempt.

    Parameters
    ----------
    worker : Worker
        The process that it runs in.
    deployment : Deployment
    order : RunOrder
    level, partition : int
    operators : callable
        Makes the operator for a task of a component.
    ack : callable
        Takes the acks.
    check : callable
        Raises if the slot must prepare nothing more (rule 13.7).
    behind_barriers : sequence of wire.WireRow
        Sent behind the barriers.
    states, spouts, bolts : dict
        As of `TaskAttempt`.
    """

    def __init__(
        self,
        worker: Worker,
        deployment: Deployment,
        order: RunOrder,
        level: int,
        partition: int,
        *,
        ack: Callable[[Ack], None],
        states: dict[TaskId, LentState],
        spouts: dict[TaskId, LivingSpout],
        bolts: dict[TaskId, tuple[Bolt, int]],
        operators: Callable[[Component], TaskOperator] = operator_of,
        check: Callable[[], None] = lambda: None,
        behind_barriers: Sequence[wire.WireRow] = (),
    ) -> None:
        self._spouts, self._bolts = spouts, bolts
        self._states = states
        self._ack = ack
        self._check = check
        self._behind_barriers = behind_barriers
        self._is_abandoned = False
        self._worker = worker
        self._deployment = deployment
        self._plan = deployment.plan
        self._order = order
        self._level = level
        self._operators = operators
        self._outbox = Outbox(level, partition, self._plan.widths)
        self._members: dict[str, Member] = {}
        for task in self._plan.levels[level][partition]:
            self._members[task.component] = self._member(task)
        self._head = next(iter(self._members.values()))
        # Broadcast inputs come from outside, so they are the head's.
        broadcast = self._plan.broadcast_channels(*self._head.task.id)
        self._held = HeldRows(self._head.alignment, broadcast) if broadcast else None

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the attempt over rows of the level before, and yield rows for the next one."""
        done = False
        try:
            for member in self._members.values():
                member.open()
            yield from self._go_on(self._head, self._head.begin())  # rule 5.6: also where no row will come
            for batch in batches:
                self._refuse_abandoned()
                yield from self._take_wire(batch)
                yield from self._let_go()
            # In the order of the chain: the input of a follower is whole when the barriers of those before it are
            # there.
            for member in self._members.values():
                yield from self._end_input(member)
            self._outbox.add(self._behind_barriers)
            yield from self._outbox.take()
            # Behind the barriers, so that tasks of all levels prepare side by side (rule 13.4).
            for member in self._members.values():
                self._refuse_abandoned()
                self._check()
                self._prepare(member)
            yield from self._outbox.take()
            done = True
        finally:
            # `done` is false also when Spark closes the generator before its end: a bolt that stands in the middle of a
            # transaction is not kept for the next one.
            for member in self._members.values():
                member.close(keep=done)
            if self._held is not None:
                self._held.close()
            self._outbox.close()

    @property
    def attempt(self) -> TransactionAttempt:
        """Which attempt it runs."""
        return self._order.attempt

    def abandon(self) -> None:
        """Have `run` raise AbandonedError soon; called by any thread.

        At the latest when the bolt returns from the tuple or the batch that it has.
        """
        self._is_abandoned = True
        self._outbox.pressing = True

    def _refuse_abandoned(self) -> None:
        if self._is_abandoned:
            raise AbandonedError

    # ---- what is wired

    def _member(self, id: TaskId) -> Member:
        plan, (component, number) = self._plan, id
        token = uuid.uuid4().hex  # rule 1.3: also this very attempt in another run gets another one
        outputs = plan.components[component].outputs
        trees = None
        if component in plan.root_types:
            operator = plan.components[component].operator
            trees = Trees(
                component,
                by_hand=may_hold(operator),
                acker=ACKER in plan.components,
                tracing=self._deployment.config["topology.trace"],
                kept=keeps_until_end(operator),
                loose=[] if plan.root_types[component] == ROOTS else LOOSE_ROOT,
            )
        time = TaskTime(plan, id, self._order.clock_ms) if component in plan.timed else None
        outlets = [
            outlet_of(
                edge,
                plan.schema(edge),
                plan.components[edge.target].parallelism,
                number,
                plan.fused(edge),
                self._deliver(edge, component, number, token),
                combiner_of(plan, edge, id, self._order.attempt.txid),
                tracked=plan.tracks(edge),
            )
            for edge in plan.outputs[component]
        ]
        return Member(
            TaskAttempt(
                self._worker,
                self._deployment,
                self._order,
                id,
                token,
                self._collector(component, outputs, outlets, trees, time),
                self._outbox,
                states=self._states,
                spouts=self._spouts,
                trees=trees,
                bolts=self._bolts,
                time=time,
            ),
            self._operators(plan.components[component]),
            Alignment(component, number, self._order.attempt, plan.channels(component, number)),
        )

    _make_collector: Callable[..., TaskCollector] = TaskCollector

    def _collector(
        self,
        component: str,
        outputs: Mapping[str, pa.Schema],
        outlets: Sequence[Outlet],
        trees: Trees | None,
        time: TaskTime | None,
    ) -> TaskCollector:
        part = self._plan.components[component]
        is_tracked = trees is not None and part.kind is ComponentKind.BOLT
        return self._make_collector(
            component,
            outputs,
            outlets,
            self._order.attempt,
            part.kind,
            anchoring=anchors_by_hand(part.operator),
            trees=trees,
            root_type=self._plan.root_types.get(component),
            times={} if time is None else time.emitted,
            guard=CallGuard() if part.on_error is not OnError.FAIL or is_tracked else None,
        )

    def _deliver(self, edge: Edge, component: str, task: int, token: str) -> Deliver:
        """Return what takes the batches of `edge`: the follower's inbox, or the outbox."""
        if self._plan.fused(edge):

            def follow(target: int, batch: pa.RecordBatch) -> None:
                follower = self._members[edge.target]
                follower.alignment.records(component, task, token, edge.id, batch.num_rows)
                follower.inbox.append(edge, batch)
                if follower.inbox.held_bytes >= wire.BATCH_BYTES:
                    self._outbox.pressing = True

            return follow

        def send(target: int, batch: pa.RecordBatch) -> None:
            level, partition = self._plan.place[TaskId(edge.target, target)]
            address = self._address(level, partition, edge.id, TaskId(component, task))
            self._outbox.send(address, wire.RECORDS, batch.num_rows, wire.serialize(token, batch))

        return send

    # ---- rows

    def _take_wire(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Give rows of the level before to the head of the chain, and pass on what is for later levels."""
        for kind, rows, head, payload in wire.rows_of(batch):
            address = wire.Address.unpack(head)
            if address.level != self._level:  # rule 5.5: rows and barriers of one sender go through the same relay
                self._outbox.forward(address.level, address.partition, kind, rows, head, payload)
            elif kind == wire.BARRIER:  # noted only: rows of the same sender may come behind it (rule 5.3)
                self._head.alignment.barrier(Barrier.unpack(payload))
                yield from self._run_held()
            else:
                edge = self._plan.edges[address.edge]
                token, records = wire.deserialize(payload, self._plan.wire_schema(edge))
                yield from self._take(edge, records, token, address.task)

    def _take(self, edge: Edge, batch: pa.RecordBatch, token: str, task: int) -> Iterator[pa.RecordBatch]:
        """Give rows from outside to the head of the chain."""
        self._head.alignment.records(edge.source, task, token, edge.id, batch.num_rows)
        if self._held is None:
            yield from self._go_on(self._head, self._head.feed(edge, batch))
        else:
            self._held.put(edge, task, batch)
            yield from self._run_held()

    def _run_held(self) -> Iterator[pa.RecordBatch]:
        """Give the head what is held for it, once all rows of its broadcast inputs are there."""
        if self._held is None or not self._held.is_whole():
            return
        held, self._held = self._held, None
        try:
            for edge, batch in held.take():
                self._refuse_abandoned()
                yield from self._go_on(self._head, self._head.feed(edge, batch))
                yield from self._let_go()
        finally:
            held.close()

    def _go_on(self, member: Member, paused: bool) -> Iterator[pa.RecordBatch]:
        """Run what a member has begun to its end; whenever what it emits is too much to hold, let that go first."""
        while paused:
            yield from self._make_room(member)
            self._refuse_abandoned()  # behind it: what has left is no longer pressing, nor is an `abandon` meanwhile
            paused = member.resume()

    def _make_room(self, paused: Member) -> Iterator[pa.RecordBatch]:
        """Send on what waits, while a member is in the middle of a batch.

        Only members behind it work through their inboxes: its own next batch must not overtake the present one.
        """
        for member in self._members_behind(paused):
            yield from self._work_through(member)
        yield from self._outbox.take()

    def _members_behind(self, paused: Member) -> list[Member]:
        chain = list(self._members.values())
        return chain[chain.index(paused) + 1 :]

    def _work_through(self, member: Member) -> Iterator[pa.RecordBatch]:
        """Let a member work through what came to it inside the chain."""
        while member.inbox:
            edge, batch = member.inbox.popleft()
            yield from self._go_on(member, member.feed(edge, batch))

    def _drain(self) -> Iterator[pa.RecordBatch]:
        """Let followers work through what the batch that was taken has come to."""
        for member in self._members.values():
            yield from self._work_through(member)
            if self._plan.follows(member.component):
                member.flush()

    def _let_go(self) -> Iterator[pa.RecordBatch]:
        """Run what a batch has come to in the followers, and send on what is much by now."""
        yield from self._drain()
        if self._outbox.pressing:
            yield from self._outbox.take()

    # ---- the end of the input

    def _end_input(self, member: Member) -> Iterator[pa.RecordBatch]:
        """Close a member's input, let it emit to the last, and send its barriers."""
        yield from self._work_through(member)
        for barrier in member.end():  # rule 6.4
            logger.warning("a barrier of %s is ignored: this is %s", barrier.attempt, self._order.attempt)
        self._send_barriers(member)
        if self._outbox.pressing:
            yield from self._outbox.take()

    def _prepare(self, member: Member) -> None:
        """Let a member prepare, and send its ack."""
        ack = member.prepare()
        member.acked = ack.failed is None  # before it is sent: who fails while it sends may have been heard
        self._ack(ack)

    def _address(self, level: int, partition: int, edge: int, sender: TaskId) -> wire.Address:
        attempt = self._order.attempt
        return wire.Address(
            level, partition, edge, self._plan.index[sender.component], sender.task, attempt.txid, attempt.attempt
        )

    def _send_barriers(self, member: Member) -> None:
        """Send one barrier to each task that reads from a member, with the rows of all edges to it."""
        own = member.task
        # Rule 6.6: a task that has failed sends its barriers all the same; those that read from it fail with its
        # reason, and do not look for rows that never come.
        failed = None if member.failure is None else member.failure.reason
        counts: dict[TaskId, dict[int, int]] = {}
        # To every task that could have got a row, also where none was sent: it waits for a barrier of each (rule 5.1).
        for outlet in own.collector.outlets:
            edge = outlet.edge
            for reader in [own.id.task] if self._plan.fused(edge) else range(outlet.width):
                counts.setdefault(TaskId(edge.target, reader), {})[edge.id] = outlet.sent[reader]
        for target, sent in counts.items():
            watermark, parts = (None, {}) if own.time is None else (own.time.sent, own.time.parts)
            barrier = Barrier(self._order.attempt, *own.id, own.token, sent, failed, watermark, parts)
            level, partition = self._plan.place[target]
            if level == self._level:
                self._members[target.component].alignment.barrier(barrier)
                continue
            address = self._address(level, partition, -1, own.id)
            self._outbox.send(address, wire.BARRIER, sum(sent.values()), barrier.pack())
