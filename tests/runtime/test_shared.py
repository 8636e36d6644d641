"""What tasks of one process share: made once, held as long as a task that has asked for it, closed with the last."""

import asyncio
import logging
import threading
from collections import Counter

import pytest

from statefx import AsyncBolt, BasicBolt, BatchBolt, Bolt, Count, StatefulBolt, StatefulWindowedBolt, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.errors import BoltError, FailedException
from statefx.runtime.shared import SharedObjects
from statefx.testing import TopologyTester, rows

FIELDS = "n long"
MADE, CLOSED = [], []


class Model:
    def __init__(self):
        MADE.append(self)

    def close(self):
        CLOSED.append(self)


@pytest.fixture(autouse=True)
def nothing_made():
    MADE.clear()
    CLOSED.clear()


class Asks:
    """The hook of all kinds of bolts below."""

    outputFields = "n long"

    def open(self, context):
        self.model = context.shared("model", Model, Model.close)
        self.context = context

    def execute(self, tup, collector):
        assert self.model is self.context.shared("model", Model)
        assert self.model not in CLOSED
        collector.emit((tup.n,))


class Plain(Asks, Bolt):
    pass


class Basic(Asks, BasicBolt):
    pass


class Batch(Asks, BatchBolt):
    pass


class WithState(Asks, StatefulBolt):
    def initState(self, state):
        pass

    def preCommit(self, txid):
        assert self.model not in CLOSED


class Windowed(StatefulWindowedBolt):
    open, outputFields = Asks.open, "n long"

    def initState(self, state):
        pass

    def execute(self, window, collector):
        for tup in window.get():
            collector.emit((tup.n,))


class Async(AsyncBolt):
    outputFields = "n long"

    async def open(self, context):
        self.model = await asyncio.to_thread(context.shared, "model", Model, Model.close)

    async def execute(self, tup, collector):
        assert self.model not in CLOSED
        collector.emit((tup.n,))


class AsyncBatch(AsyncBolt):
    outputFields = "n long"

    async def open(self, context):
        self.model = context.shared("model", Model, Model.close)

    async def executeBatch(self, batch, collector):
        assert self.model not in CLOSED
        for tup in batch:
            collector.emit((tup.n,), anchors=tup)


def topology(*bolts):
    """Bolts in a chain, whose tasks are in one process, here as on Spark."""
    builder = TopologyBuilder("shares")
    builder.setStream("in", rows(FIELDS))
    source = "in"
    for number, bolt in enumerate(bolts):
        builder.setBolt(f"bolt{number}", bolt).shuffleGrouping(source)
        source = f"bolt{number}"
    return builder.createTopology()


@pytest.mark.slow
def test_all_kinds_of_bolts_share_one_object_until_they_end():
    """A BatchBolt's object lives for one attempt, and here others do too: what is shared outlives them."""
    windowed = Windowed().withTumblingWindow(Count(4))
    kinds = (Basic(), Batch(), WithState(), Async(), AsyncBatch(), Plain(), windowed)
    with TopologyTester(topology(*kinds)) as tester:
        for first in (0, 10):
            sent = tester.send({"in": [(n,) for n in range(first, first + 10)]})
        assert sorted(sent.emitted("bolt5")) == [(n,) for n in range(10, 20)]
        assert len(MADE) == 1
        assert CLOSED == []
    assert MADE == CLOSED


def test_an_attempt_that_fails_keeps_it():
    class Fails(Basic):
        def execute(self, tup, collector):
            if self.context.attempt < 2:
                raise FailedException("twice")

    with TopologyTester(topology(Fails())) as tester:
        tester.send({"in": [(1,)]})
        assert (len(MADE), CLOSED) == (1, [])
    assert MADE == CLOSED


def test_another_run_of_the_topology_has_its_own():
    with TopologyTester(topology(Basic())) as tester:
        tester.send({"in": [(1,)]})
        again = tester.restart()
        again.send({"in": [(2,)]})
        again.close()
    assert len(MADE) == 2
    assert Counter(MADE) == Counter(CLOSED)


