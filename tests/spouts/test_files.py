"""FilePartitionedSpout: every row of every file once, whatever the format and however the file is parted."""

import json

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from statefx import StatefulBolt, TopologyBuilder
from statefx.errors import BoltError, InputError, StatefxError, TopologyError
from statefx.spouts import FilePartitionedSpout, MemoryTransactionalSpout
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


def topology(spout):
    builder = TopologyBuilder("files")
    builder.setSpout("files", spout, parallelism=2)
    key = "number" if "number" in str(spout.outputFields) else "value"
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("files", key)
    return builder.createTopology()


def expected(*firsts):
    return {(row["name"], row["number"]): 1 for first in firsts for row in rows(first)}


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


@pytest.mark.parametrize("change", ["cut", "longer", "deleted"])
def test_a_file_that_is_changed_in_the_middle_is_noticed(change, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    file = folder / "a"
    write(file, "json", rows(0))
    spout = FilePartitionedSpout(folder, "json", DDL, maxBytesPerFile=300)
    with TopologyTester(topology(spout), tmp_path / "ck") as tester:
        tester.emit()
        text = file.read_text()
        if change == "deleted":
            file.unlink()
        else:
            file.write_text(text[:100] if change == "cut" else text + text)
        with pytest.raises(
            InputError, match={"cut": "shorter", "longer": "has grown", "deleted": "was deleted"}[change]
        ):
            tester.emit()
        file.write_text(text)
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
        pytest.raises(BoltError, match=r"in/a is no json file of these fields, from 0 to"),
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
