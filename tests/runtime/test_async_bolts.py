"""Bolts whose calls overlap: order, keys, errors that undo one call alone, and calls that don't end as they should."""

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections import Counter

import pytest

from statefx import (
    AsyncBolt,
    BasicBolt,
    BatchBolt,
    Spout,
    StatefulAsyncBolt,
    TopologyBuilder,
    isTick,
)
from statefx.errors import AttemptsExhaustedError, BoltError, FailedException, TopologyError
from statefx.runtime import loops
from statefx.runtime.calls import SLICE_CALLS
from statefx.runtime.user_objects import AbandonedError
from statefx.runtime.worker import Worker
from statefx.testing import TopologyTester, rows
from tests.bolts import Ignores, Tally
from tests.runtime.one_chain import chain_attempt, deployment, order_of
from tests.spark.running import wait_for

FIELDS = "n long, key string"


def given(number, keys="abc"):
    return [(n, keys[n % len(keys)]) for n in range(number)]


def built(bolt, *, tasks=1, by=(), **options):
    builder = TopologyBuilder("calls")
    builder.setStream("in", rows(FIELDS))
    declared = builder.setBolt("bolt", bolt, parallelism=tasks, **options)
    if by:
        declared.fieldsGrouping("in", *by)
    else:
        declared.shuffleGrouping("in")
    if options.get("onError") == "deadLetter":
        builder.setBolt("letters", Ignores()).shuffleGrouping("bolt", stream="deadLetter")
    return builder.createTopology()


def counted(tester, name):
    return sum(metric["value"] for metric in tester.metrics if metric["name"] == name)


class Later(AsyncBolt):
    """Emits each row after a time of its own, the later ones sooner."""

    outputFields = FIELDS

    def __init__(self, **settings):
        vars(self).update(settings)

    async def execute(self, tup, collector):
        await asyncio.sleep(0.02 if not tup.n % 10 else 0.001)
        collector.emit((tup.n, tup.key))


# ---- order, and how many


@pytest.mark.parametrize("ordered", [True, False])
def test_rows_leave_in_the_order_of_tuples_or_as_calls_end(ordered):
    with TopologyTester(built(Later(ordered=ordered))) as tester:
        emitted = tester.send({"in": given(40)}).emitted("bolt")
    assert sorted(emitted) == given(40)
    assert (emitted == given(40)) is ordered


class Counting(Later):
    async def open(self, context):
        self.now = self.most = 0

    async def execute(self, tup, collector):
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.001)
        self.now -= 1
        collector.emit((self.most, tup.key))


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [1, 7, 100])
def test_no_more_calls_than_the_capacity_are_in_flight(capacity):
    with TopologyTester(built(Counting(capacity=capacity))) as tester:
        emitted = tester.send({"in": given(150)}).emitted("bolt")
    assert max(most for most, _ in emitted) == capacity


def test_a_slow_call_holds_back_rows_and_no_calls(monkeypatch):
    """Until as many wait as may be held; then what may leave leaves, and others begin."""
    monkeypatch.setattr("statefx.runtime.calls.HELD_MAX", 30)
    begun = []

    class FirstIsSlow(Later):
        async def execute(self, tup, collector):
            begun.append(tup.n)
            if not tup.n:
                while len(begun) < 30:
                    await asyncio.sleep(0)
                await asyncio.sleep(0.01)
                assert len(begun) == 30
            collector.emit((tup.n, tup.key))

    with TopologyTester(built(FirstIsSlow(capacity=5))) as tester:
        assert tester.send({"in": given(200)}).emitted("bolt") == given(200)


def test_all_calls_end_before_the_transaction_does():
    """Also those of the last row; in finishBatch all of them are done."""

    class Batch(Later, BatchBolt):
        async def open(self, context):
            self.done = 0

        async def execute(self, tup, collector):
            await asyncio.sleep(0.005)
            self.done += 1

        def finishBatch(self, collector):
            collector.emit((self.done, "all"))

    with TopologyTester(built(Batch())) as tester:
        assert tester.send({"in": given(30)}).emitted("bolt") == [(30, "all")]


