"""Keys of calls: the same in every attempt and with every driver, and different for every tuple."""

import random
from datetime import UTC, datetime

import pytest

from statefx import AsyncBolt, BasicBolt, Bolt, OpaquePartitionedTransactionalSpout, Spout, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.errors import BoltError, FailedException
from statefx.operators.idempotency import IdempotencyKeys
from statefx.operators.schema import parse_schema
from statefx.operators.tuples import tuple_maker
from statefx.testing import Crash, TopologyTester, rows
from tests.bolts import Pass

FIELDS = "n long, key string"
SEEN = []
"""(txid, attempt, tuple, key) of each call, in whichever driver."""


@pytest.fixture(autouse=True)
def nothing_seen():
    SEEN.clear()


class Notes(BasicBolt):
    def __init__(self, chance=0.0):
        self.chance = chance

    def open(self, context):
        self.context = context

    def execute(self, tup, collector):
        key = self.context.idempotencyKey(tup)
        assert key == self.context.idempotencyKey(tup)
        SEEN.append((self.context.txid, self.context.attempt, tuple(tup), key))
        if random.random() < self.chance:
            raise FailedException("by chance")


class NotesAsync(AsyncBolt):
    open = Notes.open

    def __init__(self, chance=0.0):
        self.chance = chance

    async def execute(self, tup, collector):
        Notes.execute(self, tup, collector)


def topology(bolt, data, tasks=2):
    builder = TopologyBuilder("keys")
    builder.setSpout("in", MemoryTransactionalSpout(data, FIELDS, 7), 2)
    builder.setBolt("pass", Pass(FIELDS), 2).shuffleGrouping("in")
    builder.setBolt("bolt", bolt, tasks).fieldsGrouping("pass", "key")
    return builder.createTopology()


@pytest.mark.parametrize("asked", ["before", "first", "second"])
def test_a_tuple_that_is_made_once_more_has_the_key_of_the_former_one(asked):
    """Whose call may go on in a thread, and have changed what it was given."""
    cls = tuple_maker(parse_schema("n long, tags array<string>"), "in", "default")
    keys, undisturbed = (IdempotencyKeys("origin", "bolt", 1, {}) for _ in range(2))
    former, other, further = (cls([1, ["a"]]) for _ in range(3))
    if asked == "before":
        keys.of(former)
    keys.hand_on(former, other)
    keys.hand_on(other, further)
    former.tags.clear()
    order = [former, further] if asked == "first" else [further, former]
    assert {keys.of(each) for each in order} == {undisturbed.of(cls([1, ["a"]]))}
    assert keys.of(cls([1, ["a"]])) == undisturbed.of(cls([1, ["a"]])), "the next one that is equal is another"


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", [Notes, NotesAsync])
def test_each_tuple_has_one_key_whatever_happens_to_attempts_and_drivers(tmp_path, kind):
    """Many tuples are equal: of each value there are as many keys as there are tuples in a transaction."""
    random.seed(4)
    data = [[(n % 2, "abc"[n % 3]) for n in range(20)], [(n % 2, "ab"[n % 2]) for n in range(20)]]
    for seed in range(12):
        config = {"topology.transaction.attempts.max": 100}
        made = topology(kind(chance=0.03), data)
        tester, crash = None, random.choice([None, 20, 50, 90])
        while True:
            try:
                tester = TopologyTester(made, tmp_path / str(seed), config, crash_at=crash, seed=random.randrange(99))
                with tester:
                    tester.drain()
                break
            except Crash:
                crash = crash + 60 if random.random() < 0.5 else None
        by_attempt = {}
        for txid, attempt, values, key in SEEN:
            by_attempt.setdefault((txid, values), {}).setdefault(attempt, []).append(key)
        every = []
        for attempts in by_attempt.values():
            whole = max(attempts.values(), key=len)
            every += set(whole)
            assert all(set(keys) <= set(whole) for keys in attempts.values())
        assert len(set(every)) == len(every) == sum(map(len, data))
        SEEN.clear()


