"""What a client does when a target, the disk or the caller fails in the middle of a transaction, and real zombies."""

import errno
import os
import random
import signal
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from statefx import Checkpoint, TransactionalClient
from statefx.connectors import StagedSink, Target
from statefx.connectors.files import FileSink
from statefx.connectors.sql import SqlSink
from statefx.errors import FencedError, SinkError, TransactionError
from statefx.storage import FolderStorage
from tests.client.ledgers import TRANSFERS, client, entries, expected, refused, work

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
BOUND_SECS = 60


class Shelf(Target):
    """A place that can be out of reach."""

    rows: list = []
    last = None
    raises: list = []
    fences = False

    def marker(self):
        return Shelf.last

    def publish(self, marker, previous, rows):
        if Shelf.raises and not (Shelf.fences and not len(rows)):
            raise Shelf.raises[0]
        if Shelf.last != previous:
            raise RuntimeError("somebody else was here")
        Shelf.rows += rows.rows()
        Shelf.last = marker


class ShelfSink(StagedSink):
    target = "shelf"

    def connect(self, schema):
        return Shelf()


@pytest.fixture(autouse=True)
def empty_shelf():
    Shelf.rows, Shelf.last, Shelf.raises, Shelf.fences = [], None, [], False


def shelving(where):
    return TransactionalClient(
        where / "ck", id="shelf", sinks={"out": ShelfSink()}, schemas={"out": "word string"}, state=["seen"]
    )


def put_one(found, word="a"):
    with found.transaction() as t:
        t.send("out", [(word,)])
        t.put("seen", word, t.txid)


def wait_until(condition):
    end = time.monotonic() + BOUND_SECS
    while not condition():
        assert time.monotonic() < end
        threading.Event().wait(0.005)


@pytest.mark.slow
def test_a_commit_waits_for_a_target_that_is_out_of_reach(place):
    with shelving(place) as found:
        Shelf.raises = [ConnectionError("nobody answers")]
        thread = threading.Thread(target=put_one, args=[found])
        thread.start()
        wait_until(lambda: "stuck" in found.status)
        assert "nobody answers" in found.status["stuck"]["reason"]
        assert repr(found.status["stuck"]["phase"]) == "'commit'"
        assert found.committed == 0
        Shelf.raises = []
        thread.join(BOUND_SECS)
        assert found.committed == 1
        assert "stuck" not in found.status
        put_one(found, "b")
    assert [row["word"] for row in Shelf.rows] == ["a", "b"]


def test_who_gives_up_waiting_leaves_the_commit_to_the_next_client(place):
    found, raised = shelving(place), []
    Shelf.raises = [ConnectionError("nobody answers")]

    def commit():
        try:
            put_one(found)
        except SinkError as error:  # no TransactionError, which would say that it was rolled back
            raised.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    wait_until(lambda: "stuck" in found.status)
    found.close()
    thread.join(BOUND_SECS)
    assert "It is decided" in str(raised[0])
    Shelf.raises = []
    with shelving(place) as successor:
        assert successor.recoveries == [{"txid": 1, "rolled": "forward"}]
        assert successor.committed == 1
    assert [row["word"] for row in Shelf.rows] == ["a"]


def test_a_client_that_cannot_end_what_a_former_one_has_decided_is_not_made(place):
    found = shelving(place)
    Shelf.raises = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt), found.transaction() as t:
        t.send("out", [("a",)])
    found.close()
    Shelf.raises = [ConnectionError("nobody answers")]
    Shelf.fences = True
    for _ in range(2):
        with pytest.raises(SinkError, match=r"transaction 1, and its commit fails: .*nobody answers.* make the"):
            shelving(place)
    Shelf.raises = []
    with shelving(place) as successor:
        assert successor.recoveries == [{"txid": 1, "rolled": "forward"}]
    assert [row["word"] for row in Shelf.rows] == ["a"]


def test_a_row_that_a_table_cannot_name_is_rolled_back(place):
    sink = SqlSink(f"sqlite:///{place}/db", "words", key="word")
    with TransactionalClient(place / "ck", id="x", sinks={"out": sink}, schemas={"out": "word string"}) as found:
        with pytest.raises(TransactionError, match=r"'word' names the rows.*Fix that"), found.transaction() as t:
            t.send("out", [(None,)])
        with found.transaction() as t:
            t.send("out", [("a",)])
        assert found.committed == 1


