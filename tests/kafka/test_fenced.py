"""A broker that for a moment tells of a cluster without brokers, itself not counted: clients go on when it is back."""

import time
from contextlib import suppress

import pytest
from confluent_kafka import KafkaException

from statefx.connectors.kafka import KafkaSink, planning, reading
from statefx.connectors.kafka import topic as topic_
from statefx.errors import FailedException, SinkError
from tests.kafka.broker import KafkaBroker
from tests.kafka.libraries import UnavailableError
from tests.spark.running import wait_for
from tests.spouts.kafka_topologies import spout

pytestmark = [pytest.mark.slow, pytest.mark.soak]

WAIT_SECS = 60

# Else most clients get over it: librdkafka adds its servers again, unless it was told of no broker at that moment.
CONFIG = {"metadata.recovery.strategy": "none"}


@pytest.fixture(scope="module")
def broker():
    """A broker that says it is alive every 3 seconds, and counts as dead after two."""
    try:
        with KafkaBroker(broker_heartbeat_interval_ms=3_000, broker_session_timeout_ms=2_000) as made:
            yield made
    except UnavailableError as why:
        pytest.skip(str(why))


def strand(client):
    """Wait until a client has nobody left to ask, although there is a broker."""
    limit = time.monotonic() + WAIT_SECS
    while True:
        try:
            client.list_topics(timeout=0.2)
        except KafkaException as error:
            if error.args[0].name() == "_TRANSPORT":
                return
        assert time.monotonic() < limit, "the client is told of brokers"


def test_a_task_asks_about_its_topic_by_another_client(broker):
    topic = broker.topic()
    readers = reading.Readers(spout(broker, topic, config=CONFIG).clients, "group", WAIT_SECS, lambda *gone: None)
    known = readers.topic_id(topic)
    strand(readers._admin)
    assert readers.topic_id(topic) == known
    readers.close()


@pytest.mark.parametrize("unavailable", ["wait", "skip"])
def test_the_driver_asks_by_other_clients(broker, unavailable):
    topic = broker.topic(partitions=2)
    reads = spout(broker, topic, config=CONFIG)
    cluster = planning.Cluster(reads.clients, "group", [topic], skips=unavailable == "skip")
    asked(cluster)
    strand(cluster.consumer)
    strand(cluster._admin)
    asked(cluster)
    cluster.close()


def asked(cluster):
    def ask():
        cluster._looked = None
        with suppress(FailedException):  # the driver tries again what has failed
            cluster.discover([])
            return set(cluster.ends(cluster.partitions).values()) == {0}

    wait_for(ask, "the ends of partitions", WAIT_SECS)


def test_a_sink_looks_for_its_marker_by_another_client(broker):
    target = topic_.KafkaTopic(KafkaSink(broker.address, broker.topic(), config=CONFIG).publisher, 60.0, keyed=False)
    asked_for_marker(target)
    strand(target._reader())
    asked_for_marker(target)
    target.close()


def asked_for_marker(target):
    def ask():
        with suppress(SinkError):
            return target.marker() is None

    wait_for(ask, "that there is no marker", WAIT_SECS)


def test_a_sink_asks_about_its_topic_by_another_client(broker):
    questions = topic_.Questions(KafkaSink(broker.address, broker.topic(), config=CONFIG).publisher)
    strand(questions._admin)
    assert questions.limits().partitions == 1
    strand(questions._admin)
    assert questions.timeout_ms_max() == 900_000
