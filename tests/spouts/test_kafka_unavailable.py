"""Partitions whose leader is away: the others go on, and nothing of them is lost (``unavailable='skip'``)."""

import re
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone

import pytest
from confluent_kafka.admin import AdminClient

from statefx import Context
from statefx.connectors.kafka import OpaqueKafkaSpout, clients, planning, reading
from statefx.errors import FailedException, InputError, TopologyError
from statefx.testing import TopologyTester
from tests.kafka.broker import KafkaBroker
from tests.kafka.libraries import UnavailableError
from tests.spark.running import wait_for
from tests.spouts.kafka_topologies import QUICK, Count, counted, lines, once, spout, topology

pytestmark = pytest.mark.slow

WAIT_SECS = 60


@pytest.fixture(scope="module")
def nodes():
    """A broker, and another one of its cluster, which is killed."""
    try:
        first = KafkaBroker()
    except UnavailableError as why:
        pytest.skip(str(why))
    with first, KafkaBroker(joins=first) as second:
        yield first, second


@pytest.fixture
def two(nodes, monkeypatch):
    """The first broker, the second one, and a topic of which each has a partition with ten records."""
    for module, name, secs in [
        (clients, "REQUEST_SECS", 2.0),
        (clients, "CONTROLLER_SECS", 0.5),
        (clients, "START_SECS", 1.0),
        (clients, "FAILURE_SECS", 0.5),
        (reading, "REQUEST_SECS", 2.0),
        (planning, "REQUEST_SECS", 2.0),
        (planning, "LEADER_AGAIN_SECS", 0.0),
        (planning, "DISCOVERY_SECS", 0.0),
    ]:
        monkeypatch.setattr(module, name, secs)
    first, second = nodes
    topic = first.topic(nodes=[1, 2])
    first.send(topic, *lines(0, 10))
    first.send(topic, *lines(10, 20), partition=1)
    return first, second, topic


@contextmanager
def killed(nodes, kill="kill", start="start"):
    """Kill the second broker, until the end; the cluster knows each time."""
    first, second, *_ = nodes
    getattr(second, kill)()
    try:
        in_cluster(first, 1)
        yield
    finally:
        getattr(second, start)()
        in_cluster(first, 2)


def frozen(nodes):
    """Have the second broker hang, so long that the cluster takes it for dead; it is back sooner than a killed one."""
    return killed(nodes, "freeze", "thaw")


def in_cluster(broker, count):
    """Wait until a broker counts so many: a client that knows others too may ask one that hangs."""

    def counts():
        return len(AdminClient(broker.client()).list_topics(timeout=5).brokers) == count

    wait_for(counts, f"{count} brokers", WAIT_SECS)


@contextmanager
def on_the_driver(reads, metadata=None, *, bounded=False):
    """Yield what looks, and returns by partition what is planned; it is what the next look goes on from."""
    reads.open(Context({"topology.transactional.id": "a"}, "records", -1, 1, 1))
    if bounded:
        reads.prepareForAvailableNow()
    last = dict(metadata or {})
    reads.initPartitions(last)

    def look():
        found = {
            number: planned
            for number in range(reads.numPartitions())
            if (planned := reads.planPartitionBatch(number, last.get(number))) is not None
        }
        last.update(found)
        return {number: (planned["start"], planned["end"]) for number, planned in found.items()}

    look.last = last
    yield look
    reads.close()


def until(look, number):
    """Look until there is something of a partition, as often as the driver does: a look that fails is tried again.

    A broker that was started leads a moment later; one that hangs may be asked about topics before it counts as gone.
    """
    limit, why = time.monotonic() + WAIT_SECS, []
    while True:
        try:
            if number in (found := look()):
                return found
        except FailedException as failure:
            why.append(failure.message)
        assert time.monotonic() < limit, f"nothing comes of partition {number}: {why}"


@pytest.mark.soak
def test_the_others_go_on_and_a_partition_goes_on_where_it_was(two, caplog):
    first, _, topic = two
    reads = spout(first, topic, unavailable="skip")
    with on_the_driver(reads) as look:
        assert look() == {0: (0, 10), 1: (0, 10)}
        with killed(two):
            first.send(topic, *lines(20, 25))
            assert look() == {0: (10, 15)}
            assert look() == {}
            first.send(topic, *lines(25, 30))
            assert look() == {0: (15, 20)}
            shown = reads.committed(look.last)
            assert shown["unavailable"] == [f"{topic}-1"]
            assert shown["latestOffset"] == {topic: {"0": 20, "1": 10}}
            with on_the_driver(spout(first, topic), look.last) as waits, pytest.raises(FailedException):
                waits()
        first.send(topic, *lines(30, 33), partition=1)
        assert until(look, 1) == {1: (10, 13)}
        assert "unavailable" not in reads.committed(look.last)
    said = [each.message for each in caplog.records if f"{topic}-1: " in each.message]
    assert len(said) == 2
    assert "no leader answers" in said[0]
    assert "answers again" in said[1]


