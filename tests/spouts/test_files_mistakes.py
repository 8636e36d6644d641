"""What is wrong with a folder, a file or an argument is told with its remedy, before rows are lost or mixed up."""

import gzip
import math
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statefx.connectors import MemoryTransactionalSpout
from statefx.connectors.files import FilePartitionedSpout
from statefx.connectors.files.readers import Range, read
from statefx.errors import InputError, StatefxError, TopologyError
from statefx.operators.schema import parse_schema
from statefx.testing import TopologyTester
from tests.spouts.test_files import topology

TEXTS = "a string, value string"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def counts(folder, tmp_path, form, schema=None, **options):
    spout = FilePartitionedSpout(folder, form, schema, **options)
    with TopologyTester(topology(spout), tmp_path / "ck") as tester:
        tester.drain()
        return tester.state("count")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("s3://b/x", "no URLs.*setStream"),
        (Path("s3://b/x"), "no URLs.*setStream"),
        ("dbfs:/x", "no URLs.*setStream"),
        ("file://host/d", "no URLs.*setStream"),
        ("", "it is a folder"),
        (None, "it is a folder"),
    ],
)
def test_a_path_that_is_no_folder_is_refused(path, words):
    with pytest.raises(TopologyError, match=words):
        FilePartitionedSpout(path, "text")


def test_a_plain_file_is_refused_and_a_url_of_a_folder_is_its_path(folder):
    (folder / "a b").touch()
    with pytest.raises(TopologyError, match=r"a b is no folder.*Put the file into a folder"):
        FilePartitionedSpout(folder / "a b", "text")
    assert FilePartitionedSpout(f"file://{folder}", "text").path == str(folder)
    assert FilePartitionedSpout(f"file:{folder}/a%20c", "text").path == str(folder / "a c")
    (folder / "[x]").mkdir()
    assert FilePartitionedSpout(folder / "[x]", "text").path == str(folder / "[x]")


def test_a_folder_that_is_not_there_is_refused_when_the_topology_starts(tmp_path):
    with pytest.raises(TopologyError, match=r"nope has no parquet file.*schema="):
        FilePartitionedSpout(tmp_path / "nope")
    spout = FilePartitionedSpout(tmp_path / "nope", "text")
    with (
        pytest.raises(InputError, match=re.escape(f"{tmp_path}/nope is not there")),
        TopologyTester(topology(spout), tmp_path / "ck") as tester,
    ):
        tester.emit()


@pytest.mark.parametrize("most", [12, 64 << 20])
def test_columns_are_taken_by_the_names_in_the_header_of_each_file(most, folder, tmp_path):
    (folder / "1").write_text("a,value\nx,y\nx,y\n")
    (folder / "2").write_text("\ufeffvalue, A,more,more\ny,x,1,1\ny,x,1,1\n")
    assert counts(folder, tmp_path, "csv", TEXTS, maxBytesPerFile=max(most, 32)) == {("x", "y"): 4}


def test_a_header_of_several_lines_is_a_header(folder, tmp_path):
    (folder / "1").write_text('\ufeff\n"more\nnames",value,a\n1,y,x\n')
    (folder / "2").write_text("\n")
    assert counts(folder, tmp_path, "csv", TEXTS) == {("x", "y"): 1}


@pytest.mark.parametrize(
    ("header", "row"), [('" a ", VALUE', "x,y"), ('" a ",value,a', "x,y,z"), ('value," a "', "y,x"), ("A,value", "x,y")]
)
def test_blanks_around_a_name_in_a_header_count_only_where_they_tell_names_apart(header, row, folder):
    (folder / "1").write_text(f"{header}\n{row}\n")
    schema = parse_schema("` a ` string, value string")
    [batch] = read("csv", schema, True, Range(str(folder / "1"), 0, (folder / "1").stat().st_size))
    assert batch.to_pylist() == [{" a ": "x", "value": "y"}]


