"""The job that stages rows of DataFrames: what it leaves behind, what it waits for, and who starts it again."""

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.functions import udf
from pyspark.util import InheritableThread

from statefx import TopologyBuilder, isTick, submit
from statefx.errors import AttemptsExhaustedError, FailedException, FencedError, TransactionError
from statefx.log.log import read_state
from statefx.protocol import messages
from statefx.runtime import staging as parts
from statefx.spark import internals, staging
from statefx.spark.job import held_slots
from statefx.state.contract.caches import cache_folder
from statefx.storage import FolderStorage
from tests.bolts import WithState
from tests.spark.bolts import Once
from tests.spark.drivers import log_of
from tests.spark.running import feed, kinds, lines_of, run, state, wait_for

pytestmark = pytest.mark.slow


class CountRows(WithState):
    """Counts how often a row comes."""

    def execute(self, tup, collector):
        if not isTick(tup):
            self.state.put(tup[0], self.state.get(tup[0], 0) + 1)


def counting(frame, ticks_secs=None):
    builder = TopologyBuilder("counting")
    builder.setStream("rows", frame)
    counts = builder.setBolt("count", CountRows()).globalGrouping("rows")
    if ticks_secs is not None:
        counts.setTicks(ticks_secs)
    return builder.createTopology()


def killing(value):
    if value == "bad":
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def never_staged(spark, place):
    """Lines of which ``bad`` can't be staged; Spark keeps their shuffle, so its query has to be started again."""
    return lines_of(spark, place / "in").repartition("value").select(udf(killing, "string")("value").alias("value"))


def staged_files(place):
    lineage = read_state(FolderStorage(place / "ck")).lineage
    return list(Path(cache_folder(), "staged").glob(f"{lineage}-*/**/*.arrow"))


@pytest.mark.soak
def test_restarts_beside_ticks_are_bounded(spark, place):
    """Ticks are committed in between, but the batch gets no further."""
    feed(place / "in", a=["good"], b=["bad"])
    config = {"topology.transaction.attempts.max": 2, "topology.transaction.retry.delay.ms": 200}
    topology = counting(never_staged(spark, place), ticks_secs=0.2)
    with pytest.raises(AttemptsExhaustedError, match=r"Spark's query had to be started again 3 times"):
        run(topology, spark, place / "ck", config, {"processingTime": "10 milliseconds"})
    assert state(place / "ck", "count") == {"good": 1}
    assert kinds(place / "ck")[-1][1] > 1, "a tick was committed"


@pytest.mark.soak
def test_an_older_driver_leaves_the_query_of_its_successor_alone(spark, place, caplog):
    feed(place / "in", a=["good"], b=["bad"])
    config = {"topology.transaction.retry.delay.ms": 4000}
    older = submit(counting(never_staged(spark, place)), spark, place / "ck", config)
    wait_for(lambda: "Spark's query is started again" in caplog.text, "the older driver to pause before that")
    newer = submit(counting(lines_of(spark, place / "in")), spark, place / "ck")
    newer.processAllAvailable()
    with pytest.raises(FencedError):
        older.awaitTermination()
    feed(place / "in", c=["last"])
    newer.processAllAvailable()
    assert newer.isActive
    newer.stop()
    assert state(place / "ck", "count") == {"good": 1, "bad": 1, "last": 1}


def test_files_of_a_job_that_failed_are_deleted(spark, place):
    """One task has written its part when another one dies."""
    once = Once(place)

    def dying(batches):
        for batch in batches:
            if "b" in batch.column(0).to_pylist() and once:
                wait_for(lambda: staged_files(place), "the part of the other task")
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    long = ["a" * 100] * 1000
    feed(place / "in", a=long, b=["b"])
    frame = lines_of(spark, place / "in", files=2).mapInArrow(dying, "value string")
    query = submit(counting(frame), spark, place / "ck", {"topology.transaction.retry.delay.ms": 10})
    query.processAllAvailable()
    assert once.happened
    wait_for(lambda: not staged_files(place), "all parts to be deleted", 30)
    query.stop()
    assert state(place / "ck", "count") == {long[0]: 1000, "b": 1}


