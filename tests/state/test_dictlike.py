"""State read and written as a dict."""

import pytest

from statefx import KeyValueState
from statefx.errors import StateClosedError, StatePhaseError
from statefx.state import StateStore


def test_items_by_subscript(state):
    state["a"] = 1
    state["b"] = [1]
    state["b"].append(2)  # a copy
    assert (state["a"], state["b"], "a" in state) == (1, [1], True)
    del state["a"]
    assert "a" not in state
    state["none"] = None
    assert state["none"] is None
    for change in (lambda: state["a"], lambda: state.__delitem__("a")):
        with pytest.raises(KeyError, match="'a'"):
            change()


def test_iteration_is_over_the_keys_in_order(state):
    state.putAll({3: "c", 1: "a", 2: "b"})
    assert list(state) == list(state.keys()) == [1, 2, 3]
    assert dict(state) == {1: "a", 2: "b", 3: "c"}


def test_its_length_counts_every_layer_once(checkpoint):
    state = checkpoint.open()
    assert (len(state), bool(state)) == (0, False)
    state.putAll(dict.fromkeys(range(10), 0))
    assert (len(state), bool(state)) == (10, True)
    state.commit(state.prepareCommit(1) and 1)
    assert len(state) == 10
    state.putAll({9: [1], 10: 1, 11: 1})
    del state[0], state[10]
    assert len(state) == 10
    state.prepareCommit(2)
    assert len(state) == 10
    state.commit(2)
    assert len(state) == 10
    state[1] = 2
    state[0] = 2
    del state[11]
    assert len(state) == 10
    state.commit(state.prepareCommit(3) and 3)
    assert len(state) == 10
    state.deleteRange(None, None)
    assert (len(state), bool(state)) == (0, False)
    state.rollback()
    assert len(state) == 10
    assert len(checkpoint.open(state.version)) == 10


def test_a_provider_that_does_not_count_says_what_to_do_instead(checkpoint, monkeypatch):
    state = checkpoint.open()
    monkeypatch.setattr(type(state._store), "count", StateStore.count)
    state["a"] = 1
    with pytest.raises(TypeError, match=r"keep a count under a key of your own, or write sum\(1 for _ in state.items"):
        len(state)
    assert state
    assert list(state) == ["a"]  # which asks for a length, and does without


def test_changes_are_refused_where_put_is(checkpoint):
    state = checkpoint.open(read_only=True)
    for change in (lambda: state.__setitem__("a", 1), lambda: state.__delitem__("a")):
        with pytest.raises(StatePhaseError, match="read-only"):
            change()
    state.close()
    for call in (lambda: state["a"], lambda: len(state), lambda: list(state), lambda: bool(state)):
        with pytest.raises(StateClosedError):
            call()


def test_what_it_holds_can_be_said():
    assert KeyValueState[str, int].__origin__ is KeyValueState


def test_reprs_are_short(state):
    state.putAll(dict.fromkeys(range(1000), "x" * 1000))
    assert repr(state) == "<KeyValueState open, committed 0>"
    assert len(repr(state.getAll(range(1000)))) < 200
