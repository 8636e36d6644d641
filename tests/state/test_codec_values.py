"""Values: they come back equal, of the same types, and new."""

import enum
import math
import pickle
from collections import OrderedDict, namedtuple
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefx.errors import CodecError, StateCorruptedError
from statefx.state import Codec
from statefx.state.encoding import values
from statefx.state.encoding.codec import StandardCodec
from statefx.state.encoding.values import MAX_DEPTH, decode_value, is_settled, make_encoder, register_namedtuples

encode_value = make_encoder()

zones = st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False),
    st.text(alphabet=st.characters()),
    st.binary(),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=zones),
    st.timedeltas(),
)
hashable = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(hashable, inner, max_size=3),
    ),
    max_leaves=10,
)


def same(a, b):
    if type(a) is not type(b):
        return False
    if type(a) in (list, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if type(a) is dict:
        return list(a) == list(b) and all(map(same, a, b)) and all(map(same, a.values(), b.values()))
    if type(a) is Decimal:
        return str(a) == str(b)
    if type(a) is datetime:
        return a == b and a.utcoffset() == b.utcoffset() and a.fold == b.fold
    return a == b


@pytest.mark.slow
@given(anything)
def test_a_value_comes_back_equal_and_of_the_same_types(value):
    assert same(decode_value(encode_value(value)), value)


@pytest.mark.parametrize(
    "value",
    [
        *(0, 127, 128, -32, -33, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**400, -(10**400)),
        *(1.0, -0.0, math.inf, "", b"", "\ud800", "x" * (1 << 20), bytes(1 << 20)),
        *(Decimal("1.00"), Decimal("-0"), Decimal("1E+999999"), Decimal("Infinity")),
        datetime(2024, 10, 27, 2, 30, fold=1),
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-3, microseconds=1))),
        datetime.max.replace(tzinfo=UTC),
        date.min,
        *(timedelta(0), timedelta(microseconds=-1), timedelta.min, timedelta.max, [{timedelta(days=1): timedelta(1)}]),
        *((), [], {}, [()], ([],), {(): {}}, {(1, ("a", None)): [b"\0", ("\udfff", {2.5: [True]})]}),
        {True: 0, 2: 1, 2.5: 2, Decimal("0.5"): 3, None: 4, b"a": 5, "a": 6, date.min: 7, datetime.min: 8, 2**70: 9},
        tuple(range(1000)),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_one_of_each(value):
    assert same(decode_value(encode_value(value)), value)


def test_nan_comes_back_as_nan():
    assert math.isnan(decode_value(encode_value(math.nan)))
    assert decode_value(encode_value(Decimal("sNaN123"))).is_snan()


def test_the_bytes_of_a_timedelta_are_its_days_seconds_and_microseconds():
    value = timedelta(days=-1, seconds=2, microseconds=3)
    assert encode_value(value) == bytes.fromhex("c70c07 ffffffff 00000002 00000003")
    assert encode_value([value]) == bytes.fromhex("91 c70c07 ffffffff 00000002 00000003")


def test_an_aware_datetime_keeps_its_offset_but_not_the_name_of_its_zone():
    value = datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    back = decode_value(encode_value(value))
    assert back == value
    assert back.tzinfo == timezone(timedelta(hours=2))


def test_decoding_makes_new_objects():
    data = encode_value([[1]])
    decode_value(data)[0].append(2)
    assert decode_value(data) == [[1]]


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Words(list):
    pass


@pytest.mark.parametrize(
    ("value", "path", "remedy"),
    [
        (np.int64(1), "value", ".item()"),
        ([1, {"a": np.float64(1)}], "value[1]['a']", ".item()"),
        (np.zeros(2), "value", ".tolist()"),
        ({1, 2}, "value", "a list of it"),
        (("a", frozenset()), "value[1]", "a list of it"),
        ([bytearray(b"a")], "value[0]", "bytes(...)"),
        (memoryview(b"a"), "value", "bytes(...)"),
        ({"c": Colour.RED}, "value['c']", ".value"),
        ({Colour.RED: 1}, "value key <Colour.RED: 'red'>", ".value"),
        (Level.LOW, "value", ".value"),
        (Words([1]), "value", "list(...)"),
        (OrderedDict(a=1), "value", "dict(...)"),
        (complex(1), "value", "lists, tuples and dicts"),
        ([msgpack.ExtType(1, b"")], "value[0]", "tuple(...)"),
        ([object()], "value[0]", "lists, tuples and dicts"),
    ],
)
def test_what_cannot_be_a_value_is_named_with_its_path_and_a_remedy(value, path, remedy):
    with pytest.raises(CodecError) as caught:
        encode_value(value)
    assert caught.value.path == path
    assert remedy in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).path == path


