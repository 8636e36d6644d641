"""Dataclasses as JSON and back: equal, checked, and newer ones told from damaged ones."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

import msgpack
import pytest

from statefx.errors import StatefxError
from statefx.protocol.identity import SnapshotRef, TaskId, TransactionAttempt, Version
from statefx.protocol.jsonform import NewerError, from_json, to_json
from statefx.protocol.reports import Ack, Barrier, Failure, FailureKind, LeftOut
from statefx.protocol.topology_identity import NO_TOPOLOGY, TopologyIdentity
from tests.coordinator.histories import IDENTITY


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


# ---- tasks and snapshots


@pytest.mark.parametrize("task", [TaskId("count", 0), TaskId("a/b", 12)])
def test_the_text_of_a_task_is_read_back(task):
    assert TaskId.parse(str(task)) == task
    assert task == tuple(task)


@pytest.mark.parametrize("text", ["", "count", "count/", "/3", "count/x", "count/-1", "count/²"])
def test_what_names_no_task_is_refused(text):
    with pytest.raises(ValueError, match="component/task was expected"):
        TaskId.parse(text)


def test_a_snapshot_has_one_form():
    snapshot = SnapshotRef(Version(7, "token"), "checksum", 3)
    assert from_json(SnapshotRef | None, to_json(snapshot)) == snapshot


# ---- What a checkpoint knows of its topology, as the log holds it.


@pytest.mark.parametrize("identity", [IDENTITY, NO_TOPOLOGY, TopologyIdentity("words", "batch")])
def test_it_is_read_as_it_was_written(identity):
    assert from_json(TopologyIdentity, json.loads(json.dumps(to_json(identity)))) == identity


@pytest.mark.parametrize("where", [(), ("stateful", "count"), ("stateful", "count", "key_fields", 0)])
def test_what_a_newer_release_knows_of_it_is_not_passed_over(where):
    body = json.loads(json.dumps(to_json(IDENTITY)))
    inner = body
    for step in where:
        inner = inner[step]
    inner["sinks"] = {}
    with pytest.raises(NewerError, match="'sinks' that is not known to this release"):
        from_json(TopologyIdentity, body)


def test_another_provider_keeps_all_of_its_state():
    moved = IDENTITY.kept_by("new:New", None)
    assert (moved.name, moved.input, moved.stateful.keys()) == ("word-count", "stream", {"count"})
    count = moved.stateful["count"]
    assert (count.provider, count.options) == ("new:New", None)
    assert count.routing == IDENTITY.stateful["count"].routing


# ---- barriers and acks


BARRIER = Barrier(TransactionAttempt(2**40, 3), "splitß", 7, "token", {0: 5, 3: 2**33}, "the feed is stale")
ACK = Ack(
    TransactionAttempt(3, 1),
    "count",
    0,
    "token",
    {TaskId("split", 0): "a", TaskId("split", 1): "b"},
    {0: 5},
    {1: 2, 2: 0},
    Failure(FailureKind.BOLT, "count", 0, "no good", {"hook": "execute", "txid": 3, "traceback": "Traceback:\n  line"}),
    1000,
    SnapshotRef(Version(2, "head"), "checksum", 12),
    9,
    {"file": "part-0"},
    [1, None],
)
LEFT_OUT = LeftOut(3, 1, "the record at 7")


@pytest.mark.parametrize("value", [BARRIER, ACK, Barrier(BARRIER.attempt, "a", 0, "t"), Ack(ACK.attempt, "a", 0, "t")])
def test_what_is_packed_comes_out_equal(value):
    assert type(value).unpack(value.pack()) == value


def test_what_a_spout_has_left_out_reaches_the_driver():
    assert Ack.unpack(Ack(ACK.attempt, "a", 0, "t", left_out=LEFT_OUT).pack()).left_out == LEFT_OUT
    assert LEFT_OUT + LeftOut(2, 1, "another") == LeftOut(5, 2, "the record at 7")


def test_half_a_surrogate_pair_in_a_text_of_a_bolt_is_shown_and_no_error_of_its_own():
    failed = Ack(ACK.attempt, "a", 0, "t", failed=Failure(FailureKind.BOLT, "a", 0, "\ud83d", {"traceback": "\ud83d"}))
    found = Ack.unpack(failed.pack()).failed
    assert (found.reason, found.facts) == ("\\ud83d", {"traceback": "\\ud83d"})


@pytest.mark.parametrize("value", [{"\ud83d": ["a\udce9", -0.0, None]}, 1 << 80, float("inf"), "", [], {}])
@pytest.mark.parametrize("failed", [None, Failure(FailureKind.BOLT, "a", 0, "\ud83d")])
def test_a_value_comes_out_as_it_went_in_whatever_the_texts_are(value, failed):
    ack = Ack(ACK.attempt, "a", 0, "t", committable=value, metadata=[value], failed=failed)
    found = Ack.unpack(ack.pack())
    assert repr((found.committable, found.metadata)) == repr((value, [value]))


def test_a_plain_barrier_is_small():
    assert len(Barrier(TransactionAttempt(3, 0), "split", 1, "f" * 32, {0: 100}).pack()) < 64


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00", b"xx", ACK.pack(), BARRIER.pack()[:-3], msgpack.packb(("B", 2, [])), msgpack.packb(("B", 1, []))],
)
def test_what_is_not_a_barrier_of_this_version_names_the_remedy(data):
    with pytest.raises(StatefxError, match="same statefx release"):
        Barrier.unpack(data)
