"""State that stays open over many transactions, while the files that it was opened from are merged and swept."""

import os

import pytest

from statefx import FailedException, StatefulBolt, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.testing import TopologyTester
from statefx.testing.engine import Limits
from statefx.testing.living import LocalRunEngine
from statefx.testing.processes import Process

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


class LivingTester(TopologyTester):
    def _make_engine(self, deployment, seed):
        return LocalRunEngine(
            deployment, lambda: Process(deployment, self._steps, self._cache, fresh=False), 0, 600.0, self._clock
        )


@pytest.mark.parametrize("provider", ["memory", "rocksdb"])
def test_a_scan_of_state_that_was_opened_long_ago(tmp_path, provider):
    FAIL[:] = [6]
    builder = TopologyBuilder("long")
    numbers = [[(number,) for number in range(ROWS)]]
    builder.setSpout("numbers", MemoryTransactionalSpout(numbers, "number long", takePerBatch=1))
    builder.setBolt("large", Large()).fieldsGrouping("numbers", "number")
    config = {"topology.state.provider": provider, "topology.state.checkpoint.interval.ms": 1}
    limits = Limits(min_age_secs=0.0, sweep_every=10, versions_kept=20)
    with LivingTester(builder.createTopology(), tmp_path / "ck", config, limits=limits) as tester:
        tester.drain()
        assert len(tester.state("large")) == ROWS
        tester._engine.close()
