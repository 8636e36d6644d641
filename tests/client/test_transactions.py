"""Transactions from plain Python: what takes effect, what does not, and what is refused."""

import os
import sqlite3
import subprocess
import sys
import threading
from collections import namedtuple
from contextlib import closing
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark.sql
import pytest

from statefx import Checkpoint, TransactionalClient
from statefx.connectors import CollectSink
from statefx.connectors.files import FileSink, committedFiles
from statefx.errors import (
    CodecError,
    ConfigError,
    FencedError,
    SchemaError,
    SinkOwnedError,
    StateClosedError,
    StatefxError,
    TopologyError,
    TransactionError,
    TransactionTimeoutError,
)
from statefx.operators.tuples import tuple_class
from tests.client.ledgers import TRANSFERS, client, entries, expected, refused, transfer, work


def balances(place):
    with Checkpoint(place / "ck").state("accounts") as state:
        return dict(state.items())


def log_of(place):
    return [(one.txid, one.attempt, str(one.state)) for one in Checkpoint(place / "ck").transactions()]


class Collected(CollectSink):
    @property
    def tuples(self):
        return [tuple(row.values()) for row in self.rows]


def collecting(place, schema="word string, n long", **options):
    sink = Collected()
    found = TransactionalClient(
        place / "ck", id="words", sinks={"out": sink}, schemas={"out": schema}, state=["seen"], **options
    )
    return found, sink


@pytest.mark.slow
def test_rows_and_state_take_effect_together(place):
    with client(place) as found:
        work(found)
        assert found.committed == len(TRANSFERS) + 1, "the last one found nothing to do"
    done, not_done, left = expected()
    assert (entries(place), refused(place), balances(place)) == (done, not_done, left)


def test_the_next_client_goes_on_with_the_next_txid(place):
    for word in ("a", "b"):
        with TransactionalClient(place / "ck", id="words", state=["seen"]) as found, found.transaction() as t:
            t.put("seen", word, t.txid)
    with Checkpoint(place / "ck").state("seen") as seen:
        assert dict(seen.items()) == {"a": 1, "b": 2}


@pytest.mark.slow
def test_spark_is_not_needed(place):
    program = (
        "import sys; sys.modules.update(pyspark=None, py4j=None)\n"
        "import statefx\n"
        f"with statefx.TransactionalClient({str(place / 'ck')!r}, id='x', state=['s']) as client:\n"
        "    with client.transaction() as t: t.put('s', 1, 2)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with Checkpoint(place / "ck").state("s") as state:
        assert dict(state.items()) == {1: 2}


def test_a_transaction_reads_what_it_has_put(place):
    found, _ = collecting(place)
    with found:
        with found.transaction() as t:
            t.put("seen", "a", 1)
            t.put("seen", "c", 3)
            t.put("seen", "b", 2)
            assert t.get("seen", "b") == 2
            assert t.delete("seen", "c") == 3
            assert list(t.state("seen").items()) == [("a", 1), ("b", 2)]
            assert "c" not in t.state("seen")
        with found.transaction() as t:
            assert t.get("seen", "a") == 1
            assert t.get("seen", "nobody", 0) == 0
            kept = t.state("seen")
    with pytest.raises(StateClosedError):
        kept.get("a")


@pytest.mark.slow
@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(1), GeneratorExit()], ids=repr)
def test_what_is_left_by_an_exception_takes_no_effect_and_the_next_one_goes_on(place, error):
    with client(place) as found:
        with pytest.raises(type(error)), found.transaction() as t:
            transfer(t, 0, *TRANSFERS[0])
            raise error
        assert found.committed == 0
        assert log_of(place) == [], "it was in memory alone"
        work(found)
    done, not_done, left = expected()
    assert (entries(place), refused(place), balances(place)) == (done, not_done, left)
    assert log_of(place)[0] == (1, 0, "COMMITTED")


