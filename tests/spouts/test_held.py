"""Trees that outlive their transaction: bolts that hold tuples, in attributes and in state; the acker, timeouts."""

import pickle
import random
from collections import Counter, defaultdict, deque
from zlib import crc32

import pytest

from statefx import BasicBolt, Bolt, Spout, Stateful, TopologyBuilder, isTick
from statefx.coordinator.spouts import SpoutTrigger
from statefx.errors import BoltError, CheckpointMismatchError, ConfigError, FailedException
from statefx.operators.acker import ACKER
from statefx.testing import Limits, TopologyTester
from tests.bolts import Tally
from tests.testing.lives import seeds
from tests.testing.living import LivingTester

FED = deque()
HEARD = []
PENDING = []
"""What a spout that is opened finds as ``context.pending``."""


@pytest.fixture(autouse=True)
def cleared():
    FED.clear()
    HEARD.clear()
    PENDING.clear()


class Fed(Spout):
    outputFields = "word string"

    def open(self, context):
        PENDING.append(context.pending)

    def nextTuple(self, collector):
        if FED:
            word = FED.popleft()
            collector.emit((word,), id=word)

    def ack(self, id):
        HEARD.append(f"ack {id}")

    def fail(self, id):
        HEARD.append(f"fail {id}")


class Gathers(Bolt):
    outputFields = "word string"

    def __init__(self, size):
        self.size = size

    def open(self, context):
        self.kept = []

    def execute(self, tup, collector):
        self.kept.append(tup)
        if len(self.kept) == self.size:
            collector.emit(("".join(each.word for each in self.kept),), anchors=self.kept)
            for each in self.kept:
                collector.ack(each)
            self.kept = []


class GathersInState(Stateful, Bolt):
    outputFields = "word string"

    def __init__(self, size):
        self.size = size

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        kept = [*self.state.get("kept", []), tup]
        if len(kept) == self.size:
            collector.emit(("".join(each.word for each in kept),), anchors=kept)
            for each in kept:
                collector.ack(each)
            kept = []
        self.state.put("kept", kept)


class UntilTick(GathersInState):
    def execute(self, tup, collector):
        kept = self.state.get("kept", [])
        if not isTick(tup):
            self.state.put("kept", [*kept, tup])
            return
        for each in kept:
            collector.emit((each.word,), anchors=each)
            collector.ack(each)
        self.state.put("kept", [])


class Pickles:
    def serialize(self, value):
        return pickle.dumps(value)

    def deserialize(self, data):
        return pickle.loads(data)


class Refuses(BasicBolt):
    outputFields = "word string"

    def execute(self, tup, collector):
        if "x" in tup.word:
            raise FailedException("no x")
        collector.emit((tup.word,))


def chain(*bolts):
    builder, source = TopologyBuilder("held"), "fed"
    builder.setSpout("fed", Fed())
    for number, bolt in enumerate(bolts):
        builder.setBolt(f"bolt-{number}", bolt).globalGrouping(source)
        source = f"bolt-{number}"
    builder.setBolt("count", Tally("word")).globalGrouping(source)
    return builder.createTopology()


def fed(tester, *words):
    """Run a transaction over some words; return what the spout has heard because of it."""
    FED.extend(words)
    before = len(HEARD)
    tester.emit()
    return HEARD[before:]


def begun(place, *bolts, **config):
    settings = {key.replace("__", "."): value for key, value in config.items()}
    tester = TopologyTester(chain(*bolts), place, settings, freshObjects=False)
    tester.emit()  # the first transaction tells the spout what is pending, and opens it
    return tester


@pytest.mark.slow
def test_a_transaction_comes_when_a_tree_times_out_though_nothing_is_read(place):
    with begun(place, Gathers(2), topology__message__timeout__secs=10) as tester:
        fed(tester, "a")
        tester.drain()
        before = tester.txid
        tester.advance(11)
        tester.drain()
        assert tester.txid > before
        assert HEARD == ["fail a"]


