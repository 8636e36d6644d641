"""Inputs of Spark: other sources than files, batch DataFrames, first batches, ticks, and the close of event time."""

import json
import os
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql.functions import rand

from statefx import Checkpoint, StatefulBolt, TopologyBuilder, isTick, submit
from statefx.errors import BoltError, ConfigError, FailedException, InputError, StatefxError
from statefx.spark import job
from statefx.spark.checkpoint import SparkCheckpoint
from statefx.spark.internals import keeps_shuffles
from statefx.spark.staging import unite
from tests.bolts import WithState
from tests.spark.bolts import Keep, recount, word_count
from tests.spark.counting import begun
from tests.spark.drivers import EXPECTED, FILES
from tests.spark.running import BOUND_SECS, feed, kept, lines_of, local_folders, reasons, records, run, state, wait_for
from tests.spark.test_drivers import held
from tests.spark.test_spark_state import keeping
from tests.spouts.test_close_time import Keep as CloseKeep
from tests.spouts.test_close_time import PerTen
from tests.spouts.timed import Planned, at

pytestmark = pytest.mark.slow


def rate(spark, **options):
    return spark.readStream.format("rate").options(numPartitions=1, **options).load().selectExpr("value")


@pytest.mark.soak
def test_a_source_that_begins_now_goes_on_from_there(spark, place):
    """Rows are numbered from the time that it has noted: none is lost or doubled, whoever runs it."""
    topology = keeping(rate(spark, rowsPerSecond=50))
    for _ in range(3):
        query = submit(topology, spark, place / "ck", trigger={"processingTime": "0 seconds"})
        done = len(query.recentProgress)
        wait_for(lambda query=query, done=done: len(query.recentProgress) > done, "rows to come")
        query.stop()
        assert query.exception() is None
    values = [value for (value,) in kept(place / "ck", "keep", 1)[0]]
    assert values == list(range(len(values)))
    assert len(values) >= 50


def test_the_same_stream_may_be_read_in_several_places(spark, place):
    """Spark has one source for them, and in a batch's offsets a line for each: the second source has number 1."""
    feed(place / "in", a=["x"], b=["y"])
    feed(place / "other", a=["z"])
    for number in range(2):
        lines = lines_of(spark, place / "in")
        builder = TopologyBuilder("several")
        builder.setStream("one", lines.union(lines))
        builder.setStream("two", lines)
        builder.setStream("three", lines_of(spark, place / "other"))
        keep = builder.setBolt("keep", Keep())
        for name in ("one", "two", "three"):
            keep.globalGrouping(name)
        run(builder.createTopology(), spark, place / "ck", trigger={"availableNow": True})
        feed(place / "in", **{f"c{number}": ["v"]})
        feed(place / "other", **{f"c{number}": ["w"]})
    assert Counter(value for (value,) in kept(place / "ck", "keep", 1)[0]) == Counter("xxxyyyvvvzw")


@pytest.fixture
def noting(monkeypatch):
    """A source that notes where it begins and then waits for its first row, as Kafka's does: what it writes."""
    rebuild, written = SparkCheckpoint.rebuild, []

    def rebuilt(self, *settings):
        rebuild(self, *settings)
        path = Path(self.folder, "sources", "1", "0")
        if not path.exists():
            path.parent.mkdir(parents=True)
            path.write_text(f'\0v1\n{{"topic":{{"0":{len(written)}}}}}', encoding="ascii")
        written.append(path.read_text(encoding="ascii"))

    monkeypatch.setattr(SparkCheckpoint, "rebuild", rebuilt)
    return written


def kinds_of_all(location):
    return [each.kind for each in records(location)]


@pytest.mark.daily(1)
@pytest.mark.parametrize("trigger", [None, {"once": True}, {"availableNow": True}])
def test_where_it_began_is_kept_though_no_row_has_come(spark, place, noting, trigger):
    """A driver may wait for the first row for hours, and die meanwhile; or look once, and end."""
    (place / "in").mkdir()
    topology = keeping(lines_of(spark, place / "in"))
    for _ in range(2):
        query = submit(topology, spark, place / "ck", trigger=trigger)
        if trigger is None:
            wait_for(lambda: "NOTED" in kinds_of_all(place / "ck"), "its beginning to be logged")
            query.stop()
        else:
            assert query.awaitTermination(BOUND_SECS)
    assert noting[0] == noting[1]
    assert kinds_of_all(place / "ck") == ["LINEAGE", "GENERATION", "NOTED", "GENERATION"]


