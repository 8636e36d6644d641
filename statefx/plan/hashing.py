"""The hash of ``fieldsGrouping``: Spark SQL's ``xxhash64``, for Python values.

A row goes to task ``hash mod parallelism``. DataFrames are routed by Spark and tuples by Python, and equal keys must
meet in one task, so both hashes are one function, which never changes:

- XXH64, seed 42; each value's hash is the seed of the next one; null leaves it as it is
- boolean, tinyint, smallint, int and date as 4 bytes, bigint and timestamps (microseconds) as 8, little-endian
- float and double by their bits, -0.0 as 0.0, every NaN as the one Java writes
- decimals of up to 18 digits as unscaled bigint, longer ones as the fewest big-endian bytes of the unscaled value
- strings as UTF-8; arrays and structs value by value
- the result is signed
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from xxhash import xxh64_intdigest as digest

from statefx.errors import SchemaError

SEED = 42
"""Spark SQL's own: ``xxhash64`` takes no other."""

LONG_DECIMAL_DIGITS = 18
"""Up to so many digits Spark keeps a decimal as a long, and hashes that."""

Row = Sequence[Any]
RowHasher = Callable[[Row], int]
Encode = Callable[[Any], bytes]
Fold = Callable[[Any, int], int]

_HALF, _WHOLE = 1 << 63, 1 << 64
_INT, _LONG = struct.Struct("<i").pack, struct.Struct("<q").pack
_FLOAT, _DOUBLE = struct.Struct("<f").pack, struct.Struct("<d").pack
_FLOAT_NAN, _DOUBLE_NAN = _INT(0x7FC00000), _LONG(0x7FF8000000000000)
_ONE = _INT(1)
_FLOAT_ZERO, _FLOAT_MINUS_ZERO = _FLOAT(0.0), _FLOAT(-0.0)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH, _EPOCH_UTC = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)  # noqa: DTZ001 - timestamp_ntz has no zone
_EXACT = Context(prec=100)  # the user's own context might round the 38 digits that a decimal may have
_MISFITS = (struct.error, TypeError, ValueError, AttributeError, ArithmeticError, LookupError)


def row_hasher(schema: pa.Schema, fields: Sequence[str]) -> RowHasher:
    """Return the function that hashes the `fields` of a row, given its values in the order of the schema.

    It returns a signed 64-bit int, whose ``% parallelism`` is the task, and raises SchemaError (with ``field``) for a
    value that has no hash as its field's type.

    Contract
    --------
    - Equal to ``xxhash64(fields...)`` of Spark SQL for every type but maps, which have no hash.
    - A value is hashed as what Arrow makes of it: an int in a double field as a double, a naive datetime as UTC.

    Examples
    --------
    >>> row_hasher(pa.schema([("word", pa.string()), ("count", pa.int64())]), ["word"])(("spark", 3))
    -1960931134668248110
    """
    places = [schema.names.index(name) for name in fields]
    kinds = [schema.field(place).type for place in places]
    careful = _careful(schema, places)
    if any(pa.types.is_nested(kind) for kind in kinds):
        return careful
    return _flat([(place, _encoder(kind)) for place, kind in zip(places, kinds, strict=True)], careful)


def task_chooser(schema: pa.Schema, parallelism: int) -> Callable[[Sequence[Sequence[Any]]], list[int]]:
    """Return the function that names the tasks of many rows, as `row_hasher` and ``% parallelism`` do one by one.

    `schema` is the key, in the order of the grouping. The function takes the key's columns.
    """
    hasher = row_hasher(schema, schema.names)

    def choose(columns: Sequence[Sequence[Any]]) -> list[int]:
        return [hasher(row) % parallelism for row in zip(*columns, strict=True)]

    encode = {pa.string(): str.encode, pa.int64(): _LONG}.get(schema.types[0]) if len(schema) == 1 else None
    if encode is None:
        return choose
    few = True

    def choose_by_one(columns: Sequence[Sequence[Any]]) -> list[int]:
        nonlocal few
        values = columns[0]
        # looked up, a value takes a third of what its hash takes, but finding out which there are takes as much again
        distinct = dict.fromkeys(values) if few else values
        few = few and 2 * len(distinct) <= len(values)
        try:
            tasks = [
                (found if (found := digest(encode(value), SEED)) < _HALF else found - _WHOLE) % parallelism
                for value in distinct
            ]
        except _MISFITS:  # None, or what does not fit
            return choose(columns)
        if distinct is values:
            return tasks
        return list(map(dict(zip(distinct, tasks, strict=True)).__getitem__, values))

    return choose_by_one


