"""Python workers of which Spark has lost the program that starts them, and does not notice."""

import os
import signal
import uuid
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark import InheritableThread
from pyspark.errors import PySparkException

from tests.spark.bolts import word_count
from tests.spark.running import feed, lines_of, run, state, wait_for

pytestmark = pytest.mark.slow

TRIES = 40
"""Spark does not notice every other time or so; a try takes a second at most."""


def programs(spark):
    """The processes that start workers, children of the JVM."""
    jvm = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    found = set()
    for children in Path(f"/proc/{jvm}/task").glob("*/children"):
        for process in children.read_text().split():
            try:
                if b"pyspark.daemon" in Path(f"/proc/{process}/cmdline").read_bytes():
                    found.add(int(process))
            except OSError:
                continue
    return found


def fails(spark):
    """What a job of the user's own comes to."""

    def same(batches):
        yield from batches

    try:
        spark.range(0, 1, 1, 1).mapInArrow(same, "id long").collect()
    except (PySparkException, Py4JError) as error:
        return str(error)
    return ""


def lose(spark, group):
    """Kill the program while it starts, after the task that waits for it was cancelled."""

    def work():
        spark.sparkContext.setJobGroup(group, "to be cancelled", interruptOnCancel=True)
        fails(spark)

    before = programs(spark)
    thread = InheritableThread(target=work)
    thread.start()
    (program,) = wait_for(lambda: programs(spark) - before, "Spark to start workers")
    os.kill(program, signal.SIGSTOP)
    spark.sparkContext.cancelJobGroup(group)
    thread.join(60)
    os.kill(program, signal.SIGKILL)


@pytest.fixture
def lost(spark, monkeypatch):
    """Only for functions with an environment of this test's own: all others find their workers."""
    for _ in range(TRIES):
        monkeypatch.setitem(spark.sparkContext.environment, "STATEFX_TEST", uuid.uuid4().hex)
        lose(spark, f"lost-{uuid.uuid4().hex}")
        if "NullPointerException" in fails(spark):
            return
    raise AssertionError("Spark always noticed")


def test_a_topology_is_given_others(spark, place, lost, caplog):
    feed(place / "in", a=["x", "y"], b=["x"])
    run(word_count(lines_of(spark, place / "in")), spark, place / "ck", trigger={"availableNow": True})
    assert state(place / "ck", "count") == {"x": 2, "y": 1}
    assert "Spark has lost the program that starts its Python workers" in caplog.text
    assert "NullPointerException" in fails(spark), "the user's own functions have the others still"
