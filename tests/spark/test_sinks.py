"""Sinks and sources beside Spark: files and tables that Spark reads, pages that run, checkpoints on S3."""

import json
import sys
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.functions import count, lit, split

import statefx
from statefx import Checkpoint, TopologyBuilder, submit
from statefx.connectors import ForeachTransactionSink
from statefx.connectors.files import FileSink
from statefx.errors import ConfigError
from tests.conftest import ROOT
from tests.docs.test_code_blocks import program
from tests.spark.bolts import Keep, Unclosable, recount, word_count
from tests.spark.drivers import EXPECTED, FILES, hold, log_at, published
from tests.spark.running import feed, kept, lines_of, run, wait_for
from tests.spark.storing import TEXTS as STORES_TEXTS
from tests.spouts.kafka_topologies import as_json
from tests.storage.s3_server import as_users_have_it, s3_server

pytestmark = pytest.mark.slow

TEXTS = {name: [f"{name} b {number % 7}" for number in range(30)] for name in "abcd"}
ALL = [line for lines in TEXTS.values() for line in lines]


@pytest.mark.parametrize("format", ["parquet", pytest.param("csv", marks=pytest.mark.soak)])
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
    stuck, exited, adaptive = [], [], []

    def write(frame, txid):
        if txid == 1 and not stuck:
            stuck.append(frame.count())
            raise OSError("no room")
        if txid == 1:
            stuck.append(query.status["stuck"]["reason"])
        elif not exited:
            exited.append(txid)
            sys.exit("also what is no Exception is tried again")
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


def test_a_query_whose_sink_can_not_be_closed_ends(spark, place):
    builder = TopologyBuilder("words")
    builder.setStream("lines", spark.createDataFrame([("a",)], "value string"))
    sink = Unclosable()
    builder.setSink("out", sink).globalGrouping("lines")
    query = submit(builder.createTopology(), spark, place / "ck")
    assert query.awaitTermination(60)
    assert sink.rows == [{"value": "a"}]


@pytest.mark.soak
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
    ended = Checkpoint(place / "ck").observation()
    assert ended["health"]["state"] == "failed"
    assert "It was stopped by query.stop() at " in ended["health"]["sentence"]
    assert "while transaction 1 was decided and not published" in ended["health"]["sentence"]
    assert (ended["transactions"][-1]["outcome"], ended["transactions"][-1]["phase"]) == ("running", "COMMITTING")
    called = []
    run(
        topology(lambda frame, txid: called.append((txid, frame.count()))),
        spark,
        place / "ck",
        trigger={"availableNow": True},
    )
    assert called == [(1, 1)]
    ended = Checkpoint(place / "ck").observation()["health"]
    assert (ended["state"], ended["sentence"].partition(" at ")[0]) == ("ended", "Its input ended")


# ---- The page on Kafka: its program runs.


def test_the_program_of_the_page_runs(spark, kafka, place, monkeypatch, capsys):
    kafka.topic(name="payments")
    kafka.topic(name="totals")
    kafka.send(
        "payments",
        *as_json({"account": "a", "amount": 5}, {"account": "b", "amount": 2}, {"account": "a", "amount": 1}),
    )
    page = (ROOT / "docs" / "kafka.md").read_text(encoding="utf-8")
    program = page.partition("```python\n")[2].partition("```")[0]
    assert "KafkaSink" in program
    monkeypatch.chdir(place)
    exec(program.replace("localhost:9092", kafka.address), {"__name__": "__main__"})
    assert capsys.readouterr().out.endswith("{'a': 6, 'b': 2}\n")
    told = [json.loads(value) for value in kafka.read("totals", 3)]
    assert sorted((each["account"], each["total"]) for each in told) == [("a", 5), ("a", 6), ("b", 2)]


# ---- Queries on Spark whose checkpoint is on S3: killed in each phase, and started again.


@pytest.fixture
def url():
    with s3_server() as address, as_users_have_it(address) as made:
        yield made()