def test_a_refused_value_leaves_nothing_behind_in_the_encoder():
    with pytest.raises(CodecError):
        encode_value(["x" * 100, {1}])
    assert decode_value(encode_value([1])) == [1]


def nested(levels, kind):
    value = 1
    for _ in range(levels):
        value = {"a": value} if kind is dict else kind([value])
    return value


@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_containers_nest_to_a_limit(kind):
    assert decode_value(encode_value(nested(MAX_DEPTH, kind))) == nested(MAX_DEPTH, kind)
    with pytest.raises(CodecError, match="nested deeper"):
        encode_value(nested(MAX_DEPTH + 1, kind))


def test_a_list_that_contains_itself_is_refused():
    value = []
    value.append(value)
    with pytest.raises(CodecError, match="contains itself"):
        encode_value(value)


@given(st.binary(max_size=24))
def test_bytes_that_are_no_value_are_reported_as_damage(data):
    with suppress(StateCorruptedError):
        decode_value(data)


@pytest.mark.parametrize("value", ["abc", 70000, 1.5, [1, 2], (1, 2), {"a": 1}, Decimal("1.5"), date.min, 2**70])
def test_a_value_that_was_cut_short_or_goes_on_is_reported_as_damage(value):
    data = encode_value(value)
    with pytest.raises(StateCorruptedError):
        decode_value(data[:-1])
    with pytest.raises(StateCorruptedError):
        decode_value(data + b"\0")


Word = namedtuple("Word", "word count")


@pytest.fixture
def plain_namedtuples(monkeypatch):
    monkeypatch.setattr(values, "_build", values._build_namedtuple)
    monkeypatch.setattr(values, "_extra", values._no_extra)


@pytest.mark.usefixtures("plain_namedtuples")
def test_a_namedtuple_comes_back_with_its_fields_without_its_class():
    back = decode_value(encode_value([Word("spark", [1, (2,)])]))[0]
    assert type(back) is not Word
    assert back == Word("spark", [1, (2,)])
    assert (back.word, back.count, back._fields) == ("spark", [1, (2,)], ("word", "count"))


@pytest.mark.usefixtures("plain_namedtuples")
def test_namedtuples_are_rebuilt_by_what_was_registered_with_what_it_wants_kept():
    class Anchored(Word):
        anchors = ()

    def build(fields, elements, extra):
        assert fields == ("word", "count")
        made = Anchored(*elements)
        made.anchors = extra
        return made

    register_namedtuples(build, lambda value: value.anchors)
    value = Anchored("spark", 1)
    value.anchors = (7, 2**70)
    back = decode_value(encode_value({"kept": value}))["kept"]
    assert type(back) is Anchored
    assert back.anchors == (7, 2**70)


@pytest.mark.usefixtures("plain_namedtuples")
def test_an_extra_that_state_cannot_hold_is_named():
    register_namedtuples(values._build_namedtuple, lambda value: {1})
    with pytest.raises(CodecError, match=r"extra of value\[0\] is a set"):
        encode_value([Word("spark", 1)])


def test_immutable_are_scalars_and_plain_tuples_of_them():
    assert all(map(is_settled, (None, 1, "a", b"", date.min, Decimal(1), (), (1, "a"))))
    assert not any(map(is_settled, ([], {}, ([],), ((),), Word(1, 2), bytearray(), Level.LOW)))


def test_the_standard_codec_names_its_format_and_another_may_take_its_place():
    assert StandardCodec.name == "statefx-1"
    codec = StandardCodec()
    assert isinstance(codec, Codec)
    assert codec.decode_key(codec.encode_key(("a", 1))) == ("a", 1)
    assert codec.decode_value(codec.encode_value(["a", 1])) == ["a", 1]
    with pytest.raises(TypeError, match="abstract"):
        Codec()
