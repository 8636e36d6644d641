"""Other records stand at the offsets of those that were read: a topic was made again, or a partition lost its end."""

import shutil
import time
from contextlib import suppress

import pytest

from statefx import Context
from statefx.connectors.kafka import planning, reading
from statefx.connectors.kafka.reading import Readers, Span
from statefx.connectors.kafka.rows import TopicPartition
from statefx.errors import BoltError, FailedException
from statefx.testing import TopologyTester
from tests.spark.running import wait_for
from tests.spouts.kafka_topologies import counted, lines, once, spout, topology, trim

pytestmark = pytest.mark.slow


def test_what_a_reader_has_ahead_of_a_former_topic_is_not_handed_out_for_the_new_one(kafka):
    """[0, 10) of the new topic went to another task, so this one would go on where it is."""
    topic = kafka.topic()
    kafka.send(topic, *lines(0, 30))
    reads = spout(kafka, topic)
    readers = Readers(reads.clients, "group", 20.0, reads._losses.pass_over)

    def values(start, end):
        span = Span(TopicPartition(topic, 0), readers.topic_id(topic), start, end)
        return [value.decode() for part in readers.read(span, reads.rows.wanted) for value in part.values]

    assert values(0, 10) == lines(0, 10)
    kafka.delete(topic)
    kafka.topic(name=topic)
    kafka.send(topic, *lines(100, 130))
    assert values(10, 20) == lines(110, 120)
    assert values(20, 30) == lines(120, 130)
    readers.close()


def on_driver(reads, metadata=None):
    """A spout as the driver of a bounded run has it, which has looked once."""
    reads.open(Context({"topology.transactional.id": "a"}, "records", -1, 1, 1))
    reads.prepareForAvailableNow()
    reads.initPartitions(metadata or {})
    reads.numPartitions()
    return reads


def test_a_bound_is_that_of_a_topic_and_not_of_a_new_one_of_its_name(kafka, monkeypatch):
    """A range behind the end of the new one would stand in the log, and be waited for by all runs."""
    for name in ("DOUBT_SECS", "DISCOVERY_SECS"):
        monkeypatch.setattr(planning, name, 0.0)
    topic = kafka.topic()
    kafka.send(topic, *lines(0, 30))
    reads = on_driver(spout(kafka, topic, maxRows=10, lost="skip"))
    last = reads.planPartitionBatch(0, None)
    kafka.delete(topic)
    kafka.topic(name=topic)
    kafka.send(topic, *lines(100, 105))
    reads.numPartitions()
    assert reads.planPartitionBatch(0, last) is None
    reads.close()
    again = on_driver(spout(kafka, topic, lost="skip"), metadata={0: last})
    for end in (0, 5):
        last = again.planPartitionBatch(0, last)
        assert (last["start"], last["end"]) == (0, end)
        again.numPartitions()
    again.close()


def test_a_shorter_topic_of_the_same_name_is_no_partition_that_lost_its_end(kafka):
    """`lost="skip"` allows the one, and nothing the other: the driver has to look which it is."""
    topic = kafka.topic()
    kafka.send(topic, *lines(0, 30))
    reads = spout(kafka, topic)
    readers = Readers(reads.clients, "group", 20.0, reads._losses.pass_over)
    former = Span(TopicPartition(topic, 0), readers.topic_id(topic), 10, 20, start_epoch=0, end_epoch=0)
    assert sum(map(len, readers.read(former, reads.rows.wanted))) == 10
    readers.close()
    kafka.delete(topic)
    kafka.topic(name=topic)
    kafka.send(topic, *lines(100, 105))
    with pytest.raises(FailedException, match=f"topic '{topic}' was deleted while {topic}-0 was read"):
        list(readers.read(former, reads.rows.wanted))
    readers.close()


