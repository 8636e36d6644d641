"""Keys: their bytes order as they do, and come back equal and of the same type."""

import enum
import math
from collections import namedtuple
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from functools import cmp_to_key
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefx.errors import CodecError, StateCorruptedError
from statefx.state.encoding.keys import MAX_DEPTH, decode_key, encode_key

TYPE_ORDER = (type(None), bool, int, float, Decimal, str, bytes, date, datetime, tuple)

zones = st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64]),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False),
    st.text(alphabet=st.characters(exclude_categories=["Cs"])),
    st.text(alphabet="\0\x01a\xff", max_size=4),
    st.binary(),
    st.binary(max_size=3).map(lambda data: data.replace(b"\x01", b"\0")),
    st.dates(),
    st.datetimes(timezones=zones),
    st.datetimes(timezones=st.just(UTC)),
)
keys = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=6)


def compare(a, b):
    """The order promised, written without regard to bytes."""
    if type(a) is not type(b):
        return -1 if TYPE_ORDER.index(type(a)) < TYPE_ORDER.index(type(b)) else 1
    if a is None:
        return 0
    if type(a) is tuple:
        for one, other in zip(a, b, strict=False):
            if order := compare(one, other):
                return order
        return (len(a) > len(b)) - (len(a) < len(b))
    return (a > b) - (a < b)


def same(a, b):
    if type(a) is tuple and type(b) is tuple:
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.slow
@given(keys)
def test_a_key_comes_back_equal_and_of_the_same_type(key):
    assert same(decode_key(encode_key(key)), key)


@pytest.mark.slow
@given(keys, keys)
def test_bytes_compare_as_keys_do(a, b):
    one, other = encode_key(a), encode_key(b)
    assert (one > other) - (one < other) == compare(a, b)


@pytest.mark.slow
@given(st.lists(keys, max_size=12))
def test_bytes_sort_as_keys_do(many):
    by_bytes = sorted(many, key=encode_key)
    assert [encode_key(key) for key in sorted(many, key=cmp_to_key(compare))] == [encode_key(key) for key in by_bytes]


@given(st.text(alphabet="ab\0", max_size=6), st.text(alphabet="ab\0", max_size=6))
def test_what_follows_in_a_tuple_does_not_disturb_its_order(a, b):
    one, other = encode_key((a, 255)), encode_key((b, None))
    assert (one < other) == (a < b)


def test_one_of_each_in_order():
    ordered = [
        *(None, False, True),
        *(-(10**400), -(10**40), -(2**63) - 1, -(2**63), -256, -1, 0, 1, 255, 256, 2**63 - 1, 2**63, 10**40, 10**400),
        *(-math.inf, -1e300, -1.5, -5e-324, 0.0, 5e-324, 1.0, 1.5, math.inf),
        *map(Decimal, ("-Infinity", "-1E+999999", "-12.31", "-12.3", "-1E-30", "0", "1E-30", "1", "12.3", "12.31")),
        *map(Decimal, ("123", "1E+30", "1E+999999", "Infinity")),
        *("", "\0", "\0\0", "a", "a\0", "a\0b", "a\x01", "ab", "b", "é", "\uffff", "\U0001f600"),
        *(b"", b"\0", b"\0\xff", b"\x01", b"\xff", b"\xff\0"),
        *(date.min, date(2024, 2, 29), date.max),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=23))),
        datetime.min.replace(tzinfo=UTC),
        datetime(2024, 1, 1, 12, tzinfo=timezone(timedelta(hours=2))),
        datetime(2024, 1, 1, 11, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-23))),
        *((), (None,), (None, None), (1,), (1, 1), (1.0,), ("",), ("", 1), ("\0",), ("a",), ("a", b""), ("a\0",)),
        *((b"",), (b"\0",), ((),), ((), 1), ((None,),), ((1,), 2), ((1, 1),)),
    ]
    encoded = [encode_key(key) for key in ordered]
    assert encoded == sorted(set(encoded))
    assert all(same(decode_key(data), key) for data, key in zip(encoded, ordered, strict=True))


