"""What maps do beside the schedules of test_schedules: reading, encoding, mistakes, and what can't be theirs."""

import pytest

from statefx.errors import FailedException, StatePhaseError, ValueMismatchError
from statefx.protocol.identity import TransactionAttempt
from statefx.values import MemoryBackend, OpaqueMap, Row, TransactionalMap
from tests.values.actors import Actor, Kept, add, context, values


@pytest.fixture(params=[False, True], ids=["by key", "atomic"])
def backend(request):
    backend = MemoryBackend(request.node.name, request.param)
    yield backend
    backend.rows.clear()


def opaque(backend, txid, attempt=0, state=None, **where):
    return OpaqueMap(backend, Kept() if state is None else state, context(TransactionAttempt(txid, attempt), **where))


def transactional(backend, txid, attempt=0, **where):
    return TransactionalMap(backend, context(TransactionAttempt(txid, attempt), **where))


def test_a_map_reads_what_it_has_written(backend):
    totals = opaque(backend, 1)
    assert totals.multiUpdate({"a": 1, "b": 2}, add, initial=10) == {"a": 11, "b": 12}
    assert totals.multiGet(["a", "b", "c"]) == {"a": 11, "b": 12}
    assert (totals.get("a"), totals.get("c"), totals.get("c", 0)) == (11, None, 0)


def test_several_updates_of_a_key_in_one_attempt_add_up_and_are_taken_back_together(backend):
    """The rule of the value alone would begin the second one anew."""
    state = Kept()
    opaque(backend, 1, state=state).multiUpdate({"a": 4}, add, 0)
    lost = opaque(backend, 2, state=Kept(state))
    for change in (1, 2):
        lost.multiUpdate({"a": change}, add, 0)
    lost.multiUpdate({"b": 5}, add, 0)
    assert values(backend) == {"a": 7, "b": 5}
    assert opaque(backend, 2, 1, state).multiUpdate({"c": 1}, add, 0) == {"c": 1}
    assert values(backend) == {"a": 4, "c": 1}


def test_a_key_is_given_up_by_the_value_none(backend):
    totals = opaque(backend, 1)
    totals.multiPut({"a": 1, "b": 2})
    assert totals.multiUpdate({"a": 1}, lambda value, change: None) == {"a": None}
    assert totals.multiGet(["a", "b"]) == {"b": 2}
    assert totals.multiUpdate({"a": 1}, add, 5) == {"a": 6}


@pytest.mark.parametrize("value", [0, -(2**70), 1.5, "é\0\n'", True, [1, [2]], {"a": {"b": None}}])
def test_what_goes_in_comes_out(backend, value):
    for number, make in enumerate((opaque, transactional)):
        made = make(MemoryBackend(f"{backend.name}{number}"), 1)
        made.multiPut({"key": value})
        assert made.get("key") == value
        assert type(made.get("key")) is type(value)


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, b"x", float("nan"), object(), {"a": (1,)}])
def test_what_json_would_change_is_refused(backend, value):
    for make in (opaque, transactional):
        with pytest.raises(TypeError, match="the value of 'key'"):
            make(backend, 1).multiPut({"key": value})
    assert values(backend) == {}


@pytest.mark.parametrize("make", [opaque, transactional])
def test_a_key_is_a_text_and_not_one_of_the_maps_own(backend, make):
    with pytest.raises(TypeError, match="make a text of it"):
        make(backend, 1).multiGet([1])
    with pytest.raises(TypeError, match="one str"):
        make(backend, 1).multiGet("key")
    with pytest.raises(ValueError, match="the maps' own"):
        make(backend, 1).multiPut({"statefx:totals/0": 1})


def test_another_run_of_an_attempt_that_has_written_fails_the_attempt(backend):
    """The driver may count the ack of the first run: its values must stay."""
    opaque(backend, 1).multiPut({"a": 1})
    with pytest.raises(FailedException, match="another run of this very attempt"):
        opaque(backend, 1).multiPut({"a": 2})
    assert values(backend) == {"a": 1}


def test_a_map_is_of_one_attempt(backend):
    totals = opaque(backend, 1)
    totals._context.enter(TransactionAttempt(2, 0))
    with pytest.raises(StatePhaseError, match="make it in initState"):
        totals.multiPut({})


class Broken(MemoryBackend):
    """Writes, and does not come back."""

    def multiPut(self, rows, expected):
        super().multiPut(rows, expected)
        if "b" in rows:
            raise OSError("the line is cut")
        return []


def test_who_swallows_a_failure_has_the_transaction_without_the_maps_changes(backend):
    broken, state = Broken(backend.name), Kept()
    opaque(backend, 1, state=state).multiPut({"a": 1})
    totals = opaque(broken, 2, state=state)
    totals.multiPut({"a": 2})
    for _ in range(2):
        with pytest.raises((OSError, StatePhaseError)):
            totals.multiPut({"b": 2})
    opaque(backend, 3, state=state).multiPut({"c": 3})
    assert values(backend) == {"a": 1, "c": 3}


def test_a_rollback_takes_back_and_keeps_out_what_comes_late(backend):
    late = Actor(backend, {}, 1, 0, {"a": 5, "b": 5})
    for _ in range(1 if backend.atomic else 3):
        late.step()  # it has read its keys
    opaque(backend, 1).rollback()
    assert not late.finish()
    assert values(backend) == {}
    done = Actor(backend, {}, 1, 1, {"a": 1})
    assert done.finish()
    rolled_back = Actor(backend, done.state, 2, 0, {"a": 1})
    assert rolled_back.finish()
    for _ in range(2):  # it may come more than once
        opaque(backend, 2, state=done.state).rollback()
        assert values(backend) == {"a": 1}