def test_json_of_too_many_arrays_in_each_other_is_told_with_file_and_place(folder, tmp_path):
    (folder / "1").write_text('{"value": "a"}\n{"more": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    with pytest.raises(StatefxError, match=r"in/1 is no json file.*in the line at byte 15.*too many within each other"):
        counts(folder, tmp_path, "json", "value string")


@pytest.mark.parametrize(
    ("header", "words"), [("a,b", "no field 'value'.*'a', 'b'"), ("a,value,value", "more than one field 'value'")]
)
def test_a_header_without_a_field_is_refused(header, words, folder, tmp_path):
    (folder / "1").write_text(f"{header}\nx,y\n")
    with pytest.raises(StatefxError, match=rf"in/1 has {words}.*header=False"):
        counts(folder, tmp_path, "csv", TEXTS)


def write(path, columns, **options):
    pq.write_table(pa.table(columns), path, **options)


def test_the_types_of_other_writers_are_read(folder, tmp_path):
    moment = datetime(2020, 1, 2, 3, 4, 5, 6)  # without a zone: Parquet has such times
    columns = {
        "value": pa.array(["x"], pa.large_string()),
        "kind": pa.array(["y"]).dictionary_encode(),
        "ns": pa.array([moment], pa.timestamp("ns")),
        "ms": pa.array([moment.replace(microsecond=0)], pa.timestamp("ms", "Europe/Berlin")),
        "byte": pa.array([255], pa.uint8()),
        "long": pa.array([2**64 - 1], pa.uint64()),
        "inside": pa.array([[{"a": "z"}]], pa.large_list(pa.struct({"a": pa.large_string()}))),
    }
    write(folder / "1", columns)
    spout = FilePartitionedSpout(folder)
    assert spout.outputFields == (
        "value string, kind string, ns timestamp_ntz, ms timestamp, byte smallint, long decimal(20,0), "
        "inside array<struct<a: string>>"
    )
    part = Range(str(folder / "1"), 0, 1)
    [row] = [row for batch in read("parquet", spout.schema, False, part) for row in batch.to_pylist()]
    zoned = moment.replace(microsecond=0, tzinfo=UTC)
    assert row == {
        "value": "x", "kind": "y", "ns": moment, "ms": zoned, "byte": 255, "long": Decimal(2**64 - 1),
        "inside": [{"a": "z"}],
    }  # fmt: skip


def test_the_moments_of_sparks_older_default_are_read(folder, tmp_path):
    late = datetime(9999, 12, 31, tzinfo=UTC)  # in nanoseconds it is another one
    write(folder / "1", {"value": pa.array([late], pa.timestamp("us", "UTC"))}, use_deprecated_int96_timestamps=True)
    assert FilePartitionedSpout(folder).outputFields == "value timestamp"
    assert list(counts(folder, tmp_path, "parquet")) == [(late,)]


def test_a_type_without_a_counterpart_names_file_field_and_remedy(folder, tmp_path):
    write(folder / "1", {"value": pa.array([1], pa.time64("us"))})
    with pytest.raises(TopologyError, match=r"in/1, field 'value': the Arrow type time64.*schema='value string"):
        FilePartitionedSpout(folder)
    assert counts(folder, tmp_path, "parquet", "value string") == {("00:00:00.000001",): 1}


@pytest.mark.parametrize(
    ("column", "ddl"),
    [
        (pa.array([[datetime(2026, 1, 1, 5)]], pa.list_(pa.timestamp("us"))), "array<date>"),
        (
            pa.array([[datetime(2026, 1, 1, 5, tzinfo=UTC)]], pa.list_(pa.timestamp("us", "UTC"))),
            "array<timestamp_ntz>",
        ),
        (pa.array([datetime(2026, 1, 1, 5, tzinfo=UTC)], pa.timestamp("us", "UTC")), "timestamp_ntz"),
        (pa.array([datetime(2026, 1, 1, 5)], pa.timestamp("us")), "date"),
        (pa.array(["05"]), "int"),
        (pa.array([1e300]), "float"),
        (pa.array([2**53 + 1]), "double"),
        (pa.array([1.5]), "int"),
    ],
)
def test_a_value_that_a_field_can_not_hold_is_named_also_inside_of_others(folder, column, ddl):
    write(folder / "1", {"value": column})
    schema = parse_schema(f"value {ddl}")
    with pytest.raises(InputError, match=r"in/1: field 'value' is .*, and has values that .* does not have"):
        list(read("parquet", schema, False, Range(str(folder / "1"), 0, 1)))


@pytest.mark.parametrize(
    ("column", "ddl"),
    [
        (pa.array([math.nan, 1.5], pa.float32()), "double"),
        (pa.array([math.nan, -math.inf]), "float"),
        (pa.array([math.nan, 0.5]), "double"),
        (pa.array([1.0, None]), "int"),
        (pa.array([[1.5], None]), "array<float>"),
    ],
)
def test_a_column_of_another_type_is_read_if_each_value_is_the_same(folder, column, ddl):
    write(folder / "1", {"value": column})
    part = Range(str(folder / "1"), 0, 1)
    [batch] = read("parquet", parse_schema(f"value {ddl}"), False, part)
    assert str(batch.column(0).to_pylist()) in (str(column.to_pylist()), "[1, None]")


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("data", [b"", b"garbage of some length, which is no file", b"PAR1" + b"x" * 40 + b"PAR1"])
def test_a_file_of_garbage_is_named(form, data, folder, tmp_path):
    (folder / "bad").write_bytes(data)
    with pytest.raises(InputError, match=rf"in/bad is no {form} file.*take it out of the folder"):
        FilePartitionedSpout(folder, form)
    with pytest.raises(InputError, match=rf"in/bad is no {form} file.*take it out of the folder"):
        counts(folder, tmp_path, form, "value string")


def test_a_stream_of_arrow_is_named(folder):
    table = pa.table({"value": ["x"]})
    with pa.OSFile(str(folder / "bad"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(InputError, match=r"in/bad is no arrow file.*new_file"):
        FilePartitionedSpout(folder, "arrow")


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_field_that_a_later_file_lacks_is_named(form, folder, tmp_path):
    for name, columns in {"1": {"value": ["x"], "b": ["y"]}, "2": {"value": ["x"], "c": ["y"]}}.items():
        table = pa.table(columns)
        if form == "parquet":
            pq.write_table(table, folder / name)
        else:
            with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
    with pytest.raises(StatefxError, match=r"in/2 has no field 'b'; it has 'value', 'c'.*schema="):
        counts(folder, tmp_path, form)


@pytest.mark.parametrize(
    ("form", "schema", "words"),
    [
        ("text", "line string", "one field, value, and not line"),
        ("text", "value string, b string", "one field, value"),
        ("json", "value array<map<long, long>>", "field 'value': map.* has no JSON.*Make the keys strings"),
        ("csv", "value array<long>", "field 'value': list.* can't be read from CSV"),
    ],
)
def test_fields_that_a_format_can_not_have_are_refused(form, schema, words, folder):
    with pytest.raises(TopologyError, match=words):
        FilePartitionedSpout(folder, form, schema)


@pytest.mark.parametrize(
    "wrong",
    [
        {"maxFiles": "3"}, {"maxFiles": True}, {"maxFiles": 1.5},
        {"maxBytesPerFile": 0}, {"maxBytesPerFile": -1}, {"maxBytesPerFile": "64m"}, {"maxBytesPerFile": True},
    ],
)  # fmt: skip
def test_arguments_are_checked(wrong, folder):
    [(name, value)] = wrong.items()
    with pytest.raises(TopologyError, match=re.escape(f"{name}={value!r}: it is")):
        FilePartitionedSpout(folder, "text", **wrong)


def test_rows_of_the_program_may_be_a_mapping_as_in_storm(tmp_path):
    spout = MemoryTransactionalSpout({1: [("or",)], 0: [("to",), ("be",)]}, "value string")
    assert spout.data == [[("to",), ("be",)], [("or",)]]
    with pytest.raises(TopologyError, match="keys of data are the partitions 0, 1"):
        MemoryTransactionalSpout({1: [("or",)]}, "value string")
    for wrong in (None, 3, [None], {0: None}, {0: ["to"]}):
        with pytest.raises(TopologyError, match="list of tuples"):
            MemoryTransactionalSpout(wrong, "value string")


def test_dates_in_json_are_read_also_inside_of_others(folder, tmp_path):
    (folder / "1").write_text('{"value": "2020-01-02", "more": [{"day": "2020-01-03"}, {}]}\n{"value": null}\n')
    schema = "value date, more array<struct<day: date>>"
    part = Range(str(folder / "1"), 0, (folder / "1").stat().st_size)
    spout = FilePartitionedSpout(folder, "json", schema)
    [batch] = read("json", spout.schema, False, part)
    assert batch.schema.types == spout.schema.types
    days = [{"day": date(2020, 1, 3)}, {"day": None}]
    assert batch.to_pylist() == [{"value": date(2020, 1, 2), "more": days}, {"value": None, "more": None}]
    (folder / "1").write_text('{"value": "yesterday"}\n')
    with pytest.raises(StatefxError, match=r"in/1 is no json file of these fields.*date - at `\$.value`"):
        counts(folder, tmp_path, "json", "value date")


@pytest.mark.slow
def test_a_line_of_json_that_is_no_object_is_told_with_its_place(folder, tmp_path):
    good = b'\xef\xbb\xbf{"value": null}\n\r\n \n{"VALUE": "x"}\n'
    (folder / "1").write_bytes(good)
    assert counts(folder, tmp_path, "json", "value string") == {(None,): 1, ("x",): 1}
    for number, lines in enumerate((b"null\n", b"\n\r\nnull\n{}\n", good + b"null\n", good + b"null")):
        (folder / "1").write_bytes(lines)
        place = lines.rindex(b"null")
        with pytest.raises(StatefxError, match=rf"in/1 is no json .* in the line at byte {place}: Expected `object`"):
            counts(folder, tmp_path / str(number), "json", "value string")


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("kind", "value", "declared"),
    [
        (pa.timestamp("us", "Europe/Berlin"), datetime(2024, 3, 31, 1, tzinfo=UTC), "timestamp_ntz"),
        (pa.list_(pa.timestamp("us", "UTC")), [datetime(2024, 3, 31, 1, tzinfo=UTC)], "array<timestamp_ntz>"),
        (pa.timestamp("us"), datetime(2024, 3, 31, 1), "date"),
        (pa.int64(), 5, "boolean"),
    ],
    ids=str,
)
def test_a_value_that_its_field_does_not_have_is_refused(form, kind, value, declared, folder, tmp_path):
    table = pa.table({"value": pa.array([value], kind)})
    if form == "parquet":
        pq.write_table(table, folder / "1")
    else:
        with pa.OSFile(str(folder / "1"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(StatefxError, match=r"in/1: field 'value' is .*declare it in schema= as the file has it"):
        counts(folder, tmp_path, form, f"value {declared}")


def test_a_local_time_with_a_zone_is_refused_in_json_and_csv(folder, tmp_path):
    for form, text in (("json", '{"value": "2024-03-31T01:00:00+02:00"}\n'), ("csv", "value\n2024-03-31T01:00:00Z\n")):
        (folder / "1").write_text(text)
        with pytest.raises(StatefxError, match="zone"):
            counts(folder, tmp_path / form, form, "value timestamp_ntz")


@pytest.mark.parametrize(("form", "schema"), [("text", None), ("json", "value string"), ("csv", "value string")])
def test_a_compressed_file_is_told(form, schema, folder, tmp_path):
    (folder / "1.gz").write_bytes(gzip.compress(b"value\nx\n" * 9))
    with pytest.raises(StatefxError, match=r"in/1\.gz is compressed.*unpack it"):
        counts(folder, tmp_path, form, schema)
