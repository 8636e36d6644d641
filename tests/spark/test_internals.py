"""Each thing that statefx asks of Spark beyond PySpark's public interface, against real Spark.

When these fail with another version of Spark, this is what `statefx.spark.internals` has to do otherwise.
"""

import contextlib
import os
import re
import sys
import threading
from urllib.request import urlopen
from uuid import uuid4

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession
from pyspark.util import InheritableThread

from statefx import TopologyBuilder, submit
from statefx.errors import TransactionError
from statefx.spark import internals
from tests.bolts import Count, Pass, Split
from tests.spark.bolts import Keep, word_count
from tests.spark.running import BOUND_SECS, feed, kinds, lines_of, reasons, run, shown, state, wait_for

SCHEMA = pa.schema([("number", pa.int32(), False), ("name", pa.binary())])
COLUMNS = "number int not null, name binary"


def named(batches):
    """Run in workers: a row for each number."""
    for batch in batches:
        numbers = batch.column(0).cast(pa.int32())
        names = pa.array([str(number).encode() for number in numbers.to_pylist()], pa.binary())
        yield pa.RecordBatch.from_arrays([numbers, names], schema=SCHEMA)


@pytest.fixture
def schema(spark):
    return spark.createDataFrame([], COLUMNS).schema


@pytest.fixture
def context(spark):
    return spark.sparkContext


@pytest.mark.slow
def test_a_context_that_runs(context):
    assert not internals.is_stopped(context)
    assert not internals.stopped_here(context)


def is_same(session, other):
    """Tell whether two objects of PySpark stand for the same session of the JVM."""
    return bool(session._jsparkSession.equals(other._jsparkSession))


def test_a_clone_has_settings_of_its_own_and_is_another_session(spark):
    clone = internals.clone(spark)
    clone.conf.set("spark.sql.shuffle.partitions", "77")
    assert spark.conf.get("spark.sql.shuffle.partitions") != "77"
    assert is_same(spark, SparkSession(spark.sparkContext, spark._jsparkSession))
    assert not is_same(spark, clone)
    frame = internals.rebase(spark.range(3), clone)
    assert is_same(frame.sparkSession, clone)
    assert frame.count() == 3


def test_the_session_that_a_thread_goes_by(spark):
    """As the JVM has it: PySpark's own notion is another one."""
    active = SparkSession._get_j_spark_session_class(spark._jvm).getActiveSession
    clone = internals.clone(spark)
    try:
        internals.activate(clone)
        assert active().get().equals(clone._jsparkSession)
    finally:
        internals.activate(spark)
    assert active().get().equals(spark._jsparkSession)


def test_queries_of_all_sessions_are_known_by_their_id(spark, place):
    (place / "in").mkdir()
    writer = lines_of(internals.clone(spark), place / "in").writeStream.foreachBatch(lambda frame, batch: None)
    query = writer.option("checkpointLocation", f"file:{place}/ck").queryName("mine").start()
    try:
        wait_for(lambda: internals.name_of_running(spark, query.id) == "mine", "the query to be known")
        assert internals.name_of_running(spark, str(uuid4())) is None
    finally:
        query.stop()
    assert internals.name_of_running(spark, query.id) is None


def test_lines_are_kept_out_of_sparks_log_by_one_filter_for_each_pattern(spark, context):
    """Log4j's own filters, as its appenders have them."""
    for pattern in ("secret", "hidden", "secret"):
        internals.deny_log_lines(context, pattern)
    log4j = context._jvm.org.apache.logging.log4j
    found = [
        str(appender.getFilter())
        for appender in log4j.LogManager.getContext(False).getConfiguration().getAppenders().values()
    ]
    assert found
    assert all(each.count("hidden") == each.count("secret") == 1 for each in found)


@pytest.mark.slow
def test_local_properties_of_a_block_are_gone_behind_it(context):
    context.setLocalProperty("mine", "before")
    with internals.own_properties(context) as own:
        own.setProperty("mine", "within")
        assert context.getLocalProperty("mine") == "within"
    assert context.getLocalProperty("mine") == "before"
    context.setLocalProperty("mine", None)


