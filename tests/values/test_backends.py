"""The contract of a backend: one of two writers that expect the same version writes; and maps over real databases."""

import pickle
import socket
import sqlite3
import threading
from contextlib import closing

import pytest

from statefx.connectors.sql import SqlBackend, connection
from statefx.errors import ConfigError, FailedException
from statefx.protocol.identity import TransactionAttempt
from statefx.values import MemoryBackend, OpaqueMap, Row
from tests.values.actors import Actor, Kept, add, context

OLD, NEW, NEWER = Row("1.0 r o", "1", None), Row("2.0 r o", "2", "1"), Row("3.0 r o", None, "2")


@pytest.fixture(
    params=["memory", "atomic", "sqlite", pytest.param("postgres", marks=[pytest.mark.slow, pytest.mark.server])]
)
def backend(request, tmp_path):
    name = tmp_path.name
    if request.param in ("memory", "atomic"):
        made = MemoryBackend(name, atomic=request.param == "atomic")
        yield made
        made.rows.clear()
        return
    url = f"sqlite:///{tmp_path}/db" if request.param == "sqlite" else request.getfixturevalue("postgres").url()
    with closing(SqlBackend(url, name)) as made:
        yield made


def test_a_row_is_written_if_it_has_the_version_that_is_expected(backend):
    assert backend.multiGet(["a", "b"]) == {}
    assert not list(backend.multiPut({"a": OLD, "é'\n": NEWER}, {"a": None, "é'\n": None}))
    assert list(backend.multiPut({"a": NEW}, {"a": None})) == ["a"]
    assert list(backend.multiPut({"a": NEW}, {"a": NEW.version})) == ["a"]
    assert list(backend.multiPut({"b": NEW}, {"b": OLD.version})) == ["b"]
    assert backend.multiGet(["b", "a", "é'\n"]) == {"a": OLD, "é'\n": NEWER}
    assert not list(backend.multiPut({"a": NEW}, {"a": OLD.version}))
    assert backend.multiGet(["a"]) == {"a": NEW}


def test_what_is_told_to_be_unwritten_is_unwritten(backend):
    backend.multiPut({"a": OLD, "b": OLD}, {"a": None, "b": None})
    refused = set(backend.multiPut({"a": NEW, "b": NEW, "c": NEW}, {"a": OLD.version, "b": NEW.version, "c": None}))
    assert "b" in refused
    found = backend.multiGet(["a", "b", "c"])
    assert {key for key in ("a", "b", "c") if found.get(key) != NEW} == refused


def test_many_keys_at_once(backend):
    rows = {f"key {number}": Row("1.0 r o", str(number), None) for number in range(2500)}
    assert not list(backend.multiPut(rows, dict.fromkeys(rows)))
    assert backend.multiGet(rows) == rows


def test_of_two_writers_one_writes(backend):
    """They start at the same time, again and again; each round expects what the last one has left."""
    rounds, writers = 20, 2
    backend.multiPut({"a": Row("0", None, None)}, {"a": None})
    gate, won = threading.Barrier(writers), []

    def write(number, own):
        for turn in range(rounds):
            gate.wait()
            row = Row(f"{turn + 1}", str(number), None)
            if not list(own.multiPut({"a": row}, {"a": f"{turn}"})):
                won.append(number)
            gate.wait()

    copies = [pickle.loads(pickle.dumps(backend)) for _ in range(writers)]
    threads = [threading.Thread(target=write, args=each) for each in enumerate(copies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for copy in copies:
        getattr(copy, "close", lambda: None)()
    assert len(won) == rounds
    assert backend.multiGet(["a"])["a"].version == str(rounds)


def test_a_map_over_it_takes_back_what_was_not_committed(backend):
    first = Actor(backend, {}, 1, 0, {"a": 4, "b": 1})
    assert first.finish()
    late = Actor(backend, first.state, 2, 0, {"a": 3, "c": 3})
    for _ in range(1 if getattr(backend, "atomic", False) else 3):
        late.step()  # it has read its keys, and writes when others are through
    assert Actor(backend, first.state, 2, 1, {"a": 2, "c": 3}).finish()
    again = Actor(backend, first.state, 2, 2, {"b": 1})
    assert again.finish()
    assert not late.finish()
    totals = OpaqueMap(backend, Kept(again.state), context(TransactionAttempt(3, 0)))
    assert totals.multiGet(["a", "b", "c"]) == {"a": 4, "b": 2}
    assert totals.multiUpdate({"a": 1, "c": 1}, add, 0) == {"a": 5, "c": 1}


def test_a_table_is_read_by_anyone(tmp_path):
    with closing(SqlBackend(f"sqlite:///{tmp_path}/db", "totals")) as backend:
        OpaqueMap(backend, Kept(), context(TransactionAttempt(1, 0))).multiPut({"a": 4, "b": None})
    with closing(sqlite3.connect(tmp_path / "db")) as db:
        rows = db.execute("SELECT key, CAST(value AS INTEGER) FROM totals WHERE value IS NOT NULL").fetchall()
    assert rows == [("a", 4)]


def test_a_database_that_is_away_fails_the_attempt_and_not_the_query(tmp_path):
    with closing(SqlBackend(f"sqlite:///{tmp_path}/missing/db", "totals")) as backend:
        with pytest.raises(FailedException, match="'totals' can't be used now: unable to open"):
            backend.multiGet(["a"])
        (tmp_path / "missing").mkdir()
        assert backend.multiGet(["a"]) == {}


@pytest.mark.slow
def test_a_host_that_never_answers_fails_the_attempt(monkeypatch):
    """A dead host sends nothing at all; as this one, which accepts connections."""
    assert connection._LIBPQ["connect_timeout"] <= 30
    monkeypatch.setitem(connection._LIBPQ, "connect_timeout", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        away = f"postgresql+psycopg://u@127.0.0.1:{silent.getsockname()[1]}/d"
        with closing(SqlBackend(away, "totals")) as backend, pytest.raises(FailedException, match="timeout"):
            backend.multiGet(["a"])


@pytest.mark.parametrize(
    "address", ["nothing", "sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true", "mysql://h/d"]
)
def test_a_place_that_tasks_can_not_share_or_reach_is_refused(address):
    with pytest.raises(ConfigError, match="SqlBackend"):
        SqlBackend(address, "totals")