def test_a_row_that_would_be_refused_is_named_and_its_block_has_to_be_mended(place):
    with closing(sqlite3.connect(place / "db")) as database:
        database.execute("create table words (word text check (length(word) < 3))")
    sink = SqlSink(f"sqlite:///{place}/db", "words", key=None, validate=True)
    with TransactionalClient(place / "ck", id="x", sinks={"out": sink}, schemas={"out": "word string"}) as found:
        with pytest.raises(TransactionError, match=r"'word': 'long'\}.*Fix that, and do"), found.transaction() as t:
            t.send("out", [("a",), ("long",)])
        assert found.committed == 0


def test_an_interrupted_commit_is_carried_out_by_the_next_client(place):
    found = shelving(place)
    Shelf.raises = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt), found.transaction() as t:
        t.send("out", [("a",)])
    with pytest.raises(TransactionError, match=r"the client has ended \(KeyboardInterrupt"), found.transaction():
        raise AssertionError("not reached")
    found.close()
    Shelf.raises = []
    with shelving(place) as successor:
        assert successor.committed >= t.txid, "it had been decided"
    assert [row["word"] for row in Shelf.rows] == ["a"]


@pytest.mark.parametrize("at", ["staged", "state"])
def test_a_full_disk_rolls_back_and_the_block_can_be_run_again(place, monkeypatch, at):
    writer, full = FolderStorage.writer, []

    def none_left(self, name, *arguments):
        if full and name.startswith(at):
            raise OSError(errno.ENOSPC, "no space left")
        return writer(self, name, *arguments)

    monkeypatch.setattr(FolderStorage, "writer", none_left)
    with shelving(place) as found:
        put_one(found)
        full.append(True)
        with pytest.raises((TransactionError, OSError), match="no space left"):
            put_one(found, "b")
        assert found.committed == 1
        full.clear()
        put_one(found, "b")
    assert [row["word"] for row in Shelf.rows] == ["a", "b"]
    assert [str(one.state) for one in Checkpoint(place / "ck").transactions()] == [
        "COMMITTED",
        "ROLLED_BACK",
        "COMMITTED",
    ]


def test_a_sink_that_cannot_write_rolls_back_and_the_work_can_be_done_again(place, monkeypatch):
    with shelving(place) as found:
        with monkeypatch.context() as broken:
            broken.setattr("statefx.runtime.sink_task.SinkTask.feed", _breaks)
            with pytest.raises(TransactionError, match=r"1 was rolled back: OSError: .*broken.*may be done again"):
                put_one(found)
        put_one(found, "c")
        assert found.committed == 1
    assert [row["word"] for row in Shelf.rows] == ["c"]


def test_after_a_read_that_failed_a_transaction_can_only_be_rolled_back(place, monkeypatch):
    with shelving(place) as found:
        put_one(found)
        t = found.begin()
        with monkeypatch.context() as broken:
            broken.setattr("statefx.client.engine.ClientEngine.open_store", _breaks_reading)
            with pytest.raises(OSError, match="unreadable"):
                t.get("seen", "a")
        for call in (lambda: t.put("seen", "a", 5), lambda: t.send("out", [("b",)])):
            with pytest.raises(TransactionError, match=r"has failed .*unreadable.*: abort it"):
                call()
        with pytest.raises(TransactionError, match=r"was rolled back: OSError: unreadable"):
            t.commit()
        with found.transaction() as t:
            assert t.get("seen", "a") == 1


def _breaks_reading(self, *arguments):
    raise OSError("unreadable")


def _breaks(self, edge, batch):
    raise OSError("broken")


def test_a_log_that_cannot_be_written_ends_the_client(place, monkeypatch):
    create = FolderStorage.create
    found = shelving(place)
    put_one(found)

    def broken(self, name, data):
        if b'"COMMITTING"' in data:
            raise KeyboardInterrupt
        create(self, name, data)

    with monkeypatch.context() as context:
        context.setattr(FolderStorage, "create", broken)
        with pytest.raises(KeyboardInterrupt):
            put_one(found, "b")
    with pytest.raises(TransactionError, match="the client has ended"):
        put_one(found, "b")
    found.close()
    with shelving(place) as successor:
        assert successor.recoveries == [{"txid": 2, "rolled": "back"}]
        put_one(successor, "b")
    assert [row["word"] for row in Shelf.rows] == ["a", "b"]


def outcomes(where):
    return [(one.txid, one.generation, str(one.state)) for one in Checkpoint(where / "ck").transactions()]


def test_who_is_fenced_before_the_decision_finds_that_nothing_took_effect(place):
    found = shelving(place)
    with pytest.raises(FencedError), found.transaction() as t:
        t.send("out", [("a",)])
        successor = shelving(place)
        put_one(successor, "b")
        assert successor.committed == t.txid, "the number of the former one, and not its rows"
    assert outcomes(place) == [(1, 2, "COMMITTED")], "an open transaction is not in the log"
    assert [row["word"] for row in Shelf.rows] == ["b"]
    for each in (found, successor):
        each.close()