class InThreads(AsyncBolt):
    outputFields = "n long, thread string"
    threads = 4

    def open(self, context):
        self.metrics = context.metrics

    def execute(self, tup, collector):
        threading.Event().wait(0.002)
        self.metrics.counter("calls").inc()
        collector.emit((tup.n, threading.current_thread().name))


def test_a_plain_execute_runs_in_threads():
    with TopologyTester(built(InThreads())) as tester:
        emitted = tester.send({"in": given(40)}).emitted("bolt")
        assert [n for n, _ in emitted] == list(range(40))
        assert 1 < len({name for _, name in emitted}) <= 4
        assert counted(tester, "calls_total") == 40


def test_the_loop_is_the_bolts_own_and_lives_as_long_as_it():
    """On a thread of its own, also where the caller runs a loop; between two transactions it goes on."""
    seen = []

    class Sees(Later):
        async def open(self, context):
            self.note("open")
            self.beat = asyncio.create_task(self.beats())

        async def beats(self):
            while True:
                seen.append("beat")
                await asyncio.sleep(0.001)

        def note(self, hook):
            seen.append((hook, id(asyncio.get_running_loop()), threading.get_ident()))

        async def execute(self, tup, collector):
            self.note("execute")

    async def within_a_loop():
        with TopologyTester(built(Sees()), freshObjects=False) as tester:
            tester.send({"in": given(1)})
            before = seen.count("beat")
            while seen.count("beat") == before:
                threading.Event().wait(0.001)
            tester.send({"in": given(1)})

    asyncio.run(within_a_loop())
    hooks = [each for each in seen if each != "beat"]
    assert [hook for hook, _, _ in hooks] == ["open", "execute", "execute"]
    assert len({(loop, thread) for _, loop, thread in hooks}) == 1
    assert hooks[0][2] != threading.get_ident()


# ---- state


class Sums(StatefulAsyncBolt):
    """Reads the state of a key, waits, and adds to it."""

    outputFields = "key string, sum long"

    def __init__(self, fails=()):
        self.fails = fails

    def open(self, context):
        self.metrics = context.metrics

    def initState(self, state):
        self.state, self.last = state, state.map("last")

    async def execute(self, tup, collector):
        before = self.state.get(tup.key, 0)
        self.metrics.counter("tried").inc()
        await asyncio.sleep(0.0001 * (tup.n % 5))
        self.state.put(tup.key, before + tup.n)
        self.last.put(tup.key, tup.n)
        collector.emit((tup.key, before + tup.n))
        if tup.n in self.fails:
            raise ValueError("the row is bad")


def recounted(given, fails=()):
    sums, running = Counter(), []
    for n, key in given:
        if n not in fails:
            sums[key] += n
            running.append((key, sums[key]))
    return sums, running


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["memory", "rocksdb"])
def test_calls_of_a_key_keep_their_order_and_others_overlap(tmp_path, provider):
    data = given(300, "abcdefghij")
    config = {"topology.state.provider": provider}
    with TopologyTester(built(Sums(), tasks=2, by=["key"]), tmp_path / "ck", config) as tester:
        sent = [tester.send({"in": data[at : at + 100]}) for at in (0, 100, 200)]
        sums, running = recounted(data)
        assert tester.state("bolt") == sums
    emitted = [row for each in sent for row in each.emitted("bolt")]
    for key in sums:
        assert [row for row in emitted if row[0] == key] == [row for row in running if row[0] == key]


def test_null_and_nan_are_keys_as_others(tmp_path):
    class Last(StatefulAsyncBolt):
        def initState(self, state):
            self.state = state

        async def execute(self, tup, collector):
            before = self.state.get("all", [])
            await asyncio.sleep(0.001)
            self.state.put("all", [*before, tup.n])

    builder = TopologyBuilder("keys")
    builder.setStream("in", rows("n long, x double, tags array<string>"))
    builder.setBolt("bolt", Last()).fieldsGrouping("in", "x")
    with TopologyTester(builder.createTopology()) as tester:
        tester.send({"in": [(n, float("nan"), ["a"]) for n in range(5)]})
        assert tester.state("bolt") == {"all": [0, 1, 2, 3, 4]}
        tester.send({"in": [(n, None, ["a"]) for n in range(5, 8)]})
        assert tester.state("bolt") == {"all": [0, 1, 2, 3, 4, 5, 6, 7]}
        tester.send({"in": [(n, -0.0 if n % 2 else 0.0, ["a"]) for n in range(8, 12)]})
        assert tester.state("bolt") == {"all": [*range(12)]}, "0.0 and -0.0 are one key, in state as well"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["skip", "deadLetter"])
