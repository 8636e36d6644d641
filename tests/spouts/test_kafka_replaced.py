"""Other records stand at the offsets of those that were read: a topic was made again, or a partition lost its end."""

import shutil

import pytest

from statefx.errors import BoltError
from statefx.spouts.kafka.reading import Readers, Span
from statefx.spouts.kafka.rows import Place
from statefx.testing import TopologyTester
from tests.spouts.kafka_topologies import counted, lines, once, spout, topology, trim

pytestmark = pytest.mark.slow


def test_what_a_reader_has_ahead_of_a_former_topic_is_not_handed_out_for_the_new_one(kafka):
    """[0, 10) of the new topic went to another task, so this one would go on where it is."""
    topic = kafka.topic()
    kafka.send(topic, *lines(0, 30))
    reads = spout(kafka, topic)
    readers = Readers(reads.clients, "group", 20.0, reads._losses.pass_over)

    def values(start, end):
        span = Span(Place(topic, 0), readers.topic_id(topic), start, end)
        return [value.decode() for part in readers.read(span, reads.rows.wanted) for value in part.values]

    assert values(0, 10) == lines(0, 10)
    kafka.delete(topic)
    kafka.topic(name=topic)
    kafka.send(topic, *lines(100, 130))
    assert values(10, 20) == lines(110, 120)
    assert values(20, 30) == lines(120, 130)
    readers.close()


def test_a_partition_that_lost_its_end_and_grew_again_beyond_what_was_read(kafka, tmp_path):
    """As after the election of a replica that did not have the last records: its end tells nothing."""
    topic = kafka.topic()
    kafka.send(topic, *lines(0, 50))
    folder = kafka.folder / "data" / f"{topic}-0"
    shutil.copytree(folder, tmp_path / "old")
    kafka.send(topic, *lines(50, 100))
    with TopologyTester(topology(spout(kafka, topic, maxRows=80)), tmp_path / "ck") as tester:
        tester.drain()
        assert counted(tester) == once(*lines(0, 100))
    kafka.kill()
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "old", folder)
    kafka.start()
    kafka.send(topic, *lines(200, 260))
    with (
        tester.restart(topology(spout(kafka, topic, lost="skip"))) as other,
        pytest.raises(BoltError, match=f"{topic}-0 was read up to offset 100, and .* lost in the cluster"),
    ):
        other.drain()


def test_new_leaders_and_retention_look_like_no_loss(kafka, tmp_path):
    """A broker that starts again leads by a new epoch, and the former ones may have no record left."""
    topic = kafka.topic()
    kafka.send(topic, *lines(0, 30))
    tester = TopologyTester(topology(spout(kafka, topic, maxRows=20)), tmp_path / "ck")
    tester.emit()
    kafka.restart()
    kafka.send(topic, *lines(30, 60))
    with tester.restart() as other:
        other.drain()
        assert counted(other) == once(*lines(0, 60))
    trim(kafka, topic, 60)
    kafka.restart()
    kafka.send(topic, *lines(60, 70))
    with other.restart() as last:
        last.drain()
        assert counted(last) == once(*lines(0, 70))