# ---- Batch DataFrames that Spark would not compute afresh for a second attempt.


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


def ids(spark):
    return spark.range(0, 20, 1, 4).selectExpr("string(id) as key", "id as n")


UNMADE = {
    "grouped": lambda spark: ids(spark).groupBy("key").max("n").cache(),
    "filtered": lambda spark: ids(spark).repartition(3).cache().where("n >= 0"),
    "upon another": lambda spark: ids(spark).repartition(3).cache().groupBy("key", "n").count().drop("count").cache(),
    "joined with itself": lambda spark: (one := ids(spark).repartition(3).cache()).join(one.select("key"), "key"),
    "with shuffles behind it": lambda spark: ids(spark).repartition(3).cache().groupBy("key").max("n").repartition(2),
    "part of a union": lambda spark: ids(spark).where("n < 5").union(ids(spark).where("n >= 5").repartition(2).cache()),
}


@pytest.mark.soak
@pytest.mark.daily(1)
@pytest.mark.parametrize("adaptive", ["true", pytest.param("false", marks=pytest.mark.soak)])
@pytest.mark.parametrize("make", UNMADE.values(), ids=UNMADE)
def test_a_cache_that_was_not_made_yet_is_made_once(spark, place, make, adaptive):
    """Rule 15.1: with adaptive execution its shuffles are jobs of their own, before that which reads the rows."""
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        builder = TopologyBuilder("unmade")
        builder.setStream("rows", make(spark).toDF("key", "n"))
        builder.setBolt("count", CountKeys()).globalGrouping("rows")
        run(builder.createTopology(), spark, place / "ck")
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", before)
    assert state(place / "ck", "count") == {str(number): 1 for number in range(20)}
    assert reasons(place / "ck") == []


class CountKeys(WithState):
    def execute(self, tup, collector):
        self.state.put(tup.key, self.state.get(tup.key, 0) + 1)


class Fails(WithState):
    def execute(self, tup, collector):
        if self.context.attempt == 0:
            raise FailedException("not yet")
        self.state.put(tup.n, tup.key)


def failing(frame):
    builder = TopologyBuilder("fails")
    builder.setStream("rows", frame)
    builder.setBolt("fails", Fails()).globalGrouping("rows")
    return builder.createTopology()


@pytest.mark.daily(1)
@pytest.mark.parametrize("made", [of_list, of_grouped_rdd])
def test_a_second_attempt_reads_what_was_staged(spark, place, made):
    frame = made(spark)
    rows = {row.n: row.key for row in frame.collect()}
    run(failing(frame), spark, place / "ck")
    assert state(place / "ck", "fails") == rows


# ---- An end in the first batch: Spark begins only where nothing of a former beginning lies.


NOW = {"availableNow": True}


class FirstFails(StatefulBolt):
    def initState(self, state):
        pass

    def execute(self, tup, collector):
        raise ValueError("to be mended")


def first_keeping(frame, bolt):
    builder = TopologyBuilder("kept")
    builder.setStream("lines", frame)
    builder.setBolt("keep", bolt).globalGrouping("lines")
    return builder.createTopology()


def test_a_first_transaction_that_was_rolled_back_is_the_same_again(spark, place):
    """Its offsets are kept. Other rows wait."""
    feed(place / "in", a=["x", "y", "x"], b=["z"])
    frame = lines_of(spark, place / "in")
    with pytest.raises(BoltError, match="to be mended"):
        run(first_keeping(frame, FirstFails()), spark, place / "ck", trigger=NOW)
    feed(place / "in", c=["v"])
    query = run(first_keeping(frame, Keep()), spark, place / "ck", trigger=NOW)
    assert [done["numInputRows"] for done in query.recentProgress] == [3, 1, 1]
    assert sorted(kept(place / "ck", "keep", 1)[0]) == [("v",), ("x",), ("x",), ("y",), ("z",)]


@pytest.mark.soak
def test_killed_while_spark_writes_the_first_offsets(spark, drivers, place):
    feed(place / "in", **FILES)
    driver = drivers(place)

    def written():
        return [path for folder in spark_s(place / "ck") for path in folder.glob("content/offsets/*")]

    wait_for(written, "Spark to write its first offsets")
    os.killpg(driver.process.pid, signal.SIGKILL)
    driver.process.wait()
    (left,) = spark_s(place / "ck")
    run(*begun(spark, place))
    assert state(place / "ck", "count") == EXPECTED
    assert not left.exists()


