"""What goes wrong between Kafka and a KafkaSpout: nothing is lost in silence, nothing hangs, each thing is named."""

import logging
import threading
import time
from contextlib import suppress

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from statefx import Context
from statefx.connectors.kafka import KafkaSpout, OpaqueKafkaSpout, clients, planning, reading
from statefx.errors import AttemptsExhaustedError, BoltError, FailedException, InputError
from statefx.protocol.reports import LeftOut
from statefx.testing import Limits, TopologyTester
from statefx.testing.faults import JobFails
from tests.spark.running import wait_for
from tests.spouts.kafka_topologies import Meanwhile, counted, lines, once, spout, topology, trim

pytestmark = pytest.mark.slow

ONCE, TWICE, OFTEN = ({"topology.transaction.attempts.max": number} for number in (1, 2, 20))
PATIENT = Limits(pauses=1_000_000)  # a tester's pauses take no time


def after_ten(kafka, tmp_path, **options):
    """A tester whose spout has read ten of twenty records."""
    topic = kafka.topic()
    kafka.send(topic, *lines(0, 20))
    reads = spout(kafka, topic, maxRows=10, **options)
    tester = TopologyTester(topology(reads), tmp_path / "ck", OFTEN, freshObjects=False, limits=PATIENT)
    tester.emit()
    return topic, tester


def planned(reads, tmp_path, committed):
    """A tester that has ended when the next transaction was planned, and nothing of it committed."""
    tester = TopologyTester(topology(reads), tmp_path / "ck", ONCE)
    for _ in range(committed):
        tester.emit()
    with tester, pytest.raises(AttemptsExhaustedError):
        tester.emit(JobFails(reason="lost"))
    return tester


def test_records_that_retention_took_before_they_were_read(kafka, tmp_path, caplog):
    topic, tester = after_ten(kafka, tmp_path)
    trim(kafka, topic, 13)
    with (
        tester,
        pytest.raises(InputError, match=f"3 offsets of {topic}-0, from 10 to before 13, were deleted") as error,
    ):
        tester.drain()
    assert (error.value.topic, error.value.partition, error.value.start, error.value.stop) == (topic, 0, 10, 13)
    with tester.restart(topology(spout(kafka, topic, lost="skip"))) as other, caplog.at_level(logging.WARNING):
        assert other.emit().progress.left_out == {"records": LeftOut(3)}
        assert counted(other) == once(*lines(0, 10), *lines(13, 20))
        assert "3 offsets of" in caplog.text
        assert "skips of spout 'records': 3 offsets that were deleted before they were read" in caplog.text
        kafka.send(topic, "more")
        other.drain()


def test_an_opaque_spout_tells_what_retention_took(kafka, tmp_path):
    topic, tester = after_ten(kafka, tmp_path, kind=OpaqueKafkaSpout, lost="skip")
    trim(kafka, topic, 13)
    with tester:
        assert tester.emit().progress.left_out == {"records": LeftOut(3)}
        tester.drain()
        assert counted(tester) == once(*lines(0, 10), *lines(13, 20))


@pytest.mark.daily(2)
@pytest.mark.parametrize("lost", ["fail", "skip"])
@pytest.mark.parametrize("before", [13, 20])
def test_records_that_are_gone_after_they_were_planned(kafka, lost, before, tmp_path):
    """The plan is durable, the driver dies, and retention takes some, or all, of what the next one has to read."""
    topic = kafka.topic()
    kafka.send(topic, *lines(0, 20))
    reads = spout(kafka, topic, maxRows=10, lost=lost)
    tester = planned(reads, tmp_path, 1)
    trim(kafka, topic, before)
    with tester.restart(config=TWICE) as other:
        if lost == "fail":
            with pytest.raises(BoltError, match=f"{topic}-0, from 10 to before {before}"):
                other.drain()
        else:
            assert other.emit().progress.left_out["records"].gone == before - 10
            assert counted(other) == once(*lines(0, 10), *lines(before, 20))