def test_spouts_share_in_their_tasks_and_not_on_the_driver():
    class Shares(MemoryTransactionalSpout):
        def emitPartitionBatch(self, attempt, collector, partition, metadata):
            self.context.shared("model", Model, Model.close)
            return super().emitPartitionBatch(attempt, collector, partition, metadata)

        def open(self, context):
            self.context = context
            if context.task == -1:
                with pytest.raises(BoltError, match="for tasks, and this is the driver's copy"):
                    context.shared("model", Model)
            super().open(context)

    builder = TopologyBuilder("shares")
    builder.setSpout("in", Shares([[(1,), (2,)]], FIELDS, 2))
    builder.setBolt("bolt", Basic()).shuffleGrouping("in")
    with TopologyTester(builder.createTopology()) as tester:
        tester.drain()
    assert len(MADE) == len(CLOSED) == 1


# ---- the objects alone


def test_threads_that_ask_at_once_get_one_and_the_last_holder_closes_it():
    shared, begin, found = SharedObjects(), threading.Barrier(8), []

    def make():
        threading.Event().wait(0.01)
        return Model()

    def ask(holder):
        begin.wait(10)
        found.append(shared.get(holder, "run", ("model", 1), make, Model.close))

    threads = [threading.Thread(target=ask, args=(number // 2,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(found) == 8
    assert set(found) == set(MADE)
    assert len(MADE) == 1
    for holder in range(4):
        assert CLOSED == []
        shared.release(holder)
    assert CLOSED == MADE
    shared.release(0)
    assert CLOSED == MADE


def test_other_keys_and_runs_have_others():
    shared = SharedObjects()
    found = [shared.get(1, run, key, Model) for run in "ab" for key in ("x", ("x", 1), 7)]
    assert len(set(found)) == 6


def test_a_make_that_raises_is_not_remembered():
    shared, tries = SharedObjects(), []

    def make():
        tries.append(1)
        if len(tries) < 3:
            raise OSError("no such file")
        return Model()

    for _ in range(2):
        with pytest.raises(OSError, match="no such file"):
            shared.get(1, "run", "model", make)
        assert shared._kept == {}
    assert shared.get(1, "run", "model", make) is MADE[0]


def test_one_that_waits_for_a_make_that_raises_tries_it_itself():
    shared, failing, waits = SharedObjects(), threading.Event(), threading.Event()
    found = []

    def fails():
        failing.set()
        assert waits.wait(10)
        raise OSError("no such file")

    def first():
        with pytest.raises(OSError, match="no such file"):
            shared.get(1, "run", "model", fails)

    def second():
        assert failing.wait(10)
        waits.set()
        found.append(shared.get(2, "run", "model", Model, Model.close))

    threads = [threading.Thread(target=each) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == MADE
    shared.release(1)
    assert CLOSED == []
    shared.release(2)
    assert CLOSED == MADE


def test_a_close_that_raises_is_logged_and_closes_others(caplog):
    shared = SharedObjects()

    def bad(model):
        raise OSError("can't be closed")

    shared.get(1, "run", "bad", Model, bad)
    shared.get(1, "run", "good", Model, Model.close)
    with caplog.at_level(logging.ERROR, "statefx"):
        shared.release(1)
    assert "can't be closed" in caplog.text
    assert len(CLOSED) == 1


async def make_client():
    return 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([1], Model), "a key is a text, a number or a tuple of such"),
        (("model", 7), "make is called, without arguments"),
        (("model", Model, 7), "close is called with what is shared"),
        (("model", make_client), "make is async def. A task has an event loop of its own"),
    ],
)
def test_what_can_not_be_shared_is_refused(arguments, text):
    with pytest.raises(BoltError, match=text):
        SharedObjects().get(1, "run", *arguments)


def test_makes_that_wait_for_each_other_are_refused():
    shared, both, errors = SharedObjects(), threading.Barrier(2, timeout=10), []

    def ask(holder, key, other):
        def make():
            both.wait()
            return shared.get(holder, "run", other, Model)

        try:
            shared.get(holder, "run", key, make)
        except BoltError as error:
            errors.append(error.message)

    threads = [threading.Thread(target=ask, args=each, daemon=True) for each in ((1, "a", "b"), (2, "b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    (error,) = errors  # the other one makes both
    assert "each would wait for the other for ever" in error


def test_a_make_that_asks_for_its_own_key_is_refused():
    shared = SharedObjects()

    def make():
        return shared.get(1, "run", "model", make)

    with pytest.raises(BoltError, match="its make asks for 'model' itself"):
        shared.get(1, "run", "model", make)
    assert shared.get(1, "run", "other", lambda: shared.get(1, "run", "model", Model)) is MADE[0]
