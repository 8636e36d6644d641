"""What maps do beside the schedules of test_schedules: reading, encoding, mistakes, and what can't be theirs."""

import pickle
import socket
import sqlite3
import threading
from contextlib import closing, suppress

import pytest

from statefx.connectors.sql import SqlBackend, connection
from statefx.connectors.sql import backend as backend_module
from statefx.errors import ConfigError, FailedException, StatePhaseError, ValueMismatchError
from statefx.protocol.identity import TransactionAttempt
from statefx.values import MemoryBackend, OpaqueMap, OpaqueValue, Row, TransactionalMap, TransactionalValue
from statefx.values.backend import Stamp
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


def push_in_place(value, change):
    value["all"].append(change)
    return value


def push_to_copy(value, change):
    return {"all": [*value["all"], change]}


@pytest.mark.parametrize("push", [push_in_place, push_to_copy])
def test_an_update_may_change_its_value_in_place(backend, push):
    for make in (opaque, transactional):
        made = make(MemoryBackend(f"{backend.name} {make.__name__}", backend.atomic), 1)
        assert made.multiUpdate({"a": 1, "b": 2}, push, {"all": []}) == {"a": {"all": [1]}, "b": {"all": [2]}}
    state = Kept()
    opaque(backend, 1, state=state).multiUpdate({"a": 1}, push, {"all": []})
    lost = opaque(backend, 2, state=Kept(state))
    for _ in range(2):
        lost.multiUpdate({"a": 9, "b": 9}, push, {"all": []})
    again = opaque(backend, 2, 1, Kept(state))
    assert again.multiUpdate({"a": 2, "b": 3}, push, {"all": []}) == {"a": {"all": [1, 2]}, "b": {"all": [3]}}


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
    """Its line is cut at `at`, in each call of it that names the key "b"."""

    at = "multiPut"

    def multiGet(self, keys):
        self.look("multiGet", keys)
        return super().multiGet(keys)

    def multiPut(self, rows, expected):
        refused = super().multiPut(rows, expected)
        self.look("multiPut", rows)
        return refused

    def look(self, at, keys):
        if at == self.at and "b" in keys:
            raise OSError("the line is cut")


@pytest.mark.parametrize("at", ["multiGet", "multiPut"])
def test_who_swallows_a_failure_of_the_backend_has_no_attempt_that_can_be_committed(backend, at, monkeypatch):
    monkeypatch.setattr(Broken, "at", at)
    state = Kept()
    totals = opaque(Broken(backend.name, backend.atomic), 1, state=state)
    totals.multiPut({"a": 1})
    assert state._reads.failure is None
    with pytest.raises(OSError, match="cut") as raised:
        totals.multiPut({"b": 2})
    totals.multiPut({"c": 3})
    assert state._reads.failure is raised.value


def test_who_swallows_a_mistake_has_all_other_updates(backend):
    """Also those of the same keys, and also what an attempt before has left is taken back."""
    state = Kept()
    opaque(backend, 1, state=state).multiPut({"a": 1})
    opaque(backend, 2, state=Kept(state)).multiPut({"a": 7, "z": 7})
    totals = opaque(backend, 2, 1, state)
    for update in ({"a": float("nan")}, {"b": "no number"}, {"a": 1}, {"a": 1, "c": (1,)}, {"c": 1}):
        with suppress(TypeError):
            totals.multiUpdate(update, add, 0)
    assert state._reads.failure is None
    assert values(backend) == {"a": 2, "c": 1}
    opaque(backend, 3, state=state).multiUpdate({"a": 1}, add, 0)
    assert values(backend) == {"a": 3, "c": 1}


