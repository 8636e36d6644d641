"""Trees that go on after a start with another topology: its spouts have other ids, or other ones beside them."""

import pytest

from statefx import Spout, TopologyBuilder
from statefx.errors import CheckpointMismatchError
from statefx.operators.acker import ACKER
from statefx.testing import TopologyTester
from tests.bolts import Tally
from tests.spouts.test_held import GathersInState

FED: dict[str, list[str]] = {}
"""What each spout is yet to emit, by its name in the test."""
HEARD: list[str] = []
PENDING: dict[str, tuple[str, ...]] = {}


@pytest.fixture(autouse=True)
def cleared():
    FED.clear()
    HEARD.clear()
    PENDING.clear()


LAST = "last"


class Named(Spout):
    outputFields = "word string"

    def __init__(self, name):
        self.name = name

    def open(self, context):
        self.emits = context.task == (context.parallelism - 1 if self.name == LAST else 0)
        if self.emits:
            PENDING[self.name] = context.pending

    def nextTuple(self, collector):
        if self.emits and FED.get(self.name):
            word = FED[self.name].pop(0)
            collector.emit((word,), id=word)

    def ack(self, id):
        HEARD.append(f"{self.name}: ack {id}")

    def fail(self, id):
        HEARD.append(f"{self.name}: fail {id}")


def gathering(spouts):
    """A topology that gathers words of these spouts; `spouts` has the name in the test, and the tasks, by id."""
    builder = TopologyBuilder("held")
    declarer = builder.setBolt("gathers", GathersInState(2))
    for id, (name, tasks) in spouts.items():
        builder.setSpout(id, Named(name), tasks)
        declarer.globalGrouping(id)
    builder.setBolt("count", Tally("word")).globalGrouping("gathers")
    return builder.createTopology()


def started(place, spouts, config=None, **changes):
    tester = TopologyTester(gathering(spouts), place, config or {}, freshObjects=False, **changes)
    tester.emit()  # the first transaction tells the spouts what is pending, and opens them
    return tester


def feed(tester, name, *words):
    FED.setdefault(name, []).extend(words)
    tester.emit()


def leave_held(place, spouts, name, word):
    """Hold a word in the state of the bolt, when the acker knows its id, and end the topology."""
    with started(place, spouts) as tester:
        feed(tester, name, word)
        tester.emit()
        tester.emit()
        assert HEARD == []


@pytest.mark.slow
def test_a_spout_with_another_id_goes_on_with_its_trees(place):
    """Also with the one after it, which the second start has not given."""
    leave_held(place, {"fed": ("one", 1)}, "one", "a")
    for id, changes in (("read", {"rename": {"fed": "read"}}), ("taken", {"rename": {"read": "taken"}}), ("taken", {})):
        with started(place, {id: ("one", 1)}, **changes):
            assert PENDING.pop("one") == ("a",)
    with started(place, {"taken": ("one", 1)}) as tester:
        feed(tester, "one", "a")  # its source delivers again what it was not told of
        assert tester.state("count") == {}
        feed(tester, "one", "b")
        assert sorted(HEARD) == ["one: ack a", "one: ack b"]
        assert tester.state("count") == {"ab": 1}
        assert tester.state(ACKER) == {}


@pytest.mark.slow
def test_a_new_spout_with_the_free_id_has_none_of_its_trees(place):
    leave_held(place, {"fed": ("one", 1)}, "one", "a")
    with started(place, {"read": ("one", 1), "fed": ("two", 1)}, rename={"fed": "read"}) as tester:
        assert PENDING == {"one": ("a",), "two": ()}
        feed(tester, "two", "a")  # a message of its own
        assert sorted(HEARD) == ["one: ack a", "two: ack a"]
        feed(tester, "two", "c")
        tester.emit()
        tester.emit()
    with started(place, {"read": ("one", 1), "fed": ("two", 1)}):
        assert PENDING == {"one": (), "two": ("c",)}


