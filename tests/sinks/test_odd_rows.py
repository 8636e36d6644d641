"""Rows, names and starts that are unusual: partitions of every type, many files, no rows, one place with two names."""

import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statefx import TopologyBuilder
from statefx.connectors import CollectSink
from statefx.connectors.files import FileSink, committedFiles
from statefx.connectors.files.sink import Parquet
from statefx.connectors.sql import SqlSink
from statefx.errors import SinkError, SinkOwnedError, TopologyError
from statefx.operators.sinks import CheckpointPosition, CommitterContext, Owner, WriterContext
from statefx.protocol.identity import TransactionAttempt
from statefx.storage import FolderStorage
from statefx.testing import TopologyTester, rows

SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64())])
FIRST = Owner("app", "origin", 1)
START = CheckpointPosition(0, 0)

VALUES = {
    pa.string(): (["a/b", "a%2Fb", "x y", "..", "ü=?#", None, "100%", 'q"'], 8),
    pa.bool_(): ([True, False, None], 3),
    pa.int8(): ([1, -1, None], 3),
    pa.int64(): ([2**62, -1], 2),
    pa.float64(): ([1.0, 1.5, float("nan"), float("inf"), None], 5),
    pa.decimal128(10, 2): ([Decimal("1.10"), Decimal("-2.00"), None], 3),
    pa.date32(): ([date(2020, 1, 1), None], 2),
    pa.timestamp("us"): ([datetime(2020, 1, 1, 1, 2, 3, 4), None], 2),
    pa.timestamp("us", "UTC"): ([datetime(2020, 1, 1, tzinfo=UTC), None], 2),
}


def writer(sink, place, schema=SCHEMA, token="t", txid=1):
    storage = FolderStorage(place / "ck")
    return sink.writer(WriterContext("out", 0, 1, TransactionAttempt(txid, 0), token, schema, storage))


def committer(sink, place, owner=FIRST, schema=SCHEMA):
    return sink.committer(CommitterContext("out", owner, schema, FolderStorage(place / "ck")))


def batch(*words):
    return pa.RecordBatch.from_pydict({"word": words, "n": range(len(words))}, schema=SCHEMA)


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_every_value_has_a_folder_of_its_own_and_every_row_is_in_one(tmp_path, kind):
    values, folders = VALUES[kind]
    schema = pa.schema([("part", kind), ("n", pa.int64())])
    sink = FileSink(tmp_path / "out", partitionBy="part")
    sink.check_schema(schema)
    writing, publishing = writer(sink, tmp_path, schema), committer(sink, tmp_path, schema=schema)
    publishing.fence(START, takeover=False)
    for _ in range(2):
        writing.write(pa.RecordBatch.from_pydict({"part": values, "n": range(len(values))}, schema=schema))
    publishing.commit(TransactionAttempt(1, 0), {0: writing.prepare(1)})
    files = committedFiles(tmp_path / "out")
    assert len({file.rpartition("/")[0] for file in files}) == len(files) == folders
    read = [n for file in files for n in pq.ParquetFile(file).read()["n"].to_pylist()]
    assert sorted(read) == sorted([*range(len(values))] * 2)


@pytest.mark.parametrize("kind", [pa.binary(), pa.list_(pa.int64())], ids=str)
def test_a_type_that_is_no_text_can_not_be_a_folder(tmp_path, kind):
    with pytest.raises(TopologyError, match="can't be partitioned by 'part'"):
        FileSink(tmp_path, partitionBy="part").check_schema(pa.schema([("part", kind), ("n", pa.int64())]))


@pytest.mark.parametrize("text", ["", "__HIVE_DEFAULT_PARTITION__"])
def test_a_text_whose_folder_is_that_of_null_is_refused_before_the_decision(tmp_path, text):
    with pytest.raises(SinkError, match=f"partitioned by 'word'.*folder of '{text}' for that of null"):
        writer(FileSink(tmp_path / "out", partitionBy="word"), tmp_path).write(batch("a", None, text))


@pytest.mark.parametrize("options", [{}, {"partitionBy": "word"}], ids=str)
def test_a_null_alone_in_its_row_is_no_line_of_csv(tmp_path, options):
    """Readers pass over empty lines: of three rows they would read two."""
    schema = pa.schema([field for field in SCHEMA if field.name == "n" or options])
    writing = writer(FileSink(tmp_path / "out", "csv", **options), tmp_path, schema)
    with pytest.raises(SinkError, match=r"has one field, 'n', and it is null: .*Write Parquet or JSON"):
        writing.write(pa.RecordBatch.from_pylist([{"word": "a", "n": n} for n in (1, None, 3)], schema))


def test_a_text_that_spark_would_take_for_null_is_no_value_of_csv(tmp_path):
    with pytest.raises(SinkError, match=r"'word' is .*null', which Spark would read as null"):
        writer(FileSink(tmp_path / "out", "csv"), tmp_path).write(batch("a", "\0null"))


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("a", pa.int64()), ("A", pa.int64())]),
        pa.schema([("x", pa.map_(pa.string(), pa.list_(pa.struct([("a", pa.int64()), ("A", pa.int64())]))))]),
    ],
    ids=["fields", "inside"],
)
def test_names_that_spark_takes_for_one_are_refused(tmp_path, schema):
    with pytest.raises(TopologyError, match="the fields 'a' and 'A', which Spark takes for one"):
        FileSink(tmp_path).check_schema(schema)


@pytest.mark.slow
def test_a_value_too_long_for_a_folder_is_named(tmp_path):
    with pytest.raises(SinkError, match=r"partitioned by 'word'.* has 10000005"):
        writer(FileSink(tmp_path / "out", partitionBy="word"), tmp_path).write(batch("x" * 10_000_000))


