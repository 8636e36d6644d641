"""Which topics a KafkaSpout reads: those that come later, and those that are named no more or again."""

import logging
import re
import time
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from confluent_kafka import KafkaError, KafkaException

from statefx import Context, TopologyBuilder
from statefx.connectors.kafka import planning
from statefx.connectors.kafka.rows import TopicPartition
from statefx.errors import FailedException
from statefx.testing import TopologyTester
from tests.spouts import timed
from tests.spouts.kafka_topologies import counted, once, spout, topology

pytestmark = pytest.mark.slow


def test_topics_that_are_made_after_a_first_run_which_found_none_are_read_from_their_beginning(kafka, tmp_path, caplog):
    """The first run is to begin at the end, and has read nothing: that it has looked must outlive it."""
    reads = spout(kafka, re.compile("made-later-.*"), start="latest")
    with TopologyTester(topology(reads), tmp_path / "ck") as tester, caplog.at_level(logging.WARNING):
        tester.drain()
    assert "no topic matches 'made-later-.*' yet" in caplog.text
    kafka.send(kafka.topic(name="made-later-1"), "a", "b")
    with tester.restart() as other:
        other.drain()
        assert counted(other) == once("a", "b")
    kafka.send("made-later-1", "c")
    with other.restart() as last:
        last.drain()
        assert counted(last) == once("a", "b", "c")


@pytest.mark.parametrize("restarts", [False, True])
def test_a_first_look_that_found_no_topic_holds_no_watermark(kafka, tmp_path, monkeypatch, restarts):
    monkeypatch.setattr(planning, "DISCOVERY_SECS", 0.0)
    begin = datetime.now(UTC).replace(microsecond=0)
    name = f"timed-later-{restarts}"
    reads = spout(kafka, re.compile(f"{name}-.*"), start="latest", columns=("value", "timestamp"))
    builder = TopologyBuilder("kafka")
    builder.setSpout("records", reads, 2, timestamp="timestamp", lateness="5 seconds")
    builder.setBolt("watch", timed.Watch()).globalGrouping("records")
    tester = TopologyTester(builder.createTopology(), tmp_path / "ck", now=begin)
    tester.drain()
    kafka.topic(2, f"{name}-a")
    for secs in (10, 20, 30):
        if restarts:
            tester = tester.restart()
        for partition in (0, 1):
            sent = int(begin.timestamp() + secs) * 1000
            kafka.send(f"{name}-a", "a", partition=partition, timestamp=sent)
        tester.drain()
    with tester:
        past = (begin - timed.START).total_seconds()
        found = [None if each is None else each - past for each in timed.watermarks(tester)]
    assert found == [None, 5, 15, 25]


def test_a_topic_that_is_named_no_more_is_read_no_more_and_goes_on_when_it_is_named_again(kafka, tmp_path, caplog):
    stays, goes = kafka.topic(), kafka.topic()
    kafka.send(stays, "a")
    kafka.send(goes, "x")
    tester = TopologyTester(topology(spout(kafka, [stays, goes])), tmp_path / "ck")
    tester.drain()
    kafka.send(stays, "b")
    kafka.send(goes, "y")
    with tester.restart(topology(spout(kafka, stays))) as other, caplog.at_level(logging.WARNING):
        other.drain()
        assert counted(other) == once("a", "x", "b")
    said = [each.message for each in caplog.records if "read no more" in each.message]
    assert len(said) == 1
    assert said[0].startswith(f"{goes}-0 was read up to offset 1, and is read no more")
    with other.restart(topology(spout(kafka, [stays, goes]))) as again:
        again.drain()
        assert counted(again) == once("a", "x", "b", "y")
    kafka.delete(goes)
    with again.restart(topology(spout(kafka, stays))) as last:
        kafka.send(stays, "c")
        last.drain()
        assert counted(last) == once("a", "x", "b", "y", "c")


