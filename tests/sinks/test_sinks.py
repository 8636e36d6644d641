"""Rows leave a topology once: sinks in the tester, with crashes at every durable step, and what they refuse."""

import os
import sqlite3
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statefx import BasicBolt, StatefulBolt, TopologyBuilder
from statefx.connectors import CollectSink, ConsoleSink, StagedSink
from statefx.connectors.files import FileSink, committedFiles
from statefx.connectors.sql import SqlSink
from statefx.errors import (
    BoltError,
    ConfigError,
    SinkError,
    SinkMismatchError,
    StagedRowsLostError,
    TopologyError,
)
from statefx.operators.sinks import CheckpointPosition, CommitterContext, Owner, WriterContext
from statefx.protocol.identity import TransactionAttempt
from statefx.storage import FolderStorage
from statefx.testing import TopologyTester, rows

WORDS = [["to", "be", "to"], ["x"], [], ["be"]]
SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64())])
START = CheckpointPosition(0, 0)


class Count(StatefulBolt):
    outputFields = "word string, n long"

    def initState(self, state):
        self.counts = state

    def execute(self, tup, collector):
        count = self.counts.get(tup.value, 0) + 1
        self.counts.put(tup.value, count)
        collector.emit((tup.value, count))


def topology(place, name="counts", collected=None):
    builder = TopologyBuilder(name)
    builder.setStream("lines", rows("value string"))
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("lines", "value")
    builder.setSink("files", FileSink(place / "out"), parallelism=2).shuffleGrouping("count")
    sql = SqlSink(f"sqlite:///{place}/db", "counts", key="word")
    builder.setSink("sql", sql).fieldsGrouping("count", "word")
    builder.setSink("list", collected or CollectSink()).globalGrouping("count")
    return builder.createTopology()


def in_files(place):
    if not os.path.exists(place / "out" / "_spark_metadata"):
        return []
    return sorted(
        tuple(row.values()) for file in committedFiles(place / "out") for row in pq.read_table(file).to_pylist()
    )


def in_table(place):
    with closing(sqlite3.connect(place / "db")) as connection, connection:
        return dict(connection.execute("select word, n from counts").fetchall())


@pytest.mark.slow
def test_every_sink_has_each_transaction_once(tmp_path):
    collected = CollectSink()
    with TopologyTester(topology(tmp_path, collected=collected), tmp_path / "ck") as tester:
        for words in WORDS:
            tester.send({"lines": [(word,) for word in words]})
    assert in_files(tmp_path) == [("be", 1), ("be", 2), ("to", 1), ("to", 2), ("x", 1)]
    assert in_table(tmp_path) == {"be": 2, "to": 2, "x": 1}
    assert sorted(collected.transactions) == [1, 2, 3, 4]
    assert collected.transactions[3] == []
    assert sorted(tuple(row.values()) for row in collected.rows) == in_files(tmp_path)


class Sinks:
    """One sink of each durable kind, driven by hand."""

    def __init__(self, place):
        self.place = place
        self.storage = FolderStorage(place / "ck")

    def sink(self, kind):
        return FileSink(self.place / "out") if kind == "files" else SqlSink(f"sqlite:///{self.place}/db", "counts")

    def committer(self, kind, owner):
        return self.sink(kind).committer(CommitterContext("out", owner, SCHEMA, self.storage))

    def write(self, kind, txid, *words, task=0, token=None):
        attempt = TransactionAttempt(txid, 0)
        context = WriterContext("out", task, 2, attempt, token or f"t{txid}-{task}", SCHEMA, self.storage)
        writer = self.sink(kind).writer(context)
        if words:
            writer.write(pa.RecordBatch.from_pydict({"word": words, "n": [1] * len(words)}, schema=SCHEMA))
        committable = writer.prepare(txid)
        writer.close()
        return {} if committable is None else {task: committable}

    def read(self, kind):
        if kind == "files":
            return [word for word, _ in in_files(self.place)]
        with closing(sqlite3.connect(self.place / "db")) as connection, connection:
            return sorted(word for (word,) in connection.execute("select word from counts").fetchall())


@pytest.fixture
def sinks(tmp_path):
    return Sinks(tmp_path)


@pytest.fixture(params=["files", "sql"])
def kind(request):
    return request.param


def fenced(sinks, kind, owner, reached=START):
    committer = sinks.committer(kind, owner)
    committer.check(reached, takeover=False)
    committer.fence(reached, takeover=False)
    return committer


FIRST = Owner("app", "origin", 1)