def test_a_task_that_is_told_that_a_topic_is_gone_hears_it_for_a_while(kafka, monkeypatch):
    """A broker that starts says so of all topics; with `lost="skip"` their records would be passed over."""
    topic = kafka.topic()
    reads = spout(kafka, topic)
    readers = Readers(reads.clients, "group", 20.0, reads._losses.pass_over)
    real, first = readers.topic_id, [None, None, "another"]
    span = Span(TopicPartition(topic, 0), real(topic), 0, 10)
    with monkeypatch.context() as patched:
        patched.setattr(readers, "topic_id", lambda name: first.pop(0) if first else real(name))
        assert not readers.is_gone(span)
        assert not first
    monkeypatch.setattr(reading, "DOUBT_SECS", 0.3)
    kafka.delete(topic)
    began = time.monotonic()
    assert readers.is_gone(span)
    assert time.monotonic() >= began + 0.3
    readers.close()


@pytest.mark.soak
def test_a_partition_that_lost_its_end_and_grew_again_beyond_what_was_read(kafka, tmp_path, monkeypatch):
    """As after the election of a replica that did not have the last records: its end tells nothing."""
    topic = kafka.topic()
    kafka.send(topic, *lines(0, 50))
    folder = kafka.folder / "data" / f"{topic}-0"
    shutil.copytree(folder, tmp_path / "old")
    kafka.send(topic, *lines(50, 100))
    with TopologyTester(topology(spout(kafka, topic, maxRows=80)), tmp_path / "ck") as tester:
        tester.drain()
        assert counted(tester) == once(*lines(0, 100))
    few = topology(spout(kafka, topic, maxRows=50), parallelism=1)
    ahead = TopologyTester(few, tmp_path / "ahead", freshObjects=False)
    ahead.emit()
    bounded = on_driver(spout(kafka, topic, maxRows=10))
    last = bounded.planPartitionBatch(0, None)
    kafka.kill()
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "old", folder)
    kafka.start()

    def looks():  # the client asks the former leader first
        with suppress(FailedException):
            return bounded.numPartitions()

    with monkeypatch.context() as patched:
        wait_for(looks, "the client to know the new leader")
        with pytest.raises(FailedException, match=f"{topic}-0 ends before where it ended when this"):
            bounded.planPartitionBatch(0, last)
        patched.setattr(planning, "DOUBT_SECS", 0.0)
        ends = []
        while last is not None:
            ends.append(last["end"])
            bounded.numPartitions()
            last = bounded.planPartitionBatch(0, last)
        assert ends == [10, 20, 30, 40, 50]  # what is planned behind its end would be waited for by all runs
        bounded.close()
    kafka.send(topic, *lines(200, 260))
    with ahead:
        ahead.emit()  # nothing that was read is lost, and what was fetched ahead is
        assert counted(ahead) == once(*lines(0, 50), *lines(200, 250))
    with (
        tester.restart(topology(spout(kafka, topic, lost="skip"))) as other,
        pytest.raises(BoltError, match=f"{topic}-0 was read up to offset 100, and .* lost in the cluster"),
    ):
        other.drain()


@pytest.mark.soak  # that a broker starts again is in test_kafka_faults.py
def test_new_leaders_and_retention_look_like_no_loss(kafka, tmp_path):
    """A broker that starts again leads by a new epoch, and the former one may have no record left."""
    topics = kafka.topic(), kafka.topic()
    for topic in topics:
        kafka.send(topic, *lines(0, 30))
    some, all_of_it = (
        TopologyTester(topology(spout(kafka, topic, maxRows=rows)), tmp_path / topic)
        for topic, rows in zip(topics, (20, 30), strict=True)
    )
    some.emit()
    all_of_it.emit()
    trim(kafka, topics[1], 30)
    kafka.restart()
    for topic, tester in zip(topics, (some, all_of_it), strict=True):
        kafka.send(topic, *lines(30, 60))
        with tester.restart() as other:
            other.drain()
            assert counted(other) == once(*lines(0, 60))