def test_a_tree_whose_time_is_over_needs_a_transaction_at_that_time(place):
    """Where nothing wakes the driver, it looks at the time that the acker has told."""
    with begun(place, Gathers(2), topology__message__timeout__secs=10) as tester:
        fed(tester, "a")
        source = tester._launch.spout_source(tester._coordinator, SpoutTrigger())
        source.due_ms = int(tester._progress.now() * 1000) + 10_000
        tester._engine.woken.clear()
        assert not source.ready(tester.txid + 1)
        tester.advance(11)
        assert source.ready(tester.txid + 1)


@pytest.mark.slow
def test_what_is_held_in_state_goes_on_after_a_restart(place):
    tester = begun(place, GathersInState(2))
    fed(tester, "a")
    fed(tester)
    fed(tester)  # the acker is told the id
    with tester.restart() as successor:
        assert fed(successor) == []
        assert PENDING[-1] == ("a",)
        assert sorted(fed(successor, "b")) == ["ack a", "ack b"]
        assert successor.state("count") == {"ab": 1}
        assert successor.state(ACKER) == {}


@pytest.mark.slow
def test_what_ends_in_the_transaction_after_a_restart_is_told(place):
    """A tick that is due comes then: a message that is acked with it must not be taken for new."""
    builder = TopologyBuilder("held")
    builder.setSpout("fed", Fed())
    builder.setBolt("holds", UntilTick(9)).globalGrouping("fed").setTicks(60)
    builder.setBolt("count", Tally("word")).globalGrouping("holds")
    config = {"topology.message.timeout.secs": 5000}
    tester = TopologyTester(builder.createTopology(), place, config, freshObjects=False)
    tester.emit()
    for words in (["a"], [], []):
        fed(tester, *words)
    tester.advance(61)
    with tester.restart() as successor:
        assert fed(successor) == ["ack a"]
        assert PENDING[-1] == ("a",)
        assert successor.state("count") == {"a": 1}
        assert successor.state(ACKER) == {}


@pytest.mark.slow
def test_what_is_held_in_attributes_is_lost_with_its_process_and_times_out(place):
    tester = begun(place, Gathers(2), topology__message__timeout__secs=10)
    fed(tester, "a")
    fed(tester)
    fed(tester)
    with tester.restart() as successor:
        successor.emit()
        assert fed(successor, "b") == []
        successor.advance(11)
        assert sorted(fed(successor)) == ["fail a", "fail b"]
        assert successor.state(ACKER) == {}


@pytest.mark.slow
def test_a_rolled_back_attempt_leaves_nothing_in_a_bolts_attributes(place):
    """It would hold what comes again a second time, and the tree would never end."""
    chances = []

    class Once(Tally):
        def prePrepare(self, txid):
            if chances:
                raise chances.pop()

    builder = TopologyBuilder("held")
    builder.setSpout("fed", Fed())
    builder.setBolt("gathers", Gathers(2)).globalGrouping("fed")
    builder.setBolt("count", Once("word")).globalGrouping("gathers")
    with TopologyTester(
        builder.createTopology(), place, {"topology.message.timeout.secs": 10}, freshObjects=False
    ) as tester:
        tester.emit()
        chances.append(FailedException("once"))
        assert fed(tester, "a") == []
        assert chances == []
        assert sorted(fed(tester, "b")) == ["ack a", "ack b"]
        assert tester.state("count") == {"ab": 1}


def test_an_interval_longer_than_the_timeout_is_refused(place):
    config = {"topology.message.timeout.secs": 1, "topology.state.checkpoint.interval.ms": 2000}
    with pytest.raises(ConfigError, match=r"begins each 2 s, and topology.message.timeout.secs is 1"):
        TopologyTester(chain(Gathers(2)), place, config)


