"""Calls that are made again: delays, tuples that wait in state, the circuit breaker, and what they do to others."""

import asyncio
import contextlib
import logging
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from statefx import AsyncBolt, Checkpoint, Spout, StatefulAsyncBolt, TopologyBuilder, WindowedBolt, isTick
from statefx.errors import AttemptsExhaustedError, BoltError, CheckpointMismatchError, FailedException, TopologyError
from statefx.runtime import retries
from statefx.runtime.retries import Admission, Breaker, delay_secs
from statefx.testing import TopologyTester, rows
from tests.bolts import Ignores, Pass, Tally, WithState

FIELDS = "n long, key string"
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


class Service:
    """Stands for what is called: it is away until a time, and notes each call with its idempotency key."""

    def __init__(self):
        self.until, self.calls, self.keys = NOON, Counter(), {}

    def call(self, context, tup):
        self.calls[tup.n] += 1
        with contextlib.suppress(BoltError):  # messages of a Spout have none
            key = context.idempotencyKey(tup)
            self.keys.setdefault(tup.n, set()).add(key)
        if context.processingTime < self.until:
            raise ConnectionError(f"away for {tup.n}")

    def count(self):
        """Return how many calls there were since it was asked last."""
        found, self.calls = self.calls, Counter()
        return found


SERVICE = Service()


@pytest.fixture(autouse=True)
def service():
    SERVICE.__init__()
    return SERVICE


class Asks(AsyncBolt):
    outputFields = FIELDS
    retries, retryDelay = 3, "10 seconds"

    def __init__(self, **settings):
        vars(self).update(settings)

    def open(self, context):
        self.context = context

    async def execute(self, tup, collector):
        await asyncio.sleep(0)
        SERVICE.call(self.context, tup)
        collector.emit((tup.n, tup.key))


class Lists(StatefulAsyncBolt):
    """Keeps the numbers of each key in their order."""

    outputFields = FIELDS
    retries, retryDelay = Asks.retries, Asks.retryDelay
    __init__, open = Asks.__init__, Asks.open

    def initState(self, state):
        self.state = state

    async def execute(self, tup, collector):
        before = self.state.get(tup.key, [])
        await asyncio.sleep(0)
        SERVICE.call(self.context, tup)
        self.state.put(tup.key, [*before, tup.n])
        collector.emit((tup.n, tup.key))


class Lined(WithState):
    """Keeps the numbers of each key in the order in which they come."""

    def execute(self, tup, collector):
        self.state.put(tup.key, [*self.state.get(tup.key, []), tup.n])


def topology(bolt, tasks=2, *, by="key", mode="deadLetter", source=None):
    builder = TopologyBuilder("retries")
    if source is None:
        builder.setStream("in", rows(FIELDS))
    else:
        builder.setSpout("in", source)
    declared = builder.setBolt("asks", bolt, tasks, onError=mode)
    declared.fieldsGrouping("in", by) if by else declared.shuffleGrouping("in")
    builder.setBolt("lined", Lined(), 2).fieldsGrouping("asks", "key")
    if mode == "deadLetter":
        builder.setBolt("letters", Tally("row", "message")).shuffleGrouping("asks", stream="deadLetter")
    return builder.createTopology()


def started(bolt, *given, place=None, **options):
    made = topology(bolt, *given, **options)
    config = {"topology.state.provider": "memory"}
    if place is None:
        return TopologyTester(made, config=config, now=NOON)
    return TopologyTester(made, place, config, now=NOON)


def numbered(count, keys="abc", first=0):
    return [(n, keys[n % len(keys)]) for n in range(first, first + count)]


def emitted(sent):
    return sorted(n for n, _ in sent.emitted("asks"))


def waiting(tester):
    return tester.status.get("calls", {}).get("asks", {}).get("waiting", 0)


# ---- delays


