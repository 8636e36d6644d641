"""Rows that wait in quarantine when the bolt groups its rows otherwise: none of them may be lost."""

import pytest

from statefx import BasicBolt, ReplayDeadLetters, StatefulBolt, TopologyBuilder, quarantined
from statefx.coordinator.log import read_state
from statefx.errors import CheckpointError
from statefx.storage import FolderStorage
from statefx.testing import TopologyTester, rows

FIELDS = "key string, size long, n long"
KEYS = [f"key {number}" for number in range(40)]
MENDED = set()


class Orders(StatefulBolt):
    """Keeps the rows of each key in their order; a negative one is bad, until it is mended."""

    def initState(self, state):
        self.orders = state

    def key(self, tup):
        return tup.key

    def execute(self, tup, collector):
        self.orders.put(self.key(tup), [*self.orders.get(self.key(tup), []), tup.n])
        if tup.n < 0 and tup.n not in MENDED:
            raise ValueError(f"no order {tup.n}")


class Sized(Orders):
    """The next version: a key has its size as well."""

    stateVersion = 2

    def migrateState(self, version, key, value):
        return value

    def migrateKey(self, version, key):
        return key, len(key)

    def groupingKey(self, key):
        return key

    def key(self, tup):
        return tup.key, tup.size


class Ignores(BasicBolt):
    def execute(self, tup, collector):
        pass


def topology(bolt, parallelism, *fields):
    builder = TopologyBuilder("orders")
    builder.setStream("live", rows(FIELDS))
    builder.setStream("letters", rows("row string, number long"))
    builder.setBolt("again", ReplayDeadLetters(FIELDS, quarantined=True)).globalGrouping("letters")
    orders = builder.setBolt("orders", bolt, parallelism, onError="quarantineKey")
    orders.fieldsGrouping("live", *fields).fieldsGrouping("again", *fields)
    builder.setBolt("read", Ignores()).shuffleGrouping("orders", stream="deadLetter")
    return builder.createTopology()


def started(place, given, **more):
    return TopologyTester(given, place, {"topology.state.provider": "memory"}, **more)


def send(tester, n=None, letters=()):
    """Send a row of each key, and letters; return the letters of the transaction."""
    live = [] if n is None else [(key, len(key), n) for key in KEYS]
    sent = tester.send({"live": live, "letters": list(letters)})
    return [(letter[0], letter[-1]) for letter in sent.emitted("orders", "deadLetter")]


@pytest.mark.parametrize(
    ("bolt", "was", "now"),
    [(Sized, 2, 2), (Sized, 2, 3), (Sized, 1, 1), (Orders, 1, 1), (Orders, 2, 1)],
)
def test_a_bolt_with_keys_in_quarantine_keeps_its_grouping_until_they_are_free(tmp_path, bolt, was, now):
    """They are written as the fields of the grouping: with other fields, no row that waits would be found again."""
    MENDED.clear()
    place, change = tmp_path / "ck", {"rescale": was != now}
    with started(place, topology(Orders(), was, "key")) as tester:
        send(tester, 1)
        letters = send(tester, -2) + send(tester, 3)
    generation = read_state(FolderStorage(place)).generation
    with pytest.raises(CheckpointError, match=r"can't group its rows otherwise .*of its key 'key \d+'.*quarantined"):
        started(place, topology(bolt(), now, "key", "size"), **change)
    assert read_state(FolderStorage(place)).generation == generation
    assert len(list(quarantined(place, "orders"))) == len(KEYS)

    MENDED.add(-2)
    with started(place, topology(Orders(), was, "key")) as tester:
        assert send(tester, letters=letters) == []
    with started(place, topology(bolt(), now, "key", "size"), **change) as tester:
        assert send(tester, 4) == []
        found = tester.state("orders")
        assert list(found.values()) == [[1, -2, 3, 4]] * len(KEYS)