@pytest.mark.parametrize("kept", [True, False])
def test_a_mistake_in_the_only_call_of_an_attempt_changes_nothing(backend, kept):
    """By key, the journal names then what was never written, whether the attempt is committed or not."""
    state = Kept()
    opaque(backend, 1, state=state).multiPut({"a": 1})
    of_attempt = Kept(state)
    with pytest.raises(TypeError, match="can't be kept"):
        opaque(backend, 2, state=of_attempt).multiUpdate({"a": float("nan"), "b": 1}, add, 0)
    opaque(backend, 3, state=of_attempt if kept else state).multiUpdate({"b": 1}, add, 0)
    assert values(backend) == {"a": 1, "b": 1}


def test_what_is_noticed_when_half_of_an_update_is_written_fails_the_attempt(backend):
    """Of two keys one is refused: another run of this attempt has written it meanwhile."""
    state = Kept()

    def change(value, by):
        backend.rows["b"] = Row("1.1 twin opaque totals/0@oooooooooooo", "1", None)
        return by

    with pytest.raises(FailedException, match="another run"):
        opaque(backend, 1, 1, state).multiUpdate({"a": 1, "b": 2}, change)
    assert ("a" in backend.rows) == (state._reads.failure is not None) == (not backend.atomic)


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
    def multiPut(self, rows, expected):
        return list(rows)


@pytest.mark.parametrize("make", [opaque, transactional])
def test_a_backend_that_refuses_without_a_reason_fails_the_attempt(backend, make):
    with pytest.raises(FailedException, match="although the version there is"):
        make(Stubborn(backend.name), 1).multiPut({"a": 1})


# ---- What a transaction that comes again makes of a value: the rules of the values alone.


FIVE, FIVE_AGAIN, SIX = TransactionAttempt(5, 0), TransactionAttempt(5, 1), TransactionAttempt(6, 0)


def value_add(amount):
    return lambda curr: curr + amount


def test_a_transactional_value_is_changed_once_by_a_transaction():
    value = TransactionalValue(TransactionAttempt(4, 2), 10).update(FIVE, value_add(3))
    assert value == TransactionalValue(FIVE, 13)
    assert value.update(FIVE, value_add(3)) is value.update(FIVE_AGAIN, value_add(3)) is value
    assert value.update(SIX, value_add(1)) == TransactionalValue(SIX, 14)


def test_a_transactional_value_refuses_a_lower_transaction():
    with pytest.raises(ValueMismatchError, match=r"transaction 5, attempt 1, can't .* transaction 6, attempt 0"):
        TransactionalValue(SIX, 10).update(FIVE_AGAIN, value_add(3))


def test_an_opaque_value_begins_again_with_what_was_before():
    value = OpaqueValue(TransactionAttempt(4, 0), 4).update(FIVE, 7)
    assert value == OpaqueValue(FIVE, 7, 4)
    assert value.get(FIVE) == value.get(FIVE_AGAIN) == 4
    assert value.update(FIVE_AGAIN, 6) == OpaqueValue(FIVE_AGAIN, 6, 4)


def test_an_opaque_value_of_a_later_transaction_begins_with_the_last_one():
    value = OpaqueValue(FIVE, 7, 4)
    assert value.get(SIX) == 7
    assert value.update(SIX, 9) == OpaqueValue(SIX, 9, 7)


def test_an_opaque_value_that_was_not_committed_counts_in_no_later_transaction():
    value = OpaqueValue(FIVE, 7, 4)
    assert value.get(SIX, committed=4) == 4
    assert value.update(SIX, 6, committed=4) == OpaqueValue(SIX, 6, 4)


@pytest.mark.parametrize("attempt", [FIVE, TransactionAttempt(4, 9)])
def test_an_opaque_value_refuses_a_lower_attempt(attempt):
    """Compared by the transaction alone, a late task of attempt 0 would write over attempt 1."""
    value = OpaqueValue(FIVE_AGAIN, 6, 4)
    for use in (value.get, lambda attempt: value.update(attempt, 7)):
        with pytest.raises(ValueMismatchError, match="restored from a backup") as raised:
            use(attempt)
        assert (raised.value.attempt, raised.value.found) == (attempt, FIVE_AGAIN)
        assert pickle.loads(pickle.dumps(raised.value)).found == FIVE_AGAIN


