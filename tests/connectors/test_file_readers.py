"""Files of FileSink, read by plain Spark, pyarrow and pandas: every type with its awkward values, and their nulls."""

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from statefx.connectors.files import FileSink, committedFiles, readCommitted
from statefx.connectors.files.sink import Csv
from statefx.operators.schema import to_ddl
from tests.connectors.round_trips import publish
from tests.connectors.values import AWKWARD, batch, content

REFUSED = {"csv": ["\x00null"], "folders": ["", "__HIVE_DEFAULT_PARTITION__"]}
"""Texts for which there is no form (`tests/sinks/test_odd_rows.py`)."""


def everything(format, *, nested=None):
    """Return a batch with a column for each type, its awkward values and a null; of nested types, the same inside."""
    columns = {"number": (pa.int64(), range(40))}
    for kind, awkward in AWKWARD.items():
        values = [each for each in awkward if each not in REFUSED.get(format, ())] + [None]
        if not (format in REFUSED and pa.types.is_binary(kind)):
            columns[f"plain {kind}"] = (kind, values)
        if nested or (nested is None and format not in REFUSED):
            columns[f"list {kind}"] = (pa.list_(kind), [[], *([each] for each in values)])
            columns[f"struct {kind}"] = (pa.struct([("x", kind)]), [{"x": each} for each in values])
            columns[f"map {kind}"] = (pa.map_(pa.string(), kind), [[], *([("k", each)] for each in values)])
    schema = pa.schema([(f"c{number}", kind) for number, (kind, _) in enumerate(columns.values())])
    padded = [[*values, *[None] * 40][:40] for _, values in columns.values()]
    return batch(schema, list(zip(*padded, strict=True)))


def from_spark(frame, schema):
    return pa.table(
        [column.cast(field.type) for column, field in zip(frame.toArrow().columns, schema, strict=True)], schema=schema
    )


def differences(found, given):
    """Return columns whose values are others; of all rows at once, nobody could read what differs."""
    order = found.column("c0").to_pylist()
    found = found.take(pa.array(sorted(range(len(order)), key=order.__getitem__)))
    return {
        f"{field.name}: {field.type}": [pair for pair in zip(*pairs, strict=True) if pair[0] != pair[1]]
        for field in given.schema
        if (pairs := [in_order(rows.column(field.name)) for rows in (found, given)])[0] != pairs[1]
    }


def in_order(column):
    return [content(pa.table([column.slice(number, 1)], ["c"])) for number in range(len(column))]


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_spark_reads_every_value(spark, tmp_path, format):
    given = everything(format)
    publish(FileSink(tmp_path / "out", format), tmp_path, given)
    reader = spark.read.format(format).options(**Csv.reading if format == "csv" else {})
    plain = (reader if format == "parquet" else reader.schema(to_ddl(given.schema))).load(str(tmp_path / "out"))
    assert differences(from_spark(plain, given.schema), given) == {}
    assert differences(from_spark(readCommitted(spark, tmp_path / "out"), given.schema), given) == {}


@pytest.mark.slow
def test_spark_reads_every_value_that_is_a_folder(spark, tmp_path):
    given = everything("folders")
    publish(FileSink(tmp_path / "out", partitionBy=given.schema.names[1:]), tmp_path, given)
    one_zero = pa.table(
        [pc.add(each, 0) if pa.types.is_floating(each.type) else each for each in given.columns], schema=given.schema
    )
    assert differences(from_spark(readCommitted(spark, tmp_path / "out"), given.schema), one_zero) == {}


@pytest.mark.slow
def test_pyarrow_and_pandas_read_every_value_of_parquet(tmp_path):
    given = everything("parquet")
    publish(FileSink(tmp_path / "out"), tmp_path, given)
    [file] = committedFiles(tmp_path / "out")
    assert differences(pq.read_table(file).cast(given.schema), given) == {}
    frame = pd.read_parquet(file, dtype_backend="pyarrow")
    assert differences(pa.Table.from_pandas(frame, given.schema), given) == {}


def test_pyarrow_and_pandas_read_every_row_of_csv(tmp_path):
    given = everything("csv")
    publish(FileSink(tmp_path / "out", "csv"), tmp_path, given)
    [file] = committedFiles(tmp_path / "out")
    as_declared = pyarrow.csv.ConvertOptions(
        column_types=given.schema, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    assert differences(pyarrow.csv.read_csv(file, parse_options=parse, convert_options=as_declared), given) == {}
    frame = pd.read_csv(file, engine="python", dtype=str, keep_default_na=False)  # its other parser ends texts at a NUL
    texts = [field.name for field in given.schema if pa.types.is_string(field.type)]
    for name in texts:
        assert frame[name].tolist() == [each or "" for each in given.column(name).to_pylist()]
    assert len(frame) == len(given)


def test_pandas_reads_every_row_of_json(tmp_path):
    """Without the types, which only statefx and Spark are given, other values are texts: see docs/json.md."""
    given = everything("json", nested=False)
    given = given.select([f.name for f in given.schema if f.name == "c0" or f.type in (pa.string(), pa.bool_())])
    publish(FileSink(tmp_path / "out", "json"), tmp_path, given)
    [file] = committedFiles(tmp_path / "out")
    frame = pd.read_json(file, lines=True, dtype=False, convert_dates=False)
    for field in given.schema:
        found = [None if pd.isna(each) else each for each in frame[field.name]]
        assert found == given.column(field.name).to_pylist()