@pytest.mark.soak
def test_a_leader_that_is_there_and_does_not_answer(two):
    """Its connection is open, and the cluster may still name it."""
    first, second, topic = two
    with on_the_driver(spout(first, topic, unavailable="skip", maxRows=4)) as look:
        assert look() == {0: (0, 2), 1: (0, 2)}
        second.freeze()
        try:
            assert until(look, 0) == {0: (2, 6)}
        finally:
            second.thaw()
        assert until(look, 1)[1][0] == 2


@pytest.mark.soak
def test_tasks_find_another_controller(two):
    """Any broker of the cluster may be named as the one that knows all topics, also the one that is away."""
    first, _, topic = two
    made = [reading.Readers(spout(first, topic).clients, "group", WAIT_SECS, lambda *gone: None) for _ in range(6)]
    (known,) = {each.topic_id(topic) for each in made}
    with killed(two):
        assert {each.topic_id(topic) for each in made} == {known}
    for each in made:
        each.close()


@pytest.mark.soak
def test_a_first_run_that_begins_at_the_end_waits_for_all_partitions(two):
    """What a partition had when the run began, nobody could say later."""
    first, _, topic = two
    reads = spout(first, topic, unavailable="skip", start="latest")
    with frozen(two), on_the_driver(reads) as look, pytest.raises(FailedException):
        look()
    limit = time.monotonic() + WAIT_SECS
    with on_the_driver(spout(first, topic, unavailable="skip", start="latest")) as look:
        while True:
            try:
                assert look() == {0: (10, 10), 1: (10, 10)}
                break
            except FailedException:
                assert time.monotonic() < limit


@pytest.mark.soak
def test_a_run_that_reads_what_is_there_ends_without_it_and_the_next_one_reads_it(two, tmp_path):
    first, _, topic = two
    tester = TopologyTester(topology(spout(first, topic, unavailable="skip", maxRows=8)), tmp_path / "ck")
    with tester:
        tester.emit()
        assert len(counted(tester)) == 8
        with frozen(two):
            first.send(topic, *lines(20, 30))
            tester.drain()
            read = counted(tester)
            assert set(read) >= set(lines(0, 10) + lines(20, 30))
            assert set(lines(10, 20)) - set(read)
        limit = time.monotonic() + WAIT_SECS
        while counted(tester) != once(*lines(0, 30)):
            assert time.monotonic() < limit, counted(tester)
            tester.drain()


@pytest.mark.soak
def test_a_leader_that_comes_back_in_such_a_run_is_for_the_next_one(two):
    first, second, topic = two
    with on_the_driver(spout(first, topic)) as look:
        assert look() == {0: (0, 10), 1: (0, 10)}
        read = look.last
    first.send(topic, *lines(20, 25), partition=1)
    reads = spout(first, topic, unavailable="skip")
    second.freeze()
    try:
        with on_the_driver(reads, read, bounded=True) as look:
            assert look() == {}
            second.thaw()
            limit = time.monotonic() + WAIT_SECS
            while reads._ranges.cluster.away:
                assert time.monotonic() < limit
                assert look() == {}
            assert look() == {}
    finally:
        second.thaw()
    with on_the_driver(reads, read) as look:
        assert until(look, 1) == {1: (10, 15)}


# ---- an opaque spout


def opaque(broker, topics, kind=OpaqueKafkaSpout, **options):
    return kind(
        broker.address, topics, "string", **{"columns": ("value",), "config": QUICK, "patience": 3.0, **options}
    )


class FailsOnce(Count):
    """Loses the broker of the second partition in the first attempt, as soon as a record of it has come."""

    lost = staticmethod(lambda: None)
    failed = False

    def execute(self, tup, collector):
        if tup.value == "line 15" and not FailsOnce.failed:
            FailsOnce.failed = True
            FailsOnce.lost()
            raise FailedException("the first attempt")
        super().execute(tup, collector)


class Freezes(OpaqueKafkaSpout):
    """Loses the broker of the second partition when a batch of it is planned, and before it is read."""

    lost = staticmethod(lambda: None)

    def _plan(self, attempt, tp, last):
        planned = super()._plan(attempt, tp, last)
        if tp.partition == 1 and planned is not None:
            Freezes.lost()
        return planned


def drained(reads, place, wanted, bolt=None):
    """Read with one start after the other, until everything is counted."""
    limit = time.monotonic() + WAIT_SECS
    with TopologyTester(topology(reads, bolt), place) as tester:
        while counted(tester) != once(*wanted):
            assert time.monotonic() < limit, counted(tester)
            tester.drain()