@pytest.mark.parametrize("owner", ["opaque totals/0@4be1", "opaque a name/0@4be1"])
def test_a_stamp_is_read_as_it_was_written(owner):
    stamp = Stamp(FIVE_AGAIN, "9f3c21aa", owner)
    assert Stamp.parse(str(stamp)) == stamp


@pytest.mark.parametrize("text", ["", "5", "5.0", "5.0 run", "5 run owner", "x.0 run owner", "5.0.1 run owner"])
def test_what_is_no_stamp_is_refused(text):
    with pytest.raises(ValueError, match="is not the version of a value"):
        Stamp.parse(text)


# ---- The contract of a backend: one of two writers that expect the same version writes; and maps over real databases.


OLD, NEW, NEWER = Row("1.0 r o", "1", None), Row("2.0 r o", "2", "1"), Row("3.0 r o", None, "2")


@pytest.fixture(
    params=["memory", "atomic", "sqlite", pytest.param("postgres", marks=[pytest.mark.slow, pytest.mark.server])]
)
def database_backend(request, tmp_path):
    name = tmp_path.name
    if request.param in ("memory", "atomic"):
        made = MemoryBackend(name, atomic=request.param == "atomic")
        yield made
        made.rows.clear()
        return
    url = f"sqlite:///{tmp_path}/db" if request.param == "sqlite" else request.getfixturevalue("postgres").url()
    with closing(SqlBackend(url, name)) as made:
        yield made


def test_a_row_is_written_if_it_has_the_version_that_is_expected(database_backend):
    assert database_backend.multiGet(["a", "b"]) == {}
    assert not list(database_backend.multiPut({"a": OLD, "é'\n": NEWER}, {"a": None, "é'\n": None}))
    assert list(database_backend.multiPut({"a": NEW}, {"a": None})) == ["a"]
    assert list(database_backend.multiPut({"a": NEW}, {"a": NEW.version})) == ["a"]
    assert list(database_backend.multiPut({"b": NEW}, {"b": OLD.version})) == ["b"]
    assert database_backend.multiGet(["b", "a", "é'\n"]) == {"a": OLD, "é'\n": NEWER}
    assert not list(database_backend.multiPut({"a": NEW}, {"a": OLD.version}))
    assert database_backend.multiGet(["a"]) == {"a": NEW}


def test_what_is_told_to_be_unwritten_is_unwritten(database_backend):
    database_backend.multiPut({"a": OLD, "b": OLD}, {"a": None, "b": None})
    refused = set(
        database_backend.multiPut({"a": NEW, "b": NEW, "c": NEW}, {"a": OLD.version, "b": NEW.version, "c": None})
    )
    assert "b" in refused
    found = database_backend.multiGet(["a", "b", "c"])
    assert {key for key in ("a", "b", "c") if found.get(key) != NEW} == refused


def test_many_keys_at_once(database_backend):
    rows = {f"key {number}": Row("1.0 r o", str(number), None) for number in range(2500)}
    assert not list(database_backend.multiPut(rows, dict.fromkeys(rows)))
    assert database_backend.multiGet(rows) == rows