def test_files_that_a_repeated_task_has_left_are_deleted(spark, place, monkeypatch):
    """Spark runs a task twice, by speculation or since its worker died; the job names the files of one attempt."""
    left = []

    def repeated(self, *given, stage=staging.Stager.stage):
        staged = stage(self, *given)
        left.append(f"{staged[0].name.removesuffix('.arrow')}1.arrow")
        self._storage.put(left[-1], b"of another attempt")
        return staged

    monkeypatch.setattr(staging.Stager, "stage", repeated)
    monkeypatch.setattr(staging, "SWEEP_BATCHES", 1)
    (place / "in").mkdir()
    query = submit(counting(lines_of(spark, place / "in")), spark, place / "ck")
    for name in "abc":
        feed(place / "in", **{name: [name * 100] * 1000})
        query.processAllAvailable()
    found = {f"input/{path.name}" for path in staged_files(place)}
    query.stop()
    assert left[0] not in found
    assert left[2] in found, "its batch may not be committed yet"
    assert state(place / "ck", "count") == {name * 100: 1000 for name in "abc"}


@pytest.mark.soak
def test_parts_of_older_drivers_are_deleted_in_the_checkpoint_too(spark, place):
    """They ran on a cluster, and this one with a local master."""
    feed(place / "in", a=["x"])
    topology = counting(lines_of(spark, place / "in"))
    run(topology, spark, place / "ck", trigger={"availableNow": True})
    (place / "ck" / "input").mkdir()
    for generation in (1, 2, 3):
        (place / "ck" / "input" / f"{generation}-part.arrow").touch()
    run(topology, spark, place / "ck", trigger={"availableNow": True})
    left = [path.name for path in (place / "ck" / "input").iterdir()]
    assert sorted(left) == ["2-part.arrow", "3-part.arrow"], "those of the driver itself, and of a newer one, stay"


def test_what_a_worker_was_writing_when_it_died_is_deleted_by_a_start(spark, place):
    """In the checkpoint, where all tasks of a cluster write. What is young may be still written."""
    feed(place / "in", a=["x"])
    topology = counting(lines_of(spark, place / "in"))
    run(topology, spark, place / "ck", trigger={"availableNow": True})
    (place / "ck" / "input").mkdir()
    old, young = (place / "ck" / "input" / f".unfinished-1-{each}.arrow-0" for each in ("old", "young"))
    for path in old, young:
        path.touch()
    os.utime(old, (1, 1))
    run(topology, spark, place / "ck", trigger={"availableNow": True})
    assert young.exists()
    assert not old.exists()


def test_parts_of_many_tasks_that_travel_with_one_order_are_not_too_long_for_it(spark, place, monkeypatch):
    """Each of them is small; the rest of them is in files, where they can't all travel so."""
    monkeypatch.setattr(messages, "FRAME_BYTES_MAX", 80_000)
    monkeypatch.setattr(parts, "INLINE_BYTES_IN_ALL", 20_000)
    rows = spark.range(0, 8 * 560, 1, 8).selectExpr("concat(id, '-', uuid()) as value")
    run(counting(rows), spark, place / "ck")
    assert len(state(place / "ck", "count")) == 8 * 560
    assert kinds(place / "ck") == [("PREPARING", 1, 0), ("COMMITTING", 1, 0)]


@pytest.mark.parametrize("lasts", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_folder_that_can_not_be_written_is_told_and_tried_again(spark, place, monkeypatch, lasts):
    monkeypatch.setattr(parts, "INLINE_BYTES_MAX", 0)
    feed(place / "in", a=["x"])
    topology = counting(lines_of(spark, place / "in"))
    config = {"topology.transaction.attempts.max": 3, "topology.transaction.retry.delay.ms": 200}
    query = submit(topology, spark, place / "ck", config, {"processingTime": "10 milliseconds"})
    query.processAllAvailable()
    lineage = read_state(FolderStorage(place / "ck")).lineage
    (content,) = Path(cache_folder(), "staged").glob(f"{lineage}-*/content")
    shutil.rmtree(content)
    content.write_bytes(b"")
    feed(place / "in", b=["y"])
    if lasts:
        says = rf"transaction 2 failed 3 times .*: rows that wait .* written to {content} \(.*Not a directory"
        with pytest.raises(AttemptsExhaustedError, match=says):
            query.awaitTermination()
    else:
        stuck = wait_for(lambda: query.status.get("stuck"), "the job to fail")
        assert stuck["reason"].startswith("rows that wait for their transaction can't be written to")
        content.unlink()
        query.processAllAvailable()
        query.stop()
    assert state(place / "ck", "count") == ({"x": 1} if lasts else {"x": 1, "y": 1})


@pytest.fixture
def taken(spark):
    """Take all slots that topologies leave, until the block ends."""

    @contextlib.contextmanager
    def take():
        context, tracker = spark.sparkContext, spark.sparkContext.statusTracker()
        free = internals.task_slots(context) - held_slots()
        sleeping = spark.range(0, free, 1, free).selectExpr("java_method('java.lang.Thread', 'sleep', 600000L)")

        def sleep():
            context.setJobGroup("taken", "takes all slots", interruptOnCancel=True)
            with contextlib.suppress(PySparkException, Py4JJavaError):
                sleeping.collect()

        def running():
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("taken")]
            stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
            return sum(stage.numActiveTasks for stage in stages if stage)

        thread = InheritableThread(target=sleep)
        thread.start()
        try:
            wait_for(lambda: running() == free, "all slots to be taken")
            yield
        finally:
            context.cancelJobGroup("taken")
            thread.join()

    return take


