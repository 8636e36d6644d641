"""A bolt with an `OpaqueMap` whose keys would go to other tasks: the values in the database can't follow."""

import operator
from collections import Counter

import pytest

from statefx import BatchBolt, Checkpoint, Stateful, TopologyBuilder
from statefx.errors import CheckpointError
from statefx.testing import TopologyTester, rows
from statefx.values import MemoryBackend, OpaqueMap
from tests.values.actors import values

ROWS = [(f"word {number}", f"kind {number % 7}") for number in range(40)]


class Totals(Stateful, BatchBolt):
    """Counts words in a database, and in its own state."""

    def __init__(self, name):
        self.backend = MemoryBackend(name)

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.state, self.totals, self.new = state, OpaqueMap(self.backend, state, self.context), Counter()

    def key(self, tup):
        return tup.word

    def execute(self, tup, collector):
        self.state.put(self.key(tup), self.state.get(self.key(tup), 0) + 1)
        self.new[tup.word] += 1

    def finishBatch(self, collector):
        self.totals.multiUpdate(self.new, operator.add, 0)


class Parts(Totals):
    """The next version, whose keys have another form, and belong where they did."""

    stateVersion = 2

    def migrateState(self, version, key, value):
        return value

    def migrateKey(self, version, key):
        return key, "part"

    def groupingKey(self, key):
        return key[0]

    def key(self, tup):
        return tup.word, "part"


class Kinds(Parts):
    """The next version, whose rows come by another field, and so to other tasks."""

    KINDS = dict(ROWS)

    def groupingKey(self, key):
        return self.KINDS[key[0]]


def topology(bolt, parallelism, field="word"):
    builder = TopologyBuilder("totals")
    builder.setStream("rows", rows("word string, kind string"))
    builder.setBolt("totals", bolt, parallelism).fieldsGrouping("rows", field)
    return builder.createTopology()


@pytest.fixture
def name(request):
    made = MemoryBackend(request.node.name)
    yield made.name
    made.rows.clear()


def counted(place, name, *given, **more):
    """Send all rows once, and return how often each was counted."""
    with TopologyTester(topology(*given), place, **more) as tester:
        tester.send({"rows": ROWS})
    return set(values(MemoryBackend(name)).values())


@pytest.mark.slow
@pytest.mark.parametrize(("was", "now"), [(1, 3), (2, 4), (4, 1)])
def test_its_tasks_stay_and_the_refusal_says_why(tmp_path, name, was, now):
    assert counted(tmp_path, name, Totals(name), was) == {1}
    with pytest.raises(CheckpointError, match=r"it keeps an OpaqueMap, whose values .* belong to the tasks that wrote"):
        Checkpoint(tmp_path).rescale({"totals": now}, groupingKey={"totals": lambda key: key})
    assert counted(tmp_path, name, Totals(name), was) == {2}


@pytest.mark.slow
def test_its_keys_get_another_form_where_they_stay_in_their_tasks(tmp_path, name):
    assert counted(tmp_path, name, Totals(name), 2) == {1}
    assert counted(tmp_path, name, Parts(name), 2) == {2}


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize(("bolt", "now", "field"), [(Parts, 3, "word"), (Kinds, 2, "kind")])
def test_its_keys_get_no_form_that_sends_them_to_other_tasks(tmp_path, name, bolt, now, field):
    assert counted(tmp_path, name, Totals(name), 2) == {1}
    with pytest.raises(CheckpointError, match="it keeps an OpaqueMap"):
        counted(tmp_path, name, bolt(name), now, field, rescale=True)
    assert counted(tmp_path, name, Totals(name), 2) == {2}
