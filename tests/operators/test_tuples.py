"""Tuples: namedtuples of the stream's fields that are also read by name."""

import copy
import inspect
import keyword
import pickle
from collections import namedtuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefx.operators.schema import parse_schema
from statefx.operators.tuples import tuple_class

WORDS = ("word", "count")


def test_fields_by_attribute_name_position_and_slice():
    tup = tuple_class(WORDS)("spark", 3)
    assert (
        (tup.word, tup.count) == (tup["word"], tup["count"]) == (tup[0], tup[1]) == (tup[-2], tup[-1]) == ("spark", 3)
    )
    assert (tup[:1], tup[1:], tup[:]) == (("spark",), (3,), ("spark", 3))
    word, count = tup
    assert (word, count) == tup == ("spark", 3)
    assert hash(tup) == hash(("spark", 3))
    assert isinstance(tup, tuple)


def test_the_class_is_cached_by_names():
    assert tuple_class(WORDS) is tuple_class(list(WORDS)) is tuple_class(parse_schema("word string, count long"))
    assert tuple_class(WORDS) is not tuple_class(("count", "word"))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_tuples_survive_pickling_and_copying(protocol):
    tup = tuple_class(("word", "class"))("spark", [1])
    for again in (pickle.loads(pickle.dumps(tup, protocol)), copy.copy(tup), copy.deepcopy(tup)):
        assert type(again) is type(tup)
        assert again == tup
    assert copy.deepcopy(tup)[1] is not tup[1]


def test_a_missing_field_lists_those_there_are():
    tup = tuple_class(WORDS)("spark", 3)
    with pytest.raises(KeyError, match="no field 'wrod'; the fields are word, count"):
        tup["wrod"]
    with pytest.raises(AttributeError, match=r"Tuple\(word, count\).* has no attribute 'wrod'"):
        _ = tup.wrod
    with pytest.raises(IndexError):
        tup[2]
    with pytest.raises(TypeError):
        tup[1.5]


def test_names_that_can_not_be_attributes_are_read_by_name():
    tup = tuple_class(("class", "a b", "_hidden", "0", "fine"))(1, 2, 3, 4, 5)
    assert [tup[name] for name in ("class", "a b", "_hidden", "0", "fine")] == [1, 2, 3, 4, 5]
    assert tup.fine == 5
    assert type(tup)._names == ("class", "a b", "_hidden", "0", "fine")
    assert repr(tup) == "Tuple(class=1, a b=2, _hidden=3, 0=4, fine=5)"


@pytest.mark.slow
@given(st.lists(st.text() | st.sampled_from(keyword.kwlist), unique=True, max_size=5))
def test_any_names_will_do(names):
    tup = tuple_class(names)._make(range(len(names)))
    assert [tup[name] for name in names] == list(range(len(names)))
    assert pickle.loads(pickle.dumps(tup)) == tup


def test_names_must_differ():
    with pytest.raises(ValueError, match="must differ: a, a"):
        tuple_class(("a", "a"))


def test_tuples_have_no_dict():
    with pytest.raises(AttributeError):
        tuple_class(WORDS)("spark", 3).other = 1


def test_an_attribute_costs_what_it_costs_on_a_plain_namedtuple():
    plain, ours = namedtuple("plain", WORDS), tuple_class(WORDS)
    # The same C descriptor, found the same way: __getattr__ or __getattribute__ would make every look-up slower.
    assert type(inspect.getattr_static(ours, "word")) is type(inspect.getattr_static(plain, "word"))
    assert ours.__getattribute__ is plain.__getattribute__
    assert not hasattr(ours, "__getattr__")
