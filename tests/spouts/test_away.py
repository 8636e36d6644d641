"""A source that is away, or slow, is seen: in the status, and in what ends the driver."""

import pytest

from statefx import FailedException, TopologyBuilder
from statefx.coordinator.progress import SLOW_SECS, Progress
from statefx.coordinator.retrying import StoppedError
from statefx.coordinator.transaction import iso
from statefx.errors import BoltError
from statefx.state.view.time_index import EPOCH
from statefx.testing import TopologyTester
from tests.spouts.numbers import ALL, Count, Planned, topology


class Away(Planned):
    """`hook` of the driver's copy raises as often as ``config["failures"]`` says."""

    def __init__(self, folder, hook):
        super().__init__(folder)
        self.hook = hook

    def open(self, context):
        self.failures = context.config["failures"]

    def fail(self, hook):
        if hook == self.hook and self.failures:
            self.failures.pop()
            raise FailedException("the server is away")

    def isReady(self):
        self.fail("isReady")
        return True

    def numPartitions(self):
        self.fail("numPartitions")
        return super().numPartitions()

    def planPartitionBatch(self, partition, lastMetadata):
        self.fail("planPartitionBatch")
        return super().planPartitionBatch(partition, lastMetadata)


def started(tmp_path, hook, failures):
    return TopologyTester(topology(Away(tmp_path, hook)), tmp_path / "ck", {"failures": [None] * failures}, now=EPOCH)


@pytest.mark.parametrize("hook", ["isReady", "numPartitions", "planPartitionBatch"])
def test_the_status_says_why_nothing_is_read_and_since_when_until_the_spout_answers(hook, tmp_path):
    with started(tmp_path, hook, 2) as tester:
        seen = []

        def look():
            seen.append(tester.status["stuck"])
            if len(seen) < 3:  # the third is after the second failure
                tester.when("pause", look)

        tester.when("pause", look)
        tester.advance(5)
        tester.drain()
        assert "stuck" not in tester.status
        assert tester.state("count") == ALL
    reason = f"spout 'numbers', {hook}: the server is away"
    assert seen == [{"phase": "PLANNING", "txid": 1, "since": iso(tester._began + 5), "reason": reason}] * 3


def test_a_tester_whose_spout_stays_away_says_why_it_ends(tmp_path):
    with (
        started(tmp_path, "numPartitions", 1000) as tester,
        pytest.raises(StoppedError, match=r"stopped.*spout 'numbers', numPartitions: the server is away"),
    ):
        tester.emit()


def test_a_hook_that_takes_long_is_shown_while_it_runs():
    now = [0.0]
    progress = Progress(clock=lambda: now[0], now=lambda: 1000 + now[0])
    with progress.asking("numbers", "planPartitionBatch", 3):
        assert "stuck" not in progress.status()
        now[0] = SLOW_SECS
        assert progress.status()["stuck"] == {
            "phase": "PLANNING",
            "txid": 3,
            "since": "1970-01-01T00:16:40.000+00:00",
            "reason": "spout 'numbers' has been in planPartitionBatch on the driver for 10 s",
        }
    assert "stuck" not in progress.status()


class Breaks(Planned):
    def planPartitionBatch(self, partition, lastMetadata):
        raise ValueError("no offsets")


def test_what_the_driver_s_copy_raises_is_said_to_be_of_the_driver(tmp_path):
    says = "spout 'numbers', on the driver, hook planPartitionBatch, transaction 1: ValueError: no offsets"
    with TopologyTester(topology(Breaks(tmp_path)), tmp_path / "ck") as tester, pytest.raises(BoltError, match=says):
        tester.emit()


def test_rows_of_the_progress_are_those_that_bolts_received(tmp_path):
    with TopologyTester(topology(Planned(tmp_path)), tmp_path / "ck") as tester:
        done = tester.emit().progress
    assert done.rows == {"count": done.input_rows}
    assert done.input_rows


def test_a_stream_of_a_spout_is_not_said_to_be_a_bolt_s(tmp_path):
    builder = TopologyBuilder("direct")
    builder.setSpout("numbers", Planned(tmp_path))
    builder.setBolt("count", Count()).directGrouping("numbers")
    says = r"spout 'numbers', task 0, .*transaction 1: stream 'default' of 'numbers' is read by 'count' with direct"
    with TopologyTester(builder.createTopology(), tmp_path / "ck") as tester, pytest.raises(BoltError, match=says):
        tester.emit()
