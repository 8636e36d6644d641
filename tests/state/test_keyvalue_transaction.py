"""What prepare, commit, rollback and close do to state, and in which order they may be called."""

import pytest

from statefx import KeyValueState
from statefx.errors import CommitFailedError, CommitOutcomeUnknownError, StateClosedError, StateError, StatePhaseError
from statefx.state import EMPTY, Version
from statefx.state.view.state import ViewPhase


def reads(state, keys=("a", "b", "c")):
    """The same, by every way of reading."""
    values = tuple(state.get(key) for key in keys)
    found = state.getAll(keys)
    assert tuple(found.get(key) for key in keys) == values
    assert dict(state.items()) == {key: value for key, value in zip(keys, values, strict=True) if value is not None}
    assert tuple(key in state for key in keys) == tuple(value is not None for value in values)
    return values


def test_the_script(state):
    """Every read, after every step, of a story with two commits and three rollbacks."""
    state.put("a", 1)
    state.put("b", 2)
    state.prepareCommit(1)
    with pytest.raises(StatePhaseError, match="put while transaction 1 is prepared: commit it or roll it back first"):
        state.put("c", 3)
    assert reads(state) == (1, 2, None)
    state.rollback()
    assert reads(state) == (None, None, None)
    state.put("a", 1)
    state.put("b", 2)
    state.prepareCommit(1)
    assert reads(state) == (1, 2, None)
    state.commit(1)
    assert reads(state) == (1, 2, None)
    state.put("c", 3)
    assert reads(state) == (1, 2, 3)
    state.rollback()
    assert reads(state) == (1, 2, None)
    state.put("c", 3)
    assert state.delete("b") == 2
    assert state.delete("c") == 3
    assert reads(state) == (1, None, None)
    state.prepareCommit(2)
    assert reads(state) == (1, None, None)
    state.commit(2)
    assert reads(state) == (1, None, None)
    state.put("b", 2)
    state.prepareCommit(3)
    assert reads(state) == (1, 2, None)
    state.rollback()
    assert reads(state) == (1, None, None)
    state.put("c", 3)
    assert reads(state) == (1, None, 3)


def test_phases_and_tokens(checkpoint):
    state = checkpoint.open()
    assert (state.phase, state.version, state.token) == (ViewPhase.OPEN, EMPTY, "")
    token = state.prepareCommit(1)
    assert (state.phase, state.version, state.token) == (ViewPhase.PREPARED, EMPTY, token)
    state.commit(1)
    assert (state.phase, state.version, state.token) == (ViewPhase.OPEN, Version(1, token), token)
    other = state.prepareCommit(2)
    assert other != token
    state.rollback()
    assert (state.phase, state.version, state.token) == (ViewPhase.OPEN, Version(1, token), token)
    state.close()
    assert (state.phase, state.version) == (ViewPhase.CLOSED, Version(1, token))


def test_prepare_twice_is_as_once(state):
    state.put("a", 1)
    token = state.prepareCommit(1)
    assert state.prepareCommit(1) == token
    state.commit(1)
    state.put("a", 2)
    assert state.get("a") == 2
    state.rollback()
    assert state.get("a") == 1


def test_prepare_of_another_transaction_is_refused_while_one_is_prepared(state):
    state.prepareCommit(5)
    for txid in (4, 6):
        with pytest.raises(StatePhaseError, match="while 5 is prepared") as caught:
            state.prepareCommit(txid)
        assert (caught.value.txid, caught.value.phase) == (txid, "prepared")
    state.commit(5)


def test_prepare_of_a_committed_transaction_is_refused(checkpoint):
    state = checkpoint.open()
    state.prepareCommit(3)
    state.commit(3)
    for opened in (state, checkpoint.open(state.version)):
        for txid in (2, 3):
            with pytest.raises(StatePhaseError, match="when 3 is committed"):
                opened.prepareCommit(txid)
        opened.close()


def test_prepare_after_rollback_makes_another_token(state):
    token = state.prepareCommit(1)
    state.rollback()
    assert state.prepareCommit(1) != token


def test_commit_without_prepare_is_refused(state):
    with pytest.raises(StatePhaseError, match=r"commit\(1\) without prepareCommit\(1\)"):
        state.commit(1)
    state.prepareCommit(1)
    with pytest.raises(StatePhaseError, match=r"commit\(2\) without prepareCommit\(2\)"):
        state.commit(2)
    state.rollback()
    with pytest.raises(StatePhaseError):
        state.commit(1)