def test_what_a_failed_call_did_is_undone_and_nothing_else(mode):
    data, fails = given(200, "abcde"), {3, 4, 50, 51, 52, 100, 199}
    with TopologyTester(built(Sums(fails), tasks=2, by=["key"], onError=mode)) as tester:
        sent = tester.send({"in": data})
        sums, running = recounted(data, fails)
        assert tester.state("bolt") == sums
        assert sorted(sent.emitted("bolt")) == sorted(running)
        assert counted(tester, "tried_total") == len(data) - len(fails)
        if mode == "deadLetter":
            letters = [json.loads(letter[0])["n"] for letter in sent.emitted("bolt", "deadLetter")]
            assert sorted(letters) == sorted(fails)


def test_a_row_that_does_not_fit_undoes_its_call():
    class Misfits(Sums):
        outputFields = {"default": "key string, sum long", "more": "n long"}

        async def execute(self, tup, collector):
            await super().execute(tup, collector)
            collector.emit(("too large" if tup.n == 4 else tup.n,), stream="more")

    data = given(20)
    with TopologyTester(built(Misfits(), by=["key"], onError="skip")) as tester:
        sent = tester.send({"in": data})
        assert tester.state("bolt") == recounted(data, {4})[0]
        assert sorted(sent.emitted("bolt", "more")) == [(n,) for n in range(20) if n != 4]
        assert len(sent.emitted("bolt")) == 19


def test_a_call_that_returns_something_is_undone():
    class Returns(Sums):
        async def execute(self, tup, collector):
            await super().execute(tup, collector)
            return "lost" if tup.n in (3, 7) else None

    with TopologyTester(built(Returns(), by=["key"], onError="skip")) as tester:
        tester.send({"in": given(10)})
        assert tester.state("bolt") == recounted(given(10), (3, 7))[0]


def test_state_that_changes_before_an_await_is_refused():
    class Early(Sums):
        async def execute(self, tup, collector):
            self.state.put(tup.key, tup.n)
            await asyncio.sleep(0)

    with TopologyTester(built(Early(), by=["key"])) as tester, pytest.raises(BoltError, match="after the last await"):
        tester.send({"in": given(3)})
    with TopologyTester(built(Early(), by=["key"], onError="skip")) as tester:
        tester.send({"in": given(3)})
        assert tester.state("bolt") == {}


@pytest.mark.parametrize("value", [1, [1]])
def test_a_read_that_restarts_a_time_is_no_change(value):
    """So it may come before an await; and what its call changes is undone to what was read."""
    seen = []

    class Touches(StatefulAsyncBolt):
        def initState(self, state):
            self.last = state.map("last", ttl="100 seconds", touch="read")

        async def execute(self, tup, collector):
            found = [self.last.get(tup.key), self.last.getAll([tup.key]).get(tup.key), tup.key in self.last]
            await asyncio.sleep(0)
            seen.append(found)
            self.last.put(tup.key, "undone" if tup.n else value)
            if tup.n:
                raise ValueError("the row is bad")

    with TopologyTester(built(Touches(), by=["key"], onError="skip")) as tester:
        for n in range(3):
            tester.send({"in": [(n, "a")]})
            tester.advance(60)
            assert tester.state("bolt", map="last") == {"a": value}
    assert seen == [[None, None, False], [value, value, True], [value, value, True]]