@pytest.mark.slow
def test_a_message_that_is_delivered_again_while_its_tree_goes_on_is_passed_over(place):
    """Else it would be emitted under an id that is pending, and a lost worker would end the query."""
    tester = begun(place, GathersInState(2))
    for words in (["a"], [], []):
        fed(tester, *words)
    with tester.restart() as successor:
        successor.emit()
        assert fed(successor, "a") == []
        assert sorted(fed(successor, "b")) == ["ack a", "ack b"]
        assert successor.state("count") == {"ab": 1}


@pytest.mark.slow
def test_a_tuple_that_is_acked_twice_out_of_state_is_acked_once(place):
    """Each look into state gives another object: two of them must not undo each other."""

    class Twice(GathersInState):
        def execute(self, tup, collector):
            if tup.word == "all":
                for _ in range(2):
                    for each in self.state.get("kept", []):
                        collector.ack(each)
                collector.ack(tup)
                return
            self.state.put("kept", [*self.state.get("kept", []), tup])

    with begun(place, Twice(9)) as tester:
        assert fed(tester, "a") == []
        assert fed(tester, "b") == []
        assert sorted(fed(tester, "all")) == ["ack a", "ack all", "ack b"]
        assert tester.state(ACKER) == {}


def test_a_tuple_that_is_put_and_acked_in_one_transaction_is_acked(place):
    class Keeps(GathersInState):
        def execute(self, tup, collector):
            self.state.put("last", tup)
            collector.ack(self.state.get("last") if tup.word == "copy" else tup)

    with begun(place, Keeps(9)) as tester:
        assert fed(tester, "a") == ["ack a"]
        assert fed(tester, "copy") == ["ack copy"]
        assert tester.state(ACKER) == {}


@pytest.mark.slow
def test_to_ack_after_the_input_has_ended_is_refused(place):
    class Late(GathersInState):
        def execute(self, tup, collector):
            self.late = (tup, collector)

        def prePrepare(self, txid):
            if self.__dict__.get("late"):
                tup, collector = self.late
                collector.ack(tup)

    with (
        pytest.raises(BoltError, match="after its input of the transaction had ended"),
        begun(place, Late(9)) as tester,
    ):
        fed(tester, "a")


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"valueSerializerClass": "tests.spouts.test_held:Pickles"}, {"keyClass": "str"}])
def test_tuples_keep_their_trees_in_any_encoding_and_the_acker_has_its_own(place, options):
    config = {"topology.state.provider.config": options}
    with TopologyTester(chain(GathersInState(2)), place, config, freshObjects=False) as tester:
        tester.emit()
        assert fed(tester, "a") == []
        assert sorted(fed(tester, "b")) == ["ack a", "ack b"]
        assert tester.state("count") == {"ab": 1}


def test_there_is_no_acker_where_no_bolt_can_hold(place):
    with TopologyTester(chain(Refuses()), place) as tester:
        fed(tester, "a", "x")
        assert sorted(HEARD) == ["ack a", "fail x"]
        assert ACKER not in tester._launch.plan.components


# ---- at random

SOURCE, DELIVERED, TOLD, HELD = {}, Counter(), defaultdict(list), set()


@pytest.mark.slow
def test_the_last_bolt_that_can_hold_is_not_taken_out_unseen(place):
    with begun(place, Gathers(2)) as tester:
        fed(tester, "a")
    with pytest.raises(CheckpointMismatchError, match=r"messages that bolts have held .* bring back a plain Bolt"):
        TopologyTester(chain(Refuses()), place)


def draw(*of):
    return crc32(repr(of).encode())


class Queue(Spout):
    outputFields = "task long, message long, delivery long"

    def open(self, context):
        self.task = context.task
        pending = {message for message, _ in context.pending}
        self.left = [message for message in sorted(SOURCE[self.task]) if message not in pending]

    def nextTuple(self, collector):
        if self.left:
            message = self.left.pop(0)
            DELIVERED[self.task, message] += 1
            delivery = DELIVERED[self.task, message]
            collector.emit((self.task, message, delivery), id=(message, delivery))

    def ack(self, id):
        TOLD[self.task, *id].append("ack")
        SOURCE[self.task].discard(id[0])

    def fail(self, id):
        TOLD[self.task, *id].append("fail")
        if id[0] in SOURCE[self.task]:
            self.left.append(id[0])