def test_lost_rows_are_named_and_the_commit_goes_on_when_they_are_back(sinks, kind):
    committer = fenced(sinks, kind, FIRST)
    prepared = sinks.write(kind, 1, "a")
    where = sinks.place / ("out" if kind == "files" else "ck/staged/out")
    (file,) = [path for path in where.iterdir() if path.is_file()]
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    with pytest.raises(StagedRowsLostError, match=file.name):
        committer.commit(TransactionAttempt(1, 0), prepared)
    file.unlink()
    with pytest.raises(StagedRowsLostError, match="is missing"):
        committer.commit(TransactionAttempt(1, 0), prepared)
    file.write_bytes(data)
    committer.commit(TransactionAttempt(1, 0), prepared)
    assert sinks.read(kind) == ["a"]


def test_what_nobody_named_is_swept_and_what_is_to_come_is_not(sinks, kind):
    committer = fenced(sinks, kind, FIRST)
    sinks.write(kind, 1, "lost", token="lost")
    committer.commit(TransactionAttempt(1, 0), sinks.write(kind, 1, "a"))
    coming = sinks.write(kind, 2, "b")
    committer.sweep(1)
    names = [str(path) for path in sinks.place.rglob("*") if path.is_file()]
    assert not [name for name in names if "lost" in name]
    committer.commit(TransactionAttempt(2, 0), coming)
    assert sinks.read(kind) == ["a", "b"]


@pytest.mark.parametrize("when", ["before the sweep", "while it lists"])
def test_who_lost_a_folder_sweeps_nothing_of_its_new_owner(sinks, monkeypatch, when):
    """The new owner counts its transactions and generations from 1: its files seem to be of old ones."""
    former = fenced(sinks, "files", Owner("app", "origin", 7), CheckpointPosition(99, 99))
    former.commit(TransactionAttempt(100, 0), sinks.write("files", 100, "a"))
    successor = sinks.committer("files", Owner("app", "copy", 1))
    coming = []

    def takes_over():
        successor.fence(START, takeover=True)
        coming.append(sinks.write("files", 1, "b"))

    if when == "before the sweep":
        takes_over()
    else:
        listed = FolderStorage.list

        def listing(storage, prefix="", after=""):
            if not prefix and not coming:  # the listing of all files begins
                takes_over()
            return listed(storage, prefix, after)

        monkeypatch.setattr(FolderStorage, "list", listing)
    former.sweep(100)
    successor.commit(TransactionAttempt(1, 0), *coming)
    assert sinks.read("files") == ["a", "b"]


@pytest.mark.daily(4)
@pytest.mark.slow
@pytest.mark.parametrize("commits", range(12))
def test_manifests_are_without_gaps_over_compactions_and_restarts(sinks, commits):
    words = []
    for txid in range(1, 25):
        committer = fenced(sinks, "files", Owner("app", "origin", txid), CheckpointPosition(txid - 1, txid - 1))
        words += [f"w{txid:02}"] if txid % 5 != commits % 5 else []
        named = sinks.write("files", txid, *words[-1:]) if txid % 5 != commits % 5 else {}
        committer.commit(TransactionAttempt(txid, 0), named)
        if txid % 7 == commits % 7:
            for path in (sinks.place / "out" / "_spark_metadata").iterdir():
                os.utime(path, (1, 1))  # else a reader may be at it
            committer.sweep(txid)
    assert sinks.read("files") == words


def test_a_manifest_that_has_gone_is_never_written_again(sinks):
    committer = fenced(sinks, "files", FIRST)
    committer.commit(TransactionAttempt(1, 0), sinks.write("files", 1, "a"))
    for path in (sinks.place / "out" / "_spark_metadata").iterdir():
        path.unlink()
    with pytest.raises(SinkMismatchError, match="_spark_metadata is gone"):
        committer.commit(TransactionAttempt(2, 0), {})


def test_a_folder_of_others_is_refused(sinks):
    (sinks.place / "out").mkdir()
    (sinks.place / "out" / "mine.txt").write_text("x")
    with pytest.raises(SinkMismatchError, match="is not empty"):
        fenced(sinks, "files", FIRST)


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_partitions_are_folders(sinks, format):
    sink = FileSink(sinks.place / "out", format, partitionBy="word", maxFileBytes=1)
    attempt = TransactionAttempt(1, 0)
    writer = sink.writer(WriterContext("out", 0, 1, attempt, "t", SCHEMA, sinks.storage))
    for number in range(2):
        writer.write(pa.RecordBatch.from_pydict({"word": ["a/b", None, "a/b"], "n": [number] * 3}, schema=SCHEMA))
    names = [each["name"].rpartition("/")[0] for each in writer.prepare(1)["files"]]
    assert sorted(names) == ["word=__HIVE_DEFAULT_PARTITION__"] * 2 + ["word=a%2Fb"] * 2


@pytest.fixture
def refusing(sinks):
    with closing(sqlite3.connect(sinks.place / "db")) as connection, connection:
        connection.execute("create table counts (word text not null, n integer check (n < 5))")
    return sinks