@pytest.mark.parametrize(
    ("tries", "least", "most"),
    [(1, 0.5, 1), (2, 1, 2), (3, 2, 4), (6, 16, 32), (7, 32, 64), (999, 32, 64)],
)
def test_delays_double_up_to_64_times_and_half_is_random(tries, least, most):
    assert delay_secs(tries, 1.0, 0.0) == least
    assert delay_secs(tries, 1.0, 1.0) == most
    assert delay_secs(tries, 0.01, 0.5) == pytest.approx((least + most) / 200)


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("kind", [Asks, Lists])
def test_short_retries_are_made_in_the_same_transaction(kind, ordered):
    class FailsTwice(kind):
        async def execute(self, tup, collector):
            if SERVICE.calls[tup.n] < 2:
                SERVICE.calls[tup.n] += 1
                raise ConnectionError("away")
            await super().execute(tup, collector)
            collector.emit((-1 - tup.n, tup.key))

    given = numbered(30)
    with started(FailsTwice(retryDelay="1 millisecond", ordered=ordered)) as tester:
        found = tester.send({"in": given}).emitted("asks")
        expected = [row for n, key in given for row in ((n, key), (-1 - n, key))]
        assert sorted(found) == sorted(expected)
        for key in "abc":
            if ordered or kind is Lists:
                assert [row for row in found if row[1] == key] == [row for row in expected if row[1] == key]
        assert set(SERVICE.count().values()) == {3}
        assert waiting(tester) == 0
        if kind is Lists:
            assert tester.state("asks") == {key: [n for n, of in given if of == key] for key in "abc"}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["deadLetter", "fail"])
def test_what_a_call_that_failed_emitted_and_counted_is_forgotten(mode):
    class Emits(Asks):
        async def execute(self, tup, collector):
            self.context.metrics.counter("tried").inc()
            collector.emit((100 + tup.n, "first"))
            await super().execute(tup, collector)

    SERVICE.until = NOON + timedelta(seconds=5)
    with started(Emits(), mode=mode) as tester:
        assert emitted(tester.send({"in": numbered(3)})) == []
        tester.advance(20)
        assert emitted(tester.send({"in": []})) == [0, 1, 2, 100, 101, 102]
        assert [metric["value"] for metric in tester.metrics if metric["name"] == "tried_total"] == [3]


# ---- tuples that wait


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Asks, Lists])
def test_a_longer_delay_waits_in_state_and_its_key_with_it(kind, tmp_path):
    SERVICE.until = NOON + timedelta(seconds=5)
    with started(kind(), place=tmp_path / "ck") as tester:
        assert emitted(tester.send({"in": numbered(6, "aaabbb")})) == []
        assert SERVICE.count() == {0: 1, 3: 1}, "later tuples of a key wait with it, without a call"
        assert (waiting(tester), tester.status["calls"]["asks"]["breakers"]) == (6, {})
        tester.advance(4)
        assert emitted(tester.send({"in": [(6, "a"), (7, "c")]})) == []
        tester = tester.restart()
        assert SERVICE.count() == {7: 1}
        tester.advance(20)
        sent = tester.send({"in": [(8, "a")]})
        assert emitted(sent) == list(range(9))
        assert sent.progress.as_dict()["callsWaiting"] == {"asks": 0}
        assert {key: len(found) for key, found in SERVICE.keys.items()} == dict.fromkeys(range(9), 1)
        assert len({*map(min, SERVICE.keys.values())}) == 9
        assert tester.state("lined") == {"a": [0, 1, 2, 6, 8], "b": [3, 4, 5], "c": [7]}
        if kind is Lists:
            assert tester.state("asks") == tester.state("lined")
        tester.close()


@pytest.mark.slow
@pytest.mark.parametrize("by", ["key", None])
def test_unordered_tuples_wait_each_for_itself(by):
    SERVICE.until = NOON + timedelta(seconds=5)
    with started(Asks(ordered=False), by=by) as tester:
        assert emitted(tester.send({"in": numbered(6, "a")})) == []
        tester.advance(5.5)  # half of the delay has passed, and of some all
        early = emitted(tester.send({"in": [(6, "a")]}))
        assert 6 in early
        tester.advance(10)
        assert sorted(early + emitted(tester.send({"in": []}))) == list(range(7))


@pytest.mark.slow
def test_a_transaction_comes_when_a_tuple_is_due():
    class Source(Spout):
        outputFields = FIELDS

        def nextTuple(self, collector):
            pass

    SERVICE.until = NOON + timedelta(seconds=5)
    made = topology(Asks(), source=Source())
    with TopologyTester(made, config={"topology.state.provider": "memory"}, fed="in", now=NOON) as tester:
        tester.send({"in": numbered(3)})
        assert tester.acked("in") == [0, 1, 2], "what waits in state can't be lost"
        tester.drain()
        assert SERVICE.count() == {0: 1, 1: 1, 2: 1}
        tester.advance(20)
        assert emitted(tester.emit()) == [0, 1, 2]
        assert tester.failed("in") == {}


