"""Scans of what a transaction has changed: their order, their cost, and changes while they go on."""

import pytest

from statefx.errors import StateClosedError, StatePhaseError
from statefx.state.contract.ranges import OrderedEntries


def filled(state):
    """Keys of two commits and changed ones, one in another's gaps."""
    state.putAll(dict.fromkeys(range(0, 60, 2), "first"))
    state.commit(state.prepareCommit(1) and 1)
    state.putAll({number: ["second"] for number in range(0, 60, 3)})
    state.commit(state.prepareCommit(2) and 2)
    state.putAll(dict.fromkeys(range(0, 60, 5), "changed"))
    state.delete(4)
    return state


def test_the_reverse_has_the_same_entries_the_last_first(state):
    filled(state)
    for bounds in ((None, None), (7, None), (None, 31), (7, 31), (31, 7), ("a", None)):
        assert list(state.items(*bounds, reverse=True)) == list(state.items(*bounds))[::-1]
    assert next(state.items(reverse=True)) == (58, "first")


def test_delete_range_says_how_many_were_there_and_rollback_brings_them_back(state):
    filled(state)
    before = list(state.items())
    inside = [entry for entry in before if 10 <= entry[0] < 20]
    assert state.deleteRange(10, 20) == len(inside)
    assert state.deleteRange(10, 20) == 0
    assert list(state.items()) == [entry for entry in before if entry not in inside]
    assert state.get(10) is None
    state.rollback()
    assert dict(state.items(10, 20)) == {
        **dict.fromkeys((10, 14, 16), "first"), **{number: ["second"] for number in (12, 15, 18)}
    }  # fmt: skip


def test_delete_range_without_bounds_empties_the_state_and_what_is_put_again_is_there(state):
    filled(state)
    count = len(list(state.items()))
    assert state.deleteRange(None, None) == count
    assert list(state.items()) == []
    state.put(10, "again")
    state.commit(state.prepareCommit(3) and 3)
    assert list(state.items()) == [(10, "again")]


def test_delete_range_is_refused_where_put_is(checkpoint):
    with pytest.raises(StatePhaseError, match="deleteRange on a read-only view"):
        checkpoint.open(read_only=True).deleteRange(1, 2)
    state = checkpoint.open()
    state.close()
    with pytest.raises(StateClosedError):
        state.deleteRange(1, 2)


@pytest.mark.parametrize("reverse", [False, True])
def test_due_timers_are_deleted_as_they_are_met(state, reverse):
    """What people write; each change is made while the scan goes on."""
    filled(state)
    expected = list(state.items(reverse=reverse))
    met = []
    for key, value in state.items(reverse=reverse):
        met.append((key, value))
        state.delete(key)
        state.put(key + 1, "later")
        state.put(-1 - key, ["earlier"])
        if len(met) == 30:
            break
    assert met == expected[:30]
    rest = state.items(reverse=reverse)
    state.deleteRange(None, None)
    assert len(list(rest)) > 30
    assert list(state.items()) == []


def test_several_scans_each_show_their_own_moment(state):
    scans = []
    for number in range(40):
        state.put(number % 10, number)
        scans.append((state.items(), state.items(reverse=True), list(state.items())))
        state.delete((number * 7) % 10)
    for forward, backward, expected in scans:
        assert list(forward) == expected
        assert list(backward) == expected[::-1]


def test_put_writes_directly_again_when_no_scan_goes_on(state):
    state.put("a", 1)
    scan = state.items()
    state.put("a", 2)
    assert list(scan) == [("a", 1)]
    del scan
    state.put("b", 3)
    assert state._writable is state._overlay.changed
    assert list(state.items()) == [("a", 2), ("b", 3)]


def test_scans_that_are_over_are_told_of_no_change(state):
    """Otherwise a transaction that deletes a range for each row, or truncates a list, costs the square of its rows."""
    for number in range(20):
        state.put(number, number)
        state.deleteRange(None, number)
    assert not state._overlay.pending._scans


def test_the_order_of_entries_follows_what_is_added_and_dropped():
    entries = OrderedEntries({b"c": 3, b"a": 1})
    assert list(entries.between(None, None)) == [(b"a", 1), (b"c", 3)]
    apart = entries.copy()
    entries.apply([b"b", b"c"], [2, 4])
    entries.drop([b"a"])
    assert list(entries.between(None, None, reverse=True)) == [(b"c", 4), (b"b", 2)]
    assert list(entries.between(b"b", b"c")) == [(b"b", 2)]
    assert list(apart.between(None, None)) == [(b"a", 1), (b"c", 3)]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_goes_on_after_what_it_shows_was_put_again_and_prepared(state, reverse):
    state.putAll(dict.fromkeys(range(50), 1))
    state[7] = [7]
    del state[8]
    expected = list(state.items(reverse=reverse))
    rows = state.items(reverse=reverse)
    assert [next(rows) for _ in range(20)] == expected[:20]
    state.putAll(dict.fromkeys(range(60), 2))
    state.prepareCommit(1)
    assert list(rows) == expected[20:]