@pytest.mark.slow
def test_a_spout_that_is_lacking_is_refused_unless_it_is_given_up(place):
    leave_held(place, {"fed": ("one", 1)}, "one", "a")
    with pytest.raises(CheckpointMismatchError, match=r"messages of spout 'fed' .* rename=\{'fed'") as refused:
        started(place, {"read": ("one", 1)})
    assert refused.value.data["component"] == "fed"
    with started(place, {"read": ("one", 1)}, drop=["fed"]):
        assert PENDING == {"one": ()}


RENUMBERED = pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"fed": ("one", 1)}, {"an": ("two", 1), "fed": ("one", 1)}),
        ({"an": ("two", 1), "fed": ("one", 1)}, {"an": ("two", 3), "fed": ("one", 1)}),
        ({"an": ("two", 3), "fed": ("one", 1)}, {"an": ("two", 1), "fed": ("one", 1)}),
    ],
)


@pytest.mark.slow
@RENUMBERED
def test_a_spout_is_told_of_its_trees_though_another_one_came_or_changed(place, before, after):
    """Tasks of spouts are numbered through: roots of earlier trees have the numbers of the start before."""
    leave_held(place, before, "one", "a")
    with started(place, after) as tester:
        assert PENDING["one"] == ("a",)
        feed(tester, "two", "b")
        assert sorted(HEARD) == ["one: ack a", "two: ack b"]
        assert tester.state(ACKER) == {}


@pytest.mark.slow
@RENUMBERED
def test_it_is_told_too_of_those_that_end_as_it_begins(place, before, after):
    leave_held(place, before, "one", "a")
    with TopologyTester(gathering(after), place, freshObjects=False) as tester:
        tester.advance(31)
        tester.emit()
        assert PENDING["one"] == ("a",)
        assert HEARD == ["one: fail a"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "starts",
    [
        [({"read": ("two", 1)}, {"drop": ["fed"]}), ({"read": ("two", 1), "fed": ("new", 1)}, {})],
        [({"read": ("one", 1)}, {"rename": {"fed": "read"}}), ({"fed": ("new", 1)}, {"drop": ["read"]})],
    ],
)
def test_the_trees_of_one_that_was_dropped_are_not_those_of_who_has_its_id_later(place, starts):
    """Of an id that is the same by chance, the message would be passed over, and acked."""
    leave_held(place, {"fed": ("one", 1)}, "one", "a")
    for spouts, changes in starts:
        started(place, spouts, **changes).close()
    assert PENDING["new"] == ()


@pytest.mark.slow
def test_ids_are_unique_in_a_task_alone(place):
    """What a task that is gone had emitted is told to no other one: its id may be that of another message."""
    leave_held(place, {"fed": (LAST, 3)}, LAST, "a")
    with started(place, {"fed": ("one", 1)}) as tester:
        assert PENDING["one"] == ()
        feed(tester, "one", "a")
        assert tester.state("count") == {"aa": 1}
        assert HEARD == ["one: ack a"]


@pytest.mark.slow
def test_all_trees_can_be_given_up(place):
    leave_held(place, {"fed": ("one", 1)}, "one", "a")
    builder = TopologyBuilder("held")
    builder.setSpout("fed", Named("one"))
    builder.setBolt("count", Tally("word")).globalGrouping("fed")
    with TopologyTester(builder.createTopology(), place, drop=[ACKER, "gathers"], freshObjects=False) as tester:
        feed(tester, "one", "a")
        assert tester.state("count") == {"a": 1}
        assert HEARD == ["one: ack a"]


@pytest.mark.slow
def test_a_trace_names_no_task_that_is_not_there_any_more(place):
    config = {"topology.trace": True, "topology.message.timeout.secs": 10}
    with started(place, {"fed": (LAST, 3)}, config=config) as tester:
        feed(tester, LAST, "a")
        tester.emit()
    with started(place, {"fed": ("one", 1)}, config=config) as tester:
        tester.advance(11)
        tester.emit()  # the message times out, and what is known of it is told
        feed(tester, "one", "b")
        assert HEARD == ["one: ack b"]
