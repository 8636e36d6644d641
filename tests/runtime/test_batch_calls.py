"""Bolts whose calls take batches: how tuples are gathered, whose row is whose, and the bad row of many."""

import asyncio
import json
import threading
from collections import Counter

import pytest

from statefx import AsyncBolt, BasicBolt, BatchBolt, Spout, StatefulAsyncBolt, TopologyBuilder, isTick
from statefx.errors import BoltError, FailedException, TopologyError
from statefx.runtime.user_objects import AbandonedError
from statefx.runtime.worker import Worker
from statefx.testing import Crash, TopologyTester, rows
from tests.bolts import Ignores, Tally
from tests.runtime.one_chain import chain_attempt, deployment, order_of
from tests.runtime.test_async_bolts import FIELDS, Later, built, counted, given
from tests.spark.running import wait_for


class Batches(AsyncBolt):
    """Notes how many tuples came together, waits, and emits each."""

    outputFields = FIELDS
    capacity, maxBatch, maxWaitMs = 40, 10, 10_000

    def __init__(self, **settings):
        vars(self).update(settings)

    def open(self, context):
        self.context = context

    async def executeBatch(self, batch, collector):
        self.context.metrics.counter("batches", size=str(len(batch))).inc()
        await asyncio.sleep(0.002 if batch[0].n % 3 else 0.005)
        for tup in reversed(batch):
            self.emit(tup, collector)

    def emit(self, tup, collector):
        collector.emit((tup.n, tup.key), anchors=tup)


def sizes(tester):
    """How many batches of which size there were."""
    return {
        int(metric["labels"]["size"]): metric["value"] for metric in tester.metrics if metric["name"] == "batches_total"
    }


# ---- how tuples are gathered


@pytest.mark.parametrize("ordered", [True, False])
def test_rows_leave_in_the_order_of_tuples_or_as_batches_end(ordered):
    with TopologyTester(built(Batches(ordered=ordered))) as tester:
        emitted = tester.send({"in": given(95)}).emitted("bolt")
        assert sizes(tester) == {10: 9, 5: 1}
    assert sorted(emitted) == given(95)
    assert (emitted == given(95)) is ordered


class Counting(Batches):
    now = most = 0

    async def executeBatch(self, batch, collector):
        self.now += len(batch)
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.001)
        self.now -= len(batch)
        collector.emit((self.most, "most"))


@pytest.mark.parametrize(("capacity", "most"), [(10, 10), (19, 10), (20, 20), (45, 40)])
def test_no_more_tuples_than_the_capacity_are_in_flight(capacity, most):
    with TopologyTester(built(Counting(capacity=capacity))) as tester:
        emitted = tester.send({"in": given(200)}).emitted("bolt")
    assert max(each for each, _ in emitted) == most


class InThreads(Batches):
    threads = 2

    def executeBatch(self, batch, collector):
        threading.Event().wait(0.002)
        for tup in batch:
            collector.emit((tup.n, threading.current_thread().name), anchors=tup)


def test_a_plain_hook_runs_in_threads():
    with TopologyTester(built(InThreads())) as tester:
        emitted = tester.send({"in": given(100)}).emitted("bolt")
    assert [n for n, _ in emitted] == list(range(100))
    assert len({name for _, name in emitted}) == 2


class Waits(Batches):
    """Tells when its first batch has come, and waits for it to be let go."""

    async def executeBatch(self, batch, collector):
        self.context.config["journal"].append([tup.n for tup in batch])


def fed(place, bolt, journal, *, ends):
    """Feed 7 tuples, of which no full batch can be made; end the input when `ends` says so."""
    made = deployment(place, built(bolt, by=["key"]), journal=journal)
    worker, order = Worker(), order_of(made, {"in": given(7)})
    sent = list(chain_attempt(worker, made, order).run([]))

    def batches():
        yield from sent
        ends()

    list(chain_attempt(worker, made, order, level=1).run(batches()))


def test_a_batch_that_is_not_full_goes_when_it_has_waited_or_input_ends(place):
    """Each of the two is waited for by the other: with another cause the test would hang."""
    journal = []
    fed(place, Waits(maxWaitMs=1), journal, ends=lambda: wait_for(lambda: journal, "the batch to have gone"))
    assert journal == [list(range(7))]
    journal = []
    fed(place, Waits(maxWaitMs=60_000), journal, ends=lambda: journal.append("the input ends"))
    assert journal == ["the input ends", list(range(7))]


