"""State that stays open over many transactions, while the files that it was opened from are merged and swept."""

import os
import random

import pytest

from statefx import FailedException, StatefulBolt, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.state.changelog.materialisation import DictImage
from statefx.state.changelog.store import ADVANCES_MAX
from statefx.state.contract.store import EMPTY
from statefx.state.view.overlay import StoreReads
from statefx.testing import TopologyTester
from statefx.testing.engine import Limits
from statefx.testing.site import Site, prepare, writes
from statefx_memory import MemoryStateProvider

ROWS = 80
FAIL = []


class Large(StatefulBolt):
    """Has large values, and looks at all of them at the end only."""

    outputFields = {}

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        if tup.number in FAIL:  # the next attempt opens the state again, in a process that remembers what was changed
            FAIL.remove(tup.number)
            raise FailedException("not now")
        self.state.put(tup.number, os.urandom(200_000))  # more than comes with the head of a file
        if tup.number == ROWS - 1:
            assert len(list(self.state.items())) == ROWS


@pytest.mark.parametrize("provider", ["memory", "rocksdb"])
def test_a_scan_of_state_that_was_opened_long_ago(tmp_path, provider):
    FAIL[:] = [6]
    builder = TopologyBuilder("long")
    numbers = [[(number,) for number in range(ROWS)]]
    builder.setSpout("numbers", MemoryTransactionalSpout(numbers, "number long", takePerBatch=1))
    builder.setBolt("large", Large()).fieldsGrouping("numbers", "number")
    config = {
        "topology.engine": "pipelined",
        "topology.state.provider": provider,
        "topology.state.checkpoint.interval.ms": 1,
    }
    limits = Limits(min_age_secs=0.0, sweep_every=10, versions_kept=20)
    with TopologyTester(builder.createTopology(), tmp_path / "ck", config, limits=limits, freshObjects=False) as tester:
        tester.drain()
        assert len(tester.state("large")) == ROWS


class Asked(DictImage):
    """Notes how many keys it is asked for."""

    asked = 0

    def get(self, keys):
        self.asked += len(keys)
        return super().get(keys)


def test_how_many_keys_there_are_costs_what_has_changed(tmp_path, monkeypatch):
    """A task that lives says so in each transaction; it went through all that was laid over the image."""
    monkeypatch.setattr("statefx_memory.provider.DictImage", Asked)
    chance = random.Random(7)
    site = Site(MemoryStateProvider({}), tmp_path)
    base = site.commit(EMPTY, {b"u%d" % number: b"1" for number in range(0, 2000, 2)} | {b"s1": b"1"})
    store, known = site.open(base), {b"u%d" % number for number in range(0, 2000, 2)}
    for txid in range(2, 40):
        drawn = {b"u%d" % chance.randrange(2000) for _ in range(50)}
        changes = {key: None if chance.random() < 0.3 else b"%d" % txid for key in drawn} | {b"s%d" % txid: b"1"}
        known = {key for key in known | drawn if changes.get(key, b"") is not None}
        token = prepare(store, txid, writes(changes))
        assert store.advance(txid, token, writes(changes))
        before = store._image.asked
        assert store.count(b"u") == len(known)
        assert store._image.asked - before <= 50
    assert store.count(b"s") == 39
    assert store._image.asked < 39 * 2 * 60
    site.close()


class Counts(StatefulBolt):
    """Counts under one key, and keeps a list under another."""

    outputFields = {}

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put("n", self.state.get("n", 0) + 1)
        self.state.put("rows", [*self.state.get("rows", []), tup.number])


def test_what_is_known_stays_known_when_a_store_is_opened_anew(tmp_path, monkeypatch):
    """A store is opened anew after so many transactions, else each merge of its files would leave it further behind."""
    opened, read = [], []
    monkeypatch.setattr(MemoryStateProvider, "newState", _noting(opened, MemoryStateProvider.newState))
    monkeypatch.setattr(StoreReads, "get", _noting(read, StoreReads.get))
    builder = TopologyBuilder("hot")
    numbers = [[(number,) for number in range(3 * ADVANCES_MAX)]]
    builder.setSpout("numbers", MemoryTransactionalSpout(numbers, "number long", takePerBatch=1))
    builder.setBolt("counts", Counts()).globalGrouping("numbers")
    config = {"topology.engine": "pipelined", "topology.state.checkpoint.interval.ms": 1}
    with TopologyTester(builder.createTopology(), tmp_path / "ck", config, freshObjects=False) as tester:
        tester.drain()
        assert 3 <= len(opened) <= 5
        assert sum(len(keys) for _, keys in read) == 2, "each key is read once"
        assert tester.state("counts") == {"n": len(numbers[0]), "rows": list(range(len(numbers[0])))}


def _noting(calls, function):
    def noting(*arguments):
        calls.append(arguments)
        return function(*arguments)

    return noting
