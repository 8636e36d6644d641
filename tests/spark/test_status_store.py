"""Spark's status store, which tells of stages that were run again, hears of everything later than the driver does."""

import threading

import pytest
from pyspark.java_gateway import ensure_callback_server_started

from statefx import submit
from statefx.errors import TransactionError
from statefx.spark import internals
from tests.spark.bolts import word_count
from tests.spark.running import BOUND_SECS, kinds, reasons, shown, state, wait_for

pytestmark = pytest.mark.slow


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