@pytest.mark.soak
def test_a_job_that_waits_for_slots_is_shown(spark, place, taken, monkeypatch, caplog):
    monkeypatch.setattr(staging, "SLOTS_SECS", 0.2)
    feed(place / "in", a=["x"])
    query = submit(counting(lines_of(spark, place / "in")), spark, place / "ck")
    query.processAllAvailable()
    with taken():
        feed(place / "in", b=["y"])
        stuck = wait_for(lambda: query.status.get("stuck"), "the job to wait")
        assert (stuck["phase"], stuck["txid"]) == ("PLANNING", 2)
        assert stuck["reason"].startswith("staging waits for slots: no task of the job")
        assert "transaction 2: staging waits for slots" in caplog.text
        stager = query._feed._stager
        assert stager.is_busy
        assert not stager.holds_slots, "a run that finds no slots does not wait for its end"
    query.processAllAvailable()
    assert "stuck" not in query.status
    query.stop()
    assert state(place / "ck", "count") == {"x": 1, "y": 1}


@pytest.mark.parametrize(
    ("jobs", "ran", "wrote_twice"),
    [
        ({1: [0, 1]}, {0: 10, 1: 11}, False),
        ({1: [0], 2: [1, 2]}, {0: 10, 2: 11}, False),  # the second job passes over the shuffle of the first one
        ({1: [0], 2: [1, 2]}, {0: 10, 1: 10, 2: 11}, True),  # its files were lost in between
        ({1: [0], 2: [1, 2], 3: [3, 4, 5]}, {0: 10, 2: 11, 3: 10, 4: 11, 5: 12}, True),
        ({1: [0, 1], 2: [0, 2]}, {0: 10, 1: 11, 2: 12}, False),  # two jobs at the same time share a stage
        ({1: [0, 1], 2: [2, 3]}, {0: 10, 1: 11, 3: 11}, False),  # ``take``: the same RDD, other partitions
    ],
)
def test_a_shuffle_that_two_jobs_of_a_batch_wrote_is_seen(jobs, ran, wrote_twice):
    """Rule 15.1."""
    assert staging._wrote_twice(jobs, ran) is wrote_twice


def lose(context):
    """Take away what a lost executor would: a file of each shuffle that is there."""
    outputs = internals._map_outputs(context)
    for number in range(1000):
        if outputs.containsShuffle(number):
            status = outputs.shuffleStatuses().apply(number)
            there = [each.location() for each in status.mapStatuses() if each is not None]
            if len(there) > 1:
                status.removeMapOutput(0, there[0])


@pytest.mark.soak
@pytest.mark.daily(1)
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_job_that_writes_a_shuffle_once_more_is_told_from_one_that_reads_it(spark, place, is_lost):
    """As where an executor dies between two jobs of a batch: the second one runs a new stage, for the first time."""
    context = spark.sparkContext
    stager = run(counting(spark.range(1).selectExpr("string(id)")), spark, place / "ck")._feed._stager
    rdd = context.parallelize(range(8), 2).map(lambda each: (each, 1)).groupByKey(2)
    for tag in (stager._tag, staging._rows_of(stager._tag)):
        context.addJobTag(tag)
    try:
        rdd.count()
        if is_lost:
            lose(context)
        rdd.count()
    finally:
        for tag in (stager._tag, staging._rows_of(stager._tag)):
            context.removeJobTag(tag)
    wait_for(lambda: len(internals.ended_jobs(context, stager._tag) or ()) == 3, "the jobs to be known")
    assert stager._ran_again(set(), set()) is is_lost


@pytest.mark.daily(1)
@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_a_cache_that_is_lost_when_it_has_been_made_is_not_mixed(spark, place, monkeypatch, adaptive):
    """With adaptive execution its shuffle is there before the job that reads the rows; that may not write it again."""
    collected = internals.collected

    def losing(frame, column):
        lose(spark.sparkContext)
        return collected(frame, column)

    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    monkeypatch.setattr(internals, "collected", losing)
    frame = spark.range(0, 40, 1, 2).selectExpr("string(id) as key").repartition(3).cache()
    try:
        if adaptive == "true":
            with pytest.raises(TransactionError, match=r"had to be run again.*submit it again"):
                run(counting(frame), spark, place / "ck")
            assert kinds(place / "ck") == []
            frame.unpersist()
            monkeypatch.undo()
        run(counting(frame), spark, place / "ck")
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", before)
        spark.catalog.clearCache()
    assert state(place / "ck", "count") == {str(number): 1 for number in range(40)}


