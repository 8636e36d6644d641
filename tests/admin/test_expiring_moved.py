"""Entries that are over at a time, given to other tasks or under other keys: the index by time goes with them."""

from contextlib import closing

import pytest

from statefx import BasicBolt, Stateful, TopologyBuilder
from statefx.admin.reading import open_task, read_checkpoint
from statefx.log.location import Folders
from statefx.state.contract.spaces import Space, end_of
from statefx.state.registry import load_provider
from statefx.state.view.time_index import indexed_keys
from statefx.testing import TopologyTester, rows
from tests.testing.places import place

__all__ = ["place"]

WORDS = [f"word {number}" for number in range(60)]


class Seen(Stateful, BasicBolt):
    def initState(self, state):
        self.recent = state.map("recent", ttl="30 seconds")

    def execute(self, tup, collector):
        self.recent.put(tup.word, 1)
        if tup.word.endswith("7"):
            self.recent.delete(tup.word)  # its place in the index stays


class SeenInCapitals(Seen):
    stateVersion = 2

    def migrateState(self, version, key, value):
        return value

    def migrateKey(self, version, key):
        name, word = key
        return name, word.upper().replace("7", "0")  # those of deleted entries become keys that are there

    def groupingKey(self, key):
        return key[1].lower()


def topology(bolt, tasks):
    builder = TopologyBuilder("seen")
    builder.setStream("words", rows("word string"))
    builder.setBolt("seen", bolt, tasks).fieldsGrouping("words", "word")
    return builder.createTopology()


def stored(place, tasks):
    """Return the entries of the map, and those that the index names, of all tasks."""
    folders = Folders(str(place))
    found, provider = [], load_provider("memory", {})
    for task in range(tasks):
        with closing(open_task(provider, folders, read_checkpoint(folders), "seen", task)[0]) as store:
            entries = {key for key, _ in store.scan(Space.NAMED.value, end_of(Space.NAMED.value))}
            index = store.scan(Space.SYSTEM.value, end_of(Space.SYSTEM.value))
            named = {key for entry in index for key in indexed_keys(*entry)}
            assert entries <= named
            found.append((entries, named))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("bolt", "tasks"), [(Seen, 3), (Seen, 2), (SeenInCapitals, 2), (SeenInCapitals, 3)])
def test_entries_that_were_moved_are_removed_when_they_are_over(place, bolt, tasks):
    with TopologyTester(topology(Seen(), 2), place / "ck") as tester:
        tester.send({"words": [(word,) for word in WORDS]})
    with TopologyTester(topology(bolt(), tasks), place / "ck", rescale=tasks != 2) as tester:
        assert sum(len(entries) for entries, _ in stored(place / "ck", tasks)) == 54
        tester.advance(29)
        tester.send({"words": [("new",)]})
        assert sum(len(entries) for entries, _ in stored(place / "ck", tasks)) == 55
        tester.advance(7)
        tester.send({"words": []})
        assert sum(len(named) for _, named in stored(place / "ck", tasks)) == 1
