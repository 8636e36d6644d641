"""Dataclasses as JSON and back: equal, checked, and newer ones told from damaged ones."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

import pytest

from statefx.protocol.jsonform import NewerError, from_json, to_json


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: float = 0.0


@dataclass(frozen=True, slots=True)
class Cat:
    lives: int

    kind: ClassVar[str] = "cat"


@dataclass(frozen=True, slots=True)
class Dog:
    name: str = ""

    kind: ClassVar[str] = "dog"


@dataclass(frozen=True, slots=True)
class Bird:
    wings: int

    kind: ClassVar[str] = "bird"
    version: ClassVar[int] = 2


class Row(NamedTuple):
    place: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Everything:
    text: str
    flag: bool
    points: tuple[Point, ...] = ()
    pair: tuple[str, int] = ("", 0)
    by_name: Mapping[str, Point] = field(default_factory=dict)
    by_number: Mapping[int, int] = field(default_factory=dict)
    pet: Cat | Dog | None = None
    maybe: Point | None = None
    colour: Colour = Colour.RED
    anything: Any = None
    rows: tuple[Row, ...] = ()
    texts: Mapping[str, str | None] = field(default_factory=dict)


FULL = Everything(
    "é\ud800",
    True,
    (Point(1), Point(2, 0.5)),
    ("a", 1),
    {"p": Point(3)},
    {1: 2},
    Dog("Rex"),
    Point(0),
    Colour.RED,
    {"a": [1, None]},
    (Row(1, "one"), Row(2)),
    {"a": "b", "c": None},
)


@pytest.mark.parametrize(
    "value", [FULL, Everything("", False), Everything("", False, pet=Cat(9))], ids=["full", "a", "b"]
)
def test_what_is_written_comes_back_equal(value):
    again = from_json(Everything, json.loads(json.dumps(to_json(value))))
    assert again == value
    assert to_json(again) == to_json(value)


def test_defaults_are_left_out_so_that_a_new_field_costs_nothing_until_it_is_used():
    assert to_json(Everything("t", True)) == {"text": "t", "flag": True}


def test_a_kind_stands_where_one_is_told_from_others():
    assert to_json(Everything("t", True, pet=Cat(9)))["pet"] == {"kind": "cat", "lives": 9}


def test_the_form_of_a_kind_has_a_version_from_the_second_on():
    assert to_json(Bird(2)) == {"kind": "bird", "version": 2, "wings": 2}
    assert from_json(Bird | Cat, to_json(Bird(2))) == Bird(2)
    for body in ({"kind": "bird", "wings": 2}, {"kind": "bird", "version": 3, "wings": 2}):
        with pytest.raises(NewerError, match="of bird is not known"):
            from_json(Bird | Cat, body)


def test_a_named_tuple_is_a_list_and_what_is_left_out_at_its_end_has_its_default():
    assert to_json(FULL)["rows"] == [[1, "one"], [2, ""]]
    assert from_json(Everything, {"text": "t", "flag": True, "rows": [[7]]}).rows == (Row(7),)


def test_what_is_read_shares_nothing_with_what_it_was_read_from():
    body = {"text": "t", "flag": True, "texts": {"a": "b"}}
    read = from_json(Everything, body)
    body["texts"]["a"] = "c"
    assert read.texts == {"a": "b"}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"text": "t", "flag": True, "later": 1}, "field 'later'"),
        ({"text": "t", "flag": True, "points": [{"x": 1, "z": 1}]}, "field 'z'"),
        ({"text": "t", "flag": True, "pet": {"kind": "bird"}}, "kind 'bird'"),
        ({"text": "t", "flag": True, "rows": [[1, "one", 1.5]]}, "Row has 3 values"),
    ],
)
def test_what_is_not_known_was_written_by_a_newer_release(body, told):
    with pytest.raises(NewerError, match=told):
        from_json(Everything, body)


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"text": "t"},
        {"text": 1, "flag": True},
        {"text": "t", "flag": 1},
        {"text": "t", "flag": True, "points": {"x": 1}},
        {"text": "t", "flag": True, "points": [{"x": True}]},
        {"text": "t", "flag": True, "points": [{"x": "1"}]},
        {"text": "t", "flag": True, "points": [{}]},
        {"text": "t", "flag": True, "pair": ["a"]},
        {"text": "t", "flag": True, "by_name": []},
        {"text": "t", "flag": True, "by_number": {"one": 2}},
        {"text": "t", "flag": True, "pet": {"lives": 9}},
        {"text": "t", "flag": True, "pet": "cat"},
        {"text": "t", "flag": True, "colour": "blue"},
        {"text": "t", "flag": True, "rows": [["1"]]},
        {"text": "t", "flag": True, "texts": {"a": 1}},
    ],
    ids=str,
)
def test_what_is_wrong_is_no_newer_release(body):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - which of its many texts does not matter
        from_json(Everything, body)
    assert not isinstance(caught.value, NewerError)


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", object()], ids=["set", "bytes", "object"])
def test_what_json_does_not_have_is_refused(value):
    with pytest.raises(TypeError, match="no place in the transaction log"):
        to_json(Everything("t", True, anything=value))
    with pytest.raises(TypeError, match="can't be a key"):
        to_json({1.5: 1})