def test_commit_twice_is_a_no_op_and_commit_of_an_older_one_is_refused(state):
    for txid in (1, 2):
        state.put("a", txid)
        state.prepareCommit(txid)
        state.commit(txid)
    state.put("a", 3)
    state.commit(2)
    with pytest.raises(StatePhaseError):
        state.commit(1)
    assert state.get("a") == 3
    state.prepareCommit(3)
    state.commit(2)
    assert state.phase is ViewPhase.PREPARED
    state.rollback()
    assert state.get("a") == 2


def test_changes_between_prepare_and_commit_are_refused_and_those_after_it_are_of_the_next(checkpoint):
    state = checkpoint.open()
    state.putAll({"a": 1, "b": [1], "c": 1})
    named = state.map("named")
    state.prepareCommit(1)
    for call in (
        lambda: state.put("a", 2),
        lambda: state.putAll({"a": 2, "b": [2], "d": 2}),
        lambda: state.delete("c"),
        lambda: state.deleteRange(None, None),
        lambda: named.put("a", 2),
    ):
        with pytest.raises(StatePhaseError, match="while transaction 1 is prepared") as caught:
            call()
        assert caught.value.phase == "prepared"
    assert dict(state.items()) == {"a": 1, "b": [1], "c": 1}
    state.commit(1)
    state.putAll({"a": 2, "b": [2], "d": 2})
    state.delete("c")
    reopened = checkpoint.open(state.version)
    assert dict(reopened.items()) == {"a": 1, "b": [1], "c": 1}
    reopened.close()
    assert dict(state.items()) == {"a": 2, "b": [2], "d": 2}
    state.prepareCommit(2)
    state.commit(2)
    reopened = checkpoint.open(state.version)
    assert dict(reopened.items()) == {"a": 2, "b": [2], "d": 2}
    reopened.close()
    state.close()


def test_rollback_twice_is_a_no_op_and_never_undoes_a_commit(state):
    state.rollback()
    state.put("a", [1])
    state.prepareCommit(1)
    state.commit(1)
    for value in (2, [2], None, "x"):
        state.put("a", value)
        state.put("b", value)
        state.rollback()
        state.rollback()
        assert (state.get("a"), state.get("b", "absent")) == ([1], "absent")
    state.delete("a")
    state.rollback()
    assert state.get("a") == [1]


def test_what_is_prepared_survives_close_and_is_committed_by_its_token(checkpoint):
    state = checkpoint.open()
    state.put("a", 1)
    token = state.prepareCommit(1)
    state.close()
    store = checkpoint.store()
    assert dict(KeyValueState(store).items()) == {}
    store.commit(1, token)
    store.close()
    state = checkpoint.open(Version(1, token))
    assert dict(state.items()) == {"a": 1}
    state.close()


def test_two_states_of_one_task_prepare_side_by_side(checkpoint):
    states = [checkpoint.open(), checkpoint.open()]
    for number, state in enumerate(states):
        state.put("a", number)
    first, second = (state.prepareCommit(1) for state in states)
    assert first != second
    states[1].commit(1)
    state = checkpoint.open(Version(1, second))
    assert state.get("a") == 1
    for opened in (state, *states):
        opened.close()


def test_the_sorted_changes_and_nothing_else_are_prepared(checkpoint):
    state = checkpoint.open()
    state.putAll({"b": 1, "a": 1})
    state.prepareCommit(1)
    state.commit(1)

    prepared = []
    store = checkpoint.store(state.version)
    prepare = store.prepare
    store.prepare = lambda txid, token, writes: (prepared.extend(writes), prepare(txid, token, writes))[1]
    state = KeyValueState(store, version=state.version, **checkpoint.format())
    state.get("a")
    for key in ("d", 1, "c", ("x",), b"x"):
        state.put(key, [1])
    state.delete("b")
    state.delete("absent")
    state.prepareCommit(2)
    assert [key for key, _ in prepared] == [
        state._overlay.codec.encode_key(key) for key in (1, "b", "c", "d", b"x", ("x",))
    ]
    assert dict(prepared)[state._overlay.codec.encode_key("b")] is None
    state.close()


# ---- failures of the store


@pytest.fixture
def failing(checkpoint):
    """A state over a real store, and a function that lets the next call of a method fail."""
    store = checkpoint.store()
    state = KeyValueState(store)

    def fail(method, error):
        def once(*arguments):
            delattr(store, method)
            raise error

        setattr(store, method, once)

    yield state, fail
    state.close()


def test_a_prepare_that_fails_changes_nothing(failing):
    state, fail = failing
    state.putAll({"a": 1, "b": [1]})
    fail("prepare", OSError("disk full"))
    with pytest.raises(OSError, match="disk full"):
        state.prepareCommit(1)
    assert state.phase is ViewPhase.OPEN
    assert dict(state.items()) == {"a": 1, "b": [1]}
    state.prepareCommit(1)
    state.commit(1)
    state.rollback()
    assert dict(state.items()) == {"a": 1, "b": [1]}