@pytest.mark.slow
def test_abort_rolls_back_and_goes_on_in_the_block(place):
    with client(place) as found:
        work(found, abort_at=2)
        with found.transaction() as t:
            t.put("accounts", "ann", 10**6)
            t.abort("no such money")
            t.abort("again")
            with pytest.raises(TransactionError, match=r"is aborted \(no such money\): begin another one"):
                t.put("accounts", "ann", 1)
    done, not_done, left = expected()
    assert (entries(place), refused(place), balances(place)) == (done, not_done, left)


def test_rolling_back_again_and_again_ends_no_client(place):
    found, _ = collecting(place, config={"topology.transaction.attempts.max": 2})
    with found:
        for _ in range(5):
            with found.transaction() as t:
                t.put("seen", "a", 1)
                t.abort()
        with found.transaction() as t:
            assert t.get("seen", "a") is None
        assert log_of(place) == [(1, 0, "COMMITTED")]


def test_a_block_that_does_nothing_costs_nothing(place):
    found, _ = collecting(place)
    with found:
        before = sorted(os.listdir(place / "ck" / "transactions"))
        with found.transaction():
            pass
        with pytest.raises(ValueError, match="no"), found.transaction():
            raise ValueError("no")
        assert sorted(os.listdir(place / "ck" / "transactions")) == before


# ---- rows

Row = namedtuple("Row", "n word")


@pytest.mark.parametrize(
    "rows",
    [
        [("a", 1), ("b", None)],
        [["a", 1], ["b", None]],
        [{"n": 1, "word": "a"}, {"word": "b", "n": None}],
        (Row(n, word) for word, n in [("a", 1), ("b", None)]),
        [pyspark.sql.Row(n=1, word="a"), pyspark.sql.Row("n", "word")(None, "b")],
        [tuple_class(["n", "word"])(1, "a"), pyspark.sql.Row("b", None)],
        pa.table({"n": pa.array([1, None], pa.int32()), "word": ["a", "b"]}),
        pa.RecordBatch.from_pydict({"word": ["a", "b"], "n": [1, None]}),
    ],
    ids=["tuples", "lists", "dicts", "named", "spark", "statefx", "table", "batch"],
)
def test_rows_in_any_form(place, rows):
    found, sink = collecting(place)
    with found, found.transaction() as t:
        t.send("out", rows)
    assert sink.tuples == [("a", 1), ("b", None)]


def test_nested_values_and_times(place):
    found, sink = collecting(place, "tags array<string>, at timestamp, more map<string,int>")
    with found, found.transaction() as t:
        t.send("out", [(["x", "y"], datetime(2026, 1, 1), {"a": 1})])
    assert len(sink.rows) == 1


@pytest.mark.parametrize(
    ("rows", "says", "field"),
    [
        ([("a", 1), ("b", 1.5)], r"row 1: 1.5 \(float\) does not fit `n bigint`", "n"),
        ([("a", 1), (5, 1)], r"row 1: 5 \(int\) does not fit `word string`", "word"),
        ([{"word": "a", "m": 1}], "row 0 has the fields word, m, not word, n: name every field", None),
        ([{"word": "a", "n": 1, "m": 1}], "row 0 has the fields word, n, m, not word, n", None),
        ([pyspark.sql.Row(word="a", m=1)], "row 0 has the fields word, m, not word, n", None),
        ([pyspark.sql.Row("word", "n", "n")("a", 1, 2)], "row 0 has the fields word, n, n, not word, n", None),
        ([pyspark.sql.Row("n", "n")(1, 2)], "row 0 has the fields n, n, not word, n", None),
        (pa.table([["a"], [1], [2]], ["word", "n", "n"]), "the table has the fields word, n, n, not word, n", None),
        (pyspark.sql.Row(n=1, word="a"), r"of one row write \[row\]", None),
        ([{"word": "a"}], "row 0 has the fields word, not word, n: name every field", None),
        ([("a",)], "row 0 has 1 values; the fields are word, n", None),
        ([("a", 2**63)], "row 0: .* does not fit `n bigint`", "n"),
        (["ab"], r"row 0 is 'ab' \(str\): a row is a dict or a tuple", None),
        ({"word": "a", "n": 1}, r"of one row write \[row\]", None),
        (Row(1, "a"), r"of one row write \[row\]", None),
        ("ab", "rows are a list of dicts or tuples", None),
        (5, "rows are a list of dicts or tuples, not 5", None),
        (pa.table({"word": ["a"]}), "the table has the fields word, not word, n", None),
        (pa.table({"word": ["a"], "n": ["x"]}), "column 'n' is string, and does not fit `n bigint`", "n"),
        (pa.table({"word": ["a"], "n": [1.5]}), "column 'n' is double, and does not fit `n bigint`", "n"),
        (pa.table({"word": ["a"], "n": ["01"]}), "column 'n' is string, and does not fit `n bigint`: '01'", "n"),
        (pa.table({"word": [1.0], "n": [1]}), "column 'word' is double, and does not fit `word string`", "word"),
    ],
)
def test_rows_that_do_not_fit_are_refused_whole_and_the_transaction_goes_on(place, rows, says, field):
    found, sink = collecting(place)
    with found, found.transaction() as t:
        with pytest.raises(SchemaError, match=says) as refusal:
            t.send("out", rows)
        assert refusal.value.data.get("field") == field
        assert refusal.value.component == "out"
        t.send("out", [("good", 1)])
    assert sink.tuples == [("good", 1)]