@pytest.mark.parametrize("then", ["right", "away", "made again"])
@pytest.mark.parametrize(
    ("wrong", "doubt"),
    [
        ("no topic", "there is no topic"),
        ("shorter", "ends before the offset up to which it was read"),
        ("shorter", "ends before where it ended when this run began"),
    ],
)
def test_a_doubt_that_has_passed_is_forgotten(kafka, monkeypatch, wrong, doubt, then):
    """A broker that says so a month later, when it has just started, is not believed at once."""
    now, topic = [0.0], kafka.topic(partitions=2)
    first = TopicPartition(topic, 0)
    bounded = "when this run began" in doubt
    kafka.send(topic, *map(str, range(20 if bounded else 2)))
    reads, last = spout(kafka, topic, maxRows=1, lost="skip"), {}
    reads.open(Context({"topology.transactional.id": "a"}, "records", -1, 1, 1))
    if bounded:
        reads.prepareForAvailableNow()
    reads.initPartitions({})
    cluster = reads._planning.cluster
    cluster._clock = lambda: now[0]

    def look():
        cluster.look_again()
        reads.numPartitions()
        for number in reads.partitionsToPlan():
            if (planned := reads.planPartitionBatch(number, last.get(number))) is not None:
                last[number] = planned

    def described_as(patched, code):
        error = KafkaException(KafkaError(code))
        patched.setattr(planning, "describe_topics", lambda admin, names: dict.fromkeys(names, error))

    try:
        for _ in range(4):
            look()
        for _ in range(1 if then == "made again" else 3):
            with monkeypatch.context() as patched:
                if wrong == "no topic":
                    described_as(patched, KafkaError.UNKNOWN_TOPIC_OR_PART)
                else:
                    ends, end = cluster.ends, last[0]["end"] - (not bounded)
                    patched.setattr(cluster, "ends", lambda asked, ends=ends, end=end: ends(asked) | {first: end})
                with pytest.raises(FailedException, match=doubt):
                    look()
            if then == "made again":
                kafka.delete(topic)
                kafka.topic(2, topic)
                kafka.send(topic, *map(str, range(20)))
            if then != "away":
                look()
                look()
                assert not cluster.is_unsure
                assert then != "right" or bounded or reads.partitionsToPlan() == []
            else:
                with monkeypatch.context() as patched:
                    described_as(patched, KafkaError._TIMED_OUT)
                    with pytest.raises(FailedException, match="can't be asked about"):
                        look()
            now[0] += 3600.0
    finally:
        reads.close()


def test_look_asks_for_no_partition_that_was_read_to_its_end(kafka):
    """Nor for those of topics that are gone."""
    topic, gone = kafka.topic(partitions=20), kafka.topic(partitions=5)
    for number in range(20):
        kafka.send(topic, "a", partition=number)
    kafka.send(gone, "x")
    reads, last = spout(kafka, [topic, gone], lost="skip"), {}
    reads.open(Context({"topology.transactional.id": "a"}, "records", -1, 1, 1))
    reads.initPartitions({})

    def look():
        reads.numPartitions()
        asked = list(reads.partitionsToPlan())
        found = {number: reads.planPartitionBatch(number, last.get(number)) for number in asked}
        last.update({number: planned for number, planned in found.items() if planned is not None})
        return asked, [number for number, planned in found.items() if planned is not None]

    try:
        asked, planned = look()
        assert len(asked) == 25
        assert len(planned) == 25, "where each begins"
        look()  # hears that a transaction has begun with that
        assert look() == ([], [])
        kafka.send(topic, "b", partition=7)
        number = next(number for number, said in last.items() if (said["topic"], said["partition"]) == (topic, 7))
        assert look() == ([number], [number])
        kafka.delete(gone)
        limit = time.monotonic() + 60
        asked = [-1]
        while asked or reads._planning.cluster.ids.keys() != {topic}:
            assert time.monotonic() < limit
            reads._planning.cluster.look_again()
            with suppress(FailedException):  # for a while, the broker may be one that has just started
                asked, _ = look()
        kafka.send(topic, "c")
        assert len(look()[1]) == 1
    finally:
        reads.close()
