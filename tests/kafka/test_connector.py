"""Spark's own connector as the input: killed, and with damage where it has written down at which offsets it began."""

import json
from collections import Counter

import pytest
from confluent_kafka import OFFSET_END, TopicPartition

from tests.kafka.libraries import UnavailableError, connector
from tests.spark.conftest import drivers
from tests.spark.drivers import ON, ONCE, hold, log_of, under_way
from tests.spark.running import local_folders, state

__all__ = ["drivers"]

pytestmark = pytest.mark.slow

BEGINNING = "0/0"
"""Below ``sources``: the file with the offsets at which the first batch begins."""


@pytest.fixture
def start(kafka, drivers, tmp_path):
    """Return what starts a driver on the one topic, and what writes into it."""
    try:
        connector()
    except UnavailableError as why:
        pytest.skip(f"Spark's connector can't be had: {why}")
    topic = kafka.topic(partitions=2)

    def begin(starting, trigger=ON):
        options = {"kafka.bootstrap.servers": kafka.address, "subscribe": topic, "startingOffsets": starting}
        return drivers(tmp_path, "rocksdb", trigger, "tests.kafka.connecting", **options)

    return begin, topic


def some(name):
    """Words in different numbers."""
    return [f"{name}{number}" for number in range(6) for _ in range(number + 1)]


def send(kafka, topic, words):
    for partition in range(2):
        kafka.send(topic, *words[partition::2], partition=partition)


def beginning(place):
    """Where the newest driver's Spark keeps it."""
    return local_folders(place / "ck")[-1] / "content" / "sources" / BEGINNING


@pytest.mark.soak
def test_each_record_counts_once_whatever_becomes_of_where_it_began(kafka, start, tmp_path):
    begin, topic = start
    before = some("before")
    send(kafka, topic, before)
    send(kafka, topic, some("a"))
    hold(tmp_path, "PREPARING", 1)
    first = begin(json.dumps({topic: {"0": len(before[::2]), "1": len(before[1::2])}}))
    first.wait_until(under_way("PREPARING", 1), "the first transaction")
    began = log_of(tmp_path).notes.files[BEGINNING]
    beginning(tmp_path).write_bytes(beginning(tmp_path).read_bytes()[:9])
    assert first.kill() == ("PREPARING", 1)
    send(kafka, topic, some("b"))

    second = begin("latest")  # where the first batch began is asked for again, and means nothing now
    second.wait_until(lambda log: log.committed >= 2, "what came while no driver was there")
    beginning(tmp_path).unlink()
    hold(tmp_path, "COMMITTING", 2)
    send(kafka, topic, some("c"))
    second.wait_until(under_way("COMMITTING", 2), "another transaction")
    assert second.kill()[0] == "COMMITTING"
    assert log_of(tmp_path).notes.files == {BEGINNING: began}
    send(kafka, topic, some("d"))

    begin("earliest", ONCE).end()
    expected = Counter(word for name in "abcd" for word in some(name))
    assert state(tmp_path / "ck", "count") == expected


@pytest.mark.soak
def test_records_that_retention_took_are_not_passed_over(kafka, start, tmp_path):
    begin, topic = start
    send(kafka, topic, some("a"))
    begin("earliest", ONCE).end()
    send(kafka, topic, some("gone"))
    ends = [TopicPartition(topic, partition, OFFSET_END) for partition in range(2)]
    for done in kafka.admin.delete_records(ends).values():
        done.result(30)
    send(kafka, topic, some("b"))
    said = begin("earliest", ONCE).end(3)
    assert said["error"] == "AttemptsExhaustedError"
    assert "Some data may have been lost" in said["message"]
    assert state(tmp_path / "ck", "count") == Counter(some("a"))
