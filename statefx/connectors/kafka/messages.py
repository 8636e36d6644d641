"""Messages of rows: made in the tasks, where those that Kafka would refuse after the decision are refused."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statefx.connectors.kafka.calls import AWAY, has_code
from statefx.connectors.kafka.limits import TopicLimits, limits_of
from statefx.connectors.kafka.publisher import Publisher
from statefx.connectors.staged import Stager
from statefx.errors import FailedException, SinkError
from statefx.operators.json_values import JsonRows, key_writer
from statefx.operators.sinks import Committable, SinkWriter, WriterContext

_OVERHEAD_BYTES = 100
"""What Kafka adds to a message: a batch of one has a header of 61 bytes, and lengths and times take up to 36."""

_HEADER_BYTES = 10
"""What Kafka adds to each header: two lengths."""

_SHOWN = 200
"""Bytes of a key that an error shows at most."""


@dataclasses.dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a row that become parts of a message; None: that part has no column of its own.

    Attributes
    ----------
    key : tuple of str
    value, headers, timestamp, partition : str or None
    """

    key: tuple[str, ...]
    value: str | None
    headers: str | None
    timestamp: str | None
    partition: str | None

    def of_value(self, schema: pa.Schema) -> set[str]:
        """Return the fields of the JSON object that is the value, where no column is."""
        return set(schema.names) - {self.headers, self.timestamp, self.partition}


class MessageWriter(SinkWriter):
    """Makes messages of rows, and stages them.

    Parameters
    ----------
    columns : Columns
    publisher : Publisher
    context : WriterContext
    """

    def __init__(self, columns: Columns, publisher: Publisher, context: WriterContext) -> None:
        self._columns, self._publisher = columns, publisher
        of_value = columns.of_value(context.schema)
        self._rows = JsonRows(pa.schema([field for field in context.schema if field.name in of_value]))
        self._stager = Stager(dataclasses.replace(context, schema=self._schema()))

    def _schema(self) -> pa.Schema:
        """Return the columns that messages are staged in."""
        fields = [("value", pa.large_binary())]
        if self._columns.key:
            fields.append(("key", pa.large_binary()))
        if self._columns.partition is not None:
            fields.append(("partition", pa.int32()))
        if self._columns.timestamp is not None:
            fields.append(("timestamp", pa.int64()))
        if self._columns.headers is not None:
            fields.append(("headers", pa.map_(pa.string(), pa.binary())))
        return pa.schema(fields)

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
        self._stager.write(pa.record_batch(messages))

    def prepare(self, txid: int) -> Committable | None:
        return self._stager.prepare(txid)

    def abort(self) -> None:
        self._stager.abort()

    def close(self) -> None:
        self._stager.close()

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        if self._columns.value is not None:
            return batch.column(self._columns.value).cast(pa.large_binary())
        return pa.array(self._rows.encode(batch.select(self._rows.schema.names)), pa.large_binary())

    def _keys(self, batch: pa.RecordBatch) -> pa.Array:
        columns = [batch.column(name) for name in self._columns.key]
        if len(columns) == 1 and is_bytes(columns[0].type):
            return columns[0].cast(pa.large_binary())
        key_of = key_writer([column.type for column in columns])
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return pa.array([None if row == (None,) else key_of(row) for row in rows], pa.large_binary())

    def _refuse(self, messages: Mapping[str, pa.Array]) -> None:
        """Refuse messages that the topic can't take.

        Raises
        ------
        SinkError
            Names the message.
        FailedException
            No broker tells what the topic can take: machines come back, and the transaction is tried again (rule 6.8).
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
            "old: raise its message.timestamp.before.max.ms, or let the row have another time, or none"
        )
    if last > now_ms + limits.future_ms_max:
        return (
            f"a row's time is {_time(last)}, and the topic takes none that is over {limits.future_ms_max / 1000:g} s "
            "ahead: raise its message.timestamp.after.max.ms, or let the row have another time, or none"
        )
    return None


def _time(ms: int) -> str:
    return f"{np.datetime64(ms, 'ms')}Z"  # also of years that Python's datetime lacks


def is_bytes(kind: pa.DataType) -> bool:
    """Tell whether values of a type are texts or bytes, which Kafka takes as they are."""
    return any(
        is_kind(kind)
        for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def _lengths(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.binary_length(column), 0)


def _header_lengths(headers: pa.MapArray) -> pa.Array:
    """Return the bytes of each row's headers."""
    sums = [
        0 if each is None else sum(len(name.encode()) + len(value or b"") + _HEADER_BYTES for name, value in each)
        for each in headers.to_pylist()
    ]
    return pa.array(sums, pa.int64())


def _shown(messages: Mapping[str, pa.Array], row: int) -> str:
    key = messages["key"][row].as_py() if "key" in messages else None
    return "without a key" if key is None else f"with key {key[:_SHOWN]!r}"
