"""Spouts that live in their tasks, on Spark: against what lies at the source."""

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


def acked(place):
    return sorted(map(int, os.listdir(place / "acked")))


def failed(place):
    return sorted(map(int, (place / "failed").read_text().split()))


def test_each_message_is_counted_once_and_acked_and_those_that_fail_come_again(player, place):
    tracking.prepared(place, EACH)
    said = player.play("tests.spark.tracking", place, more={"each": EACH})
    assert acked(place) == list(MESSAGES)
    assert failed(place) == REFUSED
    assert state(place / "ck", "tally") == dict.fromkeys(MESSAGES, 1)
    counts = said["sources"]["folder"]
    assert counts["pending"] <= 2 * 10
    assert said["runs"] == 1


def test_a_trigger_that_ends_is_refused_before_anything_runs(spark, place):
    tracking.prepared(place, 1)
    topology = tracking.topology(place, 1)
    with pytest.raises(ConfigError, match=r"availableNow, but spout 'folder'.*query.stop"):
        submit(topology, spark, place / "ck", trigger={"availableNow": True})
    assert not (place / "ck").exists()