def test_a_row_that_the_database_refuses_is_named_and_nothing_is_written(refusing):
    sink = SqlSink(f"sqlite:///{refusing.place}/db", "counts")
    committer = sink.committer(CommitterContext("out", FIRST, SCHEMA, refusing.storage))
    committer.fence(START, takeover=False)
    prepared = refusing.write("sql", 1, "a") | {}
    with closing(sqlite3.connect(refusing.place / "db")) as connection, connection:
        connection.execute("create unique index one on counts (n)")
        connection.execute("insert into counts values ('there', 1)")
    with pytest.raises(SinkError, match=r"UNIQUE constraint failed: counts.n; the row is \{'word': 'a', 'n': 1\}"):
        committer.commit(TransactionAttempt(1, 0), prepared)
    assert refusing.read("sql") == ["there"]
    with closing(sqlite3.connect(refusing.place / "db")) as connection, connection:
        connection.execute("drop index one")
    committer.commit(TransactionAttempt(1, 0), prepared)
    assert refusing.read("sql") == ["a", "there"]


def test_rows_that_the_database_refuses_go_to_the_dead_letters_of_the_same_transaction(refusing):
    sink = SqlSink(f"sqlite:///{refusing.place}/db", "counts", deadLetter="dead")
    committer = sink.committer(CommitterContext("out", FIRST, SCHEMA, refusing.storage))
    committer.fence(START, takeover=False)
    writer = sink.writer(WriterContext("out", 0, 1, TransactionAttempt(1, 0), "t", SCHEMA, refusing.storage))
    writer.write(pa.RecordBatch.from_pydict({"word": ["a", "b", None], "n": [1, 9, 1]}, schema=SCHEMA))
    prepared = {0: writer.prepare(1)}
    for _ in range(2):
        committer.commit(TransactionAttempt(1, 0), prepared)
    assert refusing.read("sql") == ["a"]
    with closing(sqlite3.connect(refusing.place / "db")) as connection, connection:
        dead = connection.execute("select txid, content from dead order by content").fetchall()
    assert dead == [(1, '{"n":1}'), (1, '{"word":"b","n":9}')]


@pytest.mark.slow
def test_rows_are_tried_before_the_decision_if_that_is_asked_for(tmp_path):
    with closing(sqlite3.connect(tmp_path / "db")) as connection, connection:
        connection.execute("create table words (value text not null check (length(value) < 5))")
    sink = SqlSink(f"sqlite:///{tmp_path}/db", "words", validate=True)
    with TopologyTester(wired(tmp_path, sink).createTopology(), tmp_path / "ck") as tester:
        tester.send({"lines": [("one",), ("two",)]})
        with pytest.raises(BoltError, match=r"sink 's0', task 0, hook prepare, transaction 2: .* refuses a row: CHECK"):
            tester.send({"lines": [("three",)]})
    with closing(sqlite3.connect(tmp_path / "db")) as connection, connection:
        assert connection.execute("select value from words").fetchall() == [("one",), ("two",)]
    with TopologyTester(wired(tmp_path, sink).createTopology(), tmp_path / "ck") as tester:  # it was rolled back
        tester.send({"lines": [("four",)]})
        assert tester.txid == 2


NO_KEY = r"no primary key .* CREATE UNIQUE INDEX counts_key ON counts \(word\)"


