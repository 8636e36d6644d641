"""The interval join: its pairs, what is left over and what is late, compared with a plain recount."""

import random
from datetime import timedelta

import pytest

from statefx import BasicBolt, IntervalJoin, TopologyBuilder
from statefx.errors import BoltError, ConfigError, TopologyError
from statefx.operators import joins
from statefx.testing import Crash, TopologyTester, rows
from tests.runtime.joining import ORDERS, PAYMENTS, STREAMS, Life, at, check, join


def framed(bolt=None, parallelism=1, orders=ORDERS, payments=PAYMENTS, **times):
    builder = TopologyBuilder("frames")
    builder.setStream("orders", rows(orders), timestamp="at", **times)
    builder.setStream("payments", rows(payments), timestamp="at", **times)
    declarer = builder.setBolt("paid", bolt or join(), parallelism)
    declarer.fieldsGrouping("orders", "order").fieldsGrouping("payments", "order")
    return builder.createTopology()


def started(topology, place, **options):
    return TopologyTester(topology, place / "ck", now=at(1_000_000), **options)


def told(sent):
    """Return what the join emitted, by stream."""
    return {stream: found for stream in STREAMS if (found := sorted(sent.emitted("paid", stream)))}


@pytest.mark.slow
def test_pairs_come_once_and_what_is_left_over_when_no_partner_can_come(tmp_path):
    with started(framed(parallelism=3), tmp_path) as tester:
        first = {"orders": [("a", at(0), 1), ("b", at(10), 2)], "payments": [("a", at(60), 5), ("c", at(1), 6)]}
        # At its end it is 10: nothing pays for what came before any more, and what is of 10 may be paid for until 70.
        assert told(tester.send(first)) == {"default": [("a", 1, 5)], "unmatchedRight": [("c", at(1), 6)]}
        second = {"payments": [("b", at(70), 7)], "orders": [("x", at(200), 8), ("b", at(9), 9)]}
        assert told(tester.send(second)) == {"default": [("b", 2, 7)], "lateLeft": [("b", at(9), 9, 1.0)]}
        assert told(tester.send({"payments": [("y", at(261), 0)]})) == {}, "at 200 the order of 200 may be paid for"
        assert told(tester.send({"orders": [("z", at(262), 0)]})) == {"unmatchedLeft": [("x", at(200), 8)]}
        assert {key for task in range(3) for key in tester.state("paid", task)} == {"y", "z"}


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_it_joins_as_a_plain_recount_does(seed, tmp_path, monkeypatch):
    """With rows out of order, an input that is far behind or ends, attempts that fail, restarts and crashes."""
    pending, crashes = (1, 3)[seed % 2], seed > 3
    random.seed(seed)
    for limit, values in {
        "EXPIRED_MAX": (2, 100_000),
        "_READ_AHEAD": (1, 10),
        "CHUNK": (1, 100),
        "TOGETHER_MAX": (0, 1, 8),
    }.items():
        monkeypatch.setattr(f"statefx.operators.joins.{limit}", random.choice(values))
    life = Life(seed)
    topology = life.topology(random.randint(1, 3), 0.02)
    config = {
        "topology.max.spout.pending": pending,
        "topology.transaction.attempts.max": 100,
    }
    now, tester, idle = at(0), None, 0
    while idle < 3:
        try:
            if tester is None:
                crash = random.randint(10, 100) if crashes and random.random() < 0.8 else None
                tester = TopologyTester(topology, tmp_path / "ck", config, crash_at=crash, seed=seed, now=now)
            now += timedelta(seconds=20)
            tester.advance(20)
            if pending > 1:
                tester.drain()
            idle += tester.emit() is None
            if random.random() < 0.2:
                tester.close()
                tester = None
        except Crash:
            tester = None
    check(life, tmp_path)


