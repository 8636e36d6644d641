"""The whole way once: counts over streams and batches are those of a plain recount."""

from collections import Counter

import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's custom

from statefx import TopologyBuilder, submit
from tests.bolts import Pass
from tests.spark.bolts import Keep, Sum, recount, word_count
from tests.spark.running import BOUND_SECS, feed, kept, kinds, lines_of, run, state

pytestmark = pytest.mark.slow

TEXTS = {name: [f"{name} b c {number % 7}" for number in range(50)] for name in "abcd"}
ALL = [line for lines in TEXTS.values() for line in lines]


def test_a_file_stream_in_several_transactions(spark, place):
    feed(place / "in", **TEXTS)
    topology = word_count(lines_of(spark, place / "in"))
    config = {"topology.state.provider": "rocksdb"}
    query = run(topology, spark, place / "ck", config, trigger={"availableNow": True})
    assert state(place / "ck", "count") == recount(ALL)
    assert kinds(place / "ck") == [
        (kind, txid, 0)
        for txid in (1, 2, 3, 4)
        for kind in ("PREPARING", "COMMITTING")  # which commits: no task has anything to do
    ]
    assert [done["txid"] for done in query.recentProgress] == [1, 2, 3, 4]
    assert query.lastProgress["rows"] == {"split": 50, "count": 200}
    assert query.lastProgress["stateKeysChanged"] == {"count": 10}
    assert query.exception() is None
    assert not query.isActive
    assert query.status["phase"] == "idle"

    feed(place / "in", e=["late d"])
    query = run(topology, spark, place / "ck", config, trigger={"once": True})
    assert query.lastProgress["txid"] == 5
    assert state(place / "ck", "count") == recount([*ALL, "late d"])
    query = run(topology, spark, place / "ck", config, trigger={"availableNow": True})  # nothing new
    assert query.lastProgress is None
    assert state(place / "ck", "count") == recount([*ALL, "late d"])


def test_a_stream_that_goes_on_until_it_is_stopped(spark, place):
    feed(place / "in", a=TEXTS["a"])
    topology = word_count(lines_of(spark, place / "in"))
    query = submit(topology, spark, place / "ck", trigger={"processingTime": "100 milliseconds"})
    query.processAllAvailable()
    assert state(place / "ck", "count") == recount(TEXTS["a"])
    assert query.isActive
    assert query.awaitTermination(0.01) is False
    feed(place / "in", b=TEXTS["b"], c=TEXTS["c"])
    query.processAllAvailable()
    assert state(place / "ck", "count") == recount(TEXTS["a"] + TEXTS["b"] + TEXTS["c"])
    assert query.lastProgress["txid"] == 3
    query.stop()
    query.stop()
    assert query.awaitTermination(BOUND_SECS) is True
    assert query.exception() is None
    query.processAllAvailable()  # of a query that has ended: nothing to wait for
    feed(place / "in", d=TEXTS["d"])
    query = submit(topology, spark, place / "ck")
    query.processAllAvailable()
    query.stop()
    assert state(place / "ck", "count") == recount(ALL)


def of_applied_again(caplog):
    return [each for each in caplog.messages if "this batch has no batchId" in each]


def test_a_batch_dataframe_is_one_transaction(spark, place, caplog):
    topology = word_count(spark.createDataFrame([(line,) for line in ALL], "value string"))
    query = run(topology, spark, place / "ck")
    query.processAllAvailable()
    query.stop()
    assert query.lastProgress["txid"] == 1
    assert state(place / "ck", "count") == recount(ALL)
    assert of_applied_again(caplog) == []
    run(topology, spark, place / "ck")
    assert len(of_applied_again(caplog)) == 1
    assert state(place / "ck", "count") == recount(ALL * 2)


