"""Payments for topologies that read and write Kafka: who writes them, and who sees what becomes of them.

Each runs in a process of its own, so that it takes no turn of the interpreter that it measures.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from multiprocessing import get_context
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

PARTITIONS = 2
FIELDS = "account string, payment long, amount long, due long"
LOOK_SECS = 0.02
WAIT_SECS = 120.0
PROCESSES = get_context("spawn")  # a fork would take the threads of clients and of py4j for its own


def payment(number: int, keys: int, due_us: int) -> tuple[bytes, bytes]:
    """Return value and key of a payment."""
    account = f"account-{number * 7919 % keys:06d}"
    value = f'{{"account": "{account}", "payment": {number}, "amount": {number % 997}, "due": {due_us}}}'
    return value.encode(), account.encode()


def fill(client: dict[str, Any], topic: str, count: int, keys: int) -> None:
    """Write so many payments at once; those of an account stand in one partition."""
    producer = Producer({**client, "linger.ms": 50, "batch.size": 1_000_000})
    for number in range(count):
        _produce(producer, topic, number, keys, 0)
    producer.flush()


def offer(client: dict[str, Any], topic: str, rate: int, start_us: int, count: int, keys: int) -> None:
    """Write payments at times that are fixed beforehand, whatever becomes of them; each says when it was due.

    Who is late writes all at once that is due by now: the time that a record has waited for its producer counts.
    """
    producer = Producer({**client, "linger.ms": 1})
    number = 0
    while number < count:
        due = min(count, (time.time_ns() // 1000 - start_us) * rate // 1_000_000)
        for each in range(number, due):
            _produce(producer, topic, each, keys, start_us + each * 1_000_000 // rate)
        number = max(number, due)
        producer.poll(0)
        time.sleep(0.001)  # noqa: TID251 - the pace of the load
    producer.flush()


def _produce(producer: Producer, topic: str, number: int, keys: int, due_us: int) -> None:
    value, key = payment(number, keys, due_us)
    while True:
        try:
            return producer.produce(topic, value, key, number * 7919 % keys % PARTITIONS)
        except BufferError:
            producer.poll(0.01)


def latencies(client: dict[str, Any], topic: str, count: int, answers: Any) -> None:
    """Read committed records until there are `count`; put (when it was due, microseconds until it was here) of each.

    Raises TimeoutError if none comes for two minutes.
    """
    consumer = _committed(client, topic)
    answers.put("ready")
    found: list[tuple[int, int]] = []
    heard = time.monotonic()
    while len(found) < count:
        first = consumer.poll(0.1)
        # With a time-out, `consume` waits until it has as many as it was asked for: it would be measured with the rest.
        messages = [] if first is None else [first, *consumer.consume(1000, 0)]
        now_us = time.time_ns() // 1000
        for message in messages:
            if message.error() is None:
                due = json.loads(message.value())["due"]
                found.append((due, now_us - due))
                heard = time.monotonic()
        if time.monotonic() - heard > WAIT_SECS:
            answers.put(f"{len(found)} records of {count} have come")
            return
    answers.put(found)


def watch(client: dict[str, Any], topic: str, enough: int, stop: Any, answers: Any) -> None:
    """Note how far committed readers could read, whenever that has changed, until it is `enough` or `stop` is set."""
    admin = AdminClient(client)
    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(PARTITIONS)}
    seen: list[tuple[float, int]] = []
    while not stop.wait(LOOK_SECS):
        ends = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED)
        try:
            end = sum(each.result(WAIT_SECS).offset for each in ends.values())
        except (KafkaException, TimeoutError) as error:
            # A flooded broker answers late, or has been its partitions' leader anew, which a client does not notice.
            print(f"the observer was not answered: {error}", file=sys.stderr, flush=True)
            admin = AdminClient(client)
            continue
        if not seen or seen[-1][1] != end:
            seen.append((time.monotonic(), end))
        if end >= enough:
            break
    answers.put(seen)


def counted(client: dict[str, Any], topic: str) -> tuple[int, int]:
    """Return how many committed records a topic has, and the sum of the last total of each account."""
    consumer = _committed(client, topic, **{"enable.partition.eof": True})
    left, records, totals = PARTITIONS, 0, dict[str, int]()
    while left:
        messages = consumer.consume(10_000, 1.0)
        for message in messages:
            if message.error() is None:
                records += 1
                row = json.loads(message.value())
                totals[row["account"]] = max(row["total"], totals.get(row["account"], 0))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                left -= 1
    consumer.close()
    return records, sum(totals.values())


def rate(seen: Sequence[tuple[float, int]], count: int) -> float:
    """Return records a second, from when a fifth of them was visible until all were."""
    ends = [(when, end) for when, end in seen if end >= count // 5]
    (first, before), (last, after) = ends[0], ends[-1]
    if first == last:
        raise RuntimeError("all came at once: there are too few to measure a rate")
    return (after - before) / (last - first)


def _committed(client: dict[str, Any], topic: str, **settings: Any) -> Consumer:
    more = {"group.id": "observer", "isolation.level": "read_committed", "enable.auto.commit": False, **settings}
    consumer = Consumer({**client, **more})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    return consumer
