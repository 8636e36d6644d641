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

import numpy as np
import numpy.typing as npt
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


def task_chooser(schema: pa.Schema, parallelism: int) -> Callable[[Sequence[pa.Array]], pa.Array]:
    """Return the function that names the tasks of an Arrow batch's rows, as `row_hasher` and ``% parallelism`` do.

    `schema` is the key, in the order of the grouping. The function takes the key's columns. Many rows are hashed in
    passes over whole columns, in a fifth of the time that a row takes by itself. A key of one column that repeats is
    hashed once for each value; whether it repeats is asked of the first `_SAMPLE` rows.
    """
    hasher = row_hasher(pa.schema([field.with_type(_countable_type(field.type)) for field in schema]), schema.names)
    one = len(schema) == 1 and not pa.types.is_nested(schema.types[0])
    plain = all(kind in _ENCODERS for kind in schema.types)

    def choose(columns: Sequence[pa.Array]) -> pa.Array:
        countable = [column.cast(_countable_type(column.type)) for column in columns]
        if len(countable[0]) < _MANY:
            return choose_by_row(countable)
        if one and _repeats(countable[0]):
            found = countable[0].dictionary_encode(null_encoding="encode")
            return choose([found.dictionary]).take(found.indices)
        if not plain:
            return choose_by_row(countable)
        return pa.array(hashes_of(countable) % parallelism).cast(pa.int32())

    def choose_by_row(columns: Sequence[pa.Array]) -> pa.Array:
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return pa.array([hasher(row) % parallelism for row in rows], pa.int32())

    return choose


def hashes_of(columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """Return what `row_hasher` does for each row of these columns, whose types are flat: no nested ones, no decimals.

    Dates and timestamps are given as the numbers that they are.
    """
    hashes = np.full(len(columns[0]), SEED, np.uint64)
    for column in columns:
        hashes = _fold_column(column, hashes)
    return hashes.view(np.int64)


_MANY = 256
"""Rows from which on passes over columns take less time than one row after the other."""

_SAMPLE = 4096


def _repeats(column: pa.Array) -> bool:
    """Return whether less than half of 65,536 rows may be different values: of the first, 95 % may be then."""
    sample = column.slice(0, _SAMPLE)
    return 20 * len(sample.unique()) <= 19 * len(sample)


def partial_key_chooser(schema: pa.Schema, fields: Sequence[str], parallelism: int) -> RowHasher:
    """Return the function that names the task a row goes to by ``partialKeyGrouping``.

    Two hashes name two different tasks; the row goes to the one that this sender has sent fewer rows so far, the first
    if they are even. So the rows of one key are in at most two tasks, and one heavy key is halved ("the power of both
    choices", Nasir et al., ICDE 2015). Loads are counted per chooser: make a new one for every attempt, and the same
    rows in the same order take the same ways.
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


# XXH64 over columns: each function does for all rows what the algorithm does for one, in unsigned numbers that wrap.

_Numbers = npt.NDArray[Any]
_P1, _P2, _P3, _P4, _P5 = map(
    np.uint64,
    (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5),
)
_STRIPE = 32
"""Bytes from which on the algorithm has four lanes; such values, and those of rare lengths, are hashed one by one."""


def _fold_column(column: pa.Array, seeds: _Numbers) -> _Numbers:
    """Return the hashes of a column's values, each with its own seed; that of a null is its seed."""
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        found = _hash_texts(column, seeds)
    else:
        values = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
        if pa.types.is_floating(column.type):
            numbers = values.to_numpy() + 0  # -0.0 + 0 is 0.0
            words = numbers.view(np.uint32 if numbers.itemsize == 4 else np.uint64)
            words[np.isnan(numbers)] = int.from_bytes(_FLOAT_NAN if numbers.itemsize == 4 else _DOUBLE_NAN, "little")
        elif pa.types.is_int64(column.type):
            words = values.to_numpy().view(np.uint64)
        else:
            words = values.cast(pa.int32()).to_numpy().view(np.uint32)
        found = seeds + (_P5 + np.uint64(words.itemsize))
        found = _avalanche((_add_4 if words.itemsize == 4 else _add_8)(found, words.astype(np.uint64)))
    if column.null_count:
        found = np.where(column.is_valid().to_numpy(zero_copy_only=False), found, seeds)
    return found


def _hash_texts(column: pa.Array, seeds: _Numbers) -> _Numbers:
    _, offsets, buffer = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    starts, lengths = ends[:-1].astype(np.int64), np.diff(ends)
    data = np.frombuffer(buffer or b"", np.uint8)
    found = np.empty(len(column), np.uint64)
    kinds = np.minimum(lengths, _STRIPE)
    counts = np.bincount(kinds, minlength=_STRIPE + 1)
    often = counts >= _MANY
    often[_STRIPE] = False
    for length in np.flatnonzero(often).tolist():
        rows = slice(None) if counts[length] == len(column) else np.flatnonzero(lengths == length)
        found[rows] = _hash_short(data, starts[rows], length, seeds[rows])
    rest = np.flatnonzero(~often[kinds])
    spans = zip(starts[rest].tolist(), lengths[rest].tolist(), seeds[rest].tolist(), strict=True)
    view = memoryview(buffer or b"")
    found[rest] = np.array([digest(view[at : at + length], seed) for at, length, seed in spans], np.uint64)
    return found


def _hash_short(data: _Numbers, at: _Numbers, length: int, seeds: _Numbers) -> _Numbers:
    """Return the hashes of texts of one length below `_STRIPE`, which begin at the places `at`."""
    found = seeds + (_P5 + np.uint64(length))
    for add, size, kind in ((_add_8, 8, "<u8"), (_add_4, 4, "<u4"), (_add_1, 1, "u1")):
        # what begins at each byte, as a number; the places are not aligned
        words: _Numbers = np.ndarray((max(0, len(data) - size + 1),), kind, data, strides=(1,))
        while length >= size:
            found = add(found, words[at].astype(np.uint64))
            at, length = at + size, length - size
    return _avalanche(found)


def _add_8(found: _Numbers, words: _Numbers) -> _Numbers:
    return _turned(found ^ (_turned(words * _P2, 31) * _P1), 27) * _P1 + _P4


def _add_4(found: _Numbers, words: _Numbers) -> _Numbers:
    return _turned(found ^ (words * _P1), 23) * _P2 + _P3


def _add_1(found: _Numbers, words: _Numbers) -> _Numbers:
    return _turned(found ^ (words * _P5), 11) * _P1


def _avalanche(found: _Numbers) -> _Numbers:
    found = (found ^ (found >> np.uint64(33))) * _P2
    found = (found ^ (found >> np.uint64(29))) * _P3
    found ^= found >> np.uint64(32)
    return found


def _turned(words: _Numbers, bits: int) -> _Numbers:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _countable_type(kind: pa.DataType) -> pa.DataType:
    """Return what dates and timestamps are hashed as, numbers: Python has no year 10000."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date32(kind) else kind