def test_workers_of_another_number_have_an_environment_of_their_own(spark, schema, context):
    def seen(batches):
        for batch in batches:
            value = os.environ.get("STATEFX_WORKERS", "").encode()
            yield pa.RecordBatch.from_arrays(
                [batch.column(0).cast(pa.int32()), pa.array([value] * len(batch), pa.binary())], schema=SCHEMA
            )

    rows = spark.range(0, 1, 1, 1)
    for number, expected in ((0, [b""]), (3, [b"3"])):
        mapped = internals.mapping(seen, schema, ["id"], number)(rows)
        assert mapped.schema == schema
        assert internals.collected(mapped, "name") == expected
    assert "STATEFX_WORKERS" not in context.environment
    with internals.worker_program(context) as program:
        assert program == os.environ["PYSPARK_PYTHON"]


def test_a_thread_that_wraps_functions_waits_for_another_one(context, monkeypatch):
    """Else it would wrap its own with the Python that the other one has put back."""
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(context, "pythonExec", "python3")
    began, programs = threading.Event(), []

    def wrap():
        began.set()
        with internals.worker_program(context):
            programs.append(context.pythonExec)

    other = threading.Thread(target=wrap)
    with internals.worker_program(context):
        other.start()
        began.wait()
        other.join(0.2)
        assert programs == []
        assert context.pythonExec == sys.executable
    other.join()
    assert (programs, context.pythonExec) == ([sys.executable], "python3")


STUCK = """\
An error occurred while calling o1.collectToPython.
: java.lang.NullPointerException
\tat java.base/java.nio.file.Path.of(Path.java:147)
\tat org.apache.spark.api.python.PythonWorkerFactory.createWorker(PythonWorkerFactory.scala:200)
"""


def test_a_program_that_starts_no_workers_any_more_is_told_by_its_trace():
    assert internals.cant_start_workers(Exception(STUCK))
    assert not internals.cant_start_workers(Exception(STUCK.replace("NullPointerException", "SocketException")))
    assert not internals.cant_start_workers(Exception(STUCK.replace("PythonWorkerFactory", "Another")))


# ---- logical plans


def test_what_spark_refuses_in_a_stream(spark, place):
    (place / "in").mkdir()
    lines = lines_of(spark, place / "in")
    internals.check_streaming(lines)
    with pytest.raises(AnalysisException):
        internals.check_streaming(lines.orderBy("value"))


def test_operators_and_folders_of_a_stream(spark, place):
    (place / "in").mkdir()
    lines = lines_of(spark, place / "in")
    table = spark.range(3).selectExpr("cast(id as string) as value").distinct()
    found = list(internals.streaming_operators(lines.join(table, "value").groupBy("value").count()))
    assert "Aggregate" in found
    assert "Join" not in found, "one with a table"
    assert "Deduplicate" not in found, "that of the table"
    assert "Join" in list(internals.streaming_operators(lines.join(lines.distinct(), "value")))
    assert list(internals.streamed_paths(lines)) == [str(place / "in")]
    assert list(internals.streamed_paths(spark.range(3))) == []


def test_a_stream_that_is_read_twice_has_one_source(spark, place):
    for name in ("one", "two"):
        (place / name).mkdir()
    one, two = (lines_of(spark, place / name) for name in ("one", "two"))
    rates = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
    united = one.union(two).union(one.selectExpr("upper(value) as value")).union(rates).union(rates).union(two)
    assert internals.sources_of(united) == [0, 1, 0, 2, 2, 1]
    assert internals.sources_of(one.join(spark.range(1))) == [0]
    assert internals.sources_of(one.union(lines_of(spark, place / "one"))) == [0, 1], "of the same folder"
    pattern = lines_of(spark, place / "o*")
    places = internals.places_of(two.union(one).union(rates).union(two).union(pattern))
    assert places == [(0, f"{place}/two"), (1, f"{place}/one"), (2, ""), (0, f"{place}/two"), (3, "")]


@pytest.mark.soak
def test_filters_upon_a_mapping_are_told_and_it_can_be_exchanged_below_them(spark, schema):
    def mapped(rows):
        return spark.range(0, rows, 1, rows).mapInArrow(named, schema)

    told = []
    frame = internals.WatchedFrame(mapped(2), lambda wide: told.append(wide) or wide)
    assert frame.where("number = 1").filter(frame.number < 5).collect() == [(1, b"1")]
    assert "number < 5" not in internals.condition_upon_map(told[0])
    assert len(told) == 1, "what a filter returns is the function's own"
    both = frame.filter("number > 1").filter(frame.number.isin(list(range(20))))
    condition = internals.condition_upon_map(both)
    assert condition.count("AttributeReference") >= 2
    assert '"hset"' not in condition
    other = internals.mapped_otherwise(both, mapped(4))
    assert sorted(other.select(frame.number).collect()) == [(2,), (3,)]
    assert other.union(both).count() == 2
    for without in (frame, frame.filter("1 = 0"), frame.filter("number = 1 / 0"), spark.range(3).filter("id = 1")):
        assert internals.condition_upon_map(without) is None


