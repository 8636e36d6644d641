"""Chains in one attempt, without a driver: what they are given, what they send, and what their tasks ack."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from statefx import Topology
from statefx.coordinator.attempt import Attempt
from statefx.coordinator.staging import StagedEmissions
from statefx.plan import wire
from statefx.plan.deployment import Deployment
from statefx.plan.levels import Plan, compile_plan
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.messages import ChainId
from statefx.protocol.order import Order
from statefx.protocol.reports import Ack
from statefx.protocol.staged import StagedPart
from statefx.runtime.activity import ChainClock
from statefx.runtime.chain import ChainAttempt, task_of
from statefx.runtime.task import Task
from statefx.runtime.worker import Worker
from statefx.storage import FolderStorage
from statefx.testing.feeding import Work, staged_rows


def deployment(place: Path, topology: Topology | Plan, **config: Any) -> Deployment:
    storage = FolderStorage(place)
    return Deployment(
        name="alone",
        plan=topology if isinstance(topology, Plan) else compile_plan(topology),
        config=config,
        provider="statefx_memory:MemoryStateProvider",
        options={},
        lineage="l" * 32,
        generation=1,
        storage=storage,
        staged=storage,
        cache=str(place / "cache"),
    )


FIRST = TransactionAttempt(1, 0)


def order_of(
    deployment: Deployment,
    work: Work | None = None,
    attempt: TransactionAttempt = FIRST,
    parts: Iterable[StagedPart] | None = None,
    **told: Any,
) -> Order:
    plan = deployment.plan
    staged = staged_rows(plan, deployment.staged, work or {}, 0) if parts is None else parts
    return Order(attempt, 1, emissions=StagedEmissions(plan, list(staged)).orders(Attempt(attempt)), **told)


def chain_attempt(
    worker: Worker,
    deployment: Deployment,
    order: Order,
    level: int = 0,
    partition: int = 0,
    *,
    acks: list[Ack] | None = None,
    tasks: Sequence[Task] = (),
    make_task: Callable[[Worker, Deployment, TaskId], Task] = task_of,
) -> ChainAttempt:
    """Make an attempt of a chain, of new tasks unless some are given; what they ack is added to `acks`."""
    found = [] if acks is None else acks
    own = tasks or [make_task(worker, deployment, id) for id in deployment.plan.levels[level][partition]]
    clock = ChainClock([task.id for task in own])
    return ChainAttempt(deployment, ChainId(level, partition), own, order, clock=clock, ack=found.append)


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[wire.WireRow]:
    """Yield (target, kind, rows, head, payload)."""
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def run(worker: Worker, deployment: Deployment, order: Order) -> Mapping[TaskId, Ack]:
    """Run all chains, level by level, and return the acks."""
    acks: list[Ack] = []
    given: list[wire.WireRow] = []
    for level, width in enumerate(deployment.plan.widths):
        sent: list[wire.WireRow] = []
        for partition in range(width):
            own = [row for row in given if row[0] == partition]
            one = chain_attempt(worker, deployment, order, level, partition, acks=acks)
            sent += rows_of(one.run([wire.to_batch(own)] if own else []))
        given = sent
    return {ack.id: ack for ack in acks}
