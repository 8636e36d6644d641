"""What the tasks of a process share, and what a task keeps from one attempt to the next."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from statefx import (
    BasicBolt,
    BatchBolt,
    Checkpoint,
    Stateful,
    StatefulBolt,
    Topology,
    TopologyBuilder,
    TransactionalClient,
)
from statefx.connectors import MemoryTransactionalSpout, QueueSpout
from statefx.connectors.files import FileSink
from statefx.coordinator.runs import text_for
from statefx.errors import BoltError, FailedException, ProviderError, TopologyError
from statefx.plan.deployment import Deployment
from statefx.protocol import messages
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.messages import ChainId, FrameKind
from statefx.protocol.reports import Ack, FailureKind
from statefx.runtime import chain as chains
from statefx.runtime.chain import AbandonedError, TaskChain, task_of
from statefx.runtime.task import Task
from statefx.runtime.user_objects import ProcessGone
from statefx.runtime.worker import RUNS_KEPT, Worker
from statefx.testing import TopologyTester, rows
from statefx_memory import MemoryStateProvider
from tests.bolts import Tally
from tests.runtime.one_chain import FIRST, chain_attempt, deployment, order_of
from tests.spouts.test_loose import Messages
from tests.testing.topologies import Driver as CheckpointDriver

journal: list[tuple[str, int]] = []
"""(what, number of the object): bolts are copied, and so would be anything that they hold."""


class Numbered(BasicBolt):
    def open(self, context):
        self.number = len([what for what, _ in journal if what == "open"])
        journal.append(("open", self.number))

    def execute(self, tup, collector):
        pass

    def close(self):
        journal.append(("close", self.number))


@pytest.fixture(autouse=True)
def _journal() -> Iterator[None]:
    journal.clear()
    yield
    journal.clear()


def topology(parallelism: int = 1) -> Topology:
    builder = TopologyBuilder("numbered")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("numbered", Numbered(), parallelism).shuffleGrouping("lines")
    return builder.createTopology()


def chain(worker: Worker, deployment: Deployment, partition: int = 0, *, fresh: bool = False) -> list[Task]:
    return [task_of(worker, deployment, id, fresh=fresh) for id in deployment.plan.levels[0][partition]]


def run(tasks: list[Task], attempt: TransactionAttempt = FIRST, error: BaseException | None = None) -> list[Ack]:
    """Run an attempt; `error` ends its chain."""
    acks: list[Ack] = []
    worker, deployment = tasks[0].worker, tasks[0].deployment
    order = order_of(deployment, attempt=attempt)
    list(chain_attempt(worker, deployment, order, acks=acks, tasks=tasks).run(_raising(error) if error else []))
    return acks


def _raising(error: BaseException) -> Iterator[Any]:
    raise error
    yield


def still_open() -> set[int]:
    return {n for what, n in journal if what == "open"} - {n for what, n in journal if what == "close"}


def test_a_task_keeps_its_bolt_until_its_chain_ends(place):
    worker, found = Worker(), deployment(place, topology(2))
    chains = [chain(worker, found, partition) for partition in (0, 1)]
    for txid in (1, 2, 3):
        for tasks in chains:
            run(tasks, TransactionAttempt(txid, 0))
    assert journal == [("open", 0), ("open", 1)]
    for task in chains[0]:
        task.close()
    assert still_open() == {1}


def test_a_bolt_whose_attempt_did_not_end_is_closed(place):
    """It may stand in the middle of a transaction."""
    tasks = chain(Worker(), deployment(place, topology()))
    with pytest.raises(AbandonedError):
        run(tasks, error=AbandonedError())
    run(tasks)
    assert journal == [("open", 0), ("close", 0), ("open", 1)]


def test_a_fresh_task_opens_a_bolt_for_each_attempt(place):
    tasks = chain(Worker(), deployment(place, topology()), fresh=True)
    for _ in range(2):
        run(tasks)
    assert journal == [("open", 0), ("close", 0), ("open", 1), ("close", 1)]


class Driver:
    """The driver's end of a chain's connection, which says what a test wants, or raises it."""

    def __init__(self, *frames: tuple[FrameKind, bytes] | BaseException) -> None:
        self.frames = list(frames)
        self.sent: list[tuple[FrameKind, bytes]] = []

    def next(self, timeout_secs: float | None = None) -> tuple[FrameKind, bytes]:
        frame = self.frames.pop(0)
        if isinstance(frame, BaseException):
            raise frame
        return frame

    def send(self, kind: FrameKind, body: bytes = b"") -> None:
        self.sent.append((kind, body))

    check = abandoned = alive = lambda *_: None


class SlowProvider(MemoryStateProvider):
    """Opens state when it is let."""

    opens, goes_on = threading.Event(), threading.Event()

    def newState(self, namespace, context):
        self.opens.set()
        assert self.goes_on.wait(10)
        return super().newState(namespace, context)


class Counted(StatefulBolt):
    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put(tup.value, 1)


@pytest.mark.slow
def test_a_chain_reports_tasks_that_restore_state_until_they_have(place, monkeypatch):
    monkeypatch.setattr(chains, "RESTORES_SECS", 0.0)
    builder = TopologyBuilder("slow")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("counted", Counted()).shuffleGrouping("lines")
    found = replace(deployment(place, builder.createTopology()), provider=f"{__name__}:SlowProvider")
    text = text_for(found.plan, order_of(found), found.plan.levels[0][0]).encode()
    driver = Driver((FrameKind.RUN, text), (FrameKind.END, b""))
    resident = TaskChain(Worker(), found, ChainId(0, 0), driver, (1, 0))
    driver.alive()
    assert driver.sent == []
    running = threading.Thread(target=lambda: list(resident.run(iter(()))))
    running.start()
    assert SlowProvider.opens.wait(10)
    driver.alive()
    (_, times), *restores = driver.sent
    assert restores == [(FrameKind.RESTORES, b"counted/0")]
    assert messages.unpack_activity(times)[TaskId("counted", 0)]["restoring"] > 0
    SlowProvider.goes_on.set()
    running.join(10)
    kinds = [FrameKind.ACTIVITY, FrameKind.RESTORES, FrameKind.ACK, FrameKind.ACK]
    assert [kind for kind, _ in driver.sent] == kinds
    driver.alive()
    assert len(driver.sent) == 4


@pytest.mark.parametrize(
    ("end", "closed"), [((FrameKind.END, b""), True), (ConnectionError(), True), (ProcessGone(), False)], ids=repr
)
def test_a_chain_closes_its_bolts_unless_its_process_dies(place, end, closed):
    found = deployment(place, topology())
    order = order_of(found)
    body = text_for(found.plan, order, found.plan.levels[0][0]).encode()
    resident = TaskChain(Worker(), found, ChainId(0, 0), Driver((FrameKind.RUN, body), end), (1, 0))
    with contextlib.suppress(ConnectionError, ProcessGone):
        list(resident.run(iter(())))
    assert journal == [("open", 0), ("close", 0)][: 1 + closed]


def test_a_row_emitted_too_late_fails_each_attempt_of_its_task(place):
    """Else the next one would go on without the row, which is lost; also in another chain of the process."""
    worker, found, task = Worker(), deployment(place, topology()), TaskId("numbered", 0)
    tasks = chain(worker, found)
    run(tasks)
    worker.keep_late(found, task, BoltError("the row is lost"))
    for number, chained in enumerate((tasks, tasks, chain(worker, found))):
        *_, ack = run(chained, TransactionAttempt(2, number))
        assert ack.failed is not None
        assert (ack.id, ack.failed.kind, ack.failed.reason) == (task, FailureKind.BOLT, "the row is lost")


def test_a_deployment_is_loaded_once_and_its_provider_built_once(place):
    loaded, built = [], []

    def load() -> Deployment:
        loaded.append(deployment(place, topology()))
        return replace(loaded[-1], run="r")

    def build(found: Deployment) -> Any:
        built.append(found.build_provider())
        return built[-1]

    worker = Worker(build)
    providers = {id(worker.provider(worker.deployment("r", load))) for _ in range(3)}
    assert (len(loaded), len(built), len(providers)) == (1, 1, 1)


@pytest.mark.parametrize("generation", [1, 2])
def test_the_provider_of_an_earlier_start_is_forgotten_with_it(place, generation):
    """Also if the generation comes again, as it does when a checkpoint was replaced by a backup."""
    worker, former = Worker(), deployment(place, topology())
    provider = worker.provider(former)
    worker.provider(replace(deployment(place, topology()), generation=generation))
    assert worker.provider(former) is not provider


def test_the_starts_that_were_used_longest_ago_are_forgotten(place):
    worker = Worker()
    found = [replace(deployment(place, topology()), lineage=f"{n}" * 32) for n in range(RUNS_KEPT + 1)]
    providers = [worker.provider(each) for each in found]
    assert worker.provider(found[-1]) is providers[-1]
    assert worker.provider(found[0]) is not providers[0]


# ---- How long a bolt object lives, and what its attributes lose with it.


class StormsCount(BatchBolt):
    """Storm's own example of a batch bolt."""

    outputFields = "count long"

    def open(self, context):
        self._count = 0
        self.context = context
        self.context.config["journal"].append("open")

    def execute(self, tup, collector):
        self._count += 1
        if tup.value == "bad" and self.context.attempt == 0:
            raise FailedException("not at the first attempt")

    def finishBatch(self, collector):
        collector.emit((self._count,))

    def close(self):
        self.context.config["journal"].append("close")


