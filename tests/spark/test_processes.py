"""Drivers as processes: killed in each phase, asked to end, two at once; the outcome is that of an undisturbed run."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from statefx.coordinator.log import read_state
from statefx.errors import CheckpointError
from tests.conftest import ROOT
from tests.spark.bolts import recount
from tests.spark.running import feed, kinds, state, wait_for

pytestmark = pytest.mark.slow

FILES = {name: [f"{name} b c {number % 7}" for number in range(40)] for name in "abcdef"}
EXPECTED = recount(line for lines in FILES.values() for line in lines)
ONCE = {"availableNow": True}
ON = {"processingTime": "0 seconds"}


class Driver:
    """One start of the word count in `work`."""

    def __init__(self, work, provider="memory", trigger=ONCE):
        settings = {"work": str(work), "provider": provider, "trigger": trigger}
        self.work = Path(work)
        self.output = self.work / f"output-{len(list(self.work.glob('output-*')))}"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.counting", json.dumps(settings)],
                cwd=ROOT,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self):
        """The JSON lines that it printed."""
        lines = self.output.read_text(encoding="utf-8").splitlines()
        return {key: value for line in lines if line.startswith("{") for key, value in json.loads(line).items()}

    def wait_until(self, condition, what):
        """Wait for what the log shall say, for as long as the process lives."""

        def holds():
            assert self.process.poll() is None, f"ended before {what}:\n{self.output.read_text()[-3000:]}"
            return condition(log_of(self.work))

        wait_for(holds, what)

    def kill(self):
        """SIGKILL for the driver and its JVM; return what the log says was under way."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        (found,) = log_of(self.work).in_flight
        return str(found.phase), found.txid

    def end(self, code=0):
        assert self.process.wait(120) == code, self.output.read_text()[-3000:]
        return self.said


@pytest.fixture
def drivers():
    """Ends whatever a failed test has left behind."""
    started = []

    def start(*arguments, **more):
        started.append(Driver(*arguments, **more))
        return started[-1]

    yield start
    for driver in started:
        if driver.process.poll() is None:
            os.killpg(driver.process.pid, signal.SIGKILL)
            driver.process.wait()


def log_of(work):
    try:
        return read_state(work / "ck" / "transactions")
    except CheckpointError:
        from statefx.coordinator.fold import LogState

        return LogState()


def hold(work, phase, generation):
    (work / f"hold-{phase}").write_text(str(generation), encoding="ascii")


def under_way(phase, generation):
    return lambda log: log.generation == generation and any(str(one.phase) == phase for one in log.in_flight)


def test_killed_in_every_phase(drivers, place):
    feed(place / "in", **FILES)
    hold(place, "PREPARING", 1)
    first = drivers(place, "rocksdb")
    first.wait_until(lambda log: log.committed >= 1 and log.in_flight, "a second transaction to be PREPARING")
    fell = [first.kill()]

    hold(place, "ROLLBACK", 2)
    second = drivers(place, "rocksdb")
    second.wait_until(lambda log: log.generation == 2, "the second driver to recover")
    fell.append(second.kill())  # in recovery, on the way back

    hold(place, "COMMITTING", 3)
    third = drivers(place, "rocksdb")
    third.wait_until(under_way("COMMITTING", 3), "a transaction to be COMMITTING")
    fell.append(third.kill())

    hold(place, "COMMITTING", 4)
    fourth = drivers(place, "rocksdb")
    fourth.wait_until(lambda log: log.generation == 4, "the fourth driver to recover")
    fell.append(fourth.kill())  # in recovery, on the way forward

    lose_offsets(place)
    last = drivers(place, "rocksdb").end()
    assert fell == [("PREPARING", 2), ("PREPARING", 2), ("COMMITTING", 2), ("COMMITTING", 2)]
    assert last["recoveries"] == [{"txid": 2, "rolled": "forward"}]
    assert ("ROLLED_BACK", 2, 0) in kinds(place / "ck")
    assert state(place / "ck", "count") == {**EXPECTED, "late": 1}


def test_killed_with_state_in_memory(drivers, place):
    feed(place / "in", **FILES)
    hold(place, "PREPARING", 1)
    first = drivers(place)
    first.wait_until(lambda log: log.committed >= 1 and log.in_flight, "a second transaction to be PREPARING")
    fell = [first.kill()]
    hold(place, "COMMITTING", 2)
    second = drivers(place)
    second.wait_until(under_way("COMMITTING", 2), "a transaction to be COMMITTING")
    fell.append(second.kill())
    lose_offsets(place)
    last = drivers(place).end()
    assert fell == [("PREPARING", 2), ("COMMITTING", 2)]
    assert last["recoveries"] == [{"txid": 2, "rolled": "forward"}]
    assert state(place / "ck", "count") == {**EXPECTED, "late": 1}


def lose_offsets(work):
    """What a crash of the whole machine may take from Spark, which does not fsync, while there is more to read."""
    shutil.rmtree(work / "ck" / "spark" / "offsets")
    feed(work / "in", later=["late"])


def test_sigterm_drains(drivers, place):
    feed(place / "in", **FILES)
    hold(place, "PREPARING", 1)
    driver = drivers(place, trigger=ON)
    driver.wait_until(lambda log: log.committed == 1 and log.in_flight, "a second transaction to be PREPARING")
    driver.process.send_signal(signal.SIGTERM)
    (place / "hold-PREPARING").unlink()
    driver.end(-signal.SIGTERM)
    assert kinds(place / "ck")[-1] == ("COMMITTED", 2, None)
    assert state(place / "ck", "count") == recount(FILES["a"] + FILES["b"])


def test_two_drivers_on_one_checkpoint(drivers, place):
    feed(place / "in", **FILES)
    hold(place, "PREPARING", 1)
    first = drivers(place, trigger=ON)
    first.wait_until(lambda log: log.committed == 1 and log.in_flight, "a second transaction to be PREPARING")
    second = drivers(place)
    second.wait_until(lambda log: log.generation == 2 and log.committed >= 2, "the second driver to go on")
    (place / "hold-PREPARING").unlink()
    assert first.end(3)["error"] == "FencedError"
    assert second.end()["recoveries"] == [{"txid": 2, "rolled": "back"}]
    assert state(place / "ck", "count") == EXPECTED
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
