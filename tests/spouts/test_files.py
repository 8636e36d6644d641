"""FilePartitionedSpout: every row of every file once, whatever the format and however the file is parted."""

import json
import os

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from statefx import StatefulBolt, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.connectors.files import FilePartitionedSpout
from statefx.errors import BoltError, InputError, StatefxError, TopologyError
from statefx.testing import TopologyTester

SCHEMA = pa.schema({"name": pa.string(), "number": pa.int64()})
DDL = "name string, number long"


def rows(first, count=40):
    return [{"name": f"n{number} ä", "number": number} for number in range(first, first + count)]


def write(path, form, data):
    table = pa.Table.from_pylist(data, schema=SCHEMA)
    if form == "parquet":
        pq.write_table(table, path, row_group_size=7)
    elif form == "arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            writer.write_table(table, max_chunksize=7)
    elif form == "csv":
        pa.csv.write_csv(table, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in data))


class Count(StatefulBolt):
    def initState(self, state):
        self.counts = state

    def execute(self, tup, collector):
        self.counts[tuple(tup)] = self.counts.get(tuple(tup), 0) + 1


def topology(spout, count=None):
    builder = TopologyBuilder("files")
    builder.setSpout("files", spout, parallelism=2)
    key = "number" if "number" in str(spout.outputFields) else "value"
    builder.setBolt("count", count or Count(), parallelism=2).fieldsGrouping("files", key)
    return builder.createTopology()


class Writes(Count):
    """With each row, somebody writes: what `does` is, since a bolt that is sent has no folder."""

    does = staticmethod(lambda tup: None)

    def execute(self, tup, collector):
        Writes.does(tup)
        super().execute(tup, collector)


@pytest.mark.parametrize("growing", [False, True])
def test_available_now_reads_what_was_there_when_it_began(folder, growing, tmp_path, monkeypatch):
    """Who writes all the time would else keep it from ending."""
    (folder / "a").write_text("one\ntwo\n")

    def write(tup):
        if tup.value in ("one", "two"):
            with (folder / ("a" if growing else f"a-{tup.value}")).open("a") as more:
                more.write("later\n")
            (folder / f"b-{tup.value}").write_text("elsewhere\n")

    monkeypatch.setattr(Writes, "does", staticmethod(write))
    reads = FilePartitionedSpout(folder, "text", growing=growing, maxBytesPerFile=10)
    with TopologyTester(topology(reads, Writes()), tmp_path / "ck", freshObjects=False) as tester:
        assert tester.drain() == 1
        assert {value: count for (value,), count in tester.state("count").items()} == {"one": 1, "two": 1}
        tester.drain()
        found = {value: count for (value,), count in tester.state("count").items()}
        assert found == {"one": 1, "two": 1, "later": 2, "elsewhere": 2}


def expected(*firsts):
    return {(row["name"], row["number"]): 1 for first in firsts for row in rows(first)}


@pytest.mark.slow
def test_a_transaction_reads_no_more_files_than_it_may(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(5):
        write(folder / str(number), "csv", rows(100 * number))
    spout = FilePartitionedSpout(folder, "csv", DDL, maxFiles=2)
    with TopologyTester(topology(spout), tmp_path / "ck") as tester:
        assert [tester.emit().progress.input_rows for _ in range(3)] == [80, 80, 40]
        assert tester.state("count") == expected(*range(0, 500, 100))
    for wrong in ({"maxFiles": 0}, {"maxFiles": 2, "growing": True}):
        with pytest.raises(TopologyError, match=f"maxFiles={wrong['maxFiles']}: it is 1 or more, and not for files"):
            FilePartitionedSpout(folder, "csv", DDL, **wrong)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "arrow", "csv", "json"])
@pytest.mark.parametrize("most", [200, 64 << 20])
def test_every_row_once_in_each_format_and_new_files_as_they_come(form, most, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "_part").write_text("what is written at the moment")
    write(folder / "b", form, rows(0))
    write(folder / "c", form, rows(100))
    write(folder / "d", form, [])
    spout = FilePartitionedSpout(folder, form, DDL, maxBytesPerFile=most)
    with TopologyTester(topology(spout), tmp_path / "ck") as tester:
        sent = tester.drain()
        assert sent == 1 if most > 1000 else sent > 1
        assert tester.state("count") == expected(0, 100)
        write(folder / "a", form, rows(200))  # before the others by its name: partitions keep their numbers
        tester.drain()
        assert tester.state("count") == expected(0, 100, 200)
    with tester.restart() as other:
        write(folder / "aa", form, rows(300))
        (folder / "b").unlink()
        other.drain()
        assert other.state("count") == expected(0, 100, 200, 300)


def test_the_fields_are_those_of_the_first_file(tmp_path):
    write(tmp_path / "a", "parquet", rows(0))
    assert FilePartitionedSpout(tmp_path).schema == SCHEMA
    (tmp_path / "none").mkdir()
    for arguments, words in [
        ((tmp_path / "none",), "has no parquet file"),
        ((tmp_path, "csv"), "schema="),
        ((tmp_path, "orc"), "no format 'orc'"),
    ]:
        with pytest.raises(TopologyError, match=words):
            FilePartitionedSpout(*arguments)
    with pytest.raises(TopologyError, match="can't grow"):
        FilePartitionedSpout(tmp_path, growing=True)


