"""What operators of statefx keep for a task, put together for new ones: what no run of a topology shows for certain."""

import pytest

from statefx.admin.layouts import Source, own_entries
from statefx.errors import StateCorruptedError
from statefx.protocol.topology_identity import StatefulIdentity
from statefx.state.contract.spaces import Kind, head_of
from statefx.state.encoding.codec import StandardCodec

CODEC = StandardCodec()
FORMS, NOTES = (head_of(Kind.VALUE, name) for name in ("forms", "notes"))
TIMES = head_of(Kind.MAP, "leftTimes")


def join():
    known = StatefulIdentity(2, "memory", "standard", 1, joined=(0,))
    return own_entries("paid", known, 1, CODEC)


def kept(own, stored, value, source):
    kind, name = (Kind.MAP, "leftTimes") if stored.startswith(TIMES) else (Kind.VALUE, "notes")
    if stored.startswith(FORMS):
        name = "forms"
    return own.pieces(stored, CODEC.encode_value(value), kind, name, source)


def common(own):
    return {stored: CODEC.decode_value(value) for stored, value in own.common()}


def test_chunks_of_times_are_numbered_anew_and_the_next_one_is_behind_all():
    own, found = join(), []
    for task in range(2):  # both have the same numbers, and the same times
        source = Source(task, 2, lambda row: row[0] % 3)
        for number in range(4):
            chunk = (5, 3, 5, 1, 5, 2, 6, 0, 7, 6)
            found += kept(own, TIMES + CODEC.encode_key((5, number)), chunk, source)
        assert not kept(own, NOTES, (4, 100, -5, 5), source)
    places = [(new, CODEC.decode_key(stored[len(TIMES) :])) for new, stored, _ in found]
    assert len(set(places)) == len(places) == 2 * 4 * 3
    assert {time for _, (time, _) in places} == {5}
    parts = [CODEC.decode_value(value) for new, _, value in found if new == 0]
    assert parts == [(5, 3, 6, 0, 7, 6)] * 8
    number, *rest = common(own)[NOTES]
    assert number > max(number for _, (_, number) in places)
    assert rest == [100, -5, 5]


@pytest.mark.parametrize(
    ("notes", "wanted"),
    [
        ([(4, 100, -5, 5), (9, 90, -5, 5)], (9, 90, -5, 5)),
        ([(4, None, -5, 5), (9, 90, -5, 5)], (9, None, -5, 5)),
        ([(4, 100, -5, 5), (9, 90, None, None)], (9, 90, None, None)),
        ([(4, 100, -5, 5), (9, 90, -5, 7)], (9, 90, None, None)),
    ],
)
def test_where_tasks_differ_what_is_over_is_looked_for_from_the_earliest(notes, wanted):
    own = join()
    for task, each in enumerate(notes):
        kept(own, NOTES, each, Source(task, 2, lambda row: 0))
    assert common(own) == {NOTES: wanted}


def test_forms_that_are_not_the_beginning_of_each_other_are_refused():
    own = join()
    for task, forms in enumerate(([["a"], ["b"]], [["a"]])):
        kept(own, FORMS, forms, Source(task, 2, lambda row: 0))
    assert common(own) == {FORMS: [["a"], ["b"]]}
    kept(own, FORMS, [["b"]], Source(1, 2, lambda row: 0))
    with pytest.raises(StateCorruptedError, match="do not number the forms of their rows alike"):
        own.common()
