"""Drivers with a KafkaSink that are killed, or stopped and replaced, at each step of a transaction of Kafka."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from statefx.errors import SinkError
from statefx.testing import TopologyTester
from tests.conftest import ROOT
from tests.kafka.sink_process import ROWS, WORK, topology
from tests.kafka.topics import STEPS, read
from tests.spark.running import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick")]

BOUND_SECS = 60
EXIT_SECS = 30  # an abort may take 6 s; so may the end of each consumer, and the look for the reason of a failure
# Without rows, and without the look at the marker, which comes before a generation is taken as well: who sleeps there
# is no zombie. The contract of sinks has drivers sleep at every step in one process.
START = [f"{when} {step}" for step in STEPS if step not in ("_stable_marker", "_send") for when in ("before", "after")]
LATER = [f"{when} {step}" for step in STEPS[2:] for when in ("before", "after")]  # its producer is warm
OFTEN = "before _commit", 2
CASES = [
    pytest.param((moment, number), id=f"{moment} {number}", marks=[] if (moment, number) == OFTEN else pytest.mark.soak)
    for number, moments in ((0, START), (2, LATER))
    for moment in moments
]


@pytest.fixture(params=CASES)
def process(request, kafka, tmp_path):
    """Return what starts a driver that sends itself a signal, with its topic and checkpoint."""
    topic, started = kafka.topic(partitions=2), []
    moment, number = request.param

    def start(name):
        command = [sys.executable, "-m", "tests.kafka.sink_process", kafka.address, topic, str(tmp_path)]
        started.append(
            subprocess.Popen([*command, moment, str(number), name], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        )
        return started[0]

    yield start, topic, tmp_path
    for each in started:
        each.kill()
        each.communicate()


def started_again(kafka, topic, place):
    """Start a driver with a broker that was frozen: it may be too busy at first, and a start waits for 20 seconds."""
    limit = time.monotonic() + BOUND_SECS
    while True:
        try:
            return TopologyTester(topology(kafka.address, topic), place)
        except SinkError as error:
            if "_TIMED_OUT" not in error.message or time.monotonic() > limit:
                raise


def test_a_driver_that_is_killed_loses_and_doubles_nothing(kafka, process):
    start, topic, place = process
    assert start("SIGKILL").wait(BOUND_SECS) == -signal.SIGKILL
    with TopologyTester(topology(kafka.address, topic), place) as tester:
        tester.run(WORK)
    assert_exact(kafka, topic)


def test_a_driver_that_is_stopped_and_replaced_adds_nothing_when_it_goes_on(kafka, process):
    start, topic, place = process
    zombie = start("SIGSTOP")
    _, status = os.waitpid(zombie.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), "it ended before it came to that"
    with TopologyTester(topology(kafka.address, topic), place) as successor:
        successor.run(WORK[:-1])
        zombie.send_signal(signal.SIGCONT)
        assert zombie.communicate(timeout=BOUND_SECS)[0] == "FencedError"
        successor.run(WORK)
    assert_exact(kafka, topic)


# Where the broker falls silent: a step, and how many transactions of Kafka there were before. When Ctrl-C comes: before
# the driver asks the broker for anything, while it waits for an answer, while it tries again; "its end": never.
SILENT = {
    "before": [(moment, number) for number, moments in ((0, START), (2, LATER)) for moment in moments],
    "while": [("before _initialised", 0), ("before _stable_marker", 0), ("before _mark", 2), ("before _commit", 2)],
    "again": [("before _mark", 2)],
    "its end": [("after _commit", len(WORK))],
}
OFTEN_SILENT = [("after _commit", len(WORK), "its end")]


@pytest.fixture(
    params=[
        pytest.param(
            (*at, when),
            id=" ".join(map(str, (*at, when))),
            marks=[] if (*at, when) in OFTEN_SILENT else pytest.mark.soak,
        )
        for when, places in SILENT.items()
        for at in places
    ]
)
def silent(request):
    return request.param


@pytest.mark.soak
def test_a_driver_ends_within_seconds_while_the_broker_is_silent(kafka, tmp_path, silent):
    topic = kafka.topic(partitions=2)
    moment, number, when = silent
    at = (moment, str(number), "SIGSTOP")
    command = [sys.executable, "-m", "tests.kafka.sink_process", kafka.address, topic, str(tmp_path), *at]
    told = tmp_path.with_name(f"{tmp_path.name}-stderr")  # the folder itself is the checkpoint
    env = {**os.environ, "PYTHONFAULTHANDLER": "1"}  # by SIGABRT all its threads are shown
    with told.open("wb") as stderr, subprocess.Popen(command, cwd=ROOT, env=env, stderr=stderr) as driver:
        os.waitpid(driver.pid, os.WUNTRACED)
        kafka.freeze()
        try:
            if when == "before":
                driver.send_signal(signal.SIGINT)
            driver.send_signal(signal.SIGCONT)
            if when == "while":
                with pytest.raises(subprocess.TimeoutExpired):
                    driver.wait(1)
            if when == "again":
                wait_for(lambda: "is tried again" in told.read_text(), "the first try to fail")
            if when in ("while", "again"):
                driver.send_signal(signal.SIGINT)
            assert driver.wait(EXIT_SECS) == (0 if when == "its end" else -signal.SIGINT)
        except subprocess.TimeoutExpired:
            driver.send_signal(signal.SIGABRT)
            driver.wait(BOUND_SECS)
            raise AssertionError(f"it goes on:\n{told.read_text()[-5000:]}") from None
        finally:
            driver.kill()
            kafka.thaw()
    with started_again(kafka, topic, tmp_path) as tester:
        tester.run(WORK)
    assert_exact(kafka, topic)


def assert_exact(kafka, topic):
    """Look with consumers of both levels: those of what was not committed may see rows again, and no others."""
    committed, all_of_it = (
        Counter(each.value().decode() for each in read(kafka, topic, level))
        for level in ("read_committed", "read_uncommitted")
    )
    assert committed == Counter(ROWS)
    assert all_of_it >= committed
    assert set(all_of_it) == set(ROWS)
