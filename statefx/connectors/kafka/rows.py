"""Records as Arrow columns, and what their values mean: bytes, texts, JSON or Avro."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from statefx.connectors.fields import given_schema
from statefx.connectors.kafka.clients import kafka
from statefx.errors import ConfigError, TopologyError
from statefx.operators.json_values import JsonRows

if TYPE_CHECKING:
    from confluent_kafka import Message

# ---- what values mean

Values = list[bytes | None]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Format(Protocol):
    """Reads values as columns."""

    schema: pa.Schema

    def decode(self, values: Values) -> list[pa.Array]:
        """Return the columns of these values; ValueError, of which Arrow's errors are, if one of them is none."""


class Bytes:
    """Values as they are."""

    def __init__(self, name: str) -> None:
        self.schema = pa.schema({name: pa.binary()})

    def decode(self, values: Values) -> list[pa.Array]:
        return [pa.array(values, pa.binary())]


class Text:
    """Values in UTF-8."""

    def __init__(self, name: str) -> None:
        self.schema = pa.schema({name: pa.string()})

    def decode(self, values: Values) -> list[pa.Array]:
        return [_texts(values, self.schema.names[0])]


def _texts(values: Sequence[bytes | None], name: str) -> pa.Array:
    """Return values as texts; the cast looks whether all of it is UTF-8."""
    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        raise ValueError(f"its {name} is no text in UTF-8") from None


class Json:
    """An object in each value; fields that it lacks are null, and others are passed over."""

    def __init__(self, schema: Any) -> None:
        self.schema = given_schema("json", schema)
        self._rows = JsonRows(self.schema)

    def decode(self, values: Values) -> list[pa.Array]:
        texts = [b"{}" if value is None else value.removeprefix(_BYTE_ORDER_MARK) for value in values]
        try:
            return self._rows.decode(texts).columns  # type: ignore[no-any-return]
        except (ValueError, RecursionError) as error:
            first = repr(texts[0][:20]) + ("..." if len(texts[0]) > 20 else "")
            raise ValueError(f"its value is no JSON of these fields: {error}: {first}") from None


# ---- values in Avro


class Avro:
    """A value of an Avro schema in each; the fields of a record are columns."""

    def __init__(self, schema: Any) -> None:
        self._schema = _parsed(schema)
        expanded = _fastavro().schema.expand_schema(_known(_json(schema)))
        self._record = isinstance(expanded, Mapping) and expanded["type"] in ("record", "error")
        if self._record:
            fields = [(field["name"], _arrow(field["type"], field["name"])) for field in expanded["fields"]]
            if not fields:
                raise TopologyError(
                    "KafkaSpout: the record of schema= has no fields, so its rows would have no columns"
                )
            self.schema = pa.schema(fields)
        else:
            self.schema = pa.schema({"value": _arrow(expanded, "value")})

    def decode(self, values: list[bytes | None]) -> list[pa.Array]:
        rows = [None if value is None else self._one(value) for value in values]
        if not self._record:
            return [pa.array(rows, self.schema.field(0).type)]
        return [
            pa.array([None if row is None else row[field.name] for row in rows], field.type) for field in self.schema
        ]

    def _one(self, value: bytes) -> Any:
        data = io.BytesIO(value)
        try:
            read = _fastavro().schemaless_reader(data, self._schema, None)
        except (EOFError, IndexError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(_other(value, repr(error))) from error
        except Exception as error:  # fastavro's own for schemas that do not fit has no base but Exception
            raise ValueError(_other(value, str(error))) from error
        if left := len(value) - data.tell():
            raise ValueError(_other(value, f"{left} bytes are left"))
        return read


def _other(value: bytes, why: str) -> str:
    said = f"its value is not of the schema: {why}"
    if value[:1] != b"\0" or len(value) < 6:
        return said
    number = int.from_bytes(value[1:5], "big")
    return (
        f"{said}; it may begin with the number of its schema, {number}, as those of a schema registry do: read the "
        "values as bytes, and decode them in a bolt by the registry's own deserializer"
    )


def _fastavro() -> Any:
    try:
        import fastavro  # noqa: PLC0415 - an extra: only who reads Avro needs it
    except ImportError as error:
        raise ConfigError("values in Avro need fastavro: pip install 'statefx[avro]'") from error
    return fastavro


def _json(schema: Any) -> Any:
    if isinstance(schema, str) and schema.lstrip()[:1] in ("{", "[", '"'):
        try:
            return json.loads(schema)
        except ValueError as error:
            raise TopologyError(f"KafkaSpout: schema= is no Avro schema, which is JSON: {error}") from None
    return schema


def _parsed(schema: Any) -> Any:
    found = _known(_json(schema))
    avro = _fastavro()
    try:
        return avro.parse_schema(found)
    except (ValueError, TypeError, KeyError, avro.schema.SchemaParseException, avro.schema.UnknownType) as error:
        raise TopologyError(
            f"KafkaSpout: schema= is no Avro schema: {error}. It is as in {{'type': 'record', 'name': 'Payment', "
            "'fields': [{'name': 'amount', 'type': 'long'}]}, or that as JSON"
        ) from None


_PLAIN: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}

_LOGICAL: Mapping[str, tuple[str, pa.DataType]] = {
    "date": ("int", pa.date32()),
    "timestamp-millis": ("long", pa.timestamp("us", tz="UTC")),
    "timestamp-micros": ("long", pa.timestamp("us", tz="UTC")),
    "local-timestamp-millis": ("long", pa.timestamp("us")),
    "local-timestamp-micros": ("long", pa.timestamp("us")),
}
"""Logical types that have a column of their own, and what they are written as. Decimals have one too."""