def test_state_that_a_task_of_a_call_changes_fails_the_transaction():
    class Stray(Sums):
        async def execute(self, tup, collector):
            async def change():
                self.state.put(tup.key, tup.n)

            await asyncio.gather(change(), asyncio.sleep(0.001))

    topology = built(Stray(), by=["key"], onError="skip")
    with TopologyTester(topology) as tester, pytest.raises(BoltError, match="outside of execute"):
        tester.send({"in": given(3)})


# ---- errors


class Fails(Later):
    async def execute(self, tup, collector):
        collector.emit((tup.n, tup.key))
        await asyncio.sleep(0.001)
        if tup.n % 7 == 3:
            raise self.error("a bad row")


def test_an_error_ends_the_query_and_names_the_users_line():
    with TopologyTester(built(Fails(error=ValueError))) as tester, pytest.raises(BoltError) as raised:
        tester.send({"in": given(20)})
    assert "hook execute, transaction 1: ValueError: a bad row (" in raised.value.message
    assert "test_async_bolts.py" in raised.value.message


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, TimeoutError, StopIteration])
def test_a_row_of_which_the_call_raises_is_skipped(error):
    with TopologyTester(built(Fails(error=error), onError="skip")) as tester:
        assert tester.send({"in": given(20)}).emitted("bolt") == [row for row in given(20) if row[0] % 7 != 3]
        assert tester.send({"in": given(3)}).emitted("bolt") == given(3)


def test_failed_exception_has_the_transaction_tried_again():
    class Once(Later):
        async def execute(self, tup, collector):
            await asyncio.sleep(0.001)
            if tup.n == 5 and not collector.attempt.attempt:
                collector.fail(tup, "not at the first attempt")
            collector.emit((tup.n, tup.key))

    with TopologyTester(built(Once())) as tester:
        sent = tester.send({"in": given(10)})
        assert (sent.emitted("bolt"), sent.attempts) == (given(10), 2) if hasattr(sent, "attempts") else True
        assert tester.txid == 1


class Numbers(Spout):
    outputFields = FIELDS

    def nextTuple(self, collector):
        raise AssertionError("fed by the test")


@pytest.mark.parametrize("mode", ["fail", "skip"])
def test_messages_are_acked_or_failed_a_call_at_a_time(mode):
    class Some(Later):
        async def execute(self, tup, collector):
            await asyncio.sleep(0.0005 * (tup.n % 3))
            if tup.n % 4 == 1:
                raise FailedException("the service refused")
            collector.emit((tup.n, tup.key))

    builder = TopologyBuilder("messages")
    builder.setSpout("in", Numbers())
    builder.setBolt("bolt", Some(), onError=mode).shuffleGrouping("in")
    builder.setBolt("tally", Tally("n")).fieldsGrouping("bolt", "n")
    with TopologyTester(builder.createTopology(), fed="in") as tester:
        tester.send({"in": given(12)})
        assert sorted(tester.failed("in")) == [1, 5, 9]
        assert sorted(tester.acked("in")) == [0, 2, 3, 4, 6, 7, 8, 10, 11]
        assert set(tester.state("tally")) == {0, 2, 3, 4, 6, 7, 8, 10, 11}


# ---- calls that do not end as they should


class Hangs(Later):
    timeout = "50 ms"

    async def execute(self, tup, collector):
        if tup.n == 2:
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.append(tup.n)
        collector.emit((tup.n, tup.key))


def test_a_call_that_never_returns_is_cancelled_after_its_time():
    with TopologyTester(built(Hangs(cancelled=[]), onError="deadLetter")) as tester:
        sent = tester.send({"in": given(5)})
        assert sent.emitted("bolt") == [row for row in given(5) if row[0] != 2]
        [letter] = sent.emitted("bolt", "deadLetter")
    assert letter[3] == "TimeoutError"
    assert "took longer than 0.05 s (" in letter[4]
    assert "test_async_bolts.py" in letter[4]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("kind", [Later, Sums])
