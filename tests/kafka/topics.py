"""What tests of KafkaSink share: topics as independent consumers read them, and the steps of a transaction of Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from statefx.sinks.kafka.topic import KafkaTopic

STEPS = ("_initialised", "_begin", "_send", "_mark", "_commit")
"""What a transaction of Kafka consists of, in order."""

WAIT_SECS = 30


def read(broker, topic: str, level: str = "read_committed") -> list[Message]:
    """Return what a consumer of that isolation level can read now, by partition and offset."""
    consumer = Consumer(
        broker.client(group_id="reader", isolation_level=level, enable_partition_eof=True, fetch_wait_max_ms=5)
    )
    partitions = consumer.list_topics(topic, WAIT_SECS).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    found, left = [], len(partitions)
    while left:
        message = consumer.poll(WAIT_SECS)
        assert message is not None, "the broker answers nothing"
        if message.error() is None:
            found.append(message)
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            left -= 1
    consumer.close()
    return sorted(found, key=lambda each: (each.partition(), each.offset()))


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
