"""How often transactions of spouts begin: the interval is of each that may be in flight, by a clock that tests move."""

import itertools

import pytest

from statefx import TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.coordinator.retrying import StoppedError
from statefx.coordinator.spouts import SpoutTrigger
from statefx.testing import TopologyTester
from tests.testing.topologies import Count


def beginnings(tmp_path, pending, interval_secs, transactions=9, work_secs=0.0, slow=4):
    """Return when each transaction began, if there is always something to read."""

    class Noted(MemoryTransactionalSpout):
        def planPartitionBatch(self, partition, lastMetadata):
            if (found := super().planPartitionBatch(partition, lastMetadata)) is not None:
                began.append(round(tester._now - start, 6))
            return found

    class Slow(Count):
        def execute(self, tup, collector):
            super().execute(tup, collector)
            tester._now += work_secs if len(began) <= slow else 0

    began, start = [], 0.0
    builder = TopologyBuilder("words")
    builder.setSpout("words", Noted([[("a",)] * transactions], "word string", takePerBatch=1))
    builder.setBolt("count", Slow()).globalGrouping("words")
    with TopologyTester(builder.createTopology(), tmp_path / "ck", {"topology.max.spout.pending": pending}) as tester:
        start = tester._now

        def pause(secs):
            tester._now += secs
            return len(began) < transactions

        tester._coordinator.pause = pause
        with pytest.raises(StoppedError):
            tester._driving(lambda: tester._run_spouts(SpoutTrigger(interval_secs)))
    return began


@pytest.mark.slow
def test_with_one_in_flight_one_begins_in_each_interval(tmp_path):
    assert beginnings(tmp_path, 1, 1.0) == pytest.approx(range(9), abs=0.11)


def test_several_in_flight_begin_evenly_within_the_interval(tmp_path):
    assert beginnings(tmp_path, 4, 1.0) == pytest.approx([n / 4 for n in range(9)], abs=0.11)


def test_with_no_interval_each_begins_as_soon_as_there_is_room(tmp_path):
    assert beginnings(tmp_path, 1, 0.0) == [0.0] * 9


def test_who_is_late_does_not_hurry_afterwards(tmp_path):
    """Transactions that take longer than the interval follow one another; what was missed is not made up for."""
    slow = beginnings(tmp_path, 1, 1.0, work_secs=2.5)
    assert slow[:5] == pytest.approx([0, 2.5, 5, 7.5, 10], abs=0.11)
    assert slow[5:] == pytest.approx([11, 12, 13, 14], abs=0.11)


@pytest.mark.parametrize("slow", [1, 2, 3])
@pytest.mark.parametrize("work_secs", [1.3, 1.9, 2.1])
def test_the_interval_counts_from_a_late_beginning(tmp_path, work_secs, slow):
    """Else the transaction behind one that took nearly two intervals would begin at once."""
    began = beginnings(tmp_path, 1, 1.0, work_secs=work_secs, slow=slow)
    assert began[1] == pytest.approx(work_secs, abs=0.11)
    assert min(after - before for before, after in itertools.pairwise(began)) > 0.89


def test_a_spout_that_has_nothing_is_asked_ever_more_seldom_until_it_has(tmp_path):
    """50 times a second at first, ten times at last; after a row as often as at first."""
    looks, began, ready = [], [], [10.05, 10.5]

    class Resting(MemoryTransactionalSpout):
        def isReady(self):
            looks.append(tester._now)
            return tester._now >= ready[len(began)]

        def planPartitionBatch(self, partition, lastMetadata):
            began.append(tester._now)
            return super().planPartitionBatch(partition, lastMetadata)

    builder = TopologyBuilder("words")
    builder.setSpout("words", Resting([[("a",)] * 2], "word string", takePerBatch=1))
    builder.setBolt("count", Count()).globalGrouping("words")
    with TopologyTester(builder.createTopology(), tmp_path / "ck") as tester:

        def pause(secs):
            tester._now += secs
            return len(began) < 2

        tester._coordinator.pause = pause
        with pytest.raises(StoppedError):
            tester._driving(lambda: tester._run_spouts(SpoutTrigger(0.1)))
    before = [at for at in looks if at <= began[0]]
    after = [at for at in looks if at > began[0]]
    assert len(before) < 110
    waits = [later - earlier for earlier, later in itertools.pairwise(before)]
    assert waits[:5] == pytest.approx([0.02, 0.04, 0.08, 0.1, 0.1])
    assert waits[-1] == pytest.approx(0.1)
    assert began[0] <= ready[0] + 0.1
    waits = [later - earlier for earlier, later in itertools.pairwise(after)]
    assert waits[:3] == pytest.approx([0.02, 0.04, 0.08])