def test_of_two_writers_one_writes(database_backend):
    """They start at the same time, again and again; each round expects what the last one has left."""
    rounds, writers = 20, 2
    database_backend.multiPut({"a": Row("0", None, None)}, {"a": None})
    gate, won = threading.Barrier(writers), []

    def write(number, own):
        for turn in range(rounds):
            gate.wait()
            row = Row(f"{turn + 1}", str(number), None)
            if not list(own.multiPut({"a": row}, {"a": f"{turn}"})):
                won.append(number)
            gate.wait()

    copies = [pickle.loads(pickle.dumps(database_backend)) for _ in range(writers)]
    threads = [threading.Thread(target=write, args=each) for each in enumerate(copies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for copy in copies:
        getattr(copy, "close", lambda: None)()
    assert len(won) == rounds
    assert database_backend.multiGet(["a"])["a"].version == str(rounds)


def test_a_map_over_it_takes_back_what_was_not_committed(database_backend):
    first = Actor(database_backend, {}, 1, 0, {"a": 4, "b": 1})
    assert first.finish()
    late = Actor(database_backend, first.state, 2, 0, {"a": 3, "c": 3})
    for _ in range(1 if getattr(database_backend, "atomic", False) else 3):
        late.step()  # it has read its keys, and writes when others are through
    assert Actor(database_backend, first.state, 2, 1, {"a": 2, "c": 3}).finish()
    again = Actor(database_backend, first.state, 2, 2, {"b": 1})
    assert again.finish()
    assert not late.finish()
    totals = OpaqueMap(database_backend, Kept(again.state), context(TransactionAttempt(3, 0)))
    assert totals.multiGet(["a", "b", "c"]) == {"a": 4, "b": 2}
    assert totals.multiUpdate({"a": 1, "c": 1}, add, 0) == {"a": 5, "c": 1}


def test_a_table_is_read_by_anyone(tmp_path):
    with closing(SqlBackend(f"sqlite:///{tmp_path}/db", "totals")) as database_backend:
        OpaqueMap(database_backend, Kept(), context(TransactionAttempt(1, 0))).multiPut({"a": 4, "b": None})
    with closing(sqlite3.connect(tmp_path / "db")) as db:
        rows = db.execute("SELECT key, CAST(value AS INTEGER) FROM totals WHERE value IS NOT NULL").fetchall()
    assert rows == [("a", 4)]


def test_a_database_that_is_away_fails_the_attempt_and_not_the_query(tmp_path):
    with closing(SqlBackend(f"sqlite:///{tmp_path}/missing/db", "totals")) as database_backend:
        with pytest.raises(FailedException, match="'totals' can't be used now: unable to open"):
            database_backend.multiGet(["a"])
        (tmp_path / "missing").mkdir()
        assert database_backend.multiGet(["a"]) == {}


@pytest.mark.slow
def test_rows_that_stay_locked_fail_the_attempt(postgres_database, monkeypatch):
    """As those of a task whose host was lost between its UPDATE and its COMMIT."""
    monkeypatch.setattr(backend_module, "SETTINGS", connection.SETTINGS.replace("30s", "50ms"))
    with (
        closing(SqlBackend(postgres_database.url, "totals")) as database_backend,
        postgres_database.server.connect(postgres_database.name) as lost,
    ):
        database_backend.multiPut({"a": OLD}, {"a": None})
        lost.execute("begin; update totals set value = '2'")
        with pytest.raises(FailedException, match="lock timeout"):
            database_backend.multiPut({"a": NEW}, {"a": OLD.version})
        lost.execute("rollback")
        assert not database_backend.multiPut({"a": NEW}, {"a": OLD.version})


@pytest.mark.slow
def test_a_host_that_never_answers_fails_the_attempt(monkeypatch):
    """A dead host sends nothing at all; as this one, which accepts connections."""
    assert connection._LIBPQ["connect_timeout"] <= 30
    monkeypatch.setitem(connection._LIBPQ, "connect_timeout", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        away = f"postgresql+psycopg://u@127.0.0.1:{silent.getsockname()[1]}/d"
        with closing(SqlBackend(away, "totals")) as database_backend, pytest.raises(FailedException, match="timeout"):
            database_backend.multiGet(["a"])


@pytest.mark.parametrize(
    "address", ["nothing", "sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true", "mysql://h/d"]
)
def test_a_place_that_tasks_can_not_share_or_reach_is_refused(address):
    with pytest.raises(ConfigError, match="SqlBackend"):
        SqlBackend(address, "totals")