@pytest.mark.slow
def test_who_is_fenced_in_an_open_transaction_hears_it_from_the_next_call(place, monkeypatch):
    """From the first one that looks: after a look that took long, as on a busy machine, some do not."""
    monkeypatch.setattr("statefx.client.session._LOOK_SECS_MAX", 0.0)
    calls = {
        "get": lambda t: t.get("seen", "a"),
        "put": lambda t: t.put("seen", "a", 2),
        "delete": lambda t: t.delete("seen", "a"),
        "send": lambda t: t.send("out", [("b",)]),
        "state": lambda t: t.state("seen"),
    }
    for name, call in calls.items():
        Shelf.last = None
        found = shelving(place / name)
        with found, pytest.raises(FencedError), found.transaction() as t:
            t.put("seen", "a", 1)
            assert t.get("seen", "a") == 1
            shelving(place / name).close()
            for _ in range(2):  # and from every one after it
                with pytest.raises(FencedError, match="taken over"):
                    call(t)


def test_the_look_for_another_client_takes_a_small_part_of_the_time(place, monkeypatch):
    """However often the transaction is asked, and however long a look takes."""
    now, looks = [0.0], []
    monkeypatch.setattr("statefx.client.session.time.monotonic", lambda: now[0])
    with TransactionalClient(place / "ck", id="x", state=["seen"]) as found, found.transaction() as t:
        t.put("seen", "a", 1)

        def look():
            looks.append(now[0])
            now[0] += 0.001

        monkeypatch.setattr(found._session._log, "check", look)
        for _ in range(10_000):
            t.get("seen", "a")
            now[0] += 0.0001
        assert 40 <= len(looks) <= 60


def test_who_is_fenced_behind_the_decision_finds_that_all_of_it_took_effect(place, monkeypatch):
    found, others = shelving(place), []
    publish = Shelf.publish

    def overtaken(self, marker, previous, rows):
        if not others and marker.txid == 1:
            others.append(None)
            others[0] = shelving(place)
            put_one(others[0], "b")
        publish(self, marker, previous, rows)

    monkeypatch.setattr(Shelf, "publish", overtaken)
    with pytest.raises(FencedError):
        put_one(found)
    assert others[0].recoveries == [{"txid": 1, "rolled": "forward"}]
    assert outcomes(place) == [(1, 1, "COMMITTED"), (2, 2, "COMMITTED")]
    for each in (found, *others):
        each.close()


@pytest.mark.slow
def test_a_start_that_is_refused_fences_nobody(place):
    with client(place) as found:
        work(found, TRANSFERS[:1])
        with pytest.raises(Exception, match="stateful"):
            TransactionalClient(
                place / "ck", id="ledger", sinks={"x": FileSink(place / "x")}, schemas={"x": "n long"}, state=["others"]
            )
        work(found)
    done, not_done, _ = expected()
    assert (entries(place), refused(place)) == (done, not_done)


@pytest.mark.soak
@pytest.mark.parametrize("state", ["PREPARING", "COMMITTING", "COMMITTED"])
def test_a_program_that_was_stopped_wakes_up_and_changes_nothing(place, monkeypatch, state):
    monkeypatch.syspath_prepend(EXAMPLES)
    from ledger_kills import Killed
    from ledger_rules import check

    ledger = Killed(place, str(EXAMPLES / "ledger_plain.py"), random.Random(1))
    ledger.ahead = 40
    zombie = ledger.start()
    try:
        _stop(ledger, zombie, state)
        before = ledger.newest()
        assert before[1] == state
        ledger.finish()
        os.killpg(zombie.pid, signal.SIGCONT)
        assert zombie.wait(BOUND_SECS) == 1
    finally:
        zombie.kill()
        zombie.wait()
    assert "FencedError" in ledger.said.read_text(errors="replace")
    assert check(place)[0] == {}


def _is_locked(database):
    """Whether who was stopped holds a lock of SQLite, which nobody but its own process can release."""
    with closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("begin immediate")
        except sqlite3.OperationalError:
            return True
        return False


def _stop(ledger, process, state):
    """SIGSTOP when the newest record of the log says so, and is still the newest when the process stands."""
    end = time.monotonic() + BOUND_SECS
    while time.monotonic() < end:
        assert process.poll() is None, ledger.said.read_text()
        if ledger.newest()[1] == state and ledger.newest()[0] > 8:
            os.killpg(process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # or it may still take the lock after the look below
            if ledger.newest()[1] == state and not _is_locked(ledger.work / "refused.db"):
                return
            os.killpg(process.pid, signal.SIGCONT)
        ledger.feed()
    raise AssertionError(f"it was never stopped in {state}")