# ---- whose row is whose


def test_rows_without_anchors_leave_behind_those_of_the_batch():
    class Both(Batches):
        outputFields = {"default": FIELDS, "sums": "sum long"}

        async def executeBatch(self, batch, collector):
            collector.emit((-1, "all"))
            collector.emit((-2, "two"), anchors=batch[1::-1])
            collector.emit(stream="sums", sum=sum(tup.n for tup in batch))
            await super().executeBatch(batch, collector)

    with TopologyTester(built(Both(maxBatch=3))) as tester:
        sent = tester.send({"in": given(5)})
    assert [n for n, _ in sent.emitted("bolt")] == [0, -2, 1, -1, 2, 3, -1, -2, 4]
    assert sent.emitted("bolt", "sums") == [(3,), (7,)]


@pytest.mark.parametrize(
    ("anchors", "text"),
    [
        ((1, "a"), "anchors are tuples of the batch"),
        ("a", "anchors are tuples of the batch"),
        (7, "anchors are tuples of the batch"),
        ([], "anchors are tuples of the batch"),
    ],
)
def test_anchors_that_are_none_of_the_batch_are_refused(anchors, text):
    class Wrong(Batches):
        async def executeBatch(self, batch, collector):
            collector.emit((1, "a"), anchors=anchors)

    with TopologyTester(built(Wrong())) as tester, pytest.raises(BoltError, match=text):
        tester.send({"in": given(3)})


def test_a_tuple_of_another_batch_is_no_anchor_and_fails_nothing():
    class Mixed(Batches):
        async def executeBatch(self, batch, collector):
            self.before = getattr(self, "before", None) or batch[0]
            with pytest.raises(BoltError, match="anchors are tuples of the batch"):
                collector.emit((1, "a"), anchors=[batch[0], Later])
            if self.before is not batch[0]:
                with pytest.raises(BoltError, match="it takes a tuple of the batch"):
                    collector.fail(self.before)

    with TopologyTester(built(Mixed())) as tester:
        assert tester.send({"in": given(20)}).emitted("bolt") == []


class Numbers(Spout):
    outputFields = FIELDS

    def nextTuple(self, collector):
        raise AssertionError("fed by the test")


class FailsSome(BasicBolt):
    def __init__(self, fails):
        self.fails = fails

    def execute(self, tup, collector):
        if tup.n in self.fails:
            collector.fail(tup, "downstream")


def tracked(bolt, fails=(), **options):
    builder = TopologyBuilder("messages")
    builder.setSpout("in", Numbers())
    builder.setBolt("bolt", bolt, **options).shuffleGrouping("in")
    builder.setBolt("after", FailsSome(fails)).shuffleGrouping("bolt")
    return TopologyTester(builder.createTopology(), fed="in")


@pytest.mark.slow
def test_a_row_is_anchored_to_its_tuple_or_to_all():
    with tracked(Batches(maxBatch=4), fails={5}) as tester:
        tester.send({"in": given(12)})
        assert (list(tester.failed("in")), len(tester.acked("in"))) == ([5], 11)

    class OfAll(Batches):
        async def executeBatch(self, batch, collector):
            collector.emit((batch[0].n, "all"))

    with tracked(OfAll(maxBatch=4), fails={4}) as tester:
        tester.send({"in": given(12)})
        assert sorted(tester.failed("in")) == [4, 5, 6, 7]
        assert len(tester.acked("in")) == 8

    class OfTwo(Batches):
        async def executeBatch(self, batch, collector):
            collector.emit((batch[0].n, "two"), anchors=[batch[0], batch[-1]])

    with tracked(OfTwo(maxBatch=4), fails={4}) as tester:
        tester.send({"in": given(12)})
        assert sorted(tester.failed("in")) == [4, 7]


