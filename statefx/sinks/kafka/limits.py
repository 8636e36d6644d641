"""What a topic and its brokers allow a sink, asked without writing anything; and errors as a sink raises them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from statefx.errors import SinkError
from statefx.kafka.clients import Clients, logger
from statefx.kafka.words import REMEDIES, kafka

CALL_SECS = 20.0
"""How long one question to the brokers may take."""

_LIMITS_SECS = 60.0
"""How long a process takes a topic's limits for known."""

_DEFAULT_MESSAGE_BYTES = 1_048_588
"""Kafka's own, for a topic whose configuration nobody may read."""


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """What a topic can take.

    Attributes
    ----------
    partitions : int
    message_bytes_max : int
    """

    partitions: int
    message_bytes_max: int


_known_limits: dict[tuple[str, str], tuple[float, TopicLimits]] = {}


def limits_of(clients: Clients, topic: str, target: str) -> TopicLimits:
    """Return what a topic can take, as of a minute ago at most.

    Raises
    ------
    SinkError
        The topic is not there, or no broker answers.
    """
    place = clients.servers, topic
    found = _known_limits.get(place)
    if found is None or time.monotonic() - found[0] > _LIMITS_SECS:
        found = _known_limits[place] = time.monotonic(), Questions(clients, target).limits(topic)
    return found[1]


class Questions:
    """What is asked of the brokers without writing anything."""

    def __init__(self, clients: Clients, target: str) -> None:
        self._target = target
        self._admin = clients.admin()

    def limits(self, topic: str) -> TopicLimits:
        with told(self._target):
            found = self._admin.list_topics(topic, timeout=CALL_SECS).topics[topic]
            if found.error is not None:
                raise kafka().KafkaException(found.error)
        kind = kafka().admin.RESOURCE_TOPIC
        return TopicLimits(
            len(found.partitions), self._setting(kind, topic, "max.message.bytes") or _DEFAULT_MESSAGE_BYTES
        )

    def timeout_ms_max(self) -> int | None:
        """Return the longest transaction that the broker allows; None if it does not say."""
        with told(self._target):
            brokers = self._admin.list_topics(timeout=CALL_SECS).brokers
        broker = str(next(iter(brokers)))
        return self._setting(kafka().admin.RESOURCE_BROKER, broker, "transaction.max.timeout.ms")

    def _setting(self, kind: Any, name: str, setting: str) -> int | None:
        """Return a setting; None if it may not be read."""
        resource = kafka().admin.ConfigResource(kind, name)
        try:
            future = self._admin.describe_configs([resource], request_timeout=CALL_SECS)[resource]
            return int(future.result(CALL_SECS)[setting].value)
        except (kafka().KafkaException, KeyError) as error:
            logger.debug("%s: can't read %s of %s: %s", self._target, setting, name, error)
            return None


@contextmanager
def told(target: str) -> Iterator[None]:
    """Say what the client raises with the name of the target, and what to do."""
    try:
        yield
    except kafka().KafkaException as error:
        code = error.args[0]
        remedy = REMEDIES.get(code.name())
        said = f"{target}: {code.str()} ({code.name()})" + (f": {remedy}" if remedy else "")
        raise SinkError(said, target=target) from error
