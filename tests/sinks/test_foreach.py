"""ForeachTransactionSink: a function that is called at least once, in order, by one driver after the other."""

import os
import signal
import subprocess
import sys
from asyncio import CancelledError
from contextlib import suppress

import pyarrow as pa
import pytest

from statefx import TopologyBuilder, TransactionalClient
from statefx.connectors import ForeachTransactionSink
from statefx.coordinator.retrying import StoppedError
from statefx.errors import ConfigError, FencedError, SinkError, StagedRowsLostError
from statefx.operators.sinks import CheckpointPosition, CommitterContext, Owner, WriterContext
from statefx.protocol.identity import TransactionAttempt
from statefx.storage import FolderStorage
from statefx.testing import Crash, Limits, TopologyTester, rows, tester

SCHEMA = pa.schema([("word", pa.string())])
WORDS = [["a", "b"], [], ["c"]]
FIRST, SECOND = Owner("app", "origin", 1), Owner("app", "origin", 2)
START = CheckpointPosition(0, 0)


def as_words(schema, parts):
    """Stands in for Spark's DataFrame: the words of all parts."""
    return [word for part in parts for batch in part for word in batch["word"].to_pylist()]


class Calls:
    """The user's function; it may do something more, and remembers for which transactions it has returned."""

    def __init__(self, do=lambda txid: None):
        self.done = []
        self.do = do

    def __call__(self, words, txid):
        self.do(txid)
        self.done.append((txid, sorted(words)))


def committer(place, fn, owner):
    context = CommitterContext("out", owner, SCHEMA, FolderStorage(place), as_words)
    return ForeachTransactionSink(fn).committer(context)


def fenced(place, fn, owner, reached=START):
    found = committer(place, fn, owner)
    found.check(reached, takeover=False)
    found.fence(reached, takeover=False)
    return found


def write(place, txid, *words):
    storage, attempt = FolderStorage(place), TransactionAttempt(txid, 0)
    writer = ForeachTransactionSink(print).writer(WriterContext("out", 0, 1, attempt, f"t{txid}", SCHEMA, storage))
    writer.write(pa.RecordBatch.from_pydict({"word": words}, schema=SCHEMA))
    return {0: writer.prepare(txid)}


def commit(committer, txid, named):
    committer.commit(TransactionAttempt(txid, 0), named)


def topology(fn):
    builder = TopologyBuilder("t")
    builder.setStream("lines", rows("word string"))
    builder.setSink("out", ForeachTransactionSink(fn), parallelism=2).fieldsGrouping("lines", "word")
    return builder.createTopology()


@pytest.mark.slow
def test_a_crash_at_every_durable_step_calls_each_transaction_in_order_and_at_least_once(tmp_path, monkeypatch):
    monkeypatch.setattr(tester, "_dataframe", as_words)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    again, at, done = 0, 0, False
    while not done:
        at += 1
        calls, place = Calls(), tmp_path / str(at)
        for crash_at in (at, None):
            try:
                with TopologyTester(topology(calls), place, crash_at=crash_at) as one:
                    one.run([{"lines": [(word,) for word in words]} for words in WORDS])
                done = crash_at is not None
            except Crash:
                continue
            break
        txids = [txid for txid, _ in calls.done]
        assert txids == sorted(txids)
        assert dict(calls.done) == {txid: words for txid, words in enumerate(WORDS, 1) if words}
        again += len(txids) - len(set(txids))
    assert at > 20
    assert again > 0, "no crash came between the call and its note"


@pytest.mark.parametrize("raised", [OSError, CancelledError, SystemExit])
def test_a_function_that_raises_is_called_again_and_nothing_else_is_committed(tmp_path, monkeypatch, raised):
    monkeypatch.setattr(tester, "_dataframe", as_words)
    seen = []

    def refuse_twice(txid):
        seen.append(one.status if len(seen) else None)
        if len(seen) < 3:
            raise raised("the broker is away")

    calls = Calls(refuse_twice)
    with TopologyTester(topology(calls), tmp_path) as one:
        one.send({"lines": [("a",)]})
        one.send({"lines": [("b",)]})
    assert calls.done == [(1, ["a"]), (2, ["b"])]
    assert f"out: {raised.__name__}: the broker is away" in seen[1]["stuck"]["reason"]
    assert seen[1]["txid"] == seen[2]["txid"] == 1
    assert "stuck" not in seen[3]


def test_a_function_that_was_mended_goes_on_with_what_is_decided(tmp_path, monkeypatch):
    monkeypatch.setattr(tester, "_dataframe", as_words)

    def broken(words, txid):
        raise TypeError("a mistake")

    with pytest.raises(StoppedError, match=r"out: TypeError: a mistake\. It is decided"):
        TopologyTester(topology(broken), tmp_path, limits=Limits(pauses=3)).send({"lines": [("a",)]})
    calls = Calls()
    with TopologyTester(topology(calls), tmp_path) as one:
        assert one.recoveries == [{"txid": 1, "rolled": "forward"}]
    assert calls.done == [(1, ["a"])]


def test_an_older_generation_calls_for_nothing_that_the_newer_one_does_not_publish(tmp_path):
    old, new = Calls(), Calls()
    zombie = fenced(tmp_path, old, FIRST)
    named = write(tmp_path, 1, "a")
    newer = fenced(tmp_path, new, SECOND)
    with pytest.raises(FencedError):
        commit(zombie, 1, named)
    commit(newer, 1, named)
    commit(zombie, 1, named)
    with pytest.raises(FencedError):
        commit(zombie, 2, write(tmp_path, 2, "b"))
    assert old.done == []
    assert new.done == [(1, ["a"])]


