"""An end in the first batch: Spark begins only where nothing of a former beginning lies."""

import os
import signal
import threading
from contextlib import suppress

import pytest

from statefx import StatefulBolt, TopologyBuilder, submit
from statefx.errors import BoltError, StatefxError
from tests.spark.bolts import Keep, recount, word_count
from tests.spark.counting import begun
from tests.spark.drivers import EXPECTED, FILES
from tests.spark.running import feed, kept, lines_of, local_folders, run, state, wait_for

pytestmark = pytest.mark.slow

NOW = {"availableNow": True}


class Fails(StatefulBolt):
    """Ends the query in its first transaction."""

    def initState(self, state):
        pass

    def execute(self, tup, collector):
        raise ValueError("to be mended")


def keeping(frame, bolt):
    builder = TopologyBuilder("kept")
    builder.setStream("lines", frame)
    builder.setBolt("keep", bolt).globalGrouping("lines")
    return builder.createTopology()


def test_a_first_transaction_that_was_rolled_back_is_the_same_again(spark, place):
    """Its offsets are kept. Other rows wait."""
    feed(place / "in", a=["x", "y", "x"], b=["z"])
    frame = lines_of(spark, place / "in")
    with pytest.raises(BoltError, match="to be mended"):
        run(keeping(frame, Fails()), spark, place / "ck", trigger=NOW)
    feed(place / "in", c=["v"])
    query = run(keeping(frame, Keep()), spark, place / "ck", trigger=NOW)
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


def test_stopped_at_once_again_and_again(spark, place):
    feed(place / "in", a=["x", "y"], b=["x"])
    topology = word_count(lines_of(spark, place / "in"))
    for n in range(4):
        query = submit(topology, spark, place / "ck")
        if n % 2:
            wait_for(lambda: list(local_folders(place / "ck")[-1].glob("content/offsets")), "Spark to begin")
        query.stop(timeout=0)
        assert query.exception() is None
    run(topology, spark, place / "ck", trigger=NOW)
    assert state(place / "ck", "count") == {"x": 2, "y": 1}


@pytest.mark.soak  # `test_faults.py` has two; `tests/recovery/test_simultaneous_starts.py` has many
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