# ---- Rows are staged once for all attempts; staging that fails is tried again, within a bound.


FILES = {name: [f"{name} {number}" for number in range(20)] for name in "ab"}
NOW = {"trigger": {"availableNow": True}}


class Fails(WithState):
    def __init__(self, once):
        self.once = once

    def execute(self, tup, collector):
        self.state.put(tup[0], self.state.get(tup[0], 0) + 1)
        if self.context.txid == 2 and self.once:
            raise FailedException("the feed is stale")


def renewed_counting(frame, once=False):
    builder = TopologyBuilder("counting")
    builder.setStream("rows", frame)
    builder.setBolt("count", Fails(once), parallelism=2).fieldsGrouping("rows", "value")
    return builder.createTopology()


@pytest.mark.daily(1)
@pytest.mark.parametrize("shuffled", [True, False])
def test_another_attempt_reads_what_was_staged(spark, place, shuffled):
    """Rule 15.2: also of a DataFrame that would be computed otherwise the second time."""
    feed(place / "in", **FILES)
    computed = place / "computed"

    @udf("string")
    def noted(value):
        with open(computed, "a", encoding="ascii") as file:
            file.write(f"{value}\n")
        return value

    lines = lines_of(spark, place / "in").select(noted("value").alias("value"))
    run(renewed_counting(lines.repartition("value") if shuffled else lines, Once(place)), spark, place / "ck", **NOW)
    assert state(place / "ck", "count") == dict.fromkeys(FILES["a"] + FILES["b"], 1)
    assert log_of(place).generation == 1
    assert computed.read_text(encoding="ascii").split("\n").count("b 0") == 1
    assert kinds(place / "ck")[-4:] == [
        ("PREPARING", 2, 0),
        ("ROLLED_BACK", 2, 0),
        ("PREPARING", 2, 1),
        ("COMMITTING", 2, 1),
    ]


@pytest.mark.parametrize(
    ("shuffled", "says"),
    [
        pytest.param(True, r"Spark's query had to be started again 3 times", marks=pytest.mark.soak),
        (False, r"transaction 2 failed 2 times"),
    ],
)
def test_staging_that_fails_each_time_ends_the_query(spark, place, shuffled, says):
    """Where Spark keeps a shuffle, only a new query computes it anew; both are bounded."""
    feed(place / "in", **FILES)

    @udf("string")
    def killing(value):
        if value == "b 0":
            os.kill(os.getpid(), signal.SIGKILL)
        return value

    lines = lines_of(spark, place / "in")
    frame = (lines.repartition("value") if shuffled else lines).select(killing("value").alias("value"))
    config = {"topology.transaction.attempts.max": 2}
    with pytest.raises(AttemptsExhaustedError, match=says):
        run(renewed_counting(frame), spark, place / "ck", config, **NOW)
    assert state(place / "ck", "count") == dict.fromkeys(FILES["a"], 1)
    assert kinds(place / "ck")[-1] == ("COMMITTING", 1, 0)  # nothing has begun that could not be read


class There(WithState):
    def execute(self, tup, collector):
        path, end = tup.path.removeprefix("file://"), time.monotonic() + 0.7
        while os.path.exists(path) and time.monotonic() < end:
            time.sleep(0.01)  # noqa: TID251 - a wait with a bound
        self.state.put(os.path.basename(path), os.path.exists(path))


@pytest.mark.soak
def test_a_source_keeps_what_is_not_committed(spark, place):
    """Spark tells it to let go of a batch when it plans the next one."""
    feed(place / "in", a=["x"], b=["x"], c=["x"])
    reading = spark.readStream.schema("value string").option("cleanSource", "delete")
    frame = reading.option("maxFilesPerTrigger", 1).text(str(place / "in")).selectExpr("input_file_name() as path")
    builder = TopologyBuilder("cleaned")
    builder.setStream("rows", frame)
    builder.setBolt("there", There()).globalGrouping("rows")
    run(builder.createTopology(), spark, place / "ck", **NOW)
    assert state(place / "ck", "there") == {"a": True, "b": True, "c": True}
    wait_for(lambda: not (place / "in" / "a").exists(), "the first file to be cleaned away")
