"""Executors give a bolt other tasks, and it is as if the driver had done it."""

import os
import signal

import pytest

from statefx import Checkpoint
from statefx.errors import CheckpointError, ConfigError, StatefxError
from tests.coordinator.changing import held, log_of, rescaled_here, send, stored
from tests.coordinator.test_rescaling import Misplaced, topology
from tests.spark.bolts import Once
from tests.testing.topologies import SMALL, Driver

pytestmark = pytest.mark.slow


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("was", "now", "provider"), [(2, 4, "memory"), (6, 4, "rocksdb"), (2, 3, "rocksdb"), (3, 1, "memory")]
)
def test_they_do_what_this_process_does(spark, driver, place, provider, was, now):
    send(driver, range(6), topology(was), limits=SMALL)
    here, expected = rescaled_here(driver.folder, now, place)
    told = []
    done = Checkpoint(driver.folder).rescale({"count": now}, progress=lambda *each: told.append(each), spark=spark)
    assert (done.tasks, done.keys, done.bytes) == (here.tasks, here.keys, here.bytes)
    assert stored(driver.folder, "count") == expected
    assert told[-1][0] == told[-1][1] >= 2 * done.bytes
    send(driver, range(6, 8), topology(now), limits=SMALL)


def test_a_worker_that_dies_changes_nothing_where_spark_tries_once(spark, place):
    once = Once(place)

    def killing(key):
        if once:
            os.kill(os.getpid(), signal.SIGKILL)
        return key[0] if isinstance(key, tuple) and isinstance(key[0], tuple) else key

    with Driver(place, "rocksdb") as driver:
        send(driver, range(6), topology(2), limits=SMALL)
        before = held(driver, 2)
        with pytest.raises(StatefxError, match="rescale: Spark could not do it, and nothing was changed; do it again"):
            Checkpoint(driver.folder).rescale({"other": 4}, groupingKey={"other": killing}, spark=spark)
        assert log_of(driver).topology.stateful["other"].parallelism == 2
        assert held(driver, 2) == before
        Checkpoint(driver.folder).rescale({"other": 4}, groupingKey={"other": killing}, spark=spark)
        assert sum(len(task[None]) for task in held(driver, 4, "other")) > 10


def test_a_mistake_is_told_as_the_driver_would_tell_it(spark, place):
    with Driver(place, "rocksdb") as driver:
        send(driver, range(4), topology(2, Misplaced), limits=SMALL)
        with pytest.raises(CheckpointError, match=r"bolt 'count' can't be given other tasks: .*say groupingKey="):
            Checkpoint(driver.folder).rescale({"count": 4}, spark=spark)
        with pytest.raises(ConfigError, match=r"rescale needs the SparkSession, got builtins\.str"):
            Checkpoint(driver.folder).rescale({"count": 4}, spark="local")
