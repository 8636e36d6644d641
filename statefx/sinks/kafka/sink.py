"""KafkaSink: rows into a topic of Kafka, each transaction in one transaction of Kafka."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statefx.errors import ConfigError, SinkError, TopologyError
from statefx.kafka.clients import Clients
from statefx.operators.sinks import Committable, SinkWriter, WriterContext
from statefx.sinks.formats import row_to_json, to_json
from statefx.sinks.kafka.limits import TopicLimits, limits_of
from statefx.sinks.kafka.topic import KafkaTopic
from statefx.sinks.staged import StagedSink, Stager

_OWNED = {
    "transactional.id": "give transactionalId",
    "transaction.timeout.ms": "give transactionTimeoutSecs",
    "enable.idempotence": "each transaction would not be there once without it",
    "acks": "a transaction of Kafka needs all of them",
    "group.id": "it is the transactional id: the marker stands there",
    "isolation.level": "the marker must be read committed",
}
"""Settings of the client that are not the user's to set, and why."""

_DEFAULTS = {
    # While the coordinator still ends a transaction, it has each request of the next one sent again: by default after
    # 100 ms.
    "retry.backoff.ms": 5,
    "partitioner": "murmur2_random",  # as Kafka's clients in Java
}

_KEPT = {"enable.auto.commit": False}

_OVERHEAD_BYTES = 100
"""What Kafka adds to a message: a batch of one has a header of 61 bytes, and lengths and times take up to 36."""

_ID = re.compile(r"[\w.\-]{1,249}", re.ASCII)

_TIMEOUT_SECS_MAX = 86_400


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
        By default a message has none. Kafka keeps messages of one key in order in one partition; group by the key, so
        that all of them come from one task, in its order.
    value : str, optional
        The field, a text or bytes, that is the message's value; a null is a tombstone. By default the value is the row
        as a JSON object, without the fields that the next three name, and without fields that are null.
    headers, timestamp, partition : str, optional
        Fields for the message's headers (a map of text to text or bytes), its time (a timestamp), and its partition (a
        whole number). Where they are null, or not given: no headers, the time of publishing, the partition by the key.
    transactionalId : str, optional
        Kafka's name for who writes, and that of the consumer group with the marker; by default
        ``statefx.<topic>``. Two sinks that write to one topic need two.
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
    What could not be published is refused in the task, while the transaction can be rolled back: a topic or a partition
    that is not there, a message that is larger than the topic's ``max.message.bytes``.

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
        self.clients = Clients("KafkaSink", servers, config, _OWNED, _DEFAULTS, _KEPT)
        if not isinstance(topic, str) or not _ID.fullmatch(topic):
            raise ConfigError(f"KafkaSink needs the name of a topic (letters, digits, '.', '_', '-'), got {topic!r}")
        id = f"statefx.{topic}" if transactionalId is None else transactionalId
        if not isinstance(id, str) or not _ID.fullmatch(id):
            raise ConfigError(f"KafkaSink's transactionalId has letters, digits, '.', '_' and '-', got {id!r}")
        if not 1 <= transactionTimeoutSecs <= _TIMEOUT_SECS_MAX:
            raise ConfigError(
                f"KafkaSink's transactionTimeoutSecs is from 1 to {_TIMEOUT_SECS_MAX}, not {transactionTimeoutSecs!r}"
            )
        self.topic = topic
        self.key = (key,) if isinstance(key, str) else tuple(key)
        self.value = value
        self.headers = headers
        self.timestamp = timestamp
        self.partition = partition
        self.transactional_id = id
        self.timeout_secs = float(transactionTimeoutSecs)

    @property
    def target(self) -> str:
        """The servers, the topic, and who writes there."""
        return f"kafka://{self.clients.servers}/{self.topic}#{self.transactional_id}"

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse fields that there are not, and types that a message can't have there."""
        checks = {
            "value": (_is_bytes, "a string or binary"),
            "headers": (_is_headers, "a map of string to string or binary"),
            "timestamp": (pa.types.is_timestamp, "a timestamp"),
            "partition": (pa.types.is_integer, "a whole number"),
        }
        named = {what: getattr(self, what) for what in checks}
        for what, name in [*(("key", each) for each in self.key), *named.items()]:
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

    def writer(self, context: WriterContext) -> SinkWriter:
        """Make what stages the messages of one task."""
        return _Writer(self, context)

    def connect(self, schema: pa.Schema) -> KafkaTopic:
        """Return the topic; it connects when it is asked something."""
        return KafkaTopic(self.clients, self.topic, self.transactional_id, self.timeout_secs, self.target)