@pytest.mark.parametrize("lost", ["fail", "skip"])
def test_records_that_are_gone_between_two_attempts_of_a_driver(kafka, lost, tmp_path, monkeypatch):
    topic = kafka.topic(partitions=2)
    kafka.send(topic, *lines(0, 10))
    kafka.send(topic, *lines(50, 60), partition=1)
    fails = iter([True])

    def trim_once(tup):
        if tup.value == "line 9" and next(fails, False):
            trim(kafka, topic, 4)
            raise FailedException("once")

    monkeypatch.setattr(Meanwhile, "does", staticmethod(trim_once))
    reads = spout(kafka, topic, lost=lost)
    with TopologyTester(topology(reads, Meanwhile()), tmp_path / "ck", OFTEN, limits=PATIENT) as tester:
        if lost == "fail":
            with pytest.raises(BoltError, match=f"4 offsets of {topic}-0, from 0 to before 4, were deleted"):
                tester.drain()
        else:
            tester.drain()
            assert counted(tester) == once(*lines(4, 10), *lines(50, 60))


@pytest.mark.parametrize("lost", ["fail", "skip"])
def test_records_of_several_transactions_in_flight_that_are_gone_at_a_restart(
    kafka, lost, tmp_path, monkeypatch, caplog
):
    topic = kafka.topic()
    kafka.send(topic, *lines(0, 50))

    def fail(tup):
        raise FailedException("until the driver gives up")

    monkeypatch.setattr(Meanwhile, "does", staticmethod(fail))
    reads = spout(kafka, topic, maxRows=10, lost=lost)
    four = {"topology.max.spout.pending": 4}
    tester = TopologyTester(topology(reads, Meanwhile()), tmp_path / "ck", four | ONCE)
    with tester, pytest.raises(AttemptsExhaustedError):
        tester.drain()
    trim(kafka, topic, 13)
    monkeypatch.setattr(Meanwhile, "does", staticmethod(lambda tup: None))
    with tester.restart(config=four) as other, caplog.at_level(logging.WARNING):
        if lost == "fail":
            with pytest.raises(BoltError, match=f"10 offsets of {topic}-0, from 0 to before 10, were deleted"):
                other.drain()
        else:
            other.drain()
            assert counted(other) == once(*lines(13, 50))
            said = [each.message for each in caplog.records if "are skipped" in each.message]
            assert [each.partition(" offsets")[0] for each in said] == ["10", "3"]


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ({0: 0}, "offset 0 of {}-0, which has those from 1 to 2"),
        ({0: 3}, "offset 3 of"),
        ({1: 0}, "which is not there"),
    ],
)
def test_offsets_to_begin_with_that_are_not_there_are_told_by_the_start(kafka, start, words, tmp_path):
    topic = kafka.topic()
    kafka.send(topic, "a", "b")
    trim(kafka, topic, 1)
    reads = spout(kafka, topic, start={topic: start})
    reads.open(Context({"topology.transactional.id": "a"}, "records", -1, 1, 1))
    with pytest.raises(InputError, match=words.format(topic)):
        reads.initPartitions({})
    reads.close()