def test_a_call_that_blocks_the_loop_for_longer_than_its_time_ends_once(kind, ordered):
    """Its end comes before anybody sees how long it took."""

    class Computes(kind):
        capacity, timeout = 1, "10 ms"

        async def execute(self, tup, collector):
            if not (tup.n + 1) % SLICE_CALLS:
                threading.Event().wait(0.02)
            if kind is Sums:
                self.state.put(tup.key, self.state.get(tup.key, 0) + tup.n)
            collector.emit((tup.key, tup.n) if kind is Sums else (tup.n, tup.key))

    bolt = Computes()
    bolt.ordered = ordered
    with TopologyTester(built(bolt, by=["key"], onError="skip")) as tester:
        emitted = tester.send({"in": given(40)}).emitted("bolt")
        assert sorted(n for row in emitted for n in row if type(n) is int) == list(range(40))
        if kind is Sums:
            assert tester.state("bolt") == recounted(given(40))[0]


def test_by_default_a_call_that_takes_too_long_ends_the_query():
    with TopologyTester(built(Hangs(cancelled=[]))) as tester, pytest.raises(BoltError, match="took longer than"):
        tester.send({"in": given(5)})


@pytest.mark.parametrize("bolt", ["plain", "stateful"])
def test_a_call_that_ignores_its_end_changes_nothing_afterwards(bolt):
    """It swallows the cancellation, and goes on: what it emits and changes is lost, its key goes on."""
    ended = []

    async def stubborn(self, tup, collector):
        if tup.n == 0:
            for _ in range(5):
                try:
                    await asyncio.sleep(0.03)
                except asyncio.CancelledError:
                    ended.append("cancelled")
            try:
                collector.emit((99, "late"))
            except BoltError as error:
                ended.append(error.message)
            if bolt == "stateful":
                self.state.put("late", 1)
            return
        await asyncio.sleep(0)
        if bolt == "stateful":
            self.state.put(tup.key, self.state.get(tup.key, 0) + 1)
        collector.emit((tup.n, tup.key))

    class Plain(Later):
        timeout = "40 ms"
        execute = stubborn

    class Stateful(StatefulAsyncBolt):
        timeout = "40 ms"
        outputFields = FIELDS
        execute = stubborn

        def initState(self, state):
            self.state = state

    made = {"plain": Plain, "stateful": Stateful}[bolt]()
    with TopologyTester(built(made, by=["key"], onError="skip"), freshObjects=False) as tester:
        assert tester.send({"in": given(6)}).emitted("bolt") == given(6)[1:]
        assert tester.send({"in": given(6)[1:]}).emitted("bolt") == given(6)[1:]
        if bolt == "stateful":
            assert tester.state("bolt") == {"a": 2, "b": 4, "c": 4}


def test_a_row_that_comes_after_its_call_fails_the_transaction():
    class Late(Later):
        async def execute(self, tup, collector):
            if tup.n:
                await asyncio.sleep(0.02)  # so that the transaction goes on
            else:
                self.task = asyncio.create_task(self.emit_later(collector))

        async def emit_later(self, collector):
            await asyncio.sleep(0.005)
            collector.emit((1, "late"))

    with TopologyTester(built(Late())) as tester, pytest.raises(BoltError, match="the row is lost"):
        tester.send({"in": given(2)})


def test_a_thread_of_a_call_may_emit_until_the_call_ends():
    class Threaded(Later):
        async def execute(self, tup, collector):
            await asyncio.to_thread(collector.emit, (tup.n, tup.key))

    with TopologyTester(built(Threaded())) as tester:
        assert tester.send({"in": given(20)}).emitted("bolt") == given(20)


@pytest.mark.slow
def test_a_loop_that_is_blocked_is_told_with_its_stack(caplog):
    told = []  # of this loop: what earlier tests have left says more when the garbage collector comes
    caplog.handler.addFilter(lambda record: told.append(1) or True if "blocks its" in record.getMessage() else True)

    class Blocks(Later):
        async def execute(self, tup, collector):
            began = time.monotonic()
            while time.monotonic() - began < 5 and not told:
                threading.Event().wait(0.01)  # the mistake
            self.took = time.monotonic() - began
            collector.emit((int(self.took * 1000), tup.key))

    with caplog.at_level(logging.WARNING, "statefx"), TopologyTester(built(Blocks())) as tester:
        [(took_ms, _)] = tester.send({"in": given(1)}).emitted("bolt")
    assert took_ms < 5000, "told while it is blocked"
    assert loops.WATCH_SECS + loops.BLOCKED_SECS <= 1
    [record] = [each for each in caplog.records if "blocks its event loop" in each.getMessage()]
    assert "bolt 'bolt', task 0, blocks its event loop" in record.getMessage()
    assert "threading.Event().wait(0.01)  # the mistake" in record.getMessage()


