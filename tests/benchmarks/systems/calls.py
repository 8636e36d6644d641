"""How many calls a second one task of an AsyncBolt makes, without Spark; and what a call costs that awaits nothing.

In turns, each with a transaction of its own: a service on loopback that answers after 50 ms and one that answers at
once, with connections that the bolt keeps; a model that takes 10 ms for 64 rows, in a thread of the bolt's, and the
same as a service; and rows of which nothing is awaited, by a BasicBolt and by an AsyncBolt. The service is another
process, and the model a pause. Counted is the time of the task from its first row to its last one's end.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections import deque
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from measuring import arguments, take_turns

from statefx import AsyncBolt, BasicBolt, Bolt, TopologyBuilder
from statefx.coordinator.attempt import Attempt
from statefx.coordinator.staging import StagedEmissions
from statefx.plan.deployment import Deployment
from statefx.plan.levels import compile_plan
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.messages import ChainId
from statefx.protocol.order import Order
from statefx.protocol.reports import Ack
from statefx.runtime.activity import ChainClock
from statefx.runtime.chain import ChainAttempt, task_of
from statefx.runtime.worker import Worker
from statefx.storage import FolderStorage
from statefx.testing.feeding import rows, staged_rows

FIELDS = "n long, text string"
MODEL_SECS = 0.01


class Answers(asyncio.Protocol):
    """Answers each line with itself, after as many milliseconds as it begins with."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        for line in data.splitlines(keepends=True):
            ms = int(line.split(b" ", 1)[0])
            if ms:
                asyncio.get_running_loop().call_later(ms / 1000, self.transport.write, line)
            else:
                self.transport.write(line)


def serve(told: Connection) -> None:
    """Serve until the process is ended."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Answers, "127.0.0.1", 0)
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


class Line(asyncio.Protocol):
    """A connection on which calls wait for their lines, in turn."""

    def __init__(self) -> None:
        self.waiting: deque[asyncio.Future[None]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        for _ in range(data.count(b"\n")):
            self.waiting.popleft().set_result(None)

    async def ask(self, text: bytes) -> None:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        self.transport.write(text)
        await future


class Asks(AsyncBolt):
    """Asks the service about each row."""

    outputFields = FIELDS

    def __init__(self, port: int, ms: int, capacity: int, ordered: bool) -> None:
        self.port, self.ms, self.capacity, self.ordered = port, ms, capacity, ordered

    async def open(self, context: Any) -> None:
        connect = partial(asyncio.get_running_loop().create_connection, Line, "127.0.0.1", self.port)
        self.lines = [(await connect())[1] for _ in range(min(self.capacity, 8))]

    async def execute(self, tup: Any, collector: Any) -> None:
        await self.lines[tup.n % len(self.lines)].ask(f"{self.ms} {tup.n}\n".encode())
        collector.emit((tup.n, tup.text))


class Models(AsyncBolt):
    """Takes 10 ms for 64 rows in its thread, which leaves Python's lock to others as numpy's and torch's code does."""

    outputFields = FIELDS
    capacity, threads = 128, 1

    def executeBatch(self, batch: list[Any], collector: Any) -> None:
        threading.Event().wait(MODEL_SECS)
        for tup in batch:
            collector.emit((tup.n, tup.text), anchors=tup)


class ModelsElsewhere(AsyncBolt):
    """Waits 10 ms for each 64 rows."""

    outputFields = FIELDS
    capacity = 128

    async def executeBatch(self, batch: list[Any], collector: Any) -> None:
        await asyncio.sleep(MODEL_SECS)
        for tup in batch:
            collector.emit((tup.n, tup.text), anchors=tup)


class Passes(BasicBolt):
    outputFields = FIELDS

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit((tup.n, tup.text))


class PassesAsync(AsyncBolt):
    outputFields = FIELDS

    async def execute(self, tup: Any, collector: Any) -> None:
        collector.emit((tup.n, tup.text))


class Reads(BasicBolt):
    def execute(self, tup: Any, collector: Any) -> None:
        pass


def run(turn: int, *, name: str, bolt: Bolt, number: int) -> list[float]:
    """Run one transaction of a task; return the milliseconds that its rows took."""
    builder = TopologyBuilder("calls")
    builder.setStream("rows", rows(FIELDS))
    builder.setBolt("bolt", bolt).shuffleGrouping("rows")
    builder.setBolt("reads", Reads(), 2).shuffleGrouping("bolt")
    plan = compile_plan(builder.createTopology())
    storage = FolderStorage(args.work / name.replace(" ", "-") / str(turn))
    made = Deployment(
        name="calls", plan=plan, config={}, provider="statefx_memory:MemoryStateProvider", options={},
        lineage="l" * 32, generation=1, storage=storage, staged=storage, cache=str(args.work / "cache"),
    )  # fmt: skip
    attempt = TransactionAttempt(1, 0)
    staged = staged_rows(plan, storage, {"rows": [(n, f"row {n}") for n in range(number)]}, 0)
    order = Order(attempt, 1, emissions=StagedEmissions(plan, list(staged)).orders(Attempt(attempt)))
    worker, acks = Worker(), list[Ack]()
    tasks = [task_of(worker, made, id) for id in plan.levels[0][0]]
    clock = ChainClock([task.id for task in tasks])
    chain = ChainAttempt(made, ChainId(0, 0), tasks, order, clock=clock, ack=acks.append)
    for _ in chain.run([]):
        pass
    for task in tasks:
        task.close()
    [ack] = [ack for ack in acks if ack.component == "bolt"]
    assert ack.failed is None
    return [ack.metrics["execute"] + ack.metrics["finish"]]


def main() -> None:
    """Start the service, and measure."""
    here, there = multiprocessing.Pipe()
    service = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    service.start()
    port = here.recv()
    each = max(args.rows // 25, 50)
    measured: dict[str, tuple[Bolt, int]] = {
        "50 ms, 100 in flight, ordered": (Asks(port, 50, 100, True), each),
        "50 ms, 100 in flight, as they end": (Asks(port, 50, 100, False), each),
        "50 ms, 20 in flight": (Asks(port, 50, 20, True), max(each // 5, 10)),
        "0 ms": (Asks(port, 0, 100, True), 4 * each),
        "10 ms for 64 rows, in a thread": (Models(), 3 * each),
        "10 ms for 64 rows, two batches in flight": (ModelsElsewhere(), 4 * each),
        "nothing awaited, BasicBolt": (Passes(), args.rows),
        "nothing awaited, AsyncBolt": (PassesAsync(), args.rows),
    }
    systems = {name: partial(run, name=name, bolt=bolt, number=number) for name, (bolt, number) in measured.items()}
    rows_of = {name: number for name, (_, number) in measured.items()}
    try:
        take_turns(args, systems, args.turns, ["nothing awaited, BasicBolt"], rows_of)
    finally:
        service.terminate()


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    main()
