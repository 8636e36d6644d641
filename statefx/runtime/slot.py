"""What one Spark task does in one attempt: a chain of bolt tasks, relayed rows, barriers and acks.

::

    rows in -> head of the chain -> followers -> rows out
               each: open, tuples, [all barriers here?] finishBatch, prePrepare, prepare -> barrier on -> ack
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from statefx.errors import BoltError, FailedException, FencedError, StateCorruptedError, StateError
from statefx.plan import wire
from statefx.plan.deployment import Deployment
from statefx.plan.levels import INGEST
from statefx.protocol.alignment import Alignment, AlignmentResult
from statefx.protocol.barrier import Ack, Barrier
from statefx.protocol.failure import Failure, FailureKind
from statefx.protocol.identity import TaskId
from statefx.protocol.order import Order
from statefx.runtime.bolt_errors import place_of
from statefx.runtime.collector import TaskCollector
from statefx.runtime.outlets import Deliver, Outlet, outlet_of
from statefx.runtime.task import Finished, TaskRun
from statefx.topology.graph import Edge

logger = logging.getLogger("statefx")

EDGE_COLUMN = "__edge"
"""Names the edge of a raw row, where more than one edge leaves the raw DataFrames."""

_TOLD_AS = {"open": "open", "feed": "execute", "go_on": "execute", "flush": "execute", "finish": "finish"}
"""Steps of a task, and under which name the driver is told how long they took."""

METRICS = ("restore", *dict.fromkeys(_TOLD_AS.values()))
"""What an ack tells of: milliseconds of each."""


@dataclass
class _Member:
    """One bolt task of the chain with what surrounds it."""

    component: str
    task: int
    token: str
    run: TaskRun
    collector: TaskCollector
    alignment: Alignment
    inbox: deque[tuple[Edge, pa.RecordBatch]] = field(default_factory=deque)
    last_try: bool = False
    waiting_bytes: int = 0
    failure: Failure | None = None
    secs: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_TOLD_AS.values(), 0.0))

    def attempt(self, step: str, *arguments: object) -> object:
        """Run one step of the task; what only fails this transaction becomes its failure.

        The clock is read around whole steps, of which a batch of rows has one or two, never for a tuple.
        """
        if self.failure is not None:
            return None
        began = time.perf_counter()
        try:
            return getattr(self.run, step)(*arguments)
        except BoltError as error:
            if not self.last_try:
                raise
            self._fail(FailureKind.BOLT, error.message, **error.data)
        except FailedException as error:
            self._fail(FailureKind.FAILED, error.message or f"FailedException, without a reason{place_of(error)}")
        except FencedError as error:
            self._fail(FailureKind.FENCED, error.message)
        except StateCorruptedError as error:
            self._fail(FailureKind.CORRUPTED, error.message)
        except (StateError, OSError) as error:
            self._fail(FailureKind.STORE, f"{type(error).__name__}: {error}")
        finally:
            self.secs[_TOLD_AS[step]] += time.perf_counter() - began
        return None

    def _fail(self, kind: FailureKind, reason: str, **facts: object) -> None:
        self.failure = Failure(kind, self.component, self.task, reason, facts)

    def metrics(self) -> dict[str, float]:
        """Return the milliseconds of each kind of step; restoring state stands apart from the rest of opening."""
        restoring = self.run.restore_secs
        secs = {**self.secs, "restore": restoring, "open": self.secs["open"] - restoring}
        return {name: round(secs[name] * 1000, 3) for name in METRICS}


class Slot:
    """The chain of bolt tasks at one level and partition, for one attempt.

    Parameters
    ----------
    deployment : Deployment
    order : Order
    level, partition : int
    last_try : bool
        Nobody would run the task again: a bolt's error goes to the driver in the ack. Raised, Spark would print it
        several times, each time with the stack of its own threads, and the driver would have to find it in there.
    """

    runs: type[TaskRun] = TaskRun

    def __init__(
        self, deployment: Deployment, order: Order, level: int, partition: int, *, last_try: bool = False
    ) -> None:
        self._deployment = deployment
        self._plan = deployment.plan
        self._order = order
        self._last_try = last_try
        self._level = level
        self._outbox = wire.Outbox(level, partition, self._plan.widths)
        self._members: dict[str, _Member] = {}
        for component, task in self._plan.levels[level][partition]:
            self._members[component] = self._member(component, task)
        self._head = next(iter(self._members.values()))

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the attempt over the Spark task's input and yield the rows of its output.

        Raises
        ------
        BoltError
            A bolt's own code raised, and this is not the last try.
        """
        done = False
        take = self._take_raw if self._level == 0 else self._take_wire
        try:
            for member in self._members.values():
                member.attempt("open")
            for batch in batches:
                yield from take(batch)
                yield from self._drain()
                if self._outbox.pressing:
                    yield from self._outbox.take()
            for member in self._members.values():
                yield from self._finish(member)
            yield from self._outbox.take()
            done = True
        finally:
            for member in self._members.values():
                member.run.close(keep=done and member.failure is None)

    def _member(self, component: str, task: int) -> _Member:
        plan, attempt = self._plan, self._order.attempt
        token = uuid.uuid4().hex
        outputs = plan.components[component].outputs
        outlets = [
            outlet_of(
                edge,
                outputs[edge.stream],
                plan.components[edge.target].parallelism,
                task,
                plan.fused(edge),
                self._deliver(edge, component, task, token),
            )
            for edge in plan.outputs[component]
        ]
        collector = self._collector(component, outputs, outlets)
        raw = [edge.id for edge in plan.inputs[component] if edge in plan.raw]
        return _Member(
            component,
            task,
            token,
            self.runs(self._deployment, self._order, component, task, token, collector, self._outbox),
            collector,
            Alignment(component, task, attempt, plan.channels(component, task), raw=raw),
            last_try=self._last_try,
        )

    def _collector(self, component: str, outputs: Mapping[str, pa.Schema], outlets: Sequence[Outlet]) -> TaskCollector:
        return TaskCollector(component, outputs, outlets, self._order.attempt.txid)

    def _deliver(self, edge: Edge, component: str, task: int, token: str) -> Deliver:
        """Return what takes the batches of `edge`: the follower's inbox, or the outbox."""
        if self._plan.fused(edge):

            def follow(target: int, batch: pa.RecordBatch) -> None:
                follower = self._members[edge.target]
                follower.alignment.records(component, task, token, edge.id, batch.num_rows)
                follower.inbox.append((edge, batch))
                follower.waiting_bytes += batch.nbytes
                if follower.waiting_bytes >= wire.BATCH_BYTES:
                    self._outbox.pressing = True

            return follow
        source = self._plan.index[component]

        def send(target: int, batch: pa.RecordBatch) -> None:
            level, partition = self._plan.place[TaskId(edge.target, target)]
            address = wire.Address(level, partition, edge.id, source, task)
            self._outbox.send(address, wire.RECORDS, batch.num_rows, wire.serialize(token, batch))

        return send

    def _take_raw(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Give a DataFrame's own rows to the head of the chain."""
        edges = [edge for edge in self._plan.raw if edge.target == self._head.component]
        tagged = len(self._plan.raw) > 1
        for edge in edges:
            rows = batch
            if tagged and len(edges) > 1:
                rows = rows.filter(pc.equal(batch.column(EDGE_COLUMN), edge.id))
            if rows.num_rows:
                for part in wire.cut(self._plan.raw_rows(edge, rows)):  # Spark's are of up to 64 MB
                    yield from self._take(edge, part, "", 0)

    def _take_wire(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Give rows of the level before to the head of the chain, and pass on what is for later levels."""
        for kind, rows, head, payload in wire.rows_of(batch):
            address = wire.Address.unpack(head)
            if address.level != self._level:
                self._outbox.forward(address.level, address.partition, kind, rows, head, payload)
            elif kind == wire.BARRIER:
                self._head.alignment.barrier(Barrier.unpack(payload))
            else:
                edge = self._plan.edges[address.edge]
                token, records = wire.deserialize(payload, self._plan.components[edge.source].outputs[edge.stream])
                yield from self._take(edge, records, token, address.task)

    def _take(self, edge: Edge, batch: pa.RecordBatch, token: str, task: int) -> Iterator[pa.RecordBatch]:
        """Give rows from outside to the head of the chain."""
        self._head.alignment.records(edge.source, task, token, edge.id, batch.num_rows)
        yield from self._feed(self._head, edge, batch)

    def _feed(self, member: _Member, edge: Edge, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Run the tuples of a batch; whenever what they emit is too much to hold, let it go first."""
        more = member.attempt("feed", edge, edge.source.removeprefix(INGEST), batch)
        while more:
            yield from self._make_room(member)
            more = member.attempt("go_on")

    def _make_room(self, paused: _Member) -> Iterator[pa.RecordBatch]:
        """Send on what waits, while a member is in the middle of a batch.

        Only members behind it work through their inboxes: its own next batch must not overtake the present one.
        """
        for member in self._members_behind(paused):
            yield from self._work_through(member)
        yield from self._outbox.take()

    def _members_behind(self, paused: _Member) -> list[_Member]:
        chain = list(self._members.values())
        return chain[chain.index(paused) + 1 :]

    def _work_through(self, member: _Member) -> Iterator[pa.RecordBatch]:
        """Let a member work through what came to it inside the chain."""
        while member.inbox:
            edge, batch = member.inbox.popleft()
            member.waiting_bytes -= batch.nbytes
            yield from self._feed(member, edge, batch)

    def _drain(self) -> Iterator[pa.RecordBatch]:
        """Let followers work through what the batch that was taken has come to."""
        for member in self._members.values():
            yield from self._work_through(member)
            if self._plan.follows(member.component):
                member.attempt("flush")

    def _finish(self, member: _Member) -> Iterator[pa.RecordBatch]:
        """Close a member's input, prepare it, and send its barriers and its ack."""
        yield from self._work_through(member)
        aligned = member.alignment.finish()
        for barrier in aligned.stale:
            logger.warning("a barrier of %s is ignored: this is %s", barrier.attempt, self._order.attempt)
        if member.failure is None:
            member.failure = aligned.failure
        finished = member.attempt("finish")
        member.attempt("flush")
        member.collector.close()
        self._send_barriers(member)
        self._send_ack(member, aligned, finished if isinstance(finished, Finished) else Finished())
        if self._outbox.pressing:
            yield from self._outbox.take()

    def _send_barriers(self, member: _Member) -> None:
        failed = None if member.failure is None else member.failure.reason
        counts: dict[TaskId, dict[int, int]] = {}
        for outlet in member.collector.outlets:
            edge = outlet.edge
            for reader in [member.task] if self._plan.fused(edge) else range(outlet.width):
                counts.setdefault(TaskId(edge.target, reader), {})[edge.id] = outlet.sent[reader]
        for target, sent in counts.items():
            barrier = Barrier(self._order.attempt, member.component, member.task, member.token, sent, failed)
            level, partition = self._plan.place[target]
            if level == self._level:
                self._members[target.component].alignment.barrier(barrier)
                continue
            address = wire.Address(level, partition, -1, self._plan.index[member.component], member.task)
            self._outbox.send(address, wire.BARRIER, sum(sent.values()), barrier.pack())

    def _send_ack(self, member: _Member, aligned: AlignmentResult, finished: Finished) -> None:
        ack = Ack(
            self._order.attempt,
            member.component,
            member.task,
            member.token,
            seen=aligned.seen,
            received=aligned.received,
            emitted={outlet.edge.id: outlet.emitted for outlet in member.collector.outlets},
            failed=member.failure,
            prepared_bytes=finished.size_bytes,
            found_keys=finished.found_keys,
            snapshot=finished.snapshot,
            keys=finished.keys,
            metrics=member.metrics(),
        )
        level, partition = self._plan.driver_of(self._level)
        driver = wire.Address(level, partition, -1, self._plan.index[member.component], member.task)
        self._outbox.send(driver, wire.ACK, 0, ack.pack())