def test_a_loop_that_the_bolt_stops_goes_on():
    class Stops(Later):
        async def execute(self, tup, collector):
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0.001)
            collector.emit((tup.n, tup.key))

    with TopologyTester(built(Stops())) as tester:
        assert tester.send({"in": given(5)}).emitted("bolt") == given(5)


@pytest.mark.parametrize("is_async", [True, False])
def test_open_and_close_run_on_the_loop(is_async):
    seen = []

    def note(self, *given):
        seen.append(id(asyncio.get_running_loop()))

    async def note_later(self, *given):
        await asyncio.sleep(0.001)
        note(self)

    class Sees(Later):
        open = close = note_later if is_async else note
        execute = note_later

    with TopologyTester(built(Sees())) as tester:
        tester.send({"in": given(1)})
    assert len(seen) == 3
    assert len(set(seen)) == 1


def test_open_may_raise_and_close_may_hang(monkeypatch, caplog):
    monkeypatch.setattr(loops, "CLOSE_SECS", 0.05)

    class NoOpen(Later):
        async def open(self, context):
            raise ConnectionError("no such host")

    with TopologyTester(built(NoOpen())) as tester, pytest.raises(BoltError, match=r"hook open.*no such host"):
        tester.send({"in": given(1)})

    class NoClose(Later):
        async def close(self):
            await asyncio.sleep(60)

    with TopologyTester(built(NoClose())) as tester:
        tester.send({"in": given(1)})
    assert "close() has not ended within 0.05 s" in caplog.text


OVER = threading.Event()


class HangsInThreads(AsyncBolt):
    """Its client returns for the number 0, and for others when it is over."""

    outputFields = FIELDS
    threads, timeout = 2, "20 ms"

    def execute(self, tup, collector):
        if tup.n:
            OVER.wait()


@pytest.mark.parametrize("cause", ["as many as may", "no new thread"])
def test_calls_without_a_thread_fail_the_attempt(cause, monkeypatch):
    """Not their rows, which would be set aside although nothing is wrong with them."""
    start = threading.Thread.start
    OVER.clear()

    def starts(thread):
        if thread.name.startswith("statefx-bolt-0-2") and cause == "no new thread":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starts)
    monkeypatch.setattr(loops, "LEFT_MIN", 3)
    config = {"topology.transaction.attempts.max": 1}
    text = "can't start new thread" if cause == "no new thread" else "4 are left behind.*timeout of its own"
    with TopologyTester(built(HangsInThreads(), onError="skip"), config=config, freshObjects=False) as tester:
        if cause == "as many as may":
            tester.send({"in": given(4)})  # these are left, and others have their threads all the same
            assert tester.send({"in": given(1)}).progress.set_aside == {}
        with pytest.raises(AttemptsExhaustedError, match=text):
            tester.send({"in": given(9)})
    OVER.set()


# ---- attempts that are abandoned


class Waits(Later):
    """Ends by nothing but its cancellation, if by that."""

    timeout = None

    def open(self, context):
        self.journal = context.config["journal"]

    async def execute(self, tup, collector):
        self.journal.append("begun")
        await self.wait()

    async def wait(self):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.journal.append("cancelled")
            raise


class Deaf(Waits):
    async def wait(self):
        with contextlib.suppress(asyncio.CancelledError):
            await super().wait()
        await asyncio.Event().wait()


class Blocks(Waits):
    async def wait(self):
        self.journal.append(threading.get_ident())
        while "over" not in self.journal:
            threading.Event().wait(0.001)


class BlocksInThreads(Waits):
    threads = 2

    def execute(self, tup, collector):
        self.journal.append("begun")
        while "over" not in self.journal:
            threading.Event().wait(0.001)