@pytest.mark.parametrize("again", [True, False])
def test_a_topic_that_is_deleted_or_made_again(kafka, again, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(planning, "DOUBT_SECS", 0.0)
    topic, tester = after_ten(kafka, tmp_path)
    kafka.delete(topic)
    if again:
        kafka.topic(name=topic)
        kafka.send(topic, *lines(100, 130))  # longer than the former one: offsets alone would not tell
    with tester, pytest.raises(InputError, match=f"topic '{topic}' was deleted") as error:
        tester.drain()
    assert (error.value.topic, error.value.partition, error.value.offset) == (topic, 0, 10)
    with tester.restart(topology(spout(kafka, topic, lost="skip"))) as other:
        other.drain()
        assert counted(other) == once(*lines(0, 10), *(lines(100, 130) if again else []))
    said = [each.message for each in caplog.records if "may never have been read" in each.message]
    assert len(said) == 1
    assert f"{topic}-0 was read up to offset 10" in said[0]


@pytest.mark.parametrize("lost", ["fail", "skip"])
def test_a_topic_that_is_made_again_between_plan_and_emission(kafka, lost, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "DOUBT_SECS", 0.0)
    topic = kafka.topic()
    kafka.send(topic, *lines(0, 20))
    reads = spout(kafka, topic, maxRows=10, lost=lost)
    tester = planned(reads, tmp_path, 1)
    kafka.delete(topic)
    kafka.topic(name=topic)
    kafka.send(topic, *lines(100, 130))
    with tester.restart(config=TWICE) as other:
        if lost == "fail":
            with pytest.raises(BoltError, match=r"InputError: topic .* made again"):
                other.drain()
        else:
            other.drain()
            assert counted(other) == once(*lines(0, 10), *lines(100, 130))


@pytest.mark.parametrize("kind", [KafkaSpout, OpaqueKafkaSpout])
def test_records_that_are_no_text(kafka, tmp_path, caplog, kind):
    topic = kafka.topic()
    kafka.send(topic, "a", b"\xff\xfe", b"\xff", "b", None)
    tester = TopologyTester(topology(spout(kafka, topic, kind=kind)), tmp_path / "fail")
    with tester, pytest.raises(BoltError, match=f"offset 1 of {topic}-0 can't be read: its value is no text"):
        tester.drain()
    skipping = spout(kafka, topic, kind=kind, bad="skip")
    with TopologyTester(topology(skipping), tmp_path / "skip") as tester, caplog.at_level(logging.WARNING):
        sent = tester.emit()
        assert counted(tester) == {"a": 1, "b": 1, None: 1}
        left = {"gone": 0, "refused": 2, "why": f"{topic}-0, offset 1: its value is no text in UTF-8"}
        assert sent.progress.as_dict()["leftOut"] == {"records": left}
    assert f"transaction 1 skips of spout 'records': 2 records, the first: {left['why']}" in caplog.text


def test_records_of_megabytes(kafka, tmp_path):
    """More than what a client fetches at once, and than what it keeps."""
    topic = kafka.topic(max_message_bytes=30_000_000)
    values = [f"{number}{'x' * 9_000_000}" for number in range(4)]
    kafka.send(topic, *values, message_max_bytes=30_000_000)
    with TopologyTester(topology(spout(kafka, topic, columns=("offset",))), tmp_path / "ck") as tester:
        tester.drain()
        assert counted(tester) == once(0, 1, 2, 3)


def test_a_broker_that_is_killed_between_and_during_transactions(kafka, tmp_path, monkeypatch):
    """Also: nothing waits for it without bounds, neither a transaction nor the end of a spout.

    A task that asks which topic it has read waits as one that reads: else an outage of a minute would use up all
    attempts of a transaction.
    """
    for module in (planning, reading, clients):
        monkeypatch.setattr(module, "REQUEST_SECS", 1.0)
    for module, name in ((clients, "START_SECS"), (clients, "FAILURE_SECS"), (clients, "CONTROLLER_SECS")):
        monkeypatch.setattr(module, name, 0.3)
    topic, tester = after_ten(kafka, tmp_path, patience=1.0)
    other = kafka.topic()
    kafka.send(other, *lines(0, 20))
    given_up = planned(spout(kafka, other, patience=1.0), tmp_path / "other", 0)
    ending = spout(kafka, topic)
    ending.open(Context({"topology.transactional.id": "gone"}, "records", -1, 1, 1))
    ending.initPartitions({})
    readers = reading.Readers(spout(kafka, topic).clients, "group", 120.0, lambda *gone: None)
    known = readers.topic_id(topic)
    kafka.kill()
    try:
        with given_up.restart(config=TWICE) as away, pytest.raises(AttemptsExhaustedError, match="failed 2 times"):
            away.drain()
        began = time.monotonic()
        ending.committed({0: {"topic": topic, "partition": 0, "end": 1}})
        ending.close()
        assert time.monotonic() < began + 30
    finally:
        threading.Timer(0.5, kafka.start).start()
    assert readers.topic_id(topic) == known
    readers.close()
    with tester:
        tester.drain()  # the driver asks again until it is there
        assert counted(tester) == once(*lines(0, 20))
        kafka.send(topic, *lines(20, 40))
        kafka.freeze()  # it is there, and does not answer
        threading.Timer(2.0, kafka.thaw).start()
        tester.drain()
        assert counted(tester) == once(*lines(0, 40))
    with given_up.restart(config=OFTEN) as again:
        again.drain()
        assert counted(again) == once(*lines(0, 20))


def rule(kafka, name, operation, permission, kind=ResourceType.TOPIC):
    everybody = ("User:ANONYMOUS", "*", operation, permission)
    made = AclBinding(kind, name, ResourcePatternType.LITERAL, *everybody)
    next(iter(kafka.admin.create_acls([made]).values())).result(30)


def without_rules(kafka, name):
    any_rule = (ResourcePatternType.LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY)
    found = AclBindingFilter(ResourceType.ANY, name, *any_rule)
    next(iter(kafka.admin.delete_acls([found]).values())).result(30)


def test_access_that_is_denied_is_told_at_once(kafka, tmp_path):
    topic = kafka.topic()
    kafka.send(topic, "a")
    rule(kafka, topic, AclOperation.ALL, AclPermissionType.ALLOW)
    rule(kafka, topic, AclOperation.READ, AclPermissionType.DENY)
    with TopologyTester(topology(spout(kafka, topic)), tmp_path / "read") as tester, pytest.raises(BoltError) as error:
        tester.drain()
    assert f"{topic}-0 can't be read from 0: " in str(error.value)
    assert "Give the user of this client READ" in str(error.value)
    rule(kafka, topic, AclOperation.DESCRIBE, AclPermissionType.DENY)
    tester = TopologyTester(topology(spout(kafka, topic)), tmp_path / "describe")
    with tester, pytest.raises(InputError, match=f"topic '{topic}' can't be asked about"):
        tester.drain()
    without_rules(kafka, topic)
    with tester.restart() as other:
        other.drain()
        assert counted(other) == once("a")


def test_a_group_that_is_denied_is_no_matter_and_told_once(kafka, tmp_path, caplog):
    topic = kafka.topic()
    kafka.send(topic, *lines(0, 30))
    rule(kafka, "denied", AclOperation.READ, AclPermissionType.DENY, ResourceType.GROUP)
    reads = spout(kafka, topic, group="denied", maxRows=10)
    with TopologyTester(topology(reads), tmp_path / "ck", freshObjects=False) as tester:
        tester.drain()
        assert counted(tester) == once(*lines(0, 30))
    said = [each.message for each in caplog.records if "can't be reported" in each.message]
    assert len(said) == 1
    assert "Give the user of this client READ on the group" in said[0]


def test_a_topic_that_is_not_there(kafka, tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "DOUBT_SECS", 0.0)
    tester = TopologyTester(topology(spout(kafka, "nobody")), tmp_path / "ck")
    with tester, pytest.raises(InputError, match="there is no topic 'nobody'"):
        tester.drain()


def test_what_a_broker_says_that_has_just_started_is_doubted_for_a_while(kafka):
    """It does not know all topics yet, and its partitions may end before where they ended."""
    now = [0.0]
    topic = kafka.topic()
    cluster = planning.Cluster(spout(kafka, topic).clients, "g", [topic, "later"], lambda: now[0])
    with pytest.raises(FailedException, match="there is no topic that topics= names"):
        cluster.discover([])
    kafka.topic(name="later")

    def known():  # a topic that was made a moment ago is one of those that the broker does not know yet
        with suppress(FailedException):
            cluster.discover([])
        return not cluster.doubts

    wait_for(known, "the broker to know the topic")
    assert [tp.topic for tp in cluster.partitions] == sorted([topic, "later"])
    for name in ("the end of x", "the end of y"):
        with pytest.raises(FailedException, match=name):
            cluster.doubted(name, wrong=True)
    assert not cluster.doubted("the end of x", wrong=False)
    now[0] += planning.DOUBT_SECS
    assert cluster.doubted("the end of y", wrong=True)
    with pytest.raises(FailedException):
        cluster.doubted("the end of x", wrong=True)
    cluster.close()


def test_a_failed_attempt_leaves_clients_that_can_go_on(kafka, tmp_path):
    _, tester = after_ten(kafka, tmp_path)
    with tester:
        tester.emit(JobFails(reason="lost"), JobFails(reason="lost"))
        assert counted(tester) == once(*lines(0, 20))