def test_a_log_that_grows_is_read_line_by_line(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    log = folder / "log"
    log.write_text("to be\nor n")
    spout = FilePartitionedSpout(folder, "text", growing=True)
    with TopologyTester(topology(spout), tmp_path / "ck") as tester:
        tester.drain()
        assert tester.state("count") == {("to be",): 1}
        assert tester.emit() is None, "half a line is none"
        with log.open("a") as more:
            more.write("ot\nto be\n")
        tester.drain()
        assert tester.state("count") == {("to be",): 2, ("or not",): 1}


@pytest.mark.slow
@pytest.mark.parametrize("change", ["cut", "longer", "replaced", "deleted"])
def test_a_file_that_is_changed_in_the_middle_is_noticed(change, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    file = folder / "a"
    write(file, "json", rows(0))
    spout = FilePartitionedSpout(folder, "json", DDL, maxBytesPerFile=300)
    with TopologyTester(topology(spout), tmp_path / "ck") as tester:
        tester.emit()
        text, said = file.read_text(), file.stat()
        if change == "deleted":
            file.unlink()
        else:
            changed = {"cut": text[:100], "longer": text + text, "replaced": text.replace("n", "m")}
            file.write_text(changed[change])
            os.utime(file, ns=(said.st_atime_ns, said.st_mtime_ns + 1))  # a clock's tick is longer than this test
        words = {"cut": "shorter", "longer": "has grown", "replaced": "newer than", "deleted": "was deleted"}
        with pytest.raises(InputError, match=words[change]):
            tester.emit()
        file.write_text(text)
        os.utime(file, ns=(said.st_atime_ns, said.st_mtime_ns))
        with tester.restart() as other:
            other.drain()
            assert other.state("count") == expected(0)


def test_rows_that_do_not_fit_are_told_with_file_and_place(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a").write_text('{"name": "x", "number": "no number"}\n')
    spout = FilePartitionedSpout(folder, "json", DDL)
    with (
        TopologyTester(topology(spout), tmp_path / "ck") as tester,
        pytest.raises(BoltError, match=r"in/a is no json file of these fields, in the line at byte 0: Expected `int"),
    ):
        tester.emit()


def test_a_line_longer_than_a_batch_is_told(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a").write_text("x" * 100 + "\ny\n")
    spout = FilePartitionedSpout(folder, "text", maxBytesPerFile=50)
    with (
        TopologyTester(topology(spout), tmp_path / "ck") as tester,
        pytest.raises(StatefxError, match="set maxBytesPerFile higher"),
    ):
        tester.emit()


def test_rows_of_the_program(tmp_path):
    spout = MemoryTransactionalSpout([[("to",), ("be",)], [("or",)]], "value string", takePerBatch=1)
    with TopologyTester(topology(spout), tmp_path / "ck") as tester:
        assert tester.drain() == 2
        assert tester.state("count") == {("to",): 1, ("be",): 1, ("or",): 1}
    with pytest.raises(TopologyError, match="list of tuples"):
        MemoryTransactionalSpout([["to"]], "value string")
    with pytest.raises(TopologyError, match="from 1"):
        MemoryTransactionalSpout([], "value string", takePerBatch=0)


def counts(folder, tmp_path, form="csv", **options):
    with TopologyTester(topology(FilePartitionedSpout(folder, form, DDL, **options)), tmp_path / "ck") as tester:
        tester.drain()
        return tester.state("count")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.mark.parametrize("name", ["_spark_metadata", "_statefx"])
def test_the_folder_of_a_sink_is_refused_when_it_is_named_and_when_it_is_opened(name, folder, tmp_path):
    spout = FilePartitionedSpout(folder, "json", DDL)
    (folder / name).mkdir()
    with pytest.raises(TopologyError, match="readCommitted"):
        FilePartitionedSpout(folder, "json", DDL)
    with pytest.raises(StatefxError, match="readCommitted"), TopologyTester(topology(spout), tmp_path / "ck") as tester:
        tester.drain()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_csv_of_any_line_end_and_texts_that_look_like_null(end, folder, tmp_path):
    lines = ["name,number", "NA,1", '"null",2', '"",3', ",4", "nan,5"]
    (folder / "a").write_bytes("".join(line + end for line in lines).encode())
    found = {("NA", 1): 1, ("null", 2): 1, ("", 3): 1, (None, 4): 1, ("nan", 5): 1}
    assert counts(folder, tmp_path) == found


@pytest.mark.slow
@pytest.mark.parametrize("most", [30, 64 << 20])
def test_csv_with_quoted_line_feeds_wherever_a_range_ends(most, folder, tmp_path):
    size = 3 if most < 100 else 400_000  # in one range: longer than a block of pyarrow
    names = [f"{number}\n" * size for number in range(6)]
    (folder / "a").write_text("".join(f'"{name}",{number}\n' for number, name in enumerate(names)))
    found = {(name, number): 1 for number, name in enumerate(names)}
    assert counts(folder, tmp_path, header=False, maxBytesPerFile=most) == found


def test_a_long_line_of_json(folder, tmp_path):
    (folder / "a").write_text(json.dumps({"name": "x" * 2_500_000, "number": 1}) + "\n")
    assert counts(folder, tmp_path, "json") == {("x" * 2_500_000, 1): 1}


def test_an_empty_file_and_a_log_that_was_read_may_be_deleted(folder, tmp_path):
    (folder / "a").write_text("to be\n")
    (folder / "b").touch()
    with TopologyTester(topology(FilePartitionedSpout(folder, "text", growing=True)), tmp_path / "ck") as tester:
        tester.drain()
        (folder / "a").unlink()
        (folder / "b").unlink()
        tester.drain()
        (folder / "c").write_text("or\n")
        tester.drain()
        assert tester.state("count") == {("to be",): 1, ("or",): 1}
