"""Row hashes: of values alone, whatever the columns look like in memory; another value is another hash."""

import datetime
import decimal
import itertools

import numpy as np
import pyarrow as pa
import pytest

from statefx.runtime.contents import Contents
from statefx.runtime.row_hashes import _ODDS, BLOCK_ROWS, row_hashes

UTC = datetime.UTC
VALUES = {
    "boolean": (pa.bool_(), [True, False]),
    "byte": (pa.int8(), [-1, 0, 1]),
    "int": (pa.int32(), [-1, 0, 7]),
    "long": (pa.int64(), [-(2**63), 0, 2**40, 2**40 + 1]),
    "double": (pa.float64(), [0.5, -0.5, 1e300]),
    "decimal": (pa.decimal128(38, 2), [decimal.Decimal("1.25"), decimal.Decimal(10**30), decimal.Decimal("-1.25")]),
    "date": (pa.date32(), [datetime.date(2026, 1, 1), datetime.date(1, 1, 1)]),
    "time": (pa.timestamp("us", tz="UTC"), [datetime.datetime(2026, 1, 1, tzinfo=UTC)]),
    "text": (
        pa.string(),
        ["", "a", "a\0", "ab", "ba", "12345678", "123456789", "1234567_9", "é" * 8, "e" * 16]
        + [f"{'x' * size}{end}" for size in (15, 63, 127, 128, 255, 256, 700) for end in "yz"],
    ),
    "binary": (
        pa.binary(),
        [b"", b"\0", b"\0\0", b"\x80" * 8, b"\x80" * 16, b"\0" * 7 + b"\x80" + b"\0" * 7 + b"\x80"],
    ),
    "array": (pa.list_(pa.string()), [[], ["a"], ["a", "b"], ["b", "a"], ["ab"], [None], ["a", None]]),
    "nested": (pa.list_(pa.list_(pa.int64())), [[[1], [2]], [[1, 2]], [[], [1, 2]], [[1, 2], []]]),
    "struct": (
        pa.struct({"x": pa.int64(), "y": pa.int64()}),
        [{"x": 1, "y": 2}, {"x": 2, "y": 1}, {"x": None, "y": 1}],
    ),
    "map": (pa.map_(pa.string(), pa.int64()), [[], [("a", 1)], [("a", 1), ("b", 2)], [("a", 2), ("b", 1)]]),
}


def hashes(*columns):
    return row_hashes(pa.RecordBatch.from_arrays(list(columns), names=[f"c{n}" for n in range(len(columns))])).tolist()


@pytest.mark.parametrize("name", VALUES)
def test_other_values_have_other_hashes_and_equal_ones_the_same_wherever_they_stand(name):
    kind, values = VALUES[name]
    values = [None, *values]
    found = hashes(pa.array(values, kind))
    assert len(set(found)) == len(values)
    assert hashes(pa.array(values[::-1], kind)) == found[::-1]
    padded = pa.array([values[-1], *values, values[0]], kind)
    assert hashes(padded.slice(1, len(values))) == found, "a slice has an offset"
    many = pa.array(values * (BLOCK_ROWS // len(values) + 2), kind)
    assert hashes(many)[-len(values) :] == found, "behind a block's end"
    assert hashes(pa.array([], kind)) == []


@pytest.mark.parametrize("name", ["text", "long", "date", "double"])
def test_a_dictionary_and_large_offsets_change_nothing(name):
    kind, values = VALUES[name]
    column = pa.array([*values, None, *values], kind)
    assert hashes(column.dictionary_encode()) == hashes(column)
    assert hashes(column.dictionary_encode().slice(2)) == hashes(column)[2:]
    if name == "text":
        assert hashes(column.cast(pa.large_string())) == hashes(column)
    assert hashes(pa.DictionaryArray.from_arrays(pa.array([None], pa.int32()), pa.array([], kind))) == hashes(
        pa.array([None], kind)
    )


def test_what_stands_under_a_null_does_not_count():
    under = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(np.array([5, 6]).tobytes())])
    assert under.to_pylist() == [5, None]
    assert hashes(under) == hashes(pa.array([5, None], pa.int64()))
    for size in (1, 300):
        text, ends = pa.py_buffer(b"a" + b"\xff" * size), np.array([0, 1, 1 + size], np.int32)
        under = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(ends.tobytes()), text])
        assert hashes(under) == hashes(pa.array(["a", None]))


