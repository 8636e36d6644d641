"""KafkaSink: rows into a topic of Kafka, each transaction in one transaction of Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from statefx.connectors.kafka.clients import Clients, Rules
from statefx.connectors.kafka.messages import Columns, MessageWriter, is_bytes
from statefx.connectors.kafka.publisher import Publisher
from statefx.connectors.kafka.settings import NAME
from statefx.connectors.kafka.topic import KafkaTopic
from statefx.connectors.staged import StagedSink
from statefx.errors import ConfigError, TopologyError
from statefx.operators.json_values import refuse_keys
from statefx.operators.sinks import Sink, SinkWriter, WriterContext

_OWNED = {
    "transactional.id": "give transactionalId",
    "transaction.timeout.ms": "give transactionTimeoutSecs",
    "message.timeout.ms": "give transactionTimeoutSecs",
    "delivery.timeout.ms": "give transactionTimeoutSecs",
    "enable.idempotence": "each transaction would not be there once without it",
    "acks": "a transaction of Kafka needs all of them",
    "group.id": "it is the transactional id: the marker stands there",
    "group.instance.id": "nobody else is in the group: the marker stands there",
    "group.protocol": "nobody else is in the group: the marker stands there",
    "enable.auto.commit": "the marker is the only offset of the group",
    "auto.commit.enable": "the marker is the only offset of the group",
    "isolation.level": "the marker must be read committed",
    "allow.auto.create.topics": "the sink never makes a topic",
    "message.max.bytes": "it is the topic's max.message.bytes",
    "on_delivery": "a transaction is committed if all of its messages are there",
    "dr_cb": "a transaction is committed if all of its messages are there",
    "log.connection.close": "the sink must hear of each connection that is lost",
}
"""Settings of the client that are not the user's to set, and why."""

_DEFAULTS = {
    # While the coordinator still ends a transaction, it has each request of the next one sent again: by default after
    # 100 ms.
    "retry.backoff.ms": 5,
    "partitioner": "murmur2_random",  # as Kafka's clients in Java
}

_KEPT = {
    "enable.auto.commit": False,
    "allow.auto.create.topics": False,  # else the question whether a topic is there would make it
}

_RULES = Rules("KafkaSink", _OWNED, _DEFAULTS, _KEPT, ("Producer", "Consumer"))

_TIMEOUT_SECS_MAX = 86_400
"""A day: longer than any broker allows by default (15 minutes)."""


