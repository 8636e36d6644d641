"""The clients of a sink of Kafka: their settings, what they are asked without writing, and their errors in words."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from statefx.errors import ConfigError, SinkError

logger = logging.getLogger("statefx.kafka")

CALL_SECS = 20.0
"""How long one question to the brokers may take."""

_LIMITS_SECS = 60.0
"""How long a process takes a topic's limits for known."""

_DEFAULT_MESSAGE_BYTES = 1_048_588
"""Kafka's own, for a topic whose configuration nobody may read."""


def require_client(who: str) -> Any:
    """Return confluent-kafka; ConfigError with the remedy if it is not installed."""
    try:
        import confluent_kafka  # noqa: PLC0415 - an extra: only who uses Kafka needs it
        import confluent_kafka.admin  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f"{who} needs confluent-kafka: pip install 'statefx[kafka]'") from error
    return confluent_kafka


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


def limits_of(servers: str, topic: str, config: Mapping[str, Any], target: str) -> TopicLimits:
    """Return what a topic can take, as of a minute ago at most.

    Raises
    ------
    SinkError
        The topic is not there, or no broker answers.
    """
    found = _known_limits.get((servers, topic))
    if found is None or time.monotonic() - found[0] > _LIMITS_SECS:
        limits = Questions(servers, config, target).limits(topic)
        found = _known_limits[servers, topic] = time.monotonic(), limits
    return found[1]


class Questions:
    """What is asked of the brokers without writing anything."""

    def __init__(self, servers: str, config: Mapping[str, Any], target: str) -> None:
        self._target = target
        self._kafka = require_client("KafkaSink")
        with told(target):
            self._admin = self._kafka.admin.AdminClient(client_of(servers, config), logger=logger)

    def limits(self, topic: str) -> TopicLimits:
        with told(self._target):
            found = self._admin.list_topics(topic, timeout=CALL_SECS).topics[topic]
            if found.error is not None:
                raise self._kafka.KafkaException(found.error)
        kind = self._kafka.admin.RESOURCE_TOPIC
        return TopicLimits(
            len(found.partitions), self._setting(kind, topic, "max.message.bytes") or _DEFAULT_MESSAGE_BYTES
        )

    def timeout_ms_max(self) -> int | None:
        """Return the longest transaction that the broker allows; None if it does not say."""
        with told(self._target):
            brokers = self._admin.list_topics(timeout=CALL_SECS).brokers
        broker = str(next(iter(brokers)))
        return self._setting(self._kafka.admin.RESOURCE_BROKER, broker, "transaction.max.timeout.ms")

    def _setting(self, kind: Any, name: str, setting: str) -> int | None:
        """Return a setting; None if it may not be read."""
        resource = self._kafka.admin.ConfigResource(kind, name)
        try:
            future = self._admin.describe_configs([resource], request_timeout=CALL_SECS)[resource]
            return int(future.result(CALL_SECS)[setting].value)
        except (self._kafka.KafkaException, KeyError) as error:
            logger.debug("%s: can't read %s of %s: %s", self._target, setting, name, error)
            return None


def client_of(servers: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of every client."""
    return {
        "client.id": "statefx",
        "log.connection.close": False,
        "retry.backoff.ms": 5,
        **config,
        "bootstrap.servers": servers,
    }


@contextmanager
def told(target: str) -> Iterator[None]:
    """Say what the client raises with the name of the target, and what to do."""
    kafka = require_client("KafkaSink")
    try:
        yield
    except kafka.KafkaException as error:
        code = error.args[0]
        remedy = _REMEDIES.get(code.name(), "")
        raise SinkError(f"{target}: {code.str()} ({code.name()}){remedy}", target=target) from error


_AWAY = ": no broker answers at these addresses; it is tried again"
_REMEDIES = {
    "_TRANSPORT": _AWAY,
    "_TIMED_OUT": _AWAY,
    "_ALL_BROKERS_DOWN": _AWAY,
    "_RESOLVE": ": is the address right?",
    "_UNKNOWN_TOPIC": ": make the topic first",
    "UNKNOWN_TOPIC_OR_PART": ": make the topic first",
    "TOPIC_AUTHORIZATION_FAILED": ": allow this user Write and Describe of the topic",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": ": allow this user Write and Describe of the transactional id",
    "GROUP_AUTHORIZATION_FAILED": ": allow this user Read of the consumer group that is named as the transactional id",
    "INVALID_TRANSACTION_TIMEOUT": ": lower transactionTimeoutSecs, or raise the broker's transaction.max.timeout.ms",
    "_FENCED": ": another driver has taken over, or the broker has ended the transaction for its time; it is seen to",
    "_FATAL": ": another driver has taken over; it is seen to",
}
