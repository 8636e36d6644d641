"""Drivers that read Kafka, four transactions in flight, killed and stopped at each step: each record counts once."""

import json

import pytest

from tests.spark.conftest import drivers
from tests.spark.drivers import ON, ONCE
from tests.spark.running import state
from tests.spark.spouting import PENDING, Places

__all__ = ["drivers"]

pytestmark = pytest.mark.slow

PARTITIONS, ROWS, EACH = 3, 30, 10
"""Of a topic; rows of a partition; rows of a transaction."""


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


def rows(start, stop):
    return [json.dumps({"number": number}) for number in range(start, stop)]


def counted(work):
    return state(work / "ck", "count")