class BlocksInOpen(Later):
    async def open(self, context):
        context.config["journal"].append("begun")
        await asyncio.Event().wait()


class WaitsWithState(StatefulAsyncBolt):
    open, execute, wait, timeout, outputFields = Waits.open, Waits.execute, Waits.wait, None, FIELDS

    def initState(self, state):
        pass


@pytest.mark.parametrize("kind", [Waits, Deaf, Blocks, BlocksInThreads, BlocksInOpen, WaitsWithState])
def test_an_abandoned_attempt_waits_for_no_call(place, kind):
    journal = []
    made = deployment(place, built(kind(), by=["key"]), journal=journal)
    worker, order = Worker(), order_of(made, {"in": given(30)})
    sent = list(chain_attempt(worker, made, order).run([]))
    one = chain_attempt(worker, made, order, level=1)

    def abandon():
        while "begun" not in journal:
            threading.Event().wait(0.001)
        one.abandon()

    thread = threading.Thread(target=abandon, daemon=True)
    thread.start()
    with pytest.raises(AbandonedError):
        list(one.run(sent))
    thread.join()
    if kind in (Waits, Deaf, WaitsWithState):
        wait_for(lambda: "cancelled" in journal, "the calls to be cancelled")
    journal.append("over")


# ---- ticks


def test_a_tick_is_a_call_after_all_others():
    class Ticks(Later):
        async def execute(self, tup, collector):
            await asyncio.sleep(0.005 if not isTick(tup) else 0)
            collector.emit((-1, "tick") if isTick(tup) else (tup.n, tup.key))

    builder = TopologyBuilder("ticks")
    builder.setStream("in", rows(FIELDS))
    builder.setBolt("bolt", Ticks()).setTicks(10).shuffleGrouping("in")
    with TopologyTester(builder.createTopology()) as tester:
        tester.send({"in": given(3)})
        tester.advance(10)
        assert tester.send({"in": given(3)}).emitted("bolt") == [*given(3), (-1, "tick")]


# ---- what is refused


class Plain(AsyncBolt):
    def execute(self, tup, collector):
        pass


class Threads(Later):
    threads = 3


@pytest.mark.parametrize(
    ("bolt", "text"),
    [
        (Later(capacity=0), "capacity of Later is how many calls a task has in flight, 1 to 10000"),
        (Later(capacity=True), "capacity of Later"),
        (Later(timeout="soon"), "timeout of Later is how long one call may take"),
        (Later(timeout=5), "timeout of Later"),
        (Later(ordered=1), "ordered of Later is True"),
        (Later(threads=0), "threads of Later is a number of threads"),
        (Plain(), "execute of Plain is a plain function, which would block the event loop"),
        (Threads(), "its execute is async def: leave out threads"),
    ],
)
def test_settings_without_meaning_are_refused(bolt, text):
    with pytest.raises(TopologyError, match=text):
        TopologyBuilder("x").setBolt("bolt", bolt)


def test_what_an_async_bolt_can_not_be_is_refused():
    class Both(StatefulAsyncBolt):
        threads = 2

        def initState(self, state):
            pass

        def execute(self, tup, collector):
            pass

    with pytest.raises(TopologyError, match="keeps state, which no threads may share"):
        TopologyBuilder("x").setBolt("bolt", Both())
    with pytest.raises(TopologyError, match="holds back no later rows"):
        TopologyBuilder("x").setBolt("bolt", Sums(), onError="quarantineKey")
    with pytest.raises(TopologyError, match="only those of one key keep their order"):
        built(Sums())


def test_a_bolt_that_is_not_async_and_has_an_async_hook_is_refused():
    with pytest.raises(TypeError, match="Derive Wrong from AsyncBolt or StatefulAsyncBolt"):

        class Wrong(BasicBolt):
            async def execute(self, tup, collector):
                pass

    with pytest.raises(TypeError, match="onTimer would never run"):

        class Timers(StatefulAsyncBolt):
            def initState(self, state):
                pass

            async def execute(self, tup, collector):
                pass

            async def onTimer(self, key, at, value, collector):
                pass