@pytest.mark.parametrize("mode", ["fail", "skip"])
def test_messages_are_failed_one_by_one_or_found_by_halves(mode):
    class Some(Batches):
        async def executeBatch(self, batch, collector):
            for tup in batch:
                if tup.n == 9:
                    collector.fail(tup, "this one")
                elif tup.n % 4 == 1:
                    raise FailedException("the service refused")
                else:
                    self.emit(tup, collector)

    with tracked(Some(), onError=mode) as tester:
        tester.send({"in": given(22)})
        assert sorted(tester.failed("in")) == [1, 5, 9, 13, 17, 21]
        assert sorted(tester.acked("in")) == [n for n in range(22) if n % 4 != 1]


# ---- the bad row of many


class Fails(Batches):
    async def executeBatch(self, batch, collector):
        self.context.metrics.counter("tried").inc(len(batch))
        for tup in batch:
            self.emit(tup, collector)
        await asyncio.sleep(0.001)
        if any(tup.n in self.bad for tup in batch):
            raise self.error("a bad row")


BAD = {3, 4, 17, 38, 49}


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, TimeoutError, StopIteration])
@pytest.mark.parametrize("mode", ["skip", "deadLetter"])
def test_only_the_bad_rows_of_a_batch_are_set_aside(mode, error):
    with TopologyTester(built(Fails(bad=BAD, error=error), onError=mode)) as tester:
        sent = tester.send({"in": given(50)})
        assert sent.emitted("bolt") == [row for row in given(50) if row[0] not in BAD]
        assert counted(tester, "tried_total") == 50 - len(BAD)
        if mode == "deadLetter":
            letters = sent.emitted("bolt", "deadLetter")
            assert [json.loads(letter[0])["n"] for letter in letters] == sorted(BAD)
            assert {letter[7] for letter in letters} == {"executeBatch"}


def test_an_error_ends_the_query_and_names_the_hook():
    with TopologyTester(built(Fails(bad=BAD, error=ValueError))) as tester, pytest.raises(BoltError) as raised:
        tester.send({"in": given(20)})
    assert "hook executeBatch, transaction 1: ValueError: a bad row (" in raised.value.message


@pytest.mark.parametrize("anchored", [True, False])
def test_a_row_that_does_not_fit_is_put_down_to_its_tuple(anchored):
    class Misfits(Batches):
        outputFields = {"default": FIELDS, "more": "n byte"}

        async def executeBatch(self, batch, collector):
            for tup in batch:
                self.emit(tup, collector)
                collector.emit((400 if tup.n == 13 else tup.n,), "more", anchors=tup if anchored else batch)

    def sent(mode):
        builder = TopologyBuilder("misfits")
        builder.setStream("in", rows(FIELDS))
        builder.setBolt("bolt", Misfits(), onError=mode).shuffleGrouping("in")
        builder.setBolt("more", Ignores()).globalGrouping("bolt", stream="more")
        with TopologyTester(builder.createTopology()) as tester:
            return tester.send({"in": given(30)})

    kept = sent("skip")
    assert sorted(kept.emitted("bolt", "more")) == [(n,) for n in range(30) if n != 13]
    assert len(kept.emitted("bolt")) == 29
    with pytest.raises(BoltError, match="400"):
        sent("fail")


def test_a_batch_that_takes_too_long_is_called_in_halves():
    class Hangs(Batches):
        timeout = "30 ms"

        async def executeBatch(self, batch, collector):
            if any(tup.n == 12 for tup in batch):
                await asyncio.Event().wait()
            for tup in batch:
                self.emit(tup, collector)

    with TopologyTester(built(Hangs(), onError="deadLetter")) as tester:
        sent = tester.send({"in": given(25)})
        assert sent.emitted("bolt") == [row for row in given(25) if row[0] != 12]
        [letter] = sent.emitted("bolt", "deadLetter")
    assert letter[3] == "TimeoutError"


@pytest.mark.slow
def test_a_row_that_a_thread_emits_after_its_time_is_not_that_of_a_half():
    """It was within emit when the time of its batch was over."""

    class Values(list):
        def __iter__(self):
            self.again.wait(10)
            return super().__iter__()

    class Slow(Batches):
        threads, timeout = 4, "1500 ms"  # on a busy machine too the halves take less

        def open(self, context):
            self.again, self.emitted = threading.Event(), threading.Event()

        def executeBatch(self, batch, collector):
            if len(batch) > 1:
                values = Values(batch[0])
                values.again = self.again
                collector.emit(values, anchors=batch[0])
                self.emitted.set()
                return
            self.emit(batch[0], collector)
            self.again.set()
            assert self.emitted.wait(10)

    with TopologyTester(built(Slow(), onError="skip")) as tester:
        assert tester.send({"in": given(2)}).emitted("bolt") == given(2)