def test_a_failed_commit_is_tried_again(failing):
    state, fail = failing
    state.put("a", 1)
    state.prepareCommit(1)
    fail("commit", CommitFailedError("refused"))
    with pytest.raises(CommitFailedError):
        state.commit(1)
    assert (state.phase, state.get("a")) == (ViewPhase.PREPARED, 1)
    state.commit(1)
    assert (state.phase, state.version.txid) == (ViewPhase.OPEN, 1)


@pytest.mark.parametrize("error", [CommitOutcomeUnknownError("timed out"), OSError("timed out")])
def test_a_commit_of_unknown_outcome_is_never_rolled_back(failing, error):
    state, fail = failing
    state.put("a", 1)
    state.prepareCommit(1)
    fail("commit", error)
    with pytest.raises(type(error)):
        state.commit(1)
    with pytest.raises(StatePhaseError, match="may have happened"):
        state.rollback()
    state.commit(1)
    state.rollback()
    assert state.get("a") == 1


def test_a_commit_known_to_have_failed_may_be_rolled_back(failing):
    state, fail = failing
    state.put("a", 1)
    state.prepareCommit(1)
    fail("commit", CommitFailedError("refused"))
    with pytest.raises(CommitFailedError):
        state.commit(1)
    state.rollback()
    assert state.get("a") is None


def test_a_rollback_that_fails_is_tried_again(failing):
    state, fail = failing
    state.put("a", 1)
    state.prepareCommit(1)
    fail("rollback", OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        state.rollback()
    assert state.phase is ViewPhase.PREPARED
    state.rollback()
    assert (state.phase, state.get("a")) == (ViewPhase.OPEN, None)


# ---- phases


CHANGES = {
    "put": lambda state: state.put("a", 1),
    "put of a list": lambda state: state.put("a", [1]),
    "putAll": lambda state: state.putAll({}),
    "delete": lambda state: state.delete("a"),
    "prepareCommit": lambda state: state.prepareCommit(2),
    "commit": lambda state: state.commit(1),
    "rollback": lambda state: state.rollback(),
}
READS = {
    "get": lambda state: state.get("a"),
    "get of a tuple": lambda state: state.get(("a",)),
    "in": lambda state: "a" in state,
    "getAll": lambda state: state.getAll([]),
    "prefetch": lambda state: state.prefetch([]),
    "items": lambda state: state.items(),
}


@pytest.fixture
def committed(checkpoint):
    state = checkpoint.open()
    state.put("a", 1)
    state.prepareCommit(1)
    state.commit(1)
    state.close()
    return state.version


@pytest.mark.parametrize("call", CHANGES.values(), ids=CHANGES)
def test_a_read_only_view_refuses_every_change(checkpoint, committed, call):
    state = checkpoint.open(committed, read_only=True)
    assert state.phase is ViewPhase.READ_ONLY
    assert state.get("a") == 1
    with pytest.raises(StatePhaseError, match="read-only") as caught:
        call(state)
    assert caught.value.phase == "read-only"
    assert dict(state.items()) == {"a": 1}
    state.close()


@pytest.mark.parametrize("call", (CHANGES | READS).values(), ids=CHANGES | READS)
@pytest.mark.parametrize("read_only", [False, True])
def test_every_use_after_close_is_refused(checkpoint, committed, call, read_only):
    state = checkpoint.open(committed, read_only=read_only)
    state.get("a")
    state.close()
    state.close()
    with pytest.raises(StateClosedError):
        call(state)


@pytest.mark.parametrize("read", [lambda state: state.get("a"), lambda state: list(state.items()), len])
def test_nothing_is_prepared_after_a_read_that_failed(checkpoint, monkeypatch, read):
    """``except Exception: count = 0`` takes a server that is down for a key that is not there."""
    first = checkpoint.open()
    first.put("a", 7)
    version = Version(1, first.prepareCommit(1))
    first.commit(1)
    state = checkpoint.open(version)

    def fails(*arguments):
        raise StateError("the server is down")

    with monkeypatch.context() as down:
        for call in ("get", "scan", "count"):
            down.setattr(type(state._store), call, fails)
        with pytest.raises(StateError):
            read(state)
    state.put("a", 1)
    for _ in range(2):
        with pytest.raises(StateError, match="the server is down"):
            state.prepareCommit(2)
    state.rollback()
    assert state.get("a") == 7
    state.put("a", 8)
    assert state.prepareCommit(2)
