"""Timers of the clock where each transaction is a job of Spark; where tasks live, see `test_pipelined`."""

import pytest

from tests.spark.beating import beat_twice

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def test_timers_go_on_while_nothing_is_read_and_over_a_restart(spark, place):
    found = beat_twice(spark, place / "ck", {"topology.engine": "jobs", "topology.state.provider": "rocksdb"})
    assert found["heard"] == found["beats"]
    assert min(found["heard"].values()) >= 4
    # one for each beat of each word at most, and those that had the words
    assert found["transactions"] <= 2 + sum(found["heard"].values())