def _known(schema: Any) -> Any:
    """Return a schema without the logical types that there is no column for: what is under them is read."""
    if isinstance(schema, Mapping):
        return {
            name: _known(value)
            for name, value in schema.items()
            if name != "logicalType" or value in _LOGICAL or value == "decimal"
        }
    return [_known(part) for part in schema] if isinstance(schema, list | tuple) else schema


def _kind(schema: Any) -> Any:
    return schema["type"] if isinstance(schema, Mapping) and "type" in schema else schema


def _logical(schema: Any) -> str | None:
    return schema.get("logicalType") if isinstance(schema, Mapping) else None


def _arrow(schema: Any, where: str) -> pa.DataType:
    """Return the Arrow type of an Avro type whose names are expanded."""
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        others = [part for part in schema if part != "null"]
        if len(others) != 1:
            raise _columnless(where, f"a union of {len(others)} types: {schema}")
        return _arrow(others[0], where)
    kind, logical = _kind(schema), _logical(schema) or ""
    if not isinstance(kind, str):
        return _arrow(kind, where)
    if logical == "decimal":
        precision = schema.get("precision")
        if not isinstance(precision, int) or not 1 <= precision <= 38:
            raise _columnless(where, f"a decimal of {precision} digits: it has from 1 to 38")
        return pa.decimal128(precision, schema.get("scale", 0))
    if logical in _LOGICAL and _LOGICAL[logical][0] == kind:
        return _LOGICAL[logical][1]
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind == "array":
        return pa.list_(_arrow(schema["items"], where))
    if kind == "map":
        return pa.map_(pa.string(), _arrow(schema["values"], where))
    if isinstance(schema, Mapping) and kind in ("record", "error"):
        fields = ((field["name"], field["type"]) for field in schema["fields"])
        return pa.struct([(name, _arrow(type_, f"{where}.{name}")) for name, type_ in fields])
    raise _columnless(where, "nothing but null" if kind == "null" else f"the record {kind!r}, which contains itself")


def _columnless(where: str, what: str) -> TopologyError:
    return TopologyError(
        f"KafkaSpout has no column for {where!r} of the Avro schema, which is {what}. Read the values as bytes, and "
        "decode them in a bolt",
        field=where,
    )


# ---- rows

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
    """Records as lists of what is `wanted` of them, some of `COLUMNS`.

    Python's garbage collector visits each message of the client again and again while it lives, but not what it holds.
    So messages are taken a few at a time and dropped at once: 1 M of them take 0.8 s, and 1.3 s if 10,000 live
    together.
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
        return list(chain.from_iterable(self._offsets))

    def offset_column(self) -> pa.Array:
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
            self.headers += [headers or () for headers in map(kind.headers, messages)]

    def only(self, numbers: Sequence[int]) -> Records:
        found = Records(self._wanted)
        offsets = self.offsets
        found._offsets = [[offsets[number] for number in numbers]]
        for name in ("values", "keys", "times", "headers"):
            kept = getattr(self, name)
            setattr(found, name, [kept[number] for number in numbers] if kept else [])
        return found


TRACES_MAX = 8
"""Of how many traces a task tells in one transaction."""

TRACED_ROWS = 16
"""How many of the messages that are taken together are looked into for them."""

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""The header of W3C's Trace Context, as producers that OpenTelemetry instruments write it."""


def traces_of(messages: Sequence[Message]) -> list[str]:
    """Return the trace contexts in the headers of messages; what is none is passed over."""
    headers = chain.from_iterable(message.headers() or () for message in messages)
    values = (value.encode() if isinstance(value, str) else value for name, value in headers if name == "traceparent")
    return [value.decode() for value in values if value is not None and _TRACEPARENT.fullmatch(value)]


class Refused(NamedTuple):
    """A record that is no row."""

    offset: int
    reason: str


class Rows:
    """Makes rows of records, with columns of `COLUMNS` in their order; TopologyError if two would have one name."""

    def __init__(self, value: Format, key: str, columns: Sequence[str]) -> None:
        if key not in _KEYS:
            raise TopologyError(f"KafkaSpout has no keys as {key!r}: there are {' and '.join(_KEYS)}")
        self._value = value
        self._key = _KEYS[key]("key")
        self._columns = list(columns)
        self.wanted = frozenset(columns)
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
        try:
            return self._batch(tp, records), []
        except ValueError:
            pass
        # Few batches have a bad record: only then each one is decoded by itself.
        good: list[int] = []
        refused: list[Refused] = []
        for number, offset in enumerate(records.offsets):
            try:
                self._batch(tp, records.only([number]))
                good.append(number)
            except ValueError as error:
                refused.append(Refused(offset, str(error)))
        batch = self._batch(tp, records.only(good)) if good else pa.RecordBatch.from_pylist([], self.schema)
        return batch, refused

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
    names = pa.array([name for headers in said for name, _ in headers], pa.string())
    values = pa.array([value for headers in said for _, value in headers], pa.binary())
    pairs = pa.StructArray.from_arrays([names, values], fields=list(_HEADER))
    return pa.ListArray.from_arrays(pa.array([0, *accumulate(map(len, said))], pa.int32()), pairs)
