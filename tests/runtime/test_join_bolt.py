"""JoinBolt against nested loops over all rows."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from statefx import JoinBolt, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.errors import ConfigError, TopologyError
from statefx.testing import TopologyTester, rows
from tests.bolts import Ignores

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
LENGTH, SLIDE = 20, 10
FIELDS = {
    "a": "key long, at timestamp, a long",
    "b": "at timestamp, other long, b long",
    "c": "c long, third long, at timestamp",
}
KEYS = {"a": ("key", 0), "b": ("other", 1), "c": ("third", 1)}


def at(secs):
    return NOON + timedelta(seconds=secs)


def row(name, key, secs, number):
    return {"a": (key, at(secs), number), "b": (at(secs), key, number), "c": (number, key, at(secs))}[name]


def topology(histories, join, grouped=True):
    builder = TopologyBuilder("join")
    bolt = builder.setBolt("join", join, 2 if grouped else 1)
    for name, history in histories.items():
        given = [row(name, *each) for each in history]
        builder.setSpout(
            name, MemoryTransactionalSpout([given], FIELDS[name], takePerBatch=3), timestamp="at", lateness="1 day"
        )
        _ = bolt.fieldsGrouping(name, KEYS[name][0]) if grouped else bolt.globalGrouping(name)
    return builder.createTopology()


def joined(kinds, prior_of_c):
    join = JoinBolt("a", "key")
    for name, prior in (("b", "a"), ("c", prior_of_c)):
        add = join.leftJoin if kinds[name] == "left" else join.join
        add(name, KEYS[name][0], prior)
    return join.select("a.a, b.b, c.c").withWindow(f"{LENGTH} seconds", f"{SLIDE} seconds")


def nested_loops(histories, kinds, prior_of_c):
    found = []
    last = max(secs for history in histories.values() for _, secs, _ in history)
    for start in range(-LENGTH, last + 1, SLIDE):
        inside = {
            name: [(key, number) for key, secs, number in history if start <= secs < start + LENGTH and key is not None]
            for name, history in histories.items()
        }
        firsts = [(key, number) for key, secs, number in histories["a"] if start <= secs < start + LENGTH]
        for key, a in firsts:
            for b in [number for other, number in inside["b"] if other == key] or [None] * (kinds["b"] == "left"):
                partners = [number for other, number in inside["c"] if other == key]
                if prior_of_c == "b" and b is None:
                    partners = []
                found += [(a, b, c) for c in partners or [None] * (kinds["c"] == "left")]
    return sorted(found, key=repr)


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize("prior_of_c", ["a", "b"])
@pytest.mark.parametrize("b", ["inner", "left"])
@pytest.mark.parametrize("c", ["inner", "left"])
def test_combinations_are_those_of_nested_loops(b, c, prior_of_c, tmp_path):
    chance = random.Random(f"{b}, {c}, {prior_of_c}")
    kinds = {"b": b, "c": c}
    number = iter(range(10_000))
    histories = {
        name: [(chance.choice([1, 2, 3, None]), chance.randint(0, 60), next(number)) for _ in range(30)]
        for name in FIELDS
    }
    ended = {name: [*history, (9, 10 * 86_400, next(number))] for name, history in histories.items()}
    tester = TopologyTester(
        topology(ended, joined(kinds, prior_of_c), grouped=chance.random() < 0.7),
        tmp_path,
        now=at(10 * 86_400),
    )
    emitted = []
    while (sent := tester.emit()) is not None:
        emitted += sent.emitted("join")
        if chance.random() < 0.2:
            tester = tester.restart()
    tester.close()
    assert sorted(emitted, key=repr) == nested_loops(histories, kinds, prior_of_c)
    assert len(emitted) > 20


ONE = {name: [(1, 1, 1)] for name in FIELDS}


@pytest.mark.parametrize(
    ("join", "wanted"),
    [
        (lambda: JoinBolt("a", "key").join("a", "key", "a"), "JoinBolt has 'a' already"),
        (lambda: JoinBolt("a", "key").join("b", "other", "c"), "with 'c', which is not joined before it: there are a"),
        (lambda: JoinBolt("a", "key").select("a.a").withTumblingWindow("1 hour"), "joins 'a' with nothing"),
        (lambda: joined({"b": "left", "c": "left"}, "a").withTumblingWindow("1 hour"), "has windows of .* already"),
        (
            lambda: (
                JoinBolt("a", "a")
                .join("b", "other", "a")
                .join("c", "third", "a")
                .select("a.a")
                .withTumblingWindow("1 hour")
            ),
            "group both inputs by the key",
        ),
        (
            lambda: (
                JoinBolt("a", "key")
                .join("b", "at", "a")
                .join("c", "third", "a")
                .select("a.a")
                .withTumblingWindow("1 hour")
            ),
            "of type bigint, with 'b' by 'at', of type timestamp: cast one",
        ),
        (
            lambda: (
                JoinBolt("a", "no")
                .join("b", "other", "a")
                .join("c", "third", "a")
                .select("a.a")
                .withTumblingWindow("1 hour")
            ),
            "by 'no', a field that it does not have",
        ),
        (
            lambda: JoinBolt("a", "key").join("b", "other", "a").join("c", "third", "a").withTumblingWindow("1 hour"),
            "say what JoinBolt emits",
        ),
        (
            lambda: JoinBolt("a", "key").join("b", "other", "a").join("c", "third", "a").select("a.a"),
            "say which windows",
        ),
        (
            lambda: JoinBolt("a", "key").join("b", "other", "a").select("a.a").withTumblingWindow("1 hour"),
            "it reads 'c' as well",
        ),
    ],
)
def test_mistakes(join, wanted):
    with pytest.raises(TopologyError, match=wanted):
        topology(ONE, join())


def test_a_codec_of_the_user_is_refused_and_may_be_that_of_other_bolts(tmp_path):
    join = joined({"b": "left", "c": "left"}, "a")
    options = {"codec": "tests.testing.codecs:Json"}
    with pytest.raises(
        ConfigError, match=r"bolt 'join' has windows, which are kept in statefx's own form and not by codec"
    ):
        TopologyTester(topology(ONE, join), tmp_path, {"topology.state.provider.config": options})
    options["components"] = {"join": {}}
    with TopologyTester(topology(ONE, join), tmp_path, {"topology.state.provider.config": options}) as tester:
        assert tester.drain()


def test_tuples_of_an_input_that_is_gone_are_left_out(tmp_path):
    def of(*names):
        builder = TopologyBuilder("gone")
        join = JoinBolt("a", "key")
        for name in names:
            join.leftJoin(name, KEYS[name][0], "a")
        bolt = builder.setBolt("join", join.select("a.a, b.b").withTumblingWindow("1 hour"))
        for name, fields in FIELDS.items():  # the stream itself stays: none can be taken away
            builder.setStream(name, rows(fields), timestamp="at")
            read = bolt if name in ("a", *names) else builder.setBolt("ignores", Ignores())
            read.fieldsGrouping(name, KEYS[name][0])
        return builder.createTopology()

    with TopologyTester(of("b", "c"), tmp_path, now=at(9000)) as tester:
        tester.send({"a": [row("a", 1, 1, 1)], "b": [row("b", 1, 1, 2)], "c": [row("c", 1, 1, 3)]})
    with TopologyTester(of("b"), tmp_path, now=at(9000)) as tester:
        sent = tester.send({"a": [row("a", 2, 9000, 1)], "b": [row("b", 2, 9000, 2)]})
        assert sent.emitted("join") == [(1, 2)]
