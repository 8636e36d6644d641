"""Values on their way out of Arrow are those of Arrow, with one zone in every version of it."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from statefx.operators.unpacking import values_in

TIMESTAMP = pa.timestamp("us", tz="UTC")
NOW = datetime(2026, 3, 28, 12, 0, 0, 123456, tzinfo=UTC)
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
LOCAL = NOW.replace(tzinfo=None)
COLUMNS = [
    (TIMESTAMP, [NOW, None, FIRST, LAST]),
    (pa.timestamp("us"), [LOCAL, None]),
    (pa.timestamp("ms", tz="UTC"), [NOW.replace(microsecond=0), None]),
    (pa.list_(TIMESTAMP), [[NOW, None], None, []]),
    (pa.list_(pa.int64()), [[1], None]),
    (pa.map_(pa.string(), TIMESTAMP), [[("a", NOW), ("b", None)], None]),
    (pa.map_(TIMESTAMP, pa.int64()), [[(NOW, 1)], None]),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None]),
    (
        pa.struct([("a", pa.list_(pa.struct([("at", TIMESTAMP), ("n", pa.int8())])))]),
        [{"a": [{"at": NOW, "n": 1}, None]}, {"a": None}, None],
    ),
    (pa.struct([("n", pa.int8())]), [{"n": 1}, None]),
    (pa.string(), ["a", None]),
]


@pytest.mark.parametrize(("kind", "values"), COLUMNS, ids=str)
def test_every_moment_is_in_pythons_own_utc(kind, values):
    column = pa.array(values, kind)
    for each in (column, column.slice(1), column.slice(0, 0), pa.chunked_array([column, column])):
        assert values_in(each) == each.to_pylist()
    assert repr(values_in(column)) == repr(values), "zones of the same offset are not the same to repr"


@pytest.mark.parametrize("kind", [TIMESTAMP, pa.timestamp("us")])
@pytest.mark.parametrize("micros", [-(2**63), 2**63 - 1, 253_402_300_800_000_000])
def test_a_moment_that_python_does_not_have_is_refused(kind, micros):
    column = pa.array([None, micros], pa.int64()).cast(kind)
    with pytest.raises((OverflowError, ValueError)):
        values_in(column)