def test_sources_that_let_go_of_what_was_read_are_known(spark, place):
    reading = spark.readStream.schema("value string")
    rate = spark.readStream.format("rate")
    for keeping in (reading.text(str(place)), reading.option("cleanSource", "OFF").text(str(place)), rate.load()):
        assert not internals.lets_go(keeping.filter("1 = 1"))
    cleaned = spark.readStream.schema("value string").option("CLEANSOURCE", "delete").json(str(place))
    for letting in (cleaned, cleaned.union(reading.text(str(place)))):
        assert internals.lets_go(letting)
    socket = spark.readStream.format("socket").option("host", "localhost").option("port", 9).load()
    assert internals.lets_go(socket)


def test_shuffles_of_a_frame_are_seen(spark, place):
    """Of its own plan, and of what Spark has computed before it."""
    plain = spark.range(0, 6, 1, 2)
    grouped = plain.rdd.groupBy(lambda row: 1).map(len).toDF("int")
    for frame in (plain.repartition(3), plain.groupBy(plain.id % 2).count(), grouped):
        assert internals.has_shuffles(frame)
    assert not internals.has_shuffles(plain.filter("id > 1"))


def test_stages_that_a_frame_keeps_are_whole_or_not(spark, context):
    """What a lost executor takes along is taken away here."""
    shuffled = spark.sparkContext.parallelize([(n, n) for n in range(8)], 2).partitionBy(2)
    frame = spark.createDataFrame(shuffled, "a int, b int")
    assert internals.stages_kept(frame) == set(), "nothing is there, nothing can be mixed"
    frame.foreach(len)
    (stage,) = internals.stages_kept(frame)
    outputs = internals._map_outputs(context)
    shuffle = max(number for number in range(1000) if outputs.containsShuffle(number))
    status = outputs.shuffleStatuses().apply(shuffle)
    places = [each.location() for each in status.mapStatuses()]
    status.removeMapOutput(0, places[0])
    assert internals.stages_kept(frame) is None, "a half of it is lost"
    status.removeMapOutput(1, places[1])
    assert internals.stages_kept(frame) == set()
    cached = frame.cache().filter("a >= 0")
    cached.foreach(len)
    assert internals.stages_kept(cached) == {stage}
    status.removeMapOutput(0, places[0])
    assert internals.stages_kept(cached) == {stage}, "a whole cache needs none, and may not get any"
    frame.unpersist()
    assert internals.stages_kept(frame) is None


def lose(context, part):
    """Take away what a lost executor would: one of the files of the newest shuffle that is whole."""
    outputs = internals._map_outputs(context)
    for number in reversed(range(1000)):
        if outputs.containsShuffle(number):
            status = outputs.shuffleStatuses().apply(number)
            if all(status.mapStatuses()):
                status.removeMapOutput(part, status.mapStatuses()[part].location())
                return
    raise AssertionError("no shuffle is whole")


def test_a_cache_that_was_not_made_is_looked_at_without_a_job(spark, context):
    """It may stand on one that was made, of which a part is lost."""
    spark.catalog.clearCache()
    below = spark.range(0, 8, 1, 2).repartition(2).cache()
    below.foreach(len)
    (stage,) = internals.stages_kept(below)
    cached = below.filter("id >= 0").groupBy("id").count().cache()
    tag = f"looked-{uuid4().hex}"
    context.addJobTag(tag)
    try:
        assert internals.has_shuffles(cached)
        assert internals.stages_kept(cached) == {stage}
        assert internals.make_caches(cached)
        jobs = wait_for(lambda: internals.ended_jobs(context, tag), "the shuffle to be known as a job")
        assert len(jobs) == 1, "none before that"
    finally:
        context.removeJobTag(tag)
    assert not internals.make_caches(cached), "once"
    kept = internals.stages_kept(cached)
    assert stage in kept
    assert len(kept) == 2
    lose(context, 0)
    assert internals.stages_kept(cached) is None
    spark.catalog.clearCache()


