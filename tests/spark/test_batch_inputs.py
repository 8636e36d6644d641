"""Batch DataFrames that Spark would not compute afresh for a second attempt."""

import pytest
from pyspark.sql.functions import rand

from statefx import FailedException, StatefulBolt, TopologyBuilder
from statefx.spark.internals import keeps_shuffles
from statefx.spark.staging import unite
from tests.spark.running import run, state

pytestmark = pytest.mark.slow

ROWS = [(f"key-{number % 5}", number) for number in range(50)]
FIELDS = "key string, n long"


def of_list(spark):
    return spark.createDataFrame(ROWS, FIELDS)


def of_grouped_rdd(spark):
    pairs = spark.sparkContext.parallelize(ROWS, 3).groupByKey(2).map(lambda pair: (pair[0], sum(pair[1])))
    return spark.createDataFrame(pairs, FIELDS)


def of_cache(spark):
    return of_list(spark).groupBy("key").sum("n").toDF("key", "n").withColumn("n", (rand() * 10).cast("long")).cache()


FRESH = {
    "list": of_list,
    "list, grouped": lambda spark: of_list(spark).groupBy("key").sum("n"),
    "range, sorted": lambda spark: spark.range(20).orderBy("id"),
    "cache without a shuffle": lambda spark: of_list(spark).cache(),
}
KEPT = {
    "rdd with a shuffle": of_grouped_rdd,
    "rdd with a shuffle, filtered": lambda spark: of_grouped_rdd(spark).where("n > 1"),
    "cache with a shuffle": of_cache,
    "cache with a shuffle, joined": lambda spark: of_list(spark).join(of_cache(spark).select("key"), "key"),
}


@pytest.fixture(autouse=True)
def no_cache_left(spark):
    yield
    spark.catalog.clearCache()


@pytest.mark.parametrize("make", FRESH.values(), ids=FRESH)
def test_a_frame_that_is_computed_afresh(spark, make):
    assert not keeps_shuffles(unite({"rows": make(spark)}))


@pytest.mark.parametrize("make", KEPT.values(), ids=KEPT)
def test_a_frame_whose_shuffles_stay(spark, make):
    assert keeps_shuffles(unite({"rows": make(spark)}))


class Fails(StatefulBolt):
    """Fails the first attempt of every transaction."""

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        if self.context.attempt == 0:
            raise FailedException("not yet")
        self.state.put(tup.n, tup.key)


def failing(frame):
    builder = TopologyBuilder("fails")
    builder.setStream("rows", frame)
    builder.setBolt("fails", Fails()).globalGrouping("rows")
    return builder.createTopology()


@pytest.mark.parametrize("made", [of_list, of_grouped_rdd])
def test_a_second_attempt_reads_what_was_staged(spark, place, made):
    frame = made(spark)
    rows = {row.n: row.key for row in frame.collect()}
    run(failing(frame), spark, place / "ck")
    assert state(place / "ck", "fails") == rows
