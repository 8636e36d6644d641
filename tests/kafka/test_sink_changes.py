"""What somebody does to the topic or the marker of a KafkaSink while a decided transaction waits, and each remedy."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from statefx import TopologyBuilder
from statefx.connectors.kafka import KafkaSink
from statefx.errors import SinkError, SinkMismatchError
from statefx.testing import TopologyTester, rows
from tests.kafka.broker import KafkaBroker
from tests.kafka.topics import read, steps
from tests.spark.running import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick")]

FIELDS = "v string, at timestamp, p int"
HOUR_AGO = datetime.now(UTC) - timedelta(hours=1)


@pytest.fixture
def topic(kafka):
    return kafka.topic(partitions=2)


def topology(kafka, topic, **arguments):
    builder = TopologyBuilder("changes")
    builder.setStream("lines", rows(FIELDS))
    sink = KafkaSink(kafka.address, topic, value="v", timestamp="at", partition="p", **arguments)
    builder.setSink("out", sink).shuffleGrouping("lines")
    return builder.createTopology()


def values(kafka, topic):
    return sorted(each.value().decode()[0] for each in read(kafka, topic))


def group(topic):
    return f"statefx.{topic}"


def delete_group(kafka, topic):
    kafka.admin.delete_consumer_groups([group(topic)])[group(topic)].result(30)


def reset_group(kafka, topic):
    """Do what ``kafka-consumer-groups --reset-offsets`` does."""
    place = ConsumerGroupTopicPartitions(group(topic), [TopicPartition(topic, 0, 0)])
    kafka.admin.alter_consumer_group_offsets([place])[group(topic)].result(30)


def make_again(kafka, topic, partitions):
    def made():
        try:
            return kafka.topic(partitions, topic)
        except KafkaException:  # it is still being deleted
            return None

    wait_for(made, "the topic to be made again")


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("change", "told", "remedy", "row"),
    [
        (
            {"max_message_bytes": 300},
            r"MSG_SIZE_TOO_LARGE\): raise max\.message\.bytes of topic 't\d+'",
            {"max_message_bytes": 2000},
            ("b" * 1000, None, 0),
        ),
        (
            {"message_timestamp_before_max_ms": 1000},
            r"INVALID_TIMESTAMP\): the time of a message is too far .* raise message\.timestamp\.before\.max\.ms",
            {"message_timestamp_before_max_ms": 10_000_000},
            ("b", HOUR_AGO, 0),
        ),
        (
            {"cleanup_policy": "compact"},
            r"INVALID_RECORD\): topic 't\d+' is compacted now, .* set its cleanup\.policy back",
            {"cleanup_policy": "delete"},
            ("b", None, 0),
        ),
    ],
    ids=["size", "time", "compaction"],
)
def test_a_topic_that_takes_less_than_was_decided_is_told_and_goes_on_when_it_is_put_right(
    kafka, topic, tmp_path, change, told, remedy, row
):
    reasons = []

    def put_right():
        if re.search(told, tester.status["stuck"]["reason"]):  # a busy broker may also be told to be away
            reasons.append(tester.status["stuck"]["reason"])
        if len(reasons) == 2:  # also of a producer that knows the topic as it is now
            kafka.alter(topic, **remedy)
        else:
            tester.when("pause", put_right)

    with TopologyTester(topology(kafka, topic), tmp_path) as tester:
        tester.send({"lines": [("a", None, 1)]})
        tester.when("before COMMITTING(2, 0)", lambda: kafka.alter(topic, **change))
        tester.when("pause", put_right)
        tester.send({"lines": [row, ("c", None, 1)]})
        tester.send({"lines": [("d", None, 1)]})
    assert len(reasons) == 2
    assert values(kafka, topic) == ["a", "b", "c", "d"]


@pytest.mark.soak
@pytest.mark.parametrize("partitions", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_topic_that_was_deleted_under_a_decision_can_be_made_again_and_taken_over(kafka, topic, tmp_path, partitions):
    missing = []

    def told():
        reason = tester.status["stuck"]["reason"]
        if f"make topic {topic!r} first; if it was deleted, the marker is gone" in reason:
            missing.append(reason)
            if len(missing) == 2:
                make_again(kafka, topic, partitions)
        # On a busy machine the sink says this also at first, of a topic that it has not heard to be gone.
        if len(missing) >= 2 and "the marker, which records" in reason:
            tester.close()
        else:
            tester.when("pause", told)

    with TopologyTester(topology(kafka, topic, transactionTimeoutSecs=2), tmp_path) as tester:
        tester.send({"lines": [("a", None, 0)]})
        tester.when("before COMMITTING(2, 0)", lambda: kafka.delete(topic))
        tester.when("pause", told)
        with pytest.raises(Exception, match="decided"):
            tester.send({"lines": [("b", None, 1), ("c", None, 0)]})
    assert len(missing) >= 2
    with pytest.raises(SinkMismatchError, match="adopt='takeover'"):
        TopologyTester(topology(kafka, topic), tmp_path)
    passed = []

    def step(now):
        passed.append(now)
        if partitions == 1 and now == "before _initialised" and passed.count(now) == 2:
            kafka.add_partitions(topic, 2)  # a row for the second one was decided, and could not be published

    with steps(step), TopologyTester(topology(kafka, topic), tmp_path, adopt="takeover") as successor:
        successor.send({"lines": [("d", None, 1)]})
    assert passed.count("before _initialised") == (1 if partitions == 2 else 2)
    assert values(kafka, topic) == ["b", "c", "d"]


@pytest.mark.daily(1)
@pytest.mark.parametrize("change", [delete_group, reset_group])
def test_a_marker_that_is_changed_while_the_topology_runs_is_written_again_by_who_knows_it(
    kafka, topic, tmp_path, change
):
    with TopologyTester(topology(kafka, topic), tmp_path) as tester:
        tester.send({"lines": [("a", None, 0)]})
        change(kafka, topic)
        tester.send({"lines": [("b", None, 0)]})
    with TopologyTester(topology(kafka, topic), tmp_path) as tester:
        tester.send({"lines": [("c", None, 0)]})
    assert values(kafka, topic) == ["a", "b", "c"]


def test_a_marker_that_was_reset_between_runs_is_refused_and_the_remedy_works(kafka, topic, tmp_path):
    with TopologyTester(topology(kafka, topic), tmp_path) as tester:
        tester.send({"lines": [("a", None, 0)]})
    reset_group(kafka, topic)
    for adopt in (None, "takeover"):
        with pytest.raises(SinkError, match=r"is no marker: somebody has reset it.* delete the group, look at the end"):
            TopologyTester(topology(kafka, topic), tmp_path, adopt=adopt)
    delete_group(kafka, topic)
    with TopologyTester(topology(kafka, topic), tmp_path, adopt="takeover") as tester:
        tester.send({"lines": [("b", None, 0)]})
    assert values(kafka, topic) == ["a", "b"]


@pytest.mark.soak
def test_an_offset_that_expires_is_an_error_between_runs_and_none_for_who_knows_it(patient, tmp_path):
    """A group without members forgets an offset so long after it was committed; a minute is the shortest there is."""
    with KafkaBroker(offsets_retention_minutes=1, offsets_retention_check_interval_ms=200) as kafka:
        gone, running = kafka.topic(2), kafka.topic(2)
        with TopologyTester(topology(kafka, gone), tmp_path / gone) as tester:
            tester.send({"lines": [("a", None, 0)]})
        with TopologyTester(topology(kafka, running), tmp_path / running) as tester:
            tester.send({"lines": [("a", None, 0)]})
            for topic in (gone, running):
                wait_for(
                    lambda topic=topic: not kafka.group_offsets(group(topic), topic).get(0, -1) >= 0, "expiry", 120
                )
            tester.send({"lines": [("b", None, 0)]})
        assert values(kafka, running) == ["a", "b"]
        with pytest.raises(SinkMismatchError, match="adopt='takeover'"):
            TopologyTester(topology(kafka, gone), tmp_path / gone)
        with TopologyTester(topology(kafka, gone), tmp_path / gone, adopt="takeover") as tester:
            tester.send({"lines": [("b", None, 0)]})
        assert values(kafka, gone) == ["a", "b"]
