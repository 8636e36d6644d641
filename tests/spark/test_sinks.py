"""Sinks on Spark: a file stream's results in files and in a table, killed nowhere, read by Spark itself."""

import sqlite3

import pytest

from statefx import FileSink, SqlSink, TopologyBuilder
from tests.spark.bolts import Count, recount
from tests.spark.running import feed, lines_of, run

pytestmark = pytest.mark.slow

TEXTS = {name: [f"{name} b {number % 7}" for number in range(30)] for name in "abcd"}
ALL = [line for lines in TEXTS.values() for line in lines]


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_spark_reads_what_is_committed_in_batches_and_as_a_stream(spark, place, format):
    feed(place / "in", **TEXTS)
    (place / "out").mkdir()
    builder = TopologyBuilder("archive")
    builder.setStream("lines", lines_of(spark, place / "in"))
    sink = FileSink(place / "out", format, maxFileBytes=500)
    builder.setSink("out", sink, parallelism=2).localOrShuffleGrouping("lines")
    run(builder.createTopology(), spark, place / "ck", {}, trigger={"availableNow": True})
    (place / "out" / "part-0000000009-00000-nobody-0000.parquet").write_bytes(b"not committed")
    reader = spark.read.schema("value string").option("header", True)
    assert sorted(row.value for row in getattr(reader, format)(str(place / "out")).collect()) == sorted(ALL)
    stream = getattr(spark.readStream.schema("value string").option("header", True), format)(str(place / "out"))
    query = stream.writeStream.format("memory").queryName(f"read_{format}").trigger(availableNow=True).start()
    query.awaitTermination()
    assert spark.table(f"read_{format}").count() == len(ALL)


def test_counts_in_a_table_are_those_of_state(spark, place, provider):
    feed(place / "in", **TEXTS)
    builder = TopologyBuilder("counts")
    words = lines_of(spark, place / "in").selectExpr("explode(split(value, ' ')) as word")
    builder.setStream("words", words)
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("words", "word")
    table = SqlSink(f"sqlite:///{place}/db", "counts", key="word")
    builder.setSink("table", table, parallelism=2).fieldsGrouping("count", "word")
    run(
        builder.createTopology(),
        spark,
        place / "ck",
        {"topology.state.provider": provider},
        trigger={"availableNow": True},
    )
    with sqlite3.connect(place / "db") as connection:
        assert dict(connection.execute("select word, count from counts").fetchall()) == recount(ALL)