def test_a_loss_below_a_cache_that_was_not_made_is_seen(spark, context):
    spark.catalog.clearCache()
    shuffled = context.parallelize([(n, n) for n in range(8)], 2).partitionBy(2)
    below = spark.createDataFrame(shuffled, "a int, b int")
    below.foreach(len)
    for cached in (below.repartition(3).cache(), below.cache().groupBy("a").count().cache()):
        assert len(internals.stages_kept(cached)) == 1
    lose(context, 0)
    assert internals.stages_kept(cached) is None
    spark.catalog.clearCache()


def test_shuffles_of_a_cache_that_could_not_be_made_are_kept(spark, context):
    """Adaptive execution has run the first one, and goes on from there."""
    spark.catalog.clearCache()
    good = spark.range(0, 8, 1, 2).repartition(2)
    cached = good.selectExpr("id", "if(id >= 0, raise_error('no'), id) as bad").repartition(3).cache()
    with pytest.raises(PySparkException):
        internals.make_caches(cached)
    assert len(internals.stages_kept(cached)) == 1
    lose(context, 0)
    assert internals.stages_kept(cached) is None
    spark.catalog.clearCache()


# ---- jobs


def test_jobs_and_stages_are_known_by_their_tag(spark, context):
    tag = f"known-{uuid4().hex}"
    assert internals.ended_jobs(context, tag) is None
    rdd = context.parallelize(range(4), 2).map(lambda each: (each, 1)).groupByKey(2)
    context.addJobTag(tag)
    try:
        rdd.count()
        rdd.count()  # passes over the stage that wrote the shuffle
    finally:
        context.removeJobTag(tag)
    jobs = wait_for(lambda: internals.ended_jobs(context, tag), "the jobs to be known")
    assert len(jobs) == 2
    tries = [[internals.stage_tries(context, stage) for stage in sorted(jobs[job])] for job in sorted(jobs)]
    assert tries == [[1, 1], [0, 1]]
    assert [internals.stages_completed(context, job) for job in sorted(jobs)] == [2, 1]
    assert internals.stages_completed(context, 1_000_000) is None
    assert internals.stage_tries(context, 1_000_000) is None
    last = [max(jobs[job]) for job in sorted(jobs)]
    assert [internals.rdd_of_stage(context, stage) for stage in last] == [last_rdd(context, stage) for stage in last]
    assert not internals.tasks_run(context, tag)
    assert not internals.waits_for_slots(context, tag)


def last_rdd(context, stage):
    """The RDD of a stage that no other one of the stage comes from."""
    ids = context._jsc.sc().statusStore().lastStageAttempt(stage).rddIds()
    return max(ids.apply(at) for at in range(ids.size()))


def test_jobs_whose_tasks_run_or_wait_are_known_by_their_tag(spark, context):
    """Twice as many tasks as there are slots: half of them run, and none of those of a job that comes later."""
    slots = internals.task_slots(context)
    sleep = spark.range(0, 2 * slots, 1, 2 * slots).selectExpr("java_method('java.lang.Thread', 'sleep', 600000L)")
    tags = {"first": f"first-{uuid4().hex}", "second": f"second-{uuid4().hex}"}

    def collect(tag):
        context.setJobGroup(tag, "sleeps", interruptOnCancel=True)
        context.addJobTag(tag)
        with contextlib.suppress(PySparkException, Py4JJavaError):
            sleep.collect()

    threads = [InheritableThread(target=collect, args=(tag,)) for tag in tags.values()]
    try:
        threads[0].start()
        wait_for(lambda: internals.tasks_run(context, tags["first"]), "tasks to run")
        assert not internals.waits_for_slots(context, tags["first"])
        threads[1].start()
        wait_for(lambda: internals.waits_for_slots(context, tags["second"]), "the second job to wait")
        assert not internals.tasks_run(context, tags["second"])
    finally:
        for tag in tags.values():
            context.cancelJobsWithTag(tag)
        for thread in threads:
            thread.join()