MISTAKES = {
    "both sides": (
        lambda: IntervalJoin("a", "a", "id", ("0 seconds", "1 hour"), "id"),
        "let a bolt emit the rows again",
    ),
    "one bound": (lambda: join(between="1 hour"), "between takes two lengths of time"),
    "no time": (lambda: join(between=("0", "1 hour")), "'0' is none"),
    "a number": (lambda: join(between=(0, 60)), "0 is none"),
    "upper first": (lambda: join(between=("1 hour", "0 seconds")), "lower bound first: ('0 seconds', '1 hour')"),
    "outer": (lambda: join(outer="both"), "'left', 'right', 'full' or None"),
    "no key": (lambda: IntervalJoin("orders", "payments", (), ("0 seconds", "1 hour"), "id"), 'as in on="id"'),
    "side without key": (
        lambda: IntervalJoin("orders", "payments", {"orders": "id"}, ("0 seconds", "1 hour"), "id"),
        "on has no field of 'payments'",
    ),
    "more of one side": (
        lambda: IntervalJoin(
            "orders", "payments", {"orders": ("a", "b"), "payments": "c"}, ("0 seconds", "1 hour"), "a"
        ),
        "as many fields of 'orders' as of 'payments'",
    ),
    "select nothing": (lambda: framed(join(select="")), "select names the fields of a pair"),
    "select unknown": (
        lambda: framed(join(select="order, price")),
        "'price', which is not there: orders has order, at",
    ),
    "select of several": (lambda: framed(join(select="at")), 'as in "orders.at"'),
    "select twice": (lambda: framed(join(select="orders.at, payments.at")), '"payments.at as payments_at"'),
    "key that is not there": (
        lambda: framed(orders="id string, at timestamp, item long"),
        "groups 'orders' by 'order'",
    ),
    "other types": (lambda: framed(orders="order long, at timestamp, item long"), "of type string: cast one"),
    "key of floats": (
        lambda: framed(orders=ORDERS.replace("string", "double"), payments=PAYMENTS.replace("string", "double")),
        "of type double, which is no key: cast it",
    ),
    "another input": (lambda: wired(lambda paid: paid.globalGrouping("more")), "it reads 'more' as well"),
    "not grouped": (
        lambda: wired(lambda paid: paid.shuffleGrouping("payments"), payments=False),
        "group both inputs by the key, .fieldsGrouping('orders', 'order').fieldsGrouping('payments', 'order')",
    ),
    "input not read": (lambda: wired(lambda paid: paid, payments=False), "it joins 'payments' and reads 'orders'"),
    "no event time": (lambda: wired(timestamp=None), "'orders' has no event time: say which field has it"),
    "timestamp of pairs": (
        lambda: wired(bolt_timestamp="at"),
        "timestamp names the field 'at' of stream 'default'; its fields are order, item, cents",
    ),
}


def wired(more=lambda paid: paid, payments=True, timestamp="at", bolt_timestamp=None):
    builder = TopologyBuilder("wired")
    builder.setStream("orders", rows(ORDERS), timestamp=timestamp)
    builder.setStream("payments", rows(PAYMENTS), timestamp=timestamp)
    builder.setStream("more", rows(PAYMENTS), timestamp=timestamp)
    paid = builder.setBolt("paid", join(), 2, timestamp=bolt_timestamp).fieldsGrouping("orders", "order")
    if payments:
        paid.fieldsGrouping("payments", "order")
    more(paid)
    return builder.createTopology()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told_before_anything_runs(mistake):
    make, told = MISTAKES[mistake]
    with pytest.raises(TopologyError) as caught:
        make()
    assert told in str(caught.value)


@pytest.mark.slow
def test_fields_that_have_other_names_and_streams_that_have_a_name(tmp_path):
    class Parse(BasicBolt):
        outputFields = {"orders": "id string, line long, at timestamp", "rest": "id string"}

        def execute(self, tup, collector):
            collector.emit(tuple(tup), stream="orders")

    builder = TopologyBuilder("named")
    builder.setStream("lines", rows("id string, line long, at timestamp"))
    builder.setBolt("parse", Parse(), timestamp={"orders": "at"}).shuffleGrouping("lines")
    builder.setStream("paid.in", rows("number long, order string, paid timestamp"), timestamp="paid")
    on = {"parse:orders": ("id", "line"), "paid.in": ("order", "number")}
    bolt = IntervalJoin(
        "parse:orders", "paid.in", on, ("-1 minute", "1 minute"), ["id", "paid.in.paid AS when", "number"]
    )
    declarer = builder.setBolt("pairs", bolt, 3, timestamp="when", lateness="1 minute")
    declarer.fieldsGrouping("parse", "line", stream="orders").fieldsGrouping("paid.in", "number")
    with started(builder.createTopology(), tmp_path) as tester:
        given = {"lines": [("a", 1, at(5)), ("a", 2, at(5))], "paid.in": [(2, "a", at(0)), (1, "b", at(0))]}
        assert tester.send(given).emitted("pairs") == [("a", at(0), 2)]


def test_a_field_of_an_input_may_be_new_or_gone_and_not_of_another_type(tmp_path):
    with started(framed(), tmp_path) as tester:
        tester.send({"orders": [("a", at(0), 1)]})
        changed = framed(orders="order string, note string, at timestamp", bolt=join(select="order, note, cents"))
        with tester.restart(changed) as later:
            assert later.send({"payments": [("a", at(3), 9)]}).emitted("paid") == [("a", None, 9)]
            last = later.restart(framed(orders=ORDERS.replace("item long", "item string")))
            with last, pytest.raises(BoltError, match="'item' of the left input was bigint and is string now"):
                last.send({"payments": [("a", at(3), 9)]})