@pytest.mark.slow
def test_after_its_retries_a_tuple_is_a_dead_letter_with_its_tries():
    SERVICE.until = NOON + timedelta(days=1)
    letters = []
    with started(Asks(retries=2)) as tester:
        tester.send({"in": [(0, "a"), (1, "a")]})
        for _ in range(8):
            tester.advance(100)
            letters += tester.send({"in": []}).emitted("asks", "deadLetter")
        assert SERVICE.count() == {0: 3, 1: 3}
        assert [row for row, *_ in letters] == ['{"n":0,"key":"a"}', '{"n":1,"key":"a"}'], "in the order of the key"
        error, message = letters[0][3:5]
        assert error == "ConnectionError"
        assert message.startswith("ConnectionError: away for 0 | after 3 tries, the first in transaction 1 (")
        assert waiting(tester) == 0


@pytest.mark.slow
def test_calls_that_raise_one_error_have_each_its_own_note():
    """As calls do that await one connection."""
    error = ConnectionError("away")

    class Shares(Asks):
        async def execute(self, tup, collector):
            raise error

    with started(Shares(retries=1)) as tester:
        tester.send({"in": [(0, "a")]})
        tester.send({"in": [(1, "b")]})
        tester.advance(20)
        letters = tester.send({"in": []}).emitted("asks", "deadLetter")
    assert sorted(row[4].partition(" (")[0] for row in letters) == [
        f"ConnectionError: away | after 2 tries, the first in transaction {txid}" for txid in (1, 2)
    ]


def test_without_on_error_the_query_ends_after_the_retries():
    SERVICE.until = NOON + timedelta(days=1)
    tester = started(Asks(retryDelay="1 millisecond"), mode="fail")
    with tester, pytest.raises(BoltError, match="after 4 tries"):
        tester.send({"in": numbered(1)})
    assert SERVICE.count() == {0: 4}


@pytest.mark.parametrize("errors", [(Exception,), (ConnectionError,)], ids=["any", "others"])
def test_a_call_that_takes_too_long_is_a_try(errors):
    class Hangs(Asks):
        async def execute(self, tup, collector):
            SERVICE.calls[tup.n] += 1
            if SERVICE.calls[tup.n] < 3:
                await asyncio.Event().wait()
            collector.emit((tup.n, tup.key))

    with started(Hangs(timeout="20 milliseconds", retryDelay="1 millisecond", retryOn=errors)) as tester:
        assert emitted(tester.send({"in": numbered(3)})) == [0, 1, 2]
    assert set(SERVICE.count().values()) == {3}


class Emptying:
    """Takes what is in a list out of the tuple."""

    outputFields = "n long, tags string"
    retries = 3

    def __init__(self, **settings):
        vars(self).update(settings)

    def open(self, context):
        self.context = context

    def take(self, tup):
        key, tags = self.context.idempotencyKey(tup), ",".join(tup.tags)
        tup.tags.clear()
        SERVICE.keys.setdefault(tup.n, set()).add(key)
        SERVICE.calls[tup.n] += 1
        return tup.n, tags


class Empties(Emptying, AsyncBolt):
    async def execute(self, tup, collector):
        row = self.take(tup)
        if SERVICE.calls[tup.n] < 3:
            raise ConnectionError("away")
        collector.emit(row)


class EmptiesBatches(Emptying, AsyncBolt):
    async def executeBatch(self, batch, collector):
        found = [self.take(tup) for tup in batch]
        if len(batch) > 1:
            raise ValueError("one of them is bad")
        collector.emit(found[0])


@pytest.mark.parametrize(
    "bolt", [Empties(retryDelay="1 millisecond"), Empties(retryDelay="10 seconds"), EmptiesBatches(retries=0)]
)
def test_each_call_is_given_the_row_as_it_came(bolt):
    """Also in the same attempt, and in the halves of a batch; it keeps its idempotency key."""
    builder = TopologyBuilder("retries")
    builder.setStream("in", rows("n long, tags array<string>"))
    builder.setBolt("bolt", bolt, onError="skip").fieldsGrouping("in", "n")
    with TopologyTester(builder.createTopology(), now=NOON) as tester:
        found = tester.send({"in": [(1, ["a", "b"]), (2, ["c"]), (3, ["a", "b"])]}).emitted("bolt")
        for _ in range(2):
            tester.advance(60)
            sent = tester.send({})
            found += [] if sent is None else sent.emitted("bolt")
    assert sorted(found) == [(1, "a,b"), (2, "c"), (3, "a,b")]
    assert [len(keys) for keys in SERVICE.keys.values()] == [1, 1, 1]
    assert min(SERVICE.calls.values()) > 1


