"""A driver that reads Kafka, four transactions in flight, is interrupted: it ends, and each record counts once."""

import json
import os
import signal
from pathlib import Path

import pytest

from statefx.testing import TopologyTester
from tests.kafka.spout_process import topology
from tests.kafka.topics import read
from tests.spark.conftest import drivers
from tests.spark.drivers import ON, under_way
from tests.spark.running import state, wait_for
from tests.spark.spouting import PENDING, Places, config

__all__ = ["drivers"]

pytestmark = pytest.mark.slow

EACH = 10
"""Rows of a transaction."""

EXIT_SECS = 20


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
