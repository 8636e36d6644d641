"""Drivers that read Kafka, four transactions in flight, killed, stopped or interrupted: each record counts once."""

import json
import os
import signal
from pathlib import Path

import pytest

from statefx.testing import TopologyTester
from tests.kafka.spout_process import topology
from tests.kafka.topics import read
from tests.spark.conftest import drivers
from tests.spark.drivers import ON, ONCE, under_way
from tests.spark.running import state, wait_for
from tests.spark.spouting import PENDING, Places, config

__all__ = ["drivers"]

pytestmark = pytest.mark.slow

PARTITIONS, ROWS, EACH = 3, 30, 10
"""Of a topic; rows of a partition; rows of a transaction."""

EXIT_SECS = 20


@pytest.mark.soak
def test_each_record_counts_once_whatever_becomes_of_drivers_workers_and_the_broker(kafka, drivers, tmp_path):
    topic, other = kafka.topic(partitions=PARTITIONS), kafka.topic()
    for partition in range(PARTITIONS):
        first = partition * 1_000
        kafka.send(topic, *rows(first, first + ROWS), partition=partition)
    places, generation = Places(tmp_path), 0

    def start(phase, trigger=ON, left=PENDING, **held):
        nonlocal generation
        generation += 1
        for each, txid in held.items():
            places.hold(each, generation, txid)
        driver = drivers(
            tmp_path, "rocksdb", trigger, "tests.kafka.spout_process", servers=kafka.address, topics=[topic, other],
            rows=EACH,
        )  # fmt: skip
        if phase:
            driver.wait_until(
                lambda log: places.held(phase, generation) and len(log.in_flight) == left, f"{phase} of {generation}"
            )
        return driver

    zombie = start("emit", execute=1, emit=PENDING)
    assert zombie.stop() == ("PREPARING", 1)
    killed = start("emit", execute=1, emit=PENDING)
    assert killed.kill() == ("PREPARING", 1)
    kafka.restart()
    killed = start("execute", execute=1)
    assert killed.kill() == ("PREPARING", 1)
    killed = start("commit", commit=1)
    assert killed.kill()[0] == "COMMITTING"
    kafka.transact(other, *rows(5_000, 5_010), commit=False)
    kafka.transact(other, *rows(6_000, 6_010))
    kafka.settle(other)
    places.release()
    places.kill("emit", 3)
    places.kill("execute", 5)
    start("", ONCE).end()
    expected = [first + row for first in (0, 1_000, 2_000) for row in range(ROWS)] + list(range(6_000, 6_010))
    assert counted(tmp_path) == dict.fromkeys(expected, 1)
    zombie.go_on()
    assert zombie.end(3)["error"] == "FencedError"
    assert counted(tmp_path) == dict.fromkeys(expected, 1)
    assert {path.name for path in tmp_path.glob("killed-*")} == {"killed-emit", "killed-execute"}


@pytest.mark.soak
@pytest.mark.spark
def test_after_ctrl_c_all_processes_end_within_seconds_while_the_broker_is_silent(kafka, drivers, tmp_path):
    """A task of transaction 5 asks for its topic then, and the driver publishes transaction 2."""
    topic, writes = kafka.topic(), kafka.topic()
    kafka.send(topic, *rows(0, 10 * EACH))
    places = Places(tmp_path)
    places.hold("execute", 1, 2)
    places.hold("emit", 1, 1 + PENDING)
    given = {"servers": kafka.address, "topics": [topic], "writes": writes, "rows": EACH}
    driver = drivers(tmp_path, "rocksdb", ON, "tests.kafka.spout_process", **given)
    driver.wait_until(lambda _: places.held("execute", 1) and places.held("emit", 1), "four in flight")
    kafka.freeze()
    try:
        places.release()
        driver.wait_until(under_way("COMMITTING", 1), "the decision of transaction 2")
        os.killpg(driver.process.pid, signal.SIGINT)  # as a terminal does
        assert driver.process.wait(EXIT_SECS) == -signal.SIGINT, driver.output.read_text()[-3000:]
        wait_for(lambda: not session_of(driver.process.pid), "its JVM and its workers to end", EXIT_SECS)
    finally:
        kafka.thaw()
    with TopologyTester(topology(tmp_path, given), tmp_path / "ck", config("rocksdb")) as tester:
        tester.drain()
    assert counted(tmp_path) == dict.fromkeys(range(10 * EACH), 1)
    assert sorted(json.loads(each.value())["number"] for each in read(kafka, writes)) == list(range(10 * EACH))


def session_of(leader):
    """The processes of a session that have not ended, by the Linux kernel."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            state, *others = (place / "stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(others[2]) == leader and state != "Z":
            found.append(int(place.name))
    return found


def rows(start, stop):
    return [json.dumps({"number": number}) for number in range(start, stop)]


def counted(work):
    return state(work / "ck", "count")