@pytest.mark.slow
def test_rows_that_wait_go_by_the_key_that_they_came_with(tmp_path):
    def joined_by(key):
        builder = TopologyBuilder("keys")
        builder.setStream("orders", rows("order string, other string, at timestamp, item long"), timestamp="at")
        builder.setStream("payments", rows(PAYMENTS), timestamp="at")
        on = {"orders": key, "payments": "order"}
        bolt = IntervalJoin("orders", "payments", on, ("0 seconds", "1 hour"), "item, cents")
        builder.setBolt("paid", bolt).globalGrouping("orders").globalGrouping("payments")
        return builder.createTopology()

    with started(joined_by("order"), tmp_path) as tester:
        tester.send({"orders": [("a", "b", at(0), 1)]})
        last = tester.restart(joined_by("other"))
        with last, pytest.raises(BoltError, match="left input is joined by other"):
            last.send({"payments": [("a", at(3), 9)]})


@pytest.mark.slow
def test_a_key_with_many_rows_costs_a_row_what_is_in_its_interval(tmp_path, monkeypatch):
    bolt = join(("0 seconds", "2 seconds"))
    # So late are rows that none is over: what is looked up is looked up for rows that come.
    with started(framed(bolt, lateness="1 hour"), tmp_path, freshObjects=False) as tester:
        many = [("a", at(number), number) for number in range(3000)]
        tester.send({"payments": many})
        read = []
        reading = IntervalJoin._more

        def counted(self, *given):
            found = reading(self, *given)
            read.append(len(found))
            return found

        monkeypatch.setattr(IntervalJoin, "_more", counted)
        sent = tester.send({"orders": [("a", at(secs), 0) for secs in range(1000, 1100)]})
        assert len(sent.emitted("paid")) == 300
        assert read == [3] * 100


@pytest.mark.slow
def test_other_bounds_count_for_what_is_kept_as_well(tmp_path):
    with started(framed(join(("0 seconds", "10 seconds"))), tmp_path) as tester:
        sent = tester.send({"orders": [("a", at(0), 1), ("b", at(50), 2)], "payments": [("x", at(40), 0)]})
        assert told(sent) == {"unmatchedLeft": [("a", at(0), 1)]}
        with tester.restart(framed(join(("-20 seconds", "60 seconds")))) as later:
            assert told(later.send({"payments": [("b", at(100), 3)]})) == {"default": [("b", 2, 3)]}
            sent = later.send({"orders": [("y", at(500), 0)], "payments": [("y", at(900), 0)]})
            assert told(sent) == {"unmatchedRight": [("x", at(40), 0)]}


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize("most", [3, 100_000])
@pytest.mark.parametrize("idle", [True, False])
def test_narrower_bounds_leave_nothing_behind(most, idle, tmp_path, monkeypatch):
    """Also where the first transaction with them gets nowhere, or has more to drop than one transaction does."""
    monkeypatch.setattr(joins, "EXPIRED_MAX", most)
    orders = [(f"o{number}", at(number), number) for number in range(20)]
    with started(framed(join(("0 seconds", "3600 seconds"))), tmp_path) as tester:
        tester.send({"orders": [*orders, ("z", at(1000), 0)], "payments": [("zz", at(1000), 0)]})
        tester.send({})
        with tester.restart(framed(join(("0 seconds", "60 seconds")))) as later:
            if idle:
                later.send({})
            for time in (5000, 50_000):
                later.send({"orders": [("y", at(time), 0)], "payments": [("yy", at(time), 0)]})
                for _ in range(12):
                    later.send({})
            alone = {row[0] for row in later.emitted("paid", "unmatchedLeft")}
            assert alone >= {"z", "y", *(row[0] for row in orders)}
            assert not [key for key in later.state("paid") if str(key).startswith("o")]


def test_inputs_that_are_exchanged_are_refused(tmp_path):
    with started(framed(join()), tmp_path) as tester:
        tester.send({"orders": [("a", at(0), 1)]})
    swapped = IntervalJoin(
        "payments", "orders", on="order", between=("-60 seconds", "0 seconds"), select="order, item, cents"
    )
    with (
        started(framed(swapped), tmp_path) as tester,
        pytest.raises(BoltError, match="'payments' was the right input and 'orders'"),
    ):
        tester.send({})


def test_types_and_codecs_of_the_user_are_those_of_other_bolts(tmp_path):
    config = {"topology.state.provider.config": {"keyClass": "str", "valueClass": "int"}}
    with pytest.raises(ConfigError, match="bolt 'paid' is ready-made, and keeps its state in statefx's own form"):
        TopologyTester(framed(join()), tmp_path, config)