def unfit(parquet, file, schema, held_bytes_max):
    raise ValueError("no such format")


def test_a_file_that_can_not_be_begun_is_not_left_behind(tmp_path, monkeypatch):
    sink = FileSink(tmp_path / "out")
    monkeypatch.setattr(Parquet, "__init__", unfit)
    with pytest.raises(ValueError, match="no such format") as caught:  # and so the open file, which would end with it
        writer(sink, tmp_path).write(batch("a"))
    assert caught.traceback
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_values_of_ten_megabytes_and_batches_without_rows(tmp_path, format):
    sink = FileSink(tmp_path / "out", format)
    publishing = committer(sink, tmp_path)
    publishing.fence(START, takeover=False)
    writing = writer(sink, tmp_path)
    writing.write(batch())
    assert writing.prepare(1) is None
    publishing.commit(TransactionAttempt(1, 0), {})
    assert committedFiles(tmp_path / "out") == []
    writing = writer(sink, tmp_path, txid=2)
    writing.write(batch("x" * 10_000_000))
    publishing.commit(TransactionAttempt(2, 0), {0: writing.prepare(2)})
    assert len(committedFiles(tmp_path / "out")) == 1


@pytest.mark.slow
def test_a_list_of_many_files_is_a_file_and_is_swept_when_they_are_published(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # of a thousand files, which takes 10 s
    sink = FileSink(tmp_path / "out", maxFileBytes=1)
    publishing = committer(sink, tmp_path)
    publishing.fence(START, takeover=False)
    writing, dropped = writer(sink, tmp_path), writer(sink, tmp_path, token="dropped")
    for each in (writing, dropped):
        for _ in range(700):
            each.write(batch("a"))
    named, _ = writing.prepare(1), dropped.prepare(1)
    lists = tmp_path / "out" / "_statefx" / "lists"
    assert len(list(lists.iterdir())) == 2
    dropped.abort()
    publishing.sweep(0)
    assert len(list(lists.iterdir())) == 1
    publishing.commit(TransactionAttempt(1, 0), {0: named})
    assert len(committedFiles(tmp_path / "out")) == 700
    publishing.sweep(1)
    assert list(lists.iterdir()) == []
    assert len(list((tmp_path / "out").glob("part-*"))) == 700


def test_takeover_left_in_a_program_doubles_no_row_of_a_table(tmp_path):
    sink = SqlSink(f"sqlite:///{tmp_path}/db", "words")
    writing = writer(sink, tmp_path)
    writing.write(batch("a", "b"))
    prepared = {0: writing.prepare(1)}
    for generation in (1, 2):  # the first one crashed between the rows and COMMITTED
        publishing = committer(sink, tmp_path, Owner("app", "origin", generation))
        publishing.fence(CheckpointPosition(0, generation - 1), takeover=True)
        publishing.commit(TransactionAttempt(1, 0), prepared)
    with closing(sqlite3.connect(tmp_path / "db")) as connection, connection:
        assert connection.execute("select count(*) from words").fetchone() == (2,)


def test_a_start_that_a_zombie_s_commit_overtakes_begins_after_it(tmp_path):
    sink = SqlSink(f"sqlite:///{tmp_path}/db", "words")
    zombie = committer(sink, tmp_path)
    zombie.fence(START, takeover=False)
    writing = writer(sink, tmp_path)
    writing.write(batch("a"))
    prepared = {0: writing.prepare(1)}
    newer = committer(sink, tmp_path, Owner("app", "origin", 2))
    newer._target = target = sink.connect(SCHEMA)
    looked = target.marker

    def overtaken():
        found = looked()
        zombie.commit(TransactionAttempt(1, 0), prepared)
        return found

    target.marker = overtaken
    newer.fence(CheckpointPosition(0, 1), takeover=False)
    newer.commit(TransactionAttempt(1, 0), prepared)
    with closing(sqlite3.connect(tmp_path / "db")) as connection, connection:
        assert connection.execute("select word from words").fetchall() == [("a",)]


def test_one_place_with_two_names_is_refused_at_the_start(tmp_path):
    collected = CollectSink()
    (tmp_path / "link").symlink_to(tmp_path)
    for first, second in [
        (SqlSink(f"sqlite:///{tmp_path}/db", "t"), SqlSink(f"sqlite:///{tmp_path}/link/db", "t")),
        (collected, collected),
    ]:
        builder = TopologyBuilder("t")
        builder.setStream("lines", rows("word string"))
        builder.setSink("a", first).shuffleGrouping("lines")
        builder.setSink("b", second).shuffleGrouping("lines")
        topology = builder.createTopology()
        with pytest.raises(SinkOwnedError, match="another sink of this topology"):
            TopologyTester(topology, tmp_path / "ck" / type(first).__name__)


def test_a_null_in_a_key_is_refused_and_not_numbered(tmp_path):
    schema = pa.schema([("id", pa.int32()), ("n", pa.int64())])
    sink = SqlSink(f"sqlite:///{tmp_path}/db", "t", key="id", deadLetter="refused")
    publishing = committer(sink, tmp_path, schema=schema)
    publishing.fence(START, takeover=False)
    writing = writer(sink, tmp_path, schema)
    writing.write(pa.RecordBatch.from_pydict({"id": [1, None], "n": [1, 2]}, schema=schema))
    prepared = {0: writing.prepare(1)}
    publishing.commit(TransactionAttempt(1, 0), prepared)
    publishing.close()
    with closing(sqlite3.connect(tmp_path / "db")) as database:
        assert database.execute("select id, n from t").fetchall() == [(1, 1)]
        assert database.execute("select reason from refused").fetchall() == [("NOT NULL constraint failed: t.id",)]