class Wrong(Asks):
    async def execute(self, tup, collector):
        SERVICE.calls[tup.n] += 1
        raise self.error


@pytest.mark.parametrize(
    "bolt",
    [
        Wrong(error=ValueError("bad row"), retryOn=(ConnectionError, TimeoutError)),
        Wrong(error=BoltError("misuse")),
        Wrong(error=ValueError("bad row"), retries=0, breakerFailures=99),
    ],
)
def test_other_errors_count_at_once(bolt):
    with started(bolt) as tester:
        assert len(tester.send({"in": numbered(3)}).emitted("asks", "deadLetter")) == 3
        assert waiting(tester) == 0
    assert set(SERVICE.count().values()) == {1}


@pytest.mark.slow
def test_an_attempt_that_is_rolled_back_leaves_nothing_that_waits():
    class FailsLast(Asks):
        async def execute(self, tup, collector):
            if tup.n == 5 and collector.attempt.attempt == 0:
                raise FailedException("not now")
            await super().execute(tup, collector)

    SERVICE.until = NOON + timedelta(seconds=5)
    with started(FailsLast(ordered=False), 1) as tester:
        tester.send({"in": numbered(6)})
        assert waiting(tester) == 6
        tester.advance(20)
        assert emitted(tester.send({"in": []})) == list(range(6))


def test_no_more_tuples_wait_than_may(monkeypatch):
    """The transaction fails and is tried again; if the service is away for longer, the next start goes on."""
    monkeypatch.setattr(retries, "WAITING_MAX", 4)
    SERVICE.until = NOON + timedelta(seconds=60)
    config = {"topology.state.provider": "memory", "topology.transaction.attempts.max": 2}
    with TopologyTester(topology(Asks(), 1), config=config, now=NOON) as tester:
        with pytest.raises(AttemptsExhaustedError, match=r"4 tuples of the task wait.*nothing is lost: start again"):
            tester.send({"in": numbered(5, "b")})
        tester.advance(60)
        tester = tester.restart()
        assert emitted(tester.send({"in": numbered(5, "b")})) == [*range(5)]
        tester.close()
    SERVICE.until = NOON + timedelta(seconds=5)
    with started(Asks(), 1) as tester:
        tester.send({"in": numbered(4, "a")})
        tester.when("pause", lambda: tester.advance(20))
        assert emitted(tester.send({"in": numbered(3, "a", 4)})) == list(range(7))
        assert tester.state("lined") == {"a": list(range(7))}
        assert tester.pauses


@pytest.mark.slow
@pytest.mark.parametrize(("was", "now"), [(1, 3), (3, 2)])
@pytest.mark.parametrize(
    ("bolt", "by"), [(Asks(), "key"), (Asks(ordered=False), None), (Asks(ordered=False), "n"), (Lists(), "key")]
)
def test_waiting_tuples_move_with_their_keys(bolt, by, was, now, tmp_path):
    keys = [f"key {number}" for number in range(20)]
    SERVICE.until = NOON + timedelta(seconds=5)
    with started(bolt, was, by=by, place=tmp_path / "ck") as tester:
        tester.send({"in": numbered(60, keys)})
    by_key = {"asks": lambda key: key} if isinstance(bolt, Lists) else None
    Checkpoint(tmp_path / "ck").rescale({"asks": now}, groupingKey=by_key)
    later = {"config": {"topology.state.provider": "memory"}, "now": NOON + timedelta(minutes=1)}
    with TopologyTester(topology(bolt, now, by=by), tmp_path / "ck", **later) as tester:
        assert emitted(tester.send({"in": numbered(20, keys, 60)})) == list(range(80))
        if by == "key":
            assert tester.state("lined") == {key: [n for n, of in numbered(80, keys) if of == key] for key in keys}
        if isinstance(bolt, Lists):
            assert tester.state("asks") == tester.state("lined")
        assert by is None or {len(found) for found in SERVICE.keys.values()} == {1}


