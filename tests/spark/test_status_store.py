"""Spark's status store, which tells of stages that were run again, hears of everything later than the driver does."""

import threading

import pytest
from pyspark.java_gateway import ensure_callback_server_started

from statefx import submit
from tests.spark.bolts import word_count
from tests.spark.running import BOUND_SECS, kinds, reasons, state, wait_for

pytestmark = pytest.mark.slow


class Stalled:
    """A listener behind the status store's own that lets nothing pass after a job's start, until told to."""

    def __init__(self):
        self.go = threading.Event()

    def onJobStart(self, event):  # noqa: N802 - Spark's name
        self.go.wait(BOUND_SECS)

    def __getattr__(self, name):
        if not name.startswith("on"):
            raise AttributeError(name)
        return lambda *event: None

    class Java:
        implements = ["org.apache.spark.scheduler.SparkListenerInterface"]


def test_nothing_is_committed_before_the_store_has_told_of_the_whole_job(spark, place):
    ensure_callback_server_started(spark.sparkContext._gateway)
    bus = spark.sparkContext._jsc.sc().listenerBus()
    stalled = Stalled()
    bus.addToStatusQueue(stalled)
    try:
        query = submit(word_count(spark.createDataFrame([("a b a",)], "value string")), spark, place / "ck")
        wait_for(lambda: ("ROLLED_BACK", 1, 0) in kinds(place / "ck"), "the attempt to be rolled back")
        stalled.go.set()
        assert query.awaitTermination(BOUND_SECS)
    finally:
        stalled.go.set()
        bus.removeListener(stalled)
    assert reasons(place / "ck")[0].startswith("Spark's status store does not tell")
    assert state(place / "ck", "count") == {"a": 2, "b": 1}
