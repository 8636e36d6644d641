"""Workers that die, jobs that are cancelled, transactions that take too long: the next attempt is exact."""

import os
import signal
import threading
import time

import pytest

from statefx import BasicBolt, StatefulBolt, submit
from statefx.errors import AttemptsExhaustedError
from tests.spark.bolts import Once, recount, word_count
from tests.spark.running import BOUND_SECS, feed, kinds, lines_of, reasons, run, state, wait_for

pytestmark = pytest.mark.slow

FILES = {name: [f"{name} b c {number % 7}" for number in range(40)] for name in "abc"}
ALL = [line for lines in FILES.values() for line in lines]


def held(path, bound_secs=BOUND_SECS):
    """Wait, in a bolt, as long as a file exists."""
    end = time.monotonic() + bound_secs
    while os.path.exists(path) and time.monotonic() < end:
        time.sleep(0.01)  # noqa: TID251 - a wait with a bound


class Count(StatefulBolt):
    """Counts words, and does something odd once, at some word of a later transaction."""

    outputFields = "word string, count long"

    def __init__(self, once, odd):
        self.once = once
        self.odd = odd

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.counts = state
        self.left = 5

    def execute(self, tup, collector):
        self.counts.put(tup.word, self.counts.get(tup.word, 0) + 1)
        self.left -= 1
        if self.context.txid == 2 and self.left == 0 and self.once:
            self.odd()


class Killer(BasicBolt):
    outputFields = "word string"

    def execute(self, tup, collector):
        os.kill(os.getpid(), signal.SIGKILL)


def test_workers_that_are_killed_each_time_end_the_query_with_a_bound(spark, place):
    topology = word_count(spark.createDataFrame([("a",)], "value string"), split=Killer())
    with pytest.raises(AttemptsExhaustedError, match=r"failed 2 times.*(?i:crashed|exited)"):
        run(topology, spark, place / "ck", {"topology.transaction.attempts.max": 2})
    assert kinds(place / "ck")[-1] == ("ROLLED_BACK", 1, 1)


def test_the_user_cancels_all_jobs(spark, place):
    feed(place / "in", **FILES)
    hold = place / "hold"
    hold.touch()
    once = Once(place)
    topology = word_count(lines_of(spark, place / "in"), count=Count(once, lambda: held(hold)))
    query = submit(topology, spark, place / "ck", trigger={"availableNow": True})
    wait_for(lambda: once.happened, "the transaction to be at work")
    spark.sparkContext.cancelAllJobs()
    wait_for(lambda: ("ROLLED_BACK", 2, 0) in kinds(place / "ck"), "the attempt to be rolled back")
    hold.unlink()
    assert query.awaitTermination(BOUND_SECS)
    assert query.exception() is None
    assert "ancel" in reasons(place / "ck")[0]
    assert state(place / "ck", "count") == recount(ALL)


class Noting(Count):
    """Writes down each rollback."""

    def preRollback(self):
        with open(self.once.path + "-rolled-back", "a", encoding="ascii") as file:
            file.write(f"{self.context.txid}.{self.context.attempt}\n")


def test_stop_drains_or_rolls_back(spark, place):
    feed(place / "in", **FILES)
    hold = place / "hold"
    hold.touch()
    once = Once(place)
    topology = word_count(lines_of(spark, place / "in"), count=Noting(once, lambda: held(hold)))
    query = submit(topology, spark, place / "ck", trigger={"processingTime": "0 seconds"})
    wait_for(lambda: once.happened, "the transaction to be at work")
    began = time.monotonic()
    query.stop(timeout=0.2)  # can't be drained, and its task does not answer
    assert time.monotonic() - began < 20
    assert query.exception() is None
    assert kinds(place / "ck")[-1] == ("PREPARING", 2, 0)

    (place / "once").unlink()
    query = submit(topology, spark, place / "ck", trigger={"processingTime": "0 seconds"})
    wait_for(lambda: once.happened, "the transaction to be at work")
    rolled_back = (place / "once-rolled-back").read_text(encoding="ascii").split()
    assert set(rolled_back) == {"2.0"}
    assert len(rolled_back) >= 2  # in each task; the first driver may have had one of them do it
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    wait_for(lambda: query._feed._draining, "the query to drain")
    hold.unlink()
    stopping.join(BOUND_SECS)
    assert kinds(place / "ck")[-1] == ("COMMITTING", 2, 1)  # and the third was not begun
    run(topology, spark, place / "ck", trigger={"availableNow": True})
    assert state(place / "ck", "count") == recount(ALL)


def test_stop_waits_for_what_is_at_work_with_available_now(spark, place):
    """Spark ends its own query at once, and the run of all tasks does not belong to it."""
    feed(place / "in", **FILES)
    hold = place / "hold"
    hold.touch()
    once = Once(place)
    topology = word_count(lines_of(spark, place / "in"), count=Count(once, lambda: held(hold)))
    query = submit(topology, spark, place / "ck", trigger={"availableNow": True})
    wait_for(lambda: once.happened, "the transaction to be at work")
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    wait_for(lambda: not spark.streams.active, "Spark's query to end")
    hold.unlink()
    stopping.join(BOUND_SECS)
    assert kinds(place / "ck")[-2:] == [("PREPARING", 2, 0), ("COMMITTING", 2, 0)]


def test_somebody_stops_spark_s_own_query(spark, place):
    feed(place / "in", **FILES)
    hold = place / "hold"
    hold.touch()
    once = Once(place)
    topology = word_count(lines_of(spark, place / "in"), count=Count(once, lambda: held(hold)))
    query = submit(topology, spark, place / "ck", trigger={"processingTime": "0 seconds"})
    wait_for(lambda: once.happened, "the transaction to be at work")
    (inner,) = spark.streams.active
    inner.stop()
    hold.unlink()
    assert query.awaitTermination(BOUND_SECS)
    assert query.exception() is None
    assert kinds(place / "ck")[-1] == ("COMMITTING", 2, 0)  # what it has staged, and no more
    run(topology, spark, place / "ck", trigger={"availableNow": True})
    assert state(place / "ck", "count") == recount(ALL)


def test_a_second_driver_in_the_same_session(spark, place):
    feed(place / "in", **FILES)
    hold = place / "hold"
    hold.touch()
    once = Once(place)
    topology = word_count(lines_of(spark, place / "in"), count=Count(once, lambda: held(hold)))
    first = submit(topology, spark, place / "ck", trigger={"processingTime": "0 seconds"})
    wait_for(lambda: once.happened, "the transaction to be at work")
    second = submit(topology, spark, place / "ck", trigger={"availableNow": True})
    hold.unlink()
    assert second.awaitTermination(BOUND_SECS)
    with pytest.raises(Exception, match=r"generation 2|taken over"):
        first.awaitTermination(BOUND_SECS)
    assert type(first.exception()).__name__ == "FencedError"
    assert state(place / "ck", "count") == recount(ALL)