@pytest.mark.slow
def test_tuples_that_came_without_a_key_move_once_their_input_has_one(tmp_path):
    SERVICE.until = NOON + timedelta(seconds=5)
    for by in (None, "key"):
        with started(Asks(ordered=False), 1, by=by, place=tmp_path / "ck") as tester:
            tester.send({"in": numbered(3, first=3 if by else 0)})
    Checkpoint(tmp_path / "ck").rescale({"asks": 2})
    with started(Asks(ordered=False), 2, place=tmp_path / "ck") as tester:
        tester.advance(20)
        assert emitted(tester.send({"in": []})) == list(range(6))


def test_what_waits_is_shown(tmp_path):
    SERVICE.until = NOON + timedelta(seconds=5)
    with started(Asks(), 1, place=tmp_path / "ck") as tester:
        tester.send({"in": [(0, "a"), (1, "a")]})
    with Checkpoint(tmp_path / "ck").state("asks") as calls:
        (first, second) = calls.items()
    assert [key for key, _ in (first, second)] == [("a", 1, 0), ("a", 1, 1)]
    assert first[1] | {"why": "", "due": None} == {
        "row": {"n": 0, "key": "a"}, "source": "in", "stream": "default", "tries": 1, "why": "", "due": None,
    }  # fmt: skip
    assert first[1]["why"].startswith("ConnectionError: away for 0")
    assert NOON + timedelta(seconds=5) <= first[1]["due"] <= NOON + timedelta(seconds=11)
    assert (second[1]["tries"], second[1]["due"]) == (0, None)


