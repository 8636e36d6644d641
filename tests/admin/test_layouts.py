"""What statefx keeps for a bolt, put together for new tasks: what no run of a topology shows for certain."""

import pytest

from statefx import IntervalJoin
from statefx.admin.layouts import OwnEntries
from statefx.errors import StateCorruptedError
from statefx.state.contract.spaces import NameKind, Space, head_of
from statefx.state.encoding.codec import StandardCodec

CODEC = StandardCodec()
FORMS, SWEPT, BETWEEN = (
    head_of(NameKind.VALUE, name) + CODEC.encode_key(None) for name in ("forms", "swept", "between")
)
TIMES = head_of(NameKind.MAP, "leftTimes")


def join(grouped=(0,)):
    bolt = IntervalJoin("left", "right", [*"abc"[: len(grouped)]], ("0 seconds", "1 second"), "left.a")
    bolt._grouped = grouped
    return OwnEntries(bolt._layout(1), CODEC, 1)


def kept(own, stored, value, target=lambda row: 0):
    return own.pieces(stored, CODEC.encode_value(value), target)


def common(own):
    return {stored: CODEC.decode_value(value) for stored, value in own.common()}


def test_chunks_of_times_are_parted_and_parts_never_meet_under_one_key():
    found = {(task, (5, 7, task, number)): (5, 3, 5, 1, 5, 2, 6, 0, 7, 6) for task in range(2) for number in range(4)}
    for tasks in (3, 1, 2, 1):
        own, moved = join(), {}
        for (_, place), chunk in sorted(found.items()):
            pieces = kept(own, TIMES + CODEC.encode_key(place), chunk, lambda row, tasks=tasks: row[0] % tasks)
            for new, stored, value in pieces:
                assert (new, CODEC.decode_key(stored[len(TIMES) :])) not in moved
                moved[new, CODEC.decode_key(stored[len(TIMES) :])] = CODEC.decode_value(value)
        found = moved
        for number in range(tasks):
            places = [place for task, place in found if task == number]
            assert tasks == 1 or places == sorted(places), "they come in the order of keys"
        assert {place[0] for _, place in found} == {5}, "it stays under the time of the whole chunk"
    times = sorted(time for chunk in found.values() for time in zip(chunk[::2], chunk[1::2], strict=True))
    assert times == sorted([(5, 3), (5, 1), (5, 2), (6, 0), (7, 6)] * 8)


def test_a_key_of_a_join_is_taken_apart_as_its_grouping_says():
    own, targets = join((-1, 0, -1)), []
    for stored in (
        Space.USER.value + CODEC.encode_key((1, 2, 3)),
        head_of(NameKind.MAP, "left") + CODEC.encode_key((1, 2, 3, 99, 5, 0)),
        head_of(NameKind.MAP, "rightTimes") + CODEC.encode_key((99, 5, 0, 0)),
    ):
        kept(own, stored, (99, 1, 2, 3), lambda row: targets.append([*row]) or 0)
    assert targets == [[2]] * 3


def test_what_no_layout_names_is_the_users():
    own = join()
    for stored in (Space.TIMERS.value + b"e", head_of(NameKind.MAP, "mine") + CODEC.encode_key(1)):
        assert own.pieces(stored, b"", lambda row: 0) is None


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([(100, (-5, 5)), (90, (-5, 5))], {SWEPT: 90, BETWEEN: (-5, 5)}),
        ([(100, (-5, 5)), (-(1 << 62), (-5, 5))], {SWEPT: -(1 << 62), BETWEEN: (-5, 5)}),
        ([(100, (-5, 5)), (90, None)], {SWEPT: 90, BETWEEN: None}),
        ([(100, (-5, 5)), (90, (-5, 7))], {SWEPT: 90, BETWEEN: None}),
    ],
)
def test_where_tasks_differ_what_is_over_is_looked_for_from_the_earliest(values, wanted):
    own = join()
    for swept, between in values:
        assert kept(own, SWEPT, swept) == kept(own, BETWEEN, between) == ()
    assert common(own) == wanted


def test_forms_that_are_not_the_beginning_of_each_other_are_refused():
    own = join()
    for forms in ([["a"], ["b"]], [["a"]]):
        kept(own, FORMS, forms)
    assert common(own) == {FORMS: [["a"], ["b"]]}
    kept(own, FORMS, [["b"]])
    with pytest.raises(StateCorruptedError, match="do not number the forms of their rows alike"):
        own.common()