@pytest.mark.parametrize(
    ("made", "key", "said"),
    [
        ("create table counts (word text)", (), "has no column 'n'"),
        ("create table counts (word text, n integer, more text not null)", (), "'more' must not be null"),
        ("create table counts (word text, n integer)", "word", NO_KEY),
        (
            "create table counts (word text, n integer); create unique index some on counts (word) where n > 9",
            "word",
            NO_KEY,
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_a_start(sinks, made, key, said):
    with closing(sqlite3.connect(sinks.place / "db")) as connection, connection:
        connection.executescript(made)
    sink = SqlSink(f"sqlite:///{sinks.place}/db", "counts", key)
    with pytest.raises(SinkError, match=said):
        sink.committer(CommitterContext("out", FIRST, SCHEMA, sinks.storage)).check(START, takeover=False)


def test_a_start_whose_table_can_not_be_made_is_refused_and_the_driver_that_runs_goes_on(tmp_path):
    def started(fields):
        builder = TopologyBuilder("wide")
        builder.setStream("lines", rows(", ".join(f"f{number} long" for number in range(fields))))
        builder.setSink("out", SqlSink(f"sqlite:///{tmp_path}/db", f"of{fields}")).shuffleGrouping("lines")
        return TopologyTester(builder.createTopology(), tmp_path / "ck")

    with started(2000) as tester:
        with pytest.raises(SinkError, match=r"'of2001' would have 2,001 columns, .* at most 2,000"):
            started(2001)
        tester.send({"lines": [tuple(range(2000))]})
        assert tester.txid == 1


@pytest.mark.parametrize(
    "made",
    [
        "create table COUNTS (word text unique on conflict  rollback, n integer)",
        "create table counts (word text, n integer not null On Conflict\nRollback)",
        """create table counts (word text, n integer);
        create trigger t before insert on counts begin select raise( rollback, 'no') where new.n < 0; end""",
        """create table counts (word text, n integer);
        create table other (n integer unique);
        create trigger t after insert on Counts begin insert or rollback into other values (new.n); end""",
    ],
)
def test_a_table_that_would_end_the_transaction_for_one_row_is_refused_before_a_start(sinks, made):
    """The sink would find itself outside of its transaction, at every try after the decision."""
    with closing(sqlite3.connect(sinks.place / "db")) as connection, connection:
        connection.executescript(made)
    sink = SqlSink(f"sqlite:///{sinks.place}/db", "counts", deadLetter="refused")
    with pytest.raises(SinkError, match=r"(?is)(table|trigger) '\w+' has .*rollback, .*write ABORT in place"):
        sink.committer(CommitterContext("out", FIRST, SCHEMA, sinks.storage)).check(START, takeover=False)


class Pass(BasicBolt):
    outputFields = "value string"

    def execute(self, tup, collector):
        collector.emit((tup.value,))


def wired(place, *sinks):
    builder = TopologyBuilder("t")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("pass", Pass()).shuffleGrouping("lines")
    for number, sink in enumerate(sinks):
        builder.setSink(f"s{number}", sink).shuffleGrouping("pass")
    return builder


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda place: wired(place, FileSink), TopologyError, "is the class FileSink; pass an object"),
        (lambda place: wired(place, Pass()), TopologyError, "not a Sink"),
        (lambda place: wired(place, FileSink("s3://x")), ConfigError, "a folder's path"),
        (lambda place: wired(place, FileSink(place, "xml")), ConfigError, "no format 'xml'"),
        (lambda place: wired(place, FileSink(place), FileSink(place)).createTopology(), TopologyError, "both write to"),
        (
            lambda place: wired(place, FileSink(place, partitionBy="day")).createTopology(),
            TopologyError,
            "partitioned by 'day'; its rows have value",
        ),
        (
            lambda place: wired(place, SqlSink("sqlite:///x", "t", key="id")).createTopology(),
            TopologyError,
            "SqlSink's key is 'id'",
        ),
        (lambda place: wired(place, SqlSink("not a url", "t")), ConfigError, "SqlSink"),
        (lambda place: wired(place, SqlSink("mysql://h/d", "t", key="id")), ConfigError, "leave out the key"),
    ],
)
def test_mistakes_are_named_before_anything_is_started(tmp_path, make, error, said):
    with pytest.raises(error, match=said):
        make(tmp_path)


def test_two_inputs_of_a_sink_have_the_same_fields(tmp_path):
    builder = wired(tmp_path)
    builder.setBolt("count", Count()).fieldsGrouping("lines", "value")
    builder.setSink("out", FileSink(tmp_path / "out")).shuffleGrouping("pass").shuffleGrouping("count")
    with pytest.raises(TopologyError, match="the rows of a sink have the same fields"):
        builder.createTopology()
    builder = wired(tmp_path)
    builder.setStream("sure", rows("value string not null"))
    builder.setSink("out", FileSink(tmp_path / "out")).shuffleGrouping("pass").shuffleGrouping("sure")
    with pytest.raises(TopologyError, match=r"'pass' \(value string\) and 'sure' \(value string NOT NULL\)"):
        builder.createTopology()


def test_nobody_reads_from_a_sink(tmp_path):
    builder = wired(tmp_path, CollectSink())
    builder.setBolt("more", Pass()).shuffleGrouping("s0")
    with pytest.raises(TopologyError, match="it emits nothing"):
        builder.createTopology()


def test_the_console_shows_a_table(tmp_path, capsys):
    with TopologyTester(wired(tmp_path, ConsoleSink(2)).createTopology(), tmp_path / "ck") as tester:
        tester.send({"lines": [("one",), ("two",), ("x" * 60,)]})
    lines = capsys.readouterr().out.splitlines()
    assert lines[:6] == ["transaction 1: 3 rows", "value", "-----", "one  ", "two  ", "... and 1 more"]


class Forgetful(StagedSink):
    target = "nowhere"

    def connect(self, schema): ...


def test_a_sink_of_a_user_that_connects_to_nothing_is_told(tmp_path):
    builder = TopologyBuilder("writes")
    builder.setStream("rows", rows("word string"))
    builder.setSink("out", Forgetful()).shuffleGrouping("rows")
    with pytest.raises(SinkError, match=r"connect\(\) of the sink to nowhere returned None: return what rows"):
        TopologyTester(builder.createTopology(), tmp_path / "ck")
