"""What a topic and its brokers allow: asked without writing anything."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from statefx.connectors.kafka.calls import answer, has_code, kafka, patiently
from statefx.connectors.kafka.publisher import Publisher
from statefx.errors import SinkError

logger = logging.getLogger("statefx")

CALL_SECS = 20.0
"""How long one question to the brokers may take, with all that it is asked again."""

_ASK_SECS = 5.0
"""How long one question may take before it is asked again, by another client if this one knows no broker."""

_SILENT = ("_TRANSPORT", "_TIMED_OUT")

_LIMITS_SECS = 60.0
"""How long a process believes what it knows of a topic's limits."""

_DEFAULTS = {
    "max.message.bytes": "1048588",
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": "3600000",
}
"""Kafka's own, for a topic whose configuration nobody may read, or of a broker that has no such setting."""


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """What a topic can take.

    Attributes
    ----------
    partitions : int
    message_bytes_max : int
        The most bytes of a message with all that Kafka adds to it, and of several that are sent together.
    compacted : bool
        Whether Kafka keeps the newest message of each key only: a message must have one then.
    past_ms_max, future_ms_max : int or None
        How many milliseconds a message's time may be before and behind the broker's clock; None where the broker sets
        the time itself.
    """

    partitions: int
    message_bytes_max: int
    compacted: bool
    past_ms_max: int | None
    future_ms_max: int | None

    @classmethod
    def of(cls, partitions: int, settings: Mapping[str, str]) -> TopicLimits:
        """Return the limits of a topic with such settings."""
        found = {**_DEFAULTS, **settings}
        bytes_max = int(found["max.message.bytes"])
        if found["compression.type"] not in ("producer", "uncompressed"):
            # The broker compresses messages again and checks their size again. What can't be compressed grows:
            # 1,048,588 random bytes by up to 530 (gzip, snappy).
            bytes_max -= 64 + bytes_max // 1024
        own_times = found["message.timestamp.type"] == "LogAppendTime"
        return cls(
            partitions,
            bytes_max,
            "compact" in found["cleanup.policy"],
            None if own_times else int(found["message.timestamp.before.max.ms"]),
            None if own_times else int(found["message.timestamp.after.max.ms"]),
        )


_known_limits: dict[tuple[str, str], tuple[float, TopicLimits]] = {}


def limits_of(publisher: Publisher, *, age_secs_max: float = _LIMITS_SECS) -> TopicLimits:
    """Return what a topic can take, as of `age_secs_max` ago at most; or what was known last, if nobody can be asked.

    Raises
    ------
    SinkError
        The topic is not there; or nobody can be asked, and this process has never known.
    """
    topic = publisher.clients.servers, publisher.topic
    when, limits = _known_limits.get(topic, (0.0, None))
    if limits is None or time.monotonic() - when >= age_secs_max:
        try:
            limits = Questions(publisher).limits()
        except SinkError as error:
            if limits is None or has_code(error.__cause__, "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
                raise
            logger.warning("%s; the sink goes on with the limits of the topic that it knew before", error.message)
        _known_limits[topic] = time.monotonic(), limits
    return limits


class Questions:
    """What is asked of the brokers without writing anything."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    @cached_property
    def _admin(self) -> Any:
        return self._publisher.clients.admin(CALL_SECS)

    def connect(self) -> None:
        """Connect; SinkError with the reason and the remedy if no broker can be reached."""
        if (why := self._publisher.clients.connect(self._admin)) is not None:
            raise self._publisher.refusal(why)

    def limits(self) -> TopicLimits:
        """Return what the topic can take; SinkError if it is not there, or nobody answers."""
        topic = self._publisher.topic

        def ask(left: float) -> Any:
            found = self._listed(left, topic).topics[topic]
            if found.error is not None:
                raise kafka().KafkaException(found.error)
            return found

        with self._publisher.translated_errors():
            found = patiently(ask, CALL_SECS, *_SILENT, "LEADER_NOT_AVAILABLE", "UNKNOWN_TOPIC_OR_PART")
        return TopicLimits.of(len(found.partitions), self._settings(kafka().admin.RESOURCE_TOPIC, topic))

    def timeout_ms_max(self) -> int | None:
        """Return the longest transaction that the broker allows; None if it does not say."""
        with self._publisher.translated_errors():
            brokers = patiently(self._listed, CALL_SECS, *_SILENT).brokers
        if not brokers:  # one that has just started answers before it counts itself
            return None
        found = self._settings(kafka().admin.RESOURCE_BROKER, str(next(iter(brokers))))
        return int(found["transaction.max.timeout.ms"]) if found else None

    def _listed(self, secs: float, *topic: str) -> Any:
        try:
            return self._admin.list_topics(*topic, timeout=min(secs, _ASK_SECS))
        except kafka().KafkaException as error:
            if has_code(error, "_TRANSPORT"):
                del self._admin  # see `Clients.is_stranded`
            raise

    def allowed(self) -> set[str]:
        """Return what the user may do with the topic: ``WRITE``, ``READ``...; nothing if the broker does not say."""
        topic = self._publisher.topic
        asked = kafka().TopicCollection([topic])
        try:
            future = self._admin.describe_topics(asked, include_authorized_operations=True, request_timeout=CALL_SECS)
            return {each.name for each in answer(future[topic], CALL_SECS).authorized_operations or ()}
        except kafka().KafkaException as error:
            logger.debug("%s: can't see what is allowed: %s", self._publisher.target, error)
            return set()

    def _settings(self, kind: Any, name: str) -> dict[str, str]:
        """Return the settings of a topic or broker; none if they may not be read.

        Clients for administrators end the process by a failed assertion when a broker goes away under a question to the
        coordinator of a group (librdkafka's issue 4605, in 2.6 and in 2.16 alike): offsets and members of groups must
        not be asked for by them. This question goes to any broker, and was asked 450 times of one that was killed and
        stopped at random.
        """
        resource = kafka().admin.ConfigResource(kind, name)
        try:
            future = self._admin.describe_configs([resource], request_timeout=CALL_SECS)[resource]
            return {each.name: each.value for each in answer(future, CALL_SECS).values() if each.value is not None}
        except kafka().KafkaException as error:
            logger.debug("%s: can't read the settings of %s: %s", self._publisher.target, name, error)
            return {}
