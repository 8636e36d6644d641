"""Timers of which onTimer raises an error: what the call has done is undone, they have fired, and the others go on."""

import random
from datetime import timedelta

import pytest

from statefx import ReplayDeadLetters, StatefulBolt, TopologyBuilder
from statefx.errors import BoltError
from statefx.testing import TopologyTester, rows
from tests.runtime.recount import NOON, at

KEYS = 12


class Fires(StatefulBolt):
    """Fires each key twice; keys of `bad` raise an error when all is done that there is to do."""

    outputFields = "key long, nth long"

    def __init__(self, bad):
        self.bad = bad

    def initState(self, state):
        self.state, self.fired = state, state.map("fired")

    def execute(self, tup, collector):
        self.timers.set(tup.key, at(tup.after), 1, processing=tup.key % 2 == 0)

    def onTimer(self, key, at, value, collector):
        collector.emit((key, value))
        self.fired.put((key, value), at)
        self.state.put("all", self.state.get("all", 0) + 1)
        if value == 1:
            self.timers.set(key, at + timedelta(seconds=1), 2, processing=key % 2 == 0)
            self.timers.set(("other", key), at + timedelta(days=9), processing=True)
        if (key, value) in self.bad:
            raise ValueError(f"key {key}")


class Keep(StatefulBolt):
    def initState(self, state):
        self.letters = state

    def execute(self, tup, collector):
        self.letters[tup.message] = (tup.row, tup.hook, tup.error)


def topology(bad, mode):
    builder = TopologyBuilder("timers")
    builder.setStream("rows", rows("key long, after long, at timestamp"), timestamp="at")
    builder.setBolt("fires", Fires(bad), onError=mode).fieldsGrouping("rows", "key")
    if mode == "deadLetter":
        builder.setBolt("keep", Keep()).globalGrouping("fires", stream="deadLetter")
        builder.setBolt("again", ReplayDeadLetters("key long")).globalGrouping("fires", stream="deadLetter")
        builder.setBolt("none", Keep()).globalGrouping("again")
    return builder.createTopology()


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("provider", ["memory", "rocksdb"])
@pytest.mark.parametrize("mode", ["skip", "deadLetter"])
def test_a_timer_that_raises_is_undone_and_has_fired(mode, provider, tmp_path):
    for seed in range(4):
        chance = random.Random(seed)
        bad = {(key, chance.choice([1, 2])) for key in range(KEYS) if chance.random() < 0.4}
        wanted = {(key, 1) for key in range(KEYS)} | {(key, 2) for key in range(KEYS) if (key, 1) not in bad}
        wanted -= bad
        config = {"topology.state.provider": provider}
        with TopologyTester(topology(bad, mode), tmp_path / str(seed), config, now=NOON) as tester:
            tester.send({"rows": [(key, chance.randint(1, 9), NOON) for key in range(KEYS)]})
            for secs in (5, 20, 30):  # some fire with what they set meanwhile, some later
                tester.advance(5)
                tester.send({"rows": [(1000 + secs, 10_000, at(secs))]})
                tester.send({"rows": []})
            assert sorted(tester.emitted("fires")) == sorted(wanted)
            assert set(tester.state("fires", map="fired")) == wanted
            assert tester.state("fires").get("all", 0) == len(wanted)
            set_aside = sum(sent.progress.as_dict()["rowsSetAside"].get("fires", 0) for sent in tester._transactions)
            raised = {(key, nth) for key, nth in bad if nth == 1 or (key, 1) not in bad}
            assert set_aside == len(raised)
            if mode == "deadLetter":
                letters = tester.state("keep")
                assert len(letters) == len(raised)
                assert set(letters.values()) <= {(None, "onTimer", "ValueError")}
                assert all("the timer of key" in message and "ValueError: key" in message for message in letters)


def test_without_on_error_it_ends_the_query(tmp_path):
    with TopologyTester(topology({(1, 1)}, "fail"), tmp_path, now=NOON) as tester:
        tester.send({"rows": [(1, 1, NOON)]})
        with pytest.raises(BoltError, match="hook onTimer"):
            tester.closeTime()