def test_opaque_batch_whose_broker_is_lost_goes_on_without_it(two, tmp_path, caplog):
    first, second, topic = two
    FailsOnce.failed = False
    FailsOnce.lost = staticmethod(lambda: (second.kill(), in_cluster(first, 1)))
    reads = opaque(first, topic)
    try:
        with TopologyTester(topology(reads, FailsOnce()), tmp_path / "ck") as tester:
            tester.drain()
            assert FailsOnce.failed
            assert counted(tester) == once(*lines(0, 10)), "the batch, without the partition"
        assert f"{topic}-1 is skipped in transaction 1" in caplog.text
        first.send(topic, *lines(20, 25))
        with TopologyTester(topology(reads), tmp_path / "ck") as tester:  # the next start
            tester.drain()
            assert counted(tester) == once(*lines(0, 10), *lines(20, 25))
    finally:
        second.start()
        in_cluster(first, 2)
    drained(reads, tmp_path / "ck", lines(0, 25))


@pytest.mark.soak
def test_opaque_batch_whose_broker_hangs_while_it_is_read(two, tmp_path):
    first, second, topic = two
    Freezes.lost = staticmethod(second.freeze)
    reads = opaque(first, topic, Freezes)
    try:
        with TopologyTester(topology(reads), tmp_path / "ck") as tester:
            tester.emit()
            assert counted(tester) == once(*lines(0, 10))
    finally:
        Freezes.lost = staticmethod(lambda: None)
        second.thaw()
    drained(reads, tmp_path / "ck", lines(0, 20))


def test_opaque_spout_reads_what_comes_later_in_parts_of_max_rows(two, tmp_path):
    first, _, topic = two
    other = first.topic(partitions=1)
    first.send(other, *lines(100, 110))
    reads = opaque(first, [topic, other], maxRows=6)
    with TopologyTester(topology(reads), tmp_path / "ck") as tester:
        tester.emit()
        assert len(counted(tester)) == 6
        tester.drain()
        assert counted(tester) == once(*lines(0, 20), *lines(100, 110))
    first.send(topic, *lines(20, 23))
    with TopologyTester(topology(reads), tmp_path / "ck") as tester:
        tester.drain()
        assert counted(tester) == once(*lines(0, 23), *lines(100, 110))
    with pytest.raises(InputError, match="go back to the former topics, in their order"):
        TopologyTester(topology(opaque(first, [other, topic])), tmp_path / "ck").drain()


def test_opaque_spout_begins_at_offsets_and_refuses_latest(two, tmp_path):
    first, _, topic = two
    reads = opaque(first, topic, start={topic: {1: 7}})
    with TopologyTester(topology(reads), tmp_path / "ck") as tester:
        tester.drain()
        assert counted(tester) == once(*lines(0, 10), *lines(17, 20))
    with pytest.raises(TopologyError, match="start='latest' would be another offset"):
        opaque(first, topic, start="latest")


def test_opaque_spout_refuses_another_time_than_before_and_reads_partitions_that_come_later(kafka, tmp_path):
    """By the other one, a task that reads a new partition would pass over what it had before that time."""
    topic = kafka.topic()
    began = datetime.now(UTC)

    def reads(start):
        return topology(opaque(kafka, topic, start=start))

    with TopologyTester(reads(began), tmp_path / "ck") as tester:
        tester.drain()
        kafka.send(topic, "a")
        tester.drain()
        assert counted(tester) == once("a")
    kafka.add_partitions(topic, 2)
    kafka.send(topic, "b", partition=1)
    again = tester.restart(reads(datetime.now(UTC)))
    with again, pytest.raises(InputError, match=re.escape(f"and was {began} when this checkpoint began")):
        again.drain()
    with tester.restart(reads(began.astimezone(timezone(timedelta(hours=2))))) as other:
        other.drain()
        assert counted(other) == once("a", "b")
        kafka.send(topic, "c", partition=1)
        other.drain()
    kafka.add_partitions(topic, 3)
    kafka.send(topic, "d", partition=2, timestamp=int(began.timestamp() * 1000) - 5000)
    with other.restart(reads("earliest")) as last:
        last.drain()
        assert counted(last) == once("a", "b", "c", "d")
    read_before = last.restart(reads(began))
    with read_before, pytest.raises(InputError, match="and was no time when this checkpoint began"):
        read_before.drain()


def test_opaque_spout_goes_on_without_a_topic_that_was_deleted(kafka, tmp_path, monkeypatch, caplog):
    """Of two tasks each reads one topic: who has read nothing of the other one is not told that it was there."""
    monkeypatch.setattr(planning, "DISCOVERY_SECS", 0.0)
    stays, goes = kafka.topic(), kafka.topic()
    kafka.send(stays, "a")
    kafka.send(goes, "x")
    reads = topology(opaque(kafka, [stays, goes], lost="skip"))
    with TopologyTester(reads, tmp_path / "ck") as tester:
        tester.drain()
        assert counted(tester) == once("a", "x")
    kafka.delete(goes)
    kafka.send(stays, "b")
    with tester.restart() as other:
        other.drain()
        assert counted(other) == once("a", "x", "b")
    monkeypatch.setattr(planning, "DOUBT_SECS", 0.0)
    kafka.send(stays, "c")
    with other.restart() as last:
        last.drain()
        assert counted(last) == once("a", "x", "b", "c")
    assert f"topic '{goes}' was deleted; {goes}-0 was read up to offset 1" in caplog.text