def test_a_frame_of_pandas_is_sent_as_a_table(place):
    pandas = pytest.importorskip("pandas")
    found, sink = collecting(place)
    frame = pandas.DataFrame({"word": ["a"], "n": [1]})
    with found, found.transaction() as t:
        with pytest.raises(SchemaError, match=r"Table\.from_pandas"):
            t.send("out", frame)
        t.send("out", pa.Table.from_pandas(frame))
    assert sink.tuples == [("a", 1)]


def test_a_value_that_state_cannot_hold_is_refused_and_the_transaction_goes_on(place):
    found, _ = collecting(place)
    with found:
        with found.transaction() as t:
            with pytest.raises(CodecError, match="object"):
                t.put("seen", "a", object())
            t.put("seen", "b", 1)
        with found.transaction() as t:
            assert dict(t.state("seen").items()) == {"b": 1}


# ---- mistakes


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({}, ConfigError, "nothing to commit"),
        ({"sinks": {"out": CollectSink()}}, ConfigError, r"sink 'out': schemas=\{'out': '[^}]*'\}$"),
        ({"sinks": [CollectSink()]}, ConfigError, "sinks are given by name"),
        ({"sinks": {"out": CollectSink}, "schemas": {"out": "a int"}}, TopologyError, "pass an object"),
        ({"sinks": {"out": CollectSink()}, "schemas": {"out": "a inte"}}, TopologyError, r"schemas\['out'\]: 'inte'"),
        ({"sinks": {"out": CollectSink()}, "schemas": "a int"}, ConfigError, "schemas are given by the sink's name"),
        ({"state": ["a"], "schemas": {"out": "a int"}}, ConfigError, "schemas names 'out', which is not in sinks"),
        ({"state": "accounts"}, ConfigError, r"state=\['accounts'\]"),
        ({"state": ["a", "a"]}, TopologyError, "'a'"),
        ({"state": ["a"], "id": ""}, TopologyError, "name of a topology"),
        ({"state": ["a"], "config": {"topology.transactional.id": "x"}}, ConfigError, "is the argument id"),
        ({"state": ["a"], "config": {"topology.state.provide": "x"}}, ConfigError, "topology.state.provider"),
    ],
)
def test_mistakes_are_told_before_anything_is_changed(place, options, error, says):
    with pytest.raises(error, match=says):
        TransactionalClient(place / "ck", **{"id": "x", **options})
    assert list(place.iterdir()) == []


def test_what_is_not_there_is_told_and_the_transaction_goes_on(place):
    found, sink = collecting(place)
    with found, found.transaction() as t:
        with pytest.raises(TransactionError, match="there is no sink 'outs'; there are 'out'"):
            t.send("outs", [("a", 1)])
        with pytest.raises(TransactionError, match="no component 'out' keeps state; there are 'seen'"):
            t.get("out", "a")
        t.send("out", [("a", 1)])
    assert sink.tuples == [("a", 1)]


