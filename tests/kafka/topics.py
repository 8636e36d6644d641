"""What tests of KafkaSink share: topics as independent consumers read them, and the steps of a transaction of Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec

from statefx.connectors.kafka.topic import KafkaTopic

STEPS = ("_initialised", "_stable_marker", "_begin", "_send", "_mark", "_commit")
"""What a transaction of Kafka consists of, in order."""

WAIT_SECS = 30

ANSWER_SECS = 8.0

SETTLED_SECS = 1.0
"""So long a reader waits for a transaction, which may be one that was left open for good."""


def read(broker, topic: str, level: str = "read_committed") -> list[Message]:
    """Return what a consumer of that isolation level can read now, by partition and offset.

    Kafka answers a commit before readers of committed records see it: those are given a moment.
    """
    settled(broker, topic)
    limit = time.monotonic() + WAIT_SECS
    while (found := _read(broker, topic, level)) is None:
        assert time.monotonic() < limit, "the broker answers nothing"
    return sorted(found, key=lambda each: (each.partition(), each.offset()))


def _read(broker, topic: str, level: str) -> list[Message] | None:
    """Return what a consumer can read; None if it is told nothing.

    On a busy machine a broker may count as dead for a moment, and tell of a cluster without brokers: a client that
    hears so asks nobody any more (librdkafka's issue 5301).
    """
    consumer = Consumer(
        broker.client(group_id="reader", isolation_level=level, enable_partition_eof=True, fetch_wait_max_ms=5)
    )
    partitions = consumer.list_topics(topic, WAIT_SECS).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    found, left = [], len(partitions)
    while left:
        message = consumer.poll(ANSWER_SECS)
        if message is None:
            consumer.close()
            return None
        if message.error() is None:
            found.append(message)
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            left -= 1
    consumer.close()
    return found


def settled(broker, topic: str, secs: float = SETTLED_SECS) -> bool:
    """Wait until nothing is hidden from readers of committed records; tell whether it is so."""
    limit = time.monotonic() + secs
    while ends(broker, topic, IsolationLevel.READ_COMMITTED) != ends(broker, topic, IsolationLevel.READ_UNCOMMITTED):
        if time.monotonic() > limit:
            return False  # a transaction is open
    return True


def ends(broker, topic: str, level: IsolationLevel) -> dict[int, int]:
    """Return the end of each partition, as readers of that level see it."""
    limit = time.monotonic() + WAIT_SECS
    while True:
        partitions = broker.admin.list_topics(topic, WAIT_SECS).topics[topic].partitions
        latest = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}
        found = broker.admin.list_offsets(latest, isolation_level=level)
        try:
            return {place.partition: future.result(WAIT_SECS).offset for place, future in found.items()}
        except KafkaException:  # a broker that was restarted may not have come to know its own term yet
            assert time.monotonic() < limit, "the broker tells no offsets"


@contextmanager
def steps(step: Callable[[str], None]) -> Iterator[None]:
    """Call `step` before and after each step of a transaction of Kafka, with ``before`` or ``after`` and its name."""

    def wrapped(name: str):
        original = getattr(KafkaTopic, name)

        def call(*given):
            step(f"before {name}")
            found = original(*given)
            step(f"after {name}")
            return found

        return patch.object(KafkaTopic, name, call)

    with ExitStack() as stack:
        for name in STEPS:
            stack.enter_context(wrapped(name))
        yield


@contextmanager
def once(tester, moment: str, do: Callable[[], object]) -> Iterator[None]:
    """Call `do` when `moment` comes the first time: a step of a transaction of Kafka, or one of `TopologyTester`."""
    if not any(step in moment for step in STEPS):
        tester.when(moment, do)
        yield
        return
    left = [do]
    with steps(lambda now: now == moment and left and left.pop()()):
        yield