@pytest.mark.soak
@pytest.mark.parametrize("phase", ["PREPARING", "COMMITTING"])
def test_a_driver_that_was_killed(drivers, place, url, phase):
    feed(place / "in", **FILES)
    hold(place, phase, 1)
    first = drivers(place, more={"location": url})
    first.wait_until(lambda log: [(str(one.phase), one.txid) for one in log.in_flight] == [(phase, 2)], phase)
    assert first.kill() == (phase, 2)
    second = drivers(place, more={"location": url}).end()
    assert second["ended"]
    assert second["recoveries"]
    assert dict(Checkpoint(url).state("count").items()) == EXPECTED
    assert published(place) == EXPECTED
    assert log_at(url).generation == 2
    assert not (place / "ck").exists()


@pytest.mark.soak
def test_a_driver_that_was_replaced(drivers, place, url):
    feed(place / "in", **FILES)
    hold(place, "PREPARING", 1)
    first = drivers(place, more={"location": url})
    first.wait_until(lambda log: [one.txid for one in log.in_flight] == [2], "PREPARING")
    assert drivers(place, more={"location": url}).end()["ended"]
    hold(place, "PREPARING", 0)
    assert first.end(3)["error"] == "FencedError"
    assert dict(Checkpoint(url).state("count").items()) == EXPECTED
    assert published(place) == EXPECTED


@pytest.mark.soak
def test_workers_that_can_not_read_it_are_named(spark, place, url):
    """Their environment is that of the JVM, which began before the credentials were set."""
    feed(place / "in", a=["a"])
    topology = word_count(lines_of(spark, place / "in"))
    with pytest.raises(ConfigError, match=r"can't read the checkpoint in s3://.* with a local master"):
        submit(topology, spark, url)
    assert log_at(url).generation == 0


@pytest.mark.soak
def test_a_life_with_savepoints_other_tasks_and_state_as_a_table(drivers, place, url):
    said = drivers(place, program="tests.spark.storing", more={"location": url}).end()
    two, three = (recount(line for name in names for line in STORES_TEXTS[name]) for names in ("ab", "abc"))
    assert (said["savepoint"], said["counted"]) == (2, three)
    assert said["changed"] == sorted(
        ["update" if word in two else "insert", word] for word in three if three[word] != two.get(word)
    )
    assert said["restored"] == two
    assert said["rescaled"] == {**three, "z": 7}
    assert said["partitions"] == 3
    assert statefx.Checkpoint(url).verify().ok


# ---- What the cookbook says of a source that never is silent, on Spark.


USERS = "user string, at timestamp, cents long"


@pytest.mark.soak
def test_windows_end_while_their_input_is_silent(spark, place, monkeypatch):
    monkeypatch.chdir(place)
    page = {"__name__": "windows"}
    exec(program((ROOT / "docs" / "cookbook" / "windows.md").read_text(encoding="utf-8")), page)
    start = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=3)
    times = [(start + timedelta(seconds=secs)).isoformat() for secs in (1, 59, 70)]
    feed(place / "in", a=[f"ann,{times[0]},100", f"ann,{times[1]},50", f"bob,{times[2]},20"])

    builder = TopologyBuilder("averages")
    payments = spark.readStream.schema(USERS).csv(str(place / "in"))
    ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    ticks = ticks.selectExpr("cast(null AS string) AS user", "timestamp AS at", "0L AS cents")
    builder.setStream("payments", payments, timestamp="at", lateness="1 second", idleAfter="2 seconds")
    builder.setStream("ticks", ticks, timestamp="at", lateness="1 second")
    averages = builder.setBolt("averages", page["Payments"]().withTumblingWindow("1 minute"), 2)
    averages.fieldsGrouping("payments", "user").fieldsGrouping("ticks", "user")
    builder.setBolt("out", Keep()).globalGrouping("averages")
    query = submit(builder.createTopology(), spark, place / "ck", trigger={"processingTime": "100 milliseconds"})

    def ended():
        return [row for row in kept(place / "ck", "out", 1)[0] if row[0] is not None] if query.lastProgress else []

    wait_for(lambda: len(ended()) == 2, "the windows to end")
    query.stop()
    assert sorted(ended()) == [("ann", start, 2, 75.0), ("bob", start + timedelta(minutes=1), 1, 20.0)]