def test_a_query_that_has_read_all_is_told_from_one_that_was_stopped(spark, place):
    feed(place / "in", a="x", b="y")

    def started(batch, checkpoint="ck", trigger="availableNow"):
        lines = lines_of(spark, place / "in").writeStream.foreachBatch(batch).trigger(**{trigger: True})
        return lines.option("checkpointLocation", f"file:{place}/{checkpoint}").start()

    for _ in range(2):  # the second one begins where the first has ended
        query = started(lambda frame, batch: None)
        assert query.awaitTermination(BOUND_SECS)
        assert internals.has_read_all(query)
    for _ in range(3):  # at last there is no batch
        query = started(lambda frame, batch: None, "once", "once")
        assert query.awaitTermination(BOUND_SECS)
        assert internals.has_ended_trigger(query)
    for trigger, says in (("availableNow", internals.has_read_all), ("once", internals.has_ended_trigger)):
        held, go = threading.Event(), threading.Event()

        def stopped_in_it(frame, batch, held=held, go=go):
            held.set()
            go.wait(BOUND_SECS)
            raise RuntimeError("a batch that ends well after the stop has been read whole, and Spark may commit it")

        query = started(stopped_in_it, "other", trigger)
        assert held.wait(BOUND_SECS)
        stopping = threading.Thread(target=query.stop)
        stopping.start()
        wait_for(lambda query=query: not query.isActive, "it to be stopped")
        go.set()
        stopping.join()
        assert not says(query)


# ---- What Spark's UI shows: jobs and stages by topology, transaction and bolts.


def jobs_of(spark, topology, jobs):
    """(description, name, names of the stages) of the last `jobs` jobs, oldest first, once the UI has them."""

    def found():
        ours = [job for job in shown(spark, "jobs") if job.get("description", "").startswith(f"{topology} ")]
        return ours if len(ours) >= jobs and all(job["status"] == "SUCCEEDED" for job in ours) else None

    ours = wait_for(found, f"{jobs} jobs of {topology}")
    stages = {stage["stageId"]: stage for stage in shown(spark, "stages")}
    return [
        (job["description"], job["name"], [stages[number]["name"] for number in sorted(job["stageIds"])])
        for job in reversed(ours)
    ]


@pytest.mark.soak
def test_jobs_and_stages_of_a_stream_say_what_they_are(spark, place):
    feed(place / "in", a=["x y"], b=["x"])
    run(word_count(lines_of(spark, place / "in"), "seen-stream"), spark, place / "ck", trigger={"availableNow": True})
    living, *staging = sorted(jobs_of(spark, "seen-stream", 3))
    assert re.fullmatch(r"seen-stream run [0-9a-f]{8}: lines\[2\] → split\[2\] → count\[2\]", living[0])
    assert living[2] == ["lines[2] → split[2]", "count[2]"]
    assert staging == [
        (f"seen-stream tx {txid}: read lines", f"read lines tx {txid}", [f"read lines tx {txid}"]) for txid in (1, 2)
    ]
    with urlopen(f"{spark.sparkContext.uiWebUrl}/jobs/") as page:
        assert "lines[2] → split[2] → count[2]" in page.read().decode(), "as it is, and not as &amp;gt;"


def test_jobs_of_a_batch_say_what_they_are(spark, place):
    frame = spark.createDataFrame([("x y",)], "value string").coalesce(1)
    builder = TopologyBuilder("seen-batch")
    builder.setStream("lines", frame)
    builder.setStream("more", frame)
    builder.setBolt("split", Split(), parallelism=2).noneGrouping("lines")
    builder.setBolt("same", Pass("word string"), parallelism=2).localOrShuffleGrouping("split")
    builder.setBolt("count", Count(), parallelism=3).fieldsGrouping("same", "word")
    builder.setBolt("keep", Keep()).globalGrouping("same").globalGrouping("more")
    run(builder.createTopology(), spark, place / "ck")
    living, staging = sorted(jobs_of(spark, "seen-batch", 2))
    assert living[2] == ["lines[2] → split[2] → same[2], more[1]", "count[3], keep[1]"]
    assert staging[0] == "seen-batch tx 1: read lines, more"


def test_stages_of_the_user_s_own_plan_keep_their_names(spark, place):
    """Spark makes them before our callback; the call site that we set must not outlive it."""
    feed(place / "in", a=["x y"], b=["x"])
    counts = lines_of(spark, place / "in").repartition("value")
    run(word_count(counts, "seen-behind"), spark, place / "ck", trigger={"availableNow": True})
    staging = [stages for description, _, stages in jobs_of(spark, "seen-behind", 3) if " tx " in description]
    own = [name for names in staging for name in names if not re.fullmatch(r"read lines tx \d+", name)]
    assert len(own) == 2
    assert len(staging) == 2