def test_other_bolts_and_checkpoints_have_other_keys(tmp_path):
    def keys(place, *bolts):
        SEEN.clear()
        builder = TopologyBuilder("keys")
        builder.setStream("in", rows(FIELDS))
        for bolt in bolts:
            builder.setBolt(bolt, Notes()).shuffleGrouping("in")
        with TopologyTester(builder.createTopology(), tmp_path / place) as tester:
            tester.send({"in": [(1, "a")]})
            tester.send({"in": [(1, "a")]})
        return {key for *_, key in SEEN}

    assert len(keys("one", "first", "second")) == 4
    assert len(keys("two", "first") | keys("three", "first")) == 4
    assert all(len(key) == 32 for *_, key in SEEN)


def test_the_key_of_a_tuple_with_times_is_the_same_with_every_version_of_arrow(tmp_path):
    """A key hashes what ``repr`` says, and Arrow's own UTC is pytz's in one version and zoneinfo's in another."""
    SEEN.clear()
    moment = datetime(2026, 3, 28, 12, tzinfo=UTC)
    values = (moment, [moment], [("a", moment)])
    builder = TopologyBuilder("keys")
    builder.setStream("in", rows("at timestamp, every array<timestamp>, by map<string, timestamp>"))
    builder.setBolt("first", Notes()).shuffleGrouping("in")
    with TopologyTester(builder.createTopology(), tmp_path) as tester:
        tester.send({"in": [values]})
    ((*_, given, _),) = SEEN
    assert repr(given) == repr(values)


class Opaque(OpaquePartitionedTransactionalSpout):
    outputFields = FIELDS

    def numPartitions(self):
        return 1

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        collector.emit((1, "a"))
        return {}


class Messages(Spout):
    outputFields = FIELDS

    def nextTuple(self, collector):
        raise AssertionError("fed by the test")


def test_input_that_comes_again_elsewhere_has_no_keys():
    builder = TopologyBuilder("keys")
    builder.setSpout("in", Messages())
    builder.setBolt("pass", Pass(FIELDS)).shuffleGrouping("in")
    builder.setBolt("bolt", Notes()).shuffleGrouping("pass")
    with (
        TopologyTester(builder.createTopology(), fed="in") as tester,
        pytest.raises(BoltError, match="the tuples of 'in' may come again in another transaction"),
    ):
        tester.send({"in": [(1, "a")]})
    builder = TopologyBuilder("keys")
    builder.setSpout("in", Opaque())
    builder.setBolt("bolt", Notes()).shuffleGrouping("in")
    with TopologyTester(builder.createTopology()) as tester, pytest.raises(BoltError, match="may come again"):
        tester.emit()


def test_equal_tuples_that_may_change_their_tasks_have_no_keys():
    def sent(tasks, connect):
        builder = TopologyBuilder("keys")
        builder.setStream("in", rows(FIELDS))
        connect(builder.setBolt("bolt", Notes(), tasks))
        with TopologyTester(builder.createTopology()) as tester:
            tester.send({"in": [(1, "a"), (1, "a")]})
        return len(SEEN)

    with pytest.raises(BoltError, match=r"group them by fields, as .fieldsGrouping\('in', \"n\", \"key\"\)"):
        sent(2, lambda bolt: bolt.shuffleGrouping("in"))
    with pytest.raises(BoltError, match="equal tuples may come to other tasks"):
        sent(2, lambda bolt: bolt.partialKeyGrouping("in", "key"))
    assert sent(1, lambda bolt: bolt.shuffleGrouping("in")) == 2
    assert sent(2, lambda bolt: bolt.globalGrouping("in")) == 4


def test_what_is_no_tuple_of_this_transaction_has_no_key():
    class Copies(Bolt):
        def open(self, context):
            self.context = context

        def execute(self, tup, collector):
            self.context.idempotencyKey(tuple(tup))

    class Early(Bolt):
        def open(self, context):
            context.idempotencyKey(())

        def execute(self, tup, collector):
            pass

    for bolt, text in ((Copies(), "no copy of one"), (Early(), "here no tuple is in flight")):
        builder = TopologyBuilder("keys")
        builder.setStream("in", rows(FIELDS))
        builder.setBolt("bolt", bolt).shuffleGrouping("in")
        with TopologyTester(builder.createTopology()) as tester, pytest.raises(BoltError, match=text):
            tester.send({"in": [(1, "a")]})