def test_who_is_replaced_in_the_middle_of_its_call_leaves_no_marker_that_counts(tmp_path):
    first, second = write(tmp_path, 1, "a"), write(tmp_path, 2, "b")
    new = Calls()

    def replace(txid):
        newer = fenced(tmp_path, new, SECOND, CheckpointPosition(0, 1))
        commit(newer, 1, first)
        commit(newer, 2, second)

    old = Calls(replace)
    zombie = fenced(tmp_path, old, FIRST)
    for _ in range(2):
        with suppress(SinkError):  # unless its number has been deleted, so that it can have it once more
            commit(zombie, 1, first)
    assert old.done == [(1, ["a"])]  # late, and at least once
    commit(committer(tmp_path, new, SECOND), 2, second)
    assert new.done == [(1, ["a"]), (2, ["b"])]


def test_who_is_replaced_before_its_call_does_not_call(tmp_path, monkeypatch):
    old, new = Calls(), Calls()
    zombie, named = fenced(tmp_path, old, FIRST), write(tmp_path, 1, "a")
    looks, original = [], FolderStorage.list

    def look(storage, *arguments):
        looks.append(storage)
        if len(looks) == 2:  # it has found its own marker, and is about to call
            fenced(tmp_path, new, SECOND, CheckpointPosition(0, 1))
        return original(storage, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(FolderStorage, "list", look)
        with pytest.raises(FencedError, match="generation 2 has taken over"):
            commit(zombie, 1, named)
    assert old.done == []


def test_notes_do_not_pile_up(tmp_path):
    publishing = fenced(tmp_path, Calls(), FIRST)
    for txid in range(1, 6):
        commit(publishing, txid, {})
    assert len(list((tmp_path / "markers" / "out").iterdir())) <= 3


def test_lost_rows_are_what_is_told_of_and_not_what_the_function_made_of_it(tmp_path):
    calls = Calls()
    publishing = fenced(tmp_path, calls, FIRST)
    named = write(tmp_path, 1, "a")
    file = tmp_path / named[0]["file"]
    data = file.read_bytes()
    file.unlink()
    with pytest.raises(StagedRowsLostError, match=file.name):
        commit(publishing, 1, named)
    file.write_bytes(data)
    commit(publishing, 1, named)
    assert calls.done == [(1, ["a"])]


def test_a_fork_goes_on_with_its_own_copy(tmp_path, monkeypatch):
    monkeypatch.setattr(tester, "_dataframe", as_words)
    calls = Calls()
    with TopologyTester(topology(calls), tmp_path / "one") as one:
        one.send({"lines": [("a",)]})
    os.rename(tmp_path / "one", tmp_path / "two")
    with TopologyTester(topology(calls), tmp_path / "two", adopt="fork") as one:
        one.send({"lines": [("b",)]})
    assert calls.done == [(1, ["a"]), (2, ["b"])]


@pytest.mark.parametrize("fn", [7, lambda rows: None, lambda rows, txid, more: None])
def test_what_can_not_be_called_is_refused(fn):
    with pytest.raises(ConfigError, match=r"fn\(dataframe, txid\)"):
        ForeachTransactionSink(fn)


def test_a_transaction_from_plain_python_has_no_dataframe(tmp_path):
    sinks = {"out": ForeachTransactionSink(print)}
    with pytest.raises(SinkError, match="which only submit can make"):
        TransactionalClient(tmp_path, id="app", sinks=sinks, schemas={"out": "word string"})


ZOMBIE = """
import os, signal, sys
from pathlib import Path
from statefx.errors import StatefxError
from statefx.testing import TopologyTester, tester
from tests.sinks.test_foreach import as_words, topology

def stop(words, txid):
    os.kill(os.getpid(), signal.SIGSTOP)
    Path(sys.argv[2]).write_text(f"{txid} {words}")

tester._dataframe = as_words
try:
    with TopologyTester(topology(stop), sys.argv[1]) as one:
        one.send({"lines": [("a",)]})
except StatefxError as error:
    sys.exit(type(error).__name__)
"""


@pytest.mark.soak
@pytest.mark.slow
def test_a_driver_that_slept_in_its_call_ends_the_call_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(tester, "_dataframe", as_words)
    calls, late = Calls(), tmp_path / "late"
    command = [sys.executable, "-c", ZOMBIE, str(tmp_path / "ck"), str(late)]
    zombie = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()})
    try:
        _, status = os.waitpid(zombie.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        with TopologyTester(topology(calls), tmp_path / "ck") as one:
            one.send({"lines": [("b",)]})
            zombie.send_signal(signal.SIGCONT)
            _, errors = zombie.communicate(timeout=60)
            assert b"FencedError" in errors
            assert late.read_text() == "1 ['a']"  # at least once: after what came later
            one.send({"lines": [("c",)]})
    finally:
        zombie.kill()
        zombie.wait()
    assert calls.done == [(1, ["a"]), (2, ["b"]), (3, ["c"])]


ALONE = """
from tests.sinks.test_foreach import topology
from statefx.errors import SinkError
from statefx.testing import TopologyTester
try:
    TopologyTester(topology(print), "ck")
except SinkError as error:
    print(error.message)
"""


@pytest.mark.soak
@pytest.mark.slow
def test_without_a_session_the_tester_refuses_to_start_and_says_what_to_do(tmp_path):
    command = [sys.executable, "-c", ALONE]
    run = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": os.getcwd()}, cwd=tmp_path
    )
    assert "there is no SparkSession: build one before" in run.stdout
    assert not (tmp_path / "ck").exists()