def test_the_name_of_a_query_stays_over_restarts(spark, place):
    names = []
    for _ in range(2):
        feed(place / "in", a=["x"])
        query = submit(word_count(lines_of(spark, place / "in"), "named"), spark, place / "ck")
        names += [each.name for each in spark.streams.active if each.name.startswith("named")]
        query.stop()
    assert len(names) == 2
    assert len(set(names)) == 1
    assert re.fullmatch("named-[0-9a-f]{8}", names[0])


# ---- Spark's status store, which tells of stages that were run again, hears of everything later than the driver does.


class Stalled:
    """A listener behind the status store's own that lets nothing pass after a job's start, until told to."""

    def __init__(self):
        self.go = threading.Event()

    def onJobStart(self, event):  # noqa: N802 - Spark's name
        self.go.wait(BOUND_SECS)

    def equals(self, other):
        """Java has compared the references before it asks, when it looks for the listener to remove."""
        return False

    def __getattr__(self, name):
        if not name.startswith("on"):
            raise AttributeError(name)
        return lambda *event: None

    class Java:
        implements = ["org.apache.spark.scheduler.SparkListenerInterface"]


def test_nothing_is_committed_before_the_store_has_told_of_the_whole_job(spark, place, monkeypatch, caplog):
    """Of a job with a shuffle: a stage of it may have run twice."""
    monkeypatch.setattr("statefx.spark.staging._STATUS_POLLS", 20)
    ensure_callback_server_started(spark.sparkContext._gateway)
    bus = spark.sparkContext._jsc.sc().listenerBus()
    stalled = Stalled()
    kept = spark._jvm.java.util.ArrayList()
    kept.add(stalled)
    listener = kept.get(0)  # each `stalled` that is handed over is an object of its own there, which removes no other
    bus.addToStatusQueue(listener)
    try:
        frame = spark.createDataFrame([("a b a",)], "value string").repartition(2)
        query = submit(word_count(frame), spark, place / "ck")
        wait_for(lambda: "Spark's status store does not tell" in caplog.text, "it to be staged again")
        assert kinds(place / "ck") == []
        stalled.go.set()
        assert query.awaitTermination(BOUND_SECS)
    finally:
        stalled.go.set()
        bus.removeListener(listener)
    assert state(place / "ck", "count") == {"a": 2, "b": 1}


@pytest.mark.daily(1)
@pytest.mark.parametrize("forgotten", ["SKIPPED", "COMPLETE"])
def test_a_full_store_forgets_first_what_a_job_passed_over(spark, place, monkeypatch, forgotten):
    """Of these stages nothing need be known; of those that ran, it must be."""
    ended_jobs, first = internals.ended_jobs, []

    def ended(context, tag):
        jobs = ended_jobs(context, tag)
        if jobs is not None and (forgotten == "SKIPPED" or not first):
            first.extend(forget(spark, jobs, forgotten))
        return jobs

    monkeypatch.setattr(internals, "ended_jobs", ended)
    pairs = spark.sparkContext.parallelize([("a", "a b"), ("b", "b c")], 2).groupByKey(2)
    lines = spark.createDataFrame(pairs.flatMap(lambda pair: [(line,) for line in pair[1]]), "value string")
    assert lines.count() == 2  # its shuffle is there, so the job passes over the stage that would write it
    query = submit(word_count(lines), spark, place / "ck")
    if forgotten == "SKIPPED":
        assert query.awaitTermination(BOUND_SECS)
        assert first
        assert state(place / "ck", "count") == {"a": 1, "b": 2, "c": 1}
        assert not reasons(place / "ck")
    else:  # a second job over the same shuffle files is no choice
        with pytest.raises(TransactionError, match="Spark's status store does not tell"):
            query.awaitTermination(BOUND_SECS)
        assert first
        assert kinds(place / "ck") == []


def forget(spark, jobs, status):
    """Have the store forget the stages of some jobs that have a status; return their numbers."""
    numbers = {number for stages in jobs.values() for number in stages}
    gone = [each for each in shown(spark, "stages") if each["stageId"] in numbers and each["status"] == status]
    store = spark.sparkContext._jsc.sc().statusStore().store()
    kind = spark._jvm.java.lang.Class.forName("org.apache.spark.status.StageDataWrapper")
    for stage in gone:
        key = spark.sparkContext._gateway.new_array(spark._jvm.int, 2)
        key[0], key[1] = stage["stageId"], stage["attemptId"]
        store.delete(kind, key)
    return [stage["stageId"] for stage in gone]