def test_a_checkpoint_of_another_application_is_refused(place):
    collecting(place)[0].close()
    with pytest.raises(StatefxError, match="words"):
        TransactionalClient(place / "ck", id="other", state=["seen"])


def test_a_target_of_another_application_is_refused(place):
    client(place).close()
    with pytest.raises(SinkOwnedError, match="ledger"):
        TransactionalClient(
            place / "ck2", id="x", sinks={"out": FileSink(place / "entries")}, schemas={"out": "n long"}
        )
    assert not (place / "ck2").exists()


# ---- what ends a client


@pytest.mark.slow
def test_a_second_client_fences_the_first_and_ends_what_it_left_open(place):
    first = client(place)
    with pytest.raises(FencedError, match="taken over"), first.transaction() as t:
        transfer(t, 0, *TRANSFERS[0])
        second = client(place)
        transfer(t, 0, *TRANSFERS[0])
    assert second.recoveries == [], "what was open was in memory alone"
    with pytest.raises(FencedError), first.transaction():
        raise AssertionError("not reached")
    first.close()
    with second:
        work(second)
    done, not_done, left = expected()
    assert (entries(place), refused(place), balances(place)) == (done, not_done, left)


def test_a_transaction_is_for_one_with_statement(place):
    found, _ = collecting(place)
    with found:
        t = found.transaction()
        with pytest.raises(TransactionError, match="not open: write: with client"):
            t.put("seen", "a", 1)
        with t:
            assert repr(t) == "<Transaction #1, open>"
        assert repr(t) == "<Transaction #1, committed as 1>"
        with pytest.raises(TransactionError, match="is committed: begin another one"), t:
            raise AssertionError("not reached")