def test_failed_exception_has_the_transaction_tried_again():
    class Once(Batches):
        async def executeBatch(self, batch, collector):
            await super().executeBatch(batch, collector)
            if not collector.attempt.attempt and batch[0].n:
                collector.fail(batch[0], "not at the first attempt")

    with TopologyTester(built(Once(), onError="skip")) as tester:
        sent = tester.send({"in": given(25)})
        assert (sent.emitted("bolt"), sent.progress.attempt) == (given(25), 1)


def test_what_a_batch_emits_when_it_has_ended_is_lost_and_told():
    class Late(Batches):
        async def executeBatch(self, batch, collector):
            if batch[0].n:
                await asyncio.sleep(0.02)
            else:
                self.task = asyncio.create_task(self.emit_later(batch[0], collector))

        async def emit_later(self, tup, collector):
            await asyncio.sleep(0.005)
            self.emit(tup, collector)

    with TopologyTester(built(Late())) as tester, pytest.raises(BoltError, match="the row is lost"):
        tester.send({"in": given(20)})


def test_a_tick_comes_alone_and_finish_batch_after_all():
    class Ticks(Batches, BatchBolt):
        def open(self, context):
            self.seen = []

        async def executeBatch(self, batch, collector):
            await asyncio.sleep(0.001)
            self.seen.append("tick" if isTick(batch[0]) else len(batch))

        def finishBatch(self, collector):
            collector.emit((len(self.seen), str(self.seen)))

    builder = TopologyBuilder("ticks")
    builder.setStream("in", rows(FIELDS))
    builder.setBolt("bolt", Ticks()).setTicks(10).shuffleGrouping("in")
    with TopologyTester(builder.createTopology()) as tester:
        tester.send({"in": given(3)})
        tester.advance(10)
        assert tester.send({"in": given(13)}).emitted("bolt") == [(3, "[10, 3, 'tick']")]


# ---- attempts that end otherwise


class Stuck(Batches):
    timeout = None

    async def executeBatch(self, batch, collector):
        journal = self.context.config["journal"]
        journal.append("begun")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            journal.append("cancelled")
            raise


class StuckInThreads(Batches):
    threads, timeout = 2, None

    def executeBatch(self, batch, collector):
        journal = self.context.config["journal"]
        journal.append("begun")
        while "over" not in journal:
            threading.Event().wait(0.001)


@pytest.mark.parametrize("kind", [Stuck, StuckInThreads])
def test_an_abandoned_attempt_waits_for_no_batch(place, kind):
    journal = []
    made = deployment(place, built(kind(), by=["key"]), journal=journal)
    worker, order = Worker(), order_of(made, {"in": given(30)})
    sent = list(chain_attempt(worker, made, order).run([]))
    one = chain_attempt(worker, made, order, level=1)

    def abandon():
        wait_for(lambda: "begun" in journal, "a batch to begin")
        one.abandon()

    thread = threading.Thread(target=abandon, daemon=True)
    thread.start()
    with pytest.raises(AbandonedError):
        list(one.run(sent))
    thread.join()
    if kind is Stuck:
        wait_for(lambda: "cancelled" in journal, "the batch to be cancelled")
    journal.append("over")


KEYS = {}
"""(txid, values) -> the keys that calls for it were given, in whichever attempt."""


class Notes(Batches):
    async def executeBatch(self, batch, collector):
        keys = self.context.idempotencyKeys(batch)
        assert keys == [self.context.idempotencyKey(tup) for tup in batch]
        for tup, key in zip(batch, keys, strict=True):
            KEYS.setdefault((self.context.txid, tuple(tup)), set()).add(key)
        await super().executeBatch(batch, collector)