def spark_s(location):
    """The folders of Spark's queries, once there is a log."""
    return local_folders(location) if (location / "transactions").exists() else []


@pytest.mark.soak
def test_stopped_at_once_again_and_again(spark, place, monkeypatch):
    """Tasks that are not there yet can't be told to end, and are not waited for."""
    monkeypatch.setattr(job, "END_SECS", BOUND_SECS)
    feed(place / "in", a=["x", "y"], b=["x"])
    topology = word_count(lines_of(spark, place / "in"))
    for n in range(4):
        query = submit(topology, spark, place / "ck")
        if n % 2:
            wait_for(lambda: list(local_folders(place / "ck")[-1].glob("content/offsets")), "Spark to begin")
        began = time.monotonic()
        query.stop(timeout=0)
        assert time.monotonic() - began < BOUND_SECS
        assert query.exception() is None
    run(topology, spark, place / "ck", trigger=NOW)
    assert state(place / "ck", "count") == {"x": 2, "y": 1}


@pytest.mark.soak  # `test_drivers.py` has two; `tests/recovery/test_drivers.py` has many
def test_submitted_by_several_at_once(spark, place):
    """Each takes over from the one before, most of them in the middle of the first batch."""
    feed(place / "in", a=["x", "y"], b=["x"])
    queries, ended = [], []

    def start():
        with suppress(StatefxError):  # replaced while it started
            queries.append(submit(word_count(lines_of(spark, place / "in")), spark, place / "ck"))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    for query in queries:
        query.stop(timeout=0)
        ended.append(query.exception())
    assert {type(error).__name__ for error in ended} <= {"NoneType", "FencedError"}, ended
    run(word_count(lines_of(spark, place / "in")), spark, place / "ck", trigger=NOW)
    assert state(place / "ck", "count") == recount(["x", "y", "x"])


# ---- Ticks and timers of DataFrames; those of spouts are in `test_pipelined`.


class Timed(WithState):
    def execute(self, tup, collector):
        if isTick(tup):
            self.state.put("ticks", self.state.get("ticks", 0) + 1)
        else:
            self.state.put(f"rows {tup.value}", self.state.get(f"rows {tup.value}", 0) + 1)
            self.timers.set(tup.value, self.context.processingTime + timedelta(seconds=0.3), processing=True)

    def onTimer(self, key, at, value, collector):
        self.state.put(f"fired {key}", True)


@pytest.mark.soak
def test_ticks_and_timers_come_while_there_are_no_rows_and_no_batch_is_lost_or_doubled(spark, place):
    """Transactions without a batch stand between Spark's; the next start numbers its batches behind them."""
    feed(place / "in", a=["x"])
    builder = TopologyBuilder("idle")
    builder.setStream("lines", lines_of(spark, place / "in"))
    builder.setBolt("timed", Timed()).fieldsGrouping("lines", "value").setTicks(0.2)
    topology = builder.createTopology()
    for number, name in enumerate("bcd"):
        query = submit(topology, spark, place / "ck", trigger={"processingTime": "50 milliseconds"})
        query.processAllAvailable()
        had = state(place / "ck", "timed").get("ticks", 0)
        wait_for(lambda had=had: state(place / "ck", "timed").get("ticks", 0) >= had + 3, "ticks")
        feed(place / "in", **{name: ["x", name]})
        query.processAllAvailable()
        wait_for(lambda name=name: state(place / "ck", "timed").get(f"fired {name}"), "its timer to fire")
        query.stop()
        assert query.exception() is None
        found = state(place / "ck", "timed")
        rows = {key.removeprefix("rows "): count for key, count in found.items() if key.startswith("rows ")}
        assert rows == {"x": number + 2, **dict.fromkeys("bcd"[: number + 1], 1)}


class HeldTick(WithState):
    def __init__(self, place):
        self.place = place

    def execute(self, tup, collector):
        if not isTick(tup):
            self.state.put(tup.value, self.state.get(tup.value, 0) + 1)
        elif (self.place / "hold").exists():
            (self.place / "at-tick").touch()
            held(self.place / "hold")