class FromInit(BatchBolt):
    outputFields = "count long"

    def __init__(self) -> None:
        self._count = {"lines": 0}

    def execute(self, tup, collector):
        self._count["lines"] += 1

    def finishBatch(self, collector):
        collector.emit((self._count["lines"],))


class Remembers(BasicBolt):
    outputFields = "count long"
    count = 0

    def execute(self, tup, collector):
        self.count += 1
        collector.emit((self.count,))


class Totals(Stateful, BatchBolt):
    outputFields = "opened long"

    def open(self, context):
        context.config["journal"].append("open")

    def initState(self, state):
        pass

    def execute(self, tup, collector):
        pass


def one(bolt: Any) -> Topology:
    builder = TopologyBuilder("one")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("one", bolt).globalGrouping("lines")
    return builder.createTopology()


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("bolt", [StormsCount, FromInit])
def test_a_batch_bolt_without_state_begins_every_batch_as_open_left_it(place, bolt, fresh):
    with CheckpointDriver(place) as driver:
        tester = driver.start(one(bolt()), freshObjects=fresh)
        tester.send({"lines": [("a",), ("b",)]})
        tester.send({"lines": [("c",), ("d",), ("e",)]})
        assert tester.emitted("one") == [(2,), (3,)]


def test_a_batch_bolt_without_state_begins_anew_in_an_attempt_that_is_tried_again(place):
    with CheckpointDriver(place) as driver:
        tester = driver.start(one(StormsCount()), freshObjects=False)
        tester.send({"lines": [("a",)]})
        assert tester.send({"lines": [("b",), ("bad",), ("c",)]}).emitted("one") == [(3,)]
        tester.wake()  # it is closed behind its ack
        assert driver.journal == ["open", "close"] * 3