def batch_task_chooser(schema: pa.Schema, parallelism: int) -> Callable[[Sequence[pa.Array]], Sequence[int] | pa.Array]:
    """Return the function that names the tasks of an Arrow batch's rows, as `task_chooser` does for Python values.

    Takes the key's columns. A key of one column that repeats is hashed once for each value: what Arrow takes to find
    them out, 10 to 20 ns a row, is a tenth of a row's hash. Whether it repeats is asked of the first `_SAMPLE` rows:
    where nearly all are different, finding that out takes half as long as hashing all of them.
    """
    choose = task_chooser(pa.schema([field.with_type(_countable_type(field.type)) for field in schema]), parallelism)
    one = len(schema) == 1 and not pa.types.is_nested(schema.types[0])

    def choose_for_batch(columns: Sequence[pa.Array]) -> Sequence[int] | pa.Array:
        countable = [column.cast(_countable_type(column.type)) for column in columns]
        if one and _repeats(countable[0]):
            found = countable[0].dictionary_encode(null_encoding="encode")
            return pa.array(choose([found.dictionary.to_pylist()]), pa.int32()).take(found.indices)
        return choose([column.to_pylist() for column in countable])

    return choose_for_batch


_SAMPLE = 4096


def _repeats(column: pa.Array) -> bool:
    """Tell whether less than half of a batch of 65,536 rows may be different values: of its first, 95 % may be then."""
    sample = column.slice(0, _SAMPLE)
    return 20 * len(sample.unique()) <= 19 * len(sample)


def partial_key_chooser(schema: pa.Schema, fields: Sequence[str], parallelism: int) -> RowHasher:
    """Return the function that names the task a row goes to by ``partialKeyGrouping``.

    Two hashes name two different tasks; the row goes to the one that this sender has sent fewer rows so far, the first
    if they are even. So the rows of one key are in at most two tasks, and one heavy key is halved ("the power of both
    choices", Nasir et al., ICDE 2015). Loads are counted per chooser: make a new one for every attempt, and the same
    rows in the same order take the same ways. What Spark SQL does in its place is `PartialKey.targets`.
    """
    if parallelism == 1:
        return lambda row: 0
    hasher = row_hasher(schema, fields)
    loads = [0] * parallelism
    others = parallelism - 1

    def choose(row: Row) -> int:
        found = hasher(row)
        one = found % parallelism
        other = (one + 1 + _signed(digest(_ONE, found % _WHOLE)) % others) % parallelism
        task = one if loads[one] <= loads[other] else other
        loads[task] += 1
        return task

    return choose


# The quick way, for keys of flat types. A value that it can't encode (a numpy number, a str in an int field) goes the
# careful way, by Arrow. Whether it is one is not asked before: every other value would pay for the question.


def _flat(parts: list[tuple[int, Encode]], careful: RowHasher) -> RowHasher:
    def hash_flat(row: Row) -> int:
        found = SEED
        try:
            for place, encode in parts:
                value = row[place]
                if value is not None:
                    found = digest(encode(value), found)
        except _MISFITS:
            return careful(row)
        return found if found < _HALF else found - _WHOLE

    return hash_flat