@pytest.mark.soak
@pytest.mark.parametrize("trigger", [pytest.param("once", marks=pytest.mark.soak), "availableNow"])
def test_a_tick_that_was_rolled_back_is_no_batch_of_a_next_start(spark, place, trigger):
    """Rule 3.9: a start that reads once would read what the tick did, which is nothing, and end."""
    feed(place / "in", a=["x"])
    builder = TopologyBuilder("held")
    builder.setStream("lines", lines_of(spark, place / "in"))
    builder.setBolt("count", HeldTick(place)).globalGrouping("lines").setTicks(0.2)
    topology = builder.createTopology()
    query = submit(topology, spark, place / "ck", trigger={"processingTime": "50 milliseconds"})
    query.processAllAvailable()
    (place / "hold").touch()
    wait_for((place / "at-tick").exists, "a tick")
    query.stop(timeout=0)
    assert kinds_of_all(place / "ck")[-1] in ("PREPARING", "ROLLED_BACK"), "the next start rolls it back, or this one"
    (place / "hold").unlink()
    feed(place / "in", b=["y"])
    run(topology, spark, place / "ck", trigger={trigger: True})
    assert state(place / "ck", "count") == {"x": 1, "y": 1}


# ---- closeTime of a streaming DataFrame.


CLOSES = {"availableNow": True, "closeTime": True}
CLOSE_FIELDS = "partition int, at timestamp"


def topology(add):
    builder = TopologyBuilder("closing")
    add(builder)
    builder.setBolt("windows", PerTen().withTumblingWindow("10 seconds")).globalGrouping("rows")
    builder.setBolt("keep", CloseKeep()).localOrShuffleGrouping("windows")
    return builder.createTopology()


def windows(place):
    with Checkpoint(place / "ck").state("keep") as state:
        return {secs: count for (_, _, secs, rows), count in state.items() for _ in range(rows)}


def write(folder, name, *times):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps({"partition": 0, "at": each.isoformat()}) + "\n" for each in times))


def test_a_streaming_dataframe_closes_once(spark, place):
    def of():
        frame = spark.readStream.schema(CLOSE_FIELDS).json(str(place / "in"))
        return topology(lambda builder: builder.setStream("rows", frame, timestamp="at"))

    write(place / "in", "a.json", at(1), at(11))
    for _ in range(2):  # the second start finds nothing new
        run(of(), spark, place / "ck", trigger=CLOSES)
        assert windows(place) == {at(0): 1, at(10): 1}
    write(place / "in", "b.json", at(21))
    for _ in range(2):
        with pytest.raises(InputError, match="closed by transaction 2 "):
            run(of(), spark, place / "ck", trigger={"availableNow": True})
    assert windows(place) == {at(0): 1, at(10): 1}


@pytest.mark.soak
def test_a_query_of_sparks_that_others_stop_closes_nothing(spark, place):
    """Its input is not read to the end."""
    go = place / "go"

    def waiting(batches):
        for batch in batches:
            if at(21) in batch.column(1).to_pylist():
                (place / "held").touch()
                wait_for(go.exists, "the sign to go on")
            yield batch

    for number, secs in enumerate((1, 21, 41)):
        write(place / "in", f"{number}.json", at(secs))
        os.utime(place / "in" / f"{number}.json", (number, number))
    lines = spark.readStream.schema(CLOSE_FIELDS).option("maxFilesPerTrigger", 1).json(str(place / "in"))
    frame = lines.mapInArrow(waiting, CLOSE_FIELDS)
    of = topology(lambda builder: builder.setStream("rows", frame, timestamp="at"))
    query = submit(of, spark, place / "ck", trigger=CLOSES)
    wait_for((place / "held").exists, "the second batch to be staged")
    (own,) = [each for each in spark.streams.active if each.name.startswith("closing")]
    stopping = threading.Thread(target=own.stop)
    stopping.start()
    wait_for(lambda: not own.isActive, "it to be stopped")
    go.touch()
    stopping.join()
    with pytest.raises(InputError, match="event time is not closed"):
        query.awaitTermination()
    assert at(40) not in windows(place)
    run(of, spark, place / "ck", trigger=CLOSES)
    assert windows(place) == {at(0): 1, at(20): 1, at(40): 1}


def test_mistakes_are_refused(spark, place):
    untimed = topology(lambda builder: builder.setSpout("rows", Planned([[[1]]])))
    with pytest.raises(ConfigError, match="no input has any"):
        run(untimed, spark, place / "ck", trigger=CLOSES)
    timed = topology(lambda builder: builder.setSpout("rows", Planned([[[1]]]), timestamp="at"))
    for trigger in ({"closeTime": True}, {"once": True, "closeTime": True}, CLOSES | {"closeTime": 1.5}):
        with pytest.raises(ConfigError, match="trigger must be one of"):
            run(timed, spark, place / "ck", trigger=trigger)
