"""Spark's own stateful operators before a stream: what they keep outlives the machine together with the rest."""

import os
import shutil
import sys

import pytest
from pyspark.sql import Row
from pyspark.sql.functions import expr
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructField, StructType

from statefx import TopologyBuilder
from statefx.errors import CheckpointError
from statefx.spark.feeds import StreamFeed
from statefx.spark.preflight import keeps_state
from tests.spark.bolts import Keep
from tests.spark.running import feed, kept, kinds, lines_of, run, spark_part

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

pytestmark = pytest.mark.slow

NOW = {"availableNow": True}


def keeping(frame):
    builder = TopologyBuilder("kept")
    builder.setStream("lines", frame)
    builder.setBolt("keep", Keep()).globalGrouping("lines")
    return builder.createTopology()


def files_of(state):
    return {str(path) for path in state.rglob("*") if path.is_file() and not path.name.startswith(".")}


def test_a_machine_that_crashes_before_spark_has_noted_the_batch(spark, place, monkeypatch):
    """Deltas that are not durable are of a batch without a note: Spark runs it again, and makes them anew."""
    synced, fsync, take, seen = set(), os.fsync, StreamFeed._take, []
    monkeypatch.setattr(os, "fsync", lambda file: (synced.add(os.readlink(f"/proc/self/fd/{file}")), fsync(file)))

    def taken(self, frame, batch_id, query):
        take(self, frame, batch_id, query)
        part = spark_part(place / "ck")
        assert files_of(part / "state") <= synced
        seen.append((batch_id, (part / "commits" / str(batch_id)).exists()))

    monkeypatch.setattr(StreamFeed, "_take", taken)
    feed(place / "in", a=["x", "y"], b=["y", "z"])
    topology = keeping(lines_of(spark, place / "in").dropDuplicates(["value"]))
    run(topology, spark, place / "ck", trigger=NOW)
    assert seen == [(0, False), (1, False)]
    part = spark_part(place / "ck")
    lost = [part / "commits" / "1", *(part / "state").rglob("2.delta")]
    assert len(lost) > 1
    for path in lost:
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    feed(place / "in", c=["z", "x", "w"])
    run(topology, spark, place / "ck", trigger=NOW)
    assert seen[2:] == [(1, False), (2, False)]
    assert sorted(kept(place / "ck", "keep", 1)[0]) == [("w",), ("x",), ("y",), ("z",)]
    assert [path.name for path in (place / "ck").glob("spark*")] == ["spark-2"]


class Count(StatefulProcessor):
    """Spark's own way to keep state in Python."""

    def init(self, handle):
        self.count = handle.getValueState("count", StructType([StructField("n", LongType())]))

    def handleInputRows(self, key, rows, timers):
        known = self.count.get()[0] if self.count.exists() else 0
        self.count.update((known + len(list(rows)),))
        yield Row(value=key[0], n=self.count.get()[0])

    def close(self):
        pass


def test_paths_that_spark_keeps_in_full_follow_its_folder(spark, place):
    """Spark looks for its schemas where they were, and each start gives its folder a new name."""
    schema = StructType([StructField("value", StringType()), StructField("n", LongType())])
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    try:
        feed(place / "in", a=["x", "y", "x"])
        grouped = lines_of(spark, place / "in").groupBy("value")
        topology = keeping(grouped.transformWithState(Count(), schema, "Update", "None"))
        run(topology, spark, place / "ck", trigger=NOW)
        feed(place / "in", b=["x"])
        run(topology, spark, place / "ck", trigger=NOW)
        shutil.copytree(place / "ck", place / "copy")
        shutil.rmtree(place / "ck")
        feed(place / "in", c=["y", "z"])
        run(topology, spark, place / "copy", trigger=NOW, adopt="move")
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    rows = [("x", 2), ("x", 3), ("y", 1), ("y", 2), ("z", 1)]
    assert sorted(kept(place / "copy", "keep", 1)[0]) == rows


def joined(lines):
    return lines.join(lines.selectExpr("value as other"), expr("value = other")).select("value")


@pytest.mark.parametrize(
    ("through", "keeps"),
    [
        (lambda lines: lines, False),
        (lambda lines: lines.union(lines).repartition(2).selectExpr("upper(value) as value"), False),
        (lambda lines: lines.join(lines.sparkSession.range(3).groupBy("id").count(), expr("value = id")), False),
        (lambda lines: lines.groupBy("value").applyInPandas(lambda rows: rows, "value string"), False),
        (lambda lines: lines.dropDuplicates(["value"]).filter("value != 'x'"), True),
        (lambda lines: lines.union(lines.distinct()), True),
        (lambda lines: lines.groupBy("value").count(), True),
        (joined, True),
    ],
)
def test_which_streams_have_operators_that_keep_state(spark, place, through, keeps):
    (place / "in").mkdir()
    assert keeps_state(through(lines_of(spark, place / "in"))) is keeps


def test_an_operator_that_is_not_known_begins_nothing(spark, place, monkeypatch):
    """Its state would be on the driver's machine, and gone with it."""
    monkeypatch.setattr(sys.modules["statefx.spark.submit"], "keeps_state", lambda frame: False)
    feed(place / "in", a=["x"])
    topology = keeping(lines_of(spark, place / "in").dropDuplicates(["value"]))
    with pytest.raises(CheckpointError, match=r"keeps state before this topology.*in a bolt instead"):
        run(topology, spark, place / "ck", trigger=NOW)
    assert kinds(place / "ck") == []
    monkeypatch.undo()
    run(topology, spark, place / "ck", trigger=NOW)
    assert kept(place / "ck", "keep", 1) == [[("x",)]]