def _careful(schema: pa.Schema, places: list[int]) -> RowHasher:
    """Return the slow way: let Arrow make of each value what will be sent, and hash that."""
    parts = [(place, schema.field(place), _fold(schema.field(place).type)) for place in places]

    def hash_carefully(row: Row) -> int:
        if len(row) != len(schema):
            raise SchemaError(f"{len(row)} values were emitted for the fields {', '.join(schema.names)}")
        found = SEED
        for place, field, fold in parts:
            try:
                found = fold(pa.array([row[place]], field.type).to_pylist()[0], found)
            except (pa.ArrowException, *_MISFITS) as error:
                raise SchemaError(
                    f"the field {field.name!r} is of type {field.type} and can't hold {row[place]!r} ({error})",
                    field=field.name,
                ) from error
        return _signed(found)

    return hash_carefully


def _signed(found: int) -> int:
    return found if found < _HALF else found - _WHOLE


def _fold(kind: pa.DataType) -> Fold:
    """Return the function that carries a hash on over one value, None included."""
    if pa.types.is_list(kind):
        return _fold_array(_fold(kind.value_type))
    if pa.types.is_struct(kind):
        return _fold_struct([(field.name, _fold(field.type)) for field in kind])
    encode = _encoder(kind)
    return lambda value, seed: seed if value is None else digest(encode(value), seed)


def _fold_array(element: Fold) -> Fold:
    def fold(values: Iterable[Any] | None, seed: int) -> int:
        for value in values or ():
            seed = element(value, seed)
        return seed

    return fold


def _fold_struct(parts: list[tuple[str, Fold]]) -> Fold:
    def fold(values: Any, seed: int) -> int:
        if values is None:
            return seed
        by_name = isinstance(values, dict)
        for place, (name, part) in enumerate(parts):
            seed = part(values.get(name) if by_name else values[place], seed)
        return seed

    return fold


def _encoder(kind: pa.DataType) -> Encode:
    """Return the function that writes a value, not None, as the bytes that are hashed."""
    if pa.types.is_decimal128(kind):
        return _decimal(kind.precision, kind.scale)
    if kind not in _ENCODERS:
        raise TypeError(f"a value of type {kind} has no hash")
    return _ENCODERS[kind]


def _decimal(precision: int, scale: int) -> Encode:
    def unscaled(value: Decimal) -> int:
        return int(_EXACT.scaleb(value, scale))

    def encode_long(value: Decimal) -> bytes:
        return _LONG(unscaled(value))

    def encode_bytes(value: Decimal) -> bytes:
        number = unscaled(value)
        bits = (number if number >= 0 else ~number).bit_length()
        return number.to_bytes(bits // 8 + 1, "big", signed=True)

    return encode_long if precision <= LONG_DECIMAL_DIGITS else encode_bytes


def _float(value: float) -> bytes:
    if math.isnan(value):
        return _FLOAT_NAN
    found = _FLOAT(value)
    return _FLOAT_ZERO if found == _FLOAT_MINUS_ZERO else found  # a tiny double becomes -0.0 on the way


def _double(value: float) -> bytes:
    return _DOUBLE_NAN if math.isnan(value) else _DOUBLE(value + 0.0)  # -0.0 + 0.0 is 0.0


def _binary(value: bytes) -> bytes:
    return value


def _date(value: date) -> bytes:
    return _INT(value.toordinal() - _EPOCH_DAY)


def _timestamp(value: datetime) -> bytes:
    past = value - (_EPOCH if value.tzinfo is None else _EPOCH_UTC)
    return _LONG((past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds)


_ENCODERS: dict[pa.DataType, Encode] = {
    pa.bool_(): _INT,
    pa.int8(): _INT,
    pa.int16(): _INT,
    pa.int32(): _INT,
    pa.int64(): _LONG,
    pa.float32(): _float,
    pa.float64(): _double,
    pa.string(): str.encode,
    pa.binary(): _binary,
    pa.date32(): _date,
    pa.timestamp("us", tz="UTC"): _timestamp,
    pa.timestamp("us"): _timestamp,
}


def _countable_type(kind: pa.DataType) -> pa.DataType:
    """Return what dates and timestamps are hashed as, numbers: Python has no year 10000."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date32(kind) else kind
