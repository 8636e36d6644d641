"""Sinks on Spark: a file stream's results in files and in a table, killed nowhere, read by Spark itself."""

import threading
import time

import pytest
from pyspark.sql.functions import count, lit, split

from statefx import FileSink, ForeachTransactionSink, TopologyBuilder, submit
from tests.spark.running import feed, lines_of, run

pytestmark = pytest.mark.slow

TEXTS = {name: [f"{name} b {number % 7}" for number in range(30)] for name in "abcd"}
ALL = [line for lines in TEXTS.values() for line in lines]


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_spark_reads_what_is_committed_in_batches_and_as_a_stream(spark, place, format):
    feed(place / "in", **TEXTS)
    (place / "out").mkdir()
    builder = TopologyBuilder("archive")
    builder.setStream("lines", lines_of(spark, place / "in").selectExpr("value", "left(value, 1) as name"))
    for out, fields in [("out", ()), ("parted", "name")]:
        sink = FileSink(place / out, format, partitionBy=fields, maxFileBytes=500)
        builder.setSink(out, sink, parallelism=2).localOrShuffleGrouping("lines")
    run(builder.createTopology(), spark, place / "ck", {}, trigger={"availableNow": True})
    expected = sorted((line, line[0]) for line in ALL)
    for out, folder in [("out", "out"), ("parted", "parted/name=a")]:
        (place / folder / f"part-0000000009-00000-nobody-0000.{format}").write_bytes(b"not committed")
        found = getattr(spark.read.option("header", True), format)(str(place / out))
        assert sorted(map(tuple, found.select("value", "name").collect())) == expected
        reader = spark.readStream.schema("value string, name string").option("header", True)
        stream = getattr(reader, format)(str(place / out)).writeStream.format("memory")
        stream.queryName(f"read_{out}_{format}").trigger(availableNow=True).start().awaitTermination()
        assert sorted(map(tuple, spark.table(f"read_{out}_{format}").collect())) == expected


def test_a_function_writes_each_transaction_with_spark(spark, place):
    feed(place / "in", **TEXTS)
    builder = TopologyBuilder("calls")
    builder.setStream("lines", lines_of(spark, place / "in", 2))
    stuck, adaptive = [], []

    def write(frame, txid):
        if txid == 1 and not stuck:
            stuck.append(frame.count())
            raise OSError("no room")
        if txid == 1:
            stuck.append(query.status["stuck"]["reason"])
        adaptive.append(frame.sparkSession.conf.get("spark.sql.adaptive.enabled"))
        totals = frame.groupBy(split("value", " ")[0].alias("name")).agg(count("*").alias("n"))  # a shuffle
        totals.withColumn("txid", lit(txid)).write.mode("append").parquet(str(place / "out"))

    builder.setSink("out", ForeachTransactionSink(write), parallelism=2).localOrShuffleGrouping("lines")
    query = submit(builder.createTopology(), spark, place / "ck", trigger={"availableNow": True})
    assert query.awaitTermination(120)
    assert stuck == [60, "out: OSError: no room"]
    assert adaptive == [spark.conf.get("spark.sql.adaptive.enabled")] * 2  # the user's session, not that of our jobs
    found = spark.read.parquet(str(place / "out"))
    assert sorted((row.txid, row.n) for row in found.collect()) == [(1, 30), (1, 30), (2, 30), (2, 30)]
    assert {row.name for row in found.collect()} == set(TEXTS)


def test_a_query_that_is_stopped_during_a_call_ends_and_the_next_one_calls_again(spark, place):
    feed(place / "in", a=["x"])
    calling = threading.Event()

    def topology(fn):
        builder = TopologyBuilder("calls")
        builder.setStream("lines", lines_of(spark, place / "in"))
        builder.setSink("out", ForeachTransactionSink(fn)).globalGrouping("lines")
        return builder.createTopology()

    def hang(frame, txid):
        calling.set()
        frame.mapInArrow(forever, "value string").collect()

    def forever(batches):
        threading.Event().wait()
        yield from batches

    query = submit(topology(hang), spark, place / "ck", trigger={"availableNow": True})
    assert calling.wait(60)
    began = time.monotonic()
    query.stop(timeout=0.5)
    assert time.monotonic() - began < 20
    assert not query.isActive
    called = []
    run(
        topology(lambda frame, txid: called.append((txid, frame.count()))),
        spark,
        place / "ck",
        trigger={"availableNow": True},
    )
    assert called == [(1, 1)]