def test_a_batch_bolt_with_state_is_kept(place):
    with CheckpointDriver(place) as driver:
        tester = driver.start(one(Totals()), freshObjects=False)
        tester.send({"lines": [("a",)]})
        tester.send({"lines": [("b",)]})
        assert driver.journal == ["open"]


def test_the_tester_shows_what_an_attribute_loses(place):
    with CheckpointDriver(place) as driver:
        tester = driver.start(one(Remembers()))
        tester.send({"lines": [("a",), ("b",)]})
        assert tester.send({"lines": [("c",)]}).emitted("one") == [(1,)]
        assert tester.restart().send({"lines": [("d",)]}).emitted("one") == [(1,)]


def test_the_tester_keeps_objects_if_it_is_told_to(place):
    with CheckpointDriver(place) as driver:
        tester = driver.start(one(Remembers()), freshObjects=False)
        tester.send({"lines": [("a",), ("b",)]})
        assert tester.send({"lines": [("c",)]}).emitted("one") == [(3,)]
        again = tester.restart()
        again.send({"lines": [("d",)]})
        assert again.send({"lines": [("e",)]}).emitted("one") == [(2,)], "a restart hands the choice on"


# ---- What a user's factory returns is checked at once: an error names the class, the method and what is wanted.


class Provider(MemoryStateProvider):
    def newState(self, namespace, context):
        return {}


