"""Drivers as processes: killed in each phase, asked to end, two at once; the outcome is that of an undisturbed run."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from statefx import submit
from tests.spark.bolts import recount
from tests.spark.counting import begun
from tests.spark.drivers import EXPECTED, FILES, ON, hold, log_of, published, under_way
from tests.spark.running import BOUND_SECS, feed, kinds, local_folders, run, state, wait_for

pytestmark = pytest.mark.slow


@pytest.mark.soak
@pytest.mark.parametrize("provider", ["rocksdb", "memory"])
def test_killed_in_every_phase(spark, drivers, place, provider):
    """Also in the recovery from what the one before has left."""
    feed(place / "in", **FILES)
    hold(place, "PREPARING", 1)
    first = drivers(place, provider)
    first.wait_until(lambda log: log.committed >= 1 and log.in_flight, "a second transaction to be PREPARING")
    fell = [first.kill()]

    hold(place, "ROLLBACK", 2)
    second = drivers(place, provider)
    second.wait_until(lambda log: log.generation == 2, "the second driver to recover")
    fell.append(second.kill())  # in recovery, on the way back

    hold(place, "COMMITTING", 3)
    third = drivers(place, provider)
    third.wait_until(under_way("COMMITTING", 3), "a transaction to be COMMITTING")
    fell.append(third.kill())

    hold(place, "COMMITTING", 4)
    fourth = drivers(place, provider)
    fourth.wait_until(lambda log: log.generation == 4, "the fourth driver to recover")
    fell.append(fourth.kill())  # in recovery, on the way forward

    lose_spark_s(place)
    last = run(*begun(spark, place, provider))
    assert fell == [("PREPARING", 2), ("PREPARING", 2), ("COMMITTING", 2), ("COMMITTING", 2)]
    assert last.recoveries == [{"txid": 2, "rolled": "forward"}]
    assert ("ROLLED_BACK", 2, 0) in kinds(place / "ck")
    assert state(place / "ck", "count") == published(place) == {**EXPECTED, "late": 1}


def lose_spark_s(work):
    """All that Spark has written is gone with the machine, while there is more to read."""
    for folder in local_folders(work / "ck"):
        shutil.rmtree(folder)
    feed(work / "in", later=["late"])


TO_ANOTHER = pytest.param([signal.SIGTERM], id="to another", marks=pytest.mark.soak)


@pytest.mark.parametrize("masked", [pytest.param([], id="to the main thread"), TO_ANOTHER])
def test_sigterm_drains(drivers, place, masked):
    """Where the main thread masks the signal, transactions are committed until it wakes up and sees it."""
    files = {f"{number:02}": [f"{number} b c"] * 40 for number in range(60)}
    feed(place / "in", **files)
    hold(place, "PREPARING", 1)
    driver = drivers(place, trigger=ON, more={"masked": masked})
    driver.wait_until(lambda log: log.committed == 1 and log.in_flight, "a second transaction to be PREPARING")
    driver.process.send_signal(signal.SIGTERM)
    (place / "hold-PREPARING").unlink()
    assert driver.end(-signal.SIGTERM)["ended"], "the program goes on behind awaitTermination"
    log = log_of(place)
    assert (kinds(place / "ck")[-1], log.in_flight) == (("COMMITTED", log.committed, None), ())
    assert log.committed == 2 or (masked and 2 < log.committed < len(files))
    assert state(place / "ck", "count") == recount(
        line for number in range(log.committed) for line in files[f"{number:02}"]
    )


@pytest.mark.soak  # test_zombies.py has two that are replaced, and wake up
def test_two_drivers_on_one_checkpoint(spark, drivers, place):
    feed(place / "in", **FILES)
    hold(place, "PREPARING", 1)
    first = drivers(place, trigger=ON)
    first.wait_until(lambda log: log.committed == 1 and log.in_flight, "a second transaction to be PREPARING")
    second = submit(*begun(spark, place))
    wait_for(lambda: log_of(place).committed >= 2, "the second driver to go on")
    (place / "hold-PREPARING").unlink()
    assert first.end(3)["error"] == "FencedError"
    assert second.awaitTermination(BOUND_SECS)
    assert second.recoveries == [{"txid": 2, "rolled": "back"}]
    assert state(place / "ck", "count") == published(place) == EXPECTED
    assert log_of(place).generation == 2


def test_no_java(place):
    """What a user without Java sees is PySpark's own: it names Java and JAVA_HOME."""
    code = "from pyspark.sql import SparkSession; SparkSession.builder.master('local[1]').getOrCreate()"
    folder = place / "bin"
    folder.mkdir()
    for tool in ("bash", "dirname", "basename", "sed", "env", "nice", "ps", "cat", "grep", "head", "tr"):
        if found := shutil.which(tool):
            (folder / tool).symlink_to(found)
    env = {key: value for key, value in os.environ.items() if key not in ("JAVA_HOME", "SPARK_HOME")}
    env |= {"PATH": str(folder), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode != 0
    assert "JAVA_HOME is not set" in done.stderr
    assert "JAVA_GATEWAY_EXITED" in done.stderr