@pytest.mark.slow
def test_retries_may_come_and_go_with_a_start(tmp_path):
    with started(Asks(retries=0), place=tmp_path / "ck") as tester:
        tester.send({"in": numbered(3)})
    SERVICE.until = NOON + timedelta(seconds=5)
    with started(Asks(), place=tmp_path / "ck") as tester:
        tester.send({"in": numbered(3, first=3)})
    with pytest.raises(CheckpointMismatchError, match="give it its retries back until none waits"):
        started(Asks(retries=0), place=tmp_path / "ck")
    with started(Asks(), place=tmp_path / "ck") as tester:
        tester.advance(20)
        assert emitted(tester.send({"in": []})) == [3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("was", [Asks, Lists])
def test_a_bolt_of_another_kind_refuses_tuples_that_wait(was, tmp_path):
    """It makes no calls: the tuples would wait for ever, and later ones of their keys pass them."""
    SERVICE.until = NOON + timedelta(seconds=5)
    with started(was(), place=tmp_path / "ck") as tester:
        tester.send({"in": numbered(3)})

    class Sync(Lined):
        outputFields = FIELDS

    sync = started(Sync(), place=tmp_path / "ck")
    with sync, pytest.raises(BoltError, match="tuples wait in its state for another call, which a Sync does not make"):
        sync.send({"in": numbered(3)})
    with started(Lists(), place=tmp_path / "ck") as tester:
        tester.advance(20)
        assert emitted(tester.send({"in": []})) == [0, 1, 2]
    with started(Sync(), place=tmp_path / "ck") as tester:
        tester.send({"in": numbered(3)})


def test_a_tuple_that_gets_a_key_as_it_waits_keeps_it(tmp_path):
    """Tuples that any of several tasks might get have none; those of one task have."""
    SERVICE.until = NOON + timedelta(minutes=2, seconds=30)
    with started(Asks(ordered=False, retries=9), 2, by=None, place=tmp_path / "ck") as tester:
        tester.send({"in": numbered(3)})
    Checkpoint(tmp_path / "ck").rescale({"asks": 1})
    with started(Asks(ordered=False, retries=9), 1, by=None, place=tmp_path / "ck") as tester:
        for expected in ([], [], [0, 1, 2]):
            tester.advance(60)
            assert emitted(tester.send({"in": []})) == expected
    assert {n: len(keys) for n, keys in SERVICE.keys.items()} == {0: 1, 1: 1, 2: 1}


def test_fields_of_all_types_wait(tmp_path):
    types = "n long, key string, a array<int>, m map<string, double>, s struct<x: int, y: array<string>>, b binary, "
    types += "d decimal(9, 2), t timestamp, day date, f float, yes boolean"
    values = ([1, None], [("x", 1.5)], {"x": 1, "y": ["z"]}, b"\0", Decimal("1.20"), NOON, NOON.date(), 0.5, True)
    SERVICE.until = NOON + timedelta(seconds=5)
    builder = TopologyBuilder("types")
    builder.setStream("in", rows(types))
    key = ["key", "a", "s", "b", "d", "t", "day", "f", "yes"]

    class Every(Asks):
        outputFields = types

        async def execute(self, tup, collector):
            SERVICE.call(self.context, tup)
            collector.emit(tuple(tup))

    builder.setBolt("asks", Every(), 2).fieldsGrouping("in", *key)
    builder.setBolt("end", Ignores()).shuffleGrouping("asks")
    topology, config = builder.createTopology(), {"topology.state.provider": "memory"}
    given = [(0, "a", *values), (1, None, *[None] * len(values)), (2, "a", *values)]
    with TopologyTester(topology, tmp_path / "ck", config, now=NOON) as tester:
        assert tester.send({"in": given}).emitted("asks") == []
    Checkpoint(tmp_path / "ck").rescale({"asks": 1})
    builder = TopologyBuilder("types")
    builder.setStream("in", rows(types))
    builder.setBolt("asks", Every(), 1).fieldsGrouping("in", *key)
    builder.setBolt("end", Ignores()).shuffleGrouping("asks")
    later = NOON + timedelta(minutes=1)
    with TopologyTester(builder.createTopology(), tmp_path / "ck", config, now=later) as tester:
        assert sorted(tester.send({"in": []}).emitted("asks")) == given


def test_a_tuple_whose_input_is_gone_is_refused_with_the_remedy(tmp_path):
    SERVICE.until = NOON + timedelta(seconds=5)
    with started(Asks(), place=tmp_path / "ck") as tester:
        tester.send({"in": numbered(3)})
    builder = TopologyBuilder("retries")
    builder.setStream("in", rows(FIELDS + ", more long"))
    builder.setBolt("asks", Asks(), 2, onError="skip").fieldsGrouping("in", "key")
    builder.setBolt("lined", Lined(), 2).fieldsGrouping("asks", "key")
    config = {"topology.state.provider": "memory"}
    with (
        TopologyTester(
            builder.createTopology(), tmp_path / "ck", config, now=NOON + timedelta(hours=1), drop=["letters"]
        ) as tester,
        pytest.raises(BoltError, match="Start with the topology of before until none waits"),
    ):
        tester.send({"in": []})


def test_tuples_that_wait_hold_the_watermark_of_their_readers():
    builder = TopologyBuilder("timed")
    builder.setStream("in", rows("n long, key string, at timestamp"), timestamp="at")
    builder.setBolt("asks", Asks(ordered=False)).fieldsGrouping("in", "key")
    builder.setBolt("read", Pass(FIELDS)).shuffleGrouping("asks")
    builder.setBolt("end", Ignores()).shuffleGrouping("read")

    def reached(sent):
        return {name: time[11:19] for name, time in sent.progress.as_dict()["watermarks"].items()}

    with TopologyTester(builder.createTopology(), config={"topology.state.provider": "memory"}, now=NOON) as tester:
        tester.send({"in": [(0, "a", NOON)]})
        SERVICE.until = NOON + timedelta(seconds=5)
        sent = tester.send({"in": [(1, "a", NOON + timedelta(seconds=1))]})
        assert reached(sent)["asks"] == "12:00:01"
        assert reached(sent)["read"] == "12:00:00"
        SERVICE.until = NOON
        sent = tester.send({"in": [(2, "a", NOON + timedelta(seconds=2))]})
        assert reached(sent)["read"] == "12:00:00"
        tester.advance(20)
        sent = tester.send({"in": [(3, "a", NOON + timedelta(seconds=3))]})
        assert (emitted(sent), reached(sent)["read"]) == ([1, 3], "12:00:03")


@pytest.mark.slow
def test_readers_by_the_bolts_own_times_wait_too():
    """Its rows are an hour older than its input: what it reads by would let the readers pass."""
    earlier = timedelta(hours=1)

    class Dates(Asks):
        outputFields = "n long, key string, at timestamp"

        async def execute(self, tup, collector):
            SERVICE.call(self.context, tup)
            collector.emit((tup.n, tup.key, tup.at - earlier))

    class Hours(WindowedBolt):
        outputFields = "key string, start timestamp, numbers array<long>"
        initWindow = list

        def addToWindow(self, numbers, tup):
            return sorted([*numbers, tup.n])

        def emitWindow(self, window, numbers, collector):
            collector.emit((window.key, window.start, numbers))

    builder = TopologyBuilder("timed")
    builder.setStream("in", rows("n long, key string, at timestamp"), timestamp="at")
    builder.setBolt("asks", Dates(ordered=False), timestamp="at").fieldsGrouping("in", "key")
    builder.setBolt("seconds", Hours().withTumblingWindow("1 second")).fieldsGrouping("asks", "key")
    with TopologyTester(builder.createTopology(), config={"topology.state.provider": "memory"}, now=NOON) as tester:
        sent = []
        for n in range(4):
            SERVICE.until = NOON + timedelta(seconds=5 if n == 1 else 0)
            sent.append(tester.send({"in": [(n, "a", NOON + timedelta(seconds=10 * n))]}))
        tester.advance(20)
        sent.append(tester.send({"in": []}))
        assert [n for n, *_ in sent[-1].emitted("asks")] == [1]
        sent.append(tester.send({"in": [(4, "a", NOON + timedelta(minutes=9))]}))
        found = [numbers for each in sent for *_, numbers in each.emitted("seconds")]
        assert found == [[0], [1], [2], [3]]


# ---- the breaker


def test_the_breaker_by_its_table():
    """What comes, at which time, and the state after it."""
    breaker, epochs = Breaker(3, 10_000, "bolt"), []

    def play(what, at):
        if what == "call":
            admitted = breaker.admit(at)
            epochs.append(breaker.epoch)
            return breaker.state, admitted
        epoch = epochs.pop(0)
        breaker.ended(epoch, at, "" if what == "ok" else "away")
        return breaker.state, None

    yes, waits, later = Admission.YES, Admission.WAITS, Admission.AFTER_PROBE
    table = [
        ("call", 0, "closed", yes), ("call", 0, "closed", yes), ("call", 0, "closed", yes), ("call", 0, "closed", yes),
        ("fails", 1, "closed", None), ("fails", 1, "closed", None), ("ok", 2, "closed", None),
        ("fails", 3, "closed", None),
        ("call", 4, "closed", yes), ("call", 4, "closed", yes), ("call", 4, "closed", yes),
        ("fails", 5, "closed", None), ("fails", 6, "open", None),
        ("ok", 7, "open", None),  # of a call that began before
        ("call", 10_005, "open", waits), ("call", 10_006, "halfOpen", yes), ("call", 10_006, "halfOpen", later),
        ("fails", 10_007, "open", None),  # by the first call's epoch: that which waited has none
    ]  # fmt: skip
    for number, (what, at, state, admitted) in enumerate(table):
        if number == 15:
            epochs.clear()
        assert play(what, at) == (state, admitted), number
    epochs.clear()
    assert play("call", 20_006) == ("open", waits)
    epochs.clear()
    assert play("call", 20_007) == ("halfOpen", yes)
    breaker.begin()  # the attempt is over, and what became of the call is not known
    epochs.clear()
    assert play("call", 20_008) == ("halfOpen", yes)
    assert play("ok", 20_009) == ("closed", None)
    assert breaker.changes == 5


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", [Asks, Lists])
def test_a_service_that_is_away_for_a_minute(kind, caplog):
    """With 100 in flight few calls are made meanwhile; all rows come, and those of a key in order."""
    caplog.set_level(logging.INFO, "statefx")
    SERVICE.until = NOON + timedelta(seconds=60)
    keys = [f"key {number}" for number in range(100)]
    with started(kind(breakerFailures=5, breakerDelay="20 seconds", retries=1000), 1) as tester:
        tester.send({"in": numbered(200, keys)})
        assert 5 <= SERVICE.count().total() <= 100, "those that were in flight"
        states = []
        for second in range(0, 90, 5):
            states.append(tester.status["calls"]["asks"]["breakers"].get("0") if waiting(tester) else None)
            tester.send({"in": numbered(2, keys, 200 + 2 * (second // 5))})
            tester.advance(5)
        tester.advance(100)
        tester.send({"in": []})  # of a tuple that was tried while the service was away, the delay has grown
        assert SERVICE.count().total() <= 3 + 236 + 100, "one at a time while it is away"
        assert tester.state("lined") == {key: [n for n, of in numbered(236, keys) if of == key] for key in keys}
        assert "open" in states
        assert states[-1] is None
        values = {
            (metric["name"], metric["labels"].get("task")): metric["value"]
            for metric in tester.metrics
            if metric["name"].startswith(("statefx_breaker", "statefx_calls"))
        }
        assert values[("statefx_breaker_state", "0")] == values[("statefx_calls_waiting", None)] == 0
        assert values[("statefx_breaker_changes_total", "0")] == 7
        assert values[("statefx_calls_retried_total", None)] >= 5
    told = [record.getMessage() for record in caplog.records if "'asks', task 0," in record.getMessage()]
    assert "5 calls have failed one after the other: ConnectionError: away for" in told[0]
    said = ("makes no calls for 20 s", "makes one call, to see", "makes calls again")
    assert [sum(words in line for line in told) for words in said] == [3, 3, 1], "each change once"


def test_the_breaker_waits_without_retries_too():
    class Waits(Asks):
        async def execute(self, tup, collector):
            for _ in range(20):  # meanwhile the next call has its turn
                await asyncio.sleep(0)
            await super().execute(tup, collector)

    SERVICE.until = NOON + timedelta(seconds=5)
    with started(Waits(retries=0, breakerFailures=1, breakerDelay="10 seconds", capacity=2), 1) as tester:
        sent = tester.send({"in": numbered(5, "abcde")})
        dead = len(sent.emitted("asks", "deadLetter"))  # as many as were in flight
        assert 1 <= dead <= 2
        assert waiting(tester) == 5 - dead
        tester.advance(11)
        assert emitted(tester.send({"in": []})) == [*range(dead, 5)], "after the one call the others, at once"


def test_a_tick_comes_whatever_the_breaker_is_and_does_not_count():
    class Ticks(Asks):
        async def execute(self, tup, collector):
            if isTick(tup):
                collector.emit((-1, "tick"))
            else:
                await super().execute(tup, collector)

    SERVICE.until = NOON + timedelta(days=1)
    builder = TopologyBuilder("ticks")
    builder.setStream("in", rows(FIELDS))
    builder.setBolt("asks", Ticks(breakerFailures=2, retryDelay="1 hour")).setTicks(10).fieldsGrouping("in", "key")
    with TopologyTester(builder.createTopology(), config={"topology.state.provider": "memory"}, now=NOON) as tester:
        for number, breaker in enumerate([{}, {"0": "open"}, {"0": "open"}]):
            tester.advance(10)
            sent = tester.send({"in": numbered(1, f"{number}", number)})
            assert sent.emitted("asks") == [(-1, "tick")]
            assert tester.status["calls"]["asks"]["breakers"] == breaker


# ---- settings


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"retries": -1}, "retries of Asks is how often a call is made again, 0 to 1000; not -1"),
        ({"retries": True}, "retries of Asks"),
        ({"retries": 1001}, "retries of Asks"),
        ({"retryDelay": 1}, "retryDelay of Asks is a time such as"),
        ({"retryDelay": "0 seconds"}, "retryDelay of Asks"),
        ({"retryDelay": None}, "retryDelay of Asks"),
        (
            {"retryOn": ValueError},
            r"retryOn of Asks is a tuple of types, as retryOn = \(ConnectionError, ",
        ),
        ({"retryOn": ()}, "retryOn of Asks is a tuple of types"),
        ({"retryOn": (KeyboardInterrupt,)}, "retryOn of Asks has KeyboardInterrupt, which is no Exception"),
        ({"retryOn": (FailedException,)}, "retryOn of Asks has FailedException, which is statefx's own"),
        ({"breakerFailures": 0}, "breakerFailures of Asks is after how many failed calls"),
        ({"breakerDelay": "soon"}, "breakerDelay of Asks is a time such as"),
    ],
)
def test_settings_of_retries_without_meaning_are_refused(settings, text):
    with pytest.raises(TopologyError, match=text):
        TopologyBuilder("x").setBolt("asks", Asks(**settings))


def test_order_without_keys_is_refused_where_tuples_may_wait():
    with pytest.raises(TopologyError, match=r"Say ordered = False, or group it by fields"):
        topology(Asks(), by=None)
    topology(Asks(retries=0), by=None)
