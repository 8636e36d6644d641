"""The consumer group that is told what is committed, on the driver: nothing depends on it, and nobody waits for it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from statefx.connectors.kafka.calls import has_code, kafka, text_of
from statefx.connectors.kafka.rows import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import Consumer

logger = logging.getLogger("statefx")

_MEMBERS = "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "FENCED_INSTANCE_ID"


class Group:
    """Tells a group by a client which is no member of it.

    Parameters
    ----------
    name : str
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._wanted: dict[TopicPartition, int] = {}
        self._known: dict[TopicPartition, int] = {}
        """What the group has taken."""
        self._refusal = ""
        """Why it has not taken more: logged once, and not with each transaction."""

    def tell(self, consumer: Consumer, read: Mapping[TopicPartition, int], topics: Collection[str]) -> None:
        """Commit to the group those of the offsets `read` that have changed; see `repeat`."""
        self._wanted = dict(read)
        self._listen(consumer)
        # While the group is denied, the client keeps what it is told, and its end waits for all of that.
        if not self._refusal:
            self.repeat(consumer, topics)

    def repeat(self, consumer: Consumer, topics: Collection[str]) -> None:
        """Tell the group what it has not taken of topics that are there, as often as the driver looks for new ones."""
        self._listen(consumer)
        told = [
            kafka().TopicPartition(*tp, offset)
            for tp, offset in self._wanted.items()
            if self._known.get(tp) != offset and tp.topic in topics
        ]
        if told:
            consumer.commit(offsets=told)

    def _listen(self, consumer: Consumer) -> None:
        """Have the client call `on_commit`; that access to the group is denied, it says by an event alone."""
        while (event := consumer.poll(0)) is not None:
            if has_code(event.error(), "GROUP_AUTHORIZATION_FAILED"):
                self.on_commit(event.error(), [])

    def on_commit(self, error: Any, told: Sequence[Any]) -> None:
        """Note what the group has taken, and log why it has not; librdkafka's callback of this name."""
        if error is None:
            self._known |= {
                TopicPartition(each.topic, each.partition): each.offset for each in told if each.error is None
            }
            error = next((each.error for each in told if each.error is not None), None)
        if error is None:
            self._refusal = ""
            return
        why = text_of(error).rstrip(".")
        if has_code(error, *_MEMBERS):
            why += ". Consumers that subscribe to topics are members of it: give the spout a group of its own"
        elif has_code(error, "GROUP_AUTHORIZATION_FAILED"):
            why += ". Give the user of this client READ on the group"
        if why != self._refusal:
            self._refusal = why
            logger.warning(
                "the group %r can't be told how far its topics were read: %s. Nothing depends on it but what watches "
                "the group's lag; KafkaSpout(group=None) leaves it out. This is said once", self._name, why,
            )  # fmt: skip