@pytest.mark.parametrize("where", [{"origin": "p" * 32}, {"component": "other"}, {"task": 1}])
def test_a_key_belongs_to_one_map_one_task_and_one_checkpoint(backend, where):
    opaque(backend, 1).multiPut({"a": 1})
    with pytest.raises(ValueMismatchError, match=r"'a'|journal|statefx:totals/0") as raised:
        opaque(backend, 2, **where).multiPut({"a": 2})
    assert raised.value.owner == "opaque totals/0@oooooooooooo"
    assert values(backend) == {"a": 1}


def test_a_table_that_was_emptied_or_restored_alone_is_refused(backend):
    state = Kept()
    opaque(backend, 1, state=state).multiPut({"a": 1})
    old = dict(backend.rows)
    opaque(backend, 2, state=state).multiPut({"a": 2})
    for rows, says in ((old, "transaction 1, attempt 0: table and"), ({}, "is missing")):
        backend.rows.clear()
        backend.rows.update(rows)
        with pytest.raises(ValueMismatchError, match=says):
            opaque(backend, 3, state=state).multiPut({"a": 3})


def test_a_checkpoint_that_was_restored_alone_is_refused(backend):
    opaque(backend, 3).multiPut({"a": 1})
    with pytest.raises(ValueMismatchError, match="restored from a backup"):
        opaque(backend, 2).multiPut({"a": 1})
    empty = Kept()
    for txid in (4, 5):  # transaction 4 is committed without a call of the map
        with pytest.raises(ValueMismatchError, match="state knows nothing"):
            opaque(backend, txid, state=Kept(empty)).multiPut({"a": 1})
        opaque(backend, txid, state=empty)


def test_rows_that_no_map_has_written_are_refused(backend):
    backend.rows["a"] = Row("7", "1", None)
    for make in (opaque, transactional):
        with pytest.raises(ValueMismatchError, match="'a' was not written by a map"):
            make(backend, 1).multiPut({"a": 1})


def test_a_transactional_map_changes_a_key_once_in_a_transaction(backend):
    assert transactional(backend, 1).multiUpdate({"a": 4}, add, 0) == {"a": 4}
    assert transactional(backend, 2).multiUpdate({"a": 3}, add, 0) == {"a": 7}
    again = transactional(backend, 2, 1)
    assert again.multiUpdate({"a": 3, "b": 1}, add, 0) == {"a": 7, "b": 1}, "attempt 0 had come to a alone"
    with pytest.raises(ValueError, match="gather changes"):
        again.multiUpdate({"a": 1}, add, 0)
    assert values(backend) == {"a": 7, "b": 1}


def test_a_transactional_map_serves_one_transaction_after_the_other(backend):
    counts = transactional(backend, 1)
    counts.multiUpdate({"a": 1}, add, 0)
    counts._context.enter(TransactionAttempt(2, 0))
    assert counts.multiUpdate({"a": 1}, add, 0) == {"a": 2}


def test_a_late_task_changes_no_transactional_value(backend):
    transactional(backend, 1).multiPut({"a": 1})
    late = transactional(backend, 2)
    steps = late._update(["a"], TransactionAttempt(2, 0), {"a": 3}, add, 0)
    request = next(steps)
    request = steps.send(request.on(backend))
    transactional(backend, 2, 1).multiUpdate({"a": 3}, add, 0)
    refused = request.on(backend)
    assert refused == ["a"]
    transactional(backend, 3).multiUpdate({"a": 1}, add, 0)
    with pytest.raises(ValueMismatchError, match=r"transaction 3, attempt 0, has written"):
        steps.send(steps.send(refused).on(backend))
    assert values(backend) == {"a": 5}


def test_two_tasks_that_update_one_key_are_refused(backend):
    transactional(backend, 1, parallelism=2).multiPut({"a": 1})
    with pytest.raises(ValueMismatchError, match="Group the bolt by the key"):
        transactional(backend, 1, task=1, parallelism=2).multiPut({"a": 1})
    # Started again with other tasks, the attempt that follows has the key elsewhere.
    assert transactional(backend, 1, 1, task=2, parallelism=3).multiUpdate({"a": 1}, add) == {"a": 1}


class Away(MemoryBackend):
    """Writes the first key, and is away."""

    def multiPut(self, rows, expected):
        first, *left = rows
        super().multiPut({first: rows[first]}, expected)
        if left:
            raise OSError("the line is cut")
        return []


def test_an_update_of_a_transactional_map_that_was_cut_off_can_be_called_again(backend):
    counts = transactional(Away(backend.name), 1)
    for _ in range(2):
        with pytest.raises(OSError, match="cut"):
            counts.multiUpdate({"a": 1, "b": 1, "c": 1}, add, 0)
    assert counts.multiUpdate({"a": 1, "b": 1, "c": 1}, add, 0) == {"a": 1, "b": 1, "c": 1}


class Stubborn(MemoryBackend):
    """Its comparison is wrong."""

    def multiPut(self, rows, expected):
        return list(rows)


@pytest.mark.parametrize("make", [opaque, transactional])
def test_a_backend_that_refuses_without_a_reason_fails_the_attempt(backend, make):
    with pytest.raises(FailedException, match="although the version there is"):
        make(Stubborn(backend.name), 1).multiPut({"a": 1})
