"""Types and awkward values of rows: the one place from which tests of sinks, spouts and their formats take them.

`tables` draws whole tables; `AWKWARD` has values by type that somebody has once lost. A new type, or a new value that
was lost, goes here, and is then tried with every pair of sink and spout.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

Kinds = Callable[[pa.DataType], bool]
"""Says which types a sink, or a reader, is tried with."""

TEXTS = [
    "",
    " ",
    " s ",
    "a",
    "null",
    "NULL",
    "None",
    "NA",
    "nan",
    "NaN",
    '"',
    '""',
    "'",
    "a,b",
    "a\nb",
    "a\r\nb",
    "\r",
    "\\",
    "\\N",
    "\\n",
    "#",
    "\t",
    "\ufeff",
    "\u2028",
    "é\U0001f600",
    "\x00",
    "\x00null",
    "__HIVE_DEFAULT_PARTITION__",
    "{}",
    "true",
    "01",
    "1.0",
    "2020-01-01",
    "a/b=c%2F",
]

AWKWARD: Mapping[pa.DataType, Sequence[Any]] = {
    pa.bool_(): [True, False],
    **{
        kind: [0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))]
        for kind, bits in ((pa.int8(), 8), (pa.int16(), 16), (pa.int32(), 32), (pa.int64(), 64))
    },
    pa.int64(): [0, -1, 2**63 - 1, -(2**63), 2**53 + 1],
    pa.float32(): [0.0, -0.0, 1.5, 3.4028234663852886e38, 1e-45, 0.1, math.nan, math.inf, -math.inf],
    pa.float64(): [0.0, -0.0, 1.0, 0.1, 5e-324, 1.7976931348623157e308, 1e22, math.nan, math.inf, -math.inf],
    pa.decimal128(10, 2): [Decimal("1.10"), Decimal("-0.01"), Decimal("0.00"), Decimal("99999999.99")],
    pa.decimal128(38, 18): [Decimal("0.000000000000000001"), Decimal("-12345678901234567890.123456789012345678")],
    pa.decimal128(20, 0): [Decimal(2**64 - 1), Decimal(0)],
    pa.string(): TEXTS,
    pa.binary(): [b"", b"\x00\xff", b"abc", b"YWJj", bytes(range(256))],
    pa.date32(): [date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 10), date(2024, 2, 29)],
    pa.timestamp("us", "UTC"): [
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1, 1, 2, tzinfo=UTC),
        datetime(1582, 10, 10, 1, 2, 3, tzinfo=UTC),
        datetime(9999, 12, 30, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2024, 3, 31, 1, 30, 0, 1, tzinfo=UTC),
    ],
    pa.timestamp("us"): [
        datetime(1970, 1, 1),
        datetime(1, 1, 2),
        datetime(1900, 1, 1, 0, 0, 0, 1),
        datetime(9999, 12, 30, 23, 59, 59, 999999),
        datetime(2024, 3, 31, 2, 30),
    ],
}
"""Values that were once lost or changed, or that are at the edge of their type, by type."""


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Draw a value of a type, or None."""
    return st.none() | _values(kind)


def _values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_list(kind):
        return st.lists(values(kind.value_type), max_size=3)
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    if pa.types.is_map(kind):
        pairs = st.tuples(_values(kind.key_type), values(kind.item_type))
        return st.lists(pairs, max_size=3, unique_by=lambda pair: repr(pair[0]))
    return st.sampled_from(AWKWARD[kind]) | _MORE.get(kind, st.nothing())


_MORE: Mapping[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=6),
    pa.binary(): st.binary(max_size=6),
}

ATOMIC: st.SearchStrategy[pa.DataType] = st.sampled_from(list(AWKWARD))

NESTED: st.SearchStrategy[pa.DataType] = st.recursive(
    ATOMIC,
    lambda inner: st.one_of(
        st.builds(pa.list_, inner),
        st.builds(pa.map_, st.sampled_from([pa.string(), pa.string(), pa.int64()]), inner),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda found: pa.struct([pa.field(f"s{number}", kind) for number, kind in enumerate(found)])
        ),
    ),
    max_leaves=4,
)

KINDS = ATOMIC | NESTED


@st.composite
def tables(draw: st.DrawFn, kinds: st.SearchStrategy[pa.DataType] = KINDS, fields_max: int = 4) -> pa.RecordBatch:
    """Draw a batch of some rows."""
    found = draw(st.lists(kinds, min_size=1, max_size=fields_max))
    schema = pa.schema([(f"f{number}", kind) for number, kind in enumerate(found)])
    rows = draw(st.lists(st.tuples(*(values(kind) for kind in found)), min_size=1, max_size=5))
    return batch(schema, rows)


def batch(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Return rows as Arrow."""
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def content(rows: pa.RecordBatch | pa.Table) -> list[str]:
    """Return the rows in a form in which equal rows, and only these, are equal, and which has an order.

    NaN equals NaN, -0.0 does not equal 0.0, and a map's keys have no order.
    """
    columns = [[repr(_plain(value)) for value in column] for column in rows.columns]
    return sorted(map(str, zip(*columns, strict=True)))


def _plain(value: pa.Scalar) -> Any:
    if not value.is_valid:
        return None
    kind = value.type
    if pa.types.is_list(kind):
        return [_plain(each) for each in value.values]
    if pa.types.is_map(kind):
        return sorted(
            (_plain(key), _plain(item)) for key, item in zip(value.values.field(0), value.values.field(1), strict=True)
        )
    if pa.types.is_struct(kind):
        return [(name, _plain(value[name])) for name in kind.names]
    if pa.types.is_floating(kind):
        number = value.as_py()
        return "nan" if math.isnan(number) else struct.pack(">d", number)
    if pa.types.is_temporal(kind):
        return value.value  # Python lacks most years of Arrow
    return value.as_py()
