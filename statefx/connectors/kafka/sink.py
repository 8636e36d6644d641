"""KafkaSink: rows into a topic of Kafka, each transaction in one transaction of Kafka."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statefx.config import is_number
from statefx.connectors.kafka.clients import AWAY, NAME, Clients, Rules, has_code
from statefx.connectors.kafka.topic import KafkaTopic, Publisher, TopicLimits, limits_of
from statefx.connectors.staged import StagedSink, Stager
from statefx.errors import ConfigError, FailedException, SinkError, TopologyError
from statefx.operators.json_values import JsonRows, key_writer, refuse_keys
from statefx.operators.sinks import Sink, SinkWriter, WriterContext

# ---- messages of rows: made in the tasks, where those that Kafka would refuse after the decision are refused

_OVERHEAD_BYTES = 100
"""What Kafka adds to a message: a batch of one has a header of 61 bytes, and lengths and times take up to 36."""

_HEADER_BYTES = 10
"""What Kafka adds to each header: two lengths."""

_SHOWN = 200
"""Bytes of a key that an error shows at most."""


@dataclasses.dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a row that become parts of a message; None: that part has no column of its own."""

    key: tuple[str, ...]
    value: str | None
    headers: str | None
    timestamp: str | None
    partition: str | None

    def of_value(self, schema: pa.Schema) -> set[str]:
        """Return the fields of the JSON object that is the value, where no column is."""
        return set(schema.names) - {self.headers, self.timestamp, self.partition}


_STAGED = {
    "value": pa.large_binary(),
    "key": pa.large_binary(),
    "partition": pa.int32(),
    "timestamp": pa.int64(),
    "headers": pa.map_(pa.string(), pa.binary()),
}
"""The columns that messages are staged in, apart from those that none of them has."""


class MessageWriter(Stager):
    """Makes messages of rows, and stages them."""

    def __init__(self, columns: Columns, publisher: Publisher, context: WriterContext) -> None:
        staged = [column for column in _STAGED.items() if column[0] == "value" or getattr(columns, column[0])]
        super().__init__(dataclasses.replace(context, schema=pa.schema(staged)))
        self._columns, self._publisher = columns, publisher
        of_value = columns.of_value(context.schema)
        self._objects = JsonRows(pa.schema([field for field in context.schema if field.name in of_value]))

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        columns = self._columns
        messages = {"value": self._values(batch)}
        if columns.key:
            messages["key"] = self._keys(batch)
        if columns.partition is not None:
            messages["partition"] = batch.column(columns.partition)
        if columns.timestamp is not None:
            times = batch.column(columns.timestamp)
            messages["timestamp"] = times.cast(pa.timestamp("ms", times.type.tz), safe=False).cast(pa.int64())
        if columns.headers is not None:
            messages["headers"] = batch.column(columns.headers).cast(pa.map_(pa.string(), pa.binary()))
        self._refuse(messages)
        if columns.partition is not None:
            messages["partition"] = messages["partition"].cast(pa.int32())
        super().write(pa.record_batch(messages))

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        if self._columns.value is not None:
            return batch.column(self._columns.value).cast(pa.large_binary())
        return pa.array(self._objects.encode(batch.select(self._objects.schema.names)), pa.large_binary())

    def _keys(self, batch: pa.RecordBatch) -> pa.Array:
        columns = [batch.column(name) for name in self._columns.key]
        if len(columns) == 1 and is_bytes(columns[0].type):
            return columns[0].cast(pa.large_binary())
        key_of = key_writer([column.type for column in columns])
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return pa.array([None if row == (None,) else key_of(row) for row in rows], pa.large_binary())

    def _refuse(self, messages: Mapping[str, pa.Array]) -> None:
        """Refuse messages that the topic can't take; SinkError names the message.

        FailedException if no broker tells what the topic can take: machines come back, and the transaction is tried
        again (rule 6.8).
        """
        try:
            problem = _problem(messages, limits_of(self._publisher))
            if problem is not None:  # the topic may have been changed since it was asked
                problem = _problem(messages, limits_of(self._publisher, age_secs_max=0))
        except SinkError as error:
            if has_code(error.__cause__, *AWAY):
                raise FailedException(error.message) from error
            raise
        if problem is not None:
            raise self._publisher.refusal(problem)


