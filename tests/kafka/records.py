"""Records of a topic by hand, for trying things out.

python -m tests.kafka.records ADDRESS write TOPIC VALUE...    each one record
python -m tests.kafka.records ADDRESS read TOPIC              what is committed, until Ctrl-C
"""

from __future__ import annotations

import sys
from contextlib import suppress

from confluent_kafka import Consumer, Producer, TopicPartition

WAIT_SECS = 10


def write(address: str, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": address})
    for value in values:
        producer.produce(topic, value)
    left = producer.flush(WAIT_SECS)
    if left:
        raise SystemExit(f"{left} records were not written: does a broker answer at {address}?")


def read(address: str, topic: str) -> None:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "by-hand", "isolation.level": "read_committed"}
        | {"enable.auto.commit": False}
    )
    partitions = consumer.list_topics(topic, WAIT_SECS).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    with suppress(KeyboardInterrupt):
        while True:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                key, value = (None if each is None else each.decode() for each in (message.key(), message.value()))
                print(f"partition {message.partition()}, offset {message.offset()}: {key} {value}", flush=True)  # noqa: T201 - what it is run for


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[2] not in ("write", "read"):
        raise SystemExit(__doc__)
    {"write": write, "read": read}[sys.argv[2]](sys.argv[1], *sys.argv[3:])