class NoWriter(FileSink):
    def writer(self, context):
        return []


class NoCommitter(FileSink):
    def committer(self, context):
        return "committer"


class NoCommittable(FileSink):
    def writer(self, context):
        made = super().writer(context)
        made.prepare = lambda txid: ["a file"]
        return made


class NoJson(FileSink):
    def writer(self, context):
        made = super().writer(context)
        made.prepare = lambda txid: {"file": object()}
        return made


class NoAcks(QueueSpout):
    def receive(self, limit):
        return []

    def finish(self, ids):
        pass

    def pendingAcks(self):
        return None


class NoSink(Messages):
    def acknowledging(self):
        return "acks"


def to_sink(kind):
    def make(folder):
        builder = TopologyBuilder("made")
        builder.setSpout("numbers", MemoryTransactionalSpout([[(1,)]], "number long"))
        builder.setSink("out", kind(folder / "out")).shuffleGrouping("numbers")
        return builder.createTopology()

    return make


def from_spout(make):
    def made(folder):
        builder = TopologyBuilder("made")
        builder.setSpout("numbers", make())
        builder.setBolt("count", Tally("number")).globalGrouping("numbers")
        return builder.createTopology()

    return made


@pytest.mark.parametrize(
    ("made", "error", "match"),
    [
        (to_sink(NoWriter), BoltError, r"sink 'out'.*writer returned \[\].*SinkWriter"),
        (to_sink(NoCommittable), BoltError, r"sink 'out'.*prepare returned \['a file'\].*dict"),
        (to_sink(NoJson), BoltError, r"sink 'out'.*hook prepare.*object is not JSON"),
        (to_sink(NoCommitter), TopologyError, r"NoCommitter.committer returned 'committer'.*SinkCommitter"),
        (from_spout(lambda: NoSink([])), TopologyError, r"NoSink.acknowledging returned 'acks'.*Sink"),
        (
            from_spout(lambda: NoAcks("number long", exactlyOnce=True)),
            TopologyError,
            r"NoAcks.pendingAcks returned None.*PendingAcks",
        ),
    ],
)
def test_something_else_than_is_wanted_is_refused_at_once(place, made, error, match):
    with pytest.raises(error, match=match), TopologyTester(made(place), place / "ck") as tester:
        tester.emit()


def numbers():
    return from_spout(lambda: MemoryTransactionalSpout([[(1, "", "")]], "number long, first string, second string"))


def test_a_provider_that_makes_no_store_ends_the_query(place):
    """The first attempt does: no other one would be given anything else."""
    config = {"topology.state.provider": f"{__name__}:Provider"}
    match = r"Provider.newState returned {} \(dict\): it has to return a StateStore"
    with pytest.raises(BoltError, match=match), TopologyTester(numbers()(place), place / "ck", config) as tester:
        tester.emit()
    with pytest.raises(ProviderError, match=match), Checkpoint(place / "ck").state("count"):
        pass
    with TransactionalClient(place / "client", id="client", state=["kept"], config=config) as client:
        t = client.begin()
        with pytest.raises(ProviderError, match=match):
            t.get("kept", 1)