def test_one_and_one_point_zero_and_true_are_three_keys():
    assert len({encode_key(key) for key in (1, 1.0, True, Decimal(1), "1", b"1", (1,), (1.0,), (True,))}) == 9


def test_keys_that_are_equal_are_one_key():
    assert encode_key(-0.0) == encode_key(0.0)
    assert math.copysign(1, decode_key(encode_key(-0.0))) == 1
    assert encode_key((-0.0,)) == encode_key((0.0,))
    assert encode_key(Decimal("1.00")) == encode_key(Decimal("1.0")) == encode_key(Decimal("0.1E1"))
    assert encode_key(Decimal("-0.00")) == encode_key(Decimal(0))
    noon = datetime(2024, 7, 1, 12, tzinfo=UTC)
    assert encode_key(noon) == encode_key(noon.astimezone(ZoneInfo("Europe/Berlin")))


def test_the_two_instants_of_a_clock_change_are_two_keys():
    first = datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    second = first.replace(fold=1)
    assert decode_key(encode_key(second)) - decode_key(encode_key(first)) == timedelta(hours=1)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Word(str):
    __slots__ = ()


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("key", "path", "remedy"),
    [
        (math.nan, "key", "NaN"),
        ((1, (math.nan,)), "key[1][0]", "NaN"),
        (Decimal("NaN"), "key", "NaN"),
        (Decimal("sNaN"), "key", "NaN"),
        (datetime(2024, 1, 1), "key", "tzinfo=timezone.utc"),
        ("a\ud800", "key", "surrogatepass"),
        (("a", "\udfff"), "key[1]", "surrogatepass"),
        ([1], "key", "tuple(...)"),
        (("a", [1]), "key[1]", "tuple(...)"),
        ({1, 2}, "key", "sorted tuple"),
        ({"a": 1}, "key", "what can be:"),
        (bytearray(b"a"), "key", "bytes(...)"),
        (np.int64(1), "key", ".item()"),
        (np.float64(1), "key", ".item()"),
        (np.str_("a"), "key", ".item()"),
        (pd.Timestamp("2024-01-01", tz="UTC"), "key", ".to_pydatetime()"),
        (Colour.RED, "key", ".value"),
        (Level.LOW, "key", ".value"),
        (Word("a"), "key", "str(...)"),
        (Point(1, 2), "key", "tuple(...)"),
        (object(), "key", "None, bool, int"),
    ],
)
def test_what_cannot_be_a_key_is_named_with_its_path_and_a_remedy(key, path, remedy):
    with pytest.raises(CodecError) as caught:
        encode_key(key)
    assert caught.value.path == path
    assert remedy in str(caught.value)


def test_the_error_names_the_type():
    with pytest.raises(CodecError, match=r"key is a numpy\.int64") as caught:
        encode_key(np.int64(1))
    assert caught.value.type == "numpy.int64"


def nested(levels):
    key = 1
    for _ in range(levels):
        key = (key,)
    return key


def test_tuples_nest_to_a_limit():
    assert decode_key(encode_key(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(CodecError, match="nested deeper"):
        encode_key(nested(MAX_DEPTH + 1))


@given(st.binary(max_size=24))
def test_bytes_that_are_no_key_are_reported_as_damage_and_nothing_else(data):
    with suppress(StateCorruptedError):
        decode_key(data)


@pytest.mark.slow
def test_bytes_of_tuples_without_end_are_reported_as_damage():
    with pytest.raises(StateCorruptedError):
        decode_key(encode_key(()) * 10_000)


@pytest.mark.parametrize("key", [1, 2**70, -(2**70), 1.5, Decimal("1.5"), ("a", 1), (b"a",), date.max, ((),)])
def test_a_key_that_was_cut_short_is_reported_as_damage(key):
    data = encode_key((key,)) if type(key) is tuple else encode_key(key)
    with pytest.raises(StateCorruptedError):
        decode_key(data[:-1])


def test_bytes_after_a_key_are_reported_as_damage():
    with pytest.raises(StateCorruptedError, match="not the encoding of a key"):
        decode_key(encode_key(None) + b"\0")
