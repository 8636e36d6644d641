"""Records as Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from statefx.connectors.kafka.calls import kafka
from statefx.connectors.kafka.values import Bytes, Format, Text
from statefx.errors import TopologyError

if TYPE_CHECKING:
    from confluent_kafka import Message

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")

BATCH_ROWS = 10_000
BATCH_BYTES = 16 << 20
"""Of what is emitted at once. Bolts that take batches do much the same for a small one as for a large one."""

_MILLIS = pa.timestamp("ms", tz="UTC")

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])

_METADATA: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "headers": pa.list_(_HEADER),
}

_KEYS: dict[str, Callable[[str], Format]] = {"bytes": Bytes, "string": Text}


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Records:
    """Records as lists of what is needed of them.

    Python's garbage collector visits each message of the client again and again while it lives, but not what it holds.
    So messages are taken a few at a time and dropped at once: 1 M of them take 0.8 s, and 1.3 s if 10,000 live
    together.

    Parameters
    ----------
    wanted : collection of str
        Of `COLUMNS`; keys, values, times and headers are kept only if they are wanted.

    Attributes
    ----------
    values, keys : list of bytes or None
    times : list of int or None
        Milliseconds.
    headers : list
    size : int
        Bytes of the values.
    """

    def __init__(self, wanted: Collection[str] = COLUMNS) -> None:
        self._wanted = wanted
        self._offsets: list[Sequence[int]] = []
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.times: list[int | None] = []
        self.headers: list[Any] = []
        self.size = 0

    def __len__(self) -> int:
        return sum(map(len, self._offsets))

    @property
    def offsets(self) -> list[int]:
        """Those of the records."""
        return list(chain.from_iterable(self._offsets))

    def offset_column(self) -> pa.Array:
        """Return the offsets as Arrow has them."""
        parts = [
            np.arange(part.start, part.stop) if isinstance(part, range) else np.array(part, np.int64)
            for part in self._offsets
        ]
        return pa.array(np.concatenate(parts) if parts else [], pa.int64())

    def add(self, messages: Sequence[Message]) -> None:
        """Take what is needed of messages, whose offsets rise."""
        if not messages:
            return
        kind = kafka().Message
        # Except for markers of transactions and what compaction took, offsets are consecutive: to ask for them one by
        # one, and to make a column of them, would take a tenth of all the time.
        first, last = messages[0].offset(), messages[-1].offset()
        follow = last - first + 1 == len(messages)  # type: ignore[operator]  # nobody has written one without
        self._offsets.append(range(first, last + 1) if follow else list(map(kind.offset, messages)))  # type: ignore[operator, arg-type]
        self.size += sum(map(len, messages))
        if "value" in self._wanted:
            self.values += map(kind.value, messages)
        if "key" in self._wanted:
            self.keys += map(kind.key, messages)
        if "timestamp" in self._wanted:
            self.times += [at if known else None for known, at in map(kind.timestamp, messages)]
        if "headers" in self._wanted:
            self.headers += [each or () for each in map(kind.headers, messages)]

    def only(self, numbers: Sequence[int]) -> Records:
        """Return some of them."""
        found = Records(self._wanted)
        offsets = self.offsets
        found._offsets = [[offsets[number] for number in numbers]]
        for name in ("values", "keys", "times", "headers"):
            kept = getattr(self, name)
            setattr(found, name, [kept[number] for number in numbers] if kept else [])
        return found


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
        A column comes twice.
    """

    def __init__(self, value: Format, key: str, columns: Sequence[str], bytes_max: int | None) -> None:
        if key not in _KEYS:
            raise TopologyError(f"KafkaSpout has no keys as {key!r}: there are {' and '.join(_KEYS)}")
        self._value = value
        self._key = _KEYS[key]("key")
        self._columns = list(columns)
        self.wanted = frozenset(columns) | ({"key", "value"} if bytes_max is not None else set())
        self._bytes_max = bytes_max
        fields: list[pa.Field] = []
        for name in self._columns:
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

    def batches(self, tp: TopicPartition, parts: Iterable[Records]) -> Iterator[tuple[pa.RecordBatch, list[Refused]]]:
        """Yield the rows of many records, in batches of about `BATCH_ROWS`, and the records that are no rows.

        Arrow copies the values of rows, which costs 5 ns for each. To keep objects of Python costs more: 1 M rows take
        0.15 s less if a few at a time become columns, and the next ones reuse their memory.
        """
        rows: list[pa.RecordBatch] = []
        refused: list[Refused] = []
        count = size = 0
        for records in parts:
            batch, without = self.of(tp, records)
            rows.append(batch)
            refused += without
            count += len(records)
            size += records.size  # of Arrow's columns it would take 8 us to ask
            if without or count >= BATCH_ROWS or size >= BATCH_BYTES:
                yield pa.concat_batches(rows), refused
                rows, refused, count, size = [], [], 0, 0
        if rows:
            yield pa.concat_batches(rows), refused

    def of(self, tp: TopicPartition, records: Records) -> tuple[pa.RecordBatch, list[Refused]]:
        """Return the rows of records, and the records that are no rows."""
        refused: list[Refused] = []
        if self._bytes_max is not None:
            records, refused = self._without_large(records, self._bytes_max)
        try:
            return self._batch(tp, records), refused
        except ValueError:
            pass
        # Few batches have a bad record: only then each one is decoded by itself.
        good = []
        for number, offset in enumerate(records.offsets):
            try:
                self._batch(tp, records.only([number]))
                good.append(number)
            except ValueError as error:
                refused.append(Refused(offset, str(error)))
        batch = self._batch(tp, records.only(good)) if good else pa.RecordBatch.from_pylist([], self.schema)
        return batch, sorted(refused)

    def _without_large(self, records: Records, most: int) -> tuple[Records, list[Refused]]:
        keys = records.keys or [None] * len(records)
        sizes = [len(value or b"") + len(key or b"") for value, key in zip(records.values, keys, strict=True)]
        if max(sizes, default=0) <= most:
            return records, []
        large = [
            Refused(offset, f"it has {size:,} bytes, and maxRecordBytes is {most:,}")
            for offset, size in zip(records.offsets, sizes, strict=True)
            if size > most
        ]
        return records.only([number for number, size in enumerate(sizes) if size <= most]), large

    def _batch(self, tp: TopicPartition, records: Records) -> pa.RecordBatch:
        columns: list[pa.Array] = []
        for name in self._columns:
            match name:
                case "value":
                    columns += self._value.decode(records.values)
                case "key":
                    columns += self._key.decode(records.keys)
                case "topic":
                    columns.append(pa.repeat(pa.scalar(tp.topic), len(records)))
                case "partition":
                    columns.append(pa.repeat(pa.scalar(tp.partition, pa.int32()), len(records)))
                case "offset":
                    columns.append(records.offset_column())
                case "timestamp":
                    columns.append(pa.array(records.times, pa.int64()).cast(_MILLIS).cast(_METADATA["timestamp"]))
                case _:
                    columns.append(_headers(records.headers))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _headers(said: Sequence[Any]) -> pa.Array:
    names = pa.array([name for each in said for name, _ in each], pa.string())
    values = pa.array([value for each in said for _, value in each], pa.binary())
    pairs = pa.StructArray.from_arrays([names, values], fields=list(_HEADER))
    return pa.ListArray.from_arrays(pa.array([0, *accumulate(map(len, said))], pa.int32()), pairs)