@pytest.mark.slow
def test_a_driver_that_dies_at_any_step_leaves_each_tuple_once(tmp_path):
    """With batches in flight; each tuple has one key, in whichever batch it comes again."""
    KEYS.clear()
    data = [[(n, "abc"[n % 3]) for n in range(first, first + 33)] for first in (0, 33)]

    def died(at):
        builder = TopologyBuilder("crashes")
        builder.setStream("in", rows(FIELDS))
        builder.setBolt("bolt", Notes(maxBatch=at % 7 + 2), 2).fieldsGrouping("in", "key")
        builder.setBolt("tally", Tally("n")).fieldsGrouping("bolt", "n")
        topology = builder.createTopology()
        for crash_at in (at, None):
            try:
                with TopologyTester(topology, tmp_path / str(at), crash_at=crash_at) as tester:
                    tester.run([{"in": each} for each in data])
                    assert tester.state("tally") == dict.fromkeys(range(66), 1)
                    return crash_at is None
            except Crash:
                continue
        raise AssertionError("nothing has crashed")

    at = 1
    while died(at):
        for keys in KEYS.values():
            assert len(keys) == 1
        assert len(set().union(*KEYS.values())) == len(KEYS)
        KEYS.clear()
        at += 1
    assert at > 20


# ---- what is refused


class Plain(AsyncBolt):
    def executeBatch(self, batch, collector):
        pass


class Both(Batches):
    async def execute(self, tup, collector):
        pass


class Keeps(StatefulAsyncBolt):
    def initState(self, state):
        pass

    async def executeBatch(self, batch, collector):
        pass


class Threaded(Batches):
    threads = 3


@pytest.mark.parametrize(
    ("bolt", "text"),
    [
        (Batches(maxBatch=0), "maxBatch of Batches is how many tuples a call is given at most"),
        (Batches(maxBatch=2.5), "maxBatch of Batches is how many"),
        (Batches(maxBatch=True), "maxBatch of Batches is how many"),
        (Batches(maxBatch=41), "no batch would be full: say capacity = 41 or more"),
        (Batches(maxWaitMs=-1), "maxWaitMs of Batches is how many milliseconds"),
        (Batches(maxWaitMs="5 ms"), "maxWaitMs of Batches is how many milliseconds"),
        (Batches(maxWaitMs=float("nan")), "maxWaitMs of Batches is how many milliseconds"),
        (Batches(maxWaitMs=60_001), "0 to 60000"),
        (Batches(ratePerSecond=0), "ratePerSecond of Batches is how many calls a second"),
        (Later(ratePerSecond=-1), "ratePerSecond of Later is how many calls a second"),
        (Later(ratePerSecond="5 a second"), "ratePerSecond of Later"),
        (Later(ratePerSecond=True), "ratePerSecond of Later"),
        (Later(ratePerSecond=float("nan")), "ratePerSecond of Later"),
        (Later(maxBatch=10), "are for executeBatch, which it has not"),
        (Later(maxWaitMs=10), "are for executeBatch, which it has not"),
        (Batches(retries=2), "which are for execute: try again in executeBatch itself"),
        (Batches(breakerFailures=2), "which are for execute: try again in executeBatch itself"),
        (Plain(), "executeBatch of Plain is a plain function, which would block"),
        (Threaded(), "its executeBatch is async def: leave out threads"),
        (Both(), "Both has execute and executeBatch: define one"),
        (Keeps(), "Keeps has executeBatch and keeps state"),
    ],
)
def test_settings_without_meaning_are_refused(bolt, text):
    with pytest.raises(TopologyError, match=text):
        TopologyBuilder("x").setBolt("bolt", bolt)


def test_a_bolt_that_is_not_async_and_has_an_async_batch_is_refused():
    with pytest.raises(TypeError, match="Derive Wrong from AsyncBolt"):

        class Wrong(BasicBolt):
            async def executeBatch(self, batch, collector):
                pass


def test_near_misses_of_settings_are_refused():
    with pytest.raises(TypeError, match="Rename maxbatch to maxBatch"):

        class Wrong(Batches):
            maxbatch = 3


@pytest.mark.slow
def test_each_tuple_leaves_once_at_any_size_and_capacity():
    for seed in range(12):
        most, number = seed % 5 + 1, (seed * 37) % 61
        bolt = Batches(maxBatch=most, capacity=most + seed % 3, ordered=bool(seed % 2))
        with TopologyTester(built(bolt, tasks=2, by=["key"]), seed=seed) as tester:
            emitted = tester.send({"in": given(number)}).emitted("bolt")
        assert Counter(emitted) == Counter(given(number))
