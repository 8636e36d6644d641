"""Spouts that live in their tasks on Spark: workers and drivers are killed; against what lies at the source."""

import os

import pytest

from statefx import submit
from statefx.errors import ConfigError
from tests.spark import tracking
from tests.spark.running import state

pytestmark = [pytest.mark.slow, pytest.mark.spark]

EACH = 60
MESSAGES = range(tracking.TASKS * EACH)
REFUSED = sorted(message for message in MESSAGES if message % tracking.REFUSED == 0)


@pytest.fixture
def started(drivers, place):
    """Start a driver; the folders are made with the first."""
    tracking.prepared(place, EACH)

    def start(dedup=None):
        return drivers(place, "rocksdb", program="tests.spark.tracking", more={"each": EACH, "dedup": dedup})

    return start


@pytest.fixture
def played(player, place):
    """Have the topology run until all messages are acked."""
    tracking.prepared(place, EACH)
    return lambda dedup=None: player.play("tests.spark.tracking", place, more={"each": EACH, "dedup": dedup})


def acked(place):
    return sorted(map(int, os.listdir(place / "acked")))


def failed(place):
    return sorted(map(int, (place / "failed").read_text().split()))


def test_each_message_is_counted_once_and_acked_and_those_that_fail_come_again(played, place):
    said = played()
    assert acked(place) == list(MESSAGES)
    assert failed(place) == REFUSED
    assert state(place / "ck", "tally") == dict.fromkeys(MESSAGES, 1)
    counts = said["sources"]["folder"]
    assert counts["pending"] <= 2 * 10
    assert said["runs"] == 1


@pytest.mark.soak
def test_workers_are_killed_at_each_step_and_no_message_is_lost(played, place):
    for what, message in (("emit", 5), ("execute", 20), ("prepare", 4), ("ack", 30), ("execute", EACH + 1)):
        (place / f"kill-{what}-{message}").touch()
    said = played()
    assert said["runs"] >= 4
    assert acked(place) == list(MESSAGES)
    tallies = state(place / "ck", "tally")
    assert sorted(tallies) == list(MESSAGES)
    # What was committed and not told is delivered again, as it says: never less than once, and few more often.
    again = {message: count for message, count in tallies.items() if count > 1}
    assert len(again) <= said["runs"] * 2 * 10
    assert set(failed(place)) <= set(REFUSED)  # an attempt that was lost may have refused too


@pytest.mark.soak
def test_drivers_are_killed_and_no_message_is_lost(started, place):
    for goal in (EACH // 2, EACH):
        driver = started()
        driver.wait_until(lambda log, goal=goal: len(acked(place)) >= goal, "messages to be acked")
        driver.kill()
    started().end()
    assert acked(place) == list(MESSAGES)
    assert sorted(state(place / "ck", "tally")) == list(MESSAGES)


DEDUP = (("execute", 20), ("ack", 30), ("ack", EACH + 20))
"""Where workers are killed: behind a transaction, among the acks of one that is committed."""


@pytest.mark.soak
def test_with_dedup_what_is_delivered_again_counts_once(played, place):
    for what, message in DEDUP:
        (place / f"kill-{what}-{message}").touch()
    assert played("10 minutes")["runs"] >= len(DEDUP)
    assert not list(place.glob("kill-*"))
    check_dedup(place)


@pytest.mark.soak
def test_with_dedup_it_counts_once_whoever_is_killed(started, place):
    for what, message in DEDUP:
        (place / f"kill-{what}-{message}").touch()
    driver = started("10 minutes")
    driver.wait_until(lambda log: len(acked(place)) >= EACH, "messages to be acked")
    driver.kill()
    started("10 minutes").end()
    check_dedup(place)


def check_dedup(place):
    assert acked(place) == list(MESSAGES)
    assert state(place / "ck", "tally") == dict.fromkeys(MESSAGES, 1)
    assert not (place / "failed").exists()  # a message that a bolt fails fails its transaction


def test_a_trigger_that_ends_is_refused_before_anything_runs(spark, place):
    tracking.prepared(place, 1)
    topology = tracking.topology(place, 1)
    with pytest.raises(ConfigError, match=r"availableNow, but spout 'folder'.*query.stop"):
        submit(topology, spark, place / "ck", trigger={"availableNow": True})
    assert not (place / "ck").exists()
