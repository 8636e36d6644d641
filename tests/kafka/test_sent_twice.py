"""Requests that a client sends twice: what comes behind the next one changes nothing."""

from contextlib import suppress

import pytest

from statefx.testing import TopologyTester
from tests.kafka.proxy import END_TXN, OFFSET_COMMIT, TXN_OFFSET_COMMIT, LateBroker
from tests.kafka.sink_process import topology
from tests.kafka.topics import once, read, settled, steps
from tests.spark.running import wait_for
from tests.spouts.kafka_topologies import lines, spout
from tests.spouts.kafka_topologies import topology as reading

pytestmark = pytest.mark.slow

BOUND_SECS = 30

WORK = [{"rows": [("a",)]}, {"rows": [("b",)]}, {"rows": [("c",), ("d",)]}, {"rows": [("e",)]}]


class Dead(BaseException):
    """The driver has died."""


@pytest.fixture(scope="module")
def broker(kafka):  # which skips where there is no Kafka
    with LateBroker() as made:
        yield made


@pytest.mark.soak
@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("kept", "late", "error", "failing"),
    [
        pytest.param(END_TXN, "before _mark", Dead, "after _mark", id="commit-dead"),
        pytest.param(
            END_TXN, "before _mark", ConnectionError, "after _mark", id="commit-failed", marks=pytest.mark.soak
        ),
        pytest.param(TXN_OFFSET_COMMIT, "before _commit", Dead, "after _commit", id="marker-dead"),
    ],
)
def test_a_copy_that_comes_in_the_next_transaction_changes_nothing(broker, tmp_path, kept, late, error, failing):
    topic = broker.topic(partitions=2)
    tester = TopologyTester(topology(broker.address, topic), tmp_path)
    tester.send(WORK[0])
    broker.keep(kept)
    tester.send(WORK[1])
    assert settled(broker, topic, BOUND_SECS)  # else its late marker is taken for an open transaction

    def deliver():
        wait_for(lambda: not settled(broker, topic, 0), "rows of the next transaction at the broker")
        broker.deliver()

    def fail():
        raise error("behind the late copy")

    with once(tester, late, deliver), once(tester, failing, fail), suppress(Dead):
        tester.send(WORK[2])
    with TopologyTester(topology(broker.address, topic), tmp_path) as successor:
        successor.run(WORK)
    assert sorted(each.value().decode() for each in read(broker, topic)) == ["a", "b", "c", "d", "e"]


def test_a_producer_is_kept_while_no_connection_is_lost(broker, tmp_path):
    moments = []
    with steps(moments.append), TopologyTester(topology(broker.address, broker.topic()), tmp_path) as tester:
        for work in WORK[:3]:
            tester.send(work)
        assert moments.count("after _initialised") == 1
        broker.keep(END_TXN)
        for work in WORK[:3]:
            tester.send(work)
    assert moments.count("after _initialised") == 2


def test_a_group_has_the_last_offset_when_the_driver_has_ended(broker, tmp_path):
    """A commit that the client sends again comes behind the one of the next transaction."""
    topic = broker.topic()
    broker.send(topic, *lines(0, 20))
    reads = spout(broker, topic, group="behind", maxRows=10)
    with TopologyTester(reading(reads), tmp_path, freshObjects=False) as tester:
        broker.keep(OFFSET_COMMIT)
        assert tester.drain() == 2
    assert broker.has_kept
    assert broker.group_offsets("behind", topic) == {0: 20}
