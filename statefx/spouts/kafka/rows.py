"""Records as Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from statefx.errors import TopologyError
from statefx.spouts.kafka.client import Place
from statefx.spouts.kafka.values import Bytes, Format, Text

if TYPE_CHECKING:
    from confluent_kafka import Message

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")

_NO_TIME = 0
"""The type of a timestamp that a record lacks."""

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])

_METADATA: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "headers": pa.list_(_HEADER),
}

_KEYS: dict[str, Callable[[str], Format]] = {"bytes": Bytes, "string": Text}


class Refused(NamedTuple):
    """A record that is no row."""

    offset: int
    reason: str


class Rows:
    """Makes rows of records.

    Parameters
    ----------
    value : Format
    key : str
        ``bytes`` or ``string``.
    columns : sequence of str
        Of `COLUMNS`, in the order in which they come.
    bytes_max : int or None
        Of a record: key and value.

    Raises
    ------
    TopologyError
        A column is unknown, or comes twice.
    """

    def __init__(self, value: Format, key: str, columns: Sequence[str], bytes_max: int | None) -> None:
        if key not in _KEYS:
            raise TopologyError(f"KafkaSpout has no keys as {key!r}: there are {' and '.join(_KEYS)}")
        self._value = value
        self._key = _KEYS[key]("key")
        self._columns = list(columns)
        self._bytes_max = bytes_max
        fields: list[pa.Field] = []
        for name in self._columns:
            if name not in COLUMNS:
                raise TopologyError(f"KafkaSpout has no column {name!r}: there are {', '.join(COLUMNS)}")
            own = {"key": self._key, "value": value}.get(name)
            fields += [pa.field(name, _METADATA[name])] if own is None else list(own.schema)
        names = [field.name for field in fields]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise TopologyError(
                f"KafkaSpout would have two columns {twice[0]!r}: leave that one out of columns=, which also "
                "names those that do not come from the value",
                field=twice[0],
            )
        self.schema = pa.schema(fields)

    def of(self, place: Place, messages: list[Message]) -> tuple[pa.RecordBatch, list[Refused]]:
        """Return the rows of records, and which of these are none."""
        refused: list[Refused] = []
        if self._bytes_max is not None:
            messages, refused = self._without_large(messages, self._bytes_max)
        try:
            return self._batch(place, messages), refused
        except ValueError:
            pass
        # Few batches have one: only then each record is looked at by itself.
        good = []
        for each in messages:
            try:
                self._batch(place, [each])
                good.append(each)
            except ValueError as error:
                refused.append(Refused(each.offset() or 0, str(error)))
        batch = self._batch(place, good) if good else pa.RecordBatch.from_pylist([], self.schema)
        return batch, sorted(refused)

    def _without_large(self, messages: list[Message], most: int) -> tuple[list[Message], list[Refused]]:
        sizes = [len(each) + len(each.key() or b"") for each in messages]
        if max(sizes, default=0) <= most:
            return messages, []
        large = [
            Refused(each.offset() or 0, f"it has {size:,} bytes, and maxRecordBytes is {most:,}")
            for each, size in zip(messages, sizes, strict=True)
            if size > most
        ]
        return [each for each, size in zip(messages, sizes, strict=True) if size <= most], large

    def _batch(self, place: Place, messages: list[Message]) -> pa.RecordBatch:
        columns: list[pa.Array] = []
        for name in self._columns:
            match name:
                case "value":
                    columns += self._value.decode([each.value() for each in messages])
                case "key":
                    columns += self._key.decode([each.key() for each in messages])
                case "topic":
                    columns.append(pa.repeat(pa.scalar(place.topic), len(messages)))
                case "partition":
                    columns.append(pa.repeat(pa.scalar(place.partition, pa.int32()), len(messages)))
                case "offset":
                    columns.append(pa.array([each.offset() for each in messages], pa.int64()))
                case "timestamp":
                    columns.append(_timestamps(messages))
                case _:
                    columns.append(_headers(messages))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _timestamps(messages: list[Message]) -> pa.Array:
    said = [each.timestamp() for each in messages]
    millis = pa.array([None if kind == _NO_TIME else at for kind, at in said], pa.int64())
    return millis.cast(pa.timestamp("ms", tz="UTC")).cast(_METADATA["timestamp"])


def _headers(messages: list[Message]) -> pa.Array:
    said: list[Any] = [each.headers() or () for each in messages]
    names = pa.array([name for each in said for name, _ in each], pa.string())
    values = pa.array([value for each in said for _, value in each], pa.binary())
    pairs = pa.StructArray.from_arrays([names, values], fields=list(_HEADER))
    return pa.ListArray.from_arrays(pa.array([0, *accumulate(map(len, said))], pa.int32()), pairs)