def fails(tup):
    return draw("fails", tup.task, tup.message, tup.delivery) % 7 == 0


class Keeps(Bolt):
    outputFields = "task long, message long, delivery long"

    def open(self, context):
        self.kept = []

    def held(self):
        return self.kept

    def hold(self, kept):
        self.kept = kept

    def execute(self, tup, collector):
        for each in self.held():
            collector.emit((each.task, each.message, each.delivery), anchors=each)
            collector.ack(each)
        self.hold([])
        if fails(tup):
            collector.fail(tup, "refused")
        elif tup.delivery < 4 and draw("keeps", tup.task, tup.message, tup.delivery) % 2:
            HELD.add((tup.task, tup.message, tup.delivery))
            self.hold([tup])
        else:
            collector.emit((tup.task, tup.message, tup.delivery), anchors=tup)
            collector.ack(tup)


class KeepsInState(Stateful, Keeps):
    def initState(self, state):
        self.state = state

    def held(self):
        return self.state.get("kept", [])

    def hold(self, kept):
        self.state.put("kept", kept)


def live(place, seed, breaks):
    chance = random.Random(seed)
    for each in (SOURCE, DELIVERED, TOLD, HELD):
        each.clear()
    SOURCE.update({task: set(range(chance.randrange(1, 12))) for task in range(2)})
    builder = TopologyBuilder("held")
    builder.setSpout("queue", Queue(), 2)
    builder.setBolt("first", chance.choice([Keeps, KeepsInState])(), 2).fieldsGrouping("queue", "message")
    builder.setBolt("second", chance.choice([Keeps, KeepsInState])(), 1).globalGrouping("first")
    builder.setBolt("tally", Tally("task", "message", "delivery"), 2).fieldsGrouping("second", "message")
    config = {
        "topology.transaction.attempts.max": 1000,
        "topology.message.timeout.secs": 30,
        "topology.acker.executors": chance.randrange(1, 3),
        "topology.state.provider": chance.choice(["memory", "rocksdb"]),
    }
    if chance.random() < 0.7:
        config["topology.max.spout.pending"] = chance.randrange(1, 5)
    wanted = {(task, message) for task, messages in SOURCE.items() for message in messages}
    limits = Limits(pauses=10_000)
    topology = builder.createTopology()
    tester = LivingTester(topology, place, config, seed=seed, breaks=breaks, limits=limits, freshObjects=False)
    with tester:
        for _ in range(300):
            tester.drain()
            if not any(SOURCE.values()):
                break
            tester.advance(chance.choice([0, 5, 31]))
        assert not any(SOURCE.values()), "messages that were never acked"
        for _ in range(3):
            tester.advance(31)
            tester.drain()
        tester.wake()
        tallies = [tester.state("tally", task) for task in range(2)]
        left = [tester.state(ACKER, task) for task in range(config["topology.acker.executors"])]
    assert left == [{}] * len(left)
    assert {(task, message) for (task, message, _), said in TOLD.items() if "ack" in said} == wanted
    counted = Counter()
    for tally in tallies:
        counted.update(tally)
    assert all(count == 1 for count in counted.values())
    for delivery, said in TOLD.items():
        assert len(said) == 1, delivery
        if said == ["ack"]:
            assert counted[delivery] == 1, delivery
        else:
            refused = draw("fails", *delivery) % 7 == 0
            assert refused or delivery in HELD, delivery
    return tester.runs


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_holds(place, seed):
    live(place, seed, breaks=False)


@pytest.mark.slow
@pytest.mark.parametrize("secs", [1, pytest.param(600, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_random_holds_with_chains_lost_and_frozen(place, secs):
    runs = [live(place / str(seed), seed, breaks=True) for seed in seeds(secs)]
    assert sum(runs) > len(runs)  # chains were lost
