"""Who publishes where, and errors of the client with the target and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from statefx.connectors.kafka.calls import kafka
from statefx.connectors.kafka.clients import Clients
from statefx.errors import SinkError

_REMEDIES = {
    **dict.fromkeys(
        ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
        "a broker has just started and is not ready yet",
    ),
    **dict.fromkeys(
        ("_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART"),
        "make topic {topic!r} first; if it was deleted, the marker is gone with it: start with adopt='takeover' then",
    ),
    "_UNKNOWN_PARTITION": "add partitions to topic {topic!r}: it has fewer than when the rows were prepared",
    "TOPIC_AUTHORIZATION_FAILED": "allow {user} Write and Read of topic {topic!r}",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "allow {user} Write of the transactional id {id!r}",
    "GROUP_AUTHORIZATION_FAILED": "allow {user} Read of the consumer group {id!r}",
    "CLUSTER_AUTHORIZATION_FAILED": "allow {user} IdempotentWrite of the cluster",
    "INVALID_TRANSACTION_TIMEOUT": "lower transactionTimeoutSecs, or raise the broker's transaction.max.timeout.ms",
    "MSG_SIZE_TOO_LARGE": "raise max.message.bytes of topic {topic!r} to what it was when the rows were prepared",
    "INVALID_TIMESTAMP": "the time of a message is too far from the broker's clock: raise "
    "message.timestamp.before.max.ms or message.timestamp.after.max.ms of topic {topic!r}",
    "INVALID_RECORD": "topic {topic!r} is compacted now, and a message has no key: set its cleanup.policy back to "
    "what it was when the rows were prepared",
    "NOT_ENOUGH_REPLICAS": "fewer brokers are there than min.insync.replicas of topic {topic!r}: start the others",
    "_FENCED": "another driver has taken over, or the broker has ended a transaction that took too long; the next "
    "try finds out which",
    "_FATAL": "another driver has taken over; the next try finds out whether it has",
}
"""What to do, by the code of an error."""


@dataclass(frozen=True, slots=True)
class Publisher:
    """Who publishes where.

    Attributes
    ----------
    clients : Clients
    topic, transactional_id : str
    """

    clients: Clients
    topic: str
    transactional_id: str

    @property
    def target(self) -> str:
        """The servers, the topic, and who writes there."""
        return f"kafka://{self.clients.servers}/{self.topic}#{self.transactional_id}"

    def refusal(self, what: str) -> SinkError:
        """Return an error that names the target and says `what` is wrong there."""
        return SinkError(f"{self.target}: {what}", target=self.target)

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Raise what the client raises as SinkError, which names the target, the reason and the remedy."""
        try:
            yield
        except kafka().KafkaException as error:
            name = error.args[0].name()
            remedy = _REMEDIES.get(name, "").format(topic=self.topic, id=self.transactional_id, user=self.clients.user)
            raise self.refusal(f"{self.clients.reason(error)} ({name}){remedy and ': '}{remedy}") from error