class KafkaSink(StagedSink):
    """Writes rows to a topic of Kafka, each transaction once, and all of it in one transaction of Kafka.

    A consumer with ``isolation.level=read_committed`` sees all messages of a transaction, or none. The marker that says
    which transaction was published last is an offset of a consumer group, and part of the same transaction of Kafka.
    Rows wait in the checkpoint until then.

    Parameters
    ----------
    servers : str
        ``host:9092``, or several with commas between. The driver connects, and tasks that have rows do.
    topic : str
        It must be there.
    key : str or sequence of str
        Fields that make the message's key: a text or bytes as they are, another type as JSON, several as a JSON array.
        By default a message has no key. Kafka keeps messages of one key in order in one partition; group by the key, so
        that all of them come from one task, in its order.
    value : str, optional
        The field, a text or bytes, that is the message's value; a null is a tombstone. By default the value is the row
        as a JSON object, without the fields that the next three name, and without fields that are null.
    headers, timestamp, partition : str, optional
        Fields for the message's headers (a map of text to text or bytes), its time (a timestamp), and its partition (a
        whole number). Where they are null, or not given: no headers, the time of publishing, the partition by the key.
    transactionalId : str, optional
        Kafka's name for who writes, and that of the consumer group with the marker; by default
        ``statefx.<topic>``. Each sink needs one of its own.
    transactionTimeoutSecs : float
        How long publishing a transaction may take; the broker must allow it (``transaction.max.timeout.ms``).
    config : Mapping, optional
        Further settings of the client, librdkafka: ``security.protocol``, ``sasl.mechanism``, ``compression.type``...

    Raises
    ------
    ConfigError
        An argument can't be used, or confluent-kafka is not installed.

    Notes
    -----
    What Kafka would refuse after the decision is refused in the task, while the transaction can be rolled back: a topic
    or a partition that is not there, a message that is larger than the topic's ``max.message.bytes``, a time too far
    from the broker's clock, a message without a key for a compacted topic.

    A group's offset expires (``offsets.retention.minutes`` of the broker, 7 days by default) when nothing has been
    published for so long. The sink then refuses to start: it never writes on a guess.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        key: str | Sequence[str] = (),
        value: str | None = None,
        headers: str | None = None,
        timestamp: str | None = None,
        partition: str | None = None,
        transactionalId: str | None = None,
        transactionTimeoutSecs: float = 60.0,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(topic, str) or not NAME.fullmatch(topic):
            raise ConfigError(f"KafkaSink needs the name of a topic (letters, digits, '.', '_', '-'), got {topic!r}")
        id = f"statefx.{topic}" if transactionalId is None else transactionalId
        if not isinstance(id, str) or not NAME.fullmatch(id):
            raise ConfigError(f"KafkaSink's transactionalId has letters, digits, '.', '_' and '-', got {id!r}")
        secs = transactionTimeoutSecs
        if isinstance(secs, bool) or not isinstance(secs, int | float) or not 1 <= secs <= _TIMEOUT_SECS_MAX:
            raise ConfigError(
                f"KafkaSink's transactionTimeoutSecs is a number from 1 to {_TIMEOUT_SECS_MAX}, not {secs!r}"
            )
        keys = (key,) if isinstance(key, str) else key
        if not isinstance(keys, Sequence) or not all(isinstance(each, str) for each in keys):
            raise ConfigError(f"KafkaSink's key is a field, or several as in ('country', 'id'), not {key!r}")
        fields = {"value": value, "headers": headers, "timestamp": timestamp, "partition": partition}
        for what, name in fields.items():
            if not isinstance(name, str | None):
                raise ConfigError(f"KafkaSink's {what} is the name of a field, not {name!r}")
        trial = {"transactional.id": id, "transaction.timeout.ms": int(secs * 1000)}
        self.publisher = Publisher(Clients(_RULES, servers, config, **trial), topic, id)
        self.columns = Columns(tuple(keys), **fields)
        self.timeout_secs = float(secs)

    @property
    def target(self) -> str:
        """The servers, the topic, and who writes there."""
        return self.publisher.target

    @property
    def identity(self) -> str:
        """The topic, and who writes there, without the servers: brokers may get other addresses between two starts.

        Another cluster is not taken for this one: it lacks the marker.
        """
        return f"kafka:{self.publisher.topic}#{self.publisher.transactional_id}"

    def conflict(self, other: Sink) -> str | None:
        """Refuse a sink with the same transactional id too: each would refuse the other's producer.

        Servers are not compared: one cluster has many names. So an id can't be shared over two clusters either, unless
        both topics have one name, as the ids that sinks have by default do.
        """
        if isinstance(other, KafkaSink) and other.publisher.topic != self.publisher.topic:
            mine, its = (each.publisher.transactional_id for each in (self, other))
            if mine == its:
                return f"both have the transactionalId {mine!r}: give each one of its own"
        return super().conflict(other)

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse fields that there are not, and types that a message can't have there."""
        checks = {
            "value": (is_bytes, "a string or binary"),
            "headers": (_is_headers, "a map of string to string or binary"),
            "timestamp": (pa.types.is_timestamp, "a timestamp"),
            "partition": (pa.types.is_integer, "a whole number"),
        }
        named = {what: getattr(self.columns, what) for what in checks}
        for what, name in [*(("key", each) for each in self.columns.key), *named.items()]:
            if name is None:
                continue
            if schema.get_field_index(name) < 0:
                raise TopologyError(
                    f"KafkaSink's {what} is {name!r}; its rows have {', '.join(schema.names)}", field=name
                )
            kind = schema.field(name).type
            fits, wanted = checks.get(what, (lambda _: True, ""))
            if not fits(kind):
                raise TopologyError(f"KafkaSink's {what} is {wanted}; field {name!r} is {kind}", field=name)
        in_json = set(self.columns.key) | (set() if self.columns.value is not None else self.columns.of_value(schema))
        refuse_keys(pa.schema([field for field in schema if field.name in in_json]), "KafkaSink")

    def writer(self, context: WriterContext) -> SinkWriter:
        """Make what stages the messages of one task."""
        return MessageWriter(self.columns, self.publisher, context)

    def connect(self, schema: pa.Schema) -> KafkaTopic:
        """Return the topic; it connects when it is asked something."""
        return KafkaTopic(self.publisher, self.timeout_secs, keyed=bool(self.columns.key))


def _is_headers(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) and pa.types.is_string(kind.key_type) and is_bytes(kind.item_type)
