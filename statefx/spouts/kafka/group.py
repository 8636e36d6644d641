"""The consumer group that is told what is committed, on the driver: nothing depends on it, and nobody waits for it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from statefx.kafka.words import kafka, named, text_of
from statefx.spouts.kafka.rows import Place

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
        self._wanted: dict[Place, int] = {}
        self._known: dict[Place, int] = {}
        """What the group has taken."""
        self._said = ""
        """Why it has not: said once, and not with each transaction."""

    def tell(self, consumer: Consumer, read: Mapping[Place, int], topics: Collection[str]) -> None:
        """Have the group's offsets follow, those that have changed; see `repeat`."""
        self._wanted = dict(read)
        self._listen(consumer)
        # While the group is denied, the client keeps what it is told, and its end waits for all of that.
        if not self._said:
            self.repeat(consumer, topics)

    def repeat(self, consumer: Consumer, topics: Collection[str]) -> None:
        """Tell the group what it has not taken of topics that are there, as often as the driver looks for new ones."""
        self._listen(consumer)
        told = [
            kafka().TopicPartition(*place, offset)
            for place, offset in self._wanted.items()
            if self._known.get(place) != offset and place.topic in topics
        ]
        if told:
            consumer.commit(offsets=told)

    def _listen(self, consumer: Consumer) -> None:
        """Hear what became of what the group was told; a denied one is told by an event of the client's alone."""
        while (event := consumer.poll(0)) is not None:
            if named(event.error(), "GROUP_AUTHORIZATION_FAILED"):
                self.hear(event.error(), [])

    def hear(self, error: Any, told: Sequence[Any]) -> None:
        """Take note of what the group has taken, and say why not; given to the client as ``on_commit``."""
        if error is None:
            self._known |= {Place(each.topic, each.partition): each.offset for each in told if each.error is None}
            error = next((each.error for each in told if each.error is not None), None)
        if error is None:
            self._said = ""
            return
        why = text_of(error).rstrip(".")
        if named(error, *_MEMBERS):
            why += ". Consumers that subscribe to topics are members of it: give the spout a group of its own"
        elif named(error, "GROUP_AUTHORIZATION_FAILED"):
            why += ". Give the user of this client READ on the group"
        if why != self._said:
            self._said = why
            logger.warning(
                "the group %r can't be told how far its topics were read: %s. Nothing depends on it but what watches "
                "the group's lag; KafkaSpout(group=None) leaves it out. This is said once", self._name, why,
            )  # fmt: skip