def test_threads_share_a_transaction(place):
    found, sink = collecting(place)

    def some(number):
        for n in range(50):
            t.send("out", [(str(number), n)])
            t.put("seen", (number, n), n)

    with found, found.transaction() as t:
        threads = [threading.Thread(target=some, args=[number]) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert sorted(sink.tuples) == sorted((str(number), n) for number in range(4) for n in range(50))
    with Checkpoint(place / "ck").state("seen") as seen:
        assert len(seen) == 200


def test_closing_a_client_rolls_back_what_is_open(place):
    found, _ = collecting(place)
    with pytest.raises(TransactionError, match="was closed"), found.transaction() as t:
        t.put("seen", "a", 1)
        found.close()
        found.close()
    assert log_of(place) == []
    with pytest.raises(TransactionError, match=r"the client has ended \(it was closed\)"), found.transaction():
        raise AssertionError("not reached")
    with pytest.raises(TransactionError, match=r"the client has ended \(it was closed\)"):
        found.begin()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # from 3.12 on
def test_a_child_process_cannot_use_the_client_of_its_parent(place):
    found, _ = collecting(place)
    with found, found.transaction() as t:
        t.put("seen", "a", 1)
        child = os.fork()
        if child == 0:
            try:
                t.put("seen", "b", 1)
            except TransactionError as error:
                os._exit(0 if "after a fork" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
    with Checkpoint(place / "ck").state("seen") as seen:
        assert dict(seen.items()) == {"a": 1}


FORKED = """
import atexit, os, sys
from statefx import TransactionalClient
from statefx.connectors.files import FileSink
from statefx.connectors.sql import SqlSink

def child(way, client):
    # Returns in the parent, when the child has gone.
    process = os.fork()
    if process:
        os.waitpid(process, 0)
        return
    atexit.register(client.close)
    if way == "raise":
        raise ValueError
    if way == "exit":
        sys.exit()
    raise Leave

class Leave(Exception): pass

folder = sys.argv[1]
sinks = {"out": FileSink(folder + "/out"), "rows": SqlSink(f"sqlite:///{folder}/db", "t", validate=True)}
parent = os.getpid()
with TransactionalClient(folder + "/ck", id="x", sinks=sinks, schemas=dict.fromkeys(sinks, "word string"),
                         state=["seen"], config={"topology.state.provider": "rocksdb"}) as client:
    for way in ("raise", "exit", "leave"):
        try:
            with client.transaction() as t:
                for sink in sinks:
                    t.send(sink, [(way,)])
                t.put("seen", way, 1)
                try:
                    child(way, client)
                except Leave:
                    pass  # and leaves the block as if all were well
                for sink in sinks:
                    t.send(sink, [(way + " again",)])
        except Exception:
            if os.getpid() == parent:
                raise
            sys.exit()
"""


@pytest.mark.slow
def test_a_child_process_changes_nothing_in_whichever_way_it_leaves_the_blocks_of_its_parent(place):
    """Its copies of open files and connections would write into the parent's and delete them when it ends."""
    ran = subprocess.run([sys.executable, "-c", FORKED, place], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    ways = ["exit", "leave", "raise"]
    expected = sorted([*ways, *(f"{way} again" for way in ways)])
    found = [row["word"] for file in committedFiles(place / "out") for row in pq.read_table(file).to_pylist()]
    with closing(sqlite3.connect(place / "db")) as connection:
        assert sorted(word for (word,) in connection.execute("select word from t")) == expected
    assert sorted(found) == expected
    with Checkpoint(place / "ck").state("seen") as seen:
        assert list(seen) == ways
    assert {each.attempt for each in Checkpoint(place / "ck").transactions()} == {0}, "nothing was rolled back"


def test_a_generator_of_rows_that_aborts_its_transaction_sends_none_of_them(place):
    found, sink = collecting(place, "word string")

    def rows(end):
        yield ("a",)
        end()

    with found:
        with found.transaction() as t, pytest.raises(TransactionError, match="is aborted: begin another one"):
            t.send("out", rows(t.abort))
        with found.transaction() as t:
            t.send("out", [("b",)])
        with pytest.raises(TransactionError, match="was closed"), found.transaction() as t:
            t.send("out", rows(found.close))
    assert [row["word"] for row in sink.rows] == ["b"]
    assert log_of(place) == [(1, 0, "COMMITTED")]


def test_the_timeout_does_not_run_while_sinks_commit(place, monkeypatch):
    """What is decided is never given up, however long a target takes (rule 2.5)."""
    now = [0.0]

    class Slow(Collected):
        def show(self, txid, rows):
            now[0] += 100
            super().show(txid, rows)

    sink = Slow()
    found = TransactionalClient(
        place / "ck",
        id="words",
        sinks={"out": sink},
        schemas={"out": "word string"},
        config={"topology.transaction.timeout.secs": 10},
    )
    monkeypatch.setattr("statefx.client.session.time.monotonic", lambda: now[0])
    with found:
        for txid in (1, 2):  # and nothing of the time is counted for the next one
            with found.transaction() as t:
                t.send("out", [("a",)])
            assert found.committed == txid
    assert now == [200.0]
    assert log_of(place) == [(1, 0, "COMMITTED"), (2, 0, "COMMITTED")]


def test_a_transaction_that_was_open_too_long_is_rolled_back(place, monkeypatch):
    found, _ = collecting(place, config={"topology.transaction.timeout.secs": 10})
    now = [0.0]
    monkeypatch.setattr("statefx.client.session.time.monotonic", lambda: now[0])
    with found:
        with pytest.raises(TransactionTimeoutError, match="was open for longer"), found.transaction() as t:
            t.put("seen", "a", 1)
            now[0] = 11.0
        with found.transaction() as t:
            assert t.get("seen", "a") is None
            t.put("seen", "b", 1)
            now[0] = 22.0
            for call in (lambda: t.get("seen", "b"), lambda: t.put("seen", "b", 2), lambda: t.send("out", [("b", 1)])):
                with pytest.raises(TransactionTimeoutError, match="was open for longer"):
                    call()
            t.abort()
