"""Jobs that are taken off a table in the transaction, on Spark: workers and drivers are killed; each counts once."""

import pytest

from tests.spark import queueing
from tests.spark.counting import BOUND_SECS
from tests.spark.running import state, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.spark]

JOBS = 120


@pytest.fixture
def started(drivers, place):
    """Start a driver; the table is made with the first."""
    queueing.prepared(place, JOBS)

    def start():
        return drivers(place, "rocksdb", program="tests.spark.queueing", more={})

    return start


def check(place):
    assert queueing.run(place, "select count(*) from jobs") == [(0,)]
    assert sorted(message for (message,) in queueing.run(place, "select message from out")) == list(range(JOBS))
    assert state(place / "ck", "tally") == dict.fromkeys(range(JOBS), 1)


@pytest.mark.soak
def test_workers_are_killed_at_each_step_and_each_job_counts_once(player, place):
    queueing.prepared(place, JOBS)
    for what, number in (("execute", 7), ("before-seal", 3), ("after-seal", 5), ("prepare", 7), ("execute", 90)):
        (place / f"kill-{what}-{number}").touch()
    said = player.play("tests.spark.queueing", place)
    assert said["runs"] >= 4
    assert not list(place.glob("kill-*"))
    check(place)


@pytest.mark.soak
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_driver_is_killed_when_it_acknowledges_and_each_job_counts_once(started, place, where):
    asked = [place / f"kill-{where}-acknowledge-{txid}" for txid in (1, 2)]
    for file in asked:
        file.touch()
        driver = started()
        # Not by the driver, which may have ended before it is looked at.
        wait_for(lambda file=file: not file.exists(), "the driver to be killed", BOUND_SECS)
        driver.kill()
    started().end()
    check(place)