def _is_bytes(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind)
        for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def _is_headers(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) and pa.types.is_string(kind.key_type) and _is_bytes(kind.item_type)


class _Writer(SinkWriter):
    """Makes messages of rows, and stages them; refuses those that Kafka would refuse after the decision."""

    def __init__(self, sink: KafkaSink, context: WriterContext) -> None:
        self._sink = sink
        apart = (sink.headers, sink.timestamp, sink.partition)
        self._in_json = [name for name in context.schema.names if name not in apart]
        self._limits: TopicLimits | None = None
        self._stager = Stager(dataclasses.replace(context, schema=self._schema(context.schema)))

    def _schema(self, schema: pa.Schema) -> pa.Schema:
        """Return what a message is staged as: the columns that it has."""
        fields = [("value", pa.large_binary())]
        if self._sink.key:
            fields.append(("key", pa.large_binary()))
        if self._sink.partition is not None:
            fields.append(("partition", pa.int32()))
        if self._sink.timestamp is not None:
            fields.append(("timestamp", pa.int64()))
        if self._sink.headers is not None:
            fields.append(("headers", pa.map_(pa.string(), pa.binary())))
        return pa.schema(fields)

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        sink = self._sink
        columns = {"value": self._values(batch)}
        if sink.key:
            columns["key"] = self._keys(batch)
        if sink.partition is not None:
            columns["partition"] = pc.cast(batch.column(sink.partition), pa.int32())
        if sink.timestamp is not None:
            column = batch.column(sink.timestamp)
            columns["timestamp"] = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
        if sink.headers is not None:
            columns["headers"] = batch.column(sink.headers).cast(pa.map_(pa.string(), pa.binary()))
        self._refuse(columns)
        self._stager.write(pa.record_batch(columns))

    def prepare(self, txid: int) -> Committable | None:
        return self._stager.prepare(txid)

    def abort(self) -> None:
        self._stager.abort()

    def close(self) -> None:
        self._stager.close()

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        if self._sink.value is not None:
            return batch.column(self._sink.value).cast(pa.large_binary())
        rows = batch.select(self._in_json).to_pylist()
        return pa.array([row_to_json(row).encode() for row in rows], pa.large_binary())

    def _keys(self, batch: pa.RecordBatch) -> pa.Array:
        if len(self._sink.key) == 1:
            column = batch.column(self._sink.key[0])
            if _is_bytes(column.type):
                return column.cast(pa.large_binary())
            texts = [None if each is None else to_json(each).strip('"').encode() for each in column.to_pylist()]
            return pa.array(texts, pa.large_binary())
        rows = batch.select(list(self._sink.key)).to_pylist()
        return pa.array([to_json(list(row.values())).encode() for row in rows], pa.large_binary())

    def _refuse(self, columns: Mapping[str, pa.Array]) -> None:
        """Refuse messages that the topic can't take.

        Raises
        ------
        SinkError
            Names the message.
        """
        if self._limits is None:
            sink = self._sink
            self._limits = limits_of(sink.clients, sink.topic, sink.target)
        limits = self._limits
        size = pc.add(_lengths(columns["value"]), _OVERHEAD_BYTES)
        if "key" in columns:
            size = pc.add(size, _lengths(columns["key"]))
        if "headers" in columns:
            size = pc.add(size, _header_lengths(columns["headers"]))
        largest = pc.max(size).as_py()
        if largest > limits.message_bytes_max:
            row = pc.index(size, largest).as_py()
            raise SinkError(
                f"{self._sink.target}: a message {_shown(columns, row)} has {largest} bytes with its key and headers, "
                f"and the topic takes {limits.message_bytes_max}: raise the topic's max.message.bytes, or make the row "
                "smaller",
                target=self._sink.target,
            )
        if "partition" in columns:
            for extreme in pc.min_max(columns["partition"]).as_py().values():
                if extreme is not None and not 0 <= extreme < limits.partitions:
                    raise SinkError(
                        f"{self._sink.target}: a row is for partition {extreme}, and the topic has "
                        f"{limits.partitions}, from 0: add partitions to the topic, or let the row name another",
                        target=self._sink.target,
                    )


def _lengths(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.binary_length(column), 0)


def _header_lengths(headers: pa.MapArray) -> pa.Array:
    """Return the bytes of each row's headers."""
    sums = [
        0 if each is None else sum(len(name.encode()) + len(value or b"") + 10 for name, value in each)
        for each in headers.to_pylist()
    ]
    return pa.array(sums, pa.int64())


def _shown(columns: Mapping[str, pa.Array], row: int) -> str:
    key = columns["key"][row].as_py() if "key" in columns else None
    return "without a key" if key is None else f"with key {key[:200]!r}"