def _problem(messages: Mapping[str, pa.Array], limits: TopicLimits) -> str | None:
    """Return what the topic would refuse, and what to do; None if nothing."""
    if limits.compacted:
        keys = messages.get("key")
        if keys is None or keys.null_count:
            return (
                "a message has no key, and the topic is compacted: leave out rows whose key is null before the sink, "
                "or give the topic cleanup.policy=delete"
            )
    size = pc.add(_lengths(messages["value"]), _OVERHEAD_BYTES)
    if "key" in messages:
        size = pc.add(size, _lengths(messages["key"]))
    if "headers" in messages:
        size = pc.add(size, _header_lengths(messages["headers"]))
    largest = pc.max(size).as_py()
    if largest > limits.message_bytes_max:
        shown = _shown(messages, pc.index(size, largest).as_py())
        return (
            f"a message {shown} has {largest} bytes with its key and headers, and the topic takes "
            f"{limits.message_bytes_max}: raise the topic's max.message.bytes, or make the row smaller"
        )
    if "partition" in messages:
        for extreme in pc.min_max(messages["partition"]).as_py().values():
            if extreme is not None and not 0 <= extreme < limits.partitions:
                return (
                    f"a row is for partition {extreme}, and the topic has {limits.partitions}, from 0: add partitions "
                    "to the topic, or let the row name another"
                )
    return _problem_of_times(messages["timestamp"], limits) if "timestamp" in messages else None


_EARLIER = " (before Kafka 4, message.timestamp.difference.max.ms)"


def _problem_of_times(times: pa.Array, limits: TopicLimits) -> str | None:
    if limits.past_ms_max is None or limits.future_ms_max is None or times.null_count == len(times):
        return None
    now_ms = int(time.time() * 1000)
    first, last = pc.min_max(times).as_py().values()
    if first <= 0:  # 0 would be taken for "now", and what is before it for "unknown" or nonsense
        return (
            f"a row's time is {_time(first)}, and Kafka has none before 1970-01-01T00:00:00.001: let the row have "
            "another, or none"
        )
    if first < now_ms - limits.past_ms_max:
        return (
            f"a row's time is {_time(first)}, and the topic takes none that is over {limits.past_ms_max / 1000:g} s "
            f"old: raise its message.timestamp.before.max.ms{_EARLIER}, or let the row have another time, or none"
        )
    if last > now_ms + limits.future_ms_max:
        return (
            f"a row's time is {_time(last)}, and the topic takes none that is over {limits.future_ms_max / 1000:g} s "
            f"ahead: raise its message.timestamp.after.max.ms{_EARLIER}, or let the row have another time, or none"
        )
    return None


def _time(ms: int) -> str:
    return f"{np.datetime64(ms, 'ms')}Z"  # also of years that Python's datetime lacks


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether values of a type are texts or bytes, which Kafka takes as they are."""
    return any(
        is_kind(kind)
        for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def _lengths(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.binary_length(column), 0)


def _header_lengths(headers: pa.MapArray) -> pa.Array:
    sums = [
        0 if each is None else sum(len(name.encode()) + len(value or b"") + _HEADER_BYTES for name, value in each)
        for each in headers.to_pylist()
    ]
    return pa.array(sums, pa.int64())


def _shown(messages: Mapping[str, pa.Array], row: int) -> str:
    key = messages["key"][row].as_py() if "key" in messages else None
    return "without a key" if key is None else f"with key {key[:_SHOWN]!r}"


# ---- the sink

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
        if not is_number(secs, 1) or secs > _TIMEOUT_SECS_MAX:
            raise ConfigError(
                f"KafkaSink's transactionTimeoutSecs is a number from 1 to {_TIMEOUT_SECS_MAX}, not {secs!r}"
            )
        keys = (key,) if isinstance(key, str) else key
        if not isinstance(keys, Sequence) or not all(isinstance(name, str) for name in keys):
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
            mine, its = (sink.publisher.transactional_id for sink in (self, other))
            if mine == its:
                return f"both have the transactionalId {mine!r}: give each one of its own"
        return super().conflict(other)

    def check_schema(self, schema: pa.Schema) -> None:
        checks = {
            "value": (is_bytes, "a string or binary"),
            "headers": (_is_headers, "a map of string to string or binary"),
            "timestamp": (pa.types.is_timestamp, "a timestamp"),
            "partition": (pa.types.is_integer, "a whole number"),
        }
        named = {what: getattr(self.columns, what) for what in checks}
        for what, name in [*(("key", name) for name in self.columns.key), *named.items()]:
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
        return MessageWriter(self.columns, self.publisher, context)

    def connect(self, schema: pa.Schema) -> KafkaTopic:
        return KafkaTopic(self.publisher, self.timeout_secs, keyed=bool(self.columns.key))


def _is_headers(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) and pa.types.is_string(kind.key_type) and is_bytes(kind.item_type)