def test_a_batch_id_is_applied_once(spark, place, caplog):
    topology = word_count(spark.createDataFrame([("a b a",)], "value string"))
    run(topology, spark, place / "ck", batchId=3)
    for known in (3, 2):
        query = run(topology, spark, place / "ck", batchId=known)
        assert query.lastProgress is None
    assert state(place / "ck", "count") == {"a": 2, "b": 1}
    run(topology, spark, place / "ck", batchId=4)
    assert state(place / "ck", "count") == {"a": 4, "b": 2}
    assert of_applied_again(caplog) == []


def test_a_batch_without_rows_is_a_transaction(spark, place):
    none = spark.createDataFrame([], "value string")
    query = run(word_count(none), spark, place / "ck")
    assert query.lastProgress["txid"] == 1
    assert query.lastProgress["rows"] == {"split": 0, "count": 0}
    assert state(place / "ck", "count") == {}
    run(word_count(spark.createDataFrame([("a",)], "value string")), spark, place / "ck")
    assert state(place / "ck", "count") == {"a": 1}


def test_several_streams_are_one_query(spark, place):
    for name in ("left", "right"):
        feed(place / name, **TEXTS)
    builder = TopologyBuilder("joined")
    for name in ("left", "right"):
        lines = lines_of(spark, place / name, files=2)
        builder.setStream(name, lines.select(F.lit(name).alias("side"), "value"))
    builder.setBolt("keep", Keep(), parallelism=3).fieldsGrouping("left", "value").fieldsGrouping("right", "value")
    topology = builder.createTopology()
    query = run(topology, spark, place / "ck", trigger={"availableNow": True})
    assert query.lastProgress["txid"] == 2
    tasks = kept(place / "ck", "keep", 3)
    everything = sorted(row for task in tasks for row in task)
    assert everything == sorted((name, line) for name in ("left", "right") for line in ALL)
    for line in set(ALL):  # equal keys of both streams meet in one task
        assert sum(("left", line) in task or ("right", line) in task for task in tasks) == 1


FIELDS = "key string, n long"
ROWS = [(f"key-{number % 20}" if number % 10 else None, number) for number in range(240)]


def test_rows_of_every_edge_come_to_their_tasks(spark, place):
    """A diamond, a fan-out, skipped levels, one DataFrame under two ids."""
    frame = spark.createDataFrame(ROWS, FIELDS)
    builder = TopologyBuilder("shapes")
    builder.setStream("rows", frame)
    builder.setStream("same", frame)
    builder.setBolt("top", Pass(FIELDS), parallelism=2).shuffleGrouping("rows")
    builder.setBolt("left", Pass(FIELDS), parallelism=3).fieldsGrouping("top", "n")
    builder.setBolt("right", Pass(FIELDS), parallelism=2).shuffleGrouping("top")  # shares its Spark tasks with top
    builder.setBolt("lower", Pass(FIELDS), parallelism=2).allGrouping("left")
    join = builder.setBolt("join", Keep(), parallelism=2).fieldsGrouping("left", "key").fieldsGrouping("right", "key")
    join.fieldsGrouping("top", "key").fieldsGrouping("lower", "key").fieldsGrouping("same", "key")
    builder.setBolt("sum", Sum()).globalGrouping("lower").globalGrouping("rows")
    builder.setBolt("total", Sum()).globalGrouping("sum")
    topology = builder.createTopology()
    for times in (1, 2):
        query = run(topology, spark, place / "ck")
        tasks = kept(place / "ck", "join", 2)
        copies = 1 + 1 + 1 + 2 + 1  # left, right, top, lower twice, same
        assert Counter(row for task in tasks for row in task) == Counter(dict.fromkeys(ROWS, copies * times))
        assert not {row[0] for row in tasks[0]} & {row[0] for row in tasks[1]}
        assert state(place / "ck", "sum") == {"total": 3 * times * sum(n for _, n in ROWS)}
    assert query.lastProgress["rows"]["join"] == copies * len(ROWS)
    assert state(place / "ck", "total")["total"] == 9 * sum(n for _, n in ROWS)