def test_which_values_stand_in_one_row_counts():
    names, numbers = pa.array(["a", "b"]), pa.array([1, 2])
    assert sum(hashes(names, numbers)) != sum(hashes(names, numbers[::-1]))
    assert hashes(pa.array([1]), pa.array([2])) != hashes(pa.array([2]), pa.array([1]))
    assert hashes(pa.array([None], pa.int64()), pa.array([2])) != hashes(pa.array([2]), pa.array([None], pa.int64()))


def pairs(kind):
    return [np.array(half).repeat(2).astype(kind).tobytes() for half in itertools.product(range(4), repeat=6)]


FAMILIES = {
    "halves": ["".join(f"000{digit}" * 2 for digit in digits) for digits in itertools.product(range(4), repeat=6)],
    "floats": pairs("<f4"),
    "integers": pairs(">i4"),
    "highest bits of halves": [
        (np.array(bits, "<u8") * np.uint64(0x8000000080000000)).tobytes()
        for bits in itertools.product((0, 1), repeat=12)
    ],
    "highest bits": [
        (np.array(bits, "<u8") << np.uint64(63)).tobytes() for bits in itertools.product((0, 1), repeat=12)
    ],
    "order": ["".join(words) for words in itertools.permutations([f"k{n}={n * 7:05}" for n in range(7)])],
    "zeros": [bytes(size) for size in range(257)],
}
"""Texts of words of eight bytes that are alike; of a word whose halves are equal, a fold alone would leave one half."""


@pytest.mark.parametrize("name", FAMILIES)
def test_texts_of_words_that_are_alike_have_other_hashes(name):
    texts = FAMILIES[name]
    assert len(set(hashes(pa.array(texts)))) == len(set(texts)) == len(texts)


def test_words_that_change_places_are_told_apart_wherever_they_stand():
    """What two factors differ by, divided by powers of two, is what is left of the difference of two words."""
    odds = _ODDS.tolist()
    shared = [(one - other) & (other - one) & (2**64 - 1) for one, other in itertools.combinations(odds, 2)]
    assert max(shared) <= 32, "of 32 odd numbers, two have their last six bits but one in common"


def test_hashes_stay_what_they_are_from_release_to_release():
    """Those of PROCESSED are compared by the next driver; a change needs another version in `Contents`."""
    words = ["to be or not to be", "x" * 200, "x" * 300, None]
    batch = pa.record_batch({"word": words, "n": pa.array([1, None, None, 3], pa.int64())})
    assert [f"{found:016x}" for found in row_hashes(batch).tolist()] == PINNED


PINNED = ["e9b32208bd46c45a", "ed1b169cb4f6625c", "ef5c24d3b1d820b5", "822db525033298f8"]


def batch(*rows):
    return pa.record_batch({"n": pa.array(rows, pa.int64())})


def test_contents_are_added_up_by_partition_in_any_order_and_any_batches():
    schema = batch(1).schema
    one, other = (Contents({"default": schema, "odd": schema}) for _ in range(2))
    one.begin("0", {"default": 0, "odd": 0}.__getitem__)
    one.begin("1", {"default": 2, "odd": 0}.__getitem__)  # two rows of partition 0 are still gathered
    one.begin("2", {"default": 2, "odd": 0}.__getitem__)
    one.take("default", batch(1, 2, 3))
    one.take("odd", batch(4))
    other.begin("2", {"default": 0, "odd": 0}.__getitem__)
    other.take("odd", batch(4))
    other.take("default", batch(3))
    other.begin("0", {"default": 0, "odd": 0}.__getitem__)
    other.take("default", batch(2))
    other.take("default", batch(1))
    other.begin("1", {"default": 0, "odd": 0}.__getitem__)
    assert [one.of(partition)[0] for partition in "012"] == [2, 0, 2]
    assert [one.of(partition) for partition in "012"] == [other.of(partition) for partition in "012"]
    swapped = Contents({"default": schema, "odd": schema})
    swapped.begin("2", {"default": 0, "odd": 0}.__getitem__)
    swapped.take("odd", batch(3))
    swapped.take("default", batch(4))
    assert swapped.of("2") != one.of("2"), "on which stream a row is counts"
    assert Contents({"default": schema})._fields != one._fields
